"""How few records of a lane are left before its last request: from then on `flush` finds nothing under way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from mirrorless.adapters.kafka.besides import Besides
from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.delivery_reports import Reports, Watch
from mirrorless.adapters.kafka.writer import (
    ABORT_S,
    NO_PARTITION,
    NO_PROGRESS_S,
    ONE_BY_ONE,
    KafkaWriter,
    _Health,
    first_batches,
    unsent_at_last,
)
from mirrorless.clock import deadline_in
from mirrorless.errors import NotAcknowledged, Retriable
from mirrorless.records.record import Record
from tests.support.mock_broker import MockBroker


def records(count: int, *, size: int, key: bytes | None = None) -> list[Record]:
    return [Record(offset=i, timestamp=0, headers=[], key=key, value=b"v" * size) for i in range(count)]


@pytest.mark.parametrize(
    ("lane", "most", "unsent"),
    [
        ([], 10_000, 0),
        (records(1, size=1_000), 10_000, 1),
        (records(1_000, size=1_000), 10_000, 1_000),
        (records(900, size=0), 1_000, 900),
        (records(2_100, size=0), 1_000, 100 + 500),
        (records(1_100, size=500, key=b"k" * 500), 10_000, 100 + 500),
        (records(3, size=2_000_000), 10_000, 0),
    ],
    ids=["nothing", "one", "a batch", "few without bytes", "without bytes", "keys count as well", "each is a batch"],
)
def test_what_is_left_at_last_is_less_than_a_batch_by_bytes_and_by_number(
    lane: list[Record], most: int, unsent: int
) -> None:
    assert unsent_at_last(lane, 1_000_000, most) == unsent


@pytest.mark.parametrize("count", [1_001, 4_230, 9_999])
def test_it_lies_between_what_is_left_at_last_and_a_batch_more(count: int) -> None:
    """Acknowledgements come by batches, so that every threshold between them is passed at the same one."""
    left = count % 1_000
    assert left <= unsent_at_last(records(count, size=1_000), 1_000_000, 10_000) < left + 1_000


def test_a_portion_has_the_records_of_its_batches_by_number_and_by_bytes() -> None:
    lane = records(100, size=936)

    assert len(first_batches(lane, 3, 1_000_000, 10)) == 30
    assert len(first_batches(lane, 3, 5_000, 10_000)) == 15
    assert len(first_batches(lane, 16, 1_000_000, 10_000)) == 100
    assert len(first_batches(lane, 2, 1, 10_000)) == 2
    assert len(first_batches(lane, 1, 2_000, 10_000)) == 2  # 64 bytes of framing each
    assert len(first_batches(lane, 1, 1_999, 10_000)) == 1
    assert first_batches([], 2, 1, 1) == []


class Target:
    """A producer whose target has so many records under way, at each look one less, or as many for ever."""

    def __init__(self, left: int, *, takes: bool = True) -> None:
        self.looks, self._left, self._takes = 0, left, takes

    def __len__(self) -> int:
        return self._left - self.looks * self._takes

    def poll(self, _: float) -> None:
        """One look."""
        self.looks += 1
        assert self.looks < 1_000_000, "the deadline was not checked"


def test_a_target_that_is_slow_but_goes_on_is_not_waited_for_beyond_the_deadline() -> None:
    target = Target(10_000_000)

    writer_to(target)._await_full_batches([records(100, size=100)], lambda: 0.55)

    assert target.looks


def test_a_target_that_takes_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the test's: it goes on by a tenth of the patience at each look."""
    target = Target(100, takes=False)
    clock = SimpleNamespace(monotonic=lambda: target.looks * NO_PROGRESS_S / 10)
    monkeypatch.setattr("mirrorless.adapters.kafka.writer.time", clock)

    writer_to(target, watch=Watch())._await_full_batches([records(100, size=100)], lambda: 30.0)

    assert 10 <= target.looks <= 11


