"""Requests to the coordinators of consumer groups. No other module makes any: a contract test holds it.

Librdkafka 2.16 aborts the process (an assertion on `eonce->refcnt`) where such a request times out by its own
`request_timeout` while the coordinator is still looked for: the time-out frees what the request needs, and the answer
of FindCoordinator comes to it. A slow answer and a stopped broker do that. Measured with its mock cluster, at a round
trip of 100 ms and time-outs of 50 to 250 ms: each process of four kinds of request died.

So a request here lasts for a minute, whatever its caller's time is. The caller waits by its own deadline (`answer`),
and drops a client of which an answer has not come: that ends the request without its time-out. 600 rounds of that
lived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

REQUEST_SECONDS: Final = 60.0
"""Longer than any caller waits."""


def described(client: AdminClient, groups: list[str]) -> Mapping[str, Future[Any]]:
    """What each group is."""
    return client.describe_consumer_groups(groups, request_timeout=REQUEST_SECONDS)


def offsets_of(client: AdminClient, group: str) -> Future[Any]:
    """What a group has committed. Only after it was described: see `KafkaGroups.committed`."""
    wanted = [ConsumerGroupTopicPartitions(group)]
    asked = client.list_consumer_group_offsets(wanted, require_stable=True, request_timeout=REQUEST_SECONDS)
    found: Future[Any] = asked[group]
    return found


def altered(client: AdminClient, group: str, places: Iterable[TopicPartition]) -> Future[Any]:
    """Commit offsets for a group without members."""
    wanted = [ConsumerGroupTopicPartitions(group, list(places))]
    done: Future[Any] = client.alter_consumer_group_offsets(wanted, request_timeout=REQUEST_SECONDS)[group]
    return done


def deleted(client: AdminClient, groups: list[str]) -> Mapping[str, Future[Any]]:
    """Delete groups without members."""
    return client.delete_consumer_groups(groups, request_timeout=REQUEST_SECONDS)
