"""The copy of records that no event can carry, where no later record follows them in a mapped lane's log.

The forwarder finds such a record in the gap before the next one (protocol/gap_merge.py). At the end of a log none
comes, and AWS does not document what a mapping does with the record: it passes it without an event, or it stands there
for ever. Either way the lane's position stands still, and the group's offset shows which it is:

    beyond the position                         the mapping has passed what lies between: that is copied
    at a record that no event can carry         the mapping stands still: everything up to the end is copied
    anywhere else                               the mapping will deliver it

A lane counts as standing after 30 s. The chain decides between this task and a forwarder, as between two forwarders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, LaneState
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import EVENT_BYTES, event_bytes
from mirrorless.lanes.lane_check import TargetEnds
from mirrorless.ports.kafka import CommittedLog, Groups, RangesRead, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.protocol.gap_merge import PORTION_BYTES
from mirrorless.protocol.plan import unreadable_stop
from mirrorless.protocol.replicate import Replicator
from mirrorless.scheduled.runner import RoundReport

if TYPE_CHECKING:
    from mirrorless.records.record_batch import BatchUnreadable

STANDING_MS: Final = 30_000

POSITIONS_MS: Final = 600_000
"""After which the position of a lane whose log stands still is looked at again: an operator may have reset it."""

NEARLY_BYTES: Final = EVENT_BYTES // 2
"""Of a record in an event's JSON, from which it may be too large: what AWS adds around it is not documented, and a
record of this size that a mapping delivers after all is written once, as the chain decides."""

LANE_SECONDS: Final = 20.0
"""For one lane, of which at least one portion is tried: the others, and heartbeats, wait."""

LEFT_SECONDS: Final = 8.0
"""Of the round's time, without which no further portion begins."""


