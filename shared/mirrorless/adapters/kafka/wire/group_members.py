"""Whether a classic group has members, of any protocol: librdkafka shows none of Connect's workers."""

from __future__ import annotations

from struct import pack
from typing import Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.cluster import WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.requests import AnswerReader
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable

DESCRIBE_GROUPS: Final[ApiKey] = (15, 0)

_WITHOUT: Final = frozenset({"Empty", "Dead"})


def has_members(cluster: WireCluster, group: str, deadline: Deadline) -> bool:
    """Whether a group has members, or is about to.

    Raises:
        Retriable: a broker does not answer, or the group has no coordinator now.
    """
    name = group.encode()
    body = pack(">ih", 1, len(name)) + name
    with cluster.translated(f"describe the group {group}"):
        until = until_of(deadline)
        cluster.refresh((), until)
        for node in cluster.nodes:
            answer = AnswerReader(cluster.ask(node, DESCRIBE_GROUPS, body, until))
            answer.array()
            error, _, state = answer.int16(), answer.text(), answer.text()
            if error == KafkaError.GROUP_ID_NOT_FOUND:
                return False
            if not error:
                return state not in _WITHOUT
    raise Retriable(f"no broker coordinates the group {group} now", hint="wait for a moment")
