"""Verification where clusters replicate to each other: copies are proved with their header, own records apart."""

from __future__ import annotations

import pytest

from mirrorless.lane import FlowName
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.verify.findings import KINDS, LaneVerdict
from mirrorless.verify.lane_verification import LaneVerification
from mirrorless.verify.task import VerifyTask
from tests.support.chains import MemoryLossLedger
from tests.support.two_way_world import TOPIC, TwoWayWorld
from tests.support.verified_lane import MemoryLog

THERE, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")


@pytest.fixture
def world() -> TwoWayWorld:
    """Three records of each cluster, in another order on each."""
    world = TwoWayWorld([THERE, BACK])
    for _ in range(3):
        world.produce("us-east", marker=True)
        world.produce("eu-west")
        world.deliver(THERE)
        world.deliver(BACK)
    world.settle()
    return world


def log_of(world: TwoWayWorld, alias: str) -> MemoryLog:
    visible = world.visible(alias)
    return MemoryLog(records={each.offset: each for each in visible}, next=len(world.log(alias)))


def verified(world: TwoWayWorld, flow: FlowName, target: MemoryLog | None = None) -> LaneVerdict:
    settings = FlowSettings(
        flow=str(flow),
        source=ClusterSettings(alias=flow.source, bootstrap="nowhere:1"),
        target=ClusterSettings(alias=flow.target, bootstrap="nowhere:2"),
        policy="identity",
        origins=("eu-west", "us-east"),
    )
    return LaneVerification(
        task=VerifyTask(settings=settings, topic=TOPIC, partition=0, run_id="v", against_source=True),
        chains=world.chains,
        ledger=MemoryLossLedger(),
        target=target or log_of(world, flow.target),
        source=log_of(world, flow.source),
        note=lambda *_, **__: None,
    ).verify()


def kinds(verdict: LaneVerdict) -> dict[str, int]:
    return {kind: found for kind in KINDS if (found := getattr(verdict.counts, kind))}


@pytest.mark.parametrize("flow", [THERE, BACK], ids=str)
def test_both_directions_are_proved_and_compared(world: TwoWayWorld, flow: FlowName) -> None:
    verdict = verified(world, flow)

    assert kinds(verdict) == {}
    assert (verdict.counts.proved, verdict.counts.compared, verdict.findings) == (3, 3, [])


def test_a_copy_that_is_gone_is_missing_and_one_that_stands_twice_is_duplicated(world: TwoWayWorld) -> None:
    copies = [each for each in world.visible("eu-west") if each.headers]
    lacking, repeated = log_of(world, "eu-west"), log_of(world, "eu-west")
    del lacking.records[copies[1].offset]
    repeated.add(copies[1])

    assert kinds(verified(world, THERE, lacking)) == {"missing": 1}
    assert kinds(verified(world, THERE, repeated)) == {"duplicated": 1}


def test_a_record_of_the_targets_own_that_is_changed_is_not_the_flows(world: TwoWayWorld) -> None:
    changed = log_of(world, "eu-west")
    own = next(each for each in changed.records.values() if not each.headers)
    own.value = b"changed"

    assert kinds(verified(world, THERE, changed)) == {}
