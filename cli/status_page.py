"""`mirrorless status --html FILE`: one page without scripts, with lag, throughput and latency over the known time.

What is known of the time before is in the map: the newest runs of each lane, each with its records, its timestamps and
the moment at which it was settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cli.flow_status import FlowStatus, LaneStatus
from cli.output import ago, duration, moment
from mirrorless.chain.chains import JournalChains
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.reports.format import numbered
from mirrorless.reports.report import Figure, Line, LinePlot, Report, ReportSection, Table, Tone

READS = 3_000
"""Runs that a page reads of the map, at most; each lane gets its share."""

LEAST, MOST = 3, 60
"""Runs of a lane."""

BINS = 30
"""Points of a line."""

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRuns:
    """What is known of a flow's past."""

    by_topic: dict[str, list[Run]]
    """Settled runs with records, the oldest first."""
    since: int
    """ms since the epoch: from then on, no run of any lane is left out, but for those before a reset of it."""
    anew: frozenset[str] = frozenset()
    """Topics with a lane that was reset: their runs before that are not known."""


def history_of(chains: JournalChains, status: FlowStatus) -> KnownRuns:
    """The newest runs of a flow, from the moment on at which those of every lane are known."""
    lanes = [lane.lane for topic in status.topics for lane in topic.lanes]
    share = min(MOST, max(LEAST, READS // max(1, len(lanes))))
    chains.heads(lanes)  # the runs are those behind the heads that were read by the same chains
    runs = chains.newest_runs(lanes, limit=share)
    since = max((of_lane[-1].settled_at for of_lane in runs.values() if len(of_lane) == share), default=0)
    found: dict[str, list[Run]] = {}
    for lane, of_lane in runs.items():
        known = [run for run in of_lane if run.records and run.settled_at and run.settled_at >= since]
        found.setdefault(lane.topic, []).extend(known)
    return KnownRuns(
        by_topic={topic: sorted(each, key=lambda run: run.settled_at) for topic, each in found.items() if each},
        since=since,
        anew=frozenset(lane.lane.topic for topic in status.topics for lane in topic.lanes if lane.head.generation > 0),
    )


def report_of(
    flows: Sequence[FlowStatus],
    histories: Sequence[KnownRuns],
    told: Sequence[Sequence[str]],
    losses: Callable[[FlowStatus], Iterable[Loss]],
    *,
    made_at: int,
) -> Report:
    """The page of some flows. Args: histories, told: of each flow, its past and its sentences. losses: of a flow."""
    urgent = [note.removeprefix("! ") for of_flow in told for note in of_flow if note.startswith("!")]
    lanes = [lane for flow in flows for topic in flow.topics for lane in topic.lanes]
    lags = [lane.lag for lane in lanes if lane.lag is not None]
    return Report(
        title=f"Status of {', '.join(str(flow.flow) for flow in flows)}",
        verdict=f"{numbered(len(urgent), 'thing')} to look at." if urgent else "Nothing needs you.",
        tone="bad" if urgent else "good",
        figures=(
            Figure(name="lanes", value=len(lanes)),
            Figure(name="records that wait, at most", value=sum(lags) if len(lags) == len(lanes) else None),
            Figure(
                name="stopped lanes",
                value=(stopped := sum(lane.stop is not None for lane in lanes)),
                tone=_tone(stopped),
            ),
            Figure(name="offsets lost", value=(lost := sum(lane.lost for lane in lanes)), tone=_tone(lost)),
        ),
        sections=tuple(
            section
            for flow, runs, said in zip(flows, histories, told, strict=True)
            for section in _sections(flow, runs, said, losses(flow))
        ),
        made_at=made_at,
    )


def _sections(
    flow: FlowStatus, history: KnownRuns, told: Sequence[str], losses: Iterable[Loss]
) -> Iterator[ReportSection]:
    yield ReportSection(
        heading=str(flow.flow), text=tuple(told) or ("Nothing needs you.",), plots=tuple(_plots(flow, history))
    )
    lanes = sorted(
        (lane for topic in flow.topics for lane in topic.lanes), key=lambda lane: (lane.stop is None, lane.lane)
    )
    yield ReportSection(
        heading=f"{flow.flow}: lanes",
        tables=(
            Table(
                title="Stopped ones first",
                columns=("lane", "state", "waiting", "lost", "last run", "position"),
                rows=tuple(_lane_row(lane, flow.at) for lane in lanes),
                tones=tuple("bad" if lane.needs_operator else "" for lane in lanes),
            ),
        ),
    )
    groups = Table(
        title="Groups",
        columns=("group", "readiness", "would read again", "would skip"),
        rows=tuple((group.group, group.readiness, group.reread, group.skip) for group in flow.groups),
    )
    tasks = Table(
        title="Scheduled tasks",
        columns=("task", "last done", "took", "error"),
        rows=tuple(
            (
                task.task,
                ago(task.last.ok_at, now=flow.at) if task.last else "never",
                duration(task.last.ms) if task.last else "",
                task.last.error if task.last else "",
            )
            for task in (*flow.tasks, *flow.shards)
        ),
        tones=tuple("bad" if task.overdue(flow.at) else "" for task in (*flow.tasks, *flow.shards)),
    )
    lost = Table(
        title="Losses",
        columns=("lane", "from", "to", "cause", "why"),
        rows=tuple(
            (f"{loss.lane.topic}-{loss.lane.partition}", loss.first, loss.next - 1, loss.cause, loss.detail)
            for loss in sorted(losses, key=lambda loss: (loss.lane, loss.generation, loss.first))
        ),
    )
    yield ReportSection(
        heading=f"{flow.flow}: groups, tasks, losses", tables=tuple(each for each in (groups, tasks, lost) if each.rows)
    )


def _lane_row(status: LaneStatus, now: int) -> tuple[str | int | None, ...]:
    state = f"stopped: {status.stop.reason}" if status.stop else "in doubt" if status.head.in_doubt else "ok"
    last = ago(status.last_run_at, now=now) if status.last_run_at is not None else "never"
    return (f"{status.lane.topic}-{status.lane.partition}", state, status.lag, status.lost, last, status.head.position)


def _plots(flow: FlowStatus, history: KnownRuns) -> Iterator[LinePlot]:
    runs = [run for each in history.by_topic.values() for run in each]
    if not runs:
        return
    first = min(run.settled_at for run in runs)
    width = max(1_000, -(-(flow.at - first) // BINS))
    note = f"All {numbered(len(runs), 'run')} in the map with records, from {moment(first)} to {moment(flow.at)}"
    anew = sorted(history.anew & history.by_topic.keys())
    note += f", of {', '.join(anew)} since their lanes were reset." if anew else "."
    for title, unit, value in (
        ("Throughput", "records a second", lambda of_bin: sum(run.records for run in of_bin) * 1000 / width),
        (
            "Latency",
            "seconds from the newest record of a run to its replication",
            lambda of_bin: _longest(of_bin, newest=True),
        ),
        ("Lag", "seconds that the oldest record of a run had waited", lambda of_bin: _longest(of_bin, newest=False)),
    ):
        lines = tuple(
            Line(
                label=topic,
                points=tuple(
                    point
                    for point in _points(each, first, width, flow.at, value, gaps=title == "Throughput")
                    if topic not in history.anew or point[0] * MINUTE_MS + flow.at >= each[0].settled_at
                ),
            )
            for topic, each in history.by_topic.items()
        )
        yield LinePlot(
            title=title,
            x_unit="minutes, 0 is now",
            y_unit=unit,
            lines=lines,
            note=note,
            x_range=((first - flow.at) / MINUTE_MS, 0.0),
        )


def _points(
    runs: Sequence[Run], first: int, width: int, now: int, value: Callable[[list[Run]], float], *, gaps: bool
) -> Iterator[tuple[float, float]]:
    """A point for each stretch of time that has runs; with `gaps`, for those without as well."""
    for begin in range(first, now + 1, width):
        of_bin = [run for run in runs if begin <= run.settled_at < begin + width]
        if of_bin or gaps:
            yield ((min(now, begin + width) - now) / MINUTE_MS, value(of_bin))


def _longest(runs: Iterable[Run], *, newest: bool) -> float:
    stamps = ((run.settled_at, run.newest_timestamp if newest else run.oldest_timestamp) for run in runs)
    return max((max(0, settled - stamp) / 1000 for settled, stamp in stamps if stamp >= 0), default=0.0)


def _tone(count: int) -> Tone:
    return "bad" if count else ""
