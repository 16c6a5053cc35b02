"""The consumer groups and lanes of a flow, and the mapping of topic-partitions to lanes on both sides.

A group's commits belong to the flow if their topic is one that the flow replicates (on the source), or one of its
remote topics (on the target). Each such topic-partition belongs to one lane; all others are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.flow.filters import NameFilter, should_replicate
from mirrorless.flow.naming import OWN_GROUPS
from mirrorless.flow.policy import ReplicationPolicy
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition


@dataclass(slots=True, kw_only=True)
class FlowScope:
    """The groups and lanes of one flow."""

    flow: FlowName
    topics: NameFilter
    groups: NameFilter
    policy: ReplicationPolicy
    heartbeats: bool
    """Whether heartbeats topics of the source are replicated even where `topics` does not name them."""

    @classmethod
    def of(cls, settings: FlowSettings) -> FlowScope:
        """The scope of a schedule's input."""
        return cls(
            flow=settings.name,
            topics=settings.topic_filter,
            groups=settings.group_filter,
            policy=settings.policy,
            heartbeats=settings.heartbeats_replication_enabled,
        )

    def group(self, name: str) -> bool:
        """Whether a group is in scope."""
        return not name.startswith(OWN_GROUPS) and self.groups.accepts(name)

    def remote_topic(self, topic: str) -> str:
        """The name on the target of a topic of the source."""
        return self.policy.remote_topic(self.flow.source, topic)

    def source_topic(self, remote_topic: str) -> str | None:
        """The source topic that this flow replicates under that name; None for every other topic."""
        if self.policy.topic_source(remote_topic) != self.flow.source:
            return None
        topic = self.policy.upstream_topic(remote_topic)
        return topic if topic is not None and self.replicates(topic) else None

    def replicates(self, topic: str) -> bool:
        """Whether the flow takes this topic of its source."""
        return should_replicate(
            topic, flow=self.flow, topics=self.topics, policy=self.policy, heartbeats=self.heartbeats
        )

    def on_source(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[Lane, OffsetAndMetadata]:
        """A source group's commits by lane."""
        taken = {topic for topic in {topic for topic, _ in committed} if self.replicates(topic)}
        return {
            Lane(self.flow, topic, partition): offset
            for (topic, partition), offset in committed.items()
            if topic in taken
        }

    def on_target(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[Lane, OffsetAndMetadata]:
        """A target group's commits by lane."""
        sources = {topic: self.source_topic(topic) for topic in {topic for topic, _ in committed}}
        found: dict[Lane, OffsetAndMetadata] = {}
        for (remote, partition), offset in committed.items():
            topic = sources[remote]
            if topic is not None:
                found[Lane(self.flow, topic, partition)] = offset
        return found

    def source_partition(self, lane: Lane) -> TopicPartition:
        """The lane's topic-partition on the source."""
        return lane.topic, lane.partition

    def remote_partition(self, lane: Lane) -> TopicPartition:
        """The lane's topic-partition on the target."""
        return self.remote_topic(lane.topic), lane.partition
