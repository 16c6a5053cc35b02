"""The plan of event source mappings for discovered topics: what to create, update and delete.

Pure: requests and the API's responses come in by the API's names, a plan goes out. The mappings of the deployment's
template are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError
from mirrorless.flow.naming import flow_prefix, flow_tags
from mirrorless.flow.poller_groups import are_groups_of, groups_of_found
from mirrorless.flow.settings import FlowSettings

NEAR_SECONDS: Final = 5.0
"""Reserved of the deadline: no further change is started."""

Request = dict[str, Any]
"""Fields of a mapping by the API's names."""

CONFIGS: Final = ("AmazonManagedKafkaEventSourceConfig", "SelfManagedKafkaEventSourceConfig")
"""The members with the consumer group, one for each kind of event source."""

SETTLED: Final = frozenset({"Enabled", "Disabled"})
"""States in which the API accepts a change; all others are transitional."""


class MappingRefused(MirrorlessError):
    """Lambda refuses this one request; others may succeed."""


class Mappings(Protocol):
    """The event source mappings of one function. Every method raises Retriable when Lambda does not answer."""

    def list(self, deadline: Deadline) -> list[Request]:
        """Every mapping of the function, as the API describes it."""
        ...

    def create(self, request: Request, deadline: Deadline) -> MappingOutcome:
        """Create a mapping. Raises MappingRefused."""
        ...

    def update(self, uuid: str, fields: Request, deadline: Deadline) -> MappingOutcome:
        """Change fields of a mapping. Raises MappingRefused."""
        ...

    def delete(self, uuid: str, deadline: Deadline) -> MappingOutcome:
        """Delete a mapping. Raises MappingRefused."""
        ...

    def tags(self, arn: str, deadline: Deadline) -> dict[str, str]:
        """The tags of a mapping; none when it does not exist. Raises MappingRefused."""
        ...


MappingOutcome = Literal["done", "there", "busy"]
"""`there`: nothing to do. `busy`: the mapping is in a transition; try again in the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingPlan:
    """The changes to make, by topic."""

    create: Mapping[str, Request]
    update: Mapping[str, tuple[str, Request]]
    """UUID and the fields to change."""
    good: frozenset[str]
    """Mappings without a difference."""
    delete: Mapping[str, str]
    """UUIDs of mappings of topics that the flow no longer takes."""
    move: Mapping[str, str]
    """UUIDs of mappings that name other addresses of the source: no update changes these."""
    polling: frozenset[str]
    """Topics whose mappings name the source's addresses, and poll without a problem."""
    busy: tuple[str, ...]
    """Being created, changed or deleted."""
    disabled: tuple[str, ...]
    """Disabled by an operator. They stay disabled: that is how replication of a topic is paused."""


def mapping_of(template: Mapping[str, Any], topic: str, group: str) -> Request:
    """The options of CreateEventSourceMapping for a topic: those that all mappings of its flow share, and its own."""
    configs = {name: {**template[name], "ConsumerGroupId": group} for name in CONFIGS if name in template}
    return {**template, **configs, "Topics": [topic]}


def mapping_request(settings: FlowSettings, topic: str) -> Request:
    """CreateEventSourceMapping's options for a found topic, all but the function's name."""
    return mapping_of(settings.mapping_template, topic, settings.consumer_group(topic)) | {
        # A topic or partition that is newer than the flow begins at its first record. For the others, the flow's start
        # offsets are committed for the group.
        "StartingPosition": "TRIM_HORIZON",
        "Tags": owner_tags(settings.name),
    }


def mapping_requests(settings: FlowSettings, topics: Iterable[str], actual: Iterable[Request]) -> dict[str, Request]:
    """The options for found topics, each in its poller group where the flow has groups of its own.

    Args:
        settings: the flow's.
        topics: the topics.
        actual: the function's mappings, as the API describes them.
    """
    requests = {topic: mapping_request(settings, topic) for topic in sorted(topics)}
    flow, pollers = settings.name, settings.mapping_template.get("ProvisionedPollerConfig") or {}
    if not are_groups_of(beginning := pollers.get("PollerGroupName") or "", flow):
        return requests
    present = {topic: _poller_group(each) for each in actual if (topic := topic_of(each, flow)) is not None}
    groups = groups_of_found(
        beginning, requests, present, settings.template_topics, maximum_pollers=pollers["MaximumPollers"]
    )
    return {
        topic: request | {"ProvisionedPollerConfig": pollers | {"PollerGroupName": groups[topic]}}
        for topic, request in requests.items()
    }


def owner_tags(flow: FlowName) -> dict[str, str]:
    """The tags of mappings made by `refresh_topics`, as opposed to those of a deployment or an operator."""
    return {**flow_tags(flow), "mirrorless:owner": "refresh_topics"}


