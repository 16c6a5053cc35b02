"""A small backfill, cold: 300,000 records of 1 KB in six lanes, from the start of the job's process to its exit.

    python -m tests.benchmarks.small_backfill [--figures FILE]

Clusters and DynamoDB Local are real, and Spark is started by the job. CPU is that of the driver, its JVM and the
workers; memory is the most that they had together. The limits are 15 s of CPU and 15 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mirrorless.jobs.request import REPORT
from tests.benchmarks.beside_mm2.backfill_side import Backfill
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.records import shape
from tests.benchmarks.beside_mm2.whole_batches import fill

RECORDS = 300_000
TOPIC = "backlog"
LIMIT_CPU_SECONDS, LIMIT_SECONDS = 15.0, 15.0
WITHIN_S = 600.0
LOOK_S = 0.05


def main() -> int:
    """Measure; exit code 1 beyond a limit, or where a record is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--batch", type=int, default=256_000, help="bytes of a batch of the source")
    parser.add_argument("--times", type=int, default=1, help="how often, each time to a topic of its own")
    arguments = parser.parse_args()
    records = shape(1_000, 6, arguments.records, batch=arguments.batch)
    figures, copied = dict[str, float](), 0
    with tempfile.TemporaryDirectory(prefix="small-backfill-") as folder, Ground(Path(folder)).running() as ground:
        ground.create({TOPIC: records.partitions})
        fill(ground.source.bootstrap, [TOPIC], records)
        for number in range(arguments.times):
            job = Backfill(ground, alias=f"backfill-{number}", topic=TOPIC)
            figures, report = _measured(job)
            copied = report["totals"]["records"]
            print(f"{copied:,} records: {json.dumps(figures)}", flush=True)
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(figures))
    if copied != records.count:
        print(f"{copied:,} of {records.count:,} records were copied", file=sys.stderr)
        return 1
    return int(figures["cpu_seconds"] > LIMIT_CPU_SECONDS or figures["seconds"] > LIMIT_SECONDS)


def _measured(job: Backfill) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of a job from its start to its exit, and its report."""
    began, resident = time.monotonic(), 0.0
    job.begin_start()
    try:
        while job.alive:
            job.cpu()
            resident = max(resident, job.resident_mb())
            if time.monotonic() > began + WITHIN_S:
                raise TimeoutError(f"the job did not end within {WITHIN_S:.0f} s; see {job.log}")
            time.sleep(LOOK_S)  # between two looks at a condition with a deadline
        seconds = time.monotonic() - began
        if obstacle := job.obstacle():
            raise RuntimeError(obstacle)
        report = json.loads((job.folder / REPORT).read_bytes())
        figures = {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(job.cpu().replicator, 1),
            "resident_mb": round(resident),
        }
        return figures, report
    finally:
        job.discard()


if __name__ == "__main__":
    sys.exit(main())
