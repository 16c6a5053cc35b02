"""The client of whole batches against a broker in this process that answers as it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from struct import pack, unpack_from
from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError, Uuid
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs, read_topic_ids
from mirrorless.adapters.kafka.wire import cluster, raw_log
from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError, _scram
from mirrorless.adapters.kafka.wire.connection import BrokerConnection, ready
from mirrorless.adapters.kafka.wire.fetch import WantedPart, fetch_request, read_fetched
from mirrorless.adapters.kafka.wire.open_transactions import OpenProducer, open_producers
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog, committed
from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.adapters.kafka.wire.requests import EPOCH_ENDS, NEEDED, string
from mirrorless.clock import deadline_in
from mirrorless.errors import NotAcknowledged, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import EpochEnd
from mirrorless.ports.log import Arrivals
from mirrorless.records.batch_records import packed
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch, batches, produced

CONTROL, TRANSACTIONAL = 0x20, 0x10


def some(count: int) -> list[RecordBatch]:
    """Batches of two records, each with its number as its key."""
    return [
        batch
        for i in range(count)
        for batch in packed([Record(0, 0, [], b"%d" % i, b"v")] * 2, "none", max_bytes=10**6)
    ]


class FakeBroker:
    """One broker with one partition. It keeps a producer's batches as a broker does, and has a fault for each request.

    Attributes:
        log: base sequence and first key of each batch that was appended.
        faults: what becomes of the next produce requests: an error, `lost` (appended, and the connection breaks),
            `dropped` (the connection breaks before), `hangs` (no answer before the broker stops), or None.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = []
        self.faults: deque[int | str | None] = deque()
        self.sequences: list[int] = []
        self.epoch = -1
        self.end_faults: deque[int] = deque()
        self.fetches: deque[bytes] = deque()
        self.unanswered_metadata = 0
        self.throttle_ms = 0
        self.transactions: dict[int, bytes] = {}
        self.accepts_any_first = False
        self.produced_at: list[float] = []
        self._next = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self.clients = contextlib.ExitStack()
        """Closed before it stops."""
        self._stopped = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def cluster(self) -> ClusterSettings:
        """How clients reach it."""
        return ClusterSettings(alias="fake", bootstrap=f"127.0.0.1:{self.port}")

    def stop(self) -> None:
        """Close everything."""
        self.clients.close()
        self._stopped.set()
        self._server.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                request = memoryview(stream.read(int.from_bytes(head)))
                api, _, correlation, client = unpack_from(">hhih", request)
                asked = request[10 + client :]
                answer = self.transactions.get(api) if api in {61, 66} else self.answer(api, asked)
                if answer is None:
                    return
                answer = pack(">i", correlation) + (b"\0" if api in {1, 61, 66} else b"") + answer
                connection.sendall(len(answer).to_bytes(4) + answer)

    def answer(self, api: int, body: memoryview) -> bytes | None:  # noqa: PLR0911 -- one for each request
        """None breaks the connection."""
        host = string("127.0.0.1") + pack(">i", self.port)
        match api:
            case 0:
                return self._produce(body)
            case 1:
                return self.fetches.popleft() if self.fetches else pack(">ihi", 0, 0, 0) + b"\x01\0"
            case 3:
                if body[:4] == pack(">i", 1) and self.unanswered_metadata:
                    self.unanswered_metadata -= 1
                    return None
                brokers = pack(">ii", 1, 1) + host + string(None) + string("id") + pack(">i", 1)
                partition = pack(">hiii", 0, 0, 1, 5) + pack(">iii", 0, 0, 0)
                return (
                    pack(">i", 0)
                    + brokers
                    + body[:4]
                    + (pack(">h", 0) + string("t") + b"\0" + pack(">i", 1) + partition if body[:4] != bytes(4) else b"")
                )
            case 10:
                return pack(">ih", 0, 0) + string(None) + pack(">i", 1) + host
            case 18:
                served = b"".join(pack(">hhh", number, 0, version) for number, version in NEEDED)
                return pack(">hi", 0, len(NEEDED)) + served
            case 22:
                self.epoch += 1
                self._next = 0
                return pack(">ihqh", 0, 0, 7, self.epoch)
            case 24:
                return pack(">ii", 0, 1) + string("t") + pack(">iih", 1, 0, 0)
            case 26:
                return pack(">ih", 0, self.end_faults.popleft() if self.end_faults else 0)
        raise AssertionError(api)

    def _produce(self, body: memoryview) -> bytes | None:
        self.produced_at.append(time.monotonic())
        fault = self.faults.popleft() if self.faults else None
        if fault == "hangs":
            self._stopped.wait(30)
        if fault in ("dropped", "hangs"):
            return None
        at = 2 + int.from_bytes(body[:2]) + 2 + 4 + 4 + 3 + 4  # ids, topics, the topic's name, partitions
        (batch,) = batches(body[at + 8 :])
        self.sequences.append(batch.base_sequence)
        error, base = (fault, -1) if isinstance(fault, int) else self._append(batch)
        if fault == "lost":
            return None
        answer = pack(">ihqqqih", 0, error, base, -1, 0, 0, -1)
        return pack(">i", 1) + string("t") + pack(">i", 1) + answer + pack(">i", self.throttle_ms)

    def _append(self, batch: RecordBatch) -> tuple[int, int]:
        if batch.producer_epoch < self.epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH, -1
        if batch.base_sequence < self._next:
            place = next((i for i, (sequence, _) in enumerate(self.log[-5:]) if sequence == batch.base_sequence), None)
            if place is None:
                return KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            return 0, 2 * (max(0, len(self.log) - 5) + place)
        if batch.base_sequence > self._next and not (self.accepts_any_first and not self.log):
            return KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        self._next = batch.base_sequence + 2
        self.log.append((batch.base_sequence, bytes(batch.payload)))
        return 0, 2 * (len(self.log) - 1)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    yield fake
    fake.stop()


