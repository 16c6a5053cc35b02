"""The moment of arrival: a read_committed reader of the target has the last record of every partition.

Reading the stable ends costs next to nothing. Markers make an end larger than the number of records, so ends
only say when to look; the record that stands last says whether it is the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from itertools import product

from confluent_kafka import KafkaError, TopicPartition

from tests.benchmarks.beside_mm2.records import Shape
from tests.benchmarks.ground import Ground, reader

Place = tuple[str, int]
"""A topic of the target, and a partition."""
LOOK_EVERY_S = 0.02
BEFORE_THE_END = 10
"""How far before an end to begin to look for the last record: markers and nothing else may stand behind it."""
READ_S = 10.0


class NotArrivedError(Exception):
    """The records did not arrive in time, or who was to bring them is dead."""


def await_arrival(
    ground: Ground,
    topics: Collection[str],
    records: Shape,
    before: Mapping[Place, int],
    *,
    seconds: float,
    alive: Callable[[], str],
) -> float:
    """Wait until the records stand on topics of the target; the moment, on the clock of `time.perf_counter`.

    Args:
        ground: the clusters.
        topics: their names on the target.
        records: what was written to their sources.
        before: the ends of the topics before anything of it arrived.
        seconds: how long to wait.
        alive: why none arrive any more; empty while some may.

    Raises:
        NotArrivedError: saying how far they came.
    """
    deadline = time.perf_counter() + seconds
    waiting = set(product(topics, range(records.partitions)))
    looked: dict[Place, int] = {}
    while True:
        ends = ground.ends_of(topics)
        moment = time.perf_counter()
        there = {each for each in waiting if ends.get(each, 0) - before.get(each, 0) >= records.per_partition}
        fresh = {each: ends[each] for each in there if looked.get(each) != ends[each]}
        if fresh:
            looked |= fresh
            numbers = _last_numbers(ground, fresh)
            waiting -= {each for each, last in numbers.items() if last == records.per_partition - 1}
        if not waiting:
            return moment
        if reason := alive():
            raise NotArrivedError(f"{next(iter(topics))}: {reason}")
        if moment > deadline:
            came = sum(end - before.get(each, 0) for each, end in ends.items())
            raise NotArrivedError(
                f"{next(iter(topics))}: {came:,} of {records.count:,} records came within {seconds:.0f} s"
            )
        time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline


def _last_numbers(ground: Ground, ends: Mapping[Place, int]) -> dict[Place, int]:
    """The number of the last visible record before each end; a partition without any is absent."""
    consumer = reader(ground.target.bootstrap, enable_partition_eof=True, auto_offset_reset="earliest")
    found: dict[Place, int] = {}
    unread = set(ends)
    deadline = time.perf_counter() + READ_S
    try:
        consumer.assign([TopicPartition(*each, max(0, end - BEFORE_THE_END)) for each, end in ends.items()])
        while unread and time.perf_counter() < deadline:
            for message in consumer.consume(1000, timeout=0.05):
                place = message.topic() or "", message.partition() or 0
                error, value = message.error(), message.value()
                if error is None and value is not None:
                    found[place] = int(value[:8], 16)
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place)
    finally:
        consumer.close()
    return found
