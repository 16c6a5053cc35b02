"""The rights that applications need on the target: created at a failover, revoked at the failback."""

from __future__ import annotations

from typing import Final

from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.failover.groups import checkpoints_of
from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.reports.format import numbered
from mirrorless.topics.acl_revocation import leased, planned_revocation
from mirrorless.topics.acl_sync import AclFailover, AclOutcome, Disabled, stored
from mirrorless.topics.acls import why_withheld

LEASE_SECONDS: Final = 120.0
"""For which the scheduled function may keep its lease."""


def grant(work: FailoverWork) -> Done:
    """Create what was staged.

    Raises:
        Unfinished: the target refused a part of it.
        Retriable: the target or the store does not answer.
    """
    effects, flow = work.effects, work.flow
    failover = AclFailover(
        flow=flow,
        target=effects.target.acls,
        documents=effects.documents,
        groups=[each.group for each in checkpoints_of(work)],
    )
    try:
        missing = failover.plan(work.within())
    except ConfigurationError as exc:
        if effects.target.acls.read(work.within()) is None:
            return _without_authorizer(work)
        return Done(said=f"no ACL was staged: {exc.what}", facts={"left": [str(exc)]})
    if isinstance(missing, Disabled):
        return _without_authorizer(work)
    outcome = failover.carry_out(missing, work.within()) if missing else AclOutcome()
    _check(work, outcome)
    known, _ = stored(effects.documents, flow)
    left = [f"{acl}: {why_withheld(acl)}" for acl in (known.withheld if known is not None else ())]
    return Done(
        said=f"created on {flow.target}: {numbered(len(missing), 'ACL')}"
        + (f", {len(left)} are for you" if left else ""),
        facts={"created": len(missing), "left": left},
        commands=tuple(f"created on {flow.target}: {acl}" for acl in sorted(missing)),
    )


def revoke(work: FailoverWork) -> Done:
    """Delete what failovers have created, and nothing else.

    Raises: as `grant`.
    """
    effects, flow = work.effects, work.flow
    until = effects.clock() + int(LEASE_SECONDS * 1000)
    while True:
        try:
            with leased(effects.acl_sync, holder=f"failover/{effects.new_id()}", clock=effects.clock) as sync:
                plan = planned_revocation(sync, effects.acls_of_others(), work.within())
                if isinstance(plan, Disabled):
                    return _without_authorizer(work)
                found = plan.revocation
                outcome = plan.failover.revoke(found, work.within())
        except Retriable as exc:
            if effects.clock() > until:
                raise
            work.wait_for(f"the ACLs of {flow.target}: {exc.what}")
            work.pause()
            continue
        break
    _check(work, outcome)
    kept = len(found.due) + len(found.shared)
    return Done(
        said=f"deleted on {flow.target}: {numbered(len(found.delete), 'ACL')}"
        + (f", {kept} are due there now" if kept else ""),
        facts={"deleted": len(found.delete), "kept": kept},
        commands=tuple(f"deleted on {flow.target}: {acl}" for acl in sorted(found.delete)),
    )


def _without_authorizer(work: FailoverWork) -> Done:
    return Done(said=f"{work.flow.target} has no authorizer, so nothing is to be done")


def _check(work: FailoverWork, outcome: AclOutcome) -> None:
    if outcome.failed:
        acl, why = min(outcome.failed.items())
        raise Unfinished(
            f"{work.flow.target} refused {len(outcome.failed)} changes of ACLs, the first: {acl}: {why}",
            where=str(work.flow),
            hint="the operator needs ALTER on the target cluster; then run the same command again",
        )
