"""The tables of `mirrorless status`, by topic and by lane, with the sentences below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from cli.flow_status import FlowStatus, LaneStatus, TopicStatus
from cli.output import UNKNOWN, ago, console, duration, table, width_of_terminal
from cli.status_notes import notes, summary
from mirrorless.lane import FlowName
from mirrorless.topics.mapping_plan import OF_FUNCTION

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Rates = Mapping[tuple[FlowName, str], float]
"""Upstream offsets a second, by topic."""


def show(flows: Sequence[FlowStatus], *, by_lane: bool) -> None:
    """Print every flow."""
    console().print(*rendered(flows, by_lane=by_lane, width=width_of_terminal()), sep="\n")


def rendered(
    flows: Sequence[FlowStatus], *, by_lane: bool, width: int, rates: Rates | None = None
) -> Iterator[RenderableType]:
    """The table and the sentences of every flow.

    Args:
        flows: to show.
        by_lane: one line for each lane, not for each topic.
        width: columns of the terminal.
        rates: since the look before, where there was one.
    """
    from rich.text import Text  # noqa: PLC0415 -- programs need no tables

    for flow in flows:
        if flow.topics:
            yield _fitting(_by_lane(flow) if by_lane else _by_topic(flow, rates), width)
        else:
            yield Text(f"{flow.flow}\n  topics      none yet")
        for line in (*summary(flow), *notes(flow)):
            yield Text(f"  {line}")


_EMPTY = frozenset({"0", "-", "ok", "mapping", "Enabled", "records"})
"""Cells that say what is expected."""

_ALWAYS = frozenset({"lanes", "lane", "lag at most", "lag"})


def _fitting(made: Table, width: int) -> Table:
    """The same without columns that say nothing in any row, as many as the width asks for; the last ones go first."""
    from rich.console import Console  # noqa: PLC0415 -- programs need no tables

    for column in made.columns:
        column.overflow = "fold"  # a number without its end is another number
    measuring = Console(width=1_000)
    for column in reversed(made.columns):
        if measuring.measure(made).maximum <= width:
            break
        if column.header not in _ALWAYS and _EMPTY.issuperset(map(str, column.cells)):
            made.columns.remove(column)
    return made


def _state(status: LaneStatus, now: int) -> str:
    if status.stop is not None:
        return "STOPPED"
    if status.leased(now) is not None:
        return "leased"
    if status.waits_without_a_job(now):
        return "WAITS"
    return "doubt" if status.head.in_doubt else "ok"


def _by_topic(flow: FlowStatus, rates: Rates | None) -> Table:
    made = _table(flow)
    rate = ("a second",) if rates is not None else ()
    for heading in ("lanes", *rate, "lag at most", "lag", "last run", "latency", "doubt", "stopped", "lost", _GAPS):
        made.add_column(heading, justify="right")
    made.add_column("trigger")
    made.add_column("mapping")
    for topic in flow.topics:
        lanes = topic.lanes
        made.add_row(
            topic.topic,
            str(len(lanes)),
            *_rate(rates, flow, topic),
            *_progress(lanes, flow.at),
            str(sum(lane.head.in_doubt for lane in lanes)),
            str(sum(lane.stop is not None for lane in lanes)),
            *_missing(lanes),
            str(topic.trigger),
            _poll(topic),
        )
    return made


def _rate(rates: Rates | None, flow: FlowStatus, topic: TopicStatus) -> tuple[str, ...]:
    if rates is None:
        return ()
    found = rates.get((flow.flow, topic.topic))
    return ("-" if found is None else f"{found:,.0f}",)


def _by_lane(flow: FlowStatus) -> Table:
    made = _table(flow)
    headings = (
        "lane",
        "gen.",
        "position",
        "source end",
        "lag at most",
        "lag",
        "last run",
        "latency",
        "state",
        "copied by",
        "lost",
    )
    for heading in (*headings, _GAPS):
        made.add_column(heading, justify="right")
    for topic in flow.topics:
        for name, row in _alike([(lane.lane.partition, _lane_row(lane, flow.at)) for lane in topic.lanes]):
            made.add_row(topic.topic, name, *row)
    return made


def _alike(rows: Sequence[tuple[int, tuple[str, ...]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """One line for neighbouring lanes that differ in their number alone: `0 to 5`."""
    for row, of_row in groupby(rows, key=itemgetter(1)):
        numbers = [number for number, _ in of_row]
        yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}", row


def _lane_row(lane: LaneStatus, now: int) -> tuple[str, ...]:
    return (
        str(lane.head.generation),
        str(lane.head.position),
        str(lane.source.end) if lane.source is not None else "gone" if lane.gone else UNKNOWN,
        *_progress([lane], now),
        _state(lane, now),
        _copied_by(lane),
        *_missing([lane]),
    )


def _copied_by(status: LaneStatus) -> str:
    share = status.passed_share
    return (status.copied_by or "-") if share is None else f"batches, {share:.0%}"


_GAPS = "gaps"
"""Of the newest runs."""


def _table(flow: FlowStatus) -> Table:
    made = table(str(flow.flow))
    made.add_column("topic", no_wrap=True)
    return made


def _progress(lanes: Sequence[LaneStatus], now: int) -> tuple[str, ...]:
    """Lag in records and in time, last run, latency: of several lanes the sum, the longest, the latest, and its own."""
    lags = [lane.lag for lane in lanes if lane.lag is not None]
    ages = [lane.lag_ms for lane in lanes if lane.lag_ms is not None]
    newest = max(lanes, key=lambda lane: lane.last_run_at or 0, default=None)
    run_at, latency = (newest.last_run_at, newest.latency_ms) if newest is not None else (None, None)
    return (
        f"{sum(lags):,}" if len(lags) == len(lanes) and lanes else UNKNOWN,
        duration(max(ages)) if len(ages) == len(lanes) and lanes else UNKNOWN,
        ago(run_at, now=now) if run_at is not None else "never",
        duration(latency) if latency is not None else "-",
    )


def _missing(lanes: Sequence[LaneStatus]) -> tuple[str, str]:
    return f"{sum(lane.lost for lane in lanes):,}", f"{sum(lane.gaps for lane in lanes):,}"


def _poll(topic: TopicStatus) -> str:
    if topic.mapping is None:
        return "-"
    result = topic.mapping.last_processing_result
    state = topic.mapping.state or UNKNOWN
    if result.startswith(OF_FUNCTION):
        # Where a lane is stopped, its batches fail until it is brought back: the lane has the reason.
        stopped = any(lane.stop is not None for lane in topic.lanes)
        return state if stopped else f"{state}, last batch failed"
    return f"{state} ({result})" if result.startswith("PROBLEM") else state
