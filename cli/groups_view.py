"""What is known of a flow's consumer groups in one direction, and which of them need the operator?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset
from mirrorless.lane import FlowName, Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """One partition of a group, on both sides."""

    lane: Lane
    offset: GroupOffset
    committed: int | None
    """What the group has committed on the side where it would go on; None for nothing, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """What the command has to say of one flow and one direction."""

    flow: FlowName
    direction: Direction
    groups: Sequence[GroupCheckpoints]
    excluded: Sequence[str] = ()
    """Groups on the side where the direction begins that the flow's filter refuses."""
    places: Sequence[GroupPlace] = field(default_factory=tuple)
    """Of the one group that was asked for."""
    trouble: str = ""
    """Why a cluster does not answer; the rest is known without it."""

    @property
    def begins_on(self) -> str:
        """The cluster whose commits are followed."""
        return self.flow.target if self.direction == "reverse" else self.flow.source

    @property
    def ends_on(self) -> str:
        """The cluster where a group would go on."""
        return self.flow.source if self.direction == "reverse" else self.flow.target


def need_operator(groups: Iterable[GroupCheckpoints]) -> list[str]:
    """The groups that no further round makes ready: the map has forgotten the place that they stand at."""
    return [group.group for group in groups if group.readiness == "before_map"]
