"""The detection of new, re-created, truncated and deleted source topics, and the stops of their lanes.

The effects around `mirrorless.topics.topic_state`. Lanes are stopped before the new state is stored, so a round that
is interrupted in between is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import RUNNING, Head, Stop
from mirrorless.chain.run import NO_EPOCH, Run
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import reset_command
from mirrorless.flow.settings import FlowSettings
from mirrorless.lanes.check_state import LaneNotes, TopicNotes, read_notes
from mirrorless.ports.kafka import LogEpochs, TopicPartition
from mirrorless.ports.stores import Chains, LaneStates, StateStore
from mirrorless.ports.topics import SourceTopics, TargetTopics
from mirrorless.protocol.log_parting import Parting, compare, parted_stop
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics import topic_state
from mirrorless.topics.discovery import some
from mirrorless.topics.topic_state import FlowStart, StoredTopics, TopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    """The source's topics at one moment."""

    on_source: Mapping[str, int]
    """Every topic with the number of its partitions."""
    taken: Mapping[str, int]
    """The same, of the topics that the flow takes."""
    ids: Mapping[str, str]
    """Topic ids, of the topics that the flow takes."""
    ends: Mapping[TopicPartition, int]
    """The upstream offset after the last record; a partition without a leader is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChanges:
    """The state of the source's topics after a comparison."""

    topics: Mapping[str, TopicState]
    """Of the topics taken. A topic is absent until the offsets where the flow begins with it are readable."""
    just_gone: frozenset[str]
    """Missing for the first time: the listing may have been incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDetector:
    """Compares the topics of one flow, at both ends, with their stored state."""

    settings: FlowSettings
    source: SourceTopics
    epochs: LogEpochs
    """Of the source."""
    target: TargetTopics
    documents: StateStore
    chains: Chains
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""

    def detect(self, snapshot: SourceSnapshot, report: RoundReport, deadline: Deadline) -> SourceChanges:
        """Compare a snapshot with the stored state, stop lanes, and store the new state.

        Raises:
            Retriable: the source or a store does not answer.
        """
        stored = StoredTopics.of(self.documents.read(self.settings.name, "topic"))
        beginning = stored.beginning or self._begin(snapshot)
        states = self._new_topics(snapshot, stored, beginning, report, deadline) | self._existing_topics(
            snapshot, stored, report
        )
        gone = {
            topic: topic_state.mark_gone(before, now=self.clock())
            for topic, before in stored.topics.items()
            if topic not in snapshot.on_source
        }
        unfinished = {topic for topic in gone if self._report_unfinished(gone[topic], stored, report)}
        self._stop_truncated(snapshot, stored, report, deadline)
        ends = topic_state.merged_ends(stored.ends, snapshot.ends, snapshot.taken, keep=unfinished)
        if changed := stored.changed(states | gone, ends):
            self.documents.write(self.settings.name, changed)
        report.counts |= {
            "topics-gone": len(gone),
            "topics-recreated": sum(each.recreated is not None for each in states.values()),
        }
        return SourceChanges(
            topics=states, just_gone=frozenset(topic for topic in gone if stored.topics[topic].gone_at is None)
        )

    # New topics

    def _begin(self, snapshot: SourceSnapshot) -> FlowStart:
        """Store the topics that exist before the flow, in one write, so that the list is complete or absent."""
        existing = tuple(
            sorted(topic for topic in snapshot.on_source if not self.settings.policy.is_internal_topic(topic))
        )
        beginning = FlowStart(at=self.clock(), topics=existing)
        self.documents.write(self.settings.name, {"topics": msgspec.json.encode(beginning)})
        return beginning

    def _new_topics(
        self,
        snapshot: SourceSnapshot,
        stored: StoredTopics,
        beginning: FlowStart,
        report: RoundReport,
        deadline: Deadline,
    ) -> dict[str, TopicState]:
        """The state of topics without a stored one."""
        new = [topic for topic in snapshot.taken if topic not in stored.topics]
        existed_before = frozenset(beginning.topics)
        starts, unknown = self._starts([topic for topic in new if topic in existed_before], snapshot, deadline)
        if unknown:
            report.troubles.append(
                f"not begun yet: {some(tuple(unknown))}: the ends of their partitions cannot be read"
            )
        return {
            topic: TopicState(
                topic=topic,
                topic_id=snapshot.ids[topic],
                partitions=snapshot.taken[topic],
                first_seen=self.clock(),
                late=topic not in existed_before,
                start=starts.get(topic, ()),
            )
            for topic in new
            if topic not in unknown
        }

    def _starts(
        self, topics: Iterable[str], snapshot: SourceSnapshot, deadline: Deadline
    ) -> tuple[dict[str, tuple[int, ...]], list[str]]:
        """The start offsets of topics that existed before the flow, and the topics without readable ones yet."""
        try:
            start = topic_state.start_of(self.settings.start)
        except ValueError as exc:
            raise ConfigurationError(
                f"start is {self.settings.start!r}, which is neither a keyword nor a moment",
                where=str(self.settings.name),
                hint="deploy the schedules again from replication.yaml",
            ) from exc
        partitions = [(topic, partition) for topic in topics for partition in range(snapshot.taken[topic])]
        if start is None or not partitions:
            return {}, []
        at = {} if isinstance(start, str) else self.source.offsets_at(partitions, start, deadline)
        offsets: dict[str, list[int | None]] = {}
        for partition in partitions:
            # A partition begins at its end, or at a moment; at its end too if no record is that recent.
            moment = topic_state.UNKNOWN if isinstance(start, str) else at.get(partition)
            offsets.setdefault(partition[0], []).append(
                snapshot.ends.get(partition) if moment == topic_state.UNKNOWN else moment
            )
        unknown = [topic for topic, begins in offsets.items() if None in begins]
        return {
            topic: tuple(each for each in begins if each is not None)
            for topic, begins in offsets.items()
            if topic not in unknown
        }, unknown

    # Re-created topics

    def _existing_topics(
        self, snapshot: SourceSnapshot, stored: StoredTopics, report: RoundReport
    ) -> dict[str, TopicState]:
        """The new state of topics with a stored one; lanes of re-created ones stop."""
        return {
            topic: topic_state.mark_present(before, partitions=count)
            if before.topic_id == snapshot.ids[topic]
            else self._recreated(before, snapshot, report)
            for topic, count in snapshot.taken.items()
            if (before := stored.topics.get(topic)) is not None
        }

    def _recreated(self, before: TopicState, snapshot: SourceSnapshot, report: RoundReport) -> TopicState:
        flow, topic, topic_id = self.settings.name, before.topic, snapshot.ids[before.topic]
        heads = self._heads(topic, range(max(snapshot.taken[topic], before.partitions)))
        now = topic_state.mark_recreated(before, topic_id=topic_id, partitions=snapshot.taken[topic], heads=heads)
        if now.recreated is not None:
            waiting = sorted(now.recreated.waiting)
            stop_running(
                self.states,
                {
                    Lane(flow, topic, partition): topic_state.recreated_stop(
                        now, partition, partitions=snapshot.taken[topic], now=self.clock()
                    )
                    for partition in waiting
                },
                report,
            )
            gone = [partition for partition in waiting if partition >= snapshot.taken[topic]]
            report.troubles.append(
                f"{flow} {topic}: deleted on the source and created again (topic id {before.topic_id}, now {topic_id}):"
                f" its partitions {', '.join(map(str, waiting))} {topic_state.UNTIL_RESET}"
                f"{f', and {gone[0]} and up are gone, which closes them' if gone else ''}: "
                f"`{reset_command(flow, topic, None, 'earliest', reason='re-created')}`"
            )
        return now

    # Deleted topics

    def _report_unfinished(self, state: TopicState, stored: StoredTopics, report: RoundReport) -> bool:
        """Report what a deleted topic had left to replicate, and return whether there was anything.

        The ends of a topic that was replicated completely are dropped, so it is not compared again.
        """
        ends = stored.ends.get(state.topic, [])
        heads = self._heads(state.topic, range(len(ends)))
        # With `backfill` the mapping begins at the end, and a backfill copies what lies before.
        starts = () if self.settings.start == "backfill" else state.start
        positions = [
            max(head.position, starts[partition] if partition < len(starts) else 0)
            for partition, head in sorted(heads.items())
        ]
        unfinished = topic_state.unfinished(positions, ends)
        for partition, (position, end) in unfinished.items():
            command = reset_command(
                self.settings.name, state.topic, partition, str(end), reason="deleted on the source"
            )
            report.troubles.append(
                f"{Lane(self.settings.name, state.topic, partition)}: deleted on the source, which ended at {end}; "
                f"replicated up to {position}. Records in between, if there were other things than transaction markers "
                f"and what had expired, are lost; to settle it: `{command}`"
            )
        return bool(unfinished)

    # Truncated topics

    def _stop_truncated(
        self, snapshot: SourceSnapshot, stored: StoredTopics, report: RoundReport, deadline: Deadline
    ) -> None:
        """Stop the lanes whose position lies beyond the source's end."""
        suspects = [
            partition
            for partition in topic_state.receded(stored.ends, snapshot.ends)
            if (before := stored.topics.get(partition[0])) is not None and before.topic_id == snapshot.ids[partition[0]]
        ]
        if not suspects:
            return
        # The heads before the ends: otherwise a lane that advances in between would seem to be beyond the end.
        heads = self.chains.heads([Lane(self.settings.name, *partition) for partition in suspects])
        ends = self.source.ends(suspects, deadline)
        parting = self._partings(suspects, heads, deadline)
        stops: dict[Lane, Stop] = {}
        for partition in suspects:
            lane = Lane(self.settings.name, *partition)
            position, end = heads[lane].position, ends.get(partition, snapshot.ends[partition])
            if position > end:
                at = min(end, parting.get(partition, end))
                stops[lane] = parted_stop(lane, at, position=position, now=self.clock())
                report.troubles.append(f"{lane}: {stops[lane].detail}")
            else:
                report.troubles.append(
                    f"{lane}: the source lost records that were not replicated yet: it ended at "
                    f"{topic_state.last_end(stored.ends, partition)} and then at {snapshot.ends[partition]}"
                )
        stop_running(self.states, stops, report)

    def _partings(
        self, suspects: Iterable[TopicPartition], heads: Mapping[Lane, Head], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Where logs part from what was copied: by the epochs of the newest runs, or those of the last lane check.

        The source may have been written on before its end was read: that end is too high then.
        """
        flow, notes = self.settings.name, read_notes(self.documents, self.settings.name)

        def covering(lane: Lane, offset: int) -> Run | None:
            link = self.chains.at_or_before(lane, heads[lane].generation, offset)
            return link if isinstance(link, Run) else None

        partings: dict[TopicPartition, Parting] = {}
        for topic, partition in suspects:
            lane = Lane(flow, topic, partition)
            run, noted = heads[lane].run, notes.get(topic, TopicNotes()).lanes.get(partition, LaneNotes())
            if run is not None and run.epoch == NO_EPOCH:
                run = replace(run, epoch=noted.epoch)
            partings[topic, partition] = Parting(run, partial(covering, lane))
        compare(partings, lambda asked: self.epochs.ends(asked, deadline))
        return {place: each.at for place, each in partings.items() if each.at is not None}

    def _heads(self, topic: str, partitions: Iterable[int]) -> dict[int, Head]:
        heads = self.chains.heads([Lane(self.settings.name, topic, partition) for partition in partitions])
        return {lane.partition: head for lane, head in heads.items()}

    # Remote topics

    def detect_remote(self, topics: Mapping[str, TopicState], report: RoundReport, deadline: Deadline) -> None:
        """Compare the ids of remote topics with their stored state, stop lanes, and store what changed.

        Args:
            topics: the state of source topics, as it is stored.
            report: gets the topics that were re-created.
            deadline: seconds that are left.

        Raises:
            Retriable: the target or a store does not answer.
        """
        remote = {topic: self.settings.remote_topic(topic) for topic in topics}
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
        by_partition = self._heads(topic, range(before.partitions))
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


def stop_running(states: LaneStates, stops: Mapping[Lane, Stop], report: RoundReport) -> None:
    """Stop lanes, see `LaneState.stopped_by`."""
    known = states.read(stops)
    stored = {lane: known.get(lane, RUNNING).stopped_by(stop) for lane, stop in stops.items()}
    for lane, stop in stored.items():
        if stop is not None:
            states.stop(lane, stop)
    running = [lane for lane, stop in stored.items() if stop == stops[lane]]
    report.counts["lanes-stopped"] = report.counts.get("lanes-stopped", 0) + len(running)
