"""The audits of a drill: what is planted is found, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from struct import pack
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from lab.audit.audit import LoadedChains, count_mistranslated, expectations
from lab.audit.log_changes import LogChanges, ResetPoint, compare_lane
from lab.audit.topic_reader import ends, stable_ends
from lab.faults.topic_changes import _closed
from mirrorless.chain.run import Run
from mirrorless.errors import Retriable
from mirrorless.verify.comparison import RecordAt, compare
from tests.support.chains import LANE, MemoryChains, reset, run

FAULTS = ("lost", "duplicated", "reordered", "different")
SOURCE = [RecordAt(offset, b"%d" % offset) for offset in (0, 1, 2, 5, 6, 7, 8)]
"""3 and 4 are no records."""


def log(*numbers: int, first: int = 0) -> list[RecordAt]:
    return [RecordAt(first + place, b"%d" % number) for place, number in enumerate(numbers)]


def found(
    target: list[RecordAt],
    point: ResetPoint | None,
    source: list[RecordAt] = SOURCE,
    lost: Sequence[RecordAt] = (),
    copied: int = 0,
) -> dict[str, int]:
    """Faults, where the source had some more before it lost its end, copied up to an offset."""
    comparison = compare_lane(source, target, point, lost, copied=copied)
    return {fault: getattr(comparison, fault) for fault in FAULTS if getattr(comparison, fault)}


def at_its_place(*contents: bytes, first: int = 0) -> list[RecordAt]:
    return [RecordAt(first + place, each) for place, each in enumerate(contents)]


WHOLE = (0, 1, 2, 5, 6, 7, 8)


@pytest.mark.parametrize(
    ("reset", "target", "faults"),
    [
        pytest.param(None, WHOLE, {}, id="without a reset: whole"),
        pytest.param(None, (5, 6, 7, 8), {"lost": 3}, id="without a reset, and not whole"),
        pytest.param((0, 0, False), WHOLE, {}, id="to the first record: whole"),
        pytest.param((0, 0, False), (5, 6, 7, 8), {"lost": 3}, id="to the first record, and not whole"),
        pytest.param((5, 0, False), (5, 6, 7, 8), {}, id="to a later one: whole from there"),
        pytest.param((5, 0, False), (2, 5, 6, 7, 8), {"different": 1}, id="written without the new generation's start"),
        pytest.param((5, 3, True), WHOLE, {}, id="truncated: whole before and behind"),
        pytest.param((5, 2, True), (0, 2, 5, 6, 7, 8), {"lost": 1}, id="truncated, one lost before"),
        pytest.param((5, 4, True), (0, 1, 1, 2, 5, 6, 7, 8), {"duplicated": 1}, id="truncated, one twice before"),
        pytest.param((5, 3, True), (1, 0, 2, 5, 6, 7, 8), {"reordered": 1}, id="truncated, in another order before"),
        pytest.param((5, 3, True), (0, 1, 9, 5, 6, 7, 8), {"different": 1}, id="truncated, a stranger before"),
        pytest.param((5, 5, True), (0, 1, 2, 5, 6, *WHOLE[3:]), {}, id="a run in doubt, removed and copied again"),
        pytest.param((0, 2, False), (7, 8, *WHOLE), {}, id="before the stop, a part of the source in order"),
        pytest.param((0, 2, False), (8, 7, *WHOLE), {"reordered": 1}, id="before the stop, in another order"),
        pytest.param((0, 2, False), (7, 7, *WHOLE), {"duplicated": 1}, id="before the stop, one twice"),
    ],
)
def test_what_a_lane_has_is_held_against_its_reset(
    reset: tuple[int, int, bool] | None, target: tuple[int, ...], faults: dict[str, int]
) -> None:
    """A reset is to an upstream offset, from a downstream one on, of a topic that kept its records or not."""
    point = reset and ResetPoint(upstream=reset[0], downstream=reset[1], kept=reset[2])

    assert found(log(*target), point) == faults


def test_what_another_producer_wrote_counts_for_nothing_and_hides_nothing() -> None:
    target = log(0, 90, 1, 2, 91, 5, 7, 7, 8)
    changes = LogChanges(removed={0: log(0)}, foreign=frozenset({b"90", b"91"}))

    assert found(changes.arrived(0, target[1:]), None) == {"lost": 1, "duplicated": 1}
    assert found(changes.arrived(1, target), None) == {"lost": 1, "duplicated": 1}


@pytest.mark.parametrize(
    ("newest", "fault"),
    [
        ((6, 7, 8), "lost"),
        ((5, 6, 8), "lost"),
        ((5, 6, 7), "lost"),
        ((5, 6, 6, 7, 8), "duplicated"),
        ((5, 7, 6, 8), "reordered"),
        ((5, 6, 99, 8), "different"),
    ],
)
@pytest.mark.parametrize("older", [(), (0, 1, 2)])
def test_a_fault_behind_the_reset_is_found(older: tuple[int, ...], newest: tuple[int, ...], fault: str) -> None:
    point = ResetPoint(upstream=5, downstream=len(older), kept=bool(older))

    assert found(log(*older, *newest), point) == {fault: 1}


def test_records_that_a_truncation_removed_count_as_arrived_once() -> None:
    """A broker that is killed soon after a truncation shows them again."""
    changes = LogChanges(removed={0: log(0, 1, 2)})

    assert changes.arrived(0, log(5, 6, first=3)) == log(0, 1, 2, 5, 6)
    assert changes.arrived(0, log(2, 5, 6, first=2)) == log(0, 1, 2, 5, 6)
    assert changes.arrived(0, []) == log(0, 1, 2)
    assert changes.arrived(1, log(0)) == log(0)


def after_loss(*contents: bytes) -> dict[str, int]:
    """Of a source that lost its end at 5, and was written on."""
    lost = at_its_place(b"old 5", b"old 6", b"old 7", first=5)
    point = ResetPoint(upstream=5, downstream=5, kept=True)
    return found(at_its_place(b"0", b"1", b"2", *contents), point, SOURCE, lost)


def test_what_the_source_lost_stays_on_the_target_once_and_each_new_record_follows_once() -> None:
    assert after_loss(b"old 5", b"old 6", b"5", b"6", b"7", b"8") == {}
    assert after_loss(b"old 5", b"old 5", b"5", b"6", b"7", b"8") == {"duplicated": 1}
    assert after_loss(b"old 6", b"old 5", b"5", b"6", b"7", b"8") == {"reordered": 1}
    assert after_loss(b"old 5", b"old 6", b"6", b"7", b"8") == {"lost": 1}
    assert after_loss(b"old 5", b"old 6", b"5", b"6", b"6", b"7", b"8") == {"duplicated": 1}


BROUGHT = (b"0", b"1", b"2", b"old 3", b"old 4", b"5", b"6")


def after_two(*contents: bytes, copied: int = 5) -> dict[str, int]:
    """Of a log that lost 3 and 4, and grew past 5: its mapping had brought 5 and 6 before the stop."""
    earlier = contents.index(b"6") + 1
    point = ResetPoint(upstream=7, downstream=earlier + 2, kept=True, earlier=(earlier,))
    lost = at_its_place(b"old 3", b"old 4", first=3)
    return found(at_its_place(*contents), point, log(*range(8)), lost, copied)


def test_what_two_resets_brought_is_each_record_once_over_all_generations() -> None:
    assert after_two(*BROUGHT, b"3", b"4", b"7") == {}
    assert after_two(*BROUGHT, b"4", b"3", b"7") == {"reordered": 1}
    assert after_two(*BROUGHT, b"3", b"5", b"7") == {"lost": 1, "duplicated": 1}
    assert after_two(*BROUGHT, b"4", b"old 4", b"7") == {"lost": 1, "duplicated": 1}
    assert after_two(*BROUGHT, b"3", b"4", b"6", b"7") == {"different": 1}
    assert after_two(*BROUGHT, b"3", b"9", b"7") == {"different": 1}


def test_what_the_source_lost_before_it_was_copied_is_no_loss_and_may_have_arrived() -> None:
    without = [each for each in BROUGHT if each != b"old 4"]

    assert after_two(*without, b"3", b"4", b"7", copied=4) == {}
    assert after_two(*BROUGHT, b"3", b"4", b"7", copied=4) == {}
    assert after_two(*without, b"3", b"4", b"7", copied=5) == {"lost": 1}
    assert after_two(*without, b"3", b"5", b"7", copied=4) == {"lost": 1, "duplicated": 1}


PLAIN, OPEN, MARKER = 0, 0x10, 0x30


def batch(base: int, count: int, attributes: int, producer: int) -> bytes:
    body = pack(">ibIHiqqq", 0, 2, 0, attributes, count - 1, 0, 0, producer) + b"\0" * 30
    return pack(">qi", base, len(body)) + body


def test_a_log_is_cut_between_batches_and_where_no_transaction_is_open(tmp_path: Path) -> None:
    batches = [
        batch(0, 5, PLAIN, -1),
        batch(5, 2, OPEN, 7),
        batch(7, 2, OPEN, 8),
        batch(9, 1, MARKER, 7),
        batch(10, 3, PLAIN, -1),
        batch(13, 1, MARKER, 8),
        batch(14, 2, PLAIN, -1),
    ]
    (log := tmp_path / "0.log").write_bytes(b"".join(batches) + b"\0" * 200)

    closed = _closed(log)

    size = len(batches[0])
    assert closed == {0: 0, 5: size, 14: 6 * size, 16: 7 * size}


def test_a_leader_that_says_no_offset_and_no_error_has_no_end_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen while leaders moved: taken for an end, it would count all of a remote partition as written since."""
    future: Future[SimpleNamespace] = Future()
    future.set_result(SimpleNamespace(offset=OFFSET_INVALID, timestamp=-1))
    described = SimpleNamespace(topics={"orders": SimpleNamespace(partitions={0: None}, error=None)})
    admin = SimpleNamespace(
        list_topics=lambda *_, **__: described, list_offsets=lambda *_, **__: {TopicPartition("orders", 0): future}
    )
    monkeypatch.setattr("lab.audit.topic_reader.AdminClient", lambda _: admin)

    for ask in (ends, stable_ends):
        with pytest.raises(Retriable, match="did not return its ends"):
            ask("127.0.0.1:9092", "orders")


