"""A partition beside its copy, all of both, without a map: in memory that does not grow with them.

Records that are equal pass in step, one by one. Where the sides part, both are looked ahead of, further and further,
until a row of equal records shows where they meet again; what is left over before it is judged by
`mirrorless.verify.comparison`. Where they meet nowhere near, one of the two went on at another place:

    again    the copy repeats what it has: its replicator went on at an older position. A sample of the records that
             passed tells where; the source is read again from there, and what is below `high` stands twice
    skipped  one side has a row that the other lacks: both are read on, until one shows what the other has here
    nothing  neither: everything here has another content, and stands for what is in its place

A source that is read again is passed over as long as it is equal: a million records that stand twice are one finding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from mirrorless.jobs.copy_task import Chunk, OffsetRange
from mirrorless.records.record import Record
from mirrorless.verify.comparison import Alignment, LeftOver, RecordAt, align, pair_up
from mirrorless.verify.explanation import ONCE_MORE, Explanation, LeftOvers, judge_left_over
from mirrorless.verify.findings import Finding, FindingKind, LaneVerdict
from mirrorless.verify.walk import WalkedSide

WINDOWS: Final = (64, 1_024, 16_384)
"""Records of each side that are looked at, one after the other, until both meet."""

MEETING: Final = 8
"""Equal records in a row by which two places are taken for the same one."""

CONTENTS: Final = 4
"""Of these, that differ, where that is far away: few contents in any order meet everywhere."""

CANDIDATES: Final = 200_000
"""Pairs of equal contents in what is ahead that are tried at most, see `pair_up`."""

STRIDE: Final = 64
"""Every such record of the source is remembered."""

SAMPLES: Final = 100_000
"""That are remembered at most, at about 200 bytes each: then every second one of the older half is forgotten."""

PLACES: Final = 2
"""To which the source is read again in search of one row, at most."""

SCANS: Final = 3
"""Searches to the end of both logs that found nothing, until no other is begun."""

FLUSHED: Final = 1_000
"""Records without a partner whose contents are held at a time; beyond, hashes."""

KEPT: Final = 100_000
"""Records without a partner that are kept, at about 200 bytes each; beyond, these are judged among themselves."""

LATE: Final = "it stands behind records that follow it on the source"
SKIPPED: Final = "the source has them, and the target does not"
UNKNOWN: Final = "the source has no such record"
UNKNOWN_ROW: Final = "the source does not have them, at least not here"
TOO_MANY: Final = (
    "there are more records without a partner than can be kept: some that stand twice may count as foreign"
)

_offset = attrgetter("offset")


@dataclass(slots=True)
class LogReader:
    """The visible records of one side, in order, with a view ahead."""

    side: WalkedSide
    seen: Callable[[Record], Record]
    """A record as it is to be compared."""
    heard: Callable[[Chunk, int], None]
    """Called with all that is read, and the number of offsets that it covers."""
    covered: int = 0
    """Everything below is held or has passed."""
    end: int = 0
    """As far as it may be read now."""
    begins: int = 0
    """The log's first offset, as last seen: what stood below it may be gone from this side alone."""
    paired: int = 0
    """Behind the last record that has a partner."""
    held: list[Record] = field(default_factory=list)
    at: int = 0
    """Of `held`, those before it have passed."""
    _chunks: Generator[list[Record]] | None = None

    @property
    def position(self) -> int:
        """The offset of the next record, or below which there is none."""
        return self.held[self.at].offset if self.at < len(self.held) else self.covered

    def fill(self, count: int = 1) -> int:
        """Hold so many records, where the log has them; how many there are."""
        while len(self.held) - self.at < count:
            if self._chunks is None:
                if self.covered >= self.end:
                    break
                self._chunks = self._read()
            if (more := next(self._chunks, None)) is None:
                self._chunks = None
                continue
            del self.held[: self.at]
            self.at = 0
            self.held += more
        return len(self.held) - self.at

    def ahead(self, count: int) -> list[Record]:
        """The next records, as many as there are."""
        self.fill(count)
        return self.held[self.at : self.at + count]

    def drop(self, count: int) -> None:
        """Pass so many records."""
        self.fill(count)
        self.at += count

    def beyond(self, count: int) -> Generator[list[Record]]:
        """What follows so many records, and is not held: `seek` has to follow."""
        self.fill(count)
        yield self.held[self.at + count :]
        self._close()
        yield from self._read()

    def has_lost(self) -> bool:
        """Whether retention has taken records between the last one with a partner and the next."""
        return self.paired < self.begins <= self.position

    def seek(self, offset: int) -> None:
        """Go on at an offset."""
        self._close()
        self.held, self.at, self.covered = [], 0, offset

    def _close(self) -> None:
        if self._chunks is not None:
            self._chunks.close()  # the reader stays warm for the next
            self._chunks = None

    def _read(self) -> Generator[list[Record]]:
        while self.covered < self.end:
            for chunk in self.side.content(OffsetRange(self.covered, self.end), self.heard):
                self.covered, self.begins = chunk.covered, max(self.begins, self.side.start)
                yield [self.seen(each) for each in chunk.records]


