"""The comparison of a partition with its copy, record by record, and the kind of each fault.

The two sequences are aligned so that as many records as possible pair up in order (their longest common
subsequence). Whatever is left unpaired is a fault of exactly one kind:

    reordered   left over on both sides with the same content: it arrived, but not where it belongs
    duplicated  left over on the target, though the source has this content: it arrived once more than it should
    different   left over on the target, and the source has no such content: a changed byte, or a foreign record
    lost        left over on the source, unless a `different` record stands in its place

So one record removed, repeated, changed or moved counts as 1 of that kind and 0 of the others. Both sequences are equal
if and only if all four counts are 0. Records with the same content cannot be distinguished: which of
them was lost is undefined, their number is not.

A long partition is aligned in parts (`align`), and what is left over of all of them is judged together
(`sort_out`): a record may have moved from one part to another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import msgspec

from mirrorless.records.record import Headers, Record

CONTENT_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode

CANDIDATES = 2_000_000
"""Pairs of equal contents that are tried at most; beyond, the n-th of a content pairs with the n-th only."""


def content(timestamp: int, key: bytes | None, value: bytes | None, headers: Headers | None) -> bytes:
    """16 bytes that change with any byte of the record, any null, and the order of its headers."""
    return sha256(_encode((timestamp, key, value, headers or []))).digest()[:CONTENT_BYTES]


class RecordAt(NamedTuple):
    """A record's offset, and a hash of its key, value, headers and timestamp."""

    offset: int
    content: bytes

    @classmethod
    def of(cls, record: Record) -> RecordAt:
        """The offset and the hash of a record."""
        return cls(record.offset, content(record.timestamp, record.key, record.value, record.headers))


class LeftOver(NamedTuple):
    """A record without a partner. Two records of one place stand between the same two pairs."""

    place: int
    seen: RecordAt


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Two aligned sequences."""

    pairs: Sequence[tuple[RecordAt, RecordAt]]
    """(source, target) of each record that arrived in order, in order."""
    missing: Sequence[LeftOver]
    """Of the source."""
    surplus: Sequence[LeftOver]
    """Of the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonFaults:
    """The records that are left over, by kind of fault."""

    lost: Sequence[RecordAt]
    """On the source."""
    duplicated: Sequence[RecordAt]
    """On the target."""
    reordered: Sequence[tuple[RecordAt, RecordAt]]
    """(source, target)."""
    different: Sequence[tuple[RecordAt | None, RecordAt]]
    """(source, target); None for a foreign record that stands for none of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The number of wrong records of each kind, and the right ones."""

    lost: int
    duplicated: int
    reordered: int
    different: int
    pairs: Sequence[tuple[RecordAt, RecordAt]]
    """(source, target) of each record that arrived in order, in order."""


def compare(source: Sequence[RecordAt], target: Sequence[RecordAt]) -> Comparison:
    """Compare all visible records of a partition with all of its remote partition, each in offset order."""
    found = align(source, target)
    faults = sort_out(found.missing, found.surplus, {each.content for each in source})
    return Comparison(
        lost=len(faults.lost),
        duplicated=len(faults.duplicated),
        reordered=len(faults.reordered),
        different=len(faults.different),
        pairs=found.pairs,
    )


def align(
    source: Sequence[RecordAt], target: Sequence[RecordAt], *, first_place: int = 0, candidates: int = CANDIDATES
) -> Alignment:
    """Pair up as many records as possible, in order.

    Args:
        source: records in offset order.
        target: the same.
        first_place: from which on places are counted: as many as there are pairs, and one more.
        candidates: see `pair_up`.
    """
    pairs = pair_up([each.content for each in source], [each.content for each in target], candidates=candidates)
    missing: list[LeftOver] = []
    surplus: list[LeftOver] = []
    i = j = 0
    for place, (next_i, next_j) in enumerate([*pairs, (len(source), len(target))], first_place):
        missing += [LeftOver(place, each) for each in source[i:next_i]]
        surplus += [LeftOver(place, each) for each in target[j:next_j]]
        i, j = next_i + 1, next_j + 1
    return Alignment(pairs=[(source[i], target[j]) for i, j in pairs], missing=missing, surplus=surplus)


