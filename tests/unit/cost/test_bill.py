"""The bill of a flow, against examples that a hand computed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mirrorless.adapters.aws.metrics import GATHER_MS, BatchMetrics, emit_report
from mirrorless.chain.lane import Lane
from mirrorless.cost.bill import (
    LOG_LINE_BYTES,
    LOG_LINE_SECONDS,
    METRICS_OF_FLOW,
    METRICS_OF_RECORDS,
    METRICS_OF_TOPIC,
    SLICES_PER_SECOND,
    USUAL,
    BilledSettings,
    MappingSettings,
    Mode,
    ReplicationLoad,
    entry_bytes,
    mapped,
    msk_connect,
    msk_replicator,
    shared,
    standby,
    together,
    written,
)
from mirrorless.groups import round as checkpoint_round
from mirrorless.lanes.lane_check import COUNTS
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome
from mirrorless.scheduled.runner import TaskReport
from tests.support.chains import FLOW, run

ONE_LANE = ReplicationLoad(mb_per_second=1.0, record_bytes=1_000, topics=1, partitions=1)
MINUTES = 43_800
"""Of a month of 730 hours, which has 2,628,000 s."""


def bill(load: ReplicationLoad, settings: BilledSettings = USUAL, *, window: int | None = None) -> dict[str, float]:
    return together(mapped([load], MappingSettings(window=window), settings), shared([load], settings))


def test_one_lane_at_one_megabyte_a_second_costs_what_a_hand_computes() -> None:
    """Two events a second, of 500 records and 0.5 MB.

    Time: 3.783 + 0.677 + 1.643 ms of CPU at 1/1.769 of a core and 60 ms of waiting are 70.794 ms, twice a second:
    372,095 GB-s. Calls: 5.256 million. Writes: 10.512 million. Storage: 2 x 2,592,000 s x (234 + 85 + 100) bytes are
    2.1721 GB at $0.45. Metrics: 6 x $0.30; alarms: 14 x $0.10, and $0.50 for the one of them all. Logs: 262,800 lines
    of 480 bytes at $0.50 a GB.
    """
    costs = bill(ONE_LANE)

    assert costs["functions: time"] == pytest.approx(372_095 * 0.0000133334, rel=1e-5)
    assert costs["functions: calls"] == pytest.approx(5.256 * 0.20)
    assert costs["offset map: writes"] == pytest.approx(10.512 * 0.625)
    assert costs["offset map: reads"] == pytest.approx(MINUTES * 0.000000125)
    assert costs["offset map: storage"] == pytest.approx(2.172096 * 0.45)
    assert costs["metrics, alarms, logs"] == pytest.approx(1.8 + 1.4 + 0.5 + 0.063072)
    assert costs["pollers"] == 0


def test_each_topic_adds_to_the_metrics_on_request() -> None:
    two, part = replace(ONE_LANE, topics=2), "metrics, alarms, logs"

    more = bill(two, BilledSettings(metrics_per_topic=True))[part] - bill(two)[part]

    assert more == pytest.approx(2 * 6 * 0.30)


def test_an_environment_logs_no_more_than_its_events() -> None:
    """A hundred records a month are a hundred lines, beside the two metrics of records."""
    rare = ONE_LANE.at(100 * ONE_LANE.record_bytes / 1e6 / 2_628_000)

    more = bill(rare)["metrics, alarms, logs"] - bill(ONE_LANE.at(0))["metrics, alarms, logs"]

    assert more == pytest.approx(0.6 + 100 * 480 / 1e9 * 0.50, abs=1e-9)


def test_metrics_and_the_lines_of_logs_are_those_that_the_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """All is well, and no record moves: a heartbeat, a round of each task. Then a batch of the flow, with a topic's."""
    checkpoints = ("checkpoints-emitted", "offsets-committed", "groups", "groups-not-ready", "reread-records-max")
    topics = ("topics", "partitions", "lanes-stopped", "mappings-created", "mappings-deleted", "mappings-pending")
    tasks = {"heartbeats": {"heartbeats-emitted": 2}, "checkpoints": dict.fromkeys(checkpoints, 0)}
    tasks |= {"lanes": dict.fromkeys(COUNTS, 0), "topics": dict.fromkeys(topics, 0)}
    for task, figures in tasks.items():
        emit_report(FLOW, TaskReport(task=task, at=1, ms=123, counts=figures))
    _batch("heartbeats", records=1)
    idle = set().union(*map(_metrics, capsys.readouterr().out.splitlines()))
    _batch("orders", per_topic=True)
    of_flow, of_topic = capsys.readouterr().out.splitlines()

    assert LOG_LINE_SECONDS * 1000 == GATHER_MS
    assert len(of_flow) == pytest.approx(LOG_LINE_BYTES, rel=0.05)
    assert len(idle) == METRICS_OF_FLOW
    assert len(_metrics(of_flow) - idle) == METRICS_OF_RECORDS
    assert len(_metrics(of_topic)) == METRICS_OF_TOPIC


def _batch(topic: str, *, records: int = 500, per_topic: bool = False) -> None:
    at = 1_790_000_000_000
    written = run(0, records, (0, 0, records), lane=Lane(FLOW, topic, 0))
    written = replace(written, bytes=1000 * records, oldest_timestamp=at - 900, newest_timestamp=at - 100)
    metrics = BatchMetrics(FLOW, per_topic=(lambda each: f"us-east.{each}") if per_topic else None)
    outcome = BatchOutcome(runs=[written], stopped={})
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
    costs = bill(ReplicationLoad(mb_per_second=1, topics=1, partitions=partitions))

    assert costs["offset map: writes"] == pytest.approx(2 * 2.628 * units * 0.625)  # two events a second


