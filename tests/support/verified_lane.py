"""A replicated lane in memory, whose copy can be changed after the chain was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec
from msgspec.json import decode, encode
from msgspec.structs import replace as replaced

from mirrorless.chain.run import Reset, Run, spans_of
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, RecordsGone, Retriable
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, Chunk, OffsetRange
from mirrorless.jobs.request import Bound
from mirrorless.protocol.digest import Columns, fingerprint
from mirrorless.records.origin import rows_of
from mirrorless.records.record import Record
from mirrorless.records.record_batch import Codec, RecordBatch, batch_digest
from mirrorless.transforms.avro_fields import SchemaId, WriterSchemas, long_bytes
from mirrorless.transforms.rules import KeyRing, KeySettings, Rule, RuleInForce
from mirrorless.transforms.transform import TopicTransform, TransformFailed, make_ready
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.lane import LaneVerification
from mirrorless.verify.parts import JoinedLane, LanePart, LaneSection, OpenPortion, Search, VerifyTask, portions_of
from mirrorless.verify.source_copies import RuleById
from tests.support.batches import batch_of
from tests.support.chains import LANE, MemoryChains, MemoryLossLedger
from tests.support.flows import make_flow


def numbered(number: int) -> Record:
    """A record that is like no other."""
    return Record(offset=-1, timestamp=1_000 + number, headers=[("n", b"%d" % number)], key=b"k", value=b"%d" % number)


def ruled(
    *, material: bytes = b"m", version: int = 1, schemas: WriterSchemas | None = None, **entry: Any
) -> TopicTransform:
    """A rule of the lane's topic.

    Args:
        material: of its key `pii`.
        version: likewise.
        schemas: of Avro.
        entry: of `transforms`.
    """
    in_force = RuleInForce.of(
        msgspec.convert({"topics": [LANE.topic]} | entry, Rule), {"pii": KeySettings(version=version)}
    )
    return make_ready(in_force, {"pii": KeyRing(version, {version: material * 32})}, LANE.topic, schemas)


class OneSchema(msgspec.Struct, frozen=True):
    """Implements `WriterSchemas`: a record of strings, but for some fields."""

    names: tuple[str, ...]
    others: dict[str, str] = {}

    def definitions(self, schema_id: SchemaId) -> tuple[str, ...]:
        """See `WriterSchemas.definitions`."""
        fields = [{"name": each, "type": self.others.get(each, "string")} for each in self.names]
        return (encode({"type": "record", "name": "Customer", "fields": fields}).decode(),)

    def written(self, *contents: bytes | int) -> bytes:
        """A record of strings, bytes and numbers."""
        parts = (long_bytes(each) if isinstance(each, int) else long_bytes(len(each)) + each for each in contents)
        return b"\0\0\0\0\7" + b"".join(parts)


NO_RULES: RuleById = dict[bytes, TopicTransform]().__getitem__

SETTINGS = make_flow(LANE.flow, source="source:9092", target="target:9092")

LOG_APPEND_TIME = 8
"""The attribute of a batch whose records all have the header's time."""

Log = dict[int, Record]
"""Visible records by offset, growing."""


@dataclass(slots=True)
class MemoryLog:
    """Implements `LaneLog` on one partition."""

    records: Log = field(default_factory=dict)
    start: int = 0
    next: int = 0
    chunk: int = 3
    hidden: int = 0
    """How many offsets behind the stable end an open transaction holds."""
    silent: bool = False
    asked: int = 0
    reads: int = 0
    batches: dict[int, tuple[RecordBatch, list[Record]]] = field(default_factory=dict)
    """Batches as they were written, by first offset, and their records. Where those changed since, so did the batch."""

    def add(self, record: Record) -> int:
        """Append a record; its offset."""
        offset = self.next
        self.records[offset] = _at(record, offset)
        self.next += 1
        return offset

    def mark(self) -> None:
        """Append a transaction's marker."""
        self.next += 1

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        self.asked += 1
        if self.silent:
            raise Retriable("the cluster does not answer")
        return OffsetRange(self.start, self.next)

    def end(self, topic: str, partition: int, deadline: Deadline) -> int:
        """See `TargetLog.end`."""
        return self.next + self.hidden

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        self.reads += 1
        at = wanted.first
        while at < wanted.next:
            if at < self.start:
                raise RecordsGone("the log begins above")
            covered = min(at + self.chunk, wanted.next)
            yield Chunk([self.records[offset] for offset in range(at, covered) if offset in self.records], covered)
            at = covered


