"""Failover and failback with the target across an ocean, and answers lost: the scenario of `make test`, at 80 ms.

python -m tests.benchmarks.failover_distance --round-trip-ms 80
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--round-trip-ms", type=float, default=80.0)
    arguments = parser.parse_args()
    tests = ("-q", "-k", "at_a_distance", "tests/integration/spark/test_failover.py")
    environment = os.environ | {"MIRRORLESS_TEST_ROUND_TRIP_MS": str(arguments.round_trip_ms)}
    return subprocess.run([sys.executable, "-m", "pytest", *tests], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
