"""Failover and failback under ACLs: nothing is lost, read twice or skipped.

Each command is killed behind every step; the target is near, or at a distance.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.clock import now_ms
from mirrorless.failover.report import missing_of, summary
from mirrorless.failover.state import FailoverOrder
from mirrorless.failover.work import ReconcileRun
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.jobs.request import JobRequest, ReconcileOptions
from mirrorless.protocol.replicate import Replicator
from spark.jobs.driver import JobRun
from spark.reconcile import Reconciliation
from tests.support.failover_scenario import (
    FLOW,
    PARTITIONS,
    FailoverScenario,
    deployed,
    granted,
)
from tests.support.lane_stage import LaneStage
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

PLANNED = FailoverOrder(mode="planned")
LOST = FailoverOrder(mode="source-lost")
REHEARSAL = FailoverOrder(mode="drill")
DENIED = "TOPIC_AUTHORIZATION_FAILED"
UNDER_ACLS = """
flows:
  us-east->eu-west:
    topics: [{topic}]
    replication.policy: {policy}
    sync.topic.acls.enabled: true
"""
ROUND_TRIP_MS = 5.0
"""To the target; `make scale PART=failover-distance` goes further."""


@dataclass(slots=True, kw_only=True)
class SparkReconcile:
    """Implements `ReconcileJobs` in this process: a run is over when it has been started."""

    spark: SparkSession
    settings: FlowSettings
    folder: Path
    runs: dict[str, ReconcileRun] = field(default_factory=dict)

    def new_id(self) -> str:
        """See `ReconcileJobs.new_id`."""
        return f"reconcile-{len(self.runs)}-{self.folder.name}"

    def start(self, run_id: str, *, topics: Sequence[str], groups_exclude: Sequence[str]) -> None:
        """See `ReconcileJobs.start`."""
        options = ReconcileOptions(groups_exclude=tuple(groups_exclude))
        request = JobRequest(run_id=run_id, flow=self.settings, topics=tuple(topics), options=options)
        job = JobRun(request, open_job_files(str(self.folder / run_id)), now_ms())
        job._context = self.spark.sparkContext
        outcome = Reconciliation(job, settle_ms=0, still_seconds=0).act()
        report = json.loads(json.dumps({"clean": outcome.clean} | outcome.found))
        self.runs[run_id] = ReconcileRun(state="succeeded", place=str(self.folder), report=report)

    def inspect(self, run_id: str) -> ReconcileRun:
        """See `ReconcileJobs.inspect`."""
        return self.runs.get(run_id, ReconcileRun(state="missing"))


@pytest.fixture
def build(  # noqa: PLR0917 -- fixtures
    guarded: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
    flow_settings: FlowSettings,
    wire: Callable[[FlowSettings], Replicator],
    spark: SparkSession,
    tmp_path: Path,
) -> Callable[[str], FailoverScenario]:
    """Makes the scenario of a naming: records of both producers, and three groups that have read a part of them."""

    def scenario(policy: str) -> FailoverScenario:
        source, target = guarded
        settings = replace(
            flow_settings,
            source=ClusterSettings(alias=source.alias, bootstrap=source.bootstrap),
            target=ClusterSettings(alias=target.alias, bootstrap=target.bootstrap, region="us-east-1"),
            replication_policy=policy,
        )
        stage = LaneStage.of(settings, guarded, dynamodb.client(), wire)
        stage.create(source, stage.topic, PARTITIONS)
        flows = UNDER_ACLS.format(topic=stage.topic, policy=policy)
        made = FailoverScenario(
            stage=stage,
            deployment=deployed(stage, tmp_path, dynamodb.endpoint, flows),
            jobs=SparkReconcile(spark=spark, settings=settings, folder=tmp_path / "jobs"),
        )
        acls = made.acls(source)
        for cluster in guarded:  # those of the test before
            made.acls(cluster).delete(made.acls(cluster).read(lambda: 20.0) or (), lambda: 20.0)
        assert acls.create(granted(stage.topic), lambda: 20.0) == {}
        eventually(lambda: not made.produce(source, "a0", "a1", "a2"), "the applications' rights", seconds=20)
        assert not made.produce_in_transactions(source, "t0", "t1", "t2")
        made.replicate()
        made.schedule()
        return made

    return scenario


def begin(scenario: FailoverScenario) -> None:
    """Two groups read a part on the source. `audit` is another application on the target, which has read there too."""
    source, target = scenario.stage.source, scenario.stage.target
    scenario.read(source, "shop", 3)
    scenario.read(source, "billing", 1)
    scenario.read(source, "audit", 2)
    grant = [acl for acl in granted(scenario.stage.remote_topic) if acl.resource == "GROUP" and acl.name == "audit"]
    assert scenario.acls(target).create(grant, lambda: 20.0) == {}
    eventually(lambda: _reads(scenario, target), "the independent application's rights", seconds=20)
    scenario.schedule()


def _reads(scenario: FailoverScenario, cluster: KafkaCluster) -> bool:
    from confluent_kafka import KafkaException  # noqa: PLC0415 -- used here only

    try:
        return bool(scenario.read(cluster, "audit", 1, counted=False))
    except KafkaException:
        return False


def accounted(scenario: FailoverScenario, *, but: frozenset[str] = frozenset()) -> None:
    """Each moved group has read every record once. Args: but: what the report has named as missing."""
    expected = Counter(value for value in scenario.written if value not in but)
    for group in ("shop", "billing"):
        assert scenario.reads[group] == expected, group


@pytest.fixture(
    params=[
        pytest.param(0, id="near"),
        pytest.param(
            ROUND_TRIP_MS,
            id="at_a_distance",
            marks=pytest.mark.soak(
                "tests/integration/spark/test_failover.py::test_a_planned_failover_and_its_failback_lose_and_repeat_nothing"
            ),
        ),
    ]
)
def near_or_far(request: pytest.FixtureRequest, build: Callable[[str], FailoverScenario]) -> Iterator[FailoverScenario]:
    """The scenario with prefixed names, with a target in the same place, or so many ms away."""
    scenario = build("prefixed")
    link = scenario.stage.target.link
    link.round_trip_ms = request.param
    yield scenario
    link.round_trip_ms = 0


def test_a_planned_failover_and_its_failback_lose_and_repeat_nothing(near_or_far: FailoverScenario) -> None:
    scenario = near_or_far
    source, target = scenario.stage.source, scenario.stage.target
    begin(scenario)
    before = [scenario.acls(cluster).read(lambda: 20.0) for cluster in (source, target)]
    there = scenario.stage.checkpoints.read(FLOW, "forward/")

    drill = scenario.until_done(REHEARSAL)
    assert summary(FLOW, drill)["recovery_point_seconds"] == 0
    assert [scenario.acls(cluster).read(lambda: 20.0) for cluster in (source, target)] == before
    assert scenario.stage.checkpoints.read(FLOW, "forward/") == there

    scenario.produce(source, "b0", "b1")  # not replicated yet
    document = scenario.until_done(PLANNED)

    assert [each for each in missing_of(document) if "group audit" not in each] == []
    assert summary(FLOW, document)["digests_verified"] == PARTITIONS
    assert scenario.produce(source, "refused") == DENIED
    assert scenario.produce_in_transactions(source, "refused") == DENIED
    assert not scenario.produce(target, "c0", "c1")
    assert not scenario.produce_in_transactions(target, "u0")
    for group in ("shop", "billing"):
        scenario.read(target, group)
    accounted(scenario)
    independent = scenario.read(source, "audit", counted=False)
    assert len(independent) == len(scenario.written) - 2 - 3, "what the source has, behind what it had read there"

    scenario.let_a_minute_pass()
    scenario.stage.write(b"late 0", b"late 1", partition=1)  # a super user is not bound by the fence
    (late,) = [each for each in missing_of(scenario.command(PLANNED).execute()) if "group audit" not in each]
    assert late.startswith(f"{scenario.stage.topic}-1: 2 records from offset ")

    back = scenario.until_done(None)

    assert back.over
    (orphaned,) = missing_of(back)
    assert orphaned.startswith(f"{scenario.stage.topic}-1: 2 records of the source")
    assert [scenario.acls(cluster).read(lambda: 20.0) for cluster in (source, target)] == before
    eventually(lambda: not scenario.produce(source, "d0", "d1"), "the fence is lifted", seconds=20)
    for group in ("shop", "billing"):
        scenario.read(source, group)
    accounted(scenario)
    scenario.replicate()
    on_target = scenario.stage.on_target().values()
    assert sum(each.content.value == b"d0" for partition in on_target for each in partition) == 1


def test_a_lost_source_costs_what_the_report_names_and_nothing_is_read_twice(
    build: Callable[[str], FailoverScenario],
) -> None:
    scenario = build("identity")
    source, target = scenario.stage.source, scenario.stage.target
    begin(scenario)
    before = [scenario.acls(cluster).read(lambda: 20.0) for cluster in (source, target)]
    scenario.produce(source, "orphan 0", "orphan 1")
    for broker in source.brokers:
        broker.kill()

    document = scenario.until_done(LOST)

    assert not document.facts("holdings")["seen_at"], "no round of the topics' task has run here"
    assert not scenario.produce(target, "c0", "c1")
    assert not scenario.produce_in_transactions(target, "u0")
    for group in ("shop", "billing"):
        scenario.read(target, group)
    orphans = frozenset({"orphan 0", "orphan 1"})
    accounted(scenario, but=orphans)
    scenario.let_a_minute_pass()
    source.start()

    back = scenario.until_done(None)

    assert back.over
    named = [each for each in missing_of(back) if "never replicated" in each]
    assert len(named) == PARTITIONS
    assert [scenario.acls(cluster).read(lambda: 20.0) for cluster in (source, target)] == before
    assert not scenario.produce(source, "d0", "d1")
    for group in ("shop", "billing"):
        scenario.read(source, group)
    accounted(scenario, but=orphans)
