"""The removal of a deleted flow's mappings: all of them, no others, and none is created again."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.scheduled.runner import lease
from mirrorless.topics.mapping_plan import owner_tags
from mirrorless.topics.mapping_removal import GRACE_MS, LONGEST_WAIT_MS, MappingRemoval, Removal
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments
from tests.support.mappings import MemoryMappings

LEASE = lease("refresh_topics")
OTHER = FlowName("us-east", "eu-north")


@dataclass(slots=True)
class SilentDocuments(MemoryDocuments):
    """No answer comes."""

    def claim(self, *_: object, **__: object) -> bool:
        """See `Documents.claim`."""
        raise Retriable("DynamoDB did not answer")


@dataclass(slots=True)
class Account:
    """An account whose clock advances only by `sleep`."""

    mappings: MemoryMappings = field(default_factory=lambda: MemoryMappings(looks_until_gone=2))
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = 1_000_000

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * 1000)

    def remove(self, *, seconds: float = 540) -> Removal:
        """One run."""
        end = self.now + int(seconds * 1000)
        return MappingRemoval(
            flow=FLOW,
            mappings=self.mappings,
            documents=self.documents,
            clock=lambda: self.now,
            sleep=self.sleep,
        ).act(lambda: (end - self.now) / 1000)


@pytest.fixture
def account() -> Account:
    """Three found topics of the flow."""
    account = Account()
    for topic in ("ta", "tb", "tc"):
        account.mappings.add(topic)
    return account


def test_every_mapping_that_was_found_is_deleted_and_seen_to_be_gone(account: Account) -> None:
    account.mappings.looks_until_gone = 3

    assert account.remove() == Removal(deleted=3)
    assert account.mappings.mappings == {}


def test_mappings_of_the_template_of_other_flows_and_of_strangers_stay(account: Account) -> None:
    account.mappings.add("literal", tags={"mirrorless:flow": FLOW.slug, "mirrorless:owner": "template"})
    account.mappings.add("other", flow=OTHER)
    account.mappings.add("tagged", tags=owner_tags(OTHER))
    account.mappings.mappings["queue"] = {"UUID": "queue", "State": "Enabled"}

    account.remove()

    assert sorted(account.mappings.mappings) == ["literal", "other", "queue", "tagged"]


def test_tags_are_read_once_and_only_of_mappings_that_may_be_the_flows(account: Account) -> None:
    account.mappings.add("other", flow=OTHER)
    account.mappings.looks_until_gone = 4

    account.remove()

    assert account.mappings.tags_asked == 3


def test_a_mapping_in_the_middle_of_something_is_deleted_when_it_is_through(account: Account) -> None:
    account.mappings.busy["tb"] = 3

    assert account.remove().deleted == 3
    assert account.mappings.mappings == {}


def test_a_run_of_the_refresh_is_waited_for_and_none_begins_for_a_while(account: Account) -> None:
    account.documents.claim(FLOW, LEASE, holder="refresh", now=0, until=account.now + 20_000)
    began = account.now

    account.remove()

    assert account.now >= began + 20_000
    late = account.now + GRACE_MS - 1
    assert not account.documents.claim(FLOW, LEASE, holder="late refresh", now=late, until=late + 60_000)
    assert account.documents.claim(FLOW, LEASE, holder="new deployment", now=late + 2, until=late + 60_000)


def test_a_run_that_died_is_taken_over_by_the_next_one_at_once(account: Account) -> None:
    account.mappings.failures = 10**6
    with pytest.raises(MirrorlessError):
        account.remove()
    account.mappings.failures, began = 0, account.now

    account.remove()

    assert account.now < began + 20_000
    assert account.mappings.mappings == {}


def test_without_its_table_the_mappings_are_deleted_once_no_refresh_can_be_at_work(account: Account) -> None:
    account.documents, began = SilentDocuments(), account.now

    removal = account.remove()

    assert account.mappings.mappings == {}
    assert account.now >= began + LONGEST_WAIT_MS
    assert "DynamoDB did not answer" in removal.warning


def test_a_lease_that_does_not_end_is_reported_and_nothing_is_deleted(account: Account) -> None:
    account.documents.claim(FLOW, LEASE, holder="somebody", now=0, until=10**12)

    with pytest.raises(MirrorlessError, match="the lease of refresh_topics was held"):
        account.remove()
    assert len(account.mappings.mappings) == 3


def test_throttling_passes(account: Account) -> None:
    account.mappings.failures = 4

    assert account.remove().deleted == 3


def test_a_lasting_failure_is_reported_in_time_with_what_is_left(account: Account) -> None:
    account.mappings.refused, began = "tb", account.now

    with pytest.raises(MirrorlessError, match=r"2 mappings .* were deleted, 1 are left: no"):
        account.remove()
    assert sorted(account.mappings.mappings) == ["tb"]
    assert account.now < began + 60_000


def test_the_run_ends_before_its_deadline_and_the_next_one_goes_on(account: Account) -> None:
    account.mappings.looks_until_gone, began = 30, account.now

    with pytest.raises(MirrorlessError, match="3 are left"):
        account.remove(seconds=60)
    assert account.now < began + 60_000
    account.remove()
    assert account.mappings.mappings == {}
    assert account.remove() == Removal(), "nothing is left"
