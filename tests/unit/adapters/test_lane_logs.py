"""A partition's log, by records that are committed and by whole batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from mirrorless.adapters.kafka.committed_log import _read, _Reading
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


class Leader:
    """A consumer's view of one partition: what comes in turn, and where the log ends by its leader."""

    def __init__(self, came: Iterable[Any], ends: Iterable[int | KafkaException]) -> None:
        self._came, self._ends = iter(came), iter(ends)

    def poll(self, _: float) -> Any:
        """What comes next."""
        return next(self._came)

    def get_watermark_offsets(self, *_: object) -> tuple[int, int]:
        """As the leader lists them."""
        end = next(self._ends)
        if isinstance(end, KafkaException):
            raise end
        return 0, end

    def incremental_unassign(self, _: object) -> None:
        """As the client has it."""

    def incremental_assign(self, _: object) -> None:
        """As the client has it."""


def end(offset: int) -> Any:
    return _message(offset, KafkaError(KafkaError._PARTITION_EOF))


def record(offset: int) -> Any:
    return _message(offset, None)


def _message(offset: int, error: KafkaError | None) -> Any:
    content = {"timestamp": (1, 0), "headers": None, "key": None, "value": b"v"}
    given = {"topic": PLACE[0], "partition": PLACE[1], "offset": offset, "error": error, **content}
    return SimpleNamespace(**{name: (lambda value=value: value) for name, value in given.items()})


def reading_of(leader: Leader, *ranges: tuple[int, int]) -> _Reading:
    wanted = list(ranges or [(5, 8)])
    reading = _Reading(wanted=wanted, left=list(wanted))
    _read(leader, {PLACE: reading}, time.monotonic() + 20, 1_000, lambda *_: pytest.fail("nothing is damaged"))  # type: ignore[arg-type]  # a fake
    return reading


def test_a_log_that_its_leader_says_to_end_there_is_read_to_its_end() -> None:
    assert reading_of(Leader([record(5), end(6)], [6])).until == 6


def test_a_leader_that_shows_less_than_it_has_is_read_on() -> None:
    reading = reading_of(Leader([end(5), record(5), record(6), record(7)], [9]))

    assert (reading.until, [each.offset for each in reading.records]) == (8, [5, 6, 7])


def refused(offset: int) -> Any:
    return _message(offset, KafkaError(KafkaError._AUTO_OFFSET_RESET))


@pytest.mark.parametrize("made_up", [12, 40], ids=["in the log", "beyond its end"])
def test_a_fetch_behind_a_damaged_batch_that_is_refused_late_is_none_of_the_next_range(made_up: int) -> None:
    """The client goes on behind a batch that it cannot read, at an offset that it makes up."""
    came = [record(2), refused(made_up), record(5), record(6), record(7)]

    reading = reading_of(Leader(came, [30]), (2, 3), (5, 8))

    assert (reading.until, [each.offset for each in reading.records]) == (8, [2, 5, 6, 7])


@pytest.mark.parametrize(
    ("came", "ranges"),
    [([record(5), refused(6)], [(5, 8)]), ([record(2), refused(5)], [(2, 3), (5, 8)]), ([refused(5)], [(5, 8)])],
    ids=["within a range", "at the next range", "at the first"],
)
def test_a_log_that_is_cut_and_grows_on_while_it_is_read_is_no_answer(came: list[Any], ranges: list[Any]) -> None:
    """Records of both logs would come together."""
    with pytest.raises(KafkaException, match="_AUTO_OFFSET_RESET"):
        reading_of(Leader(came, [30]), *ranges)


def test_a_leader_that_does_not_say_yet_where_its_log_ends_is_no_log_that_ends() -> None:
    not_yet = KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))

    with pytest.raises(KafkaException, match="OFFSET_NOT_AVAILABLE"):
        reading_of(Leader([end(5)], [not_yet]))


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
