"""Everything that a failover, a failback or a drill refuses, before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LaneState, Lease, Stop
from mirrorless.failover.refusals import FailoverRefused, Observation, check_failover
from mirrorless.failover.report import report_of
from mirrorless.failover.state import FailoverOrder
from mirrorless.failover.work import Interrupted, Unfinished
from mirrorless.flow.settings import Authentication
from mirrorless.topics.acl_sync import LEASE
from mirrorless.topics.acls import Acl, deny
from mirrorless.transforms.rules import Rule
from tests.support.chains import FLOW, LANE
from tests.support.failover_world import (
    APPLICATION,
    DRILL,
    LOST,
    PLANNED,
    TOPICS,
    WAITED,
    CommandKilled,
    FailoverWorld,
    Kill,
)


def everything(world: FailoverWorld) -> Any:
    """All that a command could change."""
    clusters = world.clusters
    return deepcopy(
        (
            world.documents.documents,
            clusters.documents.documents,
            world.states.states,
            world.states.flow_stops,
            world.source_acls.there,
            world.target_acls.there,
            clusters.target.offsets,
            world.jobs.started,
        )
    )


def refused(world: FailoverWorld, order: FailoverOrder | None, why: str, *, force: bool = False) -> None:
    before = everything(world)
    with pytest.raises(FailoverRefused, match=why):
        world.carry_out(order, force=force)
    assert everything(world) == before


def silent_target(world: FailoverWorld) -> None:
    world.clusters.target_topics.silent = True


def change_flow(world: FailoverWorld, **settings: Any) -> None:
    world.settings = msgspec.structs.replace(world.settings, **settings)


def by_iam(world: FailoverWorld) -> None:
    source = msgspec.structs.replace(world.settings.source, authentication=Authentication(type="iam"))
    change_flow(world, source=source)


def marking(world: FailoverWorld) -> None:
    change_flow(world, origins=(FLOW.source, FLOW.target))


def without_authorizer(world: FailoverWorld) -> None:
    world.source_acls.there = None


def without_acls_of_payments(world: FailoverWorld) -> None:
    assert world.source_acls.there is not None
    world.source_acls.there = {acl for acl in world.source_acls.there if acl.name != "payments"}


MARKED = r"it marks its copies.*enable eu-west->us-east"


@pytest.mark.parametrize(
    ("order", "change", "why"),
    [
        pytest.param(PLANNED, silent_target, "eu-west does not answer", id="planned without the target"),
        pytest.param(LOST, silent_target, "eu-west does not answer", id="nor with the source lost"),
        pytest.param(DRILL, silent_target, "eu-west does not answer", id="nor a drill"),
        pytest.param(PLANNED, FailoverWorld.lose_source, "us-east does not.*--source-lost", id="planned, source lost"),
        pytest.param(DRILL, FailoverWorld.lose_source, "us-east does not.*--source-lost", id="drill, source lost"),
        pytest.param(
            PLANNED,
            by_iam,
            "do not bind the principals of IAM on us-east.*--fence wait",
            id="ACLs do not bind principals of IAM",
        ),
        pytest.param(PLANNED, without_authorizer, "us-east has no authorizer", id="ACLs keep nobody away"),
        # On a cluster with `allow.everyone.if.no.acl.found`, it would be closed to its readers.
        pytest.param(
            PLANNED, without_acls_of_payments, "no ACL applies to payments on us-east", id="a topic's first ACL"
        ),
        pytest.param(PLANNED, marking, MARKED, id="marked copies without a flow back"),
        pytest.param(WAITED, marking, MARKED, id="whatever the fence"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_changed(
    order: FailoverOrder, change: Callable[[FailoverWorld], None], why: str
) -> None:
    world = FailoverWorld()
    change(world)

    refused(world, order, why)


def test_a_source_that_answers_is_not_lost_unless_the_operator_says_so() -> None:
    world = FailoverWorld.of(3)

    refused(world, LOST, "us-east answers")
    assert world.carry_out(LOST, force=True).ended_at


def test_acls_would_stop_the_flow_in_the_other_direction() -> None:
    seen = Observation(marked=True, both_ways=True, topics=TOPICS)

    with pytest.raises(FailoverRefused, match=r"would stop eu-west->us-east as well.*--fence wait"):
        check_failover(FLOW, PLANNED, seen, force=False)
    check_failover(FLOW, WAITED, seen, force=False)


def masking(world: FailoverWorld) -> None:
    change_flow(world, transforms=(Rule(topics=("pay.*",), fields={"card": "drop"}),))


@pytest.mark.parametrize("order", [PLANNED, LOST])
def test_what_was_masked_does_not_come_back_and_the_plan_says_so_before(order: FailoverOrder) -> None:
    """A job that compares bytes would take every masked copy for a record that only the target has."""
    world = FailoverWorld.of(3)
    masking(world)
    if order is LOST:
        world.lose_source()
    there = world.command(order)
    there.prepare()
    (warning,) = there.warnings
    assert re.match("there will be no failback: .* of payments, so nothing may come back from eu-west", warning)
    document = there.execute()
    assert warning in [text for section in report_of(FLOW, document).sections for text in section.text]
    world.bring_source_back()

    refused(world, None, "may come back from eu-west.*deploy the flow under another alias of us-east")


def test_a_failover_that_has_not_ended_is_undone_though_nothing_may_come_back() -> None:
    world = FailoverWorld.of(3)
    masking(world)
    world.killed_behind(PLANNED, "acls")
    assert world.is_closed()
    assert world.states.flow_stops

    document = world.carry_out(None)

    assert document.over
    assert world.jobs.started == []
    assert not world.is_closed()
    assert not world.states.flow_stops
    assert report_of(FLOW, document).sections
    assert world.carry_out(PLANNED).run != document.run


def test_a_drill_moves_nobody_and_so_warns_of_no_way_back() -> None:
    world = FailoverWorld.of(3)
    masking(world)
    drill = world.command(DRILL)
    drill.prepare()

    assert drill.warnings == []


def test_records_behind_a_stopped_lane_are_not_left_behind_unless_the_operator_says_so() -> None:
    world = FailoverWorld.of(5)
    world.states.stop(LANE, Stop(reason="refused", upstream_offset=3, detail="too large", at=1))

    refused(world, PLANNED, "behind stopped lanes: us-east->eu-west orders-0")
    document = world.carry_out(PLANNED, force=True)
    assert document.facts("check")["stopped"] == [str(LANE)]


def test_a_job_is_waited_for_but_not_by_a_drill() -> None:
    world = FailoverWorld.of(3)
    world.states.take(LANE, Lease(holder="backfill-1", until=world.clusters.now + 9_000), now=world.clusters.now)

    refused(world, PLANNED, "a job has us-east->eu-west orders-0")
    assert world.carry_out(DRILL).ended_at


def returning() -> FailoverWorld:
    """A flow that has failed over, with records that only the target has."""
    world = FailoverWorld.of(3)
    world.carry_out(PLANNED)
    world.produce_on_target(2)
    return world


def cut_off(world: FailoverWorld) -> None:
    """A failback, up to the first pause behind the start of its job."""
    world.jobs.lasts = 3
    with pytest.raises(Interrupted):
        world.carry_out(None, cancelled=lambda: bool(world.jobs.started))


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "by an earlier version"])
def test_a_failback_that_is_cut_off_while_its_job_runs_follows_that_job(*, noted: bool) -> None:
    world = returning()
    cut_off(world)
    if not noted:
        document = world.stored
        assert document.back is not None
        document = msgspec.structs.replace(document, back=msgspec.structs.replace(document.back, runs=()))
        world.documents.write(FLOW, {"failover": msgspec.json.encode(document)})
    assert world.states.states[LANE].lease is not None

    assert world.carry_out(None).over
    assert len(world.jobs.started) == 1


@pytest.mark.parametrize("before", [lambda _: None, cut_off], ids=["first command", "cut off while its own job ran"])
def test_a_failback_leaves_another_s_job_alone(before: Callable[[FailoverWorld], None]) -> None:
    world = returning()
    before(world)
    other = Lane(FLOW, "payments", 0)
    world.states.states[other] = LaneState(lease=Lease(holder="backfill-1", until=world.clusters.now + 9_000))

    refused(world, None, "a job has us-east->eu-west payments-0")


@pytest.mark.parametrize(
    ("staged", "there"),
    [(True, set()), (False, set()), (False, None)],
    ids=["created", "nothing was created", "no authorizer"],
)
def test_only_rights_that_were_created_are_deleted_and_wait_until_the_schedule_is_between_two_rounds(
    there: set[Acl] | None, *, staged: bool
) -> None:
    """The scheduled function has its lease for the most part of each minute."""
    world = FailoverWorld()
    if not staged:
        world.documents.documents.clear()
    world.target_acls.there = there
    world.produce(3)
    world.replicate()
    world.carry_out(WAITED)
    until = world.clusters.now + 60_000
    world.documents.claim(FLOW, LEASE, holder="refresh_topics", now=world.clusters.now, until=until)

    facts = world.carry_out(None).facts("revoke-acls")

    assert bool(facts.get("deleted")) == staged
    assert staged or facts == {}
    assert (until <= world.clusters.now < until + 10_000) if staged else (world.clusters.now < until)


@pytest.mark.parametrize("alias", ["us-east", "eu-west"])
def test_a_cluster_that_refuses_a_change_of_acls_is_named_with_the_right_that_is_missing(alias: str) -> None:
    world = FailoverWorld.of(3)
    acls = world.source_acls if alias == "us-east" else world.target_acls
    write = Acl("TOPIC", "LITERAL", "us-east.orders", APPLICATION, "*", "ALLOW", "WRITE")
    acls.refused = {deny("orders") if alias == "us-east" else write}

    role = "source" if alias == "us-east" else "target"
    with pytest.raises(Unfinished, match=f"{alias} refused 1 changes of ACLs.*needs ALTER on the {role} cluster"):
        world.carry_out(PLANNED)

    acls.refused = set()
    assert world.carry_out(PLANNED).ended_at


def test_a_failback_needs_a_failover_and_both_clusters() -> None:
    world = FailoverWorld()
    refused(world, None, "it has not failed over")
    world.produce(3)
    world.replicate()
    world.lose_source()
    world.carry_out(LOST)

    refused(world, None, "us-east does not answer")
    world.bring_source_back()
    world.clusters.target_topics.silent = True
    refused(world, None, "eu-west does not answer")


def test_another_order_is_refused_while_a_failover_is_unfinished_and_another_way_when_it_is_over() -> None:
    world = FailoverWorld()
    world.produce(3)
    with pytest.raises(CommandKilled):
        world.carry_out(PLANNED, kill=Kill(at=14))
    assert not world.stored.ended_at

    for other in (WAITED, LOST, DRILL):
        refused(world, other, "other options is unfinished: --planned --fence acl", force=True)
    world.meanwhile = world.replicate
    world.carry_out(PLANNED)
    refused(world, LOST, "has failed over already", force=True)


def test_nothing_begins_while_a_failback_is_unfinished_and_its_job_leaves_leases_that_are_waited_for() -> None:
    world = returning()
    world.jobs.failures = 1
    with pytest.raises(Unfinished, match="a broker did not answer"):
        world.carry_out(None)
    lease = world.states.states[LANE].lease
    assert lease is not None

    for order in (PLANNED, WAITED, DRILL):
        refused(world, order, "its failback is unfinished")
    assert world.carry_out(None).over
    assert len(set(world.jobs.started)) == len(world.jobs.started) == 2
    assert lease.until <= world.clusters.now < lease.until + 30_000, "no longer than that"


def test_a_planned_failover_goes_on_without_its_source_when_that_is_lost() -> None:
    world = FailoverWorld()
    world.produce(3)
    with pytest.raises(CommandKilled):
        world.carry_out(PLANNED, kill=Kill(at=14))
    world.lose_source()

    document = world.carry_out(LOST)

    assert document.order == LOST
    assert document.ended_at
    assert {"fence-flow", "holdings", "groups", "acls"} <= {each.step for each in document.steps}


def test_a_plan_that_is_outdated_is_not_carried_out() -> None:
    world = FailoverWorld.of(3)
    late = world.command(PLANNED)
    late.prepare()
    world.carry_out(PLANNED)

    with pytest.raises(FailoverRefused, match="another command has been at work"):
        late.execute()


def test_an_application_s_own_deny_is_no_fence_and_a_fence_is_not_copied_to_the_target() -> None:
    """A DENY there would keep out the flow, and the producers that have moved."""
    world = FailoverWorld()
    assert world.source_acls.there is not None
    world.source_acls.there.add(deny("payments"))
    before = set(world.source_acls.there)
    world.produce(3)
    world.replicate()

    world.carry_out(PLANNED)
    assert deny("orders") in world.source_acls.there
    world.acl_round()
    assert world.target_acls.there is not None
    assert {acl.principal for acl in world.target_acls.there} == {APPLICATION}
    assert {acl.name for acl in world.target_acls.there if acl.permission == "DENY"} == {"us-east.payments"}

    world.carry_out(None)
    assert world.source_acls.there == before
