"""The way in which a lane is copied, by what its batches are like."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorless.protocol.copy_choice import (
    CLIENT_KB_US,
    CLIENT_RECORD_US,
    LARGE_BATCH_BYTES,
    MARGIN,
    OPENED_KB_US,
    OPENED_RECORD_US,
    PASSED_BATCH_US,
    PASSED_KB_US,
    BatchTally,
    Copy,
    Engine,
    cpu_beside_large,
    engine_of,
)
from mirrorless.records.record_batch import RecordBatch
from tests.support.batches import batch_of
from tests.support.protocol_world import records


def batches(count: int, *, of: int, size: int) -> list[RecordBatch]:
    """So many batches with so many records each and so many bytes of payload."""
    one = replace(batch_of(records(0)), records_count=of, payload=memoryview(bytes(size)))
    return [one] * count


def tally(count: int, *, of: int, size: int) -> BatchTally:
    found = BatchTally()
    found.note(batches(count, of=of, size=size))
    return found


@pytest.mark.parametrize(
    ("of", "size", "opens"),
    [
        (140, 16_000, False),  # Java's default, records of 100 B
        (16, 16_000, False),  # of 1 KB
        (1, 10_000, False),
        (2_600, 256_000, False),
        (1, 100, True),  # a producer without linger
        (2, 200, True),
        (8, 800, False),
    ],
)
def test_a_lane_passes_its_batches_unless_they_hold_a_few_small_records(of: int, size: int, *, opens: bool) -> None:
    assert tally(64, of=of, size=size).opens is opens


def test_a_lane_whose_records_are_changed_is_opened_whatever_its_batches_are_like_and_counts_so() -> None:
    passes, changed = BatchTally(), BatchTally(must_open=True)
    for each in (passes, changed):
        each.note(batches(64, of=16, size=16_000))

    assert (passes.opens, changed.opens) == (False, True)
    assert (engine_of("auto", [passes]), engine_of("auto", [changed])) == ("batches", "records")


def test_a_lane_at_the_border_does_not_change_back_and_forth() -> None:
    found = tally(64, of=1, size=100)
    ways = []
    for of in (4, 3, 4, 3, 4):
        found.note(batches(64, of=of, size=of * 100))
        ways.append(found.opens)

    assert ways == [True] * 5
    found.note(batches(64, of=10, size=1_000))
    assert not found.opens
    ways = []
    for of in (4, 3, 4, 3):
        found.note(batches(64, of=of, size=of * 100))
        ways.append(found.opens)
    assert ways[0] is False


def test_what_a_lane_was_like_long_ago_does_not_count() -> None:
    found = tally(10_000, of=1, size=100)

    found.note(batches(32, of=1_000, size=100_000))

    assert not found.opens
    assert found.batches == pytest.approx(10_000 / 2 + 32)
    found.note(batches(64, of=1_000, size=100_000))
    assert found.batches == 64


def test_a_way_costs_what_its_batches_records_and_bytes_cost() -> None:
    found = BatchTally(batches=2, records=3, bytes=4_000)

    assert (found.cost_passed(), found.cost_opened(), found.cost_by_client()) == (
        2 * PASSED_BATCH_US + 4 * PASSED_KB_US,
        3 * OPENED_RECORD_US + 4 * OPENED_KB_US,
        3 * CLIENT_RECORD_US + 4 * CLIENT_KB_US,
    )


def test_a_way_that_is_cheaper_by_exactly_the_margin_is_not_taken() -> None:
    """Batches without bytes: all costs are whole numbers."""
    passes, opens = BatchTally(), BatchTally(opens=True)
    passes.note([*batches(12, of=2, size=0), *batches(1, of=11, size=0)])
    opens.note([*batches(19, of=4, size=0), *batches(1, of=15, size=0)])
    large = BatchTally(batches=13, records=175)
    assert passes.cost_opened() * MARGIN == passes.cost_passed() == large.cost_by_client() * MARGIN
    assert opens.cost_passed() * MARGIN == opens.cost_opened()

    assert (passes.opens, opens.opens, engine_of("auto", [large])) == (False, False, "batches")


def test_a_byte_costs_more_in_small_batches() -> None:
    assert [cpu_beside_large(size) > least for size, least in ((1_000, 10), (8_000, 2), (64_000, 1))] == [True] * 3
    assert cpu_beside_large(LARGE_BATCH_BYTES) == 1
    # 35 and 40 microseconds for 16 KB, 35 and 640 for 256.
    assert cpu_beside_large(16_000) == pytest.approx((75 / 16) / (675 / 256))


def test_nothing_read_changes_nothing() -> None:
    found = tally(64, of=1, size=100)
    found.note([])
    assert (found.batches, found.opens) == (64, True)


@pytest.mark.parametrize(
    ("asked", "tallies", "engine"),
    [
        ("auto", [], "batches"),
        ("auto", [BatchTally()], "batches"),
        ("records", [tally(64, of=2_600, size=256_000)], "records"),
        ("auto", [tally(64, of=2_600, size=256_000)], "batches"),
        ("auto", [tally(64, of=140, size=16_000)], "batches"),
        ("auto", [tally(64, of=1, size=100)], "records"),
        ("auto", [tally(64, of=1, size=100), *[tally(64, of=2_600, size=256_000)] * 5], "batches"),
        ("auto", [tally(64, of=2_600, size=256_000), BatchTally(by_client=True)], "records"),
    ],
)
def test_a_run_has_the_engine_that_is_cheaper_for_all_its_lanes(
    asked: Copy, tallies: list[BatchTally], engine: Engine
) -> None:
    assert engine_of(asked, tallies) == engine
