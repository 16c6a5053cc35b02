"""The model of costs, against examples that a hand computed."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from mirrorless.adapters.aws.metrics import GATHER_MS, BatchMetrics, emit_report
from mirrorless.chain.lane import Lane
from mirrorless.cost import replication
from mirrorless.cost.assumptions import METRICS_PER_TOPIC, TABLE, Assumptions, MeasuredEvent, ReplicationLoad
from mirrorless.cost.prices import PRICES, Prices
from mirrorless.cost.replication import (
    event_cpu_ms,
    heartbeats,
    mirrorless,
    msk_connect,
    msk_replicator,
    scheduled,
)
from mirrorless.groups.round import SLICES_PER_SECOND
from mirrorless.lanes.lane_check import FIGURES
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome
from mirrorless.scheduled.runner import TaskReport
from tests.support.chains import FLOW, run

ONE_LANE = ReplicationLoad(mb_per_second=1.0, record_bytes=1_000, topics=1, partitions=1)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 ms an event, 1 ms a thousand records, 4 ms a MB."""
    events = [MeasuredEvent(100, 10, 5.014), MeasuredEvent(100, 10_000, 19.0), MeasuredEvent(1_000, 4_000, 25.0)]
    monkeypatch.setattr(replication, "MEASURED_EVENTS", events)


def test_the_cpu_of_an_event_lies_on_the_measured_ones() -> None:
    assert event_cpu_ms(500, 500_000) == pytest.approx(5 + 0.5 + 2)


def test_one_lane_at_one_megabyte_a_second_costs_what_a_hand_computes() -> None:
    """Two events a second, of 500 records and 0.5 MB; a month of 730 hours has 2,628,000 s.

    Time: 7.5 ms of CPU at 1/1.769 of a core and 60 ms of waiting are 73.2675 ms, twice a second: 385,094 GB-s.
    Calls: 5.256 million. Writes: 10.512 million. Storage: 2 x 2,592,000 s x (234 + 85 + 100) bytes are 2.1721 GB at
    $0.45.
    Metrics: 6 x $0.30; alarms: 14 x $0.10, and $0.50 for the composite one. Logs at $0.50 a GB: 262,800 lines of 480
    bytes, and 43,800 minutes of 5,600 bytes.
    """
    costs = mirrorless(ONE_LANE, "on-demand")

    assert costs["functions: time"] == pytest.approx(385_094 * 0.0000133334, rel=1e-5)
    assert costs["functions: calls"] == pytest.approx(5.256 * 0.20)
    assert costs["offset map: writes"] == pytest.approx(10.512 * 0.625)
    assert costs["offset map: storage"] == pytest.approx(2.172096 * 0.45)
    assert costs["metrics, alarms, logs"] == pytest.approx(1.8 + 1.4 + 0.5 + 0.063072 + 0.12264)
    assert costs["pollers"] == 0


def test_no_topic_adds_to_the_alarms_and_each_to_the_metrics_on_request() -> None:
    two = replace(ONE_LANE, topics=2)
    part = "metrics, alarms, logs"

    plain = mirrorless(two, "on-demand")[part]

    assert mirrorless(two, "provisioned")[part] == plain
    by_topic = mirrorless(two, "on-demand", replace(Assumptions(), metrics_per_topic=METRICS_PER_TOPIC))[part]
    assert by_topic - plain == pytest.approx(2 * 6 * 0.30)


def test_an_environment_logs_no_more_than_its_events() -> None:
    """A hundred records a month are a hundred lines."""
    rare = ONE_LANE.at(100 * ONE_LANE.record_bytes / 1e6 / 2_628_000)

    in_rounds = 43_800 * (5_600 - 1_200) / 1e9 * 0.50
    more = mirrorless(rare, "on-demand")["metrics, alarms, logs"] - 0.6 - in_rounds
    idle = mirrorless(ONE_LANE.at(0), "on-demand")["metrics, alarms, logs"]

    assert more - idle == pytest.approx(100 * 480 / 1e9 * 0.50, abs=1e-9)


