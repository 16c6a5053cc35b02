"""Which mappings the lab takes: AWS's own constraints, the rules between fields, and its answers to the SDK."""

from __future__ import annotations

import datetime as dt
import time
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
from lab.esm.mapping_api import (
    InvalidParameterValueError,
    PollingOptions,
    ValidationError,
    check_access,
    settings_of_create,
    settings_of_update,
)
from lab.esm.mappings import EventSourceMappings
from tests.support.waiting import eventually

ARN = "arn:aws:kafka:us-east-1:123456789012:cluster/src/abcd1234"
SELF_MANAGED = {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["localhost:9092"]}}
PROVISIONED: dict[str, Any] = {"ProvisionedPollerConfig": {"MinimumPollers": 2, "MaximumPollers": 2}}
UUID = "14e0db71-5d35-4eb5-b481-8945cf9d10c2"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:failed"


class Nobody:
    """A function that is never invoked here."""

    def invoke(self, event: bytes) -> Any:
        """See `Invoker`."""
        raise AssertionError(event)


def request(**changes: Any) -> dict[str, Any]:
    """A good request, changed; None takes a field away."""
    whole = {
        "FunctionName": "forward",
        "Topics": ["orders"],
        "StartingPosition": "TRIM_HORIZON",
        "SelfManagedEventSource": SELF_MANAGED,
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def grouped_as(group: str | None) -> dict[str, Any]:
    return {"SelfManagedKafkaEventSourceConfig": group and {"ConsumerGroupId": group}}


def on_failure(destination: str) -> dict[str, Any]:
    return {"DestinationConfig": {"OnFailure": {"Destination": destination}}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"FunctionName": None}, "FunctionName"),
        ({"Topics": ["x"]}, "Topics.1.member"),
        ({"Topics": ["orders", "payments"]}, "Topics"),
        ({"Topics": []}, "Topics"),
        ({"Topics": ["o" * 250]}, "Topics.1.member"),
        ({"Topics": "orders"}, "Topics"),
        ({"BatchSize": 0}, "BatchSize"),
        ({"BatchSize": 10_001}, "BatchSize"),
        ({"BatchSize": "100"}, "BatchSize"),
        ({"BatchSize": True}, "BatchSize"),
        ({"MaximumBatchingWindowInSeconds": 0.5}, "MaximumBatchingWindowInSeconds"),
        ({"StartingPosition": "EARLIEST"}, "StartingPosition"),
        ({"Enabled": "yes"}, "Enabled"),
        ({**PROVISIONED, "FunctionResponseTypes": ["ReportEverything"]}, "FunctionResponseTypes.1.member"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 0}}, "ProvisionedPollerConfig.MinimumPollers"),
        ({"ProvisionedPollerConfig": {"PollerGroupName": "a b"}}, "ProvisionedPollerConfig.PollerGroupName"),
        (grouped_as("a#b"), "ConsumerGroupId"),
        ({"BatchSizes": 3}, "BatchSizes"),
    ],
)
def test_a_field_that_breaks_the_apis_model_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named) as refusal:
        settings_of_create(request(**changes))

    assert (refusal.value.status, refusal.value.code) == (400, "ValidationException")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"MaximumRetryAttempts": 3}, "maximumRetryAttempts"),
        ({"MaximumRetryAttempts": -1}, "maximumRetryAttempts"),
        ({"MaximumRecordAgeInSeconds": 60}, "maximumRecordAgeInSeconds"),
        ({"BisectBatchOnFunctionError": True}, "bisectBatchOnFunctionError"),
        ({"FunctionResponseTypes": ["ReportBatchItemFailures"]}, "functionResponseTypes"),
        ({"MetricsConfig": {"Metrics": ["EventCount"]}}, "metricsConfig"),
        ({"LoggingConfig": {"SystemLogLevel": "DEBUG"}}, "loggingConfig"),
        (on_failure(QUEUE), "DestinationConfig"),
        ({**PROVISIONED, **on_failure("kafka://orders-dlt")}, "DestinationConfig"),
        ({**PROVISIONED, "MaximumRetryAttempts": 3}, "MaximumRetryAttempts"),
        ({**PROVISIONED, "BisectBatchOnFunctionError": True}, "BisectBatchOnFunctionError"),
        ({"ParallelizationFactor": 2}, "ParallelizationFactor"),
        ({"TumblingWindowInSeconds": 2}, "TumblingWindowInSeconds"),
        ({"Topics": None}, "Topics"),
        ({"StartingPosition": None}, "StartingPosition"),
        ({"StartingPosition": "AT_TIMESTAMP"}, "StartingPositionTimestamp"),
        ({"StartingPositionTimestamp": 1.0}, "StartingPositionTimestamp"),
        ({"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": time.time() + 3600}, "future"),
        ({"SelfManagedEventSource": None}, "KAFKA_BOOTSTRAP_SERVERS"),
        ({"SelfManagedEventSource": {}}, "KAFKA_BOOTSTRAP_SERVERS"),
        ({"EventSourceArn": ARN}, "EventSourceArn, which is for MSK"),
        ({"AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": "g"}}, "AmazonManagedKafkaEventSourceConfig"),
        ({**PROVISIONED, "MaximumRecordAgeInSeconds": 60}, "MaximumRecordAgeInSeconds"),
        ({"ProvisionedPollerConfig": {"MaximumPollers": 2_001}}, "MaximumPollers"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 3, "MaximumPollers": 2}}, "MinimumPollers"),
        ({"FilterCriteria": {"Filters": [{"Pattern": "{}"}]}}, "FilterCriteria"),
        ({"SelfManagedKafkaEventSourceConfig": {"ConsumptionMode": "Queue"}}, "ConsumptionMode"),
        ({"SelfManagedKafkaEventSourceConfig": {"SchemaRegistryConfig": {"SchemaRegistryURI": "x"}}}, "SchemaRegistry"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameterValueError, match=named) as refusal:
        settings_of_create(request(**changes))

    assert (refusal.value.status, refusal.value.code) == (400, "InvalidParameterValueException")


