"""The lanes of a partition during a reconcile, the tasks of it, their results, and the policies of its orphans.

    forward   us-east->eu-west orders-3             the flow's: its chain has what both sides have
    back      eu-west->us-east us-east.orders-3     records that only the target had, on their way to the source
    orphans   us-east->eu-west orders#orphans-3     records that only the source had, on their way to an orphans topic
    replay    us-east->eu-west orders#replay-3      the same, written again behind what came back

All of them stand in the forward flow's own tables. A `#` is in no topic's name. After a reset the source's offsets may
mean other records, so each generation of the forward lane has lanes of the job of its own.

An orphan is a visible record of the source at or above the lane's position that is not a copy from the target. Orphans
are kept as stretches between two copies. A stretch has the orphans' offsets, and may hold markers as well.

    report       not copied; the loss ledger has it
    quarantine   copied to `<remote topic>.orphans` on the target, once
    replay       written again at the source topic's end, once: the flow brings it to the target, groups meet it;
                 on a compacted topic withheld where another record of its key is newer

The ledger is the list of the work. It is written before the chain passes the orphans, so the next run completes a run
that died; finished work is in the chains of the job's lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.losses import Loss
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import CopyTask, OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.reconcile.difference import Stretch, united, without

ORPHANS_SUFFIX = ".orphans"
"""Of the topic on the target with the quarantined orphans: `us-east.orders.orphans`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledLane:
    """One partition of one flow, and the lanes by which a reconcile moves its records."""

    forward: Lane
    remote_topic: str
    generation: int
    """Of the forward lane."""

    @property
    def back(self) -> Lane:
        """From the remote topic to the source topic."""
        turned = FlowName(self.forward.flow.target, self.forward.flow.source)
        return Lane(turned, self._beside(self.remote_topic, ""), self.forward.partition)

    @property
    def orphans(self) -> Lane:
        """From the source topic to the topic of orphans on the target."""
        return Lane(self.forward.flow, self._beside(self.forward.topic, "orphans"), self.forward.partition)

    @property
    def replay(self) -> Lane:
        """From the source topic to its own end."""
        return Lane(self.forward.flow, self._beside(self.forward.topic, "replay"), self.forward.partition)

    @property
    def orphans_topic(self) -> str:
        """The topic of quarantined orphans, on the target."""
        return self.remote_topic + ORPHANS_SUFFIX

    def _beside(self, topic: str, what: str) -> str:
        number = str(self.generation) if self.generation else ""
        suffix = ".".join(part for part in (what, number) if part)
        return f"{topic}#{suffix}" if suffix else topic


def refuse_one_way(settings: FlowSettings, topics: Iterable[str]) -> None:
    """Refuse topics whose copies are not what the source has, and may not become it.

    Nor is anything to be done for a flow that marks its copies: the flow in the other direction brings back what only
    the target has.

    Raises:
        ConfigurationError: it is such a flow, or one of the topics has a rule.
    """
    if masked := [topic for topic in topics if settings.rule_of(topic) is not None]:
        raise ConfigurationError(
            f"`transforms` change or leave out records of {', '.join(masked)}, so nothing may come back from "
            f"{settings.target.alias}, and no comparison shows what it lacks",
            where=settings.flow,
            hint=f"name topics without a rule; `mirrorless verify start '{settings.flow}'` proves the copies of all",
        )
    if settings.origins:
        raise ConfigurationError(
            f"nothing is to be reconciled: {settings.name.turned} copies what only {settings.target.alias} has, and "
            f"{settings.name} goes on where it was",
            where=settings.flow,
            hint=f"enable {settings.name.turned} with `loop.prevention: header`",
        )


def back_tasks(
    settings: FlowSettings,
    lane: ReconciledLane,
    late: Sequence[OffsetRange],
    tail: OffsetRange | None,
    *,
    run_id: str,
    files: str,
) -> list[CopyTask]:
    """Make the tasks that copy one lane's new records back: first those between runs, then those behind them.

    Two tasks, to be done one after the other: a run holds records of one kind, so that either all of its records have a
    place in the forward chain or none has.
    """
    parts = [tuple(late), (tail,) if tail is not None else ()]
    return [
        CopyTask(
            settings=turned_around(settings),
            tables_region=settings.target.region or "",
            lane_topic=lane.back.topic,
            read_topic=lane.remote_topic,
            write_topic=lane.forward.topic,
            partition=lane.forward.partition,
            ranges=part,
            run_id=run_id,
            files=files,
        )
        for part in parts
        if part
    ]


