"""A copy by a job, of records, whole batches and archives, on real clusters: every record once, and an exact map.

It is byte for byte, in order, and is proved by the batches themselves where they pass as they lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import ArchiveBroken
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.request import BackfillOptions, JobRequest, VerifyOptions
from mirrorless.protocol.hooks import Step
from spark.backfill import backfill
from spark.jobs.backfill.archive_survey import survey_archive
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_together
from spark.jobs.lane_tasks import TaskAttempt, run_lanes
from spark.verify import verify
from tests.support.archives import archive_topic
from tests.support.batch_writers import COMPACTED, write_by_librdkafka, write_compacted
from tests.support.chains import every_run
from tests.support.flows import make_copy_task
from tests.support.java_client import Given, write_by_java
from tests.support.killed_worker import killed_copy
from tests.support.lane_stage import ORDERED, Crash, LaneStage, at_step, crash
from tests.support.readback import assert_mirrored, await_settled, read_topic
from tests.support.topics import delete_before, transaction, transactional

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/copy/test_job.py::test_any_schedule_of_tries_and_a_mapping_behind_keeps_the_invariants",
    "tests/integration/test_raw_copy.py::test_batches_arrive_as_they_lie_in_the_source",
)
ONLY = TaskAttempt(number=0, last=True)
STEPS: tuple[Step, ...] = ("position", "planned", "produced", "settled", "prepared", "committed", "confirmed")
LZ4, ZSTD = 0, 1
"""Partitions, by the codec of their batches."""


def task_of(stage: LaneStage, *ranges: tuple[int, int], partition: int = 0, **changes: Any) -> CopyTask:
    """A copy of ranges of a lane of the stage's topic, by default of all that is there."""
    if not ranges:
        log = KafkaLaneLog(stage.settings.source, flow=stage.settings.flow)
        ranges = ((0, log.bounds(stage.topic, partition, deadline_in(20)).next),)
    usual = {"settings": stage.settings, "write_topic": stage.remote_topic, "holder": "backfill-test"}
    return make_copy_task(partition, *ranges, topic=stage.topic, **usual | changes)


def copied(*tasks: CopyTask) -> list[CopyResult]:
    """Done in this process, as a worker does them; lanes of one task share their transactions."""
    return msgspec.json.decode(copy_together(msgspec.json.encode(tasks), ONLY), type=list[CopyResult])


def alone(*tasks: CopyTask) -> list[CopyResult]:
    """Each in a task of its own."""
    return [result for task in tasks for result in copied(task)]


# By records, and whichever way the lane goes


def fill(stage: LaneStage, partition: int = 0) -> None:
    """Nulls, empties, headers and an aborted transaction; ten visible records in thirteen offsets."""
    write_all = [b"0", None, b"", b"3"]
    stage.write(*write_all, partition=partition, headers=[("h", b"\xff\x00"), ("h", None), ("", b"")])
    stage.write(b"4", key=None, partition=partition, timestamp=1_600_000_000_000)
    producer = transactional(stage.source.bootstrap)
    transaction(producer, stage.topic, b"never", partition=partition, commit=False)
    await_settled(stage.source.bootstrap, stage.topic)
    stage.write(b"5", b"6", b"7", b"8", partition=partition)
    transaction(producer, stage.topic, b"9", partition=partition)
    await_settled(stage.source.bootstrap, stage.topic)


def test_a_worker_killed_twice_within_a_transaction_loses_and_repeats_nothing(
    stage: LaneStage, spark: SparkSession
) -> None:
    """Three lanes share it."""
    stage.create(stage.source, stage.topic, 3)
    for partition in range(3):
        fill(stage, partition)
    tasks = [task_of(stage, (0, 13), partition=partition) for partition in range(3)]
    results = msgspec.json.decode(
        run_lanes(spark.sparkContext, killed_copy, [msgspec.json.encode(tasks)])[0], type=list[CopyResult]
    )
    found = [(each.state, each.records, each.position, each.attempts) for each in results]
    assert found == [("done", 10, 13, 3)] * 3
    written = [each.written for each in results]  # a lane that was not read yet was not in the second try's transaction
    assert min(written) == 0, "the second try had committed when it was killed"
    assert set(written) <= {0, 10}
    stage.assert_mirrored()


