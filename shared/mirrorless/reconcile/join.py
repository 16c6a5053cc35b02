"""The join of a lane's chain with the records that were brought back: the back lane's runs, turned around.

A record that was copied from the target to the source is the same record on both sides, and the back lane's run has
both offsets. Read the other way, it is a link of the forward chain:

    back lane      upstream = target [40 .. 49]   downstream = source [107 .. 116]
    forward chain  ... next 100 | position 100, next 117: (107, 40, 10), and [100, 107) is a gap: orphans

So the forwarder finds the copies below its position when the mapping delivers them, and drops them: no echo. And
offsets translate exactly across the failback, both ways: the chain stays one chain with one order (invariant D).

What stands on the target *before* the chain's end cannot be put into that order: its copies follow on the source what
they precede on the target. Such a run covers its copies as a gap, and the report counts them.

The ledger is written first, then the chain, link by link:

    note the orphans       before the chain passes them: noting twice keeps one
    append the links       each on condition that its position is free: so a forwarder that continues is noticed

A crash in between is harmless: the next run finds the copies that are not joined yet, and continues at the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mirrorless.errors import LostRace, Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.difference import runs_of
from mirrorless.reconcile.findings import LaneInspection, LaneOrphans
from mirrorless.reconcile.orphans import orphaned
from mirrorless.run import Run, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """The links to append to a lane's chain."""

    runs: tuple[Run, ...]
    """Committed, each from where the one before it ends; the first begins at the head's position."""
    unmapped: int
    """Records that came back and whose offsets cannot be translated."""

    @property
    def end(self) -> int | None:
        """The lane's position afterwards; None when nothing is appended."""
        return self.runs[-1].next if self.runs else None


def copies_above(back: Iterable[Run], position: int) -> list[Run]:
    """The runs of a back lane whose copies stand on the source at or above a position: those not joined yet."""
    return [run for run in back if run.last_downstream is not None and run.last_downstream >= position]


def places_of(back: Iterable[Run]) -> list[OffsetRange]:
    """The ranges of the copies on the source, growing and apart."""
    return [OffsetRange(span.downstream, span.downstream + span.length) for run in back for span in run.spans]


def joined(
    lane: Lane, head: Head, back: Sequence[Run], *, mapped_from: int, until: int, request: str, now: int
) -> Join:
    """Make the links that cover everything that was brought back, and the orphans in between.

    Args:
        lane: the forward lane.
        head: of its chain, not in doubt.
        back: the committed runs of the back lane whose copies are not joined yet.
        mapped_from: the chain's end on the target: what stands below cannot be mapped.
        until: the lane's position afterwards, at least.
        request: the job run.
        now: ms since the epoch.
    """
    runs: list[Run] = []
    at, end, unmapped = head.position, mapped_from, 0
    for each in back:
        last = each.last_downstream
        if last is None or last < at:
            continue
        spans = turned_around(each.spans)
        link = replace(
            each,
            lane=lane,
            generation=head.generation,
            position=at,
            next=last + 1,
            spans=spans,
            quarantined=(),
            request=request,
            settled_at=now,
            examined=True,
        )
        if spans[0].downstream < end or spans[0].upstream < at:
            unmapped += each.records
            link = _gap(link)
        else:
            end = spans[-1].downstream + spans[-1].length
        runs.append(link)
        at = last + 1
    if until > at:
        runs.append(
            _gap(
                Run(
                    lane=lane,
                    generation=head.generation,
                    position=at,
                    next=until,
                    spans=(),
                    state="committed",
                    writer="",
                    attempt=f"{request}.{at}",
                    fingerprint=b"",
                    digest=b"",
                    oldest_timestamp=-1,
                    newest_timestamp=-1,
                    records=0,
                    bytes=0,
                    request=request,
                    settled_at=now,
                    examined=True,
                )
            )
        )
    return Join(runs=tuple(runs), unmapped=unmapped)


def turned_around(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same records, seen from the other side."""
    return tuple(Span(span.downstream, span.upstream, span.length) for span in spans)


def _gap(run: Run) -> Run:
    """The same upstream offsets without a record."""
    return replace(
        run,
        spans=(),
        fingerprint=b"",
        digest=b"",
        digest_of="records",
        oldest_timestamp=-1,
        newest_timestamp=-1,
        records=0,
        bytes=0,
        passed_bytes=0,
    )


@dataclass(slots=True, kw_only=True)
class BackLaneJoin:
    """Appends the records of back lanes to forward chains."""

    chains: Chains
    ledger: LossLedger
    clock: Callable[[], int]
    """ms since the epoch."""
    request: str
    """The job run."""

    def join(self, lane: ReconciledLane, inspection: LaneInspection, found: LaneOrphans, policy: Policy) -> int:
        """Extend one lane's chain over its copies and its orphans.

        Args:
            lane: whose.
            inspection: the inspection before anything was copied.
            found: its orphans, after everything was copied.
            policy: of the orphans.

        Returns:
            the forward lane's position, now.

        Raises:
            Retriable: another writer continued the lane meanwhile; the next run finds the new difference.
        """
        head = self.chains.heads([lane.forward])[lane.forward]
        if (head.generation, head.position) != (inspection.generation, inspection.position) or head.in_doubt:
            raise _moved(lane)
        back = copies_above(runs_of(self.chains, lane.back), head.position)
        plan = joined(
            lane.forward,
            head,
            back,
            mapped_from=inspection.chain_end,
            until=found.until,
            request=self.request,
            now=self.clock(),
        )
        for loss in orphaned(lane, policy, found.stretches, at=self.clock()):
            self.ledger.note(loss)
        for run in plan.runs:
            # One by one: of a batch, a later link might be inserted although an earlier one was refused.
            try:
                self.chains.prepare([run])
            except LostRace as exc:
                raise _moved(lane) from exc
        return plan.end if plan.end is not None else head.position


def _moved(lane: ReconciledLane) -> Retriable:
    return Retriable(
        "the forwarder continued this lane while it was reconciled",
        where=str(lane.forward),
        hint=f"hold the flow's lanes, `mirrorless lanes hold '{lane.forward.flow}' --execute`, "
        "and start the reconcile again",
    )
