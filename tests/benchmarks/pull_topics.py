"""A thousand scheduled topics of six partitions on one shard: a round in which most are silent, and an idle run.

    python -m tests.benchmarks.pull_topics [--figures FILE]

A *round* is a run of an interval in a warm environment: 50 topics have a record in each partition, 950 have none. Its
limits are 20 s of CPU, and the 512 MB of the function, beyond which the lab ends it. An *idle run* is a continuous one
that follows no lane. All figures are of the function's process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.beside_mm2 import cpu
from tests.benchmarks.pull_stage import PullStage, pull_stage

TOPICS, ACTIVE, PARTITIONS = 1_000, 50, 6
CPU_SECONDS = 20.0
IDLE_FROM_S, IDLE_S = 20.0, 60.0
"""When an idle run is measured, and for how long."""


def main() -> int:
    """Measure; exit code 1 beyond a limit, or where a record is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    arguments = parser.parse_args()
    topics = {f"topic-{number}": PARTITIONS for number in range(TOPICS)}
    active = dict(list(topics.items())[:: TOPICS // ACTIVE])
    with tempfile.TemporaryDirectory(prefix="pull-topics-") as folder, pull_stage(Path(folder)) as stage:
        stage.schedule(topics)
        stage.fill(active, 1, 1_000)
        first = stage.run()
        print(f"first run, cold: {first.seconds:.1f} s, {first.cpu_seconds:.2f} s of CPU, {first.resident_mb:.0f} MB")
        stage.fill(active, 1, 1_000)
        took = stage.run()
        idle = _idle_cpu(stage)
    figures = {
        "seconds": round(took.seconds, 1),
        "cpu_seconds": round(took.cpu_seconds, 2),
        "resident_mb": round(took.resident_mb),
        "idle_cpu_percent": round(idle * 100, 1),
    }
    lanes = ACTIVE * PARTITIONS
    print(f"a round with {ACTIVE} of {TOPICS} topics active: {json.dumps(figures)}, {took.report}")
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(figures))
    if (took.report["ended"], took.report["records"], took.report["failures"]) != ("drained", lanes, 0):
        print(f"the round did not replicate {lanes} records", file=sys.stderr)
        return 1
    return int(took.cpu_seconds > CPU_SECONDS)


def _idle_cpu(stage: PullStage) -> float:
    """CPU of a continuous run in which nothing comes, as a part of a core."""
    stage.begin_run(continuous=True)
    time.sleep(IDLE_FROM_S)  # it has read its lanes by then
    before, began = sum(map(cpu.own, stage.pids)), time.monotonic()
    time.sleep(IDLE_S)  # the measurement's own length
    return (sum(map(cpu.own, stage.pids)) - before) / (time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
