"""A capacity plan as tables for people, and as JSON for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from cli.output import UNKNOWN, WIDE_PIPE_WIDTH, TableColumns, console, duration, size, table
from mirrorless.cost import prices
from mirrorless.cost.options import Option
from mirrorless.cost.plan import FlowPlan, TopicPlan
from mirrorless.cost.rates import COLUMNS, TopicRate
from mirrorless.flow.triggers import MAPPING, SCHEDULE
from mirrorless.protocol.copy_choice import LARGE_BATCH_BYTES, cpu_beside_large
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from mirrorless.cost.bill import MappingSettings
    from mirrorless.cost.shards import ShardSettings

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
    screen = console(WIDE_PIPE_WIDTH, markup=False)
    basis = "rates from a file" if view.known.seconds is None else f"sampled for {seconds(view.known.seconds)}"
    screen.print(
        f"{view.flow}: {numbered(len(plan.topics), 'topic')}, {size(target.bytes_per_second)}/s "
        f"(peak {size(target.peak_bytes_per_second)}/s), {basis}; p99 {seconds(plan.latency)} at most\n"
    )
    screen.print(_options(view))
    screen.print()
    screen.print(_topics(plan))
    if len(plan.topics) > SHOWN:
        screen.print(f"  and {numbered(len(plan.topics) - SHOWN, 'topic')} more, see --json")
    screen.print(f"\n  the target takes  {_target(view)}")
    for note in view.notes():
        screen.print(f"  {note}")
    if view.written is not None:
        screen.print(f"\nWrote {view.written}: compare it with the configuration, and deploy it in its place.")


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
