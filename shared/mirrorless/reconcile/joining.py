"""How is one lane's chain brought over what came back? The ledger first, then the chain, link by link.

    note the orphans       what the chain is about to pass is written down before: noting twice keeps one
    append the links       each on condition that nobody stands there: a forwarder that goes on meanwhile is noticed

A crash in between is harmless: the next run finds the copies that are not joined yet, and goes on from the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirrorless.errors import LostRace, Retriable
from mirrorless.jobs.request import Policy
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.reconcile.difference import runs_of
from mirrorless.reconcile.findings import LaneLook, OrphanLook
from mirrorless.reconcile.join import copies_above, joined
from mirrorless.reconcile.lane_names import ReconciledLane
from mirrorless.reconcile.orphans import orphaned


@dataclass(slots=True, kw_only=True)
class BackLaneJoin:
    """Appends to forward chains what back lanes have brought."""

    chains: Chains
    ledger: LossLedger
    clock: Callable[[], int]
    """ms since the epoch."""
    request: str
    """The job run."""

    def join(self, lane: ReconciledLane, look: LaneLook, found: OrphanLook, policy: Policy) -> int:
        """Bring one lane's chain over its copies and its orphans.

        Args:
            lane: whose.
            look: what was found before anything was copied.
            found: its orphans, once everything was copied.
            policy: what becomes of them.

        Returns:
            the forward lane's position, now.

        Raises:
            Retriable: somebody else went on with the lane meanwhile; the next run finds the new difference.
        """
        head = self.chains.heads([lane.forward])[lane.forward]
        if (head.generation, head.position) != (look.generation, look.position) or head.in_doubt:
            raise _moved(lane)
        back = copies_above(runs_of(self.chains, lane.back), head.position)
        plan = joined(
            lane.forward,
            head,
            back,
            mapped_from=look.chain_end,
            until=found.until,
            request=self.request,
            now=self.clock(),
        )
        for loss in orphaned(lane, policy, found.stretches, at=self.clock()):
            self.ledger.note(loss)
        for run in plan.runs:
            # One by one: of a batch, a later link might be inserted where an earlier one lost, and leave a hole.
            try:
                self.chains.prepare([run])
            except LostRace as exc:
                raise _moved(lane) from exc
        return plan.end if plan.end is not None else head.position


def _moved(lane: ReconciledLane) -> Retriable:
    return Retriable(
        "the forwarder went on with this lane while it was reconciled",
        where=str(lane.forward),
        hint="hold the flow's lanes (`mirrorless lanes hold`), and start the reconcile again",
    )