class Ahead(NamedTuple):
    """The next records of one side, and their hashes."""

    records: list[Record]
    seen: list[RecordAt]

    @classmethod
    def of(cls, reader: LogReader, count: int) -> Ahead:
        """The next records, as many as there are."""
        records = reader.ahead(count)
        return cls(records, [RecordAt.of(each) for each in records])

    @property
    def contents(self) -> list[bytes]:
        """What they are compared by."""
        return [each.content for each in self.seen]

    def pairs(self, other: Ahead) -> list[tuple[int, int]]:
        """Indices of records that pair up with another side's, as many as possible, in order."""
        return pair_up(self.contents, other.contents, candidates=CANDIDATES)

    def first(self, count: int) -> Ahead:
        """So many of them."""
        return Ahead(self.records[:count], self.seen[:count])


@dataclass(slots=True)
class PassedSamples:
    """Some records of the source that have passed: of the last ones every `STRIDE`th, of older ones fewer."""

    _places: dict[bytes, int] = field(default_factory=dict)
    """The offset of each content."""
    _offsets: list[int] = field(default_factory=list)
    """Growing."""

    def add(self, some: Iterable[RecordAt]) -> None:
        """Remember these, which follow all others."""
        for each in some:
            self._places[each.content] = each.offset
            self._offsets.append(each.offset)
            if len(self._offsets) > SAMPLES:
                older = SAMPLES // 2
                self._offsets = self._offsets[:older:2] + self._offsets[older:]
                kept = set(self._offsets)
                self._places = {content: at for content, at in self._places.items() if at in kept}

    def join(self, other: PassedSamples) -> None:
        """Remember what others do, of records that follow."""
        self.add(RecordAt(offset, content) for content, offset in other._places.items())

    def places(self, contents: Iterable[bytes]) -> Iterator[tuple[int, int]]:
        """Where a row of these contents may stand: offsets from which to read, and so many more."""
        hits = dict.fromkeys(self._places[each] for each in contents if each in self._places)
        for hit in list(hits)[:PLACES]:
            before = self._offsets[max(0, bisect_left(self._offsets, hit) - 1)]
            yield before, hit - before  # the row may begin before the sample
            yield hit, 0


@dataclass(slots=True, kw_only=True)
class OneSidedRow:
    """A row that one side has and the other does not, where both go on behind it."""

    on_source: bool
    next: int = 0
    """The offset behind it."""
    records: int = 0
    samples: PassedSamples = field(default_factory=PassedSamples)
    """Of the source's."""
    seen: list[RecordAt] = field(default_factory=list)
    """All of the target's, up to `KEPT`."""

    def take(self, some: Sequence[RecordAt]) -> None:
        """Take the next records."""
        self.records += len(some)
        if self.on_source:
            self.samples.add(some[::STRIDE])
        else:
            self.seen += some[: KEPT - len(self.seen)]


@dataclass(slots=True)
class SkippedRow:
    """Records of the source that the copy has passed over, and that may come later."""

    first: int
    next: int
    records: int
    came: set[int] = field(default_factory=set)
    """Those that came."""


