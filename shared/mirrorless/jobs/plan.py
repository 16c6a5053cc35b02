"""The plan of a job: lanes, findings of the checks, expected time and cost. Made before anything is changed."""

from __future__ import annotations

from typing import Literal

import msgspec

from mirrorless.jobs.copy_task import OffsetRange

Severity = Literal["refuse", "warn", "info"]


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a check."""

    severity: Severity
    """`refuse`: the job does not start. `warn`: it starts with `force` only. `info`: for the operator to read."""
    check: str
    where: str
    text: str
    """The cause, and what to do about it."""


class PlannedLane(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a plan."""

    topic: str
    partition: int
    lane_topic: str
    write_topic: str
    range: OffsetRange
    """Upstream; everything below `position` is behind the lane already."""
    position: int
    offsets: int
    """To read. An upper bound of the records: markers, aborted and compacted records have offsets too."""
    bytes: int | None
    """Of keys and values, estimated from a sample of the topic's records; None where none is read."""
    group: str = ""
    """The mapping's consumer group; empty where the lane has none."""
    expires_at: int | None = None
    """The time at which the source's retention takes its first record, ms since the epoch; None for never."""
    read: str | msgspec.UnsetType = msgspec.UNSET
    """The reads in words, where they are not the rest of `range` above `position`."""

    @property
    def reads(self) -> str:
        """The reads in words: `upstream 10 to 2,000`."""
        if self.read is not msgspec.UNSET:
            return self.read
        begins = max(self.position, self.range.first)
        return f"upstream {begins:,} to {self.range.next:,}" if begins < self.range.next else "nothing"


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`plan.json` of a backfill, and what `--dry-run` shows of every job."""

    run_id: str
    flow: str
    lanes: tuple[PlannedLane, ...]
    findings: tuple[CheckFinding, ...] = ()
    records: int
    """At most: see `PlannedLane.offsets`."""
    bytes: int | None
    seconds: float
    """Expected."""
    dollars: float
    """Expected on EMR Serverless, by the list prices of `priced`."""
    priced: str
    lanes_at_a_time: int
    hands_over: bool = False

    @property
    def refusals(self) -> list[CheckFinding]:
        """Findings with which the job does not start."""
        return [each for each in self.findings if each.severity == "refuse"]

    @property
    def warnings(self) -> list[CheckFinding]:
        """Findings with which the job does not start without `force`."""
        return [each for each in self.findings if each.severity == "warn"]

    def against(self, *, force: bool) -> list[CheckFinding]:
        """The findings with which a start is refused."""
        return self.refusals or ([] if force else self.warnings)
