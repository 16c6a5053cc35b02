"""The soak's schedules: reproducible, of every kind, and with one destroyed topic at most."""

from __future__ import annotations

import importlib
import runpy
import time
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from lab.drills.soak import SEEDS
from lab.faults.degradations import MISBEHAVIOURS
from lab.faults.injector import AT_STEP
from lab.faults.orders import LAYER
from lab.faults.schedule import (
    DEGRADING,
    DESTROYED_BEFORE,
    DESTRUCTIVE,
    IN_TURN,
    OF_PULL,
    BrokerFault,
    DrawnTrigger,
    DynamoDbFault,
    FaultKind,
    NetworkFault,
    PullFault,
    TriggerFault,
    draw,
    draw_run,
)
from lab.servers.dynamodb_proxy import MisbehaviourKind
from mirrorless.protocol import hooks

SCHEDULES = [draw(seed, records=1_000) for seed in range(1, SEEDS + 1)]
SAMPLE = (2, 3)
"""Of `make sample`."""
PULL_ALONE = {*get_args(PullFault), *get_args(TriggerFault)}


def test_a_seed_draws_the_same_schedule_each_time() -> None:
    assert [draw(seed, records=1_000) for seed in range(1, SEEDS + 1)] == SCHEDULES


def test_a_complete_soak_has_several_faults_of_each_kind() -> None:
    drawn = Counter(fault.kind for schedule in SCHEDULES for fault in schedule.faults)

    assert drawn.keys() == set(get_args(FaultKind)) - set(get_args(BrokerFault)) - PULL_ALONE
    assert min(drawn.values()) >= 3


def test_clusters_of_three_brokers_have_a_fault_of_brokers_in_each_schedule_and_others_have_none() -> None:
    several = [draw(seed, records=1_000, brokers=3) for seed in range(1, SEEDS + 1)]
    kinds = [{fault.kind for fault in schedule.faults} & set(get_args(BrokerFault)) for schedule in several]

    assert all(kinds)
    assert set().union(*kinds) == set(get_args(BrokerFault))


def test_a_schedule_destroys_one_topic_at_most_and_leaves_records_to_follow() -> None:
    destroyed = [[fault.at for fault in schedule.faults if fault.kind in DESTRUCTIVE] for schedule in SCHEDULES]

    assert max(map(len, destroyed)) == 1
    assert max(at for each in destroyed for at in each) <= DESTROYED_BEFORE


def test_every_kind_that_happens_at_a_step_has_its_order() -> None:
    assert {kind for kind in get_args(FaultKind) if kind.endswith("at step")} == AT_STEP.keys()


def test_the_sample_of_make_test_has_faults_of_the_network_and_of_dynamodb() -> None:
    drawn = {fault.kind for seed in SAMPLE for topic in draw_run(seed, records=6_500) for fault in topic.faults}

    assert drawn & set(get_args(NetworkFault))
    assert len(drawn & set(get_args(DynamoDbFault))) >= 2


def test_twelve_seeds_in_a_row_have_every_degradation() -> None:
    for first in range(0, SEEDS - len(DEGRADING), 7):
        drawn = {fault.kind for schedule in SCHEDULES[first : first + len(DEGRADING)] for fault in schedule.faults}

        assert drawn >= set(DEGRADING)


def test_every_fault_of_dynamodb_is_a_misbehaviour_of_its_own() -> None:
    assert MISBEHAVIOURS.keys() == set(get_args(DynamoDbFault))
    assert sorted(MISBEHAVIOURS.values()) == sorted(get_args(MisbehaviourKind))


def test_a_complete_soak_has_as_many_runs_of_each_trigger_and_the_sample_has_two_with_pull() -> None:
    runs = [draw_run(seed, records=1_000) for seed in range(1, SEEDS + 1)]
    triggers = [tuple(topic.trigger for topic in topics) for topics in runs]

    assert Counter(triggers) == dict.fromkeys(
        [("mapping",), ("schedule",), ("change",), ("mapping", "schedule")], SEEDS // len(IN_TURN)
    )
    assert [triggers[seed - 1] for seed in SAMPLE] == [("schedule",), ("mapping", "schedule")]


def test_topics_that_pull_reads_have_all_faults_but_those_of_a_mapping_and_its_own_in_their_place() -> None:
    scheduled = [draw(seed, records=1_000, trigger="schedule") for seed in range(1, SEEDS + 1)]
    drawn = Counter(fault.kind for schedule in scheduled for fault in schedule.faults)

    assert drawn.keys() == (
        set(get_args(FaultKind)) - set(get_args(BrokerFault)) - OF_PULL.keys() - set(get_args(TriggerFault))
    )
    assert min(drawn.values()) >= 3
    assert {schedule.continuous for schedule in scheduled} == {True, False}
    for mapped, one in zip(SCHEDULES, scheduled, strict=True):
        assert [fault.at for fault in one.faults] == [fault.at for fault in mapped.faults]


def test_a_topic_whose_trigger_changes_does_so_there_and_back_and_loses_no_remote_topic() -> None:
    for seed in range(1, SEEDS + 1):
        kinds = Counter(fault.kind for fault in draw(seed, records=1_000, trigger="change").faults)

        assert 2 <= kinds["change trigger"] <= 4
        assert not kinds.keys() & DESTRUCTIVE


@pytest.mark.parametrize("trigger", get_args(DrawnTrigger))
def test_a_seed_draws_the_same_schedule_of_each_trigger_each_time(trigger: DrawnTrigger) -> None:
    assert draw(5, records=1_000, trigger=trigger) == draw(5, records=1_000, trigger=trigger)


def test_a_minute_of_pull_is_quickened_where_it_is_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The names are those of the modules, and the proportions stay."""
    monkeypatch.setenv("MIRRORLESS_FAULTS", str(tmp_path))
    monkeypatch.setenv("MIRRORLESS_FUNCTION", "json")
    monkeypatch.setattr("time.time_ns", time.time_ns)
    for name in ("time", "monotonic_ns", "monotonic"):
        monkeypatch.setattr(time, name, getattr(time, name))
    monkeypatch.setattr(hooks, "observers", [])
    layer = runpy.run_path(str(LAYER / "mirrorless_faults.py"))
    names = [(name, each) for name, times in layer["TIMES"].items() for each in times]
    before = {(name, each): getattr(importlib.import_module(name), each) for name, each in names}
    for name, each in names:
        monkeypatch.setattr(f"{name}.{each}", before[name, each])
    monkeypatch.setattr("mirrorless.pull.followed_lanes.TOPICS_SECONDS", 60.0)
    monkeypatch.setattr("mirrorless.pull.gathering.BATCH_RECORDS", 20_000)

    layer["quicken"](10.0)

    found = {(name, each): getattr(importlib.import_module(name), each) for name, each in names}
    assert {key: type(value)(value * 6) for key, value in found.items()} == pytest.approx(before, rel=1e-3)
    assert found["mirrorless.pull.shard_lease", "TERM_MS"] == 10_000
