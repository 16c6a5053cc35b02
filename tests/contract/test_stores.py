"""Lane states and the loss ledger in memory and in DynamoDB behave alike."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import RUNNING, LaneState, Lease, LeftOut, Stop
from mirrorless.chain.losses import ExplainedGap, GapCause, GapSummary, Loss
from mirrorless.errors import LeaseHeld, LostRace
from mirrorless.flow.settings import Tables
from mirrorless.ports.stores import LaneStates, LossLedger
from tests.support.chains import FLOW, LANE

OTHER = Lane(FLOW, "orders-eu", 12)


def test_a_stop_and_the_operators_orders_are_read_back(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    stop = Stop(reason="refused", upstream_offset=5, detail="too large: größer", at=7)

    assert store.read([LANE]).get(LANE, RUNNING) == RUNNING
    store.stop(LANE, stop)
    assert store.read([OTHER, LANE])[LANE] == LaneState(stop=stop)

    operator.quarantine(LANE, *LeftOut.each(5))
    assert store.read([LANE])[LANE] == LaneState(quarantine=LeftOut.each(5))

    store.stop(LANE, replace(stop, upstream_offset=9))
    operator.resume(LANE)
    assert store.read([LANE])[LANE] == LaneState(quarantine=LeftOut.each(5))


def test_a_lane_tries_again_by_its_stop_as_it_was_read_and_by_no_other(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    stop = Stop(reason="refused", upstream_offset=5, detail="too large", at=7)
    operator.quarantine(LANE, *LeftOut.each(3))
    assert not operator.retry(LANE, stop)
    store.stop(LANE, stop)
    for other in (replace(stop, at=8), replace(stop, upstream_offset=6)):
        assert not operator.retry(LANE, other)
    assert operator.stopped(FLOW) == {LANE: LaneState(stop=stop, quarantine=LeftOut.each(3))}

    assert operator.retry(LANE, stop)

    assert store.read([LANE])[LANE] == LaneState(quarantine=LeftOut.each(3))
    assert operator.stopped(FLOW) == {}


@pytest.mark.parametrize(
    "kept", [{"untrue_from": 0}, {"untrue_from": 70}, {"by_store": True}, {"replicated": ((9, 12), (20, 31))}], ids=str
)
def test_the_stop_of_a_lane_and_of_a_flow_is_read_back_with_all_that_it_says(
    states: tuple[LaneStates, Any], kept: dict[str, Any]
) -> None:
    store, operator = states
    stop = Stop(reason="broken", upstream_offset=5, detail="made anew", at=7, **kept)

    store.stop(LANE, stop)
    operator.stop_flow(FLOW, stop)

    assert store.read([LANE])[LANE] == LaneState(stop=stop)
    assert operator.flow_stop(FLOW) == stop


def test_a_stop_takes_the_place_of_another_and_of_every_order(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    store.stop(LANE, Stop(reason="truncated", upstream_offset=5, detail="it parts", at=7))
    operator.quarantine(LANE, *LeftOut.each(5))
    stop = Stop(reason="truncated", upstream_offset=9, detail="as ordered", at=8, replicated=((9, 12),))

    operator.begin_anew(LANE, stop)

    assert store.read([LANE])[LANE] == LaneState(stop=stop)


def test_that_a_lane_has_begun_outlives_every_order_of_the_operator(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    store.begin(LANE, 0)
    store.stop(LANE, Stop(reason="refused", upstream_offset=5, detail="too large", at=7))
    operator.quarantine(LANE, *LeftOut.each(5))
    store.begin(LANE, 3)
    operator.begin_anew(LANE)

    assert store.read([LANE])[LANE] == LaneState(begun=3)


@pytest.mark.integration
def test_dynamodb_tells_its_time_with_each_answer(dynamodb: DynamoDbLocal, tables: Tables) -> None:
    states = DynamoDbLaneOrders(dynamodb.client(), tables.lanes)
    assert states.store_now() is None

    states.flow_stop(FLOW)

    now = states.store_now()
    assert now is not None
    assert abs(now - time.time() * 1000) < 5_000, "the server is on this machine"


def test_the_stop_of_a_flow_is_that_of_all_its_lanes_and_of_no_other(states: tuple[LaneStates, Any]) -> None:
    """One item, whatever the number of lanes; it is read in the request that reads them."""
    store, operator = states
    of_flow = Stop(reason="held", upstream_offset=0, detail="failover", at=9)
    own = Stop(reason="refused", upstream_offset=5, detail="too large", at=7)
    stranger = Lane(FlowName("us-east", "eu-westmost"), "orders", 0)
    store.stop(OTHER, own)

    operator.stop_flow(FLOW, of_flow)

    many = [Lane(FLOW, "orders", partition) for partition in range(150)]
    assert store.read(many) == dict.fromkeys(many, LaneState(stop=of_flow, of_flow=True))
    assert store.read([OTHER, stranger]) == {OTHER: LaneState(stop=own)}
    assert not store.read([Lane(FLOW, "orders#replay", 0)]), "the job that brings records back goes on"
    assert operator.flow_stop(FLOW) == of_flow

    operator.resume(OTHER)
    assert store.read([OTHER])[OTHER] == LaneState(stop=of_flow, of_flow=True)
    operator.resume_flow(FLOW)
    assert store.read([LANE, OTHER]).get(LANE, RUNNING) == RUNNING
    assert operator.flow_stop(FLOW) is None


def test_the_stop_of_a_flow_is_no_lane_to_the_listing(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    if not hasattr(operator, "noted"):
        return
    operator.stop_flow(FLOW, Stop(reason="held", upstream_offset=0, detail="failover", at=9))
    store.wait(LANE, 3)

    assert operator.noted(FLOW) == {LANE: LaneState(waiting=3)}


def test_a_lane_is_one_jobs_until_it_lets_go(states: tuple[LaneStates, Any]) -> None:
    store, leases = states
    stop = Stop(reason="held", upstream_offset=5, detail="", at=7)
    store.stop(LANE, stop)
    store.wait(LANE, 3)

    taken = leases.take(LANE, Lease(holder="job-1", until=100), now=10)

    assert taken == store.read([LANE])[LANE] == LaneState(stop=stop, lease=Lease(holder="job-1", until=100))
    with pytest.raises(LeaseHeld, match=r"orders-0: .*job-1.*a retry may help"):
        leases.take(LANE, Lease(holder="job-2", until=200), now=99)
    assert leases.let_go(LANE, "job-2")
    assert store.read([LANE])[LANE].lease == Lease(holder="job-1", until=100)

    assert leases.let_go(LANE, "job-1")
    assert store.read([LANE])[LANE] == LaneState(stop=stop)
    assert leases.take(LANE, Lease(holder="job-2", until=200), now=99).lease == Lease(holder="job-2", until=200)


def test_a_job_keeps_its_lane_for_longer_and_reads_the_waiting_offset(states: tuple[LaneStates, Any]) -> None:
    store, leases = states
    leases.take(LANE, Lease(holder="job-1", until=100), now=10)
    store.wait(LANE, 42)

    assert leases.take(LANE, Lease(holder="job-1", until=300), now=250) == LaneState(
        lease=Lease(holder="job-1", until=300), waiting=42
    )
    assert leases.keep(LANE, Lease(holder="job-1", until=400))
    assert not leases.keep(LANE, Lease(holder="job-2", until=500))
    assert store.read([LANE])[LANE] == LaneState(lease=Lease(holder="job-1", until=400), waiting=42)
    store.wait(LANE, None)
    assert store.read([LANE])[LANE].waiting is None
    leases.let_go(LANE, "job-1")
    assert not leases.keep(LANE, Lease(holder="job-1", until=500))  # what the operator ended stays ended


def test_a_lease_that_has_ended_is_anybodys_and_who_waited_for_it_is_forgotten(states: tuple[LaneStates, Any]) -> None:
    store, leases = states
    leases.take(LANE, Lease(holder="job-1", until=100), now=10)
    store.wait(LANE, 42)

    assert leases.take(LANE, Lease(holder="job-2", until=200), now=100) == LaneState(
        lease=Lease(holder="job-2", until=200)
    )


def test_a_job_does_not_let_go_before_it_has_come_to_who_waits(states: tuple[LaneStates, Any]) -> None:
    store, leases = states
    leases.take(LANE, Lease(holder="job-1", until=100), now=10)
    store.wait(LANE, 42)

    assert not leases.let_go(LANE, "job-1", position=41)
    assert store.read([LANE])[LANE].lease is not None
    assert leases.let_go(LANE, "job-1", position=42)
    assert store.read([LANE])[LANE] == LaneState(waiting=42)
    assert leases.let_go(LANE, "job-1", position=0)  # it has not got it any more


def test_an_operators_orders_leave_leases_alone(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    lease = Lease(holder="job-1", until=100)
    operator.take(LANE, lease, now=10)
    store.wait(LANE, 42)

    operator.quarantine(LANE, *LeftOut.each(5))
    assert store.read([LANE])[LANE] == LaneState(quarantine=LeftOut.each(5), lease=lease, waiting=42)
    operator.resume(LANE)
    assert store.read([LANE])[LANE] == LaneState(quarantine=LeftOut.each(5), lease=lease)


def test_a_lease_that_ended_is_dropped_unless_it_was_renewed_or_taken(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    ended = Lease(holder="job-1", until=100)
    for other in (Lease(holder="job-1", until=200), Lease(holder="job-2", until=300)):
        operator.take(LANE, other, now=250)
        store.drop(LANE, ended)
        assert store.read([LANE])[LANE].lease == other

    store.drop(LANE, Lease(holder="job-2", until=300))

    assert store.read([LANE])[LANE].lease is None


def test_a_lease_that_the_operator_ended_is_anybodys_and_no_longer_its_jobs(states: tuple[LaneStates, Any]) -> None:
    store, operator = states
    operator.take(LANE, Lease(holder="job-1", until=100), now=10)

    operator.release(LANE, "job-1")

    left = store.read([LANE])[LANE].lease
    assert left is not None  # what the job left out is still to come
    assert not left.keeps_out("", now=10)
    assert not operator.keep(LANE, Lease(holder="job-1", until=500))
    operator.take(LANE, Lease(holder="job-2", until=200), now=10)


def test_more_lanes_than_one_call_reads_are_read(states: tuple[LaneStates, Any]) -> None:
    store, _ = states
    lanes = [Lane(FLOW, "orders", partition) for partition in range(130)]
    for lane in (lanes[0], lanes[129]):
        store.stop(lane, Stop(reason="refused", upstream_offset=5, detail="", at=7))

    found = store.read(lanes)

    assert {lane for lane in lanes if found.get(lane, RUNNING).stop} == {lanes[0], lanes[129]}


def test_a_loss_noted_twice_is_one_and_losses_come_in_order(ledger: LossLedger) -> None:
    def loss(first: int, generation: int = 0, lane: Lane = LANE) -> Loss:
        return Loss(
            lane=lane, generation=generation, first=first, next=first + 1, cause="quarantined", detail="why", at=1
        )

    for each in (loss(10), loss(9), loss(0, 1), loss(9), loss(1, lane=OTHER)):
        ledger.note(each)

    assert ledger.read(LANE) == [loss(9), loss(10), loss(0, 1)]
    silent = replace(LANE, partition=7)
    together = {LANE: [loss(9), loss(10), loss(0, 1)], OTHER: [loss(1, lane=OTHER)], silent: []}
    assert ledger.of_lanes(together) == together
    assert ledger.of_lanes([LANE]) == {LANE: together[LANE]}


def test_a_ledger_of_more_than_a_page_is_read_lane_by_lane(ledger: LossLedger) -> None:
    """A request brings 1 MB at most."""
    lanes = [replace(LANE, partition=number) for number in range(4)]
    long = [
        Loss(lane=lane, generation=0, first=0, next=1, cause="quarantined", detail="x" * 350_000, at=1)
        for lane in lanes
    ]
    for each in long:
        ledger.note(each)

    assert ledger.of_lanes(lanes) == {each.lane: [each] for each in long}


def test_what_explains_gaps_is_summed_up_beside_the_losses(ledger: LossLedger) -> None:
    def piece(first: int, following: int, cause: GapCause) -> ExplainedGap:
        return ExplainedGap(first=first, next=following, cause=cause)

    nothing = ledger.summary(LANE, 0)
    assert nothing == GapSummary(lane=LANE, generation=0)

    one = nothing.plus([piece(1, 3, "aborted"), piece(3, 4, "unexplained")], until=4, at=7)
    ledger.summarise(one, known=nothing)
    two = one.plus([piece(9, 10, "aborted"), piece(11, 14, "compaction")], until=14, at=8)
    ledger.summarise(two, known=one)
    later = ledger.summary(LANE, 1).plus([piece(0, 2, "retention")], until=2, at=9)
    ledger.summarise(later, known=ledger.summary(LANE, 1))
    ledger.note(
        Loss(lane=LANE, generation=0, first=3, next=4, cause="unexplained", detail="why", at=7),
    )

    assert ledger.summary(LANE, 0) == two
    assert (two.offsets, two.until) == ({"aborted": 3, "compaction": 3}, 14)
    assert ledger.summaries(LANE) == [two, later]
    assert ledger.summaries(OTHER) == []
    assert [loss.first for loss in ledger.read(LANE)] == [3]


def test_a_gap_that_another_run_explained_is_not_counted_again(ledger: LossLedger) -> None:
    nothing = ledger.summary(LANE, 0)
    marker = [ExplainedGap(first=1, next=2, cause="transaction_marker")]
    one = nothing.plus(marker, until=2, at=7)
    ledger.summarise(one, known=nothing)

    with pytest.raises(LostRace):
        ledger.summarise(nothing.plus(marker, until=2, at=8), known=nothing)
    two = one.plus(marker, until=5, at=9)
    ledger.summarise(two, known=one)
    with pytest.raises(LostRace):
        ledger.summarise(one.plus(marker, until=5, at=9), known=one)

    assert ledger.summary(LANE, 0) == two
