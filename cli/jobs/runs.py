"""Runs of jobs, on this machine or on EMR Serverless, and their exit codes.

0  it ended, and is clean
3  it ended, and found something that the operator has to look at
1  it failed, or was cancelled

Job runs in text: one line, a live table, the last lines, and a list of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.jobs.request import started_at
from cli.output import TableColumns, ago, console, duration, picked, size, table
from mirrorless.chain.lane import FlowName
from mirrorless.jobs.progress import JobProgress, JobState, LaneProgress, percent
from mirrorless.jobs.request import PAGE, PROGRESS, REPORT, REQUEST, JobKind, JobRequest, decode_request
from mirrorless.ports.stores import JobFiles
from mirrorless.reports.format import numbered

CLEAN, FAILED, LOOK = 0, 1, 3

OVER: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The state of a run."""

    run_id: str
    kind: str
    flow: str
    state: JobState
    place: str
    """URI or path of its folder."""
    progress: JobProgress | None = None
    """None until its driver has begun."""
    error: str = ""
    clean: bool | None = None
    """None until it has ended with a report."""
    verdict: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    """Values that only one of the implementations has, as they are in JSON."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    @property
    def exit_code(self) -> int:
        """The exit code of the command once the run is over."""
        if self.state != "succeeded" or self.clean is None:
            return FAILED
        return CLEAN if self.clean else LOOK

    @property
    def started_at(self) -> int:
        """When it was requested, ms since the epoch."""
        return started_at(self.run_id)

    @property
    def page(self) -> str:
        """URI or path of its page."""
        return f"{self.place}/{PAGE}"


class Runs(Protocol):
    """The runs of jobs on one platform. Every method raises Retriable when the platform does not answer."""

    def start(self, request: JobRequest, *, size: int | None) -> RunView:
        """Start a run, and return at once.

        Args:
            request: the job.
            size: executors at most, or cores on this machine; None for the default.
        """
        ...

    def inspect(self, run_id: str) -> RunView:
        """The state of a run.

        Raises:
            BadInput: there is no such run.
        """
        ...

    def cancel(self, run_id: str) -> RunView:
        """Begin to end a run, and return at once: it releases its lanes first. Raises as `inspect`."""
        ...

    def every(self, kind: JobKind, flows: Sequence[FlowName]) -> list[RunView]:
        """The known runs of a kind, the newest first."""
        ...


class _Ending(msgspec.Struct, frozen=True):
    clean: bool
    report: _Verdict


class _Verdict(msgspec.Struct, frozen=True):
    verdict: str


def view_of(
    run: tuple[str, str, str],
    files: JobFiles,
    progress: JobProgress | None,
    found: tuple[JobState, str],
    more: dict[str, Any],
) -> RunView:
    """A run with what is in its folder. Args: run: its id, kind and flow. found: its state, and why it failed."""
    (run_id, kind, flow), (state, error) = run, found
    clean, verdict = _read_ending(files) if state == "succeeded" else (None, "")
    return RunView(
        run_id=run_id,
        kind=kind,
        flow=flow,
        state=state,
        place=files.place,
        progress=progress,
        error=error,
        clean=clean,
        verdict=verdict,
        more=more,
    )


def read_request(files: JobFiles) -> JobRequest | None:
    """The request in a run's folder; None where the folder is not a run's."""
    text = files.read(REQUEST)
    return None if text is None else decode_request(text)


def read_progress(files: JobFiles) -> JobProgress | None:
    """The progress in a run's folder, as its driver wrote it."""
    text = files.read(PROGRESS)
    return None if text is None else msgspec.json.decode(text, type=JobProgress)


def _read_ending(files: JobFiles) -> tuple[bool | None, str]:
    """Whether the run was clean, and its verdict; None and an empty text where there is no report."""
    text = files.read(REPORT)
    if text is None:
        return None, ""
    found = msgspec.json.decode(text, type=_Ending)
    return found.clean, found.report.verdict


def as_json(view: RunView) -> dict[str, Any]:
    """A run for programs."""
    return picked(view, "run_id kind flow state clean verdict error place page") | {
        "report": f"{view.place}/{REPORT}",
        "progress": msgspec.to_builtins(view.progress),
        **view.more,
    }


MOST_LANES = 12
"""Of those in progress; every one that stopped or failed is shown."""

SHARE_WIDTH = 24


def live(views: Iterable[RunView]) -> RunView:
    """Show a run on a terminal until it is over, and return its last view."""
    last = None
    with Live(console=console(soft_wrap=False), refresh_per_second=4, transient=False) as shown:
        for view in views:
            shown.update(picture(view))
            last = view
    assert last is not None  # noqa: S101 -- there is always a first one
    return last


def picture(view: RunView) -> Group:
    """A run as it is now."""
    head = Text.assemble((view.run_id, "bold"), f"  {view.flow}  ", (_state_text(view), _STYLES.get(view.state, "")))
    if view.progress is None:
        return Group(head, Text("waits for its driver" if not view.over else "", style="dim"))
    progress = view.progress
    bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=SHARE_WIDTH)
    return Group(head, _row(bar, Text(_figures(progress))), _lanes(progress.running))


def sentence(view: RunView) -> str:
    """A run in one line."""
    if view.progress is None:
        return f"{view.run_id}: {_state_text(view)}"
    return f"{view.run_id}: {_state_text(view)}  {share(view.progress)}  {_figures(view.progress)}"


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
        return "0 %" if progress.state in {"starting", "running", "cancelling"} else "100 %"
    return f"{100 * progress.done // progress.total} %"


def runs_table(views: Sequence[RunView], *, now: int) -> Table:
    """A list of runs. Args: now: ms since the epoch."""
    columns: TableColumns[RunView] = (
        ("=run", lambda view: view.run_id),
        ("=flow", lambda view: view.flow),
        ("=state", lambda view: Text(_state_text(view), style=_STYLES.get(view.state, ""))),
        ("=started", lambda view: ago(view.started_at, now=now)),
        (">share", lambda view: share(view.progress) if view.progress else ""),
        (">records", lambda view: view.progress.records if view.progress else ""),
        ("", lambda view: view.error or view.verdict),
    )
    return table(None, columns, views)


_OF_LANES = {"waiting": "waiting for a free core"}
_STYLES = {"failed": "red", "cancelling": "yellow", "cancelled": "yellow", "succeeded": "green"}


def _state_text(view: RunView) -> str:
    if view.state == "cancelling":
        return "being cancelled"
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
    if not lanes:
        return Text("")
    troubled = [lane for lane in lanes if lane.state in {"stopped", "failed"}]
    running = [lane for lane in lanes if lane.state == "running"]
    made = table(None, _LANE_COLUMNS, (*troubled, *running[:MOST_LANES]))
    if len(running) > MOST_LANES:
        made.add_row(Text(f"and {len(running) - MOST_LANES} more", style="dim"))
    return made


_LANE_COLUMNS: TableColumns[LaneProgress] = (
    ("=lane", lambda lane: lane.lane),
    ("doing", lambda lane: lane.phase if lane.state == "running" else Text(lane.state, style="red")),
    (">share", lambda lane: f"{100 * lane.done // lane.total} %" if lane.total else ""),
    (">records", lambda lane: lane.records),
    (">position", lambda lane: lane.position),
    ("", lambda lane: lane.note),
)


def _troubled(progress: JobProgress | None) -> Iterator[LaneProgress]:
    if progress is not None:
        yield from (lane for lane in progress.running if lane.state in {"stopped", "failed"})


def _row(*cells: ProgressBar | Text) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(*cells)
    return grid
