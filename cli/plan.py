"""`mirrorless plan FLOW`: the trigger that costs least for each topic, beside its alternatives.

The topics' rates are sampled on the source, or read from a file. Nothing is changed; `--write` makes a new file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cli.args import BadInput, add_deployment, add_flow, write_new
from cli.clusters import ClusterReads
from cli.deployment import DeployedFlows
from cli.output import (
    UNKNOWN,
    WIDE_PIPE_WIDTH,
    TableColumns,
    console,
    duration,
    print_json,
    progress_line,
    say,
    size,
    table,
)
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE
from mirrorless.cost import prices
from mirrorless.cost.bill import BilledSettings, MappingSettings
from mirrorless.cost.plan import FlowPlan, Goal, Option, TopicPlan, TriggersNow, configured, plan_flow, planned_keys
from mirrorless.cost.rates import COLUMNS, TopicRate, read_rates, sample_rates
from mirrorless.cost.shards import ShardSettings
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.settings import FlowSettings
from mirrorless.flow.triggers import MAPPING, SCHEDULE
from mirrorless.lanes.check_state import LaneNotes
from mirrorless.lanes.foreign import sentences
from mirrorless.protocol.copy_choice import LARGE_BATCH_BYTES, cpu_beside_large
from mirrorless.reports.format import numbered
from mirrorless.topics.discovery import discover

if TYPE_CHECKING:
    from rich.table import Table

    from mirrorless.config import Flow
    from mirrorless.config.flow_section import FlowSection
    from mirrorless.config.schema import DeploymentSection

LONGEST_SAMPLE = 86_400
"""Seconds."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="sample the flow's topics, and say which triggers carry them at least cost",
        epilog="Example: mirrorless plan 'us-east->eu-west' --latency 5",
    )
    add_flow(parser)
    parser.add_argument(
        "--latency",
        metavar="SECONDS",
        type=_seconds,
        default=5.0,
        help="how long a record may be on its way, at the 99th percentile (default: %(default)g)",
    )
    parser.add_argument(
        "--sample-seconds",
        metavar="SECONDS",
        type=_seconds,
        default=60.0,
        help="how long to watch the topics (default: %(default)g)",
    )
    parser.add_argument("--rates", metavar="FILE", help="read the topics' rates from a CSV file, and sample nothing")
    parser.add_argument(
        "--write", metavar="FILE", help="write the configuration with the recommended triggers into a new file"
    )
    parser.add_argument(
        "--beside", action="store_true", help="begin behind records on the target that the flow has not written"
    )
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show the plan. Exit code 1 where no trigger keeps the latency, or where the flow would begin beside others."""
    if arguments.write is not None and Path(arguments.write).exists():
        raise BadInput("this file exists already, and is not overwritten", where=arguments.write, hint="name a new one")
    deployment = DeployedFlows.of(arguments)
    name = deployment.flow_name(arguments.flow)
    flow, settings = deployment.flow(name), deployment.settings(name)
    known = _from_file(Path(arguments.rates), settings) if arguments.rates else _sampled(settings, arguments)
    goal = Goal(
        latency=arguments.latency,
        half_second=flow.settings.mapping.maximum_batching_window_seconds is None,
        settings=billed(flow.settings, deployment.configuration.deployment),
    )
    plan = plan_flow(known.rates, goal)
    view = PlanView(
        flow=str(name),
        plan=plan,
        known=known,
        configured=_configured(flow, known, goal),
        target=_target_now(deployment, settings, known),
        beside=arguments.beside,
    )
    if arguments.write is not None and not view.refused:
        keys = planned_keys(plan, _now(flow, settings, plan))
        from mirrorless.config.key_edits import with_plan  # noqa: PLC0415 -- YAML costs a tenth of a second

        origin = deployment.configuration.origin
        after = with_plan(Path(origin).read_bytes().decode("utf-8"), name, keys, origin=origin)
        write_new(arguments.write, after.encode())
        view = replace(view, written=arguments.write)
    if arguments.json:
        print_json(plan_as_json(view))
    else:
        show(view)
    return int(view.refused or not plan.recommended.meets)


def _from_file(path: Path, settings: FlowSettings) -> KnownRates:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"the file of rates cannot be read: {exc}", where=str(path)) from exc

    def refused(topic: str) -> str | None:
        return None if settings.replicates(topic) else f"{settings.name} does not replicate it"

    rates = read_rates(text, origin=str(path), refused=refused)
    missing = sorted(set(settings.topic_filter.literals) - {rate.topic for rate in rates})
    notes = [f"without a row, and not in the plan: {', '.join(missing)}"] if missing else []
    return KnownRates(rates=rates, seconds=None, notes=notes)


def _sampled(settings: FlowSettings, arguments: argparse.Namespace) -> KnownRates:
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- with a file no Kafka client is needed
    from mirrorless.adapters.kafka.rates import KafkaRates  # noqa: PLC0415 -- same

    flow, source = str(settings.name), settings.source
    on_source = KafkaOffsets(source, flow=flow).partitions()
    found = discover(on_source, settings)
    # What heartbeats cost is a part of every flow's price.
    topics = {topic: on_source[topic] for topic in found.taken if not settings.policy.is_heartbeats_topic(topic)}
    if not topics:
        what = "the source has no topic that the flow replicates"
        raise ConfigurationError(
            what, where=flow, hint=f"look at `mirrorless topics '{flow}'`, or give rates by --rates FILE"
        )
    seconds = arguments.sample_seconds
    waiting = progress(f"{numbered(len(topics), 'topic')} of {source.alias}", seconds)
    sampled = sample_rates(KafkaRates(source, flow=flow), topics, seconds=seconds, clock=time.monotonic, wait=waiting)
    notes = []
    if sampled.unseen:
        notes.append(f"no record of {numbered(len(sampled.unseen), 'topic')} was read: an average size was taken")
    if found.missing:
        notes.append(f"not on the source, and not in the plan: {', '.join(found.missing)}")
    return KnownRates(rates=sampled.topics, seconds=sampled.seconds, notes=notes)


def progress(what: str, seconds: float) -> Callable[[float], None]:
    """A wait that tells how far the sample is, on standard error: each second on a terminal, otherwise each time."""
    begun = time.monotonic()

    def wait(duration: float) -> None:
        until = time.monotonic() + duration
        terminal = sys.stderr.isatty()
        while True:
            passed = min(seconds, time.monotonic() - begun)
            left = until - time.monotonic()
            progress_line(f"sampling {what}: {passed:.0f} of {seconds:.0f} s", over=left <= 0 and passed >= seconds)
            if left <= 0:
                break
            time.sleep(min(1.0, left) if terminal else left)  # rates are measured over time
            if not terminal:
                break

    return wait


def _target_now(deployment: DeployedFlows, settings: FlowSettings, known: KnownRates) -> TargetNow | None:
    """The target before the plan; None where rates come from a file, or it does not answer."""
    if known.seconds is None:
        return None
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- same

    flow, offsets = settings.name, KafkaOffsets(settings.target, flow=str(settings.name))
    target = ClusterReads()
    there = target.read(offsets.partitions)
    if there is None:
        return None
    remote = {rate.topic: settings.policy.remote_topic(flow.source, rate.topic) for rate in known.rates}
    # Where both clusters produce to a topic, its records are meant to be there.
    places = {
        (remote[topic], partition): Lane(flow, topic, partition)
        for topic in remote
        if settings.origin_rule(topic) is None
        for partition in range(there.get(remote[topic], 0))
    }
    extents = target.read(lambda: offsets.extents(places)) or {}
    begins = {places[place]: each.start for place, each in extents.items() if each.start < each.end}
    unknown = ""
    try:
        heads = deployment.stores(flow).chains.heads(begins) if begins else {}
    except MirrorlessError as exc:  # before the first deployment there is no map
        heads, unknown = {}, str(exc)
    new = {lane: at for lane, at in begins.items() if heads.get(lane, NEW_LANE) == NEW_LANE}
    wanted = {(remote[lane.topic], lane.partition): at for lane, at in new.items()}
    seen = target.read(lambda: offsets.oldest_waiting(wanted)) or {}
    notes = {
        places[place]: LaneNotes(foreign=wanted[place]) for place, timestamp in seen.items() if timestamp is not None
    }
    return TargetNow(
        new_partitions=sum(max(0, rate.partitions - there.get(remote[rate.topic], 0)) for rate in known.rates),
        foreign=tuple(sentences(flow, notes, remote.__getitem__, begun=False)),
        unknown=unknown or target.trouble,
    )


def _now(flow: Flow, settings: FlowSettings, plan: FlowPlan) -> TriggersNow:
    """The triggers as they are configured."""
    return TriggersNow(
        default=flow.settings.trigger,
        entries=bool(flow.settings.trigger_overrides),
        touched={topic.rate.topic for topic in plan.topics if not flow.triggers.maps_in_template(topic.rate.topic)},
        heartbeats=settings.replicates(HEARTBEATS_TOPIC),
        checkpoint_seconds=flow.settings.emit_checkpoints_interval_seconds,
    )


def _configured(flow: Flow, known: KnownRates, goal: Goal) -> Option:
    """The flow as it is configured."""
    scheduled = {rate.topic for rate in known.rates if flow.triggers.of(rate.topic) == SCHEDULE}
    return configured(known.rates, scheduled, mappings_of(flow.settings), shards_of(flow.settings), goal)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_SAMPLE:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: write one above 0, a day at most")
    return value


SHOWN: Final = 40
"""Topics in the table, those with the most bytes; `--json` has all."""

NOT_STATED: Final = "not stated"

SMALL_BATCHES: Final = 2.0
"""Times the CPU of large ones, from which small batches are named."""
NAMED: Final = 5
"""Topics with small batches that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRates:
    """The rates that a plan rests on, and where they are from."""

    rates: Sequence[TopicRate]
    seconds: float | None
    """Of the sample; None for a file."""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNow:
    """The target before the plan."""

    new_partitions: int
    """That it does not have yet."""
    foreign: Sequence[str] = ()
    """A sentence for each remote topic with records, to which this flow has not written anything."""
    unknown: str = ""
    """Why it is not known whether the flow has written what stands there, or whether anything does; empty if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan, as it is shown."""

    flow: str
    plan: FlowPlan
    known: KnownRates
    configured: Option
    """The flow as it is now."""
    target: TargetNow | None
    """None where nothing is known of it."""
    beside: bool
    """Whether the flow may begin behind records that it has not written."""
    written: str | None = None

    @property
    def refused(self) -> bool:
        """Whether the flow would begin behind records that it has not written, and must not."""
        return self.target is not None and bool(self.target.foreign) and not self.beside

    def notes(self) -> list[str]:
        """What a reader must know of the figures, one sentence each."""
        plan, notes = self.plan, list(self.known.notes)
        if not plan.recommended.meets:
            notes.insert(0, f"! no trigger keeps {seconds(plan.latency)}: this is the one that comes nearest")
        if large := [topic.rate.topic for topic in plan.topics if topic.rate.needs_schedule]:
            notes.append(f"records of {numbered(len(large), 'topic')} are too large for a mapping: {large[0]}")
        if plan.recommended.mapping is not None and plan.recommended.mapping.mode == "on-demand":
            notes.append(
                "mappings on demand scale within minutes, and deliver a whole batch again where one lane fails"
            )
        if (each := plan.recommended.checkpoint_seconds) > self.configured.checkpoint_seconds:
            notes.append(
                f"`emit.checkpoints.interval.seconds: {each:.0f}` is in the prices: offsets of groups need not be "
                "translated more often than records may take"
            )
        notes += small_batches(plan.topics)
        if self.target is not None:
            notes += [f"! {each}" if self.refused else each for each in self.target.foreign]
            if self.target.unknown:
                notes.append(
                    f"whether the flow has written what stands on the target is not known: {self.target.unknown}"
                )
        notes.append("MSK Replicator charges for compressed bytes; the rates here are uncompressed")
        notes.append(f"list prices of {prices.REGION} as of {prices.AS_OF}, without Kafka and bytes between regions")
        return notes


