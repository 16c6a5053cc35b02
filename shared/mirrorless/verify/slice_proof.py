"""The proof of one slice of a lane: its windows of the target in order, then those of the source.

Windows at the slice's beginning or end that may have to be compared with windows across its border are left out: see
`slices.rows_to_close`. Pure but for its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain as chained
from typing import Any, Final, TypeVar

from mirrorless.errors import RecordsGone
from mirrorless.jobs.copy_task import BatchChunk, BatchLog, Chunk, OffsetRange
from mirrorless.ports.stores import Chains
from mirrorless.run import Run
from mirrorless.verify.by_batches import judged_windows
from mirrorless.verify.explanation import Explanation
from mirrorless.verify.joining import TOO_MANY, LanePart
from mirrorless.verify.proof import Judged
from mirrorless.verify.slices import Row, SlicedLane, VerifiedSlice
from mirrorless.verify.source_side import SourceSide
from mirrorless.verify.task import Note, VerifiedSide, VerifyTask, patience
from mirrorless.verify.windows import Window, is_of_batches, key_of, runs_of

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
