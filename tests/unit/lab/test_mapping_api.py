"""Which mappings the lab accepts: the API's own constraints, and the rules between fields."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lab.esm.access import SecretRefusedError, check_access, client_access, required_actions
from lab.esm.behaviour import LabBehaviour
from lab.esm.mapping_api import (
    InvalidParameterValueError,
    PollingOptions,
    ResourceNotFoundError,
    ValidationError,
    check_poller_group,
    consumer_group,
    settings_of_create,
    settings_of_update,
)
from lab.esm.mappings import EventSourceMappings

ARN = "arn:aws:kafka:us-east-1:123456789012:cluster/src/abcd1234"
SELF_MANAGED = {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["localhost:9092"]}}
PROVISIONED: dict[str, Any] = {"ProvisionedPollerConfig": {"MinimumPollers": 2, "MaximumPollers": 2}}
UUID = "14e0db71-5d35-4eb5-b481-8945cf9d10c2"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:failed"


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


def on_failure(destination: str) -> dict[str, Any]:
    return {"DestinationConfig": {"OnFailure": {"Destination": destination}}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"FunctionName": None}, "FunctionName"),
        ({"Topics": ["x"]}, "Topics.1.member"),
        ({"Topics": [".orders"]}, "Topics.1.member"),
        ({"Topics": ["orders", "payments"]}, "Topics"),
        ({"Topics": []}, "Topics"),
        ({"Topics": ["o" * 250]}, "Topics.1.member"),
        ({"Topics": "orders"}, "Topics"),
        ({"BatchSize": 0}, "BatchSize"),
        ({"BatchSize": 10_001}, "BatchSize"),
        ({"BatchSize": "100"}, "BatchSize"),
        ({"BatchSize": True}, "BatchSize"),
        ({"MaximumBatchingWindowInSeconds": 301}, "MaximumBatchingWindowInSeconds"),
        ({"MaximumBatchingWindowInSeconds": -1}, "MaximumBatchingWindowInSeconds"),
        ({"MaximumBatchingWindowInSeconds": 0.5}, "MaximumBatchingWindowInSeconds"),
        ({"StartingPosition": "EARLIEST"}, "StartingPosition"),
        ({"Enabled": "yes"}, "Enabled"),
        ({**PROVISIONED, "MaximumRetryAttempts": -2}, "MaximumRetryAttempts"),
        ({**PROVISIONED, "MaximumRetryAttempts": 10_001}, "MaximumRetryAttempts"),
        ({**PROVISIONED, "MaximumRecordAgeInSeconds": 604_801}, "MaximumRecordAgeInSeconds"),
        ({**PROVISIONED, "FunctionResponseTypes": ["ReportEverything"]}, "FunctionResponseTypes.1.member"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 0}}, "ProvisionedPollerConfig.MinimumPollers"),
        ({"ProvisionedPollerConfig": {"MinimumPollers": 201}}, "ProvisionedPollerConfig.MinimumPollers"),
        ({"ProvisionedPollerConfig": {"PollerGroupName": "a b"}}, "ProvisionedPollerConfig.PollerGroupName"),
        ({"SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "a#b"}}, "ConsumerGroupId"),
        ({"SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "g" * 201}}, "ConsumerGroupId"),
        ({**PROVISIONED, **on_failure("https://example.com")}, "DestinationConfig.OnFailure.Destination"),
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
        ({"SelfManagedEventSource": None}, "EventSourceArn"),
        ({"EventSourceArn": ARN}, "not both"),
        ({"SelfManagedEventSource": {}}, "EventSourceArn"),
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


def polling(settings: dict[str, Any]) -> PollingOptions:
    return PollingOptions.of(settings, group_id="g", behaviour=LabBehaviour())


def test_the_defaults_are_awss() -> None:
    options = polling(settings_of_create(request()))

    assert (options.batch_size, options.window_s, options.pollers) == (100, 0.5, 1)
    assert not options.partial_response


def test_a_window_of_zero_is_zero() -> None:
    assert polling(settings_of_create(request(MaximumBatchingWindowInSeconds=0))).window_s == 0.0


def test_a_managed_cluster_is_addressed_by_its_arn() -> None:
    config = {"AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": "mine"}}

    settings = settings_of_create(request(SelfManagedEventSource=None, EventSourceArn=ARN, **config))

    assert consumer_group(settings) == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"Topics": ["payments"]},
        {"StartingPosition": "LATEST"},
        {"EventSourceArn": ARN},
        {"SelfManagedEventSource": SELF_MANAGED},
        {"SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": "another"}},
    ],
)
def test_what_is_set_at_creation_cannot_be_updated(change: dict[str, Any]) -> None:
    current = settings_of_create(request(SelfManagedKafkaEventSourceConfig={"ConsumerGroupId": "mine"}))

    with pytest.raises(InvalidParameterValueError, match="creation only"):
        settings_of_update(current, {"UUID": UUID, **change})


def test_an_update_keeps_what_it_does_not_name() -> None:
    current = settings_of_create(request(BatchSize=7))

    updated = settings_of_update(current, {"UUID": UUID, "MaximumBatchingWindowInSeconds": 3})

    assert (updated["BatchSize"], updated["MaximumBatchingWindowInSeconds"]) == (7, 3)
    assert "MaximumBatchingWindowInSeconds" not in current


def grouped(pollers: int, name: str = "given") -> dict[str, Any]:
    config = {"MaximumPollers": pollers, "PollerGroupName": name}
    return settings_of_create(request(ProvisionedPollerConfig=config))


def test_a_poller_group_takes_a_hundred_mappings_and_two_thousand_pollers() -> None:
    check_poller_group(grouped(1), [grouped(1)] * 99 + [grouped(1, "other")] * 200)
    check_poller_group(grouped(1), [grouped(1_999)])

    with pytest.raises(InvalidParameterValueError, match="given has at most 100 mappings"):
        check_poller_group(grouped(1), [grouped(1)] * 100)
    with pytest.raises(InvalidParameterValueError, match="MaximumPollers of poller group given are at most 2000"):
        check_poller_group(grouped(2), [grouped(1_999)])


def test_mappings_with_an_empty_groups_name_share_nothing() -> None:
    assert "PollerGroupName" not in grouped(1, "")["ProvisionedPollerConfig"]
    check_poller_group(grouped(200, ""), [grouped(200, "")] * 200)


def test_an_empty_poller_configuration_leaves_provisioned_mode() -> None:
    current = settings_of_create(request(**PROVISIONED, FunctionResponseTypes=["ReportBatchItemFailures"]))

    with pytest.raises(InvalidParameterValueError, match="functionResponseTypes"):
        settings_of_update(current, {"UUID": UUID, "ProvisionedPollerConfig": {}})
    updated = settings_of_update(current, {"UUID": UUID, "ProvisionedPollerConfig": {}, "FunctionResponseTypes": []})

    assert "ProvisionedPollerConfig" not in updated
    assert "FunctionResponseTypes" not in updated


def test_an_unknown_function_and_an_unknown_cluster_are_not_found(tmp_path: Path) -> None:
    mappings = EventSourceMappings(functions={}, folder=tmp_path)

    with pytest.raises(ResourceNotFoundError, match="forward"):
        mappings.create(**request())
    with pytest.raises(ResourceNotFoundError, match="no cluster"):
        mappings.create(**request(SelfManagedEventSource=None, EventSourceArn=ARN))


TOKENS = {
    "oauthTokenEndpointUrl": "https://idp.example.com/token",
    "oauthClientId": "mirror",
    "oauthClientSecret": "s3cret",
}


def given(*kinds: str, arn: str = "", **literal: str) -> dict[str, Any]:
    """A mapping's settings with access of these types; those by the role have no URI."""
    access = [{"Type": kind} if kind.startswith("IAM") else {"Type": kind, "URI": "secret"} for kind in kinds]
    access += [{"Type": kind, "URI": value} for kind, value in literal.items()]
    return {"SourceAccessConfigurations": access, **({"EventSourceArn": arn} if arn else {})}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        given("BASIC_AUTH", "SERVER_ROOT_CA_CERTIFICATE", "VPC_SUBNET", "VPC_SUBNET", "VPC_SECURITY_GROUP"),
        given("OAUTHBEARER_AUTH", "OAUTHBEARER_SCOPE", "OAUTHBEARER_LOGICAL_CLUSTER", "OAUTHBEARER_IDENTITY_POOL"),
        given("SERVER_ROOT_CA_CERTIFICATE", "VPC_SUBNET", "VPC_SECURITY_GROUP"),
        given("IAM_AUTH"),
        given("SASL_SCRAM_512_AUTH", arn=ARN),
        given("CLIENT_CERTIFICATE_TLS_AUTH", arn=ARN),
    ],
)
def test_access_that_aws_documents_is_taken(settings: dict[str, Any]) -> None:
    check_access(settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (given("BASIC_AUTH", arn=ARN), "BASIC_AUTH is not for Amazon MSK"),
        (given("OAUTHBEARER_AUTH", arn=ARN), "OAUTHBEARER_AUTH is not for Amazon MSK"),
        (given("SERVER_ROOT_CA_CERTIFICATE", arn=ARN), "not for Amazon MSK"),
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


def test_pollers_request_tokens_with_all_that_the_mapping_gives() -> None:
    literal = {"OAUTHBEARER_SCOPE": "kafka", "OAUTHBEARER_LOGICAL_CLUSTER": "lkc-1", "OAUTHBEARER_IDENTITY_POOL": "p"}

    client = client_access(given("OAUTHBEARER_AUTH", **literal), lambda _: json.dumps(TOKENS))

    assert client["security.protocol"] == "SASL_SSL"
    assert client["sasl.oauthbearer.token.endpoint.url"] == TOKENS["oauthTokenEndpointUrl"]
    assert client["sasl.oauthbearer.scope"] == "kafka"
    assert client["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,identityPoolId=p"


@pytest.mark.parametrize(
    ("kind", "secret", "named"),
    [
        ("BASIC_AUTH", "{}", 'expected format of: {"username": "…", "password": "…"}'),
        ("BASIC_AUTH", "just a password", "expected format"),
        ("SERVER_ROOT_CA_CERTIFICATE", "{}", "certificate"),
        ("OAUTHBEARER_AUTH", '{"oauthClientId": "mirror"}', "oauthTokenEndpointUrl"),
        ("OAUTHBEARER_AUTH", json.dumps(TOKENS | {"oauthTokenEndpointUrl": "http://idp/token"}), "HTTPS"),
        ("OAUTHBEARER_AUTH", json.dumps(TOKENS | {"oauthPrivateKey": "-----BEGIN"}), "two grants"),
        ("IAM_AUTH", "", "has no IAM_AUTH"),
    ],
)
def test_a_mapping_is_not_made_with_a_secret_of_another_form(
    tmp_path: Path, kind: str, secret: str, named: str
) -> None:
    mappings = EventSourceMappings(functions={"forward": Nobody()}, folder=tmp_path, read_secret=lambda _: secret)

    with pytest.raises(InvalidParameterValueError) as refused:
        mappings.create(**request(**given(kind)))

    assert named in str(refused.value)
    assert mappings.list() == []


@pytest.mark.parametrize("action", ["secretsmanager:GetSecretValue", "kms:Decrypt"])
@pytest.mark.parametrize("unreadable", ["not made", "disabled"])
def test_a_mapping_whose_role_cannot_read_its_secret_never_polls(tmp_path: Path, action: str, unreadable: Any) -> None:
    def refuse(secret: str) -> str:
        raise SecretRefusedError(secret, action)

    behaviour = LabBehaviour(unreadable=unreadable)
    mappings = EventSourceMappings(
        functions={"forward": Nobody()}, folder=tmp_path, read_secret=refuse, behaviour=behaviour
    )
    by_password = request(**given("SASL_SCRAM_512_AUTH"))

    if unreadable == "not made":
        with pytest.raises(SecretRefusedError, match=action):
            mappings.create(**by_password)
        assert mappings.list() == []
        return
    mapping = mappings._mappings[mappings.create(**by_password)["UUID"]]
    assert mapping._work is not None
    mapping._work.join(10)
    found = mapping.configuration()
    assert (found["State"], found["StateTransitionReason"]) == ("Disabled", "EVENT_SOURCE_AUTHN_ERROR")
    assert "Cannot access secret manager value" in found["LastProcessingResult"]
    mappings.stop()


class Nobody:
    """A function that is never invoked."""

    def invoke(self, event: bytes) -> Any:
        """See `Invoker`."""
        raise AssertionError(event)


CONNECTION = "arn:aws:kafka:us-east-1:123456789012:vpc-connection/999988887777/src/abcd1234"


@pytest.mark.parametrize(
    ("settings", "interfaces", "actions"),
    [
        (given("BASIC_AUTH"), False, set()),
        (given("BASIC_AUTH", "VPC_SUBNET", "VPC_SECURITY_GROUP"), True, set()),
        (given(arn=ARN), True, {"DescribeClusterV2", "GetBootstrapBrokers"}),
        (given(arn=CONNECTION), True, {"DescribeClusterV2", "DescribeVpcConnection", "GetBootstrapBrokers"}),
    ],
)
def test_a_role_needs_what_aws_lists_for_the_source(
    settings: dict[str, Any], actions: set[str], *, interfaces: bool
) -> None:
    needed = required_actions(settings)

    assert {each.removeprefix("kafka:") for each in needed if each.startswith("kafka:")} == actions
    assert {f"ec2:{verb}NetworkInterface" for verb in ("Create", "Delete")} <= needed if interfaces else not needed
