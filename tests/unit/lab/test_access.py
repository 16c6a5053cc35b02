"""Which access configurations a mapping of the lab takes, and what its pollers make of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.esm.access import SecretRefusedError, check_access, client_access, required_actions
from lab.esm.behaviour import LabBehaviour
from lab.esm.mapping_api import InvalidParameterValueError
from lab.esm.mappings import EventSourceMappings

ARN = "arn:aws:kafka:us-east-1:123456789012:cluster/src/abcd1234"
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
        given("IAM_OAUTHBEARER_AUTH", "OAUTHBEARER_AUDIENCE"),
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
        (given("IAM_OAUTHBEARER_AUTH", "OAUTHBEARER_AUDIENCE", "OAUTHBEARER_SCOPE"), "requires OAUTHBEARER_AUTH"),
        (given("IAM_OAUTHBEARER_AUTH"), "requires OAUTHBEARER_AUDIENCE"),
        (given("BASIC_AUTH", "SASL_SCRAM_512_AUTH"), "One authentication at most"),
        (given("BASIC_AUTH", "BASIC_AUTH"), "there twice"),
        (given(IAM_AUTH="secret"), "IAM_AUTH takes no URI"),
        ({"SourceAccessConfigurations": [{"Type": "BASIC_AUTH"}]}, "BASIC_AUTH takes a URI"),
        (given("VIRTUAL_HOST"), "RabbitMQ"),
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
        mappings.create(
            FunctionName="forward",
            Topics=["orders"],
            StartingPosition="LATEST",
            SelfManagedEventSource={"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["localhost:9092"]}},
            **given(kind),
        )

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
    request = {
        "FunctionName": "forward",
        "Topics": ["orders"],
        "StartingPosition": "LATEST",
        "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["localhost:9092"]}},
        **given("SASL_SCRAM_512_AUTH"),
    }

    if unreadable == "not made":
        with pytest.raises(SecretRefusedError, match=action):
            mappings.create(**request)
        assert mappings.list() == []
        return
    mapping = mappings._mappings[mappings.create(**request)["UUID"]]
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
        (given(arn=ARN), True, {"kafka:DescribeClusterV2", "kafka:GetBootstrapBrokers"}),
        (
            given(arn=CONNECTION),
            True,
            {"kafka:DescribeClusterV2", "kafka:DescribeVpcConnection", "kafka:GetBootstrapBrokers"},
        ),
    ],
)
def test_a_role_needs_what_aws_lists_for_the_source(
    settings: dict[str, Any],
    interfaces: bool,  # noqa: FBT001  a table's column
    actions: set[str],
) -> None:
    needed = required_actions(settings)

    assert {each for each in needed if each.startswith("kafka:")} == actions
    assert {f"ec2:{verb}NetworkInterface" for verb in ("Create", "Delete")} <= needed if interfaces else not needed
