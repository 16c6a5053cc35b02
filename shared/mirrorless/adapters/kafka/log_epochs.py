"""The ids of a cluster's topics, and the leader epochs of their logs. See `mirrorless.ports.kafka.LogEpochs`.

OffsetForLeaderEpoch tells how far a partition's log holds what the leader of an epoch appended (KIP-320). The answer is
of the largest epoch of the log that is not above the one that is asked for. Where all of the log's epochs are above,
their first offset; where all are below and it has none of their own, -1 for both.
(https://kafka.apache.org/protocol#The_Messages_OffsetForLeaderEpoch)

The ids of topics are in the answer to Metadata.
(https://kafka.apache.org/protocol#The_Messages_Metadata)
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from struct import Struct
from typing import Final

from mirrorless.adapters.kafka.wire.cluster import WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.listed_offsets import LeaderQuestion, answers_of_leaders
from mirrorless.adapters.kafka.wire.requests import (
    DESCRIBED_TOPICS,
    EPOCH_ENDS,
    AnswerReader,
    Leader,
    of_each,
    unsigned,
)
from mirrorless.clock import Deadline
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import EpochEnd, TopicPartition

_CONSUMER: Final = b"\xff\xff\xff\xff"
_INT: Final = Struct(">i")


def epoch_ends(leaders: Mapping[TopicPartition, Leader], epochs: Mapping[TopicPartition, int]) -> bytes:
    """Of an epoch of each partition."""
    return _CONSUMER + of_each(leaders, lambda place, leader: leader + _INT.pack(epochs[place]))


def read_epoch_ends(answer: memoryview) -> dict[TopicPartition, tuple[int, EpochEnd]]:
    """Error and end of each partition."""
    read = AnswerReader(answer)
    read.int32()
    found = {}
    for _ in read.array():
        topic = read.text()
        for _ in read.array():
            error, partition = read.int16(), read.int32()
            found[topic, partition] = (error, EpochEnd(read.int32(), read.int64()))
    return found


_ID_BYTES: Final = 16


def described_topics(topics: Iterable[str]) -> bytes:
    """Of these topics, which are not created by asking."""
    names = [name.encode() for name in sorted(topics)]
    wanted = b"".join(bytes(_ID_BYTES) + unsigned(len(name) + 1) + name + b"\0" for name in names)
    return unsigned(len(names) + 1) + wanted + b"\0\0\0\0"  # no creation, no rights, no tagged fields


def read_topic_ids(answer: memoryview) -> dict[str, str]:
    """The ids of the topics that exist, as the Kafka client prints them, by which they are stored: not URL-safe."""
    read = AnswerReader(answer)
    read.int32()
    for _ in range(read.unsigned() - 1):
        read.int32()
        read.compact_text()
        read.int32()
        read.compact_text()
        read.tags()
    read.compact_text()
    read.int32()
    found = {}
    for _ in range(read.unsigned() - 1):
        error, topic = read.int16(), read.compact_text()
        topic_id = base64.b64encode(read.skip(_ID_BYTES)).decode().rstrip("=")
        if not error:
            found[topic] = topic_id
        read.int8()
        for _ in range(read.unsigned() - 1):
            read.skip(14)  # error, partition, leader and its epoch
            for _ in range(3):  # replicas, in sync, offline
                read.skip(4 * (read.unsigned() - 1))
            read.tags()
        read.int32()
        read.tags()
    return found


class KafkaLogEpochs:
    """Implements `LogEpochs` on connections of its own, whatever client reads the logs."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what it calls itself in the brokers' logs."""
        self._cluster = WireCluster(cluster, flow=flow, client_role="log-epochs", needed=())

    def ends(self, epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd] | None:
        """See `LogEpochs.ends`."""
        if not epochs:
            return {}
        if not self._serves(EPOCH_ENDS, deadline):
            return None
        question = LeaderQuestion(
            what="show the epochs of its logs",
            api=EPOCH_ENDS,
            body=partial(epoch_ends, epochs=epochs),
            read=read_epoch_ends,
        )
        return answers_of_leaders(self._cluster, set(epochs), question, deadline)

    def current(self, topics: Iterable[str], deadline: Deadline) -> dict[TopicPartition, int] | None:
        """See `LogEpochs.current`."""
        wanted = set(topics)
        if not wanted:
            return {}
        if not self._serves(EPOCH_ENDS, deadline):
            return None
        with self._cluster.translated("show the leaders of its topics"):
            self._cluster.refresh(wanted, until_of(deadline))
        return {place: leader.epoch for place, leader in self._cluster.leaders.items() if leader.node >= 0}

    def topic_ids(self, topics: Iterable[str], deadline: Deadline) -> dict[str, str] | None:
        """See `LogEpochs.topic_ids`."""
        wanted = set(topics)
        if not wanted:
            return {}
        if not self._serves(DESCRIBED_TOPICS, deadline):
            return None
        with self._cluster.translated("describe its topics"):
            until = until_of(deadline)
            node = self._cluster.any_node(until)
            return read_topic_ids(self._cluster.ask(node, DESCRIBED_TOPICS, described_topics(wanted), until))

    def close(self) -> None:
        """See `LogEpochs.close`."""
        self._cluster.close()

    def _serves(self, api: ApiKey, deadline: Deadline) -> bool:
        with self._cluster.translated("say what it serves"):
            self._cluster.any_node(until_of(deadline))
        return self._cluster.serves(api)
