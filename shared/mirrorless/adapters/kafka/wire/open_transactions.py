"""The producers of open transactions, by what the leaders of partitions and all brokers know of them.

DescribeProducers needs the right to read the topic; ListTransactions names the ids that one may describe.
(https://cwiki.apache.org/confluence/display/KAFKA/KIP-664, in brokers from Kafka 3.0 on)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from mirrorless.adapters.kafka.wire.cluster import WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.fetch import tagged
from mirrorless.adapters.kafka.wire.requests import by_topic, read_unsigned, unsigned
from mirrorless.clock import Deadline
from mirrorless.ports.kafka import TopicPartition

DESCRIBE_PRODUCERS: Final[ApiKey] = (61, 0)
LIST_TRANSACTIONS: Final[ApiKey] = (66, 0)

_PARTITION: Final = Struct(">ih")
_ACTIVE: Final = Struct(">qiiqiq")
_LISTED: Final = Struct(">ih")
_ID: Final = Struct(">q")
_INT: Final = Struct(">i")
_NO_TAGS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with an open transaction."""

    producer_id: int
    epoch: int
    transactional_id: str = ""
    """Empty where it is not known."""


def open_producers(
    cluster: WireCluster, begins: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, OpenProducer]:
    """The producer of each partition's first open transaction, where its leader answers.

    Args:
        cluster: of the partitions.
        begins: the offset at which the transaction begins, by partition: the last stable one.
        deadline: for all of it.

    Raises:
        Retriable: no broker answers.
    """
    found: dict[TopicPartition, OpenProducer] = {}
    with cluster.translated("describe its producers"):
        until = until_of(deadline)
        cluster.refresh({topic for topic, _ in begins}, until)
        by_node: dict[int, list[TopicPartition]] = {}
        for place in begins:
            if (leader := cluster.leader(place)).node >= 0:
                by_node.setdefault(leader.node, []).append(place)
        for node, some in by_node.items():
            with suppress(ConnectionError, TimeoutError):  # one that is away, or too old, tells nothing
                described = read_producers(cluster.ask(node, DESCRIBE_PRODUCERS, describe_producers(some), until))
                found |= {place: each for place, at, each in described if at == begins[place]}
        ids: dict[int, str] = {}
        wanted = {each.producer_id for each in found.values()}
        for node in cluster.nodes if wanted else ():
            with suppress(ConnectionError, TimeoutError):
                ids |= read_transactions(cluster.ask(node, LIST_TRANSACTIONS, list_transactions(wanted), until))
    return {place: replace(each, transactional_id=ids.get(each.producer_id, "")) for place, each in found.items()}


def describe_producers(places: Iterable[TopicPartition]) -> bytes:
    """The body of DescribeProducers."""
    topics = by_topic(places)
    body = bytearray(unsigned(len(topics) + 1))
    for topic, partitions in topics.items():
        name = topic.encode()
        body += unsigned(len(name) + 1) + name + unsigned(len(partitions) + 1)
        body += b"".join(map(_INT.pack, partitions)) + _NO_TAGS
    return bytes(body + _NO_TAGS)


def read_producers(answer: memoryview) -> Iterator[tuple[TopicPartition, int, OpenProducer]]:
    """Each open transaction: its partition, the offset at which it begins there, and its producer."""
    topics, at = read_unsigned(answer, _INT.size)
    for _ in range(topics - 1):
        size, at = read_unsigned(answer, at)
        topic = str(answer[at : at + size - 1], "utf-8")
        partitions, at = read_unsigned(answer, at + size - 1)
        for _ in range(partitions - 1):
            partition, _ = _PARTITION.unpack_from(answer, at)
            size, at = read_unsigned(answer, at + _PARTITION.size)
            producers, at = read_unsigned(answer, at + max(0, size - 1))  # behind the error's text
            for _ in range(producers - 1):
                producer_id, epoch, _, _, _, begins = _ACTIVE.unpack_from(answer, at)
                if begins >= 0:
                    yield (topic, partition), begins, OpenProducer(producer_id, epoch)
                _, at = tagged(answer, at + _ACTIVE.size)
            _, at = tagged(answer, at)
        _, at = tagged(answer, at)


def list_transactions(producer_ids: Iterable[int]) -> bytes:
    """The body of ListTransactions: of these producers, in any state."""
    wanted = sorted(producer_ids)
    return unsigned(1) + unsigned(len(wanted) + 1) + b"".join(map(_ID.pack, wanted)) + _NO_TAGS


def read_transactions(answer: memoryview) -> dict[int, str]:
    """Transactional ids by producer id."""
    found = {}
    unknown, at = read_unsigned(answer, _LISTED.size)
    for _ in range(unknown - 1):
        size, at = read_unsigned(answer, at)
        at += size - 1
    transactions, at = read_unsigned(answer, at)
    for _ in range(transactions - 1):
        size, at = read_unsigned(answer, at)
        name, at = str(answer[at : at + size - 1], "utf-8"), at + size - 1
        (producer_id,) = _ID.unpack_from(answer, at)
        found[producer_id] = name
        size, at = read_unsigned(answer, at + _ID.size)
        _, at = tagged(answer, at + size - 1)
    return found
