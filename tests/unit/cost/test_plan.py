"""The capacity plan of a flow, and its options at their lowest cost within a latency."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from mirrorless.cost.bill import (
    BilledSettings,
    MappingSettings,
    ReplicationLoad,
    event_seconds,
    mapped,
    mapping_p99,
    msk_connect,
    msk_replicator,
    shared,
    together,
)
from mirrorless.cost.plan import (
    MEMORIES,
    SHARDS,
    SHORTEST_GATHER,
    FlowPlan,
    Goal,
    Option,
    TriggersNow,
    _split,
    by_mappings,
    by_schedule,
    configured,
    mapping_settings,
    option,
    plan_flow,
    planned_keys,
    pull_settings,
)
from mirrorless.cost.rates import TopicRate, flow_loads, whole
from mirrorless.cost.shards import ShardSettings, fits, pull_p99, pulled
from mirrorless.errors import ConfigurationError
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS, Trigger


def rate(
    topic: str,
    bytes_per_second: float,
    *,
    size: float = 1_000,
    peak: float = 2,
    partitions: int = 6,
    largest: int = 0,
) -> TopicRate:
    return TopicRate(
        topic=topic,
        partitions=partitions,
        records_per_second=bytes_per_second / size,
        bytes_per_second=bytes_per_second,
        average_record_bytes=size,
        peak_bytes_per_second=bytes_per_second * peak,
        largest_record_bytes=largest,
    )


def plan(*rates: TopicRate, latency: float = 5) -> FlowPlan:
    return plan_flow(rates, Goal(latency=latency))


def like(count: int, bytes_per_second: float, name: str = "topic") -> list[TopicRate]:
    return [rate(f"{name}-{number}", bytes_per_second) for number in range(count)]


@pytest.mark.parametrize(
    ("topics", "bytes_per_second", "latency", "option"),
    [
        (3, 100_000, 5, "mappings, on demand"),
        (100, 10_000, 5, "schedule, continuous"),
        (100, 10_000, 300, "mappings, on demand"),
        (1_000, 10_000, 1_800, "schedule, by interval"),
    ],
)
def test_the_recommended_option_is_the_cheapest_that_keeps_the_latency(
    topics: int, bytes_per_second: float, latency: float, option: str
) -> None:
    found = plan(*like(topics, bytes_per_second), latency=latency)

    assert found.recommended == found.options[option]
    assert {topic.trigger for topic in found.topics} == {"mapping" if "mappings" in option else "schedule"}
    assert found.recommended.meets
    kept = [each.dollars for each in found.options.values() if each is not None and each.meets]
    assert found.recommended.dollars <= min(kept)


@pytest.mark.parametrize(("small", "mixed"), [(20, False), (45, True)])
def test_a_mix_is_recommended_where_it_saves_a_twentieth(small: int, mixed: bool) -> None:  # noqa: FBT001 -- the expectation
    """By schedule, 20 small ones save too little, and 45 enough."""
    found = plan(*like(small, 10_000), rate("busy", 20_000_000))

    assert len(found.of("schedule")) == (small if mixed else 0)
    assert found.topics[-1].trigger == "mapping"
    alone = min(option.dollars for option in found.options.values() if option is not None and option.meets)
    assert (found.recommended.dollars < 0.95 * alone) == mixed


def test_each_trigger_of_a_mix_has_a_window_of_its_own() -> None:
    """A small mapping keeps 5 s by a window of 4 s, a schedule of 10 MB/s in 100 topics by a shorter one."""
    rates = [*like(100, 100_000), rate("small", 1_000)]

    found = _split(rates, frozenset(each.topic for each in rates[:100]), Goal(latency=5), continuous=True)

    assert found is not None
    assert found.mapping is not None
    assert found.pull is not None
    alone = pull_settings(flow_loads(rates[:100]), Goal(latency=5), continuous=True)
    assert alone is not None
    assert (found.mapping.window, found.pull) == (4, alone)
    assert 2 < found.pull.seconds < 4


@pytest.mark.parametrize("large", [{"size": 5_000_000}, {"largest": 5_000_000}], ids=["on average", "one was seen"])
def test_records_that_no_event_carries_are_scheduled_whatever_it_costs(large: dict[str, int]) -> None:
    """They carry more than the small ones beside which they are scheduled."""
    found = plan(rate("large", 10_000_000, partitions=12, **large), *like(45, 10_000), rate("busy", 20_000_000))

    assert found.topics[-1].trigger == "mapping"
    assert found.topics[0].trigger == "schedule"
    assert (found.topics[0].mapping_dollars, found.topics[0].mapping_p99) == (None, None)
    assert found.options["mappings, on demand"] is None


def test_a_latency_that_nothing_keeps_is_said_to_be_missed_by_the_fastest() -> None:
    found = plan(*like(3, 100_000), latency=0.1)

    assert not found.recommended.meets
    assert found.recommended.p99 == min(option.p99 for option in found.options.values() if option is not None)


def test_what_nothing_can_carry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="divide its topics"):
        plan(rate("large", 10_000_000_000, size=5_000_000))


def test_a_flow_as_it_is_configured_costs_what_its_options_do() -> None:
    rates, goal = like(100, 10_000), Goal(latency=5, settings=BilledSettings(checkpoint_seconds=5))
    names = [each.topic for each in rates]
    by_mapping, by_pull = plan(*rates).options["mappings, on demand"], plan(*rates).options["schedule, continuous"]
    assert by_mapping is not None
    assert by_pull is not None
    assert by_mapping.mapping is not None
    assert by_pull.pull is not None

    assert configured(rates, (), by_mapping.mapping, by_pull.pull, goal) == by_mapping
    assert configured(rates, names, by_mapping.mapping, by_pull.pull, goal) == by_pull
    both = configured(rates, names[:50], by_mapping.mapping, by_pull.pull, goal)
    assert (both.mapping, both.pull) == (by_mapping.mapping, by_pull.pull)
    assert both.parts["functions: time"] > by_pull.parts["functions: time"]


def test_a_schedule_that_cannot_do_its_work_takes_for_ever() -> None:
    rates, small = like(100, 10_000), ShardSettings(continuous=True, seconds=0.5, shards=1, memory_mb=512)
    one, all_ = ({each.topic for each in rates[:count]} for count in (1, 100))

    assert configured(rates, one, MappingSettings(), small, Goal(latency=5)).meets
    late = configured(rates, all_, MappingSettings(), small, Goal(latency=5))
    assert (late.p99, late.meets) == (inf, False)


def test_the_prices_of_a_mappings_topics_and_what_the_flow_has_once_are_the_flows() -> None:
    found = plan(rate("a", 1_000_000), rate("b", 10_000), rate("c", 0))

    own = sum(topic.mapping_dollars or 0 for topic in found.topics)
    once = sum(found.recommended.parts[part] for part in ("scheduled functions", "heartbeats", "dashboard"))
    assert found.recommended.dollars == pytest.approx(own + once + 3.7)  # metrics, alarms


def test_the_prices_of_scheduled_topics_hold_their_share_of_the_runs() -> None:
    found = plan(*like(100, 10_000), rate("busier", 100_000), rate("silent", 0))

    shares = {topic.rate.topic: topic.schedule_dollars or 0 for topic in found.topics}
    once = sum(found.recommended.parts[part] for part in ("scheduled functions", "heartbeats", "dashboard"))
    assert found.recommended.dollars == pytest.approx(sum(shares.values()) + once + 3.7)
    assert shares["busier"] > shares["topic-0"] > shares["silent"]


def test_the_others_cost_what_they_cost_for_the_whole_flow() -> None:
    rates = [rate("a", 9_000_000), rate("b", 1_000_000, size=100)]

    found = plan(*rates)

    assert found.msk_replicator == pytest.approx(msk_replicator(whole(rates)))
    assert found.msk_connect == pytest.approx(msk_connect(whole(rates)))


def test_the_target_takes_every_byte_and_the_transactions_of_the_recommended_option() -> None:
    """Three mappings with a window of 4 s, six lanes in each event."""
    target = plan(*like(3, 1_000_000)).target

    assert target.bytes_per_second == 3_000_000
    assert target.peak_bytes_per_second == 6_000_000
    assert target.records_per_second == 3_000
    assert target.partitions == 18
    assert target.transactions_per_second == pytest.approx(3 / 4, rel=0.01)
    assert target.partitions_of_transactions_per_second == pytest.approx(18 / 4, rel=0.01)


def test_the_target_takes_the_transactions_of_a_schedule() -> None:
    """600 lanes in transactions of 64, in each window."""
    found = plan(*like(100, 10_000))

    assert found.recommended.pull is not None
    window = found.recommended.pull.seconds
    assert found.target.transactions_per_second == pytest.approx(600 / 64 / window)
    assert found.target.partitions_of_transactions_per_second == pytest.approx(600 / window)


def test_a_provisioned_mapping_needs_pollers_for_its_peak_and_no_more_than_partitions() -> None:
    assert plan(rate("a", 4_000_000, peak=4)).most_pollers == 4
    assert plan(rate("a", 4_000_000, peak=4, partitions=2)).most_pollers == 2
    assert plan(rate("a", 0)).most_pollers == 1


RATE = rate("a", 1, size=1, peak=1, partitions=1)
PLAN = plan_flow([RATE], Goal(latency=5))
MAPPING = MappingSettings(window=4)
PULL = ShardSettings(continuous=True, seconds=4, shards=2, memory_mb=768)


def planned(
    triggers: dict[str, Trigger], *, mapping: MappingSettings | None = None, pull: ShardSettings | None = None
) -> FlowPlan:
    """A plan with these triggers."""
    topics = [replace(PLAN.topics[0], rate=replace(RATE, topic=name), trigger=each) for name, each in triggers.items()]
    chosen = Option(mapping=mapping, pull=pull, checkpoint_seconds=5, parts={}, p99=1, meets=True)
    return replace(PLAN, recommended=chosen, topics=tuple(topics))


def keys(triggers: dict[str, Trigger], now: TriggersNow | None = None) -> dict[str, Any]:
    return planned_keys(planned(triggers, mapping=MAPPING, pull=PULL), now or TriggersNow())


def test_mappings_alone_need_no_entry_and_no_schedule() -> None:
    found = planned_keys(planned({"a": "mapping", "b": "mapping"}, mapping=MAPPING), TriggersNow())

    windowed = {"mode": "on-demand", "maximum.batching.window.seconds": 4}
    assert found == {"mapping": windowed, "emit.checkpoints.interval.seconds": 5}


def test_a_schedule_of_all_topics_is_one_pattern() -> None:
    found = planned_keys(planned({"a": "schedule", "b": "schedule"}, pull=PULL), TriggersNow())

    schedule = {"continuous": True, "window.seconds": 4, "shards": 2, "memory.mb": 768}
    assert found == {
        "trigger.overrides": {".*": "schedule"},
        "schedule": schedule,
        "emit.checkpoints.interval.seconds": 5,
    }


@pytest.mark.parametrize(
    ("continuous", "seconds", "expected"),
    [
        (False, 120.0, {"continuous": False, "interval.seconds": 120}),
        (True, 0.65, {"continuous": True, "window.seconds": 0.65}),
    ],
    ids=["an interval has no window", "a continuous run has its own beside a mapping"],
)
def test_a_schedule_has_its_interval_or_a_window_of_its_own(
    seconds: float, expected: dict[str, object], *, continuous: bool
) -> None:
    each = ShardSettings(continuous=continuous, seconds=seconds, shards=1, memory_mb=512)

    found = planned_keys(planned({"a": "schedule", "b": "mapping"}, mapping=MAPPING, pull=each), TriggersNow())

    assert found["schedule"] == expected | {"shards": 1, "memory.mb": 512}
    assert found["mapping"] == {"mode": "on-demand", "maximum.batching.window.seconds": 4}


@pytest.mark.parametrize("window", [None, 0, 7])
def test_half_a_second_is_a_window_that_is_left_out(window: int | None) -> None:
    mapping = MappingSettings(mode="provisioned", window=window)

    found = planned_keys(planned({"a": "mapping"}, mapping=mapping), TriggersNow())["mapping"]

    assert found == {"mode": "provisioned"} | ({} if window is None else {"maximum.batching.window.seconds": window})


MAPPED, SCHEDULED = "mapping", "schedule"
BY_ITSELF = TriggersNow(default="schedule")
ENTRIES: dict[str, tuple[str, TriggersNow, dict[str, str] | None]] = {
    "the fewer are named before the pattern of the others": ("sms", TriggersNow(), {"b": MAPPED, ".*": SCHEDULED}),
    "the fewer are scheduled": ("msm", TriggersNow(), {"b": SCHEDULED}),
    "as many of each": ("ms", TriggersNow(), {"b": SCHEDULED}),
    "a flow that schedules by itself needs no pattern": ("sms", BY_ITSELF, {"b": MAPPED}),
    "and none for all": ("s", BY_ITSELF, None),
    "nor for as many of each": ("sm", BY_ITSELF, {"b": MAPPED}),
    "but one for mappings of all": ("m", BY_ITSELF, {".*": MAPPED}),
    "entries that are not needed any more go": ("m", TriggersNow(entries=True), {}),
    "a topic that an entry is about keeps one": (
        "mms",
        TriggersNow(entries=True, touched={"a", "c"}),
        {"a": MAPPED, "c": SCHEDULED},
    ),
    "by the pattern of all": ("m", TriggersNow(default="schedule", touched={"a"}), {".*": MAPPED}),
    "heartbeats keep their mapping": ("s", TriggersNow(heartbeats=True), {"heartbeats": MAPPED, ".*": SCHEDULED}),
    "where all else is mapped they need no entry": ("m", TriggersNow(heartbeats=True), None),
}
"""Triggers of topics a, b, …, by their first letters; what is written now; the entries, in their order."""


@pytest.mark.parametrize(("triggers", "now", "expected"), ENTRIES.values(), ids=ENTRIES)
def test_entries_are_as_few_as_say_what_is_planned(
    triggers: str, now: TriggersNow, expected: dict[str, str] | None
) -> None:
    of_topics: dict[str, Trigger] = {
        topic: "mapping" if each == "m" else "schedule" for topic, each in zip("abc", triggers, strict=False)
    }

    found = keys(of_topics, now).get("trigger.overrides")

    assert found == expected
    assert list(found or ()) == list(expected or ())


@pytest.mark.parametrize(("now", "written"), [(2, 5), (5, None), (60, None)])
def test_checkpoints_are_made_rarer_and_never_more_often(now: float, written: int | None) -> None:
    found = keys({"a": "mapping"}, TriggersNow(checkpoint_seconds=now))

    assert found.get("emit.checkpoints.interval.seconds") == written


# Options


USUAL = ReplicationLoad(mb_per_second=1.0)
HUNDRED = replace(USUAL, topics=100)


def scheduled(load: ReplicationLoad, latency: float, *, continuous: bool = True) -> Option:
    found = by_schedule([load], Goal(latency=latency), continuous=continuous)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("latency", "window"),
    [(0.3, 0), (0.5, 0), (0.8, None), (1, None), (1.3, 1), (5, 4), (60, 59), (3_600, 300)],
)
def test_a_mapping_has_the_longest_window_that_keeps_the_latency(latency: float, window: int | None) -> None:
    assert mapping_settings([USUAL], "on-demand", Goal(latency=latency)).window == window


def test_a_mapping_that_once_had_a_window_never_gets_half_a_second_again() -> None:
    goal = Goal(latency=1, half_second=False)

    assert mapping_settings([USUAL], "on-demand", goal).window == 0


def test_a_record_waits_for_the_window_the_poller_and_twice_an_event() -> None:
    """Each of ten topics has 400 records in 4 s."""
    assert mapping_p99(USUAL, MappingSettings(window=4)) == pytest.approx(4 + 0.1 + 2 * event_seconds(400, 0.4))


def test_a_latency_that_no_window_keeps_is_said_to_be_missed() -> None:
    found = by_mappings([USUAL], "on-demand", Goal(latency=0.1))

    assert not found.meets
    assert found.p99 > 0.1


def test_an_option_costs_what_the_cost_model_says_of_the_whole_flow() -> None:
    found = by_mappings([USUAL], "provisioned", Goal(latency=1))

    whole = together(mapped([USUAL], MappingSettings(mode="provisioned")), shared([USUAL]))
    assert found.parts == pytest.approx(whole)
    assert found.dollars == pytest.approx(sum(found.parts.values()))


def test_a_continuous_run_keeps_the_latency_at_the_least_cost_of_all_settings() -> None:
    found = scheduled(HUNDRED, 5)

    assert found.meets
    assert found.pull is not None
    best = sum(pulled([HUNDRED], found.pull).values())
    for memory in MEMORIES:
        for shards in SHARDS[:8]:
            for seconds in (0.4, 1, 2, 3, 3.5, 4, 4.5):
                other = replace(found.pull, memory_mb=memory, shards=shards, seconds=seconds)
                if fits([HUNDRED], other) and pull_p99([HUNDRED], other) <= 5:
                    assert sum(pulled([HUNDRED], other).values()) >= best - 1e-9


def test_a_continuous_run_always_gathers_for_a_while() -> None:
    found = scheduled(USUAL, 0.2)

    assert not found.meets
    assert found.pull is not None
    assert found.pull.seconds == SHORTEST_GATHER
    silent = scheduled(ReplicationLoad(mb_per_second=0), 0.1)
    assert silent.pull is not None
    assert silent.pull.seconds == SHORTEST_GATHER


def test_the_window_of_a_continuous_run_is_a_multiple_of_50_ms_that_its_lease_allows() -> None:
    assert list(Goal(latency=0.36).gathers()) == [0.35, 0.3, 0.25, 0.2]
    assert next(Goal(latency=3_600).gathers()) == LONGEST_WINDOW_SECONDS


@pytest.mark.parametrize(
    ("latency", "seconds"), [(1, 60), (60, 60), (119, 60), (130, 120), (3_600, 3_540), (10**6, 86_400)]
)
def test_an_interval_is_the_longest_of_whole_minutes_that_keeps_the_latency(latency: float, seconds: int) -> None:
    found = scheduled(USUAL.at(0.001), latency, continuous=False)

    assert found.pull is not None
    assert found.pull.seconds == seconds
    assert found.meets == (latency > 61)


def test_more_than_all_shards_carry_is_no_option() -> None:
    assert by_schedule([ReplicationLoad(mb_per_second=5_000)], Goal(latency=60), continuous=True) is None


def test_both_triggers_in_a_flow_pay_for_what_is_common_once() -> None:
    goal = Goal(latency=5)
    mapping = mapping_settings([USUAL], "on-demand", goal)
    pull = pull_settings([HUNDRED], goal, continuous=True)

    both = option([USUAL], mapping, [HUNDRED], pull, goal)

    assert both.parts["dashboard"] == 3
    assert both.parts["heartbeats"] == by_mappings([USUAL], "on-demand", goal).parts["heartbeats"]
    assert both.p99 == scheduled(HUNDRED, 5).p99 > mapping_p99(USUAL, mapping)
    quick = ShardSettings(continuous=True, seconds=1, shards=1)
    assert option([USUAL], mapping, [USUAL], quick, goal).p99 == mapping_p99(USUAL, mapping) > pull_p99([USUAL], quick)


@pytest.mark.parametrize(
    ("latency", "own", "seconds"), [(0.5, 2, 2), (5, 2, 5), (5.9, 2, 5), (3_600, 2, 60), (5, 120, 120)]
)
def test_checkpoints_are_as_rare_as_the_latency_and_the_flow_allow(latency: float, own: float, seconds: float) -> None:
    """A group's offset is of no use on the target before its record is there; MM2's default is a minute."""
    goal = Goal(latency=latency, settings=BilledSettings(checkpoint_seconds=own))

    assert goal.checkpoint_seconds == seconds
    assert by_mappings([USUAL], "on-demand", goal).checkpoint_seconds == seconds
