"""The ACL sync: its stored state, refusals, and a target that stops answering half-way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics import acls
from mirrorless.topics.acl_sync import AclDocument, AclFailover, AclOutcome, AclSync, Disabled, Revocation, stored
from mirrorless.topics.acls import Acl
from tests.support.acls import MemoryAcls
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_control


@dataclass(slots=True)
class Stage:
    """A flow between two clusters in memory."""

    source: MemoryAcls = field(default_factory=MemoryAcls)
    target: MemoryAcls = field(default_factory=MemoryAcls)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    topics: set[str] = field(default_factory=lambda: {"orders", "payments"})

    @property
    def sync(self) -> AclSync:
        """The task as the function wires it."""
        return AclSync(
            settings=SETTINGS,
            source=self.source,
            target=self.target,
            topics=lambda _: dict.fromkeys(self.topics, 1),
            documents=self.documents,
        )

    @property
    def failover(self) -> AclFailover:
        """The operator's order."""
        return AclFailover(flow=SETTINGS.name, target=self.target, documents=self.documents)

    def round(self) -> RoundReport:
        """One round of the schedule."""
        report = RoundReport()
        self.sync.act(report, ten_seconds)
        return report

    @property
    def ours(self) -> set[Acl]:
        """What is noted as created by us."""
        known, _ = stored(self.documents, SETTINGS.name)
        return set(known.created) if known is not None else set()


SETTINGS = make_control("orders", "payments", "later")


def ten_seconds() -> float:
    return 10.0


def topic_acl(name: str, operation: str = "READ", permission: str = "ALLOW", pattern: str = "LITERAL") -> Acl:
    return Acl("TOPIC", pattern, name, "User:shop", "*", permission, operation)


READ, REMOTE = topic_acl("orders"), topic_acl("us-east.orders")
WRITE, REMOTE_WRITE = topic_acl("orders", "WRITE"), topic_acl("us-east.orders", "WRITE")
GROUP = Acl("GROUP", "LITERAL", "shop", "User:shop", "*", "ALLOW", "READ")


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_grant_comes_and_goes_with_the_source(stage: Stage) -> None:
    stage.source.there = {READ}
    assert stage.round().counts == {"acls-created": 1, "acls-deleted": 0, "acls-staged": 0, "acls-left": 0}
    assert stage.target.there == {REMOTE}

    stage.source.there = set()
    assert stage.round().counts["acls-deleted"] == 1
    assert stage.target.there == set()
    assert stage.ours == set()


@pytest.mark.parametrize("principal", ["User:*", "User:mirrorless"])
def test_a_deny_that_keeps_the_flow_out_is_taken_away_again_where_an_earlier_version_copied_it(
    principal: str, stage: Stage
) -> None:
    denied, copied = (
        Acl("TOPIC", "LITERAL", name, principal, "*", "DENY", "WRITE") for name in ("orders", "us-east.orders")
    )
    stage.source.there, stage.target.there, stage.target.ours = {denied}, set(), "User:somebody"
    if principal == "User:*":
        before = AclDocument(created=(copied,), topics=("orders", "payments"))
        stage.target.there = {copied}
        stage.documents.write(SETTINGS.name, {"acls": msgspec.json.encode(before)})
    else:
        stage.round()
    assert stage.target.there == {copied}

    stage.target.ours = "User:mirrorless"
    figures = stage.round().counts

    assert stage.target.there == set()
    assert figures["acls-left"] == 1


def test_a_fence_of_producers_is_no_deny_that_is_kept_back(stage: Stage) -> None:
    stage.source.there = {acls.mark("orders"), acls.deny("orders")}

    assert stage.round().counts["acls-left"] == 0
    assert stage.target.there == set()


def test_what_was_there_before_us_is_not_deleted_with_the_sources(stage: Stage) -> None:
    stage.source.there, stage.target.there = {READ}, {REMOTE}
    stage.round()

    stage.source.there = set()
    stage.round()

    assert stage.target.there == {REMOTE}


def test_a_round_without_news_writes_nothing(stage: Stage) -> None:
    stage.source.there = {READ}
    stage.round()
    written = stage.documents.writes

    stage.round()

    assert stage.documents.writes == written


def test_a_topic_that_a_listing_misses_keeps_its_rights(stage: Stage) -> None:
    """A source that hides its topics for a moment must not cost the target's readers their access."""
    stage.source.there = {topic_acl("ord", pattern="PREFIXED"), topic_acl("*", "DESCRIBE")}
    stage.round()
    before = set(stage.target.there or ())
    assert before

    stage.topics = set()
    stage.round()

    assert stage.target.there == before


