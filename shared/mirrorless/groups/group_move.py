"""A group that may move, and the two clusters that it may move between: what one round of checkpoints knows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset, offsets_to_commit
from mirrorless.lane import Lane
from mirrorless.mm2.internal_topics import Patience
from mirrorless.ports.groups import Groups, OffsetAndMetadata
from mirrorless.ports.kafka import Deadline, InternalTopics

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSide:
    """One side of the flow."""

    alias: str
    groups: Groups
    topics: InternalTopics


@dataclass(slots=True, kw_only=True)
class Sides:
    """Both sides. The source is the one that may be gone while there is work to do on the target."""

    source: GroupSide
    target: GroupSide
    clock: Callable[[], int]
    """ms since the epoch."""
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        """Be ready to find the source silent."""
        self._patience = Patience(alias=self.source.alias, clock=self.clock)

    def here(self, direction: Direction) -> GroupSide:
        """Where a direction begins: the side where the groups' commits are read."""
        return self.source if direction == "forward" else self.target

    def there(self, direction: Direction) -> GroupSide:
        """Where it ends."""
        return self.target if direction == "forward" else self.source

    def ask(self, cluster: GroupSide, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Call one side; the source with patience.

        Raises:
            Retriable: it does not answer.
        """
        return self._patience.ask(call, deadline) if cluster is self.source else call(deadline)


@dataclass(slots=True, kw_only=True)
class Moving:
    """One group in one direction, during one round."""

    name: str
    direction: Direction
    last: GroupCheckpoints | None
    """What the round before found."""
    offsets: dict[Lane, GroupOffset]
    ahead: int
    there: dict[Lane, OffsetAndMetadata]
    """What it has committed on the other side."""
    known_there: bool
    """Whether the other side has heard of it at all."""
    active_there: bool = False
    told: bool = False
    """Whether the checkpoints topic has been told all of it."""
    echoes: dict[Lane, int] = field(default_factory=dict)
    """Offsets here that we commit in this round, coming from there: no news."""

    def due(self) -> dict[Lane, OffsetAndMetadata]:
        """What the group should be given there, if it sleeps there."""
        writes = offsets_to_commit(self.direction, self.offsets, self.last, self.there)
        return {lane: offset for lane, offset in writes.items() if lane not in self.echoes}


def along(direction: Direction, moving: Iterable[Moving]) -> dict[str, Moving]:
    """The groups of one direction, by name."""
    return {group.name: group for group in moving if group.direction == direction}
