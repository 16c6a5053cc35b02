"""A backfill by whole batches, on real clusters: byte for byte, an exact map, and a proof by the batches themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
from mirrorless.chain.run import Run
from mirrorless.clock import now_ms
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.lane_copy import deadline_in
from mirrorless.jobs.request import JobRequest, VerifyOptions
from mirrorless.protocol.hooks import Step
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_lane, copy_together
from spark.jobs.lane_tasks import TaskAttempt
from spark.verify import verify
from tests.support.batch_writers import COMPACTED, write_by_librdkafka, write_compacted
from tests.support.chains import every_run
from tests.support.failover_stage import FailoverStage
from tests.support.java_client import Given, write_by_java
from tests.support.lane_stage import Crash, LaneStage, at_step, crash

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/jobs/test_batch_copy.py::test_any_schedule_of_tries_and_a_mapping_behind_keeps_the_invariants",
    "tests/integration/test_raw_copy.py::test_batches_arrive_as_they_lie_in_the_source",
)
ONLY = TaskAttempt(number=0, last=True)
STEPS: tuple[Step, ...] = ("position", "planned", "produced", "settled", "prepared", "committed", "confirmed")
LZ4, ZSTD = 0, 1
"""Partitions, by the codec of their batches."""


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


def task_of(stage: LaneStage, partition: int, first: int = 0, following: int | None = None) -> CopyTask:
    """A copy of a part of a lane; of all of it by default."""
    log = KafkaLaneLog(stage.settings.source, flow=stage.settings.flow)
    end = log.bounds(stage.topic, partition, deadline_in(20)).next if following is None else following
    return CopyTask(
        settings=stage.settings,
        lane_topic=stage.topic,
        read_topic=stage.topic,
        write_topic=stage.remote_topic,
        partition=partition,
        ranges=(OffsetRange(first, end),),
        run_id="backfill-test",
        holder="backfill-test",
    )


def copied(task: CopyTask) -> CopyResult:
    """Done in this process, as a worker does it."""
    return msgspec.json.decode(copy_lane(msgspec.json.encode(task), ONLY), type=CopyResult)


def together(tasks: Sequence[CopyTask]) -> list[CopyResult]:
    """The same for lanes of one task, which share their transactions."""
    return msgspec.json.decode(copy_together(msgspec.json.encode(tasks), ONLY), type=list[CopyResult])


def alone(tasks: Sequence[CopyTask]) -> list[CopyResult]:
    """Each in a task of its own."""
    return [copied(task) for task in tasks]


def verified(stage: LaneStage, spark: SparkSession, folder: Path) -> JobOutcome:
    """A verification of both sides."""
    options = VerifyOptions(against_source=True)
    request = JobRequest(run_id="verify-test", flow=stage.settings, topics=(stage.topic,), options=options)
    run = JobRun(request, open_job_files(str(folder)), now_ms())
    run._context = spark.sparkContext
    return verify(run)


def runs_of(stage: LaneStage, partition: int) -> list[Run]:
    return [run for run in every_run(stage.chains, stage.lane(partition)) if run.records]


@pytest.mark.java
@pytest.mark.parametrize(
    ("write", "copy"),
    [
        pytest.param(write_by_java, alone, id="java, alone", marks=HELD),
        pytest.param(partial(write_by_librdkafka, batch_bytes=16_384), together, id="librdkafka, together"),
    ],
)
def test_a_backfill_that_dies_at_every_step_is_byte_for_byte_beside_its_mapping_and_is_proved_by_its_batches(
    write: Callable[..., None],
    copy: Callable[[Sequence[CopyTask]], list[CopyResult]],
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
            copy([task_of(stage, partition) for partition in (LZ4, ZSTD)])
        if fills > 1:
            write(stage.source.bootstrap, stage.topic, script_of(chance, count), tmp_path)

    results = copy([task_of(stage, partition) for partition in (LZ4, ZSTD)])

    assert [(each.state, each.error) for each in results] == [("done", "")] * 2
    expected = {LZ4: fills * count, ZSTD: fills * 6 * (count // 20)}
    assert 0 < results[LZ4].written < results[LZ4].records == expected[LZ4]
    assert results[ZSTD].records == expected[ZSTD]
    assert [each.passed_bytes / each.bytes for each in results] == [1.0, 1.0]
    runs = [run for partition in (LZ4, ZSTD) for run in runs_of(stage, partition)]
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


def test_both_ends_of_a_range_inside_batches_and_what_was_compacted_are_exact(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, 1, **COMPACTED)
    stage.create(stage.target, stage.remote_topic)  # which keeps what it gets
    left = write_compacted(stage.source.bootstrap, stage.topic)

    first = copied(task_of(stage, 0, 0, 150))
    rest = copied(task_of(stage, 0, 150))

    assert (first.state, rest.state, rest.position) == ("done", "done", 301)
    assert first.records + rest.records == len(left)
    assert 0 < rest.passed_bytes < rest.bytes, "the newest segment was not compacted"
    stage.assert_mirrored()


def test_offsets_between_two_ranges_are_left_to_the_gap_check_and_nothing_else_is(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    write_in_one_batch(stage, 40)

    assert copied(task_of(stage, 0, 0, 10)).records == 10
    assert copied(task_of(stage, 0, 25)).records == 15

    runs = every_run(stage.chains, stage.lane())
    assert [gap for run in runs if not run.examined for gap in run.gaps()] == [(10, 25)]
    assert [gap for run in runs if run.examined for gap in run.gaps()] == []
    assert {run.digest_of for run in runs if run.records} == {"records", "batches"}
    values = [b"0", *(b"%d" % n for n in range(1, 10)), *(b"%d" % n for n in range(25, 40))]
    assert stage.values() == values


def write_in_one_batch(stage: LaneStage, count: int, topic: str = "", bootstrap: str = "") -> None:
    """Records that lie in one batch."""
    config = {"bootstrap.servers": bootstrap or stage.source.bootstrap, "linger.ms": 1000, "compression.type": "lz4"}
    producer = Producer(config)
    for number in range(count):
        producer.produce(topic or stage.topic, b"%d" % number, b"k", 0)
    assert producer.flush(20) == 0


@pytest.mark.soak("tests/unit/jobs/test_batch_copy.py::test_an_engine_that_is_tried_in_between_leaves_one_chain")
def test_by_records_nothing_passes_and_both_ways_make_one_chain(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    write_in_one_batch(stage, 40)
    by_records = msgspec.structs.replace(stage.settings, copy="records")

    first = copied(msgspec.structs.replace(task_of(stage, 0, 0, 20), settings=by_records))
    rest = copied(task_of(stage, 0, 20))

    assert (first.records, first.passed_bytes, rest.records) == (20, 0, 20)
    assert [run.digest_of for run in runs_of(stage, 0)] == ["records", "batches"]
    stage.assert_mirrored()


@pytest.mark.soak(
    "tests/integration/spark/test_reconcile.py::test_what_is_new_comes_back_once_and_what_is_orphaned_is_reported",
    "tests/unit/jobs/test_batch_copy.py::test_any_schedule_of_tries_and_a_mapping_behind_keeps_the_invariants",
    "tests/integration/spark/test_verify.py::test_a_true_copy_is_proved_on_both_sides_whatever_its_chain_has_been_through",
)
def test_what_is_new_on_the_target_comes_back_by_its_batches_and_the_joined_chain_is_proved(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    failover = FailoverStage(stage=stage, spark=spark, folder=tmp_path)
    failover.create()
    write_in_one_batch(stage, 30)
    assert copied(task_of(stage, 0)).records == 30
    write_in_one_batch(stage, 5)  # orphans
    failover.hold()
    write_in_one_batch(stage, 50, failover.remote, stage.target.bootstrap)
    write_in_one_batch(stage, 20, failover.remote, stage.target.bootstrap)

    outcome = failover.reconcile("report")

    totals = outcome.found["totals"]
    assert outcome.clean, outcome.found
    assert (totals["copied_back"], totals["orphans"], totals["unmapped"]) == (70, 5, 0)
    assert totals["copied_back_passed_bytes"] == totals["copied_back_bytes"] > 0
    (joined,) = [run for run in failover.runs() if run.records == 70]
    assert joined.digest_of == "batches"
    # The mapping delivers everything once more; nothing comes twice.
    failover.on_source(b"live")
    failover.replicate()
    numbers = [b"%d" % n for count in (30, 50, 20) for n in range(count)]
    assert failover.target_values() == [*numbers, b"live"]
    found = verified(stage, spark, tmp_path / "verify")
    assert found.clean, found.found
    assert found.found["totals"]["proved"] == found.found["totals"]["records"] == 101
    json.dumps(outcome.found)
