"""A backfill copies a topic's history, and lets go of each lane where its mapping continues."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane_state import Lease
from mirrorless.jobs.lane_copy import deadline_in
from mirrorless.jobs.request import BackfillOptions, Bound, JobRequest, encode_request
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.event import Batch
from mirrorless.records.record import Record
from spark.backfill import backfill
from spark.jobs.backfill.plan import plan_backfill
from spark.jobs.driver import Cancelled, drive
from tests.support.lane_stage import LaneStage
from tests.support.readback import read_topic

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("signals")]


@pytest.fixture
def signals() -> Iterator[None]:
    """A driver takes the process's signals; the next test wants them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def request_of(
    stage: LaneStage,
    run: str = "backfill-1",
    *,
    partitions: Mapping[str, tuple[int, ...]] | None = None,
    **options: Any,
) -> JobRequest:
    """A backfill of the stage's topic."""
    return JobRequest(
        run_id=run,
        flow=stage.settings,
        topics=(stage.topic,),
        partitions=dict(partitions or {}),
        options=BackfillOptions(**{"handover_seconds": 2} | options),
    )


def driven(folder: Path, request: JobRequest) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a whole job run."""
    run = folder / request.run_id
    run.mkdir()
    (run / "request.json").write_bytes(encode_request(request))
    code = drive(backfill, [str(run)])
    report = run / "report.json"
    return code, json.loads(report.read_bytes()) if report.exists() else json.loads(
        (run / "progress.json").read_bytes()
    )


def groups(stage: LaneStage) -> KafkaGroups:
    """Of the source."""
    return KafkaGroups(stage.settings.source, flow=stage.settings.flow)


def went_live_at(stage: LaneStage, offset: int) -> None:
    """Leave a chain as a mapping does that reads from the end: its first record stands there."""
    record = Record(offset=offset, timestamp=1_700_000_000_000, headers=[], key=b"k", value=b"live")
    batch = Batch.of_topic(stage.topic, {0: [record]})
    stage.environment().replicate(batch, request="test", deadline=deadline_in(20))


@pytest.mark.usefixtures("spark")
def test_history_is_copied_once_and_a_sleeping_group_goes_on_behind_it(stage: LaneStage, tmp_path: Path) -> None:
    stage.create(stage.source, stage.topic, 2)
    stage.write(*(b"%d" % n for n in range(50)), partition=0)
    stage.write(*(b"%d" % n for n in range(30)), partition=1, headers=[("h", None)])
    code, report = driven(tmp_path, request_of(stage))
    assert code == 0
    assert report["totals"] | {"records": 80, "lanes": 2, "done": 2, "written": 80} == report["totals"]
    assert [lane["handed_over"] for lane in report["lanes"]] == ["pinned", "pinned"]
    stage.assert_mirrored()
    group = stage.settings.consumer_group(stage.topic)
    committed = groups(stage).committed([group], deadline_in(20))[group]
    assert {partition: each.offset for (_, partition), each in committed.items()} == {0: 50, 1: 30}
    assert all(state.lease is None for state in stage.orders.read([stage.lane(0), stage.lane(1)]).values())
    assert (tmp_path / "backfill-1" / "report.html").exists()

    code, again = driven(tmp_path, request_of(stage, "backfill-2"))
    assert (code, again["totals"]["records"], again["totals"]["written"]) == (0, 80, 0)
    stage.assert_mirrored()


@pytest.mark.soak(
    "tests/unit/backfill/test_checks.py::test_a_lane_that_ends_as_ordered_is_held_where_its_mapping_would_skip",
    "tests/integration/spark/test_backfill.py::test_a_run_that_ends_early_leaves_no_lease_and_no_hole_and_the_next_one_goes_on",
)
@pytest.mark.usefixtures("spark")
def test_a_lane_that_ends_below_where_its_mapping_goes_on_is_stopped_there(stage: LaneStage, tmp_path: Path) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*(b"%d" % n for n in range(20)))
    group = stage.settings.consumer_group(stage.topic)
    groups(stage).commit(group, {(stage.topic, 0): OffsetAndMetadata(15)}, deadline_in(20))
    code, report = driven(tmp_path, request_of(stage, end=Bound("offset", 10)))
    assert (code, report["totals"]["stopped"], report["totals"]["records"]) == (3, 1, 10)
    state = stage.orders.read([stage.lane()])[stage.lane()]
    assert state.lease is None
    assert state.stop is not None
    assert (state.stop.reason, state.stop.upstream_offset) == ("backfilled", 10)

    code, report = driven(tmp_path, request_of(stage, "backfill-2"))
    assert (code, report["lanes"][0]["handed_over"]) == (0, "committed")
    assert stage.orders.read([stage.lane()])[stage.lane()].stop is None
    stage.assert_mirrored()


@pytest.mark.soak(
    "tests/unit/backfill/test_checks.py::test_history_does_not_go_into_a_remote_topic_and_live_lanes_do_not_hinder_it",
    "tests/unit/backfill/test_checks.py::test_a_topic_of_its_own_gets_its_history_in_order_or_the_job_is_refused",
    "tests/integration/spark/test_copying.py::test_what_lies_before_a_range_is_passed_over_and_a_lane_beside_has_a_chain_of_its_own",
)
@pytest.mark.usefixtures("spark")
def test_history_older_than_a_live_lane_goes_into_a_topic_of_its_own(stage: LaneStage, tmp_path: Path) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*(b"%d" % n for n in range(20)))
    went_live_at(stage, 12)
    code, progress = driven(tmp_path, request_of(stage))
    assert code == 1
    assert "live since upstream offset 12" in progress["error"]
    code, report = driven(tmp_path, request_of(stage, "backfill-2", into=f"{stage.topic}.history"))
    assert (code, report["totals"]["records"]) == (0, 12)
    assert stage.values() == [b"live"]
    history = read_topic(stage.target.bootstrap, f"{stage.topic}.history")[0]
    assert [each.content.value for each in history] == [b"%d" % n for n in range(12)]

    # Another topic gets the same once more, and a topic whose chain begins further on does not get what lies below.
    rest: dict[str, Any] = {"into": f"{stage.topic}.rest", "end": Bound("offset", 20)}
    code, report = driven(tmp_path, request_of(stage, "backfill-3", start=Bound("offset", 5), **rest))
    assert (code, report["totals"]["records"]) == (0, 15)
    there = read_topic(stage.target.bootstrap, rest["into"])[0]
    assert [each.content.value for each in there] == [b"%d" % n for n in range(5, 20)]
    code, progress = driven(tmp_path, request_of(stage, "backfill-4", **rest))
    assert code == 1
    assert "Name another topic" in progress["error"]
    code, report = driven(tmp_path, request_of(stage, "backfill-5", start=Bound("offset", 5), **rest))
    assert (code, report["totals"]["records"], report["totals"]["written"]) == (0, 15, 0)


@pytest.mark.usefixtures("spark")
def test_a_run_that_ends_early_leaves_no_lease_and_no_hole_and_the_next_one_goes_on(
    stage: LaneStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create(stage.source, stage.topic, 2)
    stage.write(b"0", b"1", partition=0)
    stage.write(b"0", b"1", partition=1)
    group = stage.settings.consumer_group(stage.topic)
    groups(stage).commit(
        group, {(stage.topic, 0): OffsetAndMetadata(0), (stage.topic, 1): OffsetAndMetadata(2)}, deadline_in(20)
    )

    def cancelled(*_: object, **__: object) -> None:
        raise Cancelled

    with monkeypatch.context() as patch:
        patch.setattr("spark.backfill.copy_all", cancelled)
        code, progress = driven(tmp_path, request_of(stage))
    assert (code, progress["state"]) == (1, "cancelled")
    states = stage.orders.read([stage.lane(0), stage.lane(1)])
    assert states[stage.lane(0)].stop is None, "its mapping goes on where the lane stands"
    stop = states[stage.lane(1)].stop
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("backfilled", 0)
    assert all(state.lease is None for state in states.values())

    code, report = driven(tmp_path, request_of(stage, "backfill-2"))
    assert (code, report["totals"]["records"]) == (0, 4)
    stage.assert_mirrored()


@pytest.mark.soak(
    "tests/unit/jobs/test_batch_copy.py::test_a_topic_that_was_made_anew_is_refused_though_its_epoch_is_the_same"
)
@pytest.mark.usefixtures("spark")
def test_a_backfill_does_not_go_on_in_a_topic_that_was_made_anew_since_it_was_ended(
    stage: LaneStage, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic, 2)
    for partition in range(2):
        stage.write(*(b"old %d" % n for n in range(20)), partition=partition)
    code, _ = driven(tmp_path, request_of(stage, end=Bound("offset", 10), partitions={stage.topic: (0,)}))
    assert code == 0
    stage.delete(stage.source, stage.topic)
    stage.create(stage.source, stage.topic, 2)
    for partition in range(2):
        stage.write(*(b"new %d" % n for n in range(30)), partition=partition)

    code, report = driven(tmp_path, request_of(stage, "backfill-2"))

    failed, other = report["lanes"]
    assert (code, failed["state"], failed["written"]) == (3, "failed", 0)
    assert "is not the log that was copied up to 10" in failed["error"]
    assert "mirrorless lanes reset" in failed["error"]
    assert stage.values(0) == [b"old %d" % n for n in range(10)]
    assert (other["state"], other["records"]) == ("done", 30)
    assert all(state.lease is None for state in stage.orders.read([stage.lane(0), stage.lane(1)]).values())


def test_a_plan_is_refused_where_others_have_written_until_it_is_told_to_write_beside(stage: LaneStage) -> None:
    """What MirrorMaker 2 leaves; what is only in the log and that nobody reads is none of it."""
    stage.create(stage.source, stage.topic, 3)
    stage.create(stage.target, stage.remote_topic, 3)
    for partition in range(3):
        stage.write(b"%d" % partition, partition=partition)
    aborted = Producer({"bootstrap.servers": stage.target.bootstrap, "transactional.id": stage.topic})
    aborted.init_transactions(20)
    aborted.begin_transaction()
    aborted.produce(stage.remote_topic, b"never seen", partition=1)
    aborted.flush(20)
    aborted.abort_transaction(20)
    assert plan_backfill(request_of(stage)).refusals == []

    stage.write_to(stage.target, stage.remote_topic, b"copied", b"by MM2", partition=2)

    (refusal,) = plan_backfill(request_of(stage, force=True)).refusals
    assert "partition and downstream offset 2 @ 0 on" in refusal.text
    told = plan_backfill(request_of(stage, beside=True))
    assert (told.refusals, told.findings[-1].check) == ([], "foreign records")
    assert plan_backfill(request_of(stage, partitions={stage.topic: (0, 1)})).refusals == []
    went_live_at(stage, 0)
    assert [each.text.count(" @ ") for each in plan_backfill(request_of(stage)).refusals] == [1]


def test_a_plan_refuses_what_would_be_pointless_or_harmful_and_changes_nothing(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, retention_ms="-1", max_message_bytes="2000000")
    stage.create(stage.target, stage.remote_topic, retention_ms="60000", max_message_bytes="1000000")
    stage.write(b"old", timestamp=1_600_000_000_000)
    stage.write(b"x" * 1000)
    stage.orders.take(stage.lane(), Lease(holder="another", until=4_000_000_000_000), now=0)
    plan = plan_backfill(request_of(stage, free_gb=1e-7))
    found = [(each.severity, each.check) for each in plan.findings]
    assert found == [
        ("refuse", "retention.ms"),
        ("refuse", "free space"),
        ("refuse", "lease"),
        ("warn", "max.message.bytes"),
    ]
    assert (plan.records, plan.lanes[0].range.next) == (2, 2)
    assert plan.bytes in range(1000, 1011)
    assert plan.dollars > 0
    assert stage.chains.heads([stage.lane()])[stage.lane()].run is None
