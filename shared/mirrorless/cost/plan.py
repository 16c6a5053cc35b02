"""The capacity plan of a flow: its options, each at its lowest cost, the trigger of each topic, the load of the target.

A latency is seconds from a record's arrival on the source to its commit on the target, at the 99th percentile. What a
mapping costs is its events, and one that carries little has nearly as many as a busy one. A schedule carries many
topics at once, and its shards grow with their bytes. So topics are scheduled from those with the fewest bytes on, as
many as make the whole flow cheapest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log2
from typing import Any, Final

from mirrorless.cost import bill
from mirrorless.cost.bill import USUAL, BilledSettings, Loads, MappingSettings, Mode
from mirrorless.cost.rates import TopicRate, flow_loads, whole
from mirrorless.cost.shards import ShardSettings, fits, pull_p99, pull_round, pulled, pulled_alone
from mirrorless.errors import ConfigurationError
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS, MAPPING, SCHEDULE, Trigger

MEMORIES: Final = (320, 384, 448, 512, 576, 640, 704, 768, 896, 1024, 1280, 1536, 1769, 2560, 3584)
"""MB of a scheduled function that are tried."""

SHARDS: Final = (*range(1, 13), 14, 16, 20, 24, 32, 40, 48, 64)

LONGEST_WINDOW: Final = 300
LONGEST_INTERVAL: Final = 86_400
MINUTE: Final = 60

CHECKPOINT_SECONDS: Final = MINUTE
"""Between two checkpoints, at most: MM2's default, and the schedule's own interval."""

SHORTEST_GATHER: Final = 0.2
"""Seconds of a continuous run: without a pause it would write an entry for nearly every record."""

GATHER_STEPS: Final = 20
"""Of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What options are held against.

    Attributes:
        latency: seconds that may be waited for, at the 99th percentile.
        half_second: whether windows may be left out: a mapping that once had another never gets half a second again.
        settings: of the flow.
    """

    latency: float
    half_second: bool = True
    settings: BilledSettings = USUAL

    @property
    def checkpoint_seconds(self) -> float:
        """Between two checkpoints: as long as a record may wait, where the flow's own interval is not longer."""
        return max(self.settings.checkpoint_seconds, min(float(CHECKPOINT_SECONDS), float(int(self.latency))))

    def windows(self) -> Iterator[int | None]:
        """Of mappings, from the longest that may do to none."""
        yield from _falling(min(LONGEST_WINDOW, int(self.latency)))
        if self.half_second:
            yield None
        yield 0

    def gathers(self) -> Iterator[float]:
        """Windows of continuous runs, `schedule.window.seconds`, from the longest that may do, by 50 ms."""
        steps = int(min(LONGEST_WINDOW_SECONDS, self.latency) * GATHER_STEPS)
        shortest = int(SHORTEST_GATHER * GATHER_STEPS)
        yield from (each / GATHER_STEPS for each in range(max(shortest, steps), shortest - 1, -1))

    def intervals(self) -> Iterator[float]:
        """Of scheduled runs, from the longest that may do to the shortest that there is."""
        minutes = max(1, min(LONGEST_INTERVAL, int(self.latency)) // MINUTE)
        yield from (float(each * MINUTE) for each in _falling(minutes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to replicate topics.

    Attributes:
        mapping: of the mapped topics; None where there are none.
        pull: of the scheduled topics; None where there are none.
        checkpoint_seconds: between two checkpoints.
        parts: dollars a month, everything of the flow.
        p99: seconds.
        meets: whether the latency is kept.
    """

    mapping: MappingSettings | None = None
    pull: ShardSettings | None = None
    checkpoint_seconds: float
    parts: Mapping[str, float]
    p99: float
    meets: bool

    @property
    def dollars(self) -> float:
        """A month."""
        return sum(self.parts.values())


def mapping_settings(loads: Loads, mode: Mode, goal: Goal) -> MappingSettings:
    """The longest window that keeps the latency for all topics; none where no window does."""
    for window in goal.windows():
        mapping = MappingSettings(mode=mode, window=window)
        if all(bill.mapping_p99(load, mapping, goal.settings) <= goal.latency for load in loads):
            return mapping
    return MappingSettings(mode=mode, window=0)


def pull_settings(loads: Loads, goal: Goal, *, continuous: bool) -> ShardSettings | None:
    """The settings that cost least; None where no number of shards suffices.

    Where none keeps the latency: of intervals the cheapest, of continuous runs those with the least latency.

    Args:
        loads: the scheduled topics.
        goal: to keep.
        continuous: whether runs follow each other without a pause.
    """
    best: tuple[bool, float] = True, inf
    chosen: ShardSettings | None = None
    for memory in MEMORIES:
        for seconds in goal.gathers() if continuous else goal.intervals():
            found = _fewest_shards(loads, memory, seconds, continuous=continuous)
            if found is None:
                break  # what does not fit into a window fits into a shorter one still less
            p99 = pull_p99(loads, found)
            slow = p99 > goal.latency
            rank = slow, p99 if slow and continuous else sum(pulled(loads, found, goal.settings).values())
            if rank < best:
                best, chosen = rank, found
            if not slow:
                break
    return chosen


def _fewest_shards(loads: Loads, memory: int, seconds: float, *, continuous: bool) -> ShardSettings | None:
    tried = (
        ShardSettings(continuous=continuous, seconds=seconds, shards=shards, memory_mb=memory) for shards in SHARDS
    )
    return next((pull for pull in tried if fits(loads, pull)), None)


def option(
    mapped_loads: Loads,
    mapping: MappingSettings | None,
    pulled_loads: Loads,
    pull: ShardSettings | None,
    goal: Goal,
    *,
    checkpoint_seconds: float | None = None,
) -> Option:
    """One way to replicate a flow's topics, some of them by mappings and some by schedule.

    Args:
        mapped_loads: topics with mappings.
        mapping: their settings.
        pulled_loads: topics by schedule.
        pull: their settings.
        goal: to be held against.
        checkpoint_seconds: between two checkpoints; by default as the goal allows.
    """
    seconds = goal.checkpoint_seconds if checkpoint_seconds is None else checkpoint_seconds
    settings = replace(goal.settings, checkpoint_seconds=seconds)
    costs = [bill.shared([*mapped_loads, *pulled_loads], settings)]
    p99 = 0.0
    mapping, pull = mapping if mapped_loads else None, pull if pulled_loads else None
    if mapping is not None:
        costs.append(bill.mapped(mapped_loads, mapping, settings))
        p99 = max(bill.mapping_p99(load, mapping, settings) for load in mapped_loads)
    if pull is not None:
        costs.append(pulled(pulled_loads, pull, settings))
        p99 = max(p99, pull_p99(pulled_loads, pull))
    meets = p99 <= goal.latency
    return Option(
        mapping=mapping, pull=pull, checkpoint_seconds=seconds, parts=bill.together(*costs), p99=p99, meets=meets
    )


def by_mappings(loads: Loads, mode: Mode, goal: Goal) -> Option:
    """All topics by mappings."""
    return option(loads, mapping_settings(loads, mode, goal), (), None, goal)


def by_schedule(loads: Loads, goal: Goal, *, continuous: bool) -> Option | None:
    """All topics by schedule; None where no number of shards suffices."""
    pull = pull_settings(loads, goal, continuous=continuous)
    return option((), None, loads, pull, goal) if pull else None


def _falling(longest: int) -> Iterator[int]:
    """From the longest down to 1, by steps of one, or of a fortieth where that is more."""
    value = longest
    while value > 0:
        yield value
        value -= max(1, value // 40)


WORTH_A_MIX: Final = 0.05
"""Of the flow's price, which two triggers must save over the better one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The trigger of one topic, and its price by either.

    Attributes:
        rate: what it carries.
        trigger: what is recommended.
        mapping_dollars: a month that its own mapping adds; None where no mapping can carry its records.
        schedule_dollars: a month, its entries and its share of the runs; None where no schedule suffices.
        mapping_p99: seconds.
        schedule_p99: seconds.
    """

    rate: TopicRate
    trigger: Trigger
    mapping_dollars: float | None
    schedule_dollars: float | None
    mapping_p99: float | None
    schedule_p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLoad:
    """What the target must take of a flow: writes, without their replicas and before compression."""

    bytes_per_second: float
    peak_bytes_per_second: float
    """All topics at their peaks at once."""
    records_per_second: float
    partitions: int
    transactions_per_second: float
    partitions_of_transactions_per_second: float
    """Each gets a marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """The plan of a flow.

    Attributes:
        latency: seconds, at the 99th percentile, that may be waited for.
        recommended: the cheapest option that keeps it; of those that do not, the fastest.
        options: the flow by one trigger alone, by name.
        topics: in the order of the rates.
        msk_replicator: dollars a month.
        msk_connect: dollars a month, of MirrorMaker 2, exactly once and tuned.
        target: what it must take, by the recommended option.
    """

    latency: float
    recommended: Option
    options: dict[str, Option | None]
    topics: tuple[TopicPlan, ...]
    msk_replicator: float
    msk_connect: float
    target: TargetLoad

    def of(self, trigger: Trigger) -> tuple[TopicPlan, ...]:
        """The topics with a trigger."""
        return tuple(topic for topic in self.topics if topic.trigger == trigger)

    @property
    def most_pollers(self) -> int:
        """That a provisioned mapping needs at most, at its topic's peak."""
        at_peak = (topic.rate.load().at(topic.rate.peak_bytes_per_second / 1e6) for topic in self.of(MAPPING))
        return int(max(map(bill.pollers, at_peak), default=1))


def plan_flow(rates: Sequence[TopicRate], goal: Goal) -> FlowPlan:
    """Plan a flow.

    Args:
        rates: of its topics.
        goal: to keep.

    Raises:
        ConfigurationError: no trigger can carry them.
    """
    found = list(_candidates(rates, goal))
    if not found:
        what = "its records are too large for mappings, and too many for the shards that a schedule may have"
        raise ConfigurationError(what, where="the flow", hint="divide its topics among several flows")
    scheduled, recommended = min(found, key=lambda each: _rank(len(each[0]) not in {0, len(rates)}, each[1]))
    return FlowPlan(
        latency=goal.latency,
        recommended=recommended,
        options=_pure_options(rates, goal),
        topics=_topic_plans(rates, scheduled, recommended, goal),
        msk_replicator=bill.msk_replicator(whole(rates)),
        msk_connect=bill.msk_connect(whole(rates)),
        target=_target_load(rates, scheduled, recommended, goal.settings),
    )


def configured(
    rates: Sequence[TopicRate],
    scheduled: Collection[str],
    mapping: MappingSettings,
    pull: ShardSettings,
    goal: Goal,
) -> Option:
    """The flow by triggers and settings that are given. What its shards cannot do in time takes for ever."""
    by_pull, others = _divided(rates, scheduled)
    own = goal.settings.checkpoint_seconds
    found = option(others, mapping, by_pull, pull, goal, checkpoint_seconds=own)
    if by_pull and not fits(by_pull, pull):
        return replace(found, p99=inf, meets=False)
    return found


def _divided(rates: Sequence[TopicRate], scheduled: Collection[str]) -> tuple[Loads, Loads]:
    """The loads of the topics that are scheduled, and of the others."""
    parts = ([rate for rate in rates if (rate.topic in scheduled) == by_pull] for by_pull in (True, False))
    by_pull, others = map(flow_loads, parts)
    return by_pull, others


def _rank(mixed: bool, found: Option) -> tuple[bool, float]:  # noqa: FBT001 -- a part of the key
    """The least is recommended. Two triggers in a flow are more to know and to watch than one."""
    if not found.meets:
        return True, found.p99
    return False, found.dollars / (1 - WORTH_A_MIX if mixed else 1)


def _pure_options(rates: Sequence[TopicRate], goal: Goal) -> dict[str, Option | None]:
    """The flow by one trigger alone; None where that cannot carry it."""
    loads = flow_loads(rates)
    mappable = not any(rate.needs_schedule for rate in rates)
    return {
        "mappings, on demand": by_mappings(loads, "on-demand", goal) if mappable else None,
        "mappings, provisioned": by_mappings(loads, "provisioned", goal) if mappable else None,
        "schedule, continuous": by_schedule(loads, goal, continuous=True),
        "schedule, by interval": by_schedule(loads, goal, continuous=False),
    }


def _candidates(rates: Sequence[TopicRate], goal: Goal) -> Iterator[tuple[frozenset[str], Option]]:
    """Options with the topics that they schedule. Free pollers are never dearer than those that are paid for."""
    forced = frozenset(rate.topic for rate in rates if rate.needs_schedule)
    if not forced:
        yield frozenset(), by_mappings(flow_loads(rates), "on-demand", goal)
    for level in sorted({_level(rate) for rate in rates}):
        scheduled = forced | {rate.topic for rate in rates if _level(rate) <= level}
        for continuous in (True, False):
            if found := _split(rates, scheduled, goal, continuous=continuous):
                yield scheduled, found


def _level(rate: TopicRate) -> int:
    """The bytes of a topic, to a factor of two."""
    return round(log2(max(1.0, rate.bytes_per_second)))


def _split(rates: Sequence[TopicRate], scheduled: frozenset[str], goal: Goal, *, continuous: bool) -> Option | None:
    """The flow with these topics by schedule and the others by mappings."""
    by_pull, others = _divided(rates, scheduled)
    pull = pull_settings(by_pull, goal, continuous=continuous)
    return option(others, mapping_settings(others, "on-demand", goal), by_pull, pull, goal) if pull else None


def _topic_plans(
    rates: Sequence[TopicRate], scheduled: frozenset[str], recommended: Option, goal: Goal
) -> tuple[TopicPlan, ...]:
    """The topics with their own prices: by the settings that are recommended, else by those for all topics."""
    settings = goal.settings
    mapping = recommended.mapping or mapping_settings(flow_loads(rates), "on-demand", goal)
    sharing = scheduled or frozenset(rate.topic for rate in rates)
    runs, _ = _divided(rates, sharing)
    pull = recommended.pull or pull_settings(runs, goal, continuous=True)
    by_schedule = _schedule_dollars(rates, sharing, pull, settings) if pull else {}
    schedule_p99 = pull_p99(runs, pull) if pull else None

    def planned(rate: TopicRate) -> TopicPlan:
        load, mappable = rate.load(), not rate.needs_schedule
        return TopicPlan(
            rate=rate,
            trigger=SCHEDULE if rate.topic in scheduled else MAPPING,
            mapping_dollars=sum(bill.mapped([load], mapping, settings).values()) if mappable else None,
            schedule_dollars=by_schedule.get(rate.topic),
            mapping_p99=bill.mapping_p99(load, mapping, settings) if mappable else None,
            schedule_p99=schedule_p99,
        )

    return tuple(map(planned, rates))


def _schedule_dollars(
    rates: Sequence[TopicRate], sharing: Collection[str], pull: ShardSettings, settings: BilledSettings
) -> dict[str, float]:
    """What each topic costs by schedule: its entries, and its share by work of the runs of those that share them."""
    runs, _ = _divided(rates, sharing)
    alone = {rate.topic: pulled_alone(rate.load(), runs, pull, settings) for rate in rates}
    work = {rate.topic: pull_round([rate.load()], pull).cpu_seconds for rate in rates}
    common = sum(pulled(runs, pull, settings).values()) - sum(alone[topic] for topic in sharing)
    all_work = sum(work[topic] for topic in sharing)
    return {topic: own + common * work[topic] / all_work for topic, own in alone.items()}


def _target_load(
    rates: Sequence[TopicRate], scheduled: frozenset[str], chosen: Option, settings: BilledSettings
) -> TargetLoad:
    by_pull, others = _divided(rates, scheduled)
    transactions = lanes = 0.0
    if chosen.mapping is not None:
        for load in others:
            events = bill.events_per_second(load, chosen.mapping, settings)
            transactions += events
            lanes += min(events * load.partitions, load.topics * load.records_per_topic)
    if (pull := chosen.pull) is not None:
        in_round = pull_round(by_pull, pull)
        transactions += in_round.transactions * pull.shards / pull.seconds
        lanes += in_round.lanes * pull.shards / pull.seconds
    return TargetLoad(
        bytes_per_second=sum(rate.bytes_per_second for rate in rates),
        peak_bytes_per_second=sum(rate.peak_bytes_per_second for rate in rates),
        records_per_second=sum(rate.records_per_second for rate in rates),
        partitions=sum(rate.partitions for rate in rates),
        transactions_per_second=transactions,
        partitions_of_transactions_per_second=lanes,
    )


ALL_TOPICS: Final = ".*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggersNow:
    """The triggers as they are configured.

    Attributes:
        default: the flow's own.
        entries: whether there is a `trigger.overrides` of the flow or of `defaults`.
        touched: topics of the plan that are or may have been scheduled, because an entry is about them.
        heartbeats: whether the flow replicates the source's heartbeats.
        checkpoint_seconds: between two checkpoints.
    """

    default: Trigger = "mapping"
    entries: bool = False
    touched: Collection[str] = ()
    heartbeats: bool = False
    checkpoint_seconds: float = 2


def planned_keys(plan: FlowPlan, now: TriggersNow) -> dict[str, Any]:
    """What the recommended option sets in a flow, by key; a key that is not among them stays as it is.

    All of `trigger.overrides`, some keys of `schedule` and `mapping`, and `emit.checkpoints.interval.seconds`.
    """
    chosen, keys = plan.recommended, dict[str, Any]()
    overrides = trigger_overrides(plan, now)
    if overrides or now.entries:
        keys["trigger.overrides"] = overrides
    if (pull := chosen.pull) is not None:
        pace = {"window.seconds": pull.seconds} if pull.continuous else {"interval.seconds": int(pull.seconds)}
        keys["schedule"] = {"continuous": pull.continuous, **pace, "shards": pull.shards, "memory.mb": pull.memory_mb}
    if chosen.mapping is not None:
        window = chosen.mapping.window  # half a second is what it is where it is left out
        keys["mapping"] = {"mode": chosen.mapping.mode} | (
            {} if window is None else {"maximum.batching.window.seconds": window}
        )
    if chosen.checkpoint_seconds > now.checkpoint_seconds:
        keys["emit.checkpoints.interval.seconds"] = int(chosen.checkpoint_seconds)
    return keys


def trigger_overrides(plan: FlowPlan, now: TriggersNow) -> dict[str, Trigger]:
    """The entries that give each topic its trigger: names of the fewer, and a pattern for all others.

    A topic that an entry is about keeps one: only then its group is set before its mapping is made. Heartbeats have a
    mapping, so that their age still tells that the flow works.
    """
    counts = {trigger: len(plan.of(trigger)) for trigger in (MAPPING, SCHEDULE)}
    most: Trigger = SCHEDULE if counts[SCHEDULE] > counts[MAPPING] else MAPPING
    if counts[now.default] and counts[most] - counts[now.default] <= 0:
        most = now.default  # without an entry, if both are as many
    entries: dict[str, Trigger] = {}
    for topic in plan.topics:
        name = topic.rate.topic
        if topic.trigger != most or (most == now.default == "mapping" and name in now.touched):
            entries[name] = topic.trigger
    if most == SCHEDULE and now.heartbeats:
        entries[HEARTBEATS_TOPIC] = MAPPING
    if most != now.default:
        entries[ALL_TOPICS] = most
    return entries
