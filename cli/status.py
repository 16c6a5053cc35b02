"""`mirrorless status [FLOW]`: the position and lag of every lane, and what needs the operator.

Beside the lanes: the last heartbeats, the readiness of consumer groups, and the scheduled tasks.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cli.args import add_deployment, add_flow
from cli.deployment import DeployedFlows
from cli.flow_status import NEWEST_RUNS, FlowStatus, LaneStatus, TopicStatus, read_flow
from cli.groups import need_operator
from cli.lanes import stop_as_json
from cli.output import UNKNOWN, ago, console, duration, moment, numbered, print_json, table
from cli.tasks import TaskStatus, tasks_as_json
from mirrorless.lanes.operator_actions import advice

if TYPE_CHECKING:
    from rich.table import Table

    from mirrorless.scheduled.standby import RegionRuns

NAMED = 10
"""Groups, lanes and troubles that are named one by one; the others are counted, and `--json` has all."""


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


def summary(flow: FlowStatus) -> Iterator[str]:
    """One line each for heartbeats, groups, tasks, and the shards of scheduled topics."""
    yield f"heartbeats  {_heartbeats(flow)}"
    counts = Counter(group.readiness for group in flow.groups)
    groups = ", ".join(f"{count} {_WORDS.get(readiness, readiness)}" for readiness, count in sorted(counts.items()))
    yield f"groups      {groups or 'none'}"
    yield f"tasks       {', '.join(_last_done(task, flow.at) for task in flow.tasks)}"
    if flow.regions is not None:
        yield f"regions     {_regions(flow.regions, flow.at)}"
    if flow.shards:
        yield f"schedule    {', '.join(_last_done(shard, flow.at) for shard in flow.shards)}"


_WORDS = {
    "active_on_target": "active on the target",
    "before_map": "before the map",
    "ahead_of_replication": "ahead of replication",
    "ahead_on_target": "ahead on the target",
}
"""Readiness in words, where it is not one."""


def notes(flow: FlowStatus) -> Iterator[str]:
    """Sentences below the table; those that need the operator are marked with `!`."""
    yield from _order_notes(flow)
    for topic in flow.topics:
        for lane in topic.lanes:
            yield from _lane_notes(lane)
        yield from _job_notes(topic, flow.at)
        if topic.mapping_is_off and topic.mapping is not None and not flow.pause.paused:
            yield f"! {topic.topic}: its mapping is {topic.mapping.state}, nothing is polled. Enable it."
    for task in (*flow.tasks, *flow.shards):
        yield from _task_notes(task, flow.at)
    yield from _group_notes(flow)
    if flow.regions is not None:
        yield from _region_notes(flow.regions, flow.at)
    if flow.trouble:
        yield f"The source does not answer, so ends and lags are not known: {flow.trouble}"
    if flow.unlisted:
        yield f"Topics that match {', '.join(flow.unlisted)} cannot be listed until the source answers."
    if flow.heartbeats.trouble:
        yield f"The target does not answer, so heartbeats are not known: {flow.heartbeats.trouble}"


def _order_notes(flow: FlowStatus) -> Iterator[str]:
    if flow.pause.order is not None and flow.pause.paused:
        order, quiet = flow.pause.order, flow.pause.quiet_at
        effect = f"no mapping polls since {moment(quiet)}" if quiet is not None else "mappings are being disabled"
        yield f"PAUSED since {moment(order.at)} ({order.reason}): {effect}. `flow resume` lets it go on."
    if flow.fence is not None:
        yield f"! The flow is fenced since {moment(flow.fence.at)}, and replicates nothing: {flow.fence.detail}"


def _task_notes(task: TaskStatus, now: int) -> Iterator[str]:
    last = task.last
    if last is None:
        return
    if task.overdue(now):
        since = f"since {moment(last.ok_at)}" if last.ok_at else "ever"
        why = last.error or "its function is not started, or does not end. See its schedule and its log."
        yield f"! task {task.task} has not been done {since}: {why}"
    elif last.error:
        yield f"task {task.task} failed {ago(last.at, now=now)}, and will be retried: {last.error}"
    mark = "! " if task.stuck_partitions else ""
    for trouble in last.troubles[:NAMED]:
        yield f"{mark}{task.task}: {trouble}"
    if len(last.troubles) > NAMED:
        yield f"{mark}{task.task}: {numbered(len(last.troubles) - NAMED, 'more trouble')}, see --json"


def _group_notes(flow: FlowStatus) -> Iterator[str]:
    urgent = set(need_operator(flow.groups))
    found = sorted(flow.groups, key=lambda group: (group.group not in urgent, group.group))
    waiting = [group for group in found if group.readiness not in {"ready", "active_on_target"}]
    for group in waiting[:NAMED]:
        match group.readiness:
            case "before_map":
                yield f"! group {group.group} stands before the map: see `groups '{flow.flow}' --group {group.group}`."
            case "ahead_of_replication":
                records = numbered(group.ahead, "upstream offset")
                yield f"group {group.group} is ahead of replication by {records}: they would come again."
            case "ahead_on_target":
                records = numbered(group.skip, "record")
                mark, name = "! " if group.group in urgent else "", group.group
                yield f"{mark}group {name} would skip {records}: see `groups '{flow.flow}' --group {name}`."
            case "independent":
                yield f"group {group.group} has offsets on {flow.flow.target} that are not this flow's: see `groups`."
            case _:
                yield f"group {group.group} would read {numbered(group.reread, 'record')} again."
    if len(waiting) > NAMED:
        yield f"{numbered(len(waiting) - NAMED, 'more group')} not ready: see `groups '{flow.flow}'`."


def _heartbeats(flow: FlowStatus) -> str:
    beats = flow.heartbeats
    if not beats.enabled:
        return "switched off"

    def last(at: int | None) -> str:
        if beats.trouble:
            return UNKNOWN
        return "none" if at is None else ago(at, now=flow.at)

    return f"on the target {last(beats.emitted)}, end to end {last(beats.replicated)}"


def _regions(runs: RegionRuns, now: int) -> str:
    if runs.home is None:
        return "none has run yet"
    home = f"{runs.home.region} {'SILENT' if runs.home_is_silent(now) else 'works'}, {ago(runs.home.at, now=now)}"
    if runs.standby is None:
        return f"{home}; standby never"
    does = "works" if runs.standby.works else "stands by"
    return f"{home}; {runs.standby.region} {does}, {ago(runs.standby.at, now=now)}"


def _region_notes(runs: RegionRuns, now: int) -> Iterator[str]:
    if runs.home is not None and runs.home_is_silent(now):
        works = runs.standby is not None and runs.standby.works and not runs.standby_is_silent(now)
        groups = f"{runs.standby.region} moves the groups" if works and runs.standby else "no standby works either"
        yield (
            f"! {runs.home.region}, the home of the flow, has been silent since {moment(runs.home.at)}: {groups}; "
            "records, topics, configs, ACLs and mappings wait. If the region is lost, fail over."
        )
    elif runs.standby_is_silent(now):
        since = "ever" if runs.standby is None else f"since {moment(runs.standby.at)}"
        yield f"! the standby in the target's region has not run {since}. See its schedule and its log."


def _last_done(task: TaskStatus, now: int) -> str:
    if task.last is None:
        return f"{task.task} never"
    if task.last.error or task.overdue(now):
        return f"{task.task} FAILED" if task.last.error else f"{task.task} LATE"
    return f"{task.task} {ago(task.last.ok_at, now=now)}"


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
    if status.head.in_doubt and status.head.run is not None and status.lease is None:
        run = status.head.run
        yield f"{lane}: the run [{run.position}, {run.next}) is in doubt; the next delivery settles it."


def _job_notes(topic: TopicStatus, now: int) -> Iterator[str]:
    """Sentences on the leases of jobs on a topic's lanes, and on lanes that wait for a job that is not running."""
    leased: dict[str, list[LaneStatus]] = {}
    for lane in topic.lanes:
        if (lease := lane.leased(now)) is not None:
            leased.setdefault(lease.holder, []).append(lane)
    for holder, lanes in leased.items():
        until = max(lane.lease.until for lane in lanes if lane.lease is not None)
        waiting = sum(lane.waiting is not None for lane in lanes)
        yield (
            f"{topic.topic}: {numbered(len(lanes), 'lane')} leased by job run {holder} until {moment(until)}; "
            f"batches wait for {waiting} of them, until the job releases them."
        )
    alone = [lane for lane in topic.lanes if lane.waits_without_a_job(now)]
    if alone:
        offsets = ", ".join(f"{lane.lane.partition} @ {lane.waiting}" for lane in alone[:NAMED])
        yield (
            f"! {topic.topic}: {numbered(len(alone), 'lane')} waiting for a job that brings what lies before: {offsets}"
            f"{', ...' if len(alone) > NAMED else ''}. Run `backfill start '{topic.lanes[0].lane.flow}'`."
        )


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
