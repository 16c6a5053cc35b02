"""The mapping of the source's ACLs to the target: now, at a failover, and when revoked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.flow.policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy
from mirrorless.topics.acls import Acl, Wanted, changes, downgraded, held_back, on_groups, wanted_acls
from tests.support.chains import FLOW

PREFIXED = DefaultPolicy(aliases=frozenset({"us-east", "eu-west"}))
IDENTITY = IdentityPolicy(source_alias="us-east")
TAKEN = ("orders", "orders-late", "payments")


def allow(operation: str, name: str = "orders", pattern: str = "LITERAL", **more: str) -> Acl:
    """A grant on a topic, by default."""
    words = {"resource": "TOPIC", "principal": "User:shop", "host": "*", "permission": "ALLOW"} | more
    return Acl(name=name, pattern=pattern, operation=operation, **words)


def deny(operation: str, name: str = "orders", pattern: str = "LITERAL", **more: str) -> Acl:
    return allow(operation, name, pattern, permission="DENY", **more)


def due(*source: Acl, policy: ReplicationPolicy = PREFIXED) -> frozenset[Acl]:
    return wanted_acls(source, taken=TAKEN, flow=FLOW, policy=policy).due


def staged(*source: Acl, policy: ReplicationPolicy = PREFIXED) -> frozenset[Acl]:
    return wanted_acls(source, taken=TAKEN, flow=FLOW, policy=policy).staged


def left(*source: Acl, policy: ReplicationPolicy = PREFIXED, taken: Sequence[str] = TAKEN) -> dict[Acl, str]:
    """What is left out, with the reason."""
    return dict(wanted_acls(source, taken=taken, flow=FLOW, policy=policy).left)


# due now: MM2's rule


@pytest.mark.parametrize("pattern", ["LITERAL", "PREFIXED"])
@pytest.mark.parametrize(
    ("acl", "arrives"),
    [(allow(each), allow(each)) for each in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE", "ALTER", "CREATE")]
    + [(deny(each), deny(each)) for each in ("ALL", "WRITE", "READ")]
    + [
        (allow("WRITE"), None),  # only the flow writes to remote topics
        (allow("ALL"), allow("READ")),
        (allow("READ", principal="User:CN=x,O=y", host="10.0.0.1"),) * 2,
    ],
    ids=str,
)
def test_an_acl_arrives_on_the_remote_topic_without_the_right_to_write(
    acl: Acl, arrives: Acl | None, pattern: str
) -> None:
    expected = {arrives.on(pattern, "us-east.orders")} if arrives is not None else set()

    assert due(acl.on(pattern, "orders")) == expected
    assert downgraded(acl) == arrives


def test_heartbeats_are_renamed_under_the_identity_policy_too() -> None:
    wanted = wanted_acls([allow("READ", "heartbeats")], taken=["heartbeats"], flow=FLOW, policy=IDENTITY)

    assert wanted.due == {allow("READ", "us-east.heartbeats")}


# prefixes and the wildcard


def test_the_wildcard_becomes_the_prefix_of_the_flows_remote_topics() -> None:
    """MM2 makes a literal `us-east.*` of it, which is the name of no topic."""
    assert due(allow("READ", "*")) == {allow("READ", "us-east.", "PREFIXED")}
    assert due(allow("READ", "*", "PREFIXED")) == frozenset(), "a prefix that is a star"


@pytest.mark.parametrize(
    ("granted", "opened"),
    [
        (allow("READ"), ["orders"]),
        (allow("READ", "*"), TAKEN),
        (allow("READ", "orders", "PREFIXED"), ["orders", "orders-late"]),
    ],
    ids=str,
)
def test_under_the_identity_policy_a_grant_opens_the_flows_topics_only(granted: Acl, opened: Iterable[str]) -> None:
    """MM2 copies the wildcard, and so opens every topic of the target."""
    assert due(granted, policy=IDENTITY) == {allow("READ", topic) for topic in opened}


def test_an_exception_from_a_prefix_is_kept_even_where_its_topic_is_not_replicated() -> None:
    """The grant has grown to a prefix of remote topics: one from earlier days must not be opened by it."""
    assert deny("READ", "us-east.orders-old") in due(allow("READ", "orders", "PREFIXED"), deny("READ", "orders-old"))
    assert deny("READ", "us-east.secrets") in due(allow("READ", "*"), deny("READ", "secrets"))


@pytest.mark.parametrize(
    ("acl", "beside", "taken", "policy", "reason"),
    [
        (allow("READ", "secrets"), [], TAKEN, PREFIXED, "the flow does not replicate this topic"),
        (allow("READ", "sec", "PREFIXED"), [], TAKEN, PREFIXED, "the flow replicates no topic with this prefix"),
        (allow("READ", "*"), [], [], PREFIXED, "the flow replicates no topic"),
        # An exception from nothing.
        (deny("READ", "secrets"), [allow("READ", "orders", "PREFIXED")], TAKEN, PREFIXED, "not replicate this topic"),
        (deny("READ", "secrets"), [allow("READ", "*")], TAKEN, IDENTITY, "not replicate this topic"),
        (allow("IDEMPOTENT_WRITE", "kafka-cluster", resource="CLUSTER"), [], TAKEN, PREFIXED, "never copied"),
        (allow("UNKNOWN"), [], TAKEN, PREFIXED, "this version of the Kafka client has no name for it"),
        (allow("READ", resource="UNKNOWN"), [], TAKEN, PREFIXED, "this version of the Kafka client has no name for it"),
    ],
    ids=str,
)
def test_what_has_no_place_on_the_target_is_left_with_the_reason(
    acl: Acl, beside: Sequence[Acl], taken: Sequence[str], policy: ReplicationPolicy, reason: str
) -> None:
    assert reason in left(acl, *beside, policy=policy, taken=taken)[acl]
    alone = wanted_acls([acl], taken=taken, flow=FLOW, policy=policy)
    assert (alone.due, alone.staged) == (frozenset(), frozenset())


# staged for a failover


GROUPS_AND_IDS = [
    allow("READ", "shop", resource="GROUP"),
    allow("READ", "mirror", resource="GROUP"),
    deny("READ", "sh", "PREFIXED", resource="GROUP"),
    allow("WRITE", "shop-tx", resource="TRANSACTIONAL_ID"),
    allow("WRITE", "mirrors", "PREFIXED", resource="TRANSACTIONAL_ID"),
]
REMOTE = tuple(f"us-east.{topic}" for topic in TAKEN)
APPLICATION = allow("ALL", "ord", "PREFIXED")


@pytest.mark.parametrize(
    ("source", "policy", "expected"),
    [
        # Prefixed: `orders` of the target is another topic, and a reconcile takes records back from the remote one.
        pytest.param([allow("WRITE")], PREFIXED, [allow("WRITE", REMOTE[0])], id="the right to write"),
        pytest.param([allow("ALL")], PREFIXED, [allow("ALL", REMOTE[0])], id="every right"),
        pytest.param([allow("READ"), allow("DESCRIBE")], PREFIXED, [], id="no right that is due now"),
        pytest.param(
            [allow("READ"), allow("WRITE"), deny("WRITE")], IDENTITY, [allow("WRITE")], id="only what was downgraded"
        ),
        pytest.param([allow("ALL")], IDENTITY, [allow("ALL")], id="every right, under its name"),
        pytest.param(GROUPS_AND_IDS, PREFIXED, GROUPS_AND_IDS, id="groups and transactional ids as they are"),
        # A streams application makes its internal topics on the target under its prefix.
        pytest.param(
            [APPLICATION], PREFIXED, [APPLICATION, allow("ALL", REMOTE[0]), allow("ALL", REMOTE[1])], id="a prefix"
        ),
        pytest.param([APPLICATION], IDENTITY, [APPLICATION], id="a prefix, under its name"),
        pytest.param([allow("WRITE", "*")], PREFIXED, [allow("WRITE", each) for each in REMOTE], id="a wildcard"),
        pytest.param([allow("WRITE", "*")], IDENTITY, [allow("WRITE", each) for each in TAKEN], id="and under names"),
    ],
)
def test_what_a_failover_needs_is_staged_and_not_due_before(
    source: Sequence[Acl], policy: ReplicationPolicy, expected: Sequence[Acl]
) -> None:
    assert staged(*source, policy=policy) == {*expected}
    assert not due(*source, policy=policy) & {*expected}


def test_nobody_else_writes_heartbeats_or_checkpoints_after_a_failover() -> None:
    source = [allow("WRITE", "*"), allow("WRITE", "us", "PREFIXED"), allow("WRITE", "heart", "PREFIXED")]
    for policy in (PREFIXED, IDENTITY):
        wanted = wanted_acls(source, taken=["heartbeats", "us", "us-orders"], flow=FLOW, policy=policy)

        remote = {policy.remote_topic("us-east", topic) for topic in ("us", "us-orders")}
        assert wanted.staged == {allow("WRITE", topic) for topic in remote}
        assert wanted.left == {allow("WRITE", "heart", "PREFIXED"): "only the replication writes heartbeats"}


@pytest.mark.parametrize("resource", ["GROUP", "TRANSACTIONAL_ID"])
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("*", "LITERAL"),
        ("m", "PREFIXED"),
        ("mirrorless", "PREFIXED"),
        ("mirrorless.eu-west.", "PREFIXED"),
        ("mirrorless.eu-west.us-east.orders", "LITERAL"),
        ("mirrorless-job", "LITERAL"),
    ],
)
def test_a_grant_that_would_open_our_own_groups_or_ids_is_withheld_and_reported(
    resource: str, name: str, pattern: str
) -> None:
    """By WRITE on a writer's transactional id, a principal of the source could fence the writer."""
    for operation in ("ALL", "WRITE", "READ"):
        granted = allow(operation, name, pattern, resource=resource)

        wanted = wanted_acls([granted], taken=TAKEN, flow=FLOW, policy=PREFIXED)

        assert not wanted.staged
        assert wanted.withheld == {granted}
        assert "Mirrorless's own" in wanted.left[granted]


