"""History that the source no longer has comes from an archive, into the same lane, and the log continues behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from mirrorless.adapters.archive import open_archive
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.clock import now_ms
from mirrorless.errors import ArchiveBroken, ConfigurationError
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.lane_copy import deadline_in
from mirrorless.jobs.request import BackfillOptions, JobRequest
from mirrorless.lanes.gaps import gaps_of
from mirrorless.records.record import Record
from mirrorless.reports.page import render
from spark.backfill import backfill
from spark.jobs.backfill.archive_survey import survey_archive
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_lane
from spark.jobs.lane_tasks import run_lanes
from tests.support.archives import archive_topic, rows_of, write_archive, write_file
from tests.support.lane_stage import ORDERED, LaneStage
from tests.support.readback import assert_mirrored, links, read_topic

pytestmark = pytest.mark.integration


def copied(spark: SparkSession, tasks: list[CopyTask]) -> list[CopyResult]:
    found = run_lanes(spark.sparkContext, copy_lane, [msgspec.json.encode(each) for each in tasks])
    return [msgspec.json.decode(each, type=CopyResult) for each in found]


def task_of(stage: LaneStage, partition: int, wanted: OffsetRange, archive: Path | None) -> CopyTask:
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


def run_backfill(stage: LaneStage, folder: Path, run: str, **options: Any) -> JobOutcome:
    """A whole job run, in this process."""
    request = JobRequest(
        run_id=run, flow=stage.settings, topics=(stage.topic,), options=BackfillOptions(handover_seconds=2, **options)
    )
    return backfill(JobRun(request, open_job_files(str(folder / run)), now_ms()))


@pytest.mark.usefixtures("spark")
def test_an_archive_fills_what_retention_has_taken_and_the_log_goes_on(stage: LaneStage, tmp_path: Path) -> None:
    stage.create(stage.source, stage.topic, 2, retention_ms="-1")
    producer = Producer({"bootstrap.servers": stage.source.bootstrap, **ORDERED})
    for number in range(600):
        headers: list[tuple[str, str | bytes | None]] = [("h", b"\xff"), ("h", None)] if number % 3 == 0 else []
        value, key = (None, b"", b"v%d" % number)[number % 3], (None, b"", b"k")[number % 5 % 3]
        producer.produce(stage.topic, value, key, number % 2, timestamp=1_600_000_000_000 + number, headers=headers)
    assert producer.flush(20) == 0
    archive = tmp_path / "archive"
    archive_topic(stage.source.bootstrap, stage.topic, archive, per_file=70)
    for partition in (0, 1):
        stage.write(b"after the archive", partition=partition)
    written = read_topic(stage.source.bootstrap, stage.topic)
    admin = AdminClient({"bootstrap.servers": stage.source.bootstrap, "log_level": 0})
    gone = admin.delete_records([TopicPartition(stage.topic, partition, 290) for partition in (0, 1)])
    assert [future.result(20).low_watermark for future in gone.values()] == [290] * 2

    from_archive = run_backfill(stage, tmp_path, "backfill-1", archive=str(archive))
    from_log = run_backfill(stage, tmp_path, "backfill-2")

    assert (from_archive.clean, from_archive.found["totals"]["written"]) == (True, 600)
    assert (from_log.clean, from_log.found["totals"]["written"]) == (True, 2)
    for partition, seen in stage.on_target().items():
        assert_mirrored(stage.lane(partition), stage.chains, written[partition], seen)


@pytest.mark.soak(
    "tests/unit/jobs/test_archive_merge.py::test_a_survey_says_what_is_missing_and_that_the_cause_is_unknown",
    "tests/unit/jobs/test_plan.py::test_only_warnings_give_way_to_force",
)
@pytest.mark.usefixtures("spark")
def test_an_archive_with_holes_wants_force_and_its_holes_are_in_the_report(stage: LaneStage, tmp_path: Path) -> None:
    stage.create(stage.source, stage.topic, retention_ms="-1")
    records = [Record(n, 1_600_000_000_000, [], b"k", b"%d" % n) for n in range(100) if n not in {7, 8, 50}]
    write_archive(tmp_path / "archive", rows_of(stage.topic, 0, records))
    archive = str(tmp_path / "archive")

    with pytest.raises(ConfigurationError, match=r"3 of 100 offsets are not in the archive: \[7, 9\), \[50, 51\)\. "):
        run_backfill(stage, tmp_path, "backfill-1", archive=archive)
    outcome = run_backfill(stage, tmp_path, "backfill-2", archive=archive, force=True)

    assert outcome.found["totals"]["written"] == 97
    assert "3 of 100 offsets are not in the archive" in render(outcome.report)
    assert stage.values() == [record.value for record in records]


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


@pytest.mark.soak(
    "tests/unit/jobs/test_archive_merge.py::test_two_records_of_one_offset_are_refused_with_both_files",
    "tests/unit/jobs/test_lane_groups.py::test_a_lane_that_fails_is_tried_again_while_the_others_go_on_and_fails_for_good_at_last",
)
def test_an_archive_that_contradicts_itself_fails_its_lane_and_no_other(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic, 2)
    good = [Record(n, 1_600_000_000_000, [], b"k", b"%d" % n) for n in range(10)]
    for partition in (0, 1):
        write_archive(tmp_path, rows_of(stage.topic, partition, good))
    write_file(tmp_path / "again.parquet", rows_of(stage.topic, 0, [Record(7, 1_600_000_000_000, [], b"k", b"other")]))

    bad, fine = copied(spark, [task_of(stage, partition, OffsetRange(0, 10), tmp_path) for partition in (0, 1)])

    assert (bad.state, fine.state, fine.records) == ("failed", "done", 10)
    assert "two different records have upstream offset 7" in bad.error
    assert stage.values(1) == [b"%d" % n for n in range(10)]


def test_a_survey_names_a_file_that_is_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no Parquet")

    with pytest.raises(ArchiveBroken, match=r"x\.parquet: this is no whole Parquet file"):
        survey_archive(spark.sparkContext, str(tmp_path), {("orders", 0): OffsetRange(0, 9)})
