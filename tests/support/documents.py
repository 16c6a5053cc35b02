"""Documents in memory; the contract suite holds this double to DynamoDB's behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorless.lane import FlowName


@dataclass(slots=True)
class MemoryDocuments:
    """Implements `mirrorless.ports.stores.StateStore` in a dict."""

    documents: dict[tuple[FlowName, str], bytes] = field(default_factory=dict)
    leases: dict[tuple[FlowName, str], tuple[str, int]] = field(default_factory=dict)
    writes: int = 0
    """Documents written so far; an idle round writes none."""

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """See `StateStore.read`."""
        return {
            key: document
            for (owner, key), document in sorted(self.documents.items())
            if owner == flow and key.startswith(prefix)
        }

    def write(self, flow: FlowName, documents: Mapping[str, bytes]) -> None:
        """See `StateStore.write`."""
        self.writes += len(documents)
        self.documents.update({(flow, key): document for key, document in documents.items()})

    def delete(self, flow: FlowName, key: str) -> None:
        """See `StateStore.delete`."""
        self.documents.pop((flow, key), None)

    def claim(self, flow: FlowName, key: str, *, holder: str, now: int, until: int) -> bool:
        """See `StateStore.claim`."""
        held_by, end = self.leases.get((flow, key), (holder, 0))
        if held_by != holder and end >= now:
            return False
        self.leases[flow, key] = (holder, until)
        return True

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """See `StateStore.release`."""
        if self.leases.get((flow, key), ("", 0))[0] == holder:
            del self.leases[flow, key]
