"""A copy by a job has the result of the forwarder: every record once, in order, and an exact map."""

from __future__ import annotations

import os
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from mirrorless.adapters.kafka.lane_log import KafkaBatchLaneLog
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from spark.jobs.lane_copies import copy_lane, copy_together
from spark.jobs.lane_tasks import TaskAttempt, run_lanes
from tests.support.batch_writers import write_header_name
from tests.support.killed_worker import killed_copy
from tests.support.lane_stage import LaneStage
from tests.support.readback import await_settled, read_topic

pytestmark = pytest.mark.integration

ONLY = TaskAttempt(number=0, last=True)


def task_of(stage: LaneStage, *ranges: tuple[int, int], **changes: object) -> CopyTask:
    """A copy of ranges of the stage's topic."""
    task = CopyTask(
        settings=stage.settings,
        lane_topic=stage.topic,
        read_topic=stage.topic,
        write_topic=stage.remote_topic,
        partition=0,
        ranges=tuple(OffsetRange(*each) for each in ranges),
        run_id="backfill-test",
    )
    return msgspec.structs.replace(task, **changes)


def copied(task: CopyTask) -> CopyResult:
    """Done in this process, as a worker does it."""
    return msgspec.json.decode(copy_lane(msgspec.json.encode(task), ONLY), type=CopyResult)


def fill(stage: LaneStage, partition: int = 0) -> None:
    """Nulls, empties, headers and an aborted transaction; ten visible records in thirteen offsets."""
    write_all = [b"0", None, b"", b"3"]
    stage.write(*write_all, partition=partition, headers=[("h", b"\xff\x00"), ("h", None), ("", b"")])
    stage.write(b"4", key=None, partition=partition, timestamp=1_600_000_000_000)
    write_transaction(stage, b"never", partition=partition, commit=False)
    stage.write(b"5", b"6", b"7", b"8", partition=partition)
    write_transaction(stage, b"9", partition=partition, commit=True)


def write_transaction(stage: LaneStage, value: bytes, *, partition: int = 0, commit: bool) -> None:
    """One record and a marker behind it."""
    producer = Producer({"bootstrap.servers": stage.source.bootstrap, "transactional.id": uuid4().hex, "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(stage.topic, value, b"k", partition)
    producer.flush(20)  # what is aborted must have been written, to leave its gap
    (producer.commit_transaction if commit else producer.abort_transaction)(20)
    await_settled(stage.source.bootstrap, stage.topic)


def test_a_copy_that_runs_again_writes_nothing(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    fill(stage)
    first = copied(task_of(stage, (0, 13)))
    again = copied(task_of(stage, (0, 13)))
    assert (first.records, first.written) == (again.records, 10) == (10, 10)
    assert (again.written, again.first_downstream, again.last_downstream) == (0, first.first_downstream, 9)
    stage.assert_mirrored()


def test_a_worker_killed_twice_within_a_transaction_loses_and_repeats_nothing(
    stage: LaneStage, spark: SparkSession
) -> None:
    """Three lanes share it."""
    stage.create(stage.source, stage.topic, 3)
    for partition in range(3):
        fill(stage, partition)
    tasks = [task_of(stage, (0, 13), partition=partition, holder="backfill-test") for partition in range(3)]
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
    admin = AdminClient({"bootstrap.servers": stage.source.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(stage.topic, 2, 4)]).values():
        future.result(20)
    ranges = ((0, 4), (0, 13), (0, 13))
    tasks = [task_of(stage, each, partition=number, holder="backfill-test") for number, each in enumerate(ranges)]

    results = msgspec.json.decode(copy_together(msgspec.json.encode(tasks), ONLY), type=list[CopyResult])

    found = [(each.state, each.records, each.written) for each in results]
    assert found == [("stopped", 2, 2), ("done", 10, 10), ("failed", 0, 0)]
    assert results[0].position == 2
    assert "does not hold upstream offset 0" in results[2].error
    assert stage.values() == [b"0", b"1"]


@pytest.mark.soak(
    "tests/integration/test_pull.py::test_a_header_name_that_is_no_text_passes_in_its_batch_and_by_records_stops_its_lane_alone"
)
def test_a_header_name_that_is_no_text_passes_byte_for_byte_and_by_records_stops_its_lane_alone(
    stage: LaneStage, spark: SparkSession
) -> None:
    """The client has no answer to it: in a worker its exception ended the whole job."""
    stage.create(stage.source, stage.topic, 2)
    stage.write(b"0")
    write_header_name(stage.source.bootstrap, stage.topic, b"na\xefve", b"1")
    stage.write(b"other", partition=1)
    by_records = msgspec.structs.replace(stage.settings, copy="records")
    tasks = [task_of(stage, (0, 43), settings=by_records), task_of(stage, (0, 1), settings=by_records, partition=1)]

    found = run_lanes(spark.sparkContext, copy_lane, [msgspec.json.encode(each) for each in tasks])

    stopped, other = (msgspec.json.decode(each, type=CopyResult) for each in found)
    assert (stopped.state, stopped.position, other.state) == ("stopped", 1, "done")
    assert "not UTF-8" in stopped.error
    stage.orders.resume(stage.lane())
    passed = copied(task_of(stage, (0, 43), settings=msgspec.structs.replace(stage.settings, copy="auto")))
    assert (passed.state, passed.error, passed.records, passed.passed_bytes > 0) == ("done", "", 42, True)
    batches = KafkaBatchLaneLog(stage.settings.target, flow="test")
    chunks = list(batches.read(stage.remote_topic, 0, OffsetRange(0, 4), lambda: 20.0))
    assert sum(b"na\xefve" in bytes(each.batch.payload) for chunk in chunks for each in chunk.records) == 1


def test_what_lies_before_a_range_is_passed_over_and_a_lane_beside_has_a_chain_of_its_own(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*(b"%d" % n for n in range(10)))
    result = copied(
        task_of(stage, (2, 4), (7, 9), lane_topic=f"{stage.topic}#replay", write_topic=f"{stage.topic}.replay")
    )
    assert (result.state, result.records, result.position) == ("done", 4, 9)
    seen = read_topic(stage.target.bootstrap, f"{stage.topic}.replay")[0]
    assert [each.content.value for each in seen] == [b"2", b"3", b"7", b"8"]
    assert stage.chains.heads([stage.lane()])[stage.lane()].run is None