def test_metrics_and_log_bytes_are_those_that_the_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    idle, moving = (_printed_in_a_minute_without_records(capsys, rounds=rounds) for rounds in (1, 30))
    _batch("orders", per_topic=True)
    of_flow, of_topic = capsys.readouterr().out.splitlines()

    assumed = Assumptions()
    assert assumed.log_line_seconds * 1000 == GATHER_MS
    assert len(of_flow) == pytest.approx(assumed.log_line_bytes, rel=0.05)
    assert sum(map(len, idle)) == pytest.approx(assumed.idle_log_bytes, rel=0.05)
    assert sum(map(len, moving)) == pytest.approx(assumed.moving_log_bytes, rel=0.05)
    assert assumed.slices_per_second == SLICES_PER_SECOND
    in_idle_flow = set().union(*map(_metrics, idle))
    assert len(in_idle_flow) == assumed.metrics_per_flow
    assert len(_metrics(of_flow) - in_idle_flow) == assumed.metrics_of_records
    assert len(_metrics(of_topic)) == METRICS_PER_TOPIC


def _printed_in_a_minute_without_records(capsys: pytest.CaptureFixture[str], *, rounds: int) -> list[str]:
    """The lines of a minute without records in which all is well, with so many rounds of checkpoints."""
    checkpoints = ("checkpoints-emitted", "offsets-committed", "groups", "groups-not-ready", "reread-records-max")
    topics = ("topics", "partitions", "lanes-stopped", "mappings-created", "mappings-deleted", "mappings-pending")
    tasks: list[tuple[int, str, dict[str, int]]] = [
        (1, "heartbeats", {"heartbeats-emitted": 2}),
        (rounds, "checkpoints", dict.fromkeys(checkpoints, 0)),
        (1, "lanes", dict.fromkeys(FIGURES, 0)),
        (1, "topics", dict.fromkeys(topics, 0)),
    ]
    for times, task, figures in tasks:
        for _ in range(times):
            emit_report(FLOW, TaskReport(task=task, at=1, ms=123, figures=figures))
    _batch("heartbeats", records=1)
    return capsys.readouterr().out.splitlines()


def _batch(topic: str, *, records: int = 500, per_topic: bool = False) -> None:
    at = 1_790_000_000_000
    written = run(0, records, (0, 0, records), lane=Lane(FLOW, topic, 0))
    written = replace(written, bytes=1000 * records, oldest_timestamp=at - 900, newest_timestamp=at - 100)
    outcome = BatchOutcome(runs=[written], stopped={})
    metrics = BatchMetrics(FLOW, per_topic=(lambda each: f"us-east.{each}") if per_topic else None)
    metrics.add(Batch.of_topic(topic, {0: []}), outcome, received_at=at - 50, now=at)


def _metrics(line: str) -> set[str]:
    """The metrics that a line declares, if any."""
    declared = json.loads(line).get("_aws", {"CloudWatchMetrics": []})["CloudWatchMetrics"]
    return {metric["Name"] for each in declared for metric in each["Metrics"]}


@pytest.mark.parametrize(
    ("partitions", "units"),
    [
        (1, 2),
        (6, 2),  # 744 bytes
        (9, 2),  # 711, for nine runs are compressed
        (16, 4),  # 1,082; paid by the KB begun
        (60, 16),  # four slices of 15 lanes, 1,029 each
    ],
)
def test_an_event_writes_its_entries_twice_by_the_kilobyte(partitions: int, units: int) -> None:
    workload = ReplicationLoad(mb_per_second=1, topics=1, partitions=partitions)

    costs = mirrorless(workload, "on-demand", replace(Assumptions(), poller_mb_per_second=1e9))

    assert costs["offset map: writes"] == pytest.approx(2 * 2.628 * units * 0.625)  # two events a second


@pytest.mark.parametrize(
    ("workload", "units"),
    [
        (ReplicationLoad(mb_per_second=0), 1),
        (ReplicationLoad(mb_per_second=100), 5),  # by the 20 MB/s
        (ReplicationLoad(mb_per_second=1, topics=100), 10),  # by the ten pollers, one a topic
        (ReplicationLoad(mb_per_second=0, topics=101), 12),  # two groups of some 50
        (ReplicationLoad(mb_per_second=0, topics=250), 27),  # three groups of some 83
        (ReplicationLoad(mb_per_second=130, topics=250), 27),  # 43.3 MB/s each: by the pollers
        (ReplicationLoad(mb_per_second=100, topics=2, partitions=4), 5),  # no more pollers than partitions
    ],
)
def test_provisioned_pollers_are_paid_by_the_unit_that_they_share(workload: ReplicationLoad, units: int) -> None:
    assert mirrorless(workload, "provisioned")["pollers"] == pytest.approx(units * 730 * 0.185)


