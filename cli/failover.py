"""`mirrorless failover FLOW --planned | --source-lost | --drill`: producers and groups move, or it is rehearsed.

The plan comes first; `--execute` carries it out. Each result is kept with the target, so the same command continues
where one was cut off.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cli.advice import completed_page
from cli.args import BadInput, add_deployment, add_flow, add_order
from cli.deployment import DeployedFlows
from cli.failover_wiring import effects_of
from cli.output import PLAN_ONLY, duration, print_json
from cli.step_progress import StepProgress
from mirrorless.errors import MirrorlessError
from mirrorless.failover.plan import PlannedStep
from mirrorless.failover.refusals import FailoverRefused
from mirrorless.failover.report import is_clean, report_of, summary
from mirrorless.failover.run import FailoverCommand
from mirrorless.failover.state import FailoverDocument, FailoverMode, FailoverOrder, StepResult
from mirrorless.lane import FlowName

CLEAN, UNFINISHED, LOOK, INTERRUPTED = 0, 1, 3, 130
"""Exit codes: all done; to be continued; done, and something is missing; Ctrl-C."""

_printing = threading.Lock()


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `failover`."""
    parser = subparsers.add_parser(
        "failover",
        help="move producers and groups to the target, planned or because the source is lost; or rehearse it",
        epilog="Example: mirrorless failover 'us-east->eu-west' --planned --execute",
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    for name, summed in (
        ("planned", "both clusters answer: nothing is lost, and nothing read twice"),
        ("source-lost", "the source does not answer: needs the target's region alone"),
        ("drill", "by groups of its own, without touching an application: how long it takes, and what would be lost"),
    ):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=summed)
    parser.add_argument(
        "--fence",
        choices=("acl", "wait"),
        default="acl",
        help="how producers are kept from the source: by ACLs (default), or you stop them, and the command waits",
    )
    parser.add_argument(
        "--force", action="store_true", help="although the source answers, or lanes are stopped; see the manual"
    )
    add_flows_and_report(parser)
    parser.set_defaults(run=run)


def add_flows_and_report(parser: argparse.ArgumentParser) -> None:
    """Add FLOW, `--all-from`, `--report`, the order and the deployment."""
    add_flow(parser, optional=True)
    parser.add_argument("--all-from", metavar="CLUSTER", help="every enabled flow from this cluster, instead of FLOW")
    parser.add_argument("--report", metavar="DIR", default=".", help="where the report is written (default: here)")
    add_order(parser)
    add_deployment(parser)


def run(arguments: argparse.Namespace) -> int:
    """Fail over, or show the plan. Exit code 3 where it is done and something is missing."""
    mode: FailoverMode = arguments.mode
    return run_all(arguments, FailoverOrder(mode=mode, fencing=arguments.fence if mode == "planned" else "acl"))


def run_all(arguments: argparse.Namespace, order: FailoverOrder | None) -> int:
    """Plan every flow, and carry it out with `--execute`. Args: order: None for a failback.

    Raises:
        BadInput: it is refused for one of the flows. Then nothing is changed in any.
    """
    deployment = DeployedFlows.of(arguments)
    commands = [
        FlowCommand(
            flow=flow,
            command=FailoverCommand(
                effects=effects_of(deployment, flow, arguments),
                order=order,
                force=getattr(arguments, "force", False),
            ),
        )
        for flow in _flows(deployment, arguments)
    ]
    for each in commands:
        try:
            each.command.prepare()
        except FailoverRefused as exc:
            raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
    if not arguments.json:
        for each in commands:
            _show_plan(each)
    if arguments.execute:
        with ThreadPoolExecutor(len(commands)) as pool:
            try:
                list(pool.map(lambda each: each.carry_out(Path(arguments.report), say=_say), commands))
            except KeyboardInterrupt:
                print("Cancelled. Progress is kept: the same command continues.", file=sys.stderr)
                return INTERRUPTED
    if arguments.json:
        print_json({"flows": [each.as_json() for each in commands], "executed": bool(arguments.execute)})
    elif not arguments.execute:
        print(PLAN_ONLY)
    else:
        for each in commands:
            _show_end(each)
    return max((each.exit_code for each in commands), default=CLEAN) if arguments.execute else CLEAN


