"""Stores in memory and those in DynamoDB as one fixture each: what is tried on the one holds on the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import pytest
from botocore.credentials import Credentials
from moto import mock_aws

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.direct import direct_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders, DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.flow.settings import Tables
from mirrorless.flow.tables import definitions
from mirrorless.ports.stores import Chains, LaneStates, LossLedger
from tests.support.chains import NOW, MemoryChains, MemoryLaneStates, MemoryLossLedger

STORES = ["memory", pytest.param("dynamodb", marks=pytest.mark.integration)]
WAYS = [*STORES, pytest.param("dynamodb, called directly", marks=pytest.mark.integration)]


class TablesWhenNamed:
    """Tables of one test, each made when its name is asked for first: most tests want one of the five."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._suffix = uuid4().hex[:8]

    def __getattr__(self, kind: str) -> str:
        (wanted,) = (
            each for each in definitions(Tables(**{kind: f"{kind}-{self._suffix}"})) if self._suffix in each.name
        )
        self._client.create_table(**wanted.create_request())
        setattr(self, kind, wanted.name)
        return wanted.name


@pytest.fixture
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of S3, which has the bucket that the module names."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(
            Bucket=request.module.BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
        yield client
        client.close()


@pytest.fixture
def tables(dynamodb: DynamoDbLocal) -> Any:
    return TablesWhenNamed(dynamodb.client())


@pytest.fixture(params=WAYS)
def chains(request: pytest.FixtureRequest) -> Chains:
    if request.param == "memory":
        return MemoryChains()
    dynamodb, tables = _servers(request)
    return DynamoDbChains(_client(request, dynamodb), tables.offset_map, clock=lambda: NOW)


@pytest.fixture(params=WAYS)
def states(request: pytest.FixtureRequest) -> tuple[LaneStates, Any]:
    """A store of lanes' states, and the operator's hand on it."""
    if request.param == "memory":
        memory = MemoryLaneStates()
        return memory, memory
    dynamodb, tables = _servers(request)
    return (
        DynamoDbLaneStates(_client(request, dynamodb), tables.lanes),
        DynamoDbLaneOrders(dynamodb.client(), tables.lanes),
    )


@pytest.fixture(params=STORES)
def ledger(request: pytest.FixtureRequest) -> LossLedger:
    if request.param == "memory":
        return MemoryLossLedger()
    dynamodb, tables = _servers(request)
    return DynamoDbLossLedger(dynamodb.client(), tables.loss_ledger)


def _client(request: pytest.FixtureRequest, dynamodb: DynamoDbLocal) -> Any:
    client = dynamodb.client()
    return direct_client(client, Credentials("lab", "lab", "lab")) if "directly" in request.param else client


def _servers(request: pytest.FixtureRequest) -> tuple[DynamoDbLocal, Tables]:
    return request.getfixturevalue("dynamodb"), request.getfixturevalue("tables")