def test_a_lane_that_fails_for_good_beside_others_of_its_task_leaves_their_results(stage: LaneStage) -> None:
    """Its target refuses what is too large; another one's log has lost its beginning."""
    stage.create(stage.source, stage.topic, 3, max_message_bytes="2000000")
    stage.create(stage.target, stage.remote_topic, 3, max_message_bytes="1000")
    stage.write(b"0", b"1", os.urandom(5000), b"3", partition=0)
    fill(stage, 1)
    fill(stage, 2)
    delete_before(stage.source.bootstrap, stage.topic, 4, 2)
    ranges = ((0, 4), (0, 13), (0, 13))

    results = copied(*(task_of(stage, each, partition=number) for number, each in enumerate(ranges)))

    found = [(each.state, each.records, each.written) for each in results]
    assert found == [("stopped", 2, 2), ("done", 10, 10), ("failed", 0, 0)]
    assert results[0].position == 2
    assert "does not hold upstream offset 0" in results[2].error
    assert stage.values() == [b"0", b"1"]


def test_what_lies_before_a_range_is_passed_over_and_a_lane_beside_has_a_chain_of_its_own(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*(b"%d" % n for n in range(10)))
    (result,) = copied(
        task_of(stage, (2, 4), (7, 9), lane_topic=f"{stage.topic}#replay", write_topic=f"{stage.topic}.replay")
    )
    assert (result.state, result.records, result.position) == ("done", 4, 9)
    seen = read_topic(stage.target.bootstrap, f"{stage.topic}.replay")[0]
    assert [each.content.value for each in seen] == [b"2", b"3", b"7", b"8"]
    assert stage.chains.heads([stage.lane()])[stage.lane()].run is None


# By whole batches


def records_of(chance: Random, count: int, size: int) -> list[Given]:
    """Records that no codec makes much smaller, some of them without a key, a value or with headers."""
    now = 1_763_700_000_000
    return [
        Given(
            key=chance.choice([None, b"", b"k%d" % i]),
            value=chance.choice([None, b"", *[chance.randbytes(chance.randint(1, 2 * size))] * 8]),
            headers=(("käse", None), ("", b"\x00\xff")) if i % 9 == 0 else (),
            timestamp=now + i - chance.choice([0, 0, 5_000]),
        )
        for i in range(count)
    ]


