"""How do consumer groups look to people? A table of all, or one of a group's partitions."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.format import ago, numbered
from cli.groups_view import GroupsView, need_operator
from mirrorless.groups.checkpoints import GroupCheckpoints

PIPE_WIDTH = 120
"""See `status_table`."""

SHOWN_METADATA = 40
"""Characters of a commit's metadata that are shown; `--json` has all of it."""


def show(answer: GroupsView, *, one: bool, now: int) -> None:
    """Print the answer. `now` in ms since the epoch."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if one:
        console.print(_partitions(answer))
        for group in answer.groups:
            console.print(f"  {sentence(group, answer)}", markup=False)
    elif answer.groups or answer.excluded:
        console.print(_groups(answer, now))
    else:
        console.print(f"No group on {answer.begins_on} is known to read a topic of {answer.flow}.", markup=False)
    for name in [] if one else need_operator(answer.groups):
        console.print(f"  ! {name} stands before the map: see --group {name}", markup=False)
    if answer.trouble:
        console.print(f"  Not all is known: {answer.trouble}", markup=False)


def sentence(group: GroupCheckpoints, answer: GroupsView) -> str:
    """What the readiness of a group means for who moves it."""
    where = f"on {answer.ends_on} it goes on by {_BY[group.by]}"
    match group.readiness:
        case "ready":
            return f"Ready: {where}, exactly where it is."
        case "behind":
            return f"Behind: {where}, and reads {numbered(group.reread, 'record')} again."
        case "ahead_of_replication":
            offsets = numbered(group.ahead, "upstream offset")
            return f"Ahead: {where}; {offsets} that it has read are not there yet, and come again."
        case "before_map":
            return (
                "! The map has forgotten a place of it: nothing is committed there. Where it goes on is yours to say."
            )
        case "active_on_target" | "active_on_source":
            return f"It has members on {answer.ends_on}: its offsets there are its own, and nobody else writes them."
        case _:
            return f"{group.readiness}."


_BY = {"group": "its own committed offsets", "checkpoint": "the checkpoints"}


def _groups(answer: GroupsView, now: int) -> Table:
    table = _table(f"{answer.flow} {answer.direction}")
    table.add_column("group", no_wrap=True)
    for heading in ("state", "by"):
        table.add_column(heading)
    for heading in ("reads again", "ahead", "partitions", "last change"):
        table.add_column(heading, justify="right")
    for group in answer.groups:
        partitions = sum(len(offsets) for offsets in group.offsets.values())
        table.add_row(
            Text(group.group),  # whatever an application calls itself, it is no markup
            group.readiness,
            group.by,
            f"{group.reread:,}",
            f"{group.ahead:,}",
            str(partitions),
            ago(group.at, now=now),
        )
    for name in answer.excluded:
        table.add_row(Text(name), "excluded", "", "", "", "", "")
    return table


def _partitions(answer: GroupsView) -> Table:
    (group,) = answer.groups
    table = _table(f"{answer.flow} {answer.direction}: {escape(group.group)}, {group.readiness}")
    table.add_column("topic", no_wrap=True)
    for heading in ("partition", "upstream", "downstream", f"committed on {answer.ends_on}"):
        table.add_column(heading, justify="right")
    table.add_column("translation")
    table.add_column("metadata")
    for place in answer.places:
        offset = place.offset
        table.add_row(
            place.lane.topic,
            str(place.lane.partition),
            _told(offset.upstream),
            _told(offset.downstream),
            _told(place.committed),
            offset.state,
            Text(offset.metadata[:SHOWN_METADATA]),
        )
    return table


def _told(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
