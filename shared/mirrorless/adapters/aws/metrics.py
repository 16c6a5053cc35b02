"""Metrics as EMF log lines by Powertools: of a flow's batches, of a round of a scheduled task, and of a job.

A batch has MirrorMaker 2's names: their meaning is that of MM2's `MirrorSourceConnector` metrics. Its dimensions are
the flow's, `source` and `target`, and on request `topic` too: each topic is paid for, and each partition would be. A
metric is billed for every hour in which it is emitted, so a zero is left out wherever nothing depends on it. A round's
line comes with its notices to the operator as JSON. A job has one line a minute in the driver's log, and one at its
end.
"""

from __future__ import annotations

import json
import os
from operator import add
from typing import TYPE_CHECKING, Final

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from mirrorless.chain.lane import FlowName
from mirrorless.flow.counts import OfFlow, OfJob, OfTopics, Watched, is_watched
from mirrorless.flow.naming import NAMESPACE, NAMESPACE_VARIABLE
from mirrorless.flow.policy import HEARTBEATS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mirrorless.jobs.progress import JobProgress
    from mirrorless.protocol.event import Batch
    from mirrorless.protocol.replicate import BatchOutcome
    from mirrorless.scheduled.runner import TaskReport


GATHER_MS: Final = 10_000
"""The time after which an environment prints what it has gathered."""

_OF_BATCHES: Final[Mapping[OfTopics, tuple[MetricUnit, Callable[[int, int], int]]]] = {
    "record-count": (MetricUnit.Count, add),
    "byte-count": (MetricUnit.Bytes, add),
    "passed-byte-count": (MetricUnit.Bytes, add),
    "returned-count": (MetricUnit.Count, add),
    "filtered-count": (MetricUnit.Count, add),
    "heartbeats-arrived": (MetricUnit.Count, add),
    "produce-throttle-time-max": (MetricUnit.Milliseconds, max),
    "stopped-lanes": (MetricUnit.Count, max),
    "waiting-lanes": (MetricUnit.Count, max),
    "record-age-ms-max": (MetricUnit.Milliseconds, max),
    "record-age-ms-min": (MetricUnit.Milliseconds, min),
    "replication-latency-ms-max": (MetricUnit.Milliseconds, max),
    "replication-latency-ms-min": (MetricUnit.Milliseconds, min),
}
"""Unit of each figure of a batch, and how two batches' become one."""

_BY_TOPIC_ONLY: Final[frozenset[OfTopics]] = frozenset({"record-age-ms-min", "replication-latency-ms-min"})


class BatchMetrics:
    """Metrics of the batches of one environment, gathered in memory and printed as one line each ten seconds.

    Every figure is a sum or an extreme, so CloudWatch has the same values as from a line for each batch. What was
    gathered after the last line is printed with the next batch, or lost with the environment: these are figures only.
    """

    def __init__(self, flow: FlowName, *, per_topic: Callable[[str], str] | None = None) -> None:
        """Args: per_topic: the remote topic of a source topic, for a line of each; None for no such lines."""
        self._flow = flow
        self._per_topic = per_topic
        self._gathered: dict[str, dict[OfTopics, int]] = {}
        """By remote topic; the flow's own under the empty name."""
        self._printed_at = 0

    def add(self, batch: Batch, outcome: BatchOutcome, *, received_at: int, now: int) -> None:
        """Gather the figures of a batch, and print what is gathered when it is time, or a lane stands still.

        Args:
            batch: its records.
            outcome: what became of them.
            received_at: when the event came, ms since the epoch: the record age's end, as MM2's is at poll.
            now: when the last run was confirmed: the replication latency's end.
        """
        for topic in batch.topics:
            figures = _figures(topic, outcome, received_at=received_at, now=now)
            self._gather("", _of_flow(topic, figures))
            if self._per_topic is not None:
                self._gather(self._per_topic(topic), figures)
        waited = now - self._printed_at
        # A clock that was set back counts as time that has passed.
        if outcome.stopped or outcome.waiting or not 0 <= waited < GATHER_MS:
            self._print(now)

    def _gather(self, topic: str, figures: Mapping[OfTopics, int]) -> None:
        gathered = self._gathered.setdefault(topic, {})
        for name, value in figures.items():
            gathered[name] = _OF_BATCHES[name][1](gathered[name], value) if name in gathered else value

    def _print(self, now: int) -> None:
        for topic, figures in self._gathered.items():
            if not figures:
                continue
            metrics = _line(self._flow, **({"topic": topic} if topic else {}))
            for name, value in figures.items():
                _add(metrics, name, value, _OF_BATCHES[name][0])
            metrics.flush_metrics()
            self._printed_at = now
        self._gathered.clear()


