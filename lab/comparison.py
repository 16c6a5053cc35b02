"""Is one sequence of records the copy of another? If not: what is missing, doubled, out of order, or not the same?

Pure. Records are compared by an identity of everything that must arrive: key, value, headers, timestamp.

    lost         on the source, not on the target
    duplicated   on the target more often than on the source
    different    on the target, equal to none of the source: a lost one's changed copy, or a stranger
    reordered    the fewest records that would have to be moved to bring the target into the source's order
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Seen(NamedTuple):
    """A record as a reader sees it: where it stands, and a digest of everything of it that must arrive."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was found, and which records belong together."""

    lost: int
    duplicated: int
    different: int
    reordered: int
    pairs: Sequence[tuple[Seen, Seen]]
    """Equal records, source and target; every record is in one pair at most."""


def compare(source: Sequence[Seen], target: Sequence[Seen]) -> Comparison:
    """Compare what a reader sees of a topic-partition and of its copy, both in order."""
    waiting: dict[bytes, deque[int]] = defaultdict(deque)
    for i, record in enumerate(source):
        waiting[record.content].append(i)

    # The first copy of a record belongs to it; a further one is a duplicate, unless the source has it again as well.
    pairs: list[tuple[int, int]] = []
    duplicated = strangers = 0
    for j, record in enumerate(target):
        if record.content not in waiting:
            strangers += 1
        elif waiting[record.content]:
            pairs.append((waiting[record.content].popleft(), j))
        else:
            duplicated += 1

    missing = len(source) - len(pairs)
    return Comparison(
        lost=missing - min(missing, strangers),
        duplicated=duplicated,
        different=strangers,
        reordered=len(pairs) - _longest_growing([i for i, _ in pairs]),
        pairs=[(source[i], target[j]) for i, j in pairs],
    )


def _longest_growing(numbers: Sequence[int]) -> int:
    """The length of the longest growing subsequence: the records that may stay where they are."""
    tails: list[int] = []
    for number in numbers:
        at = bisect_left(tails, number)
        tails[at : at + 1] = [number]
    return len(tails)
