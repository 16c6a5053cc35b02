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


@settings(max_examples=tries(100, many=300), deadline=None)
@given(
    lives=st.lists(histories, min_size=1, max_size=3), where=st.floats(0, 1), stands=st.floats(0, 1), back=st.booleans()
)
def test_a_group_that_moves_over_or_back_skips_nothing_and_rereads_as_counted(
    lives: list[History], where: float, stands: float, *, back: bool
) -> None:
    world = TwoClusters(flow_settings())
    lane = world.lane()
    for history in lives:  # a round goes on from what the one before has counted
        history.live(world, lane)
        source, target = world.source_log(lane), world.target_log(lane)
        upstream, downstream = (
            round((stands if back else where) * len(source)),
            round((where if back else stands) * len(target)),
        )
        world.source.put("shop", SOURCE, upstream)
        world.target.put("shop", TARGET, downstream)

        report = world.act()

        (held_back if back else held_over)(world, source, target, upstream, downstream)
        assert report.counts["reread-records-max"] == world.document("shop").reread


def held_over(world: TwoClusters, source: list[int], target: list[int], upstream: int, downstream: int) -> None:
    """A group that has read the source up to an offset, and stands on the target."""
    document = world.document("shop")
    offset, unread = document.offsets["orders"][0], records(source, upstream)
    assert document.ahead == max(0, upstream - world.chains.heads([world.lane()])[world.lane()].position)
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


def held_back(world: TwoClusters, source: list[int], target: list[int], upstream: int, downstream: int) -> None:
    """One that has read the target up to an offset, and stands on the source."""
    document = world.document("shop", "reverse")
    offset = document.offsets["orders"][0]
    unread = set(records(source, 0)) - set(records(target, 0, downstream))
    if not offset.usable or offset.upstream is None:
        # Below the first record of the map, where the lane's own first run begins, nothing has been read.
        assert not records(target, 0, downstream)
        return
    assert set(records(source, offset.upstream)) == unread
    assert document.reread == len({record for record in records(source, upstream) if record not in unread})
