"""Sets of offsets, as ranges that grow and are apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirrorless.jobs.copy_task import OffsetRange


def united(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The same offsets as ranges that grow and are apart."""
    found: list[OffsetRange] = []
    for each in sorted(ranges, key=lambda each: each.first):
        if each.first >= each.next:
            continue
        if found and each.first <= found[-1].next:
            found[-1] = OffsetRange(found[-1].first, max(found[-1].next, each.next))
        else:
            found.append(each)
    return tuple(found)


def without(ranges: Sequence[OffsetRange], others: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The offsets of some ranges that are not in others; both grow and are apart."""
    found, which = [], 0
    for each in ranges:
        at = each.first
        while which < len(others) and others[which].next <= at:
            which += 1
        beside = which
        while beside < len(others) and others[beside].first < each.next:
            if at < others[beside].first:
                found.append(OffsetRange(at, others[beside].first))
            at = max(at, others[beside].next)
            beside += 1
        if at < each.next:
            found.append(OffsetRange(at, each.next))
    return tuple(found)


def within(ranges: Sequence[OffsetRange], offsets: Iterable[int]) -> list[bool]:
    """Whether each of some growing offsets is in one of some ranges, which grow and are apart."""
    found, which = [], 0
    for offset in offsets:
        while which < len(ranges) and ranges[which].next <= offset:
            which += 1
        found.append(which < len(ranges) and ranges[which].first <= offset)
    return found


def reaching(ranges: Sequence[OffsetRange], part: OffsetRange) -> tuple[OffsetRange, ...]:
    """The ranges that reach into another one."""
    return tuple(each for each in ranges if each.first < part.next and part.first < each.next)
