"""The requests that are rare: their bodies, and what their answers say. Produce and Fetch have modules of their own.

Versions are the last without the compact encoding, which all of Kafka 2.5 to 4 serve. EndTxn 5 and InitProducerId 5
would begin transaction version 2, with an epoch for each transaction.
(https://kafka.apache.org/protocol)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.ports.kafka import TopicPartition

PRODUCE: Final[ApiKey] = (0, 8)
FETCH: Final[ApiKey] = (1, 12)
LIST_OFFSETS: Final[ApiKey] = (2, 5)
METADATA: Final[ApiKey] = (3, 7)
FIND_COORDINATOR: Final[ApiKey] = (10, 2)
DESCRIBED_TOPICS: Final[ApiKey] = (3, 10)
"""Metadata of the first version that has the topics' ids: of Kafka 2.8."""
API_VERSIONS: Final[ApiKey] = (18, 0)
INIT_PRODUCER_ID: Final[ApiKey] = (22, 1)
ADD_PARTITIONS: Final[ApiKey] = (24, 1)
END_TRANSACTION: Final[ApiKey] = (26, 1)
EPOCH_ENDS: Final[ApiKey] = (23, 3)
"""OffsetForLeaderEpoch, as Kafka 2.3 to 4 serve it."""

NEEDED: Final = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS,
    END_TRANSACTION,
)

EARLIEST: Final = -2
LATEST: Final = -1
READ_COMMITTED: Final = 1
_TRANSACTION: Final = 1

_SHORT, _INT, _LONG = Struct(">h"), Struct(">i"), Struct(">q")


