"""`mirrorless status [FLOW]`: the position and lag of every lane, and what needs the operator.

Beside the lanes: the last heartbeats, the readiness of consumer groups, and the scheduled tasks. It is a table of each
flow, a summary, and sentences; those that need the operator are marked with `!`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cli.args import BadInput, add_deployment, add_flow
from cli.deployment import DeployedFlows
from cli.flow_status import FlowStatus, LaneStatus, TaskStatus, TopicStatus, read_flow
from cli.groups_view import in_short, in_words, need_operator
from cli.output import (
    UNKNOWN,
    TableColumns,
    ago,
    completed_page,
    console,
    duration,
    moment,
    picked,
    print_json,
    say,
    stop_as_json,
    table,
    width_of_terminal,
)
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.losses import Loss
from mirrorless.flow.counts import Count
from mirrorless.lanes.operator_actions import advice
from mirrorless.reports.format import numbered, visible
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.mapping_plan import OF_FUNCTION
from mirrorless.topics.topic_state import awaits_reset

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mirrorless.adapters.kafka.offsets import OpenTransaction
    from mirrorless.scheduled.standby import RegionRuns

T = TypeVar("T")
U = TypeVar("U")

EVERY_SECONDS = 2.0
"""Between two reads."""

OPEN_MS = 10_000
"""From this age on an open transaction is named; most end within milliseconds."""

OLD_MS = 120_000
"""From this age on a report's troubles have it beside them: what they name may be over until the next round."""

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
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="again every 2 s until Ctrl-C, with records a second")
    how.add_argument("--html", metavar="FILE", help="write a page with lag, throughput and latency over time")
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show the state of one flow or of all. Exit code 1 where one needs the operator."""
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
    return int(any(map(needs_operator, flows)))


def _write_page(deployment: DeployedFlows, flows: list[FlowStatus], path: Path) -> None:
    """Write the page of `--html`.

    Raises:
        BadInput: the file cannot be written.
    """
    from cli.status_page import history_of, report_of  # noqa: PLC0415 -- the page's template costs a tenth of a second
    from mirrorless.reports.page import render  # noqa: PLC0415 -- same

    stores = {flow.flow: deployment.stores(flow.flow) for flow in flows}
    histories = [history_of(stores[flow.flow].chains, flow) for flow in flows]
    told = [list(notes(flow)) for flow in flows]

    def losses(flow: FlowStatus) -> list[Loss]:
        lanes = [lane.lane for topic in flow.topics for lane in topic.lanes if lane.lost]
        return [loss for each in stores[flow.flow].ledger.of_lanes(lanes).values() for loss in each]

    page = render(report_of(flows, histories, told, losses, made_at=flows[0].at if flows else 0))
    try:
        path.write_text(completed_page(page), encoding="utf-8")
    except OSError as exc:
        raise BadInput(f"the page cannot be written: {exc}", where="--html") from exc
    say(f"Page: {path.absolute().as_uri()}", err=True)


Rates = Mapping[tuple[FlowName, str], float]
"""Upstream offsets a second, by topic."""


def rates_between(before: Sequence[FlowStatus], now: Sequence[FlowStatus]) -> Rates:
    """How fast the lanes of each topic have moved between two reads; a lane that was reset does not count."""
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


def reads(
    read: Callable[[], list[FlowStatus]], *, pause: Callable[[float], None] = time.sleep
) -> Iterator[tuple[list[FlowStatus], Rates]]:
    """The flows, and the rates since the read before, without an end."""
    before: list[FlowStatus] = []
    while True:
        flows = read()
        yield flows, rates_between(before, flows)
        before = flows
        pause(EVERY_SECONDS)


def watch(read: Callable[[], list[FlowStatus]], *, by_lane: bool) -> int:
    """Show every read until Ctrl-C. Exit code of the last."""
    from rich.console import Group  # noqa: PLC0415 -- programs need no tables
    from rich.live import Live  # noqa: PLC0415 -- same

    screen, flows = console(soft_wrap=False), list[FlowStatus]()
    try:
        with Live(console=screen, auto_refresh=False) if screen.is_terminal else nullcontext() as live:
            for flows, rates in reads(read):
                shown = rendered(flows, by_lane=by_lane, width=screen.width, rates=rates)
                if live is None:
                    screen.print(*shown, sep="\n", soft_wrap=True)
                else:
                    live.update(Group(*shown), refresh=True)
    except KeyboardInterrupt:
        pass  # the end
    return int(any(map(needs_operator, flows)))


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
        rates: since the read before, where there was one.
    """
    from rich.text import Text  # noqa: PLC0415 -- programs need no tables

    for flow in flows:
        if flow.topics:
            yield _fitting(_by_lane(flow) if by_lane else _by_topic(flow, rates), width)
        else:
            yield from (Text(str(flow.flow)), Text("  topics      none yet"))
        for line in (*summary(flow), *notes(flow)):
            yield Text(visible(f"  {line}"))


