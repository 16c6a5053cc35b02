"""Topics of both clusters, many at a time, so that a thousand cost a few calls.

Every method raises Retriable when the cluster does not answer. Failures of one topic are reported for that topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mirrorless.clock import Deadline
from mirrorless.ports.kafka import TopicPartition

Failures = dict[str, str]
"""What went wrong, in the cluster's words, by topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRemoteTopic:
    """A topic to create on the target."""

    name: str
    partitions: int
    replication_factor: int
    """-1 leaves it to the cluster."""
    configs: Mapping[str, str]


class SourceTopics(Protocol):
    """The topics of a flow's source."""

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """Every topic with the number of its partitions. One call."""
        ...

    def topic_ids(self, names: Iterable[str], deadline: Deadline) -> dict[str, str]:
        """The id of each of the topics; one that does not exist any more is absent."""
        ...

    def configs(self, names: Iterable[str], deadline: Deadline) -> tuple[dict[str, list[ConfigEntry]], Failures]:
        """Every config of each of the topics; a topic is either in the answer or among the failures."""
        ...

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The upstream offset behind the last record; a partition without a leader is absent. One call."""
        ...

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The upstream offset at which the log begins; a partition without a leader is absent. One call."""
        ...

    def offsets_at(
        self, places: Iterable[TopicPartition], timestamp: int, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """The first upstream offset of that time (ms since the epoch) or later; -1 where there is none. One call."""
        ...


class TargetTopics(Protocol):
    """The topics of a flow's target."""

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """See `SourceTopics.partitions`."""
        ...

    def topic_ids(self, names: Iterable[str], deadline: Deadline) -> dict[str, str]:
        """See `SourceTopics.topic_ids`."""
        ...

    def configs(self, names: Iterable[str], deadline: Deadline) -> tuple[dict[str, list[ConfigEntry]], Failures]:
        """See `SourceTopics.configs`."""
        ...

    def create(
        self, topics: Sequence[NewRemoteTopic], deadline: Deadline, *, validate_only: bool = False
    ) -> dict[str, str | None]:
        """Create topics; for each what went wrong, None when it stands. Being late is nothing wrong.

        With `validate_only` nothing is created: the answers are those that a creation would get.
        """
        ...

    def grow(self, counts: Mapping[str, int], deadline: Deadline) -> dict[str, str | None]:
        """Grow topics to so many partitions; for each what went wrong."""
        ...

    def alter_configs(self, changes: Mapping[str, ConfigChange], deadline: Deadline) -> dict[str, str | None]:
        """Change topics' overrides, each topic's all or none; for each what went wrong."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One topic config as a cluster's broker describes it."""

    name: str
    value: str | None
    """None where the broker does not return it."""
    is_override: bool
    """Whether it was set on the topic itself. A default of the cluster is none, also one that was set while the brokers
    ran: MM2 copies those as if the topic had them."""
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_copyable(self) -> bool:
        """Whether its value can be read here and set elsewhere."""
        return self.value is not None and not self.is_read_only and not self.is_sensitive


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """What is to be written to one remote topic."""

    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    """Overrides that the source topic does not have: the target's default holds again."""

    def __bool__(self) -> bool:
        return bool(self.set or self.delete)

    def __len__(self) -> int:
        return len(self.set) + len(self.delete)

    def parts(self) -> list[ConfigChange]:
        """The same as changes of one config each."""
        return [
            *(ConfigChange(set={name: value}) for name, value in self.set.items()),
            *(ConfigChange(delete=(name,)) for name in self.delete),
        ]
