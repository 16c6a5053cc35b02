"""The checkpoint round: exact checkpoints, and committed offsets that only move forwards."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop, StopReason
from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import GroupOffset, document_key
from mirrorless.groups.ownership import claim_of, plan_move_back
from mirrorless.groups.round import JOURNALS_PER_SECOND
from mirrorless.mm2.internal_records import COMPACTED
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.translate import TranslationState
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW, reset, run
from tests.support.documents import MemoryDocuments
from tests.support.group_cluster import MARKER, ORDERS, REMOTE, MemoryGroups, TwoClusters, mirrored, settings
from tests.support.tries import tries

# Checkpoints


def test_a_checkpoint_holds_the_exact_offset_on_the_target() -> None:
    """MM2's testCheckpoint; MM2 says 4 for any group beyond its sync at 3."""
    world = mirrored(3, 4)

    report = world.commit_and_act(5, "some metadata")

    # Three records and a marker, then the fifth record stands at 4 + 2.
    assert world.checkpoints() == [("shop", "us-east.orders", 0, 5, 6, "some metadata")]
    assert world.target_topics.created == {"us-east.checkpoints.internal": (1, 2, COMPACTED)}
    assert report.counts["checkpoints-emitted"] == 1
    assert world.document("shop").offsets == {"orders": {0: GroupOffset(5, 6, "exact", "some metadata")}}


def test_a_group_that_has_committed_nothing_has_no_checkpoint() -> None:
    """MM2's testNoCheckpointForTopicWithNullOffsetAndMetadata."""
    world = mirrored(5)
    world.source.members.add("shop")

    report = world.act()

    assert world.checkpoints() == []
    assert report.counts["groups"] == 0


@pytest.mark.parametrize("name", ["x" * 900, "x" * 1_016, "ü" * 800, "日本" * 5_400, "x" * 32_767])
def test_a_group_of_any_name_is_synced_and_so_are_the_others(name: str) -> None:
    world = mirrored(5, sync=3)
    names = [name, name[:-1] + "y", "shop"]
    for at, each in enumerate(names):
        world.source.put(each, ORDERS, 2 + at)

    for _ in range(2):
        world.act()
    written = world.documents.writes
    world.restart()
    world.act()

    assert [world.target.offsets[each][REMOTE].offset for each in names] == [2, 3, 4]
    assert sorted(each for each, *_ in world.checkpoints()) == sorted(names)
    assert [(world.document(each).group, world.document(each).readiness) for each in names] == [
        (each, "ready") for each in names
    ]
    assert world.documents.writes == written, "nothing is new to another environment"


def test_a_group_that_has_the_key_of_another_as_its_name_has_one_of_its_own() -> None:
    long = document_key("forward", "x" * 2_000).removeprefix("forward/")

    assert document_key("forward", long) != f"forward/{long}"


def test_nothing_is_emitted_twice_not_even_by_another_environment() -> None:
    """MM2's testCheckpointsTaskRestartUsesExistingCheckpoints."""
    world = mirrored(5, 5)
    world.commit_and_act(7)
    emitted, written = list(world.checkpoints()), world.documents.writes

    world.act()
    world.restart()
    world.act()

    assert world.checkpoints() == emitted
    assert world.documents.writes == written


def test_a_rewind_by_one_and_changed_metadata_are_emitted() -> None:
    """MM2's testCheckpointRecordsMonotonicIfStoreRewinds: only the group itself makes its checkpoint go down."""
    world = mirrored(5, 5)
    for upstream, metadata in ((7, ""), (6, ""), (6, ""), (8, ""), (8, "new")):
        world.commit_and_act(upstream, metadata)

    assert [each[3:] for each in world.checkpoints()] == [(7, 8, ""), (6, 7, ""), (8, 9, ""), (8, 9, "new")]


def test_without_its_documents_a_round_emits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """MM2's testCheckpointStoreInitialized and testReadCheckpointsTopicError: here the round fails, loudly."""
    world = mirrored(5)
    world.source.put("shop", ORDERS, 3)

    def fail(*_: object) -> dict[str, bytes]:
        raise Retriable("no answer")

    monkeypatch.setattr(MemoryDocuments, "read", fail)
    with pytest.raises(Retriable):
        world.act()

    assert world.target_topics.written == []


def test_a_group_on_an_empty_partition_goes_on_at_its_beginning() -> None:
    """MM2's testReplicationWithEmptyPartition."""
    world = mirrored(5, sync=3)
    empty = world.lane(partition=1)
    world.source_log(empty), world.target_log(empty)
    world.source.put("shop", ORDERS, 5)
    world.source.put("shop", ("orders", 1), 0)

    world.act()

    assert world.target.offsets["shop"] == {REMOTE: OffsetAndMetadata(5), ("us-east.orders", 1): OffsetAndMetadata(0)}
    assert world.document("shop").readiness == "ready"

    world.produce(empty, -3)
    world.replicate(empty)
    assert world.act().counts["offsets-committed"] == 0
    assert world.read(world.target, "shop", empty) == world.source_log(empty)


