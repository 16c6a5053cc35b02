"""The task `topics`: one round of topic discovery, change detection, remote topics and event source mappings.

    1. Discover  the source's topics, which of them the flow takes, their ids and ends.
    2. Compare   with the stored state: lanes of re-created and truncated topics stop before anything else.
    3. Create    remote topics are created and grown, before any record needs them; lanes of re-created ones stop.
    4. Start     offsets where the flow does not begin at the first record; then the list of scheduled topics, which
                 `pull` reads, and event source mappings.

Each step can be interrupted and repeated. The failure of one topic is reported and does not affect the others; only
the failure of a whole cluster or store ends the round.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.ports.kafka import Deadline
from mirrorless.ports.topics import SourceTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.change_detection import ChangeDetector, SourceSnapshot
from mirrorless.topics.discovery import Discovery, discover
from mirrorless.topics.mapping_plan import enabled_topics
from mirrorless.topics.mapping_sync import MappingSync
from mirrorless.topics.pause import MappingPause
from mirrorless.topics.remote_changes import RemoteChangeDetector
from mirrorless.topics.remote_topics import RemoteTopicSync
from mirrorless.topics.scheduled_topics import ScheduledTopicSync


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefresh:
    """The task `topics` of one flow."""

    settings: ControlSettings
    source: SourceTopics
    changes: ChangeDetector
    remote_topics: RemoteTopicSync
    remote_changes: RemoteChangeDetector
    scheduled: ScheduledTopicSync
    mappings: MappingSync | None
    """None where the flow does not manage its mappings."""
    pause: MappingPause | None = None
    """The same."""

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: a cluster or a store does not answer; what was done until then stands.
        """
        # 1. Discover.
        found, snapshot = self._discover(deadline)
        report.troubles += found.troubles()
        report.figures |= {
            "topics": len(found.taken),
            "partitions": sum(snapshot.taken.values()),
            "topics-refused": sum(map(len, found.refused.values())),
        }

        # 2. Compare.
        changes = self.changes.detect(snapshot, report, deadline)

        # 3. Create.
        ready = self.remote_topics.create_and_grow(snapshot.taken, report, deadline)
        self.remote_changes.detect(changes.topics, report, deadline)

        # 4. Start. A topic that has just disappeared, or could not be read, keeps its mapping.
        actual = self.mappings.read(deadline) if self.mappings is not None else []
        # Without mappings of ours, a topic that is not scheduled any more is at once in other hands.
        enabled = enabled_topics(actual, self.settings.name) if self.mappings is not None else found.taken
        scheduled = self.scheduled.sync(
            found,
            changes.topics,
            {topic: count for topic, count in ready.items() if topic in changes.topics},
            enabled=enabled,
            just_gone=changes.just_gone,
            report=report,
            deadline=deadline,
        )
        if self.pause is not None and self.pause.act(actual, report, deadline):
            return
        if self.mappings is not None:
            missing = (snapshot.taken.keys() - ready.keys()) | (found.scheduled - scheduled.read.keys())
            unready = missing | changes.just_gone | (found.mapped - changes.topics.keys())
            self.mappings.sync(
                found,
                changes.topics,
                actual,
                returning=scheduled.returning,
                unready=unready,
                report=report,
                deadline=deadline,
            )

    def _discover(self, deadline: Deadline) -> tuple[Discovery, SourceSnapshot]:
        on_source = self.source.partitions(deadline)
        found = discover(on_source, self.settings)
        ids = self.source.topic_ids(found.taken, deadline)
        taken = {topic: on_source[topic] for topic in found.taken if topic in ids}
        partitions = [(topic, partition) for topic, count in taken.items() for partition in range(count)]
        return found, SourceSnapshot(
            on_source=on_source, taken=taken, ids=ids, ends=self.source.ends(partitions, deadline)
        )
