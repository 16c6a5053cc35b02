"""The body of a flow's CloudWatch dashboard.

The first row answers "is it all right?"; below it, top down: does it move, does it fail, who watches, what is lost,
what does it cost.
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html)

Cost is by the hour, as metric math over CloudWatch's own counts, by list prices: an estimate to see a change by, not a
bill. Not in it: Kafka, traffic between regions, storage, backups, logs, metrics, alarms and jobs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from infra.monitoring import metrics
from infra.monitoring.alarms import RUNBOOK
from mirrorless.cost import prices
from mirrorless.flow.counts import WATCHES
from mirrorless.flow.naming import PULL
from mirrorless.scheduled.functions import SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.deployment import FlowDeployment, Location
    from infra.monitoring.metrics import Metric
    from mirrorless.flow.counts import OfBatches, OfFlow, WatchGraph

WIDTH: Final = 24
"""Columns of the grid."""

MOST_ALARMS: Final = 100
"""Of one widget. (https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html)"""

RUNBOOK_SECTIONS: Final = {
    "triage": "triage",
    "alarms": "alarms",
    "a stopped lane": "a-stopped-lane",
    "the cost": "cost-on-the-dashboard",
}
"""Sections of the runbook that the first widget links to, by what they are called there."""

WidgetRow = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Widgets from left to right, row by row."""

    region: str
    widgets: list[dict[str, Any]] = field(default_factory=list)

    def row(self, height: int, *widgets: dict[str, Any]) -> None:
        """Add a row of widgets of one width each."""
        top = max((each["y"] + each["height"] for each in self.widgets), default=0)
        width = WIDTH // len(widgets)
        for column, widget in enumerate(widgets):
            place = {"x": column * width, "y": top, "width": width, "height": height}
            self.widgets.append({**place, **widget})

    def graph(self, title: str, rows: Sequence[WidgetRow], *, left: str = "", **properties: Any) -> dict[str, Any]:
        """A graph over time. Args: rows: metrics. left: the unit."""
        axis = {"left": {"label": left, "showUnits": False, "min": 0}}
        options = {"view": "timeSeries", "stacked": False, "period": metrics.MINUTE, "yAxis": axis}
        return {
            "type": "metric",
            "properties": {"title": title, "region": self.region, "metrics": rows, **options, **properties},
        }

    def numbers(self, title: str, rows: Sequence[WidgetRow], **properties: Any) -> dict[str, Any]:
        """The newest values, large."""
        options = {"view": "singleValue", "period": metrics.MINUTE, "sparkline": True}
        return {
            "type": "metric",
            "properties": {"title": title, "region": self.region, "metrics": rows, **options, **properties},
        }


def dashboard_body(flow: FlowDeployment, *, alarm_arns: Sequence[str], runbook: str | None, per_topic: bool) -> str:
    """The dashboard of a flow as JSON.

    Args:
        flow: whose.
        alarm_arns: its alarms.
        runbook: address of a copy of the runbook.
        per_topic: whether there are metrics of each topic, to be shown instead of the flow's.
    """
    grid = Grid(region=flow.home.region)
    grid.row(2, _text(_heading(flow, runbook)))
    _is_it_all_right(grid, flow, alarm_arns)
    _does_it_move(grid, flow, per_topic=per_topic)
    _does_it_fail(grid, flow)
    if flow.pull is not None:
        _scheduled_topics(grid, flow, flow.pull)
    _who_watches(grid, flow)
    _tables_and_cost(grid, flow)
    return json.dumps({"start": "-PT3H", "periodOverride": "inherit", "widgets": grid.widgets})


def _heading(flow: FlowDeployment, runbook: str | None) -> str:
    links = " · ".join(f"[{title}]({runbook or RUNBOOK}#{anchor})" for title, anchor in RUNBOOK_SECTIONS.items())
    where = f"functions in {flow.home}, tables in {flow.state}"
    return f"## {flow.name}\n{where} · `mirrorless status '{flow.name}'` · {links if runbook else RUNBOOK}"


