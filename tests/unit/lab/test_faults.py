"""Planned faults, orders to functions, and links and a DynamoDB that work worse for a while."""

from __future__ import annotations

import importlib
import runpy
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from lab.cloud import Lab
from lab.drills.soak import SEEDS
from lab.faults.injector import AT_STEP, FARTHEST_MS, MISBEHAVIOURS, NARROWEST, Degradations
from lab.faults.schedule import (
    DEGRADING,
    DESTROYED_BEFORE,
    DESTRUCTIVE,
    FEW,
    IN_TURN,
    OF_PULL,
    OF_SOURCE,
    WITH_RULES,
    BrokerFault,
    DrawnTrigger,
    DynamoDbFault,
    FaultKind,
    KeyFault,
    NetworkFault,
    PlannedFault,
    PullFault,
    TriggerFault,
    draw,
    draw_run,
)
from lab.functions.fault_orders import LAYER, FaultOrders
from lab.servers.dynamodb import DynamoDbProxy, MisbehaviourKind
from lab.servers.process import free_port
from lab.servers.proxy import NetworkLink
from mirrorless.chain.lane import FlowName
from mirrorless.protocol import hooks

SCHEDULES = [draw(seed, records=1_000) for seed in range(1, SEEDS + 1)]
SAMPLE = (2, 3)
"""Of `make sample`."""
PULL_ALONE = {*get_args(PullFault), *get_args(TriggerFault)}
WITH_A_RULE = set(get_args(KeyFault))


def test_a_complete_soak_has_several_faults_of_each_kind() -> None:
    drawn = Counter(fault.kind for schedule in SCHEDULES for fault in schedule.faults)

    assert drawn.keys() == set(get_args(FaultKind)) - set(get_args(BrokerFault)) - PULL_ALONE - WITH_A_RULE
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


@pytest.mark.parametrize("trigger", ["mapping", "schedule"])
def test_faults_that_are_always_there_leave_room_for_few_others_and_destructive_ones_take_turns(
    trigger: DrawnTrigger,
) -> None:
    always: tuple[FaultKind, ...] = (*OF_SOURCE, "foreign producer")
    drawn = [draw(seed, records=1_000, brokers=3, trigger=trigger, always=always) for seed in range(1, SEEDS + 1)]
    kinds = [Counter(fault.kind for fault in each.faults) for each in drawn]

    assert all(sum(each.values()) == FEW + 2 and each["foreign producer"] == 1 for each in kinds)
    assert Counter(tuple(sorted(each.keys() & DESTRUCTIVE)) for each in kinds) == {
        (kind,): SEEDS // 2 for kind in OF_SOURCE
    }


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
        set(get_args(FaultKind)) - {*get_args(BrokerFault), *OF_PULL, *get_args(TriggerFault)} - WITH_A_RULE
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


def test_a_third_of_all_runs_has_one_topic_with_a_rule_whose_key_is_rotated_and_is_else_as_it_would_be() -> None:
    runs = [draw_run(seed, records=1_000) for seed in range(1, SEEDS + 1)]
    ruled = [topic for topics in runs for topic in topics if topic.rule]

    assert [bool(sum(bool(topic.rule) for topic in topics)) for topics in runs] == [
        seed % WITH_RULES == 0 for seed in range(1, SEEDS + 1)
    ]
    assert any(seed % WITH_RULES == 0 for seed in SAMPLE)
    assert {(topic.trigger, topic.rule) for topic in ruled} == set(
        product(get_args(DrawnTrigger), ("masked", "sealed"))
    )
    for seed, plain in enumerate(runs, 1):
        forced = draw_run(seed, records=1_000, rules=True)
        kinds = Counter(fault.kind for topic in forced for fault in topic.faults)

        assert (kinds["rotate key"], [bool(topic.rule) for topic in forced].count(True)) == (1, 1)
        assert all(topic.people for topic in forced)
        if seed % WITH_RULES:
            others = [tuple(each for each in topic.faults if each.kind != "rotate key") for topic in forced]
            assert plain == tuple(
                replace(topic, rule="", people=False, faults=left) for topic, left in zip(forced, others, strict=True)
            )


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
    monkeypatch.setattr("mirrorless.copy.pull.TOPICS_SECONDS", 60.0)
    monkeypatch.setattr("mirrorless.copy.gathering.BATCH_RECORDS", 20_000)

    layer["quicken"](10.0)

    found = {(name, each): getattr(importlib.import_module(name), each) for name, each in names}
    assert {key: type(value)(value * 6) for key, value in found.items()} == pytest.approx(before, rel=1e-3)
    assert found["mirrorless.copy.shards", "TERM_MS"] == 10_000


