"""The removal of a deleted flow's mappings: all of them, no others, and none is created again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.scheduled.runner import lease
from mirrorless.topics.mapping_plan import MappingOutcome, MappingRefused, Mappings, Request, owner_tags
from mirrorless.topics.mapping_removal import GRACE_MS, LONGEST_WAIT_MS, MappingRemoval, Removal
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

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
    """As much of `Mappings` as removes, for an account whose clock advances only by `sleep`."""

    mappings: dict[str, Request] = field(default_factory=dict)
    tags_of: dict[str, dict[str, str]] = field(default_factory=dict)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = 1_000_000
    looks_until_gone: int = 1
    """How often a mapping is still listed after its deletion."""
    busy: dict[str, int] = field(default_factory=dict)
    """How often a mapping is in the middle of something."""
    refused: str = ""
    failures: int = 0
    """How many calls fail before one is answered."""
    tags_asked: int = 0

    def add(self, topic: str, *, flow: FlowName = FLOW, tags: dict[str, str] | None = None) -> None:
        """A mapping as `refresh_topics` makes it, unless it has other tags."""
        group = f"mirrorless.{flow.slug}.{topic}"
        self.mappings[topic] = {
            "UUID": topic,
            "EventSourceMappingArn": topic,
            "State": "Enabled",
            "AmazonManagedKafkaEventSourceConfig": {"ConsumerGroupId": group},
        }
        self.tags_of[topic] = owner_tags(flow) if tags is None else tags

    def list(self, deadline: Deadline) -> list[Request]:
        """See `Mappings.list`."""
        if self.failures:
            self.failures -= 1
            raise Retriable("throttled")
        for uuid, mapping in list(self.mappings.items()):
            if mapping["State"] == "Deleting":
                mapping["looks"] -= 1
                if mapping["looks"] < 0:
                    del self.mappings[uuid]
        return [dict(each) for each in self.mappings.values()]

    def delete(self, uuid: str, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.delete`."""
        if uuid == self.refused:
            raise MappingRefused("no")
        if self.busy.get(uuid):
            self.busy[uuid] -= 1
            return "busy"
        self.mappings[uuid] |= {"State": "Deleting", "looks": self.looks_until_gone}
        return "done"

    def tags(self, arn: str, deadline: Deadline) -> dict[str, str]:
        """See `Mappings.tags`."""
        self.tags_asked += 1
        return self.tags_of[arn]

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * 1000)

    def remove(self, *, seconds: float = 540) -> Removal:
        """One run."""
        end = self.now + int(seconds * 1000)
        return MappingRemoval(
            flow=FLOW,
            mappings=cast("Mappings", self),
            documents=self.documents,
            clock=lambda: self.now,
            sleep=self.sleep,
        ).act(lambda: (end - self.now) / 1000)


@pytest.fixture
def account() -> Account:
    """Three found topics of the flow."""
    account = Account()
    for topic in ("ta", "tb", "tc"):
        account.add(topic)
    return account


def test_every_mapping_that_was_found_is_deleted_and_seen_to_be_gone(account: Account) -> None:
    account.looks_until_gone = 3

    assert account.remove() == Removal(deleted=3)
    assert account.mappings == {}


def test_mappings_of_the_template_of_other_flows_and_of_strangers_stay(account: Account) -> None:
    account.add("literal", tags={"mirrorless:flow": FLOW.slug, "mirrorless:owner": "template"})
    account.add("other", flow=OTHER)
    account.add("tagged", tags=owner_tags(OTHER))
    account.mappings["queue"] = {"UUID": "queue", "State": "Enabled"}

    account.remove()

    assert sorted(account.mappings) == ["literal", "other", "queue", "tagged"]


def test_tags_are_read_once_and_only_of_mappings_that_may_be_the_flows(account: Account) -> None:
    account.add("other", flow=OTHER)
    account.looks_until_gone = 4

    account.remove()

    assert account.tags_asked == 3


def test_a_mapping_in_the_middle_of_something_is_deleted_when_it_is_through(account: Account) -> None:
    account.busy["tb"] = 3

    assert account.remove().deleted == 3
    assert account.mappings == {}


def test_a_run_of_the_refresh_is_waited_for_and_none_begins_for_a_while(account: Account) -> None:
    account.documents.claim(FLOW, LEASE, holder="refresh", now=0, until=account.now + 20_000)
    began = account.now

    account.remove()

    assert account.now >= began + 20_000
    late = account.now + GRACE_MS - 1
    assert not account.documents.claim(FLOW, LEASE, holder="late refresh", now=late, until=late + 60_000)
    assert account.documents.claim(FLOW, LEASE, holder="new deployment", now=late + 2, until=late + 60_000)


def test_a_run_that_died_is_taken_over_by_the_next_one_at_once(account: Account) -> None:
    account.failures = 10**6
    with pytest.raises(MirrorlessError):
        account.remove()
    account.failures, began = 0, account.now

    account.remove()

    assert account.now < began + 20_000
    assert account.mappings == {}


def test_without_its_table_the_mappings_are_deleted_once_no_refresh_can_be_at_work(account: Account) -> None:
    account.documents, began = SilentDocuments(), account.now

    removal = account.remove()

    assert account.mappings == {}
    assert account.now >= began + LONGEST_WAIT_MS
    assert "DynamoDB did not answer" in removal.warning


def test_a_lease_that_does_not_end_is_reported_and_nothing_is_deleted(account: Account) -> None:
    account.documents.claim(FLOW, LEASE, holder="somebody", now=0, until=10**12)

    with pytest.raises(MirrorlessError, match="the lease of refresh_topics was held"):
        account.remove()
    assert len(account.mappings) == 3


def test_throttling_passes(account: Account) -> None:
    account.failures = 4

    assert account.remove().deleted == 3


def test_a_lasting_failure_is_reported_in_time_with_what_is_left(account: Account) -> None:
    account.refused, began = "tb", account.now

    with pytest.raises(MirrorlessError, match=r"2 mappings .* were deleted, 1 are left: no"):
        account.remove()
    assert sorted(account.mappings) == ["tb"]
    assert account.now < began + 60_000


def test_the_run_ends_before_its_deadline_and_the_next_one_goes_on(account: Account) -> None:
    account.looks_until_gone, began = 30, account.now

    with pytest.raises(MirrorlessError, match="3 are left"):
        account.remove(seconds=60)
    assert account.now < began + 60_000
    account.remove()
    assert account.mappings == {}
    assert account.remove() == Removal(), "nothing is left"
