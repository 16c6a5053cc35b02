"""The soak's schedules: reproducible, of every kind, and with one destroyed topic at most."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from lab.drills.soak import SEEDS
from lab.faults.degradations import MISBEHAVIOURS
from lab.faults.injector import AT_STEP
from lab.faults.schedule import (
    DEGRADING,
    DESTROYED_BEFORE,
    DESTRUCTIVE,
    BrokerFault,
    DynamoDbFault,
    FaultKind,
    NetworkFault,
    draw,
)
from lab.servers.dynamodb_proxy import MisbehaviourKind

SCHEDULES = [draw(seed, records=1_000) for seed in range(1, SEEDS + 1)]


def test_a_seed_draws_the_same_schedule_each_time() -> None:
    assert [draw(seed, records=1_000) for seed in range(1, SEEDS + 1)] == SCHEDULES


def test_a_complete_soak_has_several_faults_of_each_kind() -> None:
    drawn = Counter(fault.kind for schedule in SCHEDULES for fault in schedule.faults)

    assert drawn.keys() == set(get_args(FaultKind)) - set(get_args(BrokerFault))
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
    drawn = {fault.kind for schedule in SCHEDULES[:4] for fault in schedule.faults}

    assert len(drawn & set(get_args(NetworkFault))) >= 2
    assert len(drawn & set(get_args(DynamoDbFault))) >= 2


def test_twelve_seeds_in_a_row_have_every_degradation() -> None:
    for first in range(0, SEEDS - len(DEGRADING), 7):
        drawn = {fault.kind for schedule in SCHEDULES[first : first + len(DEGRADING)] for fault in schedule.faults}

        assert drawn >= set(DEGRADING)


def test_every_fault_of_dynamodb_is_a_misbehaviour_of_its_own() -> None:
    assert MISBEHAVIOURS.keys() == set(get_args(DynamoDbFault))
    assert sorted(MISBEHAVIOURS.values()) == sorted(get_args(MisbehaviourKind))