@pytest.mark.parametrize(
    ("first", "start", "readiness"),
    [(40, "earliest", "before_map"), (0, "latest", "before_map"), (0, "earliest", "ready")],
    ids=["the map has expired", "the flow left records out", "the flow took all that there was"],
)
def test_an_offset_is_not_committed_where_records_that_the_group_has_not_read_lie_before_the_map(
    first: int, start: str, readiness: str
) -> None:
    """A flow that begins at the latest record leaves records out; one that takes all has only lost what is gone."""
    world = TwoClusters(settings(sync=3, start=start))
    world.chains.prepare([run(first, 50, (40, 10, 10))])

    world.commit_and_act(20)

    assert world.document("shop").readiness == readiness
    assert bool(world.target.commits) == bool(world.checkpoints()) == (readiness == "ready")


def test_a_partition_is_not_empty_where_a_flow_leaves_records_out() -> None:
    world = TwoClusters(settings(sync=3, start="latest"))
    world.produce(world.lane(), -5)
    world.target_log(world.lane())

    world.commit_and_act(0)

    assert (world.target.commits, world.checkpoints()) == ([], [])
    assert world.document("shop").readiness == "ahead_of_replication"


def test_groups_and_topics_out_of_scope_are_ignored() -> None:
    world = mirrored(5, groups=("shop", "mirrorless.*"), sync=3)
    for group in ("shop", "console-consumer-17", "billing", "mirrorless.us-east.eu-west.orders"):
        world.source.put(group, ORDERS, 3)
    world.source.put("shop", ("unrelated", 0), 3)

    world.act()

    assert [group for group, *_ in world.checkpoints()] == ["shop"]
    assert world.target.offsets.keys() == {"shop"}


# Group offsets


def test_a_group_without_members_gets_its_offset_where_it_has_none_or_a_lower_one() -> None:
    """MM2's testSyncOffset and testSyncOffsetForTargetGroupWithNullOffsetAndMetadata."""
    world = mirrored(5, 5, sync=3)
    for group, before in (("lower", 3), ("equal", 7), ("higher", 9)):
        world.source.put(group, ORDERS, before)
    world.act()
    world.target.commits.clear()
    for group in ("lower", "equal", "higher", "none"):
        world.source.put(group, ORDERS, 7)

    world.act()

    assert world.target.commits == [("lower", REMOTE, 3, 8), ("none", REMOTE, None, 8)]


def test_nothing_is_committed_unless_switched_on() -> None:
    world = mirrored(5)
    world.commit_and_act(3)

    assert world.target.commits == []
    assert world.document("shop").by == "checkpoint"


@pytest.mark.parametrize(
    ("there", "sync", "commits"),
    [(3, None, []), (None, 3, []), (2, 3, [("shop", REMOTE, 2, 3)])],
    ids=["nothing is due", "it has no commits", "an offset is due"],
)
def test_a_group_with_members_is_active_whatever_is_due_and_not_written_until_they_have_gone(
    there: int | None, sync: int | None, commits: list[object]
) -> None:
    world = mirrored(5, sync=sync)
    if commits:
        world.commit_and_act(2)
        world.target.commits.clear()
    elif there is not None:
        world.target.put("shop", REMOTE, there)
    world.target.members.add("shop")

    world.commit_and_act(3)

    assert world.target.commits == []
    assert world.document("shop").readiness == "active_on_target"
    if commits:
        world.target.members.clear()
        world.act()
        assert world.target.commits == commits
        assert world.document("shop").readiness == "ready"


def test_a_group_that_read_on_in_between_is_not_moved_back() -> None:
    """It had members and committed between two reads of the round; MM2 would rewind it."""
    world = mirrored(5, 5, sync=3)
    world.commit_and_act(2)
    world.source.put("shop", ORDERS, 5)
    world.target.before_states = lambda: world.target.put("shop", REMOTE, 9)
    world.act()

    assert world.target.commits == [("shop", REMOTE, None, 2)]
    assert world.target.offsets["shop"][REMOTE].offset == 9


def test_a_group_whose_commits_cannot_be_read_is_not_overwritten() -> None:
    world = mirrored(5, sync=3)
    world.source.put("shop", ORDERS, 5)
    world.target.put("shop", REMOTE, 9)
    world.target.mute.add("shop")

    report = world.act()

    assert world.target.commits == []
    assert report.troubles == ["eu-west: the commits of group shop cannot be read now"]


def test_an_operators_rewind_on_the_target_is_not_undone() -> None:
    """The group has no members on either side, and an operator wants records processed again on the target."""
    world = mirrored(5, 5, sync=3, reverse=True)
    world.commit_and_act(7)
    world.target.put("shop", REMOTE, 0)

    for _ in range(3):
        world.act()
    assert world.target.offsets["shop"][REMOTE].offset == 0
    assert world.source.commits == []

    world.commit_and_act(8)
    assert world.target.offsets["shop"][REMOTE].offset == 9


