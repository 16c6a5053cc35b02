"""`mirrorless groups FLOW [--group G] [--reverse]`: which consumer group can move to the other side, and from where?"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from cli.arguments import add_deployment
from cli.bad_input import BadInput
from cli.deployment import Deployment
from mirrorless.errors import MirrorlessError
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset
from mirrorless.lane import FlowName, Lane
from mirrorless.scheduled.documents import Documents

if TYPE_CHECKING:
    from mirrorless.settings import ClusterSettings
    from mirrorless.target import Deadline

OURS = "mirrorless."
"""Groups of event source mappings: they read for us, and move nowhere."""

ANSWER_SECONDS = 5.0
"""How long the operator waits for a cluster that may be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """One partition of a group, on both sides."""

    lane: Lane
    offset: GroupOffset
    committed: int | None
    """What the group has committed on the side where it would go on; None for nothing, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the command has to say of one flow and one direction."""

    flow: FlowName
    direction: Direction
    groups: Sequence[GroupCheckpoints]
    excluded: Sequence[str] = ()
    """Groups on the side where the direction begins that the flow's filter refuses."""
    places: Sequence[GroupPlace] = field(default_factory=tuple)
    """Of the one group that was asked for."""
    trouble: str = ""
    """Why a cluster does not answer; the rest is known without it."""

    @property
    def begins_on(self) -> str:
        """The cluster whose commits are followed."""
        return self.flow.target if self.direction == "reverse" else self.flow.source

    @property
    def ends_on(self) -> str:
        """The cluster where a group would go on."""
        return self.flow.source if self.direction == "reverse" else self.flow.target


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `groups`."""
    parser = subparsers.add_parser(
        "groups",
        help="say which consumer groups can go on on the other side, and what they would read again",
        description="List the flow's consumer groups with their readiness; with --group, one group by partition.",
        epilog="Example: mirrorless groups 'us-east->eu-west' --group shop",
    )
    parser.add_argument("flow", metavar="FLOW", help="'source->target', quoted")
    parser.add_argument("--group", metavar="GROUP", help="one group, by topic and partition")
    parser.add_argument("--reverse", action="store_true", help="the way back: groups that read on the target")
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Answer from the checkpoint table. Exit code 1 where a group has no place to go on: it stands before the map."""
    deployment = Deployment.of(arguments)
    flow = deployment.flow_name(arguments.flow)
    direction: Direction = "reverse" if arguments.reverse else "forward"
    groups = groups_of(deployment.stores(flow).checkpoints, flow, direction)
    if arguments.group is None:
        answer = _all(deployment, flow, direction, groups)
    else:
        answer = _one(deployment, flow, direction, groups, arguments.group)

    if arguments.json:
        print(json.dumps(as_json(answer), indent=2))
    else:
        from cli.groups_table import show  # noqa: PLC0415 -- programs need no tables

        show(answer, one=arguments.group is not None, now=time.time_ns() // 1_000_000)
    return int(any(need_operator(answer.groups)))


def groups_of(checkpoints: Documents, flow: FlowName, direction: Direction) -> list[GroupCheckpoints]:
    """Every group of a flow that is followed, in order.

    Raises:
        Retriable: the store does not answer.
    """
    stored = checkpoints.read(flow, f"{direction}/").values()
    return [msgspec.json.decode(text, type=GroupCheckpoints) for text in stored]


def need_operator(groups: Iterable[GroupCheckpoints]) -> list[str]:
    """The groups that no further round makes ready: the map has forgotten the place that they stand at."""
    return [group.group for group in groups if group.readiness == "before_map"]


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer for programs; `committed_there` is told only where one group was asked for."""
    committed = {place.lane: place.committed for place in answer.places}
    return {
        "flow": str(answer.flow),
        "direction": answer.direction,
        "groups": [
            {
                "group": group.group,
                "readiness": group.readiness,
                "by": group.by,
                "reread": group.reread,
                "ahead": group.ahead,
                "at": group.at,
                "offsets": [
                    {
                        "topic": lane.topic,
                        "partition": lane.partition,
                        "upstream": offset.upstream,
                        "downstream": offset.downstream,
                        "state": offset.state,
                        "metadata": offset.metadata,
                    }
                    | ({"committed_there": committed[lane]} if lane in committed else {})
                    for lane, offset in sorted(group.lanes(answer.flow), key=lambda each: each[0])
                ],
            }
            for group in answer.groups
        ],
        "excluded": list(answer.excluded),
        "trouble": answer.trouble,
    }


def _all(deployment: Deployment, flow: FlowName, direction: Direction, groups: Sequence[GroupCheckpoints]) -> Answer:
    names, trouble = _names(deployment, flow, direction)
    accepts = deployment.flow(flow).groups.accepts
    excluded = [name for name in names if not name.startswith(OURS) and not accepts(name)]
    return Answer(flow=flow, direction=direction, groups=groups, excluded=excluded, trouble=trouble)


def _one(
    deployment: Deployment, flow: FlowName, direction: Direction, groups: Sequence[GroupCheckpoints], name: str
) -> Answer:
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
    return Answer(flow=flow, direction=direction, groups=found, places=places, trouble=trouble)


def _why_not(deployment: Deployment, flow: FlowName, name: str) -> str:
    if name.startswith(OURS):
        return "it belongs to an event source mapping"
    if not deployment.flow(flow).groups.accepts(name):
        return "the flow's `groups` and `groups.exclude` refuse it"
    return "it has committed nothing on a topic of this flow, or no round has seen it yet"


def _names(deployment: Deployment, flow: FlowName, direction: Direction) -> tuple[list[str], str]:
    """The groups of the side where the direction begins, and why they are not known."""
    try:
        from mirrorless.adapters.kafka_groups import KafkaGroups  # noqa: PLC0415 -- commands without Kafka start sooner

        cluster = _side(deployment, flow, there=direction == "reverse")
        _assert_answers(cluster, flow)
        return KafkaGroups(cluster, flow=str(flow)).names(_deadline()), ""
    except (MirrorlessError, ImportError) as exc:
        return [], str(exc)


def _committed(deployment: Deployment, flow: FlowName, direction: Direction, name: str) -> tuple[dict[Lane, int], str]:
    """What a group has committed on the side where the direction ends, by lane, and why that is not known."""
    configured, reverse = deployment.flow(flow), direction == "reverse"
    try:
        from mirrorless.adapters.kafka_groups import KafkaGroups  # noqa: PLC0415 -- same

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


def _side(deployment: Deployment, flow: FlowName, *, there: bool) -> ClusterSettings:
    settings = deployment.settings(flow)
    return settings.target if there else settings.source


def _assert_answers(cluster: ClusterSettings, flow: FlowName) -> None:
    """Ask by the one client that keeps silent about a silent cluster: the functions' clients log what they meet.

    Raises:
        Retriable: it does not answer.
    """
    from mirrorless.adapters.kafka_offsets import KafkaOffsets  # noqa: PLC0415 -- same

    KafkaOffsets(cluster, flow=str(flow)).partitions()


def _deadline() -> Deadline:
    end = time.monotonic() + ANSWER_SECONDS
    return lambda: end - time.monotonic()
