"""The explanation of gaps that chain scans have found, and its record in the loss ledger.

A gap in the ledger is never explained again: a summary holds the end of each generation's explained gaps, and is
written last. So a crash between the ledger and the lane's notes neither counts a gap twice, nor turns a harmless gap
into a loss because the source's retention has passed it in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorless.chain.lane import Lane
from mirrorless.chain.losses import ExplainedGap, GapSummary, Loss, losses_in
from mirrorless.clock import Deadline
from mirrorless.errors import LostRace, Retriable
from mirrorless.lanes.chain_scan import ChainScan
from mirrorless.lanes.gaps import UNREAD, Cleanup, GapRange, Look, SourceLog, clipped, explain, to_confirm
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import LaneStates, LossLedger
from mirrorless.scheduled.runner import RoundReport

ANOTHER_SOURCE: Final = frozenset({"contradiction", "recreated", "truncated"})
"""Stop reasons after which the source may no longer hold the records that the chain describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapCheck:
    """Explains gaps by reads of the source."""

    source: SourceLog
    ledger: LossLedger
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""

    def explain(self, scans: Mapping[Lane, ChainScan], report: RoundReport, deadline: Deadline) -> dict[Lane, int]:
        """Explain the gaps of these lanes, as far as the source can be read.

        Returns:
            the upstream offset of a lane's first gap that still waits; lanes without such a gap are left out.

        Raises:
            Retriable: the ledger does not answer. Where the source does not answer, gaps wait.
        """
        summaries = {lane: self.ledger.summary(lane, scan.generation) for lane, scan in scans.items() if scan.gaps}
        gaps = {lane: clipped(scans[lane].gaps, summary.until) for lane, summary in summaries.items()}
        gaps = {lane: found for lane, found in gaps.items() if found}
        view = self._view(self._readable(gaps, scans), report, deadline)

        waiting: dict[Lane, int] = {}
        for lane, found in gaps.items():
            pieces, until = _superseded(found) if scans[lane].closed else view.explain(lane, found)
            try:
                self._store(summaries[lane], pieces, found[-1][1] if until is None else until, report)
            except LostRace as exc:
                report.troubles.append(str(exc))
                until = found[0][0]
            if until is not None:
                waiting[lane] = until
                report.counts["gaps-waiting"] += len(clipped(found, until))
        return waiting

    def _readable(
        self, gaps: Mapping[Lane, list[GapRange]], scans: Mapping[Lane, ChainScan]
    ) -> dict[Lane, list[GapRange]]:
        """The gaps to read on the source. Those of a lane that contradicts the source wait for the operator."""
        stops = {lane: state.stop for lane, state in self.states.read(gaps).items()} if gaps else {}
        return {
            lane: found
            for lane, found in gaps.items()
            if not scans[lane].closed and ((stop := stops.get(lane)) is None or stop.reason not in ANOTHER_SOURCE)
        }

    def _store(self, summary: GapSummary, pieces: list[ExplainedGap], until: int, report: RoundReport) -> None:
        """Write the losses first: writing one twice keeps one. The summary last: gaps below it are done."""
        if not pieces:
            return
        now = self.clock()
        losses = losses_in(summary.lane, summary.generation, pieces, at=now)
        for loss in losses:
            self.ledger.note(loss)
        self.ledger.summarise(summary.plus(pieces, until=until, at=now), known=summary)
        lost = sum(loss.next - loss.first for loss in losses)
        report.counts["offsets-lost"] += lost
        report.counts["offsets-explained"] += sum(piece.next - piece.first for piece in pieces) - lost
        report.troubles.extend(_sentences(summary.lane, losses))

    def _view(self, gaps: Mapping[Lane, list[GapRange]], report: RoundReport, deadline: Deadline) -> _View:
        """Read from the source what these gaps need."""
        view = _View(starts={}, cleanup={}, uncommitted={}, committed={})
        if not gaps:
            return view
        partitions = {_source_partition(lane): found for lane, found in gaps.items()}
        try:
            view.cleanup = self.source.cleanup(sorted({topic for topic, _ in partitions}), deadline)
            view.starts = self.source.starts(sorted(partitions), deadline)
            readable = {
                partition: clipped(found, view.starts[partition])
                for partition, found in partitions.items()
                if view.has(partition)
            }
            view.uncommitted = self.source.look(_some(readable), committed=False, deadline=deadline)
            doubtful = {
                partition: to_confirm(readable[partition], read) for partition, read in view.uncommitted.items()
            }
            view.committed = self.source.look(_some(doubtful), committed=True, deadline=deadline)
        except Retriable as exc:
            report.troubles.append(f"gaps wait for the source: {exc}")
        else:
            for topic in sorted({partition[0] for partition in partitions if not view.has(partition)}):
                report.troubles.append(f"{next(iter(gaps)).flow} {topic}: gaps wait; the source does not describe it")
        for (topic, partition), look in (*view.uncommitted.items(), *view.committed.items()):
            if look.trouble:
                report.troubles.append(f"gaps of {topic}-{partition} wait: {look.trouble}")
        return view


@dataclass(slots=True, kw_only=True)
class _View:
    """The reads of the source."""

    starts: Mapping[TopicPartition, int]
    cleanup: Mapping[str, Cleanup]
    uncommitted: Mapping[TopicPartition, Look]
    committed: Mapping[TopicPartition, Look]

    def has(self, partition: TopicPartition) -> bool:
        return partition in self.starts and partition[0] in self.cleanup

    def explain(self, lane: Lane, gaps: list[GapRange]) -> tuple[list[ExplainedGap], int | None]:
        partition = _source_partition(lane)
        if not self.has(partition):
            return [], gaps[0][0]
        return explain(
            gaps,
            start=self.starts[partition],
            cleanup=self.cleanup[lane.topic],
            uncommitted=self.uncommitted.get(partition, UNREAD),
            committed=self.committed.get(partition, UNREAD),
        )


def _source_partition(lane: Lane) -> TopicPartition:
    return lane.topic, lane.partition


def _some(ranges: Mapping[TopicPartition, list[GapRange]]) -> dict[TopicPartition, list[GapRange]]:
    return {partition: found for partition, found in ranges.items() if found}


def _superseded(gaps: list[GapRange]) -> tuple[list[ExplainedGap], None]:
    return [ExplainedGap(first=first, next=following, cause="superseded") for first, following in gaps], None


def _sentences(lane: Lane, losses: list[Loss]) -> list[str]:
    """One sentence for each cause, whatever the number of gaps."""
    sentences = []
    for cause in sorted({loss.cause for loss in losses}):
        of_cause = [loss for loss in losses if loss.cause == cause]
        offsets, first = sum(loss.next - loss.first for loss in of_cause), of_cause[0]
        sentences.append(
            f"{lane.at(first.first)}: {offsets} upstream offsets up to {of_cause[-1].next - 1} are not on the target: "
            f"{cause}, {first.detail}"
        )
    return sentences
