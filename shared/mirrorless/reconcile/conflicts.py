"""Conflicts of a reconcile: keys that were written on both sides during the outage.

On the source such a key has an orphan, and beside it a record that only the target had. All of them are counted and the
first ones listed. Where the source topic is compacted, `replay` would put the orphan behind the other record, and its
value would become the key's latest. So an orphan is withheld there, unless it is newer, by its timestamp, than every
other record of its key. A timestamp that is missing is not newer.

The keys are compared by their hashes. Orphans are held, so many at a time, and everything else is read beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from mirrorless.chain.run import Run
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import ReconcileOptions
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.difference import committed_runs, read_through, united, within
from mirrorless.reconcile.join import places_of
from mirrorless.reconcile.tasks import InspectTask, LaneInspection, ReconciledLane
from mirrorless.records.record import Record

HELD_ORPHANS: Final = 500_000
"""At about 500 bytes each; more of them take more readings of the rest."""

LISTED: Final = 100
"""Conflicts of one lane in the report; more are counted."""

SAMPLED: Final = 5
"""Keys of one lane's orphans in the report, beside those of conflicts."""

KEY_BYTES: Final = 60
"""Of a listed conflict's key."""

HASH_BYTES: Final = 16

NEAR: Final = 500
"""Upstream offsets between two orphans that are read through."""

ConflictSide = Literal["source", "target"]


class ConflictTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """Set beside the orphans of one lane what else was written with their keys, and keep them in the run's folder."""

    settings: FlowSettings
    topic: str
    """On the source."""
    remote_topic: str
    partition: int
    files: str
    """URI or path of the run's folder."""
    orphans: tuple[OffsetRange, ...]
    """Upstream offsets at which every record is an orphan; growing and apart."""
    wanted: OffsetRange
    """Upstream: what is read."""
    skipped: tuple[OffsetRange, ...] = ()
    """Upstream offsets that do not count: orphans that were written again."""
    on_target: tuple[OffsetRange, ...] = ()
    """Downstream: what is read beside."""


class ConflictRecord(msgspec.Struct, frozen=True):
    """One record of a conflict, without its content."""

    side: ConflictSide
    offset: int
    timestamp: int
    """ms since the epoch; -1 for none."""
    bytes: int
    """Of key and value."""
    tombstone: bool

    @property
    def rank(self) -> tuple[float, int, str]:
        """By which the newest is found: a record without a timestamp may be newer than any."""
        return inf if self.timestamp < 0 else self.timestamp, self.offset, self.side


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


def conflict_task(
    settings: FlowSettings,
    inspection: LaneInspection,
    orphans: Sequence[OffsetRange],
    chains: Chains,
    *,
    end: int | None,
    copied: bool,
    files: str,
) -> ConflictTask:
    """What is to be read for the conflicts of one lane.

    Args:
        settings: of the flow.
        inspection: of the lane.
        orphans: upstream offsets, growing and apart; at least one.
        chains: of the flow.
        end: the source's stable end; None where it has no leader now, and the read itself shows whether it has one.
        copied: whether what is new on the target stands on the source by now; otherwise the target is read.
        files: URI or path of the run's folder.

    Raises:
        Retriable: the store does not answer.
    """
    lane = inspection.lane(settings.name)
    since = min(inspection.position, since_of(chains, lane, orphans[0].first))
    return ConflictTask(
        settings=settings,
        topic=inspection.topic,
        remote_topic=inspection.remote_topic,
        partition=inspection.partition,
        files=files,
        orphans=tuple(orphans),
        wanted=OffsetRange(since, orphans[-1].next if end is None else end),
        skipped=united(places_of(committed_runs(chains, lane.replay))),
        on_target=() if copied else inspection.to_copy,
    )


class KeptOrphan(NamedTuple):
    """An orphan without its content, and the newest other record of its key."""

    offset: int
    timestamp: int
    size: int
    """Of key and value, in bytes."""
    tombstone: bool
    label: bytes | None
    """The first bytes of its key; None where it has none."""
    hash: bytes
    other: ConflictRecord | None = None

    @classmethod
    def of(cls, record: Record) -> KeptOrphan:
        """A record alone."""
        label, hashed = None if record.key is None else record.key[:KEY_BYTES], _hash(record.key or b"")
        return cls(record.offset, record.timestamp, _size(record), record.value is None, label, hashed)


