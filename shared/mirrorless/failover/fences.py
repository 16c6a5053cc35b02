"""The two fences of a failover: producers are kept from the source by ACLs, and the flow by one item."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.lane_state import Stop
from mirrorless.ports.kafka import Deadline
from mirrorless.reports.format import numbered
from mirrorless.topics.acls import Acl
from mirrorless.topics.write_fence import to_create, to_delete

AclChange = Callable[[Collection[Acl], Deadline], Mapping[Acl, str]]


def fence_producers(work: FailoverWork) -> Done:
    """Deny writes to the flow's topics on the source; with `--fence wait`, that is the operator's part.

    Raises:
        Unfinished: the source refused a part of it.
        Retriable: the source does not answer.
    """
    source, effects = work.flow.source, work.effects
    if work.document.order.fencing == "wait":
        work.say(f"stop the producers of {', '.join(sorted(work.topics))} on {source} now")
        return Done(said=f"producers of {source} are stopped by the operator")
    there = effects.source.acls.read(work.within()) or frozenset()
    marks, denies = to_create(work.topics, there)
    _change(work, effects.source.acls.create, marks)
    _change(work, effects.source.acls.create, denies)
    return Done(
        said=f"{source} denies writes to {numbered(len(work.topics), 'topic')}; super users are not bound by that",
        facts={"bindings": len(marks | denies)},
        commands=tuple(f"created on {source}: {acl}" for acl in sorted(denies)),
    )


def lift_producers(work: FailoverWork) -> Done:
    """Delete those ACLs. A DENY that was there before stays.

    Raises: as `fence_producers`.
    """
    source, effects = work.flow.source, work.effects
    there = effects.source.acls.read(work.within())
    denies, marks = to_delete(work.topics, there or ())
    _change(work, effects.source.acls.delete, denies)
    _change(work, effects.source.acls.delete, marks)
    return Done(
        said=f"{source} takes writes to {numbered(len(denies), 'topic')} again"
        if denies
        else "no topic was fenced by ACLs",
        commands=tuple(f"deleted on {source}: {acl}" for acl in sorted(denies)),
    )


def _change(work: FailoverWork, change: AclChange, acls: frozenset[Acl]) -> None:
    failed = change(acls, work.within()) if acls else {}
    if failed:
        acl, why = min(failed.items())
        raise Unfinished(
            f"{work.flow.source} refused {len(failed)} changes of ACLs, the first: {acl}: {why}",
            where=str(work.flow),
            hint="the operator needs ALTER on the source cluster; then run the same command again",
        )


def fence_flow(work: FailoverWork) -> Done:
    """Stop every lane of the flow, present and future. Warm functions read it within a minute.

    Raises:
        Retriable: the store does not answer.
    """
    effects, detail = work.effects, f"{work.document.run}: `mirrorless failback '{work.flow}' --execute` lifts this"
    known = effects.fences.fenced(work.flow)
    if known is None or known.detail != detail:
        effects.fences.fence(work.flow, Stop(reason="held", upstream_offset=0, detail=detail, at=effects.clock()))
    return Done(said="nothing more is replicated", commands=(f"fenced {work.flow}, by one item",))


def lift_flow(work: FailoverWork) -> Done:
    """End the fence. Lanes that the reconcile could not finish have a stop of their own.

    Raises:
        Retriable: the store does not answer.
    """
    work.effects.fences.lift(work.flow)
    return Done(said="the flow replicates again", commands=(f"lifted the fence of {work.flow}",))
