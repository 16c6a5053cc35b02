"""History that the source no longer has comes from an archive, into the same lane, and the log goes on behind it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from mirrorless.adapters.archive import open_archive
from mirrorless.adapters.archive_survey import survey_archive
from mirrorless.adapters.jobs.lane_worker import copy_lane
from mirrorless.adapters.spark_lanes import run_lanes
from mirrorless.errors import ArchiveBroken
from mirrorless.jobs.copying import CopyResult, CopyTask, Range
from mirrorless.jobs.lane_copy import deadline_in
from mirrorless.lanes.gaps import gaps_of
from mirrorless.record import Record
from tests.archives import archive_topic, rows_of, write_archive, write_file
from tests.lane_stage import LaneStage
from tests.readback import links

pytestmark = pytest.mark.integration


def copied(spark: SparkSession, tasks: list[CopyTask]) -> list[CopyResult]:
    found = run_lanes(spark, copy_lane, [msgspec.json.encode(each) for each in tasks])
    return [msgspec.json.decode(each, type=CopyResult) for each in found]


def task_of(stage: LaneStage, partition: int, wanted: Range, archive: Path | None) -> CopyTask:
    return CopyTask(
        settings=stage.settings,
        lane_topic=stage.topic,
        read_topic=stage.topic,
        write_topic=stage.remote_topic,
        partition=partition,
        ranges=(wanted,),
        run_id="backfill-test",
        archive=str(archive) if archive else None,
    )


def test_an_archive_fills_what_retention_has_taken_and_the_log_goes_on(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic, 2)
    producer = Producer({"bootstrap.servers": stage.source.bootstrap, "log_level": 0})
    for number in range(6_000):
        headers: list[tuple[str, str | bytes | None]] = [("h", b"\xff"), ("h", None)] if number % 3 == 0 else []
        value, key = (None, b"", b"v%d" % number)[number % 3], (None, b"", b"k")[number % 5 % 3]
        producer.produce(stage.topic, value, key, number % 2, timestamp=1_600_000_000_000 + number, headers=headers)
    assert producer.flush(20) == 0
    archive_topic(stage.source.bootstrap, stage.topic, tmp_path, per_file=700)
    stage.write(b"after the archive", partition=0)
    stage.write(b"after the archive", partition=1)

    surveys = survey_archive(spark, str(tmp_path), [(stage.topic, 0), (stage.topic, 1)])
    assert [(each.first, each.next, each.missing) for each in surveys.values()] == [(0, 3_000, 0)] * 2
    from_archive = [task_of(stage, each.partition, Range(each.first, each.next), tmp_path) for each in surveys.values()]
    from_log = [task_of(stage, partition, Range(3_000, 3_001), None) for partition in (0, 1)]

    assert [(each.state, each.written) for each in copied(spark, from_archive)] == [("done", 3_000)] * 2
    assert [(each.state, each.written) for each in copied(spark, from_archive)] == [("done", 0)] * 2
    assert [(each.state, each.written) for each in copied(spark, from_log)] == [("done", 1)] * 2
    stage.assert_mirrored()


def test_a_hole_of_an_archive_is_left_for_the_gap_check_to_explain(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic)
    records = [Record(n, 1_600_000_000_000, [], b"k", b"%d" % n) for n in (5, 6, 8, 9)]
    write_archive(tmp_path, rows_of(stage.topic, 0, records))
    bounds = open_archive(str(tmp_path)).bounds(stage.topic, 0, deadline_in(20))

    (result,) = copied(spark, [task_of(stage, 0, bounds, tmp_path)])

    assert (result.state, result.records, result.position) == ("done", 4, 10)
    runs = links(stage.lane(), stage.chains)
    assert [gap for run in runs for gap in gaps_of(run, 0)] == [(7, 8)]


def test_an_archive_that_contradicts_itself_fails_its_lane_and_no_other(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic, 2)
    good = [Record(n, 1_600_000_000_000, [], b"k", b"%d" % n) for n in range(10)]
    for partition in (0, 1):
        write_archive(tmp_path, rows_of(stage.topic, partition, good))
    write_file(tmp_path / "again.parquet", rows_of(stage.topic, 0, [Record(7, 1_600_000_000_000, [], b"k", b"other")]))

    bad, fine = copied(spark, [task_of(stage, partition, Range(0, 10), tmp_path) for partition in (0, 1)])

    assert (bad.state, fine.state, fine.records) == ("failed", "done", 10)
    assert "two different records have upstream offset 7" in bad.error
    assert stage.values(1) == [b"%d" % n for n in range(10)]


def test_a_survey_tells_which_file_is_none(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no Parquet")

    with pytest.raises(ArchiveBroken, match=r"x\.parquet: this is no whole Parquet file"):
        survey_archive(spark, str(tmp_path), [("orders", 0)])
