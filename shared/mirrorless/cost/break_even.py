"""The rates at which Mirrorless costs less than another way to replicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirrorless.cost.assumptions import Assumptions, ReplicationLoad
from mirrorless.cost.replication import total

_GRID: Final = (0.0, *(10 ** (step / 50 - 3) for step in range(266)))


def break_even(
    workload: ReplicationLoad,
    assumptions: Assumptions,
    *,
    provisioned: bool,
    against: Callable[[ReplicationLoad], float],
) -> list[tuple[float, float | None]]:
    """The rates, in MB/s from 0 to 200, at which Mirrorless costs less: from, and to; None: the end of the range."""
    found: list[tuple[float, float | None]] = []
    cheaper = False
    for rate in _GRID:
        at = workload.at(rate)
        now = total(at, assumptions, provisioned=provisioned) <= against(at)
        if now and not cheaper:
            found.append((rate, None))
        elif cheaper and not now:
            found[-1] = (found[-1][0], rate)
        cheaper = now
    return found
