"""The settings of a flow's scheduled functions: the input of their schedules, read at each run.

An environment variable has 4 KB at most, and a list of topics may not fit. A schedule's input has 256 KB, and changing
it needs no new version of the function. The deployment writes it (`Flow.control_settings()`,
`Flow.pull_settings()`).
(https://docs.aws.amazon.com/scheduler/latest/APIReference/API_Target.html)
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import GROUPS_EXCLUDE, TOPICS_EXCLUDE, NameFilter
from mirrorless.flow.policy import ReplicationPolicy, replication_policy
from mirrorless.flow.settings import FlowSettings
from mirrorless.flow.triggers import WINDOW_SECONDS, Trigger, TriggerRules, trigger_rules
from mirrorless.scheduled.runner import IDLE_AFTER_SECONDS
from mirrorless.scheduled.standby import SILENT_SECONDS

GROUP_GRACE_SECONDS: Final = 300.0
"""Kubernetes starts a container that fails again and again every five minutes at least, and a deployment that stops all
members before it starts new ones takes less.
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy)"""


CALLS_PER_SECOND: Final = 10.0
"""Control calls of Lambda a second, of the 15 that all of an account make together in a region, others' included.
(https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)"""


class ControlSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a flow's scheduled functions need. An interval of None switches its task off."""

    flow: FlowSettings
    aliases: tuple[str, ...] = ()
    """Every cluster of the configuration: only these count as origins of remote topics."""
    internal_topic_separator_enabled: bool = True
    topics: tuple[str, ...] = ()
    topics_exclude: tuple[str, ...] = TOPICS_EXCLUDE
    heartbeats_replication: bool = True
    """Whether heartbeats topics of the source are replicated even where `topics` does not name them."""
    trigger: Trigger = "mapping"
    trigger_overrides: tuple[tuple[str, Trigger], ...] = ()
    """Entry and trigger; the first entry that matches a topic holds."""
    start: str = "earliest"
    """`earliest`, `latest`, `backfill` or a moment (ISO 8601): where topics begin that existed before the flow."""
    heartbeats_seconds: float | None = 60
    heartbeats_on_source: bool = True
    heartbeats_replication_factor: int = 3
    checkpoints_seconds: float | None = 2
    checkpoints_replication_factor: int = 3
    offset_syncs: bool = False
    offset_syncs_replication_factor: int = 3
    sync_group_offsets_seconds: float | None = None
    sync_group_offsets_reverse: bool = False
    counterpart_map: str | None = None
    """The table, in the source's region, with the offset map of the flow in the other direction, where both keep the
    names of topics: groups are then carried by both maps."""
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = GROUPS_EXCLUDE
    refresh_topics_seconds: float | None = 60
    sync_topic_configs_seconds: float | None = 600
    config_properties_protect: tuple[str, ...] = ()
    sync_topic_acls_seconds: float | None = 600
    function_name: str = ""
    """The forwarder that topics are mapped to."""
    function_region: str | None = None
    """The region of the forwarder and its mappings."""
    control_calls_per_second: float = CALLS_PER_SECOND
    """The flow's share of the control calls of Lambda that its deployment makes in this region and account."""
    standby_region: str | None = None
    """The region in which `control` stands by; None where it does so nowhere."""
    stands_by: bool = False
    """Whether this is the input of the function that stands by."""
    standby_after_seconds: float = SILENT_SECONDS
    """How long the home must have been silent until the standby works."""
    mapping: dict[str, Any] = {}
    """CreateEventSourceMapping's options, all but the function, the topic and its consumer group."""
    window_seconds: float = 58.0
    """The duration of a run whose tasks have shorter intervals than the schedule."""
    idle_after_seconds: float = IDLE_AFTER_SECONDS
    """How long nothing must have moved until rounds of checkpoints come once a minute."""
    group_grace_seconds: float = GROUP_GRACE_SECONDS
    """How long a group must have been without members where offsets are committed for it."""

    @property
    def name(self) -> FlowName:
        """The flow's name."""
        return self.flow.name

    @property
    def topic_filter(self) -> NameFilter:
        """The filter of source topics."""
        return NameFilter(include=self.topics, exclude=self.topics_exclude)

    @property
    def group_filter(self) -> NameFilter:
        """The filter of consumer groups."""
        return NameFilter(include=self.groups, exclude=self.groups_exclude)

    @property
    def policy(self) -> ReplicationPolicy:
        """How remote topics are named."""
        return replication_policy(
            self.flow.policy,
            source_alias=self.name.source,
            separator=self.flow.separator,
            internal_topic_separator_enabled=self.internal_topic_separator_enabled,
            aliases=frozenset(self.aliases) or None,
        )

    @property
    def triggers(self) -> TriggerRules:
        """The triggers of the flow's topics."""
        return trigger_rules(self.trigger, self.trigger_overrides)

    def trigger_of(self, topic: str) -> Trigger:
        """The trigger of a topic."""
        return self.triggers.of(topic)

    @property
    def template_topics(self) -> tuple[str, ...]:
        """The topics named literally that the deployment's template maps."""
        return tuple(filter(self.triggers.maps_in_template, self.topic_filter.literals))

    def consumer_group(self, topic: str) -> str:
        """The consumer group of a topic's mapping."""
        return self.flow.consumer_group(topic)


class PullSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of one shard's schedule."""

    control: ControlSettings
    shard: int
    shards: int
    continuous: bool = False
    interval_seconds: int = 60
    maximum_bytes_per_second: int | None = None
    """Of the flow; its shards share it."""
    copy: Literal["auto", "records"] = "auto"
    """Whether whole record batches may be copied as they lie in the source's log."""
    window_seconds: float = WINDOW_SECONDS
    """For which a continuous run gathers records."""


def control_settings(event: Any) -> ControlSettings:
    """Read a schedule's input.

    Raises:
        ConfigurationError: a field is missing or wrong; the error names it.
    """
    settings = _converted(event, ControlSettings)
    _check_name(settings)
    return settings


def pull_settings(event: Any) -> PullSettings:
    """Read the input of a shard's schedule.

    Raises:
        ConfigurationError: a field is missing or wrong; the error names it.
    """
    settings = _converted(event, PullSettings)
    _check_name(settings.control)
    if not 0 <= settings.shard < settings.shards:
        raise _refused(f"there is no shard {settings.shard} of {settings.shards}")
    return settings


_T = TypeVar("_T")


def _converted(event: Any, type_: type[_T]) -> _T:
    try:
        return msgspec.convert(event, type=type_)
    except msgspec.ValidationError as exc:
        raise _refused(str(exc)) from exc


def _check_name(settings: ControlSettings) -> None:
    try:
        FlowName.parse(settings.flow.flow)
    except ValueError as exc:
        raise _refused(str(exc)) from exc


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        what, where="the schedule's input", hint="deploy the schedules again from replication.yaml"
    )
