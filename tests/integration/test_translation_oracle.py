"""The map of a lane with a rough life, held record by record against what consumers find on real clusters.

Transactions on the source, some of them aborted; compaction before a delivery, after it, and between a crash and the
retry; batches cut anew each time; crashes at every step; rivals that write the same batch. Each record carries a number
of its own, so the oracle needs no offset map, and does not use one.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest
from confluent_kafka import KafkaError, Message, Producer

from lab.servers.kafka import KafkaCluster
from mirrorless.errors import Retriable
from mirrorless.protocol import hooks
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.protocol.translate import OffsetMap
from tests.support.lane_stage import Crash, LaneStage, crash
from tests.support.readback import await_settled, read_topic
from tests.support.topics import broker_default
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

OTHERS = pytest.mark.soak(
    "tests/integration/test_translation_oracle.py::test_no_offset_is_placed_wrongly_by_a_single_record_in_either_direction"
)
SEEDS = some_of(range(2), 0, others=OTHERS)
ROUNDS = 5
PARTITIONS = 2
KEYS = 5
"""Few, so that compaction finds much to remove."""
SEGMENT_MS = 60_000
"""Of the records' own time: a record that is younger than its segment by more begins the next one."""
PATIENCE_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.2


@pytest.fixture
def eager_cleaner(clusters: tuple[KafkaCluster, KafkaCluster]) -> Iterator[None]:
    """The source looks for something to compact all the time, instead of every 15 s."""
    with broker_default(clusters[0].bootstrap, log_cleaner_backoff_ms="100"):
        yield


@dataclass(slots=True, kw_only=True)
class RoughLife:
    """What happens to the lanes of one topic, and what is known of each record."""

    stage: LaneStage
    chance: Random
    clock: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """Of the records, ms since the epoch. It begins with the broker's own: markers carry that."""
    upstream: dict[bytes, int] = field(default_factory=dict)
    """Upstream offset of every committed record, by its number, as the source acknowledged it."""
    newest: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    """The newest committed number of each key of each partition: what compaction leaves."""
    failures: int = 0
    """Invocations that died, or had to be repeated."""
    _numbers: int = 0
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        """Make the topics, and the producer of the source's records."""
        stage = self.stage
        stage.create(
            stage.source,
            stage.topic,
            PARTITIONS,
            cleanup_policy="compact",
            segment_ms=str(SEGMENT_MS),
            min_cleanable_dirty_ratio="0.0001",
            delete_retention_ms="1",
        )
        # The target keeps everything, so that each record can be found where it was put.
        stage.create(stage.target, stage.remote_topic, PARTITIONS)
        options = {"bootstrap.servers": stage.source.bootstrap, "transactional.id": stage.topic, "log_level": 0}
        self._producer = Producer(options)
        self._producer.init_transactions(30)

    # The source

    def produce(self) -> None:
        """A transaction over both partitions, perhaps aborted: each ends with a marker in the log."""
        places = {
            self._number(): (self.chance.randrange(PARTITIONS), b"key-%d" % self.chance.randrange(KEYS))
            for _ in range(self.chance.randint(1, 12))
        }
        self._write(places, commit=self.chance.random() < 0.7)

    def compact(self) -> None:
        """Let the broker leave nothing but the newest record of each key, and those that begin a new segment."""
        compacted = set(self.newest.values())
        self.clock += 2 * SEGMENT_MS
        first_of_segment = {self._number(): (partition, b"first") for partition in range(PARTITIONS)}
        self._write(first_of_segment, commit=True)

        expected = compacted | first_of_segment.keys()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (visible := {number for found in self.visible().values() for number, _ in found}) != expected:
            assert time.monotonic() < deadline, f"not compacted: {sorted(visible ^ expected)}"
            time.sleep(LOOK_EVERY_SECONDS)  # between two looks at the topic

    def _write(self, places: Mapping[bytes, tuple[int, bytes]], *, commit: bool) -> None:
        """A transaction of numbered records, each to a partition and with a key."""
        acknowledged: dict[bytes, int] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            value, offset = message.value(), message.offset()
            if error is None and isinstance(value, bytes) and offset is not None:
                acknowledged[value] = offset

        self._producer.begin_transaction()
        for number, (partition, key) in places.items():
            self.clock += 10
            self._producer.produce(
                self.stage.topic, number, key, partition, on_delivery=delivered, timestamp=self.clock
            )
        # What is to be aborted must have been written, too: otherwise it would leave nothing behind.
        assert self._producer.flush(30) == 0
        assert acknowledged.keys() == places.keys()
        if commit:
            self._producer.commit_transaction(30)
            await_settled(self.stage.source.bootstrap, self.stage.topic)
            self.upstream |= acknowledged
            self.newest |= {place: number for number, place in places.items()}
        else:
            self._producer.abort_transaction(30)

    # The forwarder

    def deliver(self) -> bool:
        """A batch that begins somewhere near each lane's position; False when there is nothing left to deliver."""
        stage, batch, left = self.stage, dict[str, list[int]](), False
        for partition, found in self.visible().items():
            lane = stage.lane(partition)
            position = stage.chains.heads([lane])[lane].position
            first = bisect_left([offset for _, offset in found], position)
            left = left or first < len(found)
            batch[f"p{partition}"] = [
                offset for _, offset in found[max(0, first - self.chance.randint(0, 4)) :][: self.chance.randint(1, 9)]
            ]
        if not left:
            return False
        self._replicate(stage.event(**batch))
        return True

    def _replicate(self, event: bytes) -> None:
        """One invocation in a new environment; it may die at a step, or a rival may be faster there."""
        stage, step = self.stage, self.chance.choice(STEPS)
        fate = self.chance.choice([None, crash, lambda: self._succeed(event)])
        done: list[Step] = []

        def observer(reached: Step) -> None:
            if reached == step and fate is not None and not done:
                done.append(reached)
                fate()

        environment = stage.environment()
        hooks.observers.append(observer)
        try:
            assert not stage.replicate(environment, event).stopped
        except (Crash, Retriable):
            self.failures += 1
            time.sleep(LOOK_EVERY_SECONDS)  # before the mapping delivers again; a doubt may wait for the broker
        finally:
            hooks.observers.remove(observer)

    def _succeed(self, event: bytes) -> None:
        """The rival's invocation."""
        assert not self.stage.replicate(self.stage.environment(), event).stopped

    # The oracle

    def targets(self) -> dict[int, list[tuple[int, int]]]:
        """Upstream and downstream offset of every record that consumers of the remote partitions find, in order."""
        return {
            partition: [(self.upstream[each.content.value or b""], each.offset) for each in found]
            for partition, found in self.stage.on_target().items()
        }

    def visible(self) -> dict[int, list[tuple[bytes, int]]]:
        """Number and upstream offset of every record that a consumer of the source finds."""
        topic = read_topic(self.stage.source.bootstrap, self.stage.topic)
        return {
            partition: [(each.content.value or b"", each.offset) for each in found]
            for partition, found in topic.items()
        }

    def _number(self) -> bytes:
        self._numbers += 1
        return b"%d" % self._numbers


