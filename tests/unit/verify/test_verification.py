"""Verification of one lane: every planted fault is found as exactly that fault, and nothing else is called one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run, Span
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Bound
from mirrorless.records.record import Record
from mirrorless.records.record_batch import Codec
from mirrorless.verify.findings import KINDS, LaneVerdict
from mirrorless.verify.lane import LaneVerification
from mirrorless.verify.parts import LEAST_BYTES, SECTION_BYTES, VerifyTask, section_bytes
from mirrorless.verify.summary import is_clean
from tests.support.batches import batch_of
from tests.support.chains import FLOW, LANE, MemoryLossLedger, run
from tests.support.flows import make_flow
from tests.support.tries import tries
from tests.support.two_way_world import TOPIC, TwoWayWorld
from tests.support.verified_lane import NO_RULES, MemoryLog, VerifiedLane, numbered, ruled

CLEAN: dict[str, int] = dict.fromkeys(KINDS, 0)


def found(verdict: LaneVerdict) -> dict[str, int]:
    return {kind: getattr(verdict.counts, kind) for kind in KINDS}


def only(kind: str, count: int = 1) -> dict[str, int]:
    return {**CLEAN, kind: count}


RULES = [
    ruled(format="bytes", keep="!ends_with(headers.n, '7')", value={"hmac": "pii"}, version=version)
    for version in (1, 2)
]


@st.composite
def lanes(draw: st.DrawFn, *, least: int = 2, rules: bool = True) -> VerifiedLane:
    """A lane of records that are all different, in random batches, read in random chunks.

    Some runs are of whole batches, which the source's log has too, or not. Some are copied by a rule.
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
        rule = draw(st.sampled_from((None, None, *RULES))) if rules else None
        batch = draw(st.sampled_from((0, 0, 1, 3, 6))) if rule is None else 0
        lane.replicate(written, batch=batch, passed=draw(st.booleans()), rule=rule)
    return lane


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
    lane = VerifiedLane.copied(60, runs=10, batch=engine)

    verdict = lane.verify(against_source=True)

    assert (verdict.counts.proved, verdict.counts.compared, found(verdict)) == (60, 60, CLEAN)
    assert lane.target_batches is not None
    assert (lane.target.reads, lane.target_batches.reads) == (1, 1 if engine else 0)  # the fake reads by the other


@pytest.mark.parametrize("against_source", [True, False])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_batches_on_which_the_target_stamped_its_own_time_are_not_proved(codec: Codec, *, against_source: bool) -> None:
    """Their payloads are the source's, and readers get other times."""
    lane = VerifiedLane.copied(batch=4, codec=codec)
    lane.stamp(9_000, since=5)

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("different", 8)
    assert verdict.counts.proved == 4
    assert "timestamp 1004 has become 9000" in verdict.findings[0].what
    assert not is_clean([verdict])


def test_batches_on_which_the_target_stamped_its_own_time_are_not_proved_without_the_source_either() -> None:
    lane = VerifiedLane.copied(batch=4)
    lane.stamp(9_000)
    lane.source.start = lane.source.next

    verdict = lane.verify()

    assert (found(verdict), verdict.counts.proved) == (only("different", 3), 0)
    assert "4 timestamps are outside of the run's" in verdict.findings[0].what


def test_a_batch_that_was_stamped_with_the_time_of_its_newest_record_is_not_proved() -> None:
    lane = VerifiedLane.copied(4, batch=4)
    lane.stamp(1_003)

    assert found(lane.verify()) == only("different", 3)


def test_a_batch_whose_newest_time_is_another_one_is_proved_by_its_records() -> None:
    """Readers get the same, a search by time does not."""
    lane = VerifiedLane.copied(batch=4)
    lane.target.batches = {at: (changed(each, max_timestamp=9), of) for at, (each, of) in lane.target.batches.items()}

    assert lane.verify().counts.proved == 12
    lane.source.start = lane.source.next
    assert lane.verify().counts.proved == 0


@pytest.mark.parametrize("by_batches", [True, False])
def test_batches_that_were_compressed_anew_are_proved_by_their_records(*, by_batches: bool) -> None:
    lane = VerifiedLane.copied(9, runs=9, batch=4)
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
    lane = VerifiedLane.copied(9, runs=9, batch=4)
    lane.change(8, changed(lane.target.records[8], value=b"other"))
    lane.source.start = lane.source.next

    verdict = lane.verify()

    assert found(verdict) == only("different")
    assert "its last record is another one" in verdict.findings[0].what


