"""Which lanes a shard has, and which of them share a transaction."""

from __future__ import annotations

from collections import Counter

import pytest

from mirrorless.pull.shards import places_of_shard, shard_of, transactions


def test_every_lane_is_in_exactly_one_shard_and_neighbours_of_a_journal_are_together() -> None:
    topics = {f"topic-{number}": 40 for number in range(50)}

    found = [places_of_shard(topics, shard, 4) for shard in range(4)]

    assert Counter(place for places in found for place in places) == Counter(
        (topic, partition) for topic, count in topics.items() for partition in range(count)
    )
    for topic in topics:
        assert {
            len({shard_of(topic, partition, 4) for partition in range(first, first + 16)}) for first in (0, 16)
        } == {1}
    assert min(map(len, found)) > 0


def test_a_lane_stays_in_its_shard_from_run_to_run() -> None:
    """A hash that differs by process would have two runs read the same lane."""
    assert [shard_of("orders", partition, 8) for partition in (0, 15, 16, 32)] == [2, 2, 4, 6]


@pytest.mark.parametrize("partitions", [1, 6, 16, 40])
def test_a_transaction_has_64_lanes_at_most_and_splits_no_journal(partitions: int) -> None:
    places = [(f"topic-{number}", partition) for number in range(400 // partitions) for partition in range(partitions)]

    found = list(transactions(places))

    assert sorted(place for batch in found for place in batch) == sorted(places)
    assert max(map(len, found)) <= 64
    journals = [{(topic, partition // 16) for topic, partition in batch} for batch in found]
    assert sum(map(len, journals)) == len(set().union(*journals))


def test_after_a_failure_a_lane_can_go_alone() -> None:
    assert list(transactions([("a", 0), ("a", 1), ("b", 1)], 1)) == [[("a", 0)], [("a", 1)], [("b", 1)]]
