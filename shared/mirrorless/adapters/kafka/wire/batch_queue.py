"""The batches of one partition on their way to the target, and what an answer about one of them means.

What was not acknowledged for a reason that passes is sent again from the first such batch on, with the same sequence
numbers: the broker recognises its last five.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.cluster import LEADER_MOVED, Backoff
from mirrorless.ports.kafka import Refusal, TopicPartition
from mirrorless.record_batch import RecordBatch

IN_FLIGHT: Final = 5
"""Requests under way to a broker, and so batches of a partition: as many as brokers recognise when they come again."""

PASSING: Final = LEADER_MOVED | {
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
"""Errors of a batch that a resend may cure."""

REFUSALS: Final = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.INVALID_RECORD,
    }
)
"""A resend of the same batch gets the same answer."""


@dataclass(slots=True, eq=False)
class BatchQueue:
    """The batches of one partition on their way."""

    place: TopicPartition
    batches: Sequence[RecordBatch]
    sequences: Sequence[int]
    """The first sequence number of each batch."""
    offsets: list[int] = field(default_factory=list)
    """Of the acknowledged ones."""
    sent: int = 0
    """How many were sent and are not to be sent again."""
    under_way: int = 0
    failed: int = 0
    """The error after which it waits until nothing of it is under way, to begin again behind the acknowledged ones."""
    again_at: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    refusal: Refusal | None = None
    trouble: int = 0
    """The last error, for people."""

    @property
    def done(self) -> bool:
        """Whether nothing of it is to be waited for."""
        return len(self.offsets) == len(self.batches) or self.refusal is not None

    @property
    def may_send(self) -> bool:
        """Whether its next batch may go out.

        The first one of an epoch goes alone: a broker that has just become the leader takes any sequence number of a
        producer that is new to it, so that the second would be appended after the first was refused.
        """
        if self.failed or self.sent == len(self.batches) or self.refusal is not None:
            return False
        return self.under_way < (IN_FLIGHT if self.offsets or self.sequences[0] else 1)
