"""What counts for the next command, and what the last look of a command finds, replicates or names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.main import build_parser
from mirrorless.chain.lane_state import Stop
from mirrorless.failover.groups import GroupVerdict, with_started
from mirrorless.failover.report import is_clean, missing_of, report_of, summary
from mirrorless.failover.state import FailoverOrder, StepName
from mirrorless.failover.steps import with_earlier
from mirrorless.failover.work import Interrupted, Unfinished
from mirrorless.lanes.gaps import GapRange, Look
from mirrorless.ports.kafka import TopicPartition
from mirrorless.topics.acls import Acl
from mirrorless.transforms.rules import Rule
from tests.support.chains import FLOW
from tests.support.failover_world import APPLICATION, DRILL, LOST, PLANNED, WAITED, FailoverWorld
from tests.support.group_cluster import MARKER, settings


def replicated(**changes: object) -> FailoverWorld:
    world = FailoverWorld.of(5, **changes)
    world.meanwhile = world.replicate
    return world


def lacking(world: FailoverWorld) -> int:
    """Records of the source that the target has not."""
    return sum(
        len(set(world.clusters.source_log(lane)) - set(world.clusters.target_log(lane)) - {MARKER})
        for lane in world.lanes
    )


# What counts for the next command


@pytest.mark.parametrize("step", ["check", "fence-producers", "standstill", "drain"])
@pytest.mark.parametrize("sizes", [(7,), (1, 1, 1)], ids=["one transaction", "several"])
def test_what_was_seen_before_the_fence_is_seen_again(step: StepName, sizes: tuple[int, ...]) -> None:
    world = replicated()
    world.killed_behind(WAITED, step)
    world.produce(*sizes)
    world.clusters.now += 60_000

    document = world.carry_out(WAITED)

    assert lacking(world) == 0
    assert is_clean(document)
    assert step == "check" or summary(FLOW, document)["seconds"] >= 60, "from the first change of both commands"


def test_what_was_forced_stays_forced() -> None:
    world = replicated()
    world.states.stop(world.lanes[0], Stop(reason="refused", upstream_offset=6, detail="too large", at=1))
    with pytest.raises(Interrupted):
        world.carry_out(WAITED, force=True, cancelled=lambda: bool(world.document()))

    assert world.carry_out(WAITED).ended_at


@pytest.mark.parametrize(
    ("order", "step", "killed"),
    [(WAITED, "drain", True), (PLANNED, "fence-producers", True), (WAITED, "fence-flow", False)],
    ids=["between two commands", "behind the fence of the others", "during a command, found by the last look"],
)
def test_a_topic_and_partitions_that_appear_are_fenced_and_drained(
    order: FailoverOrder, step: StepName, *, killed: bool
) -> None:
    world = replicated(settings=settings(topics=("orders", "payments", "refunds")))

    def grow() -> None:
        known = set(world.lanes)
        world.topics |= {"orders": 4, "refunds": 2}
        world.make_logs()
        assert world.source_acls.there is not None
        world.source_acls.there.add(Acl("TOPIC", "LITERAL", "refunds", APPLICATION, "*", "ALLOW", "WRITE"))
        for lane in set(world.lanes) - known:
            world.clusters.produce(lane, 4)

    if killed:
        world.killed_behind(order, step)
        grow()
    document = world.carry_out(order, behind={} if killed else {step: grow})

    assert document.facts("check")["topics"] == {"orders": 4, "payments": 1, "refunds": 2}
    assert lacking(world) == 0
    assert is_clean(document)
    denied = {acl.name for acl in world.source_acls.there or () if acl.permission == "DENY"}
    assert denied == (set(world.topics) if order == PLANNED else set())
    assert len([each for each in document.steps[1].commands if "DENY" in each]) == len(denied), "of both commands"


def test_behind_the_fence_a_command_goes_on_where_it_was_and_still_finds_what_came_late() -> None:
    world = replicated()
    world.killed_behind(WAITED, "groups")
    command = world.command(WAITED)
    done = [each.step for each in command.prepare() if each.done]
    assert done == ["check", "fence-producers", "standstill", "drain", "fence-flow", "groups"]
    world.produce(6)

    document = command.execute()

    assert lacking(world) == 0
    assert is_clean(document)
    assert FLOW in world.states.flow_stops


def test_a_drill_that_is_run_again_states_what_would_be_lost_then() -> None:
    world = replicated()
    world.meanwhile = lambda: None
    world.killed_behind(DRILL, "shadow-groups")
    world.produce(2)

    document = world.carry_out(DRILL)

    assert [lane["seen_end"] - lane["position"] for lane in document.facts("holdings")["lanes"]] == [4, 4, 4]


# What the last look finds


def test_one_who_writes_for_ever_is_named_with_counts_and_the_recovery_point_is_not_zero() -> None:
    world = replicated()
    world.settings = msgspec.structs.replace(world.settings, transforms=(Rule(topics=("payments",)),))

    def write() -> None:
        world.produce(2)
        world.clusters.now += 4_000

    document = world.carry_out(WAITED, behind={"prove": write})

    assert lacking(world) == 6
    assert missing_of(document)[0] == (
        "orders-0: 2 records from offset 15 on of us-east are not on eu-west: they came late. Stop that producer; a "
        "failback counts them as orphans"
    )
    assert missing_of(document)[2].endswith("Stop that producer; they stay there"), "a rule's topic has no failback"
    assert not is_clean(document)
    assert "Nothing is missing" not in report_of(FLOW, document).verdict
    assert summary(FLOW, document)["recovery_point_seconds"] >= 4


@pytest.mark.parametrize("late", [False, True], ids=["from the beginning", "behind the proof"])
def test_an_open_transaction_is_named_though_nobody_sees_its_records_yet_and_waited_for(*, late: bool) -> None:
    world = replicated()

    def open_one() -> None:
        world.clusters.produce(world.lanes[1], -1)
        world.open_transactions = {("orders", 1)}
        world.meanwhile = (lambda: None) if late else world.replicate

    if not late:
        open_one()
    with pytest.raises(Unfinished, match=r"has an open transaction: orders-1.*run the same command again"):
        world.carry_out(WAITED, behind={"prove": open_one} if late else {})
    assert bool(world.states.flow_stops) == late

    world.open_transactions = set()
    world.meanwhile = world.replicate
    assert is_clean(world.carry_out(WAITED))
    assert lacking(world) == 0


def test_a_lane_that_was_stopped_is_counted_and_not_waited_for() -> None:
    world = replicated()
    world.states.stop(world.lanes[0], Stop(reason="refused", upstream_offset=6, detail="too large", at=1))
    world.clusters.produce(world.lanes[0], 4)
    world.meanwhile = lambda: None

    document = world.carry_out(PLANNED, force=True)

    assert "orders-0: 4 records from offset 6 on of us-east are not on eu-west: its lane was left alone" in missing_of(
        document
    )
    assert not [line for line in world.said if "carried out again" in line]


@pytest.mark.parametrize("late", [False, True], ids=["from the beginning", "it stops while what came late is drained"])
def test_a_lane_that_does_not_move_is_named_and_not_passed_over(*, late: bool) -> None:
    world = replicated()

    def stand() -> None:
        world.produce(2)
        if late:
            world.states.stop(world.lanes[0], Stop(reason="refused", upstream_offset=6, detail="too large", at=1))
        world.meanwhile = lambda: None

    if not late:
        stand()
    with pytest.raises(Unfinished, match="nothing moves: us-east->eu-west orders-0"):
        world.carry_out(WAITED, behind={"prove": stand} if late else {})
    assert late or not world.states.flow_stops


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (3, "orders-1: 7 records from offset 6 on"),
        (0, "orders-1: 8 offsets not counted one by one from offset 6 on"),
    ],
)
def test_records_are_counted_in_as_many_looks_as_it_takes_and_offsets_where_no_look_comes_further(
    most: int, words: str
) -> None:
    world = replicated()
    world.carry_out(WAITED)
    world.clusters.produce(world.lanes[1], 7)

    def look(ranges: Mapping[TopicPartition, Sequence[GapRange]], **options: Any) -> Mapping[TopicPartition, Look]:
        """So many offsets at a time, as those that a client sees in a second."""
        near = {place: [(some[0][0], min(some[0][1], some[0][0] + most))] for place, some in ranges.items()}
        return world.clusters.source_topics.look(near, **options)

    source = replace(world.effects().source, looks=SimpleNamespace(look=look))
    document = world.carry_out(WAITED, source=source)

    assert words in missing_of(document)[0]


def test_a_command_that_has_ended_only_looks_and_says_what_it_finds() -> None:
    world = replicated()
    seconds = summary(FLOW, world.carry_out(WAITED))["seconds"]
    world.produce(2)
    world.clusters.now += 3_600_000

    document = world.carry_out(WAITED)

    assert lacking(world) == 6
    assert len([each for each in missing_of(document) if "2 records from offset 6" in each]) == 3
    assert summary(FLOW, document)["seconds"] == seconds
    world.lose_source()
    assert missing_of(world.carry_out(WAITED)) == missing_of(document)


def test_a_planned_failover_whose_source_is_lost_between_two_commands_keeps_what_it_has_seen() -> None:
    world = replicated()
    world.killed_behind(WAITED, "drain")
    world.lose_source()

    document = world.carry_out(LOST)

    assert document.facts("check")["topics"] == {"orders": 2, "payments": 1}


# On the way back


@pytest.mark.parametrize("step", ["reconcile", "revoke-acls", "last-look"])
@pytest.mark.parametrize("sizes", [(3,), (1, 1)], ids=["one transaction", "several"])
def test_what_is_written_to_the_target_behind_a_reconcile_comes_back_too(
    step: StepName, sizes: tuple[int, ...]
) -> None:
    world = replicated()
    world.target_acls.there = None  # its rights are not the failover's
    world.carry_out(WAITED)
    world.produce_on_target(4)
    world.killed_behind(None, step)
    world.produce_on_target(*sizes)

    document = world.carry_out(None)

    assert len(world.jobs.started) == 2
    assert is_clean(document)
    for lane in world.lanes:
        assert set(world.clusters.target_log(lane)) <= set(world.clusters.source_log(lane))
    report = document.facts("reconcile")["report"]
    assert [lane["copied_back"] for lane in report["lanes"]] == [4 + sum(sizes)] * 3, "of both runs"
    assert report["totals"]["copied_back"] == 3 * (4 + sum(sizes))


def test_a_reconcile_counts_where_nothing_came_behind_it() -> None:
    world = replicated()
    world.carry_out(WAITED)
    world.produce_on_target(4)
    world.killed_behind(None, "reconcile")

    assert is_clean(world.carry_out(None))
    assert len(world.jobs.started) == 1


def test_copies_of_the_flow_that_goes_on_already_are_not_late() -> None:
    """Killed between the end of the fence and the note of it: the flow writes on the target meanwhile."""
    world = replicated()
    world.carry_out(WAITED)
    world.produce_on_target(4)
    world.killed_behind(None, "last-look")
    world.states.resume_flow(FLOW)
    world.produce(3)
    world.replicate()
    world.target_acls.there = None
    world.produce_on_target(2)

    document = world.carry_out(None)

    assert len(world.jobs.started) == 1, "what comes late is named then, for the flow is at work"
    first, *others = missing_of(document)
    assert first.startswith("us-east.orders-0: 2 records from offset ")
    assert len(others) == 2
    _, advice, _ = first.split("`")
    words = shlex.split(advice)[1:]
    wanted = build_parser(words[:1]).parse_args(words)
    assert (wanted.flow, wanted.topics) == (str(FLOW), ["orders"])


def test_a_run_of_an_earlier_version_says_nothing_of_the_target_s_ends_and_is_repeated() -> None:
    world = replicated()
    world.carry_out(WAITED)
    world.killed_behind(None, "reconcile")
    document = world.stored
    assert document.back is not None
    back = msgspec.structs.replace(document.back, reconcile_ends={})
    world.documents.write(FLOW, {"failover": msgspec.json.encode(msgspec.structs.replace(document, back=back))})

    assert is_clean(world.carry_out(None))
    assert len(world.jobs.started) == 2


def test_orphans_of_an_earlier_run_stay_in_the_report() -> None:
    place = {"topic": "orders", "partition": 0}
    lane = place | {"copied_back": 5, "orphan_records": 7, "oldest_orphan": 3, "newest_orphan": 9}
    later = place | {"copied_back": 2, "orphan_records": 0, "oldest_orphan": -1, "newest_orphan": -1}
    totals = {"copied_back": 5, "copied_back_bytes": 50, "bytes": 100, "orphans": 7}

    earlier = {"lanes": [lane], "totals": totals, "troubles": ["a"]}
    found = with_earlier(earlier, {"lanes": [later], "totals": totals | {"orphans": 0}})

    assert found["lanes"] == [lane | {"copied_back": 7}]
    assert (found["totals"]["orphans"], found["totals"]["copied_back_ratio"]) == (7, 1.0)
    assert found["troubles"] == ["a"]


@pytest.mark.parametrize(("copied", "new", "sum_"), [(0, 14, 14), (5, 2, 7), (5, 0, 5)])
def test_what_a_run_has_found_and_left_is_not_counted_twice(copied: int, new: int, sum_: int) -> None:
    place = {"topic": "orders", "partition": 3}
    earlier = {"lanes": [place | {"new": copied or new, "copied_back": copied}], "totals": {"copied_back": copied}}

    found = with_earlier(earlier, {"lanes": [place | {"new": new, "copied_back": 0}], "totals": {"new": new}})

    assert (found["lanes"][0]["new"], found["totals"]["new"]) == (sum_, sum_)


@pytest.mark.parametrize(
    ("now", "before", "fate"),
    [
        ("active_on_target", "moved", "moved"),
        ("independent", "moved", "moved"),
        ("active_on_target", "left", "left"),
        ("ahead_on_target", "moved", "left"),
    ],
)
def test_a_group_that_has_begun_on_the_target_meanwhile_has_moved(now: str, before: str, fate: str) -> None:
    found = GroupVerdict(group="shop", fate="left", readiness=now)
    earlier = GroupVerdict(group="shop", fate=before, readiness="ready")  # type: ignore[arg-type]  # a fate

    assert with_started([found], [earlier])[0].fate == fate


@pytest.mark.parametrize("tells", [True, False])
def test_a_fence_tells_its_age_by_the_store_s_clock_where_that_is_told_and_from_when_it_stood(*, tells: bool) -> None:
    world = replicated()
    wrong = world.effects().clock
    world.states.store_now = lambda: wrong() + 400_000 if tells else None

    world.carry_out(WAITED, clock=wrong)

    stop = world.states.flow_stops[FLOW]
    assert stop.by_store == tells
    assert (stop.at > 1_400_000) == tells, "not by the operator's clock"