def epochs_of(broker: FakeBroker) -> KafkaLogEpochs:
    found = KafkaLogEpochs(broker.cluster, flow="a->b")
    broker.clients.callback(found.close)
    return found


def test_a_broker_that_is_too_old_for_epochs_or_ids_says_none_of_them(broker: FakeBroker) -> None:
    """It serves what is needed, and nothing else. Its logs are read all the same."""
    found = epochs_of(broker)

    assert found.ends({LANE: 3}, deadline_in(10)) is None
    assert found.current(["t"], deadline_in(10)) is None
    assert found.topic_ids(["t"], deadline_in(10)) is None


def test_the_end_of_an_epoch_is_asked_of_the_leader_by_its_own_epoch(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = list[bytes](), broker.answer

    def answering(api: int, body: memoryview) -> bytes | None:
        if api == 18:
            served = [*NEEDED, EPOCH_ENDS]
            return pack(">hi", 0, len(served)) + b"".join(pack(">hhh", number, 0, to) for number, to in served)
        if api == EPOCH_ENDS[0]:
            asked.append(bytes(body))
            return pack(">ii", 0, 1) + string("t") + pack(">ihiiq", 1, 0, 0, 2, 77)
        return answer(api, body)

    monkeypatch.setattr(broker, "answer", answering)
    found = epochs_of(broker)

    assert found.ends({LANE: 3}, deadline_in(10)) == {LANE: EpochEnd(2, 77)}
    assert found.current(["t"], deadline_in(10)) == {LANE: 5}
    assert asked == [pack(">ii", -1, 1) + string("t") + pack(">iiii", 1, 0, 5, 3)]


def writer_of(broker: FakeBroker) -> RawWriter:
    writer = RawWriter(broker.cluster, flow="a->b", transactional_id="x", timeout_ms=5000, deadline=deadline_in(10))
    broker.clients.callback(writer.close)
    return writer


LANE = ("t", 0)


@pytest.mark.parametrize("fault", ["lost", "dropped", 6, 7, 3, 19, 20, 51, 56, 74])
@pytest.mark.parametrize("at", [0, 1, 6])
def test_what_passes_by_itself_is_sent_again_in_order(broker: FakeBroker, fault: int | str, at: int) -> None:
    broker.faults.extend([None] * at + [fault])
    writer, wanted = writer_of(broker), some(9)

    delivered = writer.write({LANE: wanted}, deadline_in(10))[LANE]

    assert list(delivered.downstream) == list(range(0, 18, 2))
    assert broker.log == [(2 * i, bytes(batch.payload)) for i, batch in enumerate(wanted)]


def test_leaders_are_asked_for_again_while_no_broker_answers(broker: FakeBroker) -> None:
    """A transaction is open by then: what it has would be lost."""
    writer = writer_of(broker)
    broker.unanswered_metadata = 5

    delivered = writer.write({LANE: some(1)}, deadline_in(10))[LANE]

    assert list(delivered.downstream) == [0]
    assert broker.unanswered_metadata == 0


def test_leaders_are_asked_for_until_the_deadline(broker: FakeBroker) -> None:
    writer = writer_of(broker)
    broker.unanswered_metadata = 10**6

    with pytest.raises(Retriable, match="did not write"):
        writer.write({LANE: some(1)}, deadline_in(1))
    assert broker.unanswered_metadata < 10**6 - 3


@settings(max_examples=20)
@example(["lost", 6])
@example([None, "lost", None, "dropped", 7, "lost"])
@given(st.lists(st.sampled_from([None, None, None, "lost", "dropped", 6, 7]), max_size=12))
def test_any_faults_leave_each_batch_once_and_in_order(faults: list[int | str | None]) -> None:
    broker = FakeBroker()
    writer, wanted = writer_of(broker), some(7)
    broker.faults.extend(faults)

    with patch.object(cluster, "FIRST_PAUSE", 0.001):
        delivered = writer.write({LANE: wanted}, deadline_in(30))[LANE]

    assert list(delivered.downstream) == list(range(0, 14, 2))
    assert [payload for _, payload in broker.log] == [bytes(batch.payload) for batch in wanted]
    broker.stop()


def test_the_first_batch_of_an_epoch_goes_alone(broker: FakeBroker) -> None:
    """A leader that has just become one takes any number of a producer that is new to it."""
    broker.accepts_any_first = True
    broker.faults.append(6)
    writer = writer_of(broker)

    writer.write({LANE: some(6)}, deadline_in(10))

    assert broker.sequences == [0, 0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("error", [45, 46, 47, 48, 59, 90, 29, 53, -1, 35])
def test_any_other_error_spoils_the_transaction(broker: FakeBroker, error: int) -> None:
    broker.faults.extend([None, error])
    writer = writer_of(broker)

    with pytest.raises(Retriable, match="t-0"):
        writer.write({LANE: some(3)}, deadline_in(10))
    assert len(broker.log) <= 3


def test_sequences_begin_at_0_after_an_abort_and_go_on_after_a_commit(broker: FakeBroker) -> None:
    writer = writer_of(broker)
    for ending in (writer.commit, writer.abort, writer.commit):
        writer.write({LANE: some(2)}, deadline_in(10))
        ending(deadline_in(10))

    assert broker.sequences == [0, 2, 4, 6, 0, 2]


@pytest.mark.parametrize("error", [10, 87, 32, 44, 2, 18, 76])
def test_a_refusal_is_the_answer_for_one_batch_and_not_for_those_behind_it(broker: FakeBroker, error: int) -> None:
    broker.faults.extend([None, None, error, 45, 45, 45, 45])
    writer = writer_of(broker)

    delivered = writer.write({LANE: some(7)}, deadline_in(10))[LANE]

    assert delivered.refusal is not None
    assert (delivered.refusal.index, list(delivered.downstream)) == (2, [0, 2])


def test_what_is_never_acknowledged_ends_with_the_deadline(broker: FakeBroker) -> None:
    broker.faults.extend([6] * 1000)
    writer, began = writer_of(broker), time.monotonic()

    with pytest.raises(NotAcknowledged, match="3 batches") as caught:
        writer.write({LANE: some(3)}, deadline_in(1.5))
    assert caught.value.partitions == {LANE}
    assert time.monotonic() - began < 8


def test_an_answer_counts_while_that_to_the_next_request_is_late(broker: FakeBroker) -> None:
    """Several answers are waited for together, for a moment."""
    broker.faults.extend([None, None, "hangs"])
    writer = writer_of(broker)

    with pytest.raises(NotAcknowledged, match="2 batches") as raised:
        writer.write({LANE: some(4)}, deadline_in(1.5))
    assert raised.value.tried == sum(batch.size for batch in some(4))
    assert raised.value.share == pytest.approx(0.5, abs=0.05)


def test_a_broker_that_asks_for_it_is_left_alone(broker: FakeBroker) -> None:
    broker.throttle_ms = 300
    writer = writer_of(broker)

    writer.write({LANE: some(6)}, deadline_in(10))

    assert broker.produced_at[5] - broker.produced_at[0] >= 0.3
    assert writer.throttled_ms == 300
    writer.commit(deadline_in(10))
    broker.throttle_ms = 0
    writer.write({LANE: some(1)}, deadline_in(10))
    assert writer.throttled_ms == 0


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param([51, 51, 14, 16], id="the-transaction-before-it"),
        pytest.param([51] * 20, id="markers-in-short-pauses"),  # pauses that double would take twelve seconds
    ],
)
def test_a_commit_that_meets_what_passes_is_made_again(broker: FakeBroker, errors: list[int]) -> None:
    broker.end_faults.extend(errors)
    writer = writer_of(broker)
    writer.write({LANE: some(1)}, deadline_in(10))

    writer.commit(deadline_in(5))

    assert not broker.end_faults


