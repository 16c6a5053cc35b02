"""Tasks and results of a reconcile for one lane: small values, which Spark tasks get and return."""

from __future__ import annotations

from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.difference import Stretch


class InspectTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """Inspect one partition, on both sides."""

    settings: FlowSettings
    """Of the flow that is reconciled, as its functions have them."""
    topic: str
    partition: int
    remote_topic: str
    compacts: bool = False
    """Whether the source topic is compacted: then a replicated record may be missing there."""
    topic_ids: str = ""
    """Of the topics on both sides, as the clusters give them: a topic that is made anew has another."""
    files: str = ""
    """URI or path of the run's folder, for the places of looks; empty to keep none."""
    count: bool = False
    """Whether all new records are counted; otherwise the first is found, and the copy counts them."""
    source_partitions: int | None = None
    """Of the source's topic, where it does not have this one: what is new is counted, and stays."""

    @property
    def lane(self) -> Lane:
        """The forward lane."""
        return Lane(FlowName.parse(self.settings.flow), self.topic, self.partition)


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

    def lane(self, flow: FlowName) -> ReconciledLane:
        """Its lanes."""
        forward = Lane(flow, self.topic, self.partition)
        return ReconciledLane(forward=forward, remote_topic=self.remote_topic, generation=self.generation)

    @property
    def to_copy(self) -> tuple[OffsetRange, ...]:
        """The downstream offsets to copy back to the source."""
        return self.late + ((self.tail,) if self.tail else ())


class OrphanTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """Find a lane's orphans, once everything new has been copied back."""

    settings: FlowSettings
    lane: ReconciledLane
    topic_ids: str = ""
    files: str = ""
    """Both: see `InspectTask`."""
    position: int
    """Of the forward lane."""
    until: int
    """The upstream offset up to which orphans are searched at least; where copies stand beyond it, up to these."""


class LaneOrphans(msgspec.Struct, frozen=True, kw_only=True):
    """A lane's orphans below the position that it will have."""

    until: int
    """The lane's next position."""
    stretches: tuple[Stretch, ...] = ()
    error: str = ""


class LaneToJoin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A lane whose copies and orphans are to be joined to its chain."""

    lane: ReconciledLane
    position: int
    """Of the forward lane, when it was inspected."""
    chain_end: int
    """Downstream, likewise: what stands below cannot be mapped."""
    until: int
    """The lane's next position, at least."""
    orphans: tuple[Stretch, ...]
    policy: Policy


class JoinTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """Join some lanes, one after the other: those of one journal."""

    settings: FlowSettings
    run_id: str
    lanes: tuple[LaneToJoin, ...]


class LaneJoined(msgspec.Struct, frozen=True, kw_only=True):
    """The result of joining one lane."""

    position: int = 0
    """Of the forward lane, now."""
    error: str = ""


class TallyTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """Add up what one job run did in a lane, by its chains."""

    settings: FlowSettings
    run_id: str
    lane: ReconciledLane
    position: int
    """Of the forward lane, when this attempt inspected it."""
    policy: Policy
    mapped: bool
    """Whether the copies were joined."""


class LaneTally(msgspec.Struct, frozen=True, kw_only=True):
    """What a job run did in one lane, over all its attempts."""

    fresh: int = 0
    """Records that were brought back and joined since this attempt inspected the lane, or not joined yet."""
    fresh_bytes: int = 0
    copied: int = 0
    """Records that this run brought back."""
    copied_bytes: int = 0
    passed_bytes: int = 0
    ranges: tuple[OffsetRange, ...] = ()
    """Downstream, of those; the first `LISTED_RANGES`."""
    unmapped: int = 0
    """Of those, without a place in the forward chain."""
    moved: int = 0
    """Orphans that this run wrote elsewhere."""
    error: str = ""
    """The reason why it is not known."""


LISTED_RANGES: Final = 1_000
"""Of one lane in a report: stretches of orphans, ranges of new records. More are counted."""
