"""The audit of a lane whose remote topic was deleted or truncated: what is planted there is found, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from struct import pack
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from lab.audit.log_changes import LogChanges, ResetPoint, compare_lane
from lab.audit.topic_reader import ends, stable_ends
from lab.faults.topic_changes import _closed
from mirrorless.errors import Retriable
from mirrorless.verify.comparison import RecordAt

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


RECREATED = ResetPoint(upstream=0, downstream=0, kept=False)
LATER = ResetPoint(upstream=5, downstream=0, kept=False)
TRUNCATED = ResetPoint(upstream=5, downstream=3, kept=True)


@pytest.mark.parametrize(
    ("point", "target"),
    [
        (None, log(0, 1, 2, 5, 6, 7, 8)),
        (RECREATED, log(0, 1, 2, 5, 6, 7, 8)),
        (LATER, log(5, 6, 7, 8)),
        (TRUNCATED, log(0, 1, 2, 5, 6, 7, 8)),
    ],
)
def test_a_lane_that_has_every_record_from_its_reset_on_has_no_fault(
    point: ResetPoint | None, target: list[RecordAt]
) -> None:
    assert found(target, point) == {}


def test_what_another_producer_wrote_counts_for_nothing_and_hides_nothing() -> None:
    target = log(0, 90, 1, 2, 91, 5, 7, 7, 8)
    changes = LogChanges(removed={0: log(0)}, foreign=frozenset({b"90", b"91"}))

    assert found(changes.arrived(0, target[1:]), None) == {"lost": 1, "duplicated": 1}
    assert found(changes.arrived(1, target), None) == {"lost": 1, "duplicated": 1}


@pytest.mark.parametrize("point", [None, RECREATED])
def test_a_lane_without_a_reset_and_one_that_was_reset_to_its_first_record_are_expected_whole(
    point: ResetPoint | None,
) -> None:
    assert found(log(5, 6, 7, 8), point) == {"lost": 3}


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


def test_records_that_the_reset_left_out_may_not_be_behind_it() -> None:
    """Someone without the new generation's start wrote there."""
    assert found(log(2, 5, 6, 7, 8), LATER) == {"different": 1}


@pytest.mark.parametrize(
    ("older", "fault"), [((0, 2), "lost"), ((0, 1, 1, 2), "duplicated"), ((1, 0, 2), "reordered"), ((0, 1, 9), None)]
)
def test_a_fault_before_the_reset_of_a_topic_that_kept_its_records_is_found(
    older: tuple[int, ...], fault: str | None
) -> None:
    point = ResetPoint(upstream=5, downstream=len(older), kept=True)

    assert found(log(*older, 5, 6, 7, 8), point) == ({fault: 1} if fault else {"different": 1})


def test_a_run_in_doubt_that_a_truncation_removed_and_the_reset_copied_again_is_no_fault() -> None:
    """The run's records stood before the reset and stand behind it: the target has one of the two."""
    assert found(log(0, 1, 2, 5, 6, 5, 6, 7, 8), ResetPoint(upstream=5, downstream=5, kept=True)) == {}


def test_what_went_with_a_deleted_topic_is_not_expected_but_what_came_before_its_reset_may_not_be_wrong() -> None:
    """Written into the new topic before the lane was stopped: a part of the source, in order."""
    assert found(log(7, 8, 0, 1, 2, 5, 6, 7, 8), ResetPoint(upstream=0, downstream=2, kept=False)) == {}
    assert found(log(8, 7, 0, 1, 2, 5, 6, 7, 8), ResetPoint(upstream=0, downstream=2, kept=False)) == {"reordered": 1}
    assert found(log(7, 7, 0, 1, 2, 5, 6, 7, 8), ResetPoint(upstream=0, downstream=2, kept=False)) == {"duplicated": 1}


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
