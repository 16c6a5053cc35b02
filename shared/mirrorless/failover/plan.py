"""The numbered steps of a failover, a failback or a drill, with a sentence for each, from what was seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorless.chain.lane import FlowName
from mirrorless.failover.state import FailoverDocument, FailoverOrder, StepName

PLANNED: Final[Sequence[StepName]] = (
    "check",
    "fence-producers",
    "standstill",
    "drain",
    "fence-flow",
    "groups",
    "acls",
    "prove",
    "last-look",
)
SOURCE_LOST: Final[Sequence[StepName]] = ("check", "fence-flow", "settle", "holdings", "groups", "acls")
REHEARSED: Final[Sequence[StepName]] = ("check", "holdings", "shadow-groups", "clean-up")
BACK: Final[Sequence[StepName]] = (
    "check",
    "lift-producers",
    "standstill",
    "reconcile",
    "revoke-acls",
    "last-look",
    "lift-flow",
)
"""Lifted before the copies, because the job writes to the same topics."""

PLANNED_BOTH_WAYS: Final[Sequence[StepName]] = ("check", "standstill", "drain", "groups", "acls", "prove")
TO_LOOK_BACK: Final[frozenset[StepName]] = frozenset({"check", "standstill", "last-look"})

BACK_BOTH_WAYS: Final[Sequence[StepName]] = ("check", "lift-flow", "catch-up", "groups-back", "revoke-acls")
"""Between clusters that replicate to each other, records come back by the other flow."""

ACL_STILL_SECONDS: Final = 5
"""For which the source's ends stand still after ACLs were created: brokers read them from the controller."""

WAIT_STILL_SECONDS: Final = 30
"""The same where producers are stopped by the operator."""

BACK_STILL_SECONDS: Final = 10
"""The same of the target before the copies. What is written there later, the job notices itself."""


def steps_of(order: FailoverOrder, *, back: bool, both_ways: bool = False) -> Sequence[StepName]:
    """The steps, in order. Args: both_ways: whether the clusters replicate to each other under the same names."""
    if back:
        return BACK_BOTH_WAYS if both_ways else BACK
    if both_ways and order.mode == "planned":
        return PLANNED_BOTH_WAYS
    return {"planned": PLANNED, "source-lost": SOURCE_LOST, "drill": REHEARSED}[order.mode]


def outdated(order: FailoverOrder, *, back: bool, both_ways: bool, fenced: bool) -> frozenset[StepName]:
    """The steps of an earlier command that the next one carries out again: the world has gone on meanwhile.

    Args:
        order: of the failover.
        back: whether it is a failback.
        both_ways: see `steps_of`.
        fenced: whether the flow is fenced: only then what was seen before is as it was. For a failback, whether it
            still is.
    """
    if order.mode == "source-lost" and not back:
        return frozenset()  # the source says nothing more
    steps = steps_of(order, back=back, both_ways=both_ways)
    if both_ways or order.mode == "drill":
        return frozenset(steps)  # nothing is fenced at any time
    if back:
        return TO_LOOK_BACK if fenced else frozenset({"last-look"})
    return frozenset() if fenced else frozenset(steps[: steps.index("fence-flow") + 1])


def to_go_round(*, back: bool) -> frozenset[StepName]:
    """The steps that are carried out again where the last look has found something."""
    return TO_LOOK_BACK | {"reconcile"} if back else frozenset(PLANNED)


def still_seconds(order: FailoverOrder, *, back: bool) -> int:
    """For how long ends must stand still."""
    if back:
        return BACK_STILL_SECONDS
    return ACL_STILL_SECONDS if order.fencing == "acl" else WAIT_STILL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A line of the plan."""

    number: int
    step: StepName
    sentence: str
    done: bool
    """Whether an earlier command has carried it out."""


def plan_of(
    flow: FlowName,
    order: FailoverOrder,
    topics: int,
    document: FailoverDocument | None,
    *,
    back: bool,
    both_ways: bool = False,
) -> list[PlannedStep]:
    """The plan.

    Args:
        flow: whose.
        order: of the failover.
        topics: that the flow replicates.
        document: of an earlier command; None for none.
        back: whether it is a failback.
        both_ways: see `steps_of`.
    """
    sentences = _back(flow, order) if back else _there(flow, order, topics, both_ways=both_ways)
    known = document is not None and (document.back is not None) == back
    return [
        PlannedStep(
            number=number,
            step=step,
            sentence=sentences[step],
            done=known and document is not None and document.result(step) is not None,
        )
        for number, step in enumerate(steps_of(order, back=back, both_ways=both_ways), 1)
    ]


def _there(flow: FlowName, order: FailoverOrder, topics: int, *, both_ways: bool) -> Mapping[StepName, str]:
    source, target = flow.source, flow.target
    still = still_seconds(order, back=False)
    of_topics = "its topic" if topics == 1 else f"its {topics:,} topics"
    drill = order.mode == "drill"
    return {
        "check": f"Check that {target} answers"
        + ("." if order.mode == "source-lost" else f" and {source} answers, and what stands in the way."),
        "fence-producers": f"Deny writes to {of_topics} on {source}, by ACLs."
        if order.fencing == "acl"
        else f"Nothing by this command: stop the producers of {of_topics} on {source}.",
        "standstill": f"Wait until {source} has had no record of its own for {still} s: stop the producers there."
        if both_ways
        else f"Wait until no end on {source} has moved, and no transaction was open, for {still} s.",
        "drain": f"Wait until {target} has every record.",
        "fence-flow": "Fence the flow: nothing more is replicated, by one item for all of its lanes.",
        "settle": "Settle runs in doubt.",
        "holdings": f"State for each partition what {target} holds, and what is known to be missing.",
        "groups": f"Bring the consumer groups to {target}, each to the record at which it goes on.",
        "acls": f"Create the rights on {target} that were staged for a failover.",
        "prove": "Prove the newest run of each partition by its digest.",
        "last-look": f"Look at {source} once more: what was written late is replicated as well, or named.",
        "shadow-groups": f"Commit the groups' offsets on {target} for groups of the drill's own, and read by them.",
        "clean-up": "Delete the groups of the drill." if drill else "",
    }


def _back(flow: FlowName, order: FailoverOrder) -> Mapping[StepName, str]:
    source, target = flow.source, flow.target
    fenced = order.mode == "planned" and order.fencing == "acl"
    return {
        "check": f"Check that {source} and {target} answer.",
        "lift-producers": f"Delete the ACLs that deny writes on {source}. Keep its producers stopped until the end."
        if fenced
        else f"Nothing: no ACL denies writes on {source}. Keep its producers stopped until the end.",
        "standstill": f"Wait until no end on {target} has moved for {still_seconds(order, back=True)} s: "
        "stop the producers there.",
        "reconcile": f"Copy to {source} what only {target} has, and bring the consumer groups back with it.",
        "catch-up": f"Wait until {source} and {target} have each other's records.",
        "groups-back": f"Bring the consumer groups back to {source}, each to the record at which it goes on.",
        "revoke-acls": f"Delete the rights on {target} that the failover created.",
        "last-look": f"Look at {target} once more: what was written late is copied as well, or named.",
        "lift-flow": "Lift the fence: the flow replicates again.",
    }
