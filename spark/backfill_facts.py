"""What must be known before a backfill begins? Read from both clusters, the offset map and the lanes' states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirrorless.adapters.archive.lane_log import ParquetArchive
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.timestamps import KafkaPeek
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.backfill.checks import Configs, LaneFacts, TopicFacts
from mirrorless.backfill.ranges import Asked, resolve
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.archive import LaneSurvey, Survey
from mirrorless.jobs.copy_task import LaneLog, OffsetRange
from mirrorless.jobs.lane_copy import deadline_in
from mirrorless.jobs.lane_start import beginning
from mirrorless.jobs.request import BackfillOptions, Bound, JobRequest
from mirrorless.lane import Lane
from mirrorless.lane_state import RUNNING
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import Chains, LaneStates
from spark.archive_survey import survey_lane

ASK_SECONDS = 60.0

SAMPLE = 500
"""Offsets from which the size of a topic's records is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFacts:
    """Reads everything that a plan rests on. Every method raises Retriable when a store or cluster does not answer."""

    request: JobRequest
    options: BackfillOptions
    log: LaneLog
    """Where the records are read: the source, or an archive."""
    chains: Chains
    states: LaneStates
    archive: ParquetArchive | None = None
    """The archive, where the records come from one; `log` is the same one."""
    survey: Survey | None = None
    """Counts what the archive has; by itself the driver does it, lane after lane."""

    def lane_topic(self, topic: str) -> str:
        """The lanes' own name: with a topic of its own, history has lanes of its own."""
        return f"{topic}#history" if self.options.into is not None else topic

    def write_topic(self, topic: str) -> str:
        """Where the records go."""
        return self.options.into or self.request.flow.remote_topic(topic)

    def topics(self) -> list[TopicFacts]:
        """Every topic of the request, on both sides."""
        flow = self.request.flow
        source = _configs(KafkaTopics(flow.source, flow=flow.flow, role="job"), self.request.topics)
        remote = [self.write_topic(topic) for topic in self.request.topics]
        target_topics = KafkaTopics(flow.target, flow=flow.flow, role="job")
        there = target_topics.partitions(deadline_in(ASK_SECONDS))
        target = _configs(target_topics, [name for name in remote if name in there])
        remotes = {flow.remote_topic(topic) for topic in self.request.topics}
        return [
            TopicFacts(
                topic=topic,
                write_topic=self.write_topic(topic),
                source=source.get(topic, {}),
                target=target.get(self.write_topic(topic)),
                is_remote=self.write_topic(topic) in remotes,
            )
            for topic in self.request.topics
        ]

    def lanes(self) -> list[LaneFacts]:
        """Every lane of the request.

        Raises:
            ConfigurationError: a topic or a partition is not there.
        """
        places = self._places()
        extents = self._extents(places)
        bounds = (self.options.start, self.options.end)
        start_at, end_at = (self._at(bound, places) for bound in bounds)
        asked = {
            place: resolve(*bounds, extents[place], start_at=start_at.get(place), end_at=end_at.get(place))
            for place in places
        }
        if self.options.into is not None and self.options.end.kind == "latest":
            asked = {place: self._until_live(place, each) for place, each in asked.items()}
        surveys = self._surveys(asked)
        sizes, oldest = self._sizes(asked), self._oldest(asked, surveys)
        lanes = {place: Lane(self.request.flow.name, self.lane_topic(place[0]), place[1]) for place in places}
        heads, states = self.chains.heads(lanes.values()), self.states.read(lanes.values())
        found = []
        for place, lane in lanes.items():
            head, state, wanted = heads[lane], states.get(lane, RUNNING), asked[place].range
            begun = beginning(lane, head.generation, wanted, self.chains, self.log)
            left = max(0, wanted.next - max(head.position, wanted.first))
            found.append(
                LaneFacts(
                    topic=place[0],
                    partition=place[1],
                    asked=asked[place],
                    extent=extents[place],
                    position=head.position,
                    begins=begun.begins,
                    before=begun.before,
                    generation=head.generation,
                    stop=state.stop,
                    lease=state.lease,
                    oldest=oldest.get(place),
                    survey=surveys.get(place),
                    bytes=int(left * sizes.get(place[0], 0.0)),
                )
            )
        return found

    def _places(self) -> list[TopicPartition]:
        flow = self.request.flow
        counts = KafkaTopics(flow.source, flow=flow.flow, role="job").partitions(deadline_in(ASK_SECONDS))
        places: list[TopicPartition] = []
        for topic in self.request.topics:
            wanted = self.request.partitions.get(topic)
            count = counts.get(topic, 0)
            missing = [each for each in wanted or () if each >= count]
            if not count or missing:
                raise ConfigurationError(
                    f"partition {missing[0]} is not there" if count else "the topic is not there, or may not be seen",
                    where=f"{flow.flow} {topic} on {flow.source.alias}",
                    hint="name topics as they are on the source, and let the job Describe and Read them",
                )
            places += [(topic, partition) for partition in (range(count) if wanted is None else wanted)]
        return places

    def _extents(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        if self.archive is not None:
            return {place: self.log.bounds(*place, deadline_in(ASK_SECONDS)) for place in places}
        flow = self.request.flow
        ends = KafkaRecords(flow.source, flow=flow.flow, client_role="job-admin").ends(places, deadline_in(ASK_SECONDS))
        unknown = [place for place in places if place not in ends]
        if unknown:
            raise ConfigurationError(
                "the partition has no leader, or may not be read",
                where=f"{flow.flow} {unknown[0][0]}-{unknown[0][1]} on {flow.source.alias}",
                hint="wait for its leader, or leave it out with the job's partitions",
            )
        return {place: OffsetRange(start, stable) for place, (start, stable, _) in ends.items()}

    def _at(self, bound: Bound, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if bound.kind != "timestamp":
            return {}
        if self.archive is not None:
            told = {place: self.archive.offset_at(*place, bound.value) for place in places}
            return {place: offset for place, offset in told.items() if offset is not None}
        flow = self.request.flow
        topics = KafkaTopics(flow.source, flow=flow.flow, role="job")
        return topics.offsets_at(places, bound.value, deadline_in(ASK_SECONDS))

    def _until_live(self, place: TopicPartition, asked: Asked) -> Asked:
        """History beside a live lane ends where that lane begins."""
        lane = Lane(self.request.flow.name, *place)
        head = self.chains.heads([lane])[lane]
        begins = beginning(lane, head.generation, asked.range, self.chains, self.log).begins
        following = asked.range.next if begins is None else max(asked.range.first, min(begins, asked.range.next))
        return Asked(first=asked.first, range=OffsetRange(asked.range.first, following))

    def _surveys(self, asked: Mapping[TopicPartition, Asked]) -> Mapping[TopicPartition, LaneSurvey]:
        """What the archive has of each range; nothing where a log is read."""
        if self.archive is None:
            return {}
        ranges = {place: each.range for place, each in asked.items()}
        if self.survey is not None:
            return self.survey(ranges)
        return {place: survey_lane(self.archive, *place, wanted) for place, wanted in ranges.items()}

    def _oldest(
        self, asked: Mapping[TopicPartition, Asked], surveys: Mapping[TopicPartition, LaneSurvey]
    ) -> Mapping[TopicPartition, int | None]:
        """When the first record of each range was written, ms since the epoch; of an archive's, the oldest one."""
        if self.archive is not None:
            return {place: survey.oldest for place, survey in surveys.items() if survey.oldest >= 0}
        places = {place: each.range.first for place, each in asked.items() if each.range.first < each.range.next}
        flow = self.request.flow
        return KafkaPeek(flow.source, flow=flow.flow, seconds=ASK_SECONDS).first_timestamps(places)

    def _sizes(self, asked: Mapping[TopicPartition, Asked]) -> dict[str, float]:
        """Bytes of keys and values per offset, by topic, from the longest of its ranges."""
        sizes = {}
        for topic in self.request.topics:
            of_topic = [(place, each.range) for place, each in asked.items() if place[0] == topic]
            place, longest = max(of_topic, key=lambda each: each[1].next - each[1].first)
            sizes[topic] = self._sample(place, longest)
        return sizes

    def _sample(self, place: TopicPartition, wanted: OffsetRange) -> float:
        """Bytes per offset at the beginning of a range."""
        some = OffsetRange(wanted.first, min(wanted.next, wanted.first + SAMPLE))
        for chunk in self.log.read(*place, some, deadline_in(ASK_SECONDS)):
            size = sum(len(each.key or b"") + len(each.value or b"") for each in chunk.records)
            return size / max(1, chunk.covered - some.first)
        return 0.0


def _configs(topics: KafkaTopics, names: Iterable[str]) -> dict[str, Configs]:
    found, _ = topics.configs(names, deadline_in(ASK_SECONDS))
    return {name: {entry.name: entry.value for entry in entries} for name, entries in found.items()}
