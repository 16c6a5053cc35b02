"""The lines of `mirrorless status` below its table: a summary of the flow, and what needs the operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cli.flow_status import FlowStatus, LaneStatus, TopicStatus
from cli.groups_view import in_words, need_operator
from cli.output import UNKNOWN, ago, moment
from cli.tasks import TaskStatus
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.lanes.operator_actions import advice
from mirrorless.reports.format import numbered
from mirrorless.topics.topic_state import awaits_reset

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import OpenTransaction
    from mirrorless.scheduled.standby import RegionRuns

OPEN_MS = 10_000
"""From this age on an open transaction is named; most end within milliseconds."""

OLD_MS = 120_000
"""From this age on a report's troubles have it beside them: what they name may be over until the next round."""

NAMED = 10
"""Groups, lanes and troubles that are named one by one; the others are counted, and `--json` has all."""


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
    if flow.fence is not None:
        yield f"! The flow is fenced since {moment(flow.fence.at)}, and replicates nothing: {flow.fence.detail}"


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
    if last.figures.get("pull-limited-ms"):
        seconds = last.figures["pull-limited-ms"] // 1000
        yield f"{task.task}: limited, for {seconds:,} s of its last run, by `maximum.bytes.per.second` of `schedule`."
    mark = "! " if task.needs_operator else ""
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
    return flow.fence is None and any(
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
        see = f"see `mirrorless groups '{flow.flow}' --group {group.group}`."
        match group.readiness:
            case "before_map":
                yield f"! group {group.group} stands before the map: {see}"
            case "map_lost":
                yield f"! group {group.group} stands on a stopped lane whose map describes records that are gone: {see}"
            case "ahead_of_replication":
                records = numbered(group.ahead, "upstream offset")
                yield f"group {group.group} is ahead of replication by {records}: they would come again."
            case "out_of_range":
                yield f"group {group.group} is out of range on {flow.flow.source}: {see}"
            case "ahead_on_target":
                records = numbered(group.skip, "record")
                mark, name = "! " if group.group in urgent else "", group.group
                yield f"{mark}group {name} would skip {records}: {see}"
            case "independent":
                yield f"group {group.group} has offsets on {flow.flow.target} that are not this flow's: {see}"
            case _:
                yield f"group {group.group} would read {numbered(group.reread, 'record')} again."
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
"""Reasons of stops after a topic was made anew; the task that looks at topics has one sentence for all of them."""

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
