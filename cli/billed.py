"""A flow's settings as the cost model takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorless.cost.bill import BilledSettings, MappingSettings
from mirrorless.cost.shards import ShardSettings

if TYPE_CHECKING:
    from mirrorless.config.flow_section import FlowSection
    from mirrorless.config.schema import DeploymentSection


def billed(settings: FlowSection, deployment: DeploymentSection) -> BilledSettings:
    """What the bill of a flow depends on."""
    return BilledSettings(
        memory_gb=settings.function.memory_mb / 1024,
        batch_size=settings.mapping.batch_size,
        retention_days=settings.offset_map_retention_days,
        copies=int(deployment.offset_map_replicas_enabled),
        checkpoint_seconds=settings.emit_checkpoints_interval_seconds,
        heartbeat_seconds=settings.emit_heartbeats_interval_seconds,
        metrics_per_topic=deployment.metrics_per_topic,
    )


def mappings_of(settings: FlowSection) -> MappingSettings:
    """The settings of its mappings."""
    return MappingSettings(mode=settings.mapping.mode, window=settings.mapping.maximum_batching_window_seconds)


def shards_of(settings: FlowSection) -> ShardSettings:
    """The settings of its scheduled topics."""
    schedule = settings.schedule
    return ShardSettings(
        continuous=schedule.continuous,
        seconds=schedule.window_seconds if schedule.continuous else schedule.interval_seconds,
        shards=schedule.shards,
        memory_mb=schedule.memory_mb,
    )