@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_a_record_that_is_gone_is_missing(*, lane: VerifiedLane, against_source: bool, data: st.DataObject) -> None:
    at = data.draw(st.sampled_from(list(lane.target.records)))
    lane.drop(at)

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("missing")
    assert verdict.counts.proved == verdict.counts.records - 1


@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_a_record_that_stands_twice_is_duplicated_wherever_the_second_stands(
    *, lane: VerifiedLane, against_source: bool, data: st.DataObject
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


@given(lane=lanes(least=3), against_source=st.booleans(), data=st.data())
def test_two_records_that_changed_places_are_one_reordered(
    *, lane: VerifiedLane, against_source: bool, data: st.DataObject
) -> None:
    offsets = list(lane.target.records)
    at = data.draw(st.integers(0, len(offsets) - 2))
    one, other = lane.target.records[offsets[at]], lane.target.records[offsets[at + 1]]
    lane.change(offsets[at], other)
    lane.change(offsets[at + 1], one)

    assert found(lane.verify(against_source=against_source)) == only("reordered")


@given(lane=lanes(least=3), against_source=st.booleans(), data=st.data())
def test_a_record_that_stands_far_from_its_place_is_reordered(
    *, lane: VerifiedLane, against_source: bool, data: st.DataObject
) -> None:
    """Its place is empty, and somewhere else it stands without a run: runs between them hold."""
    offsets = list(lane.target.records)
    at = data.draw(st.integers(0, len(offsets) - 2))
    record = lane.target.records[offsets[at]]
    lane.drop(offsets[at])
    lane.insert(lane.target.next, record)

    assert found(lane.verify(against_source=against_source)) == only("reordered")


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "value": ({"value": b"changed"}, "value"),
    "key": ({"key": b"other"}, "key differs from byte 0"),
    "headers": ({"headers": [("n", b"changed")]}, "header 1 of 1: value"),
    "timestamp": ({"timestamp": 5}, "has become 5"),
    "tombstone": ({"value": None}, "has become null"),
    "empty": ({"value": b""}, "has become empty"),
    "no key": ({"key": None}, "key of 1 bytes has become null"),
}


@pytest.mark.parametrize("part", PARTS)
@given(lane=lanes(rules=False), against_source=st.booleans(), data=st.data())
def test_a_record_with_one_changed_part_is_different(
    *, part: str, lane: VerifiedLane, against_source: bool, data: st.DataObject
) -> None:
    at = data.draw(st.sampled_from(list(lane.target.records)))
    original = lane.target.records[at]
    fields, said = PARTS[part]
    lane.change(at, changed(original, **fields))

    verdict = lane.verify(against_source=against_source)

    assert found(verdict) == only("different")
    (finding,) = verdict.findings
    assert finding.downstream == OffsetRange(at, at + 1)
    assert finding.upstream is not None
    assert lane.source.records[finding.upstream.first].value == original.value
    assert said in finding.what


@given(lane=lanes(), against_source=st.booleans(), data=st.data())
def test_records_of_another_producer_are_foreign_and_all_others_are_proved(
    *, lane: VerifiedLane, against_source: bool, data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from((1, 1, 2, 9)))
    at = [data.draw(st.integers(0, lane.target.next)) for _ in range(data.draw(st.integers(1, 3)))]
    for number in range(count):
        lane.insert(at[number % len(at)], numbered(1_000 + number))

    verdict = lane.verify(against_source=against_source)

    assert (found(verdict), verdict.counts.foreign) == (CLEAN, count)
    assert verdict.counts.proved == verdict.counts.records == len(lane.target.records) - count
    assert {(finding.kind, finding.upstream) for finding in verdict.findings} == {("foreign", None)}
    assert "no run claims it" in verdict.findings[0].what
    assert is_clean([verdict])


def test_another_producers_copies_of_the_same_records_are_duplicated_all_the_same() -> None:
    lane = VerifiedLane()
    records = lane.write(*(numbered(i) for i in range(10)))
    for each in records:
        lane.target.add(each)
    lane.replicate(records)

    verdict = lane.verify()

    assert (found(verdict), verdict.counts.proved, verdict.counts.foreign) == (only("duplicated", 10), 10, 0)
    assert not is_clean([verdict])


