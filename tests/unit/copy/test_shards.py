"""Which lanes a shard has, and which of them share a transaction."""

from __future__ import annotations

from collections import Counter

import pytest

from mirrorless.copy.shards import RENEW_BELOW_MS, TERM_MS, ShardLease, places_of_shard, shard_of, transactions
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments


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


NOW = 1_763_686_800_000
HOUR_MS = 3_600_000
RUN_MS = 840_000


def lease(documents: MemoryDocuments, holder: str, *, now: int = NOW) -> ShardLease:
    """A run that begins now by its clock."""
    return ShardLease(
        flow=FLOW, shard=0, holder=f"{holder}/1", ends_at=now + RUN_MS, documents=documents, clock=lambda: now
    )


def test_a_lease_stands_for_a_minute_after_its_run_was_killed() -> None:
    documents = MemoryDocuments()
    assert lease(documents, "killed").take()

    assert not lease(documents, "next", now=NOW + TERM_MS).take()
    assert lease(documents, "next", now=NOW + TERM_MS + 1).take()


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 5 * HOUR_MS])
def test_a_run_that_was_killed_with_its_clock_ahead_does_not_keep_the_shard_for_as_long(ahead_ms: int) -> None:
    documents = MemoryDocuments()
    assert lease(documents, "killed", now=NOW + ahead_ms).take()

    assert lease(documents, "next").take()


def test_a_run_with_its_clock_ahead_does_not_take_the_shard_back_from_the_run_that_took_it_over() -> None:
    """It was killed then, and its lease stood for an hour beside the document of another holder."""
    documents, ahead_ms = MemoryDocuments(), [HOUR_MS]
    ahead = lease(documents, "ahead")
    ahead.clock = lambda: NOW + ahead_ms[0]
    assert ahead.take()
    assert lease(documents, "next").take()

    ahead_ms[0] += RENEW_BELOW_MS  # it renews

    assert not ahead.keep()
    assert documents.leases[FLOW, "pull/0/lease"] == ("next/1", NOW + TERM_MS)


def test_a_run_with_its_clock_ahead_that_finds_the_shard_free_does_not_keep_it_once_it_is_killed() -> None:
    documents, ahead_ms = MemoryDocuments(), [HOUR_MS]
    ahead = lease(documents, "ahead")
    ahead.clock = lambda: NOW + ahead_ms[0]
    assert ahead.take()
    between = lease(documents, "between")
    assert between.take()
    between.release()
    ahead_ms[0] += RENEW_BELOW_MS

    assert ahead.keep()

    assert lease(documents, "next").take()


def test_a_lease_that_was_let_go_of_and_taken_by_another_run_meanwhile_stays_its() -> None:
    """The document about the holder is older than the lease for a moment."""
    documents = MemoryDocuments()
    ahead = lease(documents, "killed", now=NOW + HOUR_MS)
    assert ahead.take()
    documents.leases[FLOW, "pull/0/lease"] = ("another/1", NOW + TERM_MS)

    assert not lease(documents, "next").take()
