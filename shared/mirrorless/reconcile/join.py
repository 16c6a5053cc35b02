"""The join of a lane's chain with the records that were brought back: the back lane's runs, turned around.

A record that was copied from the target to the source is the same record on both sides, and the back lane's run has
both offsets. Read the other way, it is a link of the forward chain:

    back lane      upstream = target [40 .. 49]   downstream = source [107 .. 116]
    forward chain  ... next 100 | position 100, next 117: (107, 40, 10), and [100, 107) is a gap: orphans

So the forwarder finds the copies below its position when the mapping delivers them, and drops them: no echo. And
offsets translate exactly across the failback, both ways: the chain stays one chain with one order (invariant D).

What stands on the target *before* the chain's end cannot be put into that order: its copies follow on the source what
they precede on the target. Such a run covers its copies as a gap, and the report counts them.

The ledger is written first, then the chain:

    note the orphans       before the chain passes them: noting twice keeps one
    append the links       a hundred at a time, all or none, on condition that their places are free: so a forwarder
                           that continues is noticed

A crash in between is harmless: the next run finds the copies that are not joined yet, and continues at the head. Of
chains of any length some pages of links are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run, Span
from mirrorless.errors import LostRace, Retriable
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.reconcile.difference import committed_runs
from mirrorless.reconcile.tasks import LaneToJoin, ReconciledLane, orphaned

LINKS: Final = 500
"""Added to the chain before the next ones are made: a lane may have millions, and they are held as objects."""

NOTED: Final = 100
"""Losses that are noted side by side."""


def copies_above(back: Iterable[Run], position: int) -> Iterator[Run]:
    """The runs of a back lane whose copies stand on the source at or above a position: those not joined yet."""
    return (run for run in back if run.last_downstream is not None and run.last_downstream >= position)


def places_of(back: Iterable[Run]) -> Iterator[OffsetRange]:
    """The ranges of the copies on the source, growing and apart."""
    return (OffsetRange(span.downstream, span.downstream + span.length) for run in back for span in run.spans)


def joined(
    lane: Lane, head: Head, back: Iterable[Run], *, mapped_from: int, until: int, request: str, now: int
) -> Iterator[Run]:
    """The links that cover everything that was brought back, and the orphans in between.

    Committed ones, each from where the one before it ends; the first begins at the head's position.

    Args:
        lane: the forward lane.
        head: of its chain, not in doubt.
        back: the committed runs of the back lane whose copies are not joined yet.
        mapped_from: the chain's end on the target: what stands below cannot be mapped.
        until: the lane's position afterwards, at least.
        request: the job run.
        now: ms since the epoch.
    """
    at, end = head.position, mapped_from
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
            link = _gap(link)
        else:
            end = spans[-1].downstream + spans[-1].length
        yield link
        at = last + 1
    if until > at:
        yield _gap(
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

    def join(self, task: LaneToJoin) -> int:
        """Extend one lane's chain over its copies and its orphans.

        What an earlier attempt at the same task has joined stays, and the rest follows it.

        Returns:
            the forward lane's position, now.

        Raises:
            Retriable: another writer continued the lane meanwhile; the next run finds the new difference.
        """
        lane = task.lane
        head = self.chains.heads([lane.forward])[lane.forward]
        if head.in_doubt or not self._expected(task, head):
            raise _moved(lane)
        back = copies_above(committed_runs(self.chains, lane.back), head.position)
        links = joined(
            lane.forward,
            head,
            back,
            mapped_from=task.chain_end,
            until=task.until,
            request=self.request,
            now=self.clock(),
        )
        losses = orphaned(lane, task.policy, task.orphans, at=self.clock())
        while some := list(islice(losses, NOTED)):
            in_parallel(self.ledger.note, some)
        end = head.position
        while added := list(islice(links, LINKS)):
            try:
                self.chains.extend(added)
            except LostRace as exc:
                raise _moved(lane) from exc
            end = added[-1].next
        return end

    def _expected(self, task: LaneToJoin, head: Head) -> bool:
        """Whether a lane stands where it was inspected, or where this job run has brought it since."""
        if head.generation != task.lane.generation:
            return False
        ours = head.run is not None and head.run.request == self.request and head.position > task.position
        return head.position == task.position or ours


def _moved(lane: ReconciledLane) -> Retriable:
    return Retriable(
        "the forwarder continued this lane while it was reconciled",
        where=str(lane.forward),
        hint=f"hold the flow's lanes, `mirrorless lanes hold '{lane.forward.flow}' --execute`, "
        "and start the reconcile again",
    )
