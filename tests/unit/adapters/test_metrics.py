"""Metrics: gathered figures of batches, figures of a round that become metrics, and the progress of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast, get_args

import pytest

from mirrorless.adapters.aws.metrics import BatchMetrics, emit_progress, emit_report
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Run
from mirrorless.jobs.progress import JobProgress, JobState, LaneProgress, LaneStateName, add_up
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome
from mirrorless.records.origin import OffsetRows
from mirrorless.scheduled.runner import TaskReport
from tests.support.chains import FLOW


class _Written:
    """What a line reads of a run."""

    def __init__(self, records: int, size: int, oldest: int, newest: int) -> None:
        self.lane = Lane(FLOW, "orders", 0)
        self.records, self.bytes, self.passed_bytes = records, size, 0
        self.returned: OffsetRows = ()
        self.filtered: OffsetRows = ()
        self.throttled_ms = 0
        self.oldest_timestamp, self.newest_timestamp = oldest, newest


def added(metrics: BatchMetrics, *runs: _Written, now: int, topic: str = "orders", stopped: bool = False) -> None:
    """Add a batch that was received 5 ms before it was confirmed."""
    stop = Stop(reason="refused", upstream_offset=1, detail="too large", at=1)
    for run in runs:
        run.lane = Lane(FLOW, topic, 0)
    outcome = BatchOutcome(runs=cast("tuple[Run, ...]", runs), stopped={(topic, 0): stop} if stopped else {})
    metrics.add(Batch.of_topic(topic, {0: []}), outcome, received_at=now - 5, now=now)


def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """Dimensions and metrics of each printed line."""
    for text in capsys.readouterr().out.splitlines():
        line = json.loads(text)
        (declared,) = line["_aws"]["CloudWatchMetrics"]
        (dimensions,) = declared["Dimensions"]
        yield (
            {name: line[name] for name in dimensions},
            {metric["Name"]: value for metric in declared["Metrics"] for value in line[metric["Name"]]},
        )


OF_FLOW = {"source": "us-east", "target": "eu-west"}


def test_batches_of_ten_seconds_are_one_line_of_sums_and_maxima_of_the_flow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = BatchMetrics(FLOW)
    added(metrics, _Written(1, 10, 99_000, 99_500), now=100_000)
    assert len(list(lines(capsys))) == 1

    added(metrics, _Written(2, 20, 100_000, 104_000), now=105_000)
    added(metrics, _Written(3, 30, 108_000, 109_000), now=109_999, topic="payments")
    assert list(lines(capsys)) == []
    added(metrics, _Written(4, 40, 109_990, 109_990), now=110_000)

    counts = {"record-count": 9, "byte-count": 90}
    times = {"record-age-ms-max": 4_995, "replication-latency-ms-max": 5_000}
    assert list(lines(capsys)) == [(OF_FLOW, counts | times)]


def test_the_longest_pause_that_a_broker_asked_for_is_a_figure_and_none_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics, runs = BatchMetrics(FLOW), [_Written(1, 10, 99_000, 99_500) for _ in range(3)]
    for run, pause in zip(runs, (0, 4_200, 300), strict=True):
        run.throttled_ms = pause

    added(metrics, *runs, now=100_000)

    ((_, figures),) = lines(capsys)
    assert figures["produce-throttle-time-max"] == 4_200


def test_records_that_return_or_are_filtered_are_counted_though_their_run_has_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _Written(0, 0, -1, -1)
    run.returned, run.filtered = ((3, 5), (9, 10)), ((5, 9),)

    added(BatchMetrics(FLOW), run, now=100_000)

    assert [figures for _, figures in lines(capsys)] == [{"returned-count": 3, "filtered-count": 4}]


def test_an_environment_with_few_events_prints_at_each(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = BatchMetrics(FLOW)

    for now in (100_000, 110_000, 125_000):
        added(metrics, _Written(1, 10, now, now), now=now)

    assert [figures["record-count"] for _, figures in lines(capsys)] == [1, 1, 1]


def test_a_lane_that_is_stopped_is_printed_at_once_with_what_was_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = BatchMetrics(FLOW)
    for now in (100_000, 100_001):
        added(metrics, _Written(1, 10, now, now), now=now)

    for now in (100_002, 100_003):
        added(metrics, now=now, stopped=True)

    _, first, second = (figures for _, figures in lines(capsys))
    assert (first["record-count"], first["stopped-lanes"]) == (1, 1)
    assert second == {"stopped-lanes": 1}


def test_a_batch_that_adds_nothing_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    added(BatchMetrics(FLOW), now=100_000)

    assert capsys.readouterr().out == ""


def test_a_clock_that_is_set_back_keeps_no_figures_back(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = BatchMetrics(FLOW)

    for now in (3_700_000, 100_000):
        added(metrics, _Written(1, 10, now, now), now=now)

    assert len(list(lines(capsys))) == 2


def test_heartbeats_of_the_source_are_counted_apart_from_records(capsys: pytest.CaptureFixture[str]) -> None:
    added(BatchMetrics(FLOW), _Written(2, 100, 99_000, 99_900), now=100_000, topic="heartbeats")

    ((_, figures),) = lines(capsys)
    assert figures == {"heartbeats-arrived": 2, "record-age-ms-max": 995, "replication-latency-ms-max": 1_000}


def test_topics_have_lines_of_their_own_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = BatchMetrics(FLOW, per_topic=lambda topic: f"us-east.{topic}")
    added(metrics, _Written(1, 10, 99_000, 99_500), now=100_000)
    list(lines(capsys))
    for topic, now in (("orders", 101_000), ("heartbeats", 102_000), ("orders", 110_000)):
        added(metrics, _Written(2, 20, now - 100, now - 50), now=now, topic=topic)

    of_flow, orders, heartbeats = lines(capsys)

    assert of_flow[0] == OF_FLOW
    assert (of_flow[1]["record-count"], of_flow[1]["heartbeats-arrived"]) == (4, 2)
    ages = {"record-age-ms-max": 95, "record-age-ms-min": 45}
    latencies = {"replication-latency-ms-max": 100, "replication-latency-ms-min": 50}
    assert orders[0] == OF_FLOW | {"topic": "us-east.orders"}
    assert orders[1] == {"record-count": 4, "byte-count": 40, **ages, **latencies}
    assert heartbeats[0]["topic"] == "us-east.heartbeats"
    assert heartbeats[1]["record-count"] == 2


def test_what_alarms_are_for_is_a_metric_of_the_flow_and_the_rest_stands_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flow = FlowName("metrics", "eu-west")
    emit_report(flow, TaskReport(task="checkpoints", at=1, ms=17, counts={"groups": 3, "groups-not-ready": 1}))

    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    (declared,) = line["_aws"]["CloudWatchMetrics"]
    assert declared["Namespace"] == "Mirrorless"
    assert declared["Dimensions"] == [["source", "target"]]
    assert {metric["Name"] for metric in declared["Metrics"]} == {"groups-not-ready"}
    assert (line["source"], line["target"], line["task"]) == ("metrics", "eu-west", "checkpoints")
    assert (line["groups-not-ready"], line["groups"], line["task-ms"]) == ([1.0], 3, 17)


def test_a_round_in_which_all_is_well_has_a_line_and_no_metric(capsys: pytest.CaptureFixture[str]) -> None:
    report = TaskReport(task="checkpoints", at=1, ms=17, counts={"groups": 3, "groups-not-ready": 0})
    emit_report(FlowName("well", "eu-west"), report)

    line = {"source": "well", "target": "eu-west", "task": "checkpoints", "task-ms": 17, "groups": 3}
    assert json.loads(capsys.readouterr().out) == line


def test_a_metric_whose_absence_is_an_alarm_is_emitted_as_zero_too(capsys: pytest.CaptureFixture[str]) -> None:
    report = TaskReport(task="lanes", at=1, ms=17, counts={"doubts-open": 0})
    emit_report(FlowName("watched", "eu-west"), report, always=("task-errors",))

    assert [figures for _, figures in lines(capsys)] == [{"task-errors": 0}]


def test_what_stays_wrong_is_logged_once_and_counted_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    flow = FlowName("troubles", "eu-west")
    bad = TaskReport(task="heartbeats", at=1, ms=1, error="no answer", troubles=("one", "two"))
    for report in (bad, bad, TaskReport(task="heartbeats", at=1, ms=1), bad):
        emit_report(flow, report)

    printed = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    said = [(line["level"], line.get("error") or line.get("trouble")) for line in printed if "level" in line]
    assert said == [("ERROR", "no answer"), ("WARNING", "one"), ("WARNING", "two")] * 2
    assert [line["task-errors"] for line in printed if "_aws" in line] == [[1.0], [1.0], [1.0]]


def progress(state: JobState) -> JobProgress:
    lanes = [LaneProgress(lane=each, state=each, records=10, bytes=100) for each in get_args(LaneStateName)]
    flow = "us-east->eu-west"
    return add_up(lanes, run_id="verify-1", kind="verify", flow=flow, state=state, phase="", started_at=0, at=1)


def test_a_line_has_the_progress_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    emit_progress(progress("running"), clean=None)

    line = json.loads(capsys.readouterr().out)
    assert (line["source"], line["target"], line["job"], line["run"]) == ("us-east", "eu-west", "verify", "verify-1")
    names = ("records", "bytes", "lanes-left", "lanes-stopped", "needs-operator")
    assert [line[f"job-{name}"] for name in names] == [[50.0], [500.0], [2.0], [2.0], [0.0]]
    (described,) = line["_aws"]["CloudWatchMetrics"]
    assert described["Namespace"] == "Mirrorless"
    assert described["Dimensions"] == [["source", "target", "job"]]


@pytest.mark.parametrize(
    ("state", "clean", "expected"),
    [("succeeded", True, 0.0), ("succeeded", False, 1.0), ("failed", None, 1.0), ("cancelled", None, 0.0)],
)
def test_the_end_says_whether_an_operator_is_needed(
    state: JobState, clean: Any, expected: float, capsys: pytest.CaptureFixture[str]
) -> None:
    emit_progress(progress(state), clean=clean)

    assert json.loads(capsys.readouterr().out)["job-needs-operator"] == [expected]