@dataclass(slots=True)
class MemoryBatchLog:
    """Implements `BatchLog` on the same partition."""

    log: MemoryLog
    reads: int = 0

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """See `BatchLog.read`."""
        self.reads += 1
        at = wanted.first
        for chunk in self.log.read(topic, partition, wanted, deadline):
            seen = [each for each in self._batches() if at < each.next and each.base_offset < chunk.covered]
            covered = max([chunk.covered, *(each.next for each in seen)])
            if chunk.covered > at:
                yield BatchChunk([BatchAt(max(at, each.base_offset), each) for each in seen], covered)
                at = covered

    def _batches(self) -> Iterator[RecordBatch]:
        left = dict(self.log.records)
        whole = {}
        for first, (batch, records) in self.log.batches.items():
            there = [left[at] for at in range(first, first + len(records)) if at in left]
            if there == records:
                whole[first] = replaced(batch, base_offset=first)
                for each in records:
                    del left[each.offset]
        whole |= {offset: batch_of([record]) for offset, record in left.items()}
        return iter(whole[first] for first in sorted(whole))


@dataclass(slots=True)
class VerifiedLane:
    """Both logs, the chain between them, and the verification of all that."""

    source: MemoryLog = field(default_factory=MemoryLog)
    target: MemoryLog = field(default_factory=MemoryLog)
    chains: MemoryChains = field(default_factory=MemoryChains)
    ledger: MemoryLossLedger = field(default_factory=MemoryLossLedger)
    rules: dict[bytes, TopicTransform] = field(default_factory=dict)
    """Those that verification knows: by which runs were copied."""
    target_batches: MemoryBatchLog | None = field(init=False)
    source_batches: MemoryBatchLog | None = field(init=False)

    def __post_init__(self) -> None:
        """Read the same logs by batches."""
        self.target_batches, self.source_batches = MemoryBatchLog(self.target), MemoryBatchLog(self.source)

    def write(self, *records: Record) -> list[Record]:
        """Write records to the source in one transaction."""
        offsets = [self.source.add(each) for each in records]
        self.source.mark()
        return [self.source.records[offset] for offset in offsets]

    def replicate(
        self,
        records: Sequence[Record],
        *,
        state: str = "committed",
        visible: bool = True,
        batch: int = 0,
        passed: bool = True,
        codec: Codec = "lz4",
        rule: TopicTransform | None = None,
        by: TopicTransform | None = None,
    ) -> Run:
        """Replicate a batch as the forwarder does: one transaction, one run.

        Args:
            records: of the source.
            state: of the run.
            visible: whether the transaction was committed.
            batch: records of a whole batch, at most, as a pull copies them; 0: by records.
            passed: whether the source's log has the same batches.
            codec: of the batches.
            rule: that the run names.
            by: the one that really changes the records, if it is another one.
        """
        head, following = self.chains.heads([LANE])[LANE], records[-1].offset + 1
        filtered: list[int] = []
        quarantined: list[int] = []
        if rule is not None:
            self.rules[rule.id] = rule
            records, filtered, quarantined = _changed(records, by or rule)
        downstream = [self.target.add(each) for each in records]
        batches = self._in_batches(records, downstream, batch, passed=passed, codec=codec) if batch else []
        payload = sum(len(each.payload) for each in batches)
        if not visible:
            for offset in downstream:
                del self.target.records[offset]
        self.target.mark()
        columns = Columns.of(records)
        run = Run(
            lane=LANE,
            generation=head.generation,
            position=head.position,
            next=following,
            spans=spans_of([each.offset for each in records], downstream),
            state="prepared" if state == "prepared" else "committed",
            writer="writer",
            attempt=f"{head.generation}-{head.position}",
            fingerprint=fingerprint(records[-1]) if records else b"",
            digest=batch_digest(batches) if batches else columns.digest() if records else b"",
            rule=b"" if rule is None else rule.id,
            filtered=rows_of(filtered),
            quarantined=tuple(quarantined),
            oldest_timestamp=min([each.base_timestamp for each in batches] or columns.timestamps, default=-1),
            newest_timestamp=max(columns.timestamps, default=-1),
            records=len(records),
            bytes=payload or columns.bytes(),
            digest_of="batches" if batches else "records",
            passed_bytes=payload if passed else 0,
        )
        self.chains.prepare([run])
        return run

    def _in_batches(
        self, records: Sequence[Record], downstream: Sequence[int], most: int, *, passed: bool, codec: Codec
    ) -> list[RecordBatch]:
        found, at = [], 0
        while at < len(records):
            some = list(records[at : at + most])
            some = [each for i, each in enumerate(some) if each.offset == some[0].offset + i]
            batch = batch_of(some, codec)
            if passed:
                self.source.batches[some[0].offset] = batch, some
            copies = [self.target.records.get(offset, some[0]) for offset in downstream[at : at + len(some)]]
            self.target.batches[downstream[at]] = batch, copies
            found.append(batch)
            at += len(some)
        return found

    @classmethod
    def copied(cls, records: int = 12, *, runs: int = 4, **how: Any) -> Self:
        """A lane of so many records in runs of so many. Args: how: see `replicate`."""
        lane = cls()
        for first in range(0, records, runs):
            lane.replicate(lane.write(*map(numbered, range(first, min(first + runs, records)))), **how)
        return lane

    def copy(self, records: Sequence[Record], *, batch: int) -> None:
        """Write and replicate records in batches."""
        for first in range(0, len(records), batch):
            self.replicate(self.write(*records[first : first + batch]))

    def reset(self, to: int) -> None:
        """Close the chain."""
        head = self.chains.heads([LANE])[LANE]
        self.chains.reset(
            Reset(
                lane=LANE,
                generation=head.generation,
                position=head.position,
                to_generation=head.generation + 1,
                next=to,
                reason="re-created",
                at=0,
            )
        )

    def verification(
        self,
        *,
        against_source: bool = False,
        start: Bound = Bound("earliest"),  # noqa: B008  frozen
        end: Bound = Bound("latest"),  # noqa: B008  frozen
        delivery: str = "exactly_once",
        target_compacts: bool = False,
        source_compacts: bool = False,
        source_silent: str = "",
    ) -> LaneVerification:
        """The verification of this lane, not begun."""
        settings = replaced(
            SETTINGS,
            delivery="at_least_once" if delivery == "at_least_once" else "exactly_once",
            transforms=tuple(each.in_force.rule for each in self.rules.values()),
        )
        return LaneVerification(
            task=VerifyTask(
                settings=settings,
                topic=LANE.topic,
                partition=LANE.partition,
                run_id="verify-1",
                start=start,
                end=end,
                against_source=against_source,
                target_compacts=target_compacts,
                source_compacts=source_compacts,
                source_silent=source_silent,
            ),
            chains=self.chains,
            ledger=self.ledger,
            target=self.target,
            source=self.source,
            note=lambda *_, **__: None,
            rules=self._rule,
            target_batches=self.target_batches,
            source_batches=self.source_batches,
            pause=lambda _: None,
        )

    def _rule(self, rule: bytes) -> TopicTransform:
        if rule not in self.rules:
            raise ConfigurationError("its document is gone")
        return self.rules[rule]

    def verify(self, **options: Any) -> LaneVerdict:
        """Run the verification of this lane, whole. Args: options: of `verification`."""
        return self.verification(**options).verify()

    def verify_in_parts(
        self, merged: Callable[[], bool], *, most: int = 1, stored: bool = True, **options: Any
    ) -> tuple[LaneVerdict, int]:
        """Run the verification of this lane part by part, each by its own stand-in of a worker.

        Args:
            merged: whether a section and the next are to be one.
            most: bytes of a section before that, and of a portion.
            stored: whether every part passes through its JSON.
            options: of `verification`.

        Returns:
            the verdict, and the number of sections.
        """
        survey = self.verification(**options).survey(most=most)
        sections: list[LaneSection] = []
        for each in survey.sections:
            if sections and merged():
                sections[-1] = replaced(sections[-1], upto=each.upto, end=each.end, position=each.position)
            else:
                sections.append(each)
        survey = replaced(survey, sections=tuple(sections))

        def done(part: LaneSection | OpenPortion | Search) -> LanePart:
            found = self.verification(**options).do(survey, part)
            return decode(encode(found), type=LanePart) if stored else found

        lane, parts = JoinedLane(self.verification(**options).task, survey), [done(each) for each in sections]
        parts += [done(each) for each in portions_of(parts, most=most)]
        for part in parts:
            lane.add(part)
        known: dict[bytes, int] = {}
        for search in lane.searches():
            for content, offset in done(search).known:
                known.setdefault(content, offset)
        return lane.end(known), len(sections)

    # Faults

    def drop(self, downstream: int) -> None:
        """No reader sees this record any more."""
        del self.target.records[downstream]

    def change(self, downstream: int, record: Record) -> None:
        """Another record stands here."""
        self.target.records[downstream] = _at(record, downstream)

    def stamp(self, time: int, since: int = 0) -> None:
        """The target's broker puts its own time on the batches from an offset on: into their headers only."""
        for at, (batch, of) in self.target.batches.items():
            if at >= since:
                stamped = replaced(batch, attributes=batch.attributes | LOG_APPEND_TIME, max_timestamp=time)
                records = [replaced(each, timestamp=time) for each in of]
                self.target.records |= {each.offset: each for each in records}
                self.target.batches[at] = stamped, records

    def insert(self, downstream: int, record: Record) -> None:
        """Put a record of no run before this offset: everything that follows was written behind it."""
        self.target.records = dict(
            sorted(
                [(at, each) for at, each in self.target.records.items() if at < downstream]
                + [(downstream, _at(record, downstream))]
                + [(at + 1, _at(each, at + 1)) for at, each in self.target.records.items() if at >= downstream]
            )
        )
        self.target.next += 1
        self.target.batches = {
            at + (at >= downstream): (batch, [_at(each, each.offset + 1) for each in of] if at >= downstream else of)
            for at, (batch, of) in self.target.batches.items()
        }
        for link in self.chains.of(LANE):
            if isinstance(link, Run):
                self.chains.replace_link(link, _shifted(link, downstream))


def _changed(records: Sequence[Record], rule: TopicTransform) -> tuple[list[Record], list[int], list[int]]:
    """The copies; the offsets of what a rule leaves out, and of what it cannot be applied to."""
    copies: list[Record] = []
    filtered: list[int] = []
    failed: list[int] = []
    for each in records:
        try:
            copy = rule.apply(each, LANE.partition)
        except TransformFailed:
            failed.append(each.offset)
            continue
        if copy is None:
            filtered.append(each.offset)
        else:
            copies.append(copy)
    return copies, filtered, failed


def _shifted(run: Run, downstream: int) -> Run:
    pairs = [
        (span.upstream + i, span.downstream + i + (span.downstream + i >= downstream))
        for span in run.spans
        for i in range(span.length)
    ]
    return replace(run, spans=spans_of([up for up, _ in pairs], [down for _, down in pairs]))


def _at(record: Record, offset: int) -> Record:
    return replaced(record, offset=offset)
