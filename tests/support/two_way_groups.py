"""Consumer groups on two clusters that replicate to each other, with the checkpoint rounds of both flows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.groups.clusters import GroupSide, Sides
from mirrorless.groups.round import CheckpointRound
from mirrorless.lanes.gaps import GapRange, Look
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.protocol.map_reads import MapReads
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import MemoryLaneStates
from tests.support.clusters import stable_offset
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.group_cluster import MINUTE, MemoryGroups, MemoryTopics
from tests.support.memory_log import look_at
from tests.support.two_way_world import TOPIC, TwoWayWorld

PLACE = (TOPIC, 0)


@dataclass(slots=True)
class WorldTopics(MemoryTopics):
    """The logs of a world's cluster."""

    world: TwoWayWorld | None = None
    alias: str = ""

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
        """See `InternalTopics.ends`."""
        self._answer()
        assert self.world is not None
        log = self.world.log(self.alias)
        return {place: (0, stable_offset(log), len(log)) for place in places}

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> dict[TopicPartition, Look]:
        """See `LogLooks.look`."""
        self._answer()
        assert committed
        assert self.world is not None
        visible = [each.offset for each in self.world.visible(self.alias)]
        end = stable_offset(self.world.log(self.alias))
        return {place: look_at(wanted, visible, end) for place, wanted in ranges.items()}


@dataclass
class TwoWayGroups:
    """The groups, and what each has read."""

    world: TwoWayWorld
    reverse: frozenset[FlowName]
    """Flows that carry groups back, too."""
    groups: dict[str, MemoryGroups] = field(default_factory=dict)
    topics: dict[str, WorldTopics] = field(default_factory=dict)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    read: dict[str, list[bytes]] = field(default_factory=dict)
    """The values that a group has read, in order."""
    now: int = 1_000_000

    def __post_init__(self) -> None:
        for alias in self.world.clusters:
            self.groups[alias] = MemoryGroups()
            self.topics[alias] = WorldTopics(world=self.world, alias=alias)
        self._rounds = {flow: self._round(flow) for flow in self.world.flows}

    def act(self, flow: FlowName) -> RoundReport:
        """One round of a flow."""
        self.now += 3_000
        report = RoundReport()
        self._rounds[flow].act(report, lambda: MINUTE)
        return report

    def until_still(self) -> None:
        """Rounds of all flows until they commit nothing."""
        for _ in range(20):
            if not sum([int(self.act(flow).counts["offsets-committed"]) for flow in self.world.flows]):
                return
        raise AssertionError("the flows move the groups for ever")

    def consume(self, alias: str, group: str, limit: int = 10_000) -> list[bytes]:
        """Read as a member, from the group's commit or the beginning, commit behind what was read, and leave."""
        known = self.groups[alias].offsets.get(group, {}).get(PLACE)
        at = known.offset if known is not None else 0
        visible = self.world.visible(alias)
        passed = {each.value or b"" for each in visible if each.offset < at}
        assert passed <= set(self.read.get(group, ())), "the group was moved beyond what it has read"
        found = [each for each in visible if each.offset >= at][:limit]
        end = stable_offset(self.world.log(alias))
        if found:
            at = found[-1].offset + 1
            end = end if len(found) < limit else at
        self.groups[alias].put(group, PLACE, max(at, end))
        values = [each.value or b"" for each in found]
        self.read.setdefault(group, []).extend(values)
        return values

    def _round(self, flow: FlowName) -> CheckpointRound:
        clusters = tuple(self.world.clusters)
        settings = msgspec.structs.replace(
            make_flow(flow, replication_policy="identity", origins=clusters),
            aliases=clusters,
            start="earliest",
            topics=(TOPIC,),
            sync_group_offsets_enabled=True,
            sync_group_offsets_interval_seconds=0,
            sync_group_offsets_reverse_enabled=flow in self.reverse,
            group_grace_seconds=0,
        )
        source, target = (
            GroupSide(alias=alias, groups=self.groups[alias], topics=self.topics[alias])
            for alias in (flow.source, flow.target)
        )
        return CheckpointRound.of(
            settings,
            Sides(source=source, target=target, clock=lambda: self.now),
            self.documents,
            chains=MapReads(chains=self.world.chains, stops=self.states.read),
            source_log=self.topics[flow.source],
            counterpart=self.world.chains,
            target_log=self.topics[flow.target],
        )
