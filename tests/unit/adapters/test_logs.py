"""Logs by the Kafka client and by whole batches, and ranges of them that are read side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.adapters.kafka.lane_log import SILENCE_SECONDS, KafkaBatchLaneLog
from mirrorless.adapters.kafka.log import PULL, KafkaLog
from mirrorless.adapters.kafka.log_ranges import TO_THE_END, Range, RangePart, joined, read_ranges
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import BatchChunk, OffsetRange
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch
from tests.support.batches import batch_of
from tests.support.memory_log import MemoryLog, MemoryPartition
from tests.support.protocol_world import records

# By the Kafka client

ONE, OTHER = ("orders", 0), ("orders", 1)


class FakeConsumer:
    """Gives messages in the parts in which they are given to it: the first of a part alone, as the client does."""

    def __init__(self, *parts: list[Message]) -> None:
        self.parts = list(parts)
        self.assigned: dict[tuple[str, int], int] = {}

    def poll(self, _seconds: float) -> Message | None:
        """The first message of the next part."""
        return self.parts[0].pop(0) if self.parts else None

    def consume(self, _count: int, *, timeout: float) -> list[Message]:
        """The others; then nothing."""
        assert timeout == 0
        rest = self.parts[0]
        if rest:
            self.parts[0] = []
        else:
            self.parts.pop(0)
        return rest

    def incremental_assign(self, partitions: Iterable[Any]) -> None:
        """Of partitions that are not assigned yet."""
        for each in partitions:
            assert (each.topic, each.partition) not in self.assigned
            self.assigned[each.topic, each.partition] = each.offset

    def incremental_unassign(self, partitions: Iterable[Any]) -> None:
        """Of partitions that are assigned: the client refuses others."""
        for each in partitions:
            del self.assigned[each.topic, each.partition]


def log_of(*parts: list[Message]) -> tuple[KafkaLog, FakeConsumer]:
    consumer = FakeConsumer(*parts)
    log = KafkaLog(ClusterSettings(alias="a", bootstrap="a:9092"), flow="a->b", tuning=PULL)
    log._consumer = cast("Consumer", consumer)
    return log, consumer


def record(offset: int, place: tuple[str, int] = ONE, *, epoch: int = 1) -> Message:
    return Message(*place, offset, value=b"v", timestamp=(1, 0), leader_epoch=epoch)


def event(code: int, offset: int = 0, place: tuple[str, int] = ONE) -> Message:
    return Message(*place, offset, error=KafkaError(code))


def arrivals(log: KafkaLog) -> Arrivals:
    return log.arrivals(0, records=100, size=100)


def offsets(found: Arrivals) -> dict[tuple[str, int], list[int]]:
    return {place: [each.offset for each in some] for place, some in found.records.items()}


def test_what_lies_behind_what_is_wanted_is_left_out_and_its_partition_let_go() -> None:
    log, consumer = log_of([record(0), record(1, epoch=2), record(5, epoch=3), record(0, OTHER), record(6, epoch=3)])
    log.follow({ONE: 0, OTHER: 0}, {ONE: 4})

    found = arrivals(log)

    assert offsets(found) == {ONE: [0, 1], OTHER: [0]}
    assert (found.covered, found.epochs, found.bytes) == ({ONE: 4, OTHER: 1}, {ONE: 2, OTHER: 1}, 3)
    assert consumer.assigned == {OTHER: 0}
    log.leave([ONE, OTHER])
    log.follow({ONE: 7})
    assert consumer.assigned == {ONE: 7}


@pytest.mark.parametrize("together", [True, False])
def test_a_log_that_ends_behind_what_is_wanted_is_not_said_to_be_read_to_its_end(*, together: bool) -> None:
    """Nothing was taken of what lies between: whoever took it for read would leave it out."""
    records, end = [record(0), record(1), record(5)], [event(KafkaError._PARTITION_EOF, 9)]
    log, _ = log_of(records + end) if together else log_of(records, end)
    log.follow({ONE: 0}, {ONE: 4})

    found = arrivals(log)

    assert (offsets(found), found.covered, found.ended.get(ONE, 4)) == ({ONE: [0, 1]}, {ONE: 4}, 4)


def test_a_log_that_ends_below_what_is_wanted_is_said_to() -> None:
    log, _ = log_of([record(0), event(KafkaError._PARTITION_EOF, 3)])
    log.follow({ONE: 0}, {ONE: 4})

    assert arrivals(log).ended == {ONE: 3}


REFUSED = KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize("made_up", [12, 40])
def test_a_fetch_that_is_refused_late_is_none_of_where_the_partition_is_followed_again(made_up: int) -> None:
    """The client goes on behind a batch that it cannot read, at an offset that it makes up."""
    log, _ = log_of([record(2)], [event(REFUSED, made_up), record(5)], [event(REFUSED, made_up)])
    log.follow({ONE: 2}, {ONE: 3})
    arrivals(log)
    log.leave([ONE])
    log.follow({ONE: 5})

    found = arrivals(log)

    assert (offsets(found), found.out_of_range) == ({ONE: [5]}, set())
    assert arrivals(log).out_of_range == {ONE}, "of a partition of which something came"


@pytest.mark.parametrize("again", [False, True])
def test_an_offset_that_the_log_does_not_hold_is_told(*, again: bool) -> None:
    log, _ = log_of([event(REFUSED, 5)])
    if again:
        log.follow({ONE: 2})
        log.leave([ONE])
    log.follow({ONE: 5})

    assert arrivals(log).out_of_range == {ONE}


def test_a_partition_that_may_not_be_read_leaves_the_others_and_so_does_what_names_none() -> None:
    denied = event(KafkaError.TOPIC_AUTHORIZATION_FAILED, place=OTHER)
    nameless = Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    log, _ = log_of([nameless, denied, record(0)])
    log.follow({ONE: 0, OTHER: 0})

    found = arrivals(log)

    assert (offsets(found), list(found.refused)) == ({ONE: [0]}, [OTHER])
    assert "orders-1" in str(found.refused[OTHER])


def test_nothing_is_taken_from_behind_a_damaged_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself goes on there."""
    log, _ = log_of([record(0), event(KafkaError._BAD_MSG, 1), record(9), record(0, OTHER)], [record(10)])
    monkeypatch.setattr(log, "_damage", lambda _place, offset: BatchUnreadable("damaged", offset=offset))
    log.follow({ONE: 0, OTHER: 0})

    found = arrivals(log)

    assert (offsets(found), found.covered) == ({ONE: [0], OTHER: [0]}, {ONE: 1, OTHER: 1})
    assert found.unreadable[ONE].offset == 1
    assert not arrivals(log)


