"""The operator's actions: when they are allowed, and what they write."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import get_args

import pytest

from cli.main import build_parser
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, LaneState, Lease, LeftOut, Stop, StopReason, head_of
from mirrorless.errors import InDoubt
from mirrorless.lanes.operator_actions import (
    NotAllowed,
    ResetPlan,
    advice,
    given_up,
    plan_hold,
    plan_quarantine,
    plan_reset,
    resumption,
)
from mirrorless.protocol.log_parting import until_stop
from tests.support.chains import FLOW, run

LANE = Lane(FLOW, "orders", 3)
NOW = 1_763_686_800_000
RUN = run(90, 100, (90, 500, 10), lane=LANE, generation=2)
AT_100 = head_of(RUN)
IN_DOUBT = head_of(replace(RUN, state="prepared"))


def stopped(reason: StopReason, upstream_offset: int) -> LaneState:
    return LaneState(stop=Stop(reason=reason, upstream_offset=upstream_offset, detail="why", at=1))


def reset(head: Head, state: LaneState, to: int) -> ResetPlan:
    return plan_reset(LANE, head, state, to, reason="ticket 4711", now=7)


def test_a_refused_record_may_be_left_out() -> None:
    (order,) = plan_quarantine(LANE, AT_100, stopped("refused", 100), 100)

    assert order == LeftOut(first=100, next=101, why="why")


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        (RUNNING, "not stopped"),
        (stopped("refused", 101), "stopped at upstream offset 101"),
        (stopped("contradiction", 100), "contradiction"),
        (stopped("broken", 100), "broken"),
    ],
)
def test_nothing_else_may_be_left_out(state: LaneState, complaint: str) -> None:
    """Leaving out a record that was not refused would lose it by a typing error."""
    with pytest.raises(NotAllowed, match=complaint):
        plan_quarantine(LANE, AT_100, state, 100)


def test_a_reset_closes_the_chain_where_its_next_run_would_stand() -> None:
    """So that a forwarder which remembers the old position collides with it."""
    link = reset(AT_100, stopped("contradiction", 0), 0).link

    assert (link.generation, link.position) == (2, 100)
    assert (link.to_generation, link.next) == (3, 0)
    assert link.reason == "ticket 4711"


@pytest.mark.parametrize(
    ("head", "state", "to", "loss"),
    [
        pytest.param(AT_100, RUNNING, 130, (2, 100, 130), id="forward"),
        pytest.param(AT_100, RUNNING, 100, None, id="to the position itself"),
        pytest.param(AT_100, RUNNING, 40, None, id="back"),
        pytest.param(AT_100, stopped("truncated", 60), 60, None, id="back to where the source was cut off"),
        # The topic was re-created: its offsets 0 to 39 are other records than those that were replicated.
        pytest.param(AT_100, stopped("contradiction", 0), 40, (3, 0, 40), id="a contradiction"),
        pytest.param(AT_100, stopped("recreated", 0), 40, (3, 0, 40), id="a topic that was created again"),
        pytest.param(NEW_LANE, stopped("refused", 0), 1, (0, 0, 1), id="a first record that is refused"),
        pytest.param(NEW_LANE, LaneState(waiting=140), 140, (0, 0, 140), id="a lane without its history"),
    ],
)
def test_a_reset_notes_what_it_skips_and_says_what_may_be_repeated(
    head: Head, state: LaneState, to: int, loss: tuple[int, int, int] | None
) -> None:
    plan = reset(head, state, to)

    assert plan.link.next == to
    assert plan.repeated == ((to, head.position) if to < head.position else None)
    assert (plan.loss is None) == (loss is None)
    if plan.loss is not None:
        assert (plan.loss.generation, plan.loss.first, plan.loss.next) == loss
        assert (plan.loss.cause, "not known" in plan.loss.detail) == ("reset", to == 40)
        assert "ticket 4711" in plan.loss.detail


@pytest.mark.parametrize(
    ("head", "state", "complaint"),
    [
        pytest.param(NEW_LANE, RUNNING, "ever replicated", id="never replicated: a typing error"),
        pytest.param(AT_100, LaneState(lease=Lease(holder="backfill-1", until=2**62)), "backfill-1", id="a job has it"),
    ],
)
def test_a_lane_is_not_reset_that(head: Head, state: LaneState, complaint: str) -> None:
    with pytest.raises(NotAllowed, match=complaint):
        reset(head, state, 140)


@pytest.mark.parametrize("state", [RUNNING, stopped("refused", 90), stopped("broken", 80)])
def test_a_run_in_doubt_that_can_still_be_settled_is_not_given_up(state: LaneState) -> None:
    """Its transaction may yet be committed; its records would then be on the target, and in no map."""
    with pytest.raises(InDoubt):
        reset(IN_DOUBT, state, 90)


def test_a_run_in_doubt_that_cannot_be_settled_is_given_up() -> None:
    plan = reset(IN_DOUBT, stopped("broken", 90), 95)

    assert plan.given_up == IN_DOUBT.run
    assert plan.link.position == 90
    assert plan.loss is not None
    assert "may have them" in plan.loss.detail


# Hold, and what waits for a job


def test_a_hold_stops_a_lane_where_it_stands_and_changes_no_other_stop() -> None:
    assert plan_hold(AT_100, RUNNING, reason="failover", now=NOW) == Stop(
        reason="held", upstream_offset=100, detail="failover", at=NOW
    )
    assert plan_hold(AT_100, stopped("broken", 80), reason="failover", now=NOW) is None


def test_a_lane_of_a_fenced_flow_is_not_resumed_alone() -> None:
    with pytest.raises(NotAllowed, match=r"the whole flow is stopped.*mirrorless failback"):
        resumption(LANE, AT_100, replace(stopped("held", 0), of_flow=True), now=NOW)


@pytest.mark.parametrize(
    ("head", "state", "says"),
    [
        (AT_100, RUNNING, None),
        (AT_100, stopped("refused", 100), "stops again"),
        (AT_100, stopped("held", 100), "goes on from there"),
        (AT_100, stopped("backfilled", 100), "is left out"),
        (AT_100, LaneState(waiting=100), None),  # the next delivery goes on by itself
        (AT_100, LaneState(waiting=140), "from upstream offset 140 on"),
    ],
)
def test_a_resumption_says_what_comes_of_it(head: Head, state: LaneState, says: str | None) -> None:
    effect = resumption(LANE, head, state, now=NOW)

    assert (effect is None) == (says is None)
    assert (says or "") in (effect or "")


def test_a_resumption_drops_the_lease_of_a_dead_job_where_it_leaves_out_what_that_one_left() -> None:
    ended = Lease(holder="backfill-1", until=NOW)

    assert given_up(LaneState(waiting=140, lease=ended), now=NOW) == ended
    assert given_up(replace(stopped("backfilled", 100), lease=ended), now=NOW) == ended
    assert given_up(replace(stopped("held", 100), lease=ended), now=NOW) is None  # the lane may have to wait
    assert given_up(LaneState(waiting=140, lease=replace(ended, until=NOW + 1)), now=NOW) is None
    assert "left out" in str(resumption(LANE, NEW_LANE, LaneState(waiting=140, lease=ended), now=NOW))


@pytest.mark.parametrize(
    ("head", "state", "way_on"),
    [
        (NEW_LANE, LaneState(waiting=140), "orders 3 --to 140"),
        (AT_100, LaneState(waiting=140, lease=Lease(holder="backfill-1", until=NOW + 1)), "lanes release"),
    ],
)
def test_no_order_ends_the_waiting_for_a_job_that_has_yet_to_run(head: Head, state: LaneState, way_on: str) -> None:
    with pytest.raises(NotAllowed) as refused:
        resumption(LANE, head, state, now=NOW)

    assert way_on in refused.value.hint


@pytest.mark.parametrize("reason", [*get_args(StopReason), "of a later version"])
def test_the_advice_of_every_stop_has_commands_that_run_as_printed(reason: StopReason) -> None:
    said = advice(LANE, Stop(reason=reason, upstream_offset=7, detail="", at=NOW))

    commands = [shlex.split(code) for code in re.findall(r"`([^`]+)`", said)]
    assert commands
    for program, *words in commands:
        assert program == "mirrorless"
        build_parser(words[:1]).parse_args(words)  # ends the test with the parser's own words if it does not


def refused(offset: int, cause: str = "INVALID_RECORD") -> Stop:
    return Stop(reason="refused", upstream_offset=offset, detail="w" * 900, at=1, cause=cause)


def test_a_range_is_one_small_order_and_those_that_are_passed_are_dropped() -> None:
    known = (LeftOut(first=90, next=100), LeftOut(first=95, next=101, why="other"))
    orders = plan_quarantine(LANE, AT_100, LaneState(stop=refused(100), quarantine=known), 100, to=10_100, alike=True)

    assert orders == (known[1], LeftOut(first=100, next=10_100, cause="INVALID_RECORD", why="w" * 200))
    assert orders[1].covers(10_099, "INVALID_RECORD")
    assert not orders[1].covers(10_099, "MSG_SIZE_TOO_LARGE"), "another reason is another decision"
    assert not orders[1].covers(10_099), "what the target takes is not left out"
    assert not orders[1].covers(10_100, "INVALID_RECORD")
    again = plan_quarantine(LANE, AT_100, LaneState(stop=refused(100), quarantine=orders), 100, to=10_100, alike=True)
    assert again == orders


@pytest.mark.parametrize(
    ("state", "to", "alike", "complaint"),
    [
        (LaneState(stop=refused(100)), 100, False, "before this record"),
        (LaneState(stop=refused(100, cause="")), 200, True, "earlier version"),
        (LaneState(stop=refused(100), quarantine=LeftOut.each(*range(101, 301))), None, False, "200 orders"),
    ],
)
def test_a_range_that_cannot_be_is_refused(state: LaneState, to: int | None, complaint: str, *, alike: bool) -> None:
    with pytest.raises(NotAllowed, match=complaint):
        plan_quarantine(LANE, AT_100, state, 100, to=to, alike=alike)


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("INVALID_TIMESTAMP", "message.timestamp.before.max.ms"),
        ("", "max.message.bytes"),
        ("DAMAGED", "replicas"),
        ("TRANSFORM_FAILED", f"`mirrorless transform test '{LANE.flow}' {LANE.topic}`"),
    ],
)
def test_the_advice_for_a_refused_record_is_that_of_its_cause(cause: str, remedy: str) -> None:
    said = advice(LANE, refused(100, cause))

    assert remedy in said
    assert ("max.message.bytes" in said) is (remedy == "max.message.bytes")
    assert ("--alike" in said) is bool(cause)


def test_a_lane_that_is_on_its_way_to_what_was_replicated_is_not_reset_beyond_it() -> None:
    """Carried out too early, the next order would leave out what lies before it."""
    stop = until_stop(LANE, ((RUN.next + 5, RUN.next + 9),), now=NOW)
    head = Head(generation=1, position=RUN.next, run=RUN)

    with pytest.raises(NotAllowed, match=f"on its way to {RUN.next + 5}") as found:
        plan_reset(LANE, head, LaneState(stop=stop), RUN.next + 9, reason="", now=NOW)

    assert f"--to {RUN.next} " in found.value.hint
    assert plan_reset(LANE, head, LaneState(stop=stop), RUN.next, reason="", now=NOW).loss is None
    there = replace(head, position=RUN.next + 5)
    assert plan_reset(LANE, there, LaneState(stop=stop), RUN.next + 9, reason="", now=NOW).loss is None
