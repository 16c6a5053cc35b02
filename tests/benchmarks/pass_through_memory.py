"""Memory of the function that reads scheduled topics while it copies 1 GB of whole batches from a hundred topics.

    python -m tests.benchmarks.pass_through_memory [--figures FILE]

The source's batches hold random bytes, so that they are as large on the wire as they were made: those of half of the
topics have 256 KB, the others 16 KB. One run of an interval copies all of it, in an environment that is cold. The limit
is 256 MB resident, half of what the function has; all batches must have passed unopened.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.beside_mm2.records import shape
from tests.benchmarks.beside_mm2.whole_batches import fill
from tests.benchmarks.pull_stage import pull_stage

TOPICS, PARTITIONS = 100, 6
RECORDS, SIZE = 1_000_000, 1_000
BATCHES = (256_000, 16_000)
MOST_MB = 256


def main() -> int:
    """Measure; exit code 1 beyond the limit, or where something was opened or is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    arguments = parser.parse_args()
    each = TOPICS // len(BATCHES)
    shapes = [
        shape(SIZE, PARTITIONS, RECORDS // len(BATCHES), noise=True, topics=each, batch=batch) for batch in BATCHES
    ]
    names = {some: [f"topic-{some.batch}-{number}" for number in range(each)] for some in shapes}
    with tempfile.TemporaryDirectory(prefix="pass-through-memory-") as folder, pull_stage(Path(folder)) as stage:
        stage.schedule({name: PARTITIONS for some in names.values() for name in some})
        for some, topics in names.items():
            fill(stage.ground.source.bootstrap, topics, some)
        took = stage.run()
    figures = {
        "seconds": round(took.seconds, 1),
        "cpu_seconds": round(took.cpu_seconds, 2),
        "resident_mb": round(took.resident_mb),
        "megabytes": round(took.report["bytes"] / 1e6),
    }
    print(f"{TOPICS} topics of {PARTITIONS} partitions: {json.dumps(figures)}, {took.report}")
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(figures))
    due, report = sum(some.count for some in shapes), took.report
    if (report["records"], report["passed_bytes"], report["failures"]) != (due, report["bytes"], 0):
        print(f"of {due} records not all were copied, or not all passed as they lay", file=sys.stderr)
        return 1
    if took.resident_mb > MOST_MB:
        print(f"{took.resident_mb:.0f} MB were resident, and {MOST_MB} is the limit", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
