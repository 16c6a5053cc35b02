"""One run of a pull: the lanes of a shard, read from where their chains stand and replicated by the seven steps.

    look      which lanes are behind: their positions, and the last stable offsets of the source
    follow    one consumer reads all of them, each from its position
    replicate what has come, up to 64 lanes in a transaction
    commit    positions to the consumer groups of the topics, for those who watch lag

A run ends when it is drained; a continuous one when its successor waits. Whatever fails, the chains have the positions,
and the consumer is opened anew there: records that it had fetched ahead are never taken for the next ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from mirrorless.errors import MirrorlessError, NotAcknowledged, Retriable
from mirrorless.lane import Lane
from mirrorless.lane_state import NEW_LANE, Stop
from mirrorless.ports.kafka import Deadline, GroupIsActive, Groups, OffsetAndMetadata, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import LaneContent, following_offset, is_raw, opened_to_records
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.pull.log import Arrivals, PulledLog
from mirrorless.pull.readings import FOLLOWED, LOOK_SECONDS, Readings
from mirrorless.pull.shard_lease import LEAST_MS, ShardLease
from mirrorless.pull.shards import places_of_shard, transactions
from mirrorless.scheduled.rate_limit import ByteRateLimit
from mirrorless.triggers import LONGEST_WINDOW_SECONDS, WINDOW_SECONDS

TOPICS_SECONDS: Final = 60.0
"""Between two readings of the list of topics."""

POSITIONS_SECONDS: Final = 300.0
"""After which the position of a silent lane is read again: an operator may have reset it."""

IDLE_SECONDS: Final = 60.0
"""Without a record, until a continuous run follows a lane no more."""

BATCH_BYTES: Final = 8_000_000
BATCH_RECORDS: Final = 20_000
"""Of what is replicated at a time, whichever comes first."""

COMMIT_SECONDS: Final = 10.0
"""Between two commits for the consumer groups."""

REPLICATE_SECONDS: Final = 25.0
"""For one transaction, and for one question to a cluster: an answer that is lost does not take the run with it."""

PAUSE_SECONDS: Final = 0.25
"""After a failure; it doubles with each in a row."""

LONGEST_PAUSE_SECONDS: Final = 5.0

FAILURES: Final = 8
"""In a row, until the run fails: the schedule starts another one."""

ENDS_SECONDS: Final = 35.0
"""Before its function's end a run begins nothing more."""

PullEnding = Literal["drained", "time", "successor", "lease lost"]


@dataclass(slots=True)
class PullReport:
    """What a run has done."""

    ended: PullEnding = "drained"
    lanes: int = 0
    records: int = 0
    bytes: int = 0
    passed_bytes: int = 0
    """Those of `bytes` whose batches were passed as they lay in the source's log."""
    transactions: int = 0
    failures: int = 0
    troubles: list[str] = field(default_factory=list)
    """One sentence for each lane, or topic, that could not go on."""


