"""The function dies at every numbered step of the protocol, and nothing comes of it."""

from __future__ import annotations

import os
import signal

import pytest

from mirrorless.protocol.hooks import STEPS, Step
from tests.support.flow_stage import Stage
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)


@pytest.mark.parametrize("step", some_of(STEPS, "prepared", "committed", others=HELD))
def test_a_function_killed_at_any_step_loses_duplicates_reorders_and_mistranslates_nothing(
    stage: Stage, step: Step
) -> None:
    """A: a record is visible if and only if its run is committed. C: every offset lies in one run. D: order stays.

    SIGKILL right after the step's effect: no exception handler, no abort, no goodbye to the broker.
    """
    order = stage.lab.faults.order("kill", step)
    stage.produce(60)

    stage.lab.faults.await_claimed(order, seconds=30)
    stage.await_failed_invocation()
    stage.await_replicated()

    stage.verify()


@pytest.mark.soak(
    "tests/integration/flows/test_flow_crashes.py::test_a_function_killed_at_any_step_loses_duplicates_reorders_and_mistranslates_nothing"
)
def test_an_environment_killed_from_outside_in_the_middle_of_its_batch_is_replaced(stage: Stage) -> None:
    """B: its successor begins where the chain ends, not where the dead one's memory did."""
    stage.produce(20)
    stage.await_replicated()
    stopped = stage.stop_at("settled")
    stage.produce(40)

    os.kill(stopped(), signal.SIGKILL)
    stage.await_failed_invocation()
    stage.await_replicated()

    stage.verify()


def test_an_idle_environment_killed_while_frozen_costs_nothing(stage: Stage) -> None:
    stage.produce(20)
    stage.await_replicated()

    for environment in stage.function.environments:
        os.kill(environment.pid, signal.SIGKILL)
    stage.produce(20)
    stage.await_replicated()

    stage.verify()
