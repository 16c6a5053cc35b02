"""Metrics of a round of a scheduled task: one EMF line, and its notices to the operator as JSON."""

from __future__ import annotations

import json
from typing import Final

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from mirrorless.adapters.aws.metrics import NAMESPACE
from mirrorless.lane import FlowName
from mirrorless.scheduled.runner import TaskReport

ALARMING: Final = frozenset(
    {
        "heartbeats-emitted",
        "groups-not-ready",
        "reread-records-max",
        "doubts-open",
        "stuck-partitions",
        "gaps-waiting",
        "offsets-lost",
        "lanes-stopped",
    }
)
"""Figures that become metrics, each paid for by the month; the others stand in the same line, for Logs Insights."""

_emitted: dict[tuple[FlowName, str], tuple[str, tuple[str, ...]]] = {}
"""What each task had to say last: a trouble that stays is logged once an environment, and counted every round."""


def emit_report(flow: FlowName, report: TaskReport) -> None:
    """Print what a round found.

    Args:
        flow: whose task.
        report: how it went. `task-errors` and `task-troubles` are metrics of the flow, and so are the figures that
            alarms are for.
    """
    metrics = AmazonCloudWatchEMFProvider(namespace=NAMESPACE)
    metrics.add_dimension("source", flow.source)
    metrics.add_dimension("target", flow.target)
    metrics.add_metadata("task", report.task)
    metrics.add_metadata("task-ms", report.ms)
    metrics.add_metric("task-errors", MetricUnit.Count, int(bool(report.error)))
    metrics.add_metric("task-troubles", MetricUnit.Count, len(report.troubles))
    for name, value in report.figures.items():
        if name in ALARMING:
            metrics.add_metric(name, MetricUnit.Count, value)
        else:
            metrics.add_metadata(name, value)
    metrics.flush_metrics()

    said = (report.error, report.troubles)
    if _emitted.get((flow, report.task), ("", ())) != said:
        _emitted[flow, report.task] = said
        place = {"flow": str(flow), "task": report.task}
        if report.error:
            print(json.dumps({"level": "ERROR", **place, "error": report.error}))
        for trouble in report.troubles:
            print(json.dumps({"level": "WARNING", **place, "trouble": trouble}))