# One partition, by whole batches


def a_batch(first: int) -> RecordBatch:
    """Ten records."""
    return batch_of(records(*range(first, first + 10)))


def lane_log_of(own: MemoryPartition) -> tuple[KafkaBatchLaneLog, MemoryLog]:
    log, raw = KafkaBatchLaneLog(ClusterSettings(alias="a", bootstrap="a:9092"), flow="a->b"), MemoryLog({ONE: own})
    opened = iter([raw])  # not twice
    log._log._opened = lambda: next(opened)
    return log, raw


@pytest.mark.parametrize("end", [40, 90])
def test_what_comes_goes_on_at_once_and_the_first_begins_and_the_last_ends_where_the_range_does(end: int) -> None:
    log, raw = lane_log_of(MemoryPartition([a_batch(at) for at in range(0, 40, 10)], end=end))

    chunks = list(log.read(*ONE, OffsetRange(5, 35), lambda: 60.0))

    assert [[each.offset for each in chunk.records] for chunk in chunks] == [[5, 10], [20, 30]]
    assert [chunk.covered for chunk in chunks] == [20, 35]
    assert (raw.at, raw.closed) == ({}, False)


def test_a_reader_that_has_seen_enough_leaves_the_log_to_the_next_one() -> None:
    log, raw = lane_log_of(MemoryPartition([a_batch(at) for at in range(0, 40, 10)], end=40))

    for _ in log.read(*ONE, OffsetRange(0, 40), lambda: 60.0):
        break

    assert raw.at == {}
    assert [chunk.covered for chunk in log.read(*ONE, OffsetRange(0, 40), lambda: 60.0)] == [20, 40]


