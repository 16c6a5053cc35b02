"""The operator's commands in messages: complete, so that they run as printed."""

from __future__ import annotations

from mirrorless.lane import FlowName, Lane


def reset_command(flow: FlowName, topic: str, partition: int | None, to: str, *, reason: str) -> str:
    """The command that closes a lane's chain. Args: partition: None for every stopped one of the topic."""
    lane = topic if partition is None else f"{topic} {partition}"
    return f"mirrorless lanes reset '{flow}' {lane} --to {to} --reason '{reason}' --execute"


def reset_lane(lane: Lane, to: str | int) -> str:
    """The same for one lane, between backticks; the reason is the operator's to change."""
    return f"`{reset_command(lane.flow, lane.topic, lane.partition, str(to), reason='see status')}`"
