"""The move of a consumer group to the other cluster and back, with a count of what it reads.

It reads a flow's topics on the source, leaves, waits until its offsets are on the target, goes on there on the remote
topics, leaves, waits until its offsets are on the source, and goes on there to the end. Where its offsets ought to be
says the offset map; whether that was right says the audit, which pairs the records of both sides without the map.

Its only member has read what the group has committed: records are read committed, and committed batch by batch. Where a
commit fails, as when a broker is killed, the cluster is read for the outcome, and only that counts: so whatever is read
twice, or never, is not the application's own doing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from lab.audit.audit import TopicAudit
from lab.audit.topic_reader import stable_ends
from lab.waiting import wait_for
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.errors import Retriable
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap

ClusterSide = Literal["source", "target"]
SIDES: tuple[ClusterSide, ...] = ("source", "target")

KNOWN = {"exact", "next_record"}
"""States of a translation that says where the group goes on, wherever replication stands."""


PartitionKey = tuple[str, int]
"""A topic and a partition, by the names of the cluster that is read."""

BATCH = 500
WAIT_S = 0.2
ANSWER_S = 10.0
TIMEOUT_S = 90.0
"""For a cluster that is on its way back."""


class Application:
    """A consumer group's only member, on one cluster at a time."""

    def __init__(self, group: str) -> None:
        """Args: group: its consumer group, by the same name on every cluster."""
        self.group = group
        self.reads: dict[str, Counter[tuple[PartitionKey, int]]] = {}
        """How often each record (place, offset) was read, by the cluster's address."""

    def read_count(self, bootstrap: str) -> int:
        """Records read on a cluster so far."""
        return self.reads[bootstrap].total() if bootstrap in self.reads else 0

    def read(
        self, bootstrap: str, topics: Sequence[str], *, until: Callable[[Mapping[PartitionKey, int]], bool]
    ) -> None:
        """Join, read and commit; leave the group when `until` says so.

        Args:
            bootstrap: the cluster.
            topics: their names there.
            until: called before each batch, with the end of each partition that has been read to it.

        Raises:
            Retriable: the cluster stays away for longer than one that is being restarted.
        """
        counts = self.reads.setdefault(bootstrap, Counter())
        done = False
        while not done:
            ends: dict[PartitionKey, int] = {}
            batch: dict[PartitionKey, list[int]] = {}
            consumer = self._consumer(bootstrap)
            try:
                consumer.subscribe(list(topics), on_assign=partial(self._begin, bootstrap))
                while not (done := until(ends)):
                    batch = _taken(consumer.consume(BATCH, WAIT_S), ends)
                    if not _committed(consumer, batch):
                        break  # join anew: the membership is uncertain
                    _count(counts, batch)
            finally:
                consumer.close()
            if not done:
                known = self.committed(bootstrap, batch)
                _count(counts, {p: [o for o in offsets if o < known.get(p, 0)] for p, offsets in batch.items()})

    def committed(self, bootstrap: str, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """What the group has committed there; places without an offset are absent.

        Raises:
            Retriable: the cluster does not answer, for longer than one that is being restarted.
        """
        consumer = self._consumer(bootstrap)
        try:
            return self._ask(consumer, bootstrap, places)
        finally:
            consumer.close()

    def _begin(self, bootstrap: str, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Begin where the group has committed.

        librdkafka 2.16 asks for that by itself, too, but once only where a coordinator that is just being moved refuses
        it (`NOT_COORDINATOR`, `COORDINATOR_NOT_AVAILABLE`): it stays in the group, and never reads.
        """
        places = [(each.topic, each.partition) for each in partitions]
        known = self._ask(consumer, bootstrap, places)
        consumer.assign([TopicPartition(*place, known.get(place, OFFSET_BEGINNING)) for place in places])

    def _ask(self, consumer: Consumer, bootstrap: str, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """See `committed`."""
        wanted = [TopicPartition(*place) for place in places]
        answer: list[TopicPartition] = []

        def obstacle() -> KafkaException | None:
            try:
                answer.extend(consumer.committed(wanted, timeout=ANSWER_S) if wanted else ())
            except KafkaException as exc:
                return exc
            return None

        if problem := wait_for(obstacle, seconds=TIMEOUT_S, every=WAIT_S):
            said = f"the cluster did not return what group {self.group} committed: {problem}"
            raise Retriable(said, where=bootstrap) from problem
        return {(each.topic, each.partition): each.offset for each in answer if each.offset >= 0}

    def topics(self, bootstrap: str) -> set[str]:
        """Every topic that the group has an offset of, on a cluster that answers."""
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        there = admin.list_topics(timeout=ANSWER_S).topics.items()
        places = [(name, partition) for name, topic in there for partition in topic.partitions]
        return {topic for topic, _ in self.committed(bootstrap, places)}

    def _consumer(self, bootstrap: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # As for a group whose offsets did not arrive: it reads everything again, and the count shows it.
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,  # brokers are killed on purpose; what matters is raised
            }
        )


def _taken(messages: Sequence[Message], ends: dict[PartitionKey, int]) -> dict[PartitionKey, list[int]]:
    """The offsets of the records, by place; notes the ends that were reached."""
    batch: dict[PartitionKey, list[int]] = {}
    for message in messages:
        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if topic is None or partition is None or offset is None:
            continue  # about the client's connections: it mends them itself
        if error is None:
            ends.pop((topic, partition), None)
            batch.setdefault((topic, partition), []).append(offset)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- the constant's name
            ends[topic, partition] = offset
    return batch


def _committed(consumer: Consumer, batch: Mapping[PartitionKey, Sequence[int]]) -> bool:
    """Commit a batch; False when its outcome is uncertain."""
    if not batch:
        return True
    offsets = [TopicPartition(*place, offsets[-1] + 1) for place, offsets in batch.items()]
    try:
        committed = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return False  # `committed` reads the outcome from the cluster
    return not any(each.error for each in committed or ())


def _count(counts: Counter[tuple[PartitionKey, int]], batch: Mapping[PartitionKey, Sequence[int]]) -> None:
    counts.update((place, offset) for place, offsets in batch.items() for offset in offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFindings:
    """What a group made of a flow's records."""

    records: int
    """Visible records of the source topics."""
    reread: int
    """How often one of them was read once more than it should."""
    skipped: int
    """Those that were never read."""
    strays: int
    """Topics, on either side, that the group has offsets of though it never was to read them."""
    read_on: Mapping[str, int]
    """Records read, by the cluster's alias."""

    @property
    def clean(self) -> bool:
        """Whether every record was read once, and nothing else was given to the group."""
        return not (self.reread or self.skipped or self.strays)


@dataclass(slots=True, kw_only=True)
class MovingGroup:
    """A group on its way between the clusters of one flow."""

    flow: Flow
    partitions: Mapping[str, int]
    """Of each topic that it reads, by its name on the source."""
    chains: Chains
    group: str
    over: threading.Event = field(default_factory=threading.Event)
    """Set to let everything end early."""
    application: Application = field(init=False)

    def __post_init__(self) -> None:
        """Make its member."""
        self.application = Application(self.group)

    @property
    def topics(self) -> Sequence[str]:
        """What it reads, by the source's names."""
        return list(self.partitions)

    def read(self, side: ClusterSide, *, at_least: int, until: Callable[[], bool], seconds: float) -> None:
        """Read on one side until the moment comes, and so many records are read.

        Raises:
            TimeoutError: they are not, in time.
        """
        address, names = self._address(side), [self._name(side, topic) for topic in self.topics]

        def finished(_: Mapping[PartitionKey, int]) -> bool:
            return self.application.read_count(address) >= at_least and until()

        self.application.read(address, names, until=self._in_time(finished, seconds))

    def read_to_end(self, *, produced: Callable[[], bool], seconds: float) -> None:
        """Read on the source until everything is produced, and all of it is read.

        Raises:
            TimeoutError: it is not, in time.
        """
        source = self._address("source")
        wanted: dict[PartitionKey, int] = {}

        def finished(reached: Mapping[PartitionKey, int]) -> bool:
            if not produced():
                return False
            if not wanted:
                for topic in self.topics:
                    wanted.update({(topic, partition): end for partition, end in stable_ends(source, topic).items()})
            return all(reached.get(place, -1) >= end for place, end in wanted.items())

        self.application.read(source, self.topics, until=self._in_time(finished, seconds))

    def _in_time(
        self, finished: Callable[[Mapping[PartitionKey, int]], bool], seconds: float
    ) -> Callable[[Mapping[PartitionKey, int]], bool]:
        deadline = time.monotonic() + seconds

        def until(reached: Mapping[PartitionKey, int]) -> bool:
            if self.over.is_set() or finished(reached):
                return True
            if time.monotonic() > deadline:
                counts = {address: counts.total() for address, counts in self.application.reads.items()}
                raise TimeoutError(f"group {self.group} did not read enough in {seconds:.0f} s: {counts}")
            return False

        return until

    def await_offsets(self, side: ClusterSide, *, seconds: float) -> float:
        """Wait until the offsets that the group committed on the other side are committed here, translated.

        Returns:
            how long that took, in seconds.

        Raises:
            TimeoutError: naming the places that are behind.
        """
        began = time.monotonic()
        there = self.application.committed(self._address(_other(side)), self._places(_other(side)))
        behind = wait_for(lambda: self._behind(side, there), seconds=seconds, every=WAIT_S, over=self.over)
        if behind and not self.over.is_set():
            raise TimeoutError(f"group {self.group} is not ready on the {side} in time: {behind}")
        return time.monotonic() - began

    def findings(self, audits: Mapping[str, TopicAudit]) -> GroupFindings:
        """Count, from what the audit found where, by source topic; both clusters answer."""
        names = {self.flow.remote_topic(topic): topic for topic in self.topics}
        reads = self.application.reads
        on_source = reads.get(self._address("source"), Counter())
        on_target = reads.get(self._address("target"), Counter())
        return GroupFindings(
            strays=sum(
                len(self.application.topics(self._address(side)) - {self._name(side, topic) for topic in self.topics})
                for side in SIDES
            ),
            **judge(audits, on_source, Counter({((names[t], p), o): n for ((t, p), o), n in on_target.items()})),
            read_on={self.flow.name.source: on_source.total(), self.flow.name.target: on_target.total()},
        )

    def _behind(self, side: ClusterSide, there: Mapping[PartitionKey, int]) -> list[str]:
        """Why the group must not go on here yet, by place; `there` is what it committed on the other side."""
        here = self.application.committed(self._address(side), self._places(side))
        behind = []
        for place, (topic, partition) in zip(self._places(side), self._places("source"), strict=True):
            left_at, found = there.get((self._name(_other(side), topic), partition)), here.get(place)
            lane = Lane(self.flow.name, topic, partition)
            if left_at is not None and (
                found is None or not has_arrived(self.chains, side, lane, left_at=left_at, here=found)
            ):
                behind.append(f"{lane}: it left at {left_at}, and has {found} here")
        return behind

    def _places(self, side: ClusterSide) -> list[PartitionKey]:
        return [(self._name(side, topic), p) for topic, count in self.partitions.items() for p in range(count)]

    def _name(self, side: ClusterSide, topic: str) -> str:
        return topic if side == "source" else self.flow.remote_topic(topic)

    def _address(self, side: ClusterSide) -> str:
        return (self.flow.source if side == "source" else self.flow.target).bootstrap[0]


def has_arrived(chains: Chains, side: ClusterSide, lane: Lane, *, left_at: int, here: int) -> bool:
    """Whether a group that has read up to `left_at` on the other side has nothing to read twice from `here` on.

    Args:
        chains: the offset map.
        side: where it is to go on.
        lane: of the records.
        left_at: the offset that it committed on the other side.
        here: the offset that it has on this side.
    """
    offsets = OffsetMap(chains)
    # Compared downstream in both directions: several upstream offsets in a gap mean one record.
    upstream, downstream = (left_at, here) if side == "target" else (here, left_at)
    wanted = offsets.downstream(lane, upstream)
    if wanted.offset is None or wanted.state not in KNOWN:
        return False
    # What lies between may be markers alone: behind the last record, and before the next one, is the same place.
    goes_on, came_to = (downstream, wanted.offset) if side == "target" else (wanted.offset, downstream)
    return offsets.records_between(lane, goes_on, came_to, "downstream") == 0


def _other(side: ClusterSide) -> ClusterSide:
    return "source" if side == "target" else "target"


Reads = Mapping[tuple[PartitionKey, int], int]
"""How often the record at an offset of a place was read; the topic is the source's."""


def judge(audits: Mapping[str, TopicAudit], on_source: Reads, on_target: Reads) -> dict[str, int]:
    """`records`, `reread` and `skipped` of the audited topics."""
    counts: Counter[tuple[PartitionKey, int]] = Counter(on_source)
    strangers = 0
    for ((topic, partition), downstream), count in on_target.items():
        upstream = audits[topic].upstream_of[partition].get(downstream)
        if upstream is None:
            strangers += count  # it has no original of its own: whatever it repeats was read elsewhere
        else:
            counts[(topic, partition), upstream] += count
    records = {
        ((topic, partition), offset)
        for topic, audit in audits.items()
        for partition, offsets in audit.upstream.items()
        for offset in offsets
    }
    return {
        "records": len(records),
        "reread": strangers + sum(count - 1 for count in counts.values() if count > 1),
        "skipped": sum(record not in counts for record in records),
    }
