"""One run of a pull: the lanes of a shard, read from where their chains stand and replicated by the seven steps.

    look      which lanes are behind: their positions, and the last stable offsets of the source (followed_lanes.py)
    follow    one consumer reads all of them, each from its position
    gather    what comes, for a window of each slice
    replicate what is due, up to 64 lanes in a transaction
    commit    positions to the consumer groups of the topics, for those who watch lag

A run ends when it is drained; a continuous one when its successor waits; and either when it meets a log that the other
engine has to read, which goes on at once. Whatever fails, the chains have the positions, and the consumer is opened
anew there: records that it had fetched ahead are never taken for the next ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Final

from mirrorless.chain.lane import Lane
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, NotAcknowledged, Retriable
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS, WINDOW_SECONDS
from mirrorless.ports.kafka import GroupIsActive, Groups, LogEpochs, OffsetAndMetadata, TopicPartition
from mirrorless.ports.log import Arrivals, Log
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import LaneContent, following_offset, is_raw, opened_to_records
from mirrorless.protocol.portions import bytes_in, portions
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.pull.followed_lanes import FollowedLanes, PullEnding, PullReport
from mirrorless.pull.gathering import Gathering
from mirrorless.pull.readings import ASIDE_SECONDS, UNSEEN, Readings
from mirrorless.pull.shards import LEAST_MS, ShardLease, places_of_shard

PARTS: Final = 10
NAP_SECONDS: Final = 0.05
"""While records wait for their window, what comes is taken once in such a part of it, or in so many seconds: a call for
each record would go through all lanes."""

COMMIT_SECONDS: Final = 10.0
"""Between two commits for the consumer groups."""

REPLICATE_SECONDS: Final = 25.0
"""For one transaction, and for one question to a cluster: an answer that is lost does not take the run with it."""

PAUSE_SECONDS: Final = 0.25
"""After a failure; it doubles with each in a row."""

LONGEST_PAUSE_SECONDS: Final = 5.0

FAILURES: Final = 8
"""In a row, until the run fails: the schedule starts another one."""

OVER_SECONDS: Final = 2 * ASIDE_SECONDS + 30.0
"""After which a trouble that was not noted again is over: whatever is left alone is tried again before."""

ENDS_SECONDS: Final = 35.0
"""Before its function's end a run begins nothing more."""


class _Over(Exception):
    """The run has no more time, or its lease is lost."""


