"""A flow is whole again after a failover and a failback: real clusters, real stores, real Spark."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from mirrorless.chain.lane import Lane
from spark.reconcile import ReconcileStep
from tests.support.failover_stage import FailoverStage
from tests.support.lane_stage import Crash, LaneStage
from tests.support.readback import read_topic
from tests.support.twin_tasks import twin_lanes
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

STEPS: tuple[ReconcileStep, ...] = ("looked", "copied", "found", "joined", "compared", "carried out", "groups")


@pytest.fixture(
    params=[
        "prefixed",
        pytest.param(
            "identity",
            marks=pytest.mark.soak(
                "tests/integration/spark/test_reconcile.py::"
                "test_a_job_that_dies_after_every_step_in_turn_is_made_up_for_by_the_next_run"
            ),
        ),
    ]
)
def naming(request: pytest.FixtureRequest) -> str:
    """Of remote topics."""
    return str(request.param)


@pytest.fixture
def prefixed(stage: LaneStage, spark: SparkSession, tmp_path: Path) -> FailoverStage:
    """A flow with prefixed names."""
    return FailoverStage(stage=stage, spark=spark, folder=tmp_path)


@pytest.fixture
def failover(prefixed: FailoverStage, naming: str) -> FailoverStage:
    """A flow of either naming."""
    stage = prefixed.stage
    stage.settings = msgspec.structs.replace(stage.settings, replication_policy=naming)
    return prefixed


def fail_over(failover: FailoverStage) -> None:
    """Two partitions; the second one has no orphan, and nothing new on the target."""
    failover.create(2)
    failover.on_source(b"0", b"1", b"2")
    failover.on_source(b"other", partition=1)
    failover.replicate()
    failover.on_source(b"orphan 3", b"orphan 4")
    failover.hold()
    failover.on_target(b"new 0", None, b"new 2")


BACK = [b"new 0", None, b"new 2"]
ORPHANS = [b"orphan 3", b"orphan 4"]


def test_what_is_new_comes_back_once_and_what_is_orphaned_is_reported(failover: FailoverStage) -> None:
    fail_over(failover)
    outcome = failover.reconcile("report")
    totals = outcome.found["totals"]
    assert (totals["new"], totals["copied_back"], totals["orphans"], totals["unmapped"]) == (3, 3, 2, 0), outcome.found
    assert outcome.clean, outcome.found
    assert failover.source_values() == [b"0", b"1", b"2", *ORPHANS, *BACK]
    assert not failover.held()
    losses = failover.stage.ledger.read(failover.stage.lane())
    assert [(each.first, each.next, each.cause) for each in losses] == [(3, 5, "orphaned")]
    # The mapping delivers everything once more, and what is produced from now on.
    failover.on_source(b"live")
    failover.replicate()
    assert failover.target_values() == [b"0", b"1", b"2", *BACK, b"live"]
    assert failover.target_values(1) == [b"other"]


def test_quarantined_orphans_are_copied_once_beside_the_remote_topic(failover: FailoverStage) -> None:
    fail_over(failover)
    for _ in range(2):
        failover.hold()
        outcome = failover.reconcile("quarantine")
        assert outcome.clean, outcome.found
        assert failover.target_values(topic=f"{failover.remote}.orphans") == ORPHANS
    assert (outcome.found["totals"]["orphans"], outcome.found["totals"]["orphans_moved"]) == (2, 2)
    (loss,) = failover.stage.ledger.read(failover.stage.lane())
    assert f"copied to {failover.remote}.orphans" in loss.detail


@pytest.mark.parametrize("naming", ["identity"])
def test_a_job_that_dies_after_every_step_in_turn_is_made_up_for_by_the_next_run(failover: FailoverStage) -> None:
    fail_over(failover)
    for step in STEPS:
        with pytest.raises(Crash):
            failover.reconcile("replay", on_step=partial(crash_after, step))
        assert failover.held() == [0, 1]
    outcome = failover.reconcile("replay")
    totals = outcome.found["totals"]
    assert outcome.clean, outcome.found
    assert (totals["copied_back"], totals["orphans"], totals["orphans_moved"], totals["unmapped"]) == (3, 2, 2, 0)
    assert failover.source_values() == [b"0", b"1", b"2", *ORPHANS, *BACK, *ORPHANS]
    # What was written again goes to the target with the live flow, in order; what came back does not.
    failover.on_source(b"live")
    failover.replicate()
    assert failover.target_values() == [b"0", b"1", b"2", *BACK, *ORPHANS, b"live"]


def crash_after(wanted: ReconcileStep, step: ReconcileStep) -> None:
    """Be gone once this step is done."""
    if step == wanted:
        raise Crash


def test_tasks_with_twins_and_a_lane_that_fails_for_good_leave_the_rest_to_a_second_run(
    prefixed: FailoverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source refuses one record of the second lane; each task is done by two workers at the same time."""
    prefixed.create(2, max_message_bytes="1000")
    for partition in range(2):
        prefixed.on_source(b"0", b"1", b"2", partition=partition)
    prefixed.replicate()
    prefixed.on_source(*ORPHANS)
    prefixed.hold()
    large = os.urandom(5_000)
    prefixed.stage.configure(prefixed.stage.target, prefixed.remote, max_message_bytes="10000")
    prefixed.on_target(*BACK)
    prefixed.on_target(b"before", large, b"behind", partition=1)
    with monkeypatch.context() as patch:
        for module in ("spark.jobs.lane_copies", "spark.jobs.reconcile.tasks"):
            patch.setattr(f"{module}.run_lanes", twin_lanes)
        lanes = prefixed.reconcile("quarantine").found["lanes"]
    assert "the lane stopped (refused)" in lanes[1]["error"]
    assert 1 in prefixed.held()

    prefixed.stage.configure(prefixed.stage.source, prefixed.stage.topic, max_message_bytes="10000")
    prefixed.stage.orders.resume(Lane(prefixed.settings.name.turned, prefixed.remote, 1))
    prefixed.hold()
    outcome = prefixed.reconcile("quarantine", run=1)

    assert outcome.clean, outcome.found
    assert not prefixed.held()
    assert prefixed.source_values() == [b"0", b"1", b"2", *ORPHANS, *BACK]
    assert prefixed.source_values(1) == [b"0", b"1", b"2", b"before", large, b"behind"]
    assert prefixed.target_values(topic=f"{prefixed.remote}.orphans") == ORPHANS
    prefixed.on_source(b"live")
    prefixed.replicate()
    assert prefixed.target_values() == [b"0", b"1", b"2", *BACK, b"live"]


