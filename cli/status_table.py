"""How does the state of the flows look to people? One table per flow, and below it what needs somebody."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from cli.format import ago, duration, moment, numbered
from cli.scheduled import TaskStatus
from cli.status_view import NEWEST_RUNS, FlowStatus, LaneStatus, TopicStatus
from mirrorless.lanes.operator_actions import advice

UNKNOWN = "?"
PIPE_WIDTH = 120
"""A pipe or a log has no width of its own: give the table the room it needs."""

NAMED = 10
"""Groups and troubles that are named one by one; the rest is counted, and `--json` has all."""


def show(flows: Sequence[FlowStatus], *, by_lane: bool) -> None:
    """Print every flow."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for flow in flows:
        console.print(_by_lane(flow) if by_lane else _by_topic(flow))
        for line in (*summary(flow), *notes(flow)):
            console.print(f"  {line}", markup=False)


def summary(flow: FlowStatus) -> Iterator[str]:
    """One line each for heartbeats, groups and tasks."""
    yield f"heartbeats  {_heartbeats(flow)}"
    counts = Counter(group.readiness for group in flow.groups)
    told = ", ".join(f"{count} {_WORDS.get(readiness, readiness)}" for readiness, count in sorted(counts.items()))
    yield f"groups      {told or 'none'}"
    yield f"tasks       {', '.join(_last_done(task, flow.at) for task in flow.tasks)}"


_WORDS = {
    "active_on_target": "active on the target",
    "before_map": "before the map",
    "ahead_of_replication": "ahead of replication",
}
"""Readiness in words, where it is not one."""


def notes(flow: FlowStatus) -> Iterator[str]:
    """What the table cannot say, one sentence each; what needs the operator is marked."""
    for topic in flow.topics:
        for lane in topic.lanes:
            yield from _lane_notes(lane)
        yield from _job_notes(topic, flow.at)
        if topic.mapping_is_off and topic.mapping is not None:
            yield f"! {topic.topic}: its mapping is {topic.mapping.state}, nothing is polled. Enable it."
    for task in flow.tasks:
        yield from _task_notes(task, flow.at)
    yield from _group_notes(flow)
    if flow.trouble:
        yield f"The source does not answer, so ends and lags are not known: {flow.trouble}"
    if flow.unlisted:
        yield f"Topics that match {', '.join(flow.unlisted)} cannot be listed until the source answers."
    if flow.heartbeats.trouble:
        yield f"The target does not answer, so heartbeats are not known: {flow.heartbeats.trouble}"


def _task_notes(task: TaskStatus, now: int) -> Iterator[str]:
    last = task.last
    if last is None:
        return
    if task.overdue(now):
        since = f"since {moment(last.ok_at)}" if last.ok_at else "ever"
        why = last.error or "no run of its function ends, or none is started. Look at its schedule and its log."
        yield f"! task {task.task} has not been done {since}: {why}"
    elif last.error:
        yield f"task {task.task} failed {ago(last.at, now=now)}, and is tried again: {last.error}"
    mark = "! " if task.stuck_partitions else ""
    for trouble in last.troubles[:NAMED]:
        yield f"{mark}{task.task}: {trouble}"
    if len(last.troubles) > NAMED:
        yield f"{mark}{task.task}: {numbered(len(last.troubles) - NAMED, 'more trouble')}, see --json"


def _group_notes(flow: FlowStatus) -> Iterator[str]:
    found = sorted(flow.groups, key=lambda group: (group.readiness != "before_map", group.group))
    waiting = [group for group in found if group.readiness not in {"ready", "active_on_target"}]
    for group in waiting[:NAMED]:
        match group.readiness:
            case "before_map":
                yield f"! group {group.group} stands before the map: see `groups '{flow.flow}' --group {group.group}`."
            case "ahead_of_replication":
                records = numbered(group.ahead, "upstream offset")
                yield f"group {group.group} is ahead of replication by {records}: they would come again."
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
    """Which jobs have lanes of a topic, until when, and which lanes wait for a job that nobody has started."""
    leased: dict[str, list[LaneStatus]] = {}
    for lane in topic.lanes:
        if (lease := lane.leased(now)) is not None:
            leased.setdefault(lease.holder, []).append(lane)
    for holder, lanes in leased.items():
        until = max(lane.lease.until for lane in lanes if lane.lease is not None)
        waiting = sum(lane.waiting is not None for lane in lanes)
        yield (
            f"{topic.topic}: {numbered(len(lanes), 'lane')} leased by job run {holder} until {moment(until)}; "
            f"batches wait for {waiting} of them. They go on when the job lets go."
        )
    alone = [lane for lane in topic.lanes if lane.waits_for_nobody(now)]
    if alone:
        places = ", ".join(f"{lane.lane.partition} @ {lane.waiting}" for lane in alone[:NAMED])
        yield (
            f"! {topic.topic}: {numbered(len(alone), 'lane')} waiting for a job that brings what lies before: {places}"
            f"{', ...' if len(alone) > NAMED else ''}. Run `backfill start '{topic.lanes[0].lane.flow}'`."
        )


def _state(status: LaneStatus, now: int) -> str:
    if status.stop is not None:
        return "STOPPED"
    if status.leased(now) is not None:
        return "leased"
    if status.waits_for_nobody(now):
        return "WAITS"
    return "doubt" if status.head.in_doubt else "ok"


def _by_topic(flow: FlowStatus) -> Table:
    table = _table(flow)
    for heading in ("lanes", "lag at most", "lag", "last run", "latency", "doubt", "stopped", "lost", _GAPS):
        table.add_column(heading, justify="right")
    table.add_column("mapping")
    for topic in flow.topics:
        lanes = topic.lanes
        table.add_row(
            topic.topic,
            str(len(lanes)),
            *_progress(lanes, flow.at),
            str(sum(lane.head.in_doubt for lane in lanes)),
            str(sum(lane.stop is not None for lane in lanes)),
            *_missing(lanes),
            _poll(topic),
        )
    return table


def _by_lane(flow: FlowStatus) -> Table:
    table = _table(flow)
    headings = ("lane", "gen.", "position", "source end", "lag at most", "lag", "last run", "latency", "state", "lost")
    for heading in (*headings, _GAPS):
        table.add_column(heading, justify="right")
    for topic in flow.topics:
        for lane in topic.lanes:
            table.add_row(
                topic.topic,
                str(lane.lane.partition),
                str(lane.head.generation),
                str(lane.head.position),
                UNKNOWN if lane.source is None else str(lane.source.end),
                *_progress([lane], flow.at),
                _state(lane, flow.at),
                *_missing([lane]),
            )
    return table


_GAPS = f"gaps, {NEWEST_RUNS} runs"


def _table(flow: FlowStatus) -> Table:
    table = Table(
        title=str(flow.flow),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("topic", no_wrap=True)
    return table


def _progress(lanes: Sequence[LaneStatus], now: int) -> tuple[str, ...]:
    """Lag in records and in time, last run, latency: of several lanes the sum, the longest, the latest, its own."""
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
