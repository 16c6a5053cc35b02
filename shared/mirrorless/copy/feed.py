"""Feeds the replicator with lanes of one log: follows them, gathers what comes, and writes it by many in a transaction.

A run of a pull has the lanes of a shard, and goes on until its deadline; a task of a job has some, each with an end.
The positions are in the chains: whatever fails, lanes are found there again, and the log is read anew from there.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.clock import Deadline
from mirrorless.copy.gathering import Gathering
from mirrorless.copy.readings import UNSEEN, Readings
from mirrorless.errors import NotAcknowledged
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import NOTHING_MORE, Arrivals, Log
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import LaneContent, following_offset, is_raw, opened_to_records
from mirrorless.protocol.plan import passed_over, unreadable_stop
from mirrorless.protocol.portions import bytes_in, joined, parted
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record_batch import BatchUnreadable

PARTS: Final = 10
NAP_SECONDS: Final = 0.05
"""While records wait for their window, what comes is taken once in such a part of it, or in so many seconds: a call for
each record would go through all lanes."""


@dataclass(slots=True, kw_only=True)
class LaneFeed(ABC):
    """Some lanes of a log on their way to the target."""

    replicator: Replicator
    log: Log
    clock: Callable[[], int]
    """ms since the epoch."""
    limit: ByteRateLimit | None = None
    """None where there is no cap."""
    request: str = ""
    """Id of the Lambda request, or of the job run; kept in the runs."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    readings: Readings = field(default_factory=Readings)
    limited_seconds: float = 0.0
    """For which records waited for the cap."""
    _gathering: Gathering = field(init=False)
    _look_at: float = 0.0
    """Until when to wait for records, monotonic seconds."""
    _met_old_format: bool = False
    """Whether a log has batches that only the Kafka client reads."""

    # What a run of a pull and a task of a job do differently

    @abstractmethod
    def _hold(self, deadline: Deadline) -> None:
        """Make sure that a transaction may begin. Called before each, and while one waits for the cap."""

    @abstractmethod
    def _limited(self, deadline: Deadline) -> Deadline:
        """The deadline of one transaction, or of one question."""

    @abstractmethod
    def _settle(self, batch: Batch, outcome: BatchOutcome) -> None:
        """Note what became of a batch."""

    @abstractmethod
    def _stop(self, place: TopicPartition, stop: Stop, deadline: Deadline) -> None:
        """Stop a lane, which is followed no more."""

    @abstractmethod
    def _note_of(self, place: TopicPartition, text: str) -> None:
        """Tell the operator about a lane."""

    def _examined(self, place: TopicPartition) -> bool:
        """Whether the next content of a lane is all that the log has, see `Batch.unexamined`."""
        return self.readings.lanes[place].examined

    def _enough(self) -> bool:
        """Whether to write what came before its window ends."""
        return self._gathering.is_full

    def _parted(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """What of a batch is written at once, and the rest."""
        return (batch, None) if self.limit is None else parted(batch, self.limit.allowance)

    def _writes_on(self) -> bool:
        """Whether the rest of a batch is to be written, and not to be read again."""
        return True

    # Reading

    def lane(self, place: TopicPartition) -> Lane:
        """The lane of a place."""
        return Lane(self.replicator.flow, *place)

    def _follow(
        self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE
    ) -> None:
        self.log.follow(offsets, below)
        self.readings.follow(offsets)

    def _leave(self, places: Iterable[TopicPartition]) -> None:
        """Follow these lanes no more."""
        leaving = self.readings.followed & set(places)
        if leaving:
            self.log.leave(leaving)
            self._gathering.drop(leaving)
            self.readings.followed -= leaving

    def _drop_all(self) -> None:
        """After a failure nothing that was read or remembered is trusted: the log is to be opened anew."""
        self.replicator.forget()
        self.log.close()
        self._gathering.clear()
        self.readings.followed.clear()

    def _gather(self) -> Arrivals:
        """What has come and is due; waits for it until the next look."""
        gathering = self._gathering
        gathering.cap = None if self.limit is None else self.limit.allowance
        while not self._enough():
            if self.monotonic() < gathering.due_at < inf:
                self.sleep(min(gathering.due_at - self.monotonic(), gathering.window_seconds / PARTS, NAP_SECONDS))
            records, size = gathering.room
            until = min(gathering.due_at, self._look_at)
            come = self.log.arrivals(max(0.0, until - self.monotonic()), records=records, size=size)
            self._came(come)
            gathering.add(come)
            # What is there already goes with what is due.
            until = min(gathering.due_at, self._look_at)
            if not come.records and (gathering.has_news or until <= self.monotonic()):
                break
        return gathering.take(self.monotonic(), early=self._enough())

    def _came(self, come: Arrivals) -> None:
        """Look at what has just come.

        Raises:
            Retriable: the cluster does not show a partition.
        """
        for refused in come.refused.values():
            raise refused
        for place in come.records.keys() & self.readings.followed:
            self.readings.lanes[place].ended = UNSEEN  # something of it is left to be written

    def _content(self, place: TopicPartition, arrived: LaneContent) -> LaneContent:
        """What came of a lane: batches whose records are few and small are packed anew by the writer."""
        if not is_raw(arrived):
            return arrived
        reading, rules = self.readings.lanes[place], self.replicator.rules
        reading.tally.must_open = rules is not None and rules.of(place[0]) is not None
        reading.tally.note(arrived)
        return opened_to_records(arrived, reading.next or 0) if reading.tally.opens else arrived

    # Writing

    def _batch(
        self,
        content: Mapping[TopicPartition, LaneContent],
        *,
        covered: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] = NOTHING_MORE,
    ) -> Batch:
        """What is written of some lanes. Args: covered, epochs: see `Batch`."""
        lanes = self.readings.lanes
        return Batch(
            records=content,
            covered=covered,
            begins={place: begins for place in content if (begins := lanes[place].next) is not None},
            epochs=epochs,
            unexamined=frozenset(place for place in content if not self._examined(place)),
        )

    def _write(self, batch: Batch, deadline: Deadline) -> None:
        """Write a batch, in portions.

        Raises:
            MirrorlessError: what was not written is read again, from the positions.
        """
        generations = {self.lane(place): self.readings.lanes[place].generation for place in batch.records}
        rest: Batch | None = batch
        while rest is not None and self._writes_on():
            portion, rest = self._parted(rest)
            with self._paid(portion, deadline):
                self._hold(deadline)
                try:
                    with self.log.reading_on():
                        outcome = self.replicator.replicate(
                            portion, request=self.request, deadline=self._limited(deadline), generations=generations
                        )
                except Exception as exc:
                    self._blame(list(batch.records), exc)
                    raise
            self._settle(portion, outcome)
            # What follows of a lane that stopped, or waited, would leave out what it waited with.
            rest = joined(None, rest, batch.records.keys() - self.readings.followed)

    @contextmanager
    def _paid(self, batch: Batch, deadline: Deadline) -> Iterator[None]:
        """Wait until the cap has room for what is written in the block."""
        if self.limit is None:
            yield
            return
        before = self.limit.paused_seconds
        with self.limit.paid(sum(map(bytes_in, batch.records.values())), partial(self._between_pauses, deadline)):
            self.limited_seconds += self.limit.paused_seconds - before
            yield

    def _between_pauses(self, deadline: Deadline) -> None:
        self._hold(deadline)

    def _went_well(self, place: TopicPartition, batch: Batch, outcome: BatchOutcome) -> None:
        """What a batch has of a lane is on the target."""
        covered = batch.covered.get(place)
        content = batch.records[place]
        following = max(following_offset(content) if content else 0, covered or 0)
        newest = next((run for run in reversed(outcome.runs) if (run.lane.topic, run.lane.partition) == place), None)
        self.readings.went_well(place, following, self.monotonic(), ended=covered, newest=newest)

    def _blame(self, places: Sequence[TopicPartition], exc: Exception) -> None:
        """Leave alone the lanes to which a failure points, and find all of the transaction anew."""
        remote = {(self.replicator.remote_topic(topic), partition): (topic, partition) for topic, partition in places}
        named = exc.partitions if isinstance(exc, NotAcknowledged) else frozenset()
        blamed = [remote[place] for place in named if place in remote]
        self.readings.failed(places, blamed or (places if len(places) == 1 else []), self.monotonic())

    # Logs that cannot be read on

    def _store(self, place: TopicPartition, stop: Stop, deadline: Deadline) -> bool:
        """Store the stop of a lane; whether no other has it."""
        lane, positions = self.lane(place), self.replicator.positions
        if lane in positions.load([lane], self.replicator.remote_topic, self._limited(deadline)):
            return False
        stored = positions.state(lane).stopped_by(stop)
        if stored is not None:
            positions.stop(lane, stored)
        return True

    def _react(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Leave lanes whose log has a batch that nobody can read; read those anew whose log parted from what was read.

        Such a batch is passed over where the operator ordered that, and stops its lane otherwise. Of a log that was cut
        off, what was read and not written may be all that parts.
        """
        for place in arrivals.truncated.keys() & self.readings.followed:
            self._note_of(place, "the source's log was cut off while it was read")
            self._leave([place])
            self.readings.forget([place])
        for place, exc in arrivals.unreadable.items():
            if exc.old_format and place in self.readings.lanes:
                self.readings.lanes[place].tally.by_client = self._met_old_format = True
        for place in arrivals.unreadable.keys() & self.readings.followed:
            exc = arrivals.unreadable[place]
            self._leave([place])
            if exc.old_format or self._passes(place, exc, deadline):
                self.readings.forget([place])
            else:
                self._stop(place, unreadable_stop(exc, now=self.clock()), deadline)

    def _passes(self, place: TopicPartition, exc: BatchUnreadable, deadline: Deadline) -> bool:
        """Pass a batch that nobody can read, where the operator ordered that, and no other has the lane."""
        positions, lane = self.replicator.positions, self.lane(place)
        if lane in positions.load([lane], self.replicator.remote_topic, self._limited(deadline)):
            return False
        passed = passed_over(exc, positions.state(lane), positions.head(lane).position)
        if passed is None:
            return False
        first, following = passed[0], min(passed[1], self.readings.lanes[place].below)
        left_out = {place: (first, following)}
        self._write(
            Batch(records={place: []}, covered={place: following}, begins={place: first}, left_out=left_out), deadline
        )
        return True
