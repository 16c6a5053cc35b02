"""The verification of one lane: the target is read once, in order; then the source, where the request wants it.

    1 the target's first offset and its stable end
    2 the head of the chain: every record visible below that end had been prepared before
    3 wait until the stable end has passed what the head claims, or note that a transaction hides it
    4 the target, window by window: digests; a wrong window is compared with the source's records at once
    5 the target once more, only if it has unclaimed records: they may be equal to other records of the lane
    6 the source, window by window: digests again, and records that no run covers

Nothing is changed: no doubt is settled, no writer is fenced. A lane may be live meanwhile: what arrives after step 2 is
not verified. Pure but for its ports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain as chained
from typing import Any, Final, TypeVar

from mirrorless.errors import RecordsGone
from mirrorless.jobs.copy_task import BatchChunk, BatchLog, Chunk, LaneLog, OffsetRange
from mirrorless.lane_state import Head
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.run import Link, Run
from mirrorless.verify.by_batches import judged_windows
from mirrorless.verify.comparison import RecordAt
from mirrorless.verify.explanation import Explanation
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.proof import Judged
from mirrorless.verify.source_side import SourceSide
from mirrorless.verify.task import Note, TargetLog, VerifiedSide, VerifyTask, as_written, but_its_own, patience
from mirrorless.verify.windows import Window, first_claims, is_of_batches, runs_of, target_windows

_Chunk = TypeVar("_Chunk", Chunk, BatchChunk)

TOGETHER: Final = 60_000
"""Records of neighbouring windows that are compared as one."""

HIDDEN_SECONDS: Final = 30.0
"""The wait for an open transaction: longer than its own timeout and the coordinator's interval."""

