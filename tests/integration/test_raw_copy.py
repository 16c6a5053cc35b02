"""Whole batches through our own client of the protocol, on real brokers: what arrives, and what a fault leaves.

The batches are those of Java's and of librdkafka's producers, and both clients read what arrived.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource

from lab.servers.kafka import KafkaCluster
from lab.servers.process import running
from mirrorless.adapters.kafka.committed_log import KafkaCommittedLog
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.kafka.log import PULL, KafkaLog
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.chain.run import spans_of
from mirrorless.clock import deadline_in
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.records.batch_records import packed, records
from mirrorless.records.record import Record
from mirrorless.records.record_batch import CODECS, BatchUnreadable, PassTerms, RecordBatch, batch_digest, obstacle
from mirrorless.verify.run_ranges import RunRange
from mirrorless.verify.walk import judge_batches
from tests.support.batch_writers import write_by_librdkafka
from tests.support.chains import run
from tests.support.java_client import Given, read_by_java, write_by_java
from tests.support.readback import Content, await_settled, read_topic
from tests.support.topics import admin_of, create_topic
from tests.support.tries import some_of

pytestmark = pytest.mark.integration
FAULTS = pytest.mark.soak("tests/unit/adapters/test_kafka_wire.py::test_any_faults_leave_each_batch_once_and_in_order")

TERMS = PassTerms(max_message_bytes=1_000_000)
KINDS = ("plain", "idempotent", "transactional")
ROUNDS = 10
SEEDS = int(os.environ.get("SEEDS", "1"))
WRITERS = [(codec, kind) for codec in CODECS for kind in KINDS]
"""Each has a partition of its own."""


def settings_of(cluster: KafkaCluster) -> ClusterSettings:
    return ClusterSettings(alias=cluster.alias, bootstrap=cluster.bootstrap)


@dataclass(slots=True, kw_only=True)
class RawCopy:
    """A copy of one topic by the two ends that are tested."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    log: KafkaRawLog
    obstacles: Counter[str | None] = field(default_factory=Counter)
    digests: dict[int, list[bytes]] = field(default_factory=dict)
    """Of what was produced, by partition."""

    def writer(self, name: str = "", *, seconds: float = 20) -> RawWriter:
        """A producer; those of one name fence each other."""
        return RawWriter(
            settings_of(self.target),
            flow="a->b",
            transactional_id=f"{self.topic}{name}",
            timeout_ms=20_000,
            deadline=deadline_in(seconds),
        )

    def run(self, positions: Mapping[int, int], *, size: int = 10**6, terms: PassTerms = TERMS) -> dict[int, int]:
        """Copy all from the positions on, each round a transaction; how far each partition was covered."""
        at, ends = dict(positions), set[int]()
        self.log.follow({(self.topic, partition): offset for partition, offset in positions.items()})
        writer, deadline = self.writer(), deadline_in(60)
        while len(ends) < len(positions):
            assert deadline() > 0, f"the ends were not reached: {at}"
            arrivals = self.log.arrivals(1.0, records=10**6, size=size)
            lanes = {}
            for place, batches in arrivals.records.items():
                lanes[place] = self.outgoing(batches, at[place[1]], terms)
                self.digests.setdefault(place[1], []).append(batch_digest(lanes[place]))
            delivered = writer.write(lanes, deadline_in(20))
            assert [len(each.downstream) for each in delivered.values()] == [len(lanes[p]) for p in delivered]
            writer.commit(deadline_in(20))
            for (_, partition), offset in arrivals.covered.items():
                assert offset > at[partition]
                at[partition] = offset
            ends |= {partition for _, partition in arrivals.ended}
        writer.close()
        await_settled(self.target.bootstrap, self.topic)
        self.log.leave([(self.topic, partition) for partition in positions])
        return at

    def outgoing(self, batches: Sequence[RecordBatch], position: int, terms: PassTerms) -> list[RecordBatch]:
        """What is produced of these batches."""
        found: list[RecordBatch] = []
        for batch in batches:
            why = obstacle(batch, terms, position=position)
            self.obstacles[why] += 1
            if why is None:
                found.append(batch)
            else:
                some = [each for each in records(batch) if each.offset >= position]
                found += packed(some, batch.codec, max_bytes=terms.max_message_bytes)
        return found


