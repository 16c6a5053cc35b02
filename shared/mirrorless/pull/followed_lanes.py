"""The lanes of a shard that a run follows: found, begun, left, and stopped where their log cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, Literal

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Stop
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.ports.kafka import Groups, LogEpochs, TopicPartition
from mirrorless.ports.log import Arrivals, Log
from mirrorless.protocol.log_parting import Parting, compare, parted_stop
from mirrorless.protocol.outgoing import first_offset
from mirrorless.protocol.plan import unreadable_stop
from mirrorless.protocol.replicate import Replicator
from mirrorless.pull.gathering import Gathering
from mirrorless.pull.readings import FOLLOWED, LOOK_SECONDS, Readings
from mirrorless.pull.shards import places_of_shard, transactions

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


TOPICS_SECONDS: Final = 60.0
"""Between two readings of the list of topics."""

POSITIONS_SECONDS: Final = 300.0
"""After which the position of a silent lane is read again: an operator may have reset it."""

IDLE_SECONDS: Final = 60.0
"""Without a record, until a continuous run follows a lane no more."""


@dataclass(slots=True, kw_only=True)
class FollowedLanes:
    """The followed lanes of one run, and the looks for those that are behind."""

    replicator: Replicator
    log: Log
    groups: Groups
    """Of the source."""
    epochs: LogEpochs
    """The same."""
    readings: Readings
    gathering: Gathering
    topics: Callable[[], Mapping[str, int]]
    topic_ids: Callable[[], Mapping[str, str]]
    consumer_group: Callable[[str], str]
    shard: int
    shards: int
    continuous: bool
    limited: Callable[[Deadline], Deadline]
    """A deadline, for one question."""
    note: Callable[[MirrorlessError | str], None]
    """Called with what keeps a lane from being read."""
    report: PullReport
    on_minute: Callable[[PullReport], None]
    """Called before the list of topics is read again."""
    monotonic: Callable[[], float]
    clock: Callable[[], int]
    """ms since the epoch."""
    look_at: float = 0.0
    """When the next look is due, monotonic seconds."""
    met_old_format: bool = False
    """Whether a log has batches that only the Kafka client reads."""
    _topics_at: float | None = None
    _known_ids: Mapping[str, str] = field(default_factory=dict)

    def look(self, deadline: Deadline) -> bool:
        """Follow what is behind; whether any lane is that is not left alone."""
        now = self.monotonic()
        self.look_at = now + LOOK_SECONDS
        if self._topics_at is None or now - self._topics_at >= TOPICS_SECONDS:
            if self._topics_at is not None:
                self.on_minute(self.report)
            self._topics_at = now
            self._known_ids = self.topic_ids()
            self.leave(self.readings.only(places_of_shard(self.topics(), self.shard, self.shards)))
        if self.readings.found_at is None or now - self.readings.found_at >= POSITIONS_SECONDS:
            self.readings.found_at = now
            self.readings.forget(self.readings.idle(now))
        self.report.lanes = len(self.readings.lanes)
        self.leave(self.readings.silent(now - IDLE_SECONDS if self.continuous else now))
        idle = self.readings.idle(now)
        self._locate([place for place in idle if self.readings.lanes[place].next is None], deadline)
        due = self.readings.due(idle, now) if self.continuous else idle
        ends = self.log.stable_ends(due, self.limited(deadline)) if due else {}
        behind, beyond = self.readings.behind(ends), self.readings.beyond(ends)
        self.leave(self.readings.in_the_way(len(behind)))
        wanted = dict(islice(behind.items(), FOLLOWED - len(self.readings.followed)))
        self.readings.look_again(behind.keys() - wanted.keys())
        same = self._of_the_same_log(self._of_the_same_topic(wanted | beyond, deadline), deadline)
        wanted = {place: at for place, at in same.items() if place in wanted}
        if wanted:
            self.log.follow(wanted)
            self.readings.follow(wanted)
        return bool(wanted)

    def _of_the_same_topic(self, wanted: dict[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, int]:
        """Those of some lanes whose topic is the one of their chain: `topics` stops the others at its next look."""
        expected = {topic: self._known_ids[topic] for topic, _ in wanted if topic in self._known_ids}
        now = self.epochs.topic_ids(expected, self.limited(deadline))
        if now is None:
            return wanted  # a cluster that is too old to say
        anew = {topic for topic, known in expected.items() if now.get(topic, known) != known}
        unseen = expected.keys() - now.keys()  # by the broker that was asked
        self.readings.look_again(place for place in wanted if place[0] in unseen)
        for topic in sorted(anew):
            self.note(
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
        silent = compare(partings, lambda asked: self.epochs.ends(asked, self.limited(deadline)))
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

    def stop_parted(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Stop lanes of which records came from offsets at which none was when they were passed."""
        lanes = self.readings.lanes
        for place in arrivals.records.keys() & self.readings.followed:
            stands_at = lanes[place].stands_at
            if stands_at and first_offset(arrivals.records[place]) < stands_at:
                del arrivals.records[place]
                self.leave([place])
                self._stop_parted(place, lanes[place].next or 0, stands_at, deadline)

    def _stop_parted(self, place: TopicPartition, at: int, position: int, deadline: Deadline) -> None:
        lane = Lane(self.replicator.flow, *place)
        self._stop(place, parted_stop(lane, at, position=position, now=self.clock()), deadline)

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """Follow these lanes no more."""
        leaving = self.readings.followed & set(places)
        if leaving:
            self.log.leave(leaving)
            self.gathering.drop(leaving)
            self.readings.followed -= leaving

    def _locate(self, places: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Find where lanes are to be read on; those that cannot be read now are left alone for a while."""
        positions, flow = self.replicator.positions, self.replicator.flow
        new: list[TopicPartition] = []
        for some in transactions(places):
            lanes = {place: Lane(flow, *place) for place in some}
            positions.forget(lanes.values())
            try:
                leased = positions.load(lanes.values(), self.replicator.remote_topic, self.limited(deadline))
            except Retriable as exc:
                self.note(exc)
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
            self._begin(new, self.limited(deadline))

    def _begin(self, places: list[TopicPartition], deadline: Deadline) -> None:
        """Begin lanes without a chain where their group stands, or else at the beginning of the log."""
        group_of = {topic: self.consumer_group(topic) for topic, _ in places}
        committed = self.groups.committed(set(group_of.values()), deadline)
        known = [place for place in places if group_of[place[0]] in committed]
        if unknown := sorted(group_of.keys() - {topic for topic, _ in known}):
            self.note(f"the source does not show where these topics begin, and they wait: {', '.join(unknown)}")
            left = [place for place in places if place[0] in unknown]
            self.readings.failed(left, left, self.monotonic())
        begun = {
            place: found.offset for place in known if (found := committed[group_of[place[0]]].get(place)) is not None
        }
        begun |= self.log.starts([place for place in known if place not in begun], deadline)
        for place, offset in begun.items():
            self.readings.begin(place, offset, generation=NEW_LANE.generation)

    def pass_over(self, places: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Go on where the log begins now, if it was cut off above the position; the gap check reports what is lost."""
        wanted = list(places)
        if not wanted:
            return
        self.leave(wanted)
        starts = self.log.starts(wanted, deadline)
        for place in wanted:
            if starts.get(place, -1) > (self.readings.lanes[place].next or 0):
                before = self.readings.lanes[place]
                self.readings.begin(
                    place, starts[place], generation=before.generation, newest=before.newest, examined=False
                )
            else:
                self.readings.failed([place], [place], self.monotonic())  # the log ends below: it may have lost its end

    def stop_unreadable(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Stop lanes whose log has a batch that nobody can read; read those anew whose log parted from what was read.

        What was read and not written may be all that parts.
        """
        clock = self.clock()
        for place in arrivals.truncated.keys() & self.readings.followed:
            self.note(f"{Lane(self.replicator.flow, *place)}: the source's log was cut off while it was read")
            self.leave([place])
            self.readings.forget([place])
        found: dict[TopicPartition, Stop] = {}
        for place, exc in arrivals.unreadable.items():
            if exc.old_format and place in self.readings.lanes:
                self.readings.lanes[place].tally.by_client = self.met_old_format = True
            else:
                found[place] = unreadable_stop(exc, now=clock)
        for place in arrivals.unreadable.keys() & self.readings.followed:
            self.leave([place])
            if (stop := found.get(place)) is not None:
                self._stop(place, stop, deadline)
            else:
                self.readings.forget([place])

    def _stop(self, place: TopicPartition, stop: Stop, deadline: Deadline) -> None:
        """Stop a lane that no job has, and leave it alone."""
        lane, positions = Lane(self.replicator.flow, *place), self.replicator.positions
        self.readings.put_aside(place, self.monotonic())
        self.readings.forget([place])
        if lane not in positions.load([lane], self.replicator.remote_topic, self.limited(deadline)):
            stored = positions.state(lane).stopped_by(stop)
            if stored is not None:
                positions.stop(lane, stored)
        self.note(f"{lane.at(stop.upstream_offset)}: {stop.detail}")
