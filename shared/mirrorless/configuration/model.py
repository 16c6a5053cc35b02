"""What can be written in replication.yaml? Every key with its type, default, unit and meaning, for reader and editor.

Keys are MM2's where MM2 has one. A Python name is its key with underscores for dots: `emit_heartbeats_interval_seconds`
is `emit.heartbeats.interval.seconds`. What concerns more than one value is in `rules`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mirrorless.configuration.entries import (
    Addresses,
    Identifiers,
    Patterns,
    ReplicationFactor,
    Start,
    Topics,
)
from mirrorless.filters import CONFIG_PROPERTIES_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE

Seconds = Annotated[int, Field(ge=1, le=86_400)]
KeyArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/\S+$")]

_ENCRYPTED_WITH = (
    "Key that the secret is encrypted with, where it is not Secrets Manager's own; MSK demands one of yours."
)


class Section(BaseModel):
    """A mapping of replication.yaml: nothing unknown in it, nothing converted in silence, nothing changed later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "."),
        hide_input_in_errors=True,
    )


class Plaintext(Section):
    """No authentication and no encryption: for laboratories and closed networks."""

    type: Literal["plaintext"] = Field(description="No authentication, no TLS.")


class Scram(Section):
    """A user name and a password, over TLS."""

    type: Literal["scram"] = Field(description="SASL/SCRAM over TLS.")
    secret: str = Field(
        min_length=1,
        max_length=200,
        description="Secrets Manager name or ARN of `username` and `password`; on MSK it begins with `AmazonMSK_`.",
    )
    secret_kms_key_arn: KeyArn | None = Field(default=None, description=_ENCRYPTED_WITH)
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="The hash; MSK has SCRAM-SHA-512 only."
    )
    ca: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Secret with the `certificate` (PEM) of a private certificate authority.",
    )


class Mtls(Section):
    """A client certificate."""

    type: Literal["mtls"] = Field(description="Mutual TLS.")
    secret: str = Field(
        min_length=1,
        max_length=200,
        description="Secrets Manager name or ARN of `certificate` and `privateKey` (PEM), maybe `privateKeyPassword`.",
    )
    secret_kms_key_arn: KeyArn | None = Field(default=None, description=_ENCRYPTED_WITH)
    ca: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Secret with the `certificate` (PEM) of a private certificate authority.",
    )


class Iam(Section):
    """AWS IAM, signed by the function's role, over TLS."""

    type: Literal["iam"] = Field(description="MSK IAM access control; needs the cluster's region.")


Authentication = Annotated[Plaintext | Scram | Mtls | Iam, Field(discriminator="type")]


class Vpc(Section):
    """The network in the cluster's region from which every broker of its flows can be reached, at both ends."""

    id: str | None = Field(default=None, pattern=r"^vpc-[0-9a-f]+$", description="The VPC.")
    subnets: Identifiers = Field(min_length=1, description="Subnet ids with a route to every broker.")
    security_groups: Identifiers = Field(min_length=1, description="Security group ids that the brokers let in.")
    endpoints: bool = Field(
        default=False,
        description="Create the interface endpoints that functions and pollers need in these subnets; needs `id`. "
        "Without them, the network has its own way to AWS.",
    )
    route_tables: Identifiers = Field(
        default=(),
        description="With `endpoints`: route table ids of the subnets, which get a gateway to DynamoDB; left out, they "
        "have one.",
    )


class ClusterSection(Section):
    """A Kafka cluster, under its alias."""

    bootstrap_servers: Addresses = Field(
        min_length=1,
        max_length=10,
        description="Brokers to begin with, `host:port`; for MSK `aws kafka get-bootstrap-brokers` lists them.",
    )
    msk_cluster_arn: str | None = Field(
        default=None,
        pattern=r"^arn:aws[a-z-]*:kafka:[a-z0-9-]+:[0-9]{12}:(cluster|vpc-connection)/\S+$",
        description="ARN of an MSK cluster, or of a VPC connection to one; its mappings then need no `vpc`.",
    )
    region: str | None = Field(
        default=None,
        pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$",
        description="AWS region; taken from `msk.cluster.arn` where there is one.",
    )
    account: str | None = Field(
        default=None,
        pattern=r"^[0-9]{12}$",
        description="AWS account, twelve digits in quotes; taken from `msk.cluster.arn` where there is one.",
    )
    authentication: Authentication = Field(
        default_factory=lambda: Plaintext(type="plaintext"), description="How clients prove who they are."
    )
    vpc: Vpc | None = Field(
        default=None, description="The network to reach the cluster by; left out, the deployment uses none."
    )

    producer_compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = Field(
        default=None, description="Compression of what is written to this cluster; left out, none."
    )
    producer_compression_level: int | None = Field(
        default=None, ge=-1, le=12, description="Compression level, by the codec's own scale."
    )
    producer_linger_ms: int | None = Field(
        default=None, ge=0, le=1_000, description="Milliseconds to wait for more records per request."
    )
    producer_batch_size: int | None = Field(
        default=None, ge=1, le=104_857_600, description="Bytes of a produce batch at most."
    )
    producer_message_max_bytes: int | None = Field(
        default=None,
        ge=1_000,
        le=104_857_600,
        description="Bytes of a request at most; keep it at the target's `message.max.bytes`.",
    )
    producer_socket_timeout_ms: int | None = Field(
        default=None, ge=10, le=300_000, description="Milliseconds to wait for a broker's answer."
    )
    producer_client_rack: str | None = Field(
        default=None, min_length=1, description="Rack, or availability zone, of the producers."
    )
    consumer_client_rack: str | None = Field(
        default=None, min_length=1, description="Rack, or availability zone, of jobs that read this cluster."
    )
    consumer_fetch_min_bytes: int | None = Field(
        default=None, ge=1, le=104_857_600, description="Bytes a job waits for per fetch."
    )
    consumer_fetch_wait_max_ms: int | None = Field(
        default=None, ge=0, le=60_000, description="Milliseconds a job's fetch may wait."
    )
    consumer_max_partition_fetch_bytes: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Bytes that a job fetches per partition at most."
    )


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
        pattern=r"^[a-zA-Z0-9_-]{1,128}$",
        description="Mappings of one VPC with the same name share their cost. Provisioned only.",
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
        "mappings must live there; otherwise the target's, to read far and write near.",
    )
    reserved_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Concurrent executions, kept and at most; left out, the account's pool.",
    )


