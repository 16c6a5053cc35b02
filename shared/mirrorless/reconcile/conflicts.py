"""Conflicts of a reconcile: keys that were written on both sides during the outage.

On the source such a key has an orphan, and beside it a record that only the target had. All of them are counted and the
first ones listed. Where the source topic is compacted, `replay` would put the orphan behind the other record, and its
value would become the key's latest. So an orphan is withheld there, unless it is newer, by its timestamp, than every
other record of its key. A timestamp that is missing is not newer.

The keys are compared by their hashes, in Spark: see `spark.jobs.reconcile.conflicts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from mirrorless.chain.run import Run
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import ReconcileOptions
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.difference import committed_runs
from mirrorless.reconcile.findings import InspectTask, LaneInspection
from mirrorless.reconcile.join import places_of
from mirrorless.reconcile.orphans import reaching, united

SECTION_OFFSETS: Final = 500_000
"""Offsets that one task reads."""

LISTED: Final = 100
"""Conflicts of one lane in the report; more are counted."""

SAMPLED: Final = 5
"""Keys of one lane's orphans in the report, beside those of conflicts."""

KEY_BYTES: Final = 60
"""Of a listed conflict's key."""

ConflictSide = Literal["source", "target"]


class ConflictSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Read a part of a log for the keys of one lane."""

    settings: FlowSettings
    lane: int
    """The lane's number in the job."""
    side: ConflictSide
    topic: str
    partition: int
    wanted: OffsetRange
    orphans: tuple[OffsetRange, ...] = ()
    """Offsets of the log at which every record is an orphan; growing and apart."""
    skipped: tuple[OffsetRange, ...] = ()
    """Offsets of the log that do not count: orphans that were written again."""


class ConflictRecord(msgspec.Struct, frozen=True):
    """One record of a conflict, without its content."""

    side: ConflictSide
    offset: int
    timestamp: int
    """ms since the epoch; -1 for none."""
    bytes: int
    """Of key and value."""
    tombstone: bool


class Conflict(msgspec.Struct, frozen=True):
    """An orphan, and the newest other record of its key."""

    key: str
    """Its first bytes, as text where they are text."""
    orphan: ConflictRecord
    other: ConflictRecord

    @property
    def older(self) -> bool:
        """Whether the orphan is not plainly the newer one."""
        return not self.orphan.timestamp > self.other.timestamp >= 0


class OrphanKey(msgspec.Struct, frozen=True):
    """One of the first orphans of a lane that have a key, without its content."""

    key: str
    """Its first bytes, as text where they are text."""
    hash: str
    """Of the whole key, in hex."""
    offset: int
    timestamp: int
    """ms since the epoch; -1 for none."""
    bytes: int
    """Of key and value."""


class LaneConflicts(msgspec.Struct, frozen=True, kw_only=True):
    """The orphans of one lane, beside the other records of their keys."""

    keys: int = 0
    """Of orphans."""
    oldest: int = -1
    newest: int = -1
    """Timestamps of orphans, ms since the epoch; -1 for none."""
    first_keys: tuple[OrphanKey, ...] = ()
    """Of the first `SAMPLED` orphans."""
    conflicts: int = 0
    """Keys that were written on both sides."""
    listed: tuple[Conflict, ...] = ()
    """The last orphan of each of the first `LISTED` of them."""
    older: tuple[OffsetRange, ...] = ()
    """Upstream offsets of orphans that have a record of their key beside them that is as new, or newer."""
    error: str = ""
    """The reason why they are not known."""


def refuse_live_replay(options: ReconcileOptions, tasks: Iterable[InspectTask]) -> None:
    """Refuse to compare values with a producer's that is writing them.

    Raises:
        ConfigurationError: orphans of a compacted topic are to be replayed, where newer, beside live producers.
    """
    if not options.live_source or options.conflicts == "replay":
        return
    for task in tasks:
        if task.compacts and options.policy_of(task.topic) == "replay":
            raise ConfigurationError(
                f"the orphans of {task.topic}, which is compacted, cannot be replayed while producers write to the "
                "source: a value that they write meanwhile would be replaced by an older one",
                where=f"{task.settings.flow} {task.topic}",
                hint="stop the producers, and leave `--live-source` out; or order older values by `--conflicts replay`",
            )


def since_of(chains: Chains, lane: ReconciledLane, first: int) -> int:
    """The upstream offset from which copies may stand beside a lane's first orphan, whichever job run joined them.

    Raises:
        Retriable: the store does not answer.
    """
    since = first
    while (
        link := chains.at_or_before(lane.forward, lane.generation, since - 1 if since < first else first)
    ) is not None:
        if not isinstance(link, Run) or not link.by_reconcile or link.position >= since:
            break
        since = link.position
    return since


def reads_of(
    settings: FlowSettings,
    number: int,
    inspection: LaneInspection,
    orphans: Sequence[OffsetRange],
    chains: Chains,
    *,
    end: int | None,
    copied: bool,
) -> list[ConflictSection]:
    """What is to be read for the conflicts of one lane.

    Args:
        settings: of the flow.
        number: of the lane in the job.
        inspection: of the lane.
        orphans: upstream offsets, growing and apart; at least one.
        chains: of the flow.
        end: the source's stable end; None where it has no leader now, and the read itself shows whether it has one.
        copied: whether what is new on the target stands on the source by now; otherwise the target is read.

    Raises:
        Retriable: the store does not answer.
    """
    lane = inspection.lane(settings.name)
    since = min(inspection.position, since_of(chains, lane, orphans[0].first))
    of_lane = ConflictSection(
        settings=settings,
        lane=number,
        side="source",
        topic=inspection.topic,
        partition=inspection.partition,
        wanted=OffsetRange(since, orphans[-1].next if end is None else end),
        orphans=tuple(orphans),
        skipped=united(places_of(committed_runs(chains, lane.replay))),
    )
    return [
        of_lane,
        *(
            ConflictSection(
                settings=settings,
                lane=number,
                side="target",
                topic=inspection.remote_topic,
                partition=inspection.partition,
                wanted=new,
            )
            for new in (() if copied else inspection.to_copy)
        ),
    ]


def sections_of(task: ConflictSection) -> Iterator[ConflictSection]:
    """The parts of a read, each of `SECTION_OFFSETS` at most."""
    for first in range(task.wanted.first, task.wanted.next, SECTION_OFFSETS):
        part = OffsetRange(first, min(first + SECTION_OFFSETS, task.wanted.next))
        yield msgspec.structs.replace(
            task, wanted=part, orphans=reaching(task.orphans, part), skipped=reaching(task.skipped, part)
        )
