"""`mirrorless flow pause | resume FLOW`: no record of a flow is moved until it is resumed.

The order is one document in the flow's control table. `refresh_topics` disables the mappings by it, and enables these
again; `pull` reads no topic meanwhile. The command writes the order, and waits for its effect and for events under way.
It may be run again at any time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cli.args import BadInput, add_deployment, add_flow, add_order
from cli.deployment import DeployedFlows, Stores
from cli.flow_status import shards_of
from cli.orders import Order, obey
from cli.output import moment, say
from mirrorless.clock import now_ms
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from mirrorless.topics.pause import FlowPause, order_pause, order_resume, read_pause

if TYPE_CHECKING:
    from mirrorless.config import Flow

WAIT_SECONDS = 600.0
"""For the effect of an order: some rounds of `refresh_topics`, and an event under way."""

READ_SECONDS = 2.0
"""Between two reads of the order's effect."""

PULL_LANES = "pull-lanes"
"""The figure of a shard's report that counts the lanes it reads."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `flow pause` and `flow resume`."""
    flow = subparsers.add_parser("flow", help="pause a whole flow, and resume it")
    commands = flow.add_subparsers(required=True, metavar="COMMAND")
    pause = commands.add_parser(
        "pause",
        help="move no record of a flow until it is resumed: mappings are disabled, schedules read nothing",
        epilog="Example: mirrorless flow pause 'us-east->eu-west' --reason 'maintenance, ticket 4711' --execute",
    )
    pause.add_argument("--reason", metavar="TEXT", default="paused by hand", help="shown by `mirrorless status`")
    resume = commands.add_parser(
        "resume",
        help="let a paused flow go on where its lanes stand",
        epilog="Example: mirrorless flow resume 'us-east->eu-west' --execute",
    )
    for parser, run in ((pause, run_pause), (resume, run_resume)):
        add_flow(parser)
        parser.add_argument(
            "--wait", metavar="SECONDS", type=float, default=WAIT_SECONDS, help="for the effect, at most (default: 600)"
        )
        add_order(parser)
        add_deployment(parser, run)


def run_pause(arguments: argparse.Namespace) -> int:
    """Pause a flow. Exit code 1 where events may still be under way at the end of the wait."""
    stores, flow = _named(arguments)
    found = read_pause(stores.documents, flow.name)
    since = found.order
    plan = [
        f"It is paused already, since {moment(since.at)}: {since.reason}"
        if since is not None and found.paused
        else "Disable its mappings, those of found topics too, within a minute or two; schedules read no topic.",
        f"Wait until no event can be under way: {flow.settings.function.timeout_seconds} s after all mappings stopped.",
        "Groups and heartbeats go on. The source's retention runs meanwhile.",
        f"`mirrorless flow resume '{flow.name}' --execute` ends it.",
    ]

    def order() -> None:
        order_pause(stores.documents, flow.name, reason=arguments.reason, now=now_ms())

    return _obey(arguments, plan, order, lambda: pause_waits(stores, flow, read_pause(stores.documents, flow.name)))


def run_resume(arguments: argparse.Namespace) -> int:
    """Resume a flow. Exit code 1 where a mapping is still not enabled at the end of the wait."""
    stores, flow = _named(arguments)
    found = read_pause(stores.documents, flow.name)
    count = len(found.mappings.disabled)
    plan = [
        f"Enable the {count} mappings that the pause has disabled, within a minute or two; schedules read again."
        if found.paused
        else "It is not paused: nothing to do.",
    ]

    def order() -> None:
        order_resume(stores.documents, flow.name, now=now_ms())

    return _obey(arguments, plan, order, lambda: resume_waits(read_pause(stores.documents, flow.name)))


def pause_waits(stores: Stores, flow: Flow, pause: FlowPause) -> str:
    """What a pause still waits for; empty where no record is moved any more."""
    if pause.order is None or not pause.paused:
        return "the order, which was taken back meanwhile"
    now = now_ms()
    if pause.quiet_at is None:
        return "refresh_topics to disable the mappings"
    ends = pause.quiet_at + flow.settings.function.timeout_seconds * 1000
    if now < ends:
        return f"events that may be under way, until {moment(ends)}"
    if now < pause.order.at + PULL_TIMEOUT_SECONDS * 1000:
        for shard in shards_of(stores.documents, flow):
            if shard.last is None or shard.last.at <= pause.order.at or shard.last.counts.get(PULL_LANES, 0):
                return f"{shard.task} to leave its topics"
    return ""


def resume_waits(pause: FlowPause) -> str:
    """What the end of a pause still waits for; empty where the flow goes on."""
    if pause.paused:
        return "the order, which was given again meanwhile"
    return f"refresh_topics to enable {len(pause.mappings.disabled)} mappings" if pause.mappings.disabled else ""


def _named(arguments: argparse.Namespace) -> tuple[Stores, Flow]:
    deployment = DeployedFlows.of(arguments)
    flow = deployment.flow(deployment.flow_name(arguments.flow))
    if not flow.settings.refresh_topics_enabled:
        raise BadInput(
            "nothing would carry the order out: refresh_topics is off",
            where=str(flow.name),
            hint="write `refresh.topics.enabled: true`; or disable the mappings by "
            "`aws lambda update-event-source-mapping --no-enabled`",
        )
    return deployment.stores(flow.name), flow


def _obey(arguments: argparse.Namespace, plan: list[str], order: Callable[[], object], waits: Callable[[], str]) -> int:
    """Show the plan; with `--execute` give the order, and wait for its effect."""
    programs = {"flow": arguments.flow, "waits_for": ""}

    def carry_out() -> str:
        order()
        left = programs["waits_for"] = _await(waits, arguments.wait, quiet=arguments.json)
        return f"It still waits for {left}. Run the command again to wait on." if left else ""

    return obey(arguments, [Order(about=arguments.flow, plan=plan, carry_out=carry_out, programs=programs)])


def _await(waits: Callable[[], str], seconds: float, *, quiet: bool) -> str:
    """Wait until nothing is waited for. Returns what is, at the end."""
    deadline, said = time.monotonic() + seconds, ""
    while left := waits():
        if left != said and not quiet:
            say(f"Waiting for {left} ...")
        said = left
        if time.monotonic() >= deadline:
            return left
        time.sleep(min(READ_SECONDS, max(0.0, deadline - time.monotonic())))  # between two reads, with a deadline
    return ""
