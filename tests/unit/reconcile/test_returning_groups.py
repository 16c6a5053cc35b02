"""Groups go back in batches: a slow cluster and a group that fails cost the others nothing, and a lane is read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE
from mirrorless.chain.run import Span
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.taken_over import link_behind
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.protocol.past import PastStore
from mirrorless.reconcile.returning_groups import GroupsBack
from tests.support.chains import FLOW, LANE, MemoryChains, run
from tests.support.documents import MemoryDocuments
from tests.support.group_cluster import MemoryGroups

PARTITIONS, GROUPS = 6, 150
LANES = {(f"us-east.{LANE.topic}", number): Lane(FLOW, LANE.topic, number) for number in range(PARTITIONS)}
NAMES = [f"group-{number:03}" for number in range(GROUPS)]


@dataclass(slots=True)
class SlowGroups(MemoryGroups):
    """A cluster each of whose groups takes a second, and that gives up when the deadline is over."""

    clock: list[float] = field(default_factory=lambda: [0.0])
    refuses: frozenset[str] = frozenset()

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See `Groups.committed`."""
        wanted = list(groups)
        if self.refuses & set(wanted):
            raise Retriable("the cluster does not answer")
        self.clock[0] += len(wanted)
        return MemoryGroups.committed(self, wanted, deadline) if deadline() > 0 else {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:
        """See `Groups.commit`."""
        self.clock[0] += 1
        if deadline() <= 0:
            raise Retriable("no time is left")
        MemoryGroups.commit(self, group, offsets, deadline)


def brought(refuses: frozenset[str] = frozenset()) -> tuple[GroupsBack, MemoryChains, list[str], int]:
    """All groups at the end of each lane; the troubles, and how many are ready on the source."""
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10), lane=lane) for lane in LANES.values()])
    clock = [0.0]
    source, target = SlowGroups(clock=clock), SlowGroups(clock=clock, refuses=refuses)
    for name in NAMES:
        for place, lane in LANES.items():
            target.put(name, place, 10)
            source.put(name, (lane.topic, lane.partition), 3)

    def patience() -> Deadline:
        end = clock[0] + 60
        return lambda: end - clock[0]

    back = GroupsBack(chains=chains, source=source, target=target, include=[".*"], exclude=[], claim=lambda _: None)
    groups, troubles = back.bring(LANES, dict.fromkeys(LANES.values(), 10), patience)
    at_the_end = {name for name in NAMES if all(at.offset == 10 for at in source.offsets[name].values())}
    assert at_the_end == {group.group for group in groups}
    return back, chains, troubles, len(at_the_end)


def test_all_groups_go_back_however_long_that_takes_and_a_lane_is_read_once_for_all() -> None:
    _, chains, troubles, ready = brought()

    assert (troubles, ready) == ([], GROUPS)
    assert chains.reads <= 1 + 2 * 4 * PARTITIONS, "one read of all heads, and those of a lane's end for all groups"


def test_groups_that_cannot_be_read_wait_and_the_others_go_back() -> None:
    _, _, troubles, ready = brought(frozenset({"group-060"}))

    assert ready == 100
    assert [trouble.partition(" wait")[0] for trouble in troubles] == [
        "the offsets of group group-050, and 49 groups more"
    ]


def test_a_group_before_the_chain_of_a_lane_that_was_taken_over_goes_back_to_no_later_than_its_place() -> None:
    chains, past = MemoryChains(), PastStore(documents=MemoryDocuments())
    past.begin(LANE, 1, [Span(0, 0, 0), Span(10, 12, 1), Span(50, 60, 1), Span(80, 100, 0)])
    chains.reset(link_behind(LANE, NEW_LANE, 80, now=1))
    chains.prepare([run(80, 90, (80, 100, 10), generation=1)])
    source, target = MemoryGroups(), MemoryGroups()
    place = (f"us-east.{LANE.topic}", LANE.partition)
    target.put("shop", place, 40)
    back = GroupsBack(
        chains=chains, source=source, target=target, include=[".*"], exclude=[], claim=lambda _: None, past=past
    )

    groups, troubles = back.bring({place: LANE}, {LANE: 110}, lambda: lambda: 60.0)

    assert (troubles, source.offsets["shop"][LANE.topic, LANE.partition].offset) == ([], 11)
    assert [(each.readiness, each.reread, each.lanes[0].state) for each in groups] == [("behind", 86, "approximate")]
