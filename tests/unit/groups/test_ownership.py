"""Group offset sync beside other applications: only offsets that this flow wrote, or carried back, are replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE
from mirrorless.chain.run import Span
from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.groups.ownership import (
    ClaimedOffsets,
    Move,
    NotMovable,
    claim_of,
    committed_by_another,
    plan_move_back,
)
from mirrorless.lanes.taken_over import link_behind
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.past import PastStore
from tests.support.chains import FLOW, run
from tests.support.group_cluster import ORDERS, REMOTE, TwoClusters, mirrored, settings


def there(world: TwoClusters) -> int:
    """The offset of the group `shop` on the target."""
    return world.target.offsets["shop"][REMOTE].offset


def independent(world: TwoClusters, offset: int) -> None:
    """Another application named `shop` reads on the target up to an offset, and its members leave."""
    world.target.put("shop", REMOTE, offset)


# Another application


def test_another_application_with_the_groups_name_is_not_moved_when_its_members_leave() -> None:
    world = mirrored(5, 5, sync=3)
    independent(world, 2)
    world.target.members.add("shop")
    world.commit_and_act(10)
    assert world.document("shop").readiness == "active_on_target"

    world.target.members.clear()
    for _ in range(3):
        world.act()
    world.restart()
    world.act()

    assert world.target.commits == []
    document = world.document("shop")
    assert (document.readiness, document.reread) == ("independent", 8)


def test_another_application_gets_no_offset_on_a_partition_where_it_has_none() -> None:
    """It begins there where its own `auto.offset.reset` says."""
    world = mirrored(5, sync=3)
    more = world.lane(partition=1)
    world.produce(more, -5)
    world.replicate(more)
    independent(world, 2)
    world.source.put("shop", ORDERS, 5)
    world.source.put("shop", ("orders", 1), 5)

    world.act()

    assert world.target.offsets["shop"].keys() == {REMOTE}


@pytest.mark.parametrize(
    ("at", "reverse"),
    [(2, False), (11, False), (2, True)],
    ids=[
        "behind the group",
        "at the very same place, which proves nothing",
        "the way back does not make it the group's",
    ],
)
def test_another_application_is_not_taken_for_the_group(at: int, *, reverse: bool) -> None:
    world = mirrored(5, 5, reverse=reverse, sync=3)
    independent(world, at)
    world.source.put("shop", ORDERS, 10)
    for _ in range(4):
        world.act()
    assert world.document("shop").readiness == "independent"

    world.grow(5)
    world.commit_and_act(15)

    assert there(world) == at


def test_a_group_that_read_on_by_itself_on_the_target_is_not_moved() -> None:
    """It began at this flow's offset. Without a way back it is one more application from then on."""
    world = mirrored(5, 5, 5, sync=3)
    world.commit_and_act(3)
    world.read(world.target, "shop", world.lane(), 3)

    world.commit_and_act(15)

    assert there(world) == 7
    assert world.document("shop").readiness == "independent"


def test_another_applications_offsets_are_handed_over_by_deleting_them() -> None:
    world = mirrored(5, 5, sync=3)
    independent(world, 2)
    world.commit_and_act(7)
    del world.target.offsets["shop"]

    world.act()
    assert world.document("shop").readiness == "ready"
    world.commit_and_act(9)

    assert world.target.commits == [("shop", REMOTE, None, 8), ("shop", REMOTE, 8, 10)]


def test_without_group_sync_no_group_is_independent() -> None:
    world = mirrored(5)
    independent(world, 2)

    world.commit_and_act(5)

    assert world.document("shop").readiness == "behind"


# The flow's own offsets


def test_a_consumer_that_only_passed_a_marker_is_still_followed() -> None:
    """It was started on the target and found no record; its position is behind the transaction's marker."""
    world = mirrored(5, sync=3)
    world.commit_and_act(5)
    assert world.read(world.target, "shop", world.lane()) == []
    assert there(world) == 6

    world.grow(5)
    world.commit_and_act(8)

    assert world.target.commits == [("shop", REMOTE, None, 5), ("shop", REMOTE, 6, 9)]


def test_a_consumer_that_passed_a_marker_and_a_record_is_not() -> None:
    world = mirrored(5, 1, sync=3)
    world.commit_and_act(5)
    assert len(world.read(world.target, "shop", world.lane())) == 1
    world.source.put("shop", ORDERS, 6)

    world.grow(5)
    world.commit_and_act(8)

    assert there(world) == 8


def test_a_group_whose_source_was_ahead_of_it_on_the_way_back_goes_there_again() -> None:
    """The source was lost with records that the group had read there, and that came again on the target in part."""
    world = mirrored(5, reverse=True, sync=3)
    world.produce(world.lane(), -5)
    world.commit_and_act(9)
    world.replicate(world.lane())
    world.silence_source()
    world.target.put("shop", REMOTE, 8)
    world.now += 60_000
    world.act()
    world.silence_source(silent=False)
    world.now += 60_000
    world.act()

    world.commit_and_act(10)
    world.act()

    assert there(world) == 11