def small_batches(topics: Sequence[TopicPlan]) -> list[str]:
    """What small batches cost where whole batches pass: of topics by a schedule, those that cost most by it first."""
    found = [
        (each.rate.bytes_per_second * (factor - 1), each.rate, factor)
        for each in topics
        if each.trigger == SCHEDULE and (factor := _batch_factor(each.rate) or 0.0) >= SMALL_BATCHES
    ]
    found.sort(key=lambda each: each[0], reverse=True)
    notes = [
        f"{rate.topic}: {size(rate.average_batch_bytes)} batches: {factor:.1f} times the CPU of "
        f"{size(LARGE_BATCH_BYTES)}: raise `batch.size` and `linger.ms` of its producers"
        for _, rate, factor in found[:NAMED]
    ]
    more = len(found) - NAMED
    return notes + ([f"and {numbered(more, 'topic')} more with small batches, see --json"] if more > 0 else [])


def _batch_factor(rate: TopicRate) -> float | None:
    """CPU of a byte over that in large batches, where whole batches pass; None where the batches are not known."""
    return cpu_beside_large(rate.average_batch_bytes) if rate.average_batch_bytes else None


def show(view: PlanView) -> None:
    """Print the plan."""
    plan, target = view.plan, view.plan.target
    basis = "rates from a file" if view.known.seconds is None else f"sampled for {seconds(view.known.seconds)}"
    say(
        f"{view.flow}: {numbered(len(plan.topics), 'topic')}, {size(target.bytes_per_second)}/s "
        f"(peak {size(target.peak_bytes_per_second)}/s), {basis}; p99 {seconds(plan.latency)} at most",
        "",
    )
    console(WIDE_PIPE_WIDTH).print(_options(view))
    say("")
    console(WIDE_PIPE_WIDTH).print(_topics(plan))
    if len(plan.topics) > SHOWN:
        say(f"  and {numbered(len(plan.topics) - SHOWN, 'topic')} more, see --json")
    say("", f"  the target takes  {_target(view)}")
    for note in view.notes():
        say(f"  {note}")
    if view.written is not None:
        say("", f"Wrote {view.written}: compare it with the configuration, and deploy it in its place.")


