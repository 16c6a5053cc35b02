"""The offsets of mappings' consumer groups on the source: where a flow begins, and where chains stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import Groups, OffsetAndMetadata, TopicPartition
from mirrorless.ports.stores import Chains, StateStore
from mirrorless.ports.topics import SourceTopics
from mirrorless.topics.topic_state import TopicState

_RIGHTS: Final = "grant the function access to the consumer groups mirrorless.* of the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStart:
    """Commits offsets for the groups of one flow's mappings, before these have members."""

    settings: FlowSettings
    source: SourceTopics
    source_groups: Groups
    chains: Chains
    documents: StateStore

    def commit_start(self, state: TopicState, deadline: Deadline) -> None:
        """Commit the flow's start offsets for a mapping's group. Existing commits of the group stay.

        If the round is interrupted after the commit, the next one reads it.

        Raises:
            Retriable, MirrorlessError: they were not committed.
        """
        if not state.start or state.start_committed:
            return
        missing = self._missing_start(state, deadline)
        if missing:
            self.source_groups.commit(self.settings.consumer_group(state.topic), missing, deadline)
        document = {f"topic/{state.topic}": msgspec.json.encode(replace(state, start_committed=True))}
        self.documents.write(self.settings.name, document)

    def commit_positions(self, state: TopicState, deadline: Deadline) -> None:
        """Commit the positions of a topic's chains for its mapping's group, over whatever the group has.

        An older offset would deliver weeks of records again, and a newer one would leave records out. Where a run is in
        doubt, the position is its beginning: however it is settled, no record is left out. Where the source's log
        begins above the position, that is the offset. A lane without a chain has the offset at which the flow begins.

        Raises:
            GroupIsActive: the group has members.
            Retriable, MirrorlessError: nothing was committed.
        """
        flow, topic = self.settings.name, state.topic
        if state.recreated is not None or state.remote_recreated is not None:
            raise MirrorlessError(
                "the topic was created again, and its lanes wait for a reset",
                where=f"{flow} {topic}",
                hint=f"reset the lanes as `mirrorless status '{flow}'` says",
            )
        heads = self.chains.heads([Lane(flow, topic, partition) for partition in range(state.partitions)])
        positions = {(topic, lane.partition): head.position for lane, head in sorted(heads.items()) if head != NEW_LANE}
        log_starts = self.source.starts(positions, deadline)
        if unknown := positions.keys() - log_starts.keys():
            partitions = ", ".join(str(partition) for _, partition in sorted(unknown))
            raise MirrorlessError(
                f"the source does not say where the partitions {partitions} begin",
                where=f"{flow} {topic}",
                hint="wait until each of them has a leader",
            )
        offsets = {place: OffsetAndMetadata(max(position, log_starts[place])) for place, position in positions.items()}
        if state.start:
            begins = self._missing_start(state, deadline)
            offsets |= {place: offset for place, offset in begins.items() if place not in positions}
        if offsets:
            self.source_groups.commit(self.settings.consumer_group(topic), offsets, deadline)

    def _missing_start(self, state: TopicState, deadline: Deadline) -> dict[TopicPartition, OffsetAndMetadata]:
        """The start offsets of partitions for which the group has none."""
        group = self.settings.consumer_group(state.topic)
        committed = self.source_groups.committed([group], deadline)
        if group not in committed:
            raise MirrorlessError(
                f"the commits of group {group} cannot be read on the source",
                where=f"{self.settings.name} {state.topic}",
                hint=_RIGHTS,
            )
        return {
            (state.topic, partition): OffsetAndMetadata(offset)
            for partition, offset in enumerate(state.start)
            if (state.topic, partition) not in committed[group]
        }
