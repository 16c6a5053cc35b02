"""Explain the gaps that walks along the chain have found, and keep what was found in the loss ledger.

What is in the ledger is never explained again: a summary says up to where each generation's gaps are explained, and is
written last. So a crash between the ledger and the lane's notes neither counts a gap twice, nor calls a harmless gap a
loss only because the source's retention has passed it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorless.errors import LostRace, Retriable
from mirrorless.lane import Lane
from mirrorless.lanes.chain_scan import ChainScan
from mirrorless.lanes.gaps import UNREAD, Cleanup, GapRange, Look, SourceLog, clipped, explain, to_confirm
from mirrorless.losses import ExplainedGap, GapSummary, Loss, losses_in
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.ports.stores import LaneStates, LossLedger
from mirrorless.scheduled.runner import RoundReport

ANOTHER_SOURCE: Final = frozenset({"contradiction", "recreated", "truncated"})
"""Stops after which the source may not hold the records any more that the chain speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapCheck:
    """Explains gaps by a look at the source."""

    source: SourceLog
    ledger: LossLedger
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""

    def explain(self, walks: Mapping[Lane, ChainScan], report: RoundReport, deadline: Deadline) -> dict[Lane, int]:
        """Explain the gaps of these lanes, as far as the source lets itself be read.

        Returns:
            the upstream offset from which on a lane's gaps still wait; lanes without such a gap are left out.

        Raises:
            Retriable: the ledger does not answer. What the source does not answer only makes its gaps wait.
        """
        known = {lane: self.ledger.summary(lane, walk.generation) for lane, walk in walks.items() if walk.gaps}
        gaps = {lane: clipped(walks[lane].gaps, summary.until) for lane, summary in known.items()}
        gaps = {lane: found for lane, found in gaps.items() if found}
        view = self._view(self._readable(gaps, walks), report, deadline)

        waiting: dict[Lane, int] = {}
        for lane, found in gaps.items():
            pieces, until = _superseded(found) if walks[lane].closed else view.explain(lane, found)
            try:
                self._keep(known[lane], pieces, found[-1][1] if until is None else until, report)
            except LostRace as exc:
                report.troubles.append(str(exc))
                until = found[0][0]
            if until is not None:
                waiting[lane] = until
                report.figures["gaps-waiting"] += len(clipped(found, until))
        return waiting

    def _readable(
        self, gaps: Mapping[Lane, list[GapRange]], walks: Mapping[Lane, ChainScan]
    ) -> dict[Lane, list[GapRange]]:
        """The gaps about which the source can be asked. Those of a lane that contradicts it wait for the operator."""
        stops = {lane: state.stop for lane, state in self.states.read(gaps).items()} if gaps else {}
        return {
            lane: found
            for lane, found in gaps.items()
            if not walks[lane].closed and ((stop := stops.get(lane)) is None or stop.reason not in ANOTHER_SOURCE)
        }

    def _keep(self, known: GapSummary, pieces: list[ExplainedGap], until: int, report: RoundReport) -> None:
        """Losses first: noting one twice keeps one. The summary last: what lies below it is done."""
        if not pieces:
            return
        now = self.clock()
        losses = losses_in(known.lane, known.generation, pieces, at=now)
        for loss in losses:
            self.ledger.note(loss)
        self.ledger.summarise(known.plus(pieces, until=until, at=now), known=known)
        lost = sum(loss.next - loss.first for loss in losses)
        report.figures["offsets-lost"] += lost
        report.figures["offsets-explained"] += sum(piece.next - piece.first for piece in pieces) - lost
        report.troubles.extend(_told(known.lane, losses))

    def _view(self, gaps: Mapping[Lane, list[GapRange]], report: RoundReport, deadline: Deadline) -> _View:
        """Everything that the source has to say about these gaps."""
        view = _View(starts={}, cleanup={}, seen={}, committed={})
        if not gaps:
            return view
        places = {_place(lane): found for lane, found in gaps.items()}
        try:
            view.cleanup = self.source.cleanup(sorted({topic for topic, _ in places}), deadline)
            view.starts = self.source.starts(sorted(places), deadline)
            readable = {place: clipped(found, view.starts[place]) for place, found in places.items() if view.has(place)}
            view.seen = self.source.look(_some(readable), committed=False, deadline=deadline)
            doubtful = {place: to_confirm(readable[place], seen) for place, seen in view.seen.items()}
            view.committed = self.source.look(_some(doubtful), committed=True, deadline=deadline)
        except Retriable as exc:
            report.troubles.append(f"gaps wait for the source: {exc}")
        else:
            for topic in sorted({place[0] for place in places if not view.has(place)}):
                report.troubles.append(f"{next(iter(gaps)).flow} {topic}: gaps wait; the source does not tell of it")
        for (topic, partition), look in (*view.seen.items(), *view.committed.items()):
            if look.trouble:
                report.troubles.append(f"gaps of {topic}-{partition} wait: {look.trouble}")
        return view


@dataclass(slots=True, kw_only=True)
class _View:
    """What was seen of the source."""

    starts: Mapping[TopicPartition, int]
    cleanup: Mapping[str, Cleanup]
    seen: Mapping[TopicPartition, Look]
    committed: Mapping[TopicPartition, Look]

    def has(self, place: TopicPartition) -> bool:
        return place in self.starts and place[0] in self.cleanup

    def explain(self, lane: Lane, gaps: list[GapRange]) -> tuple[list[ExplainedGap], int | None]:
        place = _place(lane)
        if not self.has(place):
            return [], gaps[0][0]
        return explain(
            gaps,
            start=self.starts[place],
            cleanup=self.cleanup[lane.topic],
            seen=self.seen.get(place, UNREAD),
            committed=self.committed.get(place, UNREAD),
        )


def _place(lane: Lane) -> TopicPartition:
    return lane.topic, lane.partition


def _some(ranges: Mapping[TopicPartition, list[GapRange]]) -> dict[TopicPartition, list[GapRange]]:
    return {place: found for place, found in ranges.items() if found}


def _superseded(gaps: list[GapRange]) -> tuple[list[ExplainedGap], None]:
    return [ExplainedGap(first=first, next=following, cause="superseded") for first, following in gaps], None


def _told(lane: Lane, losses: list[Loss]) -> list[str]:
    """One sentence for each cause, however many places there are."""
    told = []
    for cause in sorted({loss.cause for loss in losses}):
        those = [loss for loss in losses if loss.cause == cause]
        offsets = sum(loss.next - loss.first for loss in those)
        told.append(
            f"{lane.at(those[0].first)}: {offsets} upstream offsets up to {those[-1].next - 1} are not on the target: "
            f"{cause}, {those[0].detail}"
        )
    return told