@pytest.fixture
def copy(clusters: tuple[KafkaCluster, KafkaCluster]) -> Iterator[RawCopy]:
    source, target = clusters
    log = KafkaRawLog(settings_of(source), flow="a->b")
    yield RawCopy(source=source, target=target, topic=f"raw-{uuid4().hex[:8]}", log=log)
    log.close()


# Byte for byte


def some_bytes(chance: Random) -> bytes | None:
    return chance.choice([None, b"", b"\x00", chance.randbytes(chance.randint(1, 60)), b"again " * 20])


def some_records(chance: Random, count: int) -> list[Given]:
    now = 1_763_700_000_000
    return [
        Given(
            key=some_bytes(chance),
            value=some_bytes(chance),
            headers=tuple(
                (chance.choice(["", "a", "käse", "🦊", "n" * 200]), some_bytes(chance))
                for _ in range(chance.choice([0, 0, 0, 1, 3]))
            ),
            timestamp=chance.choice([1, now - chance.randint(0, 10**11), now + i, now]),
        )
        for i in range(count)
    ]


def some_script(chance: Random, *, java: bool) -> list[list[Any]]:
    """Orders for a producer: see `WriteRecords.java`."""
    script: list[list[Any]] = []
    for partition, (codec, kind) in enumerate(WRITERS):
        script.append(["producer", codec, kind])
        sizes = [1, *(chance.choice([1, 2, 50, 300]) for _ in range(3))]
        if partition == chance.randrange(3):
            sizes.append(10_000)
        for size in sizes:
            ending = [chance.choice(["commit", "commit", "abort"])] if kind == "transactional" else ["flush"]
            script += [["begin"]] if kind == "transactional" else []
            script += [["record", partition, each] for each in some_records(chance, size)]
            script += [ending]
        if kind == "transactional":
            script += [["begin"], ["record", partition, Given(value=b"the last one")], ["commit"]]
    if java:
        script.append(["record", len(WRITERS) - 1, Given(timestamp=0)])  # librdkafka takes 0 for now
        script[-1:-1] = [["begin"]]
        script.append(["commit"])
    return script


@pytest.mark.java
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("write", [write_by_java, write_by_librdkafka])
def test_batches_arrive_as_they_lie_in_the_source(
    write: Callable[..., None], seed: int, copy: RawCopy, tmp_path: Path
) -> None:
    """Every codec and kind of producer, aborted transactions, and positions inside batches."""
    chance = Random(f"{seed} {write.__name__}")
    create_topic(copy.source.bootstrap, copy.topic, len(WRITERS))
    create_topic(copy.target.bootstrap, copy.topic, len(WRITERS))
    write(copy.source.bootstrap, copy.topic, some_script(chance, java=write is write_by_java), tmp_path)
    there = read_topic(copy.source.bootstrap, copy.topic)
    positions = {
        partition: chance.choice([0, chance.choice(seen).offset]) if seen else 0 for partition, seen in there.items()
    }
    wanted = {
        partition: [each.content for each in seen if each.offset >= positions[partition]]
        for partition, seen in there.items()
    }

    covered = copy.run(positions, size=chance.choice([1, 10**6]))

    # All of it was read, most of it passed, and what passed is the same batch.
    assert sum(map(len, wanted.values())) > 1000
    ends = copy.log.stable_ends([(copy.topic, partition) for partition in positions], deadline_in(20))
    assert covered == {partition: end for (_, partition), end in ends.items()}
    assert copy.obstacles[None] > 30
    assert 0 < copy.obstacles["cut"] <= len(WRITERS)
    assert set(copy.obstacles) == {None, "cut"}

    # Both clients read on the target what they read on the source.
    arrived = read_topic(copy.target.bootstrap, copy.topic)
    assert {partition: [each.content for each in seen] for partition, seen in arrived.items()} == wanted
    by_java = read_by_java(copy.target.bootstrap, copy.topic, tmp_path)
    read = {
        partition: [Content(each.key, each.value, each.headers, each.timestamp) for each in seen]
        for partition, seen in by_java.items()
    }
    assert read == {partition: contents for partition, contents in wanted.items() if contents}
    assert {each.type for seen in by_java.values() for each in seen} == {"CreateTime"}
    proved(copy, covered)


