"""How do a flow's topics look to people?"""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table

from cli.topics_view import TopicRow, TopicsView

UNKNOWN = "?"
PIPE_WIDTH = 120
"""See `status_table`."""


def show(answer: TopicsView) -> None:
    """Print the answer."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(_table(answer))
    for row in answer.topics:
        if row.drift:
            console.print(f"  {row.topic}: {', '.join(row.drift)} differ, and follow the source at the next sync.")
    for cause, names in answer.refused.items():
        console.print(f"  refused ({cause}): {', '.join(names)}", markup=False)
    for trouble in answer.troubles:
        console.print(f"  {trouble}", markup=False)


def _table(answer: TopicsView) -> Table:
    table = Table(
        title=answer.flow,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for heading in ("topic", "remote topic"):
        table.add_column(heading, no_wrap=True)
    table.add_column("partitions", justify="right")
    table.add_column("mapping by")
    table.add_column("drift", justify="right")
    table.add_column("topic id", no_wrap=True)
    table.add_column("late")
    table.add_column("trouble")
    for row in answer.topics:
        table.add_row(
            row.topic,
            row.remote_topic,
            _partitions(row),
            row.owner if row.mapping is None else f"{row.owner}: {row.mapping}",
            UNKNOWN if row.drift is None else str(len(row.drift)),
            row.topic_id or "-",
            "late" if row.late else "",
            f"! {row.trouble}" if row.needs_operator else row.trouble,
        )
    return table


def _partitions(row: TopicRow) -> str:
    here, there = (UNKNOWN if count is None else str(count) for count in (row.source_partitions, row.target_partitions))
    return here if here == there else f"{here} -> {there}"
