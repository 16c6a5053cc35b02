"""How many pollers a mapping has, how fast one of them goes, and its membership in the consumer group.

Of the membership: client configuration and starting positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Consumer, KafkaError

    from lab.esm.attempts import MappingParts
    from lab.esm.mapping_api import PollingOptions


def wanted_pollers(pollers: int, *, lag: int, lag_before: int, minimum: int, maximum: int) -> int:
    """Twice as many while a lag does not fall, one fewer while there is none.

    Args:
        pollers: that there are.
        lag: offsets to go, over all partitions.
        lag_before: the same at the last look.
        minimum: of the mapping's settings.
        maximum: the same, or the topic's partitions where these are fewer.
    """
    wanted = pollers
    if lag and lag >= lag_before:
        wanted = pollers * 2
    elif not lag:
        wanted = pollers - 1
    return max(minimum, min(wanted, maximum))


@dataclass(slots=True, kw_only=True)
class Throughput:
    """The pace of one poller's new payloads.

    Attributes:
        bytes_per_second: of their records; 0 for no limit.
        ready_at: when the next payload may go, on the monotonic clock.
    """

    bytes_per_second: float
    ready_at: float = 0.0

    def spend(self, size: int, now: float) -> None:
        """A payload of this size goes now."""
        if self.bytes_per_second:
            self.ready_at = max(now, self.ready_at) + size / self.bytes_per_second


_ANSWER_S = 10.0
"""How long the cluster may take to tell committed offsets and watermarks, before the poller starts afresh."""


def starting_positions(
    consumer: Consumer, options: PollingOptions, partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """Where to read each partition from: its committed offset if there is one, else the starting position.

    Raises:
        KafkaException: the cluster did not tell in time.
    """
    known = consumer.committed(partitions, timeout=_ANSWER_S) if partitions else []
    for position in known:
        if position.error is not None:
            raise KafkaException(position.error)
    return [TopicPartition(it.topic, it.partition, _start_of(consumer, options, it)) for it in known]


def _start_of(consumer: Consumer, options: PollingOptions, committed: TopicPartition) -> int:
    if committed.offset >= 0:
        return int(committed.offset)
    low, high = consumer.get_watermark_offsets(committed, timeout=_ANSWER_S)
    if options.starting_position == "TRIM_HORIZON":
        return int(low)
    if options.starting_position == "AT_TIMESTAMP":
        moment = TopicPartition(committed.topic, committed.partition, options.starting_timestamp_ms or 0)
        (found,) = consumer.offsets_for_times([moment], timeout=_ANSWER_S)
        return int(found.offset) if found.offset >= 0 else int(high)
    return int(high)


def client_config(
    wiring: MappingParts,
    *,
    number: int,
    on_commit: Callable[[KafkaError | None, Sequence[TopicPartition]], None],
    error_cb: Callable[[KafkaError], None],
) -> dict[str, Any]:
    """The consumer's configuration."""
    behaviour, options = wiring.behaviour, wiring.options
    return {
        **wiring.access(),
        "bootstrap.servers": wiring.bootstrap,
        "client.id": f"{wiring.uuid}-{number}",
        "group.id": options.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Only for a committed offset that the log no longer has; starts without one are computed at assignment.
        "auto.offset.reset": "latest" if options.starting_position == "LATEST" else "earliest",
        "isolation.level": behaviour.isolation_level,
        "check.crcs": True,  # as by Java's consumer
        "partition.assignment.strategy": behaviour.assignor,
        "session.timeout.ms": int(behaviour.session_timeout_s * 1000),
        "max.poll.interval.ms": int(behaviour.max_poll_interval_s * 1000),
        # A rebalance is noticed at a heartbeat; the lab does not want to wait for the default of 3 s.
        "heartbeat.interval.ms": min(500, int(behaviour.session_timeout_s * 250)),
        "topic.metadata.refresh.interval.ms": int(behaviour.metadata_refresh_s * 1000),
        # The end of a partition is how "drained" is known: control markers have offsets, but are no records.
        "enable.partition.eof": True,
        # A killed broker is back within seconds: look for it often.
        "reconnect.backoff.max.ms": 1000,
        # The client's own prefetch; its default back-off of 1 s when that is full would stall a backlog.
        "queued.max.messages.kbytes": 16 * 1024,
        "fetch.queue.backoff.ms": 10,
        "enable.metrics.push": False,
        "on_commit": on_commit,
        "error_cb": error_cb,
    }
