"""The lease of a shard: whose it is when clocks differ."""

from __future__ import annotations

import pytest

from mirrorless.pull.shard_lease import RENEW_BELOW_MS, TERM_MS, ShardLease
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

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