@dataclass(slots=True)
class LogEndMemory:
    """What was found out about lanes in this environment. Without it, logs are read once more."""

    clean: dict[TopicPartition, int] = field(default_factory=dict)
    """The last stable offset up to which nothing is left to copy."""
    read_to: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Generation, and the upstream offset below which the log was read here: all there is copied, or no record."""
    stands: dict[TopicPartition, tuple[int, bool]] = field(default_factory=dict)
    """Where a mapping's group was last seen to stand, and whether that is at a record that no event can carry."""
    looked_at: int = 0
    """When the positions of all lanes were last looked at, ms since the epoch."""
    turns: dict[TopicPartition, int] = field(default_factory=dict)
    """When a lane was last copied, ms since the epoch: those that never were are first."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """A lane that stands still, and where its log begins and ends."""

    head: Head
    start: int
    stable: int


@dataclass(slots=True, kw_only=True)
class LogEndCopy:
    """The task `oversize` of one flow."""

    flow: FlowName
    topics: Callable[[Deadline], Mapping[str, int]]
    """The flow's mapped source topics, with the partition counts of their remote topics."""
    consumer_group: Callable[[str], str]
    """Of a topic's mapping."""
    ends: TargetEnds
    """The source's."""
    groups: Groups
    """The source's."""
    log: CommittedLog
    replicator: Replicator
    clock: Callable[[], int]
    """ms since the epoch."""
    memory: LogEndMemory

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: a cluster or DynamoDB does not answer. What was copied stays copied.
        """
        report.figures.update({"oversize-copied": 0, "mappings-standing": 0})
        if self.clock() - self.memory.looked_at >= POSITIONS_MS:
            self.memory.looked_at = self.clock()
            self.memory.clean.clear()
        standing = self._standing(deadline)
        group_of = {topic: self.consumer_group(topic) for topic, _ in standing}
        committed = self.groups.committed(set(group_of.values()), deadline) if group_of else {}
        for place in sorted(standing, key=lambda place: self.memory.turns.get(place, 0)):
            if deadline() < LEFT_SECONDS:
                report.troubles.append(f"{self._lane(place)}: the end of its log waits for the next round")
                break
            offsets = committed.get(group_of[place[0]])
            if offsets is None:
                report.troubles.append(f"{self._lane(place)}: its mapping's group does not show its offsets")
                continue
            at = offsets[place].offset if place in offsets else None
            try:
                self._bring(place, standing[place], at, report, deadline)
            except Retriable as exc:  # the other lanes may go on
                report.troubles.append(f"the end of a log was not copied: {exc}")
                self.replicator.forget()

    def _standing(self, deadline: Deadline) -> dict[TopicPartition, _Standing]:
        """The lanes that stand still before the end of their log."""
        places = [(topic, each) for topic, count in sorted(self.topics(deadline).items()) for each in range(count)]
        found = self.ends.ends(places, deadline) if places else {}
        ends = {
            place: (start, stable)
            for place, (start, stable, _) in found.items()
            if self.memory.clean.get(place) != stable and start < stable
        }
        heads = self.replicator.chains.heads(map(self._lane, ends))
        states = self.replicator.positions.states.read([lane for lane in heads if not heads[lane].in_doubt])
        now, standing = self.clock(), {}
        for place, (start, stable) in ends.items():
            head, state = heads[self._lane(place)], states.get(self._lane(place), RUNNING)
            if head.position >= stable:
                self.memory.clean[place] = stable
            elif not head.in_doubt and not _held(state, now) and _stands(head, now):
                standing[place] = _Standing(head, start, stable)
        return standing

    def _bring(
        self,
        place: TopicPartition,
        lane: _Standing,
        group_at: int | None,
        report: RoundReport,
        deadline: Deadline,
    ) -> None:
        """Copy what the mapping of a lane has left out, or stands before."""
        head, start, stable, position = lane.head, lane.start, lane.stable, lane.head.position
        if head == NEW_LANE:
            if self.replicator.history_first(place[0]):
                return  # a backfill brings it
            if not self.replicator.from_log_start and group_at is None:
                return  # only its group shows where it begins
            position = start if self.replicator.from_log_start or group_at is None else group_at
        generation, read_to = self.memory.read_to.get(place, (head.generation, 0))
        first = max(position, start, read_to if generation == head.generation else 0)
        group_at = max(start, position if group_at is None else group_at)
        passed = max(first, min(group_at, stable))
        if not self._copy(place, head, (first, passed), report, deadline):
            return
        if passed >= stable:
            self.memory.clean[place] = stable
        elif self._at_oversize(place, group_at, stable, deadline):
            report.figures["mappings-standing"] += 1
            report.troubles.append(
                f"{self._lane(place).at(position)}: its mapping stands at a record that no event can carry, or at a "
                "batch that nobody can read, and does not pass it; this task copies what follows, once a minute. "
                "`trigger: schedule` reads it at once"
            )
            self._copy(place, head, (passed, stable), report, deadline)

    def _at_oversize(self, place: TopicPartition, at: int, stable: int, deadline: Deadline) -> bool:
        """Whether the next record of a mapping's group may be one that no event can carry."""
        if at >= stable:
            return False
        known, oversize = self.memory.stands.get(place, (-1, False))
        if known == at:
            return oversize
        read = self._read(place, (at, stable), deadline, size=1)
        if read.records:
            oversize = event_bytes(read.records[0]) > NEARLY_BYTES
            self.memory.stands[place] = (at, oversize)
            return oversize
        if read.damage is not None:
            return True
        if read.until >= stable:
            self.memory.clean[place] = stable  # markers, and what was aborted
        return False

    def _copy(
        self, place: TopicPartition, head: Head, wanted: tuple[int, int], report: RoundReport, deadline: Deadline
    ) -> bool:
        """Copy the records of a range in order, portion by portion; whether all of it is done."""
        first, following = wanted
        self.memory.turns[place] = self.clock()
        ends_at = deadline() - LANE_SECONDS
        while first < following and deadline() > max(ends_at, LEFT_SECONDS):
            read = self._read(place, (first, following), deadline, size=PORTION_BYTES)
            if read.damage is not None and not read.records:
                if not self._leave_out(place, first, read.damage, deadline):
                    return False
                first = read.damage.next or following
                continue
            if read.until <= first:
                return False
            if read.records:
                # The replicator reads their gaps itself, from where the lane is by then.
                batch = Batch(records={place: list(read.records)})
                outcome = self.replicator.replicate(batch, request="oversize", deadline=deadline)
                report.figures["oversize-copied"] += sum(run.records for run in outcome.runs)
                if outcome.stopped or outcome.waiting:
                    return False
            first = read.until
            self.memory.read_to[place] = (head.generation, first)
        return first >= following

    def _leave_out(self, place: TopicPartition, first: int, bad: BatchUnreadable, deadline: Deadline) -> bool:
        """Pass a batch that nobody can read where the operator ordered that, or stop the lane there."""
        lane, positions = self._lane(place), self.replicator.positions
        if lane in positions.load([lane], self.replicator.remote_topic, deadline):
            return False
        if bad.next is None or positions.state(lane).left_out(bad.offset, bad.cause) is None:
            stored = positions.state(lane).stopped_by(unreadable_stop(bad, now=self.clock()))
            if stored is not None:
                positions.stop(lane, stored)
            return False
        rows = (max(first, bad.offset), bad.next)
        batch = Batch(records={place: []}, covered={place: bad.next}, begins={place: rows[0]}, left_out={place: rows})
        outcome = self.replicator.replicate(batch, request="oversize", deadline=deadline)
        return not outcome.stopped and not outcome.waiting

    def _read(self, place: TopicPartition, wanted: tuple[int, int], deadline: Deadline, *, size: int) -> RangesRead:
        return self.log.read({place: [wanted]}, deadline, near=1, size=size)[place]

    def _lane(self, place: TopicPartition) -> Lane:
        return Lane(self.flow, *place)


def _held(state: LaneState, now: int) -> bool:
    """Whether a lane waits for its operator, or for a job."""
    return state.stop is not None or (state.lease is not None and now < state.lease.until)


def _stands(head: Head, now: int) -> bool:
    return head.run is None or now - head.run.settled_at >= STANDING_MS