@pytest.mark.parametrize(("changes", "window_s"), [({}, 0.5), ({"MaximumBatchingWindowInSeconds": 0}, 0.0)])
def test_the_defaults_are_awss_and_a_window_of_zero_is_none(changes: dict[str, Any], window_s: float) -> None:
    options = PollingOptions.of(settings_of_create(request(**changes)), group_id="g")

    assert (options.batch_size, options.window_s, options.pollers) == (100, window_s, 1)
    assert not options.partial_response


@pytest.mark.parametrize(
    "change",
    [
        {"Topics": ["payments"]},
        {"StartingPosition": "LATEST"},
        {"EventSourceArn": ARN},
        {"SelfManagedEventSource": SELF_MANAGED},
        grouped_as("another"),
    ],
)
def test_what_is_set_at_creation_cannot_be_updated(change: dict[str, Any]) -> None:
    current = settings_of_create(request(**grouped_as("mine")))

    with pytest.raises(InvalidParameterValueError, match="creation only"):
        settings_of_update(current, {"UUID": UUID, **change})


def test_an_update_keeps_what_it_does_not_name() -> None:
    current = settings_of_create(request(BatchSize=7))

    updated = settings_of_update(current, {"UUID": UUID, "MaximumBatchingWindowInSeconds": 3})

    assert (updated["BatchSize"], updated["MaximumBatchingWindowInSeconds"]) == (7, 3)
    assert "MaximumBatchingWindowInSeconds" not in current


def test_an_empty_poller_configuration_leaves_provisioned_mode() -> None:
    current = settings_of_create(request(**PROVISIONED, FunctionResponseTypes=["ReportBatchItemFailures"]))

    with pytest.raises(InvalidParameterValueError, match="functionResponseTypes"):
        settings_of_update(current, {"UUID": UUID, "ProvisionedPollerConfig": {}})
    updated = settings_of_update(current, {"UUID": UUID, "ProvisionedPollerConfig": {}, "FunctionResponseTypes": []})

    assert "ProvisionedPollerConfig" not in updated
    assert "FunctionResponseTypes" not in updated


def test_an_empty_name_leaves_the_poller_group() -> None:
    settings = settings_of_create(request(ProvisionedPollerConfig={"PollerGroupName": ""}))

    assert "PollerGroupName" not in settings["ProvisionedPollerConfig"]


