"""How does the state of the flows look to people? One table per flow, and below it what needs somebody."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from cli.status import NEWEST_RUNS, FlowStatus, LaneStatus, TopicStatus
from cli.wording import ago, moment, numbered
from mirrorless.intervention import advice

UNKNOWN = "?"
PIPE_WIDTH = 120
"""A pipe or a log has no width of its own: give the table the room it needs."""


def show(flows: Sequence[FlowStatus], *, by_lane: bool, now: int) -> None:
    """Print every flow. `now` in ms since the epoch."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for flow in flows:
        console.print(_table(flow, by_lane=by_lane, now=now))
        for note in notes(flow):
            console.print(f"  {note}", markup=False)


def notes(flow: FlowStatus) -> Iterator[str]:
    """What the table cannot say, one sentence each; what needs the operator comes first."""
    for topic in flow.topics:
        for lane in topic.lanes:
            yield from _lane_notes(lane)
        if topic.mapping_is_off and topic.mapping is not None:
            yield f"! {topic.topic}: its mapping is {topic.mapping.state}, nothing is polled. Enable it."
    if flow.trouble:
        yield f"The source does not answer, so ends and lags are not known: {flow.trouble}"
    if flow.unlisted:
        yield f"Topics that match {', '.join(flow.unlisted)} cannot be listed until the source answers."


def _lane_notes(status: LaneStatus) -> Iterator[str]:
    lane, stop = status.lane, status.stop
    if stop is not None:
        yield f"! {lane.at(stop.upstream_offset)} is stopped ({stop.reason}) since {moment(stop.at)}: {stop.detail}"
        yield f"  What to do: {advice(stop)}."
    if status.overtaken and status.source is not None:
        yield (
            f"! {lane}: {numbered(status.overtaken, 'upstream offset')} from {status.head.position} on were removed by "
            f"the source's retention before they were replicated. Raise its retention until the lag is gone."
        )
    if status.shrunk and status.source is not None and stop is None:
        yield (
            f"! {lane}: the source ends at {status.source.end}, below the position {status.head.position}: it was "
            "re-created or truncated. See `lanes reset`."
        )
    if status.head.in_doubt and status.head.run is not None:
        run = status.head.run
        yield f"{lane}: the run [{run.position}, {run.next}) is in doubt; the next delivery settles it."


def _table(flow: FlowStatus, *, by_lane: bool, now: int) -> Table:
    table = Table(title=str(flow.flow), title_justify="left", title_style="bold")
    table.add_column("topic", no_wrap=True)
    if by_lane:
        table.add_column("partition", justify="right")
        table.add_column("generation", justify="right")
        table.add_column("position", justify="right")
        table.add_column("source end", justify="right")
    else:
        table.add_column("lanes", justify="right")
    for heading in ("lag at most", "last run", "doubt", "stopped", "lost", f"gaps, {NEWEST_RUNS} runs"):
        table.add_column(heading, justify="right")
    table.add_column("mapping")
    for topic in flow.topics:
        if not by_lane:
            table.add_row(topic.topic, str(len(topic.lanes)), *_sums(topic.lanes, now), _poll(topic))
            continue
        for lane in topic.lanes:
            end = UNKNOWN if lane.source is None else str(lane.source.end)
            place = (str(lane.lane.partition), str(lane.head.generation), str(lane.head.position), end)
            table.add_row(topic.topic, *place, *_sums([lane], now), _poll(topic))
    return table


def _sums(lanes: Sequence[LaneStatus], now: int) -> tuple[str, ...]:
    lags = [lane.lag for lane in lanes if lane.lag is not None]
    runs = [lane.last_run_at for lane in lanes if lane.last_run_at is not None]
    return (
        f"{sum(lags):,}" if len(lags) == len(lanes) and lanes else UNKNOWN,
        ago(max(runs), now=now) if runs else "never",
        str(sum(lane.head.in_doubt for lane in lanes)),
        str(sum(lane.stop is not None for lane in lanes)),
        f"{sum(lane.lost for lane in lanes):,}",
        f"{sum(lane.gaps for lane in lanes):,}",
    )


def _poll(topic: TopicStatus) -> str:
    if topic.mapping is None:
        return "-"
    result = topic.mapping.last_processing_result
    trouble = f" ({result})" if result.startswith("PROBLEM") else ""
    return f"{topic.mapping.state or UNKNOWN}{trouble}"
