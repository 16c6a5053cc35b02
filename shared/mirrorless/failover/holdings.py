"""What the target holds of each lane, and what is known to be missing, without reading the source's records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mirrorless.lane import Lane
from mirrorless.lane_state import Head


class LaneHolding(msgspec.Struct, frozen=True, kw_only=True):
    """One partition on the target, as its chain has it."""

    topic: str
    partition: int
    position: int
    """The first upstream offset that was not replicated."""
    copied_at: int = 0
    """The timestamp of the newest replicated record, ms since the epoch; 0 where there is none."""
    written_at: int = 0
    """When it was replicated, ms since the epoch; 0 where nothing was."""
    seen_end: int | None = None
    """The source's end as last seen; None where no round has seen it."""
    in_doubt: bool = False
    """Whether a run of it could not be settled."""

    @property
    def missing(self) -> int:
        """Upstream offsets that are known to be missing: records, and markers between them."""
        return max(0, (self.seen_end or 0) - self.position)


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a flow."""

    lanes: tuple[LaneHolding, ...]
    seen_at: int
    """When the source's ends were last seen, ms since the epoch; 0 for never."""
    lost_at: int
    """When this was written down, ms since the epoch: what was acknowledged between the two is not known."""

    @property
    def missing(self) -> int:
        """Upstream offsets that are known to be missing, of all lanes."""
        return sum(lane.missing for lane in self.lanes)

    @property
    def copied_until(self) -> int | None:
        """The moment up to which every record that the source had acknowledged is on the target; None if not known.

        Lanes without anything missing hold all up to when their ends were last seen.
        """
        if not self.seen_at:
            return None
        return min([self.seen_at, *(lane.copied_at for lane in self.lanes if lane.missing and lane.copied_at)])

    @property
    def recovery_point_seconds(self) -> float | None:
        """The age of `copied_until`: at most so much is lost; None if that is not known."""
        until = self.copied_until
        return None if until is None else max(0, self.lost_at - until) / 1000

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {
            "lanes": msgspec.to_builtins(self.lanes),
            "seen_at": self.seen_at,
            "lost_at": self.lost_at,
            "missing": self.missing,
            "copied_until": self.copied_until,
            "recovery_point_seconds": self.recovery_point_seconds,
        }


def holdings_of(
    heads: Mapping[Lane, Head],
    ends: Mapping[str, Sequence[int]],
    *,
    seen_at: int,
    now: int,
    broken: Iterable[Lane] = (),
) -> Holdings:
    """The holdings of lanes.

    Args:
        heads: of their chains.
        ends: of the source as last seen, by topic and partition; -1 for not seen.
        seen_at: when, ms since the epoch; 0 for never.
        now: ms since the epoch.
        broken: lanes with a run that cannot be settled.
    """
    unsettled = set(broken)

    def end(lane: Lane) -> int | None:
        known = ends.get(lane.topic, ())
        found = known[lane.partition] if lane.partition < len(known) else -1
        return found if found >= 0 else None

    return Holdings(
        lanes=tuple(
            LaneHolding(
                topic=lane.topic,
                partition=lane.partition,
                position=head.position,
                copied_at=max(0, head.run.newest_timestamp) if head.run is not None else 0,
                written_at=head.run.settled_at if head.run is not None else 0,
                seen_end=end(lane),
                in_doubt=head.in_doubt or lane in unsettled,
            )
            for lane, head in sorted(heads.items(), key=lambda each: each[0])
        ),
        seen_at=seen_at,
        lost_at=now,
    )
