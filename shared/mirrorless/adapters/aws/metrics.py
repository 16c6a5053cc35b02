"""Metrics of a batch under MirrorMaker 2's names, as EMF log lines by Powertools.

The names and their meaning are those of MM2's `MirrorSourceConnector` metrics; the dimensions are its tags but for
the partition, which would cost one metric per partition and month.
"""

from __future__ import annotations

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from mirrorless.lane import FlowName
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome

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
