"""Rules on flows in a circle that keep the names of topics: `loop.prevention`, and what only one of them may do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mirrorless.config.messages import Problem

if TYPE_CHECKING:
    from mirrorless.config.flow import Flow
    from mirrorless.config.rules import FlowPaths
    from mirrorless.lane import FlowName

PAIR = 2
"""Clusters between which consumer groups can be carried."""


def marks(flow: Flow) -> bool:
    """Whether a flow adds the origin header to its copies."""
    return flow.settings.loop_prevention == "header" and flow.settings.replication_policy == "identity"


def origins_of(flows: Sequence[Flow]) -> Mapping[FlowName, tuple[str, ...]]:
    """The clusters of the circle of each flow that marks its copies, disabled ones too; empty for all others.

    A flow without a way back has its own two: its counterpart may be enabled one day.
    """
    ways = [flow.name for flow in flows if marks(flow)]
    return {
        flow.name: tuple(
            sorted(
                {flow.name.source, flow.name.target}
                | {alias for alias in _reached(flow.name.target, ways) if flow.name.source in _reached(alias, ways)}
            )
        )
        if marks(flow)
        else ()
        for flow in flows
    }


def _reached(alias: str, ways: Sequence[FlowName]) -> set[str]:
    """The clusters that a record of one gets to, and itself."""
    found, new = {alias}, {alias}
    while new:
        new = {way.target for way in ways if way.source in new} - found
        found |= new
    return found


def problems_with_loops(flows: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """Find what `loop.prevention` does not allow.

    Args:
        flows: those that are enabled.
        paths: of their values.
    """
    for flow in flows:
        if flow.settings.loop_prevention and not marks(flow):
            what = "prefixed names show where a record comes from, and need no header"
            yield Problem(path=paths.of(flow, "loop.prevention"), what=what, hint="remove it")
    for circle in _circles(flows):
        yield from _one_way(circle, paths)
        for flow in circle:
            yield from _of_one(flow, circle, paths)


def _circles(flows: Sequence[Flow]) -> list[list[Flow]]:
    """The flows of each circle, in the document's order."""
    found: dict[tuple[str, ...], list[Flow]] = {}
    ways = [flow.name for flow in flows if marks(flow)]
    for flow in flows:
        if marks(flow) and flow.name.source in _reached(flow.name.target, ways):
            found.setdefault(flow.origins, []).append(flow)
    return list(found.values())


def _one_way(circle: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """What is copied in both directions would be changed back and forth, or come back once it is removed."""
    for key, what in (("sync.topic.configs.enabled", "configs of topics"), ("sync.topic.acls.enabled", "ACLs")):
        copying = [flow for flow in circle if getattr(flow.settings, key.replace(".", "_"))]
        for flow in copying[1:]:
            yield Problem(
                path=paths.of(flow, key),
                what=f"{copying[0].name} copies {what} too: what is changed on one side would be changed back",
                hint="write `false` in all flows between these clusters but one",
            )


def _of_one(flow: Flow, circle: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    settings = flow.settings
    if settings.delivery != "exactly_once":
        what = "between clusters that replicate to each other, copies must not be visible before the map has them"
        yield Problem(path=paths.of(flow, "delivery"), what=what, hint="write `delivery: exactly_once`")
    if len(circle) > PAIR and settings.emit_checkpoints_enabled:
        what = f"groups cannot be carried in a circle of {len(circle)} clusters: no map spans two flows"
        hint = "write `emit.checkpoints.enabled: false` and `sync.group.offsets.enabled: false`, or use pairs"
        yield Problem(path=paths.of(flow, "emit.checkpoints.enabled"), what=what, hint=hint)
    if flow.source.account != flow.target.account and settings.emit_checkpoints_enabled:
        what = "groups are carried by the maps of both flows, and each is in an account of its own"
        hint = "write `emit.checkpoints.enabled: false` and `sync.group.offsets.enabled: false`"
        yield Problem(path=paths.of(flow, "emit.checkpoints.enabled"), what=what, hint=hint)
