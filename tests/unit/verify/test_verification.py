"""Verification of one lane: every planted fault is found as exactly that fault, and nothing else is called one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Bound
from mirrorless.lane import Lane
from mirrorless.losses import Loss
from mirrorless.record import Record
from mirrorless.run import Run
from mirrorless.verify.findings import KINDS, LaneVerdict
from tests.support.batches import batch_of
from tests.support.chains import FLOW, LANE, run
from tests.support.verified_lane import VerifiedLane

CLEAN: dict[str, int] = dict.fromkeys(KINDS, 0)


def numbered(number: int) -> Record:
    return Record(offset=-1, timestamp=1_000 + number, headers=[("n", b"%d" % number)], key=b"k", value=b"%d" % number)


def found(verdict: LaneVerdict) -> dict[str, int]:
    return {kind: getattr(verdict.counts, kind) for kind in KINDS}


def only(kind: str, count: int = 1) -> dict[str, int]:
    return {**CLEAN, kind: count}


@st.composite
def lanes(draw: st.DrawFn, *, least: int = 2) -> VerifiedLane:
    """A lane of records that are all different, in random batches, read in random chunks.

    Some runs are of whole batches, which the source's log has too, or not.
    """
    lane = VerifiedLane()
    lane.source.chunk = draw(st.integers(1, 7))
    lane.target.chunk = draw(st.integers(1, 7))
    number = 0
    for size in (*draw(st.lists(st.integers(1, 6), min_size=1, max_size=8)), least):
        written: list[Record] = []
        for _ in range(draw(st.integers(1, 2))):
            written += lane.write(*(numbered(number + i) for i in range(size)))
            number += size
        lane.replicate(written, batch=draw(st.sampled_from((0, 0, 1, 3, 6))), passed=draw(st.booleans()))
    return lane


@settings(deadline=None)
@given(lane=lanes(), against_source=st.booleans())
def test_a_true_copy_is_proved_whole_and_has_no_finding(*, lane: VerifiedLane, against_source: bool) -> None:
    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == CLEAN
    assert (verdict.findings, verdict.notes) == ([], [])
    assert verdict.counts.proved == verdict.counts.records == len(lane.target.records)
    assert verdict.counts.compared == (verdict.counts.records if against_source else 0)
    assert [part.kind for part in verdict.segments] == ["proved"]


@pytest.mark.parametrize("engine", [0, 4])
def test_runs_of_whole_batches_are_proved_without_a_record_being_read(engine: int) -> None:
    lane = VerifiedLane()
    for first in range(0, 60, 10):
        lane.replicate(lane.write(*(numbered(first + i) for i in range(10))), batch=engine)

    verdict = lane.verify(against_source=True)

    assert (verdict.counts.proved, verdict.counts.compared, found(verdict)) == (60, 60, CLEAN)
    assert lane.target_batches is not None
    assert (lane.target.reads, lane.target_batches.reads) == (1, 1 if engine else 0)  # the fake reads by the other


@pytest.mark.parametrize("by_batches", [True, False])
def test_batches_that_were_compressed_anew_are_proved_by_their_records(*, by_batches: bool) -> None:
    lane = VerifiedLane()
    lane.replicate(lane.write(*(numbered(i) for i in range(9))), batch=4)
    lane.target.batches = {
        at: (batch_of([changed(each, offset=i) for i, each in enumerate(of)], "zstd"), of)
        for at, (_, of) in lane.target.batches.items()
    }
    if not by_batches:
        lane.target_batches = lane.source_batches = None

    verdict = lane.verify(against_source=True)

    assert (verdict.counts.proved, found(verdict)) == (9, CLEAN)
    assert (verdict.findings, verdict.notes) == ([], [])


def test_a_changed_record_of_a_whole_batch_without_the_source_is_found_by_its_run() -> None:
    lane = VerifiedLane()
    lane.replicate(lane.write(*(numbered(i) for i in range(9))), batch=4)
    lane.change(8, changed(lane.target.records[8], value=b"other"))
    lane.source.start = lane.source.next

    verdict = lane.verify()

    assert found(verdict) == only("different")
    assert "its last record is another one" in verdict.findings[0].what


@settings(deadline=None)
@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_a_record_that_is_gone_is_missing(*, lane: VerifiedLane, against_source: bool, data: st.DataObject) -> None:
    at = data.draw(st.sampled_from(list(lane.target.records)))
    lane.drop(at)

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("missing")
    assert verdict.counts.proved == verdict.counts.records - 1


@settings(deadline=None)
@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_a_record_that_stands_twice_is_duplicated_wherever_the_second_stands(
    *,
    lane: VerifiedLane,
    against_source: bool,
    data: st.DataObject,
) -> None:
    offsets = list(lane.target.records)
    at = data.draw(st.sampled_from(offsets))
    again = data.draw(st.integers(at + 1, lane.target.next))
    lane.insert(again, lane.target.records[at])

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("duplicated")
    assert verdict.findings[0].downstream == OffsetRange(again, again + 1)
    assert verdict.findings[0].what.endswith(f"downstream offset {at}")
    assert verdict.counts.proved == verdict.counts.records


@settings(deadline=None)
@given(lane=lanes(least=3), against_source=st.booleans(), data=st.data())
def test_two_records_that_changed_places_are_one_reordered(
    *,
    lane: VerifiedLane,
    against_source: bool,
    data: st.DataObject,
) -> None:
    offsets = list(lane.target.records)
    at = data.draw(st.integers(0, len(offsets) - 2))
    one, other = lane.target.records[offsets[at]], lane.target.records[offsets[at + 1]]
    lane.change(offsets[at], other)
    lane.change(offsets[at + 1], one)

    assert found(lane.verify(against_source=against_source)) == only("reordered")


@settings(deadline=None)
@given(lane=lanes(least=3), against_source=st.booleans(), data=st.data())
def test_a_record_that_stands_far_from_its_place_is_reordered(
    *,
    lane: VerifiedLane,
    against_source: bool,
    data: st.DataObject,
) -> None:
    """Its place is empty, and somewhere else it stands without a run: runs between them hold."""
    offsets = list(lane.target.records)
    at = data.draw(st.integers(0, len(offsets) - 2))
    record = lane.target.records[offsets[at]]
    lane.drop(offsets[at])
    lane.insert(lane.target.next, record)

    assert found(lane.verify(against_source=against_source)) == only("reordered")


PARTS = {
    "value": {"value": b"changed"},
    "key": {"key": b"other"},
    "headers": {"headers": [("n", b"changed")]},
    "timestamp": {"timestamp": 5},
    "tombstone": {"value": None},
    "empty": {"value": b""},
    "no key": {"key": None},
}


@pytest.mark.parametrize("part", PARTS)
@settings(deadline=None)
@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_a_record_with_one_changed_part_is_different(
    *,
    part: str,
    lane: VerifiedLane,
    against_source: bool,
    data: st.DataObject,
) -> None:
    at = data.draw(st.sampled_from(list(lane.target.records)))
    original = lane.target.records[at]
    lane.change(at, changed(original, **PARTS[part]))  # type: ignore[arg-type]  # some of its fields

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("different")
    (finding,) = verdict.findings
    assert finding.downstream == OffsetRange(at, at + 1)
    assert finding.upstream is not None
    assert lane.source.records[finding.upstream.first].value == original.value
    expected = {
        "value": "value",
        "key": "key differs from byte 0",
        "headers": "header 1 of 1: value",
        "timestamp": "has become 5",
        "tombstone": "has become null",
        "empty": "has become empty",
        "no key": "key of 1 bytes has become null",
    }
    assert expected[part] in finding.what


@settings(deadline=None)
@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_a_record_of_another_producer_is_different(
    *,
    lane: VerifiedLane,
    against_source: bool,
    data: st.DataObject,
) -> None:
    at = data.draw(st.integers(0, lane.target.next))
    stranger = Record(offset=-1, timestamp=1, headers=[], key=None, value=b"stranger")
    lane.insert(at, stranger)

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("different")
    assert verdict.findings[0].upstream is None
    assert "no run claims it" in verdict.findings[0].what


def a_lane(*, records: int = 12, batch: int = 4) -> VerifiedLane:
    lane = VerifiedLane()
    lane.copy([numbered(i) for i in range(records)], batch=batch)
    return lane


def test_without_the_source_a_missing_record_is_still_counted_with_its_place() -> None:
    lane = a_lane()
    lane.source.silent = True
    lane.drop(6)

    verdict = lane.verify()

    assert found(verdict) == only("missing")
    assert verdict.findings[0].upstream == OffsetRange(6, 7)
    assert verdict.counts.not_provable == 3  # the others of its run
    assert verdict.counts.proved == 8


def test_without_the_source_a_changed_record_is_found_by_its_run_and_by_what_the_run_holds() -> None:
    lane = a_lane()
    lane.source.start = 100  # retention has passed
    lane.change(8, changed(lane.target.records[8], timestamp=7, value=b"other"))

    verdict = lane.verify()

    assert found(verdict) == only("different")
    (finding,) = verdict.findings
    assert (finding.upstream, finding.downstream) == (OffsetRange(5, 9), OffsetRange(5, 9))
    assert "1 timestamps are outside of the run's, the first at downstream offset 8" in finding.what
    assert "its last record is another one" in finding.what


def test_a_run_in_doubt_is_neither_proved_nor_missing() -> None:
    lane = a_lane()
    lane.replicate(lane.write(numbered(90), numbered(91)), state="prepared", visible=False)

    verdict = lane.verify(against_source=True)

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.in_doubt) == (12, 2)
    assert [part.kind for part in verdict.segments] == ["proved", "in doubt"]


def test_what_retention_took_from_the_target_is_expired_and_not_missing() -> None:
    lane = a_lane()
    lane.target.start = 7
    lane.target.records = {at: each for at, each in lane.target.records.items() if at >= 7}

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert (verdict.counts.expired, verdict.counts.not_provable, verdict.counts.proved) == (6, 2, 4)
    assert [part.kind for part in verdict.segments] == ["expired", "proved"]


def test_retention_that_overtakes_the_reading_takes_nothing_for_missing() -> None:
    lane = a_lane(records=40, batch=4)
    read = lane.target.read

    def overtaking(*arguments: object) -> object:
        for number, chunk in enumerate(read(*arguments)):  # type: ignore[arg-type]  # passed on
            yield chunk
            if number == 2:
                lane.target.start = 23
                lane.target.records = {at: each for at, each in lane.target.records.items() if at >= 23}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lane.target), "read", lambda _, *arguments: overtaking(*arguments))
        verdict = lane.verify()

    assert found(verdict) == CLEAN
    counts = verdict.counts
    assert counts.expired > 0
    assert counts.proved + counts.expired + counts.not_provable == 40


def test_runs_behind_the_stable_end_are_reported_as_not_provable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorless.verify.lane_verification.HIDDEN_SECONDS", 0.0)
    lane = a_lane()
    lane.target.next, lane.target.hidden = 10, 5

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.not_provable) == (8, 4)
    assert "an open transaction hides" in verdict.notes[0]


@pytest.mark.parametrize("silent", [False, True])
def test_what_was_lost_at_the_end_of_the_target_is_missing(*, silent: bool) -> None:
    """An unclean leader election: a follower that had less became the leader."""
    lane = a_lane()
    lane.source.silent = silent
    lane.target.next = 7
    lane.target.records = {at: each for at, each in lane.target.records.items() if at < 7}

    verdict = lane.verify()

    assert found(verdict) == only("missing", 6)
    upstream = [finding.upstream for finding in verdict.findings]
    assert upstream == [OffsetRange(7, 9), OffsetRange(10, 14)]
    assert "ends at 7, and the map has records up to 13" in verdict.notes[0]


def test_records_of_expired_links_are_not_strangers() -> None:
    lane = a_lane(records=20, batch=4)
    for link in [link for link in lane.chains.of(LANE) if isinstance(link, Run)][0:3:2]:
        lane.chains.replace_link(link, None)

    verdict = lane.verify(against_source=True)

    assert found(verdict) == CLEAN
    assert verdict.counts.proved == verdict.counts.records == 12
    assert verdict.counts.before_map == 4  # those before the map's beginning are not even read


def test_where_the_newest_link_has_expired_what_lies_before_it_is_proved_and_nothing_is_called_a_stranger() -> None:
    lane = a_lane(records=20, batch=4)
    lane.chains.prepare([run(0, 1, (0, 0, 1), lane=Lane(FLOW, LANE.topic, 1))])  # a neighbour keeps the slice alive
    lane.chains.replace_link(lane.chains.of(LANE)[-1], None)

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert verdict.counts.proved == 16


def test_an_older_generation_is_proved_too_and_not_held_against_a_source_that_is_another_one() -> None:
    lane = a_lane(records=8, batch=4)
    lane.source.records.clear()
    lane.source.next = 0
    lane.reset(0)
    lane.copy([numbered(50 + i) for i in range(4)], batch=4)

    verdict = lane.verify(against_source=True)

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.compared) == (12, 4)


def test_a_generation_of_a_target_topic_that_was_made_anew_is_superseded() -> None:
    lane = a_lane(records=8, batch=4)
    lane.target.records.clear()
    lane.target.next = 0
    lane.reset(10)
    lane.copy([numbered(50 + i) for i in range(4)], batch=4)

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.not_provable) == (4, 8)


def test_what_no_run_covers_on_the_source_is_missing_unless_the_ledger_has_it() -> None:
    lane = VerifiedLane()
    records = lane.write(*(numbered(i) for i in range(10)))
    lane.replicate([records[2], records[3], records[5], records[9]])
    lane.ledger.note(Loss(lane=LANE, generation=0, first=6, next=8, cause="oversize", detail="too large", at=0))

    verdict = lane.verify(against_source=True)

    assert found(verdict) == only("missing", 2)  # 4 and 8; 0 and 1 lie before the lane
    assert verdict.counts.known_losses == 2
    assert [finding.upstream for finding in verdict.findings] == [OffsetRange(4, 5), OffsetRange(8, 9)]


def test_a_source_that_changed_after_it_was_copied_is_reported_only_where_it_is_compared() -> None:
    lane = a_lane()
    lane.source.records[6] = changed(lane.source.records[6], value=b"rewritten")

    assert found(lane.verify()) == CLEAN
    verdict = lane.verify(against_source=True)

    assert found(verdict) == only("different")
    assert verdict.findings[0].upstream == OffsetRange(6, 7)
    assert "the source has other records now" in verdict.notes[0]


def test_a_source_that_was_created_anew_is_not_compared() -> None:
    lane = a_lane()
    lane.source.next = 3

    verdict = lane.verify(against_source=True)

    assert found(verdict) == CLEAN
    assert "re-created or truncated" in verdict.notes[0]


def test_a_map_that_names_wrong_places_is_reported_as_such() -> None:
    lane = a_lane()
    for link in lane.chains.of(LANE):
        if isinstance(link, Run) and link.position == 4:
            lane.chains.replace_link(link, changed_spans(link))

    verdict = lane.verify()

    assert verdict.counts.misplaced > 0
    assert verdict.counts.missing == verdict.counts.different == verdict.counts.reordered == 0


def changed_spans(run: Run) -> Run:
    from dataclasses import replace  # noqa: PLC0415  used here only

    from mirrorless.run import Span  # noqa: PLC0415  same

    first = run.spans[0]
    return replace(run, spans=(Span(first.upstream, first.downstream - 1, first.length),))


def test_only_the_requested_part_is_read_and_its_neighbours_are_no_strangers() -> None:
    lane = a_lane(records=40, batch=4)

    by_offset = lane.verify(start=Bound("offset", 12), end=Bound("offset", 17))
    by_time = lane.verify(start=Bound("timestamp", 1_036))

    assert found(by_offset) == found(by_time) == CLEAN
    assert by_offset.counts.records == by_offset.counts.proved == 8
    assert by_time.counts.records == by_time.counts.proved == 4


def test_a_compacted_topic_is_proved_where_its_runs_are_whole_and_never_called_missing() -> None:
    lane = a_lane()
    lane.drop(1)

    verdict = lane.verify(target_compacts=True)

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.compacted) == (8, 4)


def test_records_of_a_delivery_under_way_are_no_duplicates_where_delivery_is_at_least_once() -> None:
    lane = a_lane()
    lane.target.add(numbered(99))

    assert found(lane.verify(delivery="at_least_once")) == CLEAN
    assert found(lane.verify()) == only("different")


def test_many_findings_are_counted_and_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorless.verify.findings.KEPT", 120)
    lane = a_lane(records=400, batch=50)
    for at in list(lane.target.records)[::2]:
        lane.change(at, changed(lane.target.records[at], value=b"x%d" % at))

    verdict = lane.verify()

    assert found(verdict) == only("different", 200)
    assert len(verdict.findings) == 120
    verdict.show()
    assert len(verdict.findings) == 50
    assert verdict.left_out == 150


def test_records_behind_the_map_are_read_in_pieces_and_reported_as_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failover: everything that was written on the target since."""
    monkeypatch.setattr("mirrorless.verify.windows.PIECE", 4)
    monkeypatch.setattr("mirrorless.verify.explanation.LEFT_OVERS", 10)
    lane = a_lane()
    for number in range(50):
        lane.target.add(numbered(100 + number))

    verdict = lane.verify()

    assert found(verdict) == only("different", 50)
    assert [finding.downstream for finding in verdict.findings] == [OffsetRange(15, 65)]
    assert "more faults than can be kept" in verdict.notes[0]
    assert verdict.counts.proved == 12


def test_a_hole_of_many_expired_links_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorless.verify.windows.PIECE", 2)
    lane = a_lane(records=40, batch=4)
    for link in [link for link in lane.chains.of(LANE) if 10 <= link.position < 35]:
        lane.chains.replace_link(link, None)

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert verdict.counts.before_map == 20
    assert verdict.counts.proved == verdict.counts.records == 20
