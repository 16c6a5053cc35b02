"""What can be written in replication.yaml? Every key with its type, default, unit and meaning, for reader and editor.

Keys are MM2's where MM2 has one. A Python name is its key with underscores for dots: `emit_heartbeats_interval_seconds`
is `emit.heartbeats.interval.seconds`. What concerns more than one value is in `names`, `topics` and `limits`.
"""

from __future__ import annotations

from pydantic import Field

from mirrorless.config.cluster_section import ClusterSection
from mirrorless.config.deployment_section import DeploymentSection
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.section import Section


class Document(Section):
    """replication.yaml as a whole."""

    clusters: dict[str, ClusterSection] = Field(min_length=1, description="The clusters by alias: a-z, 0-9 and hyphen.")
    flows: dict[str, FlowSection] = Field(min_length=1, description="The flows by name, `source->target`.")
    defaults: FlowSection = Field(default_factory=FlowSection, description="What a flow does not say itself.")
    deployment: DeploymentSection = Field(
        default_factory=DeploymentSection, description="What is deployed beyond the flows."
    )
