"""A process that does not wait for the coordinator of a group, and lives on: `WAY ROUNDS` as its arguments.

Librdkafka's own mock cluster answers after `ROUND_TRIP_MS`. Each round has a client that has its metadata and knows no
coordinator, and a deadline that ends somewhere between the request and its answer; then the answers come.
A module of its own, for a process that may be aborted is not that of the tests. Each way says whether it gave up.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mirrorless.adapters.kafka import admin
from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.coordinators import offsets_of
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import OffsetAndMetadata

ROUND_TRIP_MS = 100
ALL_ANSWERED_SECONDS = 0.5
"""After a round: the coordinator is found, connected to and asked."""


def old(bootstrap: str, seconds: float) -> bool:
    """The request times out by itself."""
    client = _with_metadata(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}))
    place = ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 5)])
    asked = getattr(client, "alter_consumer_group_offsets")([place], request_timeout=seconds)  # noqa: B009 -- only here
    try:
        asked["g"].result(10)
    except KafkaException:
        return _answers_come()  # while the client lives
    return False


def commits(bootstrap: str, seconds: float) -> bool:
    """`KafkaGroups.commit`."""
    try:
        _groups(bootstrap).commit("g", {("t", 0): OffsetAndMetadata(5)}, _within(seconds))
    except MirrorlessError:
        return _answers_come()
    return False


def offsets(bootstrap: str, seconds: float) -> bool:
    """What `KafkaGroups.committed` requests once groups were described, which the mock cluster cannot."""
    held, end = [], math.inf

    def call(client: AdminClient, keys: list[str], _: float) -> Mapping[str, Future[Any]]:
        nonlocal end
        end = time.monotonic() + seconds + MARGIN_SECONDS  # the metadata take time as well
        held.append(client)  # as the traceback of an exception would
        return {key: offsets_of(client, key) for key in keys}

    warm = admin.WarmAdmin(_settings(bootstrap), "us-east->eu-west|groups", {"log_level": 0})
    _, failures = warm.call_each(["g", "h"], call, lambda: end - time.monotonic(), chunk=2)
    return _answers_come() if failures else False


def _answers_come() -> bool:
    time.sleep(ALL_ANSWERED_SECONDS)
    return True


def _groups(bootstrap: str) -> KafkaGroups:
    return KafkaGroups(_settings(bootstrap), flow="us-east->eu-west")


def _settings(bootstrap: str) -> ClusterSettings:
    return ClusterSettings(alias="eu-west", bootstrap=bootstrap)


def _within(seconds: float) -> Deadline:
    end = time.monotonic() + seconds + MARGIN_SECONDS
    return lambda: end - time.monotonic()


def _with_metadata(client: AdminClient, *_: object) -> AdminClient:
    client.list_topics(timeout=10)
    return client


def main() -> None:
    """Rounds with deadlines at equal distances, from a coordinator that is being looked for to one that answers."""
    way, rounds = {"old": old, "commits": commits, "offsets": offsets}[sys.argv[1]], int(sys.argv[2])
    # The mock cluster has no controller, and so cannot describe itself.
    admin.connected = _with_metadata  # type: ignore[assignment]  # it takes what the other takes
    brokers = Producer(
        {
            "bootstrap.servers": "none",
            "test.mock.num.brokers": 3,
            "test.mock.broker.rtt": ROUND_TRIP_MS,
            "log_level": 0,
        }
    )
    found = brokers.list_topics(timeout=20).brokers.values()
    bootstrap = ",".join(f"{each.host}:{each.port}" for each in found)
    given_up = [way(bootstrap, 0.05 + 0.25 * number / rounds) for number in range(rounds)]
    print("lived" if any(given_up) else "each request was answered in time")


if __name__ == "__main__":
    main()
