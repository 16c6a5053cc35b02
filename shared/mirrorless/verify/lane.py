"""The verification of one lane: its survey, the parts of its two passes, and their verdict.

    survey   1 the target's first offset and its stable end
             2 the head of the chain: every record visible below that end had been prepared before
             3 wait until the stable end has passed what the head claims, or note that a transaction hides it
    first    4 every run alone, by its digest: on the target and, on request, on the source. What holds is proved; what
               is wrong, or has records beside it that no run claims, is left open. A run that is right on the target
               and has another digest on the source, or none there, is compared with the target's records at once
    second   5 what is open is read again, together with its open neighbours, and compared with the source's records, as
               far as it has them
    search   6 the target once more, only if it has unclaimed records: they may be equal to other records of the lane
    keys       of a compacted topic: the latest value of each, on both sides

A long lane is surveyed once, and its parts are done by any task: sections of the first pass, portions of the second.
Nothing is changed: no doubt is settled, no writer is fenced. A lane may be live meanwhile: what arrives after step 2 is
not verified. Pure but for its ports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Link, Run
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.jobs.copy_task import BatchChunk, BatchLog, Chunk, LaneLog, OffsetRange
from mirrorless.lanes.taken_over import was_taken_over
from mirrorless.ports.stores import Chains, LossLedger, links_after
from mirrorless.records.record import Record
from mirrorless.verify.compacted_keys import Expiry, every_key
from mirrorless.verify.comparison import RecordAt
from mirrorless.verify.explanation import GONE, Explanation, judge_left_over
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.parts import (
    TOO_MANY,
    WHOLE,
    JoinedLane,
    LaneKeys,
    LanePart,
    LaneSection,
    Note,
    OpenPortion,
    OpenRange,
    Search,
    SurveyedLane,
    TargetLog,
    VerifyTask,
    but_its_own,
    cut_lane,
    new_verdict,
    portions_of,
    rows_of,
)
from mirrorless.verify.run_ranges import ChainEnd, LinkKey, RunRange, first_claims, key_of, of_batches, runs_of
from mirrorless.verify.source_copies import CopyByRule, RuleById, SourceCopies
from mirrorless.verify.walk import Judged, WalkedSide, patience

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
            self.found.verdict.find_one("missing", record, None, what)

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


HIDDEN_SECONDS: Final = 30.0
"""The wait for an open transaction: longer than its own timeout and the coordinator's interval."""

TAKEN_OVER: Final = "taken over from MirrorMaker 2: what that copied has no run, and is not proved"

NOTHING: Final = "nothing of this lane has been replicated"