@pytest.mark.parametrize("ending", ["unreadable", "refused", "begins above", "open transaction"])
def test_what_was_read_before_a_log_ends_badly_is_given_first(ending: str) -> None:
    own = MemoryPartition([a_batch(0), a_batch(10)], end=20)
    match ending:
        case "unreadable":
            own.damaged, words = BatchUnreadable("the checksum is not that of its bytes", offset=10), "checksum"
        case "refused":
            words = "does not show"
        case "begins above":
            words = "does not hold upstream offset 10"
        case _:
            own.content, own.end, words = [a_batch(0)], 10, "@ 10 showed nothing in time"
    log, raw = lane_log_of(own)
    raw.few, chunks = 1, list[BatchChunk]()

    def read_all() -> None:
        for chunk in log.read(*ONE, OffsetRange(0, 20), lambda: 60.0):
            chunks.append(chunk)
            own.refused = ending == "refused"
            own.start = 15 if ending == "begins above" else 0

    with pytest.raises((BatchUnreadable, RecordsGone, Retriable), match=words):
        read_all()

    assert [chunk.covered for chunk in chunks] == [10]
    assert raw.closed, "what an error interrupts is not used again"


def test_a_cluster_that_shows_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    log, raw = lane_log_of(MemoryPartition([a_batch(0)], end=20))

    def arrivals(_: MemoryLog, seconds: float, **__: int) -> Arrivals:
        now[0] += seconds
        return Arrivals()

    monkeypatch.setattr(MemoryLog, "arrivals", arrivals)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(Retriable, match="@ 0 showed nothing in time"):
        list(log.read(*ONE, OffsetRange(0, 20), lambda: 600.0))

    assert SILENCE_SECONDS <= now[0] < SILENCE_SECONDS + 2
    assert raw.closed


# Ranges


def looks(number: int) -> object:
    """A deadline that is over after so many looks at it."""
    left = [1.0] * number
    return lambda: left.pop() if left else 0.0


def read(
    log: MemoryLog, place: TopicPartition, *ranges: Range, near: int = 0, most: int = 40
) -> tuple[list[int], RangePart]:
    """The offsets that were seen, and the last that was said of the partition."""
    parts = list(read_ranges(log, {place: ranges}, looks(most), near=near))  # type: ignore[arg-type]  # a deadline
    assert log.at == {}, "what was read is left"
    return [each.offset for part in parts for each in part.records], parts[-1]


@given(
    records=st.sets(st.integers(0, 40)),
    bounds=st.sets(st.integers(0, 45), min_size=2, max_size=8),
    start=st.integers(0, 20),
    near=st.integers(0, 10),
    few=st.integers(1, 5),
)
def test_what_a_log_has_of_ranges_is_read_once_and_in_order(
    records: set[int], bounds: set[int], start: int, near: int, few: int
) -> None:
    log, growing = MemoryLog(few=few), sorted(bounds)
    ranges = list(zip(growing[::2], growing[1::2], strict=False))
    end = log.partition(ONE, *sorted(each for each in records if each >= start), start=start, end=42).end

    seen, last = read(log, ONE, *ranges, near=near, most=400)

    within = {offset for first, following in ranges for offset in range(max(first, start), min(following, end))}
    assert seen == sorted(records & within)
    assert (last.over, last.failure) == (True, None)
    assert last.until == min(ranges[-1][1], max(end, start))
    assert bool(last.log_start) == (start > ranges[0][0])


def test_partitions_are_read_side_by_side_and_one_that_may_not_be_read_leaves_the_others() -> None:
    log = MemoryLog()
    log.partition(ONE, 0, 1, 2)
    log.partition(OTHER).refused = True

    parts = list(read_ranges(log, {ONE: [(0, 3)], OTHER: [(0, 3)]}, lambda: 1.0))

    assert [(each.place, each.over) for each in parts] == [(ONE, False), (OTHER, True), (ONE, True)]
    assert isinstance(parts[1].failure, Retriable)


