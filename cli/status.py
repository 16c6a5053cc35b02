"""`mirrorless status [FLOW]`: the position and lag of every lane, and what needs the operator.

Beside the lanes: the last heartbeats, the readiness of consumer groups, and the scheduled tasks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from cli.advice import completed_page
from cli.args import BadInput, add_deployment, add_flow
from cli.deployment import DeployedFlows
from cli.flow_status import FlowStatus, LaneStatus, TopicStatus, read_flow
from cli.lanes import stop_as_json
from cli.output import print_json
from cli.status_tables import show
from cli.tasks import tasks_as_json
from mirrorless.losses import Loss


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
        from cli.status_watch import watch  # noqa: PLC0415 -- programs need no tables

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
