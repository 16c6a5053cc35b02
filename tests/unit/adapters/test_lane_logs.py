"""A partition's log, by records that are committed and by whole batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from mirrorless.adapters.kafka.lane_log import KafkaBatchLaneLog
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import BatchChunk, OffsetRange
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals, Log
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch
from tests.support.batches import batch_of
from tests.support.protocol_world import records

PLACE = ("orders", 0)


@dataclass
class Answers:
    """Implements what is asked of a raw log, by answers that are given in turn; `None` is no answer in time."""

    given: list[Arrivals | None]
    followed: dict[TopicPartition, int] = field(default_factory=dict)
    closed: bool = False

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int]) -> None:
        """See `Log.follow`."""
        self.followed |= offsets

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `Log.leave`."""
        for place in places:
            del self.followed[place]

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `Log.arrivals`."""
        assert size > 0
        return self.given.pop(0) or Arrivals()

    def close(self) -> None:
        """See `Log.close`."""
        self.followed.clear()
        self.closed = True


def a_batch(first: int) -> RecordBatch:
    """Ten records."""
    return batch_of(records(*range(first, first + 10)))


def some(*batches: RecordBatch) -> Arrivals:
    size = sum(each.size for each in batches)
    return Arrivals(records={PLACE: list(batches)}, covered={PLACE: batches[-1].next}, bytes=size)


def log_of(*answers: Arrivals | None) -> tuple[KafkaBatchLaneLog, Answers]:
    size = 2 * a_batch(0).size
    log = KafkaBatchLaneLog(ClusterSettings(alias="a", bootstrap="a:9092"), flow="a->b", chunk_bytes=size)
    raw = Answers(list(answers))
    log._log._opened = lambda: cast("Log", raw)
    return log, raw


def read(log: KafkaBatchLaneLog, first: int, following: int) -> list[BatchChunk]:
    return list(log.read(*PLACE, OffsetRange(first, following), lambda: 60.0))


def test_answers_are_gathered_to_chunks_and_the_first_begins_where_the_range_does() -> None:
    answers = [some(a_batch(0)), some(a_batch(10)), some(a_batch(20)), None, some(a_batch(30))]
    log, raw = log_of(*answers)

    chunks = read(log, 5, 35)

    assert [[each.offset for each in chunk.records] for chunk in chunks] == [[5, 10], [20], [30]]
    assert [chunk.covered for chunk in chunks] == [20, 30, 40]
    assert raw.followed == {}


@pytest.mark.parametrize("ending", ["unreadable", "truncated", "out_of_range"])
def test_what_was_read_before_a_log_ends_badly_is_given_first(ending: str) -> None:
    damaged = BatchUnreadable("the checksum of the batch is not that of its bytes", offset=10)
    last = some(a_batch(0))
    match ending:
        case "unreadable":
            last.unreadable[PLACE] = damaged
        case "truncated":
            last.truncated[PLACE] = 7
        case _:
            last.out_of_range.add(PLACE)
    log, raw = log_of(last)
    chunks: list[BatchChunk] = []

    with pytest.raises(
        (BatchUnreadable, RecordsGone, Retriable), match=r"checksum|cut off at 7|does not hold upstream offset 10"
    ):
        chunks.extend(log.read(*PLACE, OffsetRange(0, 90), lambda: 60.0))

    assert [chunk.covered for chunk in chunks] == [10]
    assert raw.closed, "what an error interrupts is not used again"


def test_nothing_behind_a_range_counts_as_read_where_its_log_ends_there() -> None:
    last = some(a_batch(0))
    last.ended[PLACE] = 90
    log, _ = log_of(last)

    assert [chunk.covered for chunk in read(log, 0, 10)] == [10]