def test_groups_go_on_at_the_very_record_and_none_is_moved_back_or_under_its_members(prefixed: FailoverStage) -> None:
    fail_over(prefixed)
    there = {
        each.content.value: each.offset for each in read_topic(prefixed.stage.target.bootstrap, prefixed.remote)[0]
    }
    prefixed.commit("in the middle", there[b"new 0"] + 1)
    prefixed.commit("at the end", there[b"new 2"] + 1)
    prefixed.commit("long ago", there[b"1"])
    prefixed.commit_on_source("long ago", 3)
    prefixed.commit("other-app", there[b"1"])
    outcome = prefixed.reconcile("report", groups_exclude=("other-.*",))
    groups = {each["group"]: each for each in outcome.found["groups"]}
    assert groups.keys() == {"in the middle", "at the end", "long ago"}
    assert {name: (each["readiness"], each["reread"]) for name, each in groups.items()} == dict.fromkeys(
        groups, ("ready", 0)
    )
    assert prefixed.next_value(prefixed.committed_on_source("in the middle")[0]) is None  # the tombstone behind `new 0`
    assert prefixed.committed_on_source("long ago") == {0: 3}
    assert groups["long ago"]["kept"] == 2
    assert prefixed.claimed("at the end") == {0: there[b"new 2"] + 1}
    assert prefixed.claimed("long ago") == {}
    prefixed.on_source(b"live")
    assert prefixed.next_value(prefixed.committed_on_source("at the end")[0]) == b"live"
    assert prefixed.committed_on_source("other-app") == {}