@pytest.mark.usefixtures("eager_cleaner")
@pytest.mark.parametrize("seed", SEEDS)
def test_no_offset_is_placed_wrongly_by_a_single_record_in_either_direction(stage: LaneStage, seed: int) -> None:
    life = RoughLife(stage=stage, chance=Random(seed))
    for _ in range(ROUNDS):
        for _ in range(life.chance.randint(1, 3)):
            life.produce()
        for _ in range(life.chance.randint(0, 3)):
            life.deliver()
        if life.chance.random() < 0.5:
            life.compact()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while life.deliver():
        assert time.monotonic() < deadline, "the lanes do not come to their ends"

    offsets, found = OffsetMap(stage.chains), life.targets()
    gaps = 0
    for partition, records in found.items():
        lane = stage.lane(partition)
        head = stage.chains.heads([lane])[lane]
        upstream, downstream = [up for up, _ in records], [down for _, down in records]
        assert upstream == sorted(set(upstream)), "each record once, in order"
        assert {up for _, up in life.visible()[partition]} <= set(upstream), "nothing that is still there is missing"

        # A group that has read up to here on the source: which records does it find from its new place on?
        for committed in range(upstream[-1] + 3):
            place = offsets.downstream(lane, committed, head=head).offset
            assert place is not None
            assert upstream[bisect_left(downstream, place) :] == upstream[bisect_left(upstream, committed) :]
            assert place == ([*downstream, downstream[-1] + 1])[bisect_left(upstream, committed)]

        # And back.
        for committed in range(downstream[-1] + 3):
            place = offsets.upstream(lane, committed, head=head).offset
            assert place is not None
            assert upstream[bisect_left(upstream, place) :] == upstream[bisect_left(downstream, committed) :]
            assert place == ([*upstream, upstream[-1] + 1])[bisect_left(downstream, committed)]
        gaps += (upstream[-1] + 1 - len(upstream) > 0) + (downstream[-1] + 1 - len(downstream) > 1)
    assert gaps == 2 * PARTITIONS, "a history without gaps on both sides proves little"
    assert life.failures, "nor does one in which nothing failed"
