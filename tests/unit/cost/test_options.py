"""Options at their lowest cost within a latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorless.cost.bill import (
    BilledSettings,
    MappingSettings,
    ReplicationLoad,
    event_seconds,
    mapped,
    mapping_p99,
    shared,
    together,
)
from mirrorless.cost.options import (
    MEMORIES,
    SHARDS,
    SHORTEST_GATHER,
    Goal,
    Option,
    by_mappings,
    by_schedule,
    mapping_settings,
    option,
    pull_settings,
)
from mirrorless.cost.shards import ShardSettings, fits, pull_p99, pulled
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS

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