class AnswerReader:
    """A place in an answer, which moves on with each field that is read."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def int8(self) -> int:
        """A byte."""
        self._at += 1
        return self._data[self._at - 1]

    def int16(self) -> int:
        """Two bytes."""
        self._at += 2
        return int(_SHORT.unpack_from(self._data, self._at - 2)[0])

    def int32(self) -> int:
        """Four bytes."""
        self._at += 4
        return int(_INT.unpack_from(self._data, self._at - 4)[0])

    def int64(self) -> int:
        """Eight bytes."""
        self._at += 8
        return int(_LONG.unpack_from(self._data, self._at - 8)[0])

    def text(self) -> str:
        """A string; null reads as empty."""
        size = max(0, self.int16())
        self._at += size
        return bytes(self._data[self._at - size : self._at]).decode()

    def unsigned(self) -> int:
        """An unsigned varint."""
        number, self._at = read_unsigned(self._data, self._at)
        return number

    def compact_text(self) -> str:
        """A string of the compact encoding; null reads as empty."""
        size = max(0, self.unsigned() - 1)
        self._at += size
        return bytes(self._data[self._at - size : self._at]).decode()

    def skip(self, size: int) -> memoryview:
        """Bytes as they are."""
        self._at += size
        return self._data[self._at - size : self._at]

    def tags(self) -> None:
        """Pass over the tagged fields."""
        for _ in range(self.unsigned()):
            self.unsigned()
            self.skip(self.unsigned())

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return len(self._data) - self._at

    def array(self) -> range:
        """As many times as the array has members."""
        return range(self.int32())


def unsigned(number: int) -> bytes:
    """An unsigned varint."""
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 -- seven bits in each byte
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def read_unsigned(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint, and the place behind it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 -- the last one
            return number, at
        shift += 7


def string(text: str | None) -> bytes:
    """A string, or null."""
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def by_topic(places: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """The partitions of each topic."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        found[topic].append(partition)
    return found


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition."""

    node: int
    """-1 while there is none."""
    epoch: int


@dataclass(slots=True)
class MetadataAnswer:
    """Brokers, and the leaders of the topics that exist."""

    brokers: dict[int, tuple[str, int]]
    leaders: dict[TopicPartition, Leader]
    topic_errors: dict[str, int]


def metadata(topics: Iterable[str]) -> bytes:
    """Of these topics, which are not created by asking."""
    names = sorted(topics)
    return _INT.pack(len(names)) + b"".join(map(string, names)) + b"\0"


def read_metadata(answer: memoryview) -> MetadataAnswer:
    """See `metadata`."""
    read = AnswerReader(answer)
    read.int32()
    found = MetadataAnswer({}, {}, {})
    for _ in read.array():
        node = read.int32()
        found.brokers[node] = (read.text(), read.int32())
        read.text()
    read.text()
    read.int32()
    for _ in read.array():
        error, topic = read.int16(), read.text()
        if error:
            found.topic_errors[topic] = error
        read.int8()
        for _ in read.array():
            error, partition, node, epoch = read.int16(), read.int32(), read.int32(), read.int32()
            for _ in range(3):  # replicas, in sync, offline
                for _ in read.array():
                    read.int32()
            found.leaders[topic, partition] = Leader(node, epoch)
    return found


def read_versions(answer: memoryview) -> dict[int, tuple[int, int]]:
    """By number of a request, the first and the last version that the broker serves; its body is empty."""
    read = AnswerReader(answer)
    if read.int16():
        return {}
    return {read.int16(): (read.int16(), read.int16()) for _ in read.array()}


def find_coordinator(transactional_id: str) -> bytes:
    """Of a transactional id."""
    return string(transactional_id) + bytes([_TRANSACTION])


def read_coordinator(answer: memoryview) -> tuple[int, int, tuple[str, int]]:
    """Error, node, address."""
    read = AnswerReader(answer)
    read.int32()
    error = read.int16()
    read.text()
    return error, read.int32(), (read.text(), read.int32())


def init_producer_id(transactional_id: str, timeout_ms: int) -> bytes:
    """Fences every other producer of the id, and ends what it left open."""
    return string(transactional_id) + _INT.pack(timeout_ms)


def read_producer_id(answer: memoryview) -> tuple[int, int, int]:
    """Error, producer id, epoch."""
    read = AnswerReader(answer)
    read.int32()
    return read.int16(), read.int64(), read.int16()


def add_partitions(transactional_id: str, producer: tuple[int, int], places: Iterable[TopicPartition]) -> bytes:
    """To the transaction; the first ones begin it."""
    topics = by_topic(places)
    body = [string(transactional_id), _LONG.pack(producer[0]), _SHORT.pack(producer[1]), _INT.pack(len(topics))]
    for topic, partitions in topics.items():
        body += [string(topic), _INT.pack(len(partitions)), *map(_INT.pack, partitions)]
    return b"".join(body)


def read_added(answer: memoryview) -> dict[TopicPartition, int]:
    """The error of each partition, 0 for none. One that fails leaves all others out."""
    read = AnswerReader(answer)
    read.int32()
    found = {}
    for _ in read.array():
        topic = read.text()
        for _ in read.array():
            partition = read.int32()
            found[topic, partition] = read.int16()
    return found


def end_transaction(transactional_id: str, producer: tuple[int, int], *, commit: bool) -> bytes:
    """Commit, or abort."""
    return string(transactional_id) + _LONG.pack(producer[0]) + _SHORT.pack(producer[1]) + bytes([commit])


def read_ended(answer: memoryview) -> int:
    """Its error, 0 for none."""
    read = AnswerReader(answer)
    read.int32()
    return read.int16()


def list_offsets(leaders: Mapping[TopicPartition, Leader], timestamp: int) -> bytes:
    """As a read_committed reader sees them: the latest is the last stable offset."""
    wanted = _LONG.pack(timestamp)
    return _INT.pack(-1) + bytes([READ_COMMITTED]) + of_each(leaders, lambda _, leader: leader + wanted)


def of_each(leaders: Mapping[TopicPartition, Leader], asked: Callable[[TopicPartition, bytes], bytes]) -> bytes:
    """Partitions by topic, each with what is asked of it. Args: asked: of its place, and number and leader's epoch."""
    topics = by_topic(leaders)
    body = [_INT.pack(len(topics))]
    for topic, partitions in topics.items():
        body += [string(topic), _INT.pack(len(partitions))]
        body += [
            asked((topic, partition), _INT.pack(partition) + _INT.pack(leaders[topic, partition].epoch))
            for partition in partitions
        ]
    return b"".join(body)


def read_offsets(answer: memoryview) -> dict[TopicPartition, tuple[int, int]]:
    """Error and offset of each partition."""
    read = AnswerReader(answer)
    read.int32()
    found = {}
    for _ in read.array():
        topic = read.text()
        for _ in read.array():
            partition, error = read.int32(), read.int16()
            read.int64()
            found[topic, partition] = (error, read.int64())
            read.int32()
    return found
