"""A comparison of two topics, small enough to be checked by reading it.

Written apart from the lab's audit, so that each checks the other: this one keeps whole records, stops at the first
difference and says what it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Run
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap, Translation
from tests.support.waiting import LOOK_EVERY_SECONDS

LEADER_MOVES = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,
)
"""What a broker answers while another one becomes a partition's leader, and for a while after it has started; and what
librdkafka says of a partition that has none yet."""
TRANSLATED = 12
"""Records, ends of spans and gaps of a lane, each, that are translated. A look into the store takes 4 ms of CPU."""

_T = TypeVar("_T")


class Content(NamedTuple):
    """What has to arrive unchanged."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


class Seen(NamedTuple):
    """A record where it stands."""

    offset: int
    content: Content


def await_settled(bootstrap: str, topic: str, *, seconds: float = 30.0) -> None:
    """Wait until no open transaction hides a record of the topic.

    Raises:
        AssertionError: one stays open for longer than any transaction may.
    """
    deadline, admin = time.monotonic() + seconds, AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while hidden := _hidden_or_moving(admin, topic):
        assert time.monotonic() < deadline, f"{topic}: an open transaction hides {hidden}"
        time.sleep(LOOK_EVERY_SECONDS)


def _hidden_or_moving(admin: AdminClient, topic: str) -> object:
    try:
        return _hidden(admin, topic)
    except KafkaException as moving:
        if moving.args[0].code() not in LEADER_MOVES:
            raise
        return moving


def unsettled(bootstrap: str, topic: str) -> dict[int, tuple[int, int]]:
    """The partitions with an open transaction: from its first offset, the last stable one, to the end."""
    return _hidden(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}), topic)


def _hidden(admin: AdminClient, topic: str) -> dict[int, tuple[int, int]]:
    # Listed once: partitions may be added between the two looks.
    places = [TopicPartition(topic, each) for each in admin.list_topics(topic, timeout=10).topics[topic].partitions]
    stable = _ends(admin, places, IsolationLevel.READ_COMMITTED)
    high = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
    return {partition: (stable[partition], end) for partition, end in high.items() if stable[partition] < end}


def read_topic(bootstrap: str, topic: str, *, seconds: float = 30.0) -> dict[int, list[Seen]]:
    """Every visible record of a topic by partition, read_committed, to the end. Open transactions must be over."""
    found = messages_of(bootstrap, topic, seconds=seconds)
    return {partition: [_seen(each) for each in messages] for partition, messages in found.items()}


def messages_of(bootstrap: str, topic: str, *, seconds: float = 30.0) -> dict[int, list[Message]]:
    """The same as a consumer gets it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",  # the client wants one; nothing is ever committed to it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is reported after this long
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        seen: dict[int, list[Message]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        unfinished, deadline = set(partitions), time.monotonic() + seconds
        while unfinished:
            assert time.monotonic() < deadline, f"{topic}: the ends of {sorted(unfinished)} were not reached"
            for record in consumer.consume(500, timeout=0.1):
                partition, error = record.partition(), record.error()
                assert partition is not None
                if error is None:
                    seen[partition].append(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
                else:
                    raise KafkaException(error)
        return seen
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """What a group has committed on a topic, by partition; read as a member reads, without joining.

    An admin client's question was seen to end the process (librdkafka 2.16) while the coordinator was being made.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        answer = consumer.committed([TopicPartition(topic, partition) for partition in partitions], timeout=10)
        return {each.partition: each.offset for each in answer if each.offset >= 0}
    finally:
        consumer.close()


def assert_mirrored(lane: Lane, chains: Chains, source: Sequence[Seen], target: Sequence[Seen]) -> None:
    """The target's partition holds the source's records, once, in order, unchanged; the map has the place of each.

    Args:
        lane: whose chain translates.
        chains: the store of the offset map.
        source: visible records of the source partition, in order.
        target: visible records of the remote partition, in order.
    """
    expected, got = [each.content for each in source], [each.content for each in target]
    if expected != got:
        raise AssertionError(_difference(lane, expected, got))

    # Every record that is visible lies in exactly one span of a committed run, and every span's record is visible.
    runs = links(lane, chains)
    assert all(run.state == "committed" for run in runs), f"{lane}: runs in doubt: {runs}"
    assert [run.position for run in runs] == [0, *(run.next for run in runs)][: len(runs)], f"{lane}: a broken chain"
    mapped = [
        (span.upstream + i, span.downstream + i) for run in runs for span in run.spans for i in range(span.length)
    ]
    assert mapped == [(up.offset, down.offset) for up, down in zip(source, target, strict=True)], f"{lane}: the map"

    # And so does translation, in both directions; each goes through the store.
    offsets, head = OffsetMap(chains), chains.heads([lane])[lane]
    ends = {offset for run in runs for span in run.spans for offset in (span.upstream, span.upstream + span.length - 1)}
    checked = {*_thinned(sorted(ends)), *_thinned([up.offset for up in source])}
    for up, down in zip(source, target, strict=True):
        if up.offset in checked:
            there, back = Translation(offset=down.offset, state="exact"), Translation(offset=up.offset, state="exact")
            assert offsets.downstream(lane, up.offset, head=head) == there, lane.at(up.offset)
            assert offsets.upstream(lane, down.offset, head=head) == back, lane.at(up.offset)
    gaps = [
        (before + 1, downstream)
        for (before, _), (after, _), (downstream, _) in zip(source, source[1:], target[1:], strict=False)
        if after > before + 1
    ]
    for gap, following in _thinned(gaps):  # a consumer of the target would go on at the next record
        there = Translation(offset=following, state="next_record")
        assert offsets.downstream(lane, gap, head=head) == there, lane.at(gap)


def _thinned(some: Sequence[_T]) -> Sequence[_T]:
    """All of some, or, of more than `TRANSLATED`, as many at equal distances."""
    return some[:: -(-len(some) // TRANSLATED) or 1]


def links(lane: Lane, chains: Chains) -> list[Run]:
    """The runs of a lane's chain, oldest first; a lane in these tests is never reset."""
    found: list[Run] = []
    at = -1
    while page := chains.after(lane, 0, at, limit=100):
        found += [link for link in page if isinstance(link, Run)]
        at = page[-1].position
    return found


def _difference(lane: Lane, expected: Sequence[Content], got: Sequence[Content]) -> str:
    first = next(
        (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), min(len(expected), len(got))
    )
    return (
        f"{lane}: {len(expected)} records, {len(got)} on the target; {len(set(expected) - set(got))} lost, "
        f"{len(got) - len(set(got))} twice; first difference at number {first}:\n"
        f"expected {expected[first : first + 1]}\ngot      {got[first : first + 1]}"
    )


def _ends(admin: AdminClient, places: Sequence[TopicPartition], level: IsolationLevel) -> dict[int, int]:
    wanted = {place: OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]  # theirs
    futures = admin.list_offsets(wanted, isolation_level=level, request_timeout=10)
    return {at.partition: future.result(10).offset for at, future in futures.items()}


def _seen(record: Message) -> Seen:
    offset = record.offset()
    assert offset is not None
    headers = tuple((header[0], _bytes(header[1])) for header in record.headers() or ())
    return Seen(offset, Content(_bytes(record.key()), _bytes(record.value()), headers, record.timestamp()[1]))


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
