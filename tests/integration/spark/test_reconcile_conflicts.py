"""Keys that were written on both sides of an outage: found, and never replaced by an older value."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from mirrorless.clock import now_ms
from mirrorless.errors import ConfigurationError
from mirrorless.reconcile.tasks import WITHHELD
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
