"""Keys that were written on both sides of an outage: found by Spark, and never replaced by an older value."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from mirrorless.clock import now_ms
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.reconcile.conflicts import LISTED
from mirrorless.reconcile.orphans import WITHHELD
from spark.jobs.reconcile.conflicts import ROWS, conflicts_of, keep_orphans, orphans_of
from tests.integration.spark.test_reconcile import crash_after
from tests.support.failover_stage import FailoverStage
from tests.support.lane_stage import Crash, LaneStage
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

CRASH = pytest.mark.soak(
    "tests/integration/spark/test_reconcile.py::"
    "test_a_job_that_dies_after_every_step_in_turn_is_made_up_for_by_the_next_run"
)
T = now_ms() - 60_000
"""Of the first record, ms since the epoch. A much younger marker would end the segment: then it is compacted."""


@pytest.fixture
def failover(stage: LaneStage, spark: SparkSession, tmp_path: Path) -> FailoverStage:
    """A flow with prefixed names."""
    return FailoverStage(stage=stage, spark=spark, folder=tmp_path)


def fail_over(failover: FailoverStage, *, compacted: bool = True) -> None:
    """Three keys with orphans: `a` is newer on the target, `b` on the source, `c` was written on the source alone."""
    failover.create(1, **{"cleanup.policy": "compact" if compacted else "delete"})
    failover.on_source(b"before", key=b"a", timestamp=T)
    failover.replicate()
    failover.on_source(b"older a", key=b"a", timestamp=T + 10)
    failover.on_source(b"newer b", key=b"b", timestamp=T + 30)
    failover.on_source(b"only c", key=b"c", timestamp=T + 10)
    failover.hold()
    failover.on_target(b"newer a", key=b"a", timestamp=T + 20)
    failover.on_target(b"older b", key=b"b", timestamp=T + 20)


def kept_orphans(folder: Path) -> pa.Table:
    """The orphans of all lanes in a run's folder."""
    return pa.concat_tables(parquet.read_table(each) for each in sorted((folder / "orphans").glob("*.parquet")))


BEFORE = [b"before", b"older a", b"newer b", b"only c", b"newer a", b"older b"]


def test_a_replay_never_puts_an_older_value_of_a_compacted_topic_over_a_newer_one(failover: FailoverStage) -> None:
    fail_over(failover)
    outcome = failover.reconcile("replay")
    assert outcome.clean, outcome.found
    assert failover.source_values() == [*BEFORE, b"newer b", b"only c"]
    totals = outcome.found["totals"]
    assert (totals["orphans"], totals["orphans_moved"], totals["orphans_withheld"], totals["conflicts"]) == (3, 2, 1, 2)
    losses = failover.stage.ledger.read(failover.stage.lane())
    assert [(each.first, each.next, each.detail == WITHHELD) for each in losses] == [(1, 2, True), (2, 4, False)]
    (lane,) = outcome.found["lanes"]
    assert (lane["orphan_keys"], lane["oldest_orphan"], lane["newest_orphan"]) == (3, T + 10, T + 30)
    listed = [(each["key"], each["orphan"]["timestamp"], each["other"]["timestamp"]) for each in lane["conflicting"]]
    assert listed == [("a", T + 10, T + 20), ("b", T + 30, T + 20)]
    columns = ["topic", "partition", "offset", "key", "timestamp", "other_side", "other_timestamp"]
    assert kept_orphans(failover.folder / "reconcile-test-0").select(columns).to_pylist() == [
        dict(zip(columns, (failover.stage.topic, 0, *each), strict=True))
        for each in (
            (1, b"a", T + 10, "source", T + 20),
            (2, b"b", T + 30, "source", T + 20),
            (3, b"c", T + 10, None, None),
        )
    ]
    assert "Keys that were written on both sides" in [
        table.title for section in outcome.report.sections for table in section.tables
    ]


@pytest.mark.parametrize("compacted", [True, False])
def test_every_orphan_is_replayed_where_all_records_count_or_it_is_ordered(
    failover: FailoverStage, *, compacted: bool
) -> None:
    fail_over(failover, compacted=compacted)
    outcome = failover.reconcile("replay", conflicts="replay" if compacted else "keep-newest")
    assert failover.source_values() == [*BEFORE, b"older a", b"newer b", b"only c"]
    totals = outcome.found["totals"]
    assert (totals["orphans_moved"], totals["orphans_withheld"], totals["conflicts"]) == (3, 0, 2)


@pytest.mark.parametrize("run", [0, 1], ids=["the same run", "another run"])
@pytest.mark.parametrize("step", some_of(("joined", "compared", "carried out"), "carried out", others=CRASH))
def test_what_was_withheld_stays_withheld_after_a_crash(failover: FailoverStage, step: Any, run: int) -> None:
    fail_over(failover)
    with pytest.raises(Crash):
        failover.reconcile("replay", on_step=partial(crash_after, step))
    totals = failover.reconcile("replay", run=run).found["totals"]
    assert failover.source_values() == [*BEFORE, b"newer b", b"only c"]
    # What was written again is no other record of its key.
    assert run or (totals["orphans_withheld"], totals["conflicts"]) == (1, 2)


