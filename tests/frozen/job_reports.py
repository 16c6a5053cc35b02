"""`report.json` of every kind of job, as its driver writes it; what clusters and Spark would answer is in memory."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.kafka.source_log import KafkaSourceLog
from mirrorless.chain.lane import FlowName
from mirrorless.jobs.copy_task import CopyResult
from mirrorless.jobs.plan import JobPlan
from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.request import (
    PROGRESS,
    REPORT,
    REQUEST,
    BackfillOptions,
    JobRequest,
    Options,
    ReconcileOptions,
    VerifyOptions,
    encode_request,
)
from mirrorless.lanes.gaps import Cleanup
from mirrorless.reconcile.findings import LaneInspection
from mirrorless.reconcile.forecast import FailbackForecast, OrphanReader
from mirrorless.reconcile.outcome import LaneOutcome, LocalTopic
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.reports.report import Report
from mirrorless.verify.findings import LaneVerdict
from spark import backfill, verify
from spark.jobs.driver import JobOutcome, JobRun, drive
from spark.jobs.reconcile.summary import LaneUnderWay, outcome_of
from tests.frozen.key_tree import tree
from tests.support.flows import make_flow

FLOW = FlowName("us-east", "eu-west")
PLAN = JobPlan(
    run_id="backfill-1",
    flow=str(FLOW),
    lanes=(),
    findings=(),
    records=0,
    bytes=0,
    seconds=0.0,
    dollars=0.0,
    priced="",
    lanes_at_a_time=1,
    hands_over=False,
)


def texts() -> dict[str, str]:
    """The key tree of each kind's report, by the golden file's name."""
    types: dict[str, list[tuple[str, Any]]] = {
        "backfill": [
            ("plan", JobPlan),
            ("lanes", list[CopyResult]),
            ("totals.cpu_seconds_per_million", float | None),  # null where nothing was written
        ],
        "verify": [("lanes", list[LaneVerdict])],
        "reconcile": [
            ("lanes", list[LaneOutcome]),
            ("groups", list[ReturningGroup]),
            ("local_topics", list[LocalTopic]),
            ("troubles", list[str]),
            ("forecast", FailbackForecast | None),
            ("orphan_readers", list[OrphanReader]),
        ],
    }
    reports = {"backfill": _backfill(), "verify": _verify(), "reconcile": reconciled()}
    found = {
        f"reports/{kind}.txt": tree(report, types=[("report", Report), *types[kind]])
        for kind, report in reports.items()
    }
    return found | {"reports/job-progress.txt": tree(types=[("", JobProgress)])}


LOOK = (FailbackForecast(0, 1.5, 0, 0), [OrphanReader("billing", 1)])


def reconciled() -> Any:
    """The report of a reconcile."""
    look = LaneInspection(topic="orders", partition=0, remote_topic="us-east.orders")

    def job(run: JobRun) -> JobOutcome:
        lanes = [LaneUnderWay(look, look.lane(FLOW), "replay")]
        return outcome_of(run, lanes, [], tallies={}, local=[], troubles=[], look=LOOK)

    return _report(job, ReconcileOptions())


def _verify() -> Any:
    verdict = LaneVerdict(lane=f"{FLOW} orders-0", topic="orders", partition=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "verdicts_of", lambda *_: [verdict])
        patch.setattr(JobRun, "context", None)
        patch.setattr(KafkaOffsets, "partitions", lambda _: {"us-east.orders": 1})
        cleanup = Cleanup(compacts=False, expires=True)
        patch.setattr(KafkaSourceLog, "cleanup", lambda _, topics, __: dict.fromkeys(topics, cleanup))
        return _report(verify.verify, VerifyOptions())


def _backfill() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill, "copy_all", lambda *_, **__: [])
        patch.setattr(backfill, "lanes_at_a_time", lambda _: 1)
        patch.setattr(backfill, "plan_backfill", lambda *_, **__: PLAN)
        patch.setattr(backfill, "dynamodb_client", lambda *_, **__: None)
        patch.setattr(JobRun, "context", None)
        return _report(backfill.backfill, BackfillOptions())


def _report(job: Callable[[JobRun], JobOutcome], options: Options) -> Any:
    """What the driver of a job leaves in its run's folder."""
    settings = make_flow(FLOW, source="127.0.0.1:1", target="127.0.0.1:1")
    request = JobRequest(run_id="run-1", flow=settings, topics=("orders",), options=options)
    with TemporaryDirectory() as name, kept_signals(), redirect_stdout(StringIO()):
        folder = Path(name)
        (folder / REQUEST).write_bytes(encode_request(request))
        drive(job, [name])
        assert (folder / PROGRESS).exists()
        return json.loads((folder / REPORT).read_bytes())


@contextmanager
def kept_signals() -> Iterator[None]:
    """The handlers of whoever runs this, kept from a driver that puts its own in their place."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
