"""The lease of a shard, and its hand-over from one run to the next without a hole in service.

One run holds a shard at a time. The lease is an early fence: where it fails, the chains decide, as between two
forwarders. A run writes down when it will end; the run that a schedule starts within the last of its time names itself
as successor and waits, and the holder ends between two transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.lane import FlowName
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.lease import LONGEST_MS

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
