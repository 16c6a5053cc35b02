"""Metrics as EMF log lines by Powertools: of a batch, of a round of a scheduled task, and of a job.

A batch has MirrorMaker 2's names: their meaning is that of MM2's `MirrorSourceConnector` metrics; the dimensions are
its tags but for the partition, which would cost one metric per partition and month. A round's line comes with its
notices to the operator as JSON. A job has one line a minute in the driver's log, and one at the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from mirrorless.lane import FlowName

if TYPE_CHECKING:
    from mirrorless.jobs.progress import JobProgress
    from mirrorless.protocol.event import Batch
    from mirrorless.protocol.replicate import BatchOutcome
    from mirrorless.scheduled.runner import TaskReport

NAMESPACE = "Mirrorless"


def emit(flow: FlowName, batch: Batch, outcome: BatchOutcome, *, received_at: int, now: int) -> None:
    """Print one line of metrics for a batch.

    Args:
        flow: whose batch.
        batch: its records.
        outcome: what became of them.
        received_at: when the event came, ms since the epoch: the record age's end, as MM2's is at poll.
        now: when the last run was confirmed: the replication latency's end.
    """
    metrics = AmazonCloudWatchEMFProvider(namespace=NAMESPACE)
    metrics.add_dimension("source", flow.source)
    metrics.add_dimension("target", flow.target)
    metrics.add_dimension("topic", outcome.remote_topic)
    runs = [run for run in outcome.runs if run.records]
    metrics.add_metric("record-count", MetricUnit.Count, sum(run.records for run in runs))
    metrics.add_metric("byte-count", MetricUnit.Bytes, sum(run.bytes for run in runs))
    metrics.add_metric("stopped-lanes", MetricUnit.Count, len(outcome.stopped))
    if outcome.waiting:  # rare, and a metric is billed by the topic and month in which it is emitted
        metrics.add_metric("waiting-lanes", MetricUnit.Count, len(outcome.waiting))
    if runs:
        oldest = min(run.oldest_timestamp for run in runs)
        newest = max(run.newest_timestamp for run in runs)
        metrics.add_metric("record-age-ms-max", MetricUnit.Milliseconds, received_at - oldest)
        metrics.add_metric("record-age-ms-min", MetricUnit.Milliseconds, received_at - newest)
        metrics.add_metric("replication-latency-ms-max", MetricUnit.Milliseconds, now - oldest)
        metrics.add_metric("replication-latency-ms-min", MetricUnit.Milliseconds, now - newest)
    metrics.add_metadata("partitions", sorted(batch.records))
    metrics.flush_metrics()


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


METRICS_EVERY_MS = 60_000
"""CloudWatch keeps one value a minute of what is emitted more often."""


def emit_progress(progress: JobProgress, *, clean: bool | None) -> None:
    """Print a line of metrics for a run: what it did so far, and the lanes that are left and that stopped.

    Args:
        progress: of the run.
        clean: whether it ended and is clean; None before it ended with a report. `job-needs-operator` is 1 once a run
            ended otherwise, and 0 before.
    """
    flow = FlowName.parse(progress.flow)
    metrics = AmazonCloudWatchEMFProvider(namespace=NAMESPACE)
    metrics.add_dimension("source", flow.source)
    metrics.add_dimension("target", flow.target)
    metrics.add_dimension("job", progress.kind)
    lanes = progress.lanes
    stopped = lanes.get("stopped", 0) + lanes.get("failed", 0)
    metrics.add_metric("job-records", MetricUnit.Count, progress.records)
    metrics.add_metric("job-bytes", MetricUnit.Bytes, progress.bytes)
    metrics.add_metric("job-lanes-left", MetricUnit.Count, lanes.get("waiting", 0) + lanes.get("running", 0))
    metrics.add_metric("job-lanes-stopped", MetricUnit.Count, stopped)
    over = progress.state in {"succeeded", "failed"}
    metrics.add_metric("job-needs-operator", MetricUnit.Count, int(over and not clean))
    metrics.add_metadata("run", progress.run_id)
    metrics.add_metadata("state", progress.state)
    metrics.flush_metrics()