@dataclass(slots=True)
class ConflictSearch:
    """The search for the conflicts of one lane."""

    task: ConflictTask
    read: Callable[[ConflictSide, OffsetRange], Iterable[Sequence[Record]]]
    """Reads a range of the lane's partition on one side, chunk by chunk."""
    _keys: dict[bytes, bool] = field(default_factory=dict)
    """Those of orphans, at about 100 bytes each, and whether they were written on both sides."""
    _times: list[int] = field(default_factory=list)
    """The oldest and the newest."""
    _sample: list[OrphanKey] = field(default_factory=list)
    _listed: dict[bytes, Conflict] = field(default_factory=dict)
    _older: list[OffsetRange] = field(default_factory=list)

    def orphans(self) -> Iterator[list[KeptOrphan]]:
        """All orphans in order, some at a time.

        Raises:
            Retriable: a cluster does not answer.
        """
        coming = map(KeptOrphan.of, chain.from_iterable(self._orphans()))
        while some := list(islice(coming, HELD_ORPHANS)):
            newest = self._newest({each.hash for each in some if each.label is not None})
            kept = [each if each.label is None else each._replace(other=newest.get(each.hash)) for each in some]
            for each in kept:
                self._count(each)
            yield kept

    def found(self) -> LaneConflicts:
        """What they come to."""
        return LaneConflicts(
            keys=len(self._keys),
            oldest=min(self._times, default=-1),
            newest=max(self._times, default=-1),
            first_keys=tuple(self._sample),
            conflicts=sum(self._keys.values()),
            listed=tuple(sorted(self._listed.values(), key=lambda each: each.orphan.offset)),
            older=tuple(self._older),
        )

    def _orphans(self) -> Iterator[list[Record]]:
        for wanted in read_through(self.task.orphans, near=NEAR):
            for records in self.read("source", wanted):
                inside = within(self.task.orphans, (each.offset for each in records))
                yield [record for record, is_orphan in zip(records, inside, strict=True) if is_orphan]

    def _newest(self, keys: set[bytes]) -> dict[bytes, ConflictRecord]:
        """The newest record of each of some keys that is no orphan. One without a timestamp is the newest."""
        found: dict[bytes, ConflictRecord] = {}
        for side, record in self._others() if keys else ():
            if record.key is None or (hashed := _hash(record.key)) not in keys:
                continue
            other = ConflictRecord(side, record.offset, record.timestamp, _size(record), record.value is None)
            if hashed not in found or found[hashed].rank < other.rank:
                found[hashed] = other
        return found

    def _others(self) -> Iterator[tuple[ConflictSide, Record]]:
        task = self.task
        apart = united([*task.orphans, *task.skipped])
        for records in self.read("source", task.wanted):
            for record, left_out in zip(records, within(apart, (each.offset for each in records)), strict=True):
                if not left_out:
                    yield "source", record
        for wanted in task.on_target:
            for records in self.read("target", wanted):
                yield from (("target", record) for record in records)

    def _count(self, each: KeptOrphan) -> None:
        if each.timestamp >= 0:
            times = (*self._times, each.timestamp)
            self._times = [min(times), max(times)]
        if each.label is None:
            return
        text = each.label.decode("utf-8", "backslashreplace")
        if len(self._sample) < SAMPLED:
            self._sample.append(OrphanKey(text, each.hash.hex(), each.offset, each.timestamp, each.size))
        self._keys[each.hash] = each.other is not None
        if each.other is None:
            return
        if each.hash in self._listed or len(self._listed) < LISTED:
            orphan = ConflictRecord("source", each.offset, each.timestamp, each.size, each.tombstone)
            self._listed[each.hash] = Conflict(text, orphan, each.other)
        if each.timestamp <= each.other.rank[0]:
            row = OffsetRange(each.offset, each.offset + 1)
            if self._older and self._older[-1].next == row.first:
                row = OffsetRange(self._older.pop().first, row.next)
            self._older.append(row)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=HASH_BYTES).digest()


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")