def test_looking_changes_nothing(prefixed: FailoverStage) -> None:
    fail_over(prefixed)
    before = prefixed.runs()
    prefixed.commit_on_source("had read an orphan", 4)
    prefixed.commit_on_source("had read none", 3)
    found = prefixed.reconcile("replay", look_only=True).found
    totals = found["totals"]
    assert (totals["new"], totals["orphans"], totals["copied_back"]) == (3, 2, 0)
    assert [each["key"] for each in found["lanes"][0]["conflicting"]] == ["k"]
    assert found["orphan_readers"] == [{"group": "had read an orphan", "records": 1}]
    assert found["forecast"]["bytes"] == len(b"new 0" + b"new 2") + 3 * len(b"k")
    assert found["forecast"]["round_trip_ms"] > 0
    assert prefixed.runs() == before
    assert prefixed.held() == [0, 1]
    assert prefixed.source_values() == [b"0", b"1", b"2", *ORPHANS]
    assert not prefixed.stage.ledger.read(prefixed.stage.lane())


def test_a_source_that_came_back_as_another_one_is_left_alone(prefixed: FailoverStage) -> None:
    fail_over(prefixed)
    prefixed.stage.delete(prefixed.stage.source, prefixed.stage.topic)
    prefixed.create(2)
    prefixed.on_source(b"another 0", b"another 1", b"another 2", b"another 3")
    outcome = prefixed.reconcile("replay")
    told = {each["partition"]: each["differs"] for each in outcome.found["lanes"]}
    assert not outcome.clean
    assert "replicated" in told[0]  # its first records have other timestamps
    assert "ends at 0" in told[1]
    assert prefixed.held() == [0, 1]
    assert prefixed.source_values() == [b"another 0", b"another 1", b"another 2", b"another 3"]


@pytest.mark.soak(
    "tests/unit/reconcile/test_inspect.py::test_a_source_that_grows_is_left_alone_where_what_comes_would_count_as_an_orphan"
)
def test_a_source_that_is_still_written_to_is_left_alone_unless_it_is_ordered(prefixed: FailoverStage) -> None:
    """Its records would count as orphans: never replicated, or under `replay` written twice."""
    fail_over(prefixed)

    def produce(step: ReconcileStep) -> None:
        if step == "looked":
            prefixed.on_source(b"live")

    outcome = prefixed.reconcile("replay", on_step=produce)
    first, other = outcome.found["lanes"]
    assert "the source is written to" in first["differs"]
    assert (other["differs"], other["error"], outcome.clean) == ("", "", False)
    assert prefixed.runs()[-1].next == 3, "what is live is above the position: the flow replicates it"

    outcome = prefixed.reconcile("report", run=1, live_source=True, on_step=produce)
    assert [each["differs"] or each["error"] for each in outcome.found["lanes"]] == ["", ""]


@pytest.mark.soak(
    "tests/unit/reconcile/test_inspect.py::test_what_stands_in_a_partition_that_the_source_does_not_have_is_counted_and_named",
    "tests/unit/reconcile/test_inspect.py::test_once_the_source_has_the_partition_what_was_new_comes_back_and_what_was_copied_does_not",
)
def test_what_stands_in_partitions_that_the_source_does_not_have_comes_back_once_it_has_them(
    prefixed: FailoverStage,
) -> None:
    stage = prefixed.stage
    prefixed.create()
    stage.create(stage.target, prefixed.remote, 3)
    prefixed.on_source(b"0")
    prefixed.replicate()
    prefixed.hold()
    prefixed.on_target(b"new")
    prefixed.on_target(b"far 0", b"far 1", partition=2)

    outcome = prefixed.reconcile("report")

    told = {each["partition"]: each for each in outcome.found["lanes"]}
    assert (sorted(told), outcome.clean) == ([0, 2], False), "nothing stands in the other one"
    assert f"2 records of {prefixed.remote}-2 stay there" in told[2]["differs"]
    assert "give the topic 3 partitions, and reconcile again" in told[2]["differs"]
    assert [(told[each]["new"], told[each]["copied_back"]) for each in (0, 2)] == [(1, 1), (2, 0)]

    admin = AdminClient({"bootstrap.servers": stage.source.bootstrap})
    admin.create_partitions([NewPartitions(stage.topic, 3)])[stage.topic].result(20)
    eventually(lambda: len(admin.list_topics(stage.topic, timeout=5).topics[stage.topic].partitions) == 3, "it grew")
    prefixed.hold(0, 1, 2)
    outcome = prefixed.reconcile("report", run=1)

    assert outcome.clean, outcome.found
    assert [prefixed.source_values(partition) for partition in (0, 2)] == [[b"0", b"new"], [b"far 0", b"far 1"]]
    prefixed.replicate()
    assert prefixed.target_values(2) == [b"far 0", b"far 1"]
