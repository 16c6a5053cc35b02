"""Delivery reports: the ends of a lane prove where all of its records stand, or nothing is believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.delivery_reports import Reports, Watch


class Acknowledged:
    """The message of a report, as far as we look at it."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        """As the client has it."""
        return self._offset


def reported(
    answers: Sequence[int | KafkaError | None],
    *,
    by_ends: bool = False,
    by_record: bool = False,
    order: Sequence[int] | None = None,
) -> Reports:
    """The reports of as many records as there are answers, in this order, given to their callbacks."""
    reports = Reports(len(answers), by_ends=by_ends, by_record=by_record)
    callbacks = list(reports.callbacks())
    for index in order or range(len(answers)):
        if callbacks[index] is not None:
            failed: Any = answer if isinstance(answer := answers[index], KafkaError) else None
            callbacks[index](failed, Acknowledged(None if failed else answer))  # type: ignore[arg-type]  # the offset, or None
    return reports


@pytest.mark.parametrize("offsets", [[7], [7, 8], [7, 8, 9], list(range(7, 107))])
def test_ends_as_far_apart_as_the_records_prove_where_each_of_them_stands(offsets: list[int]) -> None:
    reports = reported(offsets, by_ends=True)

    assert not reports.unclear
    assert list(reports.delivery().downstream) == offsets


TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


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


def test_a_lane_of_no_records_is_not_unclear() -> None:
    reports = reported([], by_ends=True)

    assert not reports.unclear
    assert list(reports.delivery().downstream) == []


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
