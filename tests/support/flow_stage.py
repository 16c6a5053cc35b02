"""A stage for fault tests: one topic of one flow on a running lab.

stage.produce(60)  ...the fault...  stage.verify()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from lab.audit.audit import wait_until_replicated
from lab.cloud import FlowMapping, Lab, create_topics, function_name
from lab.functions.environment import Environment
from lab.functions.function import LambdaFunction
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.protocol.hooks import Step
from tests.support.readback import assert_mirrored, await_settled, read_topic
from tests.support.topics import transactional
from tests.support.waiting import eventually

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