def test_a_named_topic_has_its_rights_before_it_is_created(stage: Stage) -> None:
    stage.source.there = {topic_acl("later")}

    stage.round()

    assert stage.target.there == {topic_acl("us-east.later")}


def test_one_refusal_is_reported_and_stops_no_other(stage: Stage) -> None:
    stage.source.there = {READ, topic_acl("payments")}
    stage.target.refused = {REMOTE}

    report = stage.round()

    assert stage.target.there == {topic_acl("us-east.payments")}
    assert report.troubles == [f"us-east->eu-west on the target: {REMOTE}: refused"]
    assert stage.ours == {topic_acl("us-east.payments")}


def test_a_target_that_takes_nothing_fails_the_round(stage: Stage) -> None:
    stage.source.there = {READ}
    stage.target.refused = {REMOTE}

    with pytest.raises(Retriable, match="took none of 1 changes"):
        stage.round()


def test_a_grant_is_held_back_without_its_denial(stage: Stage) -> None:
    closed = topic_acl("us-east.orders", permission="DENY")
    stage.source.there = {topic_acl("*"), topic_acl("orders", permission="DENY"), topic_acl("payments", "DESCRIBE")}
    stage.target.refused = {closed}

    with pytest.raises(Retriable):
        stage.round()
    assert stage.target.there == set()

    stage.target.refused = set()
    stage.round()
    assert stage.target.there == {
        closed,
        topic_acl("us-east.", pattern="PREFIXED"),
        topic_acl("us-east.payments", "DESCRIBE"),
    }


def test_a_round_that_dies_half_way_leaves_nothing_that_cannot_be_revoked(stage: Stage) -> None:
    stage.source.there = {READ}
    stage.target.silent = True
    with pytest.raises(Retriable):
        stage.round()
    assert stage.target.there == {REMOTE}

    stage.target.silent = False
    stage.source.there = set()
    stage.round()

    assert stage.target.there == set()


def test_a_source_without_an_authorizer_is_no_error_and_revokes_nothing(stage: Stage) -> None:
    stage.source.there = {READ}
    stage.round()
    reads = stage.target.reads

    stage.source.there = None
    report = stage.round()

    assert (report.counts, report.troubles) == ({"acls-disabled": 1}, [])
    assert (stage.target.there, stage.target.reads) == ({REMOTE}, reads)


def test_a_target_without_an_authorizer_is_no_trouble(stage: Stage) -> None:
    stage.target.there = None

    assert stage.round().counts == {"acls-disabled": 1}


# failover


def fail_over(stage: Stage, *groups: str) -> AclOutcome:
    """Create what is staged. Args: groups: that the flow follows."""
    failover = replace(stage.failover, groups=groups)
    missing = failover.plan(ten_seconds)
    assert not isinstance(missing, Disabled)
    return failover.carry_out(missing, ten_seconds)


def revocation(stage: Stage, *, due: Collection[Acl] = (), others: Collection[Acl] = ()) -> Revocation:
    """What a revocation would do."""
    plan = stage.failover.revocation(frozenset(due), frozenset(others), ten_seconds)
    assert not isinstance(plan, Disabled)
    return plan


def test_a_failover_needs_no_source_and_is_left_alone_by_the_schedule(stage: Stage) -> None:
    stage.source.there = {WRITE, GROUP}
    stage.round()

    created = set(fail_over(stage).created)

    assert created == {REMOTE_WRITE, GROUP}
    assert stage.target.there == created
    assert stage.failover.plan(ten_seconds) == frozenset()
    stage.source.there = set()
    stage.round()
    assert stage.target.there == created


def test_a_second_failover_keeps_what_the_first_created(stage: Stage) -> None:
    stage.source.there = {WRITE}
    stage.round()
    fail_over(stage)

    stage.source.there = {topic_acl("payments", "WRITE")}
    stage.round()
    fail_over(stage)

    _, moved = stored(stage.documents, SETTINGS.name)
    assert set(moved.created) == {REMOTE_WRITE, topic_acl("us-east.payments", "WRITE")}


def test_a_failover_that_is_refused_is_not_noted(stage: Stage) -> None:
    stage.source.there = {WRITE, topic_acl("payments", "WRITE")}
    stage.round()
    stage.target.refused = {REMOTE_WRITE}

    outcome = fail_over(stage)

    assert outcome.failed == {REMOTE_WRITE: "refused"}
    assert stored(stage.documents, SETTINGS.name)[1].created == (topic_acl("us-east.payments", "WRITE"),)