def _options(view: PlanView) -> Table:
    plan = view.plan

    def mark(option: Option) -> str:
        slow = f"slower than {seconds(plan.latency)}" if isfinite(option.p99) else "falls behind"
        return "" if option.meets else slow

    options = {"recommended": plan.recommended, "as configured": view.configured} | plan.options
    rows = [
        *(
            (name, _settings(each, plan), money(each.dollars), seconds(each.p99), mark(each))
            for name, each in options.items()
            if each is not None
        ),
        ("MSK Replicator", "", money(plan.msk_replicator), NOT_STATED, ""),
        ("MM2 on MSK Connect", "exactly once, tuned", money(plan.msk_connect), NOT_STATED, ""),
    ]
    headings = ("option", "settings", ">$ a month", ">p99", "")
    return table("Options", [(heading, itemgetter(number)) for number, heading in enumerate(headings)], rows)


def _settings(option: Option, plan: FlowPlan) -> str:
    parts = []
    if option is plan.recommended and option.mapping and option.pull:
        by_mapping, by_schedule = (numbered(len(plan.of(trigger)), "topic") for trigger in (MAPPING, SCHEDULE))
        return f"{by_mapping}: {_mapping(option.mapping)}; {by_schedule}: {_pull(option.pull)}"
    if option.mapping is not None:
        pollers = f", {numbered(plan.most_pollers, 'poller')} at most" if option.mapping.mode == "provisioned" else ""
        parts.append(f"{_mapping(option.mapping)}{pollers}")
    if option.pull is not None:
        parts.append(_pull(option.pull))
    return "; ".join(parts)