def test_an_operators_rewind_on_the_source_is_not_undone_by_the_way_back() -> None:
    world = mirrored(5, 5, sync=3, reverse=True)
    world.commit_and_act(7)
    world.source.put("shop", ORDERS, 1)

    for _ in range(3):
        world.act()

    assert world.source.offsets["shop"][ORDERS].offset == 1
    assert world.target.offsets["shop"][REMOTE].offset == 8


def test_a_rewind_survives_a_crash_right_after_the_commit() -> None:
    """A commit is marked before it is made, so a successor does not take it for the group's own commit."""
    world = mirrored(5, 5, sync=3, reverse=True)
    world.source.put("shop", ORDERS, 7)
    crashes = [KeyboardInterrupt()]

    def crash() -> None:
        if crashes:
            raise crashes.pop()

    world.target.after_commit = crash
    with pytest.raises(KeyboardInterrupt):
        world.act()
    world.source.put("shop", ORDERS, 2)
    world.restart()
    world.act()
    world.act()

    assert world.source.offsets["shop"][ORDERS].offset == 2


# The way back


def test_a_group_of_the_target_returns_to_exactly_where_it_is() -> None:
    world = mirrored(5, 5, sync=3, reverse=True)
    world.target.put("shop", REMOTE, 9, "by hand")

    world.act()

    assert world.source.offsets["shop"] == {ORDERS: OffsetAndMetadata(8, "by hand")}
    assert world.checkpoints_back() == [("shop", "orders", 0, 9, 8, "by hand")]
    assert world.document("shop", "reverse").offsets == {"orders": {0: GroupOffset(8, 9, "exact", "by hand")}}


@pytest.mark.parametrize(
    ("delivery", "state"), [("exactly_once", "exact"), ("at_least_once", "ahead_of_replication")], ids=str
)
def test_a_consumer_behind_the_last_marker_is_exactly_at_the_end_of_what_comes_in_transactions(
    delivery: str, state: TranslationState
) -> None:
    world = mirrored(5, delivery=delivery)
    world.target.put("shop", REMOTE, 6)

    world.act()

    assert world.document("shop", "reverse").offsets["orders"][0] == GroupOffset(5, 6, state)


def test_after_a_run_in_doubt_no_offset_is_exact() -> None:
    """Its records are visible and were read; until the run is confirmed the map does not contain them."""
    world = mirrored(5)
    world.produce(world.lane(), -5)
    world.replicate(world.lane(), prepared=True)
    world.target.put("shop", REMOTE, 12)

    world.act()
    assert world.document("shop", "reverse").offsets["orders"][0] == GroupOffset(5, 12, "ahead_of_replication")

    world.chains.confirm([link for link in world.chains.of(world.lane()) if link.position == 5])  # type: ignore[misc]  # a run
    world.act()
    assert world.document("shop", "reverse").offsets["orders"][0] == GroupOffset(10, 12, "exact")


def test_nothing_is_written_to_the_source_unless_switched_on_and_then_what_was_due() -> None:
    world = mirrored(5, 5, sync=3)
    world.target.put("shop", REMOTE, 9)
    world.commit_and_act(2)
    assert (world.source.commits, world.source_topics.written, world.source_topics.created) == ([], [], {})

    world.settings = settings(sync=3, reverse=True)
    world.restart()
    world.act()

    assert world.checkpoints_back() == [("shop", "orders", 0, 9, 8, "")]
    assert world.source.offsets["shop"] == {ORDERS: OffsetAndMetadata(8)}


@pytest.mark.parametrize("before", [[], [1]], ids=["it is new there", "it has commits on both sides"])
def test_the_two_directions_do_not_echo_each_other(before: list[int]) -> None:
    """An offset in a gap translates to the next record, and that one translates back to a higher offset.

    Where it has commits on both sides, the round translates both before it writes one of them.
    """
    world = TwoClusters(settings(sync=3, reverse=True))
    world.produce(world.lane(), 3, 3)
    world.replicate(world.lane())
    for upstream in before:
        world.commit_and_act(upstream)
    world.commit_and_act(3)  # on the marker between the two transactions
    writes = world.documents.writes
    for _ in range(5):
        world.act()

    assert [(old, new) for *_, old, new in world.target.commits] == list(pairwise([None, *before, 3]))
    assert world.source.commits == []
    assert world.documents.writes <= writes + 2  # the way back sees the group once


# A cluster that is gone


def test_groups_still_move_to_the_target_while_the_source_is_gone() -> None:
    """The last commits read on the source still hold: the group gets its offset on the target."""
    world = mirrored(5, 5, sync=3, reverse=True)
    world.source.put("shop", ORDERS, 12)
    world.produce(world.lane(), -5)
    world.target.members.add("shop")
    world.act()
    world.replicate(world.lane())
    world.silence_source()
    world.target.members.clear()

    report = world.act()

    assert world.target.offsets["shop"] == {REMOTE: OffsetAndMetadata(14)}
    assert "the groups of us-east cannot be read" in report.troubles[0]
    assert world.document("shop").readiness == "ready"