def is_ours(tags: Mapping[str, str], flow: FlowName) -> bool:
    """Whether a mapping with these tags was made for a discovered topic of this flow."""
    return owner_tags(flow).items() <= tags.items()


def plan_mappings(
    actual: Iterable[Request],
    desired: Mapping[str, Request],
    *,
    flow: FlowName,
    keep: Collection[str] = (),
    of_template: Collection[str] = (),
) -> MappingPlan:
    """Compare the actual mappings with the desired ones.

    Args:
        actual: the function's mappings, as the API describes them.
        desired: requests by topic.
        flow: whose mappings; a mapping is identified by its consumer group.
        keep: topics whose mappings are not changed.
        of_template: those of them whose mappings are the deployment's: what no flow sets is taken back there too. The
            rest may be newer than these requests, since a deployment changes mappings before schedules.
    """
    every = {topic: each for each in actual if (topic := topic_of(each, flow)) is not None}
    present = {topic: each for topic, each in every.items() if topic not in keep}
    busy = {topic for topic, each in present.items() if each.get("State") not in SETTLED}
    gone = {topic for topic in present if topic not in desired}
    moved = {topic for topic in present.keys() & desired.keys() if not _same_source(present[topic], desired[topic])}
    # Mappings that leave a poller group make room for what those that stay there may become.
    in_order = sorted(
        present.keys() & desired.keys() - busy - moved,
        key=lambda topic: (_poller_group(present[topic]) == _poller_group(desired[topic]), topic),
    )
    updates = {
        topic: (str(present[topic]["UUID"]), fields)
        for topic in in_order
        if (fields := drifted(present[topic], desired[topic]))
    }
    settled = {topic for topic in every.keys() & set(of_template) if every[topic].get("State") in SETTLED}
    updates |= {
        topic: (str(every[topic]["UUID"]), fields) for topic in sorted(settled) if (fields := _added(every[topic]))
    }
    return MappingPlan(
        create={
            topic: request for topic, request in sorted(desired.items()) if topic not in present.keys() | set(keep)
        },
        update=updates,
        good=frozenset((present.keys() & desired.keys() - busy - moved | settled) - updates.keys()),
        delete={topic: str(present[topic]["UUID"]) for topic in sorted(gone - busy)},
        move={topic: str(present[topic]["UUID"]) for topic in sorted(moved - busy)},
        polling=frozenset(
            topic
            for topic in present.keys() & desired.keys() - moved
            if present[topic].get("State") == "Enabled"
            and not str(present[topic].get("LastProcessingResult", "")).startswith("PROBLEM")
        ),
        busy=tuple(sorted(busy)),
        disabled=tuple(
            topic
            for topic, request in sorted(desired.items())
            if request.get("Enabled", True) and present.get(topic, {}).get("State") == "Disabled"
        ),
    )


def group_of(mapping: Request) -> str:
    """The consumer group of a mapping; empty for other event sources than Kafka."""
    for config in CONFIGS:
        group = (mapping.get(config) or {}).get("ConsumerGroupId")
        if group:
            return str(group)
    return ""


def drifted(actual: Request, desired: Request) -> Request:
    """The fields that UpdateEventSourceMapping has to set; empty without a difference.

    A field that the flow does not set is held to the API's default where another value would lose records or change
    their order of retries; `Enabled` is left to the operator.
    """
    fields: Request = {}
    for name, comparable in _COMPARED.items():
        wanted = desired.get(name, _DEFAULTS.get(name))
        if wanted is None:
            continue
        differs = comparable(actual.get(name, _DEFAULTS.get(name))) != comparable(wanted)
        if name == "ProvisionedPollerConfig" and wanted:
            # Lambda may leave out a group's name that is empty.
            differs = not wanted.items() <= {"PollerGroupName": "", **(actual.get(name) or {})}.items()
        if differs:
            fields[name] = wanted
    if fields.get("ProvisionedPollerConfig") == {} and actual.get("LoggingConfig"):
        fields["LoggingConfig"] = {}  # it is allowed in provisioned mode only, and must be removed with the mode
    if actual.get("KMSKeyArn") or actual.get("FilterCriteriaError"):
        fields["FilterCriteria"] = _DEFAULTS["FilterCriteria"]  # Lambda does not show one that it cannot decrypt
    for name in CONFIGS:
        if (given := actual.get(name) or {}).get("SchemaRegistryConfig"):
            # With one, Lambda rewrites records, or takes their schema ids. The group is no change, and fixed.
            fields[name] = {"ConsumerGroupId": given["ConsumerGroupId"], "SchemaRegistryConfig": {}}
    return fields


