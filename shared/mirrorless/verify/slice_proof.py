"""The proof of one slice of a lane: its windows of the target in order, then those of the source.

Windows at the slice's beginning or end that may have to be compared with windows across its border are left out: see
`slices.rows_to_close`. Pure but for its ports.

The verification of one lane: the target is read once, in order; then the source, where the request wants it.

    survey  1 the target's first offset and its stable end
            2 the head of the chain: every record visible below that end had been prepared before
            3 wait until the stable end has passed what the head claims, or note that a transaction hides it
    prove   4 the target, window by window: digests; a wrong window is compared with the source's records at once
            5 the source, window by window: digests again, and records that no run covers
    join    6 the target once more, only if it has unclaimed records: they may be equal to other records of the lane

A long lane is surveyed once and proved slice by slice, see `slices`. Nothing is changed: no doubt is settled, no writer
is fenced. A lane may be live meanwhile: what arrives after step 2 is not verified. Pure but for its ports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain as chained
from typing import Any, Final, TypeVar

from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link, Run
from mirrorless.errors import RecordsGone
from mirrorless.jobs.copy_task import BatchChunk, BatchLog, Chunk, LaneLog, OffsetRange
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.verify.comparison import RecordAt
from mirrorless.verify.explanation import Explanation
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.joining import TOO_MANY, LanePart, joined, new_verdict
from mirrorless.verify.proof import Judged, judged_windows
from mirrorless.verify.slices import WHOLE, Row, SlicedLane, VerifiedSlice
from mirrorless.verify.source_side import SourceSide
from mirrorless.verify.task import Note, TargetLog, VerifiedSide, VerifyTask, as_written, but_its_own, patience
from mirrorless.verify.windows import ChainEnd, Window, first_claims, is_of_batches, key_of, runs_of

_Chunk = TypeVar("_Chunk", Chunk, BatchChunk)

TOGETHER: Final = 60_000
"""Records of neighbouring windows that are compared as one."""


@dataclass(slots=True, kw_only=True)
class SliceProof:
    """The proof of one slice."""

    task: VerifyTask
    chains: Chains
    survey: SlicedLane
    part: VerifiedSlice
    found: LanePart
    target: VerifiedSide
    batches: BatchLog | None
    note: Note
    explanation: Explanation
    beside: SourceSide
    _group: list[Judged] = field(default_factory=list)
    """Wrong windows in a row."""
    _withheld: list[Judged] | None = None
    """Windows at the slice's beginning that may belong to a row across its border; None behind those."""
    _begun: bool = False
    """Whether the lane's reading begins before the slice."""
    _log_start: int = 0
    """The target's first offset, as last read."""
    _done: int = 0
    _total: int = 0

    def run(self) -> LanePart:
        """Read and judge; see `LaneVerification.prove`."""
        task, part, verdict = self.task, self.part, self.found.verdict
        self._log_start = max(self.survey.log_start, self.target.bounds().first)
        begin = self.survey.log_start if part.begin is None else part.begin.at
        bounds = OffsetRange(begin, self.survey.end if part.end is None else min(part.end, self.survey.end))
        read = max(0, bounds.next - bounds.first)
        compared = self.beside.reach() if task.against_source else OffsetRange(0, 0)
        self._total = read + max(0, compared.next - compared.first)

        if not part.closed and part.begin is not None:
            self._withheld = []
        for judged in self._read_target(bounds):
            self._take(judged)
        self._end_of_slice()
        self.found.left = self.explanation.left_over()

        if task.against_source and not (self.found.before is not None and self.found.before.whole):
            kept, verdict.findings = verdict.findings, []
            self.beside.compare(
                lambda phase, chunk, offsets: self._count(phase, chunk, read + offsets),
                behind=None if self.found.before is None else self.found.before.upto,
                below=None if self.found.after is None else self.found.after.first,
            )
            self.found.beside, verdict.findings = verdict.findings, kept
            self.found.left_beside = self.explanation.left_over()
        self._done = self._total
        self._tell("done")
        return self.found

    # Reading

    def _windows(self) -> Iterator[Window]:
        """The slice's windows of the target."""
        part, newest = self.part, self.survey.chain.generation
        windows = self.survey.windows(part.begin)
        ours, self._begun = part.first is None, windows.begun
        for run in runs_of(self.chains, self.task.lane, self.survey.chain, begin=part.begin, upto=part.upto):
            for window in windows.of(run if run is not None and self.task.wants(run, newest) else None):
                ours = ours or (window.run is not None and key_of(window.run) == part.first)
                if ours:
                    yield window
                else:
                    self._begun = windows.begun
        if part.upto is None:
            yield from windows.tail(self.survey.end)

    def _read_target(self, bounds: OffsetRange) -> Iterator[Judged]:
        """Every window of the target, judged."""
        windows = self._windows()
        # Reading begins with the lane's first window that is not expired; behind a hole, with its first record.
        ahead: list[Window] = []
        begin, start = bounds.next, self.survey.log_start
        for window in windows:
            ahead.append(window)
            if self._begun:
                begin = window.first
                break
            if window.next > start and not window.superseded and (window.claims or not window.hole):
                begin = max(start, window.claims[0][0]) if window.hole else bounds.first
                break
        yield from judged_windows(
            chained(ahead, windows),
            lambda window: self.batches is not None and is_of_batches(window),
            begin=begin,
            records=lambda first: self._chunks(self.target.read, first, bounds.next, Chunk),
            batches=lambda first: self._chunks(self._batches, first, bounds.next, BatchChunk),
            log_start=lambda: self._log_start,
            compacts=self.task.target_compacts,
        )

    def _batches(self, wanted: OffsetRange) -> Iterator[BatchChunk]:
        place = self.target.topic, self.target.partition
        return iter(()) if self.batches is None else self.batches.read(*place, wanted, patience)

    def _chunks(
        self,
        read: Callable[[OffsetRange], Iterator[_Chunk]],
        first: int,
        following: int,
        empty: Callable[[list[Any], int], _Chunk],
    ) -> Generator[_Chunk]:
        """The target's content. What retention deletes during the reading is expired, and reading continues."""
        at, end = first, min(following, self.survey.log_end)
        while at < end:
            try:
                for chunk in read(OffsetRange(at, end)):
                    at = chunk.covered
                    self._count("read target", chunk, at - first)
                    yield chunk
            except RecordsGone:
                start = self.target.bounds().first
                if start <= at:
                    raise
                self._log_start, at = start, start
                yield empty([], min(start, end))
            else:
                break
        if end < following:
            yield empty([], following)  # the log ends before the map

    # Judging

    def _take(self, judged: Judged) -> None:
        """Count a window, or withhold it at a border."""
        if self._withheld is None:
            self._judge(judged)
            return
        # A row ends behind a run: what is between two runs belongs to the later one.
        between = bool(self._withheld) and self._withheld[-1].window.run is None
        if self._broken(judged) or judged.unclaimed or between:
            self._withheld.append(judged)
            if sum(len(each.records) for each in self._withheld) > TOGETHER:
                self._release()
            return
        self._leave_row()
        self._judge(judged)

    def _release(self) -> None:
        """Judge what was withheld: it is too much to be compared as one with what is across the border."""
        withheld, self._withheld = self._withheld or [], None
        for each in withheld:
            self._judge(each)

    def _leave_row(self) -> None:
        """Leave what was withheld to a slice of its own."""
        withheld, self._withheld = self._withheld, None
        if withheld:
            # The one before a window that is no part of the row is of a run.
            run = withheld[-1].window.run
            self.found.before = Row(
                first=None,
                upto=None if run is None else key_of(run),
                end=max(each.window.next for each in withheld),
                position=None if run is None else run.next,
            )

    def _end_of_slice(self) -> None:
        """Leave a row at the slice's end to a slice of its own, or compare it."""
        part = self.part
        if self._withheld:
            self._withheld = None
            self.found.before = Row(first=None, upto=part.upto, end=part.end, position=part.position, whole=True)
        elif self._group and not part.closed and part.upto is not None and (run := self._group[0].window.run):
            self.found.after = Row(first=key_of(run), upto=part.upto, end=part.end, position=part.position)
            self._group = []
        else:
            self._explain()

    def _broken(self, judged: Judged) -> bool:
        return judged.state in {"wrong", "incomplete"} and not self.task.target_compacts

    def _judge(self, judged: Judged) -> None:
        """Count a window; a wrong one waits for its neighbours."""
        run, broken = judged.window.run, self._broken(judged)
        if self._group and run is not None and not _same_generation(self._group[-1], run):
            self._explain()
        # Unclaimed records behind a wrong window may belong into it.
        if broken or (judged.unclaimed and self._group):
            self._group.append(judged)
            if not broken or sum(len(each.records) for each in self._group) > TOGETHER:
                self._explain()
            return
        self._explain()
        self._count_window(judged)
        self._count_held(judged)

    def _count_window(self, judged: Judged) -> None:
        run, counts = judged.window.run, self.found.verdict.counts
        counts.before_map += judged.unknown
        if run is not None:
            counts.runs += 1
            counts.records += run.records
            self._mark(run, judged)

    def _count_held(self, judged: Judged) -> None:
        """A window that needs no comparison."""
        run, counts = judged.window.run, self.found.verdict.counts
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
                return
        if judged.unclaimed and run is None and self.task.settings.delivery == "at_least_once":
            counts.in_doubt += len(judged.unclaimed)  # of a delivery under way: its run follows
        elif judged.unclaimed:
            self.explanation.strange(judged)
            self._make_room()

    def _explain(self) -> None:
        """Compare the windows that wait with the source's records, or judge them without."""
        group, self._group = self._group, []
        if not group:
            return
        for judged in group:
            self._count_window(judged)
        originals = self.beside.originals(group)
        if originals is not None:
            self.found.verdict.counts.proved += self.explanation.beside_source(group, originals)
        else:
            for judged in group:
                if judged.state in {"wrong", "incomplete"}:
                    self.explanation.alone(judged)
                else:
                    self._count_held(judged)
        self._make_room()

    def _make_room(self) -> None:
        """Judge the kept records among themselves when there are too many: the lane is not read again for that."""
        if self.explanation.full:
            self.found.verdict.note(TOO_MANY)
            self.found.verdict.unsorted = True
            self.explanation.sort_out()

    def _mark(self, run: Run, judged: Judged) -> None:
        """Mark a window for the plot."""
        verdict = self.found.verdict
        if run.generation != self.survey.chain.generation:
            return
        if verdict.segments and verdict.segments[-1].next < run.position:
            verdict.mark(verdict.segments[-1].next, run.position, "not in the map")
        thinned = "thinned out" if self.task.target_compacts else "wrong"
        shown = {"incomplete": thinned, "cut": "expired", "nothing": "proved", "in_doubt": "in doubt"}
        unproved = {"superseded": "not provable", "unread": "not provable"}
        verdict.mark(run.position, run.next, (shown | unproved).get(judged.state, judged.state))

    # Progress

    def _count(self, phase: str, chunk: Chunk | BatchChunk, offsets: int) -> None:
        self._done = max(self._done, offsets)
        if isinstance(chunk, BatchChunk):
            self.found.verdict.read += sum(each.batch.records_count for each in chunk.records)
            self.found.verdict.bytes += sum(len(each.batch.payload) for each in chunk.records)
            self._tell(phase)
            return
        records = chunk.records
        self.found.verdict.read += len(records)
        self.found.verdict.bytes += sum([len(each.value) for each in records if each.value])
        self.found.verdict.bytes += sum([len(each.key) for each in records if each.key])
        self._tell(phase)

    def _tell(self, phase: str) -> None:
        proved = self.found.verdict.counts.proved
        self.note(phase, done=self._done, total=self._total, records=proved, bytes=self.found.verdict.bytes)