def a_lane(*, records: int = 12, batch: int = 4) -> VerifiedLane:
    lane = VerifiedLane()
    lane.copy([numbered(i) for i in range(records)], batch=batch)
    return lane


@pytest.mark.parametrize("known", [False, True], ids=["", "known to the job"])
def test_without_the_source_a_missing_record_is_still_counted_with_its_place(*, known: bool) -> None:
    lane = a_lane()
    lane.source.silent = True
    lane.drop(6)

    verdict = lane.verify(source_silent="it is deaf" if known else "")

    assert lane.source.asked == (not known), "no lane waits for it again"
    assert verdict.notes == [f"the source did not answer: {'it is deaf' if known else 'the cluster does not answer'}"]
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


def test_a_run_in_doubt_behind_a_wrong_one_is_not_missing_whatever_stands_before_it() -> None:
    lane = a_lane()
    lane.drop(13)
    lane.replicate(lane.write(numbered(90), numbered(91)), state="prepared", visible=False)
    lane.insert(15, numbered(99))

    verdict = lane.verify()

    assert found(verdict) == only("different")  # what no run claims stands for what is gone
    assert (verdict.counts.in_doubt, verdict.counts.proved) == (2, 11)


def test_what_retention_took_from_the_target_is_expired_and_not_missing() -> None:
    lane = a_lane()
    lane.target.start = 7
    lane.target.records = {at: each for at, each in lane.target.records.items() if at >= 7}

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert (verdict.counts.expired, verdict.counts.not_provable, verdict.counts.proved) == (6, 2, 4)
    assert [part.kind for part in verdict.segments] == ["expired", "proved"]


@pytest.fixture
def overtake(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryLog], None]:
    """Let retention delete what stands below 23 when the third chunk of a log was read."""
    read = MemoryLog.read

    def overtaking(overtaken: MemoryLog) -> None:
        def reading(log: MemoryLog, *arguments: Any) -> Any:
            for number, chunk in enumerate(read(log, *arguments)):
                yield chunk
                if log is overtaken and number == 2:
                    log.start = 23
                    log.records = {at: each for at, each in log.records.items() if at >= 23}

        monkeypatch.setattr(MemoryLog, "read", reading)

    return overtaking


def test_retention_that_overtakes_the_reading_takes_nothing_for_missing(overtake: Callable[[MemoryLog], None]) -> None:
    lane = a_lane(records=40, batch=4)
    overtake(lane.target)

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    counts = verdict.counts
    assert counts.expired > 0
    assert counts.proved + counts.expired + counts.not_provable == 40


def test_retention_that_overtakes_the_reading_of_the_source_leaves_the_lane_proved(
    overtake: Callable[[MemoryLog], None],
) -> None:
    lane = a_lane(records=40, batch=4)
    overtake(lane.source)

    verdict = lane.verify(against_source=True)

    assert (found(verdict), verdict.counts.proved) == (CLEAN, 40)
    assert verdict.counts.source_gone > 0
    assert verdict.counts.compared + verdict.counts.source_gone == 40


def test_runs_behind_the_stable_end_are_reported_as_not_provable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorless.verify.lane.HIDDEN_SECONDS", 0.0)
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


def test_records_of_a_link_that_expired_right_before_a_reset_are_not_strangers() -> None:
    lane = a_lane(records=8, batch=4)
    last = lane.chains.of(LANE)[-1]
    lane.reset(8)
    lane.copy([numbered(50 + i) for i in range(4)], batch=4)
    lane.chains.replace_link(last, None)

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.before_map) == (8, 4)


def test_where_the_newest_link_has_expired_what_lies_before_it_is_proved_and_nothing_is_called_a_stranger() -> None:
    lane = a_lane(records=20, batch=4)
    lane.chains.prepare([run(0, 1, (0, 0, 1), lane=Lane(FLOW, LANE.topic, 1))])  # a neighbour keeps the journal alive
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
            first = link.spans[0]
            moved = replace(link, spans=(Span(first.upstream, first.downstream - 1, first.length),))
            lane.chains.replace_link(link, moved)

    verdict = lane.verify()

    assert verdict.counts.misplaced > 0
    assert verdict.counts.missing == verdict.counts.different == verdict.counts.reordered == 0


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
    assert lane.verify().counts.foreign == 1


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
    monkeypatch.setattr("mirrorless.verify.run_ranges.PIECE", 4)
    monkeypatch.setattr("mirrorless.verify.explanation.LEFT_OVERS", 10)
    lane = a_lane()
    for number in range(50):
        lane.target.add(numbered(100 + number))

    verdict = lane.verify()

    assert (found(verdict), verdict.counts.foreign) == (CLEAN, 50)
    assert [finding.downstream for finding in verdict.findings] == [OffsetRange(15, 65)]
    assert "some duplicated ones are reported as foreign" in verdict.notes[0]
    assert not is_clean([verdict]), "some may stand twice"
    assert verdict.counts.proved == 12


