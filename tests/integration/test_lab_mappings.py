"""The event source mapping on a real broker, in front of a function that is a Python callable.

What AWS promises of order, retries, commits and redelivery is what the forwarder is built upon.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lab.esm.behaviour import LabBehaviour
from lab.esm.mapping_api import ResourceInUseError
from lab.esm.mappings import EventSourceMappings
from lab.esm.poller import starting_positions
from lab.functions.invocation import Invocation, Status
from lab.servers.kafka import KafkaCluster
from tests.support.lane_stage import ORDERED
from tests.support.topics import create_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

PROVISIONED: dict[str, Any] = {"ProvisionedPollerConfig": {"MinimumPollers": 1, "MaximumPollers": 1}}
PARTIAL = {**PROVISIONED, "FunctionResponseTypes": ["ReportBatchItemFailures"]}


def success(payload: bytes = b"null") -> Invocation:
    return Invocation(status="success", payload=payload, request_id=str(uuid4()), duration_ms=1.0)


def failure(status: Status = "function_error") -> Invocation:
    return Invocation(status=status, payload=b'{"errorType":"Broken"}', request_id=str(uuid4()), duration_ms=1.0)


def failed(*places: tuple[str, int]) -> Invocation:
    items = [{"itemIdentifier": {"partition": name, "offset": offset}} for name, offset in places]
    return success(json.dumps({"batchItemFailures": items}).encode())


@dataclass
class Function:
    """A function that remembers its batches and answers as told."""

    answer: Callable[[list[dict[str, Any]]], Invocation] = field(default=lambda _: success())
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def invoke(self, event: bytes) -> Invocation:
        """Remember the event, then answer as told."""
        decoded = json.loads(event)
        records = [record for lane in decoded["records"].values() for record in lane]
        self.events.append(decoded)
        self.batches.append(records)
        return self.answer(records)

    def offsets(self, partition: int = 0) -> list[int]:
        """Every delivered offset of one partition, in order of delivery."""
        return [it["offset"] for batch in list(self.batches) for it in batch if it["partition"] == partition]

    def sizes(self) -> list[int]:
        """The number of records in each batch."""
        return [len(batch) for batch in list(self.batches)]


@dataclass
class Stage:
    """A broker, a fresh topic, a function, and the mappings between them."""

    broker: KafkaCluster
    folder: Path
    topic: str = field(default_factory=lambda: f"orders-{uuid4().hex[:8]}")
    function: Function = field(default_factory=Function)
    behaviour: LabBehaviour = field(
        default_factory=lambda: LabBehaviour(retry_initial_s=0.05, retry_max_s=0.2, stop_grace_s=1.0)
    )
    _mappings: EventSourceMappings | None = None

    @property
    def mappings(self) -> EventSourceMappings:
        """The control plane, made when it is first needed so that a test can choose its parts."""
        if self._mappings is None:
            self._mappings = EventSourceMappings(
                functions={"forward": self.function},
                folder=self.folder,
                behaviour=self.behaviour,
            )
        return self._mappings

    def request(self, **changes: Any) -> dict[str, Any]:
        """A good request, changed; None takes a field away."""
        whole = {
            "FunctionName": "forward",
            "Topics": [self.topic],
            "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": [self.broker.bootstrap]}},
            "StartingPosition": "TRIM_HORIZON",
            "MaximumBatchingWindowInSeconds": 0,
            **changes,
        }
        return {name: value for name, value in whole.items() if value is not None}

    def create(self, **changes: Any) -> str:
        """Create a mapping, wait until it polls, and answer its UUID."""
        uuid = str(self.mappings.create(**self.request(**changes))["UUID"])
        self.mappings.wait_enabled(uuid)
        return uuid

    def make_topic(self, name: str = "", *, partitions: int = 1) -> None:
        """Create the stage's topic, or another."""
        create_topic(self.broker.bootstrap, name or self.topic, partitions)

    def produce(self, count: int, *, partition: int = 0, value: bytes = b"v", first: int = 0) -> None:
        """Produce records with keys k<first> and on, and wait until they are acknowledged."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "message.max.bytes": 16 << 20, **ORDERED})
        for number in range(first, first + count):
            producer.produce(self.topic, value, f"k{number}".encode(), partition)
        assert producer.flush(20) == 0

    def drained(self, uuid: str) -> None:
        """Wait until nothing is left to do."""
        eventually(lambda: not any(self.mappings.lag(uuid).values()))

    def stop(self) -> None:
        """Stop the mappings."""
        if self._mappings is not None:
            self._mappings.stop()


@pytest.fixture
def stage(clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path) -> Iterator[Stage]:
    made = Stage(clusters[0], tmp_path)
    yield made
    made.stop()


def test_records_reach_the_function_in_order_and_are_committed(stage: Stage) -> None:
    stage.make_topic(partitions=3)
    uuid = stage.create(BatchSize=10)

    for partition in range(3):
        stage.produce(50, partition=partition)
    stage.drained(uuid)

    assert [stage.function.offsets(partition) for partition in range(3)] == [list(range(50))] * 3
    assert max(stage.function.sizes()) <= 10
    assert stage.mappings.committed(uuid) == {0: 50, 1: 50, 2: 50}
    assert stage.mappings.get(uuid)["LastProcessingResult"] == "OK"
    counts = stage.mappings.metrics(uuid)
    assert (counts["Polled"], counts["Invoked"], counts["Committed"]) == (150, 150, 150)


def test_no_partition_is_in_two_invocations_at_once_and_no_poller_in_more_than_five(stage: Stage) -> None:
    busy: list[set[int]] = []
    peaks: list[int] = []
    clashes: list[int] = []
    lock = threading.Lock()

    def answer(records: list[dict[str, Any]]) -> Invocation:
        mine = {record["partition"] for record in records}
        with lock:
            clashes.extend(mine & set().union(*busy))
            busy.append(mine)
            peaks.append(len(busy))
        time.sleep(0.02)  # the function's work: invocations must have time to overlap
        with lock:
            busy.remove(mine)
        return success()

    stage.function.answer = answer
    stage.make_topic(partitions=8)
    for partition in range(8):
        stage.produce(20, partition=partition)

    uuid = stage.create(BatchSize=5)
    stage.drained(uuid)

    assert clashes == []
    assert max(peaks) == 5


def test_an_on_demand_mapping_retries_the_same_batch_and_commits_after_success_only(stage: Stage) -> None:
    outcomes: list[Status] = ["function_error", "timeout", "throttled", "exited"]
    committed: list[dict[int, int]] = []

    def answer(_: list[dict[str, Any]]) -> Invocation:
        committed.append(stage.mappings.committed(uuid))
        return failure(outcomes.pop(0)) if outcomes else success()

    stage.function.answer = answer
    stage.make_topic()
    uuid = stage.create(BatchSize=5)
    stage.mappings.hold(uuid)
    stage.produce(10)
    eventually(lambda: stage.mappings.metrics(uuid).get("Polled", 0) >= 5)
    stage.mappings.release(uuid)
    stage.drained(uuid)

    assert stage.function.offsets() == [0, 1, 2, 3, 4] * 5 + [5, 6, 7, 8, 9]
    assert committed[:5] == [{}] * 5
    assert stage.mappings.committed(uuid) == {0: 10}
    assert stage.mappings.metrics(uuid)["FailedInvoke"] == 20


def test_a_partial_response_redelivers_only_the_failed_and_holds_the_commit_back(stage: Stage) -> None:
    held = threading.Event()

    def answer(_: list[dict[str, Any]]) -> Invocation:
        if len(stage.function.batches) == 1:
            return failed((f"{stage.topic}-0", 2), (f"{stage.topic}-0", 4))
        held.wait(10)
        return success()

    stage.function.answer = answer
    stage.make_topic()
    stage.produce(6)
    uuid = stage.create(**PARTIAL)
    eventually(lambda: stage.mappings.committed(uuid) == {0: 2})
    held.set()
    stage.drained(uuid)

    assert stage.function.offsets() == [0, 1, 2, 3, 4, 5, 2, 4]
    assert stage.mappings.committed(uuid) == {0: 6}


def test_a_lost_acknowledgement_redelivers_the_batch(stage: Stage) -> None:
    stage.make_topic()
    uuid = stage.create()
    stage.mappings.lose_ack(uuid)

    stage.produce(3)
    eventually(lambda: len(stage.function.offsets()) >= 6)
    stage.drained(uuid)

    assert stage.function.offsets().count(0) == 2
    assert stage.mappings.committed(uuid) == {0: 3}


def test_a_failed_commit_is_repeated_where_no_record_follows(stage: Stage) -> None:
    stage.make_topic()
    uuid = stage.create()
    stage.mappings.commit_failure(uuid)

    stage.produce(1)
    stage.drained(uuid)

    assert stage.mappings.metrics(uuid)["CommitError"] == 1
    assert stage.mappings.committed(uuid) == {0: 1}


def test_a_rebalance_during_an_invocation_makes_it_a_zombie_and_redelivers_its_batch(stage: Stage) -> None:
    """The zombie's late success must not be committed: its records belong to another poller by then."""
    wake_zombie, zombie_done, recovered = threading.Event(), threading.Event(), threading.Event()
    calls: list[int] = []

    def answer(_: list[dict[str, Any]]) -> Invocation:
        calls.append(1)
        if len(calls) == 1:
            wake_zombie.wait(20)
            zombie_done.set()
            return success()
        return success() if recovered.is_set() else failure()

    stage.function.answer = answer
    stage.make_topic()
    uuid = stage.create()
    stage.mappings.hold(uuid)
    stage.produce(2)
    eventually(lambda: stage.mappings.metrics(uuid).get("Polled") == 2)
    stage.mappings.release(uuid)
    eventually(lambda: len(calls) == 1)

    stage.mappings.rebalance(uuid)
    eventually(lambda: len(calls) > 2)
    wake_zombie.set()
    assert zombie_done.wait(5)
    retried = len(calls)
    eventually(lambda: len(calls) > retried + 2)

    assert stage.mappings.committed(uuid) == {}
    recovered.set()
    stage.drained(uuid)
    assert set(map(tuple, (stage.function.offsets()[:2], stage.function.offsets()[-2:]))) == {(0, 1)}
    assert stage.mappings.committed(uuid) == {0: 2}