@pytest.mark.parametrize(
    ("offsets", "end", "leader", "seen", "until", "over"),
    [
        pytest.param([5], None, {}, [5], 6, True, id="its leader says to end there"),
        pytest.param([0, 1], None, {}, [], 2, True, id="ends below them"),
        pytest.param([5, 6, 7], 9, {"shown": 5}, [5, 6, 7], 8, True, id="its leader shows less of than there is"),
        pytest.param([], 5, {"silent": True}, [], -1, False, id="its leader does not say yet where it ends"),
    ],
)
def test_ranges_are_read_up_to_the_end_of_a_log_that(
    offsets: list[int], end: int | None, leader: dict[str, Any], *, seen: list[int], until: int, over: bool
) -> None:
    log = MemoryLog()
    own = log.partition(ONE, *offsets, end=end)
    for name, value in leader.items():
        setattr(own, name, value)

    found, last = read(log, ONE, (5, 8))

    assert (found, last.until, last.over, last.failure) == (seen, until, over, None)


@pytest.mark.parametrize("ranges", [[(5, 8)], [(2, 3), (5, 8)]], ids=["within a range", "at the next range"])
def test_a_log_that_is_cut_and_grows_on_while_it_is_read_is_no_answer(ranges: Sequence[Range]) -> None:
    """Records of both logs would come together."""
    log, seen = MemoryLog(few=1), list[RangePart]()
    log.partition(ONE, *range(30))

    for part in read_ranges(log, {ONE: ranges}, lambda: 1.0):
        seen.append(part)
        own = log.partitions[ONE]
        own.start, own.end = (0, 30)
        log.at[ONE] = 31  # as the client says it, once the log is as long again

    assert isinstance(seen[-1].failure, Retriable)


def test_a_batch_that_nobody_can_read_ends_the_ranges_that_it_lies_in_alone() -> None:
    log = MemoryLog()
    log.partition(ONE, *range(10), end=30).damaged = BatchUnreadable("damaged", offset=10, following=20)

    for ranges, until, damaged in (([(0, 30)], 10, True), ([(3, 5), (12, 15)], 10, True), ([(4, 8)], 8, False)):
        seen, last = read(log, ONE, *ranges)
        assert (last.until, isinstance(last.failure, BatchUnreadable)) == (until, damaged)
        assert seen == list(range(ranges[0][0], min(ranges[0][1], 10)))


def test_whoever_has_enough_of_a_partition_reads_on_in_the_others() -> None:
    log, seen = MemoryLog(few=1), list[TopicPartition]()
    log.partition(ONE, *range(10))
    log.partition(OTHER, *range(3))

    for part in read_ranges(log, {ONE: [(0, TO_THE_END)], OTHER: [(0, TO_THE_END)]}, lambda: 1.0):
        seen.append(part.place)
        part.over = part.over or part.place == ONE

    assert seen == [ONE, OTHER, OTHER, OTHER]


@pytest.mark.parametrize("bound", ["records", "size"])
def test_a_bound_ends_the_reading_and_what_was_read_by_then_counts(bound: str) -> None:
    log = MemoryLog()
    log.partition(ONE, *range(10))

    parts = list(read_ranges(log, {ONE: [(0, 10)]}, lambda: 1.0, **{bound: 3}))

    assert (parts[-1].until, parts[-1].over) == (3, False)


def test_a_reader_that_has_seen_enough_leaves_the_log_as_it_was() -> None:
    log = MemoryLog()
    log.partition(ONE, *range(10))

    reading = read_ranges(log, {ONE: [(0, 10)]}, lambda: 1.0)
    next(reading)
    reading.close()

    assert log.at == {}


def test_ranges_that_are_near_each_other_are_read_through() -> None:
    assert joined([(5, 6), (6, 7), (1_000, 1_001), (1_101, 1_102), (4_999, 5_000)], 500) == [
        (5, 7),
        (1_000, 1_102),
        (4_999, 5_000),
    ]
