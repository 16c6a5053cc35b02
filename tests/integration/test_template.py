"""The templates themselves replicate: what `cdk deploy` would make is made of the lab's parts, and works.

Tables, functions, code, variables, mappings, schedules and rights are read from the synthesized assembly. The
configuration names the test's own brokers; that, and the platform of the code, is all that differs from a deployment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from infra.packaging import bundle, wheels
from lab.cloud import create_topics
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from tests.support.assembly import assemble
from tests.support.readback import assert_mirrored, await_settled, links, read_topic
from tests.support.template_stage import TemplateStage
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

CONFIGURATION = """
clusters:
  us-east: {{bootstrap.servers: {source}, region: us-east-1, account: "111122223333"}}
  eu-west: {{bootstrap.servers: {target}, region: eu-west-1, account: "111122223333"}}
flows:
  us-east->eu-west:
    topics: [{literal}, "{found}-.*"]
    replication.factor: 1
    heartbeats.topic.replication.factor: 1
    checkpoints.topic.replication.factor: 1
    refresh.topics.interval.seconds: 1
    emit.heartbeats.interval.seconds: 1
    mapping: {{maximum.pollers: 1}}
deployment:
  spark: {{enabled: false}}
"""


@pytest.fixture(scope="module")
def topics() -> tuple[str, str]:
    """A topic that is named, and one that is found."""
    suffix = uuid4().hex[:8]
    return f"orders-{suffix}", f"late-{suffix}-orders"


@pytest.fixture(scope="module")
def stage(
    clusters: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
    topics: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TemplateStage]:
    from infra.packaging.assets import LOCAL  # noqa: PLC0415 -- starts Node: not for all who collect tests

    source, target = clusters
    literal, found = topics
    folder = tmp_path_factory.mktemp("template")
    config = folder / "replication.yaml"
    pattern = found.removesuffix("-orders")
    config.write_text(
        CONFIGURATION.format(source=source.bootstrap, target=target.bootstrap, literal=literal, found=pattern)
    )
    create_topics(source.bootstrap, [NewTopic(topic, 2, 1) for topic in topics])
    stage = TemplateStage(
        assembly=assemble(config, folder / "cdk.out", **{LOCAL: True}), dynamodb=dynamodb, folder=folder
    )
    try:
        stage.deploy()
        yield stage
    finally:
        stage.stop()


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for batch in range(0, count, 50):
        producer.begin_transaction()
        for number in range(batch, min(batch + 50, count)):
            producer.produce(topic, b"%d" % number, b"key", number % 2, headers=[("n", b"%d" % number), ("n", b"")])
        producer.commit_transaction(30)


def has_records(bootstrap: str, topic: str, count: int) -> bool:
    return sum(map(len, read_topic(bootstrap, topic).values())) >= count


@pytest.fixture(scope="module")
def replicated(
    stage: TemplateStage, topics: tuple[str, str], clusters: tuple[KafkaCluster, KafkaCluster], dynamodb: DynamoDbLocal
) -> TemplateStage:
    """The deployment after it has copied 500 records of each topic, and heartbeats."""
    source, target = clusters
    flow = stage.assembly.deployment.flows[0].flow
    chains = DynamoDbChains(dynamodb.client(), flow.tables["offset_map"])

    def done(topic: str) -> bool:
        assert stage.refused == {}  # what a role forbids is forbidden for ever: nobody need wait for it
        runs = [run for partition in (0, 1) for run in links(Lane(flow.name, topic, partition), chains)]
        return sum(run.records for run in runs) >= 500 and all(run.state == "committed" for run in runs)

    for topic in topics:
        produce(source.bootstrap, topic, 500)
    for topic in topics:
        eventually(partial(done, topic), f"500 records of {topic} are in its runs", seconds=120)
    beats = partial(has_records, target.bootstrap, "us-east.heartbeats", 1)
    eventually(beats, "heartbeats of the source are replicated", seconds=120)
    return stage


def test_topics_named_and_found_are_replicated_exactly_by_what_the_templates_say(
    replicated: TemplateStage,
    topics: tuple[str, str],
    clusters: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
) -> None:
    source, target = clusters
    flow = replicated.assembly.deployment.flows[0].flow
    chains = DynamoDbChains(dynamodb.client(), flow.tables["offset_map"])

    for topic in topics:
        remote = flow.remote_topic(topic)
        await_settled(target.bootstrap, remote)
        before, after = read_topic(source.bootstrap, topic), read_topic(target.bootstrap, remote)
        assert sum(map(len, after.values())) == 500
        for partition in (0, 1):
            assert_mirrored(Lane(flow.name, topic, partition), chains, before[partition], after[partition])


def test_no_function_is_refused_anything_by_its_role(replicated: TemplateStage) -> None:
    """What a flow does day by day: positions, runs, checkpoints, tasks, mappings of found topics."""
    assert replicated.refused == {}
    used = {action for gates in replicated.gates.values() for gate in gates for action in gate.passed}
    assert {"dynamodb:PutItem", "dynamodb:Query", "lambda:CreateEventSourceMapping"} <= used


def test_the_code_of_the_templates_is_the_code_that_the_lab_runs(stage: TemplateStage) -> None:
    for part in ("forward", "control", "refresh_topics"):
        name = stage.assembly.deployment.flows[0].flow.resource_name(part)
        assert wheels.tree_hash(stage.code[name]) == wheels.tree_hash(bundle.build(part))


def test_mappings_of_found_topics_go_with_the_stack_and_those_of_named_ones_stay_the_templates(
    replicated: TemplateStage, topics: tuple[str, str]
) -> None:
    stage, flow = replicated, replicated.assembly.deployment.flows[0].flow
    literal, found = topics
    assert {topic for each in stage.mappings.list() for topic in each["Topics"]} >= {literal, found}

    stage.end_schedules()  # CloudFormation deletes them first
    said = deleted(stage, flow.resource_name("remove_mappings"))

    assert said["Status"] == "SUCCESS", said
    left = [each["Topics"][0] for each in stage.mappings.list() if each["State"] != "Deleting"]
    assert left == [literal]
    assert stage.refused == {}


def deleted(stage: TemplateStage, function: str) -> dict[str, Any]:
    """What a custom resource's function answers to CloudFormation's Delete."""
    told: list[dict[str, Any]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    custom = next(each for each in stage.assembly.resources() if each.type.startswith("Custom::"))
    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        event = {
            "RequestType": "Delete",
            "RequestId": uuid4().hex,
            "StackId": "arn:aws:cloudformation:us-east-1:111122223333:stack/mirrorless/1",
            "LogicalResourceId": custom.id,
            "PhysicalResourceId": custom.id,
            "ResponseURL": f"http://127.0.0.1:{server.server_address[1]}/answer",
            "ResourceProperties": stage.resolve(custom.stack, custom.properties),
        }
        outcome = stage.functions[function].invoke(json.dumps(event).encode())
        assert outcome.status == "success", outcome
    finally:
        server.shutdown()
        server.server_close()
    return told[0]
