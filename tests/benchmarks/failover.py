"""A failover and a failback across an ocean."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.benchmarks.ground import REPOSITORY
from tests.benchmarks.harness import Outcome


def distance(*, round_trip_ms: float = 80.0) -> Outcome:
    """Failover and failback with the target 80 ms away."""
    tests = ("-q", "-k", "at_a_distance", "tests/integration/spark/test_failover.py")
    environment = os.environ | {"MIRRORLESS_TEST_ROUND_TRIP_MS": str(round_trip_ms)}
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *tests], cwd=REPOSITORY, env=environment, check=False
    ).returncode
    return Outcome({}, [f"exit code {code}"] * bool(code))