def test_a_withheld_grant_on_groups_is_staged_for_each_group_that_the_flow_follows() -> None:
    everything, some = allow("READ", "*", resource="GROUP"), allow("READ", "m", "PREFIXED", resource="GROUP")
    ids = allow("WRITE", "*", resource="TRANSACTIONAL_ID")
    own = allow("READ", "mirrorless.", "PREFIXED", resource="GROUP")

    found = on_groups([everything, some, ids, own], ["shop", "mail", "mirrorless.us-east.eu-west.orders"])

    assert found == {everything.on("LITERAL", "shop"), everything.on("LITERAL", "mail")}
    assert on_groups([some], ["shop", "mail"]) == {some.on("LITERAL", "mail")}


def test_what_is_denied_on_all_groups_or_ids_stays_denied_where_a_grant_opens_them_and_never_for_us() -> None:
    closed = deny("ALL", "*", resource="GROUP", principal="User:*", host="10.0.0.1")
    opened = [allow("READ", "shop", resource="GROUP"), allow("READ", "app-", "PREFIXED", resource="GROUP")]
    other = allow("WRITE", "shop", resource="TRANSACTIONAL_ID")

    assert staged(closed, *opened, other) == {
        *opened,
        other,
        closed.on("LITERAL", "shop"),
        closed.on("PREFIXED", "app-"),
    }
    assert closed in left(closed, other)
    assert on_groups([closed], ["mail"]) == {closed.on("LITERAL", "mail")}


