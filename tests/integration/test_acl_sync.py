"""ACLs between two real clusters with Kafka's own authorizer, by the schedule's task and by the operator's command."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from cli import acl as acl_command
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.chain.lane import FlowName
from mirrorless.errors import Retriable
from mirrorless.flow.counts import Count
from mirrorless.flow.naming import flow_prefix, transactional_id
from mirrorless.flow.settings import ClusterSettings, FlowSettings, Tables
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.acl_sync import AclSync
from mirrorless.topics.acls import Acl
from tests.support.commands import lab_state
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.guarded_cluster import AUTHORIZER, as_dummy
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration


def within() -> float:
    return 20.0


def topic_acl(name: str, operation: str, *, pattern: str = "LITERAL", permission: str = "ALLOW") -> Acl:
    return Acl("TOPIC", pattern, name, "User:dummy", "*", permission, operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A flow of this test alone, from one cluster to the other. Documents are kept in memory."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)

    @property
    def settings(self) -> FlowSettings:
        """The input of the schedule."""
        flow = make_flow(source=self.source.bootstrap, target=self.target.bootstrap)
        return msgspec.structs.replace(flow, aliases=("us-east", "eu-west"), topics=(f"{self.topic}.*",))

    def acls(self, cluster: KafkaCluster) -> KafkaAcls:
        """One cluster's ACLs."""
        return KafkaAcls(ClusterSettings(alias=cluster.alias, bootstrap=cluster.bootstrap), flow="test")

    def grant(self, *acls: Acl) -> None:
        """Create ACLs on the source."""
        assert self.acls(self.source).create(acls, within) == {}
        self.seen(self.source, lambda found: found >= set(acls))

    def revoke(self, *acls: Acl) -> None:
        """Delete ACLs from the source."""
        assert self.acls(self.source).delete(acls, within) == {}
        self.seen(self.source, lambda found: not found & set(acls))

    def on_target(self, expected: Collection[Acl]) -> frozenset[Acl]:
        """What the target has, once it has what is expected or does not get there."""
        return self.seen(self.target, lambda found: found == set(expected))

    def seen(self, cluster: KafkaCluster, enough: Callable[[frozenset[Acl]], bool]) -> frozenset[Acl]:
        """What a cluster has: a broker learns from the controller a moment after the controller has answered."""
        acls, end = self.acls(cluster), time.monotonic() + 10
        while True:
            found = acls.read(within) or frozenset()
            if enough(found) or time.monotonic() > end:
                return found
            time.sleep(0.02)  # between two looks at a condition with a deadline

    def round(self) -> RoundReport:
        """One round of the schedule's task."""
        settings, report = self.settings, RoundReport()
        AclSync(
            settings=settings,
            source=KafkaAcls(settings.source, flow="us-east->eu-west"),
            target=KafkaAcls(settings.target, flow="us-east->eu-west"),
            topics=KafkaTopics(settings.source, flow="us-east->eu-west", role="acls").partitions,
            documents=self.documents,
        ).act(report, within)
        return report


def write_as_dummy(cluster: KafkaCluster, topic: str) -> str:
    """The name of the error with which a record is refused; empty where it is taken."""
    refusals: list[KafkaError | None] = []
    producer = Producer(as_dummy(cluster) | {"enable.idempotence": False, "message.timeout.ms": 10_000})
    producer.produce(topic, b"after the failover", on_delivery=lambda error, _: refusals.append(error))
    producer.flush(20)
    (refusal,) = refusals
    return str(refusal.name()) if refusal else ""


def fence_as_dummy(cluster: KafkaCluster, transactional_id: str) -> str:
    """The name of the error with which a transactional id is refused; empty where its writer would be fenced."""
    producer = Producer(as_dummy(cluster) | {"transactional.id": transactional_id})
    try:
        producer.init_transactions(10)
    except KafkaException as exc:
        return str(exc.args[0].name())
    return ""


@pytest.fixture
def stage(guarded: tuple[KafkaCluster, KafkaCluster]) -> Iterator[Stage]:
    """A flow with one topic of its own; all ACLs of both clusters are gone afterwards."""
    source, target = guarded
    topic = create_topic(source.bootstrap, f"orders-{uuid4().hex[:8]}")
    stage = Stage(source=source, target=target, topic=topic)
    yield stage
    for cluster in guarded:
        acls = stage.acls(cluster)
        assert acls.delete(acls.read(within) or (), within) == {}
        assert not stage.seen(cluster, lambda found: not found)


