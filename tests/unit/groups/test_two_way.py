"""Groups between clusters that replicate to each other: exact where nothing is on its way, and nothing is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.support.tries import tries
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


THERE, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")
FLOWS = [THERE, BACK]
REVERSES = [frozenset[FlowName](), frozenset({THERE}), frozenset(FLOWS)]

ACTIONS = st.tuples(
    st.sampled_from(["produce", "deliver", "consume", "round", "round"]),
    st.integers(0, 1),
    st.integers(1, 4),
    st.booleans(),
)


def live(groups: TwoWayGroups, actions: list[tuple[str, int, int, bool]]) -> None:
    for what, which, number, marker in actions:
        flow = FLOWS[which]
        if what == "produce":
            groups.world.produce(flow.source, number, marker=marker)
        elif what == "deliver":
            groups.world.deliver(flow, number)
        elif what == "consume":
            groups.consume(flow.source, "shop", number)
        else:
            groups.act(flow)


@settings(max_examples=tries(20, many=50), deadline=None)
@given(st.sampled_from(REVERSES), st.lists(ACTIONS, max_size=30))
def test_a_group_that_moves_at_any_time_skips_nothing_and_is_never_moved_back(
    reverse: frozenset[FlowName], actions: list[tuple[str, int, int, bool]]
) -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), reverse)
    for flow in FLOWS:
        groups.world.produce(flow.source, 2)
    groups.world.settle()

    live(groups, actions)  # `consume` holds each move against what was read
    groups.world.settle()
    groups.until_still()

    for alias in groups.world.clusters:
        groups.consume(alias, "shop")
        assert all(before is None or before < after for _, _, before, after in groups.groups[alias].commits)


@settings(max_examples=tries(12, many=30), deadline=None)
@given(st.lists(ACTIONS, max_size=20), st.lists(st.integers(0, 1), min_size=1, max_size=4))
def test_a_group_that_moves_when_everything_has_arrived_reads_each_record_once(
    actions: list[tuple[str, int, int, bool]], moves: list[int]
) -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset({THERE}))
    live(groups, [each for each in actions if each[0] in {"produce", "deliver"}])
    groups.world.produce("us-east", 2)
    groups.world.produce("eu-west", 1)
    for which in (0, *moves):
        groups.world.settle()
        groups.until_still()
        groups.consume(FLOWS[which].source, "shop")
        groups.until_still()
        assert groups.act(THERE).counts["groups-not-ready"] in (0, int(bool(which)))
        groups.world.produce(FLOWS[which].target, 1, marker=True)
    groups.world.settle()
    groups.until_still()

    groups.consume("us-east", "shop")

    assert set(Counter(groups.read["shop"]).values()) == {1}
    assert len(groups.read["shop"]) == len(groups.world.produced)


def test_while_the_region_of_the_other_map_is_lost_groups_keep_the_places_found_before() -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset())
    groups.world.produce("us-east", 3)
    groups.world.produce("eu-west", 2)
    groups.world.settle()
    groups.consume("us-east", "shop", 4)
    groups.until_still()
    found = groups.groups["eu-west"].offsets["shop"][PLACE]
    groups.topics["us-east"].silent = groups.groups["us-east"].silent = True
    groups._rounds[THERE] = groups._round(THERE)

    report = groups.act(THERE)

    assert groups.groups["eu-west"].offsets["shop"][PLACE] == found
    assert any("the map of eu-west->us-east does not answer" in each for each in report.troubles)
    assert report.counts["offsets-committed"] == 0


@pytest.mark.parametrize("flow", FLOWS, ids=str)
def test_records_that_arrive_between_the_reads_of_the_two_maps_are_not_skipped(flow: FlowName) -> None:
    """The flow to where the group goes must be read last: what it has not copied yet, the other has not seen.

    Nor may the other one be looked at again behind what was read of it: it comes back with what is produced there next.
    """
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset({THERE}))
    groups.world.produce("us-east", 2)
    groups.world.produce("eu-west", 2)
    groups.world.settle()
    groups.consume(flow.source, "shop")
    groups.world.produce(flow.source, 1)  # not read by the group, and on its way
    translator = groups._rounds[THERE].translator
    plainly = translator.at_source

    def with_arrivals(call: Callable[[Deadline], Any], deadline: Deadline) -> Any:
        translator.at_source = plainly
        found = call(deadline)
        groups.world.settle()
        groups.world.produce(flow.target, 1)
        groups.world.settle()
        return found

    translator.at_source = with_arrivals
    groups.act(THERE)

    groups.consume(flow.target, "shop")
    assert len(set(groups.read["shop"])) == 6


def test_records_that_both_logs_have_in_another_order_are_read_again_and_counted() -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset())
    groups.world.produce("us-east")  # 0
    groups.world.produce("eu-west")  # 1
    groups.world.settle()  # us-east has 0 1, and eu-west has 1 0
    groups.consume("us-east", "shop", 1)
    groups.until_still()

    assert groups.act(THERE).counts["reread-records-max"] == 1
    assert groups.consume("eu-west", "shop") == [b"1", b"0"]


@pytest.mark.parametrize("reverse", REVERSES, ids=["neither", "one", "both"])
def test_an_operators_rewind_of_an_idle_group_is_not_undone_by_either_flow(reverse: frozenset[FlowName]) -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), reverse)
    groups.world.produce("us-east", 4)
    groups.world.settle()
    groups.consume("us-east", "shop")
    groups.until_still()

    groups.groups["us-east"].put("shop", PLACE, 1)
    groups.until_still()

    assert groups.groups["us-east"].offsets["shop"][PLACE].offset == 1
