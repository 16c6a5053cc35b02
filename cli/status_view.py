"""What is known of a flow, its topics and its lanes, and what of it needs the operator? `status` tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cli.groups_view import need_operator
from cli.lab_state import LabMapping
from cli.scheduled import TaskStatus
from cli.target import HeartbeatTimes
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import NEW_LANE, Head, Lease, Stop

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import Extent

NEWEST_RUNS = 5
"""Runs of each lane that are looked at for gaps; each is one read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane as it is now. None means not known, or nothing yet."""

    lane: Lane
    head: Head
    source: Extent | None
    stop: Stop | None
    lost: int
    """Upstream offsets in the loss ledger."""
    gaps: int
    """Upstream offsets in no span of the newest runs."""
    lease: Lease | None = None
    """Of a job, ended or not."""
    waiting: int | None = None
    """The upstream offset of the batch that waits for a job."""
    lag_ms: int | None = None
    """Age of the oldest record that still waits; 0 when none does."""

    @property
    def lag(self) -> int | None:
        """Records that still wait, at most: transaction markers and aborted records count too."""
        if self.source is None:
            return None
        return max(0, self.source.end - max(self.head.position, self.source.start))

    @property
    def overtaken(self) -> int:
        """Upstream offsets that the source's retention has removed before they were replicated."""
        if self.source is None or self.head == NEW_LANE:
            return 0
        return max(0, self.source.start - self.head.position)

    @property
    def shrunk(self) -> bool:
        """Whether the source ends below the position: it was re-created or truncated, and has not yet contradicted."""
        return self.source is not None and self.source.end < self.head.position

    @property
    def last_run_at(self) -> int | None:
        """When the newest run was settled, ms since the epoch."""
        return self.head.run.settled_at if self.head.run is not None else None

    @property
    def latency_ms(self) -> int | None:
        """From the writing of the newest record to its replication, in the newest run."""
        run = self.head.run
        if run is None or run.newest_timestamp < 0:
            return None
        return max(0, run.settled_at - run.newest_timestamp)

    def leased(self, now: int) -> Lease | None:
        """The lease that keeps the lane from its mapping at `now`, ms since the epoch."""
        return self.lease if self.lease is not None and now < self.lease.until else None

    def waits_for_nobody(self, now: int) -> bool:
        """Whether a batch waits for a job at `now`, and no job has the lane."""
        return self.waiting is not None and self.waiting > self.head.position and self.leased(now) is None

    @property
    def needs_operator(self) -> bool:
        """Whether waiting will not help, whoever has the lane."""
        return self.stop is not None or self.overtaken > 0 or self.shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """One topic of a flow, with its lanes by partition."""

    topic: str
    remote_topic: str
    mapping: LabMapping | None
    """The lab's event source mapping; None on AWS."""
    lanes: Sequence[LaneStatus]

    @property
    def mapping_is_off(self) -> bool:
        """Whether the mapping exists and does not poll."""
        return self.mapping is not None and self.mapping.state in {"Disabled", "Disabling", "Deleted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """One flow."""

    flow: FlowName
    at: int
    """When it was looked at, ms since the epoch."""
    trouble: str
    """Why the source does not answer; empty when it does."""
    unlisted: Sequence[str]
    """Patterns whose topics nobody could list."""
    topics: Sequence[TopicStatus]
    heartbeats: HeartbeatTimes = field(default_factory=HeartbeatTimes)
    groups: Sequence[GroupCheckpoints] = ()
    tasks: Sequence[TaskStatus] = ()

    @property
    def needs_operator(self) -> bool:
        """Whether any lane, mapping, task, group or target partition does."""
        return (
            any(topic.mapping_is_off for topic in self.topics)
            or any(
                lane.needs_operator or lane.waits_for_nobody(self.at) for topic in self.topics for lane in topic.lanes
            )
            or any(task.overdue(self.at) or task.stuck_partitions for task in self.tasks)
            or bool(need_operator(self.groups))
        )
