"""The state of source topics: unchanged, re-created, truncated, gone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.topics.topic_state import (
    FlowStart,
    Recreated,
    StoredTopics,
    TopicState,
    mark_gone,
    mark_present,
    mark_recreated,
    merged_ends,
    receded,
    recreated_stop,
    start_of,
    unfinished,
)

SEEN = TopicState(topic="orders", topic_id="old", partitions=3, first_seen=1, start=(5, 5, 5), start_committed=True)
FIRST = Head(generation=0, position=9)
SECOND = Head(generation=1, position=0)


def test_a_topic_that_is_still_the_same_only_grows() -> None:
    assert mark_present(SEEN, partitions=3) == SEEN
    assert mark_present(SEEN, partitions=4) == replace(SEEN, partitions=4)
    assert mark_present(replace(SEEN, gone_at=7), partitions=3) == SEEN


@pytest.mark.parametrize(
    ("known", "topic_id", "heads", "waiting"),
    [
        pytest.param(None, "new", [FIRST, SECOND, NEW_LANE], {0: 0, 1: 1}, id="every lane with a chain"),
        pytest.param({0: 0, 1: 1}, "new", [SECOND, SECOND, FIRST], {1: 1}, id="one that was reset waits no more"),
        pytest.param({1: 1}, "newer", [SECOND, SECOND, NEW_LANE], {0: 1, 1: 1}, id="a topic created yet again"),
    ],
)
def test_lanes_of_a_topic_that_was_created_again_wait_for_a_reset_and_the_old_id_is_kept(
    known: dict[int, int] | None, topic_id: str, heads: list[Head], waiting: dict[int, int]
) -> None:
    before = replace(SEEN, recreated=Recreated(topic_id="new", waiting=known)) if known else SEEN

    seen = mark_recreated(before, topic_id=topic_id, partitions=3, heads=dict(enumerate(heads)))

    assert (seen.topic_id, seen.recreated) == ("old", Recreated(topic_id=topic_id, waiting=waiting))


def test_once_all_are_reset_the_topic_is_the_new_one_and_begins_at_its_first_record() -> None:
    before = replace(SEEN, recreated=Recreated(topic_id="new", waiting={0: 0}))

    seen = mark_recreated(before, topic_id="new", partitions=2, heads={0: SECOND, 1: FIRST, 2: FIRST})

    assert (seen.topic_id, seen.partitions, seen.recreated, seen.start, seen.late) == ("new", 2, None, (), True)
    nothing_copied = mark_recreated(SEEN, topic_id="new", partitions=1, heads=dict.fromkeys(range(3), NEW_LANE))
    assert (nothing_copied.topic_id, nothing_copied.recreated) == ("new", None)


def test_a_topic_is_gone_since_it_was_first_missed() -> None:
    gone = mark_gone(SEEN, now=7)

    assert gone.gone_at == 7
    assert mark_gone(gone, now=8) == gone


def test_the_stops_say_what_happened_and_what_to_do() -> None:
    new = replace(SEEN, recreated=Recreated(topic_id="new", waiting={2: 0}))
    recreated = recreated_stop(new, 2, partitions=3, now=3)
    gone = recreated_stop(new, 2, partitions=2, now=3)

    assert (recreated.reason, recreated.upstream_offset, recreated.at) == ("recreated", 0, 3)
    assert "was old and is new" in recreated.detail
    assert gone.detail == f"{recreated.detail}, with 2 partitions, so this one is gone"


def test_only_an_end_that_moved_backwards_is_suspicious() -> None:
    before = {"orders": [5, 5, -1]}
    now = {("orders", 0): 4, ("orders", 1): 5, ("orders", 2): 0, ("orders", 3): 0, ("new", 0): 0}

    assert receded(before, now) == [("orders", 0)]


def test_an_end_that_was_not_read_keeps_its_stored_value() -> None:
    before = {"orders": [5, 6], "gone": [1], "finished": [2]}

    merged = merged_ends(before, {("orders", 0): 9, ("new", 0): 0}, {"orders": 3, "new": 1}, keep={"gone"})

    assert merged == {"orders": [9, 6, -1], "new": [0], "gone": [1]}


def test_a_partition_is_finished_at_its_end() -> None:
    assert unfinished([5, 4, 0], [5, 5, -1]) == {1: (4, 5)}


@pytest.mark.parametrize(
    ("text", "start"),
    [("earliest", None), ("backfill", "latest"), ("latest", "latest"), ("2026-01-01T00:00:00Z", 1_767_225_600_000)],
)
def test_a_flow_begins_where_it_says(text: str, start: str | int | None) -> None:
    assert start_of(text) == start


def test_what_is_written_is_read_back_and_only_what_changed_is_written() -> None:
    topics = {f"t{n:04}": replace(SEEN, topic=f"t{n:04}") for n in range(3)}
    ends = {f"t{n:04}": [n, n] for n in range(4_500)}
    empty = StoredTopics(beginning=None, topics={}, ends={})
    documents = empty.changed(topics, ends) | {"topics": b'{"at":1,"topics":["orders"]}'}

    memory = StoredTopics.of(documents)

    assert (memory.beginning, memory.topics, memory.ends) == (FlowStart(at=1, topics=("orders",)), topics, ends)
    assert memory.changed(topics, ends) == {}
    assert list(memory.changed(topics, ends | {"t0000": [9, 9]})) == ["topic-ends/0"]
    assert StoredTopics.of(documents | memory.changed({}, {"t0000": [0, 0]})).ends == {"t0000": [0, 0]}


def test_a_document_of_ends_holds_those_of_a_write_unit_and_one_is_written_where_one_topic_moved() -> None:
    ends = {f"t{n:04}": [n] * 60 for n in range(100)} | {"wide": [1] * 1_000}
    documents = StoredTopics(beginning=None, topics={}, ends={}).changed({}, ends)
    memory = StoredTopics.of(documents)

    assert len(documents) == 51
    assert list(memory.changed({}, ends | {"t0050": [9] * 60})) == ["topic-ends/25"]


def test_ends_of_a_topic_stay_in_their_document_while_others_come_and_go() -> None:
    """Documents are written one after the other: one that moves could be lost with the process between them."""
    ends = {f"t{n:03}": [n] * 50 for n in range(10)}
    documents = StoredTopics(beginning=None, topics={}, ends={}).changed({}, ends)
    del ends["t002"]
    ends |= {"a-first": [1] * 50, "z-last": [2] * 50}

    changed = StoredTopics.of(documents).changed({}, ends)

    assert sorted(changed) == ["topic-ends/1", "topic-ends/5"]  # where there was room, and a new one
    assert StoredTopics.of(documents | changed).ends == ends


def test_a_stale_copy_of_ends_is_written_over() -> None:
    """A round that is interrupted between two batches leaves a topic in two documents."""
    stored = {"topic-ends/0": b'{"orders":[5]}', "topic-ends/1": b'{"orders":[3]}'}

    assert StoredTopics.of(stored).changed({}, {"orders": [5]}) == {"topic-ends/1": b"{}"}