class FlowSection(Section):
    """A replication flow, under its name `source->target`; `defaults` has the same keys."""

    enabled: bool = Field(default=True, description="Whether anything runs for this flow.")
    topics: Topics = Field(
        default=(),
        description="Topics to replicate. Literal names get mappings when deployed, patterns when topics are found.",
    )
    topics_exclude: Topics = Field(default=TOPICS_EXCLUDE, description="Topics never to replicate; wins over `topics`.")
    heartbeats_replication_enabled: bool = Field(
        default=True,
        description="Replicate heartbeats topics even when `topics` does not name them, so that hops can be counted.",
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="Exactly once, by a transaction per event; or cheaper, with duplicates after a crash.",
    )
    start: Start = Field(
        default="earliest",
        description="Where a new topic begins; with `backfill` a Spark job copies its history first.",
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
        description="Days that offsets stay translatable; the newest run of a lane never expires.",
    )

    emit_heartbeats_enabled: bool = Field(default=True, description="Write heartbeats to the target.")
    emit_heartbeats_interval_seconds: Seconds = Field(
        default=10,
        description="Seconds between heartbeats (MM2: 1); each is replicated, and paid for, like any record.",
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
        description="Commit translated offsets for idle groups on the target: never backwards.",
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
    refresh_topics_enabled: bool = Field(default=True, description="Discover topics, partitions and re-created topics.")
    refresh_topics_interval_seconds: Seconds = Field(default=60, description="Seconds between discoveries (MM2: 600).")
    sync_topic_configs_enabled: bool = Field(
        default=True, description="Keep the configs of remote topics equal to the source's."
    )
    sync_topic_configs_interval_seconds: Seconds = Field(default=600, description="Seconds between config syncs.")
    config_properties_exclude: Patterns = Field(
        default=CONFIG_PROPERTIES_EXCLUDE, description="Topic configs never to copy."
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


class AlarmSection(Section):
    """Who is woken, and when."""

    topic_arns: tuple[str, ...] = Field(
        default=(), strict=False, description="SNS topics to tell, in the region of the flow's functions."
    )
    email: str | None = Field(
        default=None, pattern=r"^[^@\s]+@[^@\s]+$", description="An address to tell, by a topic made for it."
    )
    record_age_seconds: int = Field(
        default=900, ge=60, le=86_400, description="Age of a record on its arrival that is worth waking somebody."
    )
    runbook_url: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="Address of your copy of docs/operations.md; alarms link to its sections.",
    )


class SparkSection(Section):
    """The EMR Serverless applications that jobs run on; idle, they cost nothing."""

    enabled: bool = Field(default=True, description="Whether there are any.")
    architecture: Literal["arm64", "x86_64"] = Field(default="arm64", description="Processor.")
    maximum_vcpu: int = Field(default=64, ge=4, le=4_000, description="vCPU of all jobs towards one cluster together.")
    maximum_memory_gb: int = Field(
        default=256, ge=16, le=16_000, description="Memory of all jobs towards one cluster, GB."
    )


class DeploymentSection(Section):
    """What `cdk deploy` makes, beyond the flows themselves."""

    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653] = Field(
        default=30, description="Days that logs are kept."
    )
    kms_key_arns: tuple[KeyArn, ...] = Field(
        default=(),
        strict=False,
        description="Your own keys, one for each region and account, to encrypt tables, buckets, logs and variables "
        "with; where none is named, AWS's.",
    )
    offset_map_replicas_enabled: bool = Field(
        default=True,
        description="Keep a copy of a flow's tables in its source's region, to read from; written only at home.",
    )
    tags: dict[str, str] = Field(default_factory=dict, description="Tags of everything that is deployed.")
    alarms: AlarmSection = Field(default_factory=AlarmSection, description="Alarms of every flow.")
    spark: SparkSection = Field(default_factory=SparkSection, description="Applications for jobs.")


class Document(Section):
    """replication.yaml as a whole."""

    clusters: dict[str, ClusterSection] = Field(min_length=1, description="The clusters by alias: a-z, 0-9 and hyphen.")
    flows: dict[str, FlowSection] = Field(min_length=1, description="The flows by name, `source->target`.")
    defaults: FlowSection = Field(default_factory=FlowSection, description="What a flow does not say itself.")
    deployment: DeploymentSection = Field(
        default_factory=DeploymentSection, description="What is deployed beyond the flows."
    )
