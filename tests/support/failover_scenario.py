"""A flow between two clusters under ACLs, with the applications of a user who is no super user, and its failover.

The flow replicates in this process, whenever a command waits. Every application counts what it has read.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from pyspark.sql import SparkSession

from cli.deployment import DeployedFlows
from cli.failover import effects_of
from lab.servers.kafka import KafkaCluster
from lab.servers.proxy import NetworkLink
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.errors import Retriable
from mirrorless.failover.effects import FailoverEffects, ReconcileRun
from mirrorless.failover.plan import PlannedStep
from mirrorless.failover.run import FailoverCommand
from mirrorless.failover.state import FailoverDocument, FailoverOrder, StepName, StepResult
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.jobs.request import JobRequest, ReconcileOptions
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.acls import Acl
from spark.jobs.driver import JobRun
from spark.reconcile import Reconciliation
from tests.support.guarded_cluster import as_dummy
from tests.support.lane_stage import Crash, LaneStage
from tests.support.readback import await_settled

FLOW = FlowName("us-east", "eu-west")
PARTITIONS = 2
STILL_SECONDS = 0.4
GROUPS = ("shop", "audit", "billing")


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


@dataclass(slots=True)
class LostAnswers:
    """Writes that reach their server and whose answers are lost: each kind once, on a new connection as well.

    The link to the target is cut at that moment, so every client of the command has to connect again.
    """

    link: NetworkLink
    lost: list[str] = field(default_factory=list)
    """What was lost so far."""

    def among(self, effects: FailoverEffects) -> FailoverEffects:
        """Effects that lose answers."""
        source, target = (
            replace(side, acls=_Losing(self, f"{name} acls", side.acls, ("create", "delete")))
            for name, side in (("source", effects.source), ("target", effects.target))
        )
        return replace(
            effects,
            source=source,
            target=target,
            acl_sync=replace(effects.acl_sync, source=source.acls, target=target.acls),
            fences=_Losing(self, "fences", effects.fences, ("fence", "lift")),
            documents=_Losing(self, "documents", effects.documents, ("write", "claim")),
            checkpoints=_Losing(self, "checkpoints", effects.checkpoints, ("write",)),
            shadows=_Losing(self, "shadows", effects.shadows, ("commit", "delete")),
            rounds=lambda store: _Losing(self, "rounds", effects.rounds(store), ("act",)),
        )

    def lose(self, what: str) -> None:
        """Lose the answer to a write that was carried out; only the first of its kind."""
        if what not in self.lost:
            self.lost.append(what)
            self.link.cut()
            self.link.restore()
            raise Retriable(f"the answer was lost: {what}")


class _Losing:
    """An object some of whose methods lose their first answer."""

    def __init__(self, losing: LostAnswers, name: str, inner: Any, methods: Sequence[str]) -> None:
        self._losing, self._name, self._inner, self._methods = losing, name, inner, methods

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._inner, method)
        if method not in self._methods:
            return call

        def lost(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self._losing.lose(f"{self._name}.{method}")
            return result

        return lost


@dataclass(slots=True, kw_only=True)
class FailoverScenario:
    """One topic, its applications and the operator."""

    stage: LaneStage
    deployment: DeployedFlows
    jobs: SparkReconcile
    written: list[str] = field(default_factory=list)
    """Every value that was acknowledged to a producer and committed, on either cluster."""
    reads: dict[str, Counter[str]] = field(default_factory=dict)
    """What each group has read, by group."""
    loses: LostAnswers | None = None
    """Of the commands; None for none."""
    _environment: Any = None

    # Applications, as the user `dummy`

    def produce(self, cluster: KafkaCluster, *values: str) -> str:
        """Write plainly; the name of the error with which that is refused, or nothing."""
        errors: list[KafkaError | None] = []
        producer = Producer(as_dummy(cluster) | {"message.timeout.ms": 10_000, "enable.idempotence": True})
        for number, value in enumerate(values):
            producer.produce(
                self._name(cluster),
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: errors.append(error),
            )
        producer.flush(20)
        failed = [error for error in errors if error is not None]
        self.written += [] if failed else values
        return str(failed[0].name()) if failed else ""

    def produce_in_transactions(self, cluster: KafkaCluster, *values: str) -> str:
        """Write a transaction that is aborted and one that is committed, under the application's id."""
        producer = Producer(as_dummy(cluster) | {"transactional.id": "billing-1"})
        try:
            producer.init_transactions(20)
            for end in (producer.abort_transaction, producer.commit_transaction):
                producer.begin_transaction()
                for value in values:
                    producer.produce(self._name(cluster), value if end == producer.commit_transaction else "aborted")
                end(20)
        except KafkaException as exc:
            return str(exc.args[0].name())
        await_settled(cluster.bootstrap, self._name(cluster))
        self.written += values
        return ""

    def read(self, cluster: KafkaCluster, group: str, count: int | None = None, *, counted: bool = True) -> list[str]:
        """Read as a member of a group, up to a number of records or to the end, and commit."""
        settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = Consumer(as_dummy(cluster) | settings | {"enable.partition.eof": True, "fetch.wait.max.ms": 20})
        found: list[str] = []
        ended: set[int] = set()
        try:
            consumer.subscribe([self._name(cluster)])
            while len(ended) < PARTITIONS and (count is None or len(found) < count):
                message = consumer.poll(20)
                assert message is not None, f"group {group} was shown nothing"
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    found.append((message.value() or b"").decode())
                    ended.discard(partition)
                    consumer.commit(message=message, asynchronous=False)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(partition)
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        if counted:
            self.reads.setdefault(group, Counter()).update(found)
        return found

    def _name(self, cluster: KafkaCluster) -> str:
        return self.stage.topic if cluster is self.stage.source else self.stage.remote_topic

    # The flow

    def replicate(self) -> None:
        """One event with all of the source."""
        if self._environment is None:
            self._environment = self.stage.environment()
        try:
            self.stage.replicate(self._environment, self.stage.event())
        except AssertionError:
            return  # the source does not answer

    def let_a_minute_pass(self) -> None:
        """After so long, the function has read the fence; one that starts now reads it at once."""
        self._environment = None

    def schedule(self) -> None:
        """One round of the ACLs' task, and one of the checkpoints'."""
        effects = self._effects()
        effects.acl_sync.act(RoundReport(), lambda: 20.0)
        effects.rounds(effects.checkpoints).act(RoundReport(), lambda: 20.0)

    # The operator

    def command(self, order: FailoverOrder | None, *, force: bool = False) -> FailoverCommand:
        """A command of a new process."""
        return FailoverCommand(effects=self._effects(), order=order, force=force, still_seconds=STILL_SECONDS)

    def until_done(self, order: FailoverOrder | None) -> FailoverDocument:
        """Carry out, killed once behind every step, and run again until nothing is left."""
        killed = set[StepName]()

        def crash(step: PlannedStep, _: StepResult) -> None:
            if step.step not in killed:
                killed.add(step.step)
                raise Crash

        while True:
            command = self.command(order)
            command.prepare()
            command.on_step = crash
            try:
                document = command.execute()
            except Crash:
                continue
            assert killed == {each.step for each in command.plan}
            return document

    def until_answered(self, order: FailoverOrder | None, tries: int = 30) -> FailoverDocument:
        """Carry out, again after each lost answer, as an operator who repeats the command."""
        for _ in range(tries):
            try:
                command = self.command(order)
                command.prepare()
                return command.execute()
            except Retriable:
                continue
        raise AssertionError(f"it did not end in {tries} tries")

    def acls(self, cluster: KafkaCluster) -> KafkaAcls:
        """One cluster's ACLs."""
        return KafkaAcls(ClusterSettings(alias=cluster.alias, bootstrap=cluster.bootstrap), flow="test")

    def _effects(self) -> Any:
        arguments = argparse.Namespace(local=True, folder=None, lab=None)
        effects = effects_of(self.deployment, FLOW, arguments)
        real = effects.sleep

        def sleep(seconds: float) -> None:
            self.replicate()
            real(min(seconds, 0.1))

        effects = replace(effects, sleep=sleep, jobs=self.jobs)
        return effects if self.loses is None else self.loses.among(effects)


