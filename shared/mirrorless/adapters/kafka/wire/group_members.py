"""The groups of Connect's workers that run a connector: librdkafka shows none of their members.

    ListGroups, DescribeGroups    of each broker, those that it coordinates
    assignment of a member        version, error, leader, its URL, offset of the configs, then of each connector its
                                  tasks; -1 stands for the connector itself

(Kafka, connect/runtime: ConnectProtocol.java; newer versions add to the end)
"""

from __future__ import annotations

from struct import pack
from typing import Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.cluster import WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.requests import AnswerReader, string
from mirrorless.clock import Deadline

DESCRIBE_GROUPS: Final[ApiKey] = (15, 0)
LIST_GROUPS: Final[ApiKey] = (16, 0)

_CONNECT: Final = "connect"
_STABLE: Final = "Stable"


def running_group(cluster: WireCluster, connector: str, alone: str, deadline: Deadline) -> str:
    """A group of workers that run a connector, or may do so in a moment, because they rebalance; empty for none.

    Args:
        cluster: that the workers write to.
        connector: its name.
        alone: the only group that counts, and counts with any member; empty where any may run the connector.
        deadline: seconds left.

    Raises:
        Retriable: a broker does not answer, or does not show a group.
    """
    coordinated = False
    with cluster.translated("describe the groups of Connect's workers"):
        until = until_of(deadline)
        cluster.refresh((), until)
        for node in cluster.nodes:
            names = [alone] if alone else _listed(AnswerReader(cluster.ask(node, LIST_GROUPS, b"", until)))
            body = pack(">i", len(names)) + b"".join(map(string, names))
            answer = AnswerReader(cluster.ask(node, DESCRIBE_GROUPS, body, until))
            for _ in answer.array():
                error = answer.int16()
                group, state, _, _ = (answer.text() for _ in range(4))
                runs = [connector in _assigned(answer) for _ in answer.array()]
                if error not in {0, KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NOT_COORDINATOR}:
                    raise ConnectionError(f"{group}: {KafkaError(error).name()}")
                coordinated |= error != KafkaError.NOT_COORDINATOR
                if runs and (alone or state != _STABLE or any(runs)):
                    return group
        if alone and not coordinated:
            raise ConnectionError(f"{alone}: no broker coordinates it now")
    return ""


def _listed(answer: AnswerReader) -> list[str]:
    """The groups of Connect's workers."""
    if error := answer.int16():
        raise ConnectionError(KafkaError(error).name())
    listed = [(answer.text(), answer.text()) for _ in answer.array()]
    return [group for group, kind in listed if kind == _CONNECT]


def _assigned(member: AnswerReader) -> set[str]:
    """The connectors of which a member has tasks."""
    for _ in range(3):
        member.text()  # its ids, and its host
    member.skip(member.int32())
    assignment = AnswerReader(member.skip(member.int32()))
    if not assignment.left:
        return set()
    assignment.skip(4)
    for _ in range(2):
        assignment.text()
    assignment.int64()
    tasks = [(assignment.text(), [assignment.int32() for _ in assignment.array()]) for _ in assignment.array()]
    return {connector for connector, numbers in tasks if any(number >= 0 for number in numbers)}
