"""The lease of a run, and the documents that are written under it.

A run may be slower than its lease: frozen, starved, cut off. Its successor has a later epoch, so what the successor has
written stays (`StateStore.write`). What it has read and not yet written is protected by time: no write begins after the
lease's end, by this run's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorless.errors import LeaseLost
from mirrorless.lane import FlowName
from mirrorless.ports.stores import StateStore

LONGEST_MS: Final = 20 * 60_000
"""More than Lambda lets a run last. A lease that ends later has a holder whose clock is ahead: were that run killed, it
would stand for as long."""


@dataclass(slots=True)
class HeldLease:
    """The lease of one run. The runner takes and renews it."""

    epoch: int = 0
    until: int = 0
    """ms since the epoch of clocks; 0 while it is not held."""


@dataclass(frozen=True, slots=True)
class LeasedDocuments:
    """Implements `mirrorless.ports.stores.StateStore` for the tasks of one run: its writes need the run's lease."""

    documents: StateStore
    lease: HeldLease
    clock: Callable[[], int]
    """ms since the epoch."""

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """See `StateStore.read`."""
        return self.documents.read(flow, prefix)

    def write(self, flow: FlowName, documents: Mapping[str, bytes], *, epoch: int | None = None) -> None:
        """See `StateStore.write`. Without an epoch, it is the lease's."""
        self.documents.write(flow, documents, epoch=self._epoch(flow) if epoch is None else epoch)

    def delete(self, flow: FlowName, key: str, *, epoch: int | None = None) -> None:
        """See `StateStore.delete`. Without an epoch, it is the lease's."""
        self.documents.delete(flow, key, epoch=self._epoch(flow) if epoch is None else epoch)

    def claim(
        self, flow: FlowName, key: str, *, holder: str, now: int, until: int, longest: int | None = None
    ) -> int | None:
        """See `StateStore.claim`."""
        return self.documents.claim(flow, key, holder=holder, now=now, until=until, longest=longest)

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """See `StateStore.release`."""
        self.documents.release(flow, key, holder=holder)

    def _epoch(self, flow: FlowName) -> int:
        """Raises LeaseLost after the lease's end."""
        if self.clock() >= self.lease.until:
            raise LeaseLost("the run's lease is over, and nothing was written", where=str(flow))
        return self.lease.epoch
