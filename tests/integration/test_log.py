"""One contract of `Log`: in memory, by the Kafka client, and by whole batches on our own connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.lane_log import ChunkedLog
from mirrorless.adapters.kafka.log import PULL, KafkaLog
from mirrorless.adapters.kafka.log_ranges import read_ranges
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.clock import deadline_in
from mirrorless.errors import RecordsGone
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.log import Arrivals, BoundedLog
from mirrorless.records.batch_records import records as records_in
from mirrorless.records.record import Record
from tests.support.memory_log import MemoryLog
from tests.support.topics import begin_transaction, create_topic, delete_before, transaction, transactional

QUIET = {"log_level": 0}


@dataclass
class Stage:
    """A topic of two partitions, and a log that reads it."""

    kind: str
    topic: str
    log: BoundedLog
    cluster: KafkaCluster | None = None

    @property
    def places(self) -> list[tuple[str, int]]:
        """Both partitions."""
        return [(self.topic, 0), (self.topic, 1)]

    @property
    def memory(self) -> MemoryLog:
        """The log, where it is one in memory."""
        assert isinstance(self.log, MemoryLog)
        return self.log

    def write(self, *counts: int, partition: int = 0) -> None:
        """Write batches of so many records."""
        if self.cluster is None:
            own = self.memory.partitions[self.topic, partition]
            self.memory.append((self.topic, partition), *range(own.end, own.end + sum(counts)))
            return
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 100, **QUIET})
        for count in counts:
            for _ in range(count):
                producer.produce(self.topic, b"v" * 50, b"k", partition)
            assert producer.flush(20) == 0

    def transaction(self, count: int, *, end: str = "commit") -> Callable[[], None]:
        """Write one to the first partition; `abort` it, or leave it `open`. What is returned commits it."""
        if self.cluster is None:
            own = self.memory.partitions[self.places[0]]
            if end == "open":
                return lambda: self.memory.append(self.places[0], *range(own.end, own.end + count), marker=True)
            self.memory.append(self.places[0], *range(own.end, own.end + count), marker=True, seen=end == "commit")
            return lambda: None
        producer, values = transactional(self.cluster.bootstrap), [b"t" * 50] * count
        if end == "open":
            begin_transaction(producer, self.topic, *values)
        else:
            transaction(producer, self.topic, *values, commit=end == "commit")
        return lambda: producer.commit_transaction(20)

    def delete_before(self, offset: int) -> None:
        """As retention does."""
        if self.cluster is None:
            self.memory.partitions[self.places[0]].start = offset
            return
        delete_before(self.cluster.bootstrap, self.topic, offset)

    def until(self, told: Callable[[Arrivals], Any], *, size: int = 10**6) -> Arrivals:
        """All that comes until it says so."""
        found, deadline = Arrivals(), deadline_in(20)
        while not told(found):
            assert deadline() > 0, found
            found.add(self.log.arrivals(0.5, records=1_000, size=size))
        return found


@pytest.fixture(params=["memory", "client", "wire"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    kind, topic = request.param, f"log-{uuid4().hex[:8]}"
    if kind == "memory":
        log = MemoryLog(few=3)
        for partition in (0, 1):
            log.partition((topic, partition))
        yield Stage(kind, topic, log)
        return
    cluster, _ = request.getfixturevalue("clusters")
    create_topic(cluster.bootstrap, topic, 2)
    settings = ClusterSettings(alias="source", bootstrap=cluster.bootstrap)
    real: BoundedLog = (
        KafkaLog(settings, flow="a->b", tuning=PULL) if kind == "client" else KafkaRawLog(settings, flow="a->b")
    )
    yield Stage(kind, topic, real, cluster)
    real.close()


def offsets(content: list[Any], first: int = 0, below: int = 10**6) -> list[int]:
    """Of records, or of those in batches, that are wanted."""
    some = [record for each in content for record in ([each] if isinstance(each, Record) else records_in(each))]
    return [each.offset for each in some if first <= each.offset < below]


def test_all_that_readers_see_comes_once_and_in_order_up_to_the_stable_end(stage: Stage) -> None:
    one, other = stage.places
    stage.write(2, 3)
    stage.transaction(2)
    stage.transaction(2, end="abort")
    stage.write(1, partition=1)
    stage.log.follow({one: 0, other: 0})

    found = stage.until(lambda found: found.ended.get(one) == 11 and found.ended.get(other) == 1)

    assert offsets(found.records[one]) == [0, 1, 2, 3, 4, 5, 6]
    assert offsets(found.records[other]) == [0]
    assert 7 <= found.covered[one] <= 11
    assert found.epochs.keys() == {one, other}
    assert found.bytes > 0
    assert stage.log.stable_ends(stage.places, deadline_in(20)) == {one: 11, other: 1}


def test_nothing_comes_from_behind_what_is_wanted_and_the_next_range_may_follow(stage: Stage) -> None:
    place = stage.places[0]
    stage.write(10, 10, 10)
    stage.log.follow({place: 5}, {place: 12})

    found = stage.until(lambda found: found.covered.get(place, 0) >= 12)
    found.add(stage.log.arrivals(0.5, records=1_000, size=10**6))

    assert offsets(found.records[place], 5, 12) == [*range(5, 12)]
    assert max(offsets(found.records[place])) < 20, "a batch at most reaches beyond"
    assert found.ended.get(place, 0) < 20
    stage.log.leave([place])
    stage.log.follow({place: 25}, {place: 30})
    behind = stage.until(lambda found: found.covered.get(place, 0) >= 30)
    assert offsets(behind.records[place], 25) == [*range(25, 30)]


def test_what_an_open_transaction_hides_comes_once_it_ends(stage: Stage) -> None:
    place = stage.places[0]
    stage.write(2)
    commit = stage.transaction(2, end="open")
    stage.log.follow({place: 0})
    assert offsets(stage.until(lambda found: found.ended.get(place) == 2).records[place]) == [0, 1]

    commit()

    assert offsets(stage.until(lambda found: found.ended.get(place) == 5).records[place]) == [2, 3]


@pytest.mark.parametrize("offset", [3, 30], ids=["deleted by retention", "beyond the end"])
def test_an_offset_that_the_log_does_not_hold_is_told(stage: Stage, offset: int) -> None:
    one, other = stage.places
    stage.write(2, 3, 5)
    stage.write(1, partition=1)
    stage.delete_before(4)
    stage.log.follow({one: offset, other: 0})

    found = stage.until(lambda found: found.out_of_range and other in found.ended)

    assert (found.out_of_range, list(found.records)) == ({one}, [other])
    assert stage.log.starts(stage.places, deadline_in(20)) == {one: 4, other: 0}
    stage.log.leave([one])
    stage.log.follow({one: 4})
    assert offsets(stage.until(lambda found: one in found.ended).records[one], 4) == [*range(4, 10)]


def test_what_is_asked_for_bounds_what_comes_but_something_does(stage: Stage) -> None:
    place = stage.places[0]
    stage.write(*[1] * 6)
    stage.log.follow({place: 0})
    seen: list[int] = []

    while len(seen) < 6:
        some = offsets(stage.until(lambda found: found.covered, size=1).records[place])
        assert len(some) == 1
        seen += some

    assert seen == [*range(6)]


def test_what_does_not_exist_is_left_out(stage: Stage) -> None:
    one, other = stage.places
    asked = [one, other, ("nowhere", 0), (stage.topic, 7)]

    assert stage.log.starts(asked, deadline_in(5)) == {one: 0, other: 0}
    assert stage.log.stable_ends(asked, deadline_in(5)) == {one: 0, other: 0}


def test_ranges_and_chunks_are_read_of_it(stage: Stage) -> None:
    """What stands on the port: ranges side by side, of which one begins below the log, and a lane whole."""
    one, other = stage.places
    stage.write(5, 5, 5)
    stage.transaction(2)
    stage.write(4, partition=1)
    stage.delete_before(5)
    wanted = {one: [(1, 6), (12, 40)], other: [(1, 3)]}
    seen: dict[Any, list[Any]] = {one: [], other: []}
    last = {}

    for part in read_ranges(stage.log, wanted, deadline_in(20)):
        seen[part.place] += part.records
        last[part.place] = part

    assert {offset for offset in offsets(seen[one]) if 5 <= offset < 6 or offset >= 12} == {5, 12, 13, 14, 15, 16}
    assert offsets(seen[other], 1, 3) == [1, 2]
    assert [(last[place].until, last[place].over, last[place].failure) for place in (one, other)] == [
        (18, True, None),
        (3, True, None),
    ]
    assert (last[one].log_start, last[other].log_start) == (5, 0)

    chunked = ChunkedLog(lambda: stage.log, where="a")
    chunks = list(chunked.read(one, OffsetRange(7, 18), lambda: 60.0))
    assert offsets([each for some, _ in chunks for each in some], 7) == [*range(7, 17)]
    assert chunks[-1][1] == 18
    with pytest.raises(RecordsGone, match="upstream offset 2 any more"):
        list(chunked.read(one, OffsetRange(2, 18), lambda: 60.0))