@pytest.mark.parametrize("applied", ["never", "at once", "after the round"])
@pytest.mark.parametrize("end", [KeyboardInterrupt, Retriable])
def test_a_commit_of_unknown_outcome_leaves_the_group_the_flows_own(
    applied: str, end: Callable[[str], BaseException]
) -> None:
    """Each commit is recorded before it is made, beside the offset that it replaces."""
    world = mirrored(5, 5, sync=3)
    world.commit_and_act(1)
    when = "after_commit" if applied == "at once" else "before_commit"
    usual = getattr(world.target, when)

    def fail(*_: object) -> None:
        raise end("no answer")

    for upstream in (2, 3):
        world.source.put("shop", ORDERS, upstream)
        setattr(world.target, when, fail)  # the answer is lost
        try:
            world.act()
        except KeyboardInterrupt:
            world.restart()
    setattr(world.target, when, usual)  # the cluster answers again
    if applied == "after the round":  # the client gave it up, and the broker made it
        world.target.put("shop", REMOTE, 3)
    world.commit_and_act(4)

    assert there(world) == 4
    assert world.document("shop").readiness == "ready"


def test_a_record_of_own_offsets_has_two_of_a_partition_at_most() -> None:
    world = mirrored(5, 5, sync=3)
    for upstream in range(1, 10):
        world.commit_and_act(upstream)

    assert world.document("shop").own == {"orders": {0: (9, 10)}}


# Claims, and documents of a version before


def claimed(world: TwoClusters, **offsets: int) -> None:
    """A reconcile has brought the group back from these offsets on the target."""
    claim = ClaimedOffsets(
        group="shop",
        direction="forward",
        **{field: {"orders": {0: offset}} for field, offset in offsets.items()},  # type: ignore[arg-type]  # by name
    )
    world.documents.write(FLOW, {claim.key: msgspec.json.encode(claim)})


