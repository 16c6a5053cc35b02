"""Stateful resources of a template, the properties that cannot change, and the settings of flows.

A resource has a logical id for CloudFormation, and a name of its own for its service. Where only one of the two stays
the same, something is made twice, or made anew without what was in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from mirrorless.flow.naming import FLOW_VARIABLE, FORWARD_HANDLER
from mirrorless.flow.settings import FlowSettings

TABLE: Final = "AWS::DynamoDB::GlobalTable"
BUCKET: Final = "AWS::S3::Bucket"
MAPPING: Final = "AWS::Lambda::EventSourceMapping"
APPLICATION: Final = "AWS::EMRServerless::Application"
FOUND: Final = "Custom::MirrorlessFoundMappings"
"""Stands for the mappings that `refresh_topics` makes: its deletion ends them."""

DATA: Final = frozenset({TABLE, BUCKET})
"""What cannot be made again. The one key that a template has is of the alarms' topic, in which no message rests."""

WATCHED: Final[Mapping[str, str]] = {
    TABLE: "table",
    BUCKET: "bucket",
    MAPPING: "mapping",
    APPLICATION: "application",
    FOUND: "found mappings",
}
"""What people call them, by type."""

Templates = Mapping[str, Mapping[str, Any]]
"""Templates by the names of their stacks."""

_NAMED_BY: Final[Mapping[str, str]] = {
    TABLE: "TableName",
    BUCKET: "BucketName",
    APPLICATION: "Name",
}

_GROUP_CONFIGS: Final = ("AmazonManagedKafkaEventSourceConfig", "SelfManagedKafkaEventSourceConfig")

_API_FIXES: Final = (
    "AmazonManagedKafkaEventSourceConfig/ConsumerGroupId",
    "SelfManagedKafkaEventSourceConfig/ConsumerGroupId",
    "SelfManagedKafkaEventSourceConfig/ConsumptionMode",
)
"""Inside of what the API updates, and yet fixed: "you can't update" them
(https://docs.aws.amazon.com/lambda/latest/api/API_AmazonManagedKafkaEventSourceConfig.html)."""

_API_AT_TIMES: Final[Mapping[str, tuple[str, ...]]] = {APPLICATION: ("Tags",)}
"""Refused while an application is started, though the schema says nothing of it
(https://github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/2370)."""

SIDES: Final = ("source", "target")

