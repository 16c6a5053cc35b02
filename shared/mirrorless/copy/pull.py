"""One run of a pull: the lanes of a shard, read from where their chains stand and replicated by the seven steps.

    look      which lanes are behind: their positions, and the last stable offsets of the source
    follow    one consumer reads all of them, each from its position
    gather    what comes, for a window of each journal
    replicate what is due, up to 64 lanes in a transaction
    commit    positions to the consumer groups of the topics, for those who watch lag

A run ends when it is drained; a continuous one when its successor waits; and either when it meets a log that the other
engine has to read, which goes on at once. Whatever fails, the chains have the positions, and the consumer is opened
anew there: records that it had fetched ahead are never taken for the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf
from typing import Final, Literal

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Stop
from mirrorless.chain.run import Run
from mirrorless.clock import TRIES, Deadline, pause_seconds
from mirrorless.copy.feed import LaneFeed
from mirrorless.copy.gathering import Gathering
from mirrorless.copy.readings import ASIDE_SECONDS, FOLLOWED, LOOK_SECONDS
from mirrorless.copy.shards import LEAST_MS, ShardLease, places_of_shard, transactions
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS, WINDOW_SECONDS
from mirrorless.ports.kafka import GroupIsActive, Groups, LogEpochs, OffsetAndMetadata, TopicPartition
from mirrorless.ports.log import Arrivals, BoundedLog
from mirrorless.protocol.event import Batch
from mirrorless.protocol.log_parting import Parting, compare, parted_stop
from mirrorless.protocol.outgoing import first_offset
from mirrorless.protocol.replicate import BatchOutcome

COMMIT_SECONDS: Final = 10.0
"""Between two commits for the consumer groups."""

REPLICATE_SECONDS: Final = 25.0
"""For one transaction, and for one question to a cluster: an answer that is lost does not take the run with it."""

OVER_SECONDS: Final = 2 * ASIDE_SECONDS + 30.0
"""After which a trouble that was not noted again is over: whatever is left alone is tried again before."""

ENDS_SECONDS: Final = 35.0
"""Before its function's end a run begins nothing more."""


TOPICS_SECONDS: Final = 60.0
"""Between two readings of the list of topics."""

POSITIONS_SECONDS: Final = 300.0
"""After which the position of a silent lane is read again: an operator may have reset it."""

IDLE_SECONDS: Final = 60.0
"""Without a record, until a continuous run follows a lane no more."""


PullEnding = Literal["drained", "time", "successor", "lease lost", "old format"]
"""`old format`: a log has batches that the engine of whole batches does not read, and the other one goes on at once."""


@dataclass(slots=True)
class PullReport:
    """What a run has done."""

    ended: PullEnding = "drained"
    lanes: int = 0
    records: int = 0
    bytes: int = 0
    passed_bytes: int = 0
    """Those of `bytes` whose batches were passed as they lay in the source's log."""
    limited_ms: int = 0
    """For which records waited for `maximum.bytes.per.second`."""
    transactions: int = 0
    failures: int = 0
    troubles: list[str] = field(default_factory=list)
    """One sentence for each lane, or topic, that could not go on."""


class _Over(Exception):
    """The run has no more time, or its lease is lost."""


