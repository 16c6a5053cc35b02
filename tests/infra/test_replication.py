"""The replication stack: limits of Lambda, responses that would lose records, order, and rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from aws_cdk import App, Stack
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from constructs import Construct

from infra.constructs.forwarder import OWNER, map_topic, mapping_request, template_properties, variables
from infra.deployment import ALIAS, FlowDeployment, plan
from infra.guard.templates import Resource
from lab.esm.api_model import violations
from mirrorless.config import load
from mirrorless.flow.naming import FLOW_VARIABLE, METRICS_PER_TOPIC_VARIABLE, PARTIAL_RESPONSES_VARIABLE
from mirrorless.flow.settings import decode_settings
from mirrorless.topics.mapping_plan import group_of
from mirrorless.topics.mapping_plan import mapping_request as found_request
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.changed_examples import flows, written
from tests.support.iam import many, statements_of

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
def test_a_forwarder_reads_its_flow_within_lambdas_limits(example: str, assembled: Callable[[str], Assembly]) -> None:
    for flow, function in forwarders(assembled(example)):
        environment = function.properties["Environment"]["Variables"]

        assert function.properties["Timeout"] <= 14 * 60
        assert len(function.properties["FunctionName"]) <= LONGEST_NAME
        assert sum(len(name) + len(value.encode()) for name, value in environment.items()) <= ENVIRONMENT_BYTES
        assert decode_settings(environment[FLOW_VARIABLE]).flow == flow.name


@every_example
def test_functions_log_under_their_names_for_a_time_and_of_lambdas_own_lines_only_trouble(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    assembly = assembled(example)
    for function in assembly.resources(FUNCTION):
        logging = function.properties["LoggingConfig"]
        log = siblings(assembly, function)[logging["LogGroup"]["Ref"]]["Properties"]

        assert log["LogGroupName"] == f"/aws/lambda/{function.properties['FunctionName']}"
        assert log["RetentionInDays"] == assembly.deployment.settings.log_retention_days
        levels = (logging["LogFormat"], logging["SystemLogLevel"], logging["ApplicationLogLevel"])
        assert levels == ("JSON", "WARN", "INFO")


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
        statements = statements_of(assembly, function.properties["FunctionName"])
        allowed, denied = (
            {
                action
                for statement in statements
                if statement["Effect"] == effect
                for action in many(statement["Action"])
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


SCHEMA = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", MAPPING).schema


def described(schema: Any, value: Any, place: str = "") -> Iterator[str]:
    """Every member of a value that CloudFormation's schema of the resource does not describe."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[-1]]
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in schema.get("properties", {}):
                yield f"{place}/{name}"
            else:
                yield from described(schema["properties"][name], each, f"{place}/{name}")
    elif isinstance(value, list):
        for each in value:
            yield from described(schema["items"], each, f"{place}[]")


def example_of(shape: Any) -> Any:
    """A request with every member that the API's model has."""
    match shape.type_name:
        case "structure":
            return {name: example_of(member) for name, member in shape.members.items()}
        case "list":
            return [example_of(shape.member)]
        case "map":
            return {name: example_of(shape.value) for name in shape.key.enum or ["name"]}
        case "boolean":
            return True
        case "string":
            return "text"
        case _:
            return 1


def test_every_member_of_a_request_has_a_property_of_cloudformations_schema() -> None:
    """Also those that no flow uses today: a name that CloudFormation writes in its own way would be found here."""
    model = botocore.session.get_session().get_service_model("lambda").operation_model("CreateEventSourceMapping")

    unknown = list(described(SCHEMA, template_properties(example_of(model.input_shape))))

    assert unknown == ["/DestinationConfig/OnSuccess"]  # the API shares the shape with asynchronous invocations
    misspelt: Any = {"SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": []}}}
    assert list(described(SCHEMA, misspelt)), "it would be found"


@every_example
def test_a_topic_that_is_named_and_one_that_is_found_get_the_same_mapping(example: str) -> None:
    """But for whose it is, its poller group, and where a new one begins: refresh_topics commits that for its group."""
    for flow in flows(example):
        settings = flow.flow.control_settings("forward:live", secret_arn=flow.secret_arn)
        named, found = mapping_request(flow, "orders"), found_request(settings, "orders")
        for request in (named, found):
            for begin in ("StartingPosition", "StartingPositionTimestamp"):
                request.pop(begin, None)
            request.get("ProvisionedPollerConfig", {}).pop("PollerGroupName", None)

        assert named.pop("Tags")["mirrorless:owner"] == OWNER
        assert found.pop("Tags")["mirrorless:owner"] != OWNER
        assert named == found


@every_example
def test_every_mapping_of_a_template_equals_the_request_to_the_api(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    assembly = assembled(example)
    made = {group_of(dict(each.properties)): each for each in assembly.resources(MAPPING)}

    requests = [
        (flow, topic, mapping_request(flow, topic))
        for flow in assembly.deployment.flows
        for topic in flow.flow.template_topics
    ]

    assert {flow.flow.group_name(topic) for flow, topic, _ in requests} == made.keys()
    for flow, topic, request in requests:
        assert violations("CreateEventSourceMapping", {"FunctionName": "forward", **request}) == []
        properties = dict(made[flow.flow.group_name(topic)].properties)
        expected = template_properties(request)
        tags = properties.pop("Tags")
        assert all(tag in tags for tag in expected.pop("Tags"))
        assert "Ref" in properties.pop("FunctionName")
        assert properties == expected
        for access in properties.get("SourceAccessConfigurations", []):  # Lambda takes no secret's name
            if access["Type"].endswith(("_AUTH", "_CERTIFICATE")):
                assert access["URI"].startswith("arn:aws:secretsmanager:")


def test_topics_that_differ_in_case_and_punctuation_only_have_mappings_of_their_own() -> None:
    flow = flows("active-active")[0]
    topics = ["orders.new", "orders-new", "orders_new", "ordersnew", "Orders.New"]
    stack = Stack(App(), "S")
    scope = Construct(stack, flow.id)

    ids = [
        stack.resolve(map_topic(scope, flow, topic, function=f"{flow.function_arn('forward')}:live").logical_id)
        for topic in topics
    ]

    assert len(set(ids)) == len(topics)
    assert all("Mappingorders" in each or "MappingOrders" in each for each in ids)


INTERFACES = {f"ec2:{verb}NetworkInterface" for verb in ("Create", "Delete")} | {
    f"ec2:Describe{what}" for what in ("NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")
}


@every_example
def test_the_role_of_each_mappings_function_has_what_lambda_needs_to_make_it(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    """As AWS lists it (docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html, with-kafka-permissions.html)."""
    assembly = assembled(example)
    for flow in assembly.deployment.flows:
        statements = statements_of(assembly, flow.flow.resource_name("forward"))
        granted = {action for each in statements for action in many(each["Action"]) if each["Effect"] == "Allow"}

        request = mapping_request(flow, "orders")
        kinds = {each["Type"] for each in request.get("SourceAccessConfigurations") or []}
        arn = request.get("EventSourceArn", "")
        verbs = ["DescribeClusterV2", "GetBootstrapBrokers"] if arn else []
        verbs += ["DescribeVpcConnection"] if ":vpc-connection/" in arn else []
        interfaces = INTERFACES if arn or "VPC_SUBNET" in kinds else set()
        assert {f"kafka:{verb}" for verb in verbs} | interfaces <= granted
