"""Which source topics are new, which are others than they were, truncated or gone, and which lanes stop therefore?

The effects around `mirrorless.topics.topic_state`. Lanes stop before it is written down that they had to: a round that
dies in between is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.lane import Lane
from mirrorless.lane_state import RUNNING, Head, Stop
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.ports.stores import Chains, LaneStates, StateStore
from mirrorless.ports.topics import SourceTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics import topic_state
from mirrorless.topics.discovery import some
from mirrorless.topics.topic_state import FlowStart, Memory, SeenTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    """One look at the source."""

    on_source: Mapping[str, int]
    """Every topic with the number of its partitions."""
    taken: Mapping[str, int]
    """The same of those that the flow takes."""
    ids: Mapping[str, str]
    """Of those that the flow takes."""
    ends: Mapping[TopicPartition, int]
    """The upstream offset behind the last record; a partition without a leader is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is known after a look."""

    topics: Mapping[str, SeenTopic]
    """Of the topics taken. A topic is absent if it cannot be told yet where the flow begins with it."""
    just_gone: frozenset[str]
    """Missed for the first time: perhaps the source did not show them for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookout:
    """Watches the topics of one flow's source."""

    settings: ControlSettings
    source: SourceTopics
    documents: StateStore
    chains: Chains
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""

    def watch(self, sight: SourceSnapshot, report: RoundReport, deadline: Deadline) -> Watched:
        """Compare a look with what was known, stop what has to stop, and remember.

        Raises:
            Retriable: the source or a store does not answer.
        """
        memory = Memory.of(self.documents.read(self.settings.name, "topic"))
        beginning = memory.beginning or self._begin(sight)
        seen = self._first_sights(sight, memory, beginning, report, deadline) | self._known(sight, memory, report)
        gone = {
            topic: topic_state.look_at_gone(before, now=self.clock())
            for topic, before in memory.topics.items()
            if topic not in sight.on_source
        }
        unfinished = {topic for topic in gone if self._tell_unfinished(gone[topic], memory, report)}
        self._stop_truncated(sight, memory, report, deadline)
        ends = topic_state.merged_ends(memory.ends, sight.ends, sight.taken, keep=unfinished)
        if news := memory.news(seen | gone, ends):
            self.documents.write(self.settings.name, news)
        report.figures |= {
            "topics-gone": len(gone),
            "topics-recreated": sum(each.recreated is not None for each in seen.values()),
        }
        return Watched(
            topics=seen, just_gone=frozenset(topic for topic in gone if memory.topics[topic].gone_at is None)
        )

    # What is new

    def _begin(self, sight: SourceSnapshot) -> FlowStart:
        """Note what is there before the flow: at once and in one document, so that no death in between blurs it."""
        there = tuple(sorted(topic for topic in sight.on_source if not self.settings.policy.is_internal_topic(topic)))
        beginning = FlowStart(at=self.clock(), topics=there)
        self.documents.write(self.settings.name, {"topics": msgspec.json.encode(beginning)})
        return beginning

    def _first_sights(
        self, sight: SourceSnapshot, memory: Memory, beginning: FlowStart, report: RoundReport, deadline: Deadline
    ) -> dict[str, SeenTopic]:
        """What is known of topics that are seen for the first time."""
        news = [topic for topic in sight.taken if topic not in memory.topics]
        there_before = frozenset(beginning.topics)
        starts, unknown = self._starts([topic for topic in news if topic in there_before], sight, deadline)
        if unknown:
            report.troubles.append(
                f"not begun yet: {some(tuple(unknown))}: the source does not tell where their partitions end"
            )
        return {
            topic: SeenTopic(
                topic=topic,
                topic_id=sight.ids[topic],
                partitions=sight.taken[topic],
                first_seen=self.clock(),
                late=topic not in there_before,
                start=starts.get(topic, ()),
            )
            for topic in news
            if topic not in unknown
        }

    def _starts(
        self, topics: Iterable[str], sight: SourceSnapshot, deadline: Deadline
    ) -> tuple[dict[str, tuple[int, ...]], list[str]]:
        """Where topics begin that were there before the flow; and those of which it cannot be told yet."""
        try:
            start = topic_state.start_of(self.settings.start)
        except ValueError as exc:
            raise ConfigurationError(
                f"start is {self.settings.start!r}, which is neither a word that is known nor a moment",
                where=str(self.settings.name),
                hint="deploy the schedules again from replication.yaml",
            ) from exc
        places = [(topic, partition) for topic in topics for partition in range(sight.taken[topic])]
        if start is None or not places:
            return {}, []
        at = {} if isinstance(start, str) else self.source.offsets_at(places, start, deadline)
        offsets: dict[str, list[int | None]] = {}
        for place in places:
            # A partition begins at its end, or at a moment; at its end too if nothing is that young.
            moment = topic_state.UNKNOWN if isinstance(start, str) else at.get(place)
            offsets.setdefault(place[0], []).append(sight.ends.get(place) if moment == topic_state.UNKNOWN else moment)
        unknown = [topic for topic, begins in offsets.items() if None in begins]
        return {
            topic: tuple(each for each in begins if each is not None)
            for topic, begins in offsets.items()
            if topic not in unknown
        }, unknown

    # What is another topic now

    def _known(self, sight: SourceSnapshot, memory: Memory, report: RoundReport) -> dict[str, SeenTopic]:
        """What is known now of topics that were seen before; lanes of re-created ones stop."""
        return {
            topic: topic_state.look(before, partitions=count)
            if before.topic_id == sight.ids[topic]
            else self._recreated(before, sight, report)
            for topic, count in sight.taken.items()
            if (before := memory.topics.get(topic)) is not None
        }

    def _recreated(self, before: SeenTopic, sight: SourceSnapshot, report: RoundReport) -> SeenTopic:
        flow, topic, topic_id = self.settings.name, before.topic, sight.ids[before.topic]
        heads = self._heads(topic, range(max(sight.taken[topic], before.partitions)))
        now = topic_state.look_at_recreated(
            before,
            topic_id=topic_id,
            partitions=sight.taken[topic],
            heads={lane.partition: head for lane, head in heads.items()},
        )
        if now.recreated is not None:
            waiting = sorted(now.recreated.waiting)
            self._stop(
                {
                    Lane(flow, topic, partition): topic_state.recreated_stop(flow, now, partition, now=self.clock())
                    for partition in waiting
                },
                report,
            )
            report.troubles.append(
                f"{flow} {topic}: deleted on the source and created again (topic id {before.topic_id}, now {topic_id}):"
                f" its partitions {', '.join(map(str, waiting))} stand still until each is reset: "
                f"`{topic_state.reset_command(flow, topic, 'PARTITION', 'earliest')}`"
            )
        return now

    # What is gone

    def _tell_unfinished(self, seen: SeenTopic, memory: Memory, report: RoundReport) -> bool:
        """Tell what a topic that is gone took along; whether there was anything.

        What was replicated to its end is not looked at again: its ends are forgotten.
        """
        ends = memory.ends.get(seen.topic, [])
        heads = self._heads(seen.topic, range(len(ends)))
        # Where a mapping begins at the end, a backfill was to bring what lies before.
        starts = () if self.settings.start == "backfill" else seen.start
        positions = [
            max(head.position, starts[lane.partition] if lane.partition < len(starts) else 0)
            for lane, head in sorted(heads.items())
        ]
        unfinished = topic_state.unfinished(positions, ends)
        for partition, (position, end) in unfinished.items():
            command = topic_state.reset_command(self.settings.name, seen.topic, partition, str(end))
            report.troubles.append(
                f"{Lane(self.settings.name, seen.topic, partition)}: deleted on the source, which ended at {end}; "
                f"replicated up to {position}. Records in between, if there were other things than transaction markers "
                f"and what had expired, are lost; to settle it: `{command}`"
            )
        return bool(unfinished)

    # What lost its end

    def _stop_truncated(self, sight: SourceSnapshot, memory: Memory, report: RoundReport, deadline: Deadline) -> None:
        """Stop the lanes that have replicated more than the source still has."""
        suspects = [
            place
            for place in topic_state.receded(memory.ends, sight.ends)
            if (before := memory.topics.get(place[0])) is not None and before.topic_id == sight.ids[place[0]]
        ]
        if not suspects:
            return
        # The heads first, the ends after them: a lane that goes on meanwhile is not taken for one that went too far.
        heads = self.chains.heads([Lane(self.settings.name, *place) for place in suspects])
        ends = self.source.ends(suspects, deadline)
        stops: dict[Lane, Stop] = {}
        for place in suspects:
            lane = Lane(self.settings.name, *place)
            position, end = heads[lane].position, ends.get(place, sight.ends[place])
            if position > end:
                stops[lane] = topic_state.truncated_stop(
                    self.settings.name, place, end=end, position=position, now=self.clock()
                )
                report.troubles.append(f"{lane}: {stops[lane].detail}")
            else:
                report.troubles.append(
                    f"{lane}: the source lost records that were not replicated yet: it ended at "
                    f"{topic_state.last_end(memory.ends, place)} and then at {sight.ends[place]}"
                )
        self._stop(stops, report)

    def _stop(self, stops: Mapping[Lane, Stop], report: RoundReport) -> None:
        """Stop lanes, but for those that are stopped already, for whatever reason."""
        states = self.states.read(stops)
        running = [lane for lane in stops if states.get(lane, RUNNING).stop is None]
        for lane in running:
            self.states.stop(lane, stops[lane])
        report.figures["lanes-stopped"] = report.figures.get("lanes-stopped", 0) + len(running)

    def _heads(self, topic: str, partitions: Iterable[int]) -> dict[Lane, Head]:
        return self.chains.heads([Lane(self.settings.name, topic, partition) for partition in partitions])
