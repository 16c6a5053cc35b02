"""The sync of the source's ACLs to the target, and the staged ACLs of a failover.

A round reads both clusters, decides, and writes only what is missing or revoked. The document `acls` holds the bindings
that the flow created, so that no other binding is ever deleted; the topics of earlier rounds, so that an incomplete
listing revokes nothing; and the staged bindings, for when the source is gone. The document `acls/failover` holds those
that the operator has created of them: the schedule does not delete these, and a revocation deletes no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.functions import REFRESH_TOPICS
from mirrorless.scheduled.runner import HeldLease, LeasedDocuments, RoundReport, lease
from mirrorless.topics.acls import (
    Acl,
    Acls,
    Changes,
    Wanted,
    changes,
    held_back,
    on_groups,
    wanted_acls,
    without_fences,
)
from mirrorless.topics.discovery import discover

DOCUMENT: Final = "acls"
FAILOVER: Final = "acls/failover"


class AclDocument(msgspec.Struct, frozen=True):
    """The state of a round for the next one, each member sorted. Of a failover, `created` and `staged`."""

    created: tuple[Acl, ...] = ()
    """Created by the flow on the target, and not deleted since."""
    staged: tuple[Acl, ...] = ()
    """For a failover; in the document of one, all that it needs until it is revoked."""
    topics: tuple[str, ...] = ()
    """Every topic of the source that a round has listed and that the flow takes."""
    withheld: tuple[Acl, ...] = ()
    """Bindings of the source that would apply to the replication's own groups or transactional ids."""

    def staged_with(self, groups: Collection[str]) -> frozenset[Acl]:
        """The staged bindings, and those on the groups that the flow follows."""
        return frozenset(self.staged) | on_groups(self.withheld, groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan:
    """The ACLs of both clusters, compared."""

    topics: tuple[str, ...]
    """The topics that the flow takes, sorted."""
    wanted: Wanted
    changes: Changes
    on_target: frozenset[Acl]
    previous: AclDocument | None
    """The state of the round before; None in the first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disabled:
    """A cluster has no authorizer, so there is nothing to do."""

    cluster: Literal["source", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclOutcome:
    """The result of the changes."""

    created: frozenset[Acl] = frozenset()
    deleted: frozenset[Acl] = frozenset()
    failed: Mapping[Acl, str] = field(default_factory=dict)
    """The reason for each change that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSync:
    """A flow's ACLs. `act` is the scheduled task; the operator's command calls `plan` and `carry_out`."""

    settings: FlowSettings
    source: Acls
    target: Acls
    topics: Callable[[Deadline], Mapping[str, int]]
    """Every topic of the source with its number of partitions; raises Retriable when the source does not answer."""
    documents: StateStore

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: a cluster or the store does not answer, or the target took none of the changes.
        """
        plan = self.plan(deadline)
        if isinstance(plan, Disabled):
            report.counts["acls-disabled"] = 1
            return
        outcome = self.carry_out(plan, deadline)
        report.counts |= {
            "acls-created": len(outcome.created),
            "acls-deleted": len(outcome.deleted),
            "acls-staged": len(plan.wanted.staged),
            "acls-left": len(plan.wanted.left),
        }
        report.troubles += failures(outcome, self._flow)

    def plan(self, deadline: Deadline) -> AclPlan | Disabled:
        """Read, and decide. Nothing is written.

        Raises:
            Retriable: a cluster or the store does not answer.
        """
        on_source = self.source.read(deadline)
        if on_source is None:
            return Disabled(cluster="source")
        on_target = self.target.read(deadline)
        if on_target is None:
            return Disabled(cluster="target")
        on_source = without_fences(on_source)
        previous, moved = stored(self.documents, self._flow)
        topics = self._taken(on_source, previous, deadline)
        wanted = wanted_acls(
            on_source,
            taken=topics,
            flow=self._flow,
            policy=self.settings.policy,
            is_ours=self.target.is_ours,
        )
        ours = frozenset(previous.created if previous is not None else ())
        return AclPlan(
            topics=topics,
            wanted=wanted,
            changes=changes(wanted.due, on_target=on_target, ours=ours, kept=frozenset(moved.created)),
            on_target=on_target,
            previous=previous,
        )

    def carry_out(self, plan: AclPlan, deadline: Deadline) -> AclOutcome:
        """Write what is due, and store what is staged.

        1. Store what is about to be created: after an interruption it must still be revocable.
        2. Create. 3. Delete: for a moment both exist, and a DENY always wins. 4. Store the result.

        Raises:
            Retriable: the target or the store does not answer, or the target took none of the changes.
        """
        todo = plan.changes
        # A binding that is neither on the target nor due was deleted by another client: the flow no longer owns it.
        ours = frozenset(plan.previous.created if plan.previous is not None else ()) & (plan.wanted.due | todo.delete)
        pending = self._store(plan.previous, ours | todo.create, plan)
        failed = create(self.target, todo.create, deadline)
        failed |= self.target.delete(todo.delete, deadline) if todo.delete else {}
        created, deleted = todo.create - failed.keys(), todo.delete - failed.keys()
        self._store(pending, (ours - todo.create - deleted) | created, plan)
        return _unless_all_failed(AclOutcome(created=created, deleted=deleted, failed=failed), self._flow)

    def _store(self, previous: AclDocument | None, created: Iterable[Acl], plan: AclPlan) -> AclDocument:
        wanted = plan.wanted
        document = AclDocument(
            created=tuple(sorted(created)),
            staged=tuple(sorted(wanted.staged)),
            topics=plan.topics,
            withheld=tuple(sorted(wanted.withheld)),
        )
        if document != previous:
            self.documents.write(self._flow, {DOCUMENT: msgspec.json.encode(document)})
        return document

    def _taken(self, on_source: Iterable[Acl], previous: AclDocument | None, deadline: Deadline) -> tuple[str, ...]:
        """The topics that the flow takes: those listed now, those listed before, and those that ACLs name.

        So only the source's ACLs and the flow's filters can revoke anything. A topic that a listing misses, or that
        does not exist yet, keeps its rights.
        """
        named = (acl.name for acl in on_source if acl.resource == "TOPIC" and acl.prefix is None)
        before = previous.topics if previous is not None else ()
        return discover(dict.fromkeys((*named, *before), 0) | dict(self.topics(deadline)), self.settings).taken

    @property
    def _flow(self) -> FlowName:
        return self.settings.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """The bindings of a failover, sorted by what a revocation does with them."""

    delete: frozenset[Acl]
    due: frozenset[Acl]
    """Due on the target by now: they become the schedule's."""
    shared: frozenset[Acl]
    """Needed by a failover of another flow to this target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFailover:
    """The staged ACLs, for applications that move to the target. To create them, the source is not read."""

    flow: FlowName
    target: Acls
    documents: StateStore
    groups: Collection[str] = ()
    """The groups that the flow follows."""

    def staged(self) -> frozenset[Acl]:
        """Every staged binding.

        Raises:
            Retriable: the store does not answer.
            ConfigurationError: nothing was stored for this flow yet.
        """
        previous, _ = stored(self.documents, self.flow)
        if previous is None:
            raise ConfigurationError(
                "no round has read the source's ACLs yet: nothing is staged",
                where=str(self.flow),
                hint="set sync.topic.acls.enabled: true, or run once while the source is available: "
                f"`mirrorless acl apply '{self.flow}' --execute`",
            )
        return previous.staged_with(self.groups)

    def plan(self, deadline: Deadline) -> frozenset[Acl] | Disabled:
        """The staged bindings that are not on the target yet.

        Raises:
            Retriable: the target or the store does not answer.
            ConfigurationError: nothing was stored for this flow yet.
        """
        staged, on_target = self.staged(), self.target.read(deadline)
        return Disabled(cluster="target") if on_target is None else staged - on_target

    def carry_out(self, missing: frozenset[Acl], deadline: Deadline) -> AclOutcome:
        """Store them as created by the failover, create them, and remove those that failed.

        Raises:
            Retriable: the target or the store does not answer, or the target took none.
        """
        moved = stored(self.documents, self.flow)[1]
        before, needed = frozenset(moved.created), self.staged().union(moved.staged)
        self._store(before | missing, needed)
        failed = create(self.target, missing, deadline)
        created = missing - failed.keys()
        self._store(before | created, needed)
        return _unless_all_failed(AclOutcome(created=created, failed=failed), self.flow)

    def revocation(self, due: frozenset[Acl], others: frozenset[Acl], deadline: Deadline) -> Revocation | Disabled:
        """The bindings that this flow's failovers created and that are still on the target.

        Args:
            due: the bindings that the target should have now.
            others: those that failovers of other flows to this target need.
            deadline: for the target.

        Raises:
            Retriable: the target or the store does not answer.
        """
        on_target = self.target.read(deadline)
        if on_target is None:
            return Disabled(cluster="target")
        there = on_target.intersection(stored(self.documents, self.flow)[1].created)
        return Revocation(delete=there - due - others, due=there & due, shared=there & others - due)

    def revoke(self, plan: Revocation, deadline: Deadline) -> AclOutcome:
        """Delete what was granted: ALLOWs first, and no DENY whose ALLOW could not be deleted. Then store the rest.

        The caller has the lease of the scheduled function: what is due becomes the schedule's.

        Raises:
            Retriable: the target or the store does not answer, or the target deleted none.
        """
        previous, moved = stored(self.documents, self.flow)
        denies = frozenset(acl for acl in plan.delete if acl.permission == "DENY")
        allows = plan.delete - denies
        failed = dict(self.target.delete(allows, deadline)) if allows else {}
        waiting = held_back(denies, failed)
        if ready := denies - waiting.keys():
            failed |= self.target.delete(ready, deadline)
        failed |= {acl: f"kept, because this could not be deleted: {allow}" for acl, allow in waiting.items()}
        if plan.due and previous is not None:
            handed = msgspec.structs.replace(previous, created=tuple(sorted(plan.due.union(previous.created))))
            self.documents.write(self.flow, {DOCUMENT: msgspec.json.encode(handed)})
        rest = plan.shared.union(failed)
        if moved != AclDocument(created=tuple(sorted(rest))):
            self._store(rest, ())
        return _unless_all_failed(AclOutcome(deleted=plan.delete - failed.keys(), failed=failed), self.flow)

    def _store(self, created: Iterable[Acl], needed: Iterable[Acl]) -> None:
        document = AclDocument(created=tuple(sorted(created)), staged=tuple(sorted(needed)))
        self.documents.write(self.flow, {FAILOVER: msgspec.json.encode(document)})


def stored(documents: StateStore, flow: FlowName) -> tuple[AclDocument | None, AclDocument]:
    """The state of the last round, None for none; and what a failover has created."""
    found = {key: msgspec.json.decode(text, type=AclDocument) for key, text in documents.read(flow, DOCUMENT).items()}
    return found.get(DOCUMENT), found.get(FAILOVER, AclDocument())


def create(target: Acls, acls: frozenset[Acl], deadline: Deadline) -> dict[Acl, str]:
    """Create DENYs first, then ALLOWs, except those whose DENY failed. Returns the reason for each that failed."""
    denies = frozenset(acl for acl in acls if acl.permission == "DENY")
    failed = dict(target.create(denies, deadline)) if denies else {}
    waiting = held_back(acls - denies, failed)
    if ready := acls - denies - waiting.keys():
        failed |= target.create(ready, deadline)
    return failed | {acl: f"held back, because this could not be created: {deny}" for acl, deny in waiting.items()}


def failures(outcome: AclOutcome, flow: FlowName) -> list[str]:
    """One sentence for each change that failed."""
    return [f"{flow} on the target: {acl}: {why}" for acl, why in sorted(outcome.failed.items())]


def _unless_all_failed(outcome: AclOutcome, flow: FlowName) -> AclOutcome:
    if outcome.failed and not (outcome.created or outcome.deleted):
        first = failures(outcome, flow)[0]
        raise Retriable(
            f"the target took none of {len(outcome.failed)} changes of ACLs, the first: {first}", where=str(flow)
        )
    return outcome


LEASE: Final = lease(REFRESH_TOPICS.name)
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
