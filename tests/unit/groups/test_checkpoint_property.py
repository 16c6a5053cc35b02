"""For any history of a lane, `reread` counts what a group that moves would read again, and `skip` what it would skip.

The oracle lists the records of both logs and counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorless.chain.lane import Lane
from tests.support.group_cluster import MARKER, TwoClusters
from tests.support.group_cluster import settings as flow_settings
from tests.support.tries import tries

SOURCE, TARGET = ("orders", 0), ("us-east.orders", 0)


@dataclass(frozen=True)
class History:
    """What happened to a lane, step by step: records on the source, gaps in its log, and events."""

    steps: list[tuple[str, int, int]] = field(default_factory=list)

    def live(self, world: TwoClusters, lane: Lane) -> None:
        """Let it happen."""
        for what, number, more in self.steps:
            if what == "produce":
                world.produce(lane, number, -more)
            elif what == "gap":
                world.source_log(lane).extend([MARKER] * number)
            else:
                world.replicate(lane, number or None, aborted=more)


histories = st.builds(
    History,
    st.lists(
        st.tuples(st.sampled_from(["produce", "gap", "event"]), st.integers(0, 5), st.integers(0, 3)), max_size=25
    ),
)


def records(log: list[int], first: int, end: int | None = None) -> list[int]:
    """The identities at offsets [first, end)."""
    return [record for record in log[first:end] if record != MARKER]


@settings(max_examples=tries(50, many=150), deadline=None)
@given(history=histories, where=st.floats(0, 1), stands=st.floats(0, 1))
def test_a_group_that_moves_over_skips_nothing_and_rereads_as_counted(
    history: History, where: float, stands: float
) -> None:
    world = TwoClusters(flow_settings())
    lane = world.lane()
    history.live(world, lane)
    source, target = world.source_log(lane), world.target_log(lane)
    upstream, downstream = round(where * len(source)), round(stands * len(target))
    world.source.put("shop", SOURCE, upstream)
    world.target.put("shop", TARGET, downstream)

    world.act()

    offset, document = world.document("shop").offsets["orders"][0], world.document("shop")
    unread = records(source, upstream)
    assert document.ahead == max(0, upstream - world.chains.heads([lane])[lane].position)
    if not offset.usable or offset.downstream is None:
        assert not records(target, 0)
        return
    assert records(target, offset.downstream) == [record for record in records(target, 0) if record in unread]
    again = set(records(target, downstream)) - set(unread)
    assert document.reread == len(again)
    skipped = set(records(target, 0, downstream)) & set(unread)
    assert document.skip == len(skipped)
    if document.readiness == "ready":
        assert not again
        assert not skipped


@settings(max_examples=tries(50, many=150), deadline=None)
@given(history=histories, where=st.floats(0, 1), stands=st.floats(0, 1))
def test_a_group_that_moves_back_skips_nothing_and_rereads_as_counted(
    history: History, where: float, stands: float
) -> None:
    world = TwoClusters(flow_settings())
    lane = world.lane()
    history.live(world, lane)
    source, target = world.source_log(lane), world.target_log(lane)
    downstream, upstream = round(where * len(target)), round(stands * len(source))
    world.target.put("shop", TARGET, downstream)
    world.source.put("shop", SOURCE, upstream)

    world.act()

    document = world.document("shop", "reverse")
    offset = document.offsets["orders"][0]
    unread = set(records(source, 0)) - set(records(target, 0, downstream))
    if not offset.usable or offset.upstream is None:
        # Below the first record of the map, where the lane's own first run begins, nothing has been read.
        assert not records(target, 0, downstream)
        return
    assert set(records(source, offset.upstream)) == unread
    again = {record for record in records(source, upstream) if record not in unread}
    assert document.reread == len(again)