_KNOWN: Final = (
    "flow",
    "aliases",
    "prefixes",
    "replication_policy",
    "replication_policy_separator",
    "replication_policy_internal_topic_separator_enabled",
    "topics",
    "topics_exclude",
    "heartbeats_replication_enabled",
    "trigger",
    "trigger_overrides",
    "refresh_topics_enabled",
    "mapping_template",
)
"""What decides whether a topic is found, who maps it, and what its mapping is like."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource that is watched.

    Attributes:
        stack: the name of its stack.
        id: its logical id.
        body: as the template has it.
    """

    stack: str
    id: str
    body: Mapping[str, Any]

    @property
    def type(self) -> str:
        """Such as `AWS::DynamoDB::GlobalTable`."""
        return str(self.body["Type"])

    @property
    def properties(self) -> Mapping[str, Any]:
        """Its properties in the template."""
        found: Mapping[str, Any] = self.body.get("Properties", {})
        return found

    @property
    def retained(self) -> bool:
        """Whether it outlives its place in the template."""
        return self.body.get("DeletionPolicy") == "Retain"

    @property
    def name(self) -> str:
        """What the service calls it; empty where that is a secret between the service and CloudFormation."""
        if self.type == MAPPING:
            return self.group
        found = self.properties.get(_NAMED_BY.get(self.type, ""), "")
        return found if isinstance(found, str) else _text(found)

    @property
    def group(self) -> str:
        """The consumer group of a mapping."""
        configs = (self.properties.get(config) or {} for config in _GROUP_CONFIGS)
        return next((str(config["ConsumerGroupId"]) for config in configs if "ConsumerGroupId" in config), "")

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of a mapping."""
        return tuple(map(str, self.properties.get("Topics", ())))

    @property
    def identity(self) -> str:
        """What there can be once only, whatever the stack: its type and name, of a mapping its source and group."""
        if not self.name:
            return ""
        return f"{self.type} {self._source() if self.type == MAPPING else ''} {self.name}"

    def _source(self) -> str:
        if arn := self.properties.get("EventSourceArn"):
            return _text(arn)
        endpoints = (self.properties.get("SelfManagedEventSource") or {}).get("Endpoints") or {}
        return _text(sorted(str(each).lower() for each in endpoints.get("KafkaBootstrapServers", ())))

    def __str__(self) -> str:
        shown = " ".join(filter(None, (WATCHED[self.type], self.name)))
        return f"{shown} ({self.stack} {self.id})"


def watched(templates: Templates) -> dict[tuple[str, str], Resource]:
    """Every resource that holds state or a position, by stack and logical id."""
    return {
        (stack, id_): Resource(stack, id_, body)
        for stack, template in sorted(templates.items())
        for id_, body in sorted(template.get("Resources", {}).items())
        if body.get("Type") in WATCHED
    }


@cache
def unchangeable(type_: str) -> tuple[str, ...]:
    """The properties that make a resource anew, or are refused, when they change; inner ones as `Outer/Inner`.

    Taken from CloudFormation's resource schemas, which cfn-lint ships. The schema of a mapping lacks what the Lambda
    API has: that `Topics` is fixed shows only in an update call without that field.
    """
    fixed = list(_paths(type_, "createOnlyProperties"))
    if type_ == MAPPING:
        fixed += [name for name in sorted(_only_on_creation()) if name not in fixed]
        fixed += _API_FIXES
    return tuple(fixed)


@cache
def changeable_at_times(type_: str) -> tuple[str, ...]:
    """The properties whose change makes a resource anew, or is refused, under some conditions."""
    return (*_paths(type_, "conditionalCreateOnlyProperties"), *_API_AT_TIMES.get(type_, ()))


def value_at(properties: Mapping[str, Any], path: str) -> Any:
    """A property, by the names on the way to it; None where there is none."""
    value: Any = properties
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict | Mapping) else None
    return value


def _paths(type_: str, key: str) -> Iterator[str]:
    if type_.startswith("Custom::"):
        type_ = "AWS::CloudFormation::CustomResource"
    # It takes a second, and a template without such resources needs none of it.
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER  # noqa: PLC0415 -- same

    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", type_).schema
    for pointer in schema.get(key) or ():
        yield str(pointer).removeprefix("/properties/")


def _only_on_creation() -> frozenset[str]:
    """What CreateEventSourceMapping takes and UpdateEventSourceMapping does not; tags have calls of their own."""
    from botocore.loaders import Loader  # noqa: PLC0415 -- same

    shapes = Loader().load_service_model("lambda", "service-2")["shapes"]
    created, updated = (
        frozenset(shapes[f"{verb}EventSourceMappingRequest"]["members"]) for verb in ("Create", "Update")
    )
    return created - updated - {"Tags"}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def forwarders(templates: Templates) -> dict[str, tuple[Resource, FlowSettings]]:
    """A flow's forwarder and its settings, by the flow's name."""
    found = {}
    for stack, template in templates.items():
        for id_, body in template.get("Resources", {}).items():
            function = Resource(stack, id_, body)
            text = value_at(function.properties, f"Environment/Variables/{FLOW_VARIABLE}")
            if function.properties.get("Handler") == FORWARD_HANDLER and isinstance(text, str):
                settings = _settings(json.loads(text))
                found[settings.flow] = function, settings
    return found


def controls(templates: Templates) -> dict[str, FlowSettings]:
    """The settings of schedules at flows' homes, by flow; older templates may have other keys than ours."""
    found = {}
    for _, given in _schedules(templates):
        if "shard" not in given and not given.get("stands_by"):
            settings = _settings(given)
            found[settings.flow] = settings
    return found


def _settings(given: Mapping[str, Any]) -> FlowSettings:
    sides = {side: {name: given[side][name] for name in ("alias", "bootstrap")} for side in SIDES}
    known = {name: given[name] for name in _KNOWN if name in given}
    return msgspec.convert(known | sides, type=FlowSettings)


def pulls(templates: Templates) -> dict[str, Resource]:
    """One schedule of the function `pull` of each flow that has them."""
    return {given["flow"]["flow"]: each for each, given in _schedules(templates) if "shard" in given}


def _schedules(templates: Templates) -> Iterator[tuple[Resource, Mapping[str, Any]]]:
    """Every schedule with its input."""
    for stack, template in templates.items():
        for id_, body in template.get("Resources", {}).items():
            text = body.get("Properties", {}).get("Target", {}).get("Input")
            if body.get("Type") == "AWS::Scheduler::Schedule" and isinstance(text, str):
                yield Resource(stack, id_, body), json.loads(text)
