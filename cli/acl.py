"""`mirrorless acl plan | apply FLOW`: which ACLs go to the target now, which at a failover, and which stay behind?

The schedule applies what is due by itself; the operator looks, does it sooner, or creates at a failover what is staged.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from cli.acl_view import AclView, is_scheduled, view_of
from cli.args import add_deployment, add_order
from cli.deployment import DeployedFlows
from mirrorless.errors import Retriable
from mirrorless.ports.stores import StateStore
from mirrorless.topics.acl_sync import AclFailover, AclOutcome, AclSync, Disabled, stored
from mirrorless.topics.acls import Acl

if TYPE_CHECKING:
    from mirrorless.ports.kafka import Deadline

LOOK_SECONDS = 10.0
"""How long the operator waits for a cluster that may be gone."""

WRITE_SECONDS = 30.0

LEASE, LEASE_MS = "lease/refresh_topics", 60_000
"""The scheduled function's: while the command writes what is due, that function's rounds wait."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `acl` with its two."""
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
    add_order(apply)
    for parser, run in ((plan, run_plan), (apply, run_apply)):
        parser.add_argument("flow", metavar="FLOW", help="'source->target', quoted")
        add_deployment(parser)
        parser.set_defaults(run=run)


def run_plan(arguments: argparse.Namespace) -> int:
    """Show everything. Exit code 1 where a cluster does not answer: then only the stored plan is known."""
    sync = _sync(DeployedFlows.of(arguments), arguments.flow)
    flow = sync.settings.name
    known, _ = stored(sync.documents, flow)
    try:
        view = view_of(sync, sync.plan(_within(LOOK_SECONDS)))
    except Retriable as exc:
        staged = known.staged if known is not None else ()
        view = AclView(flow=flow, staged=dict.fromkeys(staged), scheduled=is_scheduled(sync), trouble=str(exc))
    _tell(arguments, view)
    return int(bool(view.trouble))


def run_apply(arguments: argparse.Namespace) -> int:
    """Carry out what is due, or what is staged. Exit code 1 where a part of it failed."""
    sync = _sync(DeployedFlows.of(arguments), arguments.flow)
    view = _fail_over(sync, execute=arguments.execute) if arguments.failover else _due(sync, execute=arguments.execute)
    _tell(arguments, view)
    return int(view.outcome is not None and bool(view.outcome.failed))


def _due(sync: AclSync, *, execute: bool) -> AclView:
    if not execute:
        return view_of(sync, sync.plan(_within(LOOK_SECONDS)))
    flow, holder = sync.settings.name, f"operator/{uuid4().hex}"
    now = time.time_ns() // 1_000_000
    if not sync.documents.claim(flow, LEASE, holder=holder, now=now, until=now + LEASE_MS):
        raise Retriable(
            "refresh_topics is at work on this flow, and may be writing the same ACLs",
            where=str(flow),
            hint="give the order again in a minute",
        )
    try:
        plan = sync.plan(_within(LOOK_SECONDS))
        view = view_of(sync, plan)
        if isinstance(plan, Disabled):
            return view
        return replace(view, outcome=sync.carry_out(plan, _within(WRITE_SECONDS)))
    finally:
        sync.documents.release(flow, LEASE, holder=holder)


def _fail_over(sync: AclSync, *, execute: bool) -> AclView:
    flow = sync.settings.name
    failover = AclFailover(flow=flow, target=sync.target, documents=sync.documents)
    missing = failover.plan(_within(LOOK_SECONDS))
    view = AclView(flow=flow, scheduled=is_scheduled(sync))
    if isinstance(missing, Disabled):
        return replace(view, without_authorizer=flow.target)
    known, _ = stored(sync.documents, flow)
    staged = {acl: acl not in missing for acl in (known.staged if known is not None else ())}
    outcome = failover.carry_out(missing, _within(WRITE_SECONDS)) if execute else None
    return replace(view, create=missing, staged=staged, outcome=outcome)


def _sync(deployment: DeployedFlows, flow: str) -> AclSync:
    from mirrorless.adapters.kafka.acls import KafkaAcls  # noqa: PLC0415 -- other commands start sooner without Kafka
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- same

    name = deployment.flow_name(flow)
    settings = deployment.control_settings(name)
    documents: StateStore = deployment.stores(name).documents
    return AclSync(
        settings=settings,
        source=KafkaAcls(settings.flow.source, flow=str(name)),
        target=KafkaAcls(settings.flow.target, flow=str(name)),
        topics=KafkaTopics(settings.flow.source, flow=str(name), role="operator").partitions,
        documents=documents,
    )


def _within(seconds: float) -> Deadline:
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()


def _tell(arguments: argparse.Namespace, view: AclView) -> None:
    if arguments.json:
        print(json.dumps(as_json(view), indent=2))
        return
    from cli.acl_table import show  # noqa: PLC0415 -- programs need no tables

    show(view, plan_only=arguments.run is run_plan)


def as_json(view: AclView) -> dict[str, Any]:
    """The answer for programs. `on_target` is null where it is not known."""
    outcome = view.outcome or AclOutcome()
    return {
        "flow": str(view.flow),
        "without_authorizer": view.without_authorizer,
        "scheduled": view.scheduled,
        "trouble": view.trouble,
        "create": [_acl(acl) for acl in sorted(view.create)],
        "delete": [_acl(acl) for acl in sorted(view.delete)],
        "staged": [_acl(acl) | {"on_target": there} for acl, there in view.staged.items()],
        "left": [_acl(acl) | {"reason": reason} for acl, reason in view.left.items()],
        "executed": view.outcome is not None,
        "failed": [_acl(acl) | {"reason": reason} for acl, reason in sorted(outcome.failed.items())],
    }


def _acl(acl: Acl) -> dict[str, Any]:
    return msgspec.structs.asdict(acl)