@dataclass(slots=True)
class SideBySide:
    """One partition of the source and its copy."""

    source: LogReader
    target: LogReader
    verdict: LaneVerdict
    due: int
    """Upstream: what stands below is to have a copy."""
    grows: Callable[[], bool]
    """Waits until the copy has grown; false where it is not to be waited for any longer."""
    high: int = 0
    """The source's records below have passed."""
    left: LeftOvers = field(default_factory=LeftOvers)
    pending: int = 0
    """The source's last records, without a copy yet; of many, offsets."""
    pending_from: int = -1
    """Upstream: the first of them."""
    _explanation: Explanation = field(init=False)
    _samples: PassedSamples = field(default_factory=PassedSamples)
    _absent: set[int] = field(default_factory=set)
    """Of the source, those of `left` that are missing so far."""
    _skipped: list[SkippedRow] = field(default_factory=list)
    _scans: int = 0

    def __post_init__(self) -> None:
        """Explain what is left over."""
        self._explanation = Explanation(self.verdict)

    def compare(self) -> None:
        """Compare everything, and leave what has no partner in `left`.

        Raises:
            Retriable: a cluster does not answer.
        """
        while True:
            self._in_step()
            if self.target.fill():
                self._part()
            elif not self._more_comes(self.source.position):
                break
        if self.source.position < self.high:  # it was read again to the copy's end
            self.source.seek(self.high)
        self._flush()
        while self.left.surplus and self.source.fill():  # more of the source may stand elsewhere
            self._settle_ends(Ahead.of(self.source, WINDOWS[-1]), Ahead([], []), ())
        few = self.source.fill(WINDOWS[-1]) < WINDOWS[-1]
        rest = range(self.source.position, self.due)
        self._wait_for([each.offset for each in self.source.ahead(WINDOWS[-1])] if few else rest)
        self._flush()
        self.left.missing = [each for each in self.left.missing if each.seen.offset in self._absent]

    def say_skipped(self) -> None:
        """Find the rows that the copy has passed over, and not made good for."""
        for row in self._skipped:
            if count := row.records - len(row.came):
                self.find("missing", SKIPPED, count, upstream=OffsetRange(row.first, row.next))

    # In step

    def _in_step(self) -> None:
        """Pass what is equal on both sides."""
        source, target = self.source, self.target
        while source.fill() and target.fill():
            count = 0
            for one, other in zip(source.held[source.at :], target.held[target.at :], strict=False):
                if (
                    one.value != other.value
                    or one.key != other.key
                    or one.timestamp != other.timestamp
                    or one.headers != other.headers
                ):
                    break
                count += 1
            if not count:
                return
            originals = source.held[source.at : source.at + count]
            new = bisect_left(originals, self.high, key=_offset)
            self._samples.add(map(RecordAt.of, originals[new::STRIDE]))
            self._pass(originals, target.held[target.at : target.at + count])
            source.drop(count)
            target.drop(count)

    def _pass(self, originals: Sequence[Record | RecordAt], copies: Sequence[Record | RecordAt]) -> None:
        """Count pairs: those below `high` had passed before."""
        again = bisect_left(originals, self.high, key=_offset)
        pairs = list(zip(originals[:again], copies[:again], strict=True))
        for late, group in groupby(pairs, key=lambda pair: self.was_missing(pair[0].offset)):
            row = list(group)
            rows = (OffsetRange(first.offset, last.offset + 1) for first, last in zip(row[0], row[-1], strict=True))
            kind: FindingKind = "reordered" if late else "duplicated"
            self.find(kind, LATE if late else ONCE_MORE, len(row), upstream=next(rows), downstream=next(rows))
        if originals[again:]:
            self.verdict.counts.proved += len(originals) - again
            self.high = self.source.paired = originals[-1].offset + 1
            self.target.paired = copies[-1].offset + 1
        self.verdict.counts.records += len(copies)

    def was_missing(self, offset: int) -> bool:
        """Whether a record of the source had no copy until now; it has one from now on."""
        if offset in self._absent:
            self._absent.discard(offset)
            return True
        row = next((row for row in self._skipped if row.first <= offset < row.next), None)
        if row is None or offset in row.came:
            return False
        row.came.add(offset)
        return True

    def find(
        self,
        kind: FindingKind,
        what: str,
        records: int,
        *,
        upstream: OffsetRange | None = None,
        downstream: OffsetRange | None = None,
    ) -> None:
        """Count a finding; see `Finding`."""
        self.verdict.find(
            Finding(kind=kind, generation=0, upstream=upstream, downstream=downstream, records=records, what=what)
        )

    # Where both part

    def _part(self) -> None:
        """Find where both meet again, and settle what stands before that."""
        pairs, ours, theirs = list[tuple[int, int]](), Ahead([], []), Ahead([], [])
        for size in WINDOWS:
            ours, theirs = Ahead.of(self.source, size), Ahead.of(self.target, size)
            pairs = ours.pairs(theirs)
            if (met := _meeting(ours, theirs, pairs)) is not None:
                self._settle(ours.first(met[0]), theirs.first(met[1]))
                return
            if self._goes_on_before(theirs):
                return
            if len(ours.seen) < size and len(theirs.seen) < size:
                behind = pairs[-1][0] + 1 if pairs else 0
                if behind == len(ours.seen) or not self._more_comes(ours.seen[behind].offset):
                    self._settle_ends(ours, theirs, pairs)
                return
        if pairs and 2 * len(pairs) >= min(len(ours.seen), len(theirs.seen)):
            self._settle(ours.first(pairs[-1][0] + 1), theirs.first(pairs[-1][1] + 1))
        elif self.source.position < self.high:  # it was read again, and that is over
            self.source.seek(self.high)
        elif self._scans >= SCANS or not self._goes_on_behind(ours, theirs):
            self._settle(ours.first(len(theirs.seen)), theirs)

    def _settle(self, ours: Ahead, theirs: Ahead) -> None:
        """Pass some records of both sides, and keep those without a partner."""
        place, high = self._explanation.places, self.high
        found = align(ours.seen, theirs.seen, first_place=place, candidates=CANDIDATES)
        missing = [each for each in found.missing if each.seen.offset >= high]
        surplus = list(found.surplus)
        self.verdict.counts.records += len(surplus)
        self.source.drop(len(ours.seen))
        self.target.drop(len(theirs.seen))
        # Before the first record that both have, one side's log may begin later.
        if self.target.has_lost():
            self.verdict.counts.expired += sum(each.place == place for each in missing)
            missing = [each for each in missing if each.place != place]
        if self.source.has_lost():
            self.verdict.counts.source_gone += sum(each.place == place for each in surplus)
            surplus = [each for each in surplus if each.place != place]
        if found.pairs:
            originals, copies = zip(*found.pairs, strict=True)
            self._pass(originals, copies)
        if ours.seen:
            self.high = max(self.high, ours.seen[-1].offset + 1)
        self._absent.update(each.seen.offset for each in missing)
        kept = Alignment(pairs=found.pairs, missing=missing, surplus=surplus)
        self._explanation.keep(kept, ours.records, theirs.records)
        if len(self._explanation) >= FLUSHED:
            self._flush()

    def _settle_ends(self, ours: Ahead, theirs: Ahead, pairs: Sequence[tuple[int, int]]) -> None:
        """Settle the last records.

        Those of the source may be on their way, unless they stand elsewhere, or others in their place.
        """
        one, other = pairs[-1] if pairs else (-1, -1)
        self._flush()
        strange = {each.seen.content for each in self.left.surplus} | set(theirs.contents)
        apart = [each for each in ours.seen[one + 1 :] if each.content not in strange and each.offset >= self.high]
        behind = apart[len(theirs.seen) - other - 1 :]
        away = set(behind)
        kept = [(record, seen) for record, seen in zip(*ours, strict=True) if seen not in away]
        self._settle(Ahead([record for record, _ in kept], [seen for _, seen in kept]), theirs)
        self.source.drop(len(behind))
        self._wait_for([each.offset for each in behind])

    def _more_comes(self, upstream: int) -> bool:
        """Whether the copy of what stands there was waited for, and has grown."""
        return max(upstream, self.high) < self.due and self.grows()

    def _wait_for(self, offsets: Sequence[int]) -> None:
        """Count records whose copies are on their way."""
        due = bisect_left(offsets, self.due)
        if due and not self.pending:
            self.pending_from = offsets[0]
        self.pending += due

    def _flush(self) -> None:
        """Keep hashes instead of records."""
        self.left.add(self._explanation.left_over())
        if len(self.left) > KEPT:
            self.left.missing = [each for each in self.left.missing if each.seen.offset in self._absent]
            before = self.verdict.counts.foreign
            judge_left_over(self.verdict, self.left, {})
            self.left, self._absent = LeftOvers(), set()
            if self.verdict.counts.foreign > before:
                self.verdict.note(TOO_MANY)
                self.verdict.unsorted = True

    def _goes_on_before(self, theirs: Ahead) -> bool:
        """Whether the copy goes on with what had passed, or behind all of that again; the source is there then."""
        contents = theirs.contents
        places = list(self._samples.places(contents)) if len(set(contents)) >= CONTENTS else []
        if self.source.position < self.high:
            places.append((self.high, STRIDE))
        return any(self._meets_at(offset, reach, theirs) for offset, reach in places)

    def _meets_at(self, offset: int, reach: int, theirs: Ahead) -> bool:
        """Whether the source goes on there as the copy does here; if so, both are where they meet."""
        back = self.source.position
        self.source.seek(offset)
        ours = Ahead.of(self.source, min(len(theirs.records) + reach, WINDOWS[-1]))
        met = _meeting(ours, theirs, ours.pairs(theirs), contents=CONTENTS)
        if met is None:
            self.source.seek(back)
            return False
        self._settle(ours.first(met[0]), theirs.first(met[1]))
        return True

    def _goes_on_behind(self, ours: Ahead, theirs: Ahead) -> bool:
        """Whether one side goes on far ahead of the other; both are where they meet then."""
        upstream, downstream = self.source.position, self.target.position
        row = self._row_between(ours, theirs)
        self.source.seek(upstream)
        self.target.seek(downstream)
        if row is not None:
            (self.source if row.on_source else self.target).seek(row.next)
            ours, theirs = (Ahead.of(side, WINDOWS[-1]) for side in (self.source, self.target))
            if _meeting(ours, theirs, ours.pairs(theirs), contents=CONTENTS) is not None:
                if row.on_source:
                    self._skip_source(OffsetRange(upstream, row.next), row)
                else:
                    self._skip_target(OffsetRange(downstream, row.next), row)
                return True
            self.source.seek(upstream)
            self.target.seek(downstream)
        self._scans += 1
        return False

    def _row_between(self, ours: Ahead, theirs: Ahead) -> OneSidedRow | None:
        """Read both sides on by turns, until one has what stands ahead on the other; None where both have ended."""
        with ExitStack() as stack:
            reads: list[tuple[Generator[list[Record]], set[bytes], OneSidedRow]] = []
            for reader, ahead, other in ((self.source, ours, theirs), (self.target, theirs, ours)):
                # Both may meet at the end of what is ahead: too few records there are no meeting.
                apart = ahead.first(max(0, len(ahead.seen) - MEETING + 1))
                row = OneSidedRow(on_source=reader is self.source)
                row.take(apart.seen)
                beyond = stack.enter_context(closing(reader.beyond(len(apart.seen))))
                reads.append((beyond, set(other.contents), row))
            while reads:
                for read in list(reads):
                    coming, wanted, row = read
                    if (records := next(coming, None)) is None:
                        reads.remove(read)
                        continue
                    seen = [RecordAt.of(each) for each in records]
                    hit = next((number for number, each in enumerate(seen) if each.content in wanted), None)
                    row.take(seen[:hit])
                    if hit is not None:
                        row.next = seen[hit].offset
                        return row
        return None

    def _skip_source(self, place: OffsetRange, row: OneSidedRow) -> None:
        """The copy has passed over these; a part of them may come later."""
        if self.target.has_lost():
            self.verdict.counts.expired += row.records
        else:
            self._skipped.append(SkippedRow(place.first, place.next, row.records))
            self._samples.join(row.samples)
        self.high = place.next

    def _skip_target(self, place: OffsetRange, row: OneSidedRow) -> None:
        """The source has none of these here."""
        self.verdict.counts.records += row.records
        if self.source.has_lost():
            self.verdict.counts.source_gone += row.records
        elif len(row.seen) < row.records:
            self.find("foreign", UNKNOWN_ROW, row.records, downstream=place)
        else:
            self._flush()
            self.left.add(LeftOvers(surplus=[LeftOver(0, each) for each in row.seen]))


def _meeting(
    ours: Ahead, theirs: Ahead, pairs: Sequence[tuple[int, int]], *, contents: int = 1
) -> tuple[int, int] | None:
    """The first of so many pairs in a row that they are no coincidence; of fewer, where a side ends.

    Args:
        ours: the source's.
        theirs: the target's.
        pairs: of both, see `Ahead.pairs`.
        contents: that differ, in the row.
    """
    least = min(MEETING, len(ours.seen), len(theirs.seen))
    row = 0
    for number, (one, other) in enumerate(pairs):
        row = row + 1 if number and pairs[number - 1] == (one - 1, other - 1) else 1
        first = one - least + 1
        if row >= least and len({each.content for each in ours.seen[first : one + 1]}) >= min(contents, least):
            return first, other - least + 1
    return None
