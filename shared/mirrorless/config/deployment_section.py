"""What can be said of a deployment, beyond its flows? Keys, logs, copies, alarms, and where jobs run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mirrorless.config.section import KeyArn, Section


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
        description="Address of your copy of docs/how-to/on-call.md; alarms link to its sections.",
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
