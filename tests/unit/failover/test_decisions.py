"""The pure decisions: what stands still, what is missing, which groups have moved, which digests hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import msgspec
import pytest

from mirrorless.failover.group_verdicts import verdicts
from mirrorless.failover.holdings import holdings_of
from mirrorless.failover.plan import plan_of
from mirrorless.failover.proof import judge
from mirrorless.failover.report import missing_of, report_of, summary
from mirrorless.failover.standstill import Standing
from mirrorless.failover.state import FailoverOrder
from mirrorless.failover.work import Unfinished
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset, Readiness
from mirrorless.lane import Lane
from mirrorless.lane_state import Head, Stop
from mirrorless.protocol.digest import digest
from mirrorless.record import Record
from mirrorless.reports.page import render
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.acls import Acl
from mirrorless.topics.write_fence import MARK, deny, mark, to_create, to_delete, unguarded, without_fences
from tests.support.chains import FLOW, LANE, run
from tests.support.failover_world import FailoverWorld

PLANNED = FailoverOrder(mode="planned")
LOST = FailoverOrder(mode="source-lost")
OTHER = Lane(FLOW, "orders", 1)


def group(readiness: Readiness, *, by: str = "group") -> GroupCheckpoints:
    return GroupCheckpoints(
        group="shop",
        direction="forward",
        at=1,
        readiness=readiness,
        offsets={"orders": {0: GroupOffset(5, 7, "exact")}},
        by=by,  # type: ignore[arg-type]  # one of two literals
    )


# Standing still


def test_ends_stand_still_from_the_last_look_that_found_one_elsewhere() -> None:
    place = ("orders", 0)
    standing = Standing(since=0).after({place: (0, 5, 5)}, 1_000)
    assert standing.seconds(3_000) == 2
    assert standing.after({place: (0, 5, 5)}, 3_000).seconds(6_000) == 5
    assert standing.after({place: (0, 6, 6)}, 3_000).seconds(6_000) == 3


def test_an_open_transaction_is_not_standing_still_and_neither_is_a_partition_that_comes_or_goes() -> None:
    place = ("orders", 0)
    standing = Standing(since=0).after({place: (0, 5, 5)}, 1_000)
    assert standing.after({place: (0, 4, 5)}, 3_000).moved == {place}
    assert standing.after({}, 3_000).since == 3_000
    assert standing.after({place: (0, 5, 5), ("orders", 1): (0, 0, 0)}, 3_000).moved == {("orders", 1)}


def test_a_source_that_is_written_to_is_named_and_not_failed_over() -> None:
    world = FailoverWorld()
    world.produce(2)
    world.open_transactions = {("orders", 1)}
    world.meanwhile = world.replicate

    with pytest.raises(Unfinished, match=r"has an open transaction: orders-1.*run the same command again"):
        world.carry_out(PLANNED)

    assert not world.states.fences
    world.open_transactions = set()
    assert world.carry_out(PLANNED).ended_at


def test_records_that_do_not_move_are_named_and_the_flow_is_not_fenced() -> None:
    world = FailoverWorld()
    world.produce(2)

    with pytest.raises(Unfinished, match=r"nothing moves: us-east->eu-west orders-0"):
        world.carry_out(PLANNED)

    assert not world.states.fences


# Holdings


def test_what_is_missing_is_what_was_seen_beyond_the_position() -> None:
    head = Head(generation=0, position=8, run=run(3, 8, (3, 20, 5)))
    found = holdings_of(
        {LANE: head, OTHER: Head(generation=0, position=4)}, {"orders": [11, 4]}, seen_at=5_000, now=9_000
    )

    assert [lane.missing for lane in found.lanes] == [3, 0]
    assert found.missing == 3
    assert found.copied_until == 2_000  # the newest record of the lane that is behind
    assert found.recovery_point_seconds == 7


def test_a_lane_that_has_all_that_was_seen_holds_it_up_to_then() -> None:
    head = Head(generation=0, position=8, run=run(3, 8, (3, 20, 5)))
    found = holdings_of({LANE: head}, {"orders": [8]}, seen_at=5_000, now=9_000)

    assert (found.missing, found.recovery_point_seconds) == (0, 4)


def test_ends_that_nobody_has_seen_are_unknown_and_not_zero() -> None:
    found = holdings_of({LANE: Head(generation=0, position=8)}, {"orders": [-1]}, seen_at=0, now=9_000)

    assert found.lanes[0].seen_end is None
    assert found.recovery_point_seconds is None


def test_a_lost_source_is_reported_by_the_ends_that_the_schedule_has_stored() -> None:
    """Without Spark, and without the source: the ends and their time are in the target's region already."""
    world = FailoverWorld()
    world.produce(10)
    world.replicate(4)
    report = TaskReport(task="topics", at=world.clusters.now, ms=1, ok_at=world.clusters.now - 2_000)
    documents = {"topic-ends/0": msgspec.json.encode({"orders": [11, 11], "payments": [11]})}
    world.documents.write(FLOW, documents | {"task/topics": msgspec.json.encode(report)})
    world.lose_source()

    document = world.carry_out(LOST)

    missing = missing_of(document)
    assert missing[0] == "orders-0: 7 upstream offsets from 4 on were on the source and are not here"
    assert len(missing) == 3
    assert summary(FLOW, document)["recovery_point_seconds"] is not None
    assert "7 upstream offsets" in render(report_of(FLOW, document))


def test_a_drill_counts_records_and_not_the_markers_behind_them() -> None:
    world = FailoverWorld()
    world.produce(5, 5)  # each transaction leaves a marker
    world.replicate()

    drill = FailoverOrder(mode="drill")
    assert summary(FLOW, world.carry_out(drill))["recovery_point_seconds"] == 0
    world.produce(1)
    assert len(missing_of(world.carry_out(drill))) == len(world.lanes)


