"""The drills: a group that moves, the operator of a soak, changes of triggers, and the page of a soak."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Producer

from lab.audit.audit import TopicAudit
from lab.audit.log_changes import ResetPoint
from lab.cloud import FlowMapping, Lab, function_name
from lab.drills.demo import work_is_over
from lab.drills.group_move import Application, ClusterSide, GroupFindings, has_arrived, judge
from lab.drills.lane_operator import LaneOperator, UndocumentedStop, UnnoticedLoss
from lab.drills.soak import RunResult, report, run_together
from lab.drills.soak_topic import SoakTopic
from lab.faults.schedule import FaultKind, PlannedFault
from lab.faults.topic_changes import ChangedTopic
from lab.functions.function import LambdaFunction
from mirrorless.adapters.aws.keys import read_keys
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.naming import pull_schedule
from mirrorless.flow.settings import control_settings, decode_settings
from mirrorless.lanes.operator_actions import advice
from mirrorless.protocol.log_parting import parted_stop, until_stop
from tests.support.chains import LANE, MemoryChains, run
from tests.support.commands import replication_yaml
from tests.support.mock_broker import MockBroker


def ended(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


@pytest.mark.parametrize(
    ("work", "over"),
    [
        ([ended(), Future()], False),
        ([ended(), ended()], True),
        ([Future(), ended(TimeoutError("the source takes no records"))], True),
    ],
    ids=["some of it runs", "all has ended", "some failed though the rest runs for ever"],
)
def test_work_is_over_when_all_of_it_has_ended_or_some_has_failed(work: list[Future[None]], *, over: bool) -> None:
    assert work_is_over(work, seconds=0.0) is over


# Upstream 0, 1, 5 stand at 10, 11, 13 downstream; 7 did not arrive, and 14 is a stranger.
AUDIT = TopicAudit(rows=[], upstream={0: [0, 1, 5, 7]}, upstream_of={0: {10: 0, 11: 1, 13: 5}})
PLACE = ("orders", 0)


@pytest.mark.parametrize(
    ("on_source", "on_target", "reread", "skipped"),
    [
        ([0, 1, 5, 7], [], 0, 0),
        ([0, 7], [11, 13], 0, 0),
        ([0, 1, 7], [11, 13], 1, 0),
        ([0, 0, 0, 1, 5, 7], [], 2, 0),
        ([0, 7], [11], 0, 1),
        ([], [], 0, 4),
        ([0, 1, 5, 7], [14], 1, 0),
    ],
)
def test_a_record_read_twice_or_never_is_counted_on_whichever_side(
    on_source: list[int], on_target: list[int], reread: int, skipped: int
) -> None:
    found = judge(
        {"orders": AUDIT},
        Counter((PLACE, offset) for offset in on_source),
        Counter((PLACE, offset) for offset in on_target),
    )

    assert found == {"records": 4, "reread": reread, "skipped": skipped}


@pytest.mark.parametrize(
    ("reread", "skipped", "strays", "clean"), [(0, 0, 0, True), (1, 0, 0, False), (0, 1, 0, False), (0, 0, 1, False)]
)
def test_a_group_is_clean_when_each_record_was_read_once_and_it_was_given_nothing_else(
    *, reread: int, skipped: int, strays: int, clean: bool
) -> None:
    assert GroupFindings(records=4, reread=reread, skipped=skipped, strays=strays, read_on={}).clean is clean


@pytest.mark.parametrize(
    ("side", "left_at", "here", "arrived"),
    [
        # It left right behind the record at 223, where the marker stands; downstream that is 154, a marker as well.
        ("target", 224, 154, True),
        ("target", 224, 155, True),
        ("target", 224, 153, False),
        ("target", 267, 155, False),
        ("target", 267, 156, True),
        ("target", 400, 258, False),
        ("source", 154, 224, True),
        ("source", 155, 224, True),
        ("source", 156, 224, False),
        ("source", 156, 267, True),
    ],
)
def test_a_group_has_arrived_when_only_markers_lie_between_where_it_is_and_where_it_left(
    side: ClusterSide, left_at: int, here: int, *, arrived: bool
) -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 224, (156, 86, 68)), run(224, 369, (266, 155, 103))])
    assert has_arrived(chains, side, LANE, left_at=left_at, here=here) is arrived


OFFSET_FETCH = 9


@pytest.mark.parametrize("refusal", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_a_member_reads_though_the_coordinator_that_it_asks_for_its_offsets_is_being_moved(refusal: int) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders", 2)
        bootstrap = broker.config["bootstrap.servers"]
        producer = Producer({"bootstrap.servers": bootstrap})
        for partition in (0, 1):
            producer.produce("orders", b"one", partition=partition)
        assert not producer.flush(10)
        application, end = Application("shop"), time.monotonic() + 30
        broker.answer_next(OFFSET_FETCH, (refusal, 0))

        application.read(bootstrap, ["orders"], until=lambda ends: len(ends) == 2 or time.monotonic() > end)

    assert application.read_count(bootstrap) == 2


@pytest.mark.parametrize("reason", ["refused", "contradiction", "held"])
def test_a_lane_that_stops_for_another_reason_than_the_documented_one_is_not_reset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: Any
) -> None:
    stop = Stop(reason=reason, upstream_offset=4, detail="why", at=1)
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    monkeypatch.setattr(LaneOperator, "_reset", lambda *_: pytest.fail("it was reset"))

    with pytest.raises(UndocumentedStop, match=f"stopped as '{reason}': why"):
        operator(tmp_path).attend()


def test_a_look_that_finds_no_stopped_lane_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {})

    assert operator(tmp_path).attend() is False


MAPPING = FlowMapping(uuid="uuid", flow="source->target", topic="orders", group_id="group")


def operator(
    folder: Path, *, mapping: FlowMapping | None = MAPPING, kind: FaultKind = "re-create remote topic"
) -> LaneOperator:
    """One of a lab in which the refresh finds nothing, and nothing else can be called."""
    return LaneOperator(
        lab=cast("Lab", SimpleNamespace(refresh_topics=lambda *_: None, check_lanes=lambda *_: None)),
        flow=cast("Flow", SimpleNamespace(name="source->target")),
        topic="orders",
        mapping=mapping,
        fault=PlannedFault(at=0.5, kind=kind, step="planned", seconds=1.0),
        remote_topic=ChangedTopic(bootstrap="127.0.0.1:1", topic="source.orders"),
        folder=folder,
    )


def test_a_scheduled_lane_is_reset_without_a_mapping_or_its_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop(reason="broken", upstream_offset=4, detail="why", at=1)
    commands: list[str] = []

    def run(_: LaneOperator, *words: str) -> dict[str, Any]:
        commands.append(shlex.join(words))
        return {"position": 10}

    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    monkeypatch.setattr(LaneOperator, "_run", run)
    monkeypatch.setattr("lab.drills.lane_operator.ends", lambda *_: {2: 7})
    scheduled = operator(tmp_path, mapping=None)

    assert scheduled.attend()

    order = "lanes reset 'source->target' orders 2 --reason 're-create remote topic' --to"
    assert commands == [f"{order} earliest", f"{order} 0 --execute"]
    assert scheduled.resets == {2: ResetPoint(upstream=0, downstream=7, kept=False)}


@pytest.mark.parametrize("mapping", [None, MAPPING])
def test_what_is_printed_for_a_source_that_lost_its_end_is_executed_as_it_is_and_the_second_command_in_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mapping: FlowMapping | None
) -> None:
    lane = Lane(FlowName("source", "target"), "orders", 2)
    left = [
        parted_stop(lane, 22, position=45, now=1, replicated=((30, 45),)),
        until_stop(lane, ((30, 45),), now=1),
    ]
    position = iter([29, 30])
    commands, moved = list[str](), list[int]()

    def run(_: LaneOperator, *words: str, codes: Any = ()) -> dict[str, Any]:  # noqa: ARG001 -- as the real one
        commands.append(shlex.join(words))
        shown = {"topic": "orders", "partition": 2, "reason": "truncated", "what_to_do": advice(lane, left[0])}
        return {"stopped": [shown]}

    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: left[0]})
    monkeypatch.setattr(LaneOperator, "_position", lambda *_: next(position))
    monkeypatch.setattr(LaneOperator, "_run", run)
    monkeypatch.setattr(LaneOperator, "_switch", lambda *_, **__: None)
    monkeypatch.setattr(LaneOperator, "_set_offset", lambda _, __, ___, to: moved.append(to))
    monkeypatch.setattr("lab.drills.lane_operator.ends", lambda *_: {2: 9 - len(left)})
    attending = operator(tmp_path, mapping=mapping, kind="source outgrows its loss")

    assert attending.attend()
    del left[0]
    assert attending.attend()
    attending._attend()  # as the watch does
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {})
    assert attending.attend(), "what the watch reset is on its way, too"
    assert not attending.attend()

    listed = "lanes stopped 'source->target'"
    order = "lanes reset 'source->target' orders 2 --to {} --reason 'see status' --execute"
    assert commands == [listed, order.format("22 --until 30"), listed, order.format(45)]
    assert moved == ([] if mapping is None else [22, 45])
    assert attending.resets == {2: ResetPoint(upstream=45, downstream=8, kept=True, earlier=(7,))}


def test_an_order_that_is_refused_until_a_run_in_doubt_is_settled_is_given_again_behind_the_next_lane_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks: list[object] = []

    def reset(_: LaneOperator) -> bool:
        if len(checks) < 2:
            raise Retriable("the newest run is in doubt")
        return True

    monkeypatch.setattr(LaneOperator, "_reset_stopped", reset)
    monkeypatch.setattr("lab.drills.lane_operator.SETTLED_WITHIN_SECONDS", 5.0)
    attending = operator(tmp_path, kind="source loses its end")
    attending.lab.check_lanes = lambda *_: checks.append(1)  # type: ignore[method-assign]

    assert attending.attend()


def test_a_stop_without_the_place_at_which_the_source_lost_its_end_is_no_finding_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop(reason="contradiction", upstream_offset=4, detail="why", at=1)
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    attending = operator(tmp_path, kind="source loses its end")

    assert attending.attend()

    monkeypatch.setattr("lab.drills.lane_operator.NAMED_WITHIN_SECONDS", 0.0)
    with pytest.raises(UndocumentedStop, match="stopped as 'contradiction': why"):
        attending.attend()


def test_lanes_that_go_on_although_their_source_lost_what_was_copied_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {})
    monkeypatch.setattr("lab.drills.lane_operator.STOPPED_WITHIN_SECONDS", 0.0)

    with pytest.raises(UnnoticedLoss, match=r"partitions \[2\] go on"):
        operator(tmp_path, kind="source loses its end").await_stopped([2])


FLOW = FlowName("a", "b")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab whose schedules are made and do not run, without servers."""
    lab = Lab(
        configuration=load(replication_yaml("a->b: {topics: [orders, bills], schedule: {shards: 1}}")), folder=tmp_path
    )
    lab.scheduled.deploy(lab.flows, variables={})
    return lab