END = 13
PLACES = {2: 10, 3: 11, 4: 12, 7: 14, 8: 15, 9: 16}
"""Upstream offsets and where they stand; 0, 1, 5, 6 and everything from 10 on is no record."""


def chain(*links: object) -> MemoryChains:
    chains = MemoryChains()
    chains.prepare(links)  # type: ignore[arg-type]  # tests give runs
    return chains


TRUE = (run(0, 5, (2, 10, 3)), run(5, 10, (7, 14, 3)))


def test_every_offset_up_to_the_stable_end_is_checked() -> None:
    """An offset that is not checked could be wrong for ever."""
    checked = [each.upstream for each in expectations(sorted(PLACES), PLACES, end=END)]

    assert checked == list(range(END + 1))


@pytest.mark.parametrize(
    ("links", "places", "wrong"),
    [
        pytest.param(TRUE, PLACES, 0, id="a true map, with records, gaps and an end"),
        pytest.param((run(0, 5, (2, 10, 2), (4, 13, 1)), TRUE[1]), PLACES, 1, id="one record at a wrong place"),
        # Records 7, 8, 9; gaps 5, 6; the end 10, and 11, 12, 13 beyond it.
        pytest.param((TRUE[0], run(5, 10, (7, 15, 3))), PLACES, 9, id="a run that is shifted by one"),
        # What is not confirmed is not part of the map, though its records may be visible.
        pytest.param((TRUE[0], run(5, 10, (7, 14, 3), state="prepared")), PLACES, 9, id="a run never confirmed"),
        pytest.param((), PLACES, END + 1, id="no map"),
        pytest.param((), {}, 0, id="an empty lane"),
        # Where a lost record should stand is unknown: one fault is one finding.
        pytest.param(TRUE, {up: down for up, down in PLACES.items() if up != 8}, 0, id="a record that is lost"),
        pytest.param(TRUE, {up: down for up, down in PLACES.items() if up != 9}, 0, id="the last record is lost"),
    ],
)
def test_each_upstream_offset_that_the_map_places_wrongly_counts_once(
    links: tuple[Run, ...], places: dict[int, int], wrong: int
) -> None:
    upstream = sorted(PLACES) if places else []

    assert count_mistranslated(chain(*links), LANE, upstream=upstream, places=places, end=END, seed=1) == wrong