def test_partitions_that_were_paused_when_the_group_rebalanced_are_read_again(stage: Stage) -> None:
    """The client keeps a partition paused over a reassignment; a mapping would stand still for ever."""
    stage.make_topic(partitions=2)
    uuid = stage.create(BatchSize=5)
    stage.mappings.hold(uuid)
    for partition in range(2):
        stage.produce(40, partition=partition)
    eventually(lambda: stage.mappings.metrics(uuid).get("Polled", 0) >= 10)

    stage.mappings.rebalance(uuid)
    stage.mappings.release(uuid)
    stage.drained(uuid)

    assert stage.mappings.committed(uuid) == {0: 40, 1: 40}


def test_a_poller_that_cannot_read_its_first_offsets_tries_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it happens right after a topic was created, while its leaders are not in the metadata yet."""
    stage.make_topic(partitions=2)
    refused = [TopicPartition("no-such-topic", 7)]

    def begin(consumer: Any, *rest: Any) -> list[TopicPartition]:
        if refused:
            consumer.get_watermark_offsets(refused.pop(), timeout=5)
        return starting_positions(consumer, *rest)

    monkeypatch.setattr("lab.esm.poller.starting_positions", begin)
    uuid = stage.create(BatchSize=10)
    stage.produce(20, partition=1)
    stage.drained(uuid)

    assert stage.mappings.committed(uuid)[1] == 20
    assert stage.mappings.metrics(uuid)["PollingError"] == 1


def test_several_pollers_share_the_partitions_and_are_never_more_than_those(stage: Stage) -> None:
    stage.make_topic(partitions=2)
    uuid = stage.create(ProvisionedPollerConfig={"MinimumPollers": 4, "MaximumPollers": 4})

    for partition in range(2):
        stage.produce(30, partition=partition)
    stage.drained(uuid)

    (mapping,) = stage.mappings._mappings.values()
    assert len(mapping._pollers) == 2
    assert all(len(event["records"]) == 1 for event in stage.function.events)
    assert {partition: sorted(set(stage.function.offsets(partition))) for partition in range(2)} == {
        0: list(range(30)),
        1: list(range(30)),
    }


def test_a_record_that_fits_no_event_is_passed_over_and_the_rest_goes_on(stage: Stage) -> None:
    create_topic(stage.broker.bootstrap, stage.topic, max_message_bytes=str(16 << 20))
    stage.produce(1)
    stage.produce(1, first=1, value=b"x" * 4_800_000)
    stage.produce(1, first=2)

    uuid = stage.create(**PROVISIONED)
    stage.drained(uuid)

    assert stage.function.offsets() == [0, 2]
    assert stage.mappings.metrics(uuid)["Dropped"] == 1
    assert stage.mappings.committed(uuid) == {0: 3}


def test_starting_positions_hold_for_partitions_without_a_commit(stage: Stage) -> None:
    stage.make_topic()
    stage.produce(2)
    time.sleep(0.05)  # a millisecond has to pass between the two halves: timestamps are what is tested
    moment = time.time()
    time.sleep(0.05)
    stage.produce(2, first=2)

    for start, first in (
        ({"StartingPosition": "TRIM_HORIZON"}, 0),
        ({"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": moment}, 2),
        ({"StartingPosition": "LATEST"}, None),
    ):
        stage.function.batches.clear()
        uuid = stage.create(**start)
        stage.drained(uuid)
        assert stage.function.offsets() == ([] if first is None else list(range(first, 4)))
        stage.mappings.delete(uuid)


def test_committed_offsets_win_over_the_starting_position(stage: Stage) -> None:
    """Seeding a group's offsets is how a mapping is started at an exact place after a failover."""
    stage.make_topic(partitions=2)
    for partition in range(2):
        stage.produce(5, partition=partition)
    seeder = Consumer({"bootstrap.servers": stage.broker.bootstrap, "group.id": stage.topic})
    seeder.commit(offsets=[TopicPartition(stage.topic, 0, 3)], asynchronous=False)
    seeder.close()

    uuid = stage.create(SelfManagedKafkaEventSourceConfig={"ConsumerGroupId": stage.topic})
    stage.drained(uuid)

    assert stage.function.offsets(0) == [3, 4]
    assert stage.function.offsets(1) == [0, 1, 2, 3, 4]


