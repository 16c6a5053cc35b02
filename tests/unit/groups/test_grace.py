"""Groups whose members have just left the other side: they may be restarting, and nothing is committed for them yet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mirrorless.config import load
from mirrorless.flow.settings import GROUP_GRACE_SECONDS
from mirrorless.groups.checkpoints import Direction
from mirrorless.groups.ownership import members_stopped
from mirrorless.ports.kafka import GroupIsActive, TopicPartition
from tests.support.chains import FLOW
from tests.support.group_cluster import ORDERS, REMOTE, MemoryGroups, TwoClusters, mirrored

ROOT = Path(__file__).parents[3]
ROUND_MS = 3_000
GRACE_MS = int(GROUP_GRACE_SECONDS * 1000)


@pytest.fixture
def world() -> TwoClusters:
    """The shipped example, one way of its two, with group sync for all groups; ten records are on both sides."""
    flow = load(ROOT / "replication.example.yaml").flow(str(FLOW))
    world = TwoClusters(flow.control_settings("forward"))
    world.grow(5, 5)
    return world


def rounds(world: TwoClusters, ms: int) -> None:
    """Rounds over so many ms, in one environment after the other."""
    end = world.now + ms
    while world.now + ROUND_MS <= end:
        world.act()
        world.restart()


def offset(side: MemoryGroups, place: TopicPartition) -> int | None:
    """The group's commit."""
    found = side.offsets.get("shop", {}).get(place)
    return None if found is None else found.offset


def stopped_for_good(world: TwoClusters, direction: Direction) -> None:
    """An operator's word."""
    claim = members_stopped("shop", direction)
    world.documents.write(FLOW, {claim.key: msgspec.json.encode(claim)})


def at_work_on_both_sides(world: TwoClusters) -> None:
    """The flow has moved the group to 5, where it has members on the target; on the source it is at 10."""
    world.commit_and_act(5)
    world.target.members.add("shop")
    world.act()
    world.source.put("shop", ORDERS, 10)


# On the target


def test_an_application_that_has_committed_nothing_yet_is_not_moved_while_it_restarts(world: TwoClusters) -> None:
    """It has the name of a group of the source, and works on its first records: moved, it would skip them."""
    world.source.put("shop", ORDERS, 10)
    for _ in range(3):
        world.target.members.add("shop")
        rounds(world, 2 * ROUND_MS)
        world.target.members.clear()
        world.target.offsets["shop"] = {}
        rounds(world, GRACE_MS)
    assert world.target.commits == []


def test_an_application_that_stands_where_the_flow_moved_it_is_not_moved_while_it_restarts(world: TwoClusters) -> None:
    at_work_on_both_sides(world)
    assert offset(world.target, REMOTE) == 6
    world.target.members.clear()

    rounds(world, GRACE_MS)

    assert offset(world.target, REMOTE) == 6
    assert (world.document("shop").readiness, world.document("shop").reread) == ("behind", 5)


def test_once_its_members_have_been_gone_for_the_grace_period_a_group_is_followed_again(world: TwoClusters) -> None:
    at_work_on_both_sides(world)
    world.target.members.clear()

    rounds(world, GRACE_MS + ROUND_MS)
    assert offset(world.target, REMOTE) == 11
    assert world.document("shop").readiness == "ready"

    world.grow(5, 5)
    world.commit_and_act(15)
    assert offset(world.target, REMOTE) == 18


def test_a_group_that_never_had_members_on_the_target_is_moved_in_the_same_round(world: TwoClusters) -> None:
    for upstream, downstream in ((5, 6), (10, 11)):
        world.commit_and_act(upstream)
        assert offset(world.target, REMOTE) == downstream
        assert world.document("shop").readiness == "ready"
        world.restart()


def test_a_group_that_was_on_the_target_before_the_flow_may_have_just_lost_its_members(world: TwoClusters) -> None:
    """It reads topics of the target's own, and has not come to the remote ones; no round has seen its members."""
    world.target.put("shop", ("orders", 0), 7)
    world.source.put("shop", ORDERS, 10)

    rounds(world, GRACE_MS)
    assert world.target.commits == []
    rounds(world, 2 * ROUND_MS)
    assert offset(world.target, REMOTE) == 11