FLOW = FlowName("east", "west")


@pytest.fixture
def links() -> Iterator[dict[str, NetworkLink]]:
    opened = {alias: NetworkLink({free_port(): free_port()}) for alias in (FLOW.source, FLOW.target)}
    for link in opened.values():
        link.open()
    yield opened
    for link in opened.values():
        link.close()


@pytest.fixture
def proxy() -> DynamoDbProxy:
    return DynamoDbProxy(free_port(), free_port())


@pytest.fixture
def degradations(links: dict[str, NetworkLink], proxy: DynamoDbProxy) -> Degradations:
    clusters = {alias: SimpleNamespace(link=link) for alias, link in links.items()}
    lab: Any = SimpleNamespace(clusters=clusters, dynamodb=SimpleNamespace(proxy=proxy))
    return Degradations(lab=cast("Lab", lab), flow=FLOW)


def fault(kind: FaultKind, *, part: float = 0.5, seconds: float = 0.2) -> PlannedFault:
    return PlannedFault(at=0.0, kind=kind, step="planned", seconds=seconds, part=part)


def properties(link: NetworkLink) -> tuple[float, float, float | None, bool, bool]:
    return link.round_trip_ms, link.jitter_ms, link.bytes_per_second, link.refusing, link.carrying


UNDEGRADED = (0.0, 0.0, None, False, True)


@pytest.mark.parametrize(
    ("kind", "part", "meanwhile"),
    [
        ("distant source", 1.0, (FARTHEST_MS, FARTHEST_MS / 4, None, False, True)),
        ("distant target", 0.5, (FARTHEST_MS / 2, FARTHEST_MS / 8, None, False, True)),
        ("narrow link to source", 0.0, (0.0, 0.0, NARROWEST, False, True)),
        ("narrow link to target", 1.0, (0.0, 0.0, 10 * NARROWEST, False, True)),
        ("cut link to source", 0.4, (0.0, 0.0, None, False, False)),
        ("cut link to target", 0.6, (0.0, 0.0, None, True, True)),
    ],
)
def test_a_link_is_bad_for_its_seconds_and_the_other_is_not(
    degradations: Degradations,
    links: dict[str, NetworkLink],
    kind: FaultKind,
    part: float,
    meanwhile: tuple[float, float, float | None, bool, bool],
) -> None:
    here, there = (FLOW.source, FLOW.target) if kind.endswith("source") else (FLOW.target, FLOW.source)
    planned = fault(kind, part=part)
    carried_out = threading.Thread(target=degradations.carry_out, args=(planned,))

    began = time.monotonic()
    carried_out.start()
    seen = set()
    while carried_out.is_alive():
        seen.add(properties(links[here]))
        assert properties(links[there]) == UNDEGRADED
        carried_out.join(0.01)

    assert meanwhile in seen
    assert time.monotonic() - began >= planned.seconds
    assert properties(links[here]) == UNDEGRADED


def test_faults_of_one_link_come_one_after_the_other(degradations: Degradations, links: dict[str, NetworkLink]) -> None:
    """The first to end would undo what the second has begun."""
    faults = [fault("distant target", part=0.5), fault("distant target", part=1.0)]
    threads = [threading.Thread(target=degradations.carry_out, args=(each,)) for each in faults]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert time.monotonic() - began >= sum(each.seconds for each in faults)
    assert properties(links[FLOW.target]) == UNDEGRADED


@pytest.mark.parametrize("kind", get_args(DynamoDbFault))
def test_dynamodb_misbehaves_for_its_seconds(degradations: Degradations, proxy: DynamoDbProxy, kind: FaultKind) -> None:
    carried_out = threading.Thread(target=degradations.carry_out, args=(fault(kind, seconds=0.1),))

    carried_out.start()
    seen = False
    while carried_out.is_alive():
        seen = seen or proxy.draw("BatchGetItem") is not None
        carried_out.join(0.001)

    assert seen
    assert [proxy.draw("BatchGetItem") for _ in range(20)] == [None] * 20


def test_an_order_is_awaited_until_it_is_carried_out_or_all_is_over_or_the_time_is(tmp_path: Path) -> None:
    orders, over = FaultOrders(tmp_path), threading.Event()
    order = orders.order("kill", "produced")
    with pytest.raises(TimeoutError, match=r"no environment carried out kill\.produced\.0 within 0 s"):
        orders.await_claimed(order, seconds=0, over=over)

    over.set()
    assert not orders.await_claimed(order, seconds=60, over=over)

    (tmp_path / order).rename(tmp_path / "claimed" / order)
    assert orders.await_claimed(order, seconds=60, over=over)
