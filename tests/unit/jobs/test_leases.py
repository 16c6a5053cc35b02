"""The leases of a job run are renewed while it works, and one that was ended is not taken again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import LaneState, Lease, Stop
from mirrorless.clock import now_ms
from mirrorless.copy.lane import LaneCopy
from mirrorless.errors import LeaseHeld
from mirrorless.flow.rate_limit import READERS
from spark.jobs.leases import HeldLanes, KeptLeases
from tests.support.chains import MemoryLaneStates
from tests.support.flows import make_copy_task
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from mirrorless.jobs.copy_task import LaneLog
    from mirrorless.protocol.replicate import Replicator

NOW = 1_763_686_800_000
HOUR_MS = 3_600_000
LANES = [Lane(FlowName("us-east", "eu-west"), "orders", partition) for partition in range(2)]


@pytest.fixture
def states() -> MemoryLaneStates:
    return MemoryLaneStates()


def leases(states: MemoryLaneStates, *, throughout: bool = True) -> KeptLeases:
    return KeptLeases(states, holder="run-1", seconds=1, throughout=throughout)


def holder(states: MemoryLaneStates, lane: Lane) -> str | None:
    lease = states.states[lane].lease
    return lease.holder if lease is not None else None


def test_leases_are_renewed_inside_the_block_and_ended_behind_it(states: MemoryLaneStates) -> None:
    with leases(states).of(LANES):
        first = states.states[LANES[1]].lease
        assert first is not None
        eventually(lambda: (states.states[LANES[1]].lease or first).until > first.until)

    assert [holder(states, lane) for lane in LANES] == [None, None]


MANY = [Lane(FlowName("us-east", "eu-west"), "orders", partition) for partition in range(READERS + 1)]


class SlowLeases(MemoryLaneStates):
    """A store at a distance: it takes its first requests only when all of them are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.together = threading.Barrier(READERS)
        self.renewed = threading.Event()

    def take(self, lane: Lane, lease: Lease, *, now: int) -> LaneState:
        """See `Leases.take`; the last lane is only taken when a lease was renewed."""
        if lane == MANY[-1]:
            assert self.renewed.wait(20)
        else:
            self.together.wait(20)
        return super().take(lane, lease, now=now)

    def keep(self, lane: Lane, lease: Lease) -> bool:
        """See `Leases.keep`."""
        self.renewed.set()
        return super().keep(lane, lease)


def test_leases_are_taken_side_by_side_and_renewed_while_the_last_ones_are_taken() -> None:
    states = SlowLeases()
    with leases(states).of(MANY):
        assert {holder(states, lane) for lane in MANY} == {"run-1"}
    assert {holder(states, lane) for lane in MANY} == {None}


def test_of_lanes_that_another_job_has_none_is_kept(states: MemoryLaneStates) -> None:
    states.take(LANES[1], Lease(holder="run-0", until=now_ms() + 60_000), now=now_ms())

    with pytest.raises(LeaseHeld), leases(states).of(LANES):
        pytest.fail("the block ran without all of its leases")

    assert [holder(states, lane) for lane in LANES] == [None, "run-0"]


def test_a_lease_that_another_job_took_is_noticed(states: MemoryLaneStates) -> None:
    kept = leases(states)

    with kept.of(LANES):
        other = Lease(holder="run-2", until=now_ms() + 60_000)
        states.states[LANES[0]] = replace(states.states[LANES[0]], lease=other)

        def noticed() -> bool:
            try:
                kept.check()
            except LeaseHeld:
                return True
            return False

        eventually(noticed)

    assert holder(states, LANES[0]) == "run-2"


@pytest.mark.parametrize("throughout", [True, False])
def test_a_lease_that_was_ended_is_not_taken_again(states: MemoryLaneStates, *, throughout: bool) -> None:
    """By an operator's `lanes release`; or by a task of a backfill, whose lane is with its mapping by then."""
    kept = leases(states, throughout=throughout)
    kept.take(LANES)
    kept.stop()  # renewals come as the test orders them
    kept._over.clear()
    states.let_go(LANES[0], "run-1")

    kept.renew()
    kept.renew()

    assert holder(states, LANES[0]) is None
    if throughout:
        with pytest.raises(LeaseHeld, match=r"orders-0.*start it again"):
            kept.check()
    else:
        kept.check()
        assert holder(states, LANES[1]) == "run-1"


