"""The lanes of a shard that a run follows: found, begun, left, and stopped where their log cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.lane import Lane
from mirrorless.lane_state import NEW_LANE, Stop
from mirrorless.ports.kafka import Deadline, Groups, TopicPartition
from mirrorless.protocol.replicate import Replicator
from mirrorless.pull.gathering import Gathering
from mirrorless.pull.log import Arrivals, PulledLog
from mirrorless.pull.readings import FOLLOWED, LOOK_SECONDS, Readings
from mirrorless.pull.report import PullReport
from mirrorless.pull.shards import places_of_shard, transactions

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
    log: PulledLog
    groups: Groups
    """Of the source."""
    readings: Readings
    gathering: Gathering
    topics: Callable[[], Mapping[str, int]]
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
    _topics_at: float | None = None

    def look(self, deadline: Deadline) -> bool:
        """Follow what is behind; whether any lane is that is not left alone."""
        now = self.monotonic()
        self.look_at = now + LOOK_SECONDS
        if self._topics_at is None or now - self._topics_at >= TOPICS_SECONDS:
            if self._topics_at is not None:
                self.on_minute(self.report)
            self._topics_at = now
            self.leave(self.readings.only(places_of_shard(self.topics(), self.shard, self.shards)))
        if self.readings.found_at is None or now - self.readings.found_at >= POSITIONS_SECONDS:
            self.readings.found_at = now
            self.readings.forget(self.readings.idle(now))
        self.report.lanes = len(self.readings.lanes)
        self.leave(self.readings.silent(now - IDLE_SECONDS if self.continuous else now))
        idle = self.readings.idle(now)
        self._locate([place for place in idle if self.readings.lanes[place].next is None], deadline)
        due = self.readings.due(idle, now) if self.continuous else idle
        behind = self.readings.behind(self.log.stable_ends(due, self.limited(deadline)) if due else {})
        self.leave(self.readings.in_the_way(len(behind)))
        wanted = dict(islice(behind.items(), FOLLOWED - len(self.readings.followed)))
        self.readings.look_again(behind.keys() - wanted.keys())
        if wanted:
            self.log.follow(wanted)
            self.readings.follow(wanted)
        return bool(wanted)

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
                    self.readings.begin(place, head.position, generation=head.generation)
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
                generation = self.readings.lanes[place].generation
                self.readings.begin(place, starts[place], generation=generation, examined=False)
            else:
                self.readings.put_aside(place, self.monotonic())  # the log ends below: `topics` stops such a lane

    def stop_unreadable(self, arrivals: Arrivals, deadline: Deadline) -> None:
        """Stop lanes whose log parted from what was read, or has a batch that nobody can read."""
        now, clock = self.monotonic(), self.clock()
        found = {
            place: Stop(
                reason="truncated", upstream_offset=at, detail=f"the source's log was cut off at {at}", at=clock
            )
            for place, at in arrivals.truncated.items()
        }
        for place, exc in arrivals.unreadable.items():
            if exc.old_format and place in self.readings.lanes:
                self.readings.lanes[place].tally.by_client = True
                self.note(f"{Lane(self.replicator.flow, *place)}: {exc.what}: the next run reads records")
            else:
                found[place] = Stop(reason="refused", upstream_offset=exc.offset, detail=exc.what, at=clock)
        for place in (arrivals.truncated.keys() | arrivals.unreadable.keys()) & self.readings.followed:
            self.leave([place])
            self.readings.put_aside(place, now)
            self.readings.forget([place])
            if (stop := found.get(place)) is not None:
                lane, positions = Lane(self.replicator.flow, *place), self.replicator.positions
                if lane not in positions.load([lane], self.replicator.remote_topic, self.limited(deadline)):
                    positions.stop(lane, stop)
                self.note(f"{lane.at(stop.upstream_offset)}: {stop.detail}")