def proved(copy: RawCopy, partitions: Mapping[int, int]) -> None:
    """What lies on the target has the digests of what was produced, transaction by transaction."""
    log = KafkaRawLog(settings_of(copy.target), flow="a->b")
    log.follow({(copy.topic, partition): 0 for partition in partitions})
    found: dict[int, list[RecordBatch]] = {}
    ended: set[Any] = set()
    deadline = deadline_in(30)
    while len(ended) < len(partitions):
        assert deadline() > 0
        arrivals = log.arrivals(1.0, records=10**6, size=10**8)
        ended |= arrivals.ended.keys()
        for (_, partition), some in arrivals.records.items():
            found.setdefault(partition, []).extend(some)
    log.close()
    for partition, digests in copy.digests.items():
        batches, at = found[partition], 0
        for digest in digests:
            following = next(i for i in range(at + 1, len(batches) + 1) if batch_digest(batches[at:i]) == digest)
            at = following
        assert at == len(batches)


def test_batches_that_the_target_stamps_have_the_digest_of_what_was_produced_and_are_not_proved(
    copy: RawCopy,
) -> None:
    """The payload stays, and readers get the target's time: that is in the header."""
    create_topic(copy.source.bootstrap, copy.topic)
    create_topic(copy.target.bootstrap, copy.topic, message_timestamp_type="LogAppendTime")
    given = [Given(key=b"k", value=b"%d" % i, timestamp=1_000 + i) for i in range(5)]
    script: list[list[Any]] = [["producer", "zstd", "plain"], *(["record", 0, each] for each in given), ["flush"]]
    write_by_librdkafka(copy.source.bootstrap, copy.topic, script, Path())
    there = read_topic(copy.source.bootstrap, copy.topic)[0]

    copy.run({0: 0})

    proved(copy, {0: 5})
    arrived = read_topic(copy.target.bootstrap, copy.topic)[0]
    assert [each.content.value for each in arrived] == [each.content.value for each in there]
    assert all(each.content.timestamp > 10**12 for each in arrived)
    log = KafkaRawLog(settings_of(copy.target), flow="a->b")
    log.follow({(copy.topic, 0): 0})
    arrivals = log.arrivals(5.0, records=10, size=10**6)
    log.close()
    batches = arrivals.records[copy.topic, 0]
    spans = spans_of([each.offset for each in there], [each.offset for each in arrived])
    written = replace(
        run(0, 5, *((span.upstream, span.downstream, span.length) for span in spans)),
        digest=copy.digests[0][0],
        digest_of="batches",
        newest_timestamp=1_004,
    )
    assert judge_batches(RunRange.of_copies(written), batches).state == "wrong"


# Refusals, fences, and a log that is not what it was


def batches_of(*values: bytes, count: int = 1) -> list[RecordBatch]:
    """As many batches, each with these values and a number."""
    return [
        batch
        for number in range(count)
        for batch in packed(
            [Record(0, 1_700_000_000_000, [], b"%d" % number, value) for value in values], "lz4", max_bytes=10**7
        )
    ]


def values_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[bytes | None]:
    await_settled(cluster.bootstrap, topic)
    return [each.content.value for each in read_topic(cluster.bootstrap, topic)[partition]]


def numbers_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[int]:
    await_settled(cluster.bootstrap, topic)
    return [int(each.content.key or b"-1") for each in read_topic(cluster.bootstrap, topic)[partition]]


