"""The adapters' requests to AWS are valid by its APIs' models, and are those of the recording of calls.

Every method of every adapter that calls AWS is run here once, and each request is held against the API's own model: in
production our clients of DynamoDB do not even check types, to spare the CPU, and botocore leaves out patterns, lengths,
upper bounds and enumerations. Nothing answers but a few lines. What a part of a deployment uses of an adapter is
recorded elsewhere (`tests/support/aws_recorder.py`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any, get_args

import pytest
from botocore import xform_name
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.endpoint import Endpoint
from botocore.model import OperationModel
from botocore.session import get_session

from cli.deployment import require_account
from cli.jobs.request import new_run_id
from infra.deployment import plan
from lab.esm.api_model import violations
from mirrorless.adapters.archive import ArchiveFile, S3ArchiveFiles
from mirrorless.adapters.aws.assumed_role import session_as, sts_client
from mirrorless.adapters.aws.emr_serverless import EmrServerless
from mirrorless.adapters.aws.event_source_mappings import LambdaMappings, lambda_client
from mirrorless.adapters.aws.job_files import S3JobFiles
from mirrorless.adapters.aws.keys import new_data_key, read_keys
from mirrorless.adapters.aws.secrets import read_secret
from mirrorless.adapters.dynamodb.chains import DynamoDbJournals, lanes_in
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.schema_registry import GlueSchemas
from mirrorless.chain.entry import Entry, Journal, Place
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease, LeftOut, Stop
from mirrorless.chain.losses import GapSummary, Loss
from mirrorless.config import load
from mirrorless.flow.rate_limit import RateLimit
from mirrorless.flow.settings import ClusterSettings, FlowSettings, Tables
from mirrorless.flow.tables import definitions
from mirrorless.jobs.request import JobKind
from mirrorless.topics.mapping_plan import mapping_request, owner_tags
from mirrorless.transforms.rules import KeySettings
from tests.support.aws_recorder import ROOT, Call, dynamodb_calls, recorded, recording
from tests.support.chains import FLOW, LANE, run

LOSS = Loss(lane=LANE, generation=0, first=3, next=5, cause="retention", detail="gone", at=7)
KNOWN = GapSummary(lane=LANE, generation=0, until=9, at=7)
LANES = [Lane(FLOW, "orders", partition) for partition in range(130)]
"""More than one request of DynamoDB takes."""
ENTRY = Entry(
    journal=Journal.of(LANE),
    number=7,
    state="prepared",
    writer="mirrorless.us-east.eu-west.test",
    attempt="one",
    request="request",
    settled_at=7,
    examined=True,
    links={0: run(0, 3, (0, 0, 3), quarantined=(1,))},
    previous={0: 6},
    heads={1: Place(0, 3, 5)},
)
LEASE = Lease(holder="job-1", until=9)
UUID = "14e0db71-5d35-4eb5-b481-8945cf9d10c2"
MAPPING = f"arn:aws:lambda:eu-west-1:111122223333:event-source-mapping:{UUID}"
KMS_KEY = f"arn:aws:kms:us-east-1:111122223333:key/{UUID}"
TABLES_ROLE = "arn:aws:iam::444455556666:role/mirrorless-tables"
KINDS: tuple[JobKind, ...] = get_args(JobKind)
SUBMISSION = {
    "application_id": "application",
    "role_arn": "arn:aws:iam::111122223333:role/mirrorless-jobs",
    "bucket": "bucket",
    "prefix": "flows/us-east_eu-west/",
    "jobs": {kind: f"s3://bucket/{kind}.py" for kind in KINDS},
    "confs": {},
}
STOP = Stop(reason="refused", upstream_offset=3, detail="too large", at=7)

METHODS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    DynamoDbJournals: {
        "newest": lambda store: store.newest({ENTRY.journal: 3}, 8),
        "at_or_below": lambda store: store.at_or_below(ENTRY.journal, 5),
        "after": lambda store: store.after(ENTRY.journal, 5, limit=3),
        "read": lambda store: store.read(ENTRY.journal, range(130)),
        "insert": lambda store: store.insert(ENTRY),
        "insert_all": lambda store: store.insert_all([ENTRY, ENTRY]),
        "settle": lambda store: store.settle(ENTRY, "committed", 1_800_000_000),
        "renew": lambda store: store.renew(ENTRY.journal, [3], 1_800_000_000),
    },
    DynamoDbDocuments: {
        "read": lambda store: store.read(FLOW, "task/"),
        "write": lambda store: (
            store.write(FLOW, {"task/lanes": b"{}"}),
            store.write(FLOW, {"task/lanes": b"{}"}, epoch=7),
        ),
        "delete": lambda store: (store.delete(FLOW, "task/lanes"), store.delete(FLOW, "task/lanes", epoch=7)),
        "claim": lambda store: store.claim(FLOW, "lease/x", holder="me", now=1, until=2),
        "release": lambda store: store.release(FLOW, "lease/x", holder="me"),
    },
    DynamoDbLaneOrders: {
        "read": lambda store: store.read(LANES),
        "stop": lambda store: store.stop(LANE, STOP),
        "wait": lambda store: (store.wait(LANE, 3), store.wait(LANE, None)),
        "take": lambda store: store.take(LANE, LEASE, now=7),
        "keep": lambda store: store.keep(LANE, LEASE),
        "let_go": lambda store: store.let_go(LANE, "job-1", position=3),
        "drop": lambda store: store.drop(LANE, LEASE),
        "begin": lambda store: store.begin(LANE, 1),
        "release": lambda store: store.release(LANE, "job-1"),
        "resume": lambda store: store.resume(LANE),
        "retry": lambda store: store.retry(LANE, STOP),
        "quarantine": lambda store: store.quarantine(LANE, *LeftOut.each(3)),
        "stopped": lambda store: store.stopped(FLOW),
        "noted": lambda store: store.noted(FLOW),
        "begin_anew": lambda store: (store.begin_anew(LANE), store.begin_anew(LANE, STOP)),
        "stop_flow": lambda store: store.stop_flow(FLOW, STOP),
        "flow_stop": lambda store: store.flow_stop(FLOW),
        "resume_flow": lambda store: store.resume_flow(FLOW),
        "store_now": lambda store: (store.flow_stop(FLOW), store.store_now()),
    },
    DynamoDbLossLedger: {
        "note": lambda store: store.note(LOSS),
        "read": lambda store: store.read(LANE),
        "of_lanes": lambda store: store.of_lanes([LANE, Lane(FLOW, "orders", 1)]),
        "summary": lambda store: store.summary(LANE, 0),
        "summaries": lambda store: store.summaries(LANE),
        "summarise": lambda store: (
            store.summarise(KNOWN, known=KNOWN),
            store.summarise(KNOWN, known=GapSummary(lane=LANE, generation=0)),
        ),
    },
}
"""A call of every method of every store."""

OTHERS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    LambdaMappings: {
        "list": lambda mappings: mappings.list(ample),
        "create": lambda mappings: [mappings.create(request, ample) for request in mapping_requests()],
        "update": lambda mappings: mappings.update(UUID, {"BatchSize": 7}, ample),
        "delete": lambda mappings: mappings.delete(UUID, ample),
        "tags": lambda mappings: mappings.tags(MAPPING, ample),
    },
    S3JobFiles: {
        "write": lambda files: files.write("report.json", b"{}"),
        "read": lambda files: files.read("report.json"),
        "names": lambda files: files.names("lanes/"),
    },
    S3ArchiveFiles: {
        "list": lambda files: files.list(),
        "open": lambda files: files.open(ArchiveFile("a.parquet", 2)).read(),
    },
    EmrServerless: {
        "files": lambda service: service.files("verify-1").read("report.json"),
        "start": lambda service: [service.start(new_run_id(kind), kind, most_executors=2) for kind in KINDS],
        "runs": lambda service: list(service.runs(since=datetime.now(UTC))),
        "run": lambda service: service.run("run"),
        "cancel": lambda service: service.cancel("run"),
    },
}
"""A call of every method of every other adapter."""

ALL = {**METHODS, **OTHERS}

MADE: Mapping[type, Callable[[], Any]] = {
    LambdaMappings: lambda: LambdaMappings(lambda_client(), "forward", throttle()),
    S3JobFiles: lambda: S3JobFiles("bucket", "flows/us-east_eu-west/jobs/verify-1"),
    S3ArchiveFiles: lambda: S3ArchiveFiles("bucket", "archive"),
    EmrServerless: lambda: EmrServerless(FLOW, region="eu-west-1"),
}
"""How they are made."""

FUNCTIONS: tuple[Callable[[], Any], ...] = (
    lambda: read_secret("proof"),
    lambda: read_keys({"pii": KeySettings(1, kms_key_arn=KMS_KEY, data_keys={"1": "AAAA"})}),
    lambda: GlueSchemas("us-east-1").definitions(uuid.UUID(UUID)),
    lambda: new_data_key("pii", KMS_KEY),
    lambda: require_account("111122223333", FLOW, "eu-west-1"),
    lambda: lanes_in(dynamodb_client(role_arn=TABLES_ROLE), "the-table", FLOW),
)
"""Calls that are no method's."""