@dataclass(slots=True, kw_only=True)
class LaneVerification:
    """One lane, with the stores and logs that it is verified by."""

    task: VerifyTask
    chains: Chains
    ledger: LossLedger
    target: TargetLog
    source: LaneLog
    note: Note
    rules: RuleById
    target_batches: BatchLog | None = None
    """The target by whole batches; None: runs of batches are compared by records."""
    source_batches: BatchLog | None = None
    """The source, the same."""
    pause: Callable[[float], None] = time.sleep

    def verify(self) -> LaneVerdict:
        """Verify the lane whole.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        survey = self.survey()
        lane, proved = JoinedLane(self.task, survey), self.do(survey, WHOLE)
        lane.add(proved)
        for portion in portions_of([proved]):
            lane.add(self.do(survey, portion))
        return lane.end(dict(pair for search in lane.searches() for pair in self.do(survey, search).known))

    # Survey

    def survey(self, *, most: int | None = None) -> SurveyedLane:
        """Read the bounds of the lane.

        Args:
            most: bytes of a section; None: it is one.

        Raises:
            Retriable: the target or the store does not answer.
        """
        # In this order.
        bounds = self._target().bounds()
        head = self.chains.heads([self.task.lane])[self.task.lane]
        chain = ChainEnd.of(head)
        if head.run is None and head.generation == 0 and not head.expired:
            return SurveyedLane(chain=chain, notes=(NOTHING,), empty=True)
        notes = (
            [TAKEN_OVER] if head.generation and was_taken_over(self.chains.at_or_before(self.task.lane, 0, 0)) else []
        )
        claimed = self._last_claimed(head)
        end = log_end = bounds.next
        if claimed >= bounds.next:
            end, log_end = self._settled_end(claimed, notes)
        survey = SurveyedLane(
            chain=chain,
            log_start=bounds.first,
            end=end,
            log_end=log_end,
            lowest=first_claims(self.chains, self.task.lane, head.generation),
            notes=tuple(notes),
        )
        if most is None:
            return survey
        runs = runs_of(self.chains, self.task.lane, chain)
        wanted = (run if run is not None and self.task.wants(run, chain.generation) else None for run in runs)
        return replace(survey, sections=cut_lane(wanted, survey.run_ranges(None), most=most))

    def _last_claimed(self, head: Head) -> int:
        """The last downstream offset of the newest run that is committed; -1 where that has no record."""
        newest: Link | None = head.run
        if head.in_doubt:
            newest = self.chains.at_or_before(self.task.lane, head.generation, head.position - 1)
        last = newest.last_downstream if isinstance(newest, Run) else None
        return -1 if last is None else last

    def _settled_end(self, claimed: int, notes: list[str]) -> tuple[int, int]:
        """The ends of the judged and of the readable part of the target.

        It is judged as far as it is claimed, once that is readable or known to be empty. The records behind an open
        transaction are hidden; behind the log's own end there are none.
        """
        side = self._target()
        end = time.monotonic() + HIDDEN_SECONDS
        place = f"{side.topic}-{side.partition}"
        stable, whole = self._stable(side)
        while stable <= claimed and not whole and time.monotonic() < end:
            self.pause(0.2)
            stable, whole = self._stable(side)
        if stable > claimed:
            return claimed + 1, claimed + 1
        if whole:
            notes.append(
                f"{place} ends at {stable}, and the map has records up to {claimed}: its end was lost (an unclean "
                "leader election), or it was deleted and created again"
            )
            return claimed + 1, stable
        notes.append(f"an open transaction hides what follows downstream offset {stable} of {place}")
        return stable, stable

    def _stable(self, side: WalkedSide) -> tuple[int, bool]:
        """The stable end, and whether nothing at all lies behind it: not even what a transaction hides."""
        stable = side.bounds().next
        return stable, self.target.end(side.topic, side.partition, patience) == stable

    # Parts

    def do(self, survey: SurveyedLane, part: LaneSection | OpenPortion | Search) -> LanePart:
        """Read one part on the requested sides, and judge it.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        found = LanePart(name=part.name, verdict=new_verdict(self.task, survey.chain))
        if survey.empty:
            return found
        copies = SourceCopies(
            origin=self.task.settings.origin_rule(self.task.topic),
            partition=self.task.partition,
            rules=self.rules,
            verdict=found.verdict,
            looks=isinstance(part, LaneSection),
        )
        return LanePass(
            task=self.task,
            chains=self.chains,
            ledger=self.ledger,
            survey=survey,
            target=self._target(),
            source=self._source(copies),
            copies=copies,
            found=found,
            note=self.note,
        ).run(part)

    # The latest value of each key

    def keys(self, part: LaneKeys) -> LanePart:
        """Compare the latest record of each key, all of both sides.

        Raises:
            Retriable: a cluster or the store does not answer, or a transaction hides the end of the target.
        """
        lane, verdict = self.task.lane, new_verdict(self.task, ChainEnd.of(NEW_LANE))
        target = self._target()
        ours = WalkedSide(log=self.source, topic=self.task.topic, partition=self.task.partition)
        position, end, behind = 0, 0, False

        def hear(chunk: Chunk, _: int) -> None:
            verdict.read += len(chunk.records)
            self.note("compare keys", done=chunk.covered, total=end, records=verdict.read, bytes=0)

        def theirs() -> Iterator[list[Record]]:
            nonlocal position, end
            end = ours.bounds().next
            head = self.chains.heads([lane])[lane]
            position, verdict.generation, log = head.position, head.generation, target.bounds()
            if log.next <= self._last_claimed(head):
                raise Retriable("an open transaction hides the end of the remote partition", where=str(lane))
            yield from (chunk.records for chunk in target.content(log, hear))

        def originals() -> Iterator[list[Record]]:
            nonlocal behind
            log, behind = ours.bounds(), False
            for chunk in ours.content(log, hear):
                behind = behind or any(position <= each.offset < end for each in chunk.records)
                yield chunk.records
            # A newer record may have replaced a key's record during the reading: it is below the end as it is by now.
            yield from (each.records for each in ours.content(OffsetRange(log.next, ours.bounds().next), hear))

        for held in every_key(theirs, originals):
            expiry = Expiry(source=part.source_expires, target=part.target_expires, behind=behind)
            held.judge(verdict, expiry, position)
        return LanePart(name=part.name, verdict=verdict)

    def _target(self) -> WalkedSide:
        settings, topic = self.task.settings, self.task.topic
        return WalkedSide(
            log=self.target,
            topic=settings.remote_topic(topic),
            partition=self.task.partition,
            batches=self.target_batches,
            compacts=self.task.target_compacts,
            seen=but_its_own(settings, topic),
        )

    def _source(self, copies: SourceCopies) -> WalkedSide:
        return WalkedSide(
            log=self.source,
            topic=self.task.topic,
            partition=self.task.partition,
            batches=self.source_batches,
            compacts=self.task.source_compacts,
            by_batches=lambda run: of_batches(run) and run.passed_bytes == run.bytes,
            seen=copies,
        )