def test_what_was_aborted_is_not_seen_and_the_same_producer_writes_again(copy: RawCopy) -> None:
    create_topic(copy.target.bootstrap, copy.topic, 2)
    writer, deadline = copy.writer(), deadline_in(60)
    places = [(copy.topic, 0), (copy.topic, 1)]

    for value, ending in ((b"a", writer.commit), (b"b", writer.abort), (b"c", writer.abort), (b"d", writer.commit)):
        first = writer.write({place: batches_of(value, b"2", count=7) for place in places}, deadline)
        again = writer.write({places[0]: batches_of(value), places[1]: []}, deadline)
        assert not again[places[1]].downstream
        assert again[places[0]].downstream[0] == first[places[0]].downstream[-1] + 2
        ending(deadline)
    writer.close()

    assert set(values_of(copy.target, copy.topic)) == {b"a", b"d", b"2"}
    assert values_of(copy.target, copy.topic).count(b"d") == 8
    assert values_of(copy.target, copy.topic, 1).count(b"d") == 7


def test_a_producer_that_was_fenced_writes_and_commits_nothing(copy: RawCopy) -> None:
    create_topic(copy.target.bootstrap, copy.topic)
    place, deadline = (copy.topic, 0), deadline_in(60)
    first = copy.writer()
    first.write({place: batches_of(b"of the zombie")}, deadline)
    second = copy.writer()  # of the same id

    with pytest.raises(Retriable, match=r"(?i)epoch|fenced"):
        first.commit(deadline)
    with pytest.raises(Retriable, match=r"(?i)epoch|fenced"):
        first.write({place: batches_of(b"of the zombie again")}, deadline)
    second.write({place: batches_of(b"of its successor")}, deadline)
    second.commit(deadline)
    first.close()
    second.close()

    assert values_of(copy.target, copy.topic) == [b"of its successor"]


def test_a_refusal_names_the_batch_and_what_was_taken_before_it(copy: RawCopy) -> None:
    create_topic(copy.target.bootstrap, copy.topic, 2, max_message_bytes="2000")
    writer, deadline = copy.writer(), deadline_in(60)
    too_large = packed([Record(0, 0, [], None, bytes(5000))], "none", max_bytes=10**6)
    some = [*batches_of(b"a", count=3), *too_large, *batches_of(b"b", count=3)]

    delivered = writer.write({(copy.topic, 0): some, (copy.topic, 1): batches_of(b"c")}, deadline)
    refusal = delivered[copy.topic, 0].refusal

    assert refusal is not None
    assert (refusal.index, list(delivered[copy.topic, 0].downstream)) == (3, [0, 1, 2])
    assert delivered[copy.topic, 1].refusal is None
    writer.abort(deadline)
    writer.write({(copy.topic, 0): batches_of(b"d")}, deadline)
    writer.commit(deadline)
    writer.close()
    assert values_of(copy.target, copy.topic) == [b"d"]


def test_a_record_without_a_key_is_refused_where_the_log_is_compacted(copy: RawCopy) -> None:
    create_topic(copy.target.bootstrap, copy.topic, cleanup_policy="compact")
    (batch,) = packed([Record(0, 0, [], key, b"v") for key in (b"k", None)], "lz4", max_bytes=10**6)
    writer = copy.writer()

    refusal = writer.write({(copy.topic, 0): [batch]}, deadline_in(20))[copy.topic, 0].refusal

    assert refusal is not None
    assert (refusal.cause, list(refusal.records)) == ("INVALID_RECORD", [1])
    assert "Compacted topic cannot accept message without key" in refusal.detail
    writer.close()


