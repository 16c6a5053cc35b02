"""The templates themselves replicate: what `cdk deploy` would make is made of the lab's parts, and works.

Tables, functions, code, variables, mappings, schedules and rights are read from the synthesized assembly, and nothing
from replication.yaml; each function reaches DynamoDB and Lambda through a gate that holds it to its role
(`Gate`). The configuration names the test's own brokers; that, and the platform of the code, is all
that differs from a deployment.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from infra.guard.templates import Resource
from infra.packaging import bundle, wheels
from lab.cloud import create_topics
from lab.esm.behaviour import LabBehaviour
from lab.esm.lambda_api import LambdaApi
from lab.esm.mappings import EventSourceMappings
from lab.functions.control import Timer
from lab.functions.function import LambdaFunction
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from tests.support import aws_recorder
from tests.support.assembly import Assembly, assemble
from tests.support.aws_recorder import dynamodb_calls, kind_of
from tests.support.iam import allowed, statements_of
from tests.support.readback import assert_mirrored, await_settled, links, read_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

MAPPINGS = "/2015-03-31/event-source-mappings"
TAGS = "/2017-03-31/tags"


@dataclass(kw_only=True)
class Gate:
    """The way of one function to one service.

    Attributes:
        part: the function, as `infra.iam.Part` names it.
        statements: what the function's role says.
        upstream: the service's endpoint, `http://127.0.0.1:port`.
        arn_prefix: of the service's resources, up to `table/` or `event-source-mapping:`.
        function_arn: of a function by its name with its alias, or of what a mapping calls by the mapping's UUID.
        passed: actions that were allowed.
        refused: actions and resources that were not.
    """

    part: str
    statements: Sequence[Mapping[str, Any]]
    upstream: str
    arn_prefix: str
    function_arn: Callable[[str], str] = str
    passed: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        """Where the function calls."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Open it."""
        self._server = _Door(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="gate", daemon=True).start()

    def stop(self) -> None:
        """Close it."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def judge(self, method: str, path: str, target: str, body: bytes) -> str:
        """What is wrong with a call; empty when it is allowed."""
        for action, resource, context in self._asked(method, path, target, body):
            if not allowed(self.statements, action, resource, context):
                self.refused.append(f"{action} on {resource}")
                return f"not authorized to perform: {action} on resource: {resource}"
            self.passed.add(action)
            table = kind_of(resource.rpartition("/")[2]) if action.startswith("dynamodb:") else ""
            aws_recorder.note(self.part, (action, table))
        return ""

    def _asked(self, method: str, path: str, target: str, body: bytes) -> list[tuple[str, str, dict[str, str]]]:
        if target.startswith("DynamoDB"):
            return [(action, f"{self.arn_prefix}{table}", {}) for action, table in dynamodb_calls(target, body)]
        place = urlsplit(path).path.rstrip("/")
        request = json.loads(body) if body else {}
        if place == MAPPINGS:
            action = {"GET": "lambda:ListEventSourceMappings", "POST": "lambda:CreateEventSourceMapping"}[method]
            context = {"lambda:FunctionArn": self.function_arn(request["FunctionName"])} if request else {}
            return [(action, "*", context)]
        uuid = unquote(place).rpartition(":")[2].rpartition("/")[2]
        if place.startswith(MAPPINGS):
            verb = {"GET": "Get", "PUT": "Update", "DELETE": "Delete"}[method]
            context = {"lambda:FunctionArn": self.function_arn(uuid)}
            return [(f"lambda:{verb}EventSourceMapping", f"{self.arn_prefix}{uuid}", context)]
        action = {"GET": "ListTags", "POST": "TagResource", "DELETE": "UntagResource"}[method]
        return [(f"lambda:{action}", f"{self.arn_prefix}{uuid}", {})]


class _Door(ThreadingHTTPServer):
    """A thread for each connection; none of them outlives the process."""

    daemon_threads = True

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(BaseHTTPRequestHandler):
    """One connection of a function."""

    server: _Door
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        gate = self.server.gate
        if trouble := gate.judge(self.command, self.path, self.headers.get("X-Amz-Target", ""), body):
            said = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": trouble}
            self._answer(HTTPStatus.FORBIDDEN, {"x-amzn-errortype": "AccessDeniedException"}, json.dumps(said).encode())
            return
        address = urlsplit(gate.upstream)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
            self._answer(HTTPStatus(answer.status), kept, answer.read())
        except OSError as exc:
            self._answer(HTTPStatus.BAD_GATEWAY, {}, str(exc).encode())
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 -- the server looks for these names

    def _answer(self, status: HTTPStatus, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing: what was refused stands in the gate."""


