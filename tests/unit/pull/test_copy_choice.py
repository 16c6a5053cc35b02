"""The way in which a lane is copied, by what its batches are like."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorless.protocol.copy_choice import LARGE_BATCH_BYTES, BatchTally, Copy, Engine, cpu_beside_large, engine_of
from mirrorless.record_batch import RecordBatch
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


def test_a_byte_costs_more_in_small_batches() -> None:
    assert [cpu_beside_large(size) > least for size, least in ((1_000, 10), (8_000, 2), (64_000, 1))] == [True] * 3
    assert cpu_beside_large(LARGE_BATCH_BYTES) == 1


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