def _figures(stage: Stage) -> dict[Count, int]:
    """A round's figures; none where it failed."""
    try:
        return stage.round().counts
    except Retriable:
        return {}


def test_every_operation_and_host_survives_the_way(stage: Stage) -> None:
    named = [
        Acl("TOPIC", "LITERAL", stage.topic, f"User:CN={operation},O=Ex ample", "10.0.0.1", permission, operation)
        for permission in ("ALLOW", "DENY")
        for operation in ("READ", "DESCRIBE", "CREATE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    ]
    stage.grant(*named)

    stage.round()

    assert stage.on_target({acl.on("LITERAL", f"us-east.{stage.topic}") for acl in named}) == {
        acl.on("LITERAL", f"us-east.{stage.topic}") for acl in named
    }


def test_a_topic_that_is_closed_to_everyones_writes_does_not_close_its_remote_topic_to_the_flow(stage: Stage) -> None:
    """The flow has the user `dummy` there, and its right by name, as the page asks for."""
    remote = f"us-east.{stage.topic}"
    create_topic(stage.target.bootstrap, remote)
    own = {topic_acl(remote, "WRITE"), topic_acl(remote, "DESCRIBE")}
    assert stage.acls(stage.target).create(own, within) == {}
    reader = Acl("TOPIC", "LITERAL", stage.topic, "User:shop", "*", "ALLOW", "READ")
    closed = [topic_acl(stage.topic, operation, permission="DENY") for operation in ("WRITE", "ALL")]
    stage.grant(reader, *(msgspec.structs.replace(each, principal="User:*") for each in closed))

    report = stage.round()

    arrived = {
        reader.on("LITERAL", remote),
        msgspec.structs.replace(closed[1].on("LITERAL", remote), principal="User:shop"),
    }
    assert stage.on_target(own | arrived) == own | arrived
    assert report.counts["acls-left"] == 2
    assert not write_as_dummy(stage.target, remote)


def test_a_literal_is_deleted_without_the_prefix_that_covers_it(stage: Stage) -> None:
    literal, prefix = topic_acl(stage.topic, "READ"), topic_acl(stage.topic, "READ", pattern="PREFIXED")
    stage.grant(literal, prefix)
    stage.round()

    stage.revoke(literal)
    stage.round()

    assert stage.on_target({topic_acl(f"us-east.{stage.topic}", "READ", pattern="PREFIXED")}) == {
        topic_acl(f"us-east.{stage.topic}", "READ", pattern="PREFIXED")
    }


def test_one_refused_binding_does_not_stop_the_others(stage: Stage) -> None:
    good = topic_acl("payments", "READ")
    bad = Acl("TOPIC", "LITERAL", "payments", "nobody in particular", "*", "ALLOW", "READ")

    refused = stage.acls(stage.target).create([good, bad], within)

    assert set(refused) == {bad}
    assert stage.on_target({good}) == {good}


def test_a_thousand_and_more_bindings_are_written(stage: Stage) -> None:
    many = [topic_acl(f"t-{number}", "READ") for number in range(1001)]

    assert stage.acls(stage.target).create(many, within) == {}

    assert stage.on_target(set(many)) == set(many)


def test_a_cluster_without_an_authorizer_is_no_trouble(
    stage: Stage, clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    """MM2's testNoBrokerAclAuthorizer: the target is never touched."""
    stage.grant(topic_acl(stage.topic, "READ"))
    for source, target in ((clusters[0], stage.target), (stage.source, clusters[1])):
        open_stage = Stage(source=source, target=target, topic=stage.topic)

        report = open_stage.round()

        assert (report.counts, report.troubles) == ({"acls-disabled": 1}, [])
    assert stage.on_target(frozenset()) == frozenset()


def test_a_source_that_does_not_let_us_look_revokes_nothing(stage: Stage, tmp_path: Path) -> None:
    """The client answers with an empty list then, as if every grant had been revoked."""
    us = Acl("CLUSTER", "LITERAL", "kafka-cluster", "User:ANONYMOUS", "*", "ALLOW", "ALL")
    strict = KafkaCluster(
        alias="us-east",
        folder=tmp_path / "strict",
        properties=AUTHORIZER | {"super.users": "User:nobody"},
        heap_mb=256,
    )
    try:
        strict.start()
        there = Stage(source=strict, target=stage.target, topic=stage.topic)
        there.grant(us, topic_acl(stage.topic, "READ"))
        there.round()
        arrived = {topic_acl(f"us-east.{stage.topic}", "READ")}
        assert stage.on_target(arrived) == arrived
        deny = msgspec.structs.replace(us, permission="DENY", operation="DESCRIBE")
        assert there.acls(strict).create([deny], within) == {}
        # Once the broker has learnt of it, looking is refused; until then the round has nothing to change.
        end = time.monotonic() + 10
        while time.monotonic() < end and "acls-created" in _figures(there):
            time.sleep(0.02)  # between two looks at a condition with a deadline

        with pytest.raises(Retriable, match="does not let us look") as refused:
            there.round()
    finally:
        strict.stop()

    assert "DESCRIBE the cluster" in refused.value.hint
    assert stage.on_target(arrived) == arrived


def test_an_authorizer_without_any_acl_is_one(stage: Stage) -> None:
    assert stage.acls(stage.source).read(within) == frozenset()


def test_a_cluster_that_is_gone_is_worth_a_retry() -> None:
    gone = KafkaAcls(ClusterSettings(alias="us-east", bootstrap="127.0.0.1:1"), flow="us-east->eu-west")

    with pytest.raises(Retriable, match="did not list its ACLs"):
        gone.read(lambda: 1.5)


# the operator's command

FLOW = FlowName("us-east", "eu-west")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The command on a stage, led there by a lab's state file."""

    stage: Stage
    state: Path
    documents: DynamoDbDocuments
    checkpoints: DynamoDbDocuments
    capsys: pytest.CaptureFixture[str]

    def run(self, *words: str) -> tuple[int, str]:
        """The command's exit code and what it printed."""
        parser = argparse.ArgumentParser()
        acl_command.add_parser(parser.add_subparsers())
        arguments = parser.parse_args(["acl", *words, "--lab", str(self.state)])
        code = int(arguments.run(arguments))
        return code, self.capsys.readouterr().out

    def answer(self, *words: str) -> tuple[int, Any]:
        """The same for programs."""
        code, text = self.run(*words, "--json")
        return code, json.loads(text)


@pytest.fixture
def bench_at(
    stage: Stage, dynamodb: DynamoDbLocal, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], Bench]:
    """A command whose source is at the address that it is given."""

    def at(source: str) -> Bench:
        flow, bootstrap = f"us-east->eu-west: {{topics: [{stage.topic}]}}", {"us-east": source}
        bootstrap["eu-west"] = stage.target.bootstrap
        path = lab_state(tmp_path, flow, bootstrap, dynamodb.endpoint, tables, mappings=[])
        return Bench(
            stage=stage,
            state=path,
            documents=DynamoDbDocuments(dynamodb.client(), tables.control),
            checkpoints=DynamoDbDocuments(dynamodb.client(), tables.checkpoints),
            capsys=capsys,
        )

    return at


def test_the_plan_shows_three_tables_and_changes_nothing(stage: Stage, bench_at: Callable[[str], Bench]) -> None:
    bench = bench_at(stage.source.bootstrap)
    stage.grant(topic_acl(stage.topic, "ALL"), topic_acl("other", "READ"))

    code, said = bench.answer("plan", str(FLOW))
    _, text = bench.run("plan", str(FLOW))

    assert code == 0
    assert [(acl["name"], acl["operation"]) for acl in said["create"]] == [(f"us-east.{stage.topic}", "READ")]
    assert [(acl["name"], acl["operation"], acl["on_target"]) for acl in said["staged"]] == [
        (f"us-east.{stage.topic}", "ALL", False)
    ]
    assert [(acl["name"], acl["reason"]) for acl in said["left"]] == [
        ("other", "the flow does not replicate this topic")
    ]
    for words in ("to do on eu-west", "staged for a failover", "left out", f"us-east.{stage.topic}", "User:dummy"):
        assert words in text
    assert stage.on_target(frozenset()) == frozenset()


def test_apply_shows_its_plan_first_and_then_does_it(stage: Stage, bench_at: Callable[[str], Bench]) -> None:
    bench = bench_at(stage.source.bootstrap)
    stage.grant(topic_acl(stage.topic, "READ"))

    _, text = bench.run("apply", str(FLOW))
    assert "Nothing was changed" in text
    assert stage.on_target(frozenset()) == frozenset()

    code, said = bench.answer("apply", str(FLOW), "--execute")
    assert (code, said["executed"], said["failed"]) == (0, True, [])
    assert stage.on_target({topic_acl(f"us-east.{stage.topic}", "READ")}) == {
        topic_acl(f"us-east.{stage.topic}", "READ")
    }
    assert "nothing to do" in bench.run("plan", str(FLOW))[1]


def test_apply_waits_for_a_schedule_that_is_at_work(stage: Stage, bench_at: Callable[[str], Bench]) -> None:
    bench, now = bench_at(stage.source.bootstrap), time.time_ns() // 1_000_000
    assert bench.documents.claim(FLOW, "lease/refresh_topics", holder="a run", now=now, until=now + 60_000)

    with pytest.raises(Retriable, match="refresh_topics is running for this flow"):
        bench.run("apply", str(FLOW), "--execute")

    bench.documents.release(FLOW, "lease/refresh_topics", holder="a run")
    assert bench.run("apply", str(FLOW), "--execute")[0] == 0


def test_producers_write_to_the_remote_topic_from_a_failover_until_its_revocation_and_fence_nobody(
    stage: Stage, bench_at: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runbook of a lost region: a reconcile brings `us-east.orders` back. Each order shows its plan first."""
    bench, remote = bench_at(stage.source.bootstrap), f"us-east.{stage.topic}"
    create_topic(stage.target.bootstrap, remote)
    own = Acl("TRANSACTIONAL_ID", "PREFIXED", flow_prefix(FLOW), "User:mirrorless", "*", "ALLOW", "ALL")
    assert stage.acls(stage.target).create([own], within) == {}
    any_id = Acl("TRANSACTIONAL_ID", "LITERAL", "*", "User:dummy", "*", "ALLOW", "ALL")
    stage.grant(topic_acl(stage.topic, "READ"), topic_acl(stage.topic, "WRITE"), any_id)
    bench.run("apply", str(FLOW), "--execute")
    before = {own, topic_acl(remote, "READ")}
    assert stage.on_target(before) == before
    assert write_as_dummy(stage.target, remote) == "TOPIC_AUTHORIZATION_FAILED"

    lost, granted = bench_at("127.0.0.1:1"), {*before, topic_acl(remote, "WRITE")}
    with monkeypatch.context() as patched:
        patched.setattr(acl_command, "READ_SECONDS", 2.0)
        code, said = lost.answer("plan", str(FLOW))
    assert (code, [acl["name"] for acl in said["staged"]]) == (1, [remote])
    assert "did not list its ACLs" in said["trouble"]
    assert "Nothing was changed" in lost.run("apply", str(FLOW), "--failover")[1]
    assert stage.on_target(before) == before
    code, said = lost.answer("apply", str(FLOW), "--failover", "--execute")
    assert (code, len(said["create"]), len(said["granted"])) == (0, 1, 1)
    assert stage.on_target(granted) == granted
    assert write_as_dummy(stage.target, remote) == ""
    assert fence_as_dummy(stage.target, transactional_id(FLOW, "0")) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"

    bench = bench_at(stage.source.bootstrap)
    assert "acl revoke 'us-east->eu-west' --failover" in bench.run("plan", str(FLOW))[1]
    assert "Nothing was changed" in bench.run("revoke", str(FLOW), "--failover")[1]
    assert stage.on_target(granted) == granted
    code, said = bench.answer("revoke", str(FLOW), "--failover", "--execute")
    assert (code, said["granted"], [acl["name"] for acl in said["delete"]]) == (0, [], [remote])
    assert stage.on_target(before) == before
    assert write_as_dummy(stage.target, remote) == "TOPIC_AUTHORIZATION_FAILED"


def test_a_cluster_without_an_authorizer_is_said(
    bench_at: Callable[[str], Bench], clusters: tuple[KafkaCluster, KafkaCluster]
) -> None:
    bench = bench_at(clusters[0].bootstrap)

    assert "us-east has no authorizer" in bench.run("plan", str(FLOW))[1]
    assert bench.answer("apply", str(FLOW), "--execute")[1]["without_authorizer"] == "us-east"