def test_a_hole_of_many_expired_links_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorless.verify.run_ranges.PIECE", 2)
    lane = a_lane(records=40, batch=4)
    for link in [link for link in lane.chains.of(LANE) if 10 <= link.position < 35]:
        lane.chains.replace_link(link, None)

    verdict = lane.verify()

    assert found(verdict) == CLEAN
    assert verdict.counts.before_map == 20
    assert verdict.counts.proved == verdict.counts.records == 20


# A lane in parts: wherever it is cut, its verdict is that on the whole lane


OPTIONS = st.fixed_dictionaries(
    {
        "against_source": st.booleans(),
        "target_compacts": st.sampled_from((False, False, True)),
        "delivery": st.sampled_from(("exactly_once", "exactly_once", "at_least_once")),
        "start": st.sampled_from((Bound("earliest"), Bound("earliest"), Bound("offset", 7), Bound("timestamp", 1_004))),
        "end": st.sampled_from((Bound("latest"), Bound("latest"), Bound("offset", 15))),
    }
)


@st.composite
def lanes_with_faults(draw: st.DrawFn) -> VerifiedLane:
    """A lane with faults of every kind, gaps, losses, a reset, expired links, a doubt, and a log that begins later."""
    lane = VerifiedLane()
    lane.source.chunk, lane.target.chunk = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    number = 0
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=10))
    turn = draw(st.integers(0, len(sizes) * 4))
    for count, size in enumerate(sizes):
        if count == turn:
            lane.reset(lane.source.next)
        written = lane.write(*(numbered(number + i) for i in range(size)))
        number += size
        if draw(st.integers(0, 9)) == 0:
            at = written[0].offset
            loss = Loss(lane=LANE, generation=0, first=at, next=at + 1, cause="oversize", detail="too large", at=0)
            lane.ledger.note(loss)
        kept = [each for each in written if draw(st.integers(0, 9))] or written
        rule, by = draw(st.sampled_from(((None, None), (None, None), (RULES[0], None), (RULES[1], RULES[0]))))
        batch = draw(st.sampled_from((0, 0, 1, 3))) if rule is None else 0
        lane.replicate(kept, batch=batch, passed=draw(st.booleans()), rule=rule, by=by)
    if draw(st.integers(0, 3)) == 0:
        lane.replicate(lane.write(numbered(900)), state="prepared", visible=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 5))):
        _harm(draw, lane)
    for link in [each for each in lane.chains.of(LANE) if isinstance(each, Run)][1:-1]:
        if draw(st.integers(0, 14)) == 0:
            lane.chains.replace_link(link, None)
    if draw(st.integers(0, 4)) == 0:
        lane.target.start = draw(st.integers(0, lane.target.next))
        lane.target.records = {at: each for at, each in lane.target.records.items() if at >= lane.target.start}
    if draw(st.integers(0, 4)) == 0:
        lane.source.start = draw(st.integers(0, lane.source.next))
    lane.source.silent = False
    return lane


def _harm(draw: st.DrawFn, lane: VerifiedLane) -> None:
    offsets = list(lane.target.records)
    if len(offsets) < 2:
        return
    at = draw(st.integers(0, len(offsets) - 2))
    here, there = offsets[at], offsets[at + 1]
    one, other = lane.target.records[here], lane.target.records[there]
    match draw(st.sampled_from(("drop", "change", "swap", "again", "strange", "move", "many"))):
        case "drop":
            lane.drop(here)
        case "change":
            lane.change(here, changed(one, value=b"changed"))
        case "swap":
            lane.change(here, other)
            lane.change(there, one)
        case "again":
            lane.insert(draw(st.integers(here + 1, lane.target.next)), one)
        case "strange":
            lane.insert(draw(st.integers(0, lane.target.next)), numbered(draw(st.integers(800, 802))))
        case "move":
            lane.drop(here)
            lane.insert(draw(st.integers(0, lane.target.next)), one)
        case _:
            for each in offsets[at : at + draw(st.integers(2, 12))]:
                lane.change(each, changed(lane.target.records[each], timestamp=7))


