"""Produce, for one batch of each of some partitions: encoded without touching a payload.

(https://kafka.apache.org/protocol#The_Messages_Produce)
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from mirrorless.adapters.kafka.wire.connection import Buffer
from mirrorless.adapters.kafka.wire.requests import AnswerReader, string

_ALL: Final = -1
_OPENING: Final = Struct(">hii")
_COUNT: Final = Struct(">i")
_PART: Final = Struct(">ii")
_ACKNOWLEDGED: Final = Struct(">ihqqqih")
"""Partition, error, base offset, append time, log start; of no record errors and no message, their lengths."""
_NO_ERROR: Final = (0, -1)
_ANSWER_BYTES: Final = 16
"""Length, number, count of topics, and the time to leave the broker alone."""


class Acknowledgement(NamedTuple):
    """The answer for one batch."""

    error: int
    base_offset: int
    record: int | None
    """The first record of the batch that was refused, where the broker names one."""
    detail: str


def opening(transactional_id: str) -> bytes:
    """What all requests of a producer begin with."""
    return string(transactional_id)


def produce_request(
    begun: bytes, timeout_ms: int, topics: Sequence[tuple[bytes, Sequence[tuple[int, bytes, memoryview]]]]
) -> list[Buffer]:
    """The parts of a request.

    Args:
        begun: see `opening`.
        timeout_ms: for the replicas to take the batches.
        topics: the name of each topic, encoded, with its partitions; of each the header and the payload of one batch.
    """
    parts: list[Buffer] = []
    head = begun + _OPENING.pack(_ALL, timeout_ms, len(topics))
    for name, partitions in topics:
        head += name + _COUNT.pack(len(partitions))
        for partition, header, payload in partitions:
            head += _PART.pack(partition, len(header) + len(payload)) + header
            parts += (head, payload)
            head = b""
    return parts


def least_answer(topics: Sequence[tuple[bytes, Sequence[tuple[int, bytes, memoryview]]]]) -> int:
    """Bytes of the answer to a request on the wire, its length included: errors make it longer."""
    names = sum(len(name) + _COUNT.size for name, _ in topics)
    return _ANSWER_BYTES + names + sum(len(partitions) for _, partitions in topics) * _ACKNOWLEDGED.size


def read_produced(answer: memoryview) -> tuple[dict[tuple[str, int], Acknowledgement], int]:
    """The answers of all partitions, and how many ms the broker wants to be left alone."""
    found: dict[tuple[str, int], Acknowledgement] = {}
    (topics,) = _COUNT.unpack_from(answer)
    at = 4
    for _ in range(topics):
        following = at + 2 + int.from_bytes(answer[at : at + 2])
        topic = str(answer[at + 2 : following], "utf-8")
        (partitions,) = _COUNT.unpack_from(answer, following)
        at = following + 4
        for _ in range(partitions):
            partition, error, base, _, _, errors, message = _ACKNOWLEDGED.unpack_from(answer, at)
            if (errors, message) == _NO_ERROR:
                found[topic, partition] = Acknowledgement(error, base, None, "")
                at += _ACKNOWLEDGED.size
            else:
                read = AnswerReader(answer[at + _ACKNOWLEDGED.size - 6 :])
                details = [(read.int32(), read.text()) for _ in read.array()]
                text = read.text()
                found[topic, partition] = Acknowledgement(
                    error, base, details[0][0] if details else None, "; ".join([text, *(each for _, each in details)])
                )
                at = len(answer) - read.left
    return found, _COUNT.unpack_from(answer, at)[0]