_HOP_BY_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}


TABLE, FUNCTION = "AWS::DynamoDB::GlobalTable", "AWS::Lambda::Function"
MAPPING, SCHEDULE = "AWS::Lambda::EventSourceMapping", "AWS::Scheduler::Schedule"


@dataclass(kw_only=True)
class TemplateStage:
    """An assembly, deployed. `deploy`, then `stop` from any state."""

    assembly: Assembly
    dynamodb: DynamoDbLocal
    folder: Path
    functions: dict[str, LambdaFunction] = field(default_factory=dict)
    code: dict[str, Path] = field(default_factory=dict)
    """The folder that each function runs out of."""
    timers: dict[str, Timer] = field(default_factory=dict)
    gates: dict[str, list[Gate]] = field(default_factory=dict)
    mapped: dict[str, str] = field(default_factory=dict)
    """Topics of the template's own mappings, by UUID."""
    mappings: EventSourceMappings = field(init=False)
    lambda_api: LambdaApi = field(init=False)

    def __post_init__(self) -> None:
        """Make the control plane; nothing runs yet."""
        self.mappings = EventSourceMappings(
            functions=self.functions, folder=self.folder / "mappings", behaviour=LabBehaviour()
        )
        self.lambda_api = LambdaApi(self.mappings)

    def deploy(self) -> None:
        """Make tables, functions, mappings and schedules, in the order in which CloudFormation could."""
        for table in self.assembly.resources(TABLE):
            self.dynamodb.client().create_table(**create_request(table.properties))
        self.lambda_api.start()
        for function in self.assembly.resources(FUNCTION):
            self._deploy_function(function)
        for mapping in self.assembly.resources(MAPPING):
            answer = self.mappings.create(**create_mapping_request(self.resolve(mapping.stack, mapping.properties)))
            self.mapped[answer["UUID"]] = answer["Topics"][0]
        for uuid in self.mapped:
            self.mappings.wait_enabled(uuid)
        for schedule in self.assembly.resources(SCHEDULE):
            self._deploy_schedule(schedule)
        for timer in self.timers.values():
            timer.start()

    def end_schedules(self) -> None:
        """Delete the schedules; runs that are under way go on, as they would."""
        for timer in self.timers.values():
            timer.begin_stop()

    def stop(self) -> None:
        """Stop everything."""
        self.end_schedules()
        self.mappings.stop()
        self.lambda_api.stop()
        for function in self.functions.values():
            function.stop()
        for timer in self.timers.values():
            timer.stop()
        for gate in (gate for gates in self.gates.values() for gate in gates):
            gate.stop()

    @property
    def refused(self) -> dict[str, list[str]]:
        """What roles did not allow, by function."""
        found = {name: [each for gate in gates for each in gate.refused] for name, gates in self.gates.items()}
        return {name: refused for name, refused in found.items() if refused}

    def resolve(self, stack: str, value: Any) -> Any:
        """A value of a template, with what it refers to in its place."""
        match value:
            case {"Ref": str() as id_} | {"Fn::GetAtt": [str() as id_, "Arn"]}:
                return self._reference(stack, id_)
            case {"Fn::Join": [str() as between, parts]}:
                return between.join(self.resolve(stack, parts))
            case {"Fn::Sub": str() as text}:
                return text
            case dict():
                return {key: self.resolve(stack, each) for key, each in value.items()}
            case _:
                return [self.resolve(stack, each) for each in value] if isinstance(value, list) else value

    def _reference(self, stack: str, id_: str) -> str:
        resource = self.assembly.templates[stack].get("Resources", {}).get(id_)
        if resource is None:
            return id_  # a pseudo parameter, or a parameter of the bootstrap
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::Lambda::Function":
                return str(properties["FunctionName"])
            case "AWS::Lambda::Alias":
                name = self.resolve(stack, properties["FunctionName"])
                return f"arn:aws:lambda:us-east-1:000000000000:function:{name}:{properties['Name']}"
        return id_

    def _deploy_function(self, resource: Resource) -> None:
        properties = self.resolve(resource.stack, resource.properties)
        name = properties["FunctionName"]
        statements = statements_of(self.assembly, name)
        flow = self.assembly.deployment.flows[0]
        part = properties["Handler"].partition(".")[0]
        dynamodb = Gate(
            part=part,
            statements=statements,
            upstream=self.dynamodb.endpoint,
            arn_prefix=flow.state.arn("dynamodb", "table/"),
        )
        control = Gate(
            part=part,
            statements=statements,
            upstream=self.lambda_api.endpoint,
            arn_prefix=flow.home.arn("lambda", "event-source-mapping:"),
            function_arn=self._function_arn,
        )
        self.gates[name] = [dynamodb, control]
        self.code[name] = self._code(resource.stack, properties["Code"]["S3Key"])
        for gate in self.gates[name]:
            gate.start()
        self.functions[name] = LambdaFunction(
            name=name,
            bundle=self.code[name],
            handler=properties["Handler"],
            variables={
                **properties.get("Environment", {}).get("Variables", {}),
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
                "AWS_ENDPOINT_URL_LAMBDA": control.endpoint,
            },
            timeout_seconds=properties["Timeout"],
            memory_mb=properties["MemorySize"],
            folder=self.folder / "functions",
        )

    def _function_arn(self, name: str) -> str:
        """The ARN of a function by its name, or of the function of a mapping, as the deployment's account has it."""
        if name in {mapping["UUID"] for mapping in self.mappings.list()}:
            name = self.mappings.get(name)["FunctionArn"]
        return self.assembly.deployment.flows[0].home.arn("lambda", f"function:{name.rpartition('function:')[2]}")

    def _code(self, stack: str, key: str) -> Path:
        """The folder that is deployed under this key, out of the assembly's own list of assets."""
        assets = json.loads((self.assembly.folder / f"{stack}.assets.json").read_text())["files"]
        return Path(self.assembly.folder, assets[key.removesuffix(".zip")]["source"]["path"]).resolve()

    def _deploy_schedule(self, resource: Resource) -> None:
        properties = self.resolve(resource.stack, resource.properties)
        name = properties["Target"]["Arn"].partition("function:")[2].partition(":")[0]
        self.timers[name] = Timer(
            name=name,
            function=self.functions[name],
            event=json.loads(properties["Target"]["Input"]),
            interval_s=seconds_of(properties["ScheduleExpression"]),
            log=self.folder / "schedule" / f"{name}.jsonl",
        )


def create_request(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The CreateTable that a global table's properties come to, as far as DynamoDB Local has it."""
    kept = ("TableName", "KeySchema", "AttributeDefinitions", "BillingMode")
    return {key: properties[key] for key in kept}


def create_mapping_request(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The CreateEventSourceMapping that a mapping's properties come to."""
    request = {key: value for key, value in properties.items() if key != "Tags"}
    if own := request.get("SelfManagedEventSource"):
        endpoints = {"KAFKA_BOOTSTRAP_SERVERS": own["Endpoints"]["KafkaBootstrapServers"]}
        request["SelfManagedEventSource"] = {"Endpoints": endpoints}
    tags = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])}
    return {**request, **({"Tags": tags} if tags else {})}


def seconds_of(expression: str) -> float:
    """The seconds of a `rate(1 minute)`."""
    found = re.fullmatch(r"rate\((\d+) minutes?\)", expression)
    assert found, expression
    return int(found[1]) * 60.0


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
