"""Faults under the function out of its bundle: it dies, sleeps, is outlived; servers go; records come again.

One lab for all of it: two real clusters, DynamoDB Local, and two flows that differ in what a deployment may choose.
Forth: provisioned pollers, partial batch response, and transactions that the broker ends soon. Back: on-demand pollers,
no partial batch response, and transactions that outlive an invocation, so that a zombie still has its own open when it
wakes. The clusters differ in their version: each is the source of one flow and the target of the other.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from lab.audit.audit import wait_until_replicated
from lab.cloud import FlowMapping, Lab, create_topics, function_name
from lab.esm.behaviour import LabBehaviour
from lab.functions.environment import Environment
from lab.functions.function import LambdaFunction
from lab.servers.artifacts import DEFAULT_KAFKA
from lab.servers.process import Server
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.replicator import flow_replicator
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import RUNNING, LaneState, Lease, LeftOut
from mirrorless.clock import deadline_in, now_ms
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.flow.settings import decode_settings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import STEPS, Step
from tests.support.chains import every_run
from tests.support.kafka_upgrade import features, raise_features, roll
from tests.support.readback import assert_mirrored, await_settled, links, read_topic, unsettled
from tests.support.topics import transactional
from tests.support.tries import some_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

PARTITIONS = 2


@dataclass(slots=True, kw_only=True)
class Stage:
    """A fresh topic of a flow, mapped to the flow's real function."""

    lab: Lab
    flow: Flow
    mapping: FlowMapping
    _produced: int = 0
    _producer: Producer = field(init=False)

    @classmethod
    @contextmanager
    def open(cls, lab: Lab, name: str) -> Iterator[Stage]:
        """A topic of a flow, mapped. What a failed test has left is taken back."""
        flow, topic = next(each for each in lab.flows if str(each.name) == name), f"orders-{uuid4().hex[:8]}"
        create_topics(flow.source.bootstrap[0], [NewTopic(topic, PARTITIONS, 1)])
        mapping = lab.map_topic(flow, topic)
        lab.mappings.wait_enabled(mapping.uuid)
        stage = cls(lab=lab, flow=flow, mapping=mapping)
        try:
            yield stage
        finally:
            for order in lab.faults.pending():
                lab.faults.withdraw(order)
            for pid in lab.faults.stopped():
                lab.faults.resume_stopped(pid)
            lab.mappings.release(stage.uuid)
            eventually(lambda: lab.mappings.get(stage.uuid)["State"] == "Enabled", "the mapping settles")
            lab.unmap_topic(mapping)

    def __post_init__(self) -> None:
        """Open the producer, which writes in transactions so that the offsets have gaps."""
        self._producer = transactional(self.source, message_max_bytes=8_000_000)

    # What is where

    @property
    def topic(self) -> str:
        """The source topic."""
        return self.mapping.topic

    @property
    def uuid(self) -> str:
        """The mapping's."""
        return self.mapping.uuid

    @property
    def source(self) -> str:
        """The source cluster's address."""
        return self.flow.source.bootstrap[0]

    @property
    def target(self) -> str:
        """The target cluster's address."""
        return self.flow.target.bootstrap[0]

    @property
    def remote_topic(self) -> str:
        """The topic's name on the target."""
        return self.flow.remote_topic(self.topic)

    @property
    def function(self) -> LambdaFunction:
        """The flow's forwarder."""
        return self.lab.functions[function_name(self.flow)]

    @property
    def chains(self) -> DynamoDbChains:
        """The flow's offset map."""
        return DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map)

    @property
    def orders(self) -> DynamoDbLaneOrders:
        """The operator's hand on the lanes."""
        return DynamoDbLaneOrders(self.lab.dynamodb.client(), self.lab.tables.lanes)

    def lane(self, partition: int) -> Lane:
        """One of the topic's lanes."""
        return Lane(self.flow.name, self.topic, partition)

    def metric(self, name: str) -> int:
        """One of the mapping's counters."""
        return self.lab.mappings.metrics(self.uuid).get(name, 0)

    # What happens

    def produce(self, count: int) -> None:
        """Write `count` visible records, spread over the partitions, around an aborted transaction."""
        for size, commit in ((count // 2, True), (PARTITIONS, False), (count - count // 2, True)):
            self.write([(number % PARTITIONS, b"") for number in range(size)], commit=commit)

    def write(self, places: list[tuple[int, bytes]], *, commit: bool = True) -> None:
        """Write one transaction: for each place its partition, and padding for the value."""
        self._producer.begin_transaction()
        for partition, padding in places:
            number = b"%d" % self._produced
            self._produced += 1
            headers: list[tuple[str, str | bytes | None]] = [("n", number), ("n", None), ("every", bytes(range(256)))]
            self._producer.produce(self.topic, number + padding, number, partition, headers=headers)
        self._producer.flush(30)  # aborted records too must have been written, to leave their gap
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(30)

    def stop_at(self, step: Step) -> Callable[[], int]:
        """Order the next environment to stop at a step; call the result to wait for it and get its pid."""
        before = set(self.lab.faults.stopped())
        order = self.lab.faults.order("stop", step)

        def pid() -> int:
            self.lab.faults.await_claimed(order, seconds=120)
            eventually(lambda: set(self.lab.faults.stopped()) - before, "the environment notes its pid")
            (stopped,) = set(self.lab.faults.stopped()) - before
            eventually(lambda: _is_stopped(stopped), "the environment stops")
            return stopped

        return pid

    def environment(self, pid: int) -> Environment | None:
        """The function's environment of this process; None when it is gone."""
        return next((each for each in self.function.environments if each.pid == pid), None)

    def await_failed_invocation(self) -> None:
        """Wait until an invocation has failed: whatever comes after that is a redelivery."""
        eventually(lambda: self.metric("InvokeError"), "an invocation fails")

    def await_zombie(self, pid: int) -> None:
        """Wait until the invocation of a stopped environment has timed out."""
        eventually(lambda: (it := self.environment(pid)) is not None and it.state == "zombie", f"{pid} is a zombie")

    def await_gone(self, pid: int) -> None:
        """Wait until an environment has come to its end."""
        eventually(lambda: self.environment(pid) is None, f"{pid} ends")

    def await_replicated(self, *, seconds: float = 180.0) -> None:
        """Wait until the mapping has committed everything: all of it was accepted by the function."""
        await_settled(self.source, self.topic)  # a record is counted once the marker of its transaction is written
        wait_until_replicated(self.lab, [self.mapping], deadline=time.monotonic() + seconds)

    # What must hold

    def verify(self) -> None:
        """Once all is replicated: nothing is lost, twice, out of order, different or mistranslated."""
        self.await_replicated()
        source = read_topic(self.source, self.topic)
        await_settled(self.target, self.remote_topic)
        target = read_topic(self.target, self.remote_topic)
        assert sum(map(len, source.values())) > 0
        assert source.keys() == target.keys()
        for partition in source:
            assert_mirrored(self.lane(partition), self.chains, source[partition], target[partition])


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


FORTH, BACK = "us-east->eu-west", "eu-west->us-east"
CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: us-east.example.com:9092, region: us-east-1}
  eu-west: {bootstrap.servers: eu-west.example.com:9092, region: eu-west-1}
defaults:
  topics: [orders]
  mapping: {batch.size: 100, maximum.batching.window.seconds: 0}
flows:
  us-east->eu-west:
    transaction.timeout.ms: 2000
  eu-west->us-east:
    transaction.timeout.ms: 15000
    mapping: {mode: on-demand}
"""
OLDEST = "3.9.1"
"""The last version before Kafka 4, and the oldest that runs here."""
TIMEOUT_SECONDS = 4.0
"""Of an invocation: between the two transaction timeouts."""

SCHEDULES = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::"
    "test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)
REFUSALS = pytest.mark.soak(
    "tests/unit/protocol/test_protocol.py::test_a_refused_record_stops_its_lane_and_no_other",
    "tests/integration/test_flow_faults.py::"
    "test_a_record_that_the_target_refuses_stops_its_lane_while_the_others_of_the_batch_go_on",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(
        configuration=load(CONFIGURATION),
        folder=tmp_path_factory.mktemp("flows"),
        kafka_version=os.environ.get("KAFKA") or DEFAULT_KAFKA,
        kafka_versions={"eu-west": OLDEST},
        behaviour=LabBehaviour(retry_max_s=1.0),
        inject_faults=True,
        control=False,
        zombies=True,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    try:
        lab.start_servers()
        lab.create_topics(1)
        lab.start_flows()
        yield lab
    finally:
        lab.stop()


@pytest.fixture
def stage(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A topic of the flow forth, or of the one that the test names."""
    with Stage.open(lab, getattr(request, "param", FORTH)) as stage:
        yield stage


# The function dies


@pytest.mark.parametrize("step", some_of(STEPS, "prepared", "committed", others=SCHEDULES))
def test_a_function_killed_at_any_step_loses_duplicates_reorders_and_mistranslates_nothing(
    stage: Stage, step: Step
) -> None:
    """A: a record is visible if and only if its run is committed. C: every offset lies in one run. D: order stays.

    SIGKILL right after the step's effect: no exception handler, no abort, no goodbye to the broker.
    """
    order = stage.lab.faults.order("kill", step)
    stage.produce(60)

    stage.lab.faults.await_claimed(order, seconds=30)
    stage.await_failed_invocation()

    stage.verify()


def test_an_idle_environment_killed_while_frozen_costs_nothing(stage: Stage) -> None:
    stage.produce(20)
    stage.await_replicated()

    for environment in stage.function.environments:
        os.kill(environment.pid, signal.SIGKILL)
    stage.produce(20)

    stage.verify()


# An invocation times out, its batch is delivered again, and then the first one wakes up


@pytest.mark.parametrize(
    ("stage", "step", "is_open"),
    [
        pytest.param(BACK, "produced", True, marks=SCHEDULES),
        pytest.param(BACK, "settled", True, id="its transaction is open still"),
        pytest.param(BACK, "prepared", False, id="its run was in doubt, and its successor fenced it"),
        pytest.param(BACK, "committed", False, marks=SCHEDULES),
        pytest.param(FORTH, "settled", None, marks=SCHEDULES),
        pytest.param(FORTH, "prepared", None, id="the broker ended its transaction"),
    ],
    indirect=["stage"],
)
def test_a_zombie_that_resumes_behind_its_successor_cannot_commit_and_changes_nothing(
    stage: Stage, step: Step, *, is_open: bool | None
) -> None:
    """E. Its successor's runs stand at the keys of the chain under which it would have to prepare its own.

    A run in doubt is fenced, and the target asked what became of it, before the successor prepares.
    """
    pid = _outlived_by_its_successor(stage, step)
    if is_open is None:
        await_settled(stage.target, stage.remote_topic)
    else:
        assert bool(unsettled(stage.target, stage.remote_topic)) is is_open
    successors = _chain(stage)

    stage.lab.faults.resume_stopped(pid)
    stage.await_gone(pid)

    stage.verify()
    assert _chain(stage) == successors, "the zombie changed the chain"


@pytest.mark.parametrize("step", some_of(("settled", "prepared"), "prepared", others=SCHEDULES))
@pytest.mark.parametrize("stage", [BACK], indirect=True)
def test_a_zombie_that_races_its_successor_commits_or_is_fenced_and_never_both(stage: Stage, step: Step) -> None:
    """E. It wakes the moment its invocation has timed out: who is first is open, that there is one record is not."""
    stopped = stage.stop_at(step)
    stage.produce(60)
    pid = stopped()
    stage.await_zombie(pid)

    stage.lab.faults.resume_stopped(pid)
    stage.await_gone(pid)

    stage.verify()


def _outlived_by_its_successor(stage: Stage, step: Step) -> int:
    """An environment that stopped at a step, timed out, and whose whole batch another one has replicated since."""
    stopped = stage.stop_at(step)
    stage.produce(60)
    pid = stopped()
    stage.await_zombie(pid)
    stage.await_replicated()
    return pid


def _chain(stage: Stage) -> list[tuple[int, int, str, str]]:
    runs = [run for partition in range(PARTITIONS) for run in links(stage.lane(partition), stage.chains)]
    assert runs
    return [(run.position, run.next, run.attempt, run.state) for run in runs]


# The environment's clock steps, or stands still


def test_a_wall_clock_that_steps_an_hour_within_a_batch_loses_and_duplicates_nothing(stage: Stage) -> None:
    """Lambda's deadline is over at once; the clock stays as it is for the batches that this environment gets later."""
    order = stage.lab.faults.order("forward", "produced")
    stage.produce(60)
    stage.lab.faults.await_claimed(order, seconds=30)
    stage.await_replicated()
    stage.produce(40)

    stage.verify()
    assert stage.lab.mappings.metrics(stage.uuid)["FailedInvoke"], "its deadline was over"
    stage.function.recycle()  # the next test begins with the machine's own clock


def test_hours_in_which_an_environment_was_frozen_within_a_batch_lose_and_duplicate_nothing(stage: Stage) -> None:
    """Its memory of positions and states is hours old by both clocks, and its transaction has long been aborted."""
    order = stage.lab.faults.order("freeze", "settled")
    stage.produce(60)
    stage.lab.faults.await_claimed(order, seconds=30)
    eventually(stage.lab.faults.stopped, "the environment notes its pid")
    (pid,) = stage.lab.faults.stopped()
    stage.await_zombie(pid)
    stage.await_replicated()

    stage.lab.faults.resume_stopped(pid)
    stage.await_gone(pid)
    stage.produce(40)

    stage.verify()


# A server that a batch needs is away just then


@pytest.mark.parametrize("step", some_of(("produced", "prepared", "committed"), "committed", others=SCHEDULES))
def test_a_target_broker_killed_in_the_middle_of_a_batch_comes_back_to_a_batch_replicated_once(
    stage: Stage, step: Step
) -> None:
    """A, C: what the client says of its transaction then is not believed; the chain and the target decide."""
    (target,) = stage.lab.clusters[stage.flow.name.target].brokers
    _kill_at(stage, step, target)

    stage.verify()


def test_a_source_broker_killed_in_the_middle_of_a_batch_delivers_it_again_and_it_is_replicated_once(
    stage: Stage,
) -> None:
    """B: the batch was accepted and never acknowledged, so it comes again below the position."""
    (source,) = stage.lab.clusters[stage.flow.name.source].brokers
    _kill_at(stage, "settled", source)

    _await_back(source)

    stage.verify()


@pytest.mark.parametrize("step", some_of(("planned", "settled", "committed"), "committed", others=SCHEDULES))
def test_records_wait_while_dynamodb_is_unavailable_and_then_go_on(stage: Stage, step: Step) -> None:
    """A: before it prepares, a batch without a map is aborted; after its commit, it is confirmed by whoever comes."""
    lab, dynamodb = stage.lab, stage.lab.dynamodb
    lab.supervisor.hold(dynamodb)
    try:
        _kill_at(stage, step, dynamodb)
        stage.await_failed_invocation()
        stage.produce(20)
    finally:
        lab.supervisor.release(dynamodb)
    _await_back(dynamodb)

    stage.verify()


def _await_back(server: Server) -> None:
    eventually(lambda: server.alive, f"{server.title} is started again")
    server.wait_ready()


def _kill_at(stage: Stage, step: Step, server: Server) -> None:
    """Kill a server exactly when a batch has passed a step, and let the batch go on."""
    stage.produce(20)
    stage.await_replicated()
    stopped = stage.stop_at(step)
    stage.produce(40)
    pid = stopped()
    server.kill()
    stage.lab.faults.resume_stopped(pid)


# The mapping delivers records again


def test_a_batch_delivered_twice_is_replicated_once(stage: Stage) -> None:
    """B: the second delivery lies below the position, and is dropped."""
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    stage.lab.mappings.duplicate_batch(stage.uuid)
    stage.lab.mappings.release(stage.uuid)

    stage.verify()
    assert stage.metric("Invoked") > 60


@pytest.mark.parametrize("stage", some_of((FORTH, BACK), FORTH, others=SCHEDULES), indirect=True)
def test_a_batch_delivered_twice_at_once_is_replicated_by_whoever_prepares_first(stage: Stage) -> None:
    """A, C: two environments produce the same records in two transactions; one of them aborts.

    The first to settle is stopped there until its rival has committed. It then finds its key of the chain taken.
    """
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    if len(stage.function.environments) < 2:
        stage.function.initialise()  # a cold start would be too late for the race
    stopped = stage.stop_at("settled")
    rival = stage.lab.faults.order("stop", "confirmed")
    stage.lab.mappings.duplicate_batch(stage.uuid, concurrently=True)
    stage.lab.mappings.release(stage.uuid)

    first = stopped()
    stage.lab.faults.await_claimed(rival, seconds=120)
    stage.lab.faults.resume_stopped(first)
    eventually(lambda: (it := stage.environment(first)) is None or it.state == "idle", "the loser answers")
    for pid in stage.lab.faults.stopped():
        stage.lab.faults.resume_stopped(pid)

    stage.verify()
    assert stage.metric("Invoked") > 60


def test_a_rebalance_in_the_middle_of_a_batch_makes_its_invocation_a_zombie_and_nothing_worse(stage: Stage) -> None:
    """E: the poller that has the partitions now invokes with the same records while the first is still at work."""
    stage.produce(20)
    stage.await_replicated()
    stopped = stage.stop_at("settled")
    stage.produce(40)
    pid = stopped()

    stage.lab.mappings.rebalance(stage.uuid)
    stage.lab.faults.resume_stopped(pid)

    stage.verify()


# One lane cannot go on


@pytest.mark.parametrize("stage", some_of((FORTH, BACK), FORTH, others=REFUSALS), indirect=True)
def test_a_record_that_the_target_refuses_stops_its_lane_while_the_others_of_the_batch_go_on(stage: Stage) -> None:
    """C: records up to the refused one arrive, it and all later ones of its lane wait, and the lane names it.

    Forth with a partial batch response; back without one, where the whole batch is delivered again.
    """
    small = {"max.message.bytes": "10000"}
    create_topics(stage.target, [NewTopic(stage.remote_topic, PARTITIONS, 1, config=small)])
    stage.lab.mappings.hold(stage.uuid)
    too_large = random.Random(1).randbytes(20_000)
    stage.write([(0, b"") for _ in range(5)] + [(0, too_large)] + [(0, b"") for _ in range(5)])
    stage.write([(1, b"") for _ in range(10)])
    stage.lab.mappings.release(stage.uuid)

    eventually(lambda: _state(stage).stop is not None, "the lane stops")
    eventually(lambda: _position(stage, 1) >= 10, "the other lane goes on")
    stop = _state(stage).stop
    await_settled(stage.target, stage.remote_topic)
    arrived = {partition: len(seen) for partition, seen in read_topic(stage.target, stage.remote_topic).items()}
    assert arrived == {0: 5, 1: 10}
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("refused", 5)
    assert _state(stage, 1) == LaneState(begun=0)

    # The operator leaves out exactly this record; everything else follows.
    stage.orders.quarantine(stage.lane(0), *LeftOut.each(5))
    stage.await_replicated()
    await_settled(stage.target, stage.remote_topic)
    source, target = read_topic(stage.source, stage.topic), read_topic(stage.target, stage.remote_topic)
    kept = [seen.content for seen in source[0] if seen.offset != 5]
    assert [seen.content for seen in target[0]] == kept
    assert [seen.content for seen in target[1]] == [seen.content for seen in source[1]]


@pytest.mark.parametrize("stage", some_of((FORTH, BACK), BACK, others=SCHEDULES), indirect=True)
def test_a_lane_that_a_job_has_waits_while_the_others_go_on_and_nothing_is_lost_or_twice(stage: Stage) -> None:
    """Forth with a partial batch response; back without one, where the whole batch is delivered again."""
    holder = "backfill-1"
    stage.orders.take(stage.lane(0), Lease(holder=holder, until=now_ms() + 600_000), now=now_ms())
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    stage.lab.mappings.release(stage.uuid)

    eventually(lambda: _state(stage).waiting == 0, "the lane waits")
    eventually(lambda: _position(stage, 1) >= 15, "the other lane goes on")
    assert _state(stage).stop is None
    assert _position(stage, 0) == 0

    # The job overtakes what waits, and lets go in the middle of it.
    settings = decode_settings(stage.flow.function_settings_json())
    (chunk,) = KafkaLaneLog(settings.source, flow="test").read(stage.topic, 0, OffsetRange(0, 10), deadline_in(30))
    replicator = flow_replicator(settings, stage.lab.dynamodb.client(), environment=uuid4().hex)
    batch = Batch.of_topic(stage.topic, {0: chunk.records}, {0: chunk.covered})
    job = replace(replicator, holder=holder, examined=True)
    outcome = job.replicate(batch, request=holder, deadline=deadline_in(30))
    job.target.discard_writers()
    assert (outcome.stopped, outcome.waiting) == ({}, {})
    assert _state(stage).lease is not None
    assert stage.orders.let_go(stage.lane(0), holder, position=10)
    stage.await_replicated()

    eventually(lambda: _state(stage) == LaneState(begun=0), "what waited has come through")
    assert [run.examined for run in every_run(stage.chains, stage.lane(0))][:2] == [True, False]
    stage.verify()


def _state(stage: Stage, partition: int = 0) -> LaneState:
    lane = stage.lane(partition)
    return stage.orders.read([lane]).get(lane, RUNNING)


def _position(stage: Stage, partition: int) -> int:
    lane = stage.lane(partition)
    return stage.chains.heads([lane])[lane].position


# Another version of Kafka: the last one, for the tests before it run between two versions


def test_an_upgrade_of_kafka_under_both_flows_loses_repeats_and_reorders_nothing(lab: Lab, stage: Stage) -> None:
    """A, B: clients reconnect to brokers with other features; transactions under way are settled as after a kill.

    From Kafka 3.9.1, on its own data, target of one flow and source of the other.
    """
    cluster = lab.clusters["eu-west"]
    assert cluster.version.startswith("3.9")
    with Stage.open(lab, BACK) as back:
        back.produce(50)
        done = threading.Event()

        def keep_producing() -> None:
            while not done.wait(0.5):
                stage.produce(10)

        producing = threading.Thread(target=keep_producing)
        producing.start()
        try:
            roll(cluster, DEFAULT_KAFKA, supervisor=lab.supervisor)
            before = features(cluster)
            raise_features(cluster, "4.1")
        finally:
            done.set()
            producing.join()
        back.produce(50)

        stage.verify()
        back.verify()
    assert (before["transaction.version"], features(cluster)["transaction.version"]) == ("0", "2")
