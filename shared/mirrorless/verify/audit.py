"""The audit of one partition that some replicator keeps: its whole copy beside its source, from the two logs alone.

    ends      1 the source's end: what stands below it is to be on the target
              2 the target's end, and the source's after it: so that no copy can be ahead
    compare   3 both logs side by side; at their ends the target is waited for, as far as step 1 has seen
    search    4 records of the target that have no partner, among all of the source; then among those that readers of
                committed records do not see

Where either side compacts, older values of a key may be gone from one side alone: the latest of each key is compared
instead, as in `mirrorless.verify.compacted_keys`. Nothing tells how far the replicator has come; what the end of the
copy shows does. Pure but for its ports. The totals of all partitions and the report follow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import CHUNK_RECORDS, Chunk, LaneLog
from mirrorless.records.record import Record
from mirrorless.reports.format import numbered
from mirrorless.reports.report import Figure, Report, ReportSection, Table
from mirrorless.verify.compacted_keys import Expiry, every_key
from mirrorless.verify.comparison import LeftOver, RecordAt
from mirrorless.verify.explanation import judge_left_over
from mirrorless.verify.findings import KINDS, Counts, FindingKind, LaneVerdict
from mirrorless.verify.parts import Note
from mirrorless.verify.side_by_side import UNKNOWN, LogReader, SideBySide
from mirrorless.verify.summary import added_up, findings_section, measures_of
from mirrorless.verify.walk import WalkedSide, patience

LOOK_SECONDS: Final = 0.5
"""Between two looks at the end of a copy that is waited for."""

ENDS: Final = 1_000
"""The last records of a compacted copy, by which it is found how far the copying has come."""

PENDING: Final = "what the source has from upstream offset {} on is not on the target yet"
EARLY: Final = "it stands before records that precede it on the source"

ABORTED: Final = "its transaction was aborted on the source, and the replicator reads uncommitted records"


class AuditTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One partition, as it is sent to a process."""

    source: ClusterSettings
    target: ClusterSettings
    topic: str
    """On the source."""
    copy: str
    """The topic's name on the target."""
    partition: int
    by_keys: bool = False
    """Whether either side compacts."""
    source_expires: bool = False
    target_expires: bool = False
    timestamps: bool = True
    headers_left_out: tuple[str, ...] = ()
    wait_seconds: float = 0.0

    def seen(self, record: Record) -> Record:
        """A record as it is compared."""
        if not self.timestamps:
            record.timestamp = 0
        if self.headers_left_out and record.headers:
            record.headers = [each for each in record.headers if each[0] not in self.headers_left_out]
        return record


class AuditCounts(Counts, kw_only=True):
    """Counts of records of the target, unless noted otherwise."""

    pending: int = 0
    """On the source, and not on the target yet; offsets, where they are many."""


class AuditVerdict(LaneVerdict, kw_only=True):
    """The verdict on one partition. Its lane is the partition's name on the source."""

    counts: AuditCounts = msgspec.field(default_factory=AuditCounts)

    @classmethod
    def of(cls, task: AuditTask, *, error: str = "") -> Self:
        """The verdict on a partition before anything was read, or that it could not be read."""
        return cls(
            lane=f"{task.topic}-{task.partition}",
            topic=task.topic,
            partition=task.partition,
            state="failed" if error else "done",
            error=error,
        )


