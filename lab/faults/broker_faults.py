"""Faults of clusters with several brokers: leaders that move, replicas that are missing."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from lab.faults.topic_changes import ANSWER_SECONDS, insist
from lab.servers.kafka import KafkaCluster
from lab.servers.kafka_broker import REPLICAS, KafkaBroker
from lab.servers.supervisor import Supervisor

GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART}
"""A topic that another fault has deleted has no configs to restore."""
NOT_NEEDED = {KafkaError.ELECTION_NOT_NEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART}
"""The leader is the preferred one; or the topic was deleted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFaults:
    """The faults of one cluster; its dead brokers are restarted by the supervisor."""

    cluster: KafkaCluster
    supervisor: Supervisor

    def broker(self, part: float) -> KafkaBroker:
        """The broker that stands at this part, 0 to 1, of the list."""
        brokers = self.cluster.brokers
        return brokers[min(int(part * len(brokers)), len(brokers) - 1)]

    def kill_two(self, part: float, seconds: float) -> None:
        """Kill all but one for a while: neither the replicas nor the controllers have their majority."""
        staying = self.broker(part)
        killed = [each for each in self.cluster.brokers if each is not staying]
        self.supervisor.hold(*killed)
        for broker in killed:
            broker.kill()
        threading.Event().wait(seconds)  # the outage itself is the fault
        self.supervisor.release(*killed)

    def move_leaders(self, part: float) -> None:
        """Shut one broker down in order, which moves its leaders; when it is back, they move back to it."""
        broker = self.broker(part)
        broker.stop()
        self.supervisor.await_alive(broker)
        insist(self._elect_preferred)  # until all replicas are in sync, which takes longer than a start

    def demand_all_replicas(self, topic: str, part: float, seconds: float) -> None:
        """Let a topic demand all of its replicas in sync, and kill one of their brokers for a while."""
        insist(lambda: self._set_least(topic, REPLICAS))
        killed = self.broker(part)
        self.supervisor.hold(killed)
        killed.kill()
        threading.Event().wait(seconds)  # the outage itself is the fault
        self.supervisor.release(killed)
        insist(lambda: self._set_least(topic, REPLICAS - 1))

    def _elect_preferred(self) -> None:
        admin = self._admin()
        # Of every partition. confluent-kafka 2.16 fails with each of this call's options.
        answers = admin.elect_leaders(ElectionType.PREFERRED, None)
        for error in answers.result(ANSWER_SECONDS).values():
            if error is not None and error.code() not in NOT_NEEDED:
                raise KafkaException(error)  # a replica that is not in sync yet, above all

    def _set_least(self, topic: str, replicas: int) -> None:
        entry = ConfigEntry("min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin = self._admin()
        try:
            admin.incremental_alter_configs([resource])[resource].result(ANSWER_SECONDS)
        except KafkaException as exc:
            if exc.args[0].code() not in GONE:
                raise

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.direct, "log_level": 0})
