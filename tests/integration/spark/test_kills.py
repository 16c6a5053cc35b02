"""Kill -9 of a Python worker, of an executor and of the driver: the job that runs again ends as if nothing had been.

The moments are drawn, from a seed; each kill is seen to have hit a process at work. A longer version, for a machine
that has the time: `python -m tests.benchmarks.kill_backfill`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from tests.support.kill_rounds import kill_round
from tests.support.lane_stage import LaneStage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]


def test_a_backfill_whose_worker_executor_and_driver_were_killed_ends_whole_when_it_runs_again(
    stage: LaneStage, dynamodb: DynamoDbLocal, tmp_path: Path
) -> None:
    found = kill_round(stage, dynamodb, tmp_path, seed=20261121, lanes=3, records=10_000)

    assert found.killed == ("worker", "executor", "driver")
    assert found.written_before_the_end > 0
    assert found.faults == {"lost": 0, "duplicated": 0, "reordered": 0, "different": 0, "mistranslated": 0}
    assert found.records == 30_000