def content(verdict: LaneVerdict) -> object:
    """All of a verdict but what reading took. Findings of one lane have no order of their own."""
    findings = sorted(repr(each) for each in verdict.findings)
    ends = verdict.generation, verdict.position
    return verdict.rules, verdict.counts, findings, sorted(verdict.notes), verdict.segments, ends


@settings(max_examples=tries(80, many=300))
@given(lane=lanes_with_faults(), options=OPTIONS, data=st.data())
def test_wherever_a_lane_is_cut_its_verdict_is_that_on_the_whole(
    lane: VerifiedLane, options: dict[str, Any], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirrorless.verify.lane.HIDDEN_SECONDS", 0.0)
        whole = lane.verify(**options)
        cut, _ = lane.verify_in_parts(lambda: data.draw(st.booleans()), **options)

    assert content(cut) == content(whole)


def test_a_lane_is_cut_by_bytes_and_every_run_stays_whole() -> None:
    lane = VerifiedLane()
    lane.copy([numbered(i) for i in range(40)], batch=4)
    runs = [each for each in lane.chains.of(LANE) if isinstance(each, Run)]

    verdict, count = lane.verify_in_parts(lambda: False, most=sum(each.bytes for each in runs) // 3)

    assert (count, verdict.counts.proved) == (3, 40)


def test_sections_are_smaller_where_cores_would_have_nothing_to_do() -> None:
    assert section_bytes(10**13, 8) == SECTION_BYTES
    assert section_bytes(4 * 10**9, 2) == 500_000_000
    assert section_bytes(1_000, 2) == LEAST_BYTES


# Both directions between the same topics


THERE, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")


@pytest.fixture
def world() -> TwoWayWorld:
    """Three records of each cluster, in another order on each."""
    world = TwoWayWorld([THERE, BACK])
    for _ in range(3):
        world.produce("us-east", marker=True)
        world.produce("eu-west")
        world.deliver(THERE)
        world.deliver(BACK)
    world.settle()
    return world


def log_of(world: TwoWayWorld, alias: str) -> MemoryLog:
    visible = world.visible(alias)
    return MemoryLog(records={each.offset: each for each in visible}, next=len(world.log(alias)))


def verified(world: TwoWayWorld, flow: FlowName, target: MemoryLog | None = None) -> LaneVerdict:
    flow_settings = make_flow(
        flow, source="nowhere:1", target="nowhere:2", replication_policy="identity", origins=("eu-west", "us-east")
    )
    return LaneVerification(
        task=VerifyTask(settings=flow_settings, topic=TOPIC, partition=0, run_id="v", against_source=True),
        chains=world.chains,
        ledger=MemoryLossLedger(),
        target=target or log_of(world, flow.target),
        source=log_of(world, flow.source),
        note=lambda *_, **__: None,
        rules=NO_RULES,
    ).verify()


@pytest.mark.parametrize("flow", [THERE, BACK], ids=str)
def test_both_directions_are_proved_and_compared(world: TwoWayWorld, flow: FlowName) -> None:
    verdict = verified(world, flow)

    assert found(verdict) == CLEAN
    assert (verdict.counts.proved, verdict.counts.compared, verdict.findings) == (3, 3, [])


def test_a_copy_that_is_gone_is_missing_and_one_that_stands_twice_is_duplicated(world: TwoWayWorld) -> None:
    copies = [each for each in world.visible("eu-west") if each.headers]
    lacking, repeated = log_of(world, "eu-west"), log_of(world, "eu-west")
    del lacking.records[copies[1].offset]
    repeated.add(copies[1])

    assert found(verified(world, THERE, lacking)) == only("missing")
    assert found(verified(world, THERE, repeated)) == only("duplicated")


def test_a_record_of_the_targets_own_that_is_changed_is_not_the_flows(world: TwoWayWorld) -> None:
    harmed = log_of(world, "eu-west")
    own = next(each for each in harmed.records.values() if not each.headers)
    own.value = b"changed"

    assert found(verified(world, THERE, harmed)) == CLEAN
