"""The bills of mappings, of rounds of scheduled topics, and of jobs, against examples that a hand computed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mirrorless.adapters.aws.metrics import GATHER_MS, BatchMetrics, emit_report
from mirrorless.chain.lane import Lane
from mirrorless.cost.bill import (
    JOURNALS_PER_SECOND,
    LOG_LINE_BYTES,
    LOG_LINE_SECONDS,
    METRICS_OF_FLOW,
    METRICS_OF_RECORDS,
    METRICS_OF_TOPIC,
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
from mirrorless.cost.prices import DRIVER, EXECUTOR, dollars, dollars_per_hour, executors_for
from mirrorless.cost.shards import ShardSettings, fits, pull_p99, pull_round, pulled, pulled_alone
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
        (60, 16),  # four journals of 15 lanes, 1,029 each
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
    """7 s of each of 43,800 minutes at 256 MB; two calls and starts, 10 writes and a read a minute.

    43,800 heartbeats: 3.784 ms of CPU at 1/1.769 of a core and 60 ms of waiting, a call, two writes.
    """
    costs = bill(ONE_LANE.at(0.0))

    minute = 7 * 0.25 * 0.0000133334 + 2 * 0.0000012 + 10 * 0.000000625 + 1 * 0.000000125
    beats = MINUTES * (0.0666945 * 0.0000133334 + 0.0000002 + 2 * 0.000000625)
    assert costs.pop("dashboard") == 3
    assert sum(costs.values()) <= 5
    assert costs.pop("scheduled functions") == pytest.approx(MINUTES * minute)
    assert costs.pop("heartbeats") == pytest.approx(beats, rel=1e-4)
    assert costs.pop("metrics, alarms, logs") == pytest.approx(1.2 + 1.4 + 0.5)
    assert set(costs.values()) == {0.0}


def test_groups_that_move_keep_the_function_running_and_read_their_journals_up_to_the_pace() -> None:
    """63 s of each minute at 256 MB; 150 writes; 30 rounds of ten journals, or 80 journals a second of a thousand."""
    few, many = (
        shared([ReplicationLoad(mb_per_second=1, topics=topics)])["scheduled functions"] for topics in (10, 1_000)
    )

    minute = 63 * 0.25 * 0.0000133334 + 2 * 0.0000012 + 150 * 0.000000625 + 300 * 0.000000125
    assert few == pytest.approx(MINUTES * minute)
    assert many - few == pytest.approx(MINUTES * (4_800 - 300) * 0.000000125)
    assert JOURNALS_PER_SECOND == checkpoint_round.JOURNALS_PER_SECOND


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


# Rounds of scheduled topics

EACH_SECOND = ShardSettings(continuous=True, seconds=1, shards=1, memory_mb=1024)


def test_a_round_of_one_lane_takes_what_a_hand_computes() -> None:
    """A thousand records of 1 KB in one transaction, one entry.

    CPU: 0.55 for its lane, 1.05 for the entry, 3.5 for the records, 3.5 for the MB, a tenth of 0.9 for its group:
    8.69 ms, at 1/1.769 of a core 15.37 ms; and 60 ms of waiting.
    """
    found = pull_round([ONE_LANE], EACH_SECOND)

    assert (found.transactions, found.entries, found.lanes, found.mb) == (1, 1, 1, 1)
    assert found.cpu_seconds == pytest.approx(0.00869)
    assert found.seconds == pytest.approx(0.01537 + 0.060, rel=1e-3)
    assert pull_p99([ONE_LANE], EACH_SECOND) == pytest.approx(1 + 2 * found.seconds)


def test_records_that_are_rare_make_entries_as_often_as_they_come() -> None:
    """One each 100 s, and a window of 1 s: no entry of an empty window."""
    found = pull_round([ONE_LANE.at(0.00001)], EACH_SECOND)

    assert found.entries == pytest.approx(0.01)
    assert found.transactions == pytest.approx(0.01)


def test_64_lanes_share_a_transaction_and_16_an_entry() -> None:
    wide = ReplicationLoad(mb_per_second=1, topics=4, partitions=32)

    found = pull_round([wide], EACH_SECOND)

    assert found.transactions == 2
    assert found.entries == 8


@pytest.mark.parametrize(("mb_per_second", "record_bytes"), [(16.0, 1_000), (4.0, 100)])
def test_more_than_is_gathered_at_a_time_is_written_in_several_transactions(
    mb_per_second: float, record_bytes: int
) -> None:
    """8 MB, or 20,000 records."""
    found = pull_round([replace(ONE_LANE.at(mb_per_second), record_bytes=record_bytes)], EACH_SECOND)

    assert found.transactions == 2


def test_lanes_of_a_journal_that_are_gathered_apart_have_an_entry_each_time() -> None:
    """Six lanes fall on two gatherings; only all of them in one, 1 time in 32, need one entry."""
    hundred = ReplicationLoad(mb_per_second=16, topics=100, partitions=6)

    assert pull_round([hundred], EACH_SECOND).entries == pytest.approx(100 * (2 - 1 / 32))


def test_a_busy_lane_comes_in_parts_and_the_silent_ones_beside_it_do_not() -> None:
    """64 MB by the MB, gathered eight times; 63 lanes with a record or two."""
    busy, others = ONE_LANE.at(64.0), ReplicationLoad(mb_per_second=0.1, topics=63, partitions=1)

    found = pull_round([busy, others], EACH_SECOND)

    assert found.transactions == pytest.approx(64.1 / 8)
    assert found.lanes == pytest.approx(63 + 64)
    assert found.entries == pytest.approx(63 + 64.1 / 8, rel=1e-3)


def test_shards_divide_journals_and_write_no_entry_twice() -> None:
    topics = ReplicationLoad(mb_per_second=1, topics=10, partitions=6)

    assert pull_round([topics], replace(EACH_SECOND, shards=4)).entries * 4 == pytest.approx(10)


def test_a_continuous_run_lists_silent_lanes_each_five_seconds_and_a_run_by_interval_all_of_them_twice() -> None:
    """0.01 ms each; a lane with a record a minute is not silent."""
    silent, rare = (ReplicationLoad(mb_per_second=each, topics=1_000, partitions=1) for each in (0.0, 1_000 / 60 / 1e3))
    ten = replace(EACH_SECOND, seconds=10)

    assert pull_round([silent], ten).cpu_seconds == pytest.approx(0.02)
    assert pull_round([silent], replace(ten, continuous=False)).cpu_seconds == pytest.approx(0.02)
    assert pull_round([silent, rare], ten).cpu_seconds - pull_round([rare], ten).cpu_seconds == pytest.approx(0.02)


def test_a_lane_that_moves_rarely_waits_until_it_is_looked_at() -> None:
    """A record each 100 s is found after 100 s / 30; one each 1,000 s after 5 s; one each 50 s comes by itself."""
    found = [pull_p99([ONE_LANE.at(1 / seconds / 1_000)], EACH_SECOND) for seconds in (50, 100, 1_000)]

    assert found[1] - found[0] == pytest.approx(100 / 30, abs=0.1)
    assert found[2] - found[0] == pytest.approx(5, abs=0.1)


def test_a_shard_takes_no_more_than_40_mb_a_second() -> None:
    large = replace(ONE_LANE.at(30.0), record_bytes=100_000)

    assert pull_round([large], replace(EACH_SECOND, seconds=10, memory_mb=1769)).seconds == pytest.approx(300 / 40)


def lanes(topics: int, mb_per_second: float = 0.0) -> ReplicationLoad:
    return ReplicationLoad(mb_per_second=mb_per_second, topics=topics, partitions=1)


def peaks(peak: float) -> ReplicationLoad:
    return replace(ONE_LANE, peak=peak)


SHORT, SHORTER, TEN = (replace(EACH_SECOND, seconds=seconds) for seconds in (0.15, 0.1, 10))
MINUTE = ShardSettings(continuous=False, seconds=60, memory_mb=512)
EIGHT = ShardSettings(continuous=True, seconds=10, shards=8, memory_mb=1769)
FITTING: dict[str, tuple[ReplicationLoad, list[tuple[ShardSettings, bool]]]] = {
    # A round takes 67 ms of a window of 150, of which it may have 90, and its peak all.
    "time to catch up": (ONE_LANE, [(SHORT, True), (SHORTER, False)]),
    "a peak": (peaks(20), [(SHORT, True)]),
    "a peak too high": (peaks(60), [(SHORT, False)]),
    # 260 MB, and 20 KB a lane.
    "memory for its lanes": (lanes(12_600), [(MINUTE, True)]),
    "too many lanes": (lanes(12_700), [(MINUTE, False), (replace(MINUTE, shards=2), True)]),
    "lanes that it follows": (lanes(1_024, 0.1), [(TEN, True)]),
    "too many that it follows": (lanes(1_025, 0.1), [(TEN, False), (replace(MINUTE, memory_mb=1024), True)]),
    # One journal is on one shard, however many there are; of a thousand each has its part, more or less.
    "many journals": (lanes(1_000, 60), [(EIGHT, True)]),
    "one journal": (ONE_LANE.at(60.0), [(EIGHT, False)]),
}


@pytest.mark.parametrize(("load", "expected"), FITTING.values(), ids=FITTING)
def test_a_shard_can_do_so_much(load: ReplicationLoad, expected: list[tuple[ShardSettings, bool]]) -> None:
    assert [(pull, fits([load], pull)) for pull, _ in expected] == expected


def test_lanes_that_are_silent_are_not_followed() -> None:
    assert fits([lanes(1_024, 0.1), lanes(100)], TEN)


@pytest.mark.parametrize(("topics", "waited"), [(16, 2), (24, 2.5), (64, 3)])
def test_a_record_waits_for_its_window_its_transaction_and_one_that_is_under_way(topics: int, waited: float) -> None:
    """The tail of its own is twice the mean. Of one transaction and a half, another is under way half of the time."""
    loads = [ReplicationLoad(mb_per_second=1, topics=topics, partitions=4)]
    found = pull_round(loads, EACH_SECOND)

    assert pull_p99(loads, EACH_SECOND) == pytest.approx(1 + waited * found.seconds / found.transactions)


def test_an_interval_is_waited_for_and_then_the_start_and_the_whole_run() -> None:
    """A start takes a second, or five where Lambda has put the environment away."""
    for seconds, start in ((60, 1), (600, 5)):
        each = replace(EACH_SECOND, continuous=False, seconds=seconds)
        found = pull_round([ONE_LANE], each)

        slower = 1 + 1 / found.transactions**0.5
        assert pull_p99([ONE_LANE], each) == pytest.approx(seconds + start + slower * found.seconds)


MONTH = 2_628_000


def test_a_continuous_shard_costs_what_a_hand_computes() -> None:
    """Time: all of a month, 5 s of each 690 twice, and a second a minute for runs that find it held: 1.02391.

    Writes: two for the entry each second, five a start. Storage: 2,592,000 x (234 + 85 + 100) bytes are 1.086 GB at
    $0.45. Reads: three of a lane and its journal in 690 s, and a state a minute. Metrics: $0.30, alarms: 3 x $0.10.
    Logs: 480 bytes each 10 s.
    """
    costs = pulled([ONE_LANE], EACH_SECOND)

    at_work = MONTH * (1 + 5 / 690)
    assert costs["functions: time"] == pytest.approx((at_work + 43_800) * 0.0000133334, rel=1e-5)
    assert costs["functions: calls"] == pytest.approx(43_800 * 0.0000012)
    assert costs["offset map: writes"] == pytest.approx((2 * MONTH + 5 * 43_800) * 0.000000625)
    assert costs["offset map: reads"] == pytest.approx((MONTH * 3 / 690 + 43_800) * 0.000000125)
    assert costs["offset map: storage"] == pytest.approx(2_592_000 * 419 / 1e9 * 0.45)
    assert costs["metrics, alarms, logs"] == pytest.approx(0.6 + at_work / 10 * 480 / 1e9 * 0.50)
    assert costs["pollers"] == 0


def test_a_run_by_interval_is_paid_for_its_start_and_its_work() -> None:
    """Each five minutes: a second, and 300 MB that are gathered by eight."""
    each = replace(EACH_SECOND, continuous=False, seconds=300)
    costs, found = pulled([ONE_LANE], each), pull_round([ONE_LANE], each)

    runs = MONTH / 300
    assert found.transactions == pytest.approx(300 / 8)
    assert found.entries == pytest.approx(300 / 8, rel=1e-3)
    assert costs["functions: time"] == pytest.approx(runs * (1 + found.seconds) * 0.0000133334)
    assert costs["functions: calls"] == pytest.approx(runs * 0.0000012)
    assert costs["offset map: writes"] == pytest.approx(runs * (2 * found.entries + 5) * 0.000000625)
    assert costs["offset map: reads"] == pytest.approx(runs * 0.000000125)


def test_a_run_by_interval_reads_all_places_anew_once_its_environment_is_gone() -> None:
    """Two of the journal and one of the lane, beside its state; and it starts for five seconds."""
    each = replace(EACH_SECOND, continuous=False, seconds=360)
    cold = pulled([ONE_LANE], each)

    assert cold["offset map: reads"] == pytest.approx(MONTH / 360 * (1 + 3) * 0.000000125)
    seconds = pull_round([ONE_LANE], each).seconds
    assert cold["functions: time"] == pytest.approx(MONTH / 360 * (5 + seconds) * 0.0000133334)


def test_the_places_of_silent_lanes_are_read_each_five_minutes() -> None:
    """Ten journals of six lanes."""
    silent = ReplicationLoad(mb_per_second=0, topics=10, partitions=6)

    for pull in (replace(EACH_SECOND, continuous=False, seconds=60), EACH_SECOND):
        first = 80 / 690 if pull.continuous else 0
        reads = pulled([silent], pull)["offset map: reads"]
        assert reads == pytest.approx(MONTH * (70 / 300 + first) * 0.000000125)


def test_a_topics_own_price_is_what_more_of_it_adds() -> None:
    """Its entries and states; runs are paid for by all."""
    others = ReplicationLoad(mb_per_second=1, topics=10)
    more = ReplicationLoad(mb_per_second=0.1, topics=1)

    added = sum(pulled([others, more], EACH_SECOND).values()) - sum(pulled([others], EACH_SECOND).values())

    assert pulled_alone(more, [others, more], EACH_SECOND) == pytest.approx(added, rel=0.02)


def test_a_copy_of_the_tables_pays_leases_and_entries_again() -> None:
    one, two = (pulled([ONE_LANE], EACH_SECOND, BilledSettings(copies=copies)) for copies in (0, 1))

    for part in ("offset map: writes", "offset map: storage"):
        assert two[part] == pytest.approx(2 * one[part])


# Jobs


def test_an_hour_of_a_driver_and_two_executors_costs_their_cores_and_memory() -> None:
    expected = 6 * 0.042094 + (4 + 2 * 6) * 0.004628

    assert dollars(3600, executors=2) == pytest.approx(expected)
    assert dollars_per_hour(DRIVER) + 2 * dollars_per_hour(EXECUTOR) == pytest.approx(expected)


def test_a_worker_is_charged_for_a_minute_at_least() -> None:
    assert dollars(1, executors=1) == dollars(60, executors=1)


def test_the_other_architecture_costs_more() -> None:
    assert dollars(60, executors=1, architecture="x86_64") > dollars(60, executors=1)


@pytest.mark.parametrize(("lanes", "most", "expected"), [(0, 31, 1), (1, 31, 1), (12, 31, 6), (500, 31, 31)])
def test_a_job_uses_no_more_executors_than_its_lanes_fill(lanes: int, most: int, expected: int) -> None:
    assert executors_for(lanes, most=most) == expected
