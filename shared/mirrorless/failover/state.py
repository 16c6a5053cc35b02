"""The document of a flow's failover in the control table of the target's region, and the plan that it carries out.

It is written after every step, so the same command goes on where another one ended, on any machine that reaches the
target's region. A drill has a document of its own, `failover/drill`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.ports.stores import StateStore

FailoverMode = Literal["planned", "source-lost", "drill"]
Fencing = Literal["acl", "wait"]
"""`acl`: the source denies writes to the flow's topics. `wait`: the operator stops the producers."""

StepName = Literal[
    "check",
    "fence-producers",
    "standstill",
    "drain",
    "fence-flow",
    "settle",
    "holdings",
    "groups",
    "acls",
    "prove",
    "shadow-groups",
    "clean-up",
    "lift-producers",
    "reconcile",
    "catch-up",
    "groups-back",
    "revoke-acls",
    "last-look",
    "lift-flow",
]

DOCUMENT: Final = "failover"
DRILL: Final = "failover/drill"


class FailoverOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator ordered."""

    mode: FailoverMode
    fencing: Fencing = "acl"
    """Of a planned failover."""

    @property
    def words(self) -> str:
        """The options of the command."""
        return f"--{self.mode}" + (f" --fence {self.fencing}" if self.mode == "planned" else "")


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was carried out."""

    step: StepName
    at: int
    """When it began, ms since the epoch."""
    ms: int
    said: str
    """Its result, in a sentence or two."""
    facts: dict[str, Any] = {}
    """Its result for later steps and for the report."""
    commands: tuple[str, ...] = ()
    """What it changed, one sentence each."""
    again: bool = False
    """Whether it counts no more: what it saw may have changed since, and the step is carried out again."""


class Failback(msgspec.Struct, frozen=True, kw_only=True):
    """The way back of a failover."""

    began_at: int
    steps: tuple[StepResult, ...] = ()
    reconcile_run: str = ""
    """The job run under way, written before it is started."""
    runs: tuple[str, ...] = ()
    """Every job run of this failback: their leases are its own."""
    reconcile_ends: dict[str, list[int]] = {}
    """The target's ends before it was started, by source topic and partition: what lies below, it has seen."""
    reconcile_positions: dict[str, int] = {}
    """The positions of the lanes at that time."""
    ended_at: int = 0


class FailoverDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a failover, or of a drill."""

    run: str
    """`failover-20261123T181500`: in the names of its files, and in the flow's stop."""
    order: FailoverOrder
    began_at: int
    """ms since the epoch."""
    steps: tuple[StepResult, ...] = ()
    ended_at: int = 0
    """0 while it is unfinished."""
    back: Failback | None = None

    @property
    def over(self) -> bool:
        """Whether the flow is back at its source."""
        return self.back is not None and bool(self.back.ended_at)

    @property
    def is_ended(self) -> bool:
        """Whether the way that is under way, there or back, has ended."""
        return bool((self.back or self).ended_at)

    @property
    def current(self) -> tuple[StepResult, ...]:
        """The steps of the way that is under way: there, or back."""
        return (self.back or self).steps

    def result(self, step: StepName) -> StepResult | None:
        """The result of a step of the current way; None where it was not carried out, or counts no more."""
        return next((each for each in self.current if each.step == step and not each.again), None)

    def facts(self, step: StepName) -> dict[str, Any]:
        """The facts of a step, of the way back or else of the way there; empty where it was not carried out."""
        found = [each for each in (*self.current, *self.steps) if each.step == step]
        return found[0].facts if found else {}

    def with_result(self, result: StepResult) -> FailoverDocument:
        """The document after a step of the current way; what the step had changed before stays in its result."""
        known = next((each for each in self.current if each.step == result.step), None)
        if known is None:
            return self.changed(steps=(*self.current, result))
        result = msgspec.structs.replace(
            result,
            at=known.at,
            ms=result.at + result.ms - known.at,
            commands=tuple(dict.fromkeys((*known.commands, *result.commands))),
        )
        return self.changed(steps=tuple(result if each.step == result.step else each for each in self.current))

    def to_repeat(self, steps: Collection[StepName]) -> FailoverDocument:
        """The document with some steps of the current way to be carried out again."""
        again = (msgspec.structs.replace(each, again=each.again or each.step in steps) for each in self.current)
        return self.changed(steps=tuple(again))

    def changed(self, **fields: Any) -> FailoverDocument:
        """The document with other fields of the current way: there, or back."""
        if self.back is None:
            return msgspec.structs.replace(self, **fields)
        return msgspec.structs.replace(self, back=msgspec.structs.replace(self.back, **fields))


def read_document(documents: StateStore, flow: FlowName, key: str = DOCUMENT) -> FailoverDocument | None:
    """The stored document; None where there is none.

    Raises:
        Retriable: the store does not answer.
    """
    text = documents.read(flow, key).get(key)
    return None if text is None else msgspec.json.decode(text, type=FailoverDocument)


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

UNDO: Final[Sequence[StepName]] = ("check", "lift-producers", "revoke-acls", "lift-flow")
"""Back from a failover that has not ended, where records were masked: producers have not moved, nothing is copied."""

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


def steps_of(order: FailoverOrder, *, back: bool, both_ways: bool = False, one_way: bool = False) -> Sequence[StepName]:
    """The steps, in order.

    Args:
        order: of the failover.
        back: whether it is a failback.
        both_ways: whether the clusters replicate to each other under the same names.
        one_way: whether records were masked, so that none may come back.
    """
    if back and one_way:
        return UNDO
    if back:
        return BACK_BOTH_WAYS if both_ways else BACK
    if both_ways and order.mode == "planned":
        return PLANNED_BOTH_WAYS
    return {"planned": PLANNED, "source-lost": SOURCE_LOST, "drill": REHEARSED}[order.mode]


def outdated(order: FailoverOrder, *, back: bool, both_ways: bool, stopped: bool) -> frozenset[StepName]:
    """The steps of an earlier command that the next one carries out again: the world has gone on meanwhile.

    Args:
        order: of the failover.
        back: whether it is a failback.
        both_ways: see `steps_of`.
        stopped: whether the flow is stopped: only then what was seen before is as it was. For a failback, whether it
            still is.
    """
    if order.mode == "source-lost" and not back:
        return frozenset()  # the source says nothing more
    steps = steps_of(order, back=back, both_ways=both_ways)
    if both_ways or order.mode == "drill":
        return frozenset(steps)  # nothing is stopped at any time
    if back:
        return TO_LOOK_BACK if stopped else frozenset({"last-look"})
    return frozenset() if stopped else frozenset(steps[: steps.index("fence-flow") + 1])


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
    one_way: bool = False,
) -> list[PlannedStep]:
    """The plan.

    Args:
        flow: whose.
        order: of the failover.
        topics: that the flow replicates.
        document: of an earlier command; None for none.
        back: whether it is a failback.
        both_ways: see `steps_of`.
        one_way: see there.
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
        for number, step in enumerate(steps_of(order, back=back, both_ways=both_ways, one_way=one_way), 1)
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
        "fence-flow": "Stop the flow: nothing more is replicated, by one item for all of its lanes.",
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
        "lift-flow": "Resume the flow: it replicates again.",
    }
