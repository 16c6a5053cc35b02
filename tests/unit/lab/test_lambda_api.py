"""The lab's Lambda API, called by the SDK itself: its answers are those of AWS."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lab.esm.behaviour import LabBehaviour
from lab.esm.lambda_api import CallRate, LambdaApi
from lab.esm.mappings import EventSourceMappings
from lab.functions.invocation import Invocation
from tests.support.waiting import eventually

# No server listens there: the pollers wait for a cluster, which no test here needs.
NOWHERE = "127.0.0.1:1"
MANY = LabBehaviour(control_calls_per_second=10_000, creation_delay_s=60)
SETTLING = LabBehaviour(control_calls_per_second=10_000)


class Function:
    """A function that is never called here."""

    def invoke(self, event: bytes) -> Invocation:
        """Never."""
        raise AssertionError(event)


Open = Callable[[LabBehaviour], Any]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """The SDK's client of a lab with this behaviour."""
    with ExitStack() as stack:

        def client(behaviour: LabBehaviour) -> Any:
            functions = {"forward": Function(), "other": Function()}
            mappings = EventSourceMappings(functions=functions, folder=tmp_path, behaviour=behaviour)
            stack.callback(mappings.stop)
            api = LambdaApi(mappings, behaviour=behaviour, clock=lambda: 0.0)
            api.start()
            stack.callback(api.stop)
            keys = {"aws_access_key_id": "lab", "aws_secret_access_key": "lab", "region_name": "us-east-1"}
            once = Config(retries={"total_max_attempts": 1})
            made = boto3.client("lambda", endpoint_url=api.endpoint, config=once, **keys)
            stack.callback(made.close)
            return made

        yield client


def request(topic: str = "orders", **changes: Any) -> dict[str, Any]:
    """A good request, changed."""
    return {
        "FunctionName": "forward",
        "Topics": [topic],
        "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": [NOWHERE]}},
        "SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": f"mirrorless.a.b.{topic}"},
        "StartingPosition": "TRIM_HORIZON",
        **changes,
    }


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    """The status and the error of a call that the API refuses."""
    with pytest.raises(ClientError) as refused:
        call()
    response = refused.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_a_mapping_is_created_found_changed_and_deleted(opened: Open) -> None:
    client = opened(SETTLING)

    created = client.create_event_source_mapping(**request(BatchSize=7, Enabled=False))

    uuid = created["UUID"]
    assert created["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert (created["State"], created["BatchSize"], created["Topics"]) == ("Creating", 7, ["orders"])
    assert created["LastModified"].tzinfo is not None
    eventually(lambda: client.get_event_source_mapping(UUID=uuid)["State"] == "Disabled", "it settles")
    updated = client.update_event_source_mapping(UUID=uuid, BatchSize=9)
    assert (updated["State"], updated["BatchSize"]) == ("Updating", 9)
    eventually(lambda: client.get_event_source_mapping(UUID=uuid)["State"] == "Disabled", "it settles")
    assert client.delete_event_source_mapping(UUID=uuid)["State"] == "Deleting"
    eventually(lambda: not client.list_event_source_mappings()["EventSourceMappings"], "it is gone")


def test_a_start_at_a_moment_arrives_as_that_moment(opened: Open) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

    created = opened(MANY).create_event_source_mapping(
        **request(StartingPosition="AT_TIMESTAMP", StartingPositionTimestamp=moment)
    )

    assert created["StartingPositionTimestamp"] == moment


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"FunctionName": "absent"}, (404, "ResourceNotFoundException")),
        ({"Topics": ["orders", "payments"]}, (400, "ValidationException")),
        ({"Tags": {"flow": "a->b"}}, (400, "ValidationException")),
        ({"TumblingWindowInSeconds": 3}, (400, "InvalidParameterValueException")),
        ({}, (409, "ResourceConflictException")),
    ],
)
def test_errors_are_the_apis_own(opened: Open, changes: dict[str, Any], expected: tuple[int, str]) -> None:
    client = opened(MANY)
    client.create_event_source_mapping(**request())

    assert refusal(lambda: client.create_event_source_mapping(**request(**changes))) == expected


def test_a_mapping_that_is_being_created_cannot_be_changed(opened: Open) -> None:
    client = opened(MANY)
    uuid = client.create_event_source_mapping(**request())["UUID"]

    busy = (400, "ResourceInUseException")
    assert refusal(lambda: client.update_event_source_mapping(UUID=uuid, BatchSize=9)) == busy
    assert refusal(lambda: client.delete_event_source_mapping(UUID=uuid)) == busy