def _is_it_all_right(grid: Grid, flow: FlowDeployment, alarm_arns: Sequence[str]) -> None:
    grid.row(
        5,
        {
            "type": "alarm",
            "properties": {"title": "Is it all right? Red needs you", "alarms": list(alarm_arns[:MOST_ALARMS])},
        },
        grid.numbers(
            "Now",
            [
                metrics.of_flow(flow, "record-age-ms-max", "Maximum").row(label="oldest record (ms)"),
                metrics.of_flow(flow, "heartbeats-emitted", "Sum").row(label="heartbeats a minute"),
                *_or_zero(flow, "groups-not-ready", "Maximum", "groups that could not move"),
                *_or_zero(flow, "stopped-lanes", "Maximum", "stopped lanes"),
            ],
        ),
        grid.numbers(
            "In the time that is shown",
            [
                metrics.of_flow(flow, "offsets-lost", "Sum").row(label="offsets lost"),
                metrics.of_flow(flow, "record-count", "Sum").row(label="records"),
                metrics.of_function(flow, "forward", "Errors", "Sum").row(label="failed deliveries"),
            ],
            setPeriodToTimeRange=True,
            sparkline=False,
        ),
    )


def _does_it_move(grid: Grid, flow: FlowDeployment, *, per_topic: bool) -> None:
    def graph(title: str, name: OfBatches, stat: str, left: str) -> dict[str, Any]:
        if per_topic:
            return grid.graph(f"{title}, by topic", [_expression(metrics.over_topics(flow, name, stat))], left=left)
        return grid.graph(title, [metrics.of_flow(flow, name, stat).row()], left=left)

    grid.row(
        6,
        graph("Records", "record-count", "Sum", "a minute"),
        graph("Bytes", "byte-count", "Sum", "a minute"),
        _lag(grid, flow),
    )
    grid.row(
        6,
        graph("Record age on arrival", "record-age-ms-max", "Maximum", "ms"),
        graph("Replication latency: from written to confirmed", "replication-latency-ms-max", "Maximum", "ms"),
    )


def _lag(grid: Grid, flow: FlowDeployment) -> dict[str, Any]:
    """MSK has the lag of each group; elsewhere only provisioned mappings have a metric, by their id alone."""
    behind = metrics.lag_on_msk(flow, "MaxOffsetLag")
    if behind is not None:
        return grid.graph("Lag, by topic (MSK)", [_expression(behind)], left="offsets")
    mappings = metrics.over_mappings("MaxOffsetLag", "Maximum")
    return grid.graph("Lag, by mapping: all of this region", [_expression(mappings)], left="offsets")


def _does_it_fail(grid: Grid, flow: FlowDeployment) -> None:
    forwarder = partial(_of_function, flow, "forward")
    grid.row(
        6,
        grid.graph(
            "Forwarder: calls",
            [
                forwarder("Invocations", "Sum", "calls"),
                forwarder("Errors", "Sum", "failed"),
                forwarder("Throttles", "Sum", "throttled"),
            ],
            left="a minute",
        ),
        grid.graph(
            "Forwarder: duration",
            [forwarder("Duration", stat, stat) for stat in ("p50", "p99", "Maximum")],
            left="ms",
        ),
        grid.graph("Forwarder: concurrency", [forwarder("ConcurrentExecutions", "Maximum", "at once")], left="at most"),
    )