_EMPTY = frozenset({"0", "-", "ok", "mapping", "Enabled", "records"})
"""Cells that say what is expected."""

_ALWAYS = frozenset({"lanes", "lane", "lag at most", "lag"})


def _fitting(made: Table, width: int) -> Table:
    """The same without columns that say nothing in any row, as many as the width asks for; the last ones go first."""
    for column in made.columns:
        column.overflow = "fold"  # a number without its end is another number
    measuring = console(1_000)
    for column in reversed(made.columns):
        if measuring.measure(made).maximum <= width:
            break
        if column.header not in _ALWAYS and _EMPTY.issuperset(map(str, column.cells)):
            made.columns.remove(column)
    return made


def _by_topic(flow: FlowStatus, rates: Rates | None) -> Table:
    speed: TableColumns[TopicStatus] = [(">a second", lambda topic: _rate((rates or {}).get((flow.flow, topic.topic))))]
    columns: TableColumns[TopicStatus] = (
        ("=topic", lambda topic: topic.topic),
        (">lanes", lambda topic: len(topic.lanes)),
        *(speed if rates is not None else ()),
        *_of(attrgetter("lanes"), _progress(flow.at)),
        (">doubt", lambda topic: sum(lane.head.in_doubt for lane in topic.lanes)),
        (">stopped", lambda topic: sum(lane.stop is not None for lane in topic.lanes)),
        *_of(attrgetter("lanes"), _MISSING),
        ("trigger", lambda topic: topic.trigger),
        ("mapping", _poll),
    )
    return table(str(flow.flow), columns, flow.topics)


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.0f}"


def _by_lane(flow: FlowStatus) -> Table:
    columns: TableColumns[LaneStatus] = (
        ("=topic", lambda lane: lane.lane.topic),
        (">gen.", lambda lane: lane.head.generation),
        (">position", lambda lane: str(lane.head.position)),
        (">source end", lambda lane: str(lane.source.end) if lane.source else "gone" if lane.gone else UNKNOWN),
        *_of(lambda lane: [lane], _progress(flow.at)),
        (">state", lambda lane: _state(lane, flow.at)),
        (">copied by", _copied_by),
        *_of(lambda lane: [lane], _MISSING),
    )
    # Neighbouring lanes that differ in their number alone have one line.
    every = [lane for topic in flow.topics for lane in topic.lanes]
    rows = [list(alike) for _, alike in groupby(every, key=lambda lane: [value(lane) for _, value in columns])]
    of_rows = _of(itemgetter(0), columns)
    return table(str(flow.flow), (of_rows[0], (">lane", _numbers), *of_rows[1:]), rows)


def _of(part: Callable[[T], U], columns: TableColumns[U]) -> TableColumns[T]:
    """The same columns of a part of each row."""

    def of_part(value: Callable[[U], object]) -> Callable[[T], object]:
        return lambda row: value(part(row))

    return [(heading, of_part(value)) for heading, value in columns]


def _numbers(lanes: Sequence[LaneStatus]) -> str:
    first, last = (lane.lane.partition for lane in (lanes[0], lanes[-1]))
    return str(first) if first == last else f"{first} to {last}"


