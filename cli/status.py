"""`mirrorless status [FLOW]`: the position and lag of every lane, and what needs the operator.

Beside the lanes: the last heartbeats, the readiness of consumer groups, and the scheduled tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cli.args import add_deployment, add_flow
from cli.deployment import DeployedFlows
from cli.flow_status import NEWEST_RUNS, FlowStatus, LaneStatus, TopicStatus, read_flow
from cli.lanes import stop_as_json
from cli.output import UNKNOWN, ago, console, duration, print_json, table
from cli.status_notes import notes, summary
from cli.tasks import tasks_as_json

if TYPE_CHECKING:
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
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show the state of one flow or of all. Exit code 1 where `FlowStatus.needs_operator`."""
    deployment = DeployedFlows.of(arguments)
    flows = [read_flow(deployment, flow) for flow in deployment.flow_names(arguments.flow)]
    if arguments.json:
        print_json({"flows": [as_json(flow) for flow in flows]})
    else:
        show(flows, by_lane=arguments.lanes)
    return int(any(flow.needs_operator for flow in flows))


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


# for people


def show(flows: Sequence[FlowStatus], *, by_lane: bool) -> None:
    """Print every flow."""
    screen = console()
    for flow in flows:
        screen.print(_by_lane(flow) if by_lane else _by_topic(flow))
        for line in (*summary(flow), *notes(flow)):
            screen.print(f"  {line}", markup=False)


def _state(status: LaneStatus, now: int) -> str:
    if status.stop is not None:
        return "STOPPED"
    if status.leased(now) is not None:
        return "leased"
    if status.waits_without_a_job(now):
        return "WAITS"
    return "doubt" if status.head.in_doubt else "ok"


def _by_topic(flow: FlowStatus) -> Table:
    made = _table(flow)
    for heading in ("lanes", "lag at most", "lag", "last run", "latency", "doubt", "stopped", "lost", _GAPS):
        made.add_column(heading, justify="right")
    made.add_column("trigger")
    made.add_column("mapping")
    for topic in flow.topics:
        lanes = topic.lanes
        made.add_row(
            topic.topic,
            str(len(lanes)),
            *_progress(lanes, flow.at),
            str(sum(lane.head.in_doubt for lane in lanes)),
            str(sum(lane.stop is not None for lane in lanes)),
            *_missing(lanes),
            str(topic.trigger),
            _poll(topic),
        )
    return made


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
        for lane in topic.lanes:
            made.add_row(
                topic.topic,
                str(lane.lane.partition),
                str(lane.head.generation),
                str(lane.head.position),
                UNKNOWN if lane.source is None else str(lane.source.end),
                *_progress([lane], flow.at),
                _state(lane, flow.at),
                _copied_by(lane),
                *_missing([lane]),
            )
    return made


def _copied_by(status: LaneStatus) -> str:
    share = status.passed_share
    return (status.copied_by or "-") if share is None else f"batches, {share:.0%}"


_GAPS = f"gaps, {NEWEST_RUNS} runs"


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
    trouble = f" ({result})" if result.startswith("PROBLEM") else ""
    return f"{topic.mapping.state or UNKNOWN}{trouble}"
