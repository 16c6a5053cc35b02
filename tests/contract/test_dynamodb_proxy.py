"""A DynamoDB that misbehaves, by a boto3 client: its refusals have the shapes of botocore's model of the service."""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Iterator
from http.client import HTTPConnection
from random import Random
from typing import Any
from uuid import uuid4

import botocore.session
import pytest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError

from lab.servers.dynamodb import (
    LOADER,
    DynamoDbLocal,
    DynamoDbProxy,
    Misbehaviour,
    MisbehaviourKind,
    server_error,
    throttled_call,
)
from lab.servers.process import free_port
from mirrorless.adapters.dynamodb.direct import DirectLine

pytestmark = pytest.mark.integration

MODEL = botocore.session.get_session().get_service_model("dynamodb")
ITEMS = [{"key": {"S": f"{number:03d}"}, "n": {"N": str(number)}} for number in range(20)]


@pytest.fixture
def proxy(dynamodb: DynamoDbLocal) -> Iterator[DynamoDbProxy]:
    opened = DynamoDbProxy(free_port(), int(dynamodb.endpoint.rpartition(":")[2]), random=Random(7))
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def table(dynamodb: DynamoDbLocal) -> str:
    name = f"things-{uuid4().hex[:8]}"
    dynamodb.client().create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


def client_of(proxy: DynamoDbProxy, attempts: int = 1) -> Any:
    session = botocore.session.Session()
    session.register_component("data_loader", LOADER)
    return session.create_client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url=proxy.endpoint,
        aws_access_key_id="lab",
        aws_secret_access_key="lab",  # noqa: S106 - DynamoDB Local asks for some credentials and checks none
        config=Config(retries={"mode": "standard", "total_max_attempts": attempts}, read_timeout=20),
    )


def begin(proxy: DynamoDbProxy, kind: MisbehaviourKind, **options: Any) -> Misbehaviour:
    misbehaviour = Misbehaviour(kind=kind, **options)
    proxy.begin(misbehaviour)
    return misbehaviour


def insert(client: Any, table: str) -> dict[str, Any]:
    """Write all items in one call; what was left undone."""
    left: dict[str, Any] = client.batch_write_item(
        RequestItems={table: [{"PutRequest": {"Item": item}} for item in ITEMS]}
    )["UnprocessedItems"]
    return left


def stored(dynamodb: DynamoDbLocal, table: str) -> set[str]:
    return {item["key"]["S"] for item in dynamodb.client().scan(TableName=table, ConsistentRead=True)["Items"]}


def scan_in_vain(client: Any, table: str) -> None:
    with pytest.raises((ClientError, BotoCoreError)):
        client.scan(TableName=table)


def key(number: int) -> dict[str, Any]:
    return {"key": ITEMS[number]["key"]}


def test_what_is_not_refused_is_dynamodb_locals_answer(proxy: DynamoDbProxy, table: str) -> None:
    begin(proxy, "throttled parts", share=0.0)
    client = client_of(proxy)

    assert insert(client, table) == {}
    assert client.get_item(TableName=table, Key=key(3))["Item"] == ITEMS[3]
    with pytest.raises(ClientError, match="ConditionalCheckFailedException"):
        client.put_item(TableName=table, Item=ITEMS[0], ConditionExpression="attribute_not_exists(n)")
    assert +proxy.carried_out == {}


def test_answers_carry_the_checksum_by_which_a_client_knows_that_they_are_whole(
    proxy: DynamoDbProxy, table: str
) -> None:
    begin(proxy, "throttled parts", share=0.5)
    connection = HTTPConnection("127.0.0.1", int(proxy.endpoint.rpartition(":")[2]), timeout=20)
    credentials = Credentials("lab", "lab")
    line = DirectLine(lambda: connection, proxy.endpoint, region="us-east-1", credentials=credentials, agent="test")
    keys = [key(number) for number in range(20)]

    answer = line.call("BatchGetItem", {"RequestItems": {table: {"Keys": keys}}})

    connection.close()
    assert answer is not None
    assert 0 < len(answer["UnprocessedKeys"][table]["Keys"]) < len(keys)
    assert proxy.carried_out == {"throttled parts": 1}