def _progress(now: int) -> TableColumns[Sequence[LaneStatus]]:
    """Lag in records and in time, last run, latency: of several lanes the sum, the longest, the latest, and its own."""

    def newest(lanes: Sequence[LaneStatus]) -> tuple[str, str | None]:
        last = max(lanes, key=lambda lane: lane.last_run_at or 0, default=None)
        if last is None or last.last_run_at is None:
            return "never", None
        return ago(last.last_run_at, now=now), None if last.latency_ms is None else duration(last.latency_ms)

    return (
        (">lag at most", lambda lanes: _if_known(sum, [lane.lag for lane in lanes])),
        (">lag", lambda lanes: _if_known(lambda ages: duration(max(ages)), [lane.lag_ms for lane in lanes])),
        (">last run", lambda lanes: newest(lanes)[0]),
        (">latency", lambda lanes: newest(lanes)[1]),
    )


def _if_known(of_all: Callable[[list[int]], object], values: Sequence[int | None]) -> object:
    known = [value for value in values if value is not None]
    return of_all(known) if known and len(known) == len(values) else UNKNOWN


_MISSING: TableColumns[Sequence[LaneStatus]] = (
    (">lost", lambda lanes: sum(lane.lost for lane in lanes)),
    (">gaps", lambda lanes: sum(lane.gaps for lane in lanes)),
)


def _state(status: LaneStatus, now: int) -> str:
    if status.stop is not None:
        return "STOPPED"
    if status.leased(now) is not None:
        return "leased"
    if status.waits_without_a_job(now):
        return "WAITS"
    return "doubt" if status.head.in_doubt else "ok"


def _copied_by(status: LaneStatus) -> str:
    share = status.passed_share
    return (status.copied_by or "-") if share is None else f"batches, {share:.0%}"


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


def summary(flow: FlowStatus) -> Iterator[str]:
    """One line each for heartbeats, groups, tasks, and the shards of scheduled topics."""
    yield f"heartbeats  {_heartbeats(flow)}"
    counts = Counter(group.readiness for group in flow.groups)
    groups = ", ".join(f"{count} {in_words(readiness)}" for readiness, count in sorted(counts.items()))
    yield f"groups      {groups or 'none'}"
    yield f"tasks       {', '.join(_last_done(task, flow.at) for task in flow.tasks)}"
    if flow.regions is not None:
        yield f"regions     {_regions(flow.regions, flow.at)}"
    if flow.shards:
        yield f"schedule    {', '.join(_last_done(shard, flow.at) for shard in flow.shards)}"


def needs_operator(flow: FlowStatus) -> bool:
    """Whether a sentence says so."""
    return any(note.startswith("!") for note in notes(flow))


def notes(flow: FlowStatus) -> Iterator[str]:
    """Sentences below the table; those that need the operator are marked with `!`."""
    yield from _order_notes(flow)
    for topic in flow.topics:
        if topic.missing:
            yield (
                f"! {topic.topic}: {flow.flow.source} has no such topic, and the flow names it. Create it, or take it "
                "out of the flow's `topics`."
            )
        yield from _stop_notes(topic, flow)
        for lane in topic.lanes:
            yield from _lane_notes(lane, flow.at)
        yield from _job_notes(topic, flow.at)
        if topic.mapping_is_off and topic.mapping is not None and not flow.pause.paused:
            yield f"! {topic.topic}: its mapping is {topic.mapping.state}, nothing is polled. Enable it."
    yield from _quota_notes(flow)
    for task in (*flow.tasks, *flow.shards):
        yield from _task_notes(task, flow)
    yield from _group_notes(flow)
    if flow.regions is not None:
        yield from _region_notes(flow.regions, flow.at)
    if flow.trouble:
        yield f"The source does not answer, so ends and lags are not known: {flow.trouble}"
    if flow.unlisted:
        yield f"Topics that match {', '.join(flow.unlisted)} cannot be listed until the source answers."
    if flow.heartbeats.trouble:
        what = "No heartbeats could be read" if flow.heartbeats.answers else "The target does not answer"
        yield f"{what}, so heartbeats are not known: {flow.heartbeats.trouble}"


