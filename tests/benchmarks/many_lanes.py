"""A backfill of 50,000 lanes: planned, taken, planned again, driven with empty tasks and let go.

    python -m tests.benchmarks.many_lanes [--figures FILE]

DynamoDB Local and Spark are real, and so is the job's own code but for the copies; every lane has a chain, as where a
backfill is begun again. What a broker would answer about the partitions is stood in for: one machine has no room for
the files of 50,000. The limit is two minutes from the beginning to the end of the last task; no lease may have lapsed
by then.
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
from typing import Any

import msgspec
import psutil

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.backfill.plan import make_plan
from mirrorless.clock import now_ms
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.plan import JobPlan, PlannedLane
from mirrorless.jobs.progress import LaneProgress, write_progress
from mirrorless.jobs.request import PLAN, BackfillOptions, JobRequest
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import RUNNING
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.run import Run, Span
from mirrorless.settings import ClusterSettings, FlowSettings, Tables
from mirrorless.tables import definitions
from spark.backfill import BackfilledLanes, copy_lanes
from spark.jobs.backfill.plan import links_of
from spark.jobs.driver import JobRun
from spark.jobs.lane_tasks import TaskAttempt

LANES, PARTITIONS = 50_000, 50
LIMIT_SECONDS = 120.0
ROOT = Path(__file__).parents[2]

FLOW, TABLES = FlowName("us-east", "eu-west"), Tables()
SETTINGS = FlowSettings(
    flow=str(FLOW),
    source=ClusterSettings(alias="us-east", bootstrap="127.0.0.1:1"),
    target=ClusterSettings(alias="eu-west", bootstrap="127.0.0.1:1"),
)


def main() -> int:
    """Measure; exit code 1 beyond the limit, or where a lease lapsed or a task is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    parser.add_argument("--lanes", type=int, default=LANES)
    arguments = parser.parse_args()
    lanes = [Lane(FLOW, f"topic-{number // PARTITIONS}", number % PARTITIONS) for number in range(arguments.lanes)]
    with tempfile.TemporaryDirectory(prefix="many-lanes-") as folder, _dynamodb(Path(folder)):
        client = dynamodb_client("us-east-1", None, direct=True)
        DynamoDbChains(client, TABLES.offset_map, retention_days=1).prepare([_run(lane) for lane in lanes])
        took, lapsed, done = _measured(lanes, client, Path(folder, "run"), *psutil.Process().children())
    for phase, (seconds, cpu, server_cpu) in took.items():
        print(f"{phase:<10} {seconds:6.1f} s, CPU {cpu:5.1f} s and {server_cpu:5.1f} s of DynamoDB Local")
    ended = sum(seconds for phase, (seconds, *_) in took.items() if phase != "let go")
    figures = {
        "seconds": round(ended, 1),
        "cpu_seconds": round(sum(cpu for _, cpu, _ in took.values()), 1),
        "dynamodb_local_cpu_seconds": round(sum(cpu for *_, cpu in took.values()), 1),
        "resident_mb": psutil.Process().memory_info().rss >> 20,
        "lanes": len(lanes),
        **{f"{phase.replace(' ', '_')}_seconds": round(seconds, 1) for phase, (seconds, *_) in took.items()},
    }
    print(json.dumps(figures))
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(figures))
    if lapsed or done != len(lanes):
        print(f"{lapsed} leases lapsed, {done} of {len(lanes)} tasks were done", file=sys.stderr)
        return 1
    return int(ended > LIMIT_SECONDS)


def _measured(
    lanes: list[Lane], client: Any, folder: Path, server: psutil.Process
) -> tuple[dict[str, tuple[float, float, float]], int, int]:
    """Of each phase: seconds, CPU seconds of the job and of the server; leases that lapsed; tasks that were done."""
    took: dict[str, tuple[float, float, float]] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        before = time.monotonic(), _cpu(psutil.Process(), without=server), _cpu(server)
        yield
        after = time.monotonic(), _cpu(psutil.Process(), without=server), _cpu(server)
        took[name] = (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    request = JobRequest("backfill-1", SETTINGS, ("topic-0",), BackfillOptions())
    run = JobRun(request, open_job_files(str(folder)), now_ms(), state="running")
    states = DynamoDbLaneStates(client, TABLES.lanes)
    with phase("plan"):
        run.start_spark()
        plan = _plan(lanes, client, states)
        run.files.write(PLAN, msgspec.json.encode(plan))
    held = BackfilledLanes(run, plan, client)
    with phase("take"):
        held.take()
    with phase("plan again"):
        plan = _plan(lanes, client, states)
        run.files.write(PLAN, msgspec.json.encode(plan))
    watch = run.watch()
    with phase("drive"):
        results = copy_lanes(run, plan, BackfillOptions(), noted)
    now, known = now_ms(), states.read(lanes)
    found = [known[lane].lease for lane in lanes]
    lapsed = sum(lease is None or not lease.keeps_out("another", now) for lease in found)
    with phase("let go"):
        held.let_go()
    run.end("succeeded")
    watch.join()
    run.context.stop()
    return took, lapsed, sum(each.state == "done" for each in results)


def _plan(lanes: list[Lane], client: Any, states: DynamoDbLaneStates) -> JobPlan:
    """As `plan_backfill` makes it, with what a broker would answer."""
    chains = DynamoDbChains(client, TABLES.offset_map, retention_days=1)
    heads, known = chains.heads(lanes), states.read(lanes)
    links = links_of(chains, heads)
    planned = [
        PlannedLane(
            topic=lane.topic,
            partition=lane.partition,
            lane_topic=lane.topic,
            write_topic=f"us-east.{lane.topic}",
            range=OffsetRange(0, 1_000 + lane.partition),
            position=heads[lane].position,
            offsets=1_000 + lane.partition - heads[lane].position,
            bytes=0,
        )
        for lane in lanes
        if known.get(lane, RUNNING).stop is None and links[lane]
    ]
    return make_plan("backfill-1", str(FLOW), planned, [], at_a_time=2, max_mb_per_second=None, hands_over=True)


def noted(text: bytes, _: TaskAttempt) -> bytes:
    """An empty task: it writes that its lanes are done."""
    results = []
    for task in msgspec.json.decode(text, type=list[CopyTask]):
        progress = LaneProgress(lane=str(task.lane), state="done", done=1, total=1)
        write_progress(open_job_files(task.files), task.lane_topic, task.partition, progress)
        results.append(CopyResult(lane=str(task.lane), partition=task.partition, state="done"))
    return msgspec.json.encode(results)


def _cpu(process: psutil.Process, without: psutil.Process | None = None) -> float:
    """The CPU seconds of a process and of its children."""
    every = [process, *process.children(recursive=True)]
    times = [each.cpu_times() for each in every if each != without]
    return sum(each.user + each.system for each in times)


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
def _dynamodb(folder: Path) -> Iterator[DynamoDbLocal]:
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
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        for table in definitions(TABLES):
            dynamodb.client().create_table(**table.create_request())
        yield dynamodb
    finally:
        dynamodb.stop()


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from tests.benchmarks.many_lanes import main as measure

    sys.exit(measure())
