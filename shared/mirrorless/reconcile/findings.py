"""Tasks and results of a reconcile for one lane: small values, which Spark tasks get and return."""

from __future__ import annotations

import msgspec

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lane import FlowName, Lane
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.orphans import Stretch
from mirrorless.settings import FlowSettings


class InspectTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Inspect one partition, on both sides."""

    settings: FlowSettings
    """Of the flow that is reconciled, as its functions have them."""
    topic: str
    partition: int
    remote_topic: str
    compacts: bool = False
    """Whether the source topic is compacted: then a replicated record may be missing there."""
    count: bool = False
    """Whether all new records are counted; otherwise the first is found, and the copy counts them."""

    @property
    def lane(self) -> Lane:
        """The forward lane."""
        return Lane(FlowName.parse(self.settings.flow), self.topic, self.partition)


class LaneNames(msgspec.Struct, frozen=True):
    """The names of a task's lanes."""

    topic: str
    partition: int
    remote: str
    generation: int

    def of(self, flow: FlowName) -> ReconciledLane:
        """The lanes themselves."""
        forward = Lane(flow, self.topic, self.partition)
        return ReconciledLane(forward=forward, remote_topic=self.remote, generation=self.generation)


class LaneInspection(msgspec.Struct, frozen=True, kw_only=True):
    """One lane before anything is changed."""

    topic: str
    partition: int
    remote_topic: str
    differs: str = ""
    """The reason why the lane is left alone, and what to do; empty where it can be reconciled."""
    compacts: bool = False
    """Whether the source topic is compacted."""
    generation: int = 0
    position: int = 0
    """Of the forward lane: the first upstream offset that was never replicated."""
    reconciled: bool = False
    """Whether a reconcile joined the chain's last link: then the flow replicates what follows on the source."""
    chain_end: int = 0
    """Downstream: behind the last record in the chain."""
    claimed_records: int = 0
    claimed_bytes: int = 0
    source: OffsetRange = OffsetRange(0, 0)
    """Upstream: first offset, and the end as it was found."""
    target: OffsetRange = OffsetRange(0, 0)
    """Downstream: first offset and stable end."""
    late: tuple[OffsetRange, ...] = ()
    """Downstream offsets of records that stand between runs."""
    late_records: int = 0
    late_bytes: int = 0
    tail: OffsetRange | None = None
    """Downstream offsets behind the chain's end, where there is a record among them."""
    tail_records: int = 0
    """Counted where the task wants it."""
    tail_bytes: int = 0
    orphans: tuple[Stretch, ...] = ()
    """As far as they were searched."""

    @property
    def names(self) -> LaneNames:
        """Its names, as plain values."""
        return LaneNames(
            topic=self.topic, partition=self.partition, remote=self.remote_topic, generation=self.generation
        )

    @property
    def to_copy(self) -> tuple[OffsetRange, ...]:
        """The downstream offsets to copy back to the source."""
        return self.late + ((self.tail,) if self.tail else ())


class OrphanTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Find a lane's orphans, once everything new has been copied back."""

    settings: FlowSettings
    names: LaneNames
    position: int
    """Of the forward lane."""
    until: int
    """The upstream offset up to which orphans are searched at least; where copies stand beyond it, up to these."""


class LaneOrphans(msgspec.Struct, frozen=True, kw_only=True):
    """A lane's orphans below the position that it will have."""

    names: LaneNames
    until: int
    """The lane's next position."""
    stretches: tuple[Stretch, ...] = ()
    error: str = ""