NO_CALLS = {
    ("cli/deployment.py", "GetSession"): "of botocore",
    ("shared/mirrorless/adapters/kafka/client.py", "Query"): "of a URL",
    ("shared/mirrorless/adapters/kafka/client.py", "GetSession"): "of botocore",
    ("shared/mirrorless/lanes/foreign.py", "Scan"): "of a chain",
}
"""What the text has by the name of an operation, and is none."""

COMMON_WORDS = {"glue", "kms"}
"""Services with operations that have names of ours, `CreateConnection` and `Verify`: only their clients are found."""


TABLES: Mapping[type, set[str]] = {
    DynamoDbJournals: {"offset_map"},
    DynamoDbDocuments: {"checkpoints", "control"},
    DynamoDbLaneOrders: {"lanes"},
    DynamoDbLossLedger: {"loss_ledger"},
}
"""The tables that a store is made for."""


AUTHENTICATIONS = (
    "{type: plaintext}",
    "{type: tls, ca: root}",
    "{type: plain, secret: kafka}",
    "{type: oauthbearer, secret: kafka, scope: api://kafka all, logical.cluster: lkc, identity.pool: p}",
    "{type: scram, secret: kafka, ca: root}",
    "{type: mtls, secret: kafka}",
    "{type: iam}",
)
SELF_MANAGED = """
clusters:
  a:
    bootstrap.servers: a1:9098
    region: us-east-1
    authentication: {authentication}
    vpc: {{subnets: [subnet-1], security.groups: [sg-1]}}
  b: {{bootstrap.servers: b1:9092, vpc: {{subnets: [subnet-2], security.groups: [sg-2]}}}}
flows:
  a->b:
    topics: [orders]
    start: 2026-01-01T00:00:00Z
    mapping: {{mode: {mode}, maximum.batching.window.seconds: 0}}
"""


