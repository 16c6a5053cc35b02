"""Fetch, read_committed and with the epoch of what was fetched last: its body, and the parts of its answer.

The answer's batches are views of it. Version 12 is the first whose broker says where a log has diverged.
(https://kafka.apache.org/protocol#The_Messages_Fetch)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from mirrorless.adapters.kafka.wire.requests import READ_COMMITTED, by_topic, read_unsigned, unsigned
from mirrorless.ports.kafka import TopicPartition

_OPENING: Final = Struct(">iiiibii")
_WANTED: Final = Struct(">iiqiqib")
_FOUND: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_HEAD: Final = Struct(">ihi")
_DIVERGING: Final = Struct(">iq")
_NO_SESSION: Final = (0, -1)
_DIVERGED: Final = 0
"""The tag of a partition's diverging epoch."""


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A partition to fetch from."""

    place: TopicPartition
    offset: int
    leader_epoch: int
    """Of the leader as we know it."""
    last_epoch: int
    """Of the batch that was fetched last; -1 for none."""


@dataclass(slots=True)
class FetchedPart:
    """A partition's part of an answer."""

    error: int
    high_watermark: int
    stable_end: int
    log_start: int
    aborted: Sequence[tuple[int, int]]
    """Producer id and first offset of each aborted transaction that reaches into the records."""
    diverged: tuple[int, int] | None
    """The log ends for this epoch before what was fetched last: epoch, and end."""
    records: memoryview


@dataclass(slots=True)
class FetchAnswer:
    """An answer."""

    throttle_ms: int
    error: int
    parts: dict[TopicPartition, FetchedPart]


def fetch_request(wanted: Sequence[WantedPart], *, wait_ms: int, least: int, most: int, most_of_a_part: int) -> bytes:
    """The body; the broker fills its answer in the order of what is wanted."""
    body = bytearray(_OPENING.pack(-1, wait_ms, least, most, READ_COMMITTED, *_NO_SESSION))
    parts = {each.place: each for each in wanted}
    topics = by_topic(parts)
    body += unsigned(len(topics) + 1)
    for topic, partitions in topics.items():
        name = topic.encode()
        body += unsigned(len(name) + 1) + name + unsigned(len(partitions) + 1)
        for partition in partitions:
            each = parts[topic, partition]
            body += _WANTED.pack(partition, each.leader_epoch, each.offset, each.last_epoch, -1, most_of_a_part, 0)
        body.append(0)
    body += b"\x01\x01\x00"  # nothing is forgotten, no rack, no tagged fields
    return bytes(body)


def read_fetched(answer: memoryview) -> FetchAnswer:
    """See `fetch_request`."""
    throttle, error, _ = _HEAD.unpack_from(answer)
    found = FetchAnswer(throttle, error, {})
    topics, at = read_unsigned(answer, _HEAD.size)
    for _ in range(topics - 1):
        size, at = read_unsigned(answer, at)
        topic = str(answer[at : at + size - 1], "utf-8")
        partitions, at = read_unsigned(answer, at + size - 1)
        for _ in range(partitions - 1):
            partition, error, high, stable, start = _FOUND.unpack_from(answer, at)
            aborted: list[tuple[int, int]] = []
            count, at = read_unsigned(answer, at + _FOUND.size)
            for _ in range(count - 1):
                aborted.append(_ABORTED.unpack_from(answer, at))
                _, at = tagged(answer, at + _ABORTED.size)
            at += 4  # the replica to read from, for clients that name a rack
            size, at = read_unsigned(answer, at)
            records = answer[at : at + max(0, size - 1)]
            tags, at = tagged(answer, at + max(0, size - 1))
            diverged = _DIVERGING.unpack_from(tags[_DIVERGED]) if _DIVERGED in tags else None
            if diverged is not None and diverged[1] < 0:
                diverged = None
            found.parts[topic, partition] = FetchedPart(error, high, stable, start, aborted, diverged, records)
        _, at = tagged(answer, at)
    return found


def tagged(data: memoryview, at: int) -> tuple[dict[int, memoryview], int]:
    """Tagged fields by tag, and the place behind them."""
    count, at = read_unsigned(data, at)
    found = {}
    for _ in range(count):
        tag, at = read_unsigned(data, at)
        size, at = read_unsigned(data, at)
        found[tag] = data[at : at + size]
        at += size
    return found, at
