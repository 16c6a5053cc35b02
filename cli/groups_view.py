"""The groups of a flow, read from the checkpoint table, with what the clusters add; either may be down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cli.args import BadInput
from cli.clusters import ClusterReads, offsets_of
from cli.deployment import DeployedFlows
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.clock import deadline_in
from mirrorless.flow.naming import OWN_GROUPS
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset, document_key
from mirrorless.ports.stores import StateStore
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.groups import KafkaGroups

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""Limit for a cluster that may be down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """One partition of a group, on both sides."""

    lane: Lane
    offset: GroupOffset
    committed: int | None
    """The group's commit on the side where it would go on; None for nothing, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """The groups of one flow in one direction."""

    flow: FlowName
    direction: Direction
    groups: Sequence[GroupCheckpoints]
    excluded: Sequence[str] = ()
    """Groups on the side where the direction begins that the flow's filter refuses."""
    partitions: Sequence[GroupPartition] = field(default_factory=tuple)
    """Of the one group that `--group` names."""
    grace_ms: int = 0
    """How long the flow waits before it commits for a group whose members have left; 0 where it does not commit."""
    trouble: str = ""
    """Why a cluster does not answer. The rest is known without it."""

    @property
    def begins_on(self) -> str:
        """The cluster whose commits are followed."""
        return self.flow.target if self.direction == "reverse" else self.flow.source

    @property
    def ends_on(self) -> str:
        """The cluster where a group would go on."""
        return self.flow.source if self.direction == "reverse" else self.flow.target


def need_operator(groups: Iterable[GroupCheckpoints]) -> list[str]:
    """The groups that no further round makes ready, and those that would skip records from this flow's own offsets."""
    return [group.group for group in groups if group.needs_operator]


def read_groups(deployment: DeployedFlows, flow: FlowName, direction: Direction, *, group: str | None) -> GroupsView:
    """Read a flow's groups, or one of them by partition.

    Raises:
        BadInput: no checkpoint of the one group is kept.
        Retriable: the store does not answer.
    """
    stored = deployment.stores(flow).checkpoints
    if group is None:
        groups = groups_of(stored, flow, direction)
        return _with_excluded(deployment, GroupsView(flow=flow, direction=direction, groups=groups))
    found = checkpoints_of(deployment, stored, flow, direction, group)
    return _with_partitions(deployment, GroupsView(flow=flow, direction=direction, groups=[found]))


def checkpoints_of(
    deployment: DeployedFlows, stored: StateStore, flow: FlowName, direction: Direction, group: str
) -> GroupCheckpoints:
    """One group with a checkpoint.

    Raises:
        BadInput: no checkpoint of it is kept.
        Retriable: the store does not answer.
    """
    key = document_key(direction, group)
    text = stored.read(flow, key).get(key)
    if text is None:
        raise BadInput(
            f"no checkpoint of group {group} is kept: {_why_not(deployment, flow, group)}",
            where=f"{flow} {direction}",
            hint=f"`mirrorless groups '{flow}'` lists those with a checkpoint; with --reverse, on the target",
        )
    return msgspec.json.decode(text, type=GroupCheckpoints)


def groups_of(checkpoints: StateStore, flow: FlowName, direction: Direction) -> list[GroupCheckpoints]:
    """Every group of a flow with a checkpoint, in order.

    Raises:
        Retriable: the store does not answer.
    """
    stored = checkpoints.read(flow, f"{direction}/").values()
    return [msgspec.json.decode(text, type=GroupCheckpoints) for text in stored]


def _with_excluded(deployment: DeployedFlows, view: GroupsView) -> GroupsView:
    names, trouble = _asked(
        deployment, view.flow, view.begins_on, lambda groups: groups.names(deadline_in(ANSWER_SECONDS))
    )
    accepts = deployment.flow(view.flow).groups.accepts
    excluded = [name for name in names or () if not name.startswith(OWN_GROUPS) and not accepts(name)]
    return replace(view, excluded=excluded, trouble=trouble)