def test_a_flow_in_which_nothing_moves_costs_five_dollars_at_most_beside_its_dashboard() -> None:
    """7 s of each of 43,800 minutes at 256 MB are 76,650 GB-s; two calls and starts, 10 writes and 21 reads a minute.

    43,800 heartbeats: 5.0014 ms of CPU at 1/1.769 of a core and 60 ms of waiting, a call, two writes.
    """
    costs = mirrorless(ONE_LANE.at(0.0), "on-demand")

    functions = 76_650 * 0.0000133334 + 87_600 * 0.0000012 + 438_000 * 0.000000625 + 919_800 * 0.000000125
    beats = 43_800 * (0.0688490 * 0.0000133334 + 0.0000002 + 2 * 0.000000625)
    assert costs.pop("dashboard") == 3
    assert sum(costs.values()) <= 5
    assert costs.pop("scheduled functions") == pytest.approx(functions)
    assert costs.pop("heartbeats") == pytest.approx(beats, rel=1e-4)
    assert costs.pop("metrics, alarms, logs") == pytest.approx(1.2 + 1.4 + 0.5 + 0.02628)
    assert set(costs.values()) == {0.0}


def test_groups_that_move_keep_the_function_running_and_read_their_slices_up_to_the_pace() -> None:
    """63 s of each minute at 256 MB; 150 writes; 30 rounds of ten slices, or 80 slices a second of a thousand."""
    few, many = (scheduled(ReplicationLoad(mb_per_second=1, topics=topics), moving=True) for topics in (10, 1_000))

    assert few == pytest.approx(
        43_800 * (63 * 0.25 * 0.0000133334 + 2 * 0.0000012 + 150 * 0.000000625 + 320 * 0.000000125)
    )
    assert many - few == pytest.approx(43_800 * (4_820 - 320) * 0.000000125)


def test_heartbeats_below_a_minute_keep_the_function_running() -> None:
    often = replace(Assumptions(), heartbeat_seconds=10)

    more = scheduled(ONE_LANE, often, moving=False) - scheduled(ONE_LANE, moving=False)

    assert more == pytest.approx(43_800 * 56 * 0.25 * 0.0000133334)
    assert heartbeats(often) == pytest.approx(6 * heartbeats())


def test_a_copy_of_the_tables_pays_each_write_and_byte_again() -> None:
    one, two = (mirrorless(ONE_LANE, "on-demand", replace(Assumptions(), copies=copies)) for copies in (0, 1))

    for part in ("offset map: writes", "offset map: storage"):
        assert two[part] == pytest.approx(2 * one[part])
    assert two["scheduled functions"] - one["scheduled functions"] == pytest.approx(43_800 * 150 * 0.000000625)
    assert two["heartbeats"] - one["heartbeats"] == pytest.approx(43_800 * 2 * 0.000000625)


def test_a_longer_window_makes_fewer_and_fuller_events_until_they_are_full() -> None:
    """1 MB/s fills an event of 6 MB in about 4 s: a window of 5 s and one of 60 s are the same."""
    short, long, longest = (
        mirrorless(ONE_LANE, "on-demand", replace(Assumptions(), window_seconds=each)) for each in (0.5, 5, 60)
    )

    assert long == longest
    assert long["functions: calls"] < short["functions: calls"] / 7


def test_the_others_cost_what_a_hand_computes() -> None:
    """10 MB/s are 26,280 GB a month. 100 MB/s of 1 KB are 0.87 of tuned MM2's CPU-seconds: 2 units half busy, and 2."""
    ten = ReplicationLoad(mb_per_second=10)

    assert msk_replicator(ten) == pytest.approx(730 * 0.30 + 26_280 * 0.08)
    assert msk_connect(ten.at(0)) == pytest.approx(3 * 730 * 0.11)
    assert msk_connect(ten.at(100)) == pytest.approx(4 * 730 * 0.11)


def test_every_assumption_says_where_it_is_from_and_every_unchecked_price_exists() -> None:
    assert set(TABLE) == {each.name for each in fields(Assumptions)}
    assert set(PRICES.unchecked.prices) <= set(Prices.__struct_fields__)
