"""The source's logs, read by whole batches: one fetch under way to each broker. See `mirrorless.ports.log`.

The next fetch is sent before what came is looked at by anybody else, so that a distant broker is never waited for
alone; it is held back once enough has come that was not taken. A partition that gave something goes behind all others.
While a transaction of a backlog is written, another thread reads on.

A read_committed reader does not see all batches of a fetched part (`committed`, pure): a transactional batch is dropped
if its producer's transaction was aborted. The answer names those transactions by
producer and first offset, and the producer's next marker ends it: also where all of that lies below the position.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError
from mirrorless.adapters.kafka.wire.cluster import CALL_SECONDS, LEADER_MOVED, Backoff, WireCluster
from mirrorless.adapters.kafka.wire.connection import CONNECT_SECONDS, BrokerConnection, ready, take_answers
from mirrorless.adapters.kafka.wire.fetch import FetchedPart, WantedPart, fetch_request, read_fetched
from mirrorless.adapters.kafka.wire.listed_offsets import listed_offsets
from mirrorless.adapters.kafka.wire.requests import EARLIEST, FETCH, LATEST
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import NOTHING_MORE, Arrivals
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch, batches


def committed(batches: Iterable[RecordBatch], aborted: Sequence[tuple[int, int]]) -> Iterator[tuple[RecordBatch, bool]]:
    """Each batch, and whether its records are seen.

    Args:
        batches: of one answer, in order.
        aborted: producer id and first offset of the transactions that the answer says were aborted.
    """
    to_come = sorted(aborted, key=lambda each: each[1], reverse=True)
    dropped: set[int] = set()
    for batch in batches:
        while to_come and to_come[-1][1] <= batch.last_offset:
            dropped.add(to_come.pop()[0])
        if batch.is_control:
            dropped.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, not (batch.is_transactional and batch.producer_id in dropped)


WAIT_MS: Final = 100
"""For which a broker holds back an answer that would be empty."""
ANSWER_BYTES: Final = 8_000_000
"""Of one answer, about: a broker gives one batch at least, however large. As much as a run writes in a transaction."""
PART_BYTES: Final = 2 * 1024 * 1024
"""Of one partition in one answer, at most: a backlog of one lane leaves room for the others."""
LEAST_PART_BYTES: Final = PART_BYTES // 2
"""The same where many are asked for. With less of each of a few more of them are in an answer, and so in the requests
that are produced of it, for these take one batch of each."""
QUEUE_BYTES: Final = 24 * 1024 * 1024
"""Come and not taken, in all partitions together: no fetch is sent above it. Of one partition, twice its part of an
answer."""
BACKLOG_BYTES: Final = PART_BYTES
"""Of a transaction: with so many, more is likely to be there already."""
DAMAGE_SECONDS: Final = 5.0
"""For a look at a batch that the Kafka client calls damaged."""
ANSWER_SECONDS: Final = 30.0
"""Without an answer, until the connection counts as lost."""


@dataclass(slots=True, eq=False)
class _Reading:
    """One partition that is followed."""

    place: TopicPartition
    at: int
    """Fetched next."""
    below: int | None = None
    """From where on nothing is wanted."""
    last_epoch: int = -1
    """Of the batch that was fetched last."""
    queued_bytes: int = 0
    ended: int = -1
    """The stable end that was returned last: of a thousand silent lanes each answer would name all."""
    over: bool = False
    """It is not fetched any more, for a reason that was given."""
    again_at: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(slots=True)
class _Come:
    """What has come of a partition and was not taken."""

    reading: _Reading
    batches: deque[RecordBatch]
    covered: int
    epoch: int
    """Before `covered`."""
    bytes: int

    def first(self, size: int) -> tuple[list[RecordBatch], int]:
        """Take so much of it, one batch at least, but not all: the batches and their bytes."""
        some: list[RecordBatch] = []
        taken = 0
        while len(self.batches) > 1 and taken < size:
            some.append(batch := self.batches.popleft())
            taken += batch.size
        self.bytes -= taken
        return some, taken


class KafkaRawLog:
    """Implements `Log` with whole batches, as a read_committed reader sees them."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, part_bytes: int = PART_BYTES) -> None:
        """The reader of a cluster.

        Args:
            cluster: the source.
            flow: part of what it calls itself in the brokers' logs.
            part_bytes: of one partition in one answer, at most.
        """
        self._cluster = WireCluster(cluster, flow=flow, client_role="raw-pull")
        self._part_bytes = part_bytes
        self._readings: dict[TopicPartition, _Reading] = {}
        self._come: deque[_Come] = deque()
        self._queued = 0
        self._news = Arrivals()
        self._taken_bytes = 0
        """Since it read on."""
        self._reads_on = False
        self._trouble: BaseException | None = None
        """Of the thread that read on."""

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `Log.stable_ends`."""
        return listed_offsets(self._cluster, set(places), LATEST, deadline)

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `Log.starts`."""
        return listed_offsets(self._cluster, set(places), EARLIEST, deadline)

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE) -> None:
        """See `Log.follow`."""
        self.leave(offsets)
        self._readings |= {place: _Reading(place, offset, below.get(place)) for place, offset in offsets.items()}

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `Log.leave`."""
        gone = [place for place in places if place in self._readings]
        left = {id(self._readings.pop(place)) for place in gone}
        if left:
            self._come = deque(each for each in self._come if id(each.reading) not in left)
            self._queued = sum(reading.queued_bytes for reading in self._readings.values())
        for place in gone:
            # Whoever follows it again from another offset would take its end for all that there is.
            for news in (self._news.ended, self._news.truncated, self._news.unreadable, self._news.refused):
                news.pop(place, None)
            self._news.out_of_range.discard(place)

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `Log.arrivals`."""
        until = time.monotonic() + seconds
        trouble, self._trouble = self._trouble, None
        with self._cluster.translated("show its records"):
            if trouble is not None:
                raise trouble
            while True:
                wake = self._fetch(until)
                waits = 0.0 if self._come or self._news else wake - time.monotonic()
                self._receive(waits)
                self._fetch(until)
                if self._come or self._news or time.monotonic() >= until:
                    return self._taken(size if records > 0 else 0)

    @contextmanager
    def reading_on(self) -> Iterator[None]:
        """See `Log.reading_on`. Without a backlog the next answer is as well read afterwards."""
        taken, self._taken_bytes = self._taken_bytes, 0
        if taken < BACKLOG_BYTES:
            yield
            return
        end, other_end = socket.socketpair()
        with end, other_end, ThreadPoolExecutor(1) as pool:
            self._reads_on = True
            reading = pool.submit(self._read_on, end)
            try:
                yield
            finally:
                self._reads_on = False
                other_end.close()
                self._trouble = reading.exception()

    def damage(self, place: TopicPartition, offset: int) -> BatchUnreadable:
        """What is wrong with the batch at an offset, which the Kafka client skips; with where the next one begins.

        Raises:
            Retriable: it does not answer, or the batch is sound, as on another replica.
        """
        self.follow({place: offset})
        try:
            found, until = Arrivals(), time.monotonic() + DAMAGE_SECONDS
            while not found and time.monotonic() < until:
                found = self.arrivals(1.0, records=1, size=1)
        finally:
            self.close()
        if place not in found.unreadable:
            raise Retriable(
                f"the client calls the batch at {offset} of {place[0]}-{place[1]} damaged", where=self._cluster.where
            )
        return found.unreadable[place]

    def close(self) -> None:
        """See `Log.close`."""
        self._trouble = None
        self.leave(list(self._readings))
        self._come.clear()
        self._queued = 0
        self._news = Arrivals()
        self._cluster.close()

    def _taken(self, size: int) -> Arrivals:
        found, self._news = self._news, Arrivals()
        while self._come and size > 0:
            some: Sequence[RecordBatch]
            come = self._come[0]
            place, reading = come.reading.place, come.reading
            if len(come.batches) <= 1 or come.bytes <= size:
                some, taken = come.batches, come.bytes
                self._come.popleft()
                found.covered[place], found.epochs[place] = come.covered, come.epoch
            else:
                some, taken = come.first(size)
                found.covered[place], found.epochs[place] = some[-1].next, some[-1].leader_epoch
            if some:
                found.records.setdefault(place, []).extend(some)
            found.bytes += taken
            size -= taken
            reading.queued_bytes -= taken
            self._queued -= taken
        # The end of a log is none as long as something before it was not taken.
        waiting = {each.reading.place for each in self._come}
        for place in found.ended.keys() & waiting:
            self._news.ended[place] = found.ended.pop(place)
        self._taken_bytes += found.bytes
        return found

    # Fetches

    def _read_on(self, end: socket.socket) -> None:
        while self._reads_on:
            wake = self._fetch(time.monotonic() + ANSWER_SECONDS)
            self._receive(wake - time.monotonic(), end)

    def _fetch(self, until: float) -> float:
        """Send a fetch to each broker that has none; when to look again, if nothing comes before."""
        now, wake = time.monotonic(), until
        if self._queued >= QUEUE_BYTES:
            return wake
        self._look_for_leaders(now, until)
        by_node: dict[int, list[_Reading]] = {}
        for reading in self._readings.values():
            if reading.over or reading.queued_bytes >= 2 * self._part_bytes:
                continue
            if now < reading.again_at:
                wake = min(wake, reading.again_at)
            else:
                by_node.setdefault(self._cluster.leader(reading.place).node, []).append(reading)
        for node, readings in by_node.items():
            wake = min(wake, self._fetch_from(node, readings, now, until))
        return wake

    def _fetch_from(self, node: int, readings: Sequence[_Reading], now: float, until: float) -> float:
        try:
            connection = self._cluster.connection(node, "data", max(until, now + CONNECT_SECONDS))
            if connection.pending:
                return until
            if connection.muted_until > now:
                return connection.muted_until
            wanted = [
                WantedPart(each.place, each.at, self._cluster.leader(each.place).epoch, each.last_epoch)
                for each in readings
            ]
            part = min(self._part_bytes, max(LEAST_PART_BYTES, ANSWER_BYTES // len(wanted)))
            body = fetch_request(wanted, wait_ms=WAIT_MS, least=1, most=ANSWER_BYTES, most_of_a_part=part)
            purpose = {each.place: (each, each.at) for each in readings}
            connection.send(FETCH, [body], purpose=purpose, until=now + ANSWER_SECONDS)
            connection.flush()
        except TurnedAwayError:
            raise
        except OSError:
            self._put_off(readings)
            if (lost := self._cluster.data_connection(node)) is not None:
                self._cluster.drop(lost)
        return until

    def _look_for_leaders(self, now: float, until: float) -> None:
        unknown = {
            place[0]
            for place, reading in self._readings.items()
            if not reading.over and now >= reading.again_at and self._cluster.leader(place).node < 0
        }
        if not unknown:
            return
        self._cluster.refresh(unknown, max(until, now + CALL_SECONDS))
        self._put_off([each for each in self._readings.values() if self._cluster.leader(each.place).node < 0])

    def _put_off(self, readings: Iterable[_Reading]) -> None:
        """Read their leaders anew after a pause."""
        now = time.monotonic()
        for reading in readings:
            self._cluster.forget_leader(reading.place)
            reading.again_at = now + reading.backoff.pause()

    def _receive(self, seconds: float, end: socket.socket | None = None) -> None:
        busy = [each for each in self._cluster.data_connections() if each.pending]
        take_answers(busy, ready(busy, seconds, end=end), self._take, self._lose)

    def _lose(self, connection: BrokerConnection) -> None:
        for pending in connection.pending:
            self._put_off(reading for reading, _ in pending.purpose.values())
        connection.pending.clear()
        self._cluster.drop(connection)

    def _take(
        self, connection: BrokerConnection, asked: Mapping[TopicPartition, tuple[_Reading, int]], answer: memoryview
    ) -> None:
        told = read_fetched(answer)
        if told.throttle_ms:
            connection.muted_until = time.monotonic() + told.throttle_ms / 1000
        if told.error:
            raise ConnectionError(f"{connection.where} did not fetch: {KafkaError(told.error).str()}")
        for place, part in told.parts.items():
            reading, at = asked.get(place, (None, 0))
            if reading is not None and self._readings.get(place) is reading and reading.at == at:
                self._take_part(reading, part)

    def _take_part(self, reading: _Reading, part: FetchedPart) -> None:
        place = reading.place
        if part.error == KafkaError.OFFSET_OUT_OF_RANGE:
            reading.over = True
            self._news.out_of_range.add(place)
        elif part.error in LEADER_MOVED:
            self._put_off([reading])
        elif part.error:
            reading.over = True
            self._news.refused[place] = Retriable(
                f"the cluster does not show {place[0]}-{place[1]}: {KafkaError(part.error).str()}",
                where=self._cluster.where,
                hint="check that the flow may read and describe the topic",
            )
        elif part.diverged is not None:
            reading.over = True
            self._news.truncated[place] = part.diverged[1]
        else:
            reading.backoff = Backoff()
            came = self._take_batches(reading, part)
            if reading.at >= part.stable_end and reading.ended != reading.at:
                reading.ended = self._news.ended[place] = reading.at
            if came:
                self._readings[place] = self._readings.pop(place)  # behind all others

    def _take_batches(self, reading: _Reading, part: FetchedPart) -> bool:
        seen: deque[RecordBatch] = deque()
        begun, at, size = reading.at, reading.at, 0
        try:
            for batch, visible in committed(batches(part.records), part.aborted):
                following = batch.next
                if following <= begun:
                    continue
                if reading.below is not None and batch.base_offset >= reading.below:
                    at = max(at, reading.below)
                    break
                at = following
                reading.last_epoch = batch.leader_epoch
                if visible and batch.records_count:
                    seen.append(batch)
                    size += batch.size
        except BatchUnreadable as exc:
            reading.over = True
            if reading.below is None or exc.offset < reading.below:
                self._news.unreadable[reading.place] = exc
            else:
                at = max(at, reading.below)
        reading.over = reading.over or (reading.below is not None and at >= reading.below)
        if at > begun:
            reading.at = at
            reading.queued_bytes += size
            self._queued += size
            self._come.append(_Come(reading, seen, at, reading.last_epoch, size))
        return at > begun
