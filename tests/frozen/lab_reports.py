"""Reports of the demonstration, the failover drill, the soak and the benchmark; the lab's state file; the diff guard.

Each command runs through its own door. What would start servers is replaced by findings in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
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
from lab.cloud import Lab
from lab.drills.demo import Demonstration, reported
from lab.drills.failover import FailoverDrill
from lab.drills.group_move import GroupFindings
from lab.drills.soak import RunResult, Soak
from lab.state import describe
from mirrorless.flow.settings import Tables
from tests.benchmarks.beside_mm2.report import Measurement, Run, conclude, open_results
from tests.frozen.job_reports import kept_signals, reconciled
from tests.frozen.key_tree import tree

NONE = dict.fromkeys(("lost", "duplicated", "reordered", "different", "mistranslated"), 0)
FLOW = "us-east->eu-west"


def texts() -> dict[str, str]:
    """The key tree of each report, by the golden file's name."""
    found = {
        "demo": tree(_demo()),
        "failover": tree(_failover()),
        "soak-progress": tree(_soak(), types=[("1", RunResult)]),
        "lab-state": tree(_state()),
        "bench": tree(_bench(), types=[("", Run)]),
        "diff-guard": tree(_diff_guard()),
    }
    return {f"reports/{name}.txt": text for name, text in found.items()}


ROW = PartitionAudit(flow=FLOW, topic="orders", partition=0, source=1, target=1, **NONE)
GROUP = GroupFindings(records=1, reread=0, skipped=0, strays=0, read_on={"us-east": 1, "eu-west": 0})


def _demo() -> Any:
    def replace(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Demonstration, "run", lambda _: reported([ROW], GROUP))

    return _written(replace, "demo", "--report")


def _failover() -> Any:
    group: Any = SimpleNamespace(findings=lambda _: GROUP)
    found = reconciled()

    def account(drill: FailoverDrill) -> dict[str, Any]:
        return drill._account(group, {"orders": {}, "payments": {}}, found)

    def replace(patch: pytest.MonkeyPatch) -> None:
        audit = TopicAudit(rows=[ROW], upstream={}, upstream_of={})
        patch.setattr(lab.drills.failover, "audit_failover", lambda *_: audit)
        patch.setattr(FailoverDrill, "chains", None)
        patch.setattr(FailoverDrill, "run", account)

    return _written(replace, "failover", "--page", "page.html", "--report")


def _soak() -> Any:
    result = RunResult(
        seed=1,
        trigger="mapping",
        records=1,
        faults={},
        stuck_seconds={},
        lanes_reset=0,
        broker_restarts=0,
        cold_starts=0,
        seconds=1.0,
        lost=0,
        duplicated=0,
        reordered=0,
        different=0,
        mistranslated=0,
    )

    def replace(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Soak, "__enter__", lambda soak: soak)
        patch.setattr(Soak, "run", lambda *_: result)

    return _written(replace, "soak", "--count", "1", "--fresh", "--progress")


def _written(replace: Callable[[pytest.MonkeyPatch], None], *words: str) -> Any:
    """The report that a command of the lab writes to the file behind its last word."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, kept_signals():
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
        SimpleNamespace(uuid=uuid, flow=FLOW, topic="orders", group_id="mirrorless.us-east.eu-west.orders")
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
    )
    return json.loads(json.dumps(describe(cast("Lab", there), ready=True)))


def _bench() -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        results = open_results(path, profile="full", say=lambda _: None, finish=conclude, resume=False)
        for side in ("Mirrorless", "MM2"):
            measured = Measurement(
                kind="throughput", against="MM2", case="100B-x6", round=1, side=side, figures={"records_per_cpu_s": 1.0}
            )
            results.add(measured)
        results.write()
        return json.loads(path.read_bytes())


def _diff_guard() -> Any:
    """What the guard says where a table would be replaced."""
    with TemporaryDirectory() as folder:
        for name, key in (("old", "lane"), ("new", "other")):
            table = {"TableName": "t", "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}]}
            template = {"Resources": {"Lanes": {"Type": "AWS::DynamoDB::Table", "Properties": table}}}
            place = Path(folder, name)
            place.mkdir()
            (place / "mirrorless-state-eu.template.json").write_text(json.dumps(template))
        with StringIO() as out, redirect_stdout(out):
            code = diff_guard.main([f"{folder}/old", f"{folder}/new", "--json"])
            assert code, "the guard let a replaced table pass"
            return json.loads(out.getvalue())
