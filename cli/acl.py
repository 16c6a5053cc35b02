"""`mirrorless acl plan | apply | revoke FLOW`: the ACLs that are due on the target, staged for a failover, or left out.

The schedule writes what is due. The operator can look, write it sooner, create the staged ACLs at a failover, and
delete those afterwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any
from uuid import uuid4

from msgspec.structs import asdict

from cli.args import add_deployment, add_flow, add_order
from cli.deployment import DeployedFlows
from cli.groups_view import groups_of
from cli.orders import PLAN_ONLY
from cli.output import UNKNOWN, WIDE_PIPE_WIDTH, TableColumns, console, picked, print_json, say, table
from mirrorless.chain.lane import FlowName
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import Retriable
from mirrorless.reports.format import numbered
from mirrorless.topics.acl_sync import (
    AclFailover,
    AclOutcome,
    AclPlan,
    AclSync,
    Disabled,
    leased,
    planned_revocation,
    stored,
)
from mirrorless.topics.acls import Acl, on_groups, why_withheld

READ_SECONDS = 10.0
"""Limit for a read of a cluster that may be down."""

WRITE_SECONDS = 30.0
"""Limit for the changes on the target."""

DUE, SHARED = "due by now: the schedule has it from here", "a failover of another flow needs it"
"""Why a binding of a failover is not deleted."""

ON_TARGET = {True: "yes", False: "no", None: UNKNOWN}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `acl plan`, `acl apply` and `acl revoke`."""
    acl = subparsers.add_parser(
        "acl", help="show which ACLs go to the target, and create the staged ones at a failover"
    )
    commands = acl.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan",
        help="show what is due on the target now, what is staged for a failover, and what stays behind",
        epilog="Example: mirrorless acl plan 'us-east->eu-west'",
    )
    apply = commands.add_parser(
        "apply",
        help="write what is due without waiting for the schedule or, with --failover, create what is staged",
        epilog="Example: mirrorless acl apply 'us-east->eu-west' --failover --execute",
    )
    apply.add_argument(
        "--failover", action="store_true", help="create what is staged, from the stored plan: the source may be gone"
    )
    revoke = commands.add_parser(
        "revoke",
        help="delete what was created with --failover, and nothing else",
        epilog="Example: mirrorless acl revoke 'us-east->eu-west' --failover --execute",
    )
    revoke.add_argument(
        "--failover", action="store_true", required=True, help="what failovers have created; the source must answer"
    )
    add_order(apply)
    add_order(revoke)
    for parser, run in ((plan, run_plan), (apply, run_apply), (revoke, run_revoke)):
        add_flow(parser)
        add_deployment(parser, run)


def run_plan(arguments: argparse.Namespace) -> int:
    """Show the plan. Exit code 1 where a cluster does not answer: then only the stored plan is known."""
    deployment, sync = _sync(arguments)
    groups = _groups(deployment, sync.settings.name)
    try:
        view = view_of(sync, sync.plan(deadline_in(READ_SECONDS)), groups)
    except Retriable as exc:
        view = AclView(flow=sync.settings.name, scheduled=is_scheduled(sync), trouble=str(exc))
        known, _ = stored(sync.documents, view.flow)
        if known is not None:
            staged = dict.fromkeys(sorted(known.staged_with(groups)))
            view = replace(view, staged=staged, left=_withheld(known.withheld))
    return _answer(arguments, sync, view)


def run_apply(arguments: argparse.Namespace) -> int:
    """Carry out what is due, or what is staged. Exit code 1 where a part of it failed."""
    deployment, sync = _sync(arguments)
    carry_out = _fail_over if arguments.failover else _due
    view = carry_out(sync, _groups(deployment, sync.settings.name), execute=arguments.execute)
    return _answer(arguments, sync, view)


def run_revoke(arguments: argparse.Namespace) -> int:
    """Delete what failovers have created. Exit code 1 where a part of it failed."""
    deployment, sync = _sync(arguments)
    others = needed_by_others(deployment, sync.settings.name)
    return _answer(arguments, sync, _revoke(sync, others, execute=arguments.execute))


def _due(sync: AclSync, groups: Collection[str], *, execute: bool) -> AclView:
    with _held(sync, execute=execute) as held:
        plan = held.plan(deadline_in(READ_SECONDS))
        view = view_of(held, plan, groups)
        if not execute or isinstance(plan, Disabled):
            return view
        return replace(view, outcome=held.carry_out(plan, deadline_in(WRITE_SECONDS)))


