"""What our stores ask of DynamoDB is what its API knows, and what the derivation from the code says that they ask.

In production our clients do not check their requests, to spare the CPU. So every method of every store is called here
once with a client that does: botocore holds each request against the API's own model. Nothing answers but a few lines.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from infra.iam import Part
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_index import lanes_in
from mirrorless.adapters.dynamodb.lane_orders import DynamoDbLaneOrders
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.errors import Retriable
from mirrorless.lane_state import Lease, Stop
from mirrorless.losses import GapSummary, Loss
from tests.support.aws_calls import OPERATOR, calls_from, calls_of, needs
from tests.support.chains import FLOW, LANE, reset, run
from tests.support.iam import dynamodb_calls

LOSS = Loss(lane=LANE, generation=0, first=3, next=5, cause="retention", detail="gone", at=7)
KNOWN = GapSummary(lane=LANE, generation=0, until=9, at=7)
RUN = run(0, 3, (0, 0, 3), quarantined=(1,))
LEASE = Lease(holder="job-1", until=9)
STOP = Stop(reason="refused", upstream_offset=3, detail="too large", at=7)

METHODS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    DynamoDbChains: {
        "heads": lambda store: store.heads([LANE]),
        "prepare": lambda store: store.prepare([RUN]),
        "confirm": lambda store: store.confirm([RUN]),
        "withdraw": lambda store: store.withdraw([RUN]),
        "reset": lambda store: store.reset(reset(3, 0)),
        "renew": lambda store: store.renew([RUN], 1_800_000_000),
        "at_or_before": lambda store: store.at_or_before(LANE, 0, 5),
        "after": lambda store: store.after(LANE, 0, 5, limit=3),
    },
    DynamoDbDocuments: {
        "read": lambda store: store.read(FLOW, "task/"),
        "write": lambda store: store.write(FLOW, {"task/lanes": b"{}"}),
        "delete": lambda store: store.delete(FLOW, "task/lanes"),
        "claim": lambda store: store.claim(FLOW, "lease/x", holder="me", now=1, until=2),
        "release": lambda store: store.release(FLOW, "lease/x", holder="me"),
    },
    DynamoDbLaneOrders: {
        "read": lambda store: store.read([LANE]),
        "stop": lambda store: store.stop(LANE, STOP),
        "wait": lambda store: (store.wait(LANE, 3), store.wait(LANE, None)),
        "take": lambda store: store.take(LANE, LEASE, now=7),
        "keep": lambda store: store.keep(LANE, LEASE),
        "let_go": lambda store: store.let_go(LANE, "job-1", position=3),
        "resume": lambda store: store.resume(LANE),
        "quarantine": lambda store: store.quarantine(LANE, 3),
        "stopped": lambda store: store.stopped(FLOW),
        "noted": lambda store: store.noted(FLOW),
        "begin_anew": lambda store: store.begin_anew(LANE),
    },
    DynamoDbLossLedger: {
        "note": lambda store: store.note(LOSS),
        "read": lambda store: store.read(LANE),
        "summary": lambda store: store.summary(LANE, 0),
        "summaries": lambda store: store.summaries(LANE),
        "summarise": lambda store: (
            store.summarise(KNOWN, known=KNOWN),
            store.summarise(KNOWN, known=GapSummary(lane=LANE, generation=0)),
        ),
    },
}
"""A call of every method of every store."""

TABLES = {
    DynamoDbChains: {"offset_map"},
    DynamoDbDocuments: {"checkpoints", "control"},
    DynamoDbLaneOrders: {"lanes"},
    DynamoDbLossLedger: {"loss_ledger"},
}
"""The tables that a store is made for."""


@dataclass
class Answers:
    """A DynamoDB that has nothing in it, and each first time leaves something over, or sees no condition hold.

    Attributes:
        asked: every request's actions, and their tables.
    """

    asked: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        """Answer a request that botocore has found valid, and was about to send."""
        target = request.headers["X-Amz-Target"].decode()
        first = not any(action.endswith(target.rpartition(".")[2]) for action, _ in self.asked)
        self.asked += dynamodb_calls(target, request.body)
        asked = json.loads(request.body)
        answer: dict[str, Any] = {}
        status = 200
        match target.rpartition(".")[2]:
            case "Query" | "Scan":
                answer = {"Items": []} | ({"LastEvaluatedKey": {"lane": {"S": "x"}}} if first else {})
            case "BatchGetItem":
                answer = {"Responses": {}} | ({"UnprocessedKeys": asked["RequestItems"]} if first else {})
            case "BatchWriteItem":
                answer = {"UnprocessedItems": asked["RequestItems"]} if first else {}
            case "BatchExecuteStatement":
                answer = {"Responses": [{} for _ in asked["Statements"]]}
            case "UpdateItem" if first and "ConditionExpression" in asked:
                status, answer = 400, {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"}
            case "UpdateItem" if asked.get("ReturnValues") == "ALL_NEW":
                answer = {"Attributes": asked["Key"]}
        return AWSResponse(request.url, status, {}, _Raw(json.dumps(answer).encode()))


class _Raw(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        """What botocore reads an answer by."""
        yield self.read()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def client(answers: Answers) -> Iterator[Any]:
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    made = boto3.client("dynamodb", region_name="eu-west-1", config=Config(parameter_validation=True), **keys)
    made.meta.events.register("before-send.dynamodb", answers)
    yield made
    made.close()


@pytest.mark.parametrize("store", METHODS)
def test_every_method_of_a_store_is_called_here(store: type) -> None:
    assert METHODS[store].keys() == {
        name for name, _ in inspect.getmembers(store, inspect.isfunction) if not name.startswith("_")
    }


@pytest.mark.parametrize(("store", "method"), [(store, method) for store in METHODS for method in METHODS[store]])
def test_a_store_asks_what_the_api_knows(store: type, method: str, client: Any, answers: Answers) -> None:
    METHODS[store][method](store(client, "the-table"))

    assert answers.asked
    assert {table for _, table in answers.asked} == {"the-table"}


def test_the_lanes_of_a_table_are_asked_for_in_words_that_the_api_knows(client: Any, answers: Answers) -> None:
    lanes_in(client, "the-table", FLOW)

    assert answers.asked == [("dynamodb:Scan", "the-table")] * 2


def test_a_request_that_the_api_does_not_know_would_be_found(client: Any) -> None:
    """The tests above could not fail otherwise."""
    with pytest.raises(Retriable, match="Parameter validation failed"):
        DynamoDbDocuments(client, "the-table").release(FLOW, "lease/x", holder=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", METHODS)
def test_what_is_derived_from_the_code_is_what_is_seen(store: type, client: Any, answers: Answers) -> None:
    """Two ways to the actions of a store: by reading its callers, and by watching its requests."""
    everybody = {call for part in get_args(Part) for call in calls_of(part)} | calls_from(OPERATOR)
    derived = {action for action, table in needs(everybody) if table in TABLES[store]}

    for call in METHODS[store].values():
        call(store(client, "the-table"))
    if store is DynamoDbLossLedger:
        lanes_in(client, "the-table", FLOW)

    assert {action for action, _ in answers.asked} == derived