class AnsweringTarget:
    """A producer whose target gives each record that has a callback an offset or an error, at the first flush."""

    def __init__(self, *answers: int | KafkaError) -> None:
        self.answers, self.callbacks, self.given = answers, list[Any](), list[tuple[Any, ...]]()
        self.asked: list[tuple[str, float]] = []
        self.full = self.spoilt = False
        self.refused: dict[int, KafkaError] = {}
        self.left = self.flushes = 0

    def __len__(self) -> int:
        return 0

    def begin_transaction(self) -> None:
        """As the client has it."""

    def produce(self, *arguments: Any) -> None:
        """Keep what is given, and its callback by its position; while the queue is full, refuse it."""
        if self.full:
            self.full = False
            raise BufferError
        if arguments[3] == NO_PARTITION:
            raise KafkaException(KafkaError(KafkaError._STATE if self.spoilt else KafkaError._UNKNOWN_PARTITION))
        if len(self.given) in self.refused:
            raise KafkaException(self.refused[len(self.given)])
        self.given.append(arguments)
        self.callbacks += [each for each in arguments[4:5] if each is not None]

    def flush(self, _: float) -> int:
        """Call every callback, once all are there; how many reports are still to come."""
        self.flushes += 1
        if len(self.callbacks) < len(self.answers):
            return self.left
        for callback, answer in zip(self.callbacks, self.answers, strict=True):
            error = answer if isinstance(answer, KafkaError) else None
            callback(error, SimpleNamespace(offset=lambda answer=answer: answer))
        return self.left

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        """Metadata of one topic, of three partitions."""
        self.asked.append((topic, timeout))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=range(3))})


TIMED_OUT, TOO_LARGE = KafkaError(KafkaError._MSG_TIMED_OUT), KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
PLACE = "us-east.orders", 0


def writer_to(target: Any, *, watch: Watch | None = None) -> KafkaWriter:
    """A writer without a cluster; one without transactions, and careful, where it watches no lanes."""
    writer = object.__new__(KafkaWriter)
    writer._producer, writer._batch = target, (1_000, 10 if watch else ONE_BY_ONE)
    writer.transactional_id, writer._watch, writer._health = "id" if watch else "", watch, _Health()
    writer._bootstrap, writer._portion, writer._besides = "b:1", None, Besides()
    return writer


def test_without_transactions_a_careful_writer_names_the_record_that_was_refused() -> None:
    writer = writer_to(AnsweringTarget(TIMED_OUT, 7, TOO_LARGE))

    delivery = writer.write({PLACE: records(3, size=100)}, lambda: 60.0)[PLACE]

    assert delivery.refusal is not None
    assert delivery.refusal.index == 2


@pytest.mark.parametrize("full", [False, True])
def test_the_client_is_given_every_part_of_a_record_also_after_its_queue_was_full(*, full: bool) -> None:
    lane = [
        Record(offset=0, timestamp=7, headers=[("a", b"1"), ("a", None)], key=b"k", value=b"v"),
        Record(offset=1, timestamp=8, headers=[], key=None, value=None),
    ]
    target, made = AnsweringTarget(5, 6), list[str]()
    target.full = full

    found = writer_to(target).write({PLACE: lane}, lambda: 60.0, lambda: made.append("meanwhile"))

    assert list(found[PLACE].downstream) == [5, 6]
    assert [(*each[:4], *each[5:]) for each in target.given] == [
        ("us-east.orders", b"v", b"k", 0, None, 7, [("a", b"1"), ("a", None)]),
        ("us-east.orders", None, None, 0, None, 8, None),
    ]
    assert made == ["meanwhile"]


def test_a_record_that_the_client_itself_refuses_is_named_and_none_overtakes_it() -> None:
    target = AnsweringTarget(5)
    target.refused = {1: TOO_LARGE}

    delivery = writer_to(target).write({PLACE: records(3, size=10)}, lambda: 60.0)[PLACE]

    assert (list(delivery.downstream), delivery.refusal and delivery.refusal.index) == ([5], 1)
    assert len(target.given) == 1


def test_a_record_that_the_client_does_not_take_for_another_reason_is_not_acknowledged_for_that() -> None:
    target = AnsweringTarget(5)
    target.refused = {1: KafkaError(KafkaError._STATE, "a transaction is over")}

    with pytest.raises(NotAcknowledged, match="2 records were not acknowledged: a transaction is over"):
        writer_to(target).write({PLACE: records(3, size=10)}, lambda: 60.0)


def test_in_a_transaction_nothing_is_waited_for_once_a_record_is_refused() -> None:
    """Those behind it are reported only when they time out."""
    target, seconds = AnsweringTarget(7, TOO_LARGE), itertools.count(60, -1)
    target.left = 1

    delivery = writer_to(target, watch=Watch()).write({PLACE: records(2, size=10)}, lambda: float(next(seconds)))[PLACE]

    assert (delivery.refusal is not None, target.flushes) == (True, 1)


