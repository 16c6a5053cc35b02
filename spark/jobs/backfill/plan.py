"""The plan of a backfill from its request: facts of both clusters, the offset map and the lane states; no writes.

`--dry-run` shows it, and the job makes it before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from mirrorless.adapters.archive import ParquetArchive
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.offsets import KafkaPeek
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.backfill.checks import Configs, LaneFacts, TopicFacts, check_all, expires_at
from mirrorless.backfill.plan import RequestedRange, make_plan, resolve
from mirrorless.chain.entry import Journal
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head
from mirrorless.chain.run import Link
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.jobs.archive import LaneSurvey, Survey
from mirrorless.jobs.copy_task import LaneLog, OffsetRange
from mirrorless.jobs.lane_start import beginning, first_links
from mirrorless.jobs.plan import JobPlan, PlannedLane
from mirrorless.jobs.request import BackfillOptions, Bound, JobRequest
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import Chains, LaneStates
from spark.jobs.backfill.archive_survey import survey_lane
from spark.jobs.clients import warm_archive, warm_log

LANES_AT_A_TIME = 2
"""By default: the cores of the smallest worker."""

ANSWER_SECONDS = 60.0

PEEKED = 1_000
"""Partitions whose first records are read side by side."""

SAMPLE = 500
"""Offsets from which the size of a topic's records is estimated."""


def plan_backfill(
    request: JobRequest,
    *,
    at_a_time: Callable[[], int] = lambda: LANES_AT_A_TIME,
    survey: Survey | None = None,
    dynamodb: Any = None,
) -> JobPlan:
    """Read the facts, check them and make the plan. Needs no Spark session.

    Args:
        request: of the job.
        at_a_time: the most lanes that may run at once; called once all facts are read.
        survey: of an archive, lanes side by side; without it they are counted here, one after the other.
        dynamodb: a client, see `dynamodb_client`; None for a new one.

    Raises:
        ConfigurationError: this is no request for a backfill, or a topic is not there.
        Retriable: a cluster or a store does not answer.
    """
    options = request.options
    if not isinstance(options, BackfillOptions):
        raise ConfigurationError(f"this is a request for {request.kind}", where=request.run_id)
    flow = request.flow
    dynamodb = dynamodb or dynamodb_client(flow.target.region, flow.tables_role, direct=True)
    archive = warm_archive(options.archive) if options.archive is not None else None
    facts = BackfillFacts(
        request=request,
        options=options,
        log=archive or warm_log(msgspec.json.encode(flow.source), flow.flow),
        archive=archive,
        survey=survey,
        chains=DynamoDbChains(dynamodb, flow.tables.offset_map, retention_days=flow.offset_map_retention_days),
        states=DynamoDbLaneStates(dynamodb, flow.tables.lanes),
    )
    lanes = facts.lanes()
    topics = {each.topic: each for each in facts.topics()}
    findings = check_all(
        lanes,
        list(topics.values()),
        options,
        replication_factor=flow.replication_factor,
        holder=request.run_id,
        now=now_ms(),
    )
    hands_over = options.end.kind == "latest" and options.into is None and options.archive is None
    return make_plan(
        request.run_id,
        flow.flow,
        [_planned(facts, lane, topics[lane.topic]) for lane in lanes],
        findings,
        at_a_time=at_a_time(),
        max_mb_per_second=options.max_mb_per_second,
        hands_over=hands_over,
    )


