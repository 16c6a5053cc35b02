"""The explanation of runs that are not proved, by comparison with the source's records.

A wrong range is compared together with its wrong neighbours; what is left over is kept until the whole lane has been
read, because a record may have moved, or stand twice, far from its place. It is kept by offsets and hashes.

Reports are kept, and read by people who may not read the records: a difference is said in words and without content, by
the part, the place and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.protocol.digest import fingerprint
from mirrorless.records.record import Headers, Record
from mirrorless.verify.comparison import Alignment, LeftOver, RecordAt, align, sort_out
from mirrorless.verify.findings import Finding, FindingKind, LaneVerdict
from mirrorless.verify.run_ranges import RunRange, of_batches
from mirrorless.verify.source_copies import CopyByRule
from mirrorless.verify.walk import Judged, in_rows

LEFT_OVERS: Final = 20_000
"""Records without a partner that are kept; beyond, those so far are sorted out among themselves."""

PAIRS: Final = 64
"""Pairs of records in one place whose differences are noted at most; beyond, those that stand for each other so far."""

ANOTHER: Final = "another record stands in its place"

ONCE_MORE: Final = "it stands here once more"

GONE: Final[tuple[FindingKind, str]] = (
    "different",
    "the source does not have it any more, or has another record instead",
)

FOREIGN: Final[tuple[FindingKind, str]] = ("foreign", "no run claims it, and nothing of this lane is equal to it")


class LeftOvers(msgspec.Struct, kw_only=True):
    """Records without a partner, by hashes: to be judged once the whole lane has been read."""

    missing: list[LeftOver] = []
    surplus: list[LeftOver] = []
    words: list[tuple[int, int, str]] = []
    """The difference between an upstream and a downstream offset, where one may stand for the other."""
    places: int = 0
    """How many places they have at most."""

    def __len__(self) -> int:
        """The number of records."""
        return len(self.missing) + len(self.surplus)

    def add(self, other: LeftOvers) -> None:
        """Add those of the part of the lane that follows."""
        self.missing += [LeftOver(each.place + self.places, each.seen) for each in other.missing]
        self.surplus += [LeftOver(each.place + self.places, each.seen) for each in other.surplus]
        self.words += other.words
        self.places += other.places + 1

    def strangers(self) -> tuple[set[bytes], set[int]]:
        """The contents of unclaimed records, which are searched for in the lane, and the offsets of these records."""
        missing = {each.seen.content for each in self.missing}
        surplus = [each.seen for each in self.surplus if each.seen.content not in missing]
        return {each.content for each in surplus}, {each.offset for each in surplus}


@dataclass(slots=True)
class Explanation:
    """Gathers the faults of a lane, and turns them into findings."""

    verdict: LaneVerdict
    _kept: LeftOvers = field(default_factory=LeftOvers)
    _originals: dict[int, Record] = field(default_factory=dict)
    """The source's records that are left over, by upstream offset."""
    _copies: dict[int, Record] = field(default_factory=dict)
    """The target's, by downstream offset."""

    def __len__(self) -> int:
        """The number of records that are kept."""
        return len(self._kept)

    @property
    def full(self) -> bool:
        """Whether no more records may be kept."""
        return len(self._kept) >= LEFT_OVERS

    @property
    def places(self) -> int:
        """From which on the places of the next ones are counted."""
        return self._kept.places

    def strange(self, records: Sequence[Record]) -> None:
        """Keep records that no run claims."""
        self._kept.surplus += [LeftOver(self._kept.places, RecordAt.of(each)) for each in records]
        self._kept.places += 1

    def beside_source(
        self, group: Sequence[Judged], originals: Sequence[Record], strangers: Sequence[Record] = ()
    ) -> int:
        """Compare ranges in a row with the source's records of their runs; how many records are right.

        Args:
            group: of the newest generation.
            originals: the source's records at the upstream offsets that their runs claim, in order.
            strangers: what no run claims, in these ranges and right behind them.
        """
        copies = sorted((*(each for one in group for each in one.records), *strangers), key=lambda each: each.offset)
        source, target = [RecordAt.of(each) for each in originals], [RecordAt.of(each) for each in copies]
        found = align(source, target, first_place=self._kept.places)
        self.keep(found, originals, copies)
        if not found.missing and not found.surplus:
            self._misplaced(group, found)
        return len(found.pairs)

    def alone(self, judged: Judged) -> None:
        """Judge a range without the source's records."""
        run = judged.run_range.run
        if run is None:
            return
        counts = self.verdict.counts
        for first, length in in_rows((offset, 1) for offset in judged.absent):
            self.verdict.find(
                Finding(
                    kind="missing",
                    generation=run.generation,
                    upstream=upstream_of(judged.run_range, first, length),
                    downstream=OffsetRange(first, first + length),
                    records=length,
                    what="the map has it here, and no reader sees it",
                )
            )
        counts.not_provable += len(judged.records)
        if judged.state == "wrong":
            counts.not_provable -= 1
            self.verdict.find(
                Finding(
                    kind="different",
                    generation=run.generation,
                    upstream=OffsetRange(run.spans[0].upstream, run.spans[-1].upstream + run.spans[-1].length),
                    downstream=OffsetRange(judged.run_range.claims[0][0], judged.run_range.next),
                    records=1,
                    what="at least one of these: " + suspicion(run, list(judged.records)),
                )
            )

    def sort_out(self) -> None:
        """Judge what was kept among itself: there is no room for more."""
        judge_left_over(self.verdict, self.left_over(), {})

    def left_over(self) -> LeftOvers:
        """Everything that was kept, which is not kept any longer."""
        self._kept.words = self._words()
        found, self._kept = self._kept, LeftOvers()
        self._originals.clear()
        self._copies.clear()
        return found

    def _words(self) -> list[tuple[int, int, str]]:
        """The difference between each two records that may turn out to stand for each other."""
        in_place: dict[int, tuple[list[int], list[int]]] = {}
        for lost in self._kept.missing:
            in_place.setdefault(lost.place, ([], []))[0].append(lost.seen.offset)
        for there in self._kept.surplus:
            if there.place in in_place:
                in_place[there.place][1].append(there.seen.offset)
        pairs = {
            (one, other)
            for originals, copies in in_place.values()
            if len(originals) * len(copies) <= PAIRS
            for one in originals
            for other in copies
        }
        missing, surplus = self._kept.missing, self._kept.surplus
        alone = sort_out(missing, surplus, {each.seen.content for each in missing})
        pairs |= {(one.offset, other.offset) for one, other in alone.different if one is not None}
        return [(one, other, differs(self._originals[one], self._copies[other])) for one, other in sorted(pairs)]

    def keep(self, found: Alignment, originals: Sequence[Record], copies: Sequence[Record]) -> None:
        """Keep what is left over of two aligned sequences; its places begin at `places`."""
        self._kept.places += len(found.pairs) + 1
        self._kept.missing += found.missing
        self._kept.surplus += found.surplus
        missing = {each.seen.offset for each in found.missing}
        surplus = {each.seen.offset for each in found.surplus}
        self._originals.update((each.offset, each) for each in originals if each.offset in missing)
        self._copies.update((each.offset, each) for each in copies if each.offset in surplus)

    def _misplaced(self, group: Sequence[Judged], found: Alignment) -> None:
        """Find the fault of the map where every record is right and a digest is not: its offsets or the digest."""
        places = {
            span.upstream + i: span.downstream + i
            for one in group
            if one.run_range.run is not None
            for span in one.run_range.run.spans
            for i in range(span.length)
        }
        wrong = [(source, target) for source, target in found.pairs if places.get(source.offset) != target.offset]
        for source, target in wrong:
            what = f"the map has downstream offset {places.get(source.offset)}"
            self.verdict.find_one("misplaced", source, target, what)
        # The target may have compressed whole batches anew: their records are what counts.
        runs = (one.run_range.run for one in group)
        run = next((run for run in runs if run and not of_batches(run)), None)
        if not wrong and run is not None:
            self.verdict.find(
                Finding(
                    kind="different",
                    generation=run.generation,
                    upstream=OffsetRange(run.position, run.next),
                    downstream=OffsetRange(group[0].run_range.claims[0][0], group[-1].run_range.next),
                    records=1,
                    what="both clusters have the same records, and the map has a digest of others",
                )
            )


