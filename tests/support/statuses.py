"""Statuses of the flow us-east->eu-west, as the command `status` makes them, with what is about the test."""

from __future__ import annotations

from typing import Any

from cli.deployment import TopicTrigger
from cli.flow_status import FlowStatus, LaneStatus, TaskStatus, TopicStatus
from mirrorless.adapters.kafka.offsets import Extent
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, Stop, StopReason, head_of
from mirrorless.scheduled.runner import TaskReport
from tests.support.chains import FLOW, run

NOW = 1_763_700_000_000
MAPPED = TopicTrigger("mapping", "mapping")
LANES = [Lane(FLOW, "orders", partition) for partition in range(4)]


def at(position: int, generation: int = 0) -> Head:
    """A chain of one run up to a position."""
    return head_of(run(0, position, (0, 0, position), generation=generation))


def lane(number: int = 0, head: Head | int = NEW_LANE, stop: Stop | None = None, **more: Any) -> LaneStatus:
    """A lane of orders. Args: head: or its position. more: as `source`, which ends at the position otherwise."""
    head = head if isinstance(head, Head) else at(head) if head else NEW_LANE
    usual: dict[str, Any] = {"source": Extent(0, head.position), "lost": 0, "gaps": 0}
    return LaneStatus(lane=LANES[number], head=head, stop=stop, **usual | more)


def stopped(number: int, reason: StopReason, detail: str = "as told") -> LaneStatus:
    """A lane that is stopped at the offset of its number."""
    return lane(number, stop=Stop(reason=reason, upstream_offset=number, detail=detail, at=NOW))


def flow(*lanes: LaneStatus, at: int = NOW, **more: Any) -> FlowStatus:
    """The flow with these lanes of orders; without any it has no topic."""
    topic = TopicStatus(topic="orders", remote_topic="us-east.orders", trigger=MAPPED, mapping=None, lanes=lanes)
    usual: dict[str, Any] = {"trouble": "", "unlisted": (), "topics": [topic] if lanes else []}
    return FlowStatus(flow=FLOW, at=at, **usual | more)


def task(
    name: str = "heartbeats", *, every: float = 3, at: int = NOW, ok_at: int | None = None, **more: Any
) -> TaskStatus:
    """The last round of a task, which succeeded unless it is said when one did."""
    report = TaskReport(task=name, at=at, ms=more.pop("ms", 1), ok_at=at if ok_at is None else ok_at, **more)
    return TaskStatus(task=name, every_seconds=every, last=report)
