"""Is the copy of a partition the original? Two readings, record by record, and what kind of fault each difference is.

The two sequences are laid side by side so that as many records as possible pair up in order (their longest common
subsequence). Whatever is left unpaired is a fault of exactly one kind:

    reordered   left over on both sides with the same content: it arrived, but not where it belongs
    duplicated  left over on the target, though the source has this content: it arrived once more than it should
    different   left over on the target, and the source has no such content: a changed byte, or a stranger
    lost        left over on the source, unless a `different` record stands in its place

So one record removed, repeated, changed or moved counts as 1 of that kind and 0 of the others. Both sequences are equal
if and only if all four counts are 0. Where several records have the same content nobody can tell them apart: which
of them was lost is undefined, how many is not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

CANDIDATES = 2_000_000
"""Pairs of equal contents that are tried at most; beyond, the n-th of a content pairs with the n-th only."""


class Seen(NamedTuple):
    """A record where it stands: its offset, and a hash of its key, value, headers and timestamp."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many records are wrong in which way, and which are right."""

    lost: int
    duplicated: int
    reordered: int
    different: int
    pairs: Sequence[tuple[Seen, Seen]]
    """(source, target) of each record that arrived in order, in order."""


def compare(source: Sequence[Seen], target: Sequence[Seen]) -> Comparison:
    """Compare all visible records of a partition with all of its remote partition, each in offset order."""
    pairs = _align([each.content for each in source], [each.content for each in target])
    missing, surplus = _left_over(source, target, pairs)

    # The same content on both sides: it moved.
    moved = _contents(missing) & _contents(surplus)
    missing, surplus = _without(missing, moved), _without(surplus, moved)

    # What the source has was written once more; what it does not have stands for what is missing in its place.
    known = {each.content for each in source}
    strangers = Counter(place for place, each in surplus if each.content not in known)
    replaced = strangers & Counter(place for place, _ in missing)
    return Comparison(
        lost=len(missing) - replaced.total(),
        duplicated=len(surplus) - strangers.total(),
        reordered=moved.total(),
        different=strangers.total(),
        pairs=[(source[i], target[j]) for i, j in pairs],
    )


Places = list[tuple[int, Seen]]
"""Records with the number of pairs before them: two records of one number stand between the same two pairs."""


def _left_over(
    source: Sequence[Seen], target: Sequence[Seen], pairs: Sequence[tuple[int, int]]
) -> tuple[Places, Places]:
    missing: Places = []
    surplus: Places = []
    i = j = 0
    for place, (next_i, next_j) in enumerate([*pairs, (len(source), len(target))]):
        missing += [(place, each) for each in source[i:next_i]]
        surplus += [(place, each) for each in target[j:next_j]]
        i, j = next_i + 1, next_j + 1
    return missing, surplus


def _contents(places: Places) -> Counter[bytes]:
    return Counter(each.content for _, each in places)


def _without(places: Places, taken: Counter[bytes]) -> Places:
    left = Counter(taken)
    kept: Places = []
    for place, each in places:
        if left[each.content]:
            left[each.content] -= 1
        else:
            kept.append((place, each))
    return kept


def _align(source: Sequence[bytes], target: Sequence[bytes]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, in order."""
    # A faultless copy ends here: everything is common prefix.
    shorter = min(len(source), len(target))
    start = next((i for i in range(shorter) if source[i] != target[i]), shorter)
    end = next((i for i in range(shorter - start) if source[-1 - i] != target[-1 - i]), shorter - start)
    middle = _longest_common(source[start : len(source) - end], target[start : len(target) - end])
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(source) - i, len(target) - i) for i in range(end, 0, -1)),
    ]


def _longest_common(source: Sequence[bytes], target: Sequence[bytes]) -> list[tuple[int, int]]:
    """The algorithm of Hunt and Szymanski (1977): fast where few records have the same content."""
    # ends[k] is the least target index at which a common subsequence of k + 1 records ends; chains[k] is that one.
    ends: list[int] = []
    chains: list[_Chain] = []
    for i, places in enumerate(_candidates(source, target)):
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


def _candidates(source: Sequence[bytes], target: Sequence[bytes]) -> list[Sequence[int]]:
    """For each source record the target indices with its content, greatest first, so that it takes one of them."""
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for j in range(len(target) - 1, -1, -1):
        places[target[j]].append(j)
    wanted = Counter(source)
    if sum(count * len(places.get(content, ())) for content, count in wanted.items()) <= CANDIDATES:
        return [places.get(content, ()) for content in source]
    # `places` is in descending order: the n-th occurrence is the last one left.
    return [(places[content].pop(),) if places.get(content) else () for content in source]
