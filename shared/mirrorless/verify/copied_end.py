"""The end of what another replicator has copied of a partition: the upstream offset behind the last record copied.

A replicator writes records first, and how far it has come later. So what it says is the least; the logs show the rest:

    source         38  39  40  41 | 42  43  44  45        it says 41, and goes on with 42
    target    ...  38  39  40  41   42  43  42            killed behind 43, started again, killed again
                                             ^^           so the place is 44, and one record is a duplicate

The tail of the target is walked through with the source's records beside it, by all that they are. A step to the next
record is the usual one; a step back is where the replicator began again; what has no partner was removed from the
source, or is somebody else's. Where equal records leave a choice, all are followed: a place that depends on it is none.

A life that was cut off while it copied again leaves keys at values which are not their last: if 42 and 43 are of one
key, a reader of the target ends with 42. From the first such record on, all is to be copied once more: the place is 43.

Pure. Windows of both logs come in; a place comes out, or why there is none, or that more must be read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from mirrorless.chain.run import Span, spans_of

LOOK: Final = 1_000
"""Records of the target's tail that are compared at least: one that begins again goes back behind what it says."""

AHEAD: Final = 100
"""Records of the source behind the place that must not be on the target: a replicator leaves out few in a row."""

ALIKE: Final = 200
"""Records of the source's window that are one like the other, at most: each is tried."""

WIDER: Final = 8
FURTHEST: Final = 1_000_000
"""A reach grows by so much, as long as it is below so many offsets."""

Needs = Literal["", "source", "target"]