def test_a_staged_prefix_keeps_its_exceptions() -> None:
    assert deny("WRITE", "orders-old") in staged(allow("WRITE", "orders", "PREFIXED"), deny("WRITE", "orders-old"))
    closed = staged(allow("WRITE", "orders", "PREFIXED"), deny("WRITE", "*"), policy=IDENTITY)
    assert deny("WRITE", "orders", "PREFIXED") in closed


ANY_ACL = st.builds(
    Acl,
    resource=st.sampled_from(["TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"]),
    pattern=st.sampled_from(["LITERAL", "PREFIXED"]),
    name=st.sampled_from(
        ["*", "o", "orders", "orders-late", "orders-old", "payments", "p", "secrets", "us-east.", "mirrorless.", "m"]
    ),
    principal=st.sampled_from(["User:shop", "User:*"]),
    host=st.just("*"),
    permission=st.sampled_from(["ALLOW", "DENY"]),
    operation=st.sampled_from(["ALL", "READ", "WRITE", "DESCRIBE"]),
)


@given(source=st.sets(ANY_ACL, max_size=8), policy=st.sampled_from([PREFIXED, IDENTITY]))
def test_nothing_is_dropped_in_silence_and_nothing_foreign_is_opened(
    source: set[Acl], policy: ReplicationPolicy
) -> None:
    wanted = wanted_acls(source, taken=TAKEN, flow=FLOW, policy=policy)

    assert not wanted.due & wanted.staged
    for acl in source:
        alone = wanted_acls([acl], taken=TAKEN, flow=FLOW, policy=policy)
        assert bool(alone.due or alone.staged) != bool(alone.left)
    for acl in wanted.staged:
        everything = acl.name == "*" and acl.pattern == "LITERAL"
        own = acl.name.startswith("mirrorless") or (acl.name == "m" and acl.pattern == "PREFIXED")
        assert not everything
        assert acl.resource == "TOPIC" or not own
    for acl in wanted.due:
        assert acl.resource == "TOPIC"
        if acl.permission == "ALLOW":
            assert acl.operation not in {"ALL", "WRITE"}
            ours = acl.name.startswith("us-east.") if policy is PREFIXED else acl.name in TAKEN
            assert ours
            assert acl.pattern == "LITERAL" or policy is PREFIXED