def judge_left_over(
    verdict: LaneVerdict,
    kept: LeftOvers,
    known: Mapping[bytes, int],
    *,
    stranger: tuple[FindingKind, str] = FOREIGN,
    of_source: bool = False,
) -> None:
    """Judge records without a partner.

    Args:
        verdict: takes the findings.
        kept: the records.
        known: the downstream offset of each content of `strangers` that the lane has elsewhere.
        stranger: kind and text for a record that stands for none of the source, and is equal to none.
        of_source: whether `known` has upstream offsets instead.
    """
    contents = known.keys() | {each.seen.content for each in kept.missing}
    faults = sort_out(kept.missing, kept.surplus, contents)
    words = {(one, other): text for one, other, text in kept.words}
    find = verdict.find_one
    for lost in faults.lost:
        find("missing", lost, None, "the source has it, and the target does not")
    for twice in faults.duplicated:
        where = known.get(twice.content)
        original = RecordAt(where, twice.content) if of_source and where is not None else None
        more = "" if where is None or of_source else f" than at downstream offset {where}"
        find("duplicated", original, twice, ONCE_MORE + more)
    for original, copy in faults.reordered:
        find("reordered", original, copy, "it stands among other records than on the source")
    for instead, copy in faults.different:
        if instead is None:
            kind, what = stranger
        else:
            kind, what = "different", words.get((instead.offset, copy.offset), ANOTHER)
        find(kind, instead, copy, what)