UNANSWERED: list[tuple[str, ...]] = [(), ("ends",), ("look",), ("ends", "look")]
"""Of a source: everything; or questions about its logs alone, as where one broker of several is deaf."""


@pytest.mark.parametrize("calls", UNANSWERED, ids=lambda calls: "-".join(calls) or "everything")
def test_what_the_source_does_not_answer_costs_a_round_one_time_out_and_holds_up_no_other_group(
    calls: tuple[str, ...],
) -> None:
    world = mirrored(4, sync=0, reverse=True)
    world.source.put("new", ("orders", 1), 7)  # on a partition without a map: only the source's ends say more
    for name, offset in (("shop", 1), ("moving", 2)):
        world.source.put(name, ORDERS, offset)
    world.act()
    assert {world.document(group).readiness for group in ("shop", "moving")} == {"ready"}
    world.target.put("moving", REMOTE, 3)
    world.source.put("shop", ORDERS, 3)
    world.source.put("late", ORDERS, 2)
    world.produce(world.lane(), -1)
    world.source.put("ahead", ORDERS, 5)  # behind the last record: only the source's log says more
    deaf = world.deafen(*calls)
    asked, began = deaf.asked, world.now

    reports = [world.act() for _ in range(4)]

    assert world.now - began <= 4 * 3_000 + 5_000 * len(calls or ("names",))
    assert len(asked) <= len(calls or ("names",))
    assert all(report.troubles for report in reports[1:])
    assert world.document("new").readiness == "ahead_of_replication"
    if calls:
        assert world.document("ahead").readiness == "ahead_of_replication"
        assert world.target.offsets["shop"][REMOTE].offset == 3
        assert world.target.offsets["late"][REMOTE].offset == 2
        assert world.source.offsets["moving"][ORDERS].offset == 3, "the way back is not held up either"

        deaf.but = ()  # it is back
        world.now += 15_000
        world.replicate(world.lane())
        assert world.act().troubles == []
        assert world.document("ahead").readiness == "ready"


def test_what_the_source_missed_it_gets_when_it_is_back() -> None:
    world = mirrored(5, 5, sync=3, reverse=True)
    world.silence_source()
    world.target.put("shop", REMOTE, 9)
    world.act()
    world.silence_source(silent=False)

    world.now += 60_000
    world.act()

    assert world.source.offsets["shop"] == {ORDERS: OffsetAndMetadata(8)}
    assert world.checkpoints_back() == [("shop", "orders", 0, 9, 8, "")]


def test_checkpoints_that_could_not_be_written_are_written_later() -> None:
    world = mirrored(5, sync=3)
    world.source.put("shop", ORDERS, 3)
    world.target_topics.refuses = True
    report = world.act()
    assert "1 checkpoints wait" in report.troubles[0]
    assert world.target.offsets["shop"] == {REMOTE: OffsetAndMetadata(3)}

    world.target_topics.refuses = False
    world.act()

    assert world.checkpoints() == [("shop", "us-east.orders", 0, 3, 3, "")]


def test_a_silent_target_fails_the_round() -> None:
    world = mirrored(5)
    world.target.silent = True
    with pytest.raises(Retriable):
        world.act()


# Readiness


def test_a_group_behind_the_sources_last_marker_is_not_ahead() -> None:
    """No event contains the marker, so the position stays before it; once both stand still, the source is read."""
    world = mirrored(5, sync=3)
    world.commit_and_act(5)
    world.produce(world.lane(), 0)
    world.commit_and_act(6)
    assert world.document("shop").readiness == "ahead_of_replication"

    for _ in range(4):
        world.act()
    assert world.document("shop").readiness == "ready"
    assert world.source_topics.looks == 1

    writes = world.documents.writes
    world.restart()
    world.act()
    assert world.documents.writes == writes


@pytest.mark.parametrize("offset", [5, 4 + 99_900, 2**62])
@pytest.mark.parametrize("partition", [0, 1], ids=["with a map", "without a map"])
def test_an_offset_beyond_the_end_of_the_log_is_out_of_range_and_not_ahead(partition: int, offset: int) -> None:
    world = mirrored(4, sync=0)
    place = ("orders", partition)
    world.produce(world.lane(partition), *([-1] if partition else []))
    world.source.put("odd", place, offset)
    world.source.put("both", place, offset)
    world.source.put("both", ("payments", 0), 2)
    world.produce(world.lane(topic="payments"), -2)
    world.replicate(world.lane(topic="payments"))

    for _ in range(3):
        world.act()

    odd, both = world.document("odd"), world.document("both")
    assert odd.offsets == {"orders": {partition: GroupOffset(offset, None, "out_of_range")}}
    assert (odd.readiness, odd.ahead, odd.by) == ("out_of_range", 0, "checkpoint")
    assert not odd.needs_operator
    assert (both.readiness, both.by) == ("out_of_range", "group"), "its other partitions go on"
    assert world.target.offsets["both"] == {("us-east.payments", 0): OffsetAndMetadata(2)}
    assert not [each for each in world.checkpoints() if each[1] == "us-east.orders"]


