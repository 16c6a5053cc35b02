"""One command: a failover, a failback or a drill of one flow, from where an earlier command ended.

    observe -> refuse, or plan -> for each step without a result: act, store the result -> end

A step may be cut off anywhere and is repeated as a whole, so each of them begins with what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from mirrorless.failover.both_ways import bring_back_groups, catch_up
from mirrorless.failover.bring_back import reconcile
from mirrorless.failover.drain import drain
from mirrorless.failover.effects import FailoverEffects
from mirrorless.failover.fences import fence_flow, fence_producers, lift_flow, lift_producers
from mirrorless.failover.groups import bring_groups
from mirrorless.failover.observation import Observation, known_topics, observe
from mirrorless.failover.plan import PlannedStep, plan_of
from mirrorless.failover.proof import prove
from mirrorless.failover.refusals import FailoverRefused, check_document, check_failback, check_failover
from mirrorless.failover.rehearsal import clean_up, commit_shadows
from mirrorless.failover.remains import hold_up, settle
from mirrorless.failover.rights import grant, revoke
from mirrorless.failover.standstill import stand_still
from mirrorless.failover.state import (
    DOCUMENT,
    DRILL,
    Failback,
    FailoverDocument,
    FailoverOrder,
    StepName,
    StepResult,
    read_document,
)
from mirrorless.failover.work import Done, FailoverWork
from mirrorless.reports.format import numbered

ACTS: Final[Mapping[StepName, Callable[[FailoverWork], Done]]] = {
    "fence-producers": fence_producers,
    "standstill": stand_still,
    "drain": drain,
    "fence-flow": fence_flow,
    "settle": settle,
    "holdings": hold_up,
    "groups": bring_groups,
    "acls": grant,
    "prove": prove,
    "shadow-groups": commit_shadows,
    "clean-up": clean_up,
    "lift-producers": lift_producers,
    "reconcile": reconcile,
    "catch-up": catch_up,
    "groups-back": bring_back_groups,
    "revoke-acls": revoke,
    "lift-flow": lift_flow,
}
"""All steps but `check`, whose result is what was seen before."""


@dataclass(slots=True, kw_only=True)
class FailoverCommand:
    """A command on one flow. `prepare` changes nothing; `execute` carries out what is left of the plan."""

    effects: FailoverEffects
    order: FailoverOrder | None
    """None for a failback, whose failover is stored."""
    force: bool = False
    say: Callable[[str], None] = lambda _: None
    on_begin: Callable[[PlannedStep], None] = lambda _step: None
    """Called with each step that is about to be carried out."""
    on_step: Callable[[PlannedStep, StepResult], None] = lambda _step, _result: None
    """Called with each result, after it was stored."""
    still_seconds: float | None = None
    """For how long ends must stand still, where it is not as usual."""
    plan: Sequence[PlannedStep] = ()
    document: FailoverDocument | None = None
    """The stored one; of a command before, or of this one."""
    _observation: Observation | None = None
    _stored: FailoverDocument | None = None
    """As the plan rests on it."""

    def prepare(self) -> Sequence[PlannedStep]:
        """Observe, refuse or plan.

        Raises:
            FailoverRefused: the command does not fit; nothing was changed.
            Retriable: a store does not answer.
        """
        flow = self.effects.flow
        failover = read_document(self.effects.documents, flow)
        order = self.order or (failover.order if failover is not None else FailoverOrder(mode="planned"))
        self._stored = self._read()
        self.document = self._prepare_back(order) if self.order is None else self._prepare_there(order, failover)
        topics = self._observation.topics if self._observation is not None else self._stored_topics()
        self.plan = plan_of(
            flow, order, len(topics), self.document, back=self.order is None, both_ways=self.effects.both_ways
        )
        return self.plan

    def _prepare_there(self, order: FailoverOrder, failover: FailoverDocument | None) -> FailoverDocument | None:
        """The document that this command continues; None for none."""
        flow, known = self.effects.flow, self._stored
        another = failover is not None and not failover.over and failover.order != order
        lost = another and order.mode == "source-lost" and bool(self.effects.source.answers())
        check_document(flow, order, failover, source_lost=lost)
        if known is not None and (known.over or (order.mode == "drill" and known.ended_at)):
            known = None
        if known is not None and known.order != order:
            # The source was lost in the middle of a planned failover: what was done stays done.
            known = msgspec.structs.replace(known, order=order)
        if known is None or not known.steps:
            self._observation = observe(self.effects, order, back=False)
            check_failover(flow, order, self._observation.seen, force=self.force)
        return known

    def _prepare_back(self, order: FailoverOrder) -> FailoverDocument:
        observation = observe(self.effects, order, back=True)
        known = check_failback(self.effects.flow, observation.seen)
        if known.back is None or not known.back.steps:
            self._observation = observation
        return known

    def _stored_topics(self) -> Mapping[str, int]:
        return dict(self.document.facts("check").get("topics", {})) if self.document is not None else {}

    def execute(self) -> FailoverDocument:
        """Carry out what is left, after `prepare`.

        Raises:
            Unfinished: a step waits for something that has not come.
            LeaseLost: another command is at work.
            Retriable: a cluster or a store does not answer. Every result before is kept.
        """
        now = self.effects.clock()
        document = self.document or FailoverDocument(
            run=_run_id(now, drill=self._order.mode == "drill"), order=self._order, began_at=now
        )
        if self.order is None and document.back is None:
            document = msgspec.structs.replace(document, back=Failback(began_at=now))
        work = FailoverWork(effects=self.effects, document=document, say=self.say, still_seconds=self.still_seconds)
        with work.leased():
            self._check_unchanged()
            for step in self.plan:
                if work.document.result(step.step) is None:
                    self.on_begin(step)
                    result = self._act(step.step, work)
                    work.save(work.document.with_result(result))
                    self.on_step(step, result)
            if not (work.document.back.ended_at if work.document.back is not None else work.document.ended_at):
                work.save(work.document.ended(self.effects.clock()))
        self.document = work.document
        return work.document

    def _check_unchanged(self) -> None:
        """Refuse where another command has changed the document since the plan was made.

        Raises:
            FailoverRefused: it has.
        """
        if self._read() != self._stored:
            raise FailoverRefused(
                "another command has been at work meanwhile, and the plan is outdated",
                where=str(self.effects.flow),
                hint="run the same command again",
            )

    def _read(self) -> FailoverDocument | None:
        drill = self.order is not None and self.order.mode == "drill"
        return read_document(self.effects.documents, self.effects.flow, DRILL if drill else DOCUMENT)

    def _act(self, step: StepName, work: FailoverWork) -> StepResult:
        began = self.effects.clock()
        done = self._checked() if step == "check" else ACTS[step](work)
        return StepResult(
            step=step,
            at=began,
            ms=self.effects.clock() - began,
            said=done.said,
            facts=dict(done.facts),
            commands=done.commands,
        )

    def _checked(self) -> Done:
        """The result of the first step: what was seen before anything was changed."""
        observation = self._observation
        topics = dict(observation.topics) if observation is not None else dict(known_topics(self.effects))
        if self.order is None:
            for topic, count in self._stored_topics().items():
                topics.setdefault(topic, count)
        seen = observation.seen if observation is not None else None
        return Done(
            said=f"{numbered(len(topics), 'topic')}, {numbered(sum(topics.values()), 'partition')}",
            facts={
                "topics": topics,
                "stopped": list(seen.stopped) if seen is not None else [],
                "forced": self.force,
            },
        )

    @property
    def _order(self) -> FailoverOrder:
        assert self.order is not None  # noqa: S101 -- a failback has a document
        return self.order


def _run_id(now: int, *, drill: bool) -> str:
    """`failover-20261123T181500`."""
    return f"{'drill' if drill else 'failover'}-{datetime.fromtimestamp(now / 1000, UTC):%Y%m%dT%H%M%S}"
