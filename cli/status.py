"""`mirrorless status [FLOW]`: the position and lag of every lane, and what needs the operator.

Beside the lanes: the last heartbeats, the readiness of consumer groups, and the scheduled tasks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cli.advice import completed_page
from cli.args import BadInput, add_deployment, add_flow
from cli.deployment import DeployedFlows
from cli.flow_status import FlowStatus, LaneStatus, TopicStatus, read_flow
from cli.lanes import stop_as_json
from cli.output import UNKNOWN, ago, console, duration, print_json, table, width_of_terminal
from cli.status_notes import notes, summary
from cli.tasks import tasks_as_json
from mirrorless.chain.lane import FlowName
from mirrorless.chain.losses import Loss
from mirrorless.topics.mapping_plan import OF_FUNCTION

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `status`."""
    parser = subparsers.add_parser(
        "status",
        help="say where every flow stands: lag, latency, stopped lanes, losses, heartbeats, groups, tasks",
        epilog="Example: mirrorless status 'us-east->eu-west' --lanes",
    )
    add_flow(parser, optional=True)
    parser.add_argument("--lanes", action="store_true", help="one line per partition, not only per topic")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="again every 2 s until Ctrl-C, with records a second")
    how.add_argument("--html", metavar="FILE", help="write a page with lag, throughput and latency over time")
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the state of one flow or of all. Exit code 1 where `FlowStatus.needs_operator`."""
    deployment = DeployedFlows.of(arguments)
    names = deployment.flow_names(arguments.flow)
    if arguments.watch:
        if arguments.json:
            raise BadInput("--watch is for people", where="--watch", hint="leave out --json, or run it again and again")
        return watch(lambda: [read_flow(deployment, flow) for flow in names], by_lane=arguments.lanes)
    flows = [read_flow(deployment, flow) for flow in names]
    if arguments.html is not None:
        _write_page(deployment, flows, Path(arguments.html))
    if arguments.json:
        print_json({"flows": [as_json(flow) for flow in flows]})
    else:
        show(flows, by_lane=arguments.lanes)
    return int(any(flow.needs_operator for flow in flows))


def _write_page(deployment: DeployedFlows, flows: list[FlowStatus], path: Path) -> None:
    """Write the page of `--html`.

    Raises:
        BadInput: the file cannot be written.
    """
    from cli.status_page import history_of, report_of  # noqa: PLC0415 -- the page's template costs a tenth of a second
    from mirrorless.reports.page import render  # noqa: PLC0415 -- same

    stores = {flow.flow: deployment.stores(flow.flow) for flow in flows}
    histories = [history_of(stores[flow.flow].chains, flow) for flow in flows]

    def losses(flow: FlowStatus) -> list[Loss]:
        lanes = [lane.lane for topic in flow.topics for lane in topic.lanes if lane.lost]
        return [loss for each in stores[flow.flow].ledger.of_lanes(lanes).values() for loss in each]

    page = render(report_of(flows, histories, losses, made_at=flows[0].at if flows else 0))
    try:
        path.write_text(completed_page(page), encoding="utf-8")
    except OSError as exc:
        raise BadInput(f"the page cannot be written: {exc}", where="--html") from exc
    print(f"Page: {path.absolute().as_uri()}", file=sys.stderr)


# for programs


def as_json(status: FlowStatus) -> dict[str, Any]:
    """One flow with every partition. Moments in ms since the epoch; null for not known, or nothing yet."""
    return {
        "flow": str(status.flow),
        "at": status.at,
        "needs_operator": status.needs_operator,
        "fenced": None if status.fence is None else {"detail": status.fence.detail, "at": status.fence.at},
        "source_reachable": not status.trouble,
        "source_trouble": status.trouble,
        "unlisted_patterns": list(status.unlisted),
        "topics": [_topic_as_json(topic, status.at) for topic in status.topics],
        "heartbeats": status.heartbeats.as_json(),
        "groups": [
            {
                "group": group.group,
                "readiness": group.readiness,
                "by": group.by,
                "reread": group.reread,
                "skip": group.skip,
                "ahead": group.ahead,
                "at": group.at,
            }
            for group in status.groups
        ],
        "tasks": tasks_as_json(status.tasks, status.at),
        "shards": tasks_as_json(status.shards, status.at),
        "paused": msgspec.to_builtins(status.pause) if status.pause.paused else None,
        "regions": None if status.regions is None else msgspec.to_builtins(status.regions),
    }


def _topic_as_json(status: TopicStatus, now: int) -> dict[str, Any]:
    return {
        "topic": status.topic,
        "remote_topic": status.remote_topic,
        "missing": status.missing,
        "trigger": status.trigger.configured,
        "trigger_changing": status.trigger.changing,
        "mapping": None if status.mapping is None else msgspec.to_builtins(status.mapping),
        "partitions": [_lane_as_json(lane, now) for lane in status.lanes],
    }


def _lane_as_json(status: LaneStatus, now: int) -> dict[str, Any]:
    lease = status.leased(now)
    return {
        "partition": status.lane.partition,
        "generation": status.head.generation,
        "position": status.head.position,
        "source_start": status.source.start if status.source else None,
        "source_end": status.source.end if status.source else None,
        "lag": status.lag,
        "lag_seconds": None if status.lag_ms is None else status.lag_ms / 1000,
        "replication_latency_ms": status.latency_ms,
        "open_transaction": None if status.hidden_by is None else asdict(status.hidden_by),
        "overtaken": status.overtaken,
        "source_ends_below_position": status.shrunk,
        "in_doubt": status.head.in_doubt,
        "last_run_at": status.last_run_at,
        "copied_by": status.copied_by,
        "passed_share": status.passed_share,
        "stop": stop_as_json(status.lane, status.stop) if status.stop else None,
        "lease": {"holder": lease.holder, "until": lease.until} if lease else None,
        "waits_for_a_job_from": status.waiting if lease or status.waits_without_a_job(now) else None,
        "lost": status.lost,
        "gaps_in_newest_runs": status.gaps,
    }


EVERY_SECONDS = 2.0
"""Between two looks."""


def rates_between(before: Sequence[FlowStatus], now: Sequence[FlowStatus]) -> Rates:
    """How fast the lanes of each topic have moved between two looks; a lane that was reset does not count."""
    earlier = {(flow.flow, topic.topic): (flow.at, topic) for flow in before for topic in flow.topics}
    rates: dict[tuple[FlowName, str], float] = {}
    for flow in now:
        for topic in flow.topics:
            at, old = earlier.get((flow.flow, topic.topic), (flow.at, topic))
            if flow.at > at:
                rates[flow.flow, topic.topic] = _moved(old, topic) * 1000 / (flow.at - at)
    return rates


def _moved(before: TopicStatus, now: TopicStatus) -> int:
    heads = {lane.lane: lane.head for lane in before.lanes}
    return sum(
        max(0, lane.head.position - old.position)
        for lane in now.lanes
        if (old := heads.get(lane.lane)) is not None and old.generation == lane.head.generation
    )


def looks(
    read: Callable[[], list[FlowStatus]], *, pause: Callable[[float], None] = time.sleep
) -> Iterator[tuple[list[FlowStatus], Rates]]:
    """The flows, and the rates since the look before, without an end."""
    before: list[FlowStatus] = []
    while True:
        flows = read()
        yield flows, rates_between(before, flows)
        before = flows
        pause(EVERY_SECONDS)


def watch(read: Callable[[], list[FlowStatus]], *, by_lane: bool) -> int:
    """Show every look until Ctrl-C. Exit code of the last."""
    from rich.console import Group  # noqa: PLC0415 -- programs need no tables
    from rich.live import Live  # noqa: PLC0415 -- same

    screen, flows = console(soft_wrap=False), list[FlowStatus]()
    try:
        if not screen.is_terminal:
            for flows, rates in looks(read):
                shown = rendered(flows, by_lane=by_lane, width=screen.width, rates=rates)
                screen.print(*shown, sep="\n", soft_wrap=True)
        else:
            with Live(console=screen, auto_refresh=False) as live:
                for flows, rates in looks(read):
                    shown = rendered(flows, by_lane=by_lane, width=screen.width, rates=rates)
                    live.update(Group(*shown), refresh=True)
    except KeyboardInterrupt:
        pass  # the end
    return int(any(flow.needs_operator for flow in flows))


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
