"""The engine that copies a lane in a job: by what its batches are like, and by how fast each engine was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorless.jobs.engine_choice import (
    COLD_SECONDS,
    FAILURES,
    FIRST_BYTES,
    FIRST_HELD_SECONDS,
    HELD_SECONDS,
    LEAST_BYTES,
    SLOW_BYTES,
    TRIAL_BYTES,
    WATCHED_BYTES,
    WATCHED_SECONDS,
    EngineChoice,
)
from mirrorless.protocol.copy_choice import Engine
from mirrorless.record import Record
from mirrorless.record_batch import PassTerms, RecordBatch
from tests.support.batches import batch_of

TERMS = PassTerms(max_message_bytes=1 << 20)


def a_chunk(records: int, size: int) -> list[RecordBatch]:
    """32 MB of batches of so many records of a size."""
    (first,) = [batch_of([Record(i, 1, [], b"k", bytes(size)) for i in range(records)])]
    return [replace(first, base_offset=i * records) for i in range(32_000_000 // first.size)]


def after(choice: EngineChoice, *rates: float) -> list[Engine]:
    """The engines after stretches of slow copying at these rates, in offsets a second, each long enough for a trial."""
    found, seconds = [], TRIAL_BYTES / SLOW_BYTES * 1.01
    for rate in rates:
        choice.copied(int(rate * seconds), TRIAL_BYTES, seconds)
        found.append(choice.engine)
    return found


@pytest.mark.parametrize(
    ("records", "size", "engine"),
    [(250, 1_000, "batches"), (150, 100, "batches"), (15, 1_000, "records"), (1, 1_000, "records")],
)
def test_large_batches_pass_and_those_of_a_few_records_are_left_to_the_client(
    records: int, size: int, engine: Engine
) -> None:
    choice = EngineChoice()

    choice.seen(a_chunk(records, size), TERMS)

    assert choice.engine == engine


def test_small_batches_pass_where_other_lanes_share_their_requests() -> None:
    choice = EngineChoice(lanes=2)

    choice.seen(a_chunk(15, 1_000), TERMS)

    assert choice.engine == "batches"


def test_a_few_batches_are_no_reason_to_open_another_producer() -> None:
    choice = EngineChoice()

    choice.seen(a_chunk(1, 1_000)[:100], TERMS)

    assert choice.engine == "batches"


def test_what_the_client_would_have_saved_adds_up_over_small_chunks() -> None:
    choice, chunk = EngineChoice(), a_chunk(1, 1_000)[:100]

    chunks = 0
    while choice.engine == "batches":
        choice.seen(chunk, TERMS)
        chunks += 1

    assert 2 < chunks < 20


def test_batches_that_cannot_pass_are_left_to_the_client() -> None:
    compressed_anew, thinned = EngineChoice(), EngineChoice()

    compressed_anew.seen(a_chunk(250, 1_000), PassTerms(max_message_bytes=1 << 20, compression_type="zstd"))
    thinned.seen([replace(each, last_offset_delta=999) for each in a_chunk(250, 1_000)], TERMS)

    assert (compressed_anew.engine, thinned.engine) == ("records", "records")


def test_the_other_engine_is_tried_and_the_faster_one_goes_on_for_a_while() -> None:
    slow_target, quick_target = EngineChoice(), EngineChoice()

    assert after(slow_target, 1_000, 60_000) == ["records", "records"]
    assert after(quick_target, 50_000, 60_000) == ["records", "batches"]


def test_each_time_that_the_client_is_faster_it_is_held_for_twice_as_long_up_to_five_minutes() -> None:
    """Brokers that were cold are soon looked at again, and a distant target is not for long."""
    choice, held = EngineChoice(), []

    for _ in range(6):
        after(choice, 1_000, 60_000)
        engines = list[Engine]()
        while not engines or engines[-1] == "records":
            choice.copied(1, 1, 1.0)
            engines.append(choice.engine)
        held.append(len(engines))

    assert held == [20, 40, 80, 160, 300, 300]


def test_lanes_that_share_their_requests_are_slow_or_not_together() -> None:
    alone, shared = EngineChoice(), EngineChoice(lanes=6)

    assert after(alone, 1_000) == ["records"]
    assert after(shared, 1_000) == ["batches"]


def test_a_lane_that_is_quick_by_whole_batches_tries_nothing_for_a_while() -> None:
    choice = EngineChoice()

    choice.copied(1, SLOW_BYTES * 20, 20.0)
    assert after(choice, 1_000) == ["batches"]
    choice.copied(1, 1, HELD_SECONDS)
    assert after(choice, 1_000) == ["records"]


def test_what_is_slow_only_in_its_first_seconds_is_not_distant() -> None:
    cold, distant = EngineChoice(), EngineChoice()

    for second in range(8):
        cold.copied(1, SLOW_BYTES // 10 if second < 4 else SLOW_BYTES, 1.0)
        distant.copied(1, SLOW_BYTES - 1, 1.0)

    assert (cold.engine, distant.engine) == ("batches", "records")


def test_a_short_lane_never_tries_the_other_engine() -> None:
    choice = EngineChoice()

    choice.copied(1, WATCHED_BYTES - 1, WATCHED_SECONDS * 20)
    few_seconds = EngineChoice()
    few_seconds.copied(1, 1, COLD_SECONDS)
    few_seconds.copied(1, WATCHED_BYTES, WATCHED_SECONDS * 0.9)

    assert (choice.engine, few_seconds.engine) == ("batches", "batches")


def test_a_log_of_an_old_format_is_read_by_the_client_and_looked_at_again() -> None:
    choice = EngineChoice()

    choice.use_client()

    assert after(choice, 1) == ["records"]
    choice.copied(1, 1, FIRST_HELD_SECONDS)
    assert choice.engine == "batches"


def test_after_some_failures_in_a_row_the_client_has_a_try() -> None:
    """A broker may be too old for the other engine."""
    choice = EngineChoice()

    for _ in range(FAILURES - 1):
        choice.failed()
    choice.copied(1, 1, 0.1)
    for _ in range(FAILURES - 1):
        choice.failed()
    engines = [choice.engine]
    choice.failed()

    assert [*engines, choice.engine] == ["batches", "records"]


def test_transactions_grow_while_the_target_is_quick_and_shrink_where_it_is_slow() -> None:
    choice = EngineChoice()

    choice.copied(1, 1, 0.1)
    assert choice.budget == 2 * FIRST_BYTES
    choice.copied(1, 1, 2.0)
    assert choice.budget == 2 * FIRST_BYTES
    choice.copied(1, 1, 5.0)
    choice.failed()
    assert choice.budget == FIRST_BYTES // 2
    for _ in range(9):
        choice.failed()
    assert choice.budget == LEAST_BYTES
