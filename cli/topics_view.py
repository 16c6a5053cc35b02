"""What is known of a flow's topics on both sides, and which of them wait for the operator?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic of the flow. None means not known."""

    topic: str
    remote_topic: str
    source_partitions: int | None
    """0 where the source has no such topic."""
    target_partitions: int | None
    """0 where it has not been created yet."""
    owner: Literal["deployment", "schedule"]
    """Who makes its mapping: a topic named literally has one from the start, others when they are found."""
    mapping: str | None
    """The mapping's state, in a lab; None on AWS, and where there is none."""
    drift: tuple[str, ...] | None
    """Names of configs that the next sync will set or delete on the remote topic."""
    topic_id: str
    """Of the source topic that the map is about; empty before it was looked at."""
    late: bool
    """Whether it was created after the flow first looked."""
    trouble: str
    """What the operator should know of this topic."""
    needs_operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsView:
    """What the command has to say."""

    flow: str
    topics: Sequence[TopicRow]
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Topics that the flow's list takes and the flow cannot, by cause."""
    troubles: Sequence[str] = ()
    """What the newest refresh reported, and which cluster does not answer."""

    @property
    def needs_operator(self) -> bool:
        """Whether some topic waits for somebody."""
        return any(row.needs_operator for row in self.topics)