def ample() -> float:
    return 60.0


def mapping_requests() -> Iterator[dict[str, Any]]:
    """Those of topics that a flow names and of those that it finds, of every example; every authentication and mode."""
    for example in [ROOT / "replication.example.yaml", *sorted((ROOT / "docs/examples").glob("*.yaml"))]:
        for flow in plan(load(example)).flows:
            for topic in flow.flow.template_topics:
                yield flow.flow.mapping_request(topic, secret_arn=flow.secret_arn)
            settings = flow.flow.control_settings("forward", secret_arn=flow.secret_arn)
            yield mapping_request(settings, "found")
    for authentication, mode in product(AUTHENTICATIONS, ("provisioned", "on-demand")):
        yield load(SELF_MANAGED.format(authentication=authentication, mode=mode)).flow("a->b").mapping_request("orders")


def throttle() -> RateLimit:
    return RateLimit(per_second=10, clock=lambda: 0.0, sleep=lambda _seconds: None)


@dataclass
class Answers:
    """A DynamoDB that has nothing in it, and each first time leaves something over, or sees no condition hold.

    Attributes:
        calls: every request's actions, and their tables.
        given: the answers of the other services, by operation.
    """

    calls: list[tuple[str, str]] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=lambda: {**ANSWERS})

    def __call__(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        """Answer a request that botocore has found valid, and was about to send."""
        target = request.headers["X-Amz-Target"].decode()
        first = not any(action.endswith(target.rpartition(".")[2]) for action, _ in self.calls)
        self.calls += dynamodb_calls(target, request.body)
        body = json.loads(request.body)
        answer: dict[str, Any] = {}
        status = 200
        match target.rpartition(".")[2]:
            case "Query" | "Scan":
                answer = {"Items": []} | ({"LastEvaluatedKey": {"lane": {"S": "x"}}} if first else {})
            case "BatchGetItem":
                answer = {"Responses": {}} | ({"UnprocessedKeys": body["RequestItems"]} if first else {})
            case "BatchWriteItem":
                answer = {"UnprocessedItems": body["RequestItems"]} if first else {}
            case "UpdateItem" if first and "ConditionExpression" in body:
                status, answer = 400, {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"}
            case "BatchExecuteStatement":
                inserted = any(action == "dynamodb:PartiQLInsert" for action, _ in self.calls)
                refused = {} if inserted else {"Error": {"Code": "ConditionalCheckFailed"}}
                answer = {"Responses": [refused for _ in body["Statements"]]}
            case "UpdateItem" if body.get("ReturnValues") == "UPDATED_NEW":
                answer = {"Attributes": {"epoch": {"N": "7"}}}
            case "UpdateItem" if body.get("ReturnValues") == "ALL_NEW":
                answer = {"Attributes": body["Key"]}
        return AWSResponse(request.url, status, {}, _Raw(json.dumps(answer).encode()))


class _Raw(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        """What botocore reads an answer by."""
        yield self.read()


@pytest.mark.parametrize("adapter", ALL)
def test_every_method_of_an_adapter_is_called_here(adapter: type) -> None:
    assert ALL[adapter].keys() == {
        name for name, _ in inspect.getmembers(adapter, inspect.isfunction) if not name.startswith("_")
    }


# The recording


ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "Decrypt": {"Plaintext": bytes(32)},
    "GenerateDataKeyWithoutPlaintext": {"CiphertextBlob": bytes(64)},
    "AssumeRole": {
        "Credentials": {
            "AccessKeyId": "k",
            "SecretAccessKey": "s",
            "SessionToken": "t",
            "Expiration": datetime.now(UTC) + timedelta(hours=1),
        }
    },
    "GetCallerIdentity": {"Account": "111122223333"},
    "GetJobRun": {"jobRun": {"state": "RUNNING"}},
    "GetParameter": {"Parameter": {"Value": json.dumps(SUBMISSION)}},
    "GetSchemaVersion": {"DataFormat": "AVRO", "SchemaDefinition": '"string"'},
    "GetSecretValue": {"SecretString": "{}"},
    "ListEventSourceMappings": {"EventSourceMappings": []},
    "ListJobRuns": {"jobRuns": []},
    "StartJobRun": {"jobRunId": "run"},
}
"""Of the services that are not DynamoDB, whose requests other tests hold against their models."""


@pytest.fixture(scope="module")
def answered() -> Iterator[Answers]:
    """An AWS that gives these answers to signed requests."""
    answers, respond = Answers(), Endpoint._get_response

    def answer(endpoint: Any, request: AWSPreparedRequest, operation: OperationModel, context: Any) -> Any:
        if operation.service_model.service_name == "dynamodb":
            endpoint._event_emitter.register("before-send.dynamodb", answers, unique_id="answers")
            return respond(endpoint, request, operation, context)
        body = {"Body": io.BytesIO(b"{}")} if operation.name == "GetObject" else answers.given.get(operation.name, {})
        return (AWSResponse(request.url, 200, {}, _Raw()), body | {"ResponseMetadata": {}}), None

    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "k")
        patch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        patch.setattr(Endpoint, "_get_response", answer)
        for kept in (session_as, sts_client):
            kept.cache_clear()
        yield answers
    for kept in (session_as, sts_client):
        kept.cache_clear()


def calls_of(*acts: Callable[[], Any]) -> list[Call]:
    calls: list[Call] = []
    with recording(calls.append):
        for act in acts:
            act()
    return calls


@pytest.fixture(scope="module")
def calls_by_adapter(answered: Answers) -> dict[Any, list[Call]]:
    """Those of every method of every adapter, each from the beginning of what `Answers` has to say."""
    client = dynamodb_client()
    ways: dict[Any, Callable[[], Any]] = {store: partial(store, client, "the-table") for store in METHODS} | {**MADE}
    found: dict[Any, list[Call]] = {}
    for adapter, methods in ALL.items():
        for name, call in methods.items():
            answered.calls.clear()
            calls = calls_of(partial(call_made, ways[adapter], call))
            assert calls, name
            found.setdefault(adapter, []).extend(calls)
    answered.calls.clear()
    return found | {"functions": calls_of(*FUNCTIONS)}


@pytest.fixture(scope="module")
def every_call(calls_by_adapter: dict[Any, list[Call]]) -> list[Call]:
    return [call for calls in calls_by_adapter.values() for call in calls]


def call_made(make: Callable[[], Any], call: Callable[[Any], Any]) -> None:
    """Make an adapter, which may call already, and call it."""
    call(make())


def actions_on(*tables: str) -> set[str]:
    """What the recording has of these tables, whoever it was."""
    return {action for needs in recorded().values() for action, table in needs if table in tables}


@pytest.mark.parametrize("store", METHODS)
def test_what_a_store_calls_is_what_is_recorded_of_its_tables(
    store: type, calls_by_adapter: dict[Any, list[Call]]
) -> None:
    needs = {need for call in calls_by_adapter[store] for need in call.needs}
    scanned = {"dynamodb:Scan"} if store is DynamoDbLossLedger else set()  # for its lanes, by a function

    assert {table for _, table in needs} == {"the-table"}
    assert {action for action, _ in needs} | scanned == actions_on(*TABLES[store])


def test_what_the_other_adapters_call_is_what_is_recorded(every_call: list[Call]) -> None:
    assert {action for call in every_call for action, table in call.needs if not table} == actions_on("")


def test_no_call_in_the_text_is_overlooked(every_call: list[Call]) -> None:
    """A call that no test here comes to is one that the recording may lack."""
    made = {(call.module, call.operation) for call in every_call}
    services = {call.service for call in every_call}

    assert operations_in_text(services - COMMON_WORDS) - made == NO_CALLS.keys()
    assert clients_in_text() <= services


def operations_in_text(services: set[str]) -> set[tuple[str, str]]:
    """Where the text of what is deployed names an operation of one of these services: file and operation."""
    names = {
        xform_name(name): name
        for service in services
        for name in get_session().get_service_model(service).operation_names
    }
    named = re.compile(rf"\.(?:{'|'.join(names)})\b|get_paginator")
    return {
        (file, names[name])
        for file, tree in texts(named).items()
        for node in ast.walk(tree)
        for name in [getattr(node, "attr", ""), *(arguments_of(node) if called(node) == "get_paginator" else ())]
        if name in names
    }


def clients_in_text() -> set[str]:
    """The services for which the text of what is deployed makes clients."""
    making = {"client", "create_client", "resource"}
    return {
        each
        for tree in texts(re.compile(rf"\.(?:{'|'.join(making)})\(")).values()
        for node in ast.walk(tree)
        if called(node) in making
        for each in arguments_of(node)[:1]
    }


def texts(named: re.Pattern[str]) -> dict[str, ast.Module]:
    """What runs when it is deployed, and the operator's command, by file; only where this is in the text at all."""
    paths = [path for folder in ("shared", "functions", "spark", "cli") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    return {file: ast.parse(text) for file, text in found.items() if named.search(text)}


def called(node: ast.AST) -> str:
    return getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""


def arguments_of(node: ast.AST) -> list[str]:
    """The texts among a call's arguments, where the first is one."""
    return [str(each.value) for each in getattr(node, "args", []) if isinstance(each, ast.Constant)]


def test_every_request_is_within_its_apis_patterns_lengths_and_enumerations(every_call: list[Call]) -> None:
    assert broken(every_call) == []


@pytest.mark.usefixtures("answered")
def test_the_labs_requests_are_within_their_apis_patterns_lengths_and_enumerations() -> None:
    client = dynamodb_client()

    calls = calls_of(*(partial(client.create_table, **table.create_request()) for table in definitions(Tables())))

    assert {call.service for call in calls} == {"dynamodb"}
    assert broken(calls) == []


@pytest.mark.parametrize(
    "options",
    [
        {"tags": {"mirrorless:flow": "us-east->eu-west"}},
        {"clientToken": "us-east->eu-west"},
        {"clientToken": 7},
        {"name": "n" * 257},
        {"mode": "SOMETIMES"},
        {"retryPolicy": {"maxAttempts": 0}},
        {"retryPolice": {"maxAttempts": 1}},
    ],
)
def test_a_value_that_the_api_does_not_take_would_be_found(options: dict[str, Any]) -> None:
    """The two tests above could not fail otherwise."""
    request = {"applicationId": "a", "clientToken": "t", "executionRoleArn": SUBMISSION["role_arn"]}

    assert broken([Call("", "", "emr-serverless", "StartJobRun", request)]) == []
    assert len(broken([Call("", "", "emr-serverless", "StartJobRun", request | options)])) == 1


def broken(calls: list[Call]) -> list[str]:
    """The values of the calls that their APIs do not take."""
    return [
        f"{call.operation}: {violation}"
        for call in calls
        for violation in violations(call.operation, call.request, service=call.service)
    ]


def test_removing_mappings_makes_the_calls_that_are_recorded_for_it(
    answered: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one part that needs no Kafka; the others run in the integration tests."""
    ours = {
        "UUID": UUID,
        "EventSourceMappingArn": MAPPING,
        "SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": f"mirrorless.{FLOW.slug}.orders"},
    }
    answered.given["ListEventSourceMappings"] = {"EventSourceMappings": [ours]}
    answered.given["ListTags"] = {"Tags": owner_tags(FLOW)}
    calls: list[Call] = []

    def slept(_seconds: float) -> None:
        if any(call.operation == "DeleteEventSourceMapping" for call in calls):
            answered.given["ListEventSourceMappings"] = {"EventSourceMappings": []}

    monkeypatch.setattr("time.sleep", slept)
    ends = [ClusterSettings(alias=alias, bootstrap="b:1", region="eu-west-1") for alias in (FLOW.source, FLOW.target)]
    settings = FlowSettings(flow=str(FLOW), source=ends[0], target=ends[1], tables_role=TABLES_ROLE)
    function = importlib.import_module("remove_mappings")
    for kept in (function.dynamodb, function.aws_lambda, session_as):
        kept.cache_clear()

    with recording(calls.append):
        function.remove(settings, ample)

    assert {call.part for call in calls} == {"remove_mappings"}
    assert {need for call in calls for need in call.needs} == recorded()["remove_mappings"]
    assert broken(calls) == []