def test_an_entry_of_some_lanes_holds_the_heads_of_the_others() -> None:
    """One run of 85 bytes, and 15 heads of 16."""
    assert entry_bytes(1, others=15) == 234 + 85 + 240
    one, all_ = (written(1.0, lanes, replace(ONE_LANE, partitions=16)) for lanes in (1, 16))
    assert one["offset map: storage"] == pytest.approx(2_592_000 * (559 + 100) / 1e9 * 0.45)
    assert all_["offset map: storage"] == pytest.approx(2_592_000 * (234 + 45 + 16 * 50 + 100) / 1e9 * 0.45)


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
    modes: tuple[Mode, ...] = ("provisioned", "on-demand")
    paid, free = (mapped([workload], MappingSettings(mode=mode)) for mode in modes)

    assert paid == free | {"pollers": pytest.approx(units * 730 * 0.185)}


def test_a_flow_in_which_nothing_moves_costs_five_dollars_at_most_beside_its_dashboard() -> None:
    """7 s of each of 43,800 minutes at 256 MB; two calls and starts, 10 writes and 21 reads a minute.

    43,800 heartbeats: 3.784 ms of CPU at 1/1.769 of a core and 60 ms of waiting, a call, two writes.
    """
    costs = bill(ONE_LANE.at(0.0))

    minute = 7 * 0.25 * 0.0000133334 + 2 * 0.0000012 + 10 * 0.000000625 + 21 * 0.000000125
    beats = MINUTES * (0.0666945 * 0.0000133334 + 0.0000002 + 2 * 0.000000625)
    assert costs.pop("dashboard") == 3
    assert sum(costs.values()) <= 5
    assert costs.pop("scheduled functions") == pytest.approx(MINUTES * minute)
    assert costs.pop("heartbeats") == pytest.approx(beats, rel=1e-4)
    assert costs.pop("metrics, alarms, logs") == pytest.approx(1.2 + 1.4 + 0.5)
    assert set(costs.values()) == {0.0}


def test_groups_that_move_keep_the_function_running_and_read_their_slices_up_to_the_pace() -> None:
    """63 s of each minute at 256 MB; 150 writes; 30 rounds of ten slices, or 80 slices a second of a thousand."""
    few, many = (
        shared([ReplicationLoad(mb_per_second=1, topics=topics)])["scheduled functions"] for topics in (10, 1_000)
    )

    minute = 63 * 0.25 * 0.0000133334 + 2 * 0.0000012 + 150 * 0.000000625 + 320 * 0.000000125
    assert few == pytest.approx(MINUTES * minute)
    assert many - few == pytest.approx(MINUTES * (4_820 - 320) * 0.000000125)
    assert SLICES_PER_SECOND == checkpoint_round.SLICES_PER_SECOND


def test_heartbeats_below_a_minute_keep_the_function_running() -> None:
    usual, often = (shared([ONE_LANE.at(0)], BilledSettings(heartbeat_seconds=each)) for each in (60, 10))

    more = often["scheduled functions"] - usual["scheduled functions"]
    assert more == pytest.approx(MINUTES * 56 * 0.25 * 0.0000133334)
    assert often["heartbeats"] == pytest.approx(6 * usual["heartbeats"])


def test_a_copy_of_the_tables_pays_each_write_and_byte_again() -> None:
    one, two = (bill(ONE_LANE, BilledSettings(copies=copies)) for copies in (0, 1))

    for part in ("offset map: writes", "offset map: storage"):
        assert two[part] == pytest.approx(2 * one[part])
    assert two["scheduled functions"] - one["scheduled functions"] == pytest.approx(MINUTES * 150 * 0.000000625)
    assert two["heartbeats"] - one["heartbeats"] == pytest.approx(MINUTES * 2 * 0.000000625)
    assert standby(BilledSettings(copies=1)) - standby() == pytest.approx(MINUTES * 2 * 0.000000625)


def test_a_longer_window_makes_fewer_and_fuller_events_until_they_are_full() -> None:
    """1 MB/s fills an event of 6 MB in about 4 s: a window of 5 s and one of 60 s are the same."""
    short, long, longest = bill(ONE_LANE), bill(ONE_LANE, window=5), bill(ONE_LANE, window=60)

    assert long == longest
    assert long["functions: calls"] < short["functions: calls"] / 7


def test_the_others_cost_what_a_hand_computes() -> None:
    """10 MB/s are 26,280 GB a month. 100 MB/s of 1 KB are 0.87 of tuned MM2's CPU-seconds: 2 units half busy, and 2."""
    ten = ReplicationLoad(mb_per_second=10)

    assert msk_replicator(ten) == pytest.approx(730 * 0.30 + 26_280 * 0.08)
    assert msk_replicator(replace(ten.at(0), topics=750)) == pytest.approx(730 * 0.30)
    assert msk_replicator(replace(ten.at(0), topics=751)) == pytest.approx(2 * 730 * 0.30)
    assert msk_connect(ten.at(0)) == pytest.approx(3 * 730 * 0.11)
    assert msk_connect(ten.at(100)) == pytest.approx(4 * 730 * 0.11)