@dataclass(slots=True, kw_only=True)
class LogsAudit:
    """The audit of one partition by its two logs."""

    task: AuditTask
    source: LaneLog
    target: LaneLog
    uncommitted: LaneLog
    """The source, with what was aborted."""
    note: Note
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    verdict: AuditVerdict = field(init=False)
    _holes: bool = False
    """Whether the source has offsets without a visible record."""
    _done: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.verdict = AuditVerdict.of(self.task)

    def run(self) -> AuditVerdict:
        """Audit it.

        Raises:
            Retriable: a cluster does not answer.
        """
        began, cpu = self.clock(), time.process_time()
        if self.task.by_keys:
            self._compare_keys()
        else:
            self._compare_records()
        self.verdict.seconds, self.verdict.cpu_seconds = self.clock() - began, time.process_time() - cpu
        return self.verdict

    # Every record

    def _compare_records(self) -> None:
        due = self.source.bounds(self.task.topic, self.task.partition, patience).next
        theirs = self._reader(self.target, self.task.copy)
        ours = self._reader(self.source, self.task.topic)  # after the target
        until = self.clock() + self.task.wait_seconds

        def grows() -> bool:
            while self.clock() < until:
                if (end := theirs.side.bounds().next) > theirs.end:
                    theirs.end, ours.end = end, ours.side.bounds().next
                    return True
                self.pause(LOOK_SECONDS)
            return False

        sides = SideBySide(ours, theirs, self.verdict, due, grows)
        sides.compare()
        self._judge(sides)
        if sides.pending:
            self.verdict.counts.pending = sides.pending
            self.verdict.note(PENDING.format(sides.pending_from))

    def _judge(self, sides: SideBySide) -> None:
        """Judge what has no partner, once it has been looked for among all of the source."""
        left = sides.left
        contents, _ = left.strangers()
        known = dict(self._found(contents, self.source))
        aborted = dict(self._found(contents - known.keys(), self.uncommitted)) if self._holes else {}
        rest = list[LeftOver]()
        for each in left.surplus:
            content = each.seen.content
            if (at := aborted.get(content)) is not None:
                self.verdict.find_one("foreign", RecordAt(at, content), each.seen, ABORTED)
            elif (at := known.get(content)) is not None and sides.was_missing(at):
                self.verdict.find_one("reordered", RecordAt(at, content), each.seen, EARLY)
            else:
                rest.append(each)
        left.surplus = rest
        judge_left_over(self.verdict, left, known, stranger=("foreign", UNKNOWN), of_source=True)
        sides.say_skipped()

    def _found(self, contents: Collection[bytes], log: LaneLog) -> Iterator[tuple[bytes, int]]:
        """Some contents that the source has, and where they stand there."""
        if not contents:
            return
        for records in _all_of(self._reader(log, self.task.topic)):
            for seen in map(RecordAt.of, records):
                if seen.content in contents:
                    yield seen.content, seen.offset

    # The latest of each key

    def _compare_keys(self) -> None:
        """Compare the latest records of all keys. How far the copying has come is shown by the copy's last records."""
        ends, come, end = deque[bytes](maxlen=ENDS), 0, 0

        def target() -> Iterator[list[Record]]:
            ends.clear()
            for records in _all_of(self._reader(self.target, self.task.copy)):
                ends.extend(RecordAt.of(each).content for each in records if each.key is not None)
                yield records

        def source() -> Iterator[list[Record]]:
            nonlocal come, end
            ours, last = self._reader(self.source, self.task.topic), set(ends)  # after the target
            come, end = ours.covered, ours.end
            for records in _all_of(ours):
                for seen in (RecordAt.of(each) for each in records if last and each.key is not None):
                    if seen.content in last:
                        last.discard(seen.content)  # another one like it may follow that has no copy yet
                        come = seen.offset + 1
                yield records

        for held in every_key(target, source):
            expiry = Expiry(source=self.task.source_expires, target=self.task.target_expires, behind=come < end)
            held.judge(self.verdict, expiry, come)

    def _reader(self, log: LaneLog, topic: str) -> LogReader:
        """A side from its first record to its end as it is now."""
        side = WalkedSide(log=log, topic=topic, partition=self.task.partition)
        bounds = side.bounds()
        self._total += bounds.next - bounds.first
        return LogReader(
            side=side,
            seen=self.task.seen,
            heard=self._hear if log is self.target else self._hear_source,
            covered=bounds.first,
            end=bounds.next,
            begins=bounds.first,
        )

    def _hear_source(self, chunk: Chunk, offsets: int) -> None:
        self._holes |= len(chunk.records) < offsets
        self._hear(chunk, offsets)

    def _hear(self, chunk: Chunk, offsets: int) -> None:
        verdict = self.verdict
        self._done += offsets
        verdict.read += len(chunk.records)
        verdict.bytes += sum([len(each.value) for each in chunk.records if each.value])
        verdict.bytes += sum([len(each.key) for each in chunk.records if each.key])
        self.note("read", done=self._done, total=self._total, records=verdict.read, bytes=verdict.bytes)


def _all_of(reader: LogReader) -> Iterator[list[Record]]:
    while records := reader.ahead(CHUNK_RECORDS):
        yield records
        reader.drop(len(records))


FOUND: Final[tuple[FindingKind, ...]] = (*(kind for kind in KINDS if kind != "misplaced"), "foreign")
"""What an audit finds."""

UNPROVED: Final = (
    ("pending", "on the source, and not on the target yet"),
    ("expired", "on the source, older than the target's log"),
    ("source_gone", "on the target, older than the source's log"),
    ("keys_pending", "keys whose latest value is not on the target yet"),
    ("not_provable", "keys that the source may have removed since they were copied"),
)
"""Counts of what could not be compared, and why."""

