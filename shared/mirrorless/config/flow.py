"""A replication flow, resolved: all that the deployment, the lab and the functions need.

A key that the flow leaves out is taken from `defaults`, and one that those leave out from the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from mirrorless.config.cluster import Iam, Mtls, OauthBearer, Plain, Plaintext, Scram, Tls, WithSecret, partition_of
from mirrorless.config.flow_section import FlowSection, ScheduleSection
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import DEPLOYMENT, TABLES, namespace, resource_name
from mirrorless.flow.poller_groups import flow_groups, literal_group
from mirrorless.flow.settings import FlowSettings, PullSettings, Tables
from mirrorless.topics.discovery import LONGEST_GROUP
from mirrorless.topics.mapping_plan import mapping_of
from mirrorless.transforms.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mirrorless.chain.lane import FlowName
    from mirrorless.config.cluster import Cluster, RegistrySection
    from mirrorless.config.flow_section import MappingSection
    from mirrorless.config.schema import KeySection
    from mirrorless.flow.filters import NameFilter
    from mirrorless.flow.policy import ReplicationPolicy
    from mirrorless.flow.triggers import TriggerRules

_KEYS: Final = FlowSection.model_fields.keys() & set(FlowSettings.__struct_fields__) - {"transforms"}
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(FlowSettings)}
_SCHEDULE_KEYS: Final = ScheduleSection.model_fields.keys() & set(PullSettings.__struct_fields__)
_REPLICATING: Final = (
    *("flow", "source", "target", "producer", "tables", "tables_role", "origins", "start", "oversize", "delivery"),
    *("transforms", "keys", "schema_registry", "prefixes"),
    *("replication_policy", "replication_policy_separator", "replication_factor", "transaction_timeout_ms"),
    *("offset_map_retention_days", "config_properties_exclude", "use_defaults_from"),
)
"""What is used to replicate: a change of anything else needs no new version of the forwarder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A replication flow, resolved.

    Attributes:
        name: `source->target`.
        settings: every key of the flow with its value.
        prefixes: what names of topics have for each cluster of the configuration, by alias; only these are origins of
            remote topics.
        origins: clusters of the circle that it belongs to, where it marks its copies; see `mirrorless.records.origin`.
        has_counterpart: whether the flow in the other direction is enabled, and marks its copies too.
        keys: those of the configuration, by name.
        shared_tables: names of tables that all flows share, as in the lab; None: the flow has its own.
        deployment: what its names on AWS begin with.
    """

    name: FlowName
    source: Cluster
    target: Cluster
    settings: FlowSection
    prefixes: Mapping[str, str]
    origins: tuple[str, ...] = ()
    has_counterpart: bool = False
    keys: Mapping[str, KeySection] = field(default_factory=dict)
    shared_tables: Mapping[str, str] | None = None
    deployment: str = DEPLOYMENT

    @property
    def enabled(self) -> bool:
        """Whether anything runs for this flow."""
        return self.settings.enabled

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of its `transforms`."""
        return tuple(each.rule() for each in self.settings.transforms)

    @property
    def registry(self) -> RegistrySection | None:
        """Where the schemas of the source's records are, if it has rules that may look into them."""
        return self.source.schema_registry if self.rules else None

    @property
    def keys_of_rules(self) -> Mapping[str, KeySection]:
        """The keys that its rules name, as far as there are such keys."""
        named = {name for rule in self.rules for name in rule.keys}
        return {name: self.keys[name] for name in sorted(named & self.keys.keys())}

    def all_settings(self) -> FlowSettings:
        """The settings of its functions and jobs, but for what makes mappings."""
        return FlowSettings(
            flow=str(self.name),
            source=self.source.settings(),
            target=self.target.settings(),
            aliases=tuple(sorted(self.prefixes)),
            prefixes={alias: prefix for alias, prefix in sorted(self.prefixes.items()) if prefix != alias},
            origins=self.origins,
            counterpart_map=self.counterpart_map,
            producer={**self.target.producer},
            transforms=self.rules,
            schema_registry=self.registry.settings() if self.registry else None,
            keys={name: key.settings() for name, key in self.keys_of_rules.items()},
            tables=Tables(**self.tables),
            tables_role=self.tables_role,
            standby_region=self.standby.region if self.standby else None,
            # What is not as by default: msgspec leaves out a default that is the same object.
            **{key: value for key in _KEYS if (value := getattr(self.settings, key)) != _DEFAULTS[key]},
        )

    @property
    def topics(self) -> NameFilter:
        """The topics of the source that are replicated."""
        return self.all_settings().topic_filter

    @property
    def groups(self) -> NameFilter:
        """The consumer groups of the source that are followed."""
        return self.all_settings().group_filter

    @property
    def literal_topics(self) -> tuple[str, ...]:
        """The topics that are named one by one."""
        return self.topics.literals

    @property
    def template_topics(self) -> tuple[str, ...]:
        """See `FlowSettings.template_topics`."""
        return self.all_settings().template_topics

    @property
    def triggers(self) -> TriggerRules:
        """The triggers of the topics."""
        return self.all_settings().triggers

    @property
    def has_pull(self) -> bool:
        """Whether the function `pull` is deployed: topics are scheduled, or may be on their way back to mappings."""
        return self.triggers.schedules or "schedule" in self.settings.model_fields_set

    @property
    def has_mappings(self) -> bool:
        """See `FlowSettings.has_mappings`."""
        return self.all_settings().has_mappings

    @property
    def stops_at_oversize(self) -> bool:
        """See `FlowSettings.stops_at_oversize`."""
        return self.all_settings().stops_at_oversize

    @property
    def counterpart_map(self) -> str | None:
        """The name of the counterpart's offset map, which is in the source's region; None where there is none."""
        if not self.has_counterpart:
            return None
        return (self.shared_tables or {}).get("offset_map") or resource_name(
            self.name.turned, "offset_map", deployment=self.deployment
        )

    @property
    def topic_patterns(self) -> tuple[str, ...]:
        """The patterns, whose topics `refresh_topics` finds."""
        return self.topics.patterns

    @property
    def policy(self) -> ReplicationPolicy:
        """The naming of remote topics."""
        return self.all_settings().policy

    @property
    def home(self) -> Cluster:
        """The end in whose region, account and network the flow's functions and mappings run."""
        where = self.settings.function.run_in or ("source" if self.source.msk_arn or self.rules else "target")
        return self.source if where == "source" else self.target

    @property
    def pull_home(self) -> Cluster:
        """The end in whose region, account and network the function `pull` runs."""
        where = self.settings.schedule.run_in or ("source" if self.rules else "target")
        return self.source if where == "source" else self.target

    @property
    def jobs_home(self) -> Cluster:
        """The end in whose region, account and network its jobs run: what they read stays there before it is masked."""
        return self.source if self.rules else self.target

    @property
    def standby(self) -> Cluster | None:
        """The target, where the function `control` stands by in its region for the home's; None where none does.

        Nor does it where records are masked: to explain gaps it would read those of the source.
        """
        regions = {self.home.region, self.target.region}
        apart = len(regions) > 1 and None not in regions
        return self.target if apart and self.settings.function.standby_enabled and not self.rules else None

    @property
    def function_region(self) -> str | None:
        """The region that the forwarder, the scheduled functions and the mappings run in."""
        return self.home.region

    @property
    def partial_responses(self) -> bool:
        """Whether the forwarder names the records that failed; otherwise it fails, and the whole batch is retried."""
        return self.settings.mapping.mode == "provisioned" and self.settings.mapping.partial_batch_response

    @property
    def own_poller_groups(self) -> bool:
        """Whether mappings share pollers in groups of the flow. Lambda documents groups of one VPC only."""
        mapping, in_vpc = self.settings.mapping, self.mapped_by_arn or self.home.vpc is not None
        return mapping.mode == "provisioned" and mapping.poller_group_name is None and in_vpc

    @property
    def mapped_by_arn(self) -> bool:
        """Whether mappings name the MSK cluster, as they can where it is; otherwise they name its brokers."""
        at_home = (self.source.region, self.source.account) == (self.home.region, self.home.account)
        return self.source.msk_arn is not None and at_home

    @property
    def polled_on_demand(self) -> bool:
        """Whether pollers on demand run in the MSK cluster's own network."""
        return self.mapped_by_arn and self.has_mappings and self.settings.mapping.mode == "on-demand"

    def resource_name(self, part: str) -> str:
        """Return the name of one of this flow's functions, tables or roles on AWS."""
        return resource_name(self.name, part, deployment=self.deployment)

    @property
    def metrics_namespace(self) -> str:
        """The namespace of its metrics."""
        return namespace(self.deployment)

    @property
    def poller_groups(self) -> str:
        """What the names of its own poller groups begin with."""
        return flow_groups(self.name, deployment=self.deployment)

    @property
    def tables(self) -> Mapping[str, str]:
        """The names of the flow's tables, by what they hold. They are in the target's region and account."""
        return self.shared_tables or {table: self.resource_name(table) for table in TABLES}

    @property
    def tables_role(self) -> str | None:
        """The role for tables in another account than the functions'; None where there is no other."""
        return self._tables_role_of(self.home)

    @property
    def pull_tables_role(self) -> str | None:
        """The same for the function `pull`, which may run elsewhere."""
        return self._tables_role_of(self.pull_home)

    @property
    def jobs_tables_role(self) -> str | None:
        """The same for jobs."""
        return self._tables_role_of(self.jobs_home)

    def _tables_role_of(self, home: Cluster) -> str | None:
        if self.shared_tables or home.account is None or home.account == self.target.account:
            return None
        partition = partition_of(self.target.region or "")
        return f"arn:{partition}:iam::{self.target.account}:role/{self.resource_name('tables')}"

    def remote_topic(self, topic: str) -> str:
        """Return the name of a source topic on the target."""
        return self.all_settings().remote_topic(topic)

    def consumer_group(self, topic: str) -> str:
        """Return the consumer group of a topic's mapping. A mapping that is created again resumes from its offsets.

        Raises:
            ConfigurationError: the name is longer than the Lambda API takes.
        """
        group = self.group_name(topic)
        if len(group) > LONGEST_GROUP:
            raise ConfigurationError(
                f"the consumer group of topic {topic[:40]}… has {len(group)} characters, Lambda takes {LONGEST_GROUP}",
                where=str(self.name),
                hint="shorten the cluster aliases, or leave the topic out",
            )
        return group

    def group_name(self, topic: str) -> str:
        """Return the consumer group of a topic's mapping, however long it is."""
        return self.all_settings().consumer_group(topic)

    def mapping_request(self, topic: str, *, secret_arn: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the options of CreateEventSourceMapping for a topic, all but the function's name.

        `secret_arn` turns a secret's name into the ARN that the API takes.

        Raises:
            ConfigurationError: the topic's consumer group would be too long.
        """
        template = self.mapping_template(secret_arn=secret_arn)
        request = mapping_of(template, topic, self.consumer_group(topic)) | starting_position(self.settings.start)
        if self.own_poller_groups:
            pollers, literals = request["ProvisionedPollerConfig"], self.template_topics
            group = literal_group(self.poller_groups, topic, literals, maximum_pollers=pollers["MaximumPollers"])
            request["ProvisionedPollerConfig"] = pollers | {"PollerGroupName": group}
        return request

    def function_settings(self) -> FlowSettings:
        """What is used to replicate, for MIRRORLESS_FLOW, which has at most 3 KB, and for jobs."""
        settings = self.all_settings()
        return FlowSettings(**{name: getattr(settings, name) for name in _REPLICATING})

    def function_settings_json(self) -> str:
        """Return `function_settings` as the text of the environment variable."""
        return msgspec.json.encode(self.function_settings()).decode()

    def control_settings(self, function_name: str, *, secret_arn: Callable[[str], str] = str) -> FlowSettings:
        """Return the input of this flow's schedules.

        `function_name` is the forwarder's, for the mappings of found topics; `secret_arn` as in `mapping_request`.
        """
        return replace(
            self.all_settings(),
            function_name=function_name,
            function_region=self.function_region,
            mapping_template=self.mapping_template(secret_arn=secret_arn),
        )

    def standby_settings(self) -> FlowSettings:
        """Return the input of the schedule that starts `control` in the target's region, beside the tables."""
        # Records that no event can carry are at the source.
        return replace(
            self.all_settings(),
            tables_role=None,
            oversize="ledger",
            function_region=self.function_region,
            stands_by=True,
        )

    def pull_settings(self, shard: int) -> PullSettings:
        """Return the input of the schedule of one shard."""
        return PullSettings(
            flow=replace(self.all_settings(), tables_role=self.pull_tables_role),
            shard=shard,
            **{key: getattr(self.settings.schedule, key) for key in _SCHEDULE_KEYS},
        )

    def mapping_template(self, *, secret_arn: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the options that all mappings of this flow share: all but the topic and its consumer group.

        Of poller groups of the flow's own it has the beginning of their names; `refresh_topics` chooses the group.

        `StartingPosition` is TRIM_HORIZON for all: where a flow starts elsewhere, `refresh_topics` commits those
        offsets for the mapping's group first, so that a partition that is added later begins at its first record.
        """
        mapping = self.settings.mapping
        request: dict[str, Any] = {"Enabled": True, "BatchSize": mapping.batch_size}
        if mapping.maximum_batching_window_seconds is not None:
            request["MaximumBatchingWindowInSeconds"] = mapping.maximum_batching_window_seconds
        request["StartingPosition"] = "TRIM_HORIZON"
        if self.mapped_by_arn:
            request |= {"EventSourceArn": self.source.msk_arn, "AmazonManagedKafkaEventSourceConfig": {}}
        else:
            endpoints = {"KAFKA_BOOTSTRAP_SERVERS": list(self.source.bootstrap)}
            request |= {"SelfManagedEventSource": {"Endpoints": endpoints}, "SelfManagedKafkaEventSourceConfig": {}}
        if access := source_access(self.source, self.home, secret_arn, by_arn=self.mapped_by_arn):
            request["SourceAccessConfigurations"] = access
        if mapping.mode == "provisioned":
            request |= provisioned(mapping, self.poller_groups if self.own_poller_groups else mapping.poller_group_name)
        return request


def starting_position(start: str) -> dict[str, Any]:
    """Return where a group without committed offsets begins.

    With `backfill` a job copies the history, so the mapping begins at the end. Pollers that restart before their first
    commit begin at a later end: the forwarder sees that the job's copy ends below, and its lane waits for a job.
    """
    if start == "earliest":
        return {"StartingPosition": "TRIM_HORIZON"}
    if start in {"latest", "backfill"}:
        return {"StartingPosition": "LATEST"}
    moment = datetime.fromisoformat(start)
    return {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": int(moment.timestamp())}


def provisioned(mapping: MappingSection, poller_group: str | None) -> dict[str, Any]:
    """Return the options of a provisioned mapping."""
    pollers: dict[str, Any] = {"MinimumPollers": mapping.minimum_pollers, "MaximumPollers": mapping.maximum_pollers}
    if poller_group is not None:
        pollers["PollerGroupName"] = poller_group
    # Retried for ever and sent nowhere else: with any other setting a failing batch loses records.
    request: dict[str, Any] = {"ProvisionedPollerConfig": pollers, "MaximumRetryAttempts": -1}
    # Whether the function uses it or not: a deployment changes the function before its mappings, and a mapping
    # without it would take a list of failed records for success. They would be lost.
    request["FunctionResponseTypes"] = ["ReportBatchItemFailures"]
    if mapping.metrics:
        request["MetricsConfig"] = {"Metrics": list(mapping.metrics)}
    if mapping.system_log_level:
        request["LoggingConfig"] = {"SystemLogLevel": mapping.system_log_level}
    return request


def source_access(
    source: Cluster, home: Cluster, secret_arn: Callable[[str], str], *, by_arn: bool
) -> list[dict[str, str]]:
    """Return how pollers authenticate, and where they stand.

    Args:
        source: what they read.
        home: where the mapping is, with its network.
        secret_arn: turns a secret's name into its ARN.
        by_arn: whether the mapping names an MSK cluster, not brokers.
    """
    access: list[dict[str, str]] = []
    match source.authentication:
        case Plain(secret=secret):
            access.append({"Type": "BASIC_AUTH", "URI": secret_arn(secret)})
        case OauthBearer() as oauth:
            told = {
                "OAUTHBEARER_AUTH": secret_arn(oauth.secret),
                "OAUTHBEARER_SCOPE": oauth.scope,
                "OAUTHBEARER_LOGICAL_CLUSTER": oauth.logical_cluster,
                "OAUTHBEARER_IDENTITY_POOL": oauth.identity_pool,
            }
            access += [{"Type": kind, "URI": value} for kind, value in told.items() if value]
        case Scram(secret=secret, mechanism=mechanism):
            access.append({"Type": f"SASL_SCRAM_{mechanism[-3:]}_AUTH", "URI": secret_arn(secret)})
        case Mtls(secret=secret):
            access.append({"Type": "CLIENT_CERTIFICATE_TLS_AUTH", "URI": secret_arn(secret)})
        case Iam() if not by_arn:
            access.append({"Type": "IAM_AUTH"})
        case Iam() | Plaintext() | Tls():
            pass  # an MSK mapping without a secret uses IAM where the cluster has it, else TLS, else plaintext
    if by_arn:
        return access  # the pollers use the cluster's own network, and its certificates are Amazon's
    if isinstance(source.authentication, WithSecret | Tls) and source.authentication.ca:
        access.append({"Type": "SERVER_ROOT_CA_CERTIFICATE", "URI": secret_arn(source.authentication.ca)})
    if vpc := home.vpc:
        access += [{"Type": "VPC_SUBNET", "URI": f"subnet:{subnet}"} for subnet in vpc.subnets]
        access += [{"Type": "VPC_SECURITY_GROUP", "URI": f"security_group:{group}"} for group in vpc.security_groups]
    return access
