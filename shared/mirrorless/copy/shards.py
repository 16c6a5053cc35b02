"""The shards of a flow: which lanes a pull run reads, which of them share a transaction, and the lease of each shard.

The lease is handed over from one run to the next without a hole in service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import msgspec

from mirrorless.chain.lane import JOURNAL_LANES, FlowName
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.runner import LONGEST_MS

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
    return crc32(f"{topic}/{partition // JOURNAL_LANES}".encode()) % shards


def transactions(places: Iterable[TopicPartition], lanes: int = LANES_OF_TRANSACTION) -> Iterator[list[TopicPartition]]:
    """Topic-partitions, at most `lanes` at a time; those that share a journal are together where they fit."""
    batch: list[TopicPartition] = []
    for neighbours in _by_journal(places, lanes):
        if batch and len(batch) + len(neighbours) > lanes:
            yield batch
            batch = []
        batch += neighbours
    if batch:
        yield batch


def _by_journal(places: Iterable[TopicPartition], most: int) -> Iterator[Sequence[TopicPartition]]:
    """Neighbours that share a journal, at most so many at a time."""
    found: dict[tuple[str, int], list[TopicPartition]] = {}
    for topic, partition in sorted(places):
        found.setdefault((topic, partition // JOURNAL_LANES), []).append((topic, partition))
    for neighbours in found.values():
        for start in range(0, len(neighbours), most):
            yield neighbours[start : start + most]


TERM_MS: Final = 60_000
"""Of a lease; what a run that died leaves standing."""

LEAST_MS: Final = 30_000
"""Left of the lease when a transaction begins: a transaction and its records in the journals take less."""

RENEW_BELOW_MS: Final = 45_000

HAND_OVER_MS: Final = 90_000
"""Before its end a holder gives way to a successor, and one that is started earlier than that ends at once."""


class ShardHolder(msgspec.Struct, frozen=True):
    """A run that holds a shard, or waits for it: the documents `pull/<shard>/holder` and `pull/<shard>/successor`."""

    holder: str
    ends_at: int
    """ms since the epoch, of its function's time."""


@dataclass(slots=True, kw_only=True)
class ShardLease:
    """One run's lease on one shard."""

    flow: FlowName
    shard: int
    holder: str
    """Unique to the run: the environment's id, a slash, and the run's."""
    ends_at: int
    """When the run has to end, ms since the epoch."""
    documents: StateStore
    clock: Callable[[], int]
    """ms since the epoch."""
    continues: bool = field(default=False, init=False)
    """Whether no other environment has had the shard since this one had it: what is remembered of its lanes is true."""
    _until: int = field(default=0, init=False)

    def take(self) -> bool:
        """Take the shard; False while another run holds it.

        Raises:
            Retriable: the store does not answer.
        """
        now = self.clock()
        if not self._claim(now, free_before=now, longest=LONGEST_MS):
            return False
        before = self._read("holder")
        self.continues = before is None or before.holder.partition("/")[0] == self.holder.partition("/")[0]
        self._write("holder")
        return True

    def keep(self) -> bool:
        """Whether the shard is still ours for a whole transaction; renews the lease where it is short.

        Raises:
            Retriable: the store does not answer.
        """
        now = self.clock()
        left = self._until - now
        if left >= RENEW_BELOW_MS:
            return True
        # By a clock that is ahead, the lease of a run that has taken the shard meanwhile would be over long ago.
        return left > 0 and self._claim(now, free_before=0)

    @property
    def seconds(self) -> float:
        """Left of the lease."""
        return max(0.0, (self._until - self.clock()) / 1000)

    def release(self) -> None:
        """Let go of the shard; another run's stays."""
        self._until = 0
        self.documents.release(self.flow, self._key("lease"), holder=self.holder)

    # Hand-over

    def succeeds(self) -> bool:
        """Name this run as successor, where the holder ends soon; False where it does not, or there is none."""
        present = self._read("holder")
        if present is not None and present.ends_at - self.clock() > HAND_OVER_MS:
            return False
        self._write("successor")
        return True

    def has_successor(self) -> bool:
        """Whether another run waits for this shard."""
        if self.ends_at - self.clock() > HAND_OVER_MS:
            return False
        successor = self._read("successor")  # one that ends before us waited for a run before us
        return successor is not None and successor.ends_at > self.ends_at

    def _claim(self, now: int, *, free_before: int, longest: int | None = None) -> bool:
        """Take or renew the lease; another run's is free if it ended before then, or ends later than `longest`."""
        key, until = self._key("lease"), now + TERM_MS
        epoch = self.documents.claim(self.flow, key, holder=self.holder, now=free_before, until=until, longest=longest)
        self._until = 0 if epoch is None else until
        return epoch is not None

    def _key(self, part: str) -> str:
        return f"pull/{self.shard}/{part}"

    def _read(self, part: str) -> ShardHolder | None:
        key = self._key(part)
        document = self.documents.read(self.flow, key).get(key)
        found = msgspec.json.decode(document, type=ShardHolder) if document is not None else None
        return None if found is None or found.holder == self.holder else found

    def _write(self, part: str) -> None:
        content = msgspec.json.encode(ShardHolder(holder=self.holder, ends_at=self.ends_at))
        self.documents.write(self.flow, {self._key(part): content})