def sort_out(missing: Sequence[LeftOver], surplus: Sequence[LeftOver], known: Collection[bytes]) -> ComparisonFaults:
    """Judge each record without a partner.

    Args:
        missing: of the source.
        surplus: of the target.
        known: contents that the source has, among them those of `surplus` that it has.
    """
    # The same content on both sides: it moved.
    moved = _contents(missing) & _contents(surplus)
    gone, missing = _taken(missing, moved)
    arrived, surplus = _taken(surplus, moved)
    partners: defaultdict[bytes, list[RecordAt]] = defaultdict(list)
    for each in reversed(gone):
        partners[each.seen.content].append(each.seen)
    reordered = [(partners[each.seen.content].pop(), each.seen) for each in arrived]

    # A content that the source has was written once more; another one replaces what is missing in its place.
    strangers = [each for each in surplus if each.seen.content not in known]
    in_place: defaultdict[int, list[RecordAt]] = defaultdict(list)
    for each in reversed(missing):
        in_place[each.place].append(each.seen)
    different: list[tuple[RecordAt | None, RecordAt]] = []
    replaced: set[int] = set()
    for each in strangers:
        instead = in_place[each.place].pop() if in_place[each.place] else None
        if instead is not None:
            replaced.add(instead.offset)
        different.append((instead, each.seen))
    return ComparisonFaults(
        lost=[each.seen for each in missing if each.seen.offset not in replaced],
        duplicated=[each.seen for each in surplus if each.seen.content in known],
        reordered=reordered,
        different=different,
    )


def _contents(left_over: Sequence[LeftOver]) -> Counter[bytes]:
    return Counter(each.seen.content for each in left_over)


def _taken(left_over: Sequence[LeftOver], wanted: Counter[bytes]) -> tuple[list[LeftOver], list[LeftOver]]:
    """The wanted ones, as many of each content as are wanted; and the others."""
    left = Counter(wanted)
    taken: list[LeftOver] = []
    kept: list[LeftOver] = []
    for each in left_over:
        if left[each.seen.content]:
            left[each.seen.content] -= 1
            taken.append(each)
        else:
            kept.append(each)
    return taken, kept


def pair_up(source: Sequence[bytes], target: Sequence[bytes], *, candidates: int = CANDIDATES) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, in order.

    Args:
        source: contents.
        target: the same.
        candidates: pairs of equal contents that are tried at most; beyond, the n-th of each pairs with the n-th only.
    """
    # A faultless copy ends here: everything is common prefix.
    shorter = min(len(source), len(target))
    start = next((i for i in range(shorter) if source[i] != target[i]), shorter)
    end = next((i for i in range(shorter - start) if source[-1 - i] != target[-1 - i]), shorter - start)
    middle = _longest_common(source[start : len(source) - end], target[start : len(target) - end], candidates)
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(source) - i, len(target) - i) for i in range(end, 0, -1)),
    ]


def _longest_common(source: Sequence[bytes], target: Sequence[bytes], candidates: int) -> list[tuple[int, int]]:
    """The algorithm of Hunt and Szymanski (1977): fast where few records have the same content."""
    # ends[k] is the least target index at which a common subsequence of k + 1 records ends; chains[k] is that one.
    ends: list[int] = []
    chains: list[_Chain] = []
    for i, places in enumerate(_candidates(source, target, candidates)):
        for j in places:
            k = bisect_left(ends, j)
            chain = _Chain(i, j, chains[k - 1] if k else None)
            if k == len(ends):
                ends.append(j)
                chains.append(chain)
            elif j < ends[k]:
                ends[k], chains[k] = j, chain
    pairs = []
    link = chains[-1] if chains else None
    while link is not None:
        pairs.append((link.source, link.target))
        link = link.before
    return pairs[::-1]


class _Chain(NamedTuple):
    source: int
    target: int
    before: _Chain | None


def _candidates(source: Sequence[bytes], target: Sequence[bytes], most: int) -> list[Sequence[int]]:
    """For each source record the target indices with its content, greatest first, so that it takes one of them."""
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for j in range(len(target) - 1, -1, -1):
        places[target[j]].append(j)
    wanted = Counter(source)
    if sum(count * len(places.get(content, ())) for content, count in wanted.items()) <= most:
        return [places.get(content, ()) for content in source]
    # `places` is in descending order: the n-th occurrence is the last one left.
    return [(places[content].pop(),) if places.get(content) else () for content in source]