def test_no_reader_takes_a_batch_whose_bytes_have_changed_on_the_disk_and_all_find_its_end(copy: RawCopy) -> None:
    """One bit, while the broker is stopped: the broker itself gives the batch away as it lies there."""
    place, wanted = (copy.topic, 0), OffsetRange(0, 30)
    create_topic(copy.source.bootstrap, copy.topic)
    producer = Producer({"bootstrap.servers": copy.source.bootstrap, "linger.ms": 50})
    for batch in range(3):
        for number in range(10):
            producer.produce(copy.topic, b"value %d" % (batch * 10 + number), b"k", 0)
        assert producer.flush(20) == 0
    copy.source.stop()
    (log,) = copy.source.log.parent.rglob(f"{copy.topic}-0/*.log")
    stored = log.read_bytes()
    log.write_bytes(stored.replace(b"value 15", b"value 14"))
    copy.source.start()

    copy.log.follow({place: 0})
    raw = until_unreadable(lambda: copy.log.arrivals(1.0, records=10**6, size=10**6), place)
    client = KafkaLog(settings_of(copy.source), flow="a->b", tuning=PULL)
    client.follow({place: 0})
    pulled = until_unreadable(lambda: client.arrivals(1.0, records=10**6, size=10**6), place)
    assert client.arrivals(1.0, records=10**6, size=10**6).records == {}, "the client itself goes on behind it"
    client.close()
    job = KafkaLaneLog(settings_of(copy.source), flow="a->b").read(*place, wanted, deadline_in(20))
    assert [record.offset for record in next(job).records] == list(range(10))
    with pytest.raises(BatchUnreadable) as by_job:
        next(job)

    assert [batch.next for batch in raw.records[place]] == [10]
    assert [record.offset for record in pulled.records[place]] == list(range(10))
    for exc in (raw.unreadable[place], pulled.unreadable[place], by_job.value):
        assert (exc.offset, exc.next, exc.cause) == (10, 20, "DAMAGED")
    behind = next(
        KafkaLaneLog(settings_of(copy.source), flow="a->b").read(*place, OffsetRange(20, 30), deadline_in(20))
    )
    assert [record.offset for record in behind.records] == list(range(20, 30))
    by_ranges = KafkaCommittedLog(settings_of(copy.source), flow="a->b")
    for ranges, until, damaged in (([(0, 30)], 10, True), ([(3, 5), (12, 15)], 10, True), ([(4, 8)], 8, False)):
        (read,) = by_ranges.read({place: ranges}, deadline_in(20), near=1, size=10**6).values()
        assert read.until == until
        assert [record.offset for record in read.records] == list(range(ranges[0][0], min(ranges[0][1], 10)))
        assert (None if read.damage is None else (read.damage.offset, read.damage.next)) == (
            (10, 20) if damaged else None
        )


def until_unreadable(arrivals: Callable[[], Any], place: tuple[str, int]) -> Any:
    """All that came until a batch could not be read."""
    found, until = arrivals(), time.monotonic() + 20
    while place not in found.unreadable:
        assert time.monotonic() < until
        more = arrivals()
        for each, some in more.records.items():
            found.records.setdefault(each, []).extend(some)
        found.unreadable |= more.unreadable
    return found


# A distance, and answers that are lost


@pytest.fixture
def far_copy(copy: RawCopy, distant: KafkaCluster) -> Iterator[RawCopy]:
    copy.target = distant
    yield copy
    distant.link.restore()
    distant.link.round_trip_ms = 0


def test_batches_go_five_at_a_time_over_a_distance(far_copy: RawCopy) -> None:
    create_topic(far_copy.target.bootstrap, far_copy.topic, 3)
    writer, deadline = far_copy.writer(), deadline_in(60)
    some = {(far_copy.topic, partition): batches_of(bytes(1000), count=20) for partition in range(3)}
    writer.write({place: batches[:1] for place, batches in some.items()}, deadline)  # connections are there
    far_copy.target.link.round_trip_ms = 500

    began = time.monotonic()
    writer.write(some, deadline)
    took = time.monotonic() - began
    writer.commit(deadline)
    writer.close()

    assert took < 20 * 0.5 / 2  # five at a time take 2 s, and leave a busy machine 3
    assert numbers_of(far_copy.target, far_copy.topic) == [0, *range(20)]


@pytest.mark.parametrize("silently", [True, False])
@pytest.mark.parametrize("seed", some_of(range(3), 0, others=FAULTS))
def test_answers_that_are_lost_cost_no_batch_and_double_none(*, seed: int, silently: bool, far_copy: RawCopy) -> None:
    """The link is cut at any moment of a transaction, and is back soon: a reset loses what was under way."""
    create_topic(far_copy.target.bootstrap, far_copy.topic, 2)
    chance, link = Random(seed), far_copy.target.link
    writer, deadline = far_copy.writer(), deadline_in(60)
    link.round_trip_ms = 5
    stop = threading.Event()

    def cuts() -> None:
        while not stop.wait(chance.uniform(0.02, 0.5)):
            link.cut(silently=silently)
            time.sleep(chance.uniform(0, 0.05))  # the fault itself
            link.restore()

    thread = threading.Thread(target=cuts)
    thread.start()
    before = link.connections
    try:
        for number in range(ROUNDS):
            some = batches_of(b"%d" % number * 500, b"2", count=40)
            delivered = writer.write({(far_copy.topic, partition): some for partition in range(2)}, deadline)
            assert [len(each.downstream) for each in delivered.values()] == [40, 40]
            writer.commit(deadline)
    finally:
        stop.set()
        thread.join()
        writer.close()

    assert silently or link.connections > before
    for partition in range(2):
        assert (
            numbers_of(far_copy.target, far_copy.topic, partition) == [i for i in range(40) for _ in range(2)] * ROUNDS
        )