GONE: Final = "the source does not have it any more, or has another record instead"


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
    verdict: LaneVerdict = field(init=False)
    _target: VerifiedSide = field(init=False)
    _head: Head = field(init=False)
    _found: Explanation = field(init=False)
    _beside: SourceSide = field(init=False)
    _group: list[Judged] = field(default_factory=list)
    """Wrong windows in a row."""
    _log_start: int = 0
    """The target's first offset, as last read."""
    _log_end: int = 0
    """The end of the readable part of the target."""
    _done: int = 0
    _total: int = 0

    def verify(self) -> LaneVerdict:
        """Read the requested sides, and judge.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        task, lane = self.task, self.task.lane
        self.verdict = LaneVerdict(lane=str(lane), topic=task.topic, partition=task.partition)
        self._target = VerifiedSide(
            self.target,
            task.settings.remote_topic(task.topic),
            task.partition,
            seen=but_its_own(task.settings, task.topic),
        )

        # 1. and 2. In this order.
        bounds = self._target.bounds()
        self._log_start = bounds.first
        self._head = self.chains.heads([lane])[lane]
        self.verdict.generation, self.verdict.position = self._head.generation, self._head.position
        if self._head.run is None and self._head.generation == 0 and not self._head.expired:
            self.verdict.note("nothing of this lane has been replicated")
            return self.verdict
        self._found = Explanation(self.verdict)
        self._beside = SourceSide(
            task=task,
            source=VerifiedSide(self.source, task.topic, task.partition, seen=as_written(task.settings, task.topic)),
            target=self._target,
            chains=self.chains,
            ledger=self.ledger,
            head=self._head,
            verdict=self.verdict,
            found=self._found,
            batches=self.source_batches,
        )

        # 3.
        claimed = self._last_claimed()
        self._log_end = bounds.next
        if claimed >= bounds.next:
            bounds = OffsetRange(bounds.first, self._settled_end(claimed))
        compared = self._beside.span() if task.against_source else OffsetRange(0, 0)
        read = max(0, bounds.next - bounds.first)
        self._total = read + compared.next - compared.first

        # 4. and 5.
        for judged in self._read_target(bounds):
            self._take(judged)
        self._explain()
        self._found.sort_out(self._elsewhere())

        # 6.
        if task.against_source:
            self._beside.compare(lambda phase, chunk, offsets: self._count(phase, chunk, read + offsets))
            self._found.sort_out({}, stranger=GONE)
        self._done = self._total
        self._tell("done")
        return self.verdict

    # Reading

    def _last_claimed(self) -> int:
        """The last downstream offset of the newest run that is committed; -1 where that has no record."""
        newest: Link | None = self._head.run
        if self._head.in_doubt:
            newest = self.chains.at_or_before(self.task.lane, self._head.generation, self._head.position - 1)
        last = newest.last_downstream if isinstance(newest, Run) else None
        return -1 if last is None else last

    def _settled_end(self, claimed: int) -> int:
        """The end of the judged part of the target: behind what is claimed, once that is readable or known to be empty.

        The records behind an open transaction are hidden; behind the log's own end there are none.
        """
        end = time.monotonic() + HIDDEN_SECONDS
        place = f"{self._target.topic}-{self._target.partition}"
        stable, whole = self._target.settled(self.target)
        while stable <= claimed and not whole and time.monotonic() < end:
            self.pause(0.2)
            stable, whole = self._target.settled(self.target)
        self._log_end = min(claimed + 1, stable)
        if stable > claimed:
            return claimed + 1
        if whole:
            self.verdict.note(
                f"{place} ends at {stable}, and the map has records up to {claimed}: its end was lost (an unclean "
                "leader election), or it was deleted and created again"
            )
            return claimed + 1
        self.verdict.note(f"an open transaction hides what follows downstream offset {stable} of {place}")
        return stable

    def _read_target(self, bounds: OffsetRange) -> Iterator[Judged]:
        """Every window of the target, judged."""
        lane, newest = self.task.lane, self._head.generation
        windows = target_windows(
            runs_of(self.chains, lane, self._head),
            lambda run: self.task.wants(run, newest),
            start=bounds.first,
            end=bounds.next,
            lowest=first_claims(self.chains, lane, self._head),
        )
        # Reading begins with the first window that is not expired; behind a hole, with its first record.
        ahead: list[Window] = []
        begin = bounds.next
        for window in windows:
            ahead.append(window)
            if window.next > bounds.first and not window.superseded and (window.claims or not window.hole):
                begin = max(bounds.first, window.claims[0][0]) if window.hole else bounds.first
                break
        yield from judged_windows(
            chained(ahead, windows),
            lambda window: self.target_batches is not None and is_of_batches(window),
            begin=begin,
            records=lambda first: self._chunks(self._target.read, first, bounds.next, Chunk),
            batches=lambda first: self._chunks(self._batches, first, bounds.next, BatchChunk),
            log_start=lambda: self._log_start,
            compacts=self.task.target_compacts,
        )

    def _batches(self, wanted: OffsetRange) -> Iterator[BatchChunk]:
        place = self._target.topic, self._target.partition
        return iter(()) if self.target_batches is None else self.target_batches.read(*place, wanted, patience)

    def _chunks(
        self,
        read: Callable[[OffsetRange], Iterator[_Chunk]],
        first: int,
        following: int,
        empty: Callable[[list[Any], int], _Chunk],
    ) -> Generator[_Chunk]:
        """The target's content. What retention deletes during the reading is expired, and reading continues."""
        at, end = first, min(following, self._log_end)
        while at < end:
            try:
                for chunk in read(OffsetRange(at, end)):
                    at = chunk.covered
                    self._count("read target", chunk, at - first)
                    yield chunk
            except RecordsGone:
                start = self._target.bounds().first
                if start <= at:
                    raise
                self._log_start, at = start, start
                yield empty([], min(start, end))
            else:
                break
        if end < following:
            yield empty([], following)  # the log ends before the map

    def _elsewhere(self) -> dict[bytes, int]:
        """The offsets in the lane of contents that also stand somewhere unclaimed."""
        contents, surplus = self._found.strangers()
        found: dict[bytes, int] = {}
        if not contents:
            return found
        for chunk in self._target.read(OffsetRange(self._target.bounds().first, self._log_end)):
            for record in chunk.records:
                seen = RecordAt.of(record)
                if seen.content in contents and record.offset not in surplus:
                    found.setdefault(seen.content, record.offset)
            self._tell("look for originals")
            if len(found) == len(contents):
                break
        return found

    # Judging

    def _take(self, judged: Judged) -> None:
        """Count a window; a wrong one waits for its neighbours."""
        run, counts = judged.window.run, self.verdict.counts
        counts.before_map += judged.unknown
        if run is not None:
            counts.runs += 1
            counts.records += run.records
            self._mark(run, judged)
            if self._group and not _same_generation(self._group[-1], run):
                self._explain()
        broken = judged.state in {"wrong", "incomplete"} and not self.task.target_compacts
        if broken or (judged.unclaimed and self._group):
            # Unclaimed records behind a wrong window may belong into it.
            self._group.append(judged)
        if not broken or sum(len(each.records) for each in self._group) > TOGETHER:
            joined = judged in self._group[-1:]
            self._explain()
            if not joined:
                self._count_held(judged)

    def _count_held(self, judged: Judged) -> None:
        """A window that needs no comparison."""
        run, counts = judged.window.run, self.verdict.counts
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
                self._found.alone(judged)
                return
        if judged.unclaimed and run is None and self.task.settings.delivery == "at_least_once":
            counts.in_doubt += len(judged.unclaimed)  # of a delivery under way: its run follows
        elif judged.unclaimed:
            self._found.strange(judged)
            self._make_room()

    def _explain(self) -> None:
        """Compare the windows that wait with the source's records, or judge them without."""
        group, self._group = self._group, []
        if not group:
            return
        originals = self._beside.originals(group)
        if originals is not None:
            self.verdict.counts.proved += self._found.beside_source(group, originals)
        else:
            for judged in group:
                if judged.state in {"wrong", "incomplete"}:
                    self._found.alone(judged)
                else:
                    self._count_held(judged)
        self._make_room()

    def _make_room(self) -> None:
        """Judge the kept records among themselves when there are too many: the lane is not read again for that."""
        if self._found.full:
            self.verdict.note(
                "there are more faults than can be kept: some duplicated records are reported as different"
            )
            self._found.sort_out({})

    def _mark(self, run: Run, judged: Judged) -> None:
        """Mark a window for the plot."""
        if run.generation != self._head.generation:
            return
        if self.verdict.segments and self.verdict.segments[-1].next < run.position:
            self.verdict.mark(self.verdict.segments[-1].next, run.position, "not in the map")
        thinned = "thinned out" if self.task.target_compacts else "wrong"
        shown = {"incomplete": thinned, "cut": "expired", "nothing": "proved", "in_doubt": "in doubt"}
        unproved = {"superseded": "not provable", "unread": "not provable"}
        self.verdict.mark(run.position, run.next, (shown | unproved).get(judged.state, judged.state))

    # The plot

    def _count(self, phase: str, chunk: Chunk | BatchChunk, offsets: int) -> None:
        self._done = max(self._done, offsets)
        if isinstance(chunk, BatchChunk):
            self.verdict.read += sum(each.batch.records_count for each in chunk.records)
            self.verdict.bytes += sum(len(each.batch.payload) for each in chunk.records)
            self._tell(phase)
            return
        records = chunk.records
        self.verdict.read += len(records)
        self.verdict.bytes += sum([len(each.value) for each in records if each.value])
        self.verdict.bytes += sum([len(each.key) for each in records if each.key])
        self._tell(phase)

    def _tell(self, phase: str) -> None:
        proved = self.verdict.counts.proved
        self.note(phase, done=self._done, total=self._total, records=proved, bytes=self.verdict.bytes)


def _same_generation(judged: Judged, run: Run) -> bool:
    other = judged.window.run
    return other is not None and other.generation == run.generation
