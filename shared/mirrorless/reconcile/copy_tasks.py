"""The lanes of a partition during a reconcile, the flow's own and three of the job; and the copy tasks of those three.

    forward   us-east->eu-west orders-3             the flow's: its chain has what both sides have
    back      eu-west->us-east us-east.orders-3     records that only the target had, on their way to the source
    orphans   us-east->eu-west orders#orphans-3     records that only the source had, on their way to an orphans topic
    replay    us-east->eu-west orders#replay-3      the same, written again behind what came back

All of them stand in the forward flow's own tables. A `#` is in no topic's name. After a reset the source's offsets may
mean other records, so each generation of the forward lane has lanes of the job of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import CopyTask, OffsetRange
from mirrorless.jobs.request import Policy

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