# Three brokers


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(alias="eu-west", folder=tmp_path_factory.mktemp("trio"), brokers=3)
    with running(cluster):
        yield cluster


def test_leaders_that_move_cost_no_batch_and_double_none(  # noqa: PLR0915 -- what was written is read twice
    copy: RawCopy, trio: KafkaCluster
) -> None:
    """A broker is killed while batches are under way, and comes back; then all of it is read.

    A transaction that a failure spoils is written again, as the protocol does: no part of it may be seen twice.
    """
    copy.source = copy.target = trio
    create_topic(trio.bootstrap, copy.topic, 6, -1)
    resource = ConfigResource(ConfigResource.Type.TOPIC, copy.topic)
    described = admin_of(trio.bootstrap).describe_configs([resource])[resource].result(20)
    assert described["min.insync.replicas"].value == "2"
    places = [(copy.topic, partition) for partition in range(6)]
    done, spoilt, stop = 0, 0, threading.Event()

    def faults() -> None:
        broker = trio.brokers[0]
        stop.wait(0.5)
        broker.kill()
        stop.wait(0.5)
        broker.start()
        stop.set()

    thread = threading.Thread(target=faults)
    thread.start()
    deadline = deadline_in(150)
    writer = copy.writer()
    try:
        while not stop.is_set() or done < 20:
            assert deadline() > 0, f"{done} transactions"
            some = batches_of(b"%d" % done, count=20)
            try:
                writer.write(dict.fromkeys(places, some), deadline_in(15))
            except Retriable:
                spoilt += 1
                writer.close()
                writer = copy.writer()
                continue
            writer.commit(deadline_in(30))
            done += 1
            stop.wait(0.1)  # how many there are until the broker is back is not what is tested
    finally:
        stop.set()
        thread.join()
        writer.close()

    for topic in (copy.topic, "__transaction_state"):
        shown = admin_of(trio.bootstrap).list_topics(topic, timeout=20).topics[topic].partitions.values()
        assert {tuple(sorted(each.replicas)) for each in shown} == {(1, 2, 3)}
    # A reader that goes through all leaders sees each batch once, in order.
    await_settled(trio.bootstrap, copy.topic)
    log = KafkaRawLog(settings_of(trio), flow="a->b")
    log.follow(dict.fromkeys(places, 0))
    seen: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(6)}
    ended: set[Any] = set()
    while len(ended) < 6:
        assert deadline() > 0, f"ended: {ended}"
        arrivals = log.arrivals(1.0, records=10**6, size=10**6)
        ended |= arrivals.ended.keys()
        for (_, partition), batches in arrivals.records.items():
            some_records = [record for batch in batches for record in records(batch)]
            seen[partition] += [(int(each.value or b""), int(each.key or b"")) for each in some_records]
    wanted = [(number, i) for number in range(done) for i in range(20)]
    assert seen == dict.fromkeys(range(6), wanted), spoilt

    # Where the leader has moved: what was fetched under the first one is not what a later one has behind its end.
    following = log.stable_ends(places, deadline_in(20))
    log.leave(places)
    log.follow({place: offset - 1 for place, offset in following.items()})
    for reading in log._readings.values():
        reading.last_epoch = 0
    told: dict[Any, int] = {}
    while len(told) < 2:
        assert deadline() > 0, f"truncated: {told}"
        told |= log.arrivals(1.0, records=10**6, size=10**6).truncated
    assert all(0 <= end < following[place] - 1 for place, end in told.items())
    log.close()
