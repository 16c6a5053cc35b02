"""Reports of every kind of job, of the lab's demo and failover, and of the diff guard; the lab's state file.

Each is written through its own door. What clusters, Spark and servers would answer is in memory.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest

import lab.drills.failover
from infra.guard import diff_guard
from lab.__main__ import main
from lab.audit.audit import PartitionAudit, TopicAudit
from lab.cloud import Lab, LabKeys
from lab.drills.demo import Demonstration, reported
from lab.drills.failover import FailoverDrill
from lab.drills.group_move import GroupFindings
from lab.state import describe
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.kafka.source_log import KafkaSourceLog
from mirrorless.chain.lane import FlowName
from mirrorless.flow.settings import Tables
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
from mirrorless.reconcile.outcome import FailbackForecast, LaneOutcome, LocalTopic, OrphanReader
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.reconcile.tasks import LaneInspection
from mirrorless.reports.report import Report
from mirrorless.verify.findings import LaneVerdict
from spark import backfill, verify
from spark.jobs.driver import JobOutcome, JobRun, drive
from spark.jobs.reconcile.tasks import LaneUnderWay, outcome_of
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
    """The key tree of each report, by the golden file's name."""
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
    reports = {"backfill": _backfill(), "verify": _verify(), "reconcile": _reconciled()}
    found = {kind: tree(report, types=[("report", Report), *types[kind]]) for kind, report in reports.items()}
    found |= {
        "job-progress": tree(types=[("", JobProgress)]),
        "demo": tree(_demo()),
        "failover": tree(_failover()),
        "lab-state": tree(_state()),
        "diff-guard": tree(_diff_guard()),
    }
    return {f"reports/{name}.txt": text for name, text in found.items()}


LOOK = (FailbackForecast(0, 1.5, 0, 0), [OrphanReader("billing", 1)])


def _reconciled() -> Any:
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
    with TemporaryDirectory() as name, _kept_signals(), redirect_stdout(StringIO()):
        folder = Path(name)
        (folder / REQUEST).write_bytes(encode_request(request))
        drive(job, [name])
        assert (folder / PROGRESS).exists()
        return json.loads((folder / REPORT).read_bytes())


@contextmanager
def _kept_signals() -> Iterator[None]:
    """The handlers of whoever runs this, kept from a driver that puts its own in their place."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


NONE = dict.fromkeys(("lost", "duplicated", "reordered", "different", "mistranslated"), 0)


ROW = PartitionAudit(flow=str(FLOW), topic="orders", partition=0, source=1, target=1, **NONE)
GROUP = GroupFindings(records=1, reread=0, skipped=0, strays=0, read_on={"us-east": 1, "eu-west": 0})


def _demo() -> Any:
    def replace(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Demonstration, "run", lambda _: reported([ROW], GROUP))

    return _written(replace, "demo", "--report")


def _failover() -> Any:
    group: Any = SimpleNamespace(findings=lambda _: GROUP)
    found = _reconciled()

    def account(drill: FailoverDrill) -> dict[str, Any]:
        return drill._account(group, {"orders": {}, "payments": {}}, found)

    def replace(patch: pytest.MonkeyPatch) -> None:
        audit = TopicAudit(rows=[ROW], upstream={}, upstream_of={})
        patch.setattr(lab.drills.failover, "audit_failover", lambda *_: audit)
        patch.setattr(FailoverDrill, "chains", None)
        patch.setattr(FailoverDrill, "run", account)

    return _written(replace, "failover", "--page", "page.html", "--report")


def _written(replace: Callable[[pytest.MonkeyPatch], None], *words: str) -> Any:
    """The report that a command of the lab writes to the file behind its last word."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, _kept_signals():
        patch.chdir(folder)
        replace(patch)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            main([*words, "report.json"])
        return json.loads(Path("report.json").read_text())


def _state() -> Any:
    """A lab with one of each, as the state file has it; of its two mappings, one is gone."""

    def cluster(port: int, pid: int | None) -> SimpleNamespace:
        broker = SimpleNamespace(place=SimpleNamespace(node=1, address=f"127.0.0.1:{port}"), pid=pid)
        return SimpleNamespace(bootstrap=broker.place.address, pid=pid, version="4.1.1", brokers=[broker])

    mappings = [
        SimpleNamespace(uuid=uuid, flow=str(FLOW), topic="orders", group_id="mirrorless.us-east.eu-west.orders")
        for uuid in ("1", "2")
    ]
    listed = [{"UUID": "1", "State": "Enabled", "LastProcessingResult": "OK"}]
    there = SimpleNamespace(
        configuration=SimpleNamespace(origin="replication.yaml"),
        clusters={"us-east": cluster(1, None), "eu-west": cluster(2, 1)},
        dynamodb=SimpleNamespace(endpoint="http://127.0.0.1:3", pid=2),
        tables=Tables(),
        functions={"forward": SimpleNamespace(environments=[SimpleNamespace(pid=3, state="idle")])},
        mappings=SimpleNamespace(list=lambda: listed),
        flow_mappings=mappings,
        folder=Path(".lab"),
        keys=LabKeys(folder=Path(".lab/keys")),
    )
    return json.loads(json.dumps(describe(cast("Lab", there), ready=True)))


def _diff_guard() -> Any:
    """What the guard says where a table would be replaced."""
    with TemporaryDirectory() as folder:
        for name, key in (("old", "lane"), ("new", "other")):
            table = {"TableName": "t", "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}]}
            template = {"Resources": {"Lanes": {"Type": "AWS::DynamoDB::GlobalTable", "Properties": table}}}
            place = Path(folder, name)
            place.mkdir()
            (place / "mirrorless-state-eu.template.json").write_text(json.dumps(template))
        with StringIO() as out, redirect_stdout(out):
            code = diff_guard.main([f"{folder}/old", f"{folder}/new", "--json"])
            assert code, "the guard let a replaced table pass"
            return json.loads(out.getvalue())