@pytest.mark.parametrize("reverse", [False, True])
def test_a_group_that_a_reconcile_brought_back_goes_there_again(reverse: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    world = mirrored(5, 5, reverse=reverse, sync=3)
    world.commit_and_act(3)
    world.silence_source()
    world.target.put("shop", REMOTE, 8)
    world.act()
    world.silence_source(silent=False)
    claimed(world, offsets=8)
    world.source.put("shop", ORDERS, 9)
    world.now += 60_000

    world.act()
    world.act()

    assert there(world) == 10
    assert [key for _, key in world.documents.documents if key.startswith("claim/")] == []


def test_what_a_reconcile_did_not_carry_back_is_claimed_for_the_flows_own_groups_alone() -> None:
    """Another application's offset that lies before the group's needs no carrying back either."""
    world = mirrored(5, 5, sync=3)
    independent(world, 2)
    world.commit_and_act(9)
    claim = ClaimedOffsets(group="shop", direction="forward", offsets={}, reached={"orders": {0: 2}})
    world.documents.write(FLOW, {claim.key: msgspec.json.encode(claim)})
    world.now += 60_000

    world.act()

    assert there(world) == 2
    assert world.document("shop").readiness == "independent"


def test_groups_of_a_version_before_are_followed_where_it_left_them() -> None:
    """Its documents have no record of own offsets, and what they say was committed."""
    world = mirrored(5, 5, sync=3)
    for group in ("shop", "other"):
        world.source.put(group, ORDERS, 3)
    world.target.put("other", REMOTE, 1)
    world.act()
    for key, text in world.documents.documents.items():
        document = msgspec.json.decode(text, type=GroupCheckpoints)
        world.documents.documents[key] = msgspec.json.encode(msgspec.structs.replace(document, own=None))
    world.restart()
    for group in ("shop", "other"):
        world.source.put(group, ORDERS, 7)

    world.act()

    assert there(world) == 8
    assert world.target.offsets["other"][REMOTE].offset == 1


FIRST, SECOND = Lane(FLOW, "orders", 0), Lane(FLOW, "orders", 1)
OFFSETS = {"orders": {0: GroupOffset(10, 11, "exact", "note"), 1: GroupOffset(7, 7, "next_record")}}


def document(**more: Any) -> GroupCheckpoints:
    """Of a group that was rewound from 90 to 10 in the first of two partitions."""
    own = {"orders": {0: (80, 91), 1: (7,)}}
    about: dict[str, Any] = {"direction": "forward", "readiness": "ahead_on_target", "offsets": OFFSETS, "own": own}
    return GroupCheckpoints(group="shop", at=1, **(about | more))


def plan(group: GroupCheckpoints, *, first: int = 91, second: int | None = 7, state: Any = "empty") -> list[Move]:
    there = {FIRST: OffsetAndMetadata(first)}
    if second is not None:
        there[SECOND] = OffsetAndMetadata(second)
    return plan_move_back(group, FLOW, there=there, state=state, count=lambda _, low, high: (high - low) // 2)


def test_only_the_partitions_that_would_skip_records_are_moved() -> None:
    moves = plan(document())

    assert moves == [Move(lane=FIRST, now=91, to=OffsetAndMetadata(11, "note"), records=40)]
    assert claim_of(document(), moves).offsets == {"orders": {0: 11}}
    assert claim_of(document(), moves).key == "claim/forward/shop"


@pytest.mark.parametrize("first", [11, 12, 3])
def test_where_no_record_would_be_skipped_there_is_nothing_to_move(first: int) -> None:
    """Behind, at the same place, or beyond a marker alone; and no refusal is needed."""
    assert plan(document(own={}), first=first, state="active") == []


@pytest.mark.parametrize(
    ("own", "second", "state", "why"),
    [
        (None, 7, "active", "it has members"),
        ({}, 7, "empty", "offset 91 of us-east->eu-west orders-0"),
        ({"orders": {0: (80, 90), 1: (7,)}}, 7, "empty", "offset 91 of us-east->eu-west orders-0"),
        (None, 8, "empty", "offset 8 of"),
    ],
    ids=["members", "nothing is the flow's", "it committed another offset", "another offset in the other partition"],
)
def test_a_group_is_refused_whole_that_has_members_or_an_offset_that_this_flow_did_not_commit(
    own: Any, second: int, state: str, why: str
) -> None:
    with pytest.raises(NotMovable, match=why):
        plan(document() if own is None else document(own=own), second=second, state=state)


def test_a_partition_without_a_translation_stays() -> None:
    """Before the map there is no exact place to move to."""
    offsets = {"orders": {0: GroupOffset(10, 50, "before_map")}}

    assert plan(document(offsets=offsets), second=None) == []


def test_the_way_back_moves_on_the_source() -> None:
    moves = plan(document(direction="reverse", offsets={"orders": {0: GroupOffset(11, 10, "exact")}}), second=None)

    assert [(move.now, move.to.offset) for move in moves] == [(91, 11)]


# What MirrorMaker has committed before it was taken over


@pytest.mark.parametrize(
    ("at", "state", "expected"),
    [
        (138, "empty", ClaimedOffsets(group="shop", direction="forward", offsets={"orders": {0: 138}})),
        (120, "absent", ClaimedOffsets(group="shop", direction="forward", offsets={"orders": {0: 120}})),
        (138, "active", "it has members there, and they commit its offsets"),
        (139, "empty", "its offset 139 there, of orders-0, is of no checkpoint"),
    ],
    ids=["its last checkpoint", "the one before, as it commits a minute later", "members", "another application"],
)
def test_offsets_are_mirrormakers_where_a_checkpoint_has_them_and_nobody_reads(
    at: int, state: Any, expected: object
) -> None:
    lane = Lane(FLOW, "orders", 0)

    found = committed_by_another("shop", {lane: {120, 138}}, {lane: OffsetAndMetadata(at)}, state)

    assert found == expected


@pytest.mark.parametrize("claimed", [True, False])
def test_a_group_that_mirrormaker_kept_goes_on_with_the_flow_and_says_how_far_it_may_be_behind(
    *, claimed: bool
) -> None:
    """Its offset lies between two offset syncs: nothing is skipped, and it is not ahead where MirrorMaker knew more."""
    world = TwoClusters(settings(sync=3))
    lane = world.lane()
    world.source_log(lane).extend(world.new_identities(300))
    world.target_log(lane).extend(world.new_identities(340))
    PastStore(documents=world.documents).begin(lane, 1, [Span(0, 40, 0), Span(100, 140, 1), Span(200, 240, 100)])
    world.chains.reset(link_behind(lane, NEW_LANE, 300, now=1))
    world.chains.prepare([run(300, 310, (300, 341, 10), generation=1)])
    independent(world, 138)
    if claimed:
        claim = ClaimedOffsets(group="shop", direction="forward", offsets={"orders": {0: 138}})
        world.documents.write(FLOW, {claim.key: msgspec.json.encode(claim)})

    world.commit_and_act(150)

    document = world.document("shop")
    assert document.offsets["orders"][0] == GroupOffset(150, 141, "approximate", "", 99)
    assert [each[3:5] for each in world.checkpoints()] == [(150, 141)]
    assert (there(world), document.readiness) == ((141, "behind") if claimed else (138, "independent"))
    assert document.reread == 99 + (0 if claimed else 3)
    if claimed:
        world.act()
        world.act()
        assert world.round.translator.journals_read == 0, "what is known for good is not asked again"
        assert document.carried == {"orders": {0: 150}}
        # MirrorMaker had committed a place further on, which may be the exact one.
        world.restart()
        world.target.put("shop", REMOTE, 190)
        more = ClaimedOffsets(group="shop", direction="forward", offsets={"orders": {0: 190}})
        world.documents.write(FLOW, {more.key: msgspec.json.encode(more)})
        world.commit_and_act(151)
        assert (there(world), world.document("shop").readiness, world.document("shop").skip) == (190, "behind", 0)

        world.commit_and_act(250)
        assert (there(world), world.document("shop").readiness) == (290, "ready")
