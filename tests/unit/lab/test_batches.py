"""The lab's events, held to AWS's own sample, payloads, and what a mapping decides after each invocation."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from lab.esm.batches import PAYLOAD_TOO_LARGE, Buffers, Flight, failed_records, judge
from lab.esm.event import PAYLOAD_LIMIT, EncodedRecord, EventDraft, EventSource, encode_event, encode_record
from lab.functions.invocation import Invocation, Status

CREATE_TIME, LOG_APPEND_TIME = 1, 2

ARN = "arn:aws:kafka:us-east-1:123456789012:cluster/src/abcd1234-abcd-cafe-abab-9876543210ab-4"
SERVERS = "b-1.src.a1b2c3.c4.kafka.us-east-1.amazonaws.com:9098,b-2.src.a1b2c3.c4.kafka.us-east-1.amazonaws.com:9098"


def sent(partition: int, offset: int, timestamp: int, kind: str, **content: str) -> dict[str, object]:
    place = {"topic": "orders-eu", "partition": partition, "offset": offset}
    return {**place, "timestamp": timestamp, "timestampType": kind, **content, "headers": []}


NAME = 'Größe "\\\n\x01 🚀'
HEADERS = [{"trace": [97, 98]}, {"trace": None}, {NAME: [*range(128), *range(-128, 0)]}]
GOLDEN = {
    "eventSource": "aws:kafka",
    "eventSourceArn": ARN,
    "bootstrapServers": SERVERS,
    "records": {
        "orders-eu-0": [
            sent(0, 41, 1763686800123, "CREATE_TIME", key="b3JkZXItMQ==", value="eyJpZCI6MX0=") | {"headers": HEADERS},
            sent(0, 43, 1763686800200, "CREATE_TIME", key="b3JkZXItMQ=="),
        ],
        "orders-eu-1": [
            sent(1, 7, 1763686799000, "LOG_APPEND_TIME", value="AP8="),
            sent(1, 8, 1763686799001, "LOG_APPEND_TIME", key="aw==", value=""),
        ],
    },
}
"""A tombstone, a null key, an empty value, a gap; a header twice, and one of every byte under a name of all escapes."""


def consumed(
    at: tuple[int | None, int | None] = (0, 0),
    *,
    when: tuple[int, int] = (CREATE_TIME, 0),
    key: bytes | None = None,
    value: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> Any:
    """A record as the Kafka client hands it out."""
    place = {"topic": "orders-eu", "partition": at[0], "offset": at[1], "timestamp": when}
    content = {"key": key, "value": value, "headers": headers}
    return SimpleNamespace(**{name: (lambda found=found: found) for name, found in (place | content).items()})


def record(partition: int, offset: int, value: bytes = b"v") -> EncodedRecord:
    return encode_record(consumed((partition, offset), value=value))


def source() -> EventSource:
    return EventSource(topic="orders-eu", bootstrap_servers="localhost:9092")


def test_an_event_is_byte_for_byte_what_aws_sends() -> None:
    headers = [("trace", b"ab"), ("trace", None), (NAME, bytes(range(256)))]
    records = [
        consumed((0, 41), when=(CREATE_TIME, 1763686800123), key=b"order-1", value=b'{"id":1}', headers=[*headers]),
        consumed((0, 43), when=(CREATE_TIME, 1763686800200), key=b"order-1"),
        consumed((1, 7), when=(LOG_APPEND_TIME, 1763686799000), value=b"\x00\xff"),
        consumed((1, 8), when=(LOG_APPEND_TIME, 1763686799001), key=b"k", value=b""),
    ]

    event = encode_event(
        EventSource(topic="orders-eu", bootstrap_servers=SERVERS, arn=ARN), [encode_record(it) for it in records]
    )

    assert event == json.dumps(GOLDEN, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_self_managed_event_carries_no_arn() -> None:
    event = json.loads(encode_event(source(), [record(0, 1)]))

    assert event["eventSource"] == "SelfManagedKafka"
    assert event["bootstrapServers"] == "localhost:9092"
    assert "eventSourceArn" not in event


def test_a_record_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="not a record"):
        encode_record(consumed((None, None)))


def test_the_size_of_a_growing_event_is_exact_at_every_step() -> None:
    """The 6 MB limit is checked against this sum; an error of one byte is a refused invocation."""
    random_source = random.Random(7)
    draft = EventDraft(source=source())
    assert draft.size == len(draft.to_bytes())

    for offset in range(200):
        added = record(random_source.randrange(12), offset, random_source.randbytes(random_source.randrange(60)))
        expected = draft.size_with(added)
        draft.add(added)
        assert draft.size == expected == len(draft.to_bytes())


def buffers(*, batch_size: int = 100, window_s: float = 0.5, limit: int = PAYLOAD_LIMIT) -> Buffers:
    made = Buffers(source=source(), batch_size=batch_size, window_s=window_s, limit=limit)
    made.assign(range(3))
    return made


def test_a_payload_is_due_when_its_first_record_has_waited_for_the_window() -> None:
    waiting = buffers()
    waiting.put(record(0, 1), 10.0)
    waiting.put(record(1, 1), 10.4)

    assert waiting.take(10.49) is None
    flight = waiting.take(10.5)

    assert flight is not None
    assert flight.partitions == {0, 1}


def test_a_payload_is_due_at_once_when_batch_size_records_are_there_and_takes_no_more() -> None:
    waiting = buffers(batch_size=3)
    for offset in range(2):
        waiting.put(record(0, offset), 10.0)
    assert waiting.take(10.0) is None

    waiting.put(record(0, 2), 10.0)
    first = waiting.take(10.0)
    waiting.release([0])
    for offset in range(3, 8):
        waiting.put(record(0, offset), 10.0)
    second = waiting.take(10.0)

    assert [[it.offset for it in flight.records] for flight in (first, second) if flight] == [[0, 1, 2], [3, 4, 5]]


def test_six_megabytes_of_json_split_a_backlog_and_truncate_nothing() -> None:
    waiting = buffers(batch_size=10_000, window_s=300)
    for offset in range(20):
        waiting.put(record(0, offset, b"x" * 1_000_000), 10.0)

    sizes = []
    offsets = []
    while (flight := waiting.take(10.0)) is not None:
        event = encode_event(source(), flight.records)
        sizes.append(len(event))
        offsets += [it.offset for it in flight.records]
        waiting.release(flight.partitions)

    assert all(size <= PAYLOAD_LIMIT for size in sizes)
    assert offsets == list(range(len(offsets)))
    assert len(sizes) == 4
    assert waiting.take(400.0) is not None  # the rest is small, and waits for its window


@pytest.mark.parametrize("spare", [0, -1])
def test_the_limit_holds_to_the_byte(spare: int) -> None:
    """With exactly the limit a record still fits; with one byte less it is a payload too large."""
    alone = record(0, 1, b"x" * 300)
    size = len(encode_event(source(), [alone]))
    waiting = buffers(limit=size + spare)
    waiting.put(alone, 10.0)

    flight = waiting.take(10.0)

    assert flight is not None
    assert flight.condition == ("" if spare == 0 else PAYLOAD_TOO_LARGE)


def test_records_before_and_after_an_oversize_record_are_delivered_around_it() -> None:
    waiting = buffers(window_s=0, limit=2_000)
    for offset, size in enumerate((10, 3_000, 10)):
        waiting.put(record(0, offset, b"x" * size), 10.0)

    seen = []
    while (flight := waiting.take(11.0)) is not None:
        seen.append(([it.offset for it in flight.records], flight.condition))
        waiting.release(flight.partitions)

    assert seen == [([0], ""), ([1], PAYLOAD_TOO_LARGE), ([2], "")]


def test_a_partition_never_has_two_batches_under_way() -> None:
    waiting = buffers(window_s=0)
    waiting.put(record(0, 1), 10.0)
    first = waiting.take(10.0)
    waiting.put(record(0, 2), 10.0)
    waiting.put(record(1, 1), 10.0)

    second = waiting.take(10.0)

    assert first is not None
    assert second is not None
    assert first.partitions == {0}
    assert second.partitions == {1}
    assert waiting.take(99.0) is None


TOPIC = "orders"


RECORDS = tuple(record(partition, offset) for partition in (0, 1) for offset in (4, 5, 7))


def ended(status: Status = "success", payload: bytes = b"null") -> Invocation:
    return Invocation(status=status, payload=payload, request_id="r", duration_ms=1.0)


def failures(*places: tuple[object, object]) -> bytes:
    return json.dumps(
        {"batchItemFailures": [{"itemIdentifier": {"partition": name, "offset": at}} for name, at in places]}
    ).encode()


@pytest.mark.parametrize(
    "answer", [b"", b"null", b"{}", b'""', b'{"batchItemFailures":[]}', b'{"batchItemFailures":null}']
)
def test_an_answer_without_failures_is_success(answer: bytes) -> None:
    assert failed_records(RECORDS, answer, topic=TOPIC) == ()


@pytest.mark.parametrize(
    "answer",
    [
        failures(("orders-0", 6)),
        failures(("orders-2", 4)),
        failures(("orders-0", 4), ("orders-0", 99)),
        failures(("orders-0", "4")),
        failures((0, 4)),
        b'{"batchItemFailures":[{"itemIdentifier":"4"}]}',
        b'{"batchItemFailures":[{}]}',
        b'{"batchItemFailures":[null]}',
        b'{"batchItemFailures":7}',
        b"not json",
        b'"done"',
    ],
)
def test_an_answer_that_names_anything_unknown_means_the_whole_batch(answer: bytes) -> None:
    assert failed_records(RECORDS, answer, topic=TOPIC) == RECORDS


@pytest.mark.parametrize(
    ("setting", "again", "problem"),
    [(True, RECORDS[4:5], "PROBLEM: Function returned batch item failures"), (False, (), "OK")],
)
def test_only_the_named_records_are_delivered_again_and_without_the_setting_none(
    *, setting: bool, again: tuple[EncodedRecord, ...], problem: str
) -> None:
    verdict = judge(RECORDS, ended(payload=failures(("orders-1", 5))), partial_response=setting, topic=TOPIC)

    assert (verdict.again, verdict.problem) == (again, problem)


@pytest.mark.parametrize("status", ["function_error", "timeout", "exited", "throttled"])
def test_every_failure_has_the_whole_batch_delivered_again(status: Status) -> None:
    verdict = judge(RECORDS, ended(status), partial_response=True, topic=TOPIC)

    assert verdict.again == RECORDS
    assert verdict.problem.startswith("PROBLEM: ")


def test_the_committed_position_is_the_lowest_unresolved_offset() -> None:
    flight = Flight(RECORDS)

    flight.leave([record(0, 5)])

    assert flight.positions() == {0: 5, 1: 8}
    assert not flight.landed
    flight.leave([])
    assert flight.positions() == {0: 8, 1: 8}
    assert flight.landed


def test_a_lost_partition_is_neither_retried_nor_committed() -> None:
    flight = Flight(RECORDS)

    flight.forget([0])

    assert flight.positions() == {1: 4}
    assert [it.partition for it in flight.records] == [1, 1, 1]
    flight.leave(RECORDS)
    assert {it.partition for it in flight.records} == {1}
    flight.forget([1])
    assert flight.landed
    assert not flight.partitions
