"""The source's side of a verification: the originals of wrong records and, on request, every record of the lane.

The source's own records must have the digest that their run has: then both clusters have the same. Records that no run
covers are missing on the target, unless they are in the loss ledger or the operator left them out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain as chained
from typing import TypeVar

from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.jobs.copy_task import BatchChunk, BatchLog, Chunk, OffsetRange
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.records.record import Record
from mirrorless.verify.explanation import Explanation
from mirrorless.verify.findings import Finding, LaneVerdict
from mirrorless.verify.proof import Judged, judged_windows
from mirrorless.verify.slices import VerifiedSlice
from mirrorless.verify.task import VerifiedSide, VerifyTask, patience
from mirrorless.verify.windows import ChainEnd, LinkKey, Window, is_of_batches, key_of, runs_of, source_windows

_Chunk = TypeVar("_Chunk", Chunk, BatchChunk)


@dataclass(slots=True, kw_only=True)
class SourceSide:
    """The source's part of the proof of one slice."""

    task: VerifyTask
    source: VerifiedSide
    target: VerifiedSide
    chains: Chains
    ledger: LossLedger
    chain: ChainEnd
    part: VerifiedSlice
    verdict: LaneVerdict
    found: Explanation
    batches: BatchLog | None = None
    """The source by whole batches."""
    _bounds: OffsetRange | None = field(default=None)
    _silent: bool = field(default=False)

    def span(self) -> OffsetRange:
        """The source's log as it was when it was first read.

        Raises:
            Retriable: the source does not answer.
        """
        if self._bounds is None:
            self._bounds = self.source.bounds()
        return self._bounds

    def reach(self) -> OffsetRange:
        """The part of it that the slice may cover.

        Raises:
            Retriable: the source does not answer.
        """
        log, part, newest = self.span(), self.part, self.chain.generation
        if part.upto is not None and part.upto[0] < newest:
            return OffsetRange(0, 0)
        first = part.begin.expected[1] if part.begin is not None and part.begin.generation == newest else log.first
        return OffsetRange(max(first, log.first), log.next if part.position is None else part.position)

    def originals(self, group: Sequence[Judged]) -> list[Record] | None:
        """The source's records of some runs; None where it does not have them all, or not any more.

        Raises:
            Retriable: the source does not answer, and the comparison was requested.
        """
        if self.task.source_silent:
            self._leave(self.task.source_silent)
        runs = [judged.window.run for judged in group if judged.window.run is not None and judged.window.run.spans]
        newest = all(run.generation == self.chain.generation for run in runs)
        if not runs or self._silent or not newest:
            return None
        last = runs[-1].spans[-1]
        wanted = OffsetRange(runs[0].spans[0].upstream, last.upstream + last.length)
        claimed = {at for run in runs for span in run.spans for at in range(span.upstream, span.upstream + span.length)}
        try:
            log = self.span()
            if wanted.first < log.first or wanted.next > log.next:
                return None
            found = self.source.records(wanted, claimed)
            return None if self.task.source_compacts and len(found) < len(claimed) else found
        except RecordsGone:
            return None
        except Retriable as exc:
            if self.task.against_source:
                raise
            self._leave(exc.what)
            return None

    def _leave(self, why: str) -> None:
        """Ask the source for nothing more."""
        if not self._silent:
            self._silent = True
            self.verdict.note(f"the source did not answer: {why}")

    def compare(
        self,
        count: Callable[[str, Chunk | BatchChunk, int], None],
        *,
        behind: LinkKey | None = None,
        below: LinkKey | None = None,
    ) -> None:
        """Check the source's records by the same digests, and find records that no run covers.

        Args:
            count: called with the phase, each chunk, and the number of offsets behind it.
            behind: the last run of a row that is left out at the slice's beginning.
            below: the first run of one at its end.

        Raises:
            Retriable: the source or the target does not answer.
        """
        log, newest, position = self.span(), self.chain.generation, self.chain.position
        if log.next < position:
            self.verdict.note(
                f"the source ends at {log.next}, below the lane's position {position}: it was re-created or "
                "truncated, and nothing was compared with it"
            )
            return
        losses = [loss for loss in self.ledger.read(self.task.lane) if loss.generation == newest]
        windows = source_windows(self._runs(behind, below), lambda run: self.task.wants(run, newest))
        first = next(windows, None)
        if first is None:
            return
        begin = max(first.first, log.first)

        end = min(log.next, position)
        if self.part.position is not None:
            end = min(end, self.part.position)

        def counted(read: Iterator[_Chunk]) -> Generator[_Chunk]:
            for chunk in read:
                count("read source", chunk, chunk.covered - begin)
                yield chunk

        for found in judged_windows(
            chained([first], windows),
            lambda window: self.batches is not None and _was_passed(window),
            begin=begin,
            records=lambda at: counted(self.source.read(OffsetRange(at, end))),
            batches=lambda at: counted(self._batches(OffsetRange(at, end))),
            log_start=lambda: log.first,
            compacts=self.task.source_compacts,
        ):
            run = found.window.run
            if run is not None and run.state == "committed":
                self._look_for_uncovered(run, found, losses)
                self._compare(run, found)

    def _runs(self, behind: LinkKey | None, below: LinkKey | None) -> Iterator[Run | None]:
        """The slice's runs of the newest generation."""
        part, newest = self.part, self.chain.generation
        if part.upto is not None and part.upto[0] < newest:
            return
        least = max(part.first or (newest, -1), (newest, -1) if behind is None else (behind[0], behind[1] + 1))
        for run in runs_of(self.chains, self.task.lane, self.chain, since=newest, begin=part.begin, upto=part.upto):
            if run is None or (key_of(run) >= least and (below is None or key_of(run) < below)):
                yield run

    def _batches(self, wanted: OffsetRange) -> Iterator[BatchChunk]:
        place = self.source.topic, self.source.partition
        return iter(()) if self.batches is None else self.batches.read(*place, wanted, patience)

    def _compare(self, run: Run, judged: Judged) -> None:
        counts = self.verdict.counts
        if judged.state == "proved":
            counts.compared += run.records
        elif judged.state in {"expired", "cut", "unread"} or (judged.absent and self.task.source_compacts):
            counts.source_gone += run.records
        elif judged.state in {"wrong", "incomplete"} and run.position not in self.found.explained:
            self._beside_target(run, judged)

    def _beside_target(self, run: Run, judged: Judged) -> None:
        """Compare the source's records with the target's, where they have another digest."""
        first, last = run.spans[0].downstream, run.last_downstream or 0
        if first < self.target.bounds().first:
            self.verdict.counts.source_gone += run.records
            return
        claims = tuple((span.downstream, span.length) for span in run.spans)
        window = Window(first=first, next=last + 1, run=run, claims=claims)
        claimed = set(window.claimed())
        copies = self.target.records(OffsetRange(first, last + 1), claimed)
        there = Judged(window=window, state="wrong", records=copies)
        right = self.found.beside_source([there], judged.records)
        self.verdict.counts.compared += right
        if run.digest_of == "batches" and right == run.records == len(judged.records):
            return  # of batches that were packed anew, the source has no digest
        self.verdict.note("the source has other records now than the map speaks of: see what differs")

    def _look_for_uncovered(self, run: Run, judged: Judged, losses: Sequence[Loss]) -> None:
        """Find records of the source in a gap of a run. Offsets before a lane's first record are not the lane's."""
        begin = run.spans[0].upstream if run.spans else run.next
        at_birth = run.generation == run.position == 0
        uncovered = (each.offset for each in judged.unclaimed)
        for offset in (each for each in uncovered if not at_birth or each >= begin):
            if any(first <= offset < following for first, following in run.returned):
                continue  # it was first produced on the target
            if offset in run.quarantined or any(loss.first <= offset < loss.next for loss in losses):
                self.verdict.counts.known_losses += 1
                continue
            self.verdict.find(
                Finding(
                    kind="missing",
                    generation=run.generation,
                    upstream=OffsetRange(offset, offset + 1),
                    downstream=None,
                    records=1,
                    what="the source has it, no run covers it, and it is not in the loss ledger",
                )
            )


def _was_passed(window: Window) -> bool:
    """Whether all batches of its run lie in the source's log as they were produced."""
    run = window.run
    return run is not None and is_of_batches(window) and run.passed_bytes == run.bytes
