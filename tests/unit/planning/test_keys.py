"""The keys that a plan writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorless.cost.pull import ShardSettings
from mirrorless.planning.flow_plan import FlowPlan, plan_flow
from mirrorless.planning.keys import PlannedKeys, TriggersNow, planned_keys
from mirrorless.planning.options import BatchingWindow, Goal, MappingSettings, Option
from mirrorless.planning.rates import TopicRate
from mirrorless.triggers import Trigger

RATE = TopicRate(
    topic="a",
    partitions=1,
    records_per_second=1,
    bytes_per_second=1,
    average_record_bytes=1,
    peak_bytes_per_second=1,
)
PLAN = plan_flow([RATE], Goal(latency=5))
MAPPING = MappingSettings(mode="on-demand", window=BatchingWindow(4))
PULL = ShardSettings(continuous=True, seconds=4, shards=2, memory_mb=768)


def plan(
    triggers: dict[str, Trigger], *, mapping: MappingSettings | None = None, pull: ShardSettings | None = None
) -> FlowPlan:
    """A plan with these triggers."""
    topics = [replace(PLAN.topics[0], rate=replace(RATE, topic=name), trigger=each) for name, each in triggers.items()]
    chosen = Option(mapping=mapping, pull=pull, checkpoint_seconds=5, parts={}, p99=1, meets=True)
    return replace(PLAN, recommended=chosen, topics=tuple(topics))


def keys(triggers: dict[str, Trigger], now: TriggersNow | None = None) -> PlannedKeys:
    return planned_keys(plan(triggers, mapping=MAPPING, pull=PULL), now or TriggersNow())


def test_mappings_alone_need_no_entry_and_no_schedule() -> None:
    found = planned_keys(plan({"a": "mapping", "b": "mapping"}, mapping=MAPPING), TriggersNow())

    assert found == PlannedKeys(
        overrides=None,
        schedule=None,
        mapping={"mode": "on-demand", "maximum.batching.window.seconds": 4},
        checkpoint_seconds=5,
    )


def test_a_schedule_of_all_topics_is_one_pattern() -> None:
    found = planned_keys(plan({"a": "schedule", "b": "schedule"}, pull=PULL), TriggersNow())

    assert found == PlannedKeys(
        overrides={".*": "schedule"},
        schedule={"continuous": True, "window.seconds": 4, "shards": 2, "memory.mb": 768},
        mapping=None,
        checkpoint_seconds=5,
    )


def test_an_interval_has_no_window() -> None:
    each = ShardSettings(continuous=False, seconds=120.0, shards=1, memory_mb=512)

    found = planned_keys(plan({"a": "schedule"}, pull=each), TriggersNow())

    assert found.schedule == {"continuous": False, "interval.seconds": 120, "shards": 1, "memory.mb": 512}
    assert found.mapping is None


def test_a_mapping_and_a_continuous_run_have_windows_of_their_own() -> None:
    short = ShardSettings(continuous=True, seconds=0.65, shards=1, memory_mb=512)

    found = planned_keys(plan({"a": "schedule", "b": "mapping"}, mapping=MAPPING, pull=short), TriggersNow())

    assert found.schedule == {"continuous": True, "window.seconds": 0.65, "shards": 1, "memory.mb": 512}
    assert found.mapping == {"mode": "on-demand", "maximum.batching.window.seconds": 4}


@pytest.mark.parametrize("window", [None, 0, 7])
def test_half_a_second_is_a_window_that_is_left_out(window: int | None) -> None:
    mapping = MappingSettings(mode="provisioned", window=BatchingWindow(window))

    found = planned_keys(plan({"a": "mapping"}, mapping=mapping), TriggersNow()).mapping

    assert found == {"mode": "provisioned"} | ({} if window is None else {"maximum.batching.window.seconds": window})


def test_the_fewer_topics_are_named_before_the_pattern_of_the_others() -> None:
    assert list((keys({"a": "schedule", "b": "mapping", "c": "schedule"}).overrides or {}).items()) == [
        ("b", "mapping"),
        (".*", "schedule"),
    ]
    assert keys({"a": "mapping", "b": "schedule", "c": "mapping"}).overrides == {"b": "schedule"}
    assert keys({"a": "mapping", "b": "schedule"}).overrides == {"b": "schedule"}


def test_a_flow_that_schedules_by_itself_needs_no_pattern_for_that() -> None:
    now = TriggersNow(default="schedule")

    assert keys({"a": "schedule", "b": "mapping", "c": "schedule"}, now).overrides == {"b": "mapping"}
    assert keys({"a": "schedule"}, now).overrides is None
    assert keys({"a": "schedule", "b": "mapping"}, now).overrides == {"b": "mapping"}
    assert keys({"a": "mapping"}, now).overrides == {".*": "mapping"}


def test_entries_that_are_not_needed_any_more_go() -> None:
    assert keys({"a": "mapping"}, TriggersNow(entries=True)).overrides == {}


def test_a_topic_that_an_entry_is_about_keeps_one() -> None:
    now = TriggersNow(entries=True, touched={"a", "c"})

    assert keys({"a": "mapping", "b": "mapping", "c": "schedule"}, now).overrides == {"a": "mapping", "c": "schedule"}
    assert keys({"a": "mapping"}, TriggersNow(default="schedule", touched={"a"})).overrides == {".*": "mapping"}


def test_heartbeats_keep_their_mapping_where_all_else_is_scheduled() -> None:
    now = TriggersNow(heartbeats=True)

    assert list(keys({"a": "schedule"}, now).overrides or {}) == ["heartbeats", ".*"]
    assert keys({"a": "mapping"}, now).overrides is None


@pytest.mark.parametrize(("now", "written"), [(2, 5), (5, None), (60, None)])
def test_checkpoints_are_made_rarer_and_never_more_often(now: float, written: int | None) -> None:
    found = keys({"a": "mapping"}, TriggersNow(checkpoint_seconds=now))

    assert found.checkpoint_seconds == written
