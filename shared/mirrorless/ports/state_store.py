"""Where do the scheduled functions keep what they know from one run to the next, and how is there only one of them?

Small JSON documents by flow and key, and leases. A task owns the keys under its own prefix:

    task/<task>         how its last round went                 mirrorless.scheduled.runner
    lease/<function>    who is at work                          mirrorless.scheduled.runner
    topics              what was there before the flow          mirrorless.topics.topic_state
    topic/<topic>       what was seen of a source topic         mirrorless.topics.topic_state
    topic-ends/<n>      where source partitions ended           mirrorless.topics.topic_state
    offset-syncs        which offset syncs were written         mirrorless.mm2.offset_syncs
    lanes/<topic>       how far its lanes have been checked     mirrorless.lanes.check_state
    acls                which ACLs we made, which are staged    mirrorless.topics.acl_sync
    acls/failover       which ACLs a failover made              mirrorless.topics.acl_sync
    forward/<group>     checkpoints, in a table of their own    mirrorless.groups.checkpoints
    reverse/<group>     the way back, in the same table         mirrorless.groups.checkpoints
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mirrorless.lane import FlowName


class Documents(Protocol):
    """A store of documents. Reads are strongly consistent; every method raises Retriable when it does not answer."""

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """Every document of a flow whose key begins with `prefix`, by key, in the order of the keys."""
        ...

    def write(self, flow: FlowName, documents: Mapping[str, bytes]) -> None:
        """Write documents by key, each whole; what stood there is replaced."""
        ...

    def delete(self, flow: FlowName, key: str) -> None:
        """Delete a document; deleting what is not there is harmless."""
        ...

    def claim(self, flow: FlowName, key: str, *, holder: str, now: int, until: int) -> bool:
        """Take or renew a lease; False while somebody else holds it.

        Args:
            flow: whose.
            key: of the lease.
            holder: unique to who asks.
            now: ms since the epoch; a lease whose `until` has passed is free.
            until: ms since the epoch.
        """
        ...

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """End a lease of ours; somebody else's stays."""
        ...
