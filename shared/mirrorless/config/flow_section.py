"""The section of a flow: what it replicates and how, its mappings, its function and its schedules."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mirrorless.config.types import (
    Patterns,
    RecordAction,
    ReplicationFactor,
    Seconds,
    Section,
    Start,
    TopicList,
    TopicPrefixes,
    TriggerOverrides,
    WholeMinutes,
)
from mirrorless.flow.filters import CONFIG_PROPERTIES_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS, WINDOW_SECONDS, Trigger
from mirrorless.transforms.rules import Rule


class MappingSection(Section):
    """The event source mapping of each topic that a flow names literally."""

    mode: Literal["provisioned", "on-demand"] = Field(
        default="provisioned",
        description="Pollers paid by the hour; or free ones, which have no partial batch response.",
    )
    batch_size: int = Field(
        default=10_000, ge=1, le=10_000, description="Records per invocation at most; 6 MB end a batch before that."
    )
    maximum_batching_window_seconds: int | None = Field(
        default=None, ge=0, le=300, description="Seconds to gather records for; left out, Lambda's own 0.5 s."
    )
    minimum_pollers: int = Field(
        default=1, ge=1, le=200, description="Pollers kept ready, per topic. Provisioned only."
    )
    maximum_pollers: int = Field(
        default=10,
        ge=1,
        le=2_000,
        description="Pollers at most, per topic; equal to the minimum, scaling never rebalances. Provisioned only.",
    )
    poller_group_name: str | None = Field(
        default=None,
        pattern=r"^[a-zA-Z0-9_-]{0,128}$",
        description="Mappings of one VPC with the same name share their cost. Left out, those of a flow share theirs; "
        "empty, each has its own. Provisioned only.",
    )
    partial_batch_response: bool = Field(
        default=True, description="When a lane fails, only its records are delivered again. Provisioned only."
    )
    metrics: tuple[Literal["EventCount", "ErrorCount", "KafkaMetrics"], ...] = Field(
        default=("EventCount", "ErrorCount", "KafkaMetrics"),
        strict=False,
        description="Groups of CloudWatch metrics. Provisioned only.",
    )
    system_log_level: Literal["DEBUG", "INFO", "WARN"] | None = Field(
        default=None, description="Level of the pollers' own log; left out, there is none. Provisioned only."
    )


class FunctionSection(Section):
    """The forwarder function of a flow."""

    memory_mb: int = Field(
        default=1_024, ge=128, le=10_240, description="Memory in MB; the share of CPU grows with it."
    )
    timeout_seconds: int = Field(
        default=60, ge=5, le=840, description="Seconds an invocation may take; a Kafka mapping allows 14 minutes."
    )
    architecture: Literal["arm64", "x86_64"] = Field(default="arm64", description="Processor.")
    run_in: Literal["source", "target"] | None = Field(
        default=None,
        description="Whose region and account to run in. Left out: the source's where it has `msk.cluster.arn`, whose "
        "mappings must live there, and where the flow has `transforms`; otherwise the target's, to read far and write "
        "near.",
    )
    reserved_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Concurrent executions, kept and at most; left out, the account's pool.",
    )
    standby_enabled: bool = Field(
        default=True,
        description="Whether checkpoints and group offsets go on in the target's region while the flow's home, in "
        "another region, is silent. A flow with `transforms` has no standby: it would read records at the source.",
    )


class ScheduleSection(Section):
    """The schedules of topics whose trigger is `schedule`, and the function that reads these topics."""

    continuous: bool = Field(
        default=False,
        description="Read all the time, each run until the next one takes over; otherwise by interval. A partition "
        "that was silent for long is looked at each 5 seconds.",
    )
    window_seconds: float = Field(
        default=WINDOW_SECONDS,
        ge=0.1,
        le=LONGEST_WINDOW_SECONDS,
        description="Seconds for which a continuous run gathers a topic's records; the longer, the fewer writes.",
    )
    interval_seconds: WholeMinutes = Field(
        default=60, description="Seconds between two runs, in whole minutes; a run reads what is there, and ends."
    )
    shards: int = Field(default=1, ge=1, le=64, description="Runs side by side, each with its share of the partitions.")
    memory_mb: int = Field(
        default=512, ge=128, le=10_240, description="Memory of a run in MB; the share of CPU grows with it."
    )
    run_in: Literal["source", "target"] | None = Field(
        default=None,
        description="Whose region and account to run in. Left out: the source's where the flow has `transforms`, "
        "otherwise the target's, to read far and write near.",
    )
    maximum_bytes_per_second: int | None = Field(
        default=None,
        ge=1_000,
        le=10_000_000_000,
        description="Bytes a second that the flow's scheduled topics may take together, over any five seconds; of a "
        "record that needs more than a minute of it the rest is paid afterwards; left out, there is no limit.",
    )


class TransformSection(Section):
    """A rule for the records of some topics: what is left out of their copies, masked or encrypted in them.

    A field's path has names with dots between; `[*]` is all elements, `*` all members, quotes are around odd names.
    """

    topics: TopicList = Field(
        min_length=1,
        description="Source topics, by name or pattern; the first entry that matches a topic holds for it.",
    )
    version: int = Field(default=1, ge=1, le=65_535, description="Your own number of this rule, for reports.")
    keep: str | None = Field(
        default=None,
        min_length=1,
        description="A JMESPath expression over `key`, `value`, `headers`, `partition` and `timestamp`: a record for "
        "which it is false is not copied.",
    )
    tombstones: Literal["pass", "filter"] = Field(
        default="pass", description="Whether records without a value are copied in any case, or as `keep` says."
    )
    format: Literal["json", "avro", "bytes"] = Field(
        default="json", description="Of values, where `keep` or `fields` look into them."
    )
    fields: dict[str, RecordAction] = Field(
        default_factory=dict, description="By path; an exact name wins over `*`, which takes all that is not named."
    )
    value: RecordAction | None = Field(default=None, description="Of the whole value, with `format: bytes` only.")
    headers: dict[str, RecordAction] = Field(
        default_factory=dict, description="By name; `*` is all that are not named."
    )
    key: RecordAction | None = Field(
        default=None, description="Of the record's key: `drop`, or `{hmac: …}`, which keeps compaction and order."
    )
    function: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        description="Your own `(record) -> record | None`, applied last; its module lies beside this file.",
    )
    on_error: Literal["stop", "drop"] = Field(
        default="stop",
        description="A record that the rule cannot be applied to stops its lane, or is left out and listed as a loss.",
    )

    def rule(self) -> Rule:
        """The same for functions and jobs."""
        return Rule(**{name: value for name in Rule.__struct_fields__ if (value := getattr(self, name)) is not None})


class FlowSection(Section):
    """A replication flow, under its name `source->target`; `defaults` has the same keys."""

    enabled: bool = Field(default=True, description="Whether anything runs for this flow.")
    topics: TopicList = Field(
        default=(),
        description="Topics to replicate. Literal names get mappings when deployed, patterns when topics are found.",
    )
    topics_exclude: TopicList = Field(
        default=TOPICS_EXCLUDE, description="Topics never to replicate; wins over `topics`."
    )
    topics_rights_prefixes: TopicPrefixes = Field(
        default=(),
        description="With MSK IAM: beginnings of topic names, such as `orders-`, that roles may use as a whole. Only "
        "where `topics` names more than fit in IAM's policies one by one; the check of a configuration says which.",
    )
    heartbeats_replication_enabled: bool = Field(
        default=True,
        description="Replicate heartbeats topics even when `topics` does not name them, so that hops can be counted.",
    )
    trigger: Trigger = Field(
        default="mapping",
        description="What starts the replication of new records: an event source mapping of each topic, at once; or "
        "the flow's `schedule`, many topics in one run.",
    )
    trigger_overrides: TriggerOverrides = Field(
        default_factory=dict,
        description="Triggers of single topics, by name or pattern; the first entry that matches holds. An entry of a "
        "topic that was scheduled stays: `orders: mapping` changes it back.",
    )
    oversize: Literal["ledger", "stop"] = Field(
        default="ledger",
        description="Records that no event can carry, those above 4.4 MB or so, in mapped topics: left out, and listed "
        "as losses; or the lane stops before them. Scheduled topics have no such limit.",
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="Exactly once, by a transaction per event; or cheaper, with duplicates after a crash.",
    )
    copying: Literal["auto", "records"] = Field(
        default="auto",
        alias="copy",
        description="Copy scheduled topics, and lanes of jobs, by whole record batches where that is better; or always "
        "by `records`.",
    )
    transforms: tuple[TransformSection, ...] = Field(
        default=(), strict=False, description="Rules for records; they are applied before anything leaves the source."
    )
    start: Start = Field(
        default="earliest",
        description="Where a new topic begins; with `backfill` its lanes wait until a job has copied their history.",
    )
    replication_policy: Literal["prefixed", "identity"] = Field(
        default="prefixed", description="Remote topics are `alias.topic`, or keep their name."
    )
    replication_policy_separator: str = Field(
        default=".", pattern=r"^[a-zA-Z0-9._-]{1,16}$", description="Between alias and topic in a remote topic's name."
    )
    replication_policy_internal_topic_separator_enabled: bool = Field(
        default=True, description="Use the separator in the names of internal topics too; otherwise `.`."
    )
    loop_prevention: Literal["header"] | None = Field(
        default=None,
        description="Between clusters that replicate topics to each other under the same names: a header on each copy "
        "names the cluster where it was produced, and it is not copied back there. Left out, such flows are refused.",
    )
    replication_factor: ReplicationFactor = Field(
        default=2, description="Replicas of a new remote topic; -1 leaves it to the target."
    )
    transaction_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        le=900_000,
        description="Milliseconds until a broker ends a crashed function's transaction; its readers wait that long.",
    )
    offset_map_retention_days: int = Field(
        default=30,
        ge=1,
        le=3_650,
        description="Days that offsets stay translatable; a lane's newest run is kept while `control` runs.",
    )

    emit_heartbeats_enabled: bool = Field(default=True, description="Write heartbeats to the target.")
    emit_heartbeats_interval_seconds: Seconds = Field(
        default=60,
        description="Seconds between heartbeats (MM2: 1). Below 60 the function runs, and is paid for, all the time.",
    )
    heartbeats_topic_replication_factor: ReplicationFactor = Field(
        default=3, description="Replicas of the heartbeats topic."
    )
    emit_heartbeats_source_enabled: bool = Field(
        default=True,
        description="Write heartbeats to the source too, for the flow to replicate: so the whole way is measured.",
    )
    emit_checkpoints_enabled: bool = Field(
        default=True, description="Write translated group offsets to the checkpoints topic and the map."
    )
    emit_checkpoints_interval_seconds: Seconds = Field(default=2, description="Seconds between checkpoints (MM2: 60).")
    checkpoints_topic_replication_factor: ReplicationFactor = Field(
        default=3, description="Replicas of the checkpoints topic."
    )
    emit_offset_syncs_enabled: bool = Field(
        default=False,
        alias="emit.offset-syncs.enabled",
        description="Write MM2's offset-syncs topic on the target, for tools that read it; nothing of ours does.",
    )
    offset_syncs_topic_replication_factor: ReplicationFactor = Field(
        default=3, alias="offset-syncs.topic.replication.factor", description="Replicas of the offset-syncs topic."
    )
    sync_group_offsets_enabled: bool = Field(
        default=False,
        description="Commit translated offsets for idle groups on the target: never backwards, and not until their "
        "members have been gone for five minutes.",
    )
    sync_group_offsets_interval_seconds: Seconds = Field(
        default=2, description="Seconds between group offset syncs (MM2: 60)."
    )
    sync_group_offsets_reverse_enabled: bool = Field(
        default=False,
        description="Commit the way back as well: offsets that groups reached on remote topics, for idle groups on "
        "the source, and `<target>.checkpoints.internal` there. A group id must then mean one application everywhere.",
    )
    groups: Patterns = Field(default=(".*",), description="Consumer groups to follow.")
    groups_exclude: Patterns = Field(
        default=GROUPS_EXCLUDE, description="Consumer groups never to follow; wins over `groups`."
    )
    reconcile_enabled: bool = Field(
        default=True,
        description="Whether jobs may write to the source: to reconcile after an outage, which a failback needs. Where "
        "it is `false`, the jobs' role has no right to.",
    )
    refresh_topics_enabled: bool = Field(default=True, description="Discover topics, partitions and re-created topics.")
    refresh_topics_interval_seconds: Seconds = Field(default=60, description="Seconds between discoveries (MM2: 600).")
    sync_topic_configs_enabled: bool = Field(
        default=True, description="Keep the configs of remote topics equal to the source's."
    )
    sync_topic_configs_interval_seconds: Seconds = Field(default=600, description="Seconds between config syncs.")
    config_properties_exclude: Patterns = Field(
        default=CONFIG_PROPERTIES_EXCLUDE,
        description="Topic configs never to copy. `message.timestamp.type` is not copied in any case.",
    )
    config_properties_protect: Patterns = Field(
        default=(), description="Topic configs whose override on the target is left alone, though the source differs."
    )
    use_defaults_from: Literal["source", "target"] = Field(
        default="target", description="Whose default a config takes that the source leaves at its default."
    )
    sync_topic_acls_enabled: bool = Field(default=True, description="Copy the read ACLs of topics.")
    sync_topic_acls_interval_seconds: Seconds = Field(default=600, description="Seconds between ACL syncs.")

    mapping: MappingSection = Field(default_factory=MappingSection, description="Event source mappings of this flow.")
    function: FunctionSection = Field(default_factory=FunctionSection, description="Forwarder function of this flow.")
    schedule: ScheduleSection = Field(
        default_factory=ScheduleSection, description="Schedules of this flow's scheduled topics."
    )