@dataclass(slots=True, kw_only=True)
class PullRun:
    """One run."""

    replicator: Replicator
    log: PulledLog
    groups: Groups
    """Of the source."""
    lease: ShardLease
    topics: Callable[[], Mapping[str, int]]
    """The scheduled topics, with their partitions."""
    consumer_group: Callable[[str], str]
    """Of a topic's mapping, which has the topic's positions."""
    shard: int
    shards: int
    continuous: bool = False
    max_bytes_per_second: float | None = None
    """Of this shard."""
    window_seconds: float = WINDOW_SECONDS
    """Between the beginnings of two transactions, unless there is enough for one."""
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
    _topics_at: float | None = None
    _look_at: float = 0.0
    _begun_at: float | None = None
    _committed_at: float | None = None
    _moved: set[TopicPartition] = field(default_factory=set)
    _failures: int = 0
    _limit: ByteRateLimit | None = None

    def run(self, deadline: Deadline) -> PullReport:
        """Read and replicate until the run ends. The lease is taken, and is let go of.

        Raises:
            Retriable: nothing is lost; the next run goes on.
            ChainBroken: the offset map contradicts the target.
        """
        if self.max_bytes_per_second:
            self._limit = ByteRateLimit(self.max_bytes_per_second, sleep=self.sleep)
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
        except MirrorlessError:
            self.lease.release()
            raise
        finally:
            self.log.close()
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
        if not self.continuous and self.readings.all_ended:
            self._look_at = 0.0  # for what has come meanwhile, or to end
        if self.monotonic() >= self._look_at:
            if self.lease.has_successor():
                return "successor"
            if not self._look(deadline) and not self.readings.followed and not self.continuous:
                return "drained"
        self._go_on(deadline)
        return None

    def _go_on(self, deadline: Deadline) -> None:
        """Replicate what comes, or wait for the next look."""
        if not self.readings.followed:
            self.sleep(max(0.0, self._look_at - self.monotonic()))
            return
        self._take(self._gather(), deadline)
        if self._committed_at is None or self.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._commit(deadline)

    # Look

    def _look(self, deadline: Deadline) -> bool:
        """Follow what is behind; whether any lane is that is not left alone."""
        now = self.monotonic()
        self._look_at = now + LOOK_SECONDS
        if self._topics_at is None or now - self._topics_at >= TOPICS_SECONDS:
            if self._topics_at is not None:
                self.on_minute(self.report)
            self._topics_at = now
            self._leave(self.readings.only(places_of_shard(self.topics(), self.shard, self.shards)))
        if self.readings.found_at is None or now - self.readings.found_at >= POSITIONS_SECONDS:
            self.readings.found_at = now
            self.readings.forget(self.readings.idle(now))
        self.report.lanes = len(self.readings.lanes)
        self._leave(self.readings.silent(now - IDLE_SECONDS if self.continuous else now))
        idle = self.readings.idle(now)
        self._locate([place for place in idle if self.readings.lanes[place].next is None], deadline)
        due = self.readings.due(idle, now) if self.continuous else idle
        behind = self.readings.behind(self.log.stable_ends(due, self._limited(deadline)) if due else {})
        self._leave(self.readings.in_the_way(len(behind)))
        wanted = dict(islice(behind.items(), FOLLOWED - len(self.readings.followed)))
        self.readings.look_again(behind.keys() - wanted.keys())
        if wanted:
            self.log.follow(wanted)
            self.readings.follow(wanted)
        return bool(wanted)

    def _leave(self, places: Iterable[TopicPartition]) -> None:
        leaving = self.readings.followed & set(places)
        if leaving:
            self.log.leave(leaving)
            self.readings.followed -= leaving

    def _locate(self, places: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Find where lanes are to be read on; those that cannot be read now are left alone for a while."""
        positions, flow = self.replicator.positions, self.replicator.flow
        new: list[TopicPartition] = []
        for some in transactions(places):
            lanes = {place: Lane(flow, *place) for place in some}
            positions.forget(lanes.values())
            try:
                leased = positions.load(lanes.values(), self.replicator.remote_topic, self._limited(deadline))
            except Retriable as exc:
                self._note(exc)
                self.readings.failed(some, some, self.monotonic())
                continue
            for place, lane in lanes.items():
                if lane in leased:
                    self.readings.put_aside(place, self.monotonic())
                elif (head := positions.head(lane)) == NEW_LANE:
                    new.append(place)
                else:
                    self.readings.begin(place, head.position, generation=head.generation)
        if new:
            self._begin(new, self._limited(deadline))

    def _begin(self, places: list[TopicPartition], deadline: Deadline) -> None:
        """Begin lanes without a chain where their group stands, or else at the beginning of the log."""
        group_of = {topic: self.consumer_group(topic) for topic, _ in places}
        committed = self.groups.committed(set(group_of.values()), deadline)
        known = [place for place in places if group_of[place[0]] in committed]
        if unknown := sorted(group_of.keys() - {topic for topic, _ in known}):
            self._note(f"the source does not show where these topics begin, and they wait: {', '.join(unknown)}")
            left = [place for place in places if place[0] in unknown]
            self.readings.failed(left, left, self.monotonic())
        begun = {
            place: found.offset for place in known if (found := committed[group_of[place[0]]].get(place)) is not None
        }
        begun |= self.log.starts([place for place in known if place not in begun], deadline)
        for place, offset in begun.items():
            self.readings.begin(place, offset, generation=NEW_LANE.generation)

    # Replicate

    def _gather(self) -> Arrivals:
        """What comes until there is enough for a transaction, or it is time for one."""
        until_look = max(0.0, self._look_at - self.monotonic())
        first = self.log.arrivals(until_look, records=BATCH_RECORDS, size=BATCH_BYTES)
        begins = (
            self.monotonic()
            if self._begun_at is None
            else self._begun_at + min(self.window_seconds, LONGEST_WINDOW_SECONDS)
        )
        counted = sum(map(len, first.records.values()))
        while first.records and counted < BATCH_RECORDS and first.bytes < BATCH_BYTES:
            left = begins - self.monotonic()
            more = self.log.arrivals(max(0.0, left), records=BATCH_RECORDS - counted, size=BATCH_BYTES - first.bytes)
            if not (more.records or more.ended or more.out_of_range) and left <= 0:
                break
            first.add(more)
            counted += sum(map(len, more.records.values()))
        return first

    def _take(self, arrivals: Arrivals, deadline: Deadline) -> None:
        received_at, lanes = self.lease.clock(), self.readings.lanes
        for place, offset in arrivals.ended.items():
            if place in lanes and place not in arrivals.records:
                lanes[place].ended = offset
        for some in self.readings.batches(place for place in arrivals.records if place in self.readings.followed):
            self._begun_at = self.monotonic()
            batch = Batch(
                records={place: self._content(place, arrivals.records[place]) for place in some},
                covered={place: arrivals.ended[place] for place in some if place in arrivals.ended},
                begins={place: begins for place in some if (begins := lanes[place].next) is not None},
            )
            try:
                outcome = self._replicate(batch, deadline)
            except MirrorlessError as exc:
                self._blame(some, exc)
                raise
            self._settle(batch, outcome)
            self.on_batch(batch, outcome, received_at)
            if self._limit is not None:
                self._limit.spend(sum(run.bytes for run in outcome.runs), self._hold)
            if not self.lease.keep():
                return
        self._pass_over(arrivals.out_of_range & self.readings.followed, deadline)
        self._stop_unreadable(arrivals, deadline)

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
        for place, records in batch.records.items():
            if (held := outcome.stopped.get(place) or outcome.waiting.get(place)) is not None:
                self.readings.put_aside(place, now)
                self.readings.forget([place])
                self._leave([place])
                self._note(f"{Lane(self.replicator.flow, *place).at(held.upstream_offset)}: {held.detail}")
            else:
                following = max(following_offset(records), batch.covered.get(place, 0))
                self.readings.went_well(place, following, now, ended=batch.covered.get(place))
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
        self.readings.followed.clear()
        self._look_at = self.monotonic() + min(PAUSE_SECONDS * 2 ** (self._failures - 1), LONGEST_PAUSE_SECONDS)

    def _pass_over(self, places: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Go on where the log begins now, if it was cut off above the position; the gap check reports what is lost."""
        wanted = list(places)
        if not wanted:
            return
        self._leave(wanted)
        starts = self.log.starts(wanted, deadline)
        for place in wanted:
            if starts.get(place, -1) > (self.readings.lanes[place].next or 0):
                generation = self.readings.lanes[place].generation
                self.readings.begin(place, starts[place], generation=generation, examined=False)
            else:
                self.readings.put_aside(place, self.monotonic())  # the log ends below: `topics` stops such a lane

    def _stop_unreadable(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Stop lanes whose log parted from what was read, or has a batch that nobody can read."""
        now, clock = self.monotonic(), self.lease.clock()
        found = {
            place: Stop(
                reason="truncated", upstream_offset=at, detail=f"the source's log was cut off at {at}", at=clock
            )
            for place, at in arrivals.truncated.items()
        }
        for place, exc in arrivals.unreadable.items():
            if exc.old_format and place in self.readings.lanes:
                self.readings.lanes[place].tally.by_client = True
                self._note(f"{Lane(self.replicator.flow, *place)}: {exc.what}: the next run reads records")
            else:
                found[place] = Stop(reason="refused", upstream_offset=exc.offset, detail=exc.what, at=clock)
        for place in (arrivals.truncated.keys() | arrivals.unreadable.keys()) & self.readings.followed:
            self._leave([place])
            self.readings.put_aside(place, now)
            self.readings.forget([place])
            if (stop := found.get(place)) is not None:
                lane, positions = Lane(self.replicator.flow, *place), self.replicator.positions
                if lane not in positions.load([lane], self.replicator.remote_topic, self._limited(deadline)):
                    positions.stop(lane, stop)
                self._note(f"{lane.at(stop.upstream_offset)}: {stop.detail}")

    # The lease, and the groups

    def _hold(self) -> None:
        self.lease.keep()

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
