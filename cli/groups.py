"""`mirrorless groups FLOW [--group G] [--reverse]`: the consumer groups of a flow, and where they go on when moved.

`--move-back` is an order, see `group_orders`.

They are read by `groups_view`.
"""

from __future__ import annotations

import argparse
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from cli.args import BadInput, add_deployment, add_flow, add_order
from cli.deployment import DeployedFlows
from cli.group_orders import MoveBack
from cli.groups_view import GroupPartition, GroupsView, in_short, in_words, need_operator, read_groups
from cli.output import TableColumns, ago, console, duration, picked, print_json, say, table
from mirrorless.clock import now_ms
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from rich.table import Table

    from mirrorless.groups.checkpoints import Direction, GroupCheckpoints

SHOWN_METADATA = 40
"""Characters of a commit's metadata that are shown; `--json` has all of it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `groups`."""
    parser = subparsers.add_parser(
        "groups",
        help="say which consumer groups can go on on the other side, and what they would read again",
        description="List the flow's consumer groups with their readiness; with --group, one group by partition; "
        "with --move-back, move one group back where it would skip records.",
        epilog="Example: mirrorless groups 'us-east->eu-west' --group shop",
    )
    add_flow(parser)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--group", metavar="GROUP", help="one group, by topic and partition")
    one.add_argument(
        "--move-back",
        metavar="GROUP",
        action=MoveBack,
        help="move its offsets on the other side back to its offsets here, translated; without --execute, the plan",
    )
    parser.add_argument("--reverse", action="store_true", help="the way back: groups that read on the target")
    add_order(parser)
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show the checkpoint table's groups. Exit code 1 where `need_operator` has one."""
    if arguments.execute:
        raise BadInput("--execute has nothing to carry out", hint="write --move-back GROUP as well")
    deployment = DeployedFlows.of(arguments)
    flow = deployment.flow_name(arguments.flow)
    direction: Direction = "reverse" if arguments.reverse else "forward"
    view = read_groups(deployment, flow, direction, group=arguments.group)
    if arguments.json:
        print_json(as_json(view))
    else:
        show(view, one=arguments.group is not None, now=now_ms())
    return int(any(need_operator(view.groups)))


def as_json(view: GroupsView) -> dict[str, Any]:
    """The groups for programs; `committed_there` only with `--group`."""
    there = {partition.lane: {"committed_there": partition.committed} for partition in view.partitions}

    def group_as_json(group: GroupCheckpoints) -> dict[str, Any]:
        offsets = [
            picked(lane, "topic partition") | asdict(offset) | there.get(lane, {})
            for lane, offset in sorted(group.lanes(view.flow), key=lambda each: each[0])
        ]
        return picked(group, "group readiness by reread skip ahead left_at at") | {"offsets": offsets}

    groups = [group_as_json(group) for group in view.groups]
    return {"flow": str(view.flow), "groups": groups} | picked(view, "direction excluded trouble")


def show(view: GroupsView, *, one: bool, now: int) -> None:
    """Print the groups. `now` in ms since the epoch."""
    if one:
        console().print(_partitions(view))
        for group in view.groups:
            say(f"  {sentence(group, view)}{_wait(group, view, now)}")
    elif view.groups or view.excluded:
        console().print(_groups(view, now))
    else:
        say(f"No group on {view.begins_on} has a checkpoint on a topic of {view.flow}.")
    waiting = set() if one else set(need_operator(view.groups))
    for group in view.groups:
        if group.group in waiting:
            say(f"  ! {group.group} {in_short(group, view.flow)}: see --group {quote(group.group)}")
    if view.trouble:
        say(f"  Incomplete: {view.trouble}")


def sentence(group: GroupCheckpoints, view: GroupsView) -> str:
    """The meaning of a group's readiness for whoever moves it."""
    where = f"on {view.ends_on} it goes on by {_BY[group.by]}"
    match group.readiness:
        case "ready":
            said = f"Ready: {where}, exactly where it is."
        case "behind":
            said = f"Behind: {where}, and reads {numbered(group.reread, 'record')} again."
        case "ahead_of_replication":
            offsets = numbered(group.ahead, "upstream offset")
            said = f"Ahead: {where}; {offsets} that it has read are not there yet, and come again."
        case "out_of_range":
            said = (
                f"Out of range: an offset of it lies beyond the end of the log on {view.begins_on}, or on a partition "
                "that is not there. Its consumer begins there where its auto.offset.reset says, on either side: "
                f"nothing is committed there. For the other partitions {where}."
            )
        case "before_map":
            said = "! A position of it has expired from the offset map: nothing is committed there. Set it yourself."
        case "map_lost":
            said = (
                "! A lane of it is stopped, and its map describes records that are gone: nothing is committed there. "
                f"`mirrorless lanes stopped '{view.flow}'` says what to do."
            )
        case "ahead_on_target" | "ahead_on_source":
            reverse = " --reverse" if view.direction == "reverse" else ""
            command = f"`mirrorless groups '{view.flow}'{reverse} --move-back {quote(group.group)} --execute`"
            remedy = f"Move it back: {command}" if group.own else "Its offsets there are its own, not this flow's."
            said = f"! Ahead on {view.ends_on}: it would skip {numbered(group.skip, 'record')} there. {remedy}"
        case "independent":
            said = (
                f"Independent: its offsets on {view.ends_on} are not this flow's, and are not moved. Another "
                "application has its name, or it has read there itself. Delete them if it is to follow this flow."
            )
        case "active_on_target" | "active_on_source":
            said = f"It has members on {view.ends_on}: its offsets there are its own, and are not overwritten."
        case _:
            said = f"{group.readiness}."
    return said


def _wait(group: GroupCheckpoints, view: GroupsView, now: int) -> str:
    """Until when its offsets are not committed because its members may come back; empty where they need not wait."""
    if group.readiness != "behind" or not group.left_at or now >= group.left_at + view.grace_ms:
        return ""
    left = f"Its members left {view.ends_on} {ago(group.left_at, now=now)}, and may be restarting"
    return f" {left}: offsets are committed there {duration(view.grace_ms)} after they left."


_BY = {"group": "its own committed offsets", "checkpoint": "the checkpoints"}


def _groups(view: GroupsView, now: int) -> Table:
    columns: TableColumns[GroupCheckpoints] = (
        ("=group", lambda group: group.group),
        ("state", lambda group: in_words(group.readiness)),
        ("by", lambda group: group.by),
        (">reads again", lambda group: group.reread),
        (">skips", lambda group: group.skip),
        (">ahead", lambda group: group.ahead),
        (">partitions", lambda group: sum(map(len, group.offsets.values()))),
        (">last change", lambda group: ago(group.at, now=now)),
    )
    made = table(f"{view.flow} {view.direction}", columns, view.groups)
    for name in view.excluded:
        made.add_row(name, "excluded")
    return made


def _partitions(view: GroupsView) -> Table:
    (group,) = view.groups
    columns: TableColumns[GroupPartition] = (
        ("=topic", lambda each: each.lane.topic),
        (">partition", lambda each: each.lane.partition),
        (">upstream", lambda each: _offset(each.offset.upstream)),
        (">downstream", lambda each: _offset(each.offset.downstream)),
        (f">committed on {view.ends_on}", lambda each: _offset(each.committed)),
        ("translation", lambda each: each.offset.state),
        ("metadata", lambda each: each.offset.metadata[:SHOWN_METADATA]),
    )
    title = f"{view.flow} {view.direction}: {group.group}, {in_words(group.readiness)}"
    return table(title, columns, view.partitions)


def _offset(offset: int | None) -> str | None:
    return None if offset is None else str(offset)