def _held(sync: AclSync, *, execute: bool) -> AbstractContextManager[AclSync]:
    """With the lease of the task, where something is changed."""
    return leased(sync, holder=f"operator/{uuid4().hex}", clock=now_ms) if execute else nullcontext(sync)


def _fail_over(sync: AclSync, groups: Collection[str], *, execute: bool) -> AclView:
    flow = sync.settings.name
    failover = AclFailover(flow=flow, target=sync.target, documents=sync.documents, groups=groups)
    missing = failover.plan(deadline_in(READ_SECONDS))
    view = AclView(flow=flow, scheduled=is_scheduled(sync))
    if isinstance(missing, Disabled):
        return replace(view, without_authorizer=flow.target)
    known, _ = stored(sync.documents, flow)
    staged = {acl: acl not in missing for acl in sorted(failover.staged())}
    left = _withheld(known.withheld if known is not None else ())
    outcome = failover.carry_out(missing, deadline_in(WRITE_SECONDS)) if execute else None
    return replace(view, create=missing, staged=staged, left=left, outcome=outcome)


def _revoke(sync: AclSync, others: frozenset[Acl], *, execute: bool) -> AclView:
    view = AclView(flow=sync.settings.name, scheduled=is_scheduled(sync))
    with _held(sync, execute=execute) as held:
        plan = planned_revocation(held, others, deadline_in(READ_SECONDS))
        if isinstance(plan, Disabled):
            return replace(view, without_authorizer=view.flow.target)
        found = plan.revocation
        kept = dict.fromkeys(sorted(found.due), DUE) | dict.fromkeys(sorted(found.shared), SHARED)
        outcome = plan.failover.revoke(found, deadline_in(WRITE_SECONDS)) if execute else None
        return replace(view, delete=found.delete, kept=kept, outcome=outcome)


def _groups(deployment: DeployedFlows, flow: FlowName) -> list[str]:
    """The groups that the flow follows."""
    return [group.group for group in groups_of(deployment.stores(flow).checkpoints, flow, "forward")]


def needed_by_others(deployment: DeployedFlows, flow: FlowName) -> frozenset[Acl]:
    """What failovers of other flows to the same target need: those found it there, and did not create it."""
    names = (each.name for each in deployment.configuration.enabled_flows)
    others = [name for name in names if name.target == flow.target and name != flow]
    moved = (stored(deployment.stores(name).documents, name)[1] for name in others)
    return frozenset(acl for document in moved for acl in document.staged)


def _withheld(acls: Iterable[Acl]) -> dict[Acl, str]:
    return {acl: why_withheld(acl) for acl in acls if acl.permission == "ALLOW"}


def _sync(arguments: argparse.Namespace) -> tuple[DeployedFlows, AclSync]:
    from mirrorless.adapters.kafka.acls import KafkaAcls  # noqa: PLC0415 -- other commands start sooner without Kafka
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- same

    deployment = DeployedFlows.of(arguments)
    name = deployment.flow_name(arguments.flow)
    settings = deployment.settings(name)
    return deployment, AclSync(
        settings=settings,
        source=KafkaAcls(settings.source, flow=str(name)),
        target=KafkaAcls(settings.target, flow=str(name)),
        topics=KafkaTopics(settings.source, flow=str(name), role="operator").partitions,
        documents=deployment.stores(name).documents,
    )