def _order_notes(flow: FlowStatus) -> Iterator[str]:
    if flow.pause.order is not None and flow.pause.paused:
        order, quiet = flow.pause.order, flow.pause.quiet_at
        effect = f"no mapping polls since {moment(quiet)}" if quiet is not None else "mappings are being disabled"
        yield (
            f"PAUSED since {moment(order.at)} ({order.reason}): {effect}. "
            f"`mirrorless flow resume '{flow.flow}' --execute` lets it go on."
        )
    if flow.stop is not None:
        yield f"! The flow is stopped since {moment(flow.stop.at)}, and replicates nothing: {flow.stop.detail}"


URGENT: Final[tuple[Count, ...]] = ("stuck-partitions", "lanes-foreign", "topics-rewriting")
"""Figures of tasks whose troubles need the operator: target partitions with a transaction that does not end, lanes to
whose remote partitions another producer writes, remote topics that replace the times of records."""


def _task_notes(task: TaskStatus, flow: FlowStatus) -> Iterator[str]:
    last, now = task.last, flow.at
    if last is None:
        return
    if task.overdue(now):
        since = f"since {moment(last.ok_at)}" if last.ok_at else "ever"
        why = last.error or "its function is not started, or does not end. See its schedule and its log."
        yield f"! task {task.task} has not been done {since}: {why}"
    elif last.error:
        yield f"task {task.task} failed {ago(last.at, now=now)}, and will be retried: {last.error}"
    if last.counts.get("pull-limited-ms"):
        seconds = last.counts["pull-limited-ms"] // 1000
        yield f"{task.task}: limited, for {seconds:,} s of its last run, by `maximum.bytes.per.second` of `schedule`."
    mark = "! " if any(last.counts.get(name, 0) for name in URGENT) else ""
    of_shard = task in flow.shards
    troubles = [
        trouble for trouble in last.troubles if not (_is_reset(trouble, flow) or (of_shard and _goes_on(trouble, flow)))
    ]
    said = task.task if now - last.at < OLD_MS else f"{task.task}, {ago(last.at, now=now)}"
    for trouble in troubles[:NAMED]:
        yield f"{'! ' if awaits_reset(flow.flow, trouble) else mark}{said}: {trouble}"
    if len(troubles) > NAMED:
        yield f"{mark}{said}: {numbered(len(troubles) - NAMED, 'more trouble')}, see --json"


def _is_reset(trouble: str, flow: FlowStatus) -> bool:
    """Whether the lanes that waited for a reset in a task's last round have been reset since."""
    topic = awaits_reset(flow.flow, trouble)
    lanes = [lane for each in flow.topics if each.topic == topic for lane in each.lanes]
    return topic is not None and not any(lane.stop is not None or lane.head.in_doubt for lane in lanes)


def _goes_on(trouble: str, flow: FlowStatus) -> bool:
    """Whether a trouble is that of a lane which has been let go on since: nothing stops it, and no job has it."""
    place = trouble.partition(" @ ")[0]
    return flow.stop is None and any(
        lane.stop is None and lane.lease is None and lane.waiting is None
        for topic in flow.topics
        for lane in topic.lanes
        if str(lane.lane) == place
    )


def _group_notes(flow: FlowStatus) -> Iterator[str]:
    urgent = set(need_operator(flow.groups))
    found = sorted(flow.groups, key=lambda group: (group.group not in urgent, group.group))
    waiting = [group for group in found if group.readiness not in {"ready", "active_on_target"}]
    for group in waiting[:NAMED]:
        mark = "! " if group.group in urgent else ""
        see = f"`mirrorless groups '{flow.flow}' --group {quote(group.group)}`"
        yield f"{mark}group {group.group} {in_short(group, flow.flow)}: see {see}."
    if len(waiting) > NAMED:
        yield f"{numbered(len(waiting) - NAMED, 'more group')} not ready: see `mirrorless groups '{flow.flow}'`."