def granted(topic: str) -> frozenset[Acl]:
    """What the applications may on the source."""

    def allow(resource: str, name: str, operation: str) -> Acl:
        return Acl(resource, "LITERAL", name, "User:dummy", "*", "ALLOW", operation)

    return frozenset(
        [
            *(allow("TOPIC", topic, operation) for operation in ("READ", "WRITE", "DESCRIBE")),
            *(allow("GROUP", group, "READ") for group in GROUPS),
            *(allow("TRANSACTIONAL_ID", "billing-1", operation) for operation in ("WRITE", "DESCRIBE")),
        ]
    )


def deployed(stage: LaneStage, folder: Path, endpoint: str) -> DeployedFlows:
    """The flow as the operator's commands find it: a configuration, and the state file of a lab."""
    from cli.lab_state import read_lab_state  # noqa: PLC0415 -- used here only

    configuration = folder / "replication.yaml"
    configuration.write_text(
        f"""
clusters:
  us-east: {{bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}}
  eu-west: {{bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}}
flows:
  us-east->eu-west:
    topics: [{stage.topic}]
    replication.policy: {stage.settings.policy}
    sync.topic.acls.enabled: true
"""
    )
    state = {
        "config": str(configuration),
        "clusters": {each.alias: {"bootstrap": each.bootstrap} for each in (stage.source, stage.target)},
        "dynamodb": {"endpoint": endpoint},
        "tables": msgspec.to_builtins(stage.settings.tables),
        "mappings": [],
    }
    path = folder / "lab.json"
    path.write_text(json.dumps(state))
    return DeployedFlows(config=configuration, lab=read_lab_state(path))
