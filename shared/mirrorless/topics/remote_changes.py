"""The detection of remote topics that were deleted and created again, and the stops of their lanes.

Such a topic has another id, and the downstream offsets in the map are of records that are gone. A forwarder detects it
only while the new topic is shorter than the old one was (`mirrorless.protocol.settle`); the id is compared at every
refresh. Lanes are stopped before the new state is stored, so a round that is interrupted in between is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from mirrorless.lane import Lane
from mirrorless.operator_commands import reset_command
from mirrorless.ports.kafka import Deadline
from mirrorless.ports.stores import Chains, LaneStates, StateStore
from mirrorless.ports.topics import TargetTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics import topic_state
from mirrorless.topics.change_detection import stop_running
from mirrorless.topics.topic_state import TopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChangeDetector:
    """Compares the ids of one flow's remote topics with their stored state."""

    settings: ControlSettings
    target: TargetTopics
    documents: StateStore
    chains: Chains
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""

    def detect(self, topics: Mapping[str, TopicState], report: RoundReport, deadline: Deadline) -> None:
        """Compare, stop lanes, and store what changed.

        Args:
            topics: the state of source topics, as it is stored.
            report: gets the topics that were re-created.
            deadline: seconds that are left.

        Raises:
            Retriable: the target or a store does not answer.
        """
        policy, source = self.settings.policy, self.settings.name.source
        remote = {topic: policy.remote_topic(source, topic) for topic in topics}
        ids = self.target.topic_ids(remote.values(), deadline)
        after = {
            topic: self._compared(before, remote[topic], ids[remote[topic]], report)
            for topic, before in topics.items()
            if remote[topic] in ids
        }
        changed = {
            f"topic/{topic}": msgspec.json.encode(state) for topic, state in after.items() if state != topics[topic]
        }
        if changed:
            self.documents.write(self.settings.name, changed)

    def _compared(self, before: TopicState, remote: str, topic_id: str, report: RoundReport) -> TopicState:
        if before.remote_topic_id in ("", topic_id):
            return topic_state.mark_remote_present(before, topic_id=topic_id)
        flow, topic = self.settings.name, before.topic
        heads = self.chains.heads([Lane(flow, topic, partition) for partition in range(before.partitions)])
        by_partition = {lane.partition: head for lane, head in heads.items()}
        now = topic_state.mark_remote_recreated(before, topic_id=topic_id, heads=by_partition)
        if now.remote_recreated is not None:
            waiting = sorted(now.remote_recreated.waiting)
            stops = {
                Lane(flow, topic, partition): topic_state.remote_recreated_stop(
                    flow, now, partition, head.run.position, now=self.clock()
                )
                for partition in waiting
                # A run in doubt is settled first: until then its writer may still commit, and no reset may drop it.
                if (head := by_partition[partition]).run is not None and not head.in_doubt
            }
            stop_running(self.states, stops, report)
            command = reset_command(flow, topic, None, "earliest", reason="the remote topic was re-created")
            report.troubles.append(
                f"{flow} {topic}: {remote} was deleted on the target and created again (topic id "
                f"{before.remote_topic_id}, now {topic_id}): partitions {', '.join(map(str, waiting))} "
                f"{topic_state.UNTIL_RESET}: `{command}`"
            )
        return now
