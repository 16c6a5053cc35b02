"""The outcome of a reconcile, lane by lane and in total: plain values, for the report and for programs.

The chains have the sums over all attempts of a job run: each link names the run that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.conflicts import Conflict
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.difference import PAGE, runs_of
from mirrorless.reconcile.findings import LaneInspection
from mirrorless.reconcile.orphans import Stretch, lane_of
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.run import Run

READY = frozenset({"ready", "active_on_source"})
"""States in which a group needs no operator."""


class LaneOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one partition."""

    topic: str
    partition: int
    remote_topic: str
    policy: Policy
    differs: str = ""
    """The reason why it was left alone."""
    error: str = ""
    """The reason why it is not finished; the lane stays held."""
    position_before: int = 0
    position: int = 0
    """Of the forward lane, upstream."""
    on_target: int = 0
    """Records that the target has, by the map and the difference."""
    bytes_on_target: int = 0
    new: int = 0
    """Records that only the target had."""
    new_bytes: int = 0
    copied_back: int = 0
    copied_back_bytes: int = 0
    copied_back_passed_bytes: int = 0
    """Those of them whose batches were passed as they lay in the target's log."""
    unmapped: int = 0
    """Copied back and not in the map, because they stand between records that were replicated."""
    claimed_until: int = 0
    """Downstream: the chain's end before."""
    new_ranges: tuple[OffsetRange, ...] = ()
    """Downstream offsets."""
    orphans: tuple[Stretch, ...] = ()
    """Upstream offsets."""
    orphans_moved: int = 0
    """Copied to the topic of orphans, or written again."""
    orphans_withheld: int = 0
    """Not written again, because another record of their key is as new, or newer."""
    orphan_keys: int = 0
    oldest_orphan: int = -1
    newest_orphan: int = -1
    """Timestamps, ms since the epoch; -1 for none."""
    conflicts: int = 0
    """Keys that were written on both sides."""
    conflicting: tuple[Conflict, ...] = ()
    """The first of them."""
    waits: str = ""
    """Work that is left, and its condition."""

    @property
    def orphan_records(self) -> int:
        """The number of orphans."""
        return sum(each.records for each in self.orphans)

    @property
    def clean(self) -> bool:
        """Whether it needs no operator."""
        return not (self.differs or self.error or self.unmapped or self.waits)


class LocalTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the target's own with a source topic's name: the flow does not bring it back."""

    topic: str
    offsets: int
    """In its log."""
    since: int | None
    """Of these, since the lanes were held; None where they were not held."""


def totals_of(lanes: Sequence[LaneOutcome], groups: Sequence[ReturningGroup]) -> dict[str, Any]:
    """The totals, for programs."""
    size = sum(each.bytes_on_target for each in lanes)
    back = sum(each.copied_back_bytes for each in lanes)
    return {
        "lanes": len(lanes),
        "records": sum(each.on_target for each in lanes),
        "bytes": size,
        "new": sum(each.new for each in lanes),
        "copied_back": sum(each.copied_back for each in lanes),
        "copied_back_bytes": back,
        "copied_back_passed_bytes": sum(each.copied_back_passed_bytes for each in lanes),
        "copied_back_ratio": round(back / size, 6) if size else 0.0,
        "orphans": sum(each.orphan_records for each in lanes),
        "orphans_bytes": sum(stretch.bytes for each in lanes for stretch in each.orphans),
        "orphans_moved": sum(each.orphans_moved for each in lanes),
        "orphans_withheld": sum(each.orphans_withheld for each in lanes),
        "conflicts": sum(each.conflicts for each in lanes),
        "differing": sum(bool(each.differs) for each in lanes),
        "failed": sum(bool(each.error) for each in lanes),
        "unmapped": sum(each.unmapped for each in lanes),
        "groups": len(groups),
        "groups_not_ready": sum(each.readiness not in READY for each in groups),
        "reread": sum(each.reread for each in groups),
    }


def is_clean(lanes: Iterable[LaneOutcome], groups: Iterable[ReturningGroup], troubles: Sequence[str]) -> bool:
    """Whether no operator is needed."""
    return not troubles and all(each.clean for each in lanes) and all(each.readiness in READY for each in groups)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts one job run's links."""

    chains: Chains
    request: str
    """The job run."""

    def added(
        self, plain: LaneOutcome, lane: ReconciledLane, orphans: Sequence[Stretch], inspection: LaneInspection
    ) -> LaneOutcome:
        """Complete the outcome of a lane by the chains.

        Args:
            plain: the outcome of this attempt.
            lane: the lane.
            orphans: found in all attempts.
            inspection: the inspection of this attempt.

        Raises:
            Retriable: the store does not answer.
        """
        every = [run for run in runs_of(self.chains, lane.back) if run.spans]
        ours = [run for run in every if run.request == self.request]
        # Runs that an earlier attempt joined are among those that the chain claimed when this attempt inspected it.
        fresh = [run for run in every if (run.last_downstream or 0) >= inspection.position]
        copied = sum(run.records for run in ours)
        moved = [run for run in runs_of(self.chains, lane_of(lane, plain.policy)) if run.request == self.request]
        return replace(
            plain,
            on_target=inspection.claimed_records + sum(run.records for run in fresh),
            bytes_on_target=inspection.claimed_bytes + sum(run.bytes for run in fresh),
            new=copied,
            new_bytes=sum(run.bytes for run in ours),
            new_ranges=tuple(OffsetRange(run.spans[0].upstream, _end(run)) for run in ours) or plain.new_ranges,
            copied_back=copied,
            copied_back_bytes=sum(run.bytes for run in ours),
            copied_back_passed_bytes=sum(run.passed_bytes for run in ours),
            unmapped=0 if plain.error else max(0, copied - self._mapped(lane, ours)),
            orphans=tuple(orphans),
            orphans_moved=0 if plain.policy == "report" else sum(run.records for run in moved),
        )

    def _mapped(self, lane: ReconciledLane, back: Sequence[Run]) -> int:
        """Count the records of the forward chain that are these runs' copies."""
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