@pytest.mark.parametrize("error", [47, 90, 48, 49])
def test_a_commit_that_is_refused_is_not_made_again(broker: FakeBroker, error: int) -> None:
    broker.end_faults.extend([error])
    writer = writer_of(broker)
    writer.write({LANE: some(1)}, deadline_in(10))

    with pytest.raises(Retriable, match="commit"):
        writer.commit(deadline_in(10))


def test_what_is_done_meanwhile_is_over_when_the_write_is(broker: FakeBroker) -> None:
    writer, called = writer_of(broker), list[int]()

    writer.write({LANE: some(3)}, deadline_in(10), lambda: called.append(1))

    assert called == [1]


# Reading


def fetched(*parts: bytes) -> bytes:
    return pack(">ihi", 0, 0, 0) + b"\x02" + b"\x02t" + bytes([len(parts) + 1]) + b"".join(parts) + b"\0\0"


def part(records: bytes = b"", *, error: int = 0, stable: int = 100, tags: bytes = b"\0") -> bytes:
    size = len(records) + 1
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    return pack(">ihqqq", 0, error, stable, stable, 0) + b"\x01" + pack(">i", -1) + length + records + tags


def appended(batch: RecordBatch, at: int, epoch: int = 3) -> bytes:
    header = produced(batch, producer_id=1, producer_epoch=0, base_sequence=0)
    return pack(">q", at) + header[8:12] + pack(">i", epoch) + header[16:] + batch.payload


