"""The model of replication.yaml: every key with its type, default, unit and meaning, for reader and editor.

Keys are MM2's where MM2 has one. A Python name is its key with underscores for dots: `emit_heartbeats_interval_seconds`
is `emit.heartbeats.interval.seconds`. What concerns more than one value is in `rules`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mirrorless.config.cluster import ClusterSection
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.types import DeploymentName, KeyArn, KeyArns, Section, Tags
from mirrorless.flow.naming import DEPLOYMENT
from mirrorless.transforms.rules import KeySettings


class KeySection(Section):
    """A key that `transforms` mask or encrypt by: where it is, never what it is."""

    version: int = Field(
        default=1, ge=1, le=65_535, description="The version in use; older ones read what they have encrypted."
    )
    secret: str | None = Field(
        default=None,
        min_length=1,
        description="Name or ARN of a secret in the source's region, with 32 bytes in base64 by version: "
        '`{"1": "…", "2": "…"}`.',
    )
    secret_kms_key_arn: KeyArns = Field(
        default=(), description="ARNs of your own keys that encrypt the secret; left out, it has AWS's own."
    )
    kms_key_arn: KeyArn | None = Field(default=None, description="Instead: the KMS key that encrypted `data.keys`.")
    data_keys: dict[str, str] = Field(
        default_factory=dict, description="By version: 32 bytes as KMS encrypted them, in base64."
    )

    def settings(self) -> KeySettings:
        """The same for functions and jobs."""
        given = {name: value for name, value in self if name in KeySettings.__struct_fields__ and value is not None}
        return KeySettings(**given)


class AlarmSection(Section):
    """Notifications of alarms, and their thresholds."""

    topic_arns: tuple[str, ...] = Field(
        default=(), strict=False, description="SNS topics to notify, in each region of functions and of jobs."
    )
    email: str | None = Field(
        default=None, pattern=r"^[^@\s]+@[^@\s]+$", description="An address to notify, by an SNS topic made for it."
    )
    record_age_seconds: int = Field(
        default=900, ge=60, le=86_400, description="Age of a record on its arrival that raises an alarm."
    )
    runbook_url: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="URL of your copy of docs/how-to/on-call.md; alarms link to its sections.",
    )


class SparkSection(Section):
    """The EMR Serverless applications that jobs run on; idle, they cost nothing."""

    enabled: bool = Field(default=True, description="Whether to create them.")
    architecture: Literal["arm64", "x86_64"] = Field(default="arm64", description="Processor.")
    maximum_vcpu: int = Field(default=64, ge=4, le=4_000, description="vCPU of all jobs towards one cluster together.")
    maximum_memory_gb: int = Field(
        default=256, ge=16, le=16_000, description="Memory of all jobs towards one cluster, GB."
    )


class DeploymentSection(Section):
    """What `cdk deploy` creates, beyond the flows themselves."""

    name: DeploymentName = Field(
        default=DEPLOYMENT,
        description="What every name on AWS begins with: stacks, tables, functions, groups, alarms, metrics. Another "
        "name makes another deployment, beside the first; a deployment never gets another name.",
    )
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653] = Field(
        default=30, description="Days that logs are kept."
    )
    kms_key_arns: tuple[KeyArn, ...] = Field(
        default=(),
        strict=False,
        description="Your own keys, one for each region and account, to encrypt tables, buckets, logs and variables "
        "with; without one, AWS's own.",
    )
    permissions_boundary: Annotated[str, Field(pattern=r"^[A-Za-z0-9_+=,.@-]{1,128}$")] | None = Field(
        default=None,
        description="Name of a managed policy, in each account, that every role of the deployment gets as its "
        "permissions boundary; left out, none.",
    )
    bucket_namespace: Literal["global", "account-regional"] = Field(
        default="global",
        description="Whose names the jobs' bucket has one of: `global` are those of all accounts; `account-regional` "
        "only yours can take, as a new deployment should, with `-an` at the end. Another one is another bucket.",
    )
    mapping_stacks: Literal[1, 2, 4, 8, 16, 32] = Field(
        default=1,
        description="Stacks among which the mappings of literal topics are divided: CloudFormation takes 500 resources "
        "in one. the check of a configuration says when it must grow; only `make deploy` makes it less.",
    )
    control_calls_per_second: int = Field(
        default=10,
        ge=1,
        le=15,
        description="Calls a second by which all flows at home in one region and account manage the mappings of found "
        "topics: Lambda takes 15 from all of an account there, other deployments included; divide them.",
    )
    offset_map_replicas_enabled: bool = Field(
        default=False,
        description="Keep a copy of a flow's tables in its source's region, to read from; "
        "writes go to the target's region, and are paid in both.",
    )
    metrics_per_topic: bool = Field(
        default=False,
        description="Emit metrics of each topic beside the flow's, about $2 a month for a topic that carries records; "
        "alarms do not need them.",
    )
    tags: Tags = Field(default_factory=dict, description="Tags of everything that is deployed.")
    alarms: AlarmSection = Field(default_factory=AlarmSection, description="Alarms of every flow.")
    spark: SparkSection = Field(default_factory=SparkSection, description="Applications for jobs.")


class Document(Section):
    """replication.yaml as a whole."""

    clusters: dict[str, ClusterSection] = Field(min_length=1, description="The clusters by alias: a-z, 0-9 and hyphen.")
    flows: dict[str, FlowSection] = Field(min_length=1, description="The flows by name, `source->target`.")
    keys: dict[str, KeySection] = Field(
        default_factory=dict, description="The keys of `transforms`, each under its name."
    )
    defaults: FlowSection = Field(default_factory=FlowSection, description="Values of keys that a flow leaves out.")
    deployment: DeploymentSection = Field(
        default_factory=DeploymentSection, description="What is deployed beyond the flows."
    )
