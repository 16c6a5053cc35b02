"""The settings of the scheduled tasks, as the keys of a flow give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorless.config.flow_section import FlowSection


def task_settings(settings: FlowSection) -> dict[str, Any]:
    """Return the part of `mirrorless.scheduled.settings` that depends on no cluster. A task without seconds is off."""

    def every(enabled: bool, seconds: int) -> int | None:  # noqa: FBT001 -- two halves of one setting
        return seconds if enabled else None

    return {
        "internal_topic_separator_enabled": settings.replication_policy_internal_topic_separator_enabled,
        "topics": settings.topics,
        "topics_exclude": settings.topics_exclude,
        "heartbeats_replication": settings.heartbeats_replication_enabled,
        "trigger": settings.trigger,
        "trigger_overrides": list(settings.trigger_overrides.items()),
        "start": settings.start,
        "heartbeats_seconds": every(settings.emit_heartbeats_enabled, settings.emit_heartbeats_interval_seconds),
        "heartbeats_on_source": settings.emit_heartbeats_source_enabled,
        "heartbeats_replication_factor": settings.heartbeats_topic_replication_factor,
        "checkpoints_seconds": every(settings.emit_checkpoints_enabled, settings.emit_checkpoints_interval_seconds),
        "checkpoints_replication_factor": settings.checkpoints_topic_replication_factor,
        "offset_syncs": settings.emit_offset_syncs_enabled,
        "offset_syncs_replication_factor": settings.offset_syncs_topic_replication_factor,
        "sync_group_offsets_seconds": every(
            settings.sync_group_offsets_enabled, settings.sync_group_offsets_interval_seconds
        ),
        "sync_group_offsets_reverse": settings.sync_group_offsets_reverse_enabled,
        "groups": settings.groups,
        "groups_exclude": settings.groups_exclude,
        "refresh_topics_seconds": every(settings.refresh_topics_enabled, settings.refresh_topics_interval_seconds),
        "sync_topic_configs_seconds": every(
            settings.sync_topic_configs_enabled, settings.sync_topic_configs_interval_seconds
        ),
        "config_properties_protect": settings.config_properties_protect,
        "sync_topic_acls_seconds": every(settings.sync_topic_acls_enabled, settings.sync_topic_acls_interval_seconds),
    }
