"""What came of a reconcile, lane by lane and in all? Plain values, for the report and for machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.reconcile.orphans import Stretch
from mirrorless.reconcile.returning_groups import ReturningGroup

READY = frozenset({"ready", "active_on_source"})
"""States in which a group needs nobody."""


class LaneOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, as the report tells of it."""

    topic: str
    partition: int
    remote_topic: str
    policy: Policy
    differs: str = ""
    """Why it was left alone."""
    error: str = ""
    """Why it is not done; the lane stays held."""
    position_before: int = 0
    position: int = 0
    """Of the forward lane, upstream."""
    on_target: int = 0
    """Records that the target has, as far as the map and the difference tell."""
    bytes_on_target: int = 0
    new: int = 0
    """Records that only the target had."""
    new_bytes: int = 0
    copied_back: int = 0
    copied_back_bytes: int = 0
    unmapped: int = 0
    """Copied back, and without a place in the map: they stand between records that were replicated."""
    claimed_until: int = 0
    """Downstream: the end of what the chain knew before."""
    new_ranges: tuple[OffsetRange, ...] = ()
    """Downstream offsets."""
    orphans: tuple[Stretch, ...] = ()
    """Upstream offsets."""
    orphans_moved: int = 0
    """Copied to the topic of orphans, or written again."""
    waits: str = ""
    """What is still to be done, and when."""

    @property
    def orphan_records(self) -> int:
        """How many."""
        return sum(each.records for each in self.orphans)

    @property
    def clean(self) -> bool:
        """Whether nothing of it needs the operator."""
        return not (self.differs or self.error or self.unmapped or self.waits)


class LocalTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the target's own that has a source topic's name: it is not the flow's to bring back."""

    topic: str
    offsets: int
    """In its log."""
    since: int | None
    """Of these, since the lanes were held; None where nobody held them."""


def totals_of(lanes: Sequence[LaneOutcome], groups: Sequence[ReturningGroup]) -> dict[str, Any]:
    """The sums that a machine looks for first."""
    size = sum(each.bytes_on_target for each in lanes)
    back = sum(each.copied_back_bytes for each in lanes)
    return {
        "lanes": len(lanes),
        "records": sum(each.on_target for each in lanes),
        "bytes": size,
        "new": sum(each.new for each in lanes),
        "copied_back": sum(each.copied_back for each in lanes),
        "copied_back_bytes": back,
        "copied_back_ratio": round(back / size, 6) if size else 0.0,
        "orphans": sum(each.orphan_records for each in lanes),
        "orphans_bytes": sum(stretch.bytes for each in lanes for stretch in each.orphans),
        "orphans_moved": sum(each.orphans_moved for each in lanes),
        "differing": sum(bool(each.differs) for each in lanes),
        "failed": sum(bool(each.error) for each in lanes),
        "unmapped": sum(each.unmapped for each in lanes),
        "groups": len(groups),
        "groups_not_ready": sum(each.readiness not in READY for each in groups),
        "reread": sum(each.reread for each in groups),
    }


def is_clean(lanes: Iterable[LaneOutcome], groups: Iterable[ReturningGroup], troubles: Sequence[str]) -> bool:
    """Whether the operator has nothing to look at."""
    return not troubles and all(each.clean for each in lanes) and all(each.readiness in READY for each in groups)