def _with_partitions(deployment: DeployedFlows, view: GroupsView) -> GroupsView:
    (group,), reverse = view.groups, view.direction == "reverse"
    committed, trouble = _committed(deployment, view, group.group)
    partitions = [
        GroupPartition(lane=lane, offset=offset, committed=committed.get(lane))
        for lane, offset in sorted(group.lanes(view.flow), key=lambda each: each[0])
    ]
    settings = deployment.settings(view.flow)
    commits = settings.sync_group_offsets_reverse_enabled if reverse else settings.sync_group_offsets_seconds
    grace_ms = int(settings.group_grace_seconds * 1000) if commits else 0
    return replace(view, partitions=partitions, grace_ms=grace_ms, trouble=trouble)


def _why_not(deployment: DeployedFlows, flow: FlowName, name: str) -> str:
    if name.startswith(OWN_GROUPS):
        return "it belongs to an event source mapping"
    if not deployment.flow(flow).groups.accepts(name):
        return "the flow's `groups` and `groups.exclude` refuse it"
    return "it has committed nothing on a topic of this flow, or no checkpoint round has run since"


def _committed(deployment: DeployedFlows, view: GroupsView, name: str) -> tuple[dict[Lane, int], str]:
    """A group's commits on the cluster where the direction ends, by lane; or none, and why they are not known."""
    flow, reverse = deployment.flow(view.flow), view.direction == "reverse"
    found, trouble = _asked(
        deployment, view.flow, view.ends_on, lambda groups: groups.committed([name], deadline_in(ANSWER_SECONDS))
    )
    if found is None:
        return {}, trouble
    if name not in found:
        return {}, f"the commits of group {name} on {view.ends_on} are not visible: check the rights on the group"
    committed = {}
    for (topic, partition), each in found[name].items():
        source_topic = topic if reverse else flow.policy.upstream_topic(topic)
        # A group may read other topics too, of its own cluster or of other flows.
        if source_topic is not None and (reverse or flow.remote_topic(source_topic) == topic):
            committed[Lane(view.flow, source_topic, partition)] = each.offset
    return committed, ""


def _asked(
    deployment: DeployedFlows, flow: FlowName, alias: str, request: Callable[[KafkaGroups], T]
) -> tuple[T | None, str]:
    """What a cluster answers about groups; or None, and why it does not."""
    reads = ClusterReads()

    def asked() -> T:
        from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- commands without Kafka start sooner

        settings = deployment.looking(flow)
        cluster = settings.source if alias == flow.source else settings.target
        offsets_of(cluster, flow).partitions()  # by the client that logs no failed connection
        return request(KafkaGroups(cluster, flow=str(flow)))

    return reads.read(asked), reads.trouble


def in_words(readiness: str) -> str:
    """Readiness in words, where it is not one."""
    words = {"before_map": "before the map", "map_lost": "on a lost map"}
    return words.get(readiness, readiness.replace("_on_", " on the ").replace("_", " "))


def in_short(group: GroupCheckpoints, flow: FlowName) -> str:
    """Why a group is not ready, behind its name: what is to be known before it is moved."""
    here, there = (flow.source, flow.target) if group.direction == "forward" else (flow.target, flow.source)
    skips = f"would skip {numbered(group.skip, 'record')} on {there}"
    ahead = numbered(group.ahead, "upstream offset")
    phrases = {
        "before_map": "stands before the map",
        "map_lost": "stands on a stopped lane whose map describes records that are gone",
        "ahead_of_replication": f"is ahead of replication by {ahead}, which would come again",
        "out_of_range": f"is out of range on {here}",
        "ahead_on_target": skips,
        "ahead_on_source": skips,
        "independent": f"has offsets on {there} that are not this flow's",
    }
    return phrases.get(group.readiness, f"would read {numbered(group.reread, 'record')} again")
