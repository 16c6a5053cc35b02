"""A flow's settings for its functions, schedules and jobs: one form, and the rules that follow from it.

A key of replication.yaml is a field of the same name, with underscores for dots. The deployment writes it as JSON
(`mirrorless.config.flow`), so that a cold start needs neither YAML nor pydantic. What is as by default is left out.

    a variable            what functions and jobs use that replicate: Lambda allows 4 KB for all variables
    a schedule's input    all of it: it has 256 KB, and a change of it needs no new version of the function
                          (https://docs.aws.amazon.com/scheduler/latest/APIReference/API_Target.html)
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import (
    CONFIG_PROPERTIES_EXCLUDE,
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    NameFilter,
    should_replicate,
)
from mirrorless.flow.naming import FLOW_VARIABLE, mapping_group, shared_name
from mirrorless.flow.policy import HEARTBEATS_TOPIC, ReplicationPolicy, replication_policy
from mirrorless.flow.triggers import MAPPING, WINDOW_SECONDS, Trigger, TriggerRules, trigger_rules
from mirrorless.records.origin import OriginRule
from mirrorless.transforms.rules import KeySettings, Rule

GROUP_GRACE_SECONDS: Final = 300.0
"""Kubernetes starts a container that fails again and again every five minutes at least, and a deployment that stops all
members before it starts new ones takes less.
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy)"""

CALLS_PER_SECOND: Final = 10.0
"""Control calls of Lambda a second, of the 15 that all of an account make together in a region, others' included.
(https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)"""

IDLE_AFTER_SECONDS: Final = 300.0
"""How long nothing must have moved until a task comes at its longer interval."""

SILENT_SECONDS: Final = 180.0
"""Without a run at home for so long, the standby works. A run starts every minute, and a start may come a minute late:
three starts that are missed are no delay. Earlier would win little, for a group waits five minutes where its members
have just left."""


class Authentication(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a client authenticates."""

    type: Literal["plaintext", "tls", "plain", "scram", "oauthbearer", "mtls", "iam", "properties"] = "plaintext"
    """`properties` is Java's client.properties, in a file of an operator, and in no configuration."""
    secret: str = ""
    """Secrets Manager ARN or name: `username`/`password`, `certificate`/`privateKey`, or `oauth…`; a file's path."""
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    ca: str = ""
    """Secrets Manager ARN or name of a private certificate authority (`certificate`); empty for public ones."""
    scope: str = ""
    logical_cluster: str = msgspec.field(default="", name="logical.cluster")
    identity_pool: str = msgspec.field(default="", name="identity.pool")


class SchemaRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the schemas are that records of a cluster were written by."""

    type: Literal["confluent", "glue"] = "confluent"
    url: str = ""
    secret: str = ""
    """Secrets Manager ARN or name of `username` and `password`; empty: it asks for none."""
    ca: str = ""
    """As in `Authentication`."""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One end of a flow."""

    alias: str
    bootstrap: str
    region: str | None = None
    authentication: Authentication = Authentication()


class Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Names of the DynamoDB tables, all in the target's region."""

    offset_map: str = shared_name("offset_map")
    lanes: str = shared_name("lanes")
    loss_ledger: str = shared_name("loss_ledger")
    checkpoints: str = shared_name("checkpoints")
    control: str = shared_name("control")


class FlowSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of one flow."""

    flow: str
    source: ClusterSettings
    target: ClusterSettings

    # Keys of replication.yaml
    topics: tuple[str, ...] = ()
    topics_exclude: tuple[str, ...] = TOPICS_EXCLUDE
    heartbeats_replication_enabled: bool = True
    trigger: Trigger = "mapping"
    trigger_overrides: dict[str, Trigger] = {}
    """The first entry that matches a topic holds."""
    oversize: Literal["ledger", "stop"] = "ledger"
    """What becomes of records of mapped topics that no event can carry."""
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    copying: Literal["auto", "records"] = "auto"
    """How scheduled topics, and lanes of jobs: by whole record batches where that is better, or by records."""
    transforms: tuple[Rule, ...] = ()
    start: str = "earliest"
    """`earliest`, `latest`, `backfill` or a moment (ISO 8601): where topics begin that existed before the flow."""
    replication_policy: Literal["prefixed", "identity"] = "prefixed"
    replication_policy_separator: str = "."
    replication_policy_internal_topic_separator_enabled: bool = True
    replication_factor: int = 2
    transaction_timeout_ms: int = 10_000
    offset_map_retention_days: int = 30
    emit_heartbeats_enabled: bool = True
    emit_heartbeats_interval_seconds: float = 60
    heartbeats_topic_replication_factor: int = 3
    emit_heartbeats_source_enabled: bool = True
    emit_checkpoints_enabled: bool = True
    emit_checkpoints_interval_seconds: float = 2
    checkpoints_topic_replication_factor: int = 3
    emit_offset_syncs_enabled: bool = False
    offset_syncs_topic_replication_factor: int = 3
    sync_group_offsets_enabled: bool = False
    sync_group_offsets_interval_seconds: float = 2
    sync_group_offsets_reverse_enabled: bool = False
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = GROUPS_EXCLUDE
    refresh_topics_enabled: bool = True
    refresh_topics_interval_seconds: float = 60
    sync_topic_configs_enabled: bool = True
    sync_topic_configs_interval_seconds: float = 600
    config_properties_exclude: tuple[str, ...] = CONFIG_PROPERTIES_EXCLUDE
    config_properties_protect: tuple[str, ...] = ()
    use_defaults_from: Literal["source", "target"] = "target"
    sync_topic_acls_enabled: bool = True
    sync_topic_acls_interval_seconds: float = 600

    # What follows from the other flows and the clusters
    aliases: tuple[str, ...] = ()
    """Every cluster of the configuration: only these count as origins of remote topics."""
    prefixes: dict[str, str] = {}
    """What names of topics have in the place of an alias, by alias."""
    origins: tuple[str, ...] = ()
    """Clusters of the circle of flows with the same names that this one belongs to; empty: it marks no records."""
    counterpart_map: str | None = None
    """The table, in the source's region, with the offset map of the flow in the other direction, where both keep the
    names of topics: groups are then carried by both maps."""
    producer: dict[str, str | int | float | bool] = {}
    keys: dict[str, KeySettings] = {}
    """By name: those that `transforms` uses."""
    schema_registry: SchemaRegistry | None = None
    """The source's, where `transforms` may look into Avro."""

    # What the deployment adds
    tables: Tables = Tables()
    tables_role: str | None = None
    """ARN of the role that reaches the tables, where they are in another account than the functions."""
    function_name: str = ""
    """The forwarder that topics are mapped to."""
    function_region: str | None = None
    """The region of the forwarder and its mappings."""
    control_calls_per_second: float = CALLS_PER_SECOND
    """The flow's share of the control calls of Lambda that its deployment makes in this region and account."""
    mapping_template: dict[str, Any] = {}
    """CreateEventSourceMapping's options, all but the function, the topic and its consumer group."""
    standby_region: str | None = None
    """The region in which `control` stands by; None where it does so nowhere."""
    stands_by: bool = False
    """Whether this is the input of the function that stands by."""

    # What tests and drills set
    standby_after_seconds: float = SILENT_SECONDS
    """How long the home must have been silent until the standby works."""
    window_seconds: float = 58.0
    """The duration of a run whose tasks have shorter intervals than the schedule."""
    idle_after_seconds: float = IDLE_AFTER_SECONDS
    """How long nothing must have moved until rounds of checkpoints come once a minute."""
    group_grace_seconds: float = GROUP_GRACE_SECONDS
    """How long a group must have been without members where offsets are committed for it."""

    def __post_init__(self) -> None:
        """Refuse what is no flow's name."""
        FlowName.parse(self.flow)

    @property
    def name(self) -> FlowName:
        """The flow's name as a value."""
        return FlowName.parse(self.flow)

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
        """The naming of remote topics."""
        return replication_policy(
            self.replication_policy,
            source_alias=self.source.alias,
            separator=self.replication_policy_separator,
            internal_topic_separator_enabled=self.replication_policy_internal_topic_separator_enabled,
            aliases=frozenset(self.aliases) or None,
            prefixes=self.prefixes,
        )

    @property
    def triggers(self) -> TriggerRules:
        """The triggers of the topics."""
        return trigger_rules(self.trigger, tuple(self.trigger_overrides.items()))

    @property
    def template_topics(self) -> tuple[str, ...]:
        """The topics that the deployment's template maps; all others are mapped by `refresh_topics`, or scheduled."""
        return tuple(filter(self.triggers.maps_in_template, self.topic_filter.literals))

    @property
    def has_mappings(self) -> bool:
        """Whether any topic may be mapped: what patterns find, and heartbeats, is not known here."""
        topics, heartbeats = self.topic_filter, (HEARTBEATS_TOPIC,) if self.heartbeats_replication_enabled else ()
        found = self.triggers.maps and bool(topics.patterns)
        return found or any(self.triggers.of(topic) == MAPPING for topic in (*topics.literals, *heartbeats))

    @property
    def stops_at_oversize(self) -> bool:
        """Whether lanes of mapped topics stop before records that no event can carry, which are read at the source."""
        return self.oversize == "stop" and self.has_mappings

    @property
    def sync_group_offsets_seconds(self) -> float | None:
        """Between commits of translated offsets on the target; None where there are none."""
        return self.sync_group_offsets_interval_seconds if self.sync_group_offsets_enabled else None

    def remote_topic(self, topic: str) -> str:
        """The topic's name on the target."""
        return self.policy.remote_topic(self.source.alias, topic)

    def replicates(self, topic: str) -> bool:
        """Whether the flow takes this topic of its source."""
        return should_replicate(
            topic,
            flow=self.name,
            topics=self.topic_filter,
            policy=self.policy,
            heartbeats=self.heartbeats_replication_enabled,
        )

    def origin_rule(self, topic: str) -> OriginRule | None:
        """The rule of a source topic whose records may return; None for others, and where the flow marks none."""
        if not self.origins or self.remote_topic(topic) != topic:
            return None
        return OriginRule.of(topic, source=self.source.alias, target=self.target.alias, clusters=self.origins)

    def rule_of(self, topic: str) -> Rule | None:
        """The rule of a source topic, by the first entry that matches it; heartbeats and internal topics have none."""
        rule = next((each for each in self.transforms if NameFilter(include=each.topics).accepts(topic)), None)
        ours = self.policy.is_heartbeats_topic(topic) or self.policy.is_internal_topic(topic)
        return None if ours else rule

    def begins_with_history(self, topic: str) -> bool:
        """Whether a backfill comes before a source topic's first batch: without a chain, its lanes wait for one.

        Heartbeats have no history of use.
        """
        return self.start == "backfill" and not self.policy.is_heartbeats_topic(topic)

    def consumer_group(self, topic: str) -> str:
        """The consumer group of a topic's mapping."""
        return mapping_group(self.name, topic)


class PullSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of one shard's schedule; but for the flow and the shard, keys of its section `schedule`."""

    flow: FlowSettings
    shard: int
    shards: int
    continuous: bool = False
    interval_seconds: int = 60
    maximum_bytes_per_second: int | None = None
    """Of the flow; its shards share it."""
    window_seconds: float = WINDOW_SECONDS
    """For which a continuous run gathers records."""

    def __post_init__(self) -> None:
        """Refuse a shard that there is not."""
        if not 0 <= self.shard < self.shards:
            raise ValueError(f"there is no shard {self.shard} of {self.shards}")


def decode_settings(text: str | None) -> FlowSettings:
    """Read the variable's text.

    Raises:
        ConfigurationError: naming the field that is missing or wrong.
    """
    if not text:
        raise ConfigurationError(
            "the variable is not set", where=FLOW_VARIABLE, hint="deploy the function with this project's stacks"
        )
    try:
        return msgspec.json.decode(text, type=FlowSettings)
    except msgspec.DecodeError as exc:
        raise ConfigurationError(str(exc), where=FLOW_VARIABLE, hint="deploy again from replication.yaml") from exc


def control_settings(event: Any) -> FlowSettings:
    """Read a schedule's input.

    Raises:
        ConfigurationError: a field is missing or wrong; the error names it.
    """
    return _converted(event, FlowSettings)


def pull_settings(event: Any) -> PullSettings:
    """Read the input of a shard's schedule. Raises as `control_settings` does."""
    return _converted(event, PullSettings)


_T = TypeVar("_T")


def _converted(event: Any, type_: type[_T]) -> _T:
    try:
        return msgspec.convert(event, type=type_)
    except msgspec.ValidationError as exc:
        hint = "deploy the schedules again from replication.yaml"
        raise ConfigurationError(str(exc), where="the schedule's input", hint=hint) from exc
