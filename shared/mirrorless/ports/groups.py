"""Consumer groups of one cluster: states, committed offsets, and commits for groups without members.

Classic groups and those of KIP-848 alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from mirrorless.errors import MirrorlessError
from mirrorless.ports.kafka import Deadline, TopicPartition

GroupState = Literal["active", "empty", "absent"]
"""`active`: it has members, or is about to have. `empty`: it has offsets and no member. `absent`: never heard of."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset that a group committed, with its metadata (never None: Kafka turns null into empty)."""

    offset: int
    metadata: str = ""


class GroupIsActive(MirrorlessError):
    """The group has live members, so offsets cannot be committed for it. Nothing was changed."""


class Groups(Protocol):
    """The consumer groups of one cluster. Every method raises Retriable when the cluster does not answer."""

    def names(self, deadline: Deadline) -> list[str]:
        """Every consumer group, classic or KIP-848, in order; share and streams groups are none."""
        ...

    def states(self, groups: Iterable[str], deadline: Deadline) -> dict[str, GroupState]:
        """The state of each of the groups."""
        ...

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Everything that each group has committed; places without an offset (-1) are left out.

        A group whose commits cannot be read, because of its rights for instance, is absent from the answer.
        """
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:
        """Commit for a group without members.

        Raises:
            GroupIsActive: it has members; the broker refused.
        """
        ...
