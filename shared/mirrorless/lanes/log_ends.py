"""The stop of mapped lanes before a record that no event will bring, where no later record follows it.

The forwarder finds such a record in the gap before the next one (protocol/undelivered.py). At the end of a log none
comes, and AWS does not document what a mapping does with the record: it passes it without an event, or it stands there
for ever. Either way the lane's position stands still, and the group's offset shows which it is:

    beyond the position                         a large record that was passed stops the lane
    at a record that no event can carry         that record stops the lane
    anywhere else                               the mapping will deliver it

A lane counts as standing after 30 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, LaneState, Stop, believed
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.counts import Count
from mirrorless.lanes.gaps import MOST_BYTES, GapRange
from mirrorless.ports.kafka import CommittedLog, Groups, LogEnds, RangesRead, TopicPartition
from mirrorless.ports.stores import Chains, LaneStates
from mirrorless.protocol.undelivered import LARGE_BYTES, READ_BYTES, undelivered_stop
from mirrorless.scheduled.runner import RoundReport

STANDING_MS: Final = 30_000

POSITIONS_MS: Final = 600_000
"""After which the position of a lane whose log stands still is looked at again: an operator may have reset it."""

LOOK_SECONDS: Final = 20.0
"""For all lanes of a round: heartbeats wait."""

STOPPED: Final[Count] = "stopped-lanes"
"""The figure, and the metric: as long as it stands, for no delivery may ever meet such a stop."""


class PartitionEnds(Protocol):
    """The ends of partitions."""

    def ends(self, places: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, LogEnds]:
        """Log start, last stable offset and high watermark of each partition; those that do not exist are left out.

        Raises:
            Retriable: the cluster does not answer.
        """
        ...


@dataclass(slots=True, kw_only=True)
class LogEndCheck:
    """Looks at the ends of the logs of one flow's mapped topics. It lives as long as its environment."""

    flow: FlowName
    topics: Callable[[Deadline], Mapping[str, int]]
    """The flow's mapped source topics, with the partition counts of their remote topics."""
    consumer_group: Callable[[str], str]
    """Of a topic's mapping."""
    history_first: Callable[[str], bool]
    """Whether a backfill comes before a source topic's first batch."""
    from_log_start: bool
    """Whether a lane without a chain begins with its log; otherwise only its group shows where it begins."""
    ends: PartitionEnds
    """The source's, as groups and log."""
    groups: Groups
    log: CommittedLog
    chains: Chains
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""
    _clean: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    """The upstream offset below which nothing is left to be delivered."""
    _looked_at: int = field(default=0, init=False)
    """When the positions of all lanes were last looked at, ms since the epoch."""

    def look(self, report: RoundReport, deadline: Deadline) -> None:
        """One round. What does not answer is looked at in a later one."""
        began = self.clock()
        if began - self._looked_at >= POSITIONS_MS:
            self._looked_at = began
            self._clean.clear()
        report.counts[STOPPED] = 0
        try:
            self._look(report, lambda: min(deadline(), LOOK_SECONDS - (self.clock() - began) / 1000))
        except Retriable as exc:
            report.troubles.append(f"the ends of logs wait to be looked at: {exc}")

    def _look(self, report: RoundReport, deadline: Deadline) -> None:
        places = [(topic, each) for topic, count in sorted(self.topics(deadline).items()) for each in range(count)]
        ends = self.ends.ends(places, deadline) if places else {}
        standing = self._standing({place: (found[0], found[1]) for place, found in ends.items()}, report)
        groups = {self.consumer_group(topic) for topic, _ in standing}
        committed = self.groups.committed(groups, deadline) if groups else {}
        # What a group has committed is in the chain, if that is read after it.
        heads = self.chains.heads(map(self._lane, standing))
        for place, head in standing.items():
            lane, offsets = self._lane(place), committed.get(self.consumer_group(place[0]))
            if offsets is None:
                report.troubles.append(f"{lane}: its mapping's group does not show its offsets")
            elif heads[lane] == head:
                group_at = offsets[place].offset if place in offsets else None
                try:
                    stop = self._stop(place, head, group_at, ends[place], deadline)
                except Retriable as exc:  # the other lanes are looked at
                    report.troubles.append(f"{lane}: the end of its log waits to be looked at: {exc}")
                    continue
                if stop is not None:
                    report.counts[STOPPED] += 1
                    report.troubles.append(f"{lane.at(stop.upstream_offset)}: {stop.detail}")
                    self.states.stop(lane, stop)

    def _standing(
        self, ends: Mapping[TopicPartition, tuple[int, int]], report: RoundReport
    ) -> dict[TopicPartition, Head]:
        """The lanes that stand still before the end of their log, with the ends of their chains."""
        open_ = {self._lane(each): each for each, (start, end) in ends.items() if start < end != self._clean.get(each)}
        heads, states = self.chains.heads(open_), self.states.read(open_)
        standing = {}
        for lane, place in open_.items():
            state = states.get(lane, RUNNING)
            if heads[lane].position >= ends[place][1]:
                self._clean[place] = ends[place][1]
            elif state.stop is not None:
                report.counts[STOPPED] += state.stop.reason == "undelivered"
            elif _stands(believed(heads[lane], state), state, self.clock()):
                standing[place] = heads[lane]
        return standing

    def _stop(
        self, place: TopicPartition, head: Head, group_at: int | None, ends: LogEnds, deadline: Deadline
    ) -> Stop | None:
        """The stop of a lane whose mapping has passed something, or stands before what it cannot deliver."""
        (start, stable, _), position = ends, head.position
        if head == NEW_LANE and not self.from_log_start:
            position = stable if group_at is None else group_at  # only its group shows where it begins
        if head == NEW_LANE and self.history_first(place[0]):
            position = stable  # a backfill brings it
        first = max(position, start, self._clean.get(place, 0))
        passed = min(max(first, group_at or 0), stable)
        while first < passed:
            read = self._read(place, (first, passed), READ_BYTES, deadline)
            if (stop := undelivered_stop(read, LARGE_BYTES, now=self.clock())) is not None:
                return stop
            first = self._clean[place] = read.until
        if first == stable:
            return None
        read = self._read(place, (first, stable), 1, deadline)
        if not read.records and read.damage is None:
            self._clean[place] = read.until  # markers, and what was aborted
        return undelivered_stop(read, MOST_BYTES, now=self.clock())

    def _read(self, place: TopicPartition, wanted: GapRange, size: int, deadline: Deadline) -> RangesRead:
        read = self.log.read({place: [wanted]}, deadline, near=1, size=size)[place]
        if read.until <= wanted[0] and read.damage is None:
            raise Retriable("the source's log was not read in time", where=self._lane(place).at(wanted[0]))
        return read

    def _lane(self, place: TopicPartition) -> Lane:
        return Lane(self.flow, *place)


def _stands(head: Head, state: LaneState, now: int) -> bool:
    """Whether a lane that waits for nobody has not moved for a while."""
    leased = state.lease is not None and now < state.lease.until
    known = not head.in_doubt and not head.expired
    return known and not leased and (head.run is None or now - head.run.settled_at >= STANDING_MS)
