"""One command: a failover, a failback or a drill of one flow, from where an earlier command ended.

    observe -> refuse, or plan -> for each step without a result: act, store the result -> end

A step may be cut off anywhere and is repeated as a whole, so each of them begins with what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from mirrorless.errors import Retriable
from mirrorless.failover.groups import bring_groups
from mirrorless.failover.missing import hold_up, late_of, look_again, settle
from mirrorless.failover.refusals import (
    FailoverRefused,
    Observation,
    check_document,
    check_failback,
    check_failover,
    known_topics,
    no_way_back,
    observe,
)
from mirrorless.failover.standstill import (
    bring_back_groups,
    catch_up,
    drain,
    fence_producers,
    lift_producers,
    resume_flow,
    stand_still,
    stop_flow,
)
from mirrorless.failover.state import (
    DOCUMENT,
    DRILL,
    Failback,
    FailoverDocument,
    FailoverOrder,
    PlannedStep,
    StepName,
    StepResult,
    outdated,
    plan_of,
    read_document,
    to_go_round,
)
from mirrorless.failover.steps import clean_up, commit_shadows, grant, prove, reconcile, revoke
from mirrorless.failover.work import Done, FailoverEffects, FailoverWork
from mirrorless.reports.format import numbered

ACTS: Final[Mapping[StepName, Callable[[FailoverWork], Done]]] = {
    "fence-producers": fence_producers,
    "standstill": stand_still,
    "drain": drain,
    "fence-flow": stop_flow,
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
    "last-look": look_again,
    "lift-flow": resume_flow,
}
"""All steps but `check`, whose result is what was seen before."""

ROUNDS: Final = 3
"""In which a command replicates what came late. A producer that writes once a minute would go on for ever."""


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
    cancelled: Callable[[], bool] = lambda: False
    """Whether to end, between two steps or in a pause."""
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
            flow,
            order,
            len(topics),
            self.document,
            back=self.order is None,
            both_ways=self.effects.both_ways,
            one_way=any(self.effects.settings.rule_of(topic) is not None for topic in topics),
        )
        return self.plan

    @property
    def warnings(self) -> list[str]:
        """What the operator should be aware of before anything is changed, one sentence each."""
        if self._observation is None:
            return list(self.document.facts("check").get("warnings", ())) if self.document is not None else []
        source, back = self.effects.flow.source, self.order is None
        moves = not back and (self.order is None or self.order.mode != "drill")
        final = no_way_back(self.effects.flow, self._observation) if moves else ""
        return [*filter(None, [final]), *(each.warning(source, back=back) for each in self._observation.wider)]

    def _prepare_there(self, order: FailoverOrder, failover: FailoverDocument | None) -> FailoverDocument | None:
        """The document that this command continues; None for none."""
        flow, known = self.effects.flow, self._stored
        another = failover is not None and not failover.over and failover.order != order
        lost = another and order.mode == "source-lost" and bool(self.effects.source.answers())
        check_document(flow, order, failover, source_lost=lost)
        if known is not None and (known.over or (order.mode == "drill" and known.ended_at)):
            known = None
        switched = known is not None and known.order != order
        if known is not None and switched:
            # The source was lost in the middle of a planned failover: what was done stays done.
            known = msgspec.structs.replace(known, order=order).to_repeat({"check"})
        if known is not None and not known.ended_at:
            stopped = known.result("fence-flow") is not None
            known = known.to_repeat(outdated(order, back=False, both_ways=self.effects.both_ways, stopped=stopped))
        if known is None or known.result("check") is None:
            self.force = self.force or (known is not None and bool(known.facts("check").get("forced")))
            self._observation = observe(self.effects, order, back=False)
            if not switched:
                check_failover(flow, order, self._observation, force=self.force)
        return known

    def _prepare_back(self, order: FailoverOrder) -> FailoverDocument:
        observation = observe(self.effects, order, back=True)
        known = check_failback(self.effects.flow, observation)
        if known.back is not None and not known.over:
            if not known.back.reconcile_ends:  # as an earlier version has left it: nothing is known of the target
                known = known.to_repeat({"reconcile"})
            resumed = known.result("reconcile") is not None and not self._is_stopped()
            known = known.to_repeat(outdated(order, back=True, both_ways=self.effects.both_ways, stopped=not resumed))
        if known.back is None or known.result("check") is None:
            self._observation = observation
        return known

    def _is_stopped(self) -> bool:
        return self.effects.flow_stops.flow_stop(self.effects.flow) is not None

    def _stored_topics(self) -> Mapping[str, int]:
        return dict(self.document.facts("check").get("topics", {})) if self.document is not None else {}

    def execute(self) -> FailoverDocument:
        """Carry out what is left, after `prepare`.

        Raises:
            Unfinished: a step waits for something that has not come.
            LeaseLost: another command is at work.
            Interrupted: by the operator. Every result before is kept, as of any of these.
            Retriable: a cluster or a store does not answer. Every result before is kept.
        """
        now = self.effects.clock()
        document = self.document or FailoverDocument(
            run=_run_id(now, drill=self._order.mode == "drill"), order=self._order, began_at=now
        )
        if self.order is None and document.back is None:
            document = msgspec.structs.replace(document, back=Failback(began_at=now))
        work = FailoverWork(
            effects=self.effects,
            document=document,
            say=self.say,
            still_seconds=self.still_seconds,
            cancelled=self.cancelled,
        )
        try:
            with work.leased():
                self._check_unchanged()
                self._carry_out(work)
        finally:
            self.document = work.document
        return work.document

    def _carry_out(self, work: FailoverWork) -> None:
        if work.document.is_ended:
            self._look_after_the_end(work)
            return
        rounds = ROUNDS
        while self._steps_left(work, go_round=rounds > 0):
            rounds -= 1
        if not work.document.is_ended:
            work.save(work.document.changed(ended_at=self.effects.clock()))

    def _steps_left(self, work: FailoverWork, *, go_round: bool) -> bool:
        """Carry out what is left; whether all begins again, because the last look has found what can be replicated."""
        for step in self.plan:
            if work.document.result(step.step) is not None:
                continue
            work.end_if_cancelled()
            self.on_begin(step)
            result = self._act(step.step, work)
            if step.step == "last-look" and go_round and self._can_go_round(result, work):
                work.say(f"{result.said}: the steps before it are carried out again")
                back = work.document.back is not None
                again = work.document.to_repeat(to_go_round(back=back))
                work.save(again.changed(reconcile_run="") if back else again)
                self._observation = observe(self.effects, work.document.order, back=back)
                if not self.force and not back:  # a lane that was stopped meanwhile is waited for, and so is named
                    self._observation = replace(self._observation, stopped=())
                return True
            document = work.document.with_result(result)
            # With its end, so that no other command begins in between: the look would not count for that one.
            last = step == self.plan[-1]
            work.save(document.changed(ended_at=self.effects.clock()) if last else document)
            self.on_step(step, result)
        return False

    def _can_go_round(self, result: StepResult, work: FailoverWork) -> bool:
        """Whether anything of what came late can still be replicated before applications begin on the other side."""
        return any(not each.left for each in late_of(result.facts)) and (
            work.document.back is None or self._is_stopped()
        )

    def _look_after_the_end(self, work: FailoverWork) -> None:
        """Look once more for a command that has ended before: producers may have gone on where nobody looks any more.

        Nothing more is replicated: applications may have begun on the other side.
        """
        known = work.document.result("last-look")
        if known is None or work.document.back is not None or work.document.order.mode != "planned":
            return
        try:
            found = look_again(work)
        except Retriable as exc:
            work.say(f"{work.flow.source} was not looked at again: {exc}")
            return
        if found.facts["late"] != known.facts["late"]:
            work.save(
                work.document.with_result(msgspec.structs.replace(known, said=found.said, facts=dict(found.facts)))
            )

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
        seen = self._observation
        topics = dict(seen.topics if seen is not None else known_topics(self.effects))
        if self.order is None or self.order.mode == "source-lost":
            for topic, count in self._stored_topics().items():
                topics[topic] = max(count, topics.get(topic, 0))
        return Done(
            said=f"{numbered(len(topics), 'topic')}, {numbered(sum(topics.values()), 'partition')}",
            facts={
                "topics": topics,
                "stopped": list(seen.stopped) if seen is not None else [],
                "warnings": self.warnings,
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
