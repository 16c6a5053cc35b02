"""A flow between two clusters under ACLs, with the applications of a user who is no super user, and its failover.

The flow replicates in this process, whenever a command waits. Every application counts what it has read.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from cli.deployment import DeployedFlows
from cli.failover import effects_of
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.chain.lane import FlowName
from mirrorless.failover.run import FailoverCommand
from mirrorless.failover.state import FailoverDocument, FailoverOrder, PlannedStep, StepName, StepResult
from mirrorless.failover.work import FailoverEffects, ReconcileJobs
from mirrorless.flow.settings import ClusterSettings
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.acls import Acl
from tests.support.guarded_cluster import as_dummy
from tests.support.lane_stage import Crash, LaneStage
from tests.support.readback import await_settled

FLOW = FlowName("us-east", "eu-west")
PARTITIONS = 2
STILL_SECONDS = 0.4
GROUPS = ("shop", "audit", "billing")


@dataclass(slots=True, kw_only=True)
class FailoverScenario:
    """One topic, its applications and the operator."""

    stage: LaneStage
    deployment: DeployedFlows
    jobs: ReconcileJobs
    written: list[str] = field(default_factory=list)
    """Every value that was acknowledged to a producer and committed, on either cluster."""
    reads: dict[str, Counter[str]] = field(default_factory=dict)
    """What each group has read, by group."""
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
        client = as_dummy(cluster) | {"group.id": group}
        found = [value.decode() for value in read_as_member(client, self._name(cluster), PARTITIONS, count)]
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
        effects.rounds(effects.checkpoints, back=False).act(RoundReport(), lambda: 20.0)

    # The operator

    def command(self, order: FailoverOrder | None) -> FailoverCommand:
        """A command of a new process, that has been prepared."""
        command = FailoverCommand(effects=self._effects(), order=order, still_seconds=STILL_SECONDS)
        command.prepare()
        return command

    def until_done(self, order: FailoverOrder | None) -> FailoverDocument:
        """Carry out, killed once behind every step, and run again by a new process until nothing is left."""
        killed = set[StepName]()

        def crash(step: PlannedStep, _: StepResult) -> None:
            if step.step not in killed:
                killed.add(step.step)
                raise Crash

        while True:
            command = self.command(order)
            command.on_step = crash
            try:
                document = command.execute()
            except Crash:
                continue
            assert killed == {each.step for each in command.plan}
            return document

    def acls(self, cluster: KafkaCluster) -> KafkaAcls:
        """One cluster's ACLs."""
        return KafkaAcls(ClusterSettings(alias=cluster.alias, bootstrap=cluster.bootstrap), flow="test")

    def _effects(self) -> FailoverEffects:
        return replace(effects_between(self.deployment, self.replicate), jobs=self.jobs)


def read_as_member(client: dict[str, Any], topic: str, partitions: int, count: int | None = None) -> list[bytes]:
    """The values of so many records, or to the end, by a group's member that commits behind each, and leaves."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20}
    consumer = Consumer(client | settings | {"enable.partition.eof": True})
    found: list[bytes] = []
    ended: set[int] = set()
    try:
        consumer.subscribe([topic])
        while len(ended) < partitions and (count is None or len(found) < count):
            message = consumer.poll(20)
            assert message is not None, f"a member of {client['group.id']} was shown nothing"
            error, partition = message.error(), message.partition() or 0
            if error is None:
                found.append(message.value() or b"")
                ended.discard(partition)
                consumer.commit(message=message, asynchronous=False)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
                (at,) = consumer.position([TopicPartition(topic, partition)])
                if at.offset > 0:  # behind the marker of the last transaction
                    consumer.commit(offsets=[at], asynchronous=False)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def effects_between(deployment: DeployedFlows, looks: Callable[[], object]) -> FailoverEffects:
    """Those of the operator's commands on this machine. Args: looks: what happens between two looks of a wait."""
    effects = effects_of(deployment, FLOW, argparse.Namespace(local=True, folder=None, lab=None))
    real = effects.sleep

    def sleep(seconds: float) -> None:
        looks()
        real(min(seconds, 0.1))

    return replace(effects, sleep=sleep)


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


CLUSTERS = """
clusters:
  us-east: {bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}
  eu-west: {bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}
"""


def deployed(stage: LaneStage, folder: Path, endpoint: str, flows: str) -> DeployedFlows:
    """Flows as the operator's commands find them: a configuration, and the state file of a lab."""
    from cli.deployment import read_lab_state  # noqa: PLC0415 -- used here only

    configuration = folder / "replication.yaml"
    configuration.write_text(CLUSTERS + flows)
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
