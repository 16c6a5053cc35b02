"""The plan of a backfill: sums over its lanes, and its expected duration by speeds that were measured.

Measured on 2026-11-21, with 200 bytes a record and both clusters and Spark on the same two cores: 3.2 s of CPU for a
million records. The speeds below are half as fast, because a network is not a loopback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirrorless.cost import jobs as cost
from mirrorless.cost.prices import PRICES
from mirrorless.jobs.plan import CheckFinding, JobPlan, PlannedLane

CPU_SECONDS_PER_RECORD: Final = 5e-6
"""Of a worker, beside the bytes."""

CPU_SECONDS_PER_BYTE: Final = 6e-9
"""Digests, compression and copies of memory."""

WAITING: Final = 1.6
"""Wall seconds of a lane for each of its CPU seconds: acknowledgements, commits, the offset map."""


def make_plan(
    run_id: str,
    flow: str,
    lanes: Sequence[PlannedLane],
    findings: Sequence[CheckFinding],
    *,
    at_a_time: int,
    max_mb_per_second: float | None,
    hands_over: bool,
) -> JobPlan:
    """Add the lanes up, and estimate the time and the cost.

    Args:
        run_id: of the job run.
        flow: its name.
        lanes: the planned ones.
        findings: of the checks.
        at_a_time: lanes that run at once; each takes a core.
        max_mb_per_second: the cap, if there is one.
        hands_over: whether the lanes go on to their mappings.
    """
    records, size = sum(each.offsets for each in lanes), sum(each.bytes or 0 for each in lanes)
    busy = max(1, min(at_a_time, len(lanes)))
    alone = [_seconds(each.offsets, each.bytes or 0) for each in lanes]
    copying = max(sum(alone) / busy, max(alone, default=0.0))
    if max_mb_per_second:
        copying = max(copying, size / (max_mb_per_second * 1e6))
    seconds = cost.START_SECONDS + copying
    return JobPlan(
        run_id=run_id,
        flow=flow,
        lanes=tuple(lanes),
        findings=tuple(findings),
        records=records,
        bytes=size,
        seconds=seconds,
        dollars=cost.dollars(seconds, executors=cost.executors_for(busy, most=busy)),
        priced=PRICES.jobs.as_of,
        lanes_at_a_time=busy,
        hands_over=hands_over,
    )


def _seconds(records: int, size: int) -> float:
    return WAITING * (records * CPU_SECONDS_PER_RECORD + size * CPU_SECONDS_PER_BYTE)