# what would keep the flow out

EVERYONE, OURS = "User:*", "User:mirrorless"


def wanted_beside_us(*source: Acl, policy: ReplicationPolicy = PREFIXED) -> Wanted:
    return wanted_acls(source, taken=TAKEN, flow=FLOW, policy=policy, is_ours=lambda principal: principal == OURS)


@pytest.mark.parametrize("policy", [PREFIXED, IDENTITY])
@pytest.mark.parametrize("principal", [EVERYONE, OURS])
@pytest.mark.parametrize(("name", "pattern"), [("orders", "LITERAL"), ("ord", "PREFIXED"), ("*", "LITERAL")])
@pytest.mark.parametrize("operation", ["WRITE", "ALL", "CREATE", "ALTER_CONFIGS", "READ"])
def test_a_deny_that_would_keep_the_flow_out_is_kept_back_and_reported(
    operation: str, name: str, pattern: str, principal: str, policy: ReplicationPolicy
) -> None:
    denied = [deny(operation, name, pattern, principal=principal, host=host) for host in ("*", "10.0.0.1")]

    wanted = wanted_beside_us(*denied, policy=policy)

    assert not wanted.due
    assert not wanted.staged
    assert all("keep the flow itself" in wanted.left[each] for each in denied)


@pytest.mark.parametrize("denied", [deny("DELETE", principal=EVERYONE), deny("WRITE")], ids=str)
def test_a_deny_of_what_the_flow_does_not_do_and_one_of_another_are_copied(denied: Acl) -> None:
    assert wanted_beside_us(denied).due == {denied.on("LITERAL", "us-east.orders")}


def test_a_deny_for_everyone_is_copied_for_those_whom_other_acls_let_in() -> None:
    everyone = deny("ALL", "*", principal=EVERYONE)
    others = allow("READ"), allow("WRITE", "payments", principal="User:bank"), allow("READ", principal=OURS)

    wanted = wanted_beside_us(everyone, *others)

    assert {acl for acl in wanted.due if acl.permission == "DENY"} == {
        deny("ALL", "us-east.", "PREFIXED"),
        deny("ALL", "us-east.", "PREFIXED", principal="User:bank"),
    }
    assert everyone in wanted.left
    reading = wanted_beside_us(deny("READ", principal=EVERYONE), *others)
    assert {acl for acl in reading.due if acl.permission == "DENY"} == {deny("READ", "us-east.orders")}


