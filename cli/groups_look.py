"""Which consumer groups of a flow are followed, and where has one of them committed? What `groups` reads, and how.

The checkpoint table answers. The clusters are asked for what it does not have, and may be silent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cli.deployment import DeployedFlows
from cli.errors import BadInput
from cli.groups_view import GroupPlace, GroupsView
from mirrorless.errors import MirrorlessError
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints
from mirrorless.lane import FlowName, Lane
from mirrorless.naming import OWN_GROUPS
from mirrorless.ports.stores import StateStore

if TYPE_CHECKING:
    from mirrorless.ports.kafka import Deadline
    from mirrorless.settings import ClusterSettings

ANSWER_SECONDS = 5.0
"""How long the operator waits for a cluster that may be gone."""


def look_at(deployment: DeployedFlows, flow: FlowName, direction: Direction, *, group: str | None) -> GroupsView:
    """Read everything about a flow's groups, or about one of them by partition.

    Raises:
        BadInput: no checkpoint of the one group is kept.
        Retriable: the store does not answer.
    """
    groups = groups_of(deployment.stores(flow).checkpoints, flow, direction)
    if group is None:
        return _all(deployment, flow, direction, groups)
    return _one(deployment, flow, direction, groups, group)


def groups_of(checkpoints: StateStore, flow: FlowName, direction: Direction) -> list[GroupCheckpoints]:
    """Every group of a flow that is followed, in order.

    Raises:
        Retriable: the store does not answer.
    """
    stored = checkpoints.read(flow, f"{direction}/").values()
    return [msgspec.json.decode(text, type=GroupCheckpoints) for text in stored]


def _all(
    deployment: DeployedFlows, flow: FlowName, direction: Direction, groups: Sequence[GroupCheckpoints]
) -> GroupsView:
    names, trouble = _names(deployment, flow, direction)
    accepts = deployment.flow(flow).groups.accepts
    excluded = [name for name in names if not name.startswith(OWN_GROUPS) and not accepts(name)]
    return GroupsView(flow=flow, direction=direction, groups=groups, excluded=excluded, trouble=trouble)


def _one(
    deployment: DeployedFlows, flow: FlowName, direction: Direction, groups: Sequence[GroupCheckpoints], name: str
) -> GroupsView:
    found = [group for group in groups if group.group == name]
    if not found:
        raise BadInput(
            f"no checkpoint of group {name} is kept: {_why_not(deployment, flow, name)}",
            where=f"{flow} {direction}",
            hint="`mirrorless groups` lists those that are followed; with --reverse those that read on the target",
        )
    committed, trouble = _committed(deployment, flow, direction, name)
    places = [
        GroupPlace(lane=lane, offset=offset, committed=committed.get(lane))
        for lane, offset in sorted(found[0].lanes(flow), key=lambda each: each[0])
    ]
    return GroupsView(flow=flow, direction=direction, groups=found, places=places, trouble=trouble)


def _why_not(deployment: DeployedFlows, flow: FlowName, name: str) -> str:
    if name.startswith(OWN_GROUPS):
        return "it belongs to an event source mapping"
    if not deployment.flow(flow).groups.accepts(name):
        return "the flow's `groups` and `groups.exclude` refuse it"
    return "it has committed nothing on a topic of this flow, or no round has seen it yet"


def _names(deployment: DeployedFlows, flow: FlowName, direction: Direction) -> tuple[list[str], str]:
    """The groups of the side where the direction begins, and why they are not known."""
    try:
        from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- commands without Kafka start sooner

        cluster = _side(deployment, flow, there=direction == "reverse")
        _assert_answers(cluster, flow)
        return KafkaGroups(cluster, flow=str(flow)).names(_deadline()), ""
    except (MirrorlessError, ImportError) as exc:
        return [], str(exc)


def _committed(
    deployment: DeployedFlows, flow: FlowName, direction: Direction, name: str
) -> tuple[dict[Lane, int], str]:
    """What a group has committed on the side where the direction ends, by lane, and why that is not known."""
    configured, reverse = deployment.flow(flow), direction == "reverse"
    try:
        from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- same

        cluster = _side(deployment, flow, there=not reverse)
        _assert_answers(cluster, flow)
        found = KafkaGroups(cluster, flow=str(flow)).committed([name], _deadline())
    except (MirrorlessError, ImportError) as exc:
        return {}, str(exc)
    if name not in found:
        return {}, f"{cluster.alias} does not tell what group {name} has committed: check the rights on the group"
    committed = {}
    for (topic, partition), each in found[name].items():
        source_topic = topic if reverse else configured.policy.upstream_topic(topic)
        # A group may read other topics too, of its own cluster or of other flows: they are none of this flow's.
        if source_topic is not None and (reverse or configured.remote_topic(source_topic) == topic):
            committed[Lane(flow, source_topic, partition)] = each.offset
    return committed, ""


def _side(deployment: DeployedFlows, flow: FlowName, *, there: bool) -> ClusterSettings:
    settings = deployment.settings(flow)
    return settings.target if there else settings.source


def _assert_answers(cluster: ClusterSettings, flow: FlowName) -> None:
    """Ask by the one client that keeps silent about a silent cluster: the functions' clients log what they meet.

    Raises:
        Retriable: it does not answer.
    """
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- same

    KafkaOffsets(cluster, flow=str(flow)).partitions()


def _deadline() -> Deadline:
    end = time.monotonic() + ANSWER_SECONDS
    return lambda: end - time.monotonic()