@pytest.mark.parametrize("late", [False, True], ids=["between two looks of a round", "just before the commit"])
def test_a_group_whose_members_come_in_a_round_waits_when_they_go(world: TwoClusters, *, late: bool) -> None:
    world.commit_and_act(5)
    world.source.put("shop", ORDERS, 10)
    looks: list[set[str]] = [set(), {"shop"}]
    refusals = [GroupIsActive("only its members may commit")]

    def look() -> None:
        world.target.members = looks.pop(0) if looks else set()

    def refuse(*_: object) -> None:
        if refusals:
            raise refusals.pop()

    if late:
        world.target.before_commit = refuse
    else:
        world.target.before_states = look
    report = world.act()
    assert not (refusals if late else looks)
    assert (report.troubles, world.document("shop").readiness) == ([], "active_on_target")
    rounds(world, GRACE_MS - ROUND_MS)
    assert offset(world.target, REMOTE) == 6


def test_members_that_come_back_begin_the_grace_period_anew(world: TwoClusters) -> None:
    world.commit_and_act(5)
    world.source.put("shop", ORDERS, 10)
    for _ in range(3):
        world.target.members.add("shop")
        world.act()
        world.target.members.clear()
        rounds(world, GRACE_MS - ROUND_MS)
    assert offset(world.target, REMOTE) == 6


def test_a_group_that_stays_as_it_is_costs_no_write(world: TwoClusters) -> None:
    world.commit_and_act(5)
    for members in ({"shop"}, set[str]()):
        world.target.members = members
        world.act()
        writes = world.documents.writes
        rounds(world, 10 * ROUND_MS)
        assert world.documents.writes == writes


# An operator who moves a group


@pytest.mark.parametrize("made_by_the_flow", [True, False])
def test_a_group_whose_members_are_stopped_for_good_is_moved_in_the_next_round(
    world: TwoClusters, *, made_by_the_flow: bool
) -> None:
    if made_by_the_flow:
        at_work_on_both_sides(world)
        world.target.members.clear()
        world.act()
    else:
        world.target.offsets["shop"] = {}
        world.commit_and_act(10)

    stopped_for_good(world, "forward")
    world.act()

    assert offset(world.target, REMOTE) == 11
    assert world.document("shop").readiness == "ready"
    assert not world.documents.read(FLOW, "claim/")


def test_an_operators_word_moves_no_group_that_has_members(world: TwoClusters) -> None:
    at_work_on_both_sides(world)
    stopped_for_good(world, "forward")
    rounds(world, 90_000)
    assert not world.documents.read(FLOW, "claim/")

    world.target.members.clear()
    rounds(world, GRACE_MS)
    assert offset(world.target, REMOTE) == 6


# On the source


def returning() -> TwoClusters:
    """A group has gone over, and has read more there; members of it have been seen on the source."""
    world = mirrored(5, 5, sync=2, reverse=True, grace=GROUP_GRACE_SECONDS)
    world.source.put("shop", ORDERS, 5)
    world.source.members.add("shop")
    world.act()
    world.act()
    world.target.put("shop", REMOTE, 11)
    return world


def test_members_that_restart_on_the_source_find_their_offsets_as_they_left_them() -> None:
    world = returning()
    world.source.members.clear()

    rounds(world, GRACE_MS)
    assert offset(world.source, ORDERS) == 5
    rounds(world, 2 * ROUND_MS)
    assert offset(world.source, ORDERS) == 10


@pytest.mark.parametrize("left_before", [False, True])
def test_the_way_back_waits_for_members_that_come_back_with_their_cluster(*, left_before: bool) -> None:
    """They were there when it was lost, or nobody can tell whether they came back meanwhile."""
    world = returning()
    if left_before:
        world.source.members.clear()
        world.act()
    world.silence_source()
    rounds(world, 2 * GRACE_MS)
    world.source.members.clear()
    world.silence_source(silent=False)

    rounds(world, GRACE_MS)
    assert offset(world.source, ORDERS) == 5
    rounds(world, 8 * ROUND_MS)
    assert offset(world.source, ORDERS) == 10


def test_a_group_without_members_on_the_source_returns_in_the_same_round() -> None:
    world = mirrored(5, 5, sync=2, reverse=True, grace=GROUP_GRACE_SECONDS)
    world.commit_and_act(5)
    world.silence_source()
    world.act()
    world.target.put("shop", REMOTE, 11)
    world.silence_source(silent=False)
    world.now += 60_000  # a cluster that did not answer is not called for a while

    world.act()

    assert offset(world.source, ORDERS) == 10


def test_a_group_whose_members_on_the_source_are_stopped_for_good_returns_in_the_next_round() -> None:
    world = returning()
    world.source.members.clear()
    world.act()
    stopped_for_good(world, "reverse")
    world.act()
    assert offset(world.source, ORDERS) == 10