class KeyedRecord(NamedTuple):
    """A record's offset, and hashes of all that it is and of its key; None without a key."""

    offset: int
    content: bytes
    key: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """Some records of a log in a row, and its bounds as they were before it was read."""

    records: Sequence[KeyedRecord]
    first: int
    """All records at or above this offset are there, up to `next`."""
    next: int
    start: int
    end: int

    @property
    def from_start(self) -> bool:
        """Whether nothing stands before it."""
        return self.first <= self.start

    @property
    def to_end(self) -> bool:
        """Whether nothing stands behind it."""
        return self.next >= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTwice:
    """Records in a row that stand on the target once more: half-open ranges of the same length, or nearly."""

    upstream: tuple[int, int]
    downstream: tuple[int, int]
    """Of the later copies."""
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedEnd:
    """What the windows show."""

    place: int | None = None
    """The upstream offset with which to go on: behind the last record that is on the target, but for keys that went
    back."""
    why: str = ""
    """Why there is no place, or by what it is known."""
    needs: Needs = ""
    """The log of which more must be read; empty where this is the answer."""
    twice: tuple[CopiedTwice, ...] = ()
    """In the window."""
    strangers: int = 0
    """Records of the target, behind the first that is on the source, that the source does not have."""
    earlier: int | None = None
    """Where there is no place, as the target lacks what was copied, or keys went back: from here on nothing is lost."""
    tail: tuple[Span, ...] = ()
    """Records that stand on both sides, and not more than once in what was read of the source: the first copies."""

    @property
    def duplicates(self) -> int:
        """The number of records that stand there once more."""
        return sum(each.records for each in self.twice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far to read around what the replicator says, and back from the end of the target: in offsets."""

    back: int = 500
    ahead: int = 500
    tail: int = LOOK + 200

    def wider(self, needs: Needs) -> Reach | None:
        """The next one; None where that is not needed, or would be no tail any more."""
        if not needs or max(self.ahead, self.tail) > FURTHEST:
            return None
        if needs == "target":
            return replace(self, tail=self.tail * WIDER)
        return replace(self, back=self.back * WIDER, ahead=self.ahead * WIDER)

    def of_source(self, said: int | None, start: int, end: int) -> tuple[int, int]:
        """The range of the source to read. Args: said: see `copied_end`. start, end: of its log."""
        least = start - 1 if said is None else said
        return max(start, least + 1 - self.back), max(start, min(end, least + 1 + self.ahead))

    def of_target(self, start: int, end: int) -> tuple[int, int]:
        """The range of the target to read. Args: start, end: of its log."""
        return max(start, end - self.tail), end


def copied_end(
    source: LogWindow, target: LogWindow, said: int | None, *, source_compacts: bool = False, copied: int = 0
) -> CopiedEnd:
    """Find the place.

    Args:
        source: a window around what the replicator says, as readers see it that wait for no commit.
        target: the tail of the remote partition.
        said: the last upstream offset that the replicator says to have copied; None: it has said nothing yet.
        source_compacts: whether the source removes older values, also of those that were copied last.
        copied: the upstream offset below which the flow has copied all itself, before it gave the lane back.
    """
    found = _copied_end(source, target, said, source_compacts=source_compacts)
    shown = found.earlier if found.place is None else found.place
    if shown is None or shown >= copied:
        return found
    # Markers are no records: a position may lie behind them, and the place does not.
    if copied > source.next or any(shown <= each.offset < copied for each in source.records):
        why = f"the flow itself had copied all below {copied}, and the logs show {shown}, before that: {found.why}"
        return replace(found, place=None, earlier=shown, why=why)
    return replace(found, place=copied, earlier=None)


def _copied_end(source: LogWindow, target: LogWindow, said: int | None, *, source_compacts: bool) -> CopiedEnd:
    least = source.start - 1 if said is None else said
    if least >= source.end:
        return CopiedEnd(why=f"it says to have copied up to {said}, and the source ends at {source.end}")
    # Markers alone may stand there, of transactions that were aborted; or compaction has removed all that it says.
    bare = said is None and not target.records and target.start == 0 and target.from_start
    if target.end == 0 or bare:
        never = "the remote partition never had a record"
        return (
            CopiedEnd(place=source.start, why=never) if said is None else CopiedEnd(why=f"{never}, and it says {said}")
        )
    compared = _compared(source, target, least, source_compacts=source_compacts)
    if compared.place is not None:
        return compared
    all_copied = source.to_end and not any(each.offset > least for each in source.records)
    # It says so of records that were acknowledged, and there are no others.
    return CopiedEnd(place=least + 1, why="the source has no record behind what it says") if all_copied else compared


def _compared(source: LogWindow, target: LogWindow, least: int, *, source_compacts: bool) -> CopiedEnd:
    if not target.records:
        return _more("target", target.from_start, "the target has no record of it any more")
    walked = _Walk(source.records, target.records, least).go()
    if walked.undecided:
        return CopiedEnd(why=f"more than {ALIKE} records of the source are one like the other")
    walk = walked.partners
    matched = [at for at, number in enumerate(walk) if number is not None]
    if not matched:
        return _nowhere(source, target, least, source_compacts=source_compacts)
    low, high = max(walked.low, sum(1 for each in source.records if each.offset <= least) - 1), walked.high
    last = source.records[high].offset
    if low < high:
        first = source.records[low].offset
        why = f"the last record of the target stands at {first} on the source or at {last}: there are others like it"
        return _more("target", target.from_start, why)
    if matched[-1] < len(walk) - 1 and not (source_compacts and source.to_end):
        ends = target.records[matched[-1]].offset
        why = f"what stands on the target behind {ends} is not on the source: others write to it, or it was changed"
        return _more("source", source.to_end, why)
    lowest = source.records[min(number for number in walk if number is not None)].offset
    again = _first_again(source.records, target.records, walk, high)
    why = f"the last record of the target stands at {last} on the source"
    begins = last + 1 if again is None else again
    return _unread(
        source, target, least, lowest=lowest, high=high, begins=begins, preceded=matched[0] > 0
    ) or CopiedEnd(
        place=max(begins, least + 1) if again is None else begins,
        why=why if again is None else f"{why}, and keys went back behind it, from {again} on",
        twice=_twice(source.records, target.records, walk),
        strangers=sum(1 for number in walk[matched[0] :] if number is None),
        tail=_tail(source, target.records, walk),
    )


def _unread(
    source: LogWindow, target: LogWindow, least: int, *, lowest: int, high: int, begins: int, preceded: bool
) -> CopiedEnd | None:
    """What is still to be read, or shows that the place is none.

    Args:
        source: its window.
        target: its tail.
        least: see `copied_end`.
        lowest: the upstream offset of the walk's lowest record.
        high: the number of its furthest one.
        begins: the upstream offset of the first record that the target lacks, or whose key went back.
        preceded: whether records of the target stand before the first that has a partner.
    """
    last = source.records[high].offset
    below = [each.offset for each in source.records if each.offset <= least]
    if below and last < below[-1]:
        why = f"it says to have copied up to {least}, and the last record of the target stands at {last}"
        return CopiedEnd(earlier=begins, why=why) if source.to_end else CopiedEnd(needs="source", why=why)
    if below and lowest > least:
        return _more("target", target.from_start, f"the tail of the target does not reach back to {least}")
    if not below and preceded and not source.to_end:
        return CopiedEnd(needs="source", why="an earlier end of the replicator may stand further on")
    over = sum(1 for each in source.records if least < each.offset <= last)
    if not target.from_start and len(target.records) < LOOK + 2 * over:
        return CopiedEnd(needs="target", why="an earlier end of the replicator may stand further back")
    if not source.to_end and len(source.records) - 1 - high < AHEAD:
        return CopiedEnd(needs="source", why="the last record of the target stands at the end of what was read")
    return None


def _more(needs: Needs, read: object, why: str) -> CopiedEnd:
    """What more of a log may show. Args: read: whether all of it was read."""
    return CopiedEnd(needs="" if read else needs, why=why)


def _nowhere(source: LogWindow, target: LogWindow, least: int, *, source_compacts: bool) -> CopiedEnd:
    """Without any record on both sides.

    A compacted source may have removed all that was copied, each by a later value of its key. Then it has nothing up to
    what the replicator says, and all that it has is to be copied. What it has below that would stand on the target.
    """
    gone = source_compacts and least >= source.start and all(each.offset > least for each in source.records)
    if gone and source.from_start and source.to_end:
        why = (
            "the source, which is compacted, has removed all that the target has, and what it has is not on the target"
        )
        return CopiedEnd(place=least + 1, why=why) if target.from_start else CopiedEnd(needs="target", why=why)
    count = len(target.records)
    why = f"none of the last {count} records of the target is on the source from {source.first} to {source.next - 1}"
    why += ": it changes records, or others write to the remote topic, or the source has removed them"
    return _more("source", source.to_end and source.from_start, why)


@dataclass(slots=True)
class _Walk:
    """The walk through the target's records: all the ways that it may have gone are followed.

    A way is at one record of the source, and has been as far as some record. The next record of the target is the next
    of the source, or one with which a new life of the replicator begins: none further on than behind what it said. Only
    where no way goes on, records of the source were left out.
    """

    source: Sequence[KeyedRecord]
    target: Sequence[KeyedRecord]
    least: int
    partners: list[int | None] = field(default_factory=list)
    """For each record of the target, the number of its partner in the source's window."""
    low: int = -1
    high: int = -1
    """The furthest record of all, of the way that has not been as far as others, and of the one that has been furthest;
    -1 where there is none."""
    undecided: bool = False
    """Whether there are too many ways."""

    def go(self) -> _Walk:
        """Walk to the end."""
        places: dict[bytes, list[int]] = defaultdict(list)
        for number, each in enumerate(self.source):
            places[each.content].append(number)
        begins = sum(1 for each in self.source if each.offset <= self.least) + 1
        ways: dict[int, tuple[int, int]] = {}
        for each in self.target:
            choices = places.get(each.content, [])
            if len(choices) > ALIKE:
                self.undecided = True
                return self
            if choices:
                ways = self._step(ways, choices, begins)
            self.partners.append(self._partner(ways) if choices else None)
        self.low = min((low for low, _ in ways.values()), default=-1)
        self.high = max((high for _, high in ways.values()), default=-1)
        return self

    @staticmethod
    def _step(ways: dict[int, tuple[int, int]], choices: Sequence[int], begins: int) -> dict[int, tuple[int, int]]:
        low = min((low for low, _ in ways.values()), default=-1)
        high = max((high for _, high in ways.values()), default=-1)
        found: dict[int, tuple[int, int]] = {}
        for at in choices:
            before = [ways[at - 1]] if at - 1 in ways else []
            before += [(low, high)] if at < begins else []
            if before:
                found[at] = max(at, min(each for each, _ in before)), max(at, *(each for _, each in before))
        return found or {at: (max(at, low), max(at, high)) for at in choices}

    def _partner(self, ways: dict[int, tuple[int, int]]) -> int:
        """Of several ways the one that goes on."""
        before = next((each for each in reversed(self.partners) if each is not None), -2)
        return before + 1 if before + 1 in ways else min(ways)


def _first_again(
    source: Sequence[KeyedRecord], target: Sequence[KeyedRecord], walk: Sequence[int | None], high: int
) -> int | None:
    """The first record up to the furthest one whose key has gone back behind it at the end of the target."""
    furthest = max((at for at, number in enumerate(walk) if number == high), default=-1)
    back: dict[int | None, int] = {
        each.key: number
        for each, number in zip(target[furthest + 1 :], walk[furthest + 1 :], strict=True)
        if number is not None and each.key is not None
    }
    return next((each.offset for at, each in enumerate(source[: high + 1]) if at > back.get(each.key, high)), None)


def _tail(window: LogWindow, target: Sequence[KeyedRecord], walk: Sequence[int | None]) -> tuple[Span, ...]:
    """See `CopiedEnd.tail`.

    It is gone back from the end, life by life. A life begins behind what the one before it has copied, so that one's
    last record is in what was read of the source, too; but for the life that begins where that begins.
    """
    source = window.records
    times = Counter(each.content for each in source)
    pairs: list[tuple[int, int]] = []
    at = len(source)
    for each, partner in zip(reversed(target), reversed(walk), strict=True):
        if partner is None:
            continue
        if at == 0 and not window.from_start:
            break
        at = partner
        if times[each.content] == 1:
            pairs.append((source[partner].offset, each.offset))
    first_copies: list[tuple[int, int]] = []
    for pair in reversed(pairs):
        if not first_copies or pair[0] > first_copies[-1][0]:
            first_copies.append(pair)
    return spans_of([upstream for upstream, _ in first_copies], [downstream for _, downstream in first_copies])


def _twice(
    source: Sequence[KeyedRecord], target: Sequence[KeyedRecord], walk: Sequence[int | None]
) -> tuple[CopiedTwice, ...]:
    """What stands on the target once more, in rows."""
    seen: set[int] = set()
    rows: list[tuple[int, int, int, int, int]] = []
    before = None
    for number, partner in enumerate(walk):
        if partner in seen and partner is not None:
            upstream, downstream = source[partner].offset, target[number].offset
            if rows and before == partner - 1:
                first, _, above, _, count = rows[-1]
                rows[-1] = (first, upstream + 1, above, downstream + 1, count + 1)
            else:
                rows.append((upstream, upstream + 1, downstream, downstream + 1, 1))
            before = partner
        elif partner is not None:
            seen.add(partner)
            before = None
    return tuple(CopiedTwice(upstream=(a, b), downstream=(c, d), records=count) for a, b, c, d, count in rows)