def upstream_of(run_range: RunRange, first: int, length: int) -> OffsetRange | None:
    """The upstream offsets that the map has for a row of so many downstream offsets."""
    for span in run_range.run.spans if run_range.run is not None else ():
        if span.downstream <= first < span.downstream + span.length:
            at = span.upstream + first - span.downstream
            return OffsetRange(at, at + length)
    return None


def differs(original: Record, copy: Record) -> str:
    """Every part that differs; empty when none does."""
    if isinstance(original, CopyByRule):
        return _differs_from_rule(original, copy)
    parts = []
    if original.key != copy.key:
        parts.append(_bytes("key", original.key, copy.key))
    if original.value != copy.value:
        parts.append(_bytes("value", original.value, copy.value))
    if original.headers != copy.headers:
        parts.append(_headers(original.headers, copy.headers))
    if original.timestamp != copy.timestamp:
        parts.append(f"timestamp {original.timestamp} has become {copy.timestamp}")
    return "; ".join(parts)


def _differs_from_rule(right: CopyByRule, copy: Record) -> str:
    """No more than the names of the parts: sizes, and where a difference begins, tell of the values that are masked."""
    if right.no_copy:
        return f"{right.no_copy}, and the target has it"
    wrong = [part for part in ("key", "value", "headers", "timestamp") if getattr(right, part) != getattr(copy, part)]
    return f"{' and '.join(wrong)} not as its rule makes it"


def suspicion(run: Run, records: list[Record]) -> str:
    """The evidence about a run whose digest does not hold, where the originals are gone."""
    evidence = ["the digest of its run does not hold, and there are no originals to compare with"]
    oldest = (
        run.oldest_timestamp if run.digest_of == "records" else min([each.timestamp for each in records], default=0)
    )
    outside = [each.offset for each in records if not oldest <= each.timestamp <= run.newest_timestamp]
    if outside:
        evidence.append(
            f"{len(outside)} timestamps are outside of the run's, the first at downstream offset {outside[0]}"
        )
    if records and records[-1].offset == run.last_downstream:
        same = fingerprint(records[-1]) == run.fingerprint
        evidence.append(f"its last record is {'the right one' if same else 'another one'} by key, value and headers")
    return "; ".join(evidence)


def _bytes(name: str, original: bytes | None, copy: bytes | None) -> str:
    if original is None or copy is None or not original or not copy:
        return f"{name} {_size(original)} has become {_size(copy)}"
    shorter = min(len(original), len(copy))
    at = next((i for i in range(shorter) if original[i] != copy[i]), shorter)
    sizes = (
        f"of {len(original)} bytes" if len(original) == len(copy) else f"{len(original)} bytes have become {len(copy)}"
    )
    return f"{name} differs from byte {at} on, {sizes}"


def _size(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"of {len(value)} bytes" if value else "empty"


def _headers(original: Headers, copy: Headers) -> str:
    names, copied = [name for name, _ in original], [name for name, _ in copy]
    if names == copied:
        at = next(i for i, (one, other) in enumerate(zip(original, copy, strict=True)) if one != other)
        return f"header {at + 1} of {len(names)}: " + _bytes("value", original[at][1], copy[at][1])
    if sorted(names) == sorted(copied):
        return "headers stand in another order"
    return f"{len(names)} headers have become {len(copied)}, or have other names"
