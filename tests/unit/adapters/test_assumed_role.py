"""A role in another account, before the STS and the DynamoDB of moto, which keep accounts apart as AWS does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError
from botocore.stub import Stubber

from mirrorless.adapters.aws.assumed_role import assume, session_as, sts_client
from mirrorless.adapters.dynamodb.client import dynamodb_client, translated
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.settings import Tables
from mirrorless.flow.tables import definitions

ACCOUNT = "444455556666"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/mirrorless-tables-a_b"
REGION = "us-west-2"


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC)

    def __call__(self) -> datetime:
        """What it is now."""
        return self.time

    def forward(self, **by: float) -> None:
        """Move it on."""
        self.time += timedelta(**by)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of STS and of its callers."""
    time = Clock()
    monkeypatch.setattr("moto.sts.models.utcnow", lambda: time().replace(tzinfo=None))
    return time


@pytest.fixture(autouse=True)
def function(aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001 -- where it runs
    """A function in us-east-1, without what another test has assumed."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "mirrorless-forward-a_b")
    for made in (session_as, sts_client):
        made.cache_clear()
    yield
    for made in (session_as, sts_client):
        made.cache_clear()


class Calls:
    """What a client sends: the host, and the key that it signs with."""

    def __init__(self, client: Any) -> None:
        self.hosts: list[str] = []
        self.keys: list[str] = []
        client.meta.events.register_first("before-send.*.*", self._note)

    def _note(self, request: Any, **_: Any) -> None:
        self.hosts.append(request.url.split("/")[2])
        found = re.search(rb"Credential=(\w+)/", bytes(request.headers["Authorization"]))
        assert found
        self.keys.append(found[1].decode())


def test_with_a_role_the_tables_are_those_of_the_roles_account() -> None:
    there, here = dynamodb_client(REGION, ROLE), dynamodb_client(REGION)
    definition, *_ = definitions(Tables())

    there.create_table(**definition.create_request())

    (name,) = there.list_tables()["TableNames"]
    assert here.list_tables()["TableNames"] == []
    assert there.describe_table(TableName=name)["Table"]["TableArn"].split(":")[4] == ACCOUNT


def test_a_role_is_assumed_once_for_all_clients_and_calls_in_the_functions_region_and_under_its_name() -> None:
    calls, to_sts = [], sts_client()
    to_sts.meta.events.register_first("before-parameter-build.sts.*", lambda params, **_: calls.append(dict(params)))
    to_hosts = Calls(to_sts)
    first, second = dynamodb_client(REGION, ROLE), dynamodb_client("eu-west-1", ROLE)

    assert calls == [], "an environment that reaches no table needs no role"
    for client in (first, second, first):
        client.list_tables()
    assert calls == [{"RoleArn": ROLE, "RoleSessionName": "mirrorless-forward-a_b"}]
    assert to_hosts.hosts == ["sts.us-east-1.amazonaws.com"]


def test_the_tables_are_called_by_the_regions_name_that_a_vpc_endpoint_answers_to() -> None:
    client = dynamodb_client(REGION, ROLE)
    calls = Calls(client)

    client.list_tables()

    assert calls.hosts == ["dynamodb.us-west-2.amazonaws.com"]


def test_credentials_are_kept_while_they_are_good_and_renewed_when_they_ended_in_the_freezer(clock: Clock) -> None:
    client = session_as(ROLE, clock=clock).client("dynamodb", region_name=REGION)
    calls = Calls(client)

    client.list_tables()
    clock.forward(minutes=44)
    client.list_tables()
    clock.forward(hours=3)
    client.list_tables()

    first, later, thawed = calls.keys
    assert first == later != thawed


def test_credentials_near_their_end_are_used_on_if_they_cannot_be_renewed_and_not_to_the_end(clock: Clock) -> None:
    client = session_as(ROLE, clock=clock).client("dynamodb", region_name=REGION)
    calls = Calls(client)
    client.list_tables()

    clock.forward(minutes=47)
    with Stubber(sts_client()) as sts:
        sts.add_client_error("assume_role", "ServiceUnavailable")
        client.list_tables()
        sts.add_client_error("assume_role", "ServiceUnavailable")
        clock.forward(minutes=5)
        with pytest.raises(Retriable, match="ServiceUnavailable"), translated("list the tables", "a->b"):
            client.list_tables()
    client.list_tables()

    first, near_its_end, renewed = calls.keys
    assert first == near_its_end != renewed


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        ("AccessDenied", Retriable, "deploy the state stack of the tables' account"),
        ("ExpiredTokenException", Retriable, ""),
        ("ValidationError", ConfigurationError, "deploy again from replication.yaml"),
        ("RegionDisabledException", ConfigurationError, "STS is active in the function's region"),
    ],
)
def test_a_refusal_of_sts_names_the_role_and_what_to_do(code: str, kind: type[Exception], hint: str) -> None:
    client = boto3.client("sts", region_name="us-east-1")
    with Stubber(client) as sts:
        sts.add_client_error("assume_role", code)

        with pytest.raises(kind) as caught:
            assume(ROLE, sts=lambda: client)

    assert ROLE in str(caught.value)
    assert code in str(caught.value)
    assert hint in str(caught.value)


def test_a_role_that_is_none_is_bad_configuration() -> None:
    with pytest.raises(ConfigurationError, match="this is no role"):
        assume("none")


def test_an_sts_that_is_out_of_reach_is_worth_another_try() -> None:
    def assume_role(**_: str) -> dict[str, Any]:
        raise ConnectTimeoutError(endpoint_url="https://sts.us-east-1.amazonaws.com")

    with pytest.raises(Retriable, match="a way to STS of its own region"):
        assume(ROLE, sts=lambda: SimpleNamespace(assume_role=assume_role))
