"""The groups of Connect's workers that run a connector: librdkafka shows none of their members.

    ListGroups, DescribeGroups    of each broker, those that it coordinates
    metadata of a member          version, its URL, offset of the configs, the assignment that it joined with
    assignment of a member        version, error, leader, its URL, offset of the configs, then of each connector its
                                  tasks, twice: those given and those taken; ms until lost tasks are given out; -1
                                  stands for the connector itself

(Kafka, connect/runtime: ConnectProtocol.java and IncrementalCooperativeConnectProtocol.java)
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
_GROUPS: Final = "__consumer_offsets"
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
                runs = [_runs(answer, connector) for _ in answer.array()]
                if error not in {0, KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NOT_COORDINATOR}:
                    raise ConnectionError(f"{group}: {KafkaError(error).name()}")
                coordinated |= error != KafkaError.NOT_COORDINATOR
                if runs and (alone or state != _STABLE or any(runs)):
                    return group
        if alone and not coordinated:
            cluster.refresh([_GROUPS], until)
            if cluster.topic_errors.get(_GROUPS) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""  # brokers make it for the first group that they ever have
            raise ConnectionError(f"{alone}: no broker coordinates it now")
    return ""


def _listed(answer: AnswerReader) -> list[str]:
    """The groups of Connect's workers."""
    if error := answer.int16():
        raise ConnectionError(KafkaError(error).name())
    listed = [(answer.text(), answer.text()) for _ in answer.array()]
    return [group for group, kind in listed if kind == _CONNECT]


def _runs(member: AnswerReader, connector: str) -> bool:
    """Whether a member has tasks of a connector, or lost ones wait to be given out.

    Connect waits some minutes for a worker that was killed (KIP-415). A member has what it had when it joined, without
    what was taken from it, and what it was given since: the cooperative protocol names changes alone.
    """
    for _ in range(3):
        member.text()  # its ids, and its host
    joined, given = (AnswerReader(member.skip(max(0, member.int32()))) for _ in range(2))
    had: set[tuple[str, int]] = set()
    if joined.left:
        joined.int16()
        joined.text()
        joined.int64()
        if joined.left:  # the eager protocol ends here, and gives everything anew
            had, _, _ = _tasks(AnswerReader(joined.skip(max(0, joined.int32()))))
    new, revoked, delay = _tasks(given)
    return delay > 0 or any(name == connector for name, _ in (had - revoked) | new)


def _tasks(assignment: AnswerReader) -> tuple[set[tuple[str, int]], set[tuple[str, int]], int]:
    """The tasks that an assignment gives, those that it takes, and ms until lost ones are given out."""
    if not assignment.left:
        return set(), set(), 0
    assignment.skip(4)
    for _ in range(2):
        assignment.text()
    assignment.int64()
    found = []
    for _ in range(2):
        some = assignment.array() if assignment.left else range(0)
        each = [(assignment.text(), [assignment.int32() for _ in assignment.array()]) for _ in some]
        found.append({(connector, number) for connector, numbers in each for number in numbers if number >= 0})
    return found[0], found[1], assignment.int32() if assignment.left else 0