def _mapping(mapping: MappingSettings) -> str:
    return f"mappings {mapping.mode.replace('-', ' ')}, window {seconds(mapping.seconds)}"


def _pull(pull: ShardSettings) -> str:
    pace = f"continuous, window {seconds(pull.seconds)}" if pull.continuous else f"every {pull.seconds:.0f} s"
    return f"schedule {pace}, {numbered(pull.shards, 'shard')}, {pull.memory_mb} MB"


def _topics(plan: FlowPlan) -> Table:
    columns: TableColumns[TopicPlan] = (
        ("=topic", lambda topic: topic.rate.topic),
        (">partitions", lambda topic: topic.rate.partitions),
        (">records/s", lambda topic: f"{topic.rate.records_per_second:,.1f}"),
        (">bytes/s", lambda topic: size(topic.rate.bytes_per_second)),
        (">peak", lambda topic: size(topic.rate.peak_bytes_per_second)),
        (">record", lambda topic: size(topic.rate.average_record_bytes)),
        ("trigger", lambda topic: topic.trigger),
        (">mapping, $", lambda topic: _or_unknown(topic.mapping_dollars, money)),
        (">p99", lambda topic: _or_unknown(topic.mapping_p99, seconds)),
        (">schedule, $", lambda topic: _or_unknown(topic.schedule_dollars, money)),
        (">p99", lambda topic: _or_unknown(topic.schedule_p99, seconds)),
    )
    most = sorted(plan.topics, key=lambda topic: (-topic.rate.bytes_per_second, topic.rate.topic))
    return table("Topics", columns, most[:SHOWN])