TOTALS: Final = ("records", "proved", *FOUND, *(name for name, _ in UNPROVED), "keys")


def found_of(counts: AuditCounts) -> int:
    """The number of records that are wrong."""
    return sum(getattr(counts, kind) for kind in FOUND)


def wrong_of(counts: AuditCounts) -> str:
    """What is wrong, in words; empty for nothing."""
    return ", ".join(f"{getattr(counts, kind):,} {kind}" for kind in FOUND if getattr(counts, kind))


def total_of(verdicts: Sequence[AuditVerdict]) -> AuditCounts:
    """The sum over all partitions."""
    return added_up(verdicts, AuditCounts())


def is_empty_copy(verdict: AuditVerdict) -> bool:
    """Whether there was something to compare, and nothing could be."""
    counts = verdict.counts
    something = counts.records or counts.pending or counts.expired or counts.keys
    return bool(something) and not counts.proved and counts.keys == counts.keys_pending


def is_true_copy(verdicts: Sequence[AuditVerdict]) -> bool:
    """Whether every partition was compared, and nothing is wrong."""
    return not any(
        found_of(each.counts) or each.state == "failed" or each.unsorted or is_empty_copy(each) for each in verdicts
    )


def audit_totals(verdicts: Sequence[AuditVerdict], *, seconds: float) -> dict[str, int | float]:
    """The totals, for programs."""
    counts = total_of(verdicts)
    totals: dict[str, int | float] = {name: getattr(counts, name) for name in TOTALS}
    return totals | {"partitions": len(verdicts)} | measures_of(verdicts, seconds=seconds)


def audit_sentence(verdicts: Sequence[AuditVerdict]) -> str:
    """The result in words."""
    counts = total_of(verdicts)
    failed = sum(each.state == "failed" for each in verdicts)
    parts = [f"{failed} of {len(verdicts)} partitions could not be read"] if failed else []
    if empty := [each.lane for each in verdicts if is_empty_copy(each) and each.state == "done"]:
        parts.append(f"nothing of {', '.join(empty[:3])}{' and others' if empty[3:] else ''} could be compared")
    wrong = wrong_of(counts)
    right = [f"{numbered(counts.proved, 'record')} in order"] if counts.proved or not counts.keys else []
    right += [f"the latest values of {numbered(counts.keys, 'key')}"] if counts.keys else []
    parts.append((f"{wrong}, beside " if wrong else "nothing is wrong: ") + " and ".join(right))
    if counts.pending:
        parts.append(f"{counts.pending:,} not there yet")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def audit_report(verdicts: Sequence[AuditVerdict], *, title: str, seconds: float, made_at: int) -> Report:
    """The report. Args: title: what was audited. made_at: ms since the epoch."""
    counts = total_of(verdicts)
    figures = (
        Figure(name="records on the target", value=counts.records),
        Figure(name="in order", value=counts.proved, tone="good" if counts.proved else "quiet"),
        *(Figure(name=kind, value=getattr(counts, kind), tone="bad") for kind in FOUND if getattr(counts, kind)),
        *((Figure(name="keys compared", value=counts.keys),) if counts.keys else ()),
        Figure(name="partitions", value=len(verdicts)),
        Figure(name="took", value=round(seconds, 1), unit="s"),
    )
    unproved = Table.of(
        "what could not be compared",
        [(name, why) for name, why in UNPROVED if getattr(counts, name)],
        {"records": lambda each: getattr(counts, each[0]), "why": lambda each: each[1]},
    )
    partitions = Table.of(
        "by partition",
        sorted(verdicts, key=lambda each: (each.state != "failed", not found_of(each.counts))),
        {
            "partition": lambda each: each.lane,
            "records": lambda each: each.counts.records,
            "in order": lambda each: each.counts.proved,
            "keys": lambda each: each.counts.keys,
            "wrong": lambda each: found_of(each.counts),
            "not there yet": lambda each: each.counts.pending + each.counts.keys_pending,
            "": lambda each: each.error or "; ".join(each.notes),
        },
        tone=lambda each: "bad" if found_of(each.counts) or each.state == "failed" else "",
    )
    sections = (
        findings_section(verdicts, FOUND),
        ReportSection(heading="Not compared", tables=(unproved,)) if unproved.rows else None,
        ReportSection(heading="Partitions", tables=(partitions,)),
    )
    return Report(
        title=title,
        verdict=audit_sentence(verdicts),
        tone="good" if is_true_copy(verdicts) else "bad",
        figures=figures,
        sections=tuple(each for each in sections if each is not None),
        made_at=made_at,
    )
