"""Is a flow whole again after a failover and a failback? Real clusters, real stores, real Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from mirrorless.adapters.jobs.reconcile import Step
from tests.failover_stage import FailoverStage
from tests.lane_stage import LaneStage

pytestmark = pytest.mark.integration

STEPS: tuple[Step, ...] = ("looked", "copied", "found", "joined", "carried out", "groups")


@pytest.fixture(params=["prefixed", "identity"])
def naming(request: pytest.FixtureRequest) -> str:
    """Of remote topics."""
    return str(request.param)


@pytest.fixture
def prefixed(stage: LaneStage, spark: SparkSession, tmp_path: Path) -> FailoverStage:
    """A flow with prefixed names."""
    return FailoverStage(stage=stage, spark=spark, folder=tmp_path)


@pytest.fixture
def failover(prefixed: FailoverStage, naming: str) -> FailoverStage:
    """A flow of either naming."""
    stage = prefixed.stage
    stage.settings = msgspec.structs.replace(stage.settings, policy=naming)
    return prefixed


def fail_over(failover: FailoverStage) -> None:
    """Two partitions; the second one has no orphan, and nothing new on the target."""
    failover.create(2)
    failover.on_source(b"0", b"1", b"2")
    failover.on_source(b"other", partition=1)
    failover.replicate()
    failover.on_source(b"orphan 3", b"orphan 4")
    failover.hold()
    failover.on_target(b"new 0", None, b"new 2")


BACK = [b"new 0", None, b"new 2"]
ORPHANS = [b"orphan 3", b"orphan 4"]


def test_what_is_new_comes_back_once_and_what_is_orphaned_is_reported(failover: FailoverStage) -> None:
    fail_over(failover)
    outcome = failover.reconcile("report")
    totals = outcome.found["totals"]
    assert (totals["new"], totals["copied_back"], totals["orphans"], totals["unmapped"]) == (3, 3, 2, 0), outcome.found
    assert outcome.clean, outcome.found
    assert failover.source_values() == [b"0", b"1", b"2", *ORPHANS, *BACK]
    assert not failover.held()
    losses = failover.stage.ledger.read(failover.stage.lane())
    assert [(each.first, each.next, each.cause) for each in losses] == [(3, 5, "orphaned")]
    # The mapping delivers everything once more, and what is produced from now on.
    failover.on_source(b"live")
    failover.replicate()
    assert failover.target_values() == [b"0", b"1", b"2", *BACK, b"live"]
    assert failover.target_values(1) == [b"other"]