def _scheduled_topics(grid: Grid, flow: FlowDeployment, place: Location) -> None:
    """The reader of scheduled topics, where its metrics are in the dashboard's account."""
    changes = _watched(grid, flow, "Scheduled topics")
    if place.account != flow.home.account:
        grid.row(
            6, changes, _text(f"Scheduled topics are read in {place}: the metrics of their reader are seen there.")
        )
        return

    pull = partial(_of_function, flow, PULL)
    grid.row(
        6,
        changes,
        grid.graph(
            "Reader of scheduled topics: runs of all shards",
            [pull("Invocations", "Sum", "started"), pull("Errors", "Sum", "failed")],
            left="a minute",
            region=place.region,
        ),
        grid.graph(
            "Reader of scheduled topics: duration",
            [pull("Duration", stat, stat) for stat in ("p50", "Maximum")],
            left="ms",
            region=place.region,
        ),
    )
    if place.region != flow.home.region:
        shown: tuple[tuple[OfFlow, str, str], ...] = (
            ("record-count", "Sum", "records a minute"),
            ("record-age-ms-max", "Maximum", "oldest record (ms)"),
        )
        grid.row(
            6,
            *(
                grid.graph(
                    f"Scheduled topics: {label}",
                    [metrics.of_flow(flow, name, stat, part=PULL).row()],
                    region=place.region,
                )
                for name, stat, label in shown
            ),
        )


_GRAPHS: Final[Mapping[WatchGraph, str]] = {
    "Tasks": "a minute",
    "Groups": "",
    "Loss ledger": "",
    "Lanes": "",
    "Runs in doubt": "",
}
"""Graphs of what is emitted where it is not zero, with their units."""


def _who_watches(grid: Grid, flow: FlowDeployment) -> None:
    arrived = metrics.round_trip(flow)
    heartbeats = [metrics.of_flow(flow, "heartbeats-emitted", "Sum").row(label="written, both sides")]
    heartbeats += [arrived.row(label="came through")] if arrived else []
    graphs = [grid.graph("Heartbeats", heartbeats, left="a minute")]
    graphs += [_watched(grid, flow, title, left) for title, left in _GRAPHS.items()]
    grid.row(6, *graphs[:3])
    grid.row(6, *graphs[3:])


def _tables_and_cost(grid: Grid, flow: FlowDeployment) -> None:
    money = grid.graph("Cost, about: see the text below", _cost_rows(flow), left="$ an hour", period=300)
    if flow.state.account != flow.home.account:
        grid.row(6, money, _text(f"The tables are in {flow.state}: their metrics, and their cost, are seen there."))
    else:
        used, throttled = (
            [
                metrics.of_table(flow, table, name.format(kind), "Sum").row(label=f"{table} {kind.lower()}s")
                for table in flow.flow.tables
                for kind in ("Write", "Read")
            ]
            for name in ("Consumed{}CapacityUnits", "{}ThrottleEvents")
        )
        grid.row(
            6,
            grid.graph("Tables: request units", used, left="a minute", region=flow.state.region),
            grid.graph("Tables: throttled", throttled, left="a minute", region=flow.state.region),
            money,
        )
    grid.row(2, _text(_about_cost()))


def _cost_rows(flow: FlowDeployment) -> list[WidgetRow]:
    rows = [metric.row(id=id_, visible=False) for id_, metric in cost_metrics(flow).items()]
    rows.append(_expression(functions_per_hour(flow), "functions"))
    if (tables := tables_per_hour(flow)) is not None:
        rows.append(_expression(tables, "requests to tables"))
    if flow.flow.settings.mapping.mode == "provisioned":
        rows.append(_expression(pollers_per_hour(), "pollers of every mapping of this region", period=60))
    return rows


def _about_cost() -> str:
    return (
        f"Cost: {prices.KIND}, {prices.REGION}, as of {prices.AS_OF}. Pollers are those of all mappings of "
        "this account and region, whoever's they are. Not in it: Kafka, traffic, storage, backups, logs, metrics, jobs."
    )


def _text(markdown: str) -> dict[str, Any]:
    return {"type": "text", "properties": {"markdown": markdown}}


def _expression(expression: str, label: str = "", **options: Any) -> WidgetRow:
    return [{"expression": expression, "label": label, **options}]


def _of_function(flow: FlowDeployment, part: str, name: str, stat: str, label: str) -> WidgetRow:
    return metrics.of_function(flow, part, name, stat).row(label=label)


