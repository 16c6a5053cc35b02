"""What will a backfill do, how long will it take, and what will it cost? One value, written before anything begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from mirrorless.backfill import estimates
from mirrorless.jobs import cost
from mirrorless.jobs.copy_task import OffsetRange

Severity = Literal["refuse", "warn", "info"]


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has to say."""

    severity: Severity
    """`refuse`: the job does not start. `warn`: it starts with `force` only. `info`: to be known."""
    check: str
    where: str
    text: str
    """What is the matter, and what to do about it."""


class PlannedLane(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's part."""

    topic: str
    partition: int
    lane_topic: str
    write_topic: str
    range: OffsetRange
    """Upstream, of which everything below `position` is behind the lane already."""
    position: int
    offsets: int
    """Left to copy. An upper bound of the records: markers, aborted and compacted records have offsets too."""
    bytes: int
    """Of keys and values; estimated from a sample of the topic's records."""
    group: str = ""
    """The mapping's consumer group; empty where the lane has none."""


class BackfillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`plan.json`."""

    run_id: str
    flow: str
    lanes: tuple[PlannedLane, ...]
    findings: tuple[CheckFinding, ...]
    records: int
    """At most: see `PlannedLane.offsets`."""
    bytes: int
    seconds: float
    """Expected."""
    dollars: float
    """Expected on EMR Serverless, by the list prices of `priced`."""
    priced: str
    lanes_at_a_time: int
    hands_over: bool

    @property
    def refusals(self) -> list[CheckFinding]:
        """Why it does not start, whatever is ordered."""
        return [each for each in self.findings if each.severity == "refuse"]

    @property
    def warnings(self) -> list[CheckFinding]:
        """Why it does not start without `force`."""
        return [each for each in self.findings if each.severity == "warn"]


def make_plan(
    run_id: str,
    flow: str,
    lanes: Sequence[PlannedLane],
    findings: Sequence[CheckFinding],
    *,
    at_a_time: int,
    max_mb_per_second: float | None,
    hands_over: bool,
) -> BackfillPlan:
    """Add the lanes up, and say what they are expected to take.

    Args:
        run_id: of the job run.
        flow: its name.
        lanes: what is planned.
        findings: of the checks.
        at_a_time: lanes that run at once; each takes a core.
        max_mb_per_second: the cap, if there is one.
        hands_over: whether the lanes go on to their mappings.
    """
    records, size = sum(each.offsets for each in lanes), sum(each.bytes for each in lanes)
    busy = max(1, min(at_a_time, len(lanes)))
    alone = [_seconds(each.offsets, each.bytes) for each in lanes]
    copying = max(sum(alone) / busy, max(alone, default=0.0))
    if max_mb_per_second:
        copying = max(copying, size / (max_mb_per_second * 1e6))
    seconds = cost.START_SECONDS + copying
    return BackfillPlan(
        run_id=run_id,
        flow=flow,
        lanes=tuple(lanes),
        findings=tuple(findings),
        records=records,
        bytes=size,
        seconds=seconds,
        dollars=cost.dollars(seconds, executors=cost.executors_for(busy, most=busy)),
        priced=cost.prices().as_of,
        lanes_at_a_time=busy,
        hands_over=hands_over,
    )


def _seconds(records: int, size: int) -> float:
    return estimates.WAITING * (records * estimates.CPU_SECONDS_PER_RECORD + size * estimates.CPU_SECONDS_PER_BYTE)
