"""Which functions run on a schedule, and with what? One place for the deployment and for the lab.

A run may take longer than the minute after which the next one starts: there is one run at a time, by a lease
(`mirrorless.scheduled.runner`), and the next one waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mirrorless.scheduled.settings import ControlSettings

EVERY_SECONDS: Final = 60
"""EventBridge Scheduler's shortest interval (https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html)."""

LONGEST_INPUT: Final = 256 * 1024
"""Bytes of a schedule's input at most (https://docs.aws.amazon.com/scheduler/latest/UserGuide/encryption-rest.html)."""

ScheduledName = Literal["heartbeat_checkpoint", "refresh_topics"]
"""By their files in `functions/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFunction:
    """A function that a flow's schedules start.

    Attributes:
        name: its file in `functions/`, without `.py`.
        description: what it does, for the console.
        memory_mb: memory.
        timeout_seconds: of one run.
        intervals: the settings that switch its tasks on; empty where one of its tasks is never off.
    """

    name: ScheduledName
    description: str
    memory_mb: int
    timeout_seconds: int
    intervals: tuple[str, ...] = ()

    def has_work(self, settings: ControlSettings) -> bool:
        """Whether any of its tasks is on: without one, a schedule would start it for nothing."""
        return not self.intervals or any(getattr(settings, each) is not None for each in self.intervals)


HEARTBEAT_CHECKPOINT: Final = ScheduledFunction(
    name="heartbeat_checkpoint",
    description="heartbeats, checkpoints and group offsets, and the check of the lanes",
    memory_mb=256,
    timeout_seconds=90,
)
"""The check of the lanes is never off: it settles what a crash left in doubt, and renews the heads of the map."""

REFRESH_TOPICS: Final = ScheduledFunction(
    name="refresh_topics",
    description="finds topics, and keeps remote topics, their configs, their ACLs and the mappings in step",
    memory_mb=256,
    timeout_seconds=120,
    intervals=("refresh_topics_seconds", "sync_topic_configs_seconds", "sync_topic_acls_seconds"),
)

SCHEDULED: Final = (HEARTBEAT_CHECKPOINT, REFRESH_TOPICS)
