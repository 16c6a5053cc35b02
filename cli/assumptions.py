"""The cost model's assumptions with what a flow sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorless.cost.assumptions import METRICS_PER_TOPIC, Assumptions

if TYPE_CHECKING:
    from mirrorless.config.flow_section import FlowSection
    from mirrorless.config.schema import DeploymentSection


def assumptions_of(settings: FlowSection, deployment: DeploymentSection) -> Assumptions:
    """Return the assumptions for one flow."""
    return Assumptions(
        memory_gb=settings.function.memory_mb / 1024,
        event_records=settings.mapping.batch_size,
        retention_days=settings.offset_map_retention_days,
        copies=int(deployment.offset_map_replicas_enabled),
        rounds=60 / settings.emit_checkpoints_interval_seconds,
        heartbeat_seconds=settings.emit_heartbeats_interval_seconds,
        metrics_per_topic=METRICS_PER_TOPIC if deployment.metrics_per_topic else 0,
    )
