"""A server that a batch needs is away just then: the target, the source, DynamoDB."""

from __future__ import annotations

import pytest

from lab.servers.process import Server
from mirrorless.protocol.hooks import Step
from tests.support.flow_stage import Stage
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


HELD = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)


@pytest.mark.parametrize(
    "step", [pytest.param("produced", marks=HELD), pytest.param("prepared", marks=HELD), "committed"]
)
def test_a_target_broker_killed_in_the_middle_of_a_batch_comes_back_to_a_batch_replicated_once(
    stage: Stage, step: Step
) -> None:
    """A, C: what the client says of its transaction then is not believed; the chain and the target decide."""
    (target,) = stage.lab.clusters[stage.flow.name.target].brokers
    _kill_at(stage, step, target)

    stage.await_replicated()

    stage.verify()


def test_a_source_broker_killed_in_the_middle_of_a_batch_delivers_it_again_and_it_is_replicated_once(
    stage: Stage,
) -> None:
    """B: the batch was accepted and never acknowledged, so it comes again below the position."""
    (source,) = stage.lab.clusters[stage.flow.name.source].brokers
    _kill_at(stage, "settled", source)

    _await_back(source)
    stage.await_replicated()

    stage.verify()


@pytest.mark.parametrize(
    "step", [pytest.param("planned", marks=HELD), pytest.param("settled", marks=HELD), "committed"]
)
def test_records_wait_while_dynamodb_is_unavailable_and_then_go_on(stage: Stage, step: Step) -> None:
    """A: before it prepares, a batch without a map is aborted; after its commit, it is confirmed by whoever comes."""
    lab, dynamodb = stage.lab, stage.lab.dynamodb
    lab.supervisor.hold(dynamodb)
    try:
        _kill_at(stage, step, dynamodb)
        stage.await_failed_invocation()
        stage.produce(20)
    finally:
        lab.supervisor.release(dynamodb)
    _await_back(dynamodb)

    stage.await_replicated()

    stage.verify()


def _await_back(server: Server) -> None:
    eventually(lambda: server.alive, f"{server.title} is started again")
    server.wait_ready()


def _kill_at(stage: Stage, step: Step, server: Server) -> None:
    """Kill a server exactly when a batch has passed a step, and let the batch go on."""
    stage.produce(20)
    stage.await_replicated()
    stopped = stage.stop_at(step)
    stage.produce(40)
    pid = stopped()
    server.kill()
    stage.lab.faults.resume_stopped(pid)
