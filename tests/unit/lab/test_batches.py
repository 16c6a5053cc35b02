"""What a mapping decides after each invocation."""

from __future__ import annotations

import json

import pytest

from lab.esm.batches import Flight, failed_records, judge
from lab.esm.event import EncodedRecord
from lab.esm.mapping import wanted_pollers
from lab.esm.poller import Throughput
from lab.functions.invocation import Invocation, Status

TOPIC = "orders"


def record(partition: int, offset: int) -> EncodedRecord:
    return EncodedRecord(partition=partition, offset=offset, body=b"{}")


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


def test_only_the_named_records_are_delivered_again() -> None:
    answer = ended(payload=failures(("orders-1", 5)))

    verdict = judge(RECORDS, answer, partial_response=True, topic=TOPIC)

    assert [(it.partition, it.offset) for it in verdict.again] == [(1, 5)]
    assert verdict.problem == "PROBLEM: Function returned batch item failures"


def test_without_the_setting_a_partial_response_is_plain_success() -> None:
    answer = ended(payload=failures(("orders-1", 5)))

    verdict = judge(RECORDS, answer, partial_response=False, topic=TOPIC)

    assert (verdict.again, verdict.problem) == ((), "OK")


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


@pytest.mark.parametrize(
    ("pollers", "lag", "lag_before", "wanted"),
    [
        (1, 0, 0, 1),
        (1, 9, 0, 2),
        (2, 9, 9, 4),
        (4, 9, 9, 5),
        (2, 8, 9, 2),
        (4, 0, 8, 3),
    ],
    ids=["idle", "a lag", "it stays", "at most five", "it falls", "it is gone"],
)
def test_pollers_double_while_the_lag_does_not_fall_and_go_one_by_one(
    pollers: int, lag: int, lag_before: int, wanted: int
) -> None:
    assert wanted_pollers(pollers, lag=lag, lag_before=lag_before, minimum=1, maximum=5) == wanted


def test_a_poller_pays_for_each_payload_before_the_next_one_and_saves_nothing_up() -> None:
    pace = Throughput(bytes_per_second=5_000_000)

    pace.spend(6_000_000, now=100.0)
    assert pace.ready_at == pytest.approx(101.2)
    pace.spend(1_000_000, now=200.0)
    assert pace.ready_at == pytest.approx(200.2)
    pace.spend(1_000_000, now=200.1)
    assert pace.ready_at == pytest.approx(200.4), "the one before is still being paid for"


def test_a_poller_without_a_limit_is_always_ready() -> None:
    pace = Throughput(bytes_per_second=0)

    pace.spend(6_000_000, now=100.0)

    assert pace.ready_at == 0
