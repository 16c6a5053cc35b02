"""What did this job run bring back, in all of its attempts? The chains say: each link names the run that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.difference import PAGE, runs_of
from mirrorless.reconcile.findings import LaneLook
from mirrorless.reconcile.lane_names import ReconciledLane
from mirrorless.reconcile.orphans import Stretch, lane_of
from mirrorless.reconcile.outcome import LaneOutcome
from mirrorless.run import Run


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts one job run's links."""

    chains: Chains
    request: str
    """The job run."""

    def added(
        self, plain: LaneOutcome, lane: ReconciledLane, orphans: Sequence[Stretch], look: LaneLook
    ) -> LaneOutcome:
        """The outcome of a lane, with what the chains say.

        Args:
            plain: what this attempt found.
            lane: whose.
            orphans: found in all attempts.
            look: of this attempt.

        Raises:
            Retriable: the store does not answer.
        """
        every = [run for run in runs_of(self.chains, lane.back) if run.spans]
        ours = [run for run in every if run.request == self.request]
        # What an earlier attempt has joined counts among what the chain claimed when this one looked.
        fresh = [run for run in every if (run.last_downstream or 0) >= look.position]
        copied = sum(run.records for run in ours)
        moved = [run for run in runs_of(self.chains, lane_of(lane, plain.policy)) if run.request == self.request]
        return replace(
            plain,
            on_target=look.claimed_records + sum(run.records for run in fresh),
            bytes_on_target=look.claimed_bytes + sum(run.bytes for run in fresh),
            new=copied,
            new_bytes=sum(run.bytes for run in ours),
            new_ranges=tuple(OffsetRange(run.spans[0].upstream, _end(run)) for run in ours) or plain.new_ranges,
            copied_back=copied,
            copied_back_bytes=sum(run.bytes for run in ours),
            unmapped=0 if plain.error else max(0, copied - self._mapped(lane, ours)),
            orphans=tuple(orphans),
            orphans_moved=0 if plain.policy == "report" else sum(run.records for run in moved),
        )

    def _mapped(self, lane: ReconciledLane, back: Sequence[Run]) -> int:
        """Records of the forward chain that stand where these runs' copies do."""
        if not back:
            return 0
        first = back[0].spans[0].downstream
        link = self.chains.at_or_before(lane.forward, lane.generation, first)
        links = [link] if link is not None else []
        count = 0
        while links:
            count += sum(
                each.records for each in links if isinstance(each, Run) and each.request == self.request and each.spans
            )
            links = self.chains.after(lane.forward, lane.generation, links[-1].position, limit=PAGE)
        return count


def _end(run: Run) -> int:
    """The upstream offset behind a run's last record."""
    return run.spans[-1].upstream + run.spans[-1].length