def test_an_update_stops_polling_and_goes_on_from_what_is_committed(stage: Stage) -> None:
    stage.make_topic()
    uuid = stage.create(StartingPosition="LATEST")
    stage.produce(2)
    stage.drained(uuid)

    assert stage.mappings.update(uuid, Enabled=False)["State"] == "Disabling"
    with pytest.raises(ResourceInUseError):
        stage.mappings.update(uuid, Enabled=True)
    eventually(lambda: stage.mappings.get(uuid)["State"] == "Disabled")
    stage.produce(2, first=2)
    assert stage.mappings.update(uuid, Enabled=True, BatchSize=1)["State"] == "Enabling"
    stage.mappings.wait_enabled(uuid)
    stage.drained(uuid)

    assert stage.function.offsets() == [0, 1, 2, 3]
    assert stage.function.sizes()[-2:] == [1, 1]


def test_what_is_written_before_a_new_mapping_polls_is_lost_by_latest(stage: Stage) -> None:
    stage.behaviour = replace(stage.behaviour, creation_delay_s=4.0)
    stage.make_topic()
    created = stage.mappings.create(**stage.request(StartingPosition="LATEST"))
    stage.produce(3)
    assert stage.mappings.get(created["UUID"])["State"] == created["State"] == "Creating"

    stage.mappings.wait_enabled(created["UUID"])
    stage.produce(1, first=3)
    stage.drained(created["UUID"])

    assert stage.function.offsets() == [3]


