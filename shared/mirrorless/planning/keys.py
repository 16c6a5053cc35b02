"""The keys of replication.yaml that a plan sets, of one flow.

`trigger.overrides`, `schedule`, `mapping` and `emit.checkpoints.interval.seconds`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorless.planning.flow_plan import FlowPlan
from mirrorless.policy import HEARTBEATS_TOPIC
from mirrorless.triggers import MAPPING, SCHEDULE, Trigger

ALL_TOPICS: Final = ".*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggersNow:
    """The triggers as they are configured.

    Attributes:
        default: the flow's own.
        entries: whether there is a `trigger.overrides` of the flow or of `defaults`.
        touched: topics of the plan that are or may have been scheduled, because an entry is about them.
        heartbeats: whether the flow replicates the source's heartbeats.
        checkpoint_seconds: between two checkpoints.
    """

    default: Trigger = "mapping"
    entries: bool = False
    touched: Collection[str] = ()
    heartbeats: bool = False
    checkpoint_seconds: float = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKeys:
    """What a plan writes into a flow; a section or an entry that is None is left as it is."""

    overrides: Mapping[str, Trigger] | None
    """All of `trigger.overrides`."""
    schedule: Mapping[str, Any] | None
    mapping: Mapping[str, Any] | None
    checkpoint_seconds: int | None = None
    """`emit.checkpoints.interval.seconds`."""


def planned_keys(plan: FlowPlan, now: TriggersNow) -> PlannedKeys:
    """The keys of a plan's recommended option."""
    chosen = plan.recommended
    overrides = trigger_overrides(plan, now)
    schedule: dict[str, Any] | None = None
    if chosen.pull is not None:
        pull = chosen.pull
        pace = {"window.seconds": pull.seconds} if pull.continuous else {"interval.seconds": int(pull.seconds)}
        schedule = {"continuous": pull.continuous, **pace, "shards": pull.shards, "memory.mb": pull.memory_mb}
    mapping: dict[str, Any] = {}
    if chosen.mapping is not None:
        mapping["mode"] = chosen.mapping.mode
        # Half a second is what a window is where it is left out.
        if chosen.mapping.window.setting is not None:
            mapping["maximum.batching.window.seconds"] = chosen.mapping.window.setting
    return PlannedKeys(
        overrides=overrides if overrides or now.entries else None,
        schedule=schedule,
        mapping=mapping or None,
        checkpoint_seconds=int(chosen.checkpoint_seconds)
        if chosen.checkpoint_seconds > now.checkpoint_seconds
        else None,
    )


def trigger_overrides(plan: FlowPlan, now: TriggersNow) -> dict[str, Trigger]:
    """The entries that give each topic its trigger: names of the fewer, and a pattern for all others.

    A topic that an entry is about keeps one: only then its group is set before its mapping is made. Heartbeats have a
    mapping, so that their age still tells that the flow works.
    """
    counts: dict[Trigger, int] = {"mapping": len(plan.of("mapping")), "schedule": len(plan.of("schedule"))}
    most: Trigger = "schedule" if counts["schedule"] > counts["mapping"] else "mapping"
    if counts[now.default] and counts[most] - counts[now.default] <= 0:
        most = now.default  # without an entry, if both are as many
    entries: dict[str, Trigger] = {}
    for topic in plan.topics:
        name = topic.rate.topic
        if topic.trigger != most or (most == now.default == "mapping" and name in now.touched):
            entries[name] = topic.trigger
    if most == SCHEDULE and now.heartbeats:
        entries[HEARTBEATS_TOPIC] = MAPPING
    if most != now.default:
        entries[ALL_TOPICS] = most
    return entries