@dataclass(slots=True, kw_only=True)
class PullRun:
    """One run."""

    replicator: Replicator
    log: Log
    groups: Groups
    """Of the source."""
    epochs: LogEpochs
    """The same."""
    lease: ShardLease
    topics: Callable[[], Mapping[str, int]]
    """The scheduled topics, with their partitions."""
    topic_ids: Callable[[], Mapping[str, str]]
    """Of those of them that the chains describe: another topic of the same name is not read."""
    consumer_group: Callable[[str], str]
    """Of a topic's mapping, which has the topic's positions."""
    shard: int
    shards: int
    continuous: bool = False
    limit: ByteRateLimit | None = None
    """Of this shard, from run to run; None where there is no cap."""
    window_seconds: float = WINDOW_SECONDS
    """Between the beginnings of two transactions of a slice, unless there is enough for one, see `Gathering`."""
    request: str = ""
    """Id of the Lambda request."""
    on_batch: Callable[[Batch, BatchOutcome, int], None] = lambda _batch, _outcome, _received_at: None
    """Called with each batch, what became of it, and when it was received: writes metrics."""
    on_minute: Callable[[PullReport], None] = lambda _report: None
    """Called each minute of a run that lasts longer."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    report: PullReport = field(default_factory=PullReport)
    readings: Readings = field(default_factory=Readings)
    _lanes: FollowedLanes = field(init=False)
    _gathering: Gathering = field(init=False)
    _committed_at: float | None = None
    _moved: set[TopicPartition] = field(default_factory=set)
    _failures: int = 0
    _noted_at: dict[str, float] = field(default_factory=dict)
    """When each trouble was noted last, monotonic seconds."""

    def __post_init__(self) -> None:
        """Wire the followed lanes, and begin with nothing gathered."""
        self._gathering = Gathering(min(self.window_seconds, LONGEST_WINDOW_SECONDS), self.replicator.size)
        self._lanes = FollowedLanes(
            replicator=self.replicator,
            log=self.log,
            groups=self.groups,
            epochs=self.epochs,
            readings=self.readings,
            gathering=self._gathering,
            topics=self.topics,
            topic_ids=self.topic_ids,
            consumer_group=self.consumer_group,
            shard=self.shard,
            shards=self.shards,
            continuous=self.continuous,
            limited=self._limited,
            note=self._note,
            report=self.report,
            on_minute=self._minute,
            monotonic=self.monotonic,
            clock=self.lease.clock,
        )

    def run(self, deadline: Deadline) -> PullReport:
        """Read and replicate until the run ends. The lease is taken, and is let go of.

        Raises:
            Retriable: nothing is lost; the next run goes on.
            ChainBroken: the offset map contradicts the target.
        """
        if self.limit is not None:
            self._gathering.cap = self.limit.allowance
        ended: PullEnding | None = None
        self.readings.begin_run()  # an earlier one in this environment had a consumer of its own
        if not self.lease.continues:
            self.readings.found_at = None
            self.replicator.positions.forget()
        try:
            while ended is None:
                try:
                    ended = self._step(deadline)
                except MirrorlessError as exc:
                    self._begin_again(exc)
            self.report.ended = ended
            self._commit(deadline)
            self._forget_what_is_over()
        except MirrorlessError:
            self.lease.release()
            raise
        finally:
            self.log.close()
            self.epochs.close()
        self.lease.release()
        return self.report

    def warm_up(self, deadline: Deadline) -> None:
        """Connect, and read the ends of the journals, while another run still has the shard.

        Nothing is settled and no writer is opened: both would fence that run.
        """
        places = places_of_shard(self.topics(), self.shard, self.shards)
        self.log.stable_ends(places, deadline)
        self.replicator.chains.heads(Lane(self.replicator.flow, *place) for place in places)

    def _step(self, deadline: Deadline) -> PullEnding | None:
        if not self.lease.keep():
            return "lease lost"
        if deadline() < ENDS_SECONDS:
            return "time"
        if self._lanes.met_old_format:
            return "old format"
        if not self.continuous and self.readings.all_ended:
            self._lanes.look_at = 0.0  # for what has come meanwhile, or to end
        if self.monotonic() >= self._lanes.look_at:
            if self.lease.has_successor():
                while self._gathering.due_at < inf and self.lease.keep():
                    self._take(self._gathering.take(inf), deadline)
                return "successor"
            if not self._lanes.look(deadline) and not self.readings.followed and not self.continuous:
                return "drained"
        self._go_on(deadline)
        return None

    def _go_on(self, deadline: Deadline) -> None:
        """Replicate what comes, or wait for the next look."""
        if not self.readings.followed:
            self.sleep(max(0.0, self._lanes.look_at - self.monotonic()))
            return
        self._take(self._gather(), deadline)
        if self._committed_at is None or self.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._commit(deadline)

    # Replicate

    def _gather(self) -> Arrivals:
        """What has come and is due; waits for it until the next look."""
        gathering = self._gathering
        while not gathering.is_full:
            if self.monotonic() < gathering.due_at < inf:
                self.sleep(min(gathering.due_at - self.monotonic(), gathering.window_seconds / PARTS, NAP_SECONDS))
            records, size = gathering.room
            until = min(gathering.due_at, self._lanes.look_at)
            come = self.log.arrivals(max(0.0, until - self.monotonic()), records=records, size=size)
            for refused in come.refused.values():
                raise refused
            for place in come.records.keys() & self.readings.followed:
                self.readings.lanes[place].ended = UNSEEN  # something of it is left to be written
            gathering.add(come)
            # What is there already goes with what is due.
            until = min(gathering.due_at, self._lanes.look_at)
            if not come.records and (gathering.has_news or until <= self.monotonic()):
                break
        return gathering.take(self.monotonic())

    def _take(self, arrivals: Arrivals, deadline: Deadline) -> None:
        received_at, lanes = self.lease.clock(), self.readings.lanes
        for place, offset in arrivals.ended.items():
            if place in lanes and place not in arrivals.records:
                lanes[place].ended = offset
        self._lanes.stop_parted(arrivals, deadline)
        for some in self.readings.batches(place for place in arrivals.records if place in self.readings.followed):
            batch = Batch(
                records={place: self._content(place, arrivals.records[place]) for place in some},
                covered={place: arrivals.ended[place] for place in some if place in arrivals.ended},
                begins={place: begins for place in some if (begins := lanes[place].next) is not None},
                epochs={place: arrivals.epochs[place] for place in some if place in arrivals.epochs},
            )
            for portion in (batch,) if self.limit is None else portions(batch, self.limit.allowance):
                # What is not written now is read again, from the positions.
                try:
                    with self._paid(portion, deadline):
                        self._hold(deadline)
                        try:
                            outcome = self._replicate(portion, deadline)
                        except MirrorlessError as exc:
                            self._blame(some, exc)
                            raise
                except _Over:
                    return
                self._settle(portion, outcome)
                self.on_batch(portion, outcome, received_at)
            if not self.lease.keep():
                return
        self._lanes.pass_over(arrivals.out_of_range & self.readings.followed, deadline)
        self._leave_out(arrivals, deadline)
        self._lanes.stop_unreadable(arrivals, deadline)

    @contextmanager
    def _paid(self, batch: Batch, deadline: Deadline) -> Iterator[None]:
        """Wait until the cap has room for what is written in the block. Raises: _Over: the run has no more time."""
        if self.limit is None:
            yield
            return
        before = self.limit.paused_seconds
        with self.limit.paid(sum(map(bytes_in, batch.records.values())), lambda: self._hold(deadline)):
            self.report.limited_ms += int((self.limit.paused_seconds - before) * 1000)
            yield

    def _leave_out(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Pass batches that nobody can read, where the operator ordered that, and read on behind each."""
        positions, flow = self.replicator.positions, self.replicator.flow
        for place in arrivals.unreadable.keys() & self.readings.followed:
            exc, lane = arrivals.unreadable[place], Lane(flow, *place)
            if exc.old_format or lane in positions.load([lane], self.replicator.remote_topic, self._limited(deadline)):
                continue
            if exc.next is None or positions.state(lane).left_out(exc.offset, exc.cause) is None:
                continue
            first = max(exc.offset, positions.head(lane).position)
            batch = Batch(
                records={place: []},
                covered={place: exc.next},
                begins={place: first},
                left_out={place: (first, exc.next)},
            )
            outcome = self._replicate(batch, deadline)
            del arrivals.unreadable[place]
            self._lanes.leave([place])
            self.on_batch(batch, outcome, self.lease.clock())
            self.readings.forget([place])

    def _content(self, place: TopicPartition, arrived: LaneContent) -> LaneContent:
        """What came of a lane: batches whose records are few and small are packed anew by the writer."""
        if not is_raw(arrived):
            return arrived
        reading = self.readings.lanes[place]
        reading.tally.note(arrived)
        return opened_to_records(arrived, reading.next or 0) if reading.tally.opens else arrived

    def _replicate(self, batch: Batch, deadline: Deadline) -> BatchOutcome:
        if self.lease.seconds * 1000 < LEAST_MS:
            raise Retriable("the lease of the shard is short", where=f"{self.replicator.flow} shard {self.shard}")
        self.replicator.examined = all(self.readings.lanes[place].examined for place in batch.records)
        generations = {
            Lane(self.replicator.flow, *place): self.readings.lanes[place].generation for place in batch.records
        }
        with self.log.reading_on():
            outcome = self.replicator.replicate(
                batch, request=self.request, deadline=self._limited(deadline), generations=generations
            )
        self._failures = 0
        return outcome

    def _settle(self, batch: Batch, outcome: BatchOutcome) -> None:
        now = self.monotonic()
        self.report.transactions += 1
        self.report.records += sum(run.records for run in outcome.runs)
        self.report.bytes += sum(run.bytes for run in outcome.runs)
        self.report.passed_bytes += sum(run.passed_bytes for run in outcome.runs)
        newest = {(run.lane.topic, run.lane.partition): run for run in outcome.runs}
        for place, records in batch.records.items():
            if (held := outcome.stopped.get(place) or outcome.waiting.get(place)) is not None:
                self.readings.put_aside(place, now)
                self.readings.forget([place])
                self._lanes.leave([place])
                self._note(f"{Lane(self.replicator.flow, *place).at(held.upstream_offset)}: {held.detail}")
            else:
                following = max(following_offset(records), batch.covered.get(place, 0))
                ended = batch.covered.get(place)
                self.readings.went_well(place, following, now, ended=ended, newest=newest.get(place))
                self._moved.add(place)

    def _blame(self, places: list[TopicPartition], exc: MirrorlessError) -> None:
        """Leave alone the lanes to which a failure points, and find all of the transaction anew."""
        remote = {(self.replicator.remote_topic(topic), partition): (topic, partition) for topic, partition in places}
        named = exc.partitions if isinstance(exc, NotAcknowledged) else frozenset()
        blamed = [remote[place] for place in named if place in remote]
        self.readings.failed(places, blamed or (places if len(places) == 1 else []), self.monotonic())

    def _begin_again(self, exc: MirrorlessError) -> None:
        """After a failure: open the consumer anew, and read each lane from where it stands.

        Raises:
            MirrorlessError: it was one failure too many in a row.
        """
        self._note(exc)
        self._failures += 1
        self.report.failures += 1
        if self._failures >= FAILURES:
            raise exc
        self.replicator.forget()
        self.log.close()
        self._gathering.clear()
        self.readings.followed.clear()
        self._lanes.look_at = self.monotonic() + min(PAUSE_SECONDS * 2 ** (self._failures - 1), LONGEST_PAUSE_SECONDS)

    # The lease, and the groups

    def _hold(self, deadline: Deadline) -> None:
        if not self.lease.keep() or deadline() < ENDS_SECONDS:
            raise _Over

    def _limited(self, deadline: Deadline) -> Deadline:
        ends = self.monotonic() + REPLICATE_SECONDS
        return lambda: min(deadline(), ends - self.monotonic(), self.lease.seconds)

    def _commit(self, deadline: Deadline) -> None:
        """Commit positions for the groups of the topics that have moved; only tools for lag depend on it."""
        self._committed_at = self.monotonic()
        offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for place in self._moved & self.readings.lanes.keys():
            if (following := self.readings.lanes[place].next) is not None:
                offsets.setdefault(place[0], {})[place] = OffsetAndMetadata(following)
        self._moved.clear()
        for topic, of_topic in offsets.items():
            try:
                self.groups.commit(self.consumer_group(topic), of_topic, deadline)
            except (GroupIsActive, Retriable) as exc:
                self._note(exc)

    def _note(self, trouble: MirrorlessError | str) -> None:
        if (text := str(trouble)) not in self.report.troubles:
            self.report.troubles.append(text)
        self._noted_at[text] = self.monotonic()

    def _minute(self, report: PullReport) -> None:
        self._forget_what_is_over()
        self.on_minute(report)

    def _forget_what_is_over(self) -> None:
        since = self.monotonic() - OVER_SECONDS
        self.report.troubles[:] = [each for each in self.report.troubles if self._noted_at[each] >= since]
