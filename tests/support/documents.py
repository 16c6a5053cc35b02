"""Documents in memory; the contract suite holds this double to DynamoDB's behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorless.chain.lane import FlowName
from mirrorless.errors import LeaseLost, Retriable

KEY_BYTES = 1_024
"""Of a key, as DynamoDB has it."""


def _assert_fits(key: str) -> None:
    if len(key.encode()) > KEY_BYTES:
        raise Retriable(f"a key has {len(key.encode()):,} bytes, and 1,024 at most")


@dataclass(slots=True)
class MemoryDocuments:
    """Implements `mirrorless.ports.stores.StateStore` in a dict."""

    documents: dict[tuple[FlowName, str], bytes] = field(default_factory=dict)
    leases: dict[tuple[FlowName, str], tuple[str, int]] = field(default_factory=dict)
    epochs: dict[tuple[FlowName, str], int] = field(default_factory=dict)
    """Of leases, and of the documents that were written under one."""
    writes: int = 0
    """Documents written so far; an idle round writes none."""

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """See `StateStore.read`."""
        _assert_fits(prefix)
        return {
            key: document
            for (owner, key), document in sorted(self.documents.items())
            if owner == flow and key.startswith(prefix)
        }

    def write(self, flow: FlowName, documents: Mapping[str, bytes], *, epoch: int | None = None) -> None:
        """See `StateStore.write`."""
        for key in documents:
            _assert_fits(key)
        for key, document in documents.items():
            self._fence(flow, key, epoch)
            self.writes += 1
            self.documents[flow, key] = document

    def delete(self, flow: FlowName, key: str, *, epoch: int | None = None) -> None:
        """See `StateStore.delete`."""
        self._fence(flow, key, epoch)
        self.epochs.pop((flow, key), None)
        self.documents.pop((flow, key), None)

    def _fence(self, flow: FlowName, key: str, epoch: int | None) -> None:
        if epoch is not None:
            if self.epochs.get((flow, key), 0) > epoch:
                raise LeaseLost(f"a later run has written {key}")
            self.epochs[flow, key] = epoch
        else:
            self.epochs.pop((flow, key), None)

    def claim(
        self, flow: FlowName, key: str, *, holder: str, now: int, until: int, longest: int | None = None
    ) -> int | None:
        """See `StateStore.claim`."""
        held_by, end = self.leases.get((flow, key), (holder, 0))
        if held_by != holder and end >= now and not (longest is not None and end > now + longest):
            return None
        self.leases[flow, key] = (holder, until)
        self.epochs[flow, key] = self.epochs.get((flow, key), now) + 1
        return self.epochs[flow, key]

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """See `StateStore.release`."""
        if self.leases.get((flow, key), ("", 0))[0] == holder:
            del self.leases[flow, key]
