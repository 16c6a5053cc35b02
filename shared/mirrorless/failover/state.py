"""The document of a flow's failover in the control table of the target's region: its order, and each step's result.

It is written after every step, so the same command goes on where another one ended, on any machine that reaches the
target's region. A drill has a document of its own, `failover/drill`.
"""

from __future__ import annotations

from collections.abc import Collection
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
    """`failover-20261123T181500`: in the names of its files, and in the fence."""
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
        return bool(self.ended_at if self.back is None else self.back.ended_at)

    @property
    def current(self) -> tuple[StepResult, ...]:
        """The steps of the way that is under way: there, or back."""
        return self.steps if self.back is None else self.back.steps

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
            return self._with((*self.current, result))
        result = msgspec.structs.replace(
            result,
            at=known.at,
            ms=result.at + result.ms - known.at,
            commands=tuple(dict.fromkeys((*known.commands, *result.commands))),
        )
        return self._with(tuple(result if each.step == result.step else each for each in self.current))

    def to_repeat(self, steps: Collection[StepName]) -> FailoverDocument:
        """The document with some steps of the current way to be carried out again."""
        return self._with(
            tuple(msgspec.structs.replace(each, again=True) if each.step in steps else each for each in self.current)
        )

    def _with(self, steps: tuple[StepResult, ...]) -> FailoverDocument:
        if self.back is None:
            return msgspec.structs.replace(self, steps=steps)
        return msgspec.structs.replace(self, back=msgspec.structs.replace(self.back, steps=steps))

    def ended(self, at: int) -> FailoverDocument:
        """The document at the end of the current way."""
        if self.back is None:
            return msgspec.structs.replace(self, ended_at=at)
        return msgspec.structs.replace(self, back=msgspec.structs.replace(self.back, ended_at=at))


def read_document(documents: StateStore, flow: FlowName, key: str = DOCUMENT) -> FailoverDocument | None:
    """The stored document; None where there is none.

    Raises:
        Retriable: the store does not answer.
    """
    text = documents.read(flow, key).get(key)
    return None if text is None else msgspec.json.decode(text, type=FailoverDocument)