@dataclass(slots=True, kw_only=True)
class FlowCommand:
    """The command on one flow, and what became of it."""

    flow: FlowName
    command: FailoverCommand
    document: FailoverDocument | None = None
    error: MirrorlessError | None = None
    files: Sequence[str] = ()
    """The report: JSON, then the page."""

    def carry_out(self, folder: Path, *, say: Callable[[str], None]) -> None:
        """Carry out the plan, and write the report. An error is kept, for other flows go on."""
        progress = StepProgress(lambda text: say(f"{self.flow}: {text}"))
        plan = self.command.plan
        self.command.say = progress.say
        self.command.on_begin = lambda step: progress.begin(f"{step.number}/{len(plan)} {step.step}")
        self.command.on_step = lambda step, result: progress.say(_line(plan, step, result))
        try:
            with progress:
                self.document = self.command.execute()
        except MirrorlessError as exc:
            self.error = exc
            return
        self.files = write_report(self.flow, self.document, folder)

    @property
    def exit_code(self) -> int:
        """The exit code of this flow alone."""
        if self.error is not None or self.document is None:
            return UNFINISHED
        return CLEAN if is_clean(self.document) else LOOK

    def as_json(self) -> dict[str, Any]:
        """The command for programs."""
        answer: dict[str, Any] = {
            "flow": str(self.flow),
            "plan": [
                {"number": each.number, "step": each.step, "what": each.sentence, "done": each.done}
                for each in self.command.plan
            ],
            "error": str(self.error) if self.error is not None else "",
            "totals": None,
            "steps": [],
            "report": None,
            "page": None,
        }
        if self.document is not None:
            answer["totals"] = summary(self.flow, self.document)
            answer["steps"] = [
                {"step": each.step, "at": each.at, "ms": each.ms, "result": each.said} for each in self.document.current
            ]
            answer["report"], answer["page"] = self.files
        return answer


def write_report(flow: FlowName, document: FailoverDocument, folder: Path) -> tuple[str, str]:
    """Write `<run>-<flow>.json` and `.html`, and return their paths.

    Raises:
        BadInput: they cannot be written there. The result is kept with the target: the same command writes them.
    """
    from mirrorless.reports.page import render  # noqa: PLC0415 -- a plan needs no page

    report = report_of(flow, document)
    name = f"{'failback-' if document.back is not None else ''}{document.run}-{flow.slug}"
    whole = {"totals": summary(flow, document), "document": document, "report": report}
    texts = {
        ".json": msgspec.json.format(msgspec.json.encode(whole), indent=2),
        ".html": completed_page(render(report)).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in texts.items():
            (folder / f"{name}{ending}").write_bytes(text)
    except OSError as exc:
        raise BadInput(
            f"the report cannot be written: {exc}", where=str(folder), hint="run the same command with --report DIR"
        ) from exc
    return str(folder / f"{name}.json"), str(folder / f"{name}.html")


def _flows(deployment: DeployedFlows, arguments: argparse.Namespace) -> list[FlowName]:
    if bool(arguments.flow) == bool(arguments.all_from):
        raise BadInput("name one flow, or --all-from CLUSTER", where="FLOW", hint="quote it: 'us-east->eu-west'")
    if arguments.flow:
        return [deployment.flow_name(arguments.flow)]
    found = [flow.name for flow in deployment.configuration.enabled_flows if flow.name.source == arguments.all_from]
    if not found:
        raise BadInput(f"no enabled flow begins on {arguments.all_from}", where="--all-from")
    return found


def _say(text: str) -> None:
    with _printing:
        print(text, file=sys.stderr, flush=True)


def _line(plan: Sequence[PlannedStep], step: PlannedStep, result: StepResult) -> str:
    return f"{step.number}/{len(plan)} {step.step}: {result.said} ({duration(result.ms)})"


def _show_plan(each: FlowCommand) -> None:
    print(f"{each.flow}:")
    for step in each.command.plan:
        print(f"  {step.number}. {step.sentence}{' (done)' if step.done else ''}")
    print(f"  {len(each.command.plan) + 1}. Report.")


def _show_end(each: FlowCommand) -> None:
    if each.document is None:
        print(f"{each.flow}: unfinished, what is done is kept: {each.error}")
        return
    report, totals = report_of(each.flow, each.document), summary(each.flow, each.document)
    print(f"{each.flow}: {report.verdict}")
    point = totals["recovery_point_seconds"]
    print(f"  recovery time {totals['seconds']:.1f} s, recovery point {'?' if point is None else f'{point:.1f}'} s")
    for sentence in totals["missing"]:
        print(f"  ! {sentence}")
    print(f"  {each.files[1]}")
