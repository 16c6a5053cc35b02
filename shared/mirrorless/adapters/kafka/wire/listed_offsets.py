"""The first and the last stable offsets of partitions, and other questions that go to all of their leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError
from mirrorless.adapters.kafka.wire.cluster import LEADER_MOVED, WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.requests import LIST_OFFSETS, Leader, list_offsets, read_offsets
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import TopicPartition

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderQuestion(Generic[_Answer]):
    """A question about partitions, each of which its leader answers."""

    what: str
    """What the cluster did not do, where no broker answers."""
    api: ApiKey
    body: Callable[[Mapping[TopicPartition, Leader]], bytes]
    read: Callable[[memoryview], Mapping[TopicPartition, tuple[int, _Answer]]]
    """The error of each partition, 0 for none, and its answer."""


def listed_offsets(
    cluster: WireCluster, places: set[TopicPartition], timestamp: int, deadline: Deadline
) -> dict[TopicPartition, int]:
    """The offsets of the partitions that have one. Raises as `answers_of_leaders`.

    Args:
        cluster: of the partitions.
        places: the partitions.
        timestamp: `EARLIEST` or `LATEST`, of what a read_committed reader sees.
        deadline: for all of it.
    """
    question = LeaderQuestion(
        what="list its offsets", api=LIST_OFFSETS, body=lambda some: list_offsets(some, timestamp), read=read_offsets
    )
    return answers_of_leaders(cluster, places, question, deadline)


def answers_of_leaders(
    cluster: WireCluster, places: set[TopicPartition], question: LeaderQuestion[_Answer], deadline: Deadline
) -> dict[TopicPartition, _Answer]:
    """The answers about the partitions that have one; leaders that have moved are looked for once.

    Raises:
        Retriable: no broker answered about any.
    """
    found: dict[TopicPartition, _Answer] = {}
    trouble = ""
    with cluster.translated(question.what):
        until = until_of(deadline)
        lacking, known = places, cluster.leaders
        for again in (False, True):
            if unknown := {place[0] for place in lacking if again or place not in known}:
                cluster.refresh(unknown, until)
            trouble = _ask_leaders(cluster, lacking, question, until, found)
            lacking = places - found.keys()
            if not lacking:
                break
    if trouble and not found:
        raise Retriable(f"the cluster did not {question.what}: {trouble}", where=cluster.where)
    return found


def _ask_leaders(
    cluster: WireCluster,
    places: Iterable[TopicPartition],
    question: LeaderQuestion[_Answer],
    until: float,
    found: dict[TopicPartition, _Answer],
) -> str:
    """Ask each leader once; the last trouble, empty for none."""
    trouble = ""
    by_node: dict[int, dict[TopicPartition, Leader]] = {}
    for place in places:
        if (leader := cluster.leader(place)).node >= 0:
            by_node.setdefault(leader.node, {})[place] = leader
    for node, some in by_node.items():
        try:
            answer = question.read(cluster.ask(node, question.api, question.body(some), until))
        except TurnedAwayError:
            raise
        except OSError as exc:
            trouble = str(exc)
            continue
        for place, (error, told) in answer.items():
            if not error:
                found[place] = told
            elif error not in LEADER_MOVED:
                trouble = KafkaError(error).str()
    return trouble