def test_a_topic_leaves_the_template_and_its_schedules_follow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = [FlowMapping(uuid=topic, flow="a->b", topic=topic, group_id=topic) for topic in ("orders", "bills")]
    gone: list[str] = []
    monkeypatch.setattr(Lab, "flow_mappings", mapped)
    monkeypatch.setattr(Lab, "unmap_topic", lambda _, mapping: gone.append(mapping.topic))

    lab.change_triggers(FLOW, {"orders": "schedule"})

    assert gone == ["orders"]
    assert lab.flows[0].template_topics == ("bills",)
    refresh = control_settings(json.loads(lab.scheduled.timers["mirrorless-refresh-topics-a_b"].event))
    assert refresh.triggers.of("orders") == "schedule"


def test_a_topic_does_not_come_back_into_the_template(lab: Lab) -> None:
    """As the guard refuses it: its mapping would go on by old offsets."""
    lab.change_triggers(FLOW, {"orders": "schedule"})

    with pytest.raises(ConfigurationError, match="orders would be mapped by the template again"):
        lab.change_triggers(FLOW, {})
    lab.change_triggers(FLOW, {"orders": "mapping"})

    assert lab.flows[0].template_topics == ("bills",)


def test_a_rotated_key_is_there_before_all_functions_have_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way goes on by the version before, which stays what it was."""
    rule = "transforms: [{topics: [orders], key: {hmac: pii}}]"
    text = replication_yaml(
        f"a->b: {{topics: [orders], schedule: {{shards: 1}}, {rule}}}", rest="keys: {pii: {secret: s}}"
    )
    lab = Lab(configuration=load(text), folder=tmp_path)
    lab.keys.make("pii", 1)
    lab.scheduled.deploy(lab.flows, variables={})
    (flow,) = lab.flows
    forwarder = lab.functions[function_name(flow)] = lab._function(flow)
    recycled = list[str]()
    monkeypatch.setattr(LambdaFunction, "recycle", lambda each: recycled.append(each.name))
    monkeypatch.setenv("MIRRORLESS_KEYS", forwarder.variables["MIRRORLESS_KEYS"])
    before = read_keys(decode_settings(forwarder.variables["MIRRORLESS_FLOW"]).keys)["pii"]

    lab.rotate_key(FLOW, "pii")

    after = read_keys(decode_settings(forwarder.variables["MIRRORLESS_FLOW"]).keys)["pii"]
    assert recycled == [forwarder.name]
    assert (before.version, after.version) == (1, 2)
    assert lab.keys.material("pii") == before.material | after.material
    assert before.material[1] != after.material[2]
    pull = json.loads(lab.scheduled.timers[pull_schedule(FLOW, 0)].event)
    assert pull["flow"]["keys"]["pii"]["version"] == 2


@pytest.mark.parametrize("failure", [KeyboardInterrupt, TimeoutError])
def test_a_soak_that_is_interrupted_or_has_a_topic_that_failed_waits_for_no_other_topic(
    failure: type[BaseException],
) -> None:
    """Ctrl-C waited for the run's deadline of four minutes."""
    stopped, ended = threading.Event(), list[bool]()

    def fail(_: float) -> None:
        raise failure

    topics = [
        SimpleNamespace(run=lambda _: ended.append(stopped.wait(20)), stop=stopped.set),
        SimpleNamespace(run=fail, stop=lambda: None),
    ]

    with pytest.raises(failure):
        run_together(cast("list[SoakTopic]", topics), 0.0)

    assert ended == [True]


CLEAN: Any = {"lost": 0, "duplicated": 0, "reordered": 0, "different": 0, "mistranslated": 0}


def test_a_fault_counts_whatever_the_trigger_and_the_step_it_hit() -> None:
    result = RunResult(
        seed=1,
        trigger="mixed",
        records=7,
        faults={"mapping": {"kill at step planned": 2, "rebalance": 1}, "schedule": {"kill at step settled": 3}},
        lanes_reset=0,
        broker_restarts=0,
        cold_starts=0,
        seconds=1.0,
        rule="sealed",
        planted=1_203,
        **CLEAN,
    )

    page = report([result], "4.1.1")

    assert "1 schedules, 7 records, 6 faults: 0 lost" in page
    assert "1 schedules have a rule for a topic: 0 leave records out" in page
    assert "1 encrypt whole values. 1,203 of their records had" in page
