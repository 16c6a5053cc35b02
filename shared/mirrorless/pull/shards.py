"""The shards of a flow: which lanes a pull run reads, and which of them share a transaction. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from mirrorless.lane import SLICE_LANES
from mirrorless.ports.kafka import TopicPartition

LANES_OF_TRANSACTION: Final = 64
"""The Kafka client asks for each partition of a transaction by a request of its own: 0.15 ms of its CPU and 0.7 ms of
the broker's, measured with librdkafka 2.16."""


def places_of_shard(partitions: Mapping[str, int], shard: int, shards: int) -> list[TopicPartition]:
    """The topic-partitions of one shard, in order.

    Neighbours that share a journal are in one shard: two shards would write twice the entries, and lose races.

    Args:
        partitions: of each topic.
        shard: from 0 on.
        shards: how many there are.
    """
    return [
        (topic, partition)
        for topic, count in sorted(partitions.items())
        for partition in range(count)
        if shard_of(topic, partition, shards) == shard
    ]


def shard_of(topic: str, partition: int, shards: int) -> int:
    """The shard of a topic-partition. It stays the same as long as the number of shards does."""
    return crc32(f"{topic}/{partition // SLICE_LANES}".encode()) % shards


def transactions(places: Iterable[TopicPartition], lanes: int = LANES_OF_TRANSACTION) -> Iterator[list[TopicPartition]]:
    """Topic-partitions, at most `lanes` at a time; those that share a journal are together where they fit."""
    batch: list[TopicPartition] = []
    for neighbours in _by_slice(places, lanes):
        if batch and len(batch) + len(neighbours) > lanes:
            yield batch
            batch = []
        batch += neighbours
    if batch:
        yield batch


def _by_slice(places: Iterable[TopicPartition], most: int) -> Iterator[Sequence[TopicPartition]]:
    """Neighbours that share a journal, at most so many at a time."""
    found: dict[tuple[str, int], list[TopicPartition]] = {}
    for topic, partition in sorted(places):
        found.setdefault((topic, partition // SLICE_LANES), []).append((topic, partition))
    for neighbours in found.values():
        for start in range(0, len(neighbours), most):
            yield neighbours[start : start + most]