def _heartbeats(flow: FlowStatus) -> str:
    beats = flow.heartbeats
    if not beats.enabled:
        return "switched off"
    if not beats.trouble and beats.emitted is None and beats.replicated is None:
        return "none yet"

    def last(at: int | None) -> str:
        if beats.trouble:
            return UNKNOWN
        return "none yet" if at is None else ago(at, now=flow.at)

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


_ANEW = frozenset({"contradiction", "recreated"})
"""Reasons of stops after a topic was made anew; the task of topics has one sentence for all of them."""

_TOGETHER = _ANEW | {"remote_recreated"}, frozenset({"broken", "expired"})
"""Reasons of stops that one reset of the topic ends: from its first record on, or behind what the target has."""


def _stop_notes(topic: TopicStatus, flow: FlowStatus) -> Iterator[str]:
    """Two sentences for each stopped lane, or for all lanes of a topic that one command brings back."""
    stopped: dict[str, list[tuple[Lane, Stop]]] = {}
    for each in topic.lanes:
        if each.stop is not None:
            stopped.setdefault(each.stop.reason, []).append((each.lane, each.stop))
    known = any(
        awaits_reset(flow.flow, trouble) == topic.topic
        for task in flow.tasks
        for trouble in (task.last.troubles if task.last is not None else ())
    )
    together = {"held"} | next((some for some in _TOGETHER if stopped.keys() - {"held"} <= some), frozenset())
    for reason, lanes in stopped.items():
        if known and reason in _ANEW and reason in together:
            continue
        if reason in together and len(lanes) > 1:
            (lane, stop), numbers = lanes[0], ", ".join(str(each.partition) for each, _ in lanes[:NAMED])
            more = ", ..." if len(lanes) > NAMED else ""
            yield (
                f"! {flow.flow} {topic.topic}: {len(lanes)} lanes are stopped ({reason}), the first since "
                f"{moment(min(each.at for _, each in lanes))}: {numbers}{more}. {lane.at(stop.upstream_offset)}: "
                f"{stop.detail}"
            )
            yield f"  What to do: {advice(lane, stop, on_topic=True)}."
            continue
        for lane, stop in lanes[:NAMED]:
            yield f"! {lane.at(stop.upstream_offset)} is stopped ({stop.reason}) since {moment(stop.at)}: {stop.detail}"
            yield f"  What to do: {advice(lane, stop)}."
        if len(lanes) > NAMED:
            yield f"! {topic.topic}: {numbered(len(lanes) - NAMED, 'more lane')} stopped ({reason}): see --json."


def _lane_notes(status: LaneStatus, now: int) -> Iterator[str]:
    lane = status.lane
    if (hidden := status.hidden_by) is not None and now - (hidden.since or 0) >= OPEN_MS:
        since = "" if hidden.since is None else f", open since {moment(hidden.since)}"
        yield (
            f"{'! ' if status.hangs(now) else ''}{lane}: {numbered(status.lag or 0, 'upstream offset')} from "
            f"{hidden.offset} on wait for a transaction of {_producer(hidden)}{since}: no reader sees past it. Wait "
            "until it ends, or stop its producer; if that is gone for good, `kafka-transactions.sh --bootstrap-server "
            f"{lane.flow.source.upper()} abort --topic {lane.topic} --partition {lane.partition} --start-offset "
            f"{hidden.offset}` ends it."
        )
    if status.overtaken and status.source is not None:
        yield (
            f"! {lane}: {numbered(status.overtaken, 'upstream offset')} from {status.head.position} on were removed by "
            f"the source's retention before they were replicated. Raise its retention until the lag is gone."
        )
    if status.shrunk and status.source is not None and status.stop is None:
        yield (
            f"! {lane}: the source ends at {status.source.end}, below the position {status.head.position}: it was "
            f"re-created or truncated. Once that is certain: `mirrorless lanes reset {lane.arguments} --to earliest "
            "--reason 're-created' --execute`."
        )
    if status.head.in_doubt and status.head.run is not None and status.lease is None:
        run = status.head.run
        yield f"{lane}: the run [{run.position}, {run.next}) is in doubt; the next delivery settles it."


