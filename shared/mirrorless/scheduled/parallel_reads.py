"""Independent reads of a store or a cluster, some at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

READERS: Final = 8
"""Parallel reads: one takes some milliseconds, nearly all of it network latency."""


_T = TypeVar("_T")


_R = TypeVar("_R")


def in_parallel(call: Callable[[_T], _R], items: list[_T]) -> list[_R]:
    """Call for each item, `READERS` at a time. Returns the results in the items' order; raises the first error."""
    if len(items) <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(READERS, len(items))) as pool:
        return list(pool.map(call, items))