def _same_generation(judged: Judged, run: Run) -> bool:
    other = judged.window.run
    return other is not None and other.generation == run.generation


HIDDEN_SECONDS: Final = 30.0
"""The wait for an open transaction: longer than its own timeout and the coordinator's interval."""

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
        lane = joined(self.task, survey, [self.prove(survey)])
        return lane.end(self.elsewhere(survey, *lane.strangers()))

    # Survey

    def survey(self, head: Head | None = None, bounds: OffsetRange | None = None) -> SlicedLane:
        """Read the bounds of the lane.

        Args:
            head: of the chain, where it was read already.
            bounds: of the target; where `head` is given, read before it.

        Raises:
            Retriable: the target or the store does not answer.
        """
        # In this order.
        bounds = bounds or self._side().bounds()
        head = head or self.chains.heads([self.task.lane])[self.task.lane]
        chain = ChainEnd.of(head)
        if head.run is None and head.generation == 0 and not head.expired:
            return SlicedLane(chain=chain, notes=(NOTHING,), empty=True)
        notes: list[str] = []
        claimed = self._last_claimed(head)
        end = log_end = bounds.next
        if claimed >= bounds.next:
            end, log_end = self._settled_end(claimed, notes)
        return SlicedLane(
            chain=chain,
            log_start=bounds.first,
            end=end,
            log_end=log_end,
            lowest=first_claims(self.chains, self.task.lane, head.generation),
            notes=tuple(notes),
        )

    def runs(self, survey: SlicedLane) -> Iterator[tuple[Run | None, bool]]:
        """Every run of the lane, and whether it is to be verified: what `cut_lane` needs."""
        newest = survey.chain.generation
        for run in runs_of(self.chains, self.task.lane, survey.chain):
            yield run, run is not None and self.task.wants(run, newest)

    def _side(self) -> VerifiedSide:
        settings, topic = self.task.settings, self.task.topic
        return VerifiedSide(
            self.target, settings.remote_topic(topic), self.task.partition, seen=but_its_own(settings, topic)
        )

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
        side = self._side()
        end = time.monotonic() + HIDDEN_SECONDS
        place = f"{side.topic}-{side.partition}"
        stable, whole = side.settled(self.target)
        while stable <= claimed and not whole and time.monotonic() < end:
            self.pause(0.2)
            stable, whole = side.settled(self.target)
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

    # Proof

    def prove(self, survey: SlicedLane, part: VerifiedSlice = WHOLE) -> LanePart:
        """Read one slice on the requested sides, and judge it.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        found = LanePart(number=part.number, verdict=new_verdict(self.task, survey))
        return found if survey.empty else self._proof(survey, part, found).run()

    def _proof(self, survey: SlicedLane, part: VerifiedSlice, found: LanePart) -> SliceProof:
        target, explanation = self._side(), Explanation(found.verdict)
        source = VerifiedSide(
            self.source, self.task.topic, self.task.partition, seen=as_written(self.task.settings, self.task.topic)
        )
        return SliceProof(
            task=self.task,
            chains=self.chains,
            survey=survey,
            part=part,
            found=found,
            target=target,
            batches=self.target_batches,
            note=self.note,
            explanation=explanation,
            beside=SourceSide(
                task=self.task,
                source=source,
                target=target,
                chains=self.chains,
                ledger=self.ledger,
                chain=survey.chain,
                part=part,
                verdict=found.verdict,
                found=explanation,
                batches=self.source_batches,
            ),
        )

    def elsewhere(
        self,
        survey: SlicedLane,
        contents: Collection[bytes],
        surplus: Container[int],
        within: OffsetRange | None = None,
    ) -> dict[bytes, int]:
        """The offsets in the lane of contents that also stand somewhere unclaimed.

        Args:
            survey: of the lane.
            contents: of unclaimed records.
            surplus: the downstream offsets of these.
            within: the part of the target to search; None for all of it.

        Raises:
            Retriable: the target does not answer.
        """
        found: dict[bytes, int] = {}
        if not contents:
            return found
        side = self._side()
        first, end = side.bounds().first, survey.log_end
        if within is not None:
            first, end = max(first, within.first), min(end, within.next)
        for chunk in side.read(OffsetRange(first, end)) if first < end else ():
            for record in chunk.records:
                seen = RecordAt.of(record)
                if seen.content in contents and record.offset not in surplus:
                    found.setdefault(seen.content, record.offset)
            self.note("look for originals", done=chunk.covered - first, total=end - first, records=0, bytes=0)
            if len(found) == len(contents):
                break
        return found