def _planned(facts: BackfillFacts, lane: LaneFacts, topic: TopicFacts) -> PlannedLane:
    wanted = lane.requested.range
    return PlannedLane(
        topic=lane.topic,
        partition=lane.partition,
        lane_topic=facts.lane_topic(lane.topic),
        write_topic=facts.write_topic(lane.topic),
        range=wanted,
        position=lane.position,
        offsets=max(0, wanted.next - max(lane.position, wanted.first)),
        bytes=lane.bytes,
        group="" if facts.options.into is not None else facts.request.flow.consumer_group(lane.topic),
        expires_at=None if facts.archive is not None else expires_at(lane, topic),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFacts:
    """The facts that a plan rests on. Every method raises Retriable when a store or cluster does not answer."""

    request: JobRequest
    options: BackfillOptions
    log: LaneLog
    """The source, or an archive."""
    chains: Chains
    states: LaneStates
    archive: ParquetArchive | None = None
    """The archive that `log` is, where the records come from one."""
    survey: Survey | None = None
    """Of the archive, by Spark; without it the driver counts, lane after lane."""

    def lane_topic(self, topic: str) -> str:
        """The topic of the lanes: history that goes into a topic of its own has lanes of its own, by that topic."""
        return f"{topic}#history.{self.options.into}" if self.options.into is not None else topic

    def write_topic(self, topic: str) -> str:
        """The topic that is written."""
        return self.options.into or self.request.flow.remote_topic(topic)

    def topics(self) -> list[TopicFacts]:
        """Every topic of the request, on both sides."""
        flow = self.request.flow
        source = _configs(KafkaTopics(flow.source, flow=flow.flow, role="job"), self.request.topics)
        remote = [self.write_topic(topic) for topic in self.request.topics]
        target_topics = KafkaTopics(flow.target, flow=flow.flow, role="job")
        there = target_topics.partitions(deadline_in(ANSWER_SECONDS))
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
        requested = {
            place: resolve(*bounds, extents[place], start_at=start_at.get(place), end_at=end_at.get(place))
            for place in places
        }
        live: Mapping[TopicPartition, int] = {}
        if self.options.into is not None and self.options.end.kind == "latest":
            live = self._live(requested)
            requested = {place: each.until(live.get(place)) for place, each in requested.items()}
        surveys = self._surveys(requested)
        sizes, oldest = self._sizes(requested), self._oldest(requested, surveys)
        lanes = {place: Lane(self.request.flow.name, self.lane_topic(place[0]), place[1]) for place in places}
        heads, states = self.chains.heads(lanes.values()), self.states.read(lanes.values())
        links = self._first_links(heads)
        foreign = self._foreign([place for place, lane in lanes.items() if heads[lane] == NEW_LANE])
        found = []
        for place, lane in lanes.items():
            head, state, wanted = heads[lane], states.get(lane, RUNNING), requested[place].range
            begun = beginning(lane, links[lane], wanted, self.log)
            left = max(0, wanted.next - max(head.position, wanted.first))
            found.append(
                LaneFacts(
                    topic=place[0],
                    partition=place[1],
                    requested=requested[place],
                    extent=extents[place],
                    live=live.get(place),
                    position=head.position,
                    begins=begun.begins,
                    before=begun.before,
                    generation=head.generation,
                    stop=state.stop,
                    lease=state.lease,
                    oldest=oldest.get(place),
                    survey=surveys.get(place),
                    foreign=foreign.get(place),
                    bytes=int(left * sizes.get(place[0], 0.0)),
                )
            )
        return found

    def _foreign(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where records stand on the target although the lane has written nothing; of a topic the first partition."""
        flow, found = self.request.flow, dict[TopicPartition, int]()
        # Where both clusters produce to a topic, its records are meant to be there.
        remote = {
            place: (self.write_topic(place[0]), place[1]) for place in places if flow.origin_rule(place[0]) is None
        }
        if not remote:
            return {}
        records = KafkaRecords(flow.target, flow=flow.flow, client_role="job-admin")
        ends = records.ends(remote.values(), deadline_in(ANSWER_SECONDS))
        log = warm_log(msgspec.json.encode(flow.target), flow.flow)
        for place, there in remote.items():
            start, stable, _ = ends.get(there, (0, 0, 0))
            if start >= stable or any(topic == place[0] for topic, _ in found):
                continue
            for chunk in log.read(*there, OffsetRange(start, stable), deadline_in(ANSWER_SECONDS)):
                if chunk.records:
                    found[place] = chunk.records[0].offset
                    break
        return found

    def _first_links(self, heads: Mapping[Lane, Head]) -> Mapping[Lane, list[Link]]:
        return links_of(self.chains, heads)

    def _places(self) -> list[TopicPartition]:
        flow = self.request.flow
        counts = KafkaTopics(flow.source, flow=flow.flow, role="job").partitions(deadline_in(ANSWER_SECONDS))
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
            return {place: self.log.bounds(*place, deadline_in(ANSWER_SECONDS)) for place in places}
        flow = self.request.flow
        ends = KafkaRecords(flow.source, flow=flow.flow, client_role="job-admin").ends(
            places, deadline_in(ANSWER_SECONDS)
        )
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
            found = {place: self.archive.offset_at(*place, bound.value) for place in places}
            return {place: offset for place, offset in found.items() if offset is not None}
        flow = self.request.flow
        topics = KafkaTopics(flow.source, flow=flow.flow, role="job")
        return topics.offsets_at(places, bound.value, deadline_in(ANSWER_SECONDS))

    def _live(self, requested: Mapping[TopicPartition, RequestedRange]) -> dict[TopicPartition, int]:
        """The upstream offsets at which the flow's own lanes begin: history beside them ends there."""
        lanes = {place: Lane(self.request.flow.name, *place) for place in requested}
        links = self._first_links(self.chains.heads(lanes.values()))
        found = {
            place: beginning(lane, links[lane], requested[place].range, self.log).begins
            for place, lane in lanes.items()
        }
        return {place: begins for place, begins in found.items() if begins is not None}

    def _surveys(self, requested: Mapping[TopicPartition, RequestedRange]) -> Mapping[TopicPartition, LaneSurvey]:
        """The survey of each range; empty where a log is read."""
        if self.archive is None:
            return {}
        ranges = {place: each.range for place, each in requested.items()}
        if self.survey is not None:
            return self.survey(ranges)
        return {place: survey_lane(self.archive, *place, wanted) for place, wanted in ranges.items()}

    def _oldest(
        self, requested: Mapping[TopicPartition, RequestedRange], surveys: Mapping[TopicPartition, LaneSurvey]
    ) -> Mapping[TopicPartition, int | None]:
        """The timestamp of the first record of each range, ms since the epoch; of an archive, the oldest one."""
        if self.archive is not None:
            return {place: survey.oldest for place, survey in surveys.items() if survey.oldest >= 0}
        places = {place: each.range.first for place, each in requested.items() if each.range.first < each.range.next}
        flow = self.request.flow
        peek, found = KafkaPeek(flow.source, flow=flow.flow, seconds=ANSWER_SECONDS), dict[TopicPartition, int | None]()
        while left := dict(islice(((place, at) for place, at in places.items() if place not in found), PEEKED)):
            seen = peek.first_timestamps(left)
            if not seen:
                (topic, partition), *more = left
                raise Retriable(
                    "the source did not show the beginning of its log in time, so how old its records are is not known",
                    where=f"{flow.flow} {topic}-{partition}" + (f", and {len(more)} partitions more" if more else ""),
                    hint="if it stays, check that the job may Read the topic",
                )
            found |= seen
        return found

    def _sizes(self, requested: Mapping[TopicPartition, RequestedRange]) -> dict[str, float]:
        """The bytes of keys and values per offset, by topic, from the longest of its ranges."""
        sizes = {}
        for topic in self.request.topics:
            of_topic = [(place, each.range) for place, each in requested.items() if place[0] == topic]
            place, longest = max(of_topic, key=lambda each: each[1].next - each[1].first)
            sizes[topic] = self._sample(place, longest)
        return sizes

    def _sample(self, place: TopicPartition, wanted: OffsetRange) -> float:
        """The bytes per offset at the beginning of a range."""
        some = OffsetRange(wanted.first, min(wanted.next, wanted.first + SAMPLE))
        read = self.log.read(*place, some, deadline_in(ANSWER_SECONDS))
        size = sum(len(each.key or b"") + len(each.value or b"") for chunk in read for each in chunk.records)
        return size / max(1, some.next - some.first)


def links_of(chains: Chains, heads: Mapping[Lane, Head]) -> Mapping[Lane, list[Link]]:
    """The first links of every lane, journals side by side: lanes of one share the reads of its journal."""
    journals: dict[Journal, list[Lane]] = {}
    for lane in heads:
        journals.setdefault(Journal.of(lane), []).append(lane)

    def links(lanes: list[Lane]) -> dict[Lane, list[Link]]:
        return {lane: first_links(chains, lane, heads[lane]) for lane in lanes}

    return {lane: some for found in in_parallel(links, journals.values()) for lane, some in found.items()}


def _configs(topics: KafkaTopics, names: Iterable[str]) -> dict[str, Configs]:
    found, _ = topics.configs(names, deadline_in(ANSWER_SECONDS))
    return {name: {entry.name: entry.value for entry in entries} for name, entries in found.items()}
