"""The outcome of a reconcile, lane by lane and in total, and the forecast of one: plain values for whoever shows them.

The chains have the sums over all attempts of a job run: each link names the run that wrote it. How long a failback
takes is what its longest lane takes, or all of them: a lane is written with some megabytes under way, and each
transaction waits for some round trips more; the target is read at a pace that the look has measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import CHUNK_BYTES, OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.ports.stores import Chains, links_after
from mirrorless.reconcile.conflicts import Conflict, OrphanKey
from mirrorless.reconcile.difference import Stretch, committed_runs
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.reconcile.tasks import LISTED_RANGES, LaneTally, ReconciledLane, lane_of

UNDER_WAY_BYTES: Final = 5_000_000
"""Of one lane: five requests of a batch of 1 MB."""

TRANSACTION_ROUND_TRIPS: Final = 3
"""Beside its records: the partition is added, the commit is answered, the last batch is acknowledged."""


class FailbackForecast(msgspec.Struct, frozen=True):
    """How long a failback takes at least, once producers stand still."""

    bytes: int
    """Of new records."""
    round_trip_ms: float
    """Between the job and the source, measured by the look."""
    bytes_per_second: int
    """Read from the target by the look; 0 where it was over too soon to tell."""
    seconds: int


class OrphanReader(msgspec.Struct, frozen=True):
    """A group that had read orphans on the source: of a replay it reads them once more."""

    group: str
    records: int
    """Orphans below its offsets; of a stretch that it had read in part, at most so many."""


def forecast(sizes: Sequence[int], *, round_trip: float, bytes_per_second: float, at_a_time: int) -> FailbackForecast:
    """The forecast of a failback.

    Args:
        sizes: bytes of new records, lane by lane.
        round_trip: seconds.
        bytes_per_second: at which the target is read; 0 where that is not known.
        at_a_time: lanes.
    """
    waits = [_wait(size, round_trip) for size in sizes if size]
    written = max([*waits, sum(waits) / max(1, at_a_time)], default=0.0)
    read = sum(sizes) / bytes_per_second if bytes_per_second else 0.0
    return FailbackForecast(
        sum(sizes), round(round_trip * 1000, 1), int(bytes_per_second), -int(-max(written, read) // 1)
    )


def _wait(size: int, round_trip: float) -> float:
    """Seconds in which one lane waits for answers."""
    transactions = -(-size // CHUNK_BYTES)
    return round_trip * (size / UNDER_WAY_BYTES + TRANSACTION_ROUND_TRIPS * transactions)


def readers_of(
    committed: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]],
    orphans: Mapping[TopicPartition, Sequence[Stretch]],
) -> list[OrphanReader]:
    """The groups that had read orphans, most of them first.

    Args:
        committed: offsets on the source, by group.
        orphans: by partition of the source.
    """
    found = []
    for group, offsets in committed.items():
        records = sum(
            min(each.records, offsets[place].offset - each.first)
            for place, stretches in orphans.items()
            if place in offsets
            for each in stretches
            if each.first < offsets[place].offset
        )
        if records:
            found.append(OrphanReader(group, records))
    return sorted(found, key=lambda each: (-each.records, each.group))


READY = frozenset({"ready", "active_on_source"})
"""States in which a group needs no operator."""


class LaneOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one partition."""

    topic: str
    partition: int
    remote_topic: str
    policy: Policy
    differs: str = ""
    """The reason why it was left alone."""
    error: str = ""
    """The reason why it is not finished; the lane stays held."""
    position_before: int = 0
    position: int = 0
    """Of the forward lane, upstream."""
    on_target: int = 0
    """Records that the target has, by the map and the difference."""
    bytes_on_target: int = 0
    new: int = 0
    """Records that only the target had."""
    new_bytes: int = 0
    copied_back: int = 0
    copied_back_bytes: int = 0
    copied_back_passed_bytes: int = 0
    """Those of them whose batches were passed as they lay in the target's log."""
    unmapped: int = 0
    """Copied back and not in the map, because they stand between records that were replicated."""
    claimed_until: int = 0
    """Downstream: the chain's end before."""
    new_ranges: tuple[OffsetRange, ...] = ()
    """Downstream offsets."""
    orphans: tuple[Stretch, ...] = ()
    """Upstream offsets; the first `LISTED_RANGES` stretches."""
    orphan_records: int = 0
    orphan_bytes: int = 0
    """Both: of all stretches."""
    orphans_moved: int = 0
    """Copied to the topic of orphans, or written again."""
    orphans_withheld: int = 0
    """Not written again, because another record of their key is as new, or newer."""
    orphan_keys: int = 0
    first_orphan_keys: tuple[OrphanKey, ...] = ()
    oldest_orphan: int = -1
    newest_orphan: int = -1
    """Timestamps, ms since the epoch; -1 for none."""
    conflicts: int = 0
    """Keys that were written on both sides."""
    conflicting: tuple[Conflict, ...] = ()
    """The first of them."""
    waits: str = ""
    """Work that is left, and its condition."""

    @property
    def clean(self) -> bool:
        """Whether it needs no operator."""
        return not (self.differs or self.error or self.unmapped or self.waits)


class LocalTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the target's own with a source topic's name: the flow does not bring it back."""

    topic: str
    offsets: int
    """In its log."""
    since: int | None
    """Of these, since the lanes were held; None where they were not held."""


def totals_of(lanes: Sequence[LaneOutcome], groups: Sequence[ReturningGroup]) -> dict[str, Any]:
    """The totals, for programs."""
    size = sum(each.bytes_on_target for each in lanes)
    back = sum(each.copied_back_bytes for each in lanes)
    return {
        "lanes": len(lanes),
        "records": sum(each.on_target for each in lanes),
        "bytes": size,
        "new": sum(each.new for each in lanes),
        "copied_back": sum(each.copied_back for each in lanes),
        "copied_back_bytes": back,
        "copied_back_passed_bytes": sum(each.copied_back_passed_bytes for each in lanes),
        "copied_back_ratio": round(back / size, 6) if size else 0.0,
        "orphans": sum(each.orphan_records for each in lanes),
        "orphans_bytes": sum(each.orphan_bytes for each in lanes),
        "orphans_moved": sum(each.orphans_moved for each in lanes),
        "orphans_withheld": sum(each.orphans_withheld for each in lanes),
        "conflicts": sum(each.conflicts for each in lanes),
        "differing": sum(bool(each.differs) for each in lanes),
        "failed": sum(bool(each.error) for each in lanes),
        "unmapped": sum(each.unmapped for each in lanes),
        "groups": len(groups),
        "groups_not_ready": sum(each.readiness not in READY for each in groups),
        "reread": sum(each.reread for each in groups),
    }


def is_clean(lanes: Iterable[LaneOutcome], groups: Iterable[ReturningGroup], troubles: Sequence[str]) -> bool:
    """Whether no operator is needed."""
    return not troubles and all(each.clean for each in lanes) and all(each.readiness in READY for each in groups)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts one job run's links, one by one: a lane may have millions."""

    chains: Chains
    request: str
    """The job run."""

    def of(self, lane: ReconciledLane, policy: Policy, position: int, *, mapped: bool) -> LaneTally:
        """What the run did in a lane.

        Args:
            lane: the lane.
            policy: of its orphans.
            position: of the forward lane, when this attempt inspected it.
            mapped: whether the copies were joined.

        Raises:
            Retriable: the store does not answer.
        """
        fresh = fresh_bytes = copied = size = passed = 0
        ranges: list[OffsetRange] = []
        first: int | None = None
        before: Run | None = None
        for run in committed_runs(self.chains, lane.back):
            if not run.spans:
                before = None
                continue
            # Runs that an earlier attempt joined are among those that the chain claimed when this attempt inspected it.
            if (run.last_downstream or 0) >= position:
                fresh, fresh_bytes = fresh + run.records, fresh_bytes + run.bytes
            if run.request != self.request:
                continue
            copied, size, passed = copied + run.records, size + run.bytes, passed + run.passed_bytes
            first = run.spans[0].downstream if first is None else first
            if before is not None and before.next == run.position and ranges:
                ranges[-1] = OffsetRange(ranges[-1].first, _end(run))
            elif len(ranges) < LISTED_RANGES:
                ranges.append(OffsetRange(run.spans[0].upstream, _end(run)))
            before = run if ranges[-1].next == _end(run) else None
        moved = 0
        if policy != "report":
            beside = committed_runs(self.chains, lane_of(lane, policy))
            moved = sum(run.records for run in beside if run.request == self.request)
        found = self._mapped(lane, first) if mapped and first is not None else copied
        return LaneTally(
            fresh=fresh,
            fresh_bytes=fresh_bytes,
            copied=copied,
            copied_bytes=size,
            passed_bytes=passed,
            ranges=tuple(ranges),
            unmapped=max(0, copied - found),
            moved=moved,
        )

    def _mapped(self, lane: ReconciledLane, first: int) -> int:
        """Count the records of the forward chain that this run joined, from an upstream offset on."""
        link = self.chains.at_or_before(lane.forward, lane.generation, first)
        if link is None:
            return 0
        return sum(
            each.records
            for each in (link, *links_after(self.chains, lane.forward, lane.generation, link.position))
            if isinstance(each, Run) and each.request == self.request and each.spans
        )


def _end(run: Run) -> int:
    """The upstream offset behind a run's last record."""
    return run.spans[-1].upstream + run.spans[-1].length