def _figures(topic: str, outcome: BatchOutcome, *, received_at: int, now: int) -> dict[OfTopics, int]:
    """The figures of one topic of a batch."""
    runs = [run for run in outcome.runs if run.records and run.lane.topic == topic]
    counts: dict[OfTopics, int] = {
        "record-count": sum(run.records for run in runs),
        "byte-count": sum(run.bytes for run in runs),
        "passed-byte-count": sum(run.passed_bytes for run in runs),
        "returned-count": sum(
            following - first for run in outcome.runs if run.lane.topic == topic for first, following in run.returned
        ),
        "filtered-count": sum(
            following - first for run in outcome.runs if run.lane.topic == topic for first, following in run.filtered
        ),
        "produce-throttle-time-max": max((run.throttled_ms for run in runs), default=0),
        "stopped-lanes": sum(place[0] == topic for place in outcome.stopped),
        "waiting-lanes": sum(place[0] == topic for place in outcome.waiting),
    }
    figures = {name: value for name, value in counts.items() if value}
    if runs:
        oldest = min(run.oldest_timestamp for run in runs)
        newest = max(run.newest_timestamp for run in runs)
        figures["record-age-ms-max"] = received_at - oldest
        figures["record-age-ms-min"] = received_at - newest
        figures["replication-latency-ms-max"] = now - oldest
        figures["replication-latency-ms-min"] = now - newest
    return figures


def _of_flow(topic: str, figures: Mapping[OfTopics, int]) -> dict[OfTopics, int]:
    """What of a batch's figures counts for the flow. The source's heartbeats are counted apart from records."""
    found = {name: value for name, value in figures.items() if name not in _BY_TOPIC_ONLY}
    if topic == HEARTBEATS_TOPIC and (arrived := found.pop("record-count", 0)):
        found.pop("byte-count", None)
        found.pop("passed-byte-count", None)
        found["heartbeats-arrived"] = arrived
    return found


_emitted: dict[tuple[FlowName, str], tuple[str, tuple[str, ...]]] = {}
"""What each task had to say last: a trouble that stays is logged once an environment, and counted every round."""


def emit_report(flow: FlowName, report: TaskReport, *, always: tuple[Watched, ...] = ()) -> None:
    """Print what a round found.

    Args:
        flow: whose task.
        report: how it went. `task-errors` and `task-troubles` are metrics of the flow, and so are the counts that
            alarms and the dashboard are for.
        always: metrics whose absence is an alarm, so that their zeros are emitted too.
    """
    metrics = _line(flow)
    counts = {
        "task-errors": int(bool(report.error)),
        "task-troubles": len(report.troubles),
        **report.counts,
    }
    others: dict[str, str | int] = {"task": report.task, "task-ms": report.ms}
    others |= {name: value for name, value in report.counts.items() if not is_watched(name)}
    emitted = {name: value for name, value in counts.items() if is_watched(name) and (value or name in always)}
    for name, value in emitted.items():
        _add(metrics, name, value)
    if emitted:
        for key, text in others.items():
            metrics.add_metadata(key, text)
        metrics.flush_metrics()
    else:
        print(json.dumps({"source": flow.source, "target": flow.target, **others}))

    said = (report.error, report.troubles)
    if _emitted.get((flow, report.task), ("", ())) != said:
        _emitted[flow, report.task] = said
        place = {"flow": str(flow), "task": report.task}
        if report.error:
            print(json.dumps({"level": "ERROR", **place, "error": report.error}))
        for trouble in report.troubles:
            print(json.dumps({"level": "WARNING", **place, "trouble": trouble}))


def emit_overdue(flow: FlowName, overdue: Mapping[str, str]) -> None:
    """Print that tasks have not been done for three intervals, as the metric of an alarm; nothing where none is.

    Args:
        flow: whose tasks.
        overdue: the error of each task's last round, by its name; empty where it has none.
    """
    if not overdue:
        return
    metrics = _line(flow)
    _add(metrics, "tasks-overdue", len(overdue))
    metrics.flush_metrics()
    why = "; ".join(
        f"{task}: {error or 'its function is not started, or does not end'}" for task, error in overdue.items()
    )
    print(json.dumps({"level": "WARNING", "flow": str(flow), "trouble": f"not done for three intervals: {why}"}))


def emit_standby(flow: FlowName, why: str) -> None:
    """Print that a flow's tasks are done outside its home, as the metric of an alarm, and why."""
    metrics = _line(flow)
    _add(metrics, "home-silent", 1)
    metrics.flush_metrics()
    print(json.dumps({"level": "WARNING", "flow": str(flow), "trouble": why}))


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
    metrics = _line(flow, job=progress.kind)
    lanes = progress.lanes
    stopped = lanes.get("stopped", 0) + lanes.get("failed", 0)
    _add(metrics, "job-records", progress.records)
    _add(metrics, "job-bytes", progress.bytes, MetricUnit.Bytes)
    _add(metrics, "job-lanes-left", lanes.get("waiting", 0) + lanes.get("running", 0))
    _add(metrics, "job-lanes-stopped", stopped)
    over = progress.state in {"succeeded", "failed"}
    _add(metrics, "job-needs-operator", int(over and not clean))
    metrics.add_metadata("run", progress.run_id)
    metrics.add_metadata("state", progress.state)
    metrics.flush_metrics()


def _line(flow: FlowName, **more: str) -> AmazonCloudWatchEMFProvider:
    """A line without metrics yet, with the flow and more as its dimensions."""
    metrics = AmazonCloudWatchEMFProvider(namespace=os.environ.get(NAMESPACE_VARIABLE, NAMESPACE))
    for name, value in {"source": flow.source, "target": flow.target, **more}.items():
        metrics.add_dimension(name, value)
    return metrics


def _add(
    line: AmazonCloudWatchEMFProvider, name: OfFlow | OfTopics | OfJob, value: int, unit: MetricUnit = MetricUnit.Count
) -> None:
    line.add_metric(name, unit, value)
