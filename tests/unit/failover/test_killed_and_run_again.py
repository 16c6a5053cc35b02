"""A failover, a failback or a drill that is killed at any of its calls, and run again: as if it had not been killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirrorless.failover.report import is_clean, missing_of
from mirrorless.failover.state import FailoverOrder
from tests.support.chains import FLOW
from tests.support.failover_world import FailoverWorld, Kill, committed
from tests.support.group_cluster import MARKER

PLANNED = FailoverOrder(mode="planned")
WAITED = FailoverOrder(mode="planned", fencing="wait")
LOST = FailoverOrder(mode="source-lost")
REHEARSAL = FailoverOrder(mode="drill")

LEAST_CALLS = 15
"""Below it, the kills would not reach every step."""


def moving(order: FailoverOrder) -> FailoverWorld:
    """Records, most of them replicated; `shop` has read some; `audit` is another application on the target as well."""
    world = FailoverWorld()
    world.produce(10, 5)
    world.replicate(8)
    for lane in world.lanes:
        world.clusters.read(world.clusters.source, "shop", lane, 6, past=False)
        world.clusters.read(world.clusters.source, "audit", lane, 4, past=False)
        world.clusters.read(world.clusters.target, "audit", lane, 2, past=False)
    world.clusters.act()
    if order.mode == "source-lost":
        world.lose_source()
    world.meanwhile = lambda: world.replicate(3)
    return world


def on_target(world: FailoverWorld) -> Any:
    """What a failover leaves: groups, ACLs, the fence, whether the source takes writes."""
    return (
        {group: committed(world.clusters.target, group) for group in ("shop", "audit")},
        world.target_acls.there,
        FLOW in world.states.fences,
        world.is_closed(),
    )


def reads_the_rest(world: FailoverWorld) -> None:
    """The moved group reads each record that it had not read, once; records that never left the source are missing."""
    for lane in world.lanes:
        everything = [identity for identity in world.clusters.target_log(lane) if identity != MARKER]
        assert world.clusters.read(world.clusters.target, "shop", lane) == everything[6:]


def kill_everywhere(world_of: Callable[[], FailoverWorld], order: FailoverOrder | None) -> Iterator[FailoverWorld]:
    """The world after a command was killed behind each of its calls in turn, and run again; the last one was not.

    A kill before a call is one behind the call before.
    """
    killed, kills = True, 0
    while killed:
        world = world_of()
        document, killed = world.until_done(order, Kill(at=kills + 1))
        kills += killed
        assert document.ended_at
        yield world
    assert kills > LEAST_CALLS


@pytest.mark.parametrize("order", [PLANNED, WAITED], ids=["acl", "wait"])
def test_a_planned_failover_loses_nothing_wherever_it_is_killed(order: FailoverOrder) -> None:
    results = []
    for world in kill_everywhere(lambda: moving(order), order):
        document = world.document()
        assert document is not None
        assert is_clean(document), missing_of(document)
        for lane in world.lanes:
            source = [identity for identity in world.clusters.source_log(lane) if identity != MARKER]
            assert [identity for identity in world.clusters.target_log(lane) if identity != MARKER] == source
        assert world.is_closed() == (order.fencing == "acl")
        results.append(on_target(world))
        reads_the_rest(world)
    assert all(each == results[-1] for each in results)


def test_a_failover_without_the_source_brings_groups_to_the_record_wherever_it_is_killed() -> None:
    results = []
    for world in kill_everywhere(lambda: moving(LOST), LOST):
        results.append(on_target(world))
        reads_the_rest(world)
    assert all(each == results[-1] for each in results)


@pytest.mark.parametrize("order", [PLANNED, LOST], ids=["planned", "source-lost"])
def test_an_independent_application_is_never_moved(order: FailoverOrder) -> None:
    world = moving(order)
    before = committed(world.clusters.target, "audit")

    document = world.carry_out(order)

    assert committed(world.clusters.target, "audit") == before
    assert [sentence for sentence in missing_of(document) if "audit" in sentence] == [
        "group audit: another application has its name on the target, or it has read there itself"
    ]


@pytest.mark.parametrize("order", [PLANNED, LOST], ids=["planned", "source-lost"])
def test_a_failback_leaves_everything_as_it_was_wherever_it_is_killed(order: FailoverOrder) -> None:
    before = moving(order)

    def moved() -> FailoverWorld:
        world = moving(order)
        world.carry_out(order)
        world.bring_source_back()
        assert world.target_acls.there != before.target_acls.there
        return world

    for world in kill_everywhere(moved, None):
        document = world.document()
        assert document is not None
        assert document.over
        assert world.source_acls.there == before.source_acls.there
        assert world.target_acls.there == before.target_acls.there
        assert not world.states.fences
        assert all(list(each) == ["audit"] for each in world.jobs.excluded)


def test_a_drill_touches_nothing_wherever_it_is_killed() -> None:
    def untouched(world: FailoverWorld) -> Any:
        return on_target(world), dict(world.clusters.target.offsets), world.source_acls.there

    before = untouched(moving(REHEARSAL))
    for world in kill_everywhere(lambda: moving(REHEARSAL), REHEARSAL):
        assert untouched(world) == before
        assert not world.shadows.offsets
        assert world.document() is None