def orphan_task(
    settings: FlowSettings,
    lane: ReconciledLane,
    policy: Policy,
    ranges: Sequence[OffsetRange],
    *,
    run_id: str,
    files: str,
) -> CopyTask:
    """Make the task that carries out the policy of one lane's orphans: `quarantine` or `replay`."""
    replay = policy == "replay"
    return CopyTask(
        settings=replace(settings, target=settings.source) if replay else settings,
        tables_region=settings.target.region or "",
        lane_topic=(lane.replay if replay else lane.orphans).topic,
        read_topic=lane.forward.topic,
        write_topic=lane.forward.topic if replay else lane.orphans_topic,
        partition=lane.forward.partition,
        ranges=tuple(ranges),
        run_id=run_id,
        files=files,
    )


def turned_around(settings: FlowSettings) -> FlowSettings:
    """The flow from the target to the source; its tables stay where they are."""
    name = FlowName(settings.name.target, settings.name.source)
    return replace(settings, flow=str(name), source=settings.target, target=settings.source)


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


# Orphans


_DONE: Final[dict[Policy, str]] = {
    "report": "never replicated before the source was lost; it is on the source alone",
    "quarantine": "never replicated before the source was lost; copied to {topic} on the target",
    "replay": "never replicated before the source was lost; written again behind what came back from the target",
}

WITHHELD: Final = (
    "never replicated before the source was lost; not written again, because another record of its key is as new, or "
    "newer"
)
"""The text of a withheld orphan in the ledger."""


def orphaned(lane: ReconciledLane, policy: Policy, stretches: Iterable[Stretch], *, at: int) -> Iterator[Loss]:
    """The entries of a lane's orphans in the ledger; `at` is in ms since the epoch."""
    for stretch in stretches:
        yield Loss(
            lane=lane.forward,
            generation=lane.generation,
            first=stretch.first,
            next=stretch.next,
            cause="orphaned",
            detail=what_is_done(lane, policy),
            at=at,
        )


def what_is_done(lane: ReconciledLane, policy: Policy) -> str:
    """The text of a policy in the ledger."""
    return _DONE[policy].format(topic=lane.orphans_topic)


def to_do(lane: ReconciledLane, policy: Policy, losses: Iterable[Loss], *, position: int) -> tuple[OffsetRange, ...]:
    """The orphans that wait for their policy to be carried out.

    Args:
        lane: the lane.
        policy: `quarantine` or `replay`; for `report` there is no work.
        losses: of the forward lane, by upstream offset.
        position: of the job's lane that carries it out: what lies below is done.
    """
    if policy == "report":
        return ()
    ours = [loss for loss in losses if loss.cause == "orphaned" and loss.generation == lane.generation]
    waiting = united(
        OffsetRange(max(loss.first, position), loss.next) for loss in ours if loss.detail == what_is_done(lane, policy)
    )
    return without(waiting, withheld(lane, ours))


def withheld(lane: ReconciledLane, losses: Iterable[Loss]) -> tuple[OffsetRange, ...]:
    """The orphans that were withheld: offsets of records, growing and apart."""
    return united(
        OffsetRange(loss.first, loss.next)
        for loss in losses
        if loss.generation == lane.generation and loss.detail == WITHHELD
    )


def withholding(
    lane: ReconciledLane, losses: Iterable[Loss], older: Sequence[OffsetRange], *, at: int
) -> Iterator[Loss]:
    """The entries that divide those of a lane's replay, in the order in which they are to be noted.

    The last part first: the one that replaces the whole entry comes when all others are noted.

    Args:
        lane: the lane.
        losses: of the forward lane.
        older: the orphans to withhold; growing and apart.
        at: ms since the epoch.
    """
    replayed = what_is_done(lane, "replay")
    for loss in losses:
        if loss.generation != lane.generation or loss.detail != replayed:
            continue
        whole = (OffsetRange(loss.first, loss.next),)
        kept = without(whole, older)
        parts = [(part, replayed) for part in kept] + [(part, WITHHELD) for part in without(whole, kept)]
        if kept == whole:
            continue
        for part, detail in sorted(parts, key=lambda each: each[0].first, reverse=True):
            yield dataclasses.replace(loss, first=part.first, next=part.next, detail=detail, at=at)


def lane_of(lane: ReconciledLane, policy: Policy) -> Lane:
    """The lane of the job that carries a policy out."""
    return lane.replay if policy == "replay" else lane.orphans