def _added(actual: Request) -> Request:
    """What has to be set to take back what no flow sets, and a hand has added."""
    return {name: value for name, value in drifted(actual, {}).items() if name in SET_BY_NO_FLOW}


def _identity(value: Any) -> Any:
    return value


def _unordered(value: Any) -> Any:
    return sorted(value or [], key=repr)


def _access(value: Any) -> Any:
    return sorted((each.get("Type"), each.get("URI")) for each in value or [])


def _destination(value: Any) -> str:
    return str(((value or {}).get("OnFailure") or {}).get("Destination") or "")


def _filters(value: Any) -> Any:
    return (value or {}).get("Filters") or []


_COMPARED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "BatchSize": _identity,
    "MaximumBatchingWindowInSeconds": _identity,
    "SourceAccessConfigurations": _access,
    "ProvisionedPollerConfig": bool,
    "MaximumRetryAttempts": _identity,
    "MaximumRecordAgeInSeconds": _identity,
    "BisectBatchOnFunctionError": bool,
    "FunctionResponseTypes": _unordered,
    "DestinationConfig": _destination,
    "FilterCriteria": _filters,
    "KMSKeyArn": _identity,
    "MetricsConfig": lambda value: _unordered((value or {}).get("Metrics")),
    "LoggingConfig": _identity,
}
"""The form in which each updatable field is compared."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "SourceAccessConfigurations": [],
    "ProvisionedPollerConfig": {},
    "MaximumRetryAttempts": -1,
    "MaximumRecordAgeInSeconds": -1,
    "BisectBatchOnFunctionError": False,
    "FunctionResponseTypes": [],
    "DestinationConfig": {"OnFailure": {"Destination": ""}},
    "FilterCriteria": {"Filters": []},
    "KMSKeyArn": "",
    "MetricsConfig": {},
}

SET_BY_NO_FLOW: Final = frozenset(
    {
        "MaximumRetryAttempts",
        "MaximumRecordAgeInSeconds",
        "BisectBatchOnFunctionError",
        "DestinationConfig",
        "FilterCriteria",
        "KMSKeyArn",
        *CONFIGS,
    }
)
"""Each would lose records, change them, or change the order of retries."""


def enabled_topics(actual: Iterable[Request], flow: FlowName) -> frozenset[str]:
    """The topics of the flow whose mappings are enabled."""
    enabled = (topic_of(each, flow) for each in actual if each.get("State") == "Enabled")
    return frozenset(topic for topic in enabled if topic is not None)


OF_FUNCTION: Final = ("PROBLEM: Function call failed", "PROBLEM: Function returned batch item failures")
"""The beginning of the result of a mapping that polls, and whose function failed or has a lane that is stopped.

The function's own alarms, and the lane's, have it.
"""


def not_polling(actual: Iterable[Request], topics: Iterable[str], flow: FlowName) -> dict[str, str]:
    """The topics whose mappings do not poll, each with the state or the problem of its mapping."""
    present = {topic: each for each in actual if (topic := topic_of(each, flow)) is not None}
    states = {topic: _trouble_of(present.get(topic)) for topic in sorted(topics)}
    return {topic: trouble for topic, trouble in states.items() if trouble}


def _trouble_of(mapping: Request | None) -> str:
    if mapping is None:
        return "it has no mapping"
    state, result = str(mapping.get("State")), str(mapping.get("LastProcessingResult", ""))
    if state != "Enabled":
        return f"{state}: {reason}" if (reason := str(mapping.get("StateTransitionReason") or "")) else state
    return result if result.startswith("PROBLEM") and not result.startswith(OF_FUNCTION) else ""


def topic_of(mapping: Request, flow: FlowName) -> str | None:
    """The topic of a mapping of this flow, by its consumer group; None for a mapping that is not the flow's."""
    prefix = flow_prefix(flow)
    group = group_of(mapping)
    return group.removeprefix(prefix) if group.startswith(prefix) else None


def _poller_group(mapping: Request) -> str:
    return str((mapping.get("ProvisionedPollerConfig") or {}).get("PollerGroupName") or "")


def _same_source(actual: Request, desired: Request) -> bool:
    return source_of(actual) == source_of(desired)


def source_of(mapping: Request) -> tuple[str, frozenset[str]]:
    """What a mapping reads: an ARN, or addresses of brokers."""
    endpoints = (mapping.get("SelfManagedEventSource") or {}).get("Endpoints") or {}
    return (
        str(mapping.get("EventSourceArn") or ""),
        frozenset(str(each).lower() for each in endpoints.get("KAFKA_BOOTSTRAP_SERVERS") or []),
    )