def test_a_drill_of_a_flow_without_lag_has_no_recovery_point_while_its_clock_goes_on() -> None:
    world = FailoverWorld()
    world.produce(5)
    world.replicate()

    drilled = world.carry_out(FailoverOrder(mode="drill"), clock=count(world.clusters.now).__next__)
    assert summary(FLOW, drilled)["recovery_point_seconds"] == 0


# Groups


@pytest.mark.parametrize(
    ("readiness", "by", "planned", "lost"),
    [
        ("ready", "group", "moved", "moved"),
        ("ready", "checkpoint", "waits", "waits"),
        ("ahead_of_replication", "group", "waits", "moved"),
        ("ahead_of_replication", "checkpoint", "waits", "waits"),
        ("behind", "group", "waits", "waits"),
        ("independent", "group", "left", "left"),
        ("active_on_target", "group", "left", "left"),
        ("before_map", "checkpoint", "left", "left"),
        ("ahead_on_target", "group", "left", "left"),
    ],
)
def test_a_group_has_moved_once_its_own_offsets_are_there(
    readiness: Readiness, by: str, planned: str, lost: str
) -> None:
    assert [verdicts([group(readiness, by=by)], mode)[0].fate for mode in ("planned", "source-lost")] == [planned, lost]


def test_a_group_that_still_reads_on_the_source_is_named() -> None:
    (found,) = verdicts([group("ready")], "planned", active_on_source={"shop"})
    assert (found.fate, found.offsets) == ("moved", {"orders": {0: 7}})
    assert "members on the source" in found.why


def test_members_that_have_just_left_the_target_are_not_waited_for() -> None:
    """An operator who fails over has stopped them: the grace period of the schedule is five minutes."""
    world = FailoverWorld()
    world.settings = msgspec.structs.replace(world.settings, group_grace_seconds=600.0)
    world.__post_init__()
    world.produce(10)
    world.replicate()
    for lane in world.lanes:
        world.clusters.read(world.clusters.source, "shop", lane, 6, past=False)
    world.clusters.target.members = {"shop"}
    world.clusters.target.offsets["shop"] = {}
    world.clusters.act()
    world.clusters.target.members = set()
    world.clusters.act()
    assert world.clusters.document("shop").left_at
    began = world.clusters.now

    world.carry_out(PLANNED)

    assert world.clusters.document("shop").readiness == "ready"
    assert world.clusters.now - began < 60_000


# Digests


def records(*offsets: int) -> list[Record]:
    return [Record(offset, 1, [], b"k", str(offset).encode()) for offset in offsets]


def test_a_digest_holds_for_exactly_the_records_that_a_run_claims() -> None:
    claimed = replace(run(0, 5, (0, 20, 2), (3, 23, 2)), digest=digest(records(20, 21, 23, 24)))

    assert not judge(claimed, records(20, 21, 22, 23, 24))  # 22 is another's
    assert "does not hold" in judge(replace(claimed, digest=b"x"), records(20, 21, 23, 24))
    assert "1 records of its newest run are not there" in judge(claimed, records(20, 21, 23))


def test_a_record_that_was_changed_on_the_target_is_in_the_report() -> None:
    world = FailoverWorld()
    world.produce(3)
    world.replicate()
    lane = world.lanes[0]
    world.clusters.target_log(lane)[0] += 1_000_000

    document = world.carry_out(PLANNED)

    assert f"{lane}: the digest of its newest run does not hold" in missing_of(document)


# Fences


def test_a_fenced_flow_replicates_nothing_and_a_lane_keeps_its_own_stop() -> None:
    world = FailoverWorld()
    own = Stop(reason="refused", upstream_offset=1, detail="too large", at=1)
    world.states.stop(LANE, own)
    world.states.fence(FLOW, Stop(reason="held", upstream_offset=0, detail="failover", at=2))

    found = world.states.read([LANE, OTHER])

    assert (found[LANE].stop, found[LANE].fenced) == (own, False)
    assert found[OTHER].fenced


def test_a_fence_is_complete_only_with_its_mark_and_a_half_one_is_completed_or_lifted() -> None:
    none, ours, theirs = frozenset[Acl](), frozenset({mark("orders")}), frozenset({deny("orders")})
    assert to_create(["orders"], none) == (ours, theirs)
    assert to_create(["orders"], ours) == (none, theirs)
    assert to_create(["orders"], theirs) == (none, none)  # another's
    assert to_delete(["orders"], theirs) == (none, none)
    assert to_delete(["orders"], ours) == (none, ours)
    assert without_fences({mark("orders"), deny("orders"), deny("payments")}) == {deny("payments")}
    assert mark("orders").principal == MARK


@pytest.mark.parametrize(
    ("pattern", "name", "without"),
    [("LITERAL", "orders", []), ("LITERAL", "*", []), ("PREFIXED", "ord", []), ("LITERAL", "ord", ["orders"])],
)
def test_a_topic_is_guarded_by_any_acl_that_applies_to_it(pattern: str, name: str, without: list[str]) -> None:
    acl = Acl("TOPIC", pattern, name, "User:a", "*", "ALLOW", "READ")
    assert unguarded(["orders"], {acl}) == without


def test_a_plan_numbers_its_steps_and_says_which_are_done() -> None:
    world = FailoverWorld()
    world.produce(1)
    world.replicate()
    document = world.carry_out(PLANNED)

    plan = plan_of(FLOW, PLANNED, 2, document, back=False)

    assert [each.number for each in plan] == list(range(1, 9))
    assert all(each.done for each in plan)
    assert not any(each.done for each in plan_of(FLOW, PLANNED, 2, document, back=True))