def _producer(hidden: OpenTransaction) -> str:
    if hidden.producer is None:
        return "a producer that the brokers do not name"
    named = f", `{hidden.producer.transactional_id}`" if hidden.producer.transactional_id else ""
    return f"producer {hidden.producer.producer_id} (epoch {hidden.producer.epoch}{named})"


def _quota_notes(flow: FlowStatus) -> Iterator[str]:
    """A sentence on lanes that the target's brokers have told to pause, in their newest runs."""
    lanes = [lane for topic in flow.topics for lane in topic.lanes]
    pauses = [lane.head.run.throttled_ms for lane in lanes if lane.head.run is not None and lane.lag]
    if throttled := [each for each in pauses if each]:
        yield (
            f"{numbered(len(throttled), 'lane')} throttled: a quota of {flow.flow.target} holds this flow back, its "
            f"brokers asked for pauses of up to {max(throttled) / 1000:.1f} s. Where the lag grows, raise the quota "
            "(`producer_byte_rate` of the flow's user or client ids)."
        )


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
            f"{', ...' if len(alone) > NAMED else ''}. "
            f"Run `mirrorless backfill start '{topic.lanes[0].lane.flow}' {topic.topic}`."
        )


def as_json(status: FlowStatus) -> dict[str, Any]:
    """One flow with every partition. Moments in ms since the epoch; null for not known, or nothing yet."""
    beats, tell = status.heartbeats, msgspec.to_builtins
    return {
        "at": status.at,
        "needs_operator": needs_operator(status),
        "flow": str(status.flow),
        "fenced": status.stop and picked(status.stop, "detail at"),
        "source_reachable": not status.trouble,
        "source_trouble": status.trouble,
        "unlisted_patterns": status.unlisted,
        "topics": [_topic_as_json(topic, status.at) for topic in status.topics],
        "heartbeats": {
            "enabled": beats.enabled,
            "emitted_at": beats.emitted,
            "replicated_at": beats.replicated,
            "target_trouble": beats.trouble,
        },
        "groups": [picked(group, "group readiness by reread skip ahead at") for group in status.groups],
        "tasks": [_task_as_json(task, status.at) for task in status.tasks],
        "shards": [_task_as_json(task, status.at) for task in status.shards],
        "paused": tell(status.pause) if status.pause.paused else None,
        "regions": tell(status.regions),
    }


def _topic_as_json(status: TopicStatus, now: int) -> dict[str, Any]:
    return picked(status, "topic remote_topic missing mapping") | {
        "trigger": status.trigger.configured,
        "trigger_changing": status.trigger.changing,
        "partitions": [_lane_as_json(lane, now) for lane in status.lanes],
    }


def _lane_as_json(status: LaneStatus, now: int) -> dict[str, Any]:
    lease, source, head = status.leased(now), status.source, status.head
    return {
        "partition": status.lane.partition,
        **picked(head, "generation position in_doubt"),
        "source_start": source.start if source else None,
        "source_end": source.end if source else None,
        **picked(status, "lag overtaken last_run_at copied_by passed_share lost"),
        "lag_seconds": None if status.lag_ms is None else status.lag_ms / 1000,
        "replication_latency_ms": status.latency_ms,
        "open_transaction": status.hidden_by,
        "source_ends_below_position": status.shrunk,
        "stop": status.stop and stop_as_json(status.lane, status.stop),
        "lease": lease and picked(lease, "holder until"),
        "waits_for_a_job_from": status.waiting if lease or status.waits_without_a_job(now) else None,
        "gaps_in_newest_runs": status.gaps,
    }


def _task_as_json(task: TaskStatus, now: int) -> dict[str, Any]:
    """Moments in ms since the epoch, null for a task that was never done."""
    last = task.last or TaskReport(task=task.task, at=0, ms=0, ok_at=0)
    done = {name: value if task.last else None for name, value in picked(last, "at ms").items()}
    return (
        picked(task, "task every_seconds")
        | picked(last, "error troubles")
        | {"figures": last.counts}
        | done
        | {
            "overdue": task.overdue(now),
            "ok_at": last.ok_at or None,
        }
    )
