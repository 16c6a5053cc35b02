"""A failover, a failback or a drill that is killed at any of its calls, and run again: as if it had not been killed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from mirrorless.chain.lane_state import Stop
from mirrorless.errors import Retriable
from mirrorless.failover.report import is_clean, missing_of
from mirrorless.failover.state import FailoverOrder, StepName
from tests.support.chains import FLOW
from tests.support.clusters import MemoryTarget
from tests.support.failover_world import (
    DRILL,
    LOST,
    PLANNED,
    TOPICS,
    WAITED,
    CommandKilled,
    FailoverWorld,
    Kill,
    committed,
)
from tests.support.group_cluster import MARKER

LEAST_CALLS = 15
"""Below it, the kills would not reach every step."""


def populated() -> FailoverWorld:
    """Records, most of them replicated, and a group that has read some."""
    world = FailoverWorld()
    world.produce(10, 5)
    world.replicate(8)
    for lane in world.lanes:
        world.clusters.read(world.clusters.source, "shop", lane, 6, past=False)
    world.clusters.act()
    world.meanwhile = lambda: world.replicate(3)
    return world


def moving(order: FailoverOrder) -> FailoverWorld:
    """The same, and `audit` is another application on the target as well."""
    world = populated()
    for lane in world.lanes:
        world.clusters.read(world.clusters.source, "audit", lane, 4, past=False)
        world.clusters.read(world.clusters.target, "audit", lane, 2, past=False)
    world.clusters.act()
    if order.mode == "source-lost":
        world.lose_source()
    return world


def on_target(world: FailoverWorld) -> Any:
    """What a failover leaves: groups, ACLs, the fence, whether the source takes writes."""
    return (
        {group: committed(world.clusters.target, group) for group in ("shop", "audit")},
        world.target_acls.there,
        FLOW in world.states.flow_stops,
        world.is_closed(),
    )


def reads_the_rest(world: FailoverWorld) -> None:
    """The moved group reads each record that it had not read, once; records that never left the source are missing."""
    for lane in world.lanes:
        everything = [identity for identity in world.clusters.target_log(lane) if identity != MARKER]
        assert world.clusters.read(world.clusters.target, "shop", lane) == everything[6:]


def killed_everywhere(
    make: Callable[[], FailoverWorld],
    order: FailoverOrder | None,
    *,
    stride: int = 1,
    meanwhile: Callable[[FailoverWorld], object] = lambda _: None,
    late: tuple[StepName, int] | None = None,
) -> Iterator[FailoverWorld]:
    """The world after a command was killed behind one of its calls, and run again; the last one was not killed.

    A kill before a call is one behind the call before. Args: stride: one kill in so many is made; meanwhile: what
    happens between the two commands; late: behind which step the same happens in the second one, and how often.
    """
    for at in count(1, stride):
        world, killed = make(), False
        try:
            world.carry_out(order, kill=Kill(at=at))
        except CommandKilled:
            killed = True
            meanwhile(world)
        step, times = late or ("check", 0)
        writes = (meanwhile(world) for _ in range(times))
        world.carry_out(order, behind={step: partial(next, writes, None)})
        yield world
        if not killed:
            break
    assert at > LEAST_CALLS


@pytest.mark.parametrize("order", [PLANNED, WAITED], ids=["acl", "wait"])
def test_a_planned_failover_loses_nothing_wherever_it_is_killed(order: FailoverOrder) -> None:
    results = []
    for world in killed_everywhere(lambda: moving(order), order):
        assert is_clean(world.stored), missing_of(world.stored)
        for lane in world.lanes:
            source = [identity for identity in world.clusters.source_log(lane) if identity != MARKER]
            assert [identity for identity in world.clusters.target_log(lane) if identity != MARKER] == source
        assert world.is_closed() == (order.fencing == "acl")
        results.append(on_target(world))
        reads_the_rest(world)
    assert all(each == results[-1] for each in results)


def test_a_failover_without_the_source_brings_groups_to_the_record_wherever_it_is_killed() -> None:
    results = []
    for world in killed_everywhere(lambda: moving(LOST), LOST):
        results.append(on_target(world))
        reads_the_rest(world)
    assert all(each == results[-1] for each in results)


@pytest.mark.parametrize("noticed_by", ["the look at topics", "the failover"])
def test_groups_are_left_where_a_remote_topic_is_not_the_one_of_the_map(
    noticed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = moving(LOST)
    lane = world.lanes[0]
    if noticed_by == "the failover":
        world.bring_source_back()
        world.clusters.replicate(lane, 2, prepared=True)
        world.lose_source()
        monkeypatch.setattr(MemoryTarget, "look", lambda *_: {world.remote(lane): "ended"})
    else:
        world.states.stop(lane, Stop(reason="broken", upstream_offset=0, detail="made anew", at=1, untrue_from=0))
    world.clusters.target_log(lane).clear()

    document = world.carry_out(LOST)

    assert world.remote(lane) not in committed(world.clusters.target, "shop")
    assert [each for each in missing_of(document) if "shop" in each] == [
        "group shop: a lane of it is stopped, and the map describes records that are gone: its place is not known"
    ]


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

    for world in killed_everywhere(moved, None):
        assert world.stored.over
        assert world.source_acls.there == before.source_acls.there
        assert world.target_acls.there == before.target_acls.there
        assert not world.states.flow_stops
        assert all(list(each) == ["audit"] for each in world.jobs.excluded)


def test_a_drill_touches_nothing_wherever_it_is_killed() -> None:
    def untouched(world: FailoverWorld) -> Any:
        return on_target(world), dict(world.clusters.target.offsets), world.source_acls.there

    before = untouched(moving(DRILL))
    for world in killed_everywhere(lambda: moving(DRILL), DRILL):
        assert untouched(world) == before
        assert not world.shadows.offsets
        assert world.document() is None


@pytest.mark.parametrize("order", [PLANNED, LOST, DRILL, None], ids=["planned", "source-lost", "drill", "failback"])
def test_an_answer_that_is_lost_to_a_write_that_was_made_changes_nothing(order: FailoverOrder | None) -> None:
    """Each call's in turn. The command goes on, or is run again, as one that had every answer."""

    def before() -> FailoverWorld:
        world = moving(order or PLANNED)
        if order is None:
            world.carry_out(PLANNED)
        return world

    usual = before()
    usual.carry_out(order)
    for at in count(1):
        world, kill = before(), Kill(at=at, answer_lost=True)
        with suppress(Retriable):
            world.carry_out(order, kill=kill)
        world.carry_out(order)
        assert on_target(world) == on_target(usual)
        assert world.source_acls.there == usual.source_acls.there
        assert not world.shadows.offsets
        if kill.calls < at:
            break