def log_of(broker: FakeBroker, offset: int = 0) -> KafkaRawLog:
    log = KafkaRawLog(broker.cluster, flow="a->b")
    broker.clients.callback(log.close)
    log.follow({LANE: offset})
    return log


def two_batches() -> tuple[bytes, bytes]:
    """At 0 and at 2."""
    first, second = some(2)
    return appended(first, 0), appended(second, 2)


def until(log: KafkaRawLog, wanted: Callable[..., object]) -> object:
    deadline = deadline_in(10)
    while deadline() > 0:
        if found := wanted(log.arrivals(0.1, records=100, size=10**6)):
            return found
    raise AssertionError("it did not come")


def test_a_partition_is_covered_up_to_what_was_taken_and_ended_where_nothing_is_left(broker: FakeBroker) -> None:
    first, second = two_batches()
    broker.fetches.append(fetched(part(first + second + first[:30], stable=4)))
    log = log_of(broker, 1)

    one = log.arrivals(5.0, records=100, size=1)
    two = log.arrivals(5.0, records=100, size=1)

    assert ([each.base_offset for each in one.records[LANE]], one.covered, one.ended) == ([0], {LANE: 2}, {})
    assert ([each.base_offset for each in two.records[LANE]], two.covered) == ([2], {LANE: 4})
    assert two.ended == {LANE: 4}