def test_what_is_not_processed_can_be_asked_for_again(
    proxy: DynamoDbProxy, dynamodb: DynamoDbLocal, table: str
) -> None:
    misbehaviour = begin(proxy, "throttled parts", share=0.5)
    client = client_of(proxy)
    left = insert(client, table)
    assert 0 < len(stored(dynamodb, table)) < len(ITEMS)
    insert(dynamodb.client(), table)
    asked = {table: {"Keys": [key(number) for number in range(len(ITEMS))], "ConsistentRead": True}}
    first = client.batch_get_item(RequestItems=asked)

    proxy.end(misbehaviour)

    assert client.batch_write_item(RequestItems=left)["UnprocessedItems"] == {}
    second = client.batch_get_item(RequestItems=first["UnprocessedKeys"])
    found = [*first["Responses"][table], *second["Responses"][table]]
    assert 0 < len(first["Responses"][table]) < len(ITEMS)
    assert first["UnprocessedKeys"][table]["ConsistentRead"] is True
    assert sorted(found, key=lambda item: str(item["key"]["S"])) == ITEMS
    assert second["UnprocessedKeys"] == {}


def test_a_batch_of_which_nothing_is_processed_is_refused(proxy: DynamoDbProxy, table: str) -> None:
    """So it is documented: UnprocessedKeys stands in an answer of which at least one key was processed."""
    begin(proxy, "throttled parts")
    client = client_of(proxy)

    with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
        client.batch_get_item(RequestItems={table: {"Keys": [key(0)]}})
    with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
        insert(client, table)


@pytest.mark.parametrize(
    "operation",
    ["BatchGetItem", "BatchWriteItem", "GetItem", "PutItem", "UpdateItem", "DeleteItem", "Scan", "Query"],
)
def test_a_refusal_is_an_error_that_its_operation_has(operation: str) -> None:
    named = {each.name for each in MODEL.operation_model(operation).error_shapes}

    assert {body["__type"].partition("#")[2] for _, body in (throttled_call(), server_error())} <= named


@pytest.mark.parametrize(
    ("kind", "refusal", "stand"),
    [
        pytest.param("throttled call", "ProvisionedThroughputExceededException", {0}, id="not carried out"),
        pytest.param("server error", "InternalServerError", range(1, len(ITEMS)), id="carried out or not"),
        pytest.param("lost answer", "Connection was closed", {len(ITEMS)}, id="carried out"),
    ],
)
def test_boto3_takes_a_failed_call_for_what_passes_and_some_are_carried_out(
    proxy: DynamoDbProxy,
    dynamodb: DynamoDbLocal,
    table: str,
    *,
    kind: MisbehaviourKind,
    refusal: str,
    stand: Container[int],
) -> None:
    begin(proxy, kind)
    client = client_of(proxy)
    for item in ITEMS:
        with pytest.raises((ClientError, ConnectionClosedError), match=refusal):
            client.put_item(TableName=table, Item=item)
    assert len(stored(dynamodb, table)) in stand

    scan_in_vain(client_of(proxy, attempts=3), table)

    assert proxy.carried_out == {kind: len(ITEMS) + 3}


def test_a_slow_answer_is_late_and_right(proxy: DynamoDbProxy, dynamodb: DynamoDbLocal, table: str) -> None:
    begin(proxy, "slow answer", seconds=0.4)
    began = time.monotonic()

    insert(client_of(proxy), table)

    assert time.monotonic() - began >= 0.4
    assert len(stored(dynamodb, table)) == len(ITEMS)


def test_a_server_that_is_down_breaks_its_connections(table: str) -> None:
    proxy = DynamoDbProxy(free_port(), free_port())
    proxy.open()
    try:
        with pytest.raises(ConnectionClosedError):
            client_of(proxy).scan(TableName=table)
    finally:
        proxy.close()


def test_closing_leaves_no_thread_behind(dynamodb: DynamoDbLocal, table: str) -> None:
    proxy = DynamoDbProxy(free_port(), int(dynamodb.endpoint.rpartition(":")[2]))
    before = set(threading.enumerate())
    proxy.open()
    client = client_of(proxy)
    client.scan(TableName=table)  # its connection stays open
    begin(proxy, "slow answer", seconds=600)
    waiting = threading.Thread(target=scan_in_vain, args=(client_of(proxy), table))
    waiting.start()
    while not proxy.carried_out["slow answer"]:
        time.sleep(0.005)  # until the call is under way

    proxy.close()

    waiting.join(20)
    assert set(threading.enumerate()) <= before
    proxy.open()
    proxy.close()
    proxy.close()  # twice is no error