@pytest.mark.parametrize("why", ["", "wrong password"])
def test_a_producer_that_was_turned_away_says_why_and_another_one_that_it_had_no_answer(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(_: str, **__: float) -> None:
        raise KafkaException(TIMED_OUT)

    target = AnsweringTarget()
    monkeypatch.setattr(target, "list_topics", no_answer)
    writer = writer_to(target)
    if why:
        writer._health.on_error(KafkaError(KafkaError._AUTHENTICATION, why))

    with pytest.raises(Retriable) as raised:
        writer.partition_count("us-east.orders", lambda: 60.0)

    assert (f"turned us away: {why}" if why else "did not read metadata") in str(raised.value)
    assert why or raised.value.where == "b:1"


@pytest.mark.parametrize(("batch_records", "callbacks"), [(ONE_BY_ONE, 3), (10, 1)])
def test_only_a_careful_writer_pays_for_a_callback_of_each_record(batch_records: int, callbacks: int) -> None:
    target = AnsweringTarget(5, 6, 7)
    writer = writer_to(target)
    writer._batch = 1_000, batch_records

    writer.write({PLACE: records(3, size=10)}, lambda: 60.0)

    assert len(set(target.callbacks)) == callbacks


def test_a_new_producer_is_given_twice_as_long_with_each_look_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow cluster has to answer within one call; a short one shows early that it was turned away."""
    now, timeouts = [0.0], list[float]()

    def no_answer(*, timeout: float) -> None:
        timeouts.append(timeout)
        now[0] += timeout
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    target = AnsweringTarget()
    monkeypatch.setattr(target, "list_topics", no_answer)
    monkeypatch.setattr(target, "poll", lambda _: None, raising=False)
    monkeypatch.setattr("mirrorless.adapters.kafka.writer.time", SimpleNamespace(monotonic=lambda: now[0]))

    with pytest.raises(KafkaException):
        writer_to(target)._await_metadata(lambda: MARGIN_SECONDS + 10 - now[0])

    assert timeouts == pytest.approx([1, 2, 4, 3])


@pytest.mark.parametrize(
    ("answers", "suspect"),
    [((TIMED_OUT, 7), True), ((5, 9), False)],
    ids=["one was not acknowledged", "a rival wrote between them"],
)
def test_a_lane_whose_ends_are_unclear_is_watched_and_its_writer_is_suspect_only_after_a_failure(
    answers: tuple[int | KafkaError, ...], *, suspect: bool
) -> None:
    watch = Watch()
    writer = writer_to(AnsweringTarget(*answers), watch=watch)

    assert writer.write({PLACE: records(4, size=100)}, lambda: 60.0)[PLACE].unclear
    assert (PLACE in watch, writer.suspect) == (True, suspect)


def test_a_refusal_between_the_ends_of_a_lane_is_not_waited_for_and_the_lane_is_unclear() -> None:
    watch, target = Watch(), AnsweringTarget(5, 6, TIMED_OUT)  # two callbacks, so that no report comes
    target.spoilt, target.left = True, 2
    writer = writer_to(target, watch=watch)

    looks = iter([60.0] * 9 + [0.0] * 9)

    assert writer.write({PLACE: records(4, size=100)}, looks.__next__)[PLACE].unclear
    assert (PLACE in watch, target.flushes) == (True, 1)


class ThrottledTarget(AnsweringTarget):
    """A target that takes a part in the time that records have, and tells to pause."""

    def __init__(self, writer: KafkaWriter) -> None:
        super().__init__(5, TIMED_OUT)
        self._writer, self._looks = writer, iter([60, 60, 0])

    def flush(self, seconds: float) -> int:
        """What is left: of 80 records 60 until all of them time out."""
        left = next(self._looks)
        self._writer._health.on_throttle(ThrottleEvent("b", 1, 4.2))
        return left or super().flush(seconds)


def test_what_was_tried_and_what_came_through_is_known_where_a_quota_holds_the_flow_back() -> None:
    watch = Watch()
    writer = writer_to(AnsweringTarget(), watch=watch)
    writer._producer = ThrottledTarget(writer)  # type: ignore[assignment]  # a fake

    with pytest.raises(NotAcknowledged, match=r"60 records were not.*pauses of up to 4\.2 s") as raised:
        writer.write({PLACE: records(80, size=100)}, lambda: 60.0)

    assert (raised.value.tried, raised.value.share) == (8_000, 0.25)
    assert writer.throttled_ms == 4_200


def test_the_partitions_of_one_topic_are_counted_without_the_metadata_of_all_others_and_in_time() -> None:
    """All others may be hundreds of thousands."""
    target = AnsweringTarget()
    assert writer_to(target).partition_count("us-east.orders", lambda: 5.0) == 3
    ((topic, timeout),) = target.asked
    assert topic == "us-east.orders"
    assert 0 < timeout < 5


def test_what_is_done_besides_is_over_with_the_body_and_its_error_is_raised() -> None:
    besides, order = Besides(), list[str]()

    def call() -> None:
        order.append("called")

    with besides.making(call):
        order.append("body")
    with besides.making(None):
        order.append("alone")
    assert sorted(order[:2]) == ["body", "called"]
    assert order[2] == "alone"

    def fail() -> None:
        raise Retriable("no answer")

    with pytest.raises(Retriable, match="no answer"), besides.making(fail):
        pass


def test_what_is_done_besides_a_long_body_begins_late_in_it() -> None:
    besides, body_over = Besides(), threading.Event()
    besides._body_s = 3_600.0

    with besides.making(lambda: order.append(body_over.is_set())):
        order = list[bool]()
        body_over.set()

    assert order == [True]


class IdleProducer:
    """A producer that answers, or does not, and notes for how long it was asked."""

    def __init__(self, *, left: int = 0, fails: bool = False) -> None:
        self.waited: list[float] = []
        self._left, self._fails = left, fails

    def list_topics(self, *, timeout: float) -> None:
        """One probe."""
        self.waited.append(timeout)
        if self._fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def flush(self, seconds: float) -> int:
        """What is left after it."""
        self.waited.append(seconds)
        return self._left


@pytest.mark.parametrize(("left", "waited"), [(30.0, 2.0), (2.0, 2.0 - MARGIN_SECONDS)])
def test_a_probe_takes_two_seconds_at_most_and_no_more_than_are_left(left: float, waited: float) -> None:
    producer = IdleProducer()

    assert writer_to(producer).answers(lambda: left)
    assert producer.waited == [waited]
    assert not writer_to(IdleProducer(fails=True)).answers(lambda: left)


def test_a_full_queue_is_waited_for_until_the_deadline() -> None:
    producer = IdleProducer()
    writer_to(producer)._make_room(lambda: 30.0)

    assert producer.waited == [30.0 - MARGIN_SECONDS]
    with pytest.raises(Retriable, match="too slowly"):
        writer_to(IdleProducer(left=1))._make_room(lambda: 30.0)


@pytest.mark.parametrize(
    ("error", "suspect"),
    [
        (KafkaError(KafkaError._ALL_BROKERS_DOWN), True),
        (KafkaError(KafkaError._FENCED, "fenced", True), True),  # noqa: FBT003 -- the client's: fatal
        (KafkaError(KafkaError._TRANSPORT), False),
    ],
)
def test_a_writer_is_suspect_after_a_fatal_error_or_without_any_broker(error: KafkaError, *, suspect: bool) -> None:
    health = _Health()
    health.on_error(error)

    assert health.suspect is suspect


def reported(
    answers: Sequence[int | KafkaError | None],
    *,
    by_ends: bool = False,
    by_record: bool = False,
    order: Sequence[int] | None = None,
) -> Reports:
    """The reports of as many records as there are answers, in this order, given to their callbacks."""
    reports = Reports(len(answers), by_ends=by_ends, by_record=by_record)
    callbacks: list[Any] = list(reports.callbacks())
    for index in order or range(len(answers)):
        if callbacks[index] is not None:
            failed: Any = answer if isinstance(answer := answers[index], KafkaError) else None
            callbacks[index](failed, SimpleNamespace(offset=lambda found=None if failed else answer: found))
    return reports


@pytest.mark.parametrize("offsets", [[], [7], [7, 8], [7, 8, 9], list(range(7, 107))])
def test_ends_as_far_apart_as_the_records_prove_where_each_of_them_stands(offsets: list[int]) -> None:
    reports = reported(offsets, by_ends=True)

    assert not reports.unclear
    assert list(reports.delivery().downstream) == offsets


@pytest.mark.parametrize(
    "answers",
    [
        [7, 8, 10],  # another producer wrote in between
        [7, 8, 8],
        [9, 8, 7],
        [-1, 0, 1],  # an offset that the client made up
        [None, 8, 9],
        [7, 8, TIMED_OUT],
        [TIMED_OUT, 8, 9],
        [7, TOO_LARGE, TOO_LARGE],
    ],
)
def test_ends_that_say_anything_else_prove_nothing(answers: list[int | KafkaError | None]) -> None:
    assert reported(answers, by_ends=True).unclear


def test_all_reports_have_each_place_and_the_first_refusal() -> None:
    whole, refused = reported([7, 9, 12], by_ends=False), reported([7, TOO_LARGE, TIMED_OUT], by_ends=False)

    assert list(whole.delivery().downstream) == [7, 9, 12]
    assert (whole.missing, refused.missing) == (0, 2)
    assert refused.refusal is not None
    assert refused.refusal.index == 1


@pytest.mark.parametrize(
    ("answers", "order"),
    [
        ([7, TIMED_OUT, TOO_LARGE, TIMED_OUT], None),  # the refused record is not the one behind the acknowledged
        ([TIMED_OUT, TIMED_OUT, TOO_LARGE], None),
        ([7, 8, TOO_LARGE, TIMED_OUT, TIMED_OUT], [0, 1, 3, 4, 2]),  # what waits times out before the answer is there
    ],
)
def test_the_refused_record_is_named_where_others_timed_out(
    answers: list[int | KafkaError | None], order: list[int] | None
) -> None:
    reports = reported(answers, by_record=True, order=order)

    assert reports.refusal is not None
    assert reports.refusal.index == 2


def test_a_watched_lane_is_trusted_again_after_as_many_events_in_one_piece() -> None:
    watch, lane = Watch(), ("us-east.orders", 0)
    watch.begin(lane)

    for _ in range(Watch.EVENTS - 1):
        watch.seen(lane, [7, 8])
    watch.seen(lane, [9, 11, 12])  # another producer still writes there
    for _ in range(Watch.EVENTS - 1):
        watch.seen(lane, [12, 13])
    assert lane in watch
    watch.seen(lane, [])

    assert lane not in watch
    watch.seen(lane, [1, 3])
    assert lane not in watch


def test_a_record_whose_neighbour_is_refused_has_the_cause_of_that() -> None:
    reports = reported([KafkaError(KafkaError._INVALID_DIFFERENT_RECORD), 8], order=[0])

    assert reports.refusal is not None
    assert (reports.refusal.cause, reports.failed) == ("INVALID_RECORD", None)


LARGE, SENT_BACK = KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.NOT_ENOUGH_REPLICAS
PRODUCE, END_TRANSACTION = 0, 26


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        broker.create_topic("orders", 2)
        yield broker


def test_an_abort_does_not_wait_for_what_is_sent_back_after_it_has_emptied_the_queue(broker: MockBroker) -> None:
    """One of two lanes is refused at once; the other's record is under way as the abort begins, and comes back."""
    deadline = deadline_in(30)
    writer = KafkaWriter(broker.config, transactional_id="one", deadline=deadline)
    broker.answer_next(PRODUCE, (LARGE, 0), (SENT_BACK, 1_000))

    delivered = writer.write({("orders", 0): records(1, size=1), ("orders", 1): records(1, size=1)}, deadline)
    writer.abort(deadline)

    assert [each.refusal is None for each in delivered.values()].count(False) == 1
    assert deadline() > 30 / 2


def test_an_abort_that_takes_several_calls_ends_the_transaction_once(broker: MockBroker) -> None:
    deadline = deadline_in(30)
    writer = KafkaWriter(broker.config, transactional_id="one", deadline=deadline)
    lanes = {("orders", 0): records(1, size=1)}
    writer.write(lanes, deadline)
    broker.count()
    broker.answer_next(END_TRANSACTION, (KafkaError.NO_ERROR, int(ABORT_S * 1_500)))

    writer.abort(deadline)
    delivered = writer.write(lanes, deadline)
    writer.commit(deadline)

    assert [each.refusal for each in delivered.values()] == [None]
    assert broker.requests(END_TRANSACTION) == 2  # of the abort and of the commit


def test_an_abort_ends_at_its_deadline(broker: MockBroker) -> None:
    deadline = deadline_in(5)
    writer = KafkaWriter(broker.config, transactional_id="one", deadline=deadline)
    writer.write({("orders", 0): records(1, size=1)}, deadline)
    broker.answer_next(END_TRANSACTION, (KafkaError.NO_ERROR, 20_000))

    with pytest.raises(Retriable, match="the cluster did not abort"):
        writer.abort(deadline)

    assert deadline() < MARGIN_SECONDS
