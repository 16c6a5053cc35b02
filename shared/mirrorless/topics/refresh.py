"""What is done about a flow's topics in one round? Look, watch, shape, map.

    1. Look     the source's topics, which of them the flow takes, their ids and ends.
    2. Watch    against what was known: re-created, truncated and vanished topics; lanes stop before anything else.
    3. Shape    remote topics are created and grown, before any record needs them.
    4. Map      offsets where the flow does not begin at the first record, then event source mappings.

Each step can die and be done again. One topic's failure is told and leaves the others alone; only what concerns a whole
cluster or a whole store ends the round.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.ports.kafka import Deadline
from mirrorless.ports.topics import SourceTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.change_detection import Lookout, SourceSnapshot
from mirrorless.topics.discovery import Discovery, discover
from mirrorless.topics.mapping_sync import MappingSync
from mirrorless.topics.remote_topics import RemoteShapes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefresh:
    """The task `topics` of one flow."""

    settings: ControlSettings
    source: SourceTopics
    lookout: Lookout
    shapes: RemoteShapes
    mappings: MappingSync | None
    """None where the flow's mappings are nobody's to manage."""

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: a cluster or a store does not answer; what was done until then stands.
        """
        # 1. Look.
        found, sight = self._look(deadline)
        report.troubles += found.troubles()
        report.figures |= {
            "topics": len(found.taken),
            "partitions": sum(sight.taken.values()),
            "topics-refused": sum(map(len, found.refused.values())),
        }

        # 2. Watch.
        watched = self.lookout.watch(sight, report, deadline)

        # 3. Shape.
        shapeless = self.shapes.shape(sight.taken, report, deadline)

        # 4. Map. A topic that has just been missed, or could not be looked at, keeps what it has.
        if self.mappings is not None:
            unready = shapeless | watched.just_gone | (found.mapped - watched.topics.keys())
            self.mappings.sync(found, watched.topics, unready=unready, report=report, deadline=deadline)

    def _look(self, deadline: Deadline) -> tuple[Discovery, SourceSnapshot]:
        on_source = self.source.partitions(deadline)
        found = discover(on_source, self.settings)
        ids = self.source.topic_ids(found.taken, deadline)
        taken = {topic: on_source[topic] for topic in found.taken if topic in ids}
        places = [(topic, partition) for topic, count in taken.items() for partition in range(count)]
        return found, SourceSnapshot(on_source=on_source, taken=taken, ids=ids, ends=self.source.ends(places, deadline))
