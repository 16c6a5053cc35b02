"""A job of 50,000 lanes: their heads and states are read, they are planned, taken, driven with empty tasks and let go.

    python -m tests.benchmarks.many_lanes [--figures FILE]

DynamoDB Local and Spark are real. A thousand lanes have a chain; the others are new, as in a first backfill. What a
broker would answer about the partitions is stood in for: one machine has no room for the files of 50,000. The limit is
two minutes from the beginning to the last lease; at the end of the tasks no lease may have lapsed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.backfill.plan import copy_order, make_plan
from mirrorless.clock import now_ms
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.lane_start import first_links
from mirrorless.jobs.plan import PlannedLane
from mirrorless.jobs.request import LEASE_SECONDS
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import RUNNING
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.run import Run, Span
from mirrorless.settings import Tables
from mirrorless.tables import definitions
from spark.jobs.lane_tasks import TaskAttempt, run_lanes
from spark.jobs.leases import KeptLeases, side_by_side
from spark.jobs.session import spark_session

LANES, BEGUN, PARTITIONS = 50_000, 1_000, 50
LIMIT_SECONDS = 120.0
ROOT = Path(__file__).parents[2]

FLOW = FlowName("us-east", "eu-west")


def main() -> int:
    """Measure; exit code 1 beyond the limit, or where a lease lapsed or a task is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    parser.add_argument("--lanes", type=int, default=LANES)
    arguments = parser.parse_args()
    lanes = [Lane(FLOW, f"topic-{number // PARTITIONS}", number % PARTITIONS) for number in range(arguments.lanes)]
    with tempfile.TemporaryDirectory(prefix="many-lanes-") as folder, _stores(Path(folder)) as (chains, states):
        chains.prepare([_run(lane) for lane in lanes[: len(lanes) * BEGUN // LANES]])
        took, lapsed, done = _measured(lanes, chains, states)
    for phase, seconds in took.items():
        print(f"{phase:<8} {seconds:6.1f} s")
    ready = sum(seconds for phase, seconds in took.items() if phase in {"read", "plan", "take"})
    figures = {
        "seconds": round(sum(took.values()), 1),
        "until_taken_seconds": round(ready, 1),
        "resident_mb": psutil.Process().memory_info().rss >> 20,
        "lanes": len(lanes),
        **{f"{phase.replace(' ', '_')}_seconds": round(seconds, 1) for phase, seconds in took.items()},
    }
    print(json.dumps(figures))
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(figures))
    if lapsed or done != len(lanes):
        print(f"{lapsed} leases lapsed, {done} of {len(lanes)} tasks were done", file=sys.stderr)
        return 1
    return int(ready > LIMIT_SECONDS)


def _measured(
    lanes: list[Lane], chains: DynamoDbChains, states: DynamoDbLaneStates
) -> tuple[dict[str, float], int, int]:
    """The seconds of each phase, the leases that lapsed, and the tasks that were done."""
    took: dict[str, float] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        took[name] = time.monotonic() - began

    with phase("read"):
        heads, known = chains.heads(lanes), states.read(lanes)
        for lane, head in heads.items():
            first_links(chains, lane, head)
    with phase("plan"):
        planned = [
            PlannedLane(
                topic=lane.topic,
                partition=lane.partition,
                lane_topic=lane.topic,
                write_topic=f"us-east.{lane.topic}",
                range=OffsetRange(0, 1_000 + lane.partition),
                position=heads[lane].position,
                offsets=1_000 + lane.partition - heads[lane].position,
                bytes=1_000_000,
            )
            for lane in lanes
            if known.get(lane, RUNNING).stop is None
        ]
        plan = make_plan("backfill-1", str(FLOW), planned, [], at_a_time=2, max_mb_per_second=None, hands_over=True)
        order = copy_order(plan, now=now_ms())
    leases = KeptLeases(states, holder="backfill-1", seconds=LEASE_SECONDS, throughout=True)
    with phase("take"):
        leases.take(lanes)
    spark = spark_session("many lanes")
    with phase("drive"):
        done = run_lanes(spark, nothing, [f"{each.topic}-{each.partition}".encode() for each in order])
    now, held = now_ms(), states.read(lanes)
    found = [held[lane].lease for lane in lanes]
    lapsed = sum(lease is None or not lease.keeps_out("another", now) for lease in found)
    leases.check()
    with phase("let go"):
        leases.stop()
        side_by_side(leases.let_go, lanes)
    spark.stop()
    return took, lapsed, len(set(done))


def nothing(task: bytes, _: TaskAttempt) -> bytes:
    """An empty task."""
    return task


def _run(lane: Lane) -> Run:
    """A committed run of ten records."""
    return Run(
        lane=lane,
        generation=0,
        position=0,
        next=10,
        spans=(Span(0, 0, 10),),
        state="committed",
        writer="",
        attempt="before",
        fingerprint=b"",
        digest=b"",
        oldest_timestamp=1,
        newest_timestamp=1,
        records=10,
        bytes=10,
        request="before",
        settled_at=1,
        examined=True,
    )


@contextmanager
def _stores(folder: Path) -> Iterator[tuple[DynamoDbChains, DynamoDbLaneStates]]:
    dynamodb = DynamoDbLocal(folder=folder, in_memory=True)
    dynamodb.begin_start()
    try:
        dynamodb.wait_ready()
        os.environ |= {
            SPARK_MASTER_VARIABLE: "local[2,4]",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
        }
        tables = Tables()
        for table in definitions(tables):
            dynamodb.client().create_table(**table.create_request())
        client = dynamodb_client("us-east-1", None, direct=True)
        yield (
            DynamoDbChains(client, tables.offset_map, retention_days=1),
            DynamoDbLaneStates(client, tables.lanes),
        )
    finally:
        dynamodb.stop()


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from tests.benchmarks.many_lanes import main as measure

    sys.exit(measure())