def test_what_was_written_again_is_not_withheld_afterwards(failover: FailoverStage) -> None:
    fail_over(failover)
    with pytest.raises(Crash):
        failover.reconcile("replay", on_step=partial(crash_after, "carried out"))
    failover.on_source(b"newest b", key=b"b", timestamp=T + 50)
    assert failover.reconcile("replay").found["totals"]["orphans_withheld"] == 1


def test_values_are_not_compared_with_those_of_live_producers(failover: FailoverStage) -> None:
    fail_over(failover)
    with pytest.raises(ConfigurationError, match="stop the producers"):
        failover.reconcile("replay", live_source=True)
    assert failover.source_values() == BEFORE[:4]


class _Row(NamedTuple):  # as `ROWS`
    lane: int
    key: bytes
    label: bytes | None
    orphan: bool
    side: str
    offset: int
    timestamp: int
    size: int
    tombstone: bool
    error: str | None = None


def test_conflicts_of_random_lanes_are_those_that_a_search_finds(spark: SparkSession) -> None:
    chance = random.Random(7)
    rows = []
    for lane in range(60):
        for offset in range(chance.randrange(40)):
            orphan = chance.random() < 0.5
            key = b"%d" % chance.randrange(6)
            label = key if orphan and chance.random() < 0.9 else None
            # A record without a key has a hash of its own.
            unlike = key if label or not orphan else b"offset %d" % offset
            rows.append(
                _Row(lane, unlike, label, orphan, "source", offset, chance.randrange(-1, 9), offset, tombstone=False)
            )
    chance.shuffle(rows)
    found = conflicts_of(orphans_of(spark.createDataFrame(rows, ROWS)))

    for lane in range(60):
        orphans = sorted((row for row in rows if row.lane == lane and row.orphan), key=lambda row: row.offset)
        others = [row for row in rows if row.lane == lane and not row.orphan]
        if not orphans:
            assert lane not in found
            continue
        beside = {row.offset: [each for each in others if each.key == row.key] for row in orphans}
        withheld = {
            row.offset
            for row in orphans
            if any(row.timestamp <= each.timestamp or each.timestamp < 0 for each in beside[row.offset])
        }
        assert {offset for each in found[lane].older for offset in range(each.first, each.next)} == withheld
        assert found[lane].keys == len({row.label for row in orphans if row.label})
        assert found[lane].conflicts == len({row.key for row in orphans if beside[row.offset]})
        times = [row.timestamp for row in orphans if row.timestamp >= 0]
        assert (found[lane].oldest, found[lane].newest) == (min(times, default=-1), max(times, default=-1))
        last = {row.key: row.offset for row in orphans if beside[row.offset]}
        assert [each.orphan.offset for each in found[lane].listed] == sorted(last.values())
        assert all(each.older == (each.orphan.offset in withheld) for each in found[lane].listed)


def test_every_orphan_of_every_lane_is_in_the_runs_folder_by_its_offset(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        _Row(lane, b"key", label, orphan=True, side="source", offset=each, timestamp=each, size=7, tombstone=each == 2)
        for lane in range(3)
        for label in (b"key" if lane else None,)
        for each in range(11_000)  # more than come to a worker at once
    ]
    rows.append(
        _Row(3, b"0", None, orphan=True, side="source", offset=0, timestamp=-1, size=0, tombstone=True, error="!")
    )
    random.Random(7).shuffle(rows)
    places = {lane: ("t", 10 + lane) for lane in range(4)}
    assert keep_orphans(orphans_of(spark.createDataFrame(rows, ROWS)), places, str(tmp_path)) == 33_000
    assert not (tmp_path / "orphans" / "t-13.parquet").exists(), "a journal that was not read has no orphans"
    kept = kept_orphans(tmp_path)
    assert kept["partition"].to_pylist() == [10 + lane for lane in range(3) for _ in range(11_000)]
    assert kept["offset"].to_pylist() == [*range(11_000)] * 3
    hashes = [None, b"key".hex().upper(), b"key".hex().upper()]
    assert kept["key_hash"].to_pylist() == [each for each in hashes for _ in range(11_000)]
    assert kept["tombstone"].to_pylist() == [each == 2 for _ in range(3) for each in range(11_000)]
    assert set(kept["size"].to_pylist()) == {7}


def test_a_lane_lists_its_first_conflicts_and_counts_them_all(spark: SparkSession) -> None:
    rows = []
    for number in range(LISTED + 50):
        key = b"key %d" % number
        rows.append(_Row(0, key, key, orphan=True, side="source", offset=number, timestamp=1, size=1, tombstone=False))
        rows.append(_Row(0, key, None, orphan=False, side="target", offset=number, timestamp=2, size=1, tombstone=True))
    found = conflicts_of(orphans_of(spark.createDataFrame(rows, ROWS)))[0]
    assert (found.conflicts, len(found.listed), found.older) == (LISTED + 50, LISTED, (OffsetRange(0, LISTED + 50),))