def test_a_grant_to_everyone_that_a_deny_for_everyone_limits_is_kept_back_too() -> None:
    granted, denied = allow("READ", "ord", "PREFIXED", principal=EVERYONE), deny("READ", principal=EVERYONE)
    other = allow("READ", "payments", principal=EVERYONE)

    wanted = wanted_beside_us(granted, denied, other)

    assert wanted.due == {other.on("LITERAL", "us-east.payments")}
    assert wanted.left.keys() == {granted, denied}


def permits(acls: Iterable[Acl], principal: str, topic: str, operation: str) -> bool:
    """Kafka's authorizer, for a topic that some ACL applies to."""
    on = [
        acl
        for acl in acls
        if acl.resource == "TOPIC"
        and acl.principal in {principal, EVERYONE}
        and (acl.name == topic if acl.prefix is None else topic.startswith(acl.prefix))
    ]
    implied = {operation} | ({"READ", "WRITE", "DELETE", "ALTER"} if operation == "DESCRIBE" else set())
    denied = any(acl.permission == "DENY" and acl.operation in {operation, "ALL"} for acl in on)
    return not denied and any(acl.permission == "ALLOW" and acl.operation in {*implied, "ALL"} for acl in on)


TOPIC_ACL = st.builds(
    Acl,
    resource=st.just("TOPIC"),
    pattern=st.sampled_from(["LITERAL", "PREFIXED"]),
    name=st.sampled_from(["*", "o", "orders", "orders-late", "payments"]),
    principal=st.sampled_from(["User:shop", "User:bank", OURS, EVERYONE]),
    host=st.just("*"),
    permission=st.sampled_from(["ALLOW", "DENY"]),
    operation=st.sampled_from(["ALL", "READ", "WRITE", "DESCRIBE"]),
)


@given(source=st.sets(TOPIC_ACL, max_size=8), policy=st.sampled_from([PREFIXED, IDENTITY]))
def test_no_acl_keeps_the_flow_out_and_nobody_gains_by_what_is_kept_back(
    source: set[Acl], policy: ReplicationPolicy
) -> None:
    wanted = wanted_beside_us(*source, policy=policy)

    for topic in TAKEN:
        remote = policy.remote_topic(FLOW.source, topic)
        for operation in ("READ", "WRITE", "DESCRIBE"):
            by_name = allow(operation, remote, principal=OURS)
            assert permits({by_name, *wanted.due}, OURS, remote, operation)
            assert permits({by_name, *wanted.due, *wanted.staged}, OURS, remote, operation)
            for principal in ("User:shop", "User:bank", "User:nobody"):
                for there in (wanted.due, wanted.due | wanted.staged):
                    if permits(there, principal, remote, operation):
                        assert permits(source, principal, topic, operation)


# what has to change


def test_what_is_missing_is_created_and_what_we_made_deleted_unless_another_client_or_a_failover_was_first() -> None:
    there, missing, theirs, ours, gone, kept = (allow("READ", f"us-east.{each}") for each in "abcdef")
    on_target, made = frozenset({there, theirs, ours, kept}), frozenset({ours, gone, kept})

    change = changes(frozenset({there, missing}), on_target=on_target, ours=made, kept=frozenset({kept}))

    assert change.create == {missing}
    assert change.delete == {ours}


def test_a_grant_waits_for_the_denial_that_could_not_be_created() -> None:
    grant, other = allow("READ", "us-east.", "PREFIXED"), allow("READ", principal="User:other")
    closed = deny("READ", "us-east.secrets")

    assert held_back([grant, other], [closed]) == {grant: closed}
    assert held_back([grant], [deny("READ", principal="User:*")]) != {}
    assert held_back([grant, other], []) == {}


def test_an_acl_reads_like_a_sentence() -> None:
    assert str(allow("READ", "us-east.", "PREFIXED", host="10.0.0.1")) == (
        "ALLOW READ for User:shop from 10.0.0.1 on TOPIC us-east. (PREFIXED)"
    )