def test_a_poller_group_is_listed_and_refuses_the_101st_mapping(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.esm.mapping_api.MAPPINGS_OF_A_GROUP", 2)  # each mapping has clients of its own
    client = opened(SETTLING)
    pollers = {"MinimumPollers": 1, "MaximumPollers": 1, "PollerGroupName": "given"}

    def create(topic: str, **changes: Any) -> str:
        made = request(topic, Enabled=False, ProvisionedPollerConfig=pollers | changes)
        uuid: str = client.create_event_source_mapping(**made)["UUID"]
        eventually(lambda: client.get_event_source_mapping(UUID=uuid)["State"] == "Disabled", "it settles")
        return uuid

    create("orders")
    member = create("payments")
    other = create("audit", PollerGroupName="another")

    full = (400, "InvalidParameterValueException")
    assert refusal(lambda: create("customers")) == full
    assert refusal(lambda: client.update_event_source_mapping(UUID=other, ProvisionedPollerConfig=pollers)) == full
    client.update_event_source_mapping(UUID=member, ProvisionedPollerConfig=pollers | {"MinimumPollers": 1})
    groups = [each["ProvisionedPollerConfig"] for each in client.list_event_source_mappings()["EventSourceMappings"]]
    assert groups.count(pollers) == 2


def test_an_unknown_mapping_is_not_found(opened: Open) -> None:
    client = opened(MANY)

    assert refusal(lambda: client.get_event_source_mapping(UUID="0" * 36)) == (404, "ResourceNotFoundException")
    assert refusal(lambda: client.get_function(FunctionName="forward")) == (404, "ResourceNotFoundException")


def test_tags_are_kept_and_changed(opened: Open) -> None:
    client = opened(MANY)
    created = client.create_event_source_mapping(**request(Tags={"mirrorless:flow": "a.b", "owner": "us"}))
    arn = created["EventSourceMappingArn"]

    client.tag_resource(Resource=arn, Tags={"owner": "them"})
    client.untag_resource(Resource=arn, TagKeys=["mirrorless:flow"])

    assert client.list_tags(Resource=arn)["Tags"] == {"owner": "them"}
    assert "Tags" not in client.get_event_source_mapping(UUID=created["UUID"])


def test_a_list_comes_in_pages_with_every_mapping_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.esm.lambda_api.PAGE", 3)
    client = opened(MANY)
    made = {client.create_event_source_mapping(**request(f"topic-{number}"))["UUID"] for number in range(5)}
    client.create_event_source_mapping(**request("others", FunctionName="other"))

    pages = list(client.get_paginator("list_event_source_mappings").paginate(FunctionName="forward"))

    assert [len(page["EventSourceMappings"]) for page in pages] == [3, 2]
    assert {each["UUID"] for page in pages for each in page["EventSourceMappings"]} == made
    small = client.list_event_source_mappings(
        FunctionName="arn:aws:lambda:us-east-1:000000000000:function:other", MaxItems=100
    )
    assert [each["Topics"] for each in small["EventSourceMappings"]] == [["others"]]
    assert "NextMarker" not in small
    assert refusal(lambda: client.list_event_source_mappings(MaxItems=10_001)) == (400, "ValidationException")


def test_a_mapping_is_listed_under_the_function_or_the_alias_that_it_was_made_for(opened: Open) -> None:
    client = opened(MANY)
    account = "arn:aws:lambda:us-east-1:000000000000:function"
    named = {"plain": "forward", "alias": "forward:live", "by ARN": f"{account}:forward:live", "other": "forward:v2"}
    for number, function in enumerate(named.values()):
        client.create_event_source_mapping(**request(f"topic-{number}", FunctionName=function))

    def topics(function: str) -> list[str]:
        found = client.list_event_source_mappings(FunctionName=function)["EventSourceMappings"]
        return sorted(each["Topics"][0] for each in found)

    assert topics("forward") == ["topic-0"]
    assert topics("forward:live") == topics(f"{account}:forward:live") == ["topic-1", "topic-2"]
    assert len(client.list_event_source_mappings()["EventSourceMappings"]) == 4
    (made,) = client.list_event_source_mappings(FunctionName="forward:v2")["EventSourceMappings"]
    assert made["FunctionArn"] == f"{account}:forward:v2"


def test_the_sixteenth_call_in_a_moment_is_too_many(opened: Open) -> None:
    client = opened(LabBehaviour())

    for _ in range(15):
        client.list_event_source_mappings()

    assert refusal(client.list_event_source_mappings) == (429, "TooManyRequestsException")


def test_time_gives_calls_back_but_saves_up_no_more_than_a_second_of_them() -> None:
    now = 0.0
    pace = CallRate(15, clock=lambda: now)
    assert [pace.allows() for _ in range(16)] == [True] * 15 + [False]

    now = 0.1
    assert [pace.allows() for _ in range(2)] == [True, False]

    now = 100.0
    assert [pace.allows() for _ in range(16)] == [True] * 15 + [False]