def test_an_offset_is_ahead_once_the_log_has_come_to_it_and_ready_once_its_records_have_arrived() -> None:
    world = mirrored(4, sync=0)

    def readiness(*groups: str) -> set[str]:
        return {world.document(name).readiness for name in groups}

    world.source.put("far", ORDERS, 99_900)
    world.source.put("soon", ORDERS, 6)
    world.act()
    assert readiness("far", "soon") == {"out_of_range"}

    world.produce(world.lane(), -3)
    world.source.put("end", ORDERS, 7)
    world.act()
    world.now += 60_000  # after so long at most the log's end is asked for again
    for _ in range(3):
        world.act()
        assert (readiness("soon", "end"), readiness("far")) == ({"ahead_of_replication"}, {"out_of_range"})

    world.replicate(world.lane())
    world.act()
    assert (readiness("soon", "end"), readiness("far")) == ({"ready"}, {"out_of_range"})
    world.deafen("ends")
    for _ in range(3):
        world.produce(world.lane(), -1)
        world.replicate(world.lane())
        world.act()
        assert readiness("far") == {"out_of_range"}, "while its lane moves, answered for or not"


@pytest.mark.parametrize("offset", [0, 2, 4, 7])
def test_a_partition_that_the_source_does_not_have_is_nowhere_exactly(offset: int) -> None:
    """Its topic was deleted, or made anew with fewer partitions; the map has its records still."""
    world = mirrored(4, sync=0)
    world.source.put("shop", ORDERS, offset)
    world.source.put("shop", ("payments", 5), 3)
    world.source_topics.counts = {"orders": 0, "payments": 5}

    world.act()

    document = world.document("shop")
    assert {at.state for offsets in document.offsets.values() for at in offsets.values()} == {"gone"}
    assert document.readiness == "out_of_range"
    assert not world.checkpoints()
    assert "shop" not in world.target.offsets

    world.source_topics.counts = {"orders": 1}
    world.now += 60_000
    world.act()
    assert world.document("shop").offsets["orders"][0].state != "gone"


@pytest.mark.parametrize("calls", [(), ("ends", "partitions")], ids=["everything", "logs"])
def test_what_was_out_of_range_stays_so_while_the_source_does_not_answer(calls: tuple[str, ...]) -> None:
    world = mirrored(4, sync=0)
    world.source.put("beyond", ORDERS, 99)
    world.source.put("gone", ("payments", 5), 3)
    world.produce(world.lane(6, "payments"), -4)
    world.replicate(world.lane(6, "payments"))
    world.source.put("mapped", ("payments", 6), 2)
    world.source_topics.counts = {"payments": 5}
    world.act()
    world.restart()  # a failover, for one
    world.deafen(*calls)

    for _ in range(2):
        world.act()

    states = {name: world.document(name).offsets for name in ("beyond", "gone", "mapped")}
    assert states["beyond"] == {"orders": {0: GroupOffset(99, None, "out_of_range")}}
    assert states["gone"] == {"payments": {5: GroupOffset(3, None, "gone")}}
    assert states["mapped"] == {"payments": {6: GroupOffset(2, None, "gone")}}


def test_a_read_that_finds_a_record_is_not_repeated_until_the_lane_moves() -> None:
    world = mirrored(5)
    world.produce(world.lane(), 2, 2)
    world.source.put("shop", ORDERS, 8)
    for _ in range(4):
        world.act()
    assert (world.document("shop").readiness, world.source_topics.looks) == ("ahead_of_replication", 1)

    world.replicate(world.lane(), 2)
    for _ in range(4):
        world.act()

    assert (world.document("shop").readiness, world.source_topics.looks) == ("ready", 2)


def test_a_group_rewound_on_the_source_would_skip_records_on_the_target() -> None:
    """Offsets on the target never go backwards; from 4 to 15 there are 9 records and two markers."""
    world = mirrored(5, 5, 5, sync=3)
    world.commit_and_act(13)
    world.source.put("shop", ORDERS, 4)
    for _ in range(2):
        world.act()

    document = world.document("shop")
    assert (document.readiness, document.skip, document.reread) == ("ahead_on_target", 9, 0)
    assert world.target.offsets["shop"][REMOTE].offset == 15

    for upstream, skip in ((6, 7), (12, 1)):
        world.commit_and_act(upstream)
        assert world.document("shop").skip == skip
    world.commit_and_act(14)
    assert (world.document("shop").readiness, world.document("shop").skip) == ("ready", 0)


