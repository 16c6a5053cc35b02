"""One plan serves `plan.json` and `--dry-run`, and both keep their fields."""

from __future__ import annotations

import json

import msgspec
import pytest

from cli.jobs.plan import is_refused, show_plan
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.plan import CheckFinding, JobPlan, PlannedLane
from mirrorless.jobs.request import BackfillOptions, JobRequest, VerifyOptions
from tests.support.flows import make_flow

COPIED = PlannedLane(
    topic="orders",
    partition=3,
    lane_topic="orders",
    write_topic="us-east.orders",
    range=OffsetRange(10, 2_000),
    position=500,
    offsets=1_500,
    bytes=150_000,
)
PLAN = JobPlan(
    run_id="backfill-1",
    flow="us-east->eu-west",
    lanes=(COPIED,),
    findings=(CheckFinding(severity="warn", check="retention", where="orders-3", text="gone"),),
    records=1_500,
    bytes=150_000,
    seconds=121.5,
    dollars=0.02,
    priced="2026-11-01",
    lanes_at_a_time=1,
)


def backfill(*, force: bool = False) -> JobRequest:
    return JobRequest(run_id="backfill-1", flow=make_flow(), topics=("orders",), options=BackfillOptions(force=force))


def test_a_dry_run_shows_the_plan_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(backfill(), PLAN, as_json=True)

    assert json.loads(capsys.readouterr().out) == {
        "kind": "backfill",
        "flow": "us-east->eu-west",
        "lanes": [{"lane": "orders-3", "read": "upstream 500 to 2,000", "offsets": 1_500, "bytes": 150_000}],
        "offsets": 1_500,
        "bytes": 150_000,
        "seconds": 121.5,
        "dollars": 0.02,
        "priced": "2026-11-01",
        "refused": True,
        "findings": [{"severity": "warn", "where": "orders-3", "text": "gone"}],
    }


def test_a_dry_run_of_a_job_that_reads_both_sides_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lane = msgspec.structs.replace(COPIED, read="downstream 0 to 9, upstream 0 to 7", bytes=None)
    request = JobRequest(run_id="verify-1", flow=make_flow(), topics=("orders",), options=VerifyOptions())

    show_plan(request, msgspec.structs.replace(PLAN, lanes=(lane,), findings=(), bytes=None), as_json=True)

    shown = json.loads(capsys.readouterr().out)
    assert shown["lanes"] == [
        {"lane": "orders-3", "read": "downstream 0 to 9, upstream 0 to 7", "offsets": 1_500, "bytes": None}
    ]
    assert (shown["kind"], shown["bytes"], shown["refused"]) == ("verify", None, False)


def test_plan_json_has_the_fields_of_a_backfill_and_no_others() -> None:
    written = json.loads(msgspec.json.encode(PLAN))

    assert set(written) == {
        "run_id", "flow", "lanes", "findings", "records", "bytes", "seconds", "dollars", "priced", "lanes_at_a_time",
        "hands_over",
    }  # fmt: skip
    assert set(written["lanes"][0]) == {
        "topic", "partition", "lane_topic", "write_topic", "range", "position", "offsets", "bytes", "group",
        "expires_at",
    }  # fmt: skip
    assert set(written["findings"][0]) == {"severity", "check", "where", "text"}


@pytest.mark.parametrize(("severity", "force", "refused"), [
    ("refuse", False, True),
    ("refuse", True, True),
    ("warn", False, True),
    ("warn", True, False),
    ("info", False, False),
])  # fmt: skip
def test_only_warnings_give_way_to_force(severity: str, force: bool, refused: bool) -> None:  # noqa: FBT001 -- given
    finding = msgspec.convert({"severity": severity, "check": "c", "where": "w", "text": "t"}, CheckFinding)

    assert is_refused(backfill(force=force), msgspec.structs.replace(PLAN, findings=(finding,))) is refused
