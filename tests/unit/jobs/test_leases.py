"""The leases of a job run are renewed while it works, and only a run that keeps them all takes one again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from mirrorless.clock import now_ms
from mirrorless.errors import LeaseHeld
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import Lease
from spark.leases import KeptLeases
from tests.support.chains import MemoryLaneStates

LANES = [Lane(FlowName("us-east", "eu-west"), "orders", partition) for partition in range(2)]


@pytest.fixture
def states() -> MemoryLaneStates:
    return MemoryLaneStates()


def leases(states: MemoryLaneStates, *, retake: bool = True) -> KeptLeases:
    return KeptLeases(states, holder="run-1", seconds=1, retake=retake)


def holder(states: MemoryLaneStates, lane: Lane) -> str | None:
    lease = states.states[lane].lease
    return lease.holder if lease is not None else None


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_leases_are_renewed_inside_the_block_and_ended_behind_it(states: MemoryLaneStates) -> None:
    with leases(states).of(LANES):
        first = states.states[LANES[1]].lease
        assert first is not None
        eventually(lambda: (states.states[LANES[1]].lease or first).until > first.until)

    assert [holder(states, lane) for lane in LANES] == [None, None]


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


@pytest.mark.parametrize("retake", [True, False])
def test_a_lease_that_a_task_ended_is_taken_again_only_where_tasks_do_not_end_leases(
    states: MemoryLaneStates, *, retake: bool
) -> None:
    """The lane of a backfill is with its mapping by then."""
    kept = leases(states, retake=retake)
    for lane in LANES:
        kept.take(lane)
    kept.start()
    states.let_go(LANES[0], "run-1")

    # The lanes are renewed in order: once the second one was renewed twice, the first one had its turn.
    for _ in range(2):
        before = states.states[LANES[1]].lease
        assert before is not None
        eventually(lambda before=before: (states.states[LANES[1]].lease or before).until > before.until)  # type: ignore[misc]
    kept.stop()

    assert holder(states, LANES[0]) == ("run-1" if retake else None)