def _answer(arguments: argparse.Namespace, sync: AclSync, view: AclView) -> int:
    _, moved = stored(sync.documents, view.flow)
    view = replace(view, granted=frozenset(moved.created))
    if arguments.json:
        print_json(as_json(view))
    else:
        show(view, plan_only=arguments.run is run_plan)
    return int(bool(view.trouble or (view.outcome is not None and view.outcome.failed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AclView:
    """The ACLs of one flow."""

    flow: FlowName
    create: frozenset[Acl] = frozenset()
    delete: frozenset[Acl] = frozenset()
    staged: Mapping[Acl, bool | None] = field(default_factory=dict)
    """Whether it is on the target already; None where that is not known."""
    left: Mapping[Acl, str] = field(default_factory=dict)
    granted: frozenset[Acl] = frozenset()
    """Created by failovers and not revoked since."""
    kept: Mapping[Acl, str] = field(default_factory=dict)
    """Those of them that a revocation does not delete, with the reason."""
    without_authorizer: str = ""
    """The alias of a cluster that has no authorizer: there is nothing to do then."""
    scheduled: bool = True
    """Whether a schedule writes what is due."""
    trouble: str = ""
    """Why what is due is not known."""
    outcome: AclOutcome | None = None
    """None: nothing was carried out."""


def view_of(sync: AclSync, plan: AclPlan | Disabled, groups: Collection[str]) -> AclView:
    """A plan of which nothing was carried out yet. Args: groups: those that the flow follows."""
    flow, scheduled = sync.settings.name, is_scheduled(sync)
    if isinstance(plan, Disabled):
        alias = flow.source if plan.cluster == "source" else flow.target
        return AclView(flow=flow, without_authorizer=alias, scheduled=scheduled)
    return AclView(
        flow=flow,
        create=plan.changes.create,
        delete=plan.changes.delete,
        staged={
            acl: acl in plan.on_target for acl in sorted(plan.wanted.staged | on_groups(plan.wanted.withheld, groups))
        },
        left=plan.wanted.left,
        scheduled=scheduled,
    )


def is_scheduled(sync: AclSync) -> bool:
    """Whether a schedule writes what is due."""
    return sync.settings.sync_topic_acls_enabled


def as_json(view: AclView) -> dict[str, Any]:
    """The ACLs for programs. `on_target` is null where it is not known."""
    outcome = view.outcome or AclOutcome()

    def listed(acls: Iterable[Acl]) -> list[dict[str, Any]]:
        return [asdict(acl) for acl in sorted(acls)]

    def with_each(key: str, acls: Mapping[Acl, object]) -> list[dict[str, Any]]:
        return [asdict(acl) | {key: value} for acl, value in acls.items()]

    return picked(view, "without_authorizer scheduled trouble") | {
        "flow": str(view.flow),
        "create": listed(view.create),
        "delete": listed(view.delete),
        "staged": with_each("on_target", view.staged),
        "left": with_each("reason", view.left),
        "granted": listed(view.granted),
        "kept": with_each("reason", view.kept),
        "executed": view.outcome is not None,
        "failed": with_each("reason", dict(sorted(outcome.failed.items()))),
    }


def show(view: AclView, *, plan_only: bool) -> None:
    """Print the ACLs. Args: plan_only: whether the command could carry nothing out."""
    if view.without_authorizer:
        say(f"{view.without_authorizer} has no authorizer, so there are no ACLs to copy for {view.flow}.")
        return
    changes = dict.fromkeys(sorted(view.create), "create") | dict.fromkeys(sorted(view.delete), "delete")
    if not changes and not view.trouble:
        say(f"{view.flow}: nothing to do on {view.flow.target}.")
    for title, last, words in (
        (f"{view.flow}: to do on {view.flow.target}", "change", changes),
        ("staged for a failover", f"on {view.flow.target}", {acl: ON_TARGET[is_] for acl, is_ in view.staged.items()}),
        ("left out", "why", view.left),
        ("not deleted", "why", view.kept),
    ):
        if words:
            console(WIDE_PIPE_WIDTH).print(table(title, (*_COLUMNS, (last, words.__getitem__)), words, spaced=True))
    say(*_notes(view, plan_only=plan_only))


_HEADINGS = ("resource", "name", "pattern", "principal", "host", "permission", "operation")
_COLUMNS: TableColumns[Acl] = [(heading, attrgetter(heading)) for heading in _HEADINGS]


def _notes(view: AclView, *, plan_only: bool) -> Iterable[str]:
    if view.trouble:
        yield f"What is due is not known, and what is staged is from the last round: {view.trouble}"
    if not view.scheduled:
        yield "sync.topic.acls.enabled is false: no schedule does this, and nothing is staged anew."
    if view.outcome is not None:
        for acl, why in sorted(view.outcome.failed.items()):
            yield f"! {acl}: {why}"
        created, deleted = len(view.outcome.created), len(view.outcome.deleted)
        yield f"Done: {numbered(created, 'ACL')} created, {numbered(deleted, 'ACL')} deleted."
    elif not plan_only and (view.create or view.delete):
        yield PLAN_ONLY
    if view.granted:
        open_now = numbered(len(view.granted), "ACL")
        yield f"{open_now} of a failover: `mirrorless acl revoke '{view.flow}' --failover --execute` deletes them."