def _watched(grid: Grid, flow: FlowDeployment, title: WatchGraph, left: str = "") -> dict[str, Any]:
    """The graph of metrics that are emitted where they are not zero."""
    watched = [(name, each) for name, each in WATCHES.items() if each.graph == title]
    rows = [row for name, each in watched for row in _or_zero(flow, name, each.stat, each.label)]
    return grid.graph(title, rows, left=left)


def _or_zero(flow: FlowDeployment, name: OfFlow, stat: str, label: str) -> list[WidgetRow]:
    """The rows of a metric that is emitted only where it is not zero."""
    id_ = name.replace("-", "_")
    hidden = metrics.of_flow(flow, name, stat).row(id=id_, visible=False)
    return [hidden, _expression(f"FILL({id_}, 0)", label)]


_FORWARDER: Final = "forward"


def memory_mb(flow: FlowDeployment) -> dict[str, int]:
    """The memory of each function of a flow that runs all the time, in MB, as far as metrics can be read at home."""
    found = {_FORWARDER: flow.flow.settings.function.memory_mb} | {each.name: each.memory_mb for each in SCHEDULED}
    if flow.pull is not None and flow.pull.account == flow.home.account:
        found[PULL] = flow.flow.settings.schedule.memory_mb
    return found


def cost_metrics(flow: FlowDeployment) -> dict[str, Metric]:
    """The metrics that the expressions read, by their ids in it. Tables of another account are not readable here."""
    found = {}
    for part in memory_mb(flow):
        found[f"ms_{part}"] = metrics.of_function(flow, part, "Duration", "Sum")
        found[f"calls_{part}"] = metrics.of_function(flow, part, "Invocations", "Sum")
    if flow.state.account == flow.home.account:
        for table in flow.flow.tables:
            found[f"writes_{table}"] = metrics.of_table(flow, table, "ConsumedWriteCapacityUnits", "Sum")
            found[f"reads_{table}"] = metrics.of_table(flow, table, "ConsumedReadCapacityUnits", "Sum")
    return found


def functions_per_hour(flow: FlowDeployment) -> str:
    """Dollars per hour of the functions: the time that they ran, and the calls."""
    gb_second = prices.LAMBDA_GB_SECOND[flow.flow.settings.function.architecture]
    terms = [
        f"FILL(ms_{part}, 0) * {_plain(mb / 1024 / 1000 * gb_second)}"
        f" + FILL(calls_{part}, 0) * {_plain(prices.LAMBDA_REQUEST)}"
        for part, mb in memory_mb(flow).items()
    ]
    return _per_hour(terms, clock=f"calls_{_FORWARDER}")


def tables_per_hour(flow: FlowDeployment) -> str | None:
    """Dollars per hour of requests to the tables. A replica pays for every write again; None for another account's."""
    if flow.state.account != flow.home.account:
        return None
    write = prices.DYNAMODB_WRITE_UNIT * (2 if flow.replica_region else 1)
    read = prices.DYNAMODB_READ_UNIT
    terms = [
        f"FILL(writes_{table}, 0) * {_plain(write)} + FILL(reads_{table}, 0) * {_plain(read)}"
        for table in flow.flow.tables
    ]
    return _per_hour(terms, clock="writes_control")


def pollers_per_hour() -> str:
    """Dollars per hour of the event poller units of all mappings of the region, which share them by groups."""
    units = metrics.over_mappings("EventPollerUnit", "Sum")
    return f"SUM({units}) * {_plain(prices.EVENT_POLLER_UNIT_HOUR)}"


def _per_hour(terms: list[str], *, clock: str) -> str:
    return f"({' + '.join(terms)}) * 3600 / PERIOD({clock})"


def _plain(number: float) -> str:
    """Without an exponent: metric math is not documented to read one."""
    return f"{number:.16f}".rstrip("0").rstrip(".")
