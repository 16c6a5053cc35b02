"""The cost of scheduled topics, against examples that a hand computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorless.cost.assumptions import Assumptions, ReplicationLoad
from mirrorless.cost.pull import ShardSettings, pull_round
from mirrorless.cost.replication import entry_bytes, msk_replicator, written
from mirrorless.cost.scheduled_topics import pulled, pulled_alone

ONE_LANE = ReplicationLoad(mb_per_second=1.0, record_bytes=1_000, topics=1, partitions=1)
EACH_SECOND = ShardSettings(continuous=True, seconds=1, shards=1, memory_mb=1024)
MONTH = 2_628_000


def test_a_continuous_shard_costs_what_a_hand_computes() -> None:
    """Time: all of a month, 5 s of each 690 twice, and a second a minute for runs that find it held: 1.02391.

    Writes: two for the entry each second, a renewal each 15 s, five a start. Storage: 2,592,000 x (234 + 85 + 100)
    bytes are 1.086 GB at $0.45. Reads: three of a lane and its slice in 690 s, and a state a minute.
    Metrics: $0.30, alarms: 3 x $0.10. Logs: 900 bytes a start, 480 each 10 s.
    """
    costs = pulled([ONE_LANE], EACH_SECOND)

    at_work = MONTH * (1 + 5 / 690)
    assert costs["functions: time"] == pytest.approx((at_work + 43_800) * 0.0000133334, rel=1e-5)
    assert costs["functions: calls"] == pytest.approx(43_800 * 0.0000012)
    assert costs["offset map: writes"] == pytest.approx((2 * MONTH + at_work / 15 + 5 * 43_800) * 0.000000625)
    assert costs["offset map: reads"] == pytest.approx((MONTH * 3 / 690 + 43_800) * 0.000000125)
    assert costs["offset map: storage"] == pytest.approx(2_592_000 * 419 / 1e9 * 0.45)
    assert costs["metrics, alarms, logs"] == pytest.approx(0.6 + (43_800 * 900 + at_work / 10 * 480) / 1e9 * 0.50)
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
    writes = runs * (2 * found.entries + 5 + found.seconds / 15)
    assert costs["offset map: writes"] == pytest.approx(writes * 0.000000625)
    assert costs["offset map: reads"] == pytest.approx(runs * 0.000000125)


def test_a_run_by_interval_reads_all_places_anew_once_its_environment_is_gone() -> None:
    """Two of the slice and one of the lane, beside its state; and it starts for five seconds."""
    each = replace(EACH_SECOND, continuous=False, seconds=360)
    cold = pulled([ONE_LANE], each)

    assert cold["offset map: reads"] == pytest.approx(MONTH / 360 * (1 + 3) * 0.000000125)
    seconds = pull_round([ONE_LANE], each).seconds
    assert cold["functions: time"] == pytest.approx(MONTH / 360 * (5 + seconds) * 0.0000133334)


def test_the_places_of_silent_lanes_are_read_each_five_minutes() -> None:
    """Ten slices of six lanes."""
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
    one, two = (pulled([ONE_LANE], EACH_SECOND, replace(Assumptions(), copies=copies)) for copies in (0, 1))

    for part in ("offset map: writes", "offset map: storage"):
        assert two[part] == pytest.approx(2 * one[part])


def test_an_entry_of_some_lanes_holds_the_heads_of_the_others() -> None:
    """One run of 85 bytes, and 15 heads of 16."""
    assert entry_bytes(1, others=15) == 234 + 85 + 240
    one, all_ = (written(1.0, lanes, replace(ONE_LANE, partitions=16)) for lanes in (1, 16))
    assert one["offset map: storage"] == pytest.approx(2_592_000 * (559 + 100) / 1e9 * 0.45)
    assert all_["offset map: storage"] == pytest.approx(2_592_000 * (234 + 45 + 16 * 50 + 100) / 1e9 * 0.45)


def test_more_topics_than_one_msk_replicator_takes_need_two() -> None:
    load = ReplicationLoad(mb_per_second=0, topics=750)

    assert msk_replicator(load) == pytest.approx(730 * 0.30)
    assert msk_replicator(replace(load, topics=751)) == pytest.approx(2 * 730 * 0.30)
