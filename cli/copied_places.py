"""The places behind what another replicator has copied of a flow's lanes, found by the tails of both logs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from cli.args import BadInput
from cli.output import progress_line
from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Span
from mirrorless.clock import deadline_in
from mirrorless.errors import Retriable
from mirrorless.jobs.request import PROVENANCE
from mirrorless.lanes.gaps import cleanup_of
from mirrorless.mm2.internal_records import Checkpoint, OffsetSync
from mirrorless.mm2.source_offsets import SourcePartition
from mirrorless.protocol.past import Pair, SyncedLane
from mirrorless.records.origin import ORIGIN_HEADER
from mirrorless.verify.comparison import content
from mirrorless.verify.copied_end import CopiedEnd, KeyedRecord, LogWindow, Reach, copied_end

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.records import KafkaRecords
    from mirrorless.adapters.kafka.source_offsets import KafkaSourceOffsets, KafkaTails, StoredOffset
    from mirrorless.flow.settings import ClusterSettings, FlowSettings
    from mirrorless.ports.kafka import LogEnds, TopicPartition
    from mirrorless.records.record import Record

ANSWER_SECONDS = 60.0
"""For each question to a cluster."""

READ_SECONDS = 600.0
"""For a read of an offsets topic, which Connect compacts late, or of the tails of some lanes."""

STILL_SECONDS = 5.0
"""Between two looks at the ends of remote partitions: MirrorMaker polls once a second."""

TOGETHER = 32
"""Lanes that are read at the same time; fewer where more of each is read."""

LAST = 100
"""Offsets of the target's tail whose times say about where it stands on the source: fewer than `copied_end.LOOK`."""

NEWEST = 1_000_000
"""Records of a topic of MirrorMaker's that are read: its last ones, some 100 MB."""

_LATE = "LogAppendTime"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlace:
    """What was found of one lane."""

    lane: Lane
    said: int | None
    """The last upstream offset that MirrorMaker says to have copied."""
    found: CopiedEnd
    source_start: int
    """Where the source's log begins."""
    past: tuple[Span, ...] = ()
    """See `SyncedLane.past`; empty where there is no place."""

    @property
    def behind_said(self) -> int | None:
        """The upstream offset with which MirrorMaker itself would go on."""
        return None if self.said is None else self.said + 1


