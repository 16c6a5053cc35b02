"""Job runs in text: one line, a live table, the last lines, and a list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.jobs.runs import RunView
from cli.output import ago, duration, size
from mirrorless.jobs.progress import JobProgress, LaneProgress, percent
from mirrorless.reports.format import numbered

MOST_LANES = 12
"""Of those in progress; every one that stopped or failed is shown."""

SHARE_WIDTH = 24


def live(views: Iterable[RunView]) -> RunView:
    """Show a run on a terminal until it is over, and return its last view."""
    last = None
    with Live(console=Console(highlight=False), refresh_per_second=4, transient=False) as shown:
        for view in views:
            shown.update(picture(view))
            last = view
    assert last is not None  # noqa: S101 -- there is always a first look
    return last


def picture(view: RunView) -> Group:
    """A run as it is now."""
    head = Text.assemble((view.run_id, "bold"), f"  {view.flow}  ", (view.state, _STYLES.get(view.state, "")))
    if view.progress is None:
        return Group(head, Text("waits for its driver" if not view.over else "", style="dim"))
    progress = view.progress
    bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=SHARE_WIDTH)
    return Group(head, _row(bar, Text(_figures(progress))), _lanes(progress.running))


def sentence(view: RunView) -> str:
    """A run in one line."""
    if view.progress is None:
        return f"{view.run_id}: {view.state}"
    return f"{view.run_id}: {view.state}  {share(view.progress)}  {_figures(view.progress)}"


def ending(view: RunView) -> list[str]:
    """The last lines for the operator."""
    trouble = [f"  ! {lane.lane}: {lane.note}" for lane in _troubled(view.progress)]
    match view.state:
        case "succeeded":
            lines = [f"{view.run_id}: {view.verdict or 'it ended without a report'}", *trouble]
            lines.append(f"  report  {view.page}")
        case "failed":
            lines = [f"{view.run_id} failed: {view.error}", *trouble]
        case _:
            lines = [f"{view.run_id} was cancelled: progress is kept, and a new run resumes."]
    where = [f"{name.replace('_', ' '):<7} {view.more[name]}" for name in ("log", "log_group") if name in view.more]
    return lines + [f"  {each}" for each in where if view.exit_code]


def share(progress: JobProgress) -> str:
    """The finished share: `42 %`."""
    if not progress.total:
        return "0 %" if progress.state in {"starting", "running"} else "100 %"
    return f"{100 * progress.done // progress.total} %"


def runs_table(views: Sequence[RunView], *, now: int) -> Table:
    """A list of runs. Args: now: ms since the epoch."""
    table = _table()
    for heading in ("run", "flow", "state", "started"):
        table.add_column(heading, no_wrap=True)
    for heading in ("share", "records"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for view in views:
        progress = view.progress
        table.add_row(
            Text(view.run_id),
            view.flow,
            Text(_state_text(view), style=_STYLES.get(view.state, "")),
            ago(view.started_at, now=now),
            "" if progress is None else share(progress),
            "" if progress is None else f"{progress.records:,}",
            Text(view.error or view.verdict),
        )
    return table


_OF_LANES = {"waiting": "waiting for a free core"}
_STYLES = {"failed": "red", "cancelled": "yellow", "succeeded": "green"}


def _state_text(view: RunView) -> str:
    return "look at it" if view.state == "succeeded" and view.clean is False else view.state


def _figures(progress: JobProgress) -> str:
    """`1,000,000 records, 149,032/s, 200 MB (97 % passed through), 3 min left; 10 lanes done, 2 running`."""
    left = "" if progress.seconds_left is None else f", {duration(int(progress.seconds_left * 1000))} left"
    lanes = ", ".join(f"{count} {_OF_LANES.get(state, state)}" for state, count in sorted(progress.lanes.items()))
    phase = f"{progress.phase}: " if progress.phase else ""
    share_passed = percent(progress.passed_bytes, progress.bytes)
    passed = f" ({share_passed:.0f} % passed through)" if share_passed else ""
    return (
        f"{phase}{numbered(progress.records, 'record')}, {progress.records_per_second:,.0f}/s, {size(progress.bytes)}"
        f"{passed}{left}" + (f"; lanes {lanes}" if lanes else "")
    )


def _lanes(lanes: Sequence[LaneProgress]) -> Table | Text:
    troubled = [lane for lane in lanes if lane.state in {"stopped", "failed"}]
    running = [lane for lane in lanes if lane.state == "running"]
    if not lanes:
        return Text("")
    table = _table()
    table.add_column("lane", no_wrap=True)
    table.add_column("doing")
    for heading in ("share", "records", "position"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for lane in (*troubled, *running[:MOST_LANES]):
        bad = lane.state != "running"
        table.add_row(
            Text(lane.lane),
            Text(lane.state if bad else lane.phase, style="red" if bad else ""),
            f"{100 * lane.done // lane.total} %" if lane.total else "",
            f"{lane.records:,}",
            f"{lane.position:,}",
            Text(lane.note),
        )
    if len(running) > MOST_LANES:
        table.add_row(Text(f"and {len(running) - MOST_LANES} more", style="dim"))
    return table


def _troubled(progress: JobProgress | None) -> Iterator[LaneProgress]:
    if progress is not None:
        yield from (lane for lane in progress.running if lane.state in {"stopped", "failed"})


def _row(*cells: ProgressBar | Text) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(*cells)
    return grid


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