def test_what_is_written_during_an_update_is_lost_by_latest_before_the_first_commit(stage: Stage) -> None:
    stage.behaviour = replace(stage.behaviour, update_delay_s=4.0)
    stage.make_topic()
    uuid = stage.create(StartingPosition="LATEST")
    assert stage.mappings.update(uuid, BatchSize=7)["State"] == "Updating"
    eventually(lambda: not stage.mappings._mappings[uuid].progress())
    stage.produce(2)
    assert stage.mappings.get(uuid)["State"] == "Updating"
    stage.mappings.wait_enabled(uuid)
    stage.produce(1, first=2)
    stage.drained(uuid)

    assert stage.function.offsets() == [2]


def test_a_mapping_that_reaches_no_broker_is_enabled_with_a_problem(stage: Stage) -> None:
    nowhere = {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": ["127.0.0.1:1"]}}
    uuid = stage.mappings.create(**stage.request(SelfManagedEventSource=nowhere))["UUID"]

    eventually(lambda: stage.mappings.get(uuid)["LastProcessingResult"].startswith("PROBLEM: Connection error"))
    eventually(lambda: stage.mappings.get(uuid)["State"] == "Enabled")


def test_aborted_records_and_markers_are_gaps_that_do_not_count_as_lag(stage: Stage) -> None:
    stage.make_topic()
    producer = Producer({"bootstrap.servers": stage.broker.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(20)
    for commit in (True, False, True, False):
        producer.begin_transaction()
        producer.produce(stage.topic, b"v", partition=0)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)

    uuid = stage.create()
    stage.drained(uuid)

    assert stage.function.offsets() == [0, 4]
    assert stage.mappings.committed(uuid) == {0: 5}
    assert stage.mappings.lag(uuid) == {0: 0}
