"""The outcome of a reconcile: its lanes as the job leaves them, with the sums of all attempts from the chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mirrorless.clock import now_ms
from mirrorless.jobs.request import Policy, lane_file
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import JobFiles
from mirrorless.reconcile.conflicts import LaneConflicts
from mirrorless.reconcile.difference import Stretch
from mirrorless.reconcile.outcome import FailbackForecast, LaneOutcome, LocalTopic, OrphanReader, is_clean, totals_of
from mirrorless.reconcile.report import report_of
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.reconcile.tasks import LISTED_RANGES, LaneInspection, LaneTally, ReconciledLane
from spark.jobs.driver import JobOutcome, JobRun


@dataclass(slots=True)
class LaneUnderWay:
    """One lane during the job."""

    inspection: LaneInspection
    lane: ReconciledLane
    policy: Policy
    error: str = ""
    waits: str = ""
    orphans: tuple[Stretch, ...] = ()
    until: int = 0
    position: int = 0
    conflicts: LaneConflicts = field(default_factory=LaneConflicts)
    withheld: int = 0
    """Orphans that are not written again, since another record of their key is as new, or newer."""

    @property
    def going(self) -> bool:
        """Whether more is to be done with it."""
        return not self.inspection.differs and not self.error

    @property
    def place(self) -> TopicPartition:
        """Its partition of the source."""
        return self.inspection.topic, self.inspection.partition

    def remember(self, files: JobFiles) -> None:
        """Keep its orphans for the report of an attempt that continues after the join."""
        merged = {stretch.first: stretch for stretch in (*self.remembered(files), *self.orphans)}
        files.write(self._file, msgspec.json.encode(tuple(merged[first] for first in sorted(merged))))

    def remembered(self, files: JobFiles) -> tuple[Stretch, ...]:
        """Its orphans, found in all attempts."""
        known = files.read(self._file)
        return msgspec.json.decode(known, type=tuple[Stretch, ...]) if known else ()

    @property
    def _file(self) -> str:
        return lane_file(self.inspection.topic, self.inspection.partition, "orphans")


def outcome_of(
    run: JobRun,
    lanes: Sequence[LaneUnderWay],
    groups: Sequence[ReturningGroup],
    *,
    tallies: Mapping[int, LaneTally],
    local: Sequence[LocalTopic],
    troubles: Sequence[str],
    look: tuple[FailbackForecast, Sequence[OrphanReader]] | None = None,
) -> JobOutcome:
    """The job's outcome.

    Args:
        run: of the job.
        lanes: its lanes.
        groups: those that were brought back.
        tallies: of each lane that was not left alone, by its place in `lanes`; none where it was only looked.
        local: topics of the target's own.
        troubles: the errors that are no lane's, in words.
        look: where it was only looked: the failback to come, and the groups that had read orphans.

    Raises:
        Retriable: the run's folder does not answer.
    """
    found = [_outcome(each, tallies.get(number), run.files) for number, each in enumerate(lanes)]
    totals = totals_of(found, groups)
    clean = is_clean(found, groups, troubles)
    report = report_of(
        f"Reconcile {run.request.flow.flow}",
        lanes=found,
        groups=groups,
        local=local,
        troubles=troubles,
        totals=totals,
        look=look,
        clean=clean,
        made_at=now_ms(),
    )
    return JobOutcome(
        clean=clean,
        found={
            "totals": totals,
            "lanes": msgspec.to_builtins(found),
            "groups": msgspec.to_builtins(groups),
            "local_topics": msgspec.to_builtins(local),
            "troubles": list(troubles),
            "forecast": msgspec.to_builtins(look[0]) if look else None,
            "orphan_readers": msgspec.to_builtins(look[1]) if look else [],
        },
        report=report,
    )


def _outcome(each: LaneUnderWay, tally: LaneTally | None, files: JobFiles) -> LaneOutcome:
    """The outcome of one lane; without a tally only what this attempt found."""
    inspection = each.inspection
    orphans = each.orphans if tally is None else each.remembered(files) or each.orphans
    new, new_bytes = inspection.late_records + inspection.tail_records, inspection.late_bytes + inspection.tail_bytes
    back = LaneTally(fresh=new, fresh_bytes=new_bytes) if tally is None else tally
    return LaneOutcome(
        topic=inspection.topic,
        partition=inspection.partition,
        remote_topic=inspection.remote_topic,
        policy=each.policy,
        differs=inspection.differs,
        error=each.error or back.error,
        position_before=inspection.position,
        position=each.position or inspection.position,
        claimed_until=inspection.chain_end,
        on_target=inspection.claimed_records + back.fresh,
        bytes_on_target=inspection.claimed_bytes + back.fresh_bytes,
        new=new if tally is None else tally.copied,
        new_bytes=new_bytes if tally is None else tally.copied_bytes,
        new_ranges=back.ranges or inspection.to_copy[:LISTED_RANGES],
        copied_back=back.copied,
        copied_back_bytes=back.copied_bytes,
        copied_back_passed_bytes=back.passed_bytes,
        unmapped=0 if each.error else back.unmapped,
        orphans=orphans[:LISTED_RANGES],
        orphan_records=sum(some.records for some in orphans),
        orphan_bytes=sum(some.bytes for some in orphans),
        orphans_moved=back.moved,
        orphans_withheld=each.withheld,
        orphan_keys=each.conflicts.keys,
        first_orphan_keys=each.conflicts.first_keys,
        oldest_orphan=each.conflicts.oldest,
        newest_orphan=each.conflicts.newest,
        conflicts=each.conflicts.conflicts,
        conflicting=each.conflicts.listed,
        waits=each.waits,
    )
