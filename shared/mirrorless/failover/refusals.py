"""Refusals of a failover, a failback or a drill, before anything is changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorless.chain.lane import FlowName
from mirrorless.errors import Refused
from mirrorless.failover.state import FailoverDocument, FailoverOrder

NAMED = 5
"""Topics and lanes that a sentence names; the others are counted."""


class FailoverRefused(Refused):
    """The command does not fit the state of the flow or of its clusters. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """What a command has seen before it changes anything."""

    source_trouble: str = ""
    """Why the source does not answer; empty while it does."""
    target_trouble: str = ""
    document: FailoverDocument | None = None
    iam: bool = False
    """Whether clients of the source are authenticated by IAM."""
    authorizer: bool = True
    """Whether the source has one."""
    unguarded: Sequence[str] = ()
    """Topics without ACLs on the source."""
    stopped: Sequence[str] = ()
    """Lanes that are stopped, each with its reason."""
    leased: Sequence[str] = ()
    """Lanes that a job has."""
    topics: int = 1
    """That the flow replicates."""
    marked: bool = False
    """Whether the flow marks its copies, see `mirrorless.records.origin`."""
    both_ways: bool = False
    """Whether there is a flow in the other direction, of the same pair."""


def check_document(
    flow: FlowName, order: FailoverOrder, document: FailoverDocument | None, *, source_lost: bool
) -> None:
    """Check an order against the failover that is stored.

    Args:
        flow: whose.
        order: the new one.
        document: the stored one; None for none.
        source_lost: whether the source does not answer: then an unfinished planned failover goes on without it.

    Raises:
        FailoverRefused: another failover, or its failback, is unfinished; or the flow has failed over.
    """
    if document is None or document.over:
        return
    if document.back is not None:
        raise _refused(flow, "its failback is unfinished", f"finish it: `mirrorless failback '{flow}' --execute`")
    if document.order == order:
        return
    if not document.ended_at:
        if order.mode == "source-lost" and document.order.mode == "planned" and source_lost:
            return
        raise _refused(
            flow,
            f"a failover with other options is unfinished: {document.order.words}",
            f"finish it: `mirrorless failover '{flow}' {document.order.words} --execute`; "
            f"or undo it: `mirrorless failback '{flow}' --execute`",
        )
    raise _refused(
        flow,
        f"it has failed over already ({document.order.words})",
        f"`mirrorless failback '{flow}' --execute` brings it back",
    )


def check_failover(flow: FlowName, order: FailoverOrder, seen: ObservedState, *, force: bool) -> None:
    """Check what was seen against a failover or a drill that has not begun.

    Raises:
        FailoverRefused: with the reason, and what to do.
    """
    if seen.target_trouble:
        raise _refused(flow, f"{flow.target} does not answer: {seen.target_trouble}", "try again when it does")
    if not seen.topics:
        raise _refused(flow, "no topic of it is known", f"`mirrorless topics '{flow}'` lists what it replicates")
    if order.mode == "source-lost":
        if not seen.source_trouble and not force:
            raise _refused(
                flow,
                f"{flow.source} answers",
                "use --planned, which loses nothing; or --force where it answers you and nobody else",
            )
        return
    if seen.source_trouble:
        raise _refused(flow, f"{flow.source} does not answer: {seen.source_trouble}", "use --source-lost if it is lost")
    if order.mode == "drill":
        return
    _check_way_back(flow, seen)
    if seen.leased:
        raise _refused(flow, f"a job has {_some(seen.leased)}", "wait for the job, or cancel it")
    if seen.stopped and not force:
        raise _refused(
            flow,
            f"records wait behind stopped lanes: {_some(seen.stopped)}",
            f"bring them back, see `mirrorless lanes stopped '{flow}'`; "
            "or use --force, and they are missing on the target",
        )
    if order.fencing == "acl":
        _check_acls(flow, seen)


def _check_way_back(flow: FlowName, seen: ObservedState) -> None:
    """The job of a failback compares bytes, and a marked copy has a header more than its original."""
    if seen.marked and not seen.both_ways:
        raise _refused(
            flow,
            f"it marks its copies, and no flow {flow.turned} of a pair of clusters brings anything back",
            f"enable {flow.turned} with `loop.prevention: header`; in a larger circle of clusters stop producers and "
            "groups yourself, and start the groups on the target at an offset that you choose",
        )


def _check_acls(flow: FlowName, seen: ObservedState) -> None:
    wait = "stop the producers yourself, and use --fence wait"
    if seen.both_ways:
        raise _refused(flow, f"ACLs that keep producers from {flow.source} would stop {flow.turned} as well", wait)
    if seen.iam:
        raise _refused(flow, f"ACLs of Kafka do not bind the principals of IAM on {flow.source}", wait)
    if not seen.authorizer:
        raise _refused(flow, f"{flow.source} has no authorizer, so ACLs keep nobody from writing", wait)
    if seen.unguarded:
        raise _refused(
            flow,
            f"no ACL applies to {_some(seen.unguarded)} on {flow.source}: a first one could close it to its readers",
            wait,
        )


def check_failback(flow: FlowName, seen: ObservedState) -> FailoverDocument:
    """Check what was seen against a failback.

    Returns:
        the failover that it ends.

    Raises:
        FailoverRefused: with the reason, and what to do.
    """
    if seen.document is None:
        raise _refused(flow, "it has not failed over", "nothing is to be brought back")
    if seen.document.over:
        return seen.document  # the command ended after its last write: it shows the report again
    for alias, trouble in ((flow.source, seen.source_trouble), (flow.target, seen.target_trouble)):
        if trouble:
            raise _refused(flow, f"{alias} does not answer: {trouble}", "try again when it does")
    _check_way_back(flow, seen)
    if seen.leased:
        raise _refused(flow, f"a job has {_some(seen.leased)}", "wait for the job, or cancel it")
    return seen.document


def _refused(flow: FlowName, what: str, hint: str) -> FailoverRefused:
    return FailoverRefused(f"refused, and nothing was changed: {what}", where=str(flow), hint=hint)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