def test_a_loaded_chain_answers_as_its_store_does() -> None:
    chains = chain(*TRUE)
    loaded = LoadedChains(chains, LANE)

    assert loaded.heads([LANE]) == chains.heads([LANE])
    for offset in range(-1, END):
        assert loaded.at_or_before(LANE, 0, offset) == chains.at_or_before(LANE, 0, offset)
        assert loaded.after(LANE, 0, offset, limit=1) == chains.after(LANE, 0, offset, limit=1)


def test_the_pairs_of_a_comparison_are_the_places_that_are_translated() -> None:
    """What `audit` hands from one to the other."""
    source = [RecordAt(upstream, b"%d" % upstream) for upstream in PLACES]
    target = [RecordAt(downstream, b"%d" % upstream) for upstream, downstream in PLACES.items()]

    pairs = compare(source, target).pairs

    assert {up.offset: down.offset for up, down in pairs} == PLACES


def test_after_a_reset_the_offsets_of_the_newest_generation_are_checked_and_no_others() -> None:
    """Its first run covers what lies between the reset and its first record."""
    chains = chain(run(0, 5, (2, 10, 3)))
    chains.reset(reset(5, 6))
    chains.prepare([run(6, 10, (7, 0, 3), generation=1)])
    places = {7: 0, 8: 1, 9: 2}

    assert [each.upstream for each in expectations([7, 8, 9], places, end=END, begin=6)] == [*range(6, END + 1)]
    for wrong, found in ((places, 0), ({7: 0, 8: 1, 9: 3}, 5)):
        assert count_mistranslated(chains, LANE, upstream=[7, 8, 9], places=wrong, begin=6, end=END, seed=1) == found
