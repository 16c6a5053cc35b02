"""The revocation of what a failover granted, under the lease of the scheduled function that writes the same ACLs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from mirrorless.errors import Retriable
from mirrorless.ports.kafka import Deadline
from mirrorless.scheduled.lease import HeldLease, LeasedDocuments
from mirrorless.topics.acl_sync import AclFailover, AclSync, Disabled, Revocation
from mirrorless.topics.acls import Acl

LEASE: Final = "lease/refresh_topics"
LEASE_MS: Final = 60_000
"""The scheduled function's lease: while an operator's command writes what is due, or revokes, its rounds wait."""


@contextmanager
def leased(sync: AclSync, *, holder: str, clock: Callable[[], int]) -> Iterator[AclSync]:
    """The sync under the lease of the scheduled function: its documents are written while that is held.

    Args:
        sync: of the flow.
        holder: unique to the caller.
        clock: ms since the epoch.

    Raises:
        Retriable: the function runs now.
    """
    flow, at = sync.settings.name, clock()
    epoch = sync.documents.claim(flow, LEASE, holder=holder, now=at, until=at + LEASE_MS)
    if epoch is None:
        raise Retriable(
            "refresh_topics is running for this flow, and may be writing the same ACLs",
            where=str(flow),
            hint="run the command again in a minute",
        )
    held = HeldLease(epoch=epoch, until=at + LEASE_MS)
    try:
        yield replace(sync, documents=LeasedDocuments(sync.documents, held, clock))
    finally:
        sync.documents.release(flow, LEASE, holder=holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRevocation:
    """What a revocation deletes, and by which failover's documents."""

    failover: AclFailover
    revocation: Revocation


def planned_revocation(sync: AclSync, others: frozenset[Acl], deadline: Deadline) -> PlannedRevocation | Disabled:
    """Compare what failovers of this flow have created with what is due now.

    Args:
        sync: of the flow.
        others: what failovers of other flows to the same target need.
        deadline: for both clusters.

    Raises:
        Retriable: a cluster or the store does not answer.
    """
    now = sync.plan(deadline)
    due = frozenset[Acl]() if isinstance(now, Disabled) else now.wanted.due
    failover = AclFailover(flow=sync.settings.name, target=sync.target, documents=sync.documents)
    found = failover.revocation(due, others, deadline)
    return found if isinstance(found, Disabled) else PlannedRevocation(failover=failover, revocation=found)
