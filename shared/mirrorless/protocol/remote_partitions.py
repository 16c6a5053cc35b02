"""The partitions of remote topics, created before a record needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import Source, Target
from mirrorless.protocol.plan import LanePlan


@dataclass(slots=True, kw_only=True)
class RemotePartitions:
    """The partitions of a flow's remote topics. Their numbers are remembered until `forget`."""

    flow: FlowName
    remote_topic: Callable[[str], str]
    target: Target
    source: Source
    _known: dict[str, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Read every number again."""
        self._known.clear()

    def ensure(self, plans: Sequence[LanePlan], deadline: Deadline) -> None:
        """Create what the target lacks before a record needs it: as many partitions as the source has."""
        highest: dict[str, int] = {}
        for plan in plans:
            highest[plan.lane.topic] = max(plan.lane.partition, highest.get(plan.lane.topic, 0))
        for topic, partition in highest.items():
            self._ensure(topic, partition, deadline)

    def _ensure(self, topic: str, partition: int, deadline: Deadline) -> None:
        remote_topic = self.remote_topic(topic)
        if partition < self._known.get(remote_topic, 0):
            return
        count = self.target.partition_count(remote_topic, deadline)
        if partition >= count:
            described = self.source.describe(topic, deadline)
            self.target.create_partitions(remote_topic, described.partitions, described.configs, deadline)
            count = self.target.partition_count(remote_topic, deadline)
        if partition >= count:
            raise Retriable(
                f"{remote_topic} has {count} partitions and needs {partition + 1}",
                where=f"{self.flow} {topic}-{partition}",
                hint="check that the function may create topics and partitions on the target",
            )
        self._known[remote_topic] = count