def test_a_log_that_is_followed_again_below_its_end_shows_what_is_left_and_no_end_of_before(broker: FakeBroker) -> None:
    """A reader that was left had fetched the end: whoever followed again took it for all that there was."""
    first, second = two_batches()
    broker.fetches.append(fetched(part(first + second, stable=4)))
    log = log_of(broker)
    assert log.arrivals(5.0, records=100, size=1).covered == {LANE: 2}
    broker.fetches.extend([fetched(part(second, stable=4))] * 2)  # what is under way may take one of them

    log.leave([LANE])
    log.follow({LANE: 2})
    found = log.arrivals(5.0, records=100, size=10**6)

    assert [each.base_offset for each in found.records.get(LANE, [])] == [2]
    assert (found.covered, found.ended) == ({LANE: 4}, {LANE: 4})


def test_each_end_is_returned_once(broker: FakeBroker) -> None:
    """A shard follows a thousand lanes, and each answer names all of them."""
    one, two = two_batches()
    parts = [part(stable=0), part(stable=0), part(one, stable=2), part(stable=2), part(two, stable=4)]
    broker.fetches.extend(map(fetched, parts))
    log, ends = log_of(broker), list[int]()

    def noted(found: Arrivals) -> bool:
        ends.extend(found.ended.values())
        return 4 in ends

    until(log, noted)

    assert ends == [0, 2, 4]