def script_of(chance: Random, count: int) -> list[list[Any]]:
    """Plain batches of 16 KB in lz4, and transactions in zstd, every third of which is aborted."""
    script: list[list[Any]] = [["producer", "lz4", "plain"]]
    script += [["record", LZ4, each] for each in records_of(chance, count, 1_200)]
    script += [["flush"], ["producer", "zstd", "transactional"]]
    for number in range(9):
        script += [["begin"], *(["record", ZSTD, each] for each in records_of(chance, count // 20, 300))]
        script.append(["abort" if number % 3 == 1 else "commit"])
    return script


@pytest.mark.java
@pytest.mark.parametrize(
    ("write", "copy"),
    [
        pytest.param(write_by_java, alone, id="java, alone", marks=HELD),
        pytest.param(partial(write_by_librdkafka, batch_bytes=16_384), copied, id="librdkafka, together"),
    ],
)
def test_a_backfill_that_dies_at_every_step_is_byte_for_byte_beside_its_mapping_and_is_proved_by_its_batches(
    write: Callable[..., None],
    copy: Callable[..., list[CopyResult]],
    stage: LaneStage,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    chance = Random(1)
    stage.create(stage.source, stage.topic, 2)
    # Of lanes at the same time the one that was not in the transaction goes on to its end: each try has more to do.
    fills, count = (1, 4_500) if copy is alone else (1 + len(STEPS), 900)
    write(stage.source.bootstrap, stage.topic, script_of(chance, count), tmp_path)
    for step in STEPS:
        with at_step(step, crash), pytest.raises(Crash):
            copy(*(task_of(stage, partition=partition) for partition in (LZ4, ZSTD)))
        if fills > 1:
            write(stage.source.bootstrap, stage.topic, script_of(chance, count), tmp_path)

    results = copy(*(task_of(stage, partition=partition) for partition in (LZ4, ZSTD)))

    assert [(each.state, each.error) for each in results] == [("done", "")] * 2
    expected = {LZ4: fills * count, ZSTD: fills * 6 * (count // 20)}
    assert results[LZ4].written < results[LZ4].records == expected[LZ4]
    assert copy is alone or results[LZ4].written > 0
    assert results[ZSTD].records == expected[ZSTD]
    assert [each.passed_bytes / each.bytes for each in results] == [1.0, 1.0]
    every = [run for partition in (LZ4, ZSTD) for run in every_run(stage.chains, stage.lane(partition))]
    runs = [run for run in every if run.records]
    assert {run.digest_of for run in runs} == {"batches"}
    assert sum(len(run.spans) for run in runs) < 60 * fills, "a span is of many batches"
    stage.assert_mirrored()

    # The mapping delivers all of it once more, by records, and goes on.
    stage.write(b"live", partition=LZ4)
    stage.write(b"live", partition=ZSTD)
    assert not stage.replicate(stage.environment(transaction_timeout_ms=20_000), stage.event(), seconds=40).stopped
    stage.assert_mirrored()
    outcome = verified(stage, spark, tmp_path / "verify")
    totals = outcome.found["totals"]
    assert outcome.clean, outcome.found
    assert totals["proved"] == totals["records"] == totals["compared"] == sum(expected.values()) + 2


def verified(stage: LaneStage, spark: SparkSession, folder: Path) -> JobOutcome:
    """A verification of both sides."""
    options = VerifyOptions(against_source=True)
    request = JobRequest(run_id="verify-test", flow=stage.settings, topics=(stage.topic,), options=options)
    run = JobRun(request, open_job_files(str(folder)), now_ms())
    run._context = spark.sparkContext
    return verify(run)


def test_both_ends_of_a_range_inside_batches_and_what_was_compacted_are_exact(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, 1, **COMPACTED)
    stage.create(stage.target, stage.remote_topic)  # which keeps what it gets
    left = write_compacted(stage.source.bootstrap, stage.topic)

    first, rest = alone(task_of(stage, (0, 150)), task_of(stage, (150, 301)))

    assert (first.state, rest.state, rest.position) == ("done", "done", 301)
    assert first.records + rest.records == len(left)
    assert 0 < rest.passed_bytes < rest.bytes, "the newest segment was not compacted"
    stage.assert_mirrored()


# From an archive


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
    for partition in (0, 1):
        delete_before(stage.source.bootstrap, stage.topic, 290, partition)

    from_archive = run_backfill(stage, tmp_path, "backfill-1", archive=str(archive))
    from_log = run_backfill(stage, tmp_path, "backfill-2")

    assert (from_archive.clean, from_archive.found["totals"]["written"]) == (True, 600)
    assert (from_log.clean, from_log.found["totals"]["written"]) == (True, 2)
    for partition, seen in stage.on_target().items():
        assert_mirrored(stage.lane(partition), stage.chains, written[partition], seen)


def run_backfill(stage: LaneStage, folder: Path, run: str, **options: Any) -> JobOutcome:
    """A whole job run, in this process."""
    request = JobRequest(
        run_id=run, flow=stage.settings, topics=(stage.topic,), options=BackfillOptions(handover_seconds=2, **options)
    )
    return backfill(JobRun(request, open_job_files(str(folder / run)), now_ms()))


def test_a_survey_names_a_file_that_is_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no Parquet")

    with pytest.raises(ArchiveBroken, match=r"x\.parquet: this is no whole Parquet file"):
        survey_archive(spark.sparkContext, str(tmp_path), {("orders", 0): OffsetRange(0, 9)})