def test_a_failover_before_the_first_round_is_refused_because_nothing_is_staged(stage: Stage) -> None:
    with pytest.raises(ConfigurationError, match="nothing is staged"):
        stage.failover.plan(ten_seconds)


def test_a_failover_grants_the_groups_that_the_flow_follows_where_all_groups_were_granted(stage: Stage) -> None:
    stage.source.there = {Acl("GROUP", "LITERAL", "*", "User:shop", "*", "ALLOW", "READ")}
    stage.round()

    fail_over(stage, "shop")

    assert stage.target.there == {GROUP}


# and back


def test_a_revocation_deletes_once_what_a_failover_created_and_nothing_that_was_there_before(stage: Stage) -> None:
    stage.source.there = {READ, WRITE, GROUP}
    stage.target.there = {GROUP, topic_acl("us-east.payments", "WRITE")}
    stage.round()
    before = set(stage.target.there)
    assert fail_over(stage).created == {REMOTE_WRITE}

    plan = revocation(stage)
    assert stage.target.there == before | {REMOTE_WRITE}
    assert stage.failover.revoke(plan, ten_seconds).deleted == {REMOTE_WRITE}

    assert stage.target.there == before
    assert stored(stage.documents, SETTINGS.name)[1] == AclDocument()
    written = stage.documents.writes
    again = revocation(stage)
    assert again == Revocation(delete=frozenset(), due=frozenset(), shared=frozenset())
    assert stage.failover.revoke(again, ten_seconds).deleted == frozenset()
    assert stage.documents.writes == written
    assert fail_over(stage).created == {REMOTE_WRITE}


def test_a_revocation_leaves_what_is_due_by_now_to_the_schedule(stage: Stage) -> None:
    stage.source.there = {WRITE, GROUP}
    stage.round()
    fail_over(stage)

    stage.failover.revoke(revocation(stage, due={REMOTE_WRITE}), ten_seconds)

    assert stage.target.there == {REMOTE_WRITE}
    assert stage.ours == {REMOTE_WRITE}
    assert stored(stage.documents, SETTINGS.name)[1] == AclDocument()


def test_a_failover_keeps_what_it_needs_also_where_another_one_has_created_it(stage: Stage) -> None:
    stage.source.there = {WRITE, GROUP}
    stage.target.there = {REMOTE_WRITE, GROUP}
    stage.round()

    assert fail_over(stage).created == frozenset()

    _, moved = stored(stage.documents, SETTINGS.name)
    assert (moved.created, set(moved.staged)) == ((), {REMOTE_WRITE, GROUP})


def test_a_revocation_leaves_what_a_failover_of_another_flow_needs(stage: Stage) -> None:
    stage.source.there = {WRITE, GROUP}
    stage.round()
    fail_over(stage)

    stage.failover.revoke(revocation(stage, others={GROUP}), ten_seconds)
    assert stage.target.there == {GROUP}

    stage.failover.revoke(revocation(stage), ten_seconds)
    assert stage.target.there == set()


def test_a_revocation_that_is_refused_is_tried_again_and_keeps_its_denial(stage: Stage) -> None:
    allowed = msgspec.structs.replace(GROUP, pattern="PREFIXED")
    closed = msgspec.structs.replace(GROUP, name="shop-secret", permission="DENY")
    stage.source.there = {allowed, closed, topic_acl("payments", "WRITE")}
    stage.round()
    fail_over(stage)
    stage.target.refused = {allowed}

    outcome = stage.failover.revoke(revocation(stage), ten_seconds)
    assert set(outcome.failed) == {allowed, closed}
    assert stage.target.there == {allowed, closed}

    stage.target.refused = set()
    stage.failover.revoke(revocation(stage), ten_seconds)
    assert stage.target.there == set()


def test_a_revocation_that_dies_half_way_is_finished_by_the_next(stage: Stage) -> None:
    stage.source.there = {WRITE}
    stage.round()
    fail_over(stage)
    stage.target.silent = True
    with pytest.raises(Retriable):
        stage.failover.revoke(revocation(stage), ten_seconds)

    stage.target.silent = False
    stage.failover.revoke(revocation(stage), ten_seconds)

    assert stored(stage.documents, SETTINGS.name)[1] == AclDocument()