def test_a_task_renews_its_lease_although_the_clock_was_set_back(states: MemoryLaneStates) -> None:
    """By an hour, no renewal came for an hour, and the lane was another's long before."""
    now, seconds = [NOW], [0.0]
    written: list[int] = []
    states_of = WatchedLeases(states.states, until=written)
    task = make_copy_task(run_id="run-1", holder="run-1", lease_seconds=300)
    copy = LaneCopy(
        task=task,
        replicator=cast("Replicator", None),
        log=cast("LaneLog", None),
        leases=states_of,
        clock=lambda: now[0],
        monotonic=lambda: seconds[0],
    )
    copy.hold()
    assert written.pop() == NOW + 300_000
    written.clear()

    now[0] -= HOUR_MS
    for passed in (99.9, 100.0, 199.9, 200.0):
        seconds[0] = passed
        copy.hold()

    assert written == [NOW - HOUR_MS + 300_000] * 2


@dataclass(slots=True)
class WatchedLeases(MemoryLaneStates):
    """Notes the end of each lease that is taken or kept."""

    until: list[int] = field(default_factory=list)

    def take(self, lane: Lane, lease: Lease, *, now: int) -> LaneState:
        """See `Leases.take`."""
        self.until.append(lease.until)
        return MemoryLaneStates.take(self, lane, lease, now=now)

    def keep(self, lane: Lane, lease: Lease) -> bool:
        """See `Leases.keep`."""
        self.until.append(lease.until)
        return MemoryLaneStates.keep(self, lane, lease)


# Holds


def held_at(at: int, *, by_store: bool = False) -> Stop:
    """What `lanes hold` writes, or a fence."""
    return Stop(reason="held", upstream_offset=0, detail="failover", at=at, by_store=by_store)


def reconciling(states: MemoryLaneStates, slept: list[float], *, now: int = NOW, settle_ms: int = 60_000) -> HeldLanes:
    return HeldLanes(states=states, run_id="run-1", settle_ms=settle_ms, clock=lambda: now, sleep=slept.append)


MINUTE = 60_000


@pytest.mark.parametrize(
    ("by_operators", "now", "waits"),
    [
        # AWS accepts requests of clocks that are five minutes off: between two of them there may be ten.
        pytest.param([-10 * MINUTE] * 2, 59_999, 60.0, id="an operator's clock is behind"),
        pytest.param([0, 0], 59_999, 60.0, id="the clocks agree"),
        pytest.param([10 * MINUTE] * 2, 59_999, 60.0, id="an operator's clock is ahead"),
        pytest.param([0, 0], 11 * MINUTE, None, id="held long ago"),
        pytest.param([None, 0], 5 * MINUTE, 60.0, id="one of them alone has not the store's time"),
        pytest.param([], 0, 60.0, id="not held before"),
    ],
)
def test_a_job_waits_for_as_long_as_a_warm_forwarder_remembers_whatever_the_operators_clock_says(
    states: MemoryLaneStates, by_operators: list[int | None], now: int, waits: float | None
) -> None:
    states.store_now = lambda: NOW + 5 * MINUTE
    for lane, clock in zip(LANES, by_operators, strict=False):
        states.stop(lane, held_at(NOW, by_store=True) if clock is None else held_at(NOW + clock))
    slept = list[float]()

    said = reconciling(states, slept, now=NOW + now).hold(LANES)

    assert slept == ([waits] if waits else [])
    assert said.startswith("" if by_operators else "2 lanes were not held")
    assert {state.stop.reason for state in states.states.values() if state.stop} == {"held"}


@pytest.mark.parametrize(
    ("age", "waits"), [(0, 62.0), (45_000, 17.0), (61_999, 0.001), (62_000, None), (10 * 60_000, None), (-5_000, 62.0)]
)
@pytest.mark.parametrize("skew", [-9 * 60_000, 0, 9 * 60_000])
def test_a_fence_whose_age_the_store_tells_is_waited_for_no_longer_than_it_must(
    states: MemoryLaneStates, age: int, waits: float | None, skew: int
) -> None:
    states.store_now = lambda: NOW + age
    states.stop_flow(LANES[0].flow, held_at(NOW, by_store=True))
    slept = list[float]()

    for _ in range(2):
        reconciling(states, slept, now=NOW + skew).hold(LANES)

    assert slept == ([waits, waits] if waits else [])
    stops = [states.states[lane].stop for lane in LANES]
    assert [(each.at, each.by_store) for each in stops if each is not None] == [(NOW, True)] * 2, "as old as the fence"


def test_a_lane_that_a_job_does_not_finish_stays_held_when_its_flow_goes_on(
    states: MemoryLaneStates,
) -> None:
    states.stop_flow(LANES[0].flow, held_at(NOW))
    held = reconciling(states, [], settle_ms=0)

    assert not held.hold(LANES), "they were held before the job"
    held.release(LANES[1:])
    states.resume_flow(LANES[0].flow)

    found = states.read(LANES)
    assert [lane for lane in LANES if found[lane].stop is not None] == [LANES[0]]
    assert held.since(LANES[:1]) == NOW
