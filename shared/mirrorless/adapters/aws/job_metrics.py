"""Metrics of a job: one EMF line a minute in the driver's log, and one at the end."""

from __future__ import annotations

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from mirrorless.adapters.aws.metrics import NAMESPACE
from mirrorless.jobs.progress import JobProgress
from mirrorless.lane import FlowName

EVERY_MS = 60_000
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