@dataclass(slots=True, kw_only=True)
class PullRun(LaneFeed):
    """One run."""

    log: BoundedLog
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
    window_seconds: float = WINDOW_SECONDS
    """Between the beginnings of two transactions of a journal, unless there is enough for one, see `Gathering`."""
    on_batch: Callable[[Batch, BatchOutcome, int], None] = lambda _batch, _outcome, _received_at: None
    """Called with each batch, what became of it, and when it was received: writes metrics."""
    on_minute: Callable[[PullReport], None] = lambda _report: None
    """Called each minute of a run that lasts longer."""
    report: PullReport = field(default_factory=PullReport)
    _topics_at: float | None = None
    _known_ids: Mapping[str, str] = field(default_factory=dict)
    _committed_at: float | None = None
    _received_at: int = 0
    """When what is being written was received, ms since the epoch."""
    _moved: set[TopicPartition] = field(default_factory=set)
    _failures: int = 0
    _noted_at: dict[str, float] = field(default_factory=dict)
    """When each trouble was noted last, monotonic seconds."""

    def __post_init__(self) -> None:
        """Begin with nothing gathered."""
        self._gathering = Gathering(min(self.window_seconds, LONGEST_WINDOW_SECONDS), self.replicator.size)

    def run(self, deadline: Deadline) -> PullReport:
        """Read and replicate until the run ends. The lease is taken, and is let go of.

        Raises:
            Retriable: nothing is lost; the next run goes on.
            ChainBroken: the offset map contradicts the target.
        """
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
        if self._met_old_format:
            return "old format"
        if not self.continuous and self.readings.all_ended:
            self._look_at = 0.0  # for what has come meanwhile, or to end
        if self.monotonic() >= self._look_at:
            if self.lease.has_successor():
                while self._gathering.due_at < inf and self.lease.keep():
                    self._take(self._gathering.take(self.monotonic(), early=True), deadline)
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

    # The lanes that are followed

    def _look(self, deadline: Deadline) -> bool:
        """Follow what is behind; whether any lane is that is not left alone."""
        now = self.monotonic()
        self._look_at = now + LOOK_SECONDS
        if self._topics_at is None or now - self._topics_at >= TOPICS_SECONDS:
            if self._topics_at is not None:
                self._minute()
            self._topics_at = now
            self._known_ids = self.topic_ids()
            self._leave(self.readings.only(places_of_shard(self.topics(), self.shard, self.shards)))
        if self.readings.found_at is None or now - self.readings.found_at >= POSITIONS_SECONDS:
            self.readings.found_at = now
            self.readings.forget(self.readings.idle(now))
        self.report.lanes = len(self.readings.lanes)
        self._leave(self.readings.silent(now - IDLE_SECONDS if self.continuous else now))
        idle = self.readings.idle(now)
        self._locate([place for place in idle if self.readings.lanes[place].next is None], deadline)
        due = self.readings.due(idle, now) if self.continuous else idle
        ends = self.log.stable_ends(due, self._limited(deadline)) if due else {}
        behind, beyond = self.readings.behind(ends), self.readings.beyond(ends)
        self._leave(self.readings.in_the_way(len(behind)))
        wanted = dict(islice(behind.items(), FOLLOWED - len(self.readings.followed)))
        self.readings.look_again(behind.keys() - wanted.keys())
        same = self._of_the_same_log(self._of_the_same_topic(wanted | beyond, deadline), deadline)
        wanted = {place: at for place, at in same.items() if place in wanted}
        if wanted:
            self._follow(wanted)
        return bool(wanted)

    def _of_the_same_topic(self, wanted: dict[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, int]:
        """Those of some lanes whose topic is the one of their chain: `topics` stops the others at its next look."""
        expected = {topic: self._known_ids[topic] for topic, _ in wanted if topic in self._known_ids}
        now = self.epochs.topic_ids(expected, self._limited(deadline))
        if now is None:
            return wanted  # a cluster that is too old to say
        anew = {topic for topic, known in expected.items() if now.get(topic, known) != known}
        unseen = expected.keys() - now.keys()  # by the broker that was asked
        self.readings.look_again(place for place in wanted if place[0] in unseen)
        for topic in sorted(anew):
            self._note(
                f"{self.replicator.flow} {topic}: the source's topic is not the one that was read (its id was "
                f"{expected[topic]} and is {now[topic]}): nothing of it is read until `topics` has looked at it"
            )
        for place in wanted:
            if place[0] in anew:
                self.readings.put_aside(place, self.monotonic())
                self.readings.forget([place])
        return {place: at for place, at in wanted.items() if place[0] not in anew | unseen}

    def _of_the_same_log(self, wanted: dict[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, int]:
        """Those of some lanes whose log agrees with what was copied of it, and where to read it; the others stop."""
        chains, flow, lanes = self.replicator.chains, self.replicator.flow, self.readings.lanes

        def covering(place: TopicPartition, generation: int, offset: int) -> Run | None:
            link = chains.at_or_before(Lane(flow, *place), generation, offset)
            return link if isinstance(link, Run) else None

        partings = {
            place: Parting(lanes[place].newest, partial(covering, place, lanes[place].generation)) for place in wanted
        }
        silent = compare(partings, lambda asked: self.epochs.ends(asked, self._limited(deadline)))
        self.readings.look_again(silent)
        same: dict[TopicPartition, int] = {}
        for place, at in wanted.items():
            parting = partings[place]
            if parting.at is not None:
                self._stop_parted(place, parting.at, at, deadline)
            elif place not in silent:
                same[place] = at
                if parting.same_to is not None and parting.same_to < at:
                    # Markers stood there at the end of an epoch, and another leader may have put records there.
                    same[place] = lanes[place].next = parting.same_to
                    lanes[place].stands_at = at
        return same

    def _stop_where_parted(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Stop lanes of which records came from offsets at which none was when they were passed."""
        lanes = self.readings.lanes
        for place in arrivals.records.keys() & self.readings.followed:
            stands_at = lanes[place].stands_at
            if stands_at and first_offset(arrivals.records[place]) < stands_at:
                del arrivals.records[place]
                self._leave([place])
                self._stop_parted(place, lanes[place].next or 0, stands_at, deadline)

    def _stop_parted(self, place: TopicPartition, at: int, position: int, deadline: Deadline) -> None:
        lane = self.lane(place)
        self._stop(place, parted_stop(lane, at, position=position, now=self.clock()), deadline)

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
                    self.readings.begin(place, head.position, generation=head.generation, newest=head.run)
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

    def _pass_over(self, places: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Go on where the log begins now, if it was cut off above the position; the gap check reports what is lost."""
        wanted = list(places)
        if not wanted:
            return
        self._leave(wanted)
        starts = self.log.starts(wanted, deadline)
        for place in wanted:
            if starts.get(place, -1) > (self.readings.lanes[place].next or 0):
                before = self.readings.lanes[place]
                self.readings.begin(
                    place, starts[place], generation=before.generation, newest=before.newest, examined=False
                )
            else:
                self.readings.failed([place], [place], self.monotonic())  # the log ends below: it may have lost its end

    def _stop(self, place: TopicPartition, stop: Stop, deadline: Deadline) -> None:
        """Stop a lane that no job has, and leave it alone."""
        self.readings.put_aside(place, self.monotonic())
        self.readings.forget([place])
        self._store(place, stop, deadline)
        self._note(f"{self.lane(place).at(stop.upstream_offset)}: {stop.detail}")

    # Replicate

    def _take(self, arrivals: Arrivals, deadline: Deadline) -> None:
        self._received_at, lanes = self.clock(), self.readings.lanes
        for place, offset in arrivals.ended.items():
            if place in lanes and place not in arrivals.records:
                lanes[place].ended = offset
        self._stop_where_parted(arrivals, deadline)
        try:
            for some in self.readings.batches(place for place in arrivals.records if place in self.readings.followed):
                batch = self._batch(
                    {place: self._content(place, arrivals.records[place]) for place in some},
                    covered={place: arrivals.ended[place] for place in some if place in arrivals.ended},
                    epochs={place: arrivals.epochs[place] for place in some if place in arrivals.epochs},
                )
                self._write(batch, deadline)
                if not self.lease.keep():
                    return
            self._pass_over(arrivals.out_of_range & self.readings.followed, deadline)
            self._react(arrivals, deadline)
        except _Over:
            return  # what is not written now is read again, from the positions

    def _settle(self, batch: Batch, outcome: BatchOutcome) -> None:
        self._failures = 0
        self.report.limited_ms += int(self.limited_seconds * 1000)
        self.limited_seconds = 0.0
        self.report.transactions += 1
        self.report.records += sum(run.records for run in outcome.runs)
        self.report.bytes += sum(run.bytes for run in outcome.runs)
        self.report.passed_bytes += sum(run.passed_bytes for run in outcome.runs)
        for place in batch.records:
            if (held := outcome.stopped.get(place) or outcome.waiting.get(place)) is not None:
                self.readings.put_aside(place, self.monotonic())
                self.readings.forget([place])
                self._leave([place])
                self._note(f"{self.lane(place).at(held.upstream_offset)}: {held.detail}")
            else:
                self._went_well(place, batch, outcome)
                self._moved.add(place)
        self.on_batch(batch, outcome, self._received_at)

    def _begin_again(self, exc: MirrorlessError) -> None:
        """After a failure: open the consumer anew, and read each lane from where it stands.

        Raises:
            MirrorlessError: it was one failure too many in a row.
        """
        self._note(exc)
        self._failures += 1
        self.report.failures += 1
        if self._failures >= TRIES:
            raise exc
        self._drop_all()
        self._look_at = self.monotonic() + pause_seconds(self._failures)

    # The lease, and the groups

    def _hold(self, deadline: Deadline) -> None:
        if not self.lease.keep() or deadline() < ENDS_SECONDS:
            raise _Over
        if self.lease.seconds * 1000 < LEAST_MS:
            raise Retriable("the lease of the shard is short", where=f"{self.replicator.flow} shard {self.shard}")

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

    def _note_of(self, place: TopicPartition, text: str) -> None:
        self._note(f"{self.lane(place)}: {text}")

    def _note(self, trouble: MirrorlessError | str) -> None:
        if (text := str(trouble)) not in self.report.troubles:
            self.report.troubles.append(text)
        self._noted_at[text] = self.monotonic()

    def _minute(self) -> None:
        self._forget_what_is_over()
        self.on_minute(self.report)

    def _forget_what_is_over(self) -> None:
        since = self.monotonic() - OVER_SECONDS
        self.report.troubles[:] = [each for each in self.report.troubles if self._noted_at[each] >= since]
