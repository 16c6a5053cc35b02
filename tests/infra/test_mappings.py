"""Event source mappings in templates, compared with the API's request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from aws_cdk import App, Stack
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from constructs import Construct

from infra.constructs.mappings import OWNER, map_topic, mapping_request, template_properties
from infra.deployment import plan
from lab.esm.access import required_actions
from lab.esm.api_model import violations
from mirrorless.config import load
from mirrorless.scheduled.settings import control_settings
from mirrorless.topics.mapping_plan import group_of
from mirrorless.topics.mapping_plan import mapping_request as found_request
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.changed_examples import flows, written
from tests.support.iam import many, statements_of

MAPPING = "AWS::Lambda::EventSourceMapping"
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


def test_a_member_that_cloudformation_does_not_describe_would_be_found() -> None:
    assert list(described(SCHEMA, {"SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": []}}}))


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_topic_that_is_named_and_one_that_is_found_get_the_same_mapping(example: str) -> None:
    """But for whose it is, its poller group, and where a new one begins: refresh_topics commits that for its group."""
    for flow in flows(example):
        settings = control_settings(flow.flow.control_settings("forward:live", secret_arn=flow.secret_arn))
        named, found = mapping_request(flow, "orders"), found_request(settings, "orders")
        for request in (named, found):
            for begin in ("StartingPosition", "StartingPositionTimestamp"):
                request.pop(begin, None)
            request.get("ProvisionedPollerConfig", {}).pop("PollerGroupName", None)

        assert named.pop("Tags")["mirrorless:owner"] == OWNER
        assert found.pop("Tags")["mirrorless:owner"] != OWNER
        assert named == found


@pytest.mark.parametrize("example", EXAMPLES)
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


def test_topics_that_differ_in_case_and_punctuation_only_have_mappings_of_their_own() -> None:
    flow = flows("active-active")[0]
    topics = ["orders.new", "orders-new", "orders_new", "ordersnew", "Orders.New"]
    stack = Stack(App(), "S")
    scope = Construct(stack, flow.id)

    ids = [
        stack.resolve(
            map_topic(
                scope,
                flow,
                topic,
                function="arn:aws:lambda:us-east-1:111122223333:function:f:live",
            ).logical_id
        )
        for topic in topics
    ]

    assert len(set(ids)) == len(topics)
    assert all("Mappingorders" in each or "MappingOrders" in each for each in ids)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {"StartingPosition": "TRIM_HORIZON"}),
        ("backfill", {"StartingPosition": "LATEST"}),
        ("latest", {"StartingPosition": "LATEST"}),
        ("2026-01-01T00:00:00Z", {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": 1_767_225_600}),
    ],
)
def test_a_mapping_begins_where_its_flow_does(tmp_path: Path, start: str, expected: dict[str, Any]) -> None:
    """The moment in seconds, as CloudFormation takes it."""
    place = "    replication.factor: 3"
    config = written(tmp_path, "active-passive", (place, f"{place}\n    start: {start}"))
    (flow,) = plan(load(config)).flows

    properties = template_properties(mapping_request(flow, "payments"))

    assert {name: value for name, value in properties.items() if name.startswith("StartingPosition")} == expected


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_role_of_each_mappings_function_has_what_lambda_needs_to_make_it(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    """The lab disables a mapping whose function's role lacks one of these, as Lambda does."""
    assembly = assembled(example)
    for flow in assembly.deployment.flows:
        statements = statements_of(assembly, flow.flow.resource_name("forward"))
        granted = {action for each in statements for action in many(each["Action"]) if each["Effect"] == "Allow"}

        assert required_actions(mapping_request(flow, "orders")) <= granted
