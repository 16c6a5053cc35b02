"""The two passes of a lane's verification over its runs.

    first   every run alone, by its digest: on the target and, on request, on the source. What holds is proved; what is
            wrong, or has records beside it that no run claims, is left open. A run that is right on the target and has
            another digest on the source, or none there, is compared with the target's records at once
    second  what is open is read again, together with its open neighbours, and compared with the source's records, as
            far as it has them

Pure but for its ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.jobs.copy_task import BatchChunk, Chunk, OffsetRange
from mirrorless.ports.stores import Chains, LossLedger, links_after
from mirrorless.records.record import Record
from mirrorless.verify.comparison import RecordAt
from mirrorless.verify.explanation import GONE, Explanation, judge_left_over
from mirrorless.verify.findings import Finding
from mirrorless.verify.parts import (
    TOO_MANY,
    LanePart,
    LaneSection,
    OpenPortion,
    OpenRange,
    Search,
    SurveyedLane,
    rows_of,
)
from mirrorless.verify.run_ranges import LinkKey, RunRange, key_of, runs_of
from mirrorless.verify.source_copies import CopyByRule, SourceCopies
from mirrorless.verify.task import Note, VerifyTask
from mirrorless.verify.walk import Judged, WalkedSide

SHOWN_AS = {
    "cut": "expired",
    "nothing": "proved",
    "in_doubt": "in doubt",
    "superseded": "not provable",
    "unread": "not provable",
}
"""Kinds of the plot, where they are not called as the state is."""


@dataclass(slots=True, kw_only=True)
class LanePass:
    """One part of a lane's verification."""

    task: VerifyTask
    chains: Chains
    ledger: LossLedger
    survey: SurveyedLane
    target: WalkedSide
    source: WalkedSide
    copies: SourceCopies
    """By which the source's records are judged."""
    found: LanePart
    note: Note
    explanation: Explanation = field(init=False)
    _source_log: OffsetRange | None = None
    """As it was when it was first read."""
    _silent: bool = False
    """Whether the source is asked for nothing more."""
    _phase: str = ""
    _done: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        """Explain what this part finds."""
        self.explanation = Explanation(self.found.verdict)

    def run(self, part: LaneSection | OpenPortion | Search) -> LanePart:
        """Do it; see `LaneVerification.do`."""
        self.target.start = max(self.survey.log_start, self.target.bounds().first)
        self.target.end = self.survey.log_end
        match part:
            case LaneSection():
                self._prove(part)
            case OpenPortion():
                self._phase, self._total = "explain", sum(each.next - each.first for each in part.opened)
                for row in rows_of(part.opened):
                    self._explain(row)
                    self._make_room()
            case Search():
                self._search(part)
        self.found.left = self.explanation.left_over()
        self._phase, self._done = "done", self._total
        self._tell()
        return self.found

    # First pass

    def _prove(self, section: LaneSection) -> None:
        survey = self.survey
        begin = survey.log_start if section.begin is None else section.begin.at
        wanted = OffsetRange(begin, survey.end if section.end is None else min(section.end, survey.end))
        beside = self._beside(section) if self.task.against_source else None
        self._total = sum(max(0, each.next - each.first) for each in (wanted, beside) if each is not None)

        self._phase = "read target"
        for judged in self.target.walk(self._target_ranges(section), wanted, self._count_read):
            self._count_range(judged)
            wrong = self._is_wrong(judged)
            if wrong or (judged.unclaimed and not self._is_under_way(judged)):
                self.found.opened.append(OpenRange.of(judged, wrong=wrong))
            else:
                self._add_up(judged)
        if beside is None:
            return
        self._phase, explained = "read source", {each.run for each in self.found.opened if each.wrong}
        newest = survey.chain.generation
        losses = [loss for loss in self.ledger.read(self.task.lane) if loss.generation == newest]
        for judged in self.source.walk(self._source_ranges(section), beside, self._count_read):
            if (run := judged.run_range.run) is not None:
                self._look_for_uncovered(run, judged, losses)
                self._compare(run, judged, explained=key_of(run) in explained)

    def _target_ranges(self, section: LaneSection) -> Iterator[RunRange]:
        """The section's ranges of the target."""
        chain = self.survey.chain
        run_ranges = self.survey.run_ranges(section.begin)
        for run in runs_of(self.chains, self.task.lane, chain, begin=section.begin, upto=section.upto):
            yield from run_ranges.of(run if run is not None and self.task.wants(run, chain.generation) else None)
        if section.upto is None:
            yield from run_ranges.tail(self.survey.end)

    def _count_range(self, judged: Judged) -> None:
        run, counts = judged.run_range.run, self.found.verdict.counts
        counts.before_map += judged.unknown
        if self._is_under_way(judged):
            counts.in_doubt += len(judged.unclaimed)
        if run is not None:
            counts.runs += 1
            counts.records += run.records
            self._mark(run, judged)
            if run.rule or self.task.settings.transforms:
                self.found.verdict.count_rule(run)

    def _mark(self, run: Run, judged: Judged) -> None:
        """Mark a range for the plot."""
        verdict = self.found.verdict
        if run.generation != self.survey.chain.generation:
            return
        if verdict.segments and verdict.segments[-1].next < run.position:
            verdict.mark(verdict.segments[-1].next, run.position, "not in the map")
        thinned = "thinned out" if self.task.target_compacts else "wrong"
        shown = thinned if judged.state == "incomplete" else SHOWN_AS.get(judged.state, judged.state)
        verdict.mark(run.position, run.next, shown)

    def _is_wrong(self, judged: Judged) -> bool:
        return judged.state in {"wrong", "incomplete"} and not self.task.target_compacts

    def _is_under_way(self, judged: Judged) -> bool:
        """Whether its unclaimed records are of a delivery whose run follows."""
        return judged.run_range.run is None and self.task.settings.delivery == "at_least_once"

    def _add_up(self, judged: Judged) -> None:
        """Add up the records of a range's run, which needs no comparison."""
        run, counts = judged.run_range.run, self.found.verdict.counts
        records = 0 if run is None else run.records
        match judged.state:
            case "proved":
                counts.proved += records
            case "expired":
                counts.expired += records
            case "in_doubt":
                counts.in_doubt += records
            case "superseded" | "unread":
                counts.not_provable += records
            case "incomplete":
                counts.compacted += records
            case "cut":
                # The rest of the run has no digest of its own.
                left = len(judged.records) + len(judged.absent)
                counts.expired += records - left
                counts.not_provable += left
            case "wrong":
                self.explanation.alone(judged)

    # Second pass

    def _explain(self, row: Sequence[OpenRange]) -> None:
        """Compare open ranges in a row with the source's records, or judge them without."""
        wanted = OffsetRange(row[0].first, row[-1].next)
        group = list(self.target.walk(self._ranges_of(row), wanted, self._count_read))
        runs, originals = self._originals(
            [each.run_range.run for each in group if each.run_range.run is not None and self._is_wrong(each)]
        )
        compared = {key_of(run) for run in runs}
        beside: list[Judged] = []
        strangers: list[Record] = []
        for judged in group:
            run, wrong = judged.run_range.run, self._is_wrong(judged)
            if run is not None and key_of(run) in compared:
                beside.append(judged)
            elif wrong:
                self.explanation.alone(judged)
            else:
                self._add_up(judged)
            # Behind the first record of a run that is right, nothing is of a wrong one before it.
            end = judged.run_range.next if wrong or not judged.run_range.claims else judged.run_range.claims[0][0]
            strangers += [each for each in judged.unclaimed if each.offset < end]
            if apart := [each for each in judged.unclaimed if each.offset >= end]:
                self.explanation.strange(apart)
        if beside:
            self.found.verdict.counts.proved += self.explanation.beside_source(beside, originals, strangers)
        elif strangers:
            self.explanation.strange(strangers)

    def _ranges_of(self, row: Sequence[OpenRange]) -> Iterator[RunRange]:
        """Open ranges with their runs, as these are by now."""
        keys = [each.run for each in row if each.run is not None]
        runs: dict[LinkKey, Run] = {}
        if keys:
            generation, first = keys[0]
            for link in links_after(self.chains, self.task.lane, generation, first - 1, page=len(keys)):
                if isinstance(link, Run):
                    runs[key_of(link)] = link
                if link.position > keys[-1][1] or keys[-1] in runs:
                    break
        for each in row:
            run = None if each.run is None else runs.get(each.run)
            claims = () if run is None else tuple((span.downstream, span.length) for span in run.spans)
            hole = each.hole or (each.run is not None and run is None)  # its link has expired since
            yield RunRange(first=each.first, next=each.next, run=run, claims=claims, hole=hole)

    def _originals(self, runs: Sequence[Run]) -> tuple[Sequence[Run], list[Record]]:
        """Those of some runs that the source still has, and their records there.

        Raises:
            Retriable: the source does not answer, and the comparison was requested.
        """
        if runs and self.task.source_silent:
            self._leave(self.task.source_silent)
        newest = self.survey.chain.generation
        runs = [] if self._silent else [run for run in runs if run.generation == newest]
        try:
            runs = [
                run
                for run in runs
                if self._log().first <= run.spans[0].upstream
                and run.known_to <= self._log().next
                and self.copies.can_make(run)
            ]
            if not runs:
                return [], []
            found = self.source.records([RunRange.of_originals(run) for run in runs])
        except RecordsGone:
            return [], []
        except Retriable as exc:
            if self.task.against_source:
                raise
            self._leave(exc.what)
            return [], []
        thinned = self.source.compacts and len(found) < sum(run.records for run in runs)
        return ([], []) if thinned else (runs, found)

    def _leave(self, why: str) -> None:
        """Ask the source for nothing more."""
        if not self._silent:
            self._silent = True
            self.found.verdict.note(f"the source did not answer: {why}")

    def _log(self) -> OffsetRange:
        """The source's log as it was when it was first read.

        Raises:
            Retriable: the source does not answer.
        """
        if self._source_log is None:
            self._source_log = log = self.source.bounds()
            self.source.start, self.source.end = log.first, log.next
        return self._source_log

    # The source

    def _beside(self, section: LaneSection) -> OffsetRange | None:
        """The source's offsets that a section's runs cover; None where there is nothing to compare.

        Raises:
            Retriable: the source does not answer.
        """
        chain, begin = self.survey.chain, section.begin
        if section.upto is not None and section.upto[0] < chain.generation:
            return None
        log = self._log()
        if log.next < chain.position:
            self.found.verdict.note(
                f"the source ends at {log.next}, below the lane's position {chain.position}: it was re-created or "
                "truncated, and nothing was compared with it"
            )
            return None
        first = 0 if begin is None or begin.generation < chain.generation else begin.expected[1]
        end = chain.position if section.position is None else section.position
        return OffsetRange(max(first, log.first), min(log.next, end))

    def _source_ranges(self, section: LaneSection) -> Iterator[RunRange]:
        """The section's ranges of the source: those of committed runs of the newest generation."""
        chain = self.survey.chain
        newest = chain.generation
        for run in runs_of(self.chains, self.task.lane, chain, since=newest, begin=section.begin, upto=section.upto):
            if run is not None and run.state == "committed" and self.task.wants(run, newest):
                yield RunRange.of_originals(run)

    def _look_for_uncovered(self, run: Run, judged: Judged, losses: Sequence[Loss]) -> None:
        """Find records of the source in a gap of a run. Offsets before a lane's first record are not the lane's."""
        begin = 0
        if run.generation == run.position == 0:
            begin = run.next if run.begins is None else run.begins
        for record in judged.unclaimed:
            offset = record.offset
            if offset < begin or any(first <= offset < following for first, following in run.returned):
                continue  # it is not the lane's, or was first produced on the target
            if offset in run.quarantined or any(loss.first <= offset < loss.next for loss in losses):
                self.found.verdict.counts.known_losses += 1
                continue
            what = "the source has it, no run covers it, and it is not in the loss ledger"
            if isinstance(record, CopyByRule):
                what = f"{record.no_copy or 'its rule keeps it'}, and it was filtered"
            self.found.verdict.find(
                Finding(
                    kind="missing",
                    generation=run.generation,
                    upstream=OffsetRange(offset, offset + 1),
                    downstream=None,
                    records=1,
                    what=what,
                )
            )

    def _compare(self, run: Run, judged: Judged, *, explained: bool) -> None:
        """Compare the source's records with a run. Args: explained: whether the second pass compares it."""
        counts = self.found.verdict.counts
        if not self.copies.can_make(run):
            counts.rule_gone += run.records
        elif judged.state == "proved":
            counts.compared += run.records
        elif judged.state in {"expired", "cut", "unread"} or (judged.absent and self.source.compacts):
            counts.source_gone += run.records
        elif judged.state in {"wrong", "incomplete"} and not explained:
            self._beside_target(run, judged)

    def _beside_target(self, run: Run, judged: Judged) -> None:
        """Compare the source's records with the target's, where they have another digest."""
        verdict, run_range = self.found.verdict, RunRange.of_copies(run)
        try:
            copies = self.target.records([run_range])
        except RecordsGone:
            verdict.counts.source_gone += run.records
            return
        there, explanation = Judged(run_range=run_range, state="wrong", records=copies), Explanation(verdict)
        right = explanation.beside_source([there], judged.records)
        judge_left_over(verdict, explanation.left_over(), {}, stranger=GONE)
        verdict.counts.compared += right
        if run.digest_of == "batches" and right == run.records == len(judged.records):
            return  # of batches that were packed anew, the source has no digest
        by_rule = f", or rule {run.rule.hex()} makes others of them" if run.rule else ""
        verdict.note(f"the source has other records now than the map speaks of{by_rule}: see what differs")

    # The search

    def _search(self, part: Search) -> None:
        """Find contents of unclaimed records elsewhere in the target."""
        known: dict[bytes, int] = {}
        first, end = max(self.target.start, part.within.first), part.within.next
        self._phase, self._total = "look for originals", max(0, end - first)
        for chunk in self.target.read(OffsetRange(first, end)) if first < end else ():
            for record in chunk.records:
                seen = RecordAt.of(record)
                if seen.content in part.contents and record.offset not in part.surplus:
                    known.setdefault(seen.content, record.offset)
            self._count_read(chunk, chunk.covered - first - self._done)
            if len(known) == len(part.contents):
                break
        self.found.known = list(known.items())

    # Bounds, and progress

    def _make_room(self) -> None:
        """Judge the kept records among themselves when there are too many: the lane is not read again for that."""
        if self.explanation.full:
            self.found.verdict.note(TOO_MANY)
            self.found.verdict.unsorted = True
            self.explanation.sort_out()

    def _count_read(self, chunk: Chunk | BatchChunk, offsets: int) -> None:
        verdict = self.found.verdict
        self._done += offsets
        if isinstance(chunk, BatchChunk):
            verdict.read += sum(each.batch.records_count for each in chunk.records)
            verdict.bytes += sum(len(each.batch.payload) for each in chunk.records)
        else:
            verdict.read += len(chunk.records)
            verdict.bytes += sum([len(each.value) for each in chunk.records if each.value])
            verdict.bytes += sum([len(each.key) for each in chunk.records if each.key])
        self._tell()

    def _tell(self) -> None:
        verdict = self.found.verdict
        self.note(self._phase, done=self._done, total=self._total, records=verdict.counts.proved, bytes=verdict.bytes)