def with_a_backlog(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> KafkaRawLog:
    """A log of which one batch was taken, as if that were much."""
    monkeypatch.setattr(raw_log, "BACKLOG_BYTES", 1)
    broker.fetches.append(fetched(part(appended(some(1)[0], 0))))
    log = log_of(broker)
    until(log, lambda found: found.covered)
    return log


def test_what_comes_while_it_reads_on_is_there_afterwards(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = with_a_backlog(broker, monkeypatch)
    broker.fetches.append(fetched(part(appended(some(1)[0], 2))))

    deadline = deadline_in(10)
    with log.reading_on():
        while not log._come:
            assert deadline() > 0
            time.sleep(0.001)

    assert log.arrivals(0, records=100, size=10**6).covered == {LANE: 4}


def test_what_was_wrong_while_it_read_on_is_raised_once_by_the_next_look(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = with_a_backlog(broker, monkeypatch)
    failed, receive = threading.Event(), log._receive

    def watched(seconds: float, end: socket.socket | None = None) -> None:
        if end is not None:
            failed.set()
            raise Retriable("the cluster turned us away")
        receive(seconds, end)

    monkeypatch.setattr(log, "_receive", watched)
    with log.reading_on():
        assert failed.wait(10)

    with pytest.raises(Retriable, match="turned us away"):
        log.arrivals(0, records=1, size=1)
    broker.fetches.append(fetched(part(appended(some(1)[0], 2))))
    assert until(log, lambda found: found.covered) == {LANE: 4}


def test_reading_on_ends_with_the_transaction_though_nothing_comes(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = with_a_backlog(broker, monkeypatch)
    log._readings[LANE].again_at = time.monotonic() + 600
    waits, over = threading.Event(), threading.Event()

    def watched(
        connections: Iterable[BrokerConnection], seconds: float, *, end: socket.socket
    ) -> list[BrokerConnection]:
        found = list(connections)
        if not found:
            waits.set()
        return ready(found, seconds, end=end)

    def transaction() -> None:
        with log.reading_on():
            assert waits.wait(10)
        over.set()

    monkeypatch.setattr(raw_log, "ready", watched)
    threading.Thread(target=transaction, daemon=True).start()

    assert over.wait(10)


def test_without_a_backlog_nothing_reads_on(broker: FakeBroker) -> None:
    broker.fetches.append(fetched(part(appended(some(1)[0], 0))))
    log = log_of(broker)
    until(log, lambda found: found.covered)

    before = threading.active_count()
    with log.reading_on():
        assert threading.active_count() == before


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12))
@settings(max_examples=15)
def test_whatever_is_asked_for_at_a_time_all_comes_once_and_in_order(limits: list[int]) -> None:
    broker = FakeBroker()
    content = [appended(batch, 2 * i) for i, batch in enumerate(some(20))]
    broker.fetches.extend([fetched(part(b"".join(content[:9]))), fetched(part(b"".join(content[9:]), stable=40))])
    log, seen, covered = log_of(broker), list[int](), 0
    deadline = deadline_in(20)

    while covered < 40:
        assert deadline() > 0
        size = limits[len(seen) % len(limits)]
        found = log.arrivals(1.0, records=1, size=size)
        batches_found = found.records.get(LANE, [])
        assert sum(each.size for each in batches_found[:-1]) < size
        assert found.bytes == sum(each.size for each in batches_found)
        seen += [each.base_offset for each in batches_found]
        assert found.covered.get(LANE, covered) == (seen[-1] + 2 if seen else 0)
        covered = found.covered.get(LANE, covered)
        assert (LANE in found.ended) <= (covered == 40)

    assert seen == list(range(0, 40, 2))
    assert (log._queued, log._readings[LANE].queued_bytes) == (0, 0)
    broker.stop()


def test_a_log_that_has_diverged_ends_the_reading(broker: FakeBroker) -> None:
    diverging = b"\x01\x00\x0d" + pack(">iq", 2, 77) + b"\0"
    broker.fetches.extend([fetched(part(tags=diverging)), fetched(part(appended(some(1)[0], 90)))])
    log = log_of(broker, 90)

    assert until(log, lambda found: found.truncated) == {LANE: 77}
    assert not log.arrivals(0.2, records=1, size=1)


def test_a_batch_that_cannot_be_read_ends_the_reading_behind_those_before_it(broker: FakeBroker) -> None:
    good, bad = two_batches()
    broker.fetches.append(fetched(part(good + bad[:-1] + bytes([bad[-1] ^ 1]))))
    log = log_of(broker)

    found = log.arrivals(5.0, records=100, size=10**6)

    assert (found.covered, found.unreadable[LANE].offset) == ({LANE: 2}, 2)


@pytest.mark.parametrize("error", [6, 5, 3, 9, 56, 74, 75, 78])
def test_a_leader_that_has_moved_is_looked_for_again(broker: FakeBroker, error: int) -> None:
    broker.fetches.extend([fetched(part(error=error)), fetched(part(appended(some(1)[0], 0)))])
    log = log_of(broker)

    assert until(log, lambda found: found.covered) == {LANE: 2}


def test_an_offset_that_is_not_there_is_told_once(broker: FakeBroker) -> None:
    broker.fetches.append(fetched(part(error=1)))
    log = log_of(broker, 7)

    assert until(log, lambda found: found.out_of_range) == {LANE}
    assert not log.arrivals(0.2, records=1, size=1)


def test_an_error_for_good_is_told_once(broker: FakeBroker) -> None:
    broker.fetches.append(fetched(part(error=29)))
    log = log_of(broker)

    with pytest.raises(Retriable, match=r"t-0.*authorization|authorized"):
        raise until(log, lambda found: found.refused)[LANE]  # type: ignore[index]  # what is looked for
    assert not log.arrivals(0.2, records=1, size=1)


def test_what_comes_of_a_partition_that_was_left_is_dropped(broker: FakeBroker) -> None:
    broker.fetches.append(fetched(part(appended(some(1)[0], 0))))
    log = log_of(broker)
    until(log, lambda _: not broker.fetches)

    log.follow({LANE: 50})

    assert not any(log.arrivals(0.1, records=1, size=1).covered for _ in range(3))


def test_an_answer_counts_for_the_offset_and_the_reading_that_asked(broker: FakeBroker) -> None:
    """Of two leaders that answered, or to one that was left and is followed again."""
    content = appended(some(1)[0], 0)
    broker.fetches.append(fetched(part(content)))
    log = log_of(broker)
    first = log._readings[LANE]
    until(log, lambda found: found.covered)
    (connection,) = log._cluster.data_connections()

    out_of_range = memoryview(fetched(part(error=1)))
    log._take(connection, {LANE: (first, 0)}, out_of_range)
    log.follow({LANE: 9})
    left = log._readings[LANE]
    log.follow({LANE: 9})
    log._take(connection, {LANE: (left, 9)}, out_of_range)

    assert not log.arrivals(0.1, records=10, size=10**6).out_of_range
    log._take(connection, {LANE: (log._readings[LANE], 9)}, out_of_range)
    assert log.arrivals(0.1, records=10, size=10**6).out_of_range == {LANE}


def test_batches_that_lie_below_the_offset_are_left_out(broker: FakeBroker) -> None:
    broker.fetches.append(fetched(part(b"".join(appended(batch, 2 * i) for i, batch in enumerate(some(3))))))
    log = log_of(broker, 3)

    found = log.arrivals(5.0, records=100, size=10**6)

    assert ([each.base_offset for each in found.records[LANE]], found.covered) == ([2, 4], {LANE: 6})


def test_a_fetch_holds_every_partition_and_the_epoch_of_what_came_last() -> None:
    wanted = [WantedPart(("t", 1), 5, 7, -1), WantedPart(("u", 0), 6, 8, 3), WantedPart(("t", 0), 9, 7, 2)]

    body = fetch_request(wanted, wait_ms=100, least=1, most=1000, most_of_a_part=10)

    parts = [
        pack(">iiqiqib", p, leader, offset, last, -1, 10, 0)
        for (_, p), offset, leader, last in (
            (each.place, each.offset, each.leader_epoch, each.last_epoch) for each in wanted
        )
    ]
    topics = b"\x03" + b"\x02t\x03" + parts[0] + parts[2] + b"\0" + b"\x02u\x02" + parts[1] + b"\0"
    assert body == pack(">iiiibii", -1, 100, 1, 1000, 1, 0, -1) + topics + b"\x01\x01\0"


def test_an_answer_without_partitions_is_read() -> None:
    assert read_fetched(memoryview(pack(">ihi", 9, 0, 0) + b"\x01\0")).throttle_ms == 9


# Aborted transactions


def in_log(at: int, producer: int, attributes: int = TRANSACTIONAL, key: bytes = b"k") -> RecordBatch:
    (batch,) = packed([Record(0, 0, [], key, b"v")], "none", max_bytes=1000)
    return changed(batch, base_offset=at, producer_id=producer, attributes=attributes)


def marker(at: int, producer: int, *, commit: bool) -> RecordBatch:
    return in_log(at, producer, TRANSACTIONAL | CONTROL, bytes([0, 0, 0, commit]))


def test_a_transaction_is_dropped_up_to_its_marker_and_others_are_not() -> None:
    log = [in_log(0, 1), in_log(1, 2), in_log(2, -1, 0), marker(3, 1, commit=False), in_log(4, 1), in_log(5, 2)]
    log += [marker(6, 2, commit=True), in_log(7, 1), marker(8, 1, commit=False), in_log(9, 1)]

    seen = [batch.base_offset for batch, visible in committed(log, [(1, 7), (1, 0)]) if visible]

    assert seen == [1, 2, 4, 5, 9]


def test_a_transaction_that_begins_below_what_was_fetched_is_dropped_too() -> None:
    """The answer begins in the middle of it; its first offset lies before the first batch."""
    log = [in_log(10, 1), in_log(11, 2), marker(12, 1, commit=False), in_log(13, 1)]

    assert [batch.base_offset for batch, visible in committed(log, [(1, 4)]) if visible] == [11, 13]


def test_a_transaction_that_begins_inside_a_batch_drops_that_batch() -> None:
    wide = changed(in_log(10, 1), last_offset_delta=5)

    assert [visible for _, visible in committed([wide], [(1, 13)])] == [False]
    assert [visible for _, visible in committed([wide], [(1, 16)])] == [True]


# SCRAM, by the example of RFC 7677


def test_scram_answers_as_the_standard_says() -> None:
    exchange = _scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    answer = exchange.send(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    assert answer == f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("verdict", [b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=", b"e=other-error"])
def test_scram_trusts_no_broker_that_does_not_hold_the_password(verdict: bytes) -> None:
    exchange = _scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    next(exchange)
    exchange.send(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")

    with pytest.raises(TurnedAwayError):
        exchange.send(verdict)


def test_scram_goes_on_with_no_nonce_but_its_own() -> None:
    exchange = _scram("SCRAM-SHA-512", "a,b=c", "pencil", nonce="ours")
    assert next(exchange) == b"n,,n=a=2Cb=3Dc,r=ours"
    with pytest.raises(TurnedAwayError):
        exchange.send(b"r=theirs,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")


def compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


ACTIVE = ((4_000, 3, 0, 1, 0, 10), (4_001, 0, 7, 1, -1, -1))
"""Producers of a partition: the second one has no transaction open."""
DESCRIBED = (
    pack(">i", 0) + b"\2" + compact("t") + b"\2" + pack(">ih", 0, 0) + b"\0"
    b"\3" + b"".join(pack(">qiiqiq", *each) + b"\0" for each in ACTIVE) + b"\0\0\0"
)
LISTED = pack(">ih", 0, 0) + b"\1\2" + compact("billing") + pack(">q", 4_000) + compact("Ongoing") + b"\0\0"


@pytest.mark.parametrize(
    ("answers", "begins", "found"),
    [
        ({61: DESCRIBED, 66: LISTED}, 10, OpenProducer(4_000, 3, "billing")),
        ({61: DESCRIBED}, 10, OpenProducer(4_000, 3)),
        ({61: DESCRIBED, 66: LISTED}, 11, None),
        ({}, 10, None),
    ],
)
def test_the_producer_of_an_open_transaction_is_what_the_brokers_tell_of_it(
    broker: FakeBroker, answers: dict[int, bytes], begins: int, found: OpenProducer | None
) -> None:
    """A broker that knows a request not, or refuses it, closes the connection."""
    broker.transactions = answers
    with contextlib.closing(cluster.WireCluster(broker.cluster, flow="a->b", client_role="operator")) as there:
        producers = open_producers(there, {LANE: begins}, deadline_in(10))

    assert producers == ({} if found is None else {LANE: found})


@pytest.mark.parametrize("halves", [(-1, -1), (-17, 4_000_000_000), (0x4E29B369BA144B88, -7)])
def test_an_id_is_spelled_as_the_kafka_client_spells_it(halves: tuple[int, int]) -> None:
    """With `+` and `/`, where Kafka's own tools have `-` and `_`: half of all ids have one of them."""
    name = b"orders"
    topic = pack(">h", 0) + bytes([len(name) + 1]) + name + pack(">qq", *halves) + bytes(1) + b"\1" + bytes(4) + b"\0"
    answer = pack(">i", 0) + b"\1" + b"\0" + pack(">i", 1) + b"\2" + topic

    assert read_topic_ids(memoryview(answer)) == {"orders": str(Uuid(*halves))}