STRIDE = int(os.environ.get("MIRRORLESS_KILLS_STRIDE", "9"))
"""One kill in so many is made where what is lost is audited; 1 makes all."""

LATE = re.compile(r"^(?:us-east\.)?(\w+)-(\d+): ([\d,]+) records? from offset ")
ORPHANED = re.compile(r"^(\w+)-(\d+): ([\d,]+) records? of the source")

Counts = Counter[tuple[str, int]]


def failed_over(order: FailoverOrder, *, guarded: bool = True) -> FailoverWorld:
    """The same behind a failover, with records that only the target has. Args: guarded: whether by an authorizer."""
    world = populated()
    if not guarded:
        world.target_acls.there = None
    if order == LOST:
        world.lose_source()
    world.carry_out(order)
    world.bring_source_back()
    world.produce_on_target(4)
    return world


def producers_go_on(world: FailoverWorld) -> None:
    """On every side that is open to them; the flow goes on too, where it is not fenced.

    Behind the end of a failback nobody is told to write on the target any more: who does is a foreign producer there.
    """
    document = world.document()
    world.produce(7)
    if document is None or not document.over:
        world.produce_on_target(3)
    world.replicate(3)


# The audit


def only_here(world: FailoverWorld, *, on_source: bool) -> Counts:
    """The number of records that one side has and the other has not, by partition."""
    found = Counts()
    for topic, partitions in TOPICS.items():
        for partition in range(partitions):
            source = world.clusters.source_topics.logs[topic, partition]
            target = world.clusters.target_topics.logs[f"us-east.{topic}", partition]
            here, there = (source, target) if on_source else (target, source)
            assert len(set(here)) - (MARKER in here) == len([each for each in here if each != MARKER]), "twice"
            found[topic, partition] = len(set(here) - set(there) - {MARKER})
    return +found


def named(world: FailoverWorld, pattern: re.Pattern[str]) -> Counts:
    """What the report says."""
    found = Counts()
    for sentence in missing_of(world.stored):
        if match := pattern.match(sentence):
            found[match[1], int(match[2])] += int(match[3].replace(",", ""))
    assert bool(found) <= (not is_clean(world.stored))
    return +found


FOR_EVER = 99
"""Times that a producer writes behind a step: more than a command replicates what came late."""


@pytest.mark.parametrize("late", [None, ("drain", 1), ("prove", 1), ("fence-flow", FOR_EVER)], ids=str)
@pytest.mark.parametrize("order", [PLANNED, WAITED], ids=["acl", "wait"])
def test_a_failover_names_what_is_not_on_the_target(order: FailoverOrder, late: tuple[StepName, int] | None) -> None:
    wrong = losing = made = 0
    for world in killed_everywhere(populated, order, stride=STRIDE, meanwhile=producers_go_on, late=late):
        lost = only_here(world, on_source=True)
        made, losing = made + 1, losing + bool(lost)
        wrong += lost != named(world, LATE)
    print(f"{made - 1} kills, audited: {losing} with losses, {wrong} of them unnamed")
    assert not wrong
    assert (losing > made / 2) == (late == ("fence-flow", FOR_EVER) and order == WAITED)


@pytest.mark.parametrize("late", [None, ("reconcile", 1), ("revoke-acls", 1), ("reconcile", FOR_EVER)], ids=str)
@pytest.mark.parametrize("order", [PLANNED, WAITED, LOST], ids=["acl", "wait", "source lost"])
def test_a_failback_names_what_is_not_on_the_source(order: FailoverOrder, late: tuple[StepName, int] | None) -> None:
    wrong = losing = orphaning = made = 0
    made_of = partial(failed_over, order, guarded=late != ("reconcile", FOR_EVER))
    for world in killed_everywhere(made_of, None, stride=STRIDE, meanwhile=producers_go_on, late=late):
        world.replicate()
        lost, orphaned = only_here(world, on_source=False), only_here(world, on_source=True)
        made, losing = made + 1, losing + bool(lost)
        wrong += lost != named(world, LATE) or orphaned != named(world, ORPHANED)
        orphaning += bool(orphaned)
    print(f"{made - 1} kills, audited: {losing} with losses, {wrong} of them unnamed")
    assert not wrong
    assert order != LOST or orphaning > made / 2, "some never left the source"
    assert (losing > made / 2) == (late == ("reconcile", FOR_EVER))
