"""A backfill copies a topic's history, and lets go of each lane where its mapping continues."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane_state import Lease
from mirrorless.clock import deadline_in
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.event import Batch
from mirrorless.records.record import Record
from mirrorless.transforms.rules import Mask, Rule, RuleInForce
from spark.backfill import backfill
from spark.jobs.backfill.plan import plan_backfill
from spark.jobs.driver import Cancelled, drive
from tests.support.lane_stage import LaneStage
from tests.support.readback import await_settled, links, read_topic
from tests.support.topics import transaction, transactional

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


@pytest.mark.usefixtures("spark")
def test_a_job_goes_on_by_the_rule_by_which_a_mapping_began(stage: LaneStage, tmp_path: Path) -> None:
    rule = Rule(
        topics=("orders.*",),
        keep="value.country == 'DE'",
        fields={"mail": "drop", "card": Mask(keep_last=4)},
        headers={"user-ip": "drop"},
    )
    stage.settings = stage.changed(transforms=(rule,))
    stage.create(stage.source, stage.topic)
    for n in range(40):
        value = {"country": "US" if n % 3 else "DE", "mail": f"{n}@example.com", "card": f"4111 1111 1111 {n:04}"}
        stage.write(json.dumps(value).encode(), headers=[("user-ip", b"10.0.0.1"), ("n", b"%d" % n)])
    stage.write(None)
    stage.deliver(stage.event(p0=range(20)))

    code, report = driven(tmp_path, request_of(stage))

    assert (code, report["totals"]["records"], report["totals"]["written"]) == (0, 15, 8)
    expected = [(b'{"country":"DE","card":"***************%04d"}' % n, (("n", b"%d" % n),)) for n in range(0, 40, 3)]
    await_settled(stage.target.bootstrap, stage.remote_topic)
    copies = read_topic(stage.target.bootstrap, stage.remote_topic)[0]
    assert [(each.content.value, each.content.headers) for each in copies] == [*expected, (None, ())]
    runs = links(stage.lane(), stage.chains)
    assert [run.examined for run in runs] == [False, True]
    assert {run.rule for run in runs} == {RuleInForce.of(rule, {}).id}
    filtered = {at for run in runs for first, following in run.filtered for at in range(first, following)}
    assert filtered == {n for n in range(40) if n % 3}
    assert not stage.deliver(stage.event()).runs


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


def test_a_plan_is_refused_where_others_have_written_until_it_is_told_to_write_beside(stage: LaneStage) -> None:
    """What MirrorMaker 2 leaves; what is only in the log and that nobody reads is none of it."""
    stage.create(stage.source, stage.topic, 3)
    stage.create(stage.target, stage.remote_topic, 3)
    for partition in range(3):
        stage.write(b"%d" % partition, partition=partition)
    aborted = transactional(stage.target.bootstrap)
    transaction(aborted, stage.remote_topic, b"never seen", partition=1, commit=False)
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