def move_back(world: TwoClusters) -> None:
    """As the command does: the claim first, the commit after it."""
    document = world.document("shop")
    moves = plan_move_back(
        document,
        FLOW,
        there={world.lane(): world.target.offsets["shop"][REMOTE]},
        state="empty",
        count=lambda *_: document.skip,
    )
    claimed = claim_of(document, moves)
    world.documents.write(FLOW, {claimed.key: msgspec.json.encode(claimed)})
    world.target.put("shop", REMOTE, moves[0].to.offset)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_group_moved_back_by_its_operator_is_ready_and_is_followed_from_there(reverse: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    """The round that misses the claim lets the next one read it."""
    world = mirrored(5, 5, 5, sync=3, reverse=reverse)
    world.commit_and_act(13)
    world.commit_and_act(4)

    move_back(world)
    world.act()
    world.act()

    assert world.document("shop").readiness == "ready"
    world.commit_and_act(9)
    assert world.target.offsets["shop"][REMOTE].offset == 10


def test_an_offset_that_was_moved_back_is_not_carried_to_the_source() -> None:
    world = mirrored(5, 5, 5, sync=3, reverse=True)
    world.commit_and_act(13)
    world.commit_and_act(4)

    move_back(world)
    world.source.put("shop", ORDERS, 2)
    world.restart()
    world.act()

    assert world.source.commits == []
    assert world.source.offsets["shop"][ORDERS].offset == 2


def test_a_group_rewound_on_the_target_would_skip_records_on_the_source() -> None:
    """Its offset on the source is one that this flow committed."""
    world = mirrored(5, 5, 5, sync=3, reverse=True)
    world.target.put("shop", REMOTE, 15)
    world.act()
    world.target.put("shop", REMOTE, 4)
    for _ in range(2):
        world.act()

    document = world.document("shop", "reverse")
    assert (document.readiness, document.skip) == ("ahead_on_source", 9)


def test_a_group_that_read_more_on_the_source_than_on_the_target_skips_nothing_there() -> None:
    """The source was lost with records that it had read there; it continues after them."""
    world = mirrored(5, 5, reverse=True)
    world.source.put("shop", ORDERS, 9)
    world.target.put("shop", REMOTE, 4)

    world.act()

    document = world.document("shop", "reverse")
    assert (document.readiness, document.skip) == ("ready", 0)


def test_a_group_that_was_carried_back_in_this_round_skips_nothing() -> None:
    """The round read its offset on the source before it wrote it."""
    world = mirrored(5, 5, sync=3, reverse=True)
    world.commit_and_act(2)
    world.read(world.target, "shop", world.lane(), 3)

    world.act()

    assert world.source.commits == [("shop", ORDERS, 2, 5)]
    assert (world.document("shop").readiness, world.document("shop").skip) == ("ready", 0)


def test_a_group_ahead_of_the_replication_would_read_that_again_and_skip_nothing() -> None:
    world = mirrored(5, sync=3)
    world.produce(world.lane(), -10)

    world.commit_and_act(12)

    document = world.document("shop")
    assert (document.readiness, document.ahead, document.reread) == ("ahead_of_replication", 7, 0)
    assert world.target.offsets["shop"] == {REMOTE: OffsetAndMetadata(5)}


def test_a_document_outlives_its_group_for_a_week() -> None:
    world = mirrored(5)
    world.commit_and_act(3)
    world.source.offsets.clear()
    world.act()
    assert len(world.documents.documents) == 1

    world.now += 8 * 86_400_000
    world.act()

    assert world.documents.documents == {}


def test_a_round_with_nothing_new_reads_no_chain_and_writes_nothing() -> None:
    """Independent groups too, and those whose consumers only passed a marker."""
    world = mirrored(5, 5, sync=3, reverse=True)
    for number in range(5):
        for name in ("group", "other", "passed"):
            world.source.put(f"{name}-{number}", ORDERS, number if name == "group" else 10)
        world.target.put(f"other-{number}", REMOTE, number)
    world.act()
    for number in range(5):
        world.read(world.target, f"passed-{number}", world.lane())
    for _ in range(3):
        world.act()
    writes, commits, reads = world.documents.writes, len(world.target.commits), world.chains.reads

    for _ in range(3):
        world.act()

    assert world.chains.reads == reads
    assert (world.documents.writes, len(world.target.commits)) == (writes, commits)


def test_after_a_reset_groups_are_translated_again_within_a_minute() -> None:
    world = mirrored(5)
    world.commit_and_act(3)
    world.chains.reset(reset(5, 0))

    world.now += 60_000
    world.act()

    assert world.document("shop").readiness == "ahead_of_replication"


# Maps of records that are gone


def made_anew(world: TwoClusters) -> None:
    """The remote topic is deleted and created again; Kafka drops the offsets that groups have there."""
    world.target_log(world.lane()).clear()
    for offsets in world.target.offsets.values():
        offsets.pop(REMOTE, None)


def stop(world: TwoClusters, untrue: int | None, reason: StopReason = "broken", partition: int = 0) -> None:
    """As a forwarder or the look at topics stops a lane."""
    found = Stop(reason=reason, upstream_offset=0, detail="made anew", at=1, untrue_from=untrue)
    world.states.stop(world.lane(partition), found)


def test_a_remote_topic_made_anew_gives_no_offset_and_what_was_committed_meanwhile_is_named() -> None:
    world = mirrored(5, 5, sync=3)
    for partition in (0, 1):
        world.produce(world.lane(partition), -10)
        world.replicate(world.lane(partition))
        world.source.put("shop", ("orders", partition), 7)
    world.source.put("late", ("orders", 1), 9)
    world.act()
    made_anew(world)
    world.act()  # nobody has seen it yet
    assert world.target.offsets["shop"][REMOTE].offset == 8
    commits, checkpoints = len(world.target.commits), len(world.checkpoints())

    stop(world, untrue=0)
    world.source.put("shop", ORDERS, 9)
    world.source.put("shop", ("orders", 1), 9)
    report = world.act()

    document = world.document("shop")
    assert document.offsets["orders"] == {0: GroupOffset(9, None, "map_lost"), 1: GroupOffset(9, 9, "exact")}
    assert (document.readiness, document.needs_operator) == ("map_lost", True)
    assert report.counts["groups-need-operator"] == 1
    assert [group for group, place, *_ in world.target.commits[commits:]] == ["shop"]
    assert [place for _, place, *_ in world.target.commits[commits:]] == [("us-east.orders", 1)]
    assert [partition for _, _, partition, *_ in world.checkpoints()[checkpoints:]] == [1]
    assert ["shop at 8 of partition 0" in each for each in report.troubles] == [True]
    assert world.document("late").readiness == "ready"


def test_a_translation_that_was_settled_is_dropped_with_the_stop_and_found_again_after_it() -> None:
    world = mirrored(5, sync=3)
    world.commit_and_act(3)
    made_anew(world)
    stop(world, untrue=0)

    world.act()
    assert world.document("shop").readiness == "map_lost"
    assert REMOTE not in world.target.offsets["shop"]

    world.states.resume(world.lane())
    world.act()
    assert world.target.offsets["shop"][REMOTE].offset == 3


@pytest.mark.parametrize(
    ("untrue", "reason", "behind"), [(5, "truncated", "map_lost"), (None, "refused", "ready")], ids=["lost", "refused"]
)
def test_a_source_that_lost_its_end_keeps_the_places_before_it_and_another_stop_keeps_all(
    untrue: int | None, reason: StopReason, behind: str
) -> None:
    world = mirrored(10, sync=3)
    stop(world, untrue=untrue, reason=reason)
    world.source.put("before", ORDERS, 4)
    world.source.put("behind", ORDERS, 6)

    world.act()

    assert (world.document("before").readiness, world.document("behind").readiness) == ("ready", behind)
    assert list(world.target.offsets) == ["before", "behind"][: 1 if untrue else 2]


def test_a_group_of_a_remote_topic_made_anew_is_not_carried_back() -> None:
    world = mirrored(10, reverse=True)
    made_anew(world)
    stop(world, untrue=0)
    world.target.put("shop", REMOTE, 4)

    world.act()

    assert world.document("shop", "reverse").offsets["orders"][0] == GroupOffset(None, 4, "map_lost")
    assert world.source.commits == []


# Any history of a lane: the oracle lists the records of both logs and counts


histories = st.lists(
    st.tuples(st.sampled_from(["produce", "gap", "event"]), st.integers(0, 5), st.integers(0, 3)), max_size=25
)
"""What happens to a lane, step by step: records on the source, gaps in its log, and events."""


def live(world: TwoClusters, lane: Lane, steps: list[tuple[str, int, int]]) -> None:
    for what, number, more in steps:
        if what == "produce":
            world.produce(lane, number, -more)
        elif what == "gap":
            world.source_log(lane).extend([MARKER] * number)
        else:
            world.replicate(lane, number or None, aborted=more)


def records(log: list[int], first: int, end: int | None = None) -> list[int]:
    """The identities at offsets [first, end)."""
    return [record for record in log[first:end] if record != MARKER]


@tried(max_examples=tries(100, many=300), deadline=None)
@given(
    lives=st.lists(histories, min_size=1, max_size=3), where=st.floats(0, 1), stands=st.floats(0, 1), back=st.booleans()
)
def test_a_group_that_moves_over_or_back_skips_nothing_and_rereads_as_counted(
    lives: list[list[tuple[str, int, int]]], where: float, stands: float, *, back: bool
) -> None:
    world = TwoClusters(settings())
    lane = world.lane()
    for history in lives:  # a round goes on from what the one before has counted
        live(world, lane, history)
        source, target = world.source_log(lane), world.target_log(lane)
        upstream, downstream = (
            round((stands if back else where) * len(source)),
            round((where if back else stands) * len(target)),
        )
        world.source.put("shop", ORDERS, upstream)
        world.target.put("shop", REMOTE, downstream)

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


# There and back, three times


@dataclass
class Travels:
    """One group, `shop`, that moves between the clusters at random moments of a flow that is at work."""

    chance: random.Random
    world: TwoClusters = field(default_factory=lambda: TwoClusters(settings(sync=3, reverse=True)))
    read: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lanes = [self.world.lane(partition) for partition in range(3)]

    def stay(self, side: MemoryGroups) -> None:
        """Read for a while on one side, among gaps, aborted attempts, rounds, and environments that die."""
        chance, world = self.chance, self.world
        for _ in range(chance.randint(1, 5)):
            side.members.add("shop")
            for lane in self.lanes:
                world.produce(lane, *(chance.choice([0, 1, 3, -1, -4]) for _ in range(chance.randint(0, 3))))
                world.replicate(lane, chance.choice([None, 1, 2]), aborted=chance.choice([0, 0, 2]))
                limit, past = chance.choice([None, 0, 1, 2]), chance.random() < 0.7
                self.read += world.read(side, "shop", lane, limit, past=past)
            if chance.random() < 0.5:
                world.act()
            if chance.random() < 0.2:
                world.restart()
        side.members.clear()

    def move(self) -> None:
        """The application is stopped, what is under way arrives, and a round or more carry the group over."""
        for lane in self.lanes:
            self.world.replicate(lane)
        for _ in range(self.chance.randint(1, 3)):
            self.world.act()


@pytest.mark.parametrize("seed", range(40))
def test_a_group_that_fails_over_and_back_three_times_reads_every_record_once(seed: int) -> None:
    """Never backwards, nothing twice, nothing skipped."""
    travels = Travels(random.Random(seed))
    world = travels.world

    for _ in range(3):
        travels.stay(world.source)
        travels.move()
        travels.stay(world.target)
        travels.move()
    travels.stay(world.source)
    for lane in travels.lanes:
        travels.read += world.read(world.source, "shop", lane)

    produced = [record for lane in travels.lanes for record in world.source_log(lane) if record != MARKER]
    assert sorted(travels.read) == sorted(produced)
    assert all(before is None or before < after for _, _, before, after in world.source.commits + world.target.commits)


# The pace of rounds


def test_a_round_in_which_a_group_has_moved_says_so_and_one_that_waits_for_records_does_not_count() -> None:
    """A group that is stuck would keep the rounds at two seconds for ever."""
    world = mirrored(4, sync=1)
    world.source.put("shop", ORDERS, 3)
    assert world.act().moved
    world.act()  # records what the first one wrote on the target
    assert not world.act().moved

    world.produce(world.lane(), -3)
    world.source.put("shop", ORDERS, 7)
    assert world.act().moved
    assert world.document("shop").readiness == "ahead_of_replication"
    world.act()
    assert not world.act().moved


def test_a_round_rests_for_as_long_as_the_journals_that_it_has_read_are_paid_for() -> None:
    world = TwoClusters(settings())
    for partition in range(40):
        world.produce(world.lane(partition), -1)
        world.replicate(world.lane(partition))
        world.source.put("shop", ("orders", partition), 1)

    journals = 3  # of 16 partitions each
    assert world.act().rest_seconds == journals / JOURNALS_PER_SECOND
    assert world.act().rest_seconds == 0


@pytest.mark.parametrize("seconds", [20.0, 10.0, 5.0])
def test_groups_that_a_round_had_no_time_for_come_first_in_the_next_one(seconds: float) -> None:
    world = mirrored(9, sync=1)
    names = [f"group-{number:02}" for number in range(20)]
    tried: list[str] = []

    world.target.before_commit = lambda group, _: tried.append(group)
    for offset in (3, 6):
        for name in names:
            world.source.put(name, ORDERS, offset)
        world.now += 3_000
        report = RoundReport()
        tried.clear()
        # What was read is fresh for ten seconds, if the round has them beside the three that a commit needs.
        world.round.act(report, lambda: seconds - min(seconds - 3, 10.0) / 16 * len(tried))
        assert report.troubles == ["eu-west: 4 groups wait for the next round, which has time"]

    committed = [name for name, *_ in world.target.commits]
    assert sorted(committed[:16]) == names[:16]
    assert set(names[16:]) <= set(committed[16:])


@pytest.mark.parametrize(
    ("left", "limit"), [(43.0, 5.0), (10.0, 5.0), (9.0, 4.5), (3.1, 1.55), (3.0, None), (0.2, None), (-7.0, None)]
)
def test_a_commit_ends_when_half_of_the_lease_is_left_at_the_latest(left: float, limit: float | None) -> None:
    """So one that is given up has as long again to arrive before another run commits. The deadline is the lease's."""
    world = mirrored(9, sync=1)
    world.source.put("shop", ORDERS, 5)
    limits: list[float] = []

    world.target.before_commit = lambda _, deadline: limits.append(deadline())
    report = RoundReport()
    world.round.act(report, lambda: left)

    assert limits == pytest.approx([] if limit is None else [limit])
    assert bool(report.troubles) == (limit is None)


def test_a_source_that_reads_slowly_gets_the_commits_of_the_way_back_all_the_same() -> None:
    """It has five seconds in all, so that it holds up nothing else; its reads take three of them."""
    world = mirrored(5, sync=1, reverse=True)
    world.commit_and_act(2)
    world.target.put("shop", REMOTE, 5)
    left, limits = [40.0], list[float]()

    def slow() -> None:
        left[0] -= 3

    world.source.before_states = slow
    world.source.before_commit = lambda _, deadline: limits.append(deadline())
    world.now += 3_000
    world.round.act(RoundReport(), lambda: left[0])

    assert limits == [2.0]