def _target(view: PlanView) -> str:
    target = view.plan.target
    new = "" if view.target is None else f", {view.target.new_partitions:,} of them new"
    return (
        f"{size(target.bytes_per_second)}/s and {size(target.peak_bytes_per_second)}/s at the peak before compression "
        f"and replicas, {target.records_per_second:,.0f} records/s, {numbered(target.partitions, 'partition')}{new}, "
        f"{target.transactions_per_second:,.1f} transactions/s that carry "
        f"{target.partitions_of_transactions_per_second:,.0f} partitions/s"
    )


def _or_unknown(value: float | None, text: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else text(value)


def money(dollars: float) -> str:
    """Dollars: cents below ten."""
    return f"{dollars:,.0f}" if dollars >= 10 else f"{dollars:.2f}"  # noqa: PLR2004 -- cents matter below


def seconds(value: float) -> str:
    """A latency or a window."""
    return duration(round(value * 1000)) if isfinite(value) else "-"


def plan_as_json(view: PlanView) -> dict[str, Any]:
    """The plan for programs: dollars are a month, null is what cannot be or is not known."""
    plan = view.plan
    return {
        "flow": view.flow,
        "latency_seconds": plan.latency,
        "sampled_seconds": view.known.seconds,
        "meets": plan.recommended.meets,
        "recommended": _option_as_json(plan.recommended),
        "configured": _option_as_json(view.configured),
        "options": [{"name": _key(name), **_option_as_json(each)} for name, each in plan.options.items() if each],
        "others": {"msk_replicator": plan.msk_replicator, "mm2_on_msk_connect": plan.msk_connect},
        "topics": [_topic_as_json(topic) for topic in plan.topics],
        "target": {**asdict(plan.target), "new_partitions": view.target and view.target.new_partitions},
        "prices": {"region": prices.REGION, "as_of": prices.AS_OF},
        "notes": view.notes(),
        "written": view.written,
    }


def _key(name: str) -> str:
    """A name as a key: `functions: time` is `functions_time`."""
    return name.replace(":", "").replace(",", "").replace(" ", "_")


def _option_as_json(option: Option) -> dict[str, Any]:
    mapping, pull = option.mapping, option.pull
    return {
        "dollars": option.dollars,
        "parts": {_key(part): dollars for part, dollars in option.parts.items()},
        "p99_seconds": option.p99 if isfinite(option.p99) else None,
        "meets": option.meets,
        "mapping": None if mapping is None else {"mode": mapping.mode, "window_seconds": mapping.seconds},
        "schedule": None
        if pull is None
        else {
            "continuous": pull.continuous,
            "window_seconds": pull.seconds if pull.continuous else None,
            "interval_seconds": None if pull.continuous else int(pull.seconds),
            "shards": pull.shards,
            "memory_mb": pull.memory_mb,
        },
    }


def _topic_as_json(topic: TopicPlan) -> dict[str, Any]:
    rate = topic.rate
    return {
        **{column: getattr(rate, column) for column in COLUMNS},
        "average_batch_bytes": rate.average_batch_bytes or None,
        "batch_cpu_factor": _batch_factor(rate),
        "trigger": topic.trigger,
        "mapping": {"dollars": topic.mapping_dollars, "p99_seconds": topic.mapping_p99},
        "schedule": {"dollars": topic.schedule_dollars, "p99_seconds": topic.schedule_p99},
    }


def billed(settings: FlowSection, deployment: DeploymentSection) -> BilledSettings:
    """What the bill of a flow depends on."""
    return BilledSettings(
        memory_gb=settings.function.memory_mb / 1024,
        batch_size=settings.mapping.batch_size,
        retention_days=settings.offset_map_retention_days,
        copies=int(deployment.offset_map_replicas_enabled),
        checkpoint_seconds=settings.emit_checkpoints_interval_seconds,
        heartbeat_seconds=settings.emit_heartbeats_interval_seconds,
        metrics_per_topic=deployment.metrics_per_topic,
    )


def mappings_of(settings: FlowSection) -> MappingSettings:
    """The settings of its mappings."""
    return MappingSettings(mode=settings.mapping.mode, window=settings.mapping.maximum_batching_window_seconds)


def shards_of(settings: FlowSection) -> ShardSettings:
    """The settings of its scheduled topics."""
    schedule = settings.schedule
    return ShardSettings(
        continuous=schedule.continuous,
        seconds=schedule.window_seconds if schedule.continuous else schedule.interval_seconds,
        shards=schedule.shards,
        memory_mb=schedule.memory_mb,
    )