@dataclass(kw_only=True)
class PlaceSearch:
    """The search on the two clusters of one flow."""

    settings: FlowSettings
    topic: str | None
    """None: every one that the flow takes."""
    offsets: KafkaSourceOffsets | None = None
    """None where the logs alone are looked at: of a replicator whose offsets nobody else can read."""
    connector: str | None = None
    """The name of MirrorMaker's source connector, where there are several; None where there is one."""
    workers: str = ""
    """The group of MirrorMaker's own workers; empty in a Connect cluster, whose workers have other connectors too."""
    unseen: frozenset[str] = frozenset()
    """Headers that the replicator adds."""
    ours: bool = False
    """Whether the flow itself has copied, of which only one lane is looked at: what it leaves out does not count."""
    _rewritten: set[str] = field(default_factory=set)
    """Topics whose remote topics have times of their own."""
    _compacted: set[str] = field(default_factory=set)
    _unborn: set[TopicPartition] = field(default_factory=set)
    """Remote partitions that are not there yet."""

    @property
    def alias(self) -> str:
        """The source's, as MirrorMaker has it."""
        return self.settings.policy.prefix(self.settings.source.alias)

    def said(self) -> dict[SourcePartition, StoredOffset]:
        """What MirrorMaker says, of the one connector that it is about.

        Raises:
            BadInput: there are several, or none.
            ConfigurationError, Retriable: the offsets topic cannot be read.
        """
        if self.offsets is None:
            return {}
        stored = {
            about: each
            for about, each in self.offsets.read(deadline_in(READ_SECONDS)).items()
            if about.cluster == self.alias and self.connector in {None, about.connector}
        }
        names = sorted({about.connector for about in stored})
        if len(names) != 1:
            raise BadInput(
                f"MirrorMaker's offsets are of the connectors {', '.join(names)}"
                if names
                else f"no connector has offsets of the source as {self.alias}",
                where=str(self.settings.name),
                hint="name the one of this flow: --connector NAME"
                if names
                else "look at --offsets-topic and --connector, and at the source's `topic.prefix` in replication.yaml",
            )
        return stored

    def lanes(self) -> list[Lane]:
        """The lanes of the flow's topics that have a remote topic: also those of partitions that it lacks."""
        from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- commands without Kafka start sooner

        settings, soon = self.settings, deadline_in(ANSWER_SECONDS)
        source, target = (
            KafkaTopics(cluster, flow=settings.flow, role="take-over") for cluster in (settings.source, settings.target)
        )
        there = target.partitions(soon)
        topics = {
            topic: count
            for topic, count in source.partitions(soon).items()
            if settings.replicates(topic) and self.topic in {None, topic} and settings.remote_topic(topic) in there
        }
        remote = {settings.remote_topic(topic): topic for topic in topics}
        self._unborn = {(name, each) for name, topic in remote.items() for each in range(there[name], topics[topic])}
        configs, failures = target.configs(remote, soon)
        ours, failed = source.configs(remote.values(), soon)
        if failures or failed:
            name, why = next(iter({**failures, **failed}.items()))
            raise Retriable(f"the configs of {name} cannot be read: {why}", where=settings.flow)
        for name, topic in remote.items():
            if any(each.name == "message.timestamp.type" and each.value == _LATE for each in configs[name]):
                self._rewritten.add(topic)
            if cleanup_of({each.name: each.value for each in ours[topic]}).compacts:
                self._compacted.add(topic)
        return [Lane(settings.name, topic, each) for topic, count in sorted(topics.items()) for each in range(count)]

    def moving(self, lanes: Iterable[Lane]) -> str:
        """Why the target does not stand still; empty where it does. It takes some seconds.

        Args:
            lanes: whose remote partitions nobody else writes to.

        Raises:
            BadInput: MirrorMaker runs in a Connect cluster, as `said`.
        """
        from mirrorless.adapters.kafka.wire.cluster import WireCluster  # noqa: PLC0415 -- see above
        from mirrorless.adapters.kafka.wire.group_members import running_group  # noqa: PLC0415 -- see above

        target, flow = self.settings.target, self.settings.flow
        if self.offsets is not None:
            connector = self.connector or ("" if self.workers else next(iter(self.said())).connector)
            with closing(WireCluster(target, flow=flow, client_role="take-over", needed=())) as wire:
                if group := running_group(wire, connector, self.workers, deadline_in(ANSWER_SECONDS)):
                    return f"its workers' group {group} has members on the target"
        places = [(self.settings.remote_topic(lane.topic), lane.partition) for lane in lanes]
        before: dict[TopicPartition, LogEnds] = {}
        for pause in (STILL_SECONDS, 0) if places else ():
            ends = self._ends(places, of_target=True)
            if grown := sorted(place for place in before if before[place] != ends.get(place)):
                more = f" and {len(grown) - 1} more" if grown[1:] else ""
                return f"{grown[0][0]}-{grown[0][1]}{more} of the target grew within {STILL_SECONDS:.0f} s"
            if hidden := _hidden(ends):
                return hidden
            before = ends
            time.sleep(pause)  # an observation over time
        return ""

    def hidden(self, lane: Lane) -> str:
        """What hides the end of a lane's remote partition; empty for nothing."""
        return _hidden(self._ends([(self.settings.remote_topic(lane.topic), lane.partition)], of_target=True))

    def synced(self, lanes: Collection[Lane]) -> list[dict[Lane, list[Pair]]]:
        """The pairs of MirrorMaker's offset syncs, of each topic that may have them.

        On the target they bear the source's name, as those do that a flow in the other direction has there.

        Raises:
            Retriable: a cluster does not answer.
        """
        settings, found = self.settings, list[dict[Lane, list[Pair]]]()
        for cluster, other in ((settings.target, settings.source), (settings.source, settings.target)):
            pairs: dict[Lane, list[Pair]] = defaultdict(list)
            for each in self._newest(cluster, settings.policy.offset_syncs_topic(other.alias), OffsetSync.decode):
                if (lane := Lane(settings.name, each.topic, each.partition)) in lanes:
                    pairs[lane].append((each.upstream, each.downstream))
            found.append(pairs)
        return found

    def checkpoints(self) -> dict[str, dict[TopicPartition, set[int]]]:
        """The downstream offsets of all checkpoints on the target, by group and remote partition.

        Raises:
            Retriable: the target does not answer.
        """
        settings, found = self.settings, dict[str, dict[Any, set[int]]]()
        topic = settings.policy.checkpoints_topic(settings.source.alias)
        for each in self._newest(settings.target, topic, Checkpoint.decode):
            found.setdefault(each.group, {}).setdefault((each.topic, each.partition), set()).add(each.downstream)
        return found

    def _newest(self, cluster: ClusterSettings, topic: str, decode: Callable[[bytes, bytes], T]) -> Iterator[T]:
        from mirrorless.adapters.kafka.source_offsets import newest_records  # noqa: PLC0415 -- see above

        limit = deadline_in(READ_SECONDS)
        for record in newest_records(cluster, topic, flow=self.settings.flow, at_most=NEWEST, deadline=limit):
            # MirrorMaker passes over what is none of its records, too.
            with suppress(ValueError):
                yield decode(record.key or b"", record.value or b"")

    def places(
        self, said: Mapping[SourcePartition, StoredOffset], lanes: Sequence[Lane], copied: Mapping[Lane, int]
    ) -> list[LanePlace]:
        """The places of lanes, by tails that grow where it takes more; with the progress on standard error.

        Args:
            said: see `said`.
            lanes: in order.
            copied: of those that the flow has copied, the upstream offset below which it has all.

        Raises:
            Retriable: a cluster does not answer, or a partition has no leader.
        """
        by_time = self.offsets is None
        least = self._least_by_time(lanes) if by_time else {lane: _last(said, self.alias, lane) for lane in lanes}
        found: dict[Lane, CopiedEnd] = {}
        looked: dict[Lane, tuple[LogWindow, LogWindow]] = {}
        with closing(self._tails(of_target=False)) as source, closing(self._tails(of_target=True)) as target:
            left: dict[Lane, Reach] = dict.fromkeys(lanes, Reach())
            while left:
                some = list(left)[
                    : max(1, TOGETHER * Reach().tail // max(max(each.tail, each.ahead) for each in left.values()))
                ]
                reach = {lane: left.pop(lane) for lane in some}
                # The target first: what is copied meanwhile would seem to be a record of somebody else.
                theirs = self._windows(target, reach, least, of_target=True)
                ours = self._windows(source, reach, least, of_target=False)
                for lane in some:
                    end = copied_end(
                        ours[lane],
                        theirs[lane],
                        least[lane],
                        source_compacts=lane.topic in self._compacted,
                        copied=copied.get(lane, 0),
                    )
                    if (wider := reach[lane].wider(end.needs)) is not None:
                        left[lane] = wider
                    found[lane] = end
                    looked[lane] = replace(ours[lane], records=()), replace(theirs[lane], records=())
                if not self.ours:
                    tell("compared the tails of", len(lanes) - len(left), len(lanes))
            pasts = self._pasts(source, target, found, looked)
        return [
            LanePlace(
                lane=lane,
                said=None if by_time else least[lane],
                found=found[lane],
                source_start=looked[lane][0].start,
                past=pasts.get(lane, ()),
            )
            for lane in lanes
        ]

    def _least_by_time(self, lanes: Sequence[Lane]) -> dict[Lane, int | None]:
        """Upstream offsets below one of the last records of the target, and as near to it as times can say.

        No record of the source below such an offset is as young as the oldest of these records, so each of them stands
        at or above the next one. None where there are none, or the target gives them times of its own.
        """
        from mirrorless.adapters.kafka.source_offsets import KafkaTails  # noqa: PLC0415 -- commands without Kafka start sooner
        from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- see above

        settings = self.settings
        places = {
            lane: (settings.remote_topic(lane.topic), lane.partition)
            for lane in lanes
            if lane.topic not in self._rewritten
        }
        ends = self._ends(places.values(), of_target=True)
        ranges = {place: [(max(start, high - LAST), high)] for place, (start, _, high) in ends.items()}
        timed = KafkaTails(
            settings.target,
            flow=settings.flow,
            committed=True,
            seen=lambda topic, record: (
                KeyedRecord(record.offset, record.timestamp.to_bytes(8, signed=True), None)
                if self._counts(topic, record, of_target=True)
                else None
            ),
        )
        with closing(timed) as tails:
            last = tails.read(ranges, deadline_in(READ_SECONDS))
        source, least = KafkaTopics(settings.source, flow=settings.flow, role="take-over"), dict[Lane, int | None]()
        for lane, place in places.items():
            oldest = min((int.from_bytes(each.content, signed=True) for each in last.get(place, [])), default=-1)
            at = (lane.topic, lane.partition)
            offset = source.offsets_at([at], oldest, deadline_in(ANSWER_SECONDS)).get(at, -1) if oldest >= 0 else -1
            least[lane] = offset - 1 if offset > 0 else None
        return dict.fromkeys(lanes) | least

    def _pasts(
        self,
        source: KafkaTails,
        target: KafkaTails,
        found: Mapping[Lane, CopiedEnd],
        looked: Mapping[Lane, tuple[LogWindow, LogWindow]],
    ) -> dict[Lane, tuple[Span, ...]]:
        """The pasts of lanes with a place. Args: looked: the bounds of both logs, as they were."""
        exact = {lane: each for lane, each in found.items() if each.place is not None}
        # Another replicator notes no pairs, and may not keep the order by which one pair speaks of what lies between.
        synced = [{}] if self.offsets is None else self.synced(exact.keys())
        histories = {
            lane: [
                SyncedLane.of(pairs.get(lane, ()), () if self.offsets is None else each.tail, looked[lane][1].end)
                for pairs in synced
            ]
            for lane, each in exact.items()
        }
        # What is gone from a log cannot be compared.
        asked = {
            lane: [
                (u, d)
                for u, d in sorted({pair for each in some for pair in each.to_confirm})
                if looked[lane][0].start <= u < looked[lane][0].end and looked[lane][1].start <= d
            ]
            for lane, some in histories.items()
        }
        same = self._same(source, target, {lane: pairs for lane, pairs in asked.items() if pairs})
        return {
            lane: max(
                (
                    each.past(
                        same.get(lane, ()),
                        start=looked[lane][1].start,
                        place=exact[lane].place or 0,
                        end=looked[lane][1].end,
                    )
                    for each in some
                ),
                key=len,
            )
            for lane, some in histories.items()
        }

    def _same(
        self, source: KafkaTails, target: KafkaTails, asked: Mapping[Lane, Sequence[Pair]]
    ) -> dict[Lane, set[Pair]]:
        """Those of some pairs whose records are the same on both sides."""
        contents: list[dict[Lane, dict[int, bytes]]] = []
        for number, tails in enumerate((source, target)):
            places = {lane: (self._topic(lane, of_target=bool(number)), lane.partition) for lane in asked}
            ranges = {places[lane]: _ranges(pair[number] for pair in pairs) for lane, pairs in asked.items()}
            records = tails.read(ranges, deadline_in(READ_SECONDS))
            contents.append(
                {lane: {each.offset: each.content for each in records[place]} for lane, place in places.items()}
            )
        ours, theirs = contents
        return {
            lane: {(u, d) for u, d in pairs if u in ours[lane] and ours[lane][u] == theirs[lane].get(d)}
            for lane, pairs in asked.items()
        }

    def _topic(self, lane: Lane, *, of_target: bool) -> str:
        return self.settings.remote_topic(lane.topic) if of_target else lane.topic

    def _windows(
        self, tails: KafkaTails, reach: Mapping[Lane, Reach], said: Mapping[Lane, int | None], *, of_target: bool
    ) -> dict[Lane, LogWindow]:
        places = {lane: (self._topic(lane, of_target=of_target), lane.partition) for lane in reach}
        ends = self._ends(places.values(), of_target=of_target)
        ranges: dict[Lane, tuple[int, int]] = {}
        for lane, place in places.items():
            if place not in ends:
                raise Retriable(f"{place[0]}-{place[1]} has no leader", where=str(lane))
            start, _, high = ends[place]
            ranges[lane] = (
                reach[lane].of_target(start, high) if of_target else reach[lane].of_source(said[lane], start, high)
            )
        records = tails.read({places[lane]: [each] for lane, each in ranges.items()}, deadline_in(READ_SECONDS))
        return {
            lane: LogWindow(
                records=records[place],
                first=ranges[lane][0],
                next=ranges[lane][1],
                start=ends[place][0],
                end=ends[place][2],
            )
            for lane, place in places.items()
        }

    def _counts(self, topic: str, record: Record, *, of_target: bool) -> bool:
        """Whether a record is one that the flow copies, or has copied: see `ours`."""
        rule = self.settings.origin_rule(topic) if self.ours else None
        return rule is None or (rule.is_copy(record) if of_target else not rule.returns(record))

    def _tails(self, *, of_target: bool) -> KafkaTails:
        from mirrorless.adapters.kafka.source_offsets import KafkaTails  # noqa: PLC0415 -- see above

        untimed = self._rewritten | {self.settings.remote_topic(topic) for topic in self._rewritten}
        unseen = {*PROVENANCE, *self.unseen, *([ORIGIN_HEADER] if self.settings.origins else [])}

        def seen(topic: str, record: Record) -> KeyedRecord | None:
            if not self._counts(topic, record, of_target=of_target):
                return None
            headers = [each for each in record.headers if each[0] not in unseen]
            timestamp = 0 if topic in untimed else record.timestamp
            key = None if record.key is None else hash(record.key)
            return KeyedRecord(record.offset, content(timestamp, record.key, record.value, headers), key)

        cluster = self.settings.target if of_target else self.settings.source
        # MirrorMaker copies records of aborted transactions too, unless it is told not to.
        return KafkaTails(cluster, flow=self.settings.flow, committed=of_target or self.ours, seen=seen)

    def _ends(self, places: Iterable[TopicPartition], *, of_target: bool) -> dict[TopicPartition, LogEnds]:
        """The ends of logs; those of a partition that is not there yet are 0."""
        unborn = self._unborn if of_target else set()
        found: dict[TopicPartition, LogEnds] = dict.fromkeys(unborn.intersection(places), (0, 0, 0))
        there = [each for each in places if each not in unborn]
        return found | (self._target if of_target else self._source).ends(there, deadline_in(ANSWER_SECONDS))

    @cached_property
    def _source(self) -> KafkaRecords:
        return self._ends_of(self.settings.source)

    @cached_property
    def _target(self) -> KafkaRecords:
        return self._ends_of(self.settings.target)

    def _ends_of(self, cluster: ClusterSettings) -> KafkaRecords:
        from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- see above

        return KafkaRecords(cluster, flow=self.settings.flow, client_role="take-over")


def _hidden(ends: Mapping[TopicPartition, LogEnds]) -> str:
    hidden = sorted(place for place, (_, stable, high) in ends.items() if stable < high)
    return f"an open transaction hides the end of {hidden[0][0]}-{hidden[0][1]} of the target" if hidden else ""


def _ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    return [(offset, offset + 1) for offset in sorted(set(offsets))]


def _last(said: Mapping[SourcePartition, StoredOffset], alias: str, lane: Lane) -> int | None:
    about = SourcePartition(
        connector=next(iter(said)).connector, cluster=alias, topic=lane.topic, partition=lane.partition
    )
    return said[about].last if about in said else None


def tell(what: str, done: int, count: int) -> None:
    """How far something is, on standard error."""
    progress_line(f"{what} {done} of {count} lanes", over=done >= count)