def given(*kinds: str, **literal: str) -> dict[str, Any]:
    """A mapping's settings with access of these types; those by the role have no URI."""
    access = [{"Type": kind} if kind.startswith("IAM") else {"Type": kind, "URI": "secret"} for kind in kinds]
    access += [{"Type": kind, "URI": value} for kind, value in literal.items()]
    return {"SourceAccessConfigurations": access}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        given("BASIC_AUTH", "SERVER_ROOT_CA_CERTIFICATE", "VPC_SUBNET", "VPC_SUBNET", "VPC_SECURITY_GROUP"),
        given("OAUTHBEARER_AUTH", "OAUTHBEARER_SCOPE", "OAUTHBEARER_LOGICAL_CLUSTER", "OAUTHBEARER_IDENTITY_POOL"),
        given("SERVER_ROOT_CA_CERTIFICATE", "VPC_SUBNET", "VPC_SECURITY_GROUP"),
        given("IAM_AUTH"),
        given("SASL_SCRAM_512_AUTH"),
        given("CLIENT_CERTIFICATE_TLS_AUTH"),
    ],
)
def test_access_that_aws_documents_is_taken(settings: dict[str, Any]) -> None:
    check_access(settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (given("OAUTHBEARER_SCOPE"), "requires OAUTHBEARER_AUTH"),
        (given("IAM_OAUTHBEARER_AUTH"), "has no IAM_OAUTHBEARER_AUTH"),
        (given("OAUTHBEARER_AUTH", "OAUTHBEARER_AUDIENCE"), "has no OAUTHBEARER_AUDIENCE"),
        (given("BASIC_AUTH", "SASL_SCRAM_512_AUTH"), "One authentication at most"),
        (given("BASIC_AUTH", "BASIC_AUTH"), "there twice"),
        (given(IAM_AUTH="secret"), "IAM_AUTH takes no URI"),
        ({"SourceAccessConfigurations": [{"Type": "BASIC_AUTH"}]}, "BASIC_AUTH takes a URI"),
        (given("VIRTUAL_HOST"), "has no VIRTUAL_HOST"),
        (given("VPC_SUBNET"), "given together"),
        (given("VPC_SECURITY_GROUP", "VPC_SECURITY_GROUP"), "given together"),
    ],
)
def test_access_that_aws_refuses_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameterValueError, match=named):
        check_access(settings)


MANY = LabBehaviour(control_calls_per_second=10_000, creation_delay_s=60)
SETTLING = LabBehaviour(control_calls_per_second=10_000)


Open = Callable[[LabBehaviour], Any]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """The SDK's client of a lab with this behaviour."""
    with ExitStack() as stack:

        def client(behaviour: LabBehaviour) -> Any:
            functions = {"forward": Nobody(), "other": Nobody()}
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


def mapped(topic: str = "orders", **changes: Any) -> dict[str, Any]:
    """A good request of a group that belongs to the topic. No server listens: no test here needs one."""
    own = {"SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["127.0.0.1:1"]}}, **grouped_as(topic)}
    return request(**{"Topics": [topic], **own, **changes})


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    """The status and the error of a call that the API refuses."""
    with pytest.raises(ClientError) as refused:
        call()
    response = refused.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_a_mapping_is_created_found_changed_and_deleted(opened: Open) -> None:
    client = opened(SETTLING)

    created = client.create_event_source_mapping(**mapped(BatchSize=7, Enabled=False))

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
    assert refusal(lambda: client.get_event_source_mapping(UUID=uuid)) == (404, "ResourceNotFoundException")
    assert client.create_event_source_mapping(**mapped(Enabled=False))["UUID"] != uuid, "its group is free again"


def test_a_start_at_a_moment_arrives_as_that_moment(opened: Open) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

    created = opened(MANY).create_event_source_mapping(
        **mapped(StartingPosition="AT_TIMESTAMP", StartingPositionTimestamp=moment)
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
    client.create_event_source_mapping(**mapped())

    assert refusal(lambda: client.create_event_source_mapping(**mapped(**changes))) == expected


def test_a_mapping_that_is_being_created_cannot_be_changed(opened: Open) -> None:
    client = opened(MANY)
    uuid = client.create_event_source_mapping(**mapped())["UUID"]

    busy = (400, "ResourceInUseException")
    assert refusal(lambda: client.update_event_source_mapping(UUID=uuid, BatchSize=9)) == busy
    assert refusal(lambda: client.delete_event_source_mapping(UUID=uuid)) == busy


def test_an_operation_that_the_lab_lacks_is_not_found(opened: Open) -> None:
    assert refusal(lambda: opened(MANY).get_function(FunctionName="forward")) == (404, "ResourceNotFoundException")


def test_tags_are_kept_and_changed(opened: Open) -> None:
    client = opened(MANY)
    created = client.create_event_source_mapping(**mapped(Tags={"mirrorless:flow": "a.b", "owner": "us"}))
    arn = created["EventSourceMappingArn"]

    client.tag_resource(Resource=arn, Tags={"owner": "them"})
    client.untag_resource(Resource=arn, TagKeys=["mirrorless:flow"])

    assert client.list_tags(Resource=arn)["Tags"] == {"owner": "them"}
    assert "Tags" not in client.get_event_source_mapping(UUID=created["UUID"])


def test_a_list_comes_in_pages_with_every_mapping_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.esm.lambda_api.PAGE", 3)
    client = opened(MANY)
    made = {client.create_event_source_mapping(**mapped(f"topic-{number}"))["UUID"] for number in range(5)}
    client.create_event_source_mapping(**mapped("others", FunctionName="other"))

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
        client.create_event_source_mapping(**mapped(f"topic-{number}", FunctionName=function))

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
