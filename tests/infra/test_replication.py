"""The replication stack: limits of Lambda, responses that would lose records, order, and rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.constructs.forwarder import variables
from infra.deployment import ALIAS, FlowDeployment, plan
from infra.guard.templates import Resource
from mirrorless.config import load
from mirrorless.naming import FLOW_VARIABLE, METRICS_PER_TOPIC_VARIABLE, PARTIAL_RESPONSES_VARIABLE
from mirrorless.settings import decode_settings
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.changed_examples import written

MAPPING = "AWS::Lambda::EventSourceMapping"
FUNCTION = "AWS::Lambda::Function"

every_example = pytest.mark.parametrize("example", EXAMPLES)

ENVIRONMENT_BYTES = 4_096
"""Of all variables of a function: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html."""

LONGEST_NAME = 64


def forwarders(assembly: Assembly) -> Iterator[tuple[FlowDeployment, Resource]]:
    """Each flow with its forwarder."""
    functions = {each.properties["FunctionName"]: each for each in assembly.resources(FUNCTION)}
    for flow in assembly.deployment.flows:
        yield flow, functions[flow.flow.resource_name("forward")]


def siblings(assembly: Assembly, resource: Resource) -> dict[str, Any]:
    found: dict[str, Any] = assembly.templates[resource.stack]["Resources"]
    return found


# What Lambda takes


@every_example
def test_a_forwarder_stays_within_lambdas_limits(example: str, assembled: Callable[[str], Assembly]) -> None:
    for flow, function in forwarders(assembled(example)):
        environment = function.properties["Environment"]["Variables"]

        assert function.properties["Timeout"] <= 14 * 60
        assert len(function.properties["FunctionName"]) <= LONGEST_NAME
        assert sum(len(name) + len(value.encode()) for name, value in environment.items()) <= ENVIRONMENT_BYTES
        assert function.properties["Architectures"] == [flow.flow.settings.function.architecture]
        assert function.properties["MemorySize"] == flow.flow.settings.function.memory_mb


@every_example
def test_a_forwarder_reads_its_own_flow(example: str, assembled: Callable[[str], Assembly]) -> None:
    for flow, function in forwarders(assembled(example)):
        assert decode_settings(function.properties["Environment"]["Variables"][FLOW_VARIABLE]).flow == flow.name


@every_example
def test_a_forwarders_log_has_its_name_and_an_end(example: str, assembled: Callable[[str], Assembly]) -> None:
    assembly = assembled(example)
    for _, function in forwarders(assembly):
        log = siblings(assembly, function)[function.properties["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]

        assert log["LogGroupName"] == f"/aws/lambda/{function.properties['FunctionName']}"
        assert log["RetentionInDays"] == assembly.deployment.settings.log_retention_days


# What would lose records


@every_example
def test_a_mapping_never_gives_a_record_up(example: str, assembled: Callable[[str], Assembly]) -> None:
    """With a destination, endless retries silently become ten; a filter or an age drops what does not suit."""
    for mapping in assembled(example).resources(MAPPING):
        if "ProvisionedPollerConfig" in mapping.properties:
            assert mapping.properties["MaximumRetryAttempts"] == -1
        for dropping in ("DestinationConfig", "FilterCriteria", "MaximumRecordAgeInSeconds"):
            assert dropping not in mapping.properties


@pytest.mark.parametrize(
    ("options", "partial"),
    [
        ("{partial.batch.response: true}", True),
        ("{partial.batch.response: false}", False),
        ("{mode: on-demand}", False),
    ],
)
def test_a_function_names_failed_records_only_where_every_mapping_reads_them(
    tmp_path: Path,
    options: str,
    partial: bool,  # noqa: FBT001 -- a column of the table above
) -> None:
    """Any answer to a mapping that does not read it means success: the records would be lost."""
    config = written(
        tmp_path, "active-passive", ("    replication.factor: 3", f"    mapping: {options}\n    replication.factor: 3")
    )
    deployment = plan(load(config))
    flow = deployment.flows[0]

    reads = "FunctionResponseTypes" in flow.flow.mapping_request("payments")

    assert reads == ("FunctionResponseTypes" in flow.flow.mapping_template())
    assert variables(deployment, flow)[PARTIAL_RESPONSES_VARIABLE] == str(partial).lower()
    assert reads or not partial


@pytest.mark.parametrize("per_topic", ["true", "false"])
def test_a_forwarder_emits_metrics_by_topic_where_the_deployment_wants_them(tmp_path: Path, per_topic: str) -> None:
    config = written(tmp_path, "active-passive", ("deployment:\n", f"deployment:\n  metrics.per.topic: {per_topic}\n"))
    deployment = plan(load(config))

    assert variables(deployment, deployment.flows[0])[METRICS_PER_TOPIC_VARIABLE] == per_topic


@every_example
def test_functions_log_what_they_print_and_of_lambdas_own_lines_only_trouble(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    for function in assembled(example).resources(FUNCTION):
        logging = function.properties["LoggingConfig"]

        assert "LogGroup" in logging
        assert (logging["LogFormat"], logging["SystemLogLevel"], logging["ApplicationLogLevel"]) == (
            "JSON",
            "WARN",
            "INFO",
        )


# Order of creation, and callers


@every_example
def test_a_mapping_waits_for_the_rights_it_is_tried_with_and_calls_the_alias(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    assembly = assembled(example)
    for mapping in assembly.resources(MAPPING):
        resources = siblings(assembly, mapping)
        alias = resources[mapping.properties["FunctionName"]["Ref"]]
        function = resources[alias["Properties"]["FunctionName"]["Ref"]]
        role = function["Properties"]["Role"]["Fn::GetAtt"][0]
        waits_for = [resources[each] for each in mapping.body["DependsOn"]]

        assert alias["Type"] == "AWS::Lambda::Alias"
        assert alias["Properties"]["Name"] == ALIAS
        assert any(
            each["Type"] == "AWS::IAM::Policy" and each["Properties"]["Roles"] == [{"Ref": role}] for each in waits_for
        )


# Whose code, key and source it is


@every_example
def test_code_may_not_do_what_lambda_does_with_its_role(example: str, assembled: Callable[[str], Assembly]) -> None:
    assembly = assembled(example)
    for flow, function in forwarders(assembly):
        role = function.properties["Role"]["Fn::GetAtt"][0]
        statements = [
            statement
            for each in siblings(assembly, function).values()
            if each["Type"] == "AWS::IAM::Policy" and each["Properties"]["Roles"] == [{"Ref": role}]
            for statement in each["Properties"]["PolicyDocument"]["Statement"]
        ]
        allowed, denied = (
            {
                action
                for statement in statements
                if statement["Effect"] == effect
                for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
                if action.startswith("ec2:")
            }
            for effect in ("Allow", "Deny")
        )

        assert allowed == denied
        for statement in statements:
            if statement["Effect"] == "Deny":
                assert statement["Condition"] == {
                    "ArnEquals": {"lambda:SourceFunctionArn": flow.function_arn("forward")}
                }


def test_a_customers_key_encrypts_variables_and_logs_and_the_role_may_read_them(
    assembled: Callable[[str], Assembly],
) -> None:
    assembly = assembled("aggregation")
    (key,) = assembly.deployment.settings.kms_key_arns
    for flow, function in forwarders(assembly):
        resources = siblings(assembly, function)
        policies = json.dumps([each for each in resources.values() if each["Type"] == "AWS::IAM::Policy"])

        assert function.properties["KmsKeyArn"] == key
        assert resources[function.properties["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]["KmsKeyId"] == key
        assert f'"kms:EncryptionContext:aws:lambda:FunctionArn": "{flow.function_arn("forward")}"' in policies


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("active-passive", {"EventSourceArn", "AmazonManagedKafkaEventSourceConfig"}),
        ("cross-account", {"EventSourceArn", "AmazonManagedKafkaEventSourceConfig", "SourceAccessConfigurations"}),
        (
            "self-managed-to-msk",
            {"SelfManagedEventSource", "SelfManagedKafkaEventSourceConfig", "SourceAccessConfigurations"},
        ),
    ],
)
def test_a_mapping_names_its_source_as_its_kind_demands(
    example: str, expected: set[str], assembled: Callable[[str], Assembly]
) -> None:
    source = {"EventSourceArn", "SelfManagedEventSource", "SourceAccessConfigurations"}
    kinds = source | {"AmazonManagedKafkaEventSourceConfig", "SelfManagedKafkaEventSourceConfig"}
    for mapping in assembled(example).resources(MAPPING):
        assert kinds & mapping.properties.keys() == expected
        for access in mapping.properties.get("SourceAccessConfigurations", []):
            if access["Type"].endswith(("_AUTH", "_CERTIFICATE")):
                assert access["URI"].startswith("arn:aws:secretsmanager:")
