"""What a mapping decides after each invocation."""

import json

import pytest

from lab.esm.batches import (
    RECORD_TOO_OLD,
    RETRIES_EXHAUSTED,
    BatchPart,
    Flight,
    RetryPolicy,
    failed_records,
    judge,
    too_old,
)
from lab.esm.event import EncodedRecord
from lab.functions.invocation import Invocation, Status

TOPIC = "orders"


def record(partition: int, offset: int, timestamp_ms: int = 0) -> EncodedRecord:
    return EncodedRecord(partition=partition, offset=offset, timestamp_ms=timestamp_ms, key=None, body=b"{}")


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
    policy = RetryPolicy(partial_response=True)

    verdict = judge(BatchPart(records=RECORDS), ended(payload=failures(("orders-1", 5))), policy, topic=TOPIC)

    assert [(it.partition, it.offset) for it in verdict.again[0].records] == [(1, 5)]
    assert len(verdict.resolved) == 5


def test_without_the_setting_a_partial_response_is_plain_success() -> None:
    verdict = judge(BatchPart(records=RECORDS), ended(payload=failures(("orders-1", 5))), RetryPolicy(), topic=TOPIC)

    assert verdict.resolved == RECORDS


@pytest.mark.parametrize("status", ["function_error", "timeout", "exited", "throttled"])
def test_every_failure_is_retried_for_ever_by_default(status: Status) -> None:
    verdict = judge(BatchPart(records=RECORDS, failures=9_999), ended(status), RetryPolicy(), topic=TOPIC)

    assert verdict.resolved == ()
    assert verdict.again == (BatchPart(records=RECORDS, failures=10_000),)
    assert verdict.problem.startswith("PROBLEM: ")


@pytest.mark.parametrize(("failed_before", "given_up"), [(0, False), (1, False), (2, True)])
def test_retries_do_not_count_the_first_attempt(failed_before: int, given_up: bool) -> None:  # noqa: FBT001  a table's column
    policy = RetryPolicy(maximum_retries=2)

    verdict = judge(BatchPart(records=RECORDS, failures=failed_before), ended("timeout"), policy, topic=TOPIC)

    assert bool(verdict.given_up) is given_up
    assert verdict.condition == (RETRIES_EXHAUSTED if given_up else "")


def test_a_partial_failure_that_ran_out_of_retries_gives_up_only_the_failed() -> None:
    policy = RetryPolicy(maximum_retries=0, partial_response=True)

    verdict = judge(BatchPart(records=RECORDS), ended(payload=failures(("orders-0", 5))), policy, topic=TOPIC)

    assert [it.offset for it in verdict.given_up] == [5]
    assert verdict.resolved == RECORDS


@pytest.mark.parametrize(("consumes", "counted"), [(False, 0), (True, 1)])
def test_a_failed_batch_is_split_in_two(consumes: bool, counted: int) -> None:  # noqa: FBT001  a table's column
    policy = RetryPolicy(maximum_retries=0, bisect=True, bisect_consumes_retry=consumes)

    verdict = judge(BatchPart(records=RECORDS), ended("function_error"), policy, topic=TOPIC)

    assert [it.records for it in verdict.again] == [RECORDS[:3], RECORDS[3:]]
    assert {it.failures for it in verdict.again} == {counted}


def test_a_throttled_batch_is_not_split() -> None:
    """Throttling says nothing about the records."""
    verdict = judge(BatchPart(records=RECORDS), ended("throttled"), RetryPolicy(bisect=True), topic=TOPIC)

    assert [it.records for it in verdict.again] == [RECORDS]


def test_the_committed_position_is_the_lowest_unresolved_offset() -> None:
    flight = Flight.of(RECORDS)

    flight.resolve([it for it in RECORDS if (it.partition, it.offset) != (0, 5)])

    assert flight.positions() == {0: 5, 1: 8}
    assert not flight.landed
    flight.resolve(RECORDS)
    assert flight.positions() == {0: 8, 1: 8}
    assert flight.landed


def test_a_lost_partition_is_neither_retried_nor_committed() -> None:
    flight = Flight.of(RECORDS)

    flight.forget([0])

    assert flight.positions() == {1: 4}
    assert [it.partition for it in flight.pieces[0].records] == [1, 1, 1]
    flight.repeat([BatchPart(records=RECORDS)])
    assert {it.partition for piece in flight.pieces for it in piece.records} == {1}
    flight.forget([1])
    assert flight.landed
    assert not flight.pieces


def test_old_records_are_given_up_and_young_ones_delivered() -> None:
    piece = BatchPart(records=(record(0, 1, 1_000), record(0, 2, 99_000)), failures=3)

    old, young = too_old(piece, now_ms=100_000, maximum_age_s=60)

    assert old == BatchPart(records=piece.records[:1], failures=3, condition=RECORD_TOO_OLD)
    assert young == BatchPart(records=piece.records[1:], failures=3)
    assert too_old(piece, now_ms=100_000, maximum_age_s=-1) == (None, piece)
