"""The first and the last stable offsets of partitions, from all of their leaders."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError
from mirrorless.adapters.kafka.wire.cluster import LEADER_MOVED, WireCluster, until_of
from mirrorless.adapters.kafka.wire.requests import LIST_OFFSETS, Leader, list_offsets, read_offsets
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import Deadline, TopicPartition


def listed_offsets(
    cluster: WireCluster, places: set[TopicPartition], timestamp: int, deadline: Deadline
) -> dict[TopicPartition, int]:
    """The offsets of the partitions that have one; leaders that have moved are looked for once.

    Args:
        cluster: of the partitions.
        places: the partitions.
        timestamp: `EARLIEST` or `LATEST`, of what a read_committed reader sees.
        deadline: for all of it.

    Raises:
        Retriable: no broker listed any.
    """
    found: dict[TopicPartition, int] = {}
    trouble = ""
    with cluster.translated("list its offsets"):
        until = until_of(deadline)
        lacking, known = places, cluster.leaders
        for again in (False, True):
            if unknown := {place[0] for place in lacking if again or place not in known}:
                cluster.refresh(unknown, until)
            trouble = _ask_leaders(cluster, lacking, timestamp, until, found)
            lacking = places - found.keys()
            if not lacking:
                break
    if trouble and not found:
        raise Retriable(f"the cluster did not list its offsets: {trouble}", where=cluster.where)
    return found


def _ask_leaders(
    cluster: WireCluster,
    places: Iterable[TopicPartition],
    timestamp: int,
    until: float,
    found: dict[TopicPartition, int],
) -> str:
    """Ask each leader once; the last trouble, empty for none."""
    trouble = ""
    by_node: dict[int, dict[TopicPartition, Leader]] = {}
    for place in places:
        if (leader := cluster.leader(place)).node >= 0:
            by_node.setdefault(leader.node, {})[place] = leader
    for node, some in by_node.items():
        try:
            answer = read_offsets(cluster.ask(node, LIST_OFFSETS, list_offsets(some, timestamp), until))
        except TurnedAwayError:
            raise
        except OSError as exc:
            trouble = str(exc)
            continue
        for place, (error, offset) in answer.items():
            if not error:
                found[place] = offset
            elif error not in LEADER_MOVED:
                trouble = KafkaError(error).str()
    return trouble
