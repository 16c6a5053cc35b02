"""`mirrorless failover FLOW --planned | --source-lost | --drill`: producers and groups move, or it is rehearsed.

`mirrorless failback FLOW`: they return to the source, with everything that the target alone has.

The plan comes first; `--execute` carries it out. Each result is kept with the target, so the same command continues
where one was cut off.
"""

from __future__ import annotations

import argparse
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from cli.acl import needed_by_others
from cli.args import BadInput, add_deployment, add_flow, add_order
from cli.clusters import ClusterView, offsets_of
from cli.deployment import DeployedFlows
from cli.jobs.commands import add_policies, reconcile_options, runs_of
from cli.jobs.request import new_run_id, refuse_without_rights
from cli.jobs.runs import Runs
from cli.orders import PLAN_ONLY
from cli.output import completed_page, duration, picked, print_json, say
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.failover.report import is_clean, needs_a_look, report_of, summary, unknown_since
from mirrorless.failover.run import FailoverCommand
from mirrorless.failover.state import FailoverDocument, FailoverMode, FailoverOrder, PlannedStep
from mirrorless.failover.work import FailoverEffects, FailoverSide, Interrupted, ReconcileRun
from mirrorless.flow.filters import is_literal
from mirrorless.flow.settings import ClusterSettings
from mirrorless.groups.checkpoints import Direction
from mirrorless.jobs.request import REPORT, JobRequest, ReconcileOptions
from mirrorless.ports.stores import StateStore

CLEAN, UNFINISHED, LOOK, UNKNOWN, INTERRUPTED = 0, 1, 3, 4, 130
"""Exit codes: all done; to be continued; done, and something is missing; done without the source, and nothing is known
to be missing; Ctrl-C, or with SIGTERM's own number in place of its own."""

MILDEST_FIRST = (CLEAN, UNKNOWN, UNFINISHED, LOOK, INTERRUPTED)
"""Of several flows the last of these counts."""

AWAKE_SECONDS = 0.2

QUIET_SECONDS = 1.5
"""For which a step may say nothing before it is named."""

_printing = threading.RLock()


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `failover` and `failback`."""
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
    _add_flows_and_report(parser, run)
    parser = subparsers.add_parser(
        "failback",
        help="bring back to the source what a failover has moved, and close what it opened",
        epilog="Example: mirrorless failback 'us-east->eu-west' --execute",
    )
    add_policies(parser)
    parser.add_argument("--local", action="store_true", help="the job runs on this machine, instead of EMR Serverless")
    parser.add_argument("--folder", metavar="DIR", help="where runs of this machine are kept (default: .lab/jobs)")
    _add_flows_and_report(parser, run_failback)


def _add_flows_and_report(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """Add FLOW, `--all-from`, `--report`, the order and the deployment."""
    add_flow(parser, optional=True)
    parser.add_argument("--all-from", metavar="CLUSTER", help="every enabled flow from this cluster, instead of FLOW")
    parser.add_argument("--report", metavar="DIR", default=".", help="where the report is written (default: here)")
    add_order(parser)
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Fail over, or show the plan. Exit code 3 where something is missing, 4 where that is not known."""
    mode: FailoverMode = arguments.mode
    return _run_all(arguments, FailoverOrder(mode=mode, fencing=arguments.fence if mode == "planned" else "acl"))


def run_failback(arguments: argparse.Namespace) -> int:
    """Fail back, or show the plan. Exit code 3 where it is done and something is missing."""
    arguments.reconcile_options = reconcile_options(arguments)
    return _run_all(arguments, None)


def _run_all(arguments: argparse.Namespace, order: FailoverOrder | None) -> int:
    """Plan every flow, and carry it out with `--execute`. Args: order: None for a failback.

    Raises:
        Refused: it is, for one of the flows. Then nothing is changed in any.
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
        except KeyboardInterrupt:
            _say("cancelled: nothing was changed")
            return INTERRUPTED
    if not arguments.json:
        for each in commands:
            _show_plan(each)
    number = _carry_out(commands, Path(arguments.report)) if arguments.execute else None
    if arguments.json:
        print_json({"flows": [each.as_json() for each in commands], "executed": bool(arguments.execute)})
    elif not arguments.execute:
        say(PLAN_ONLY)
    else:
        for each in commands:
            _show_end(each)
    codes = [each.exit_code for each in commands] if arguments.execute else []
    worst = max(codes, key=MILDEST_FIRST.index, default=CLEAN)
    return 128 + number if worst == INTERRUPTED and number is not None else worst


def _carry_out(commands: Sequence[FlowCommand], folder: Path) -> int | None:
    """Carry out all at once. Ctrl-C or SIGTERM ends each of them in its next pause, or before its next step.

    Returns:
        the signal that came last; None for none.
    """
    over, came = threading.Event(), list[int]()

    def end(number: int, _: object) -> None:
        over.set()
        came.append(number)
        key = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        _say(f"{key}: the command ends in its next pause, or before its next step")

    for command in commands:
        command.command.cancelled = over.is_set
    # An exception would end this thread alone, at any place.
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(len(commands)) as pool:
            working = {pool.submit(each.carry_out, folder): each for each in commands}
            # A system may give the signal to another thread: this one runs its handler when it wakes up.
            while left := wait(working, AWAKE_SECONDS).not_done:
                for each in left:
                    working[each].name_step()
            for each in working:
                each.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return came[-1] if came else None


@dataclass(slots=True, kw_only=True)
class FlowCommand:
    """The command on one flow, and what became of it."""

    flow: FlowName
    command: FailoverCommand
    document: FailoverDocument | None = None
    error: MirrorlessError | None = None
    files: Sequence[str] = ()
    """The report: JSON, then the page."""
    _step: str = ""
    """The one at work: `3/9 drain`."""
    _began: float = 0.0
    _said_at: float = 0.0

    def say(self, text: str) -> None:
        """Print a line of progress."""
        self._said_at = time.monotonic()
        _say(f"{self.flow}: {text}")

    def begin(self, step: PlannedStep) -> None:
        """Note which step runs from now on."""
        self._step = f"{step.number}/{len(self.command.plan)} {step.step}"
        self._began = self._said_at = time.monotonic()

    def name_step(self) -> None:
        """Name the step at work, where nothing was said for a while."""
        now = time.monotonic()
        if self._step and now >= self._said_at + QUIET_SECONDS:
            self.say(f"{self._step}: at work for {duration(int((now - self._began) * 1000))}")

    def carry_out(self, folder: Path) -> None:
        """Carry out the plan, and write the report. An error is kept, for other flows go on."""
        self.command.say, self.command.on_begin = self.say, self.begin
        self.command.on_step = lambda _, result: self.say(f"{self._step}: {result.said} ({duration(result.ms)})")
        try:
            self.document = self.command.execute()
        except MirrorlessError as exc:
            self.error = exc
            return
        self.files = write_report(self.flow, self.document, folder)

    @property
    def exit_code(self) -> int:
        """The exit code of this flow alone."""
        if isinstance(self.error, Interrupted):
            return INTERRUPTED
        if self.error is not None or self.document is None:
            return UNFINISHED
        if is_clean(self.document):
            return CLEAN
        return LOOK if needs_a_look(self.document) or unknown_since(self.document) is None else UNKNOWN

    @property
    def trouble(self) -> str:
        """Why it has not ended; empty where it has."""
        if not isinstance(self.error, Interrupted):
            return "" if self.error is None else str(self.error)
        document, plan = self.command.document, self.command.plan
        done = [each for each in plan if document is not None and document.result(each.step) is not None]
        behind = f"behind step {done[-1].number}/{len(plan)}, {done[-1].step}" if done else "before its first step"
        back = document.back if document is not None else None
        job = back.reconcile_run if back is not None and "reconcile" not in {each.step for each in done} else ""
        return f"cancelled {behind}. Run the same command again: it goes on from there" + (
            f", and follows {job}, which runs on" if job else ""
        )

    def as_json(self) -> dict[str, Any]:
        """The command for programs."""
        document, command = self.document, self.command
        report, page = self.files or (None, None)
        steps = document.current if document is not None else ()
        return {
            "flow": str(self.flow),
            "plan": [picked(each, "number step done") | {"what": each.sentence} for each in command.plan],
            "warnings": command.warnings,
            "error": self.trouble,
            "totals": None if document is None else summary(self.flow, document),
            "steps": [picked(each, "step at ms") | {"result": each.said} for each in steps],
            "report": report,
            "page": page,
        }


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
        say(text, err=True)


def _show_plan(each: FlowCommand) -> None:
    say(f"{each.flow}:")
    for step in each.command.plan:
        say(f"  {step.number}. {step.sentence}{' (done)' if step.done else ''}")
    say(f"  {len(each.command.plan) + 1}. Report.")
    for sentence in each.command.warnings:
        say(f"  ! {sentence}")


def _show_end(each: FlowCommand) -> None:
    if each.document is None:
        say(f"{each.flow}: unfinished, what is done is kept: {each.trouble}")
        return
    report, totals = report_of(each.flow, each.document), summary(each.flow, each.document)
    say(f"{each.flow}: {report.verdict}")
    point = totals["recovery_point_seconds"]
    known = "not known" if point is None else f"{point:.1f} s"
    say(f"  recovery time {totals['seconds']:.1f} s, recovery point {known}")
    for sentence in (*totals["missing"], *each.command.warnings):
        say(f"  ! {sentence}")
    say(f"  {each.files[1]}")


def effects_of(deployment: DeployedFlows, flow: FlowName, arguments: argparse.Namespace) -> FailoverEffects:
    """The effects of one flow. No cluster is contacted, and of AWS only what the credentials need.

    Raises:
        ConfigurationError: the flow is disabled, its tables cannot be reached, or its jobs must not write where a
            failback does.
    """
    from mirrorless.adapters.kafka.acls import KafkaAcls  # noqa: PLC0415 -- `--help` needs no clients
    from mirrorless.adapters.kafka.groups import KafkaGroups, KafkaShadowGroups  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.source_log import KafkaRecordRanges, KafkaSourceLog  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.target import KafkaTarget  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- same
    from mirrorless.groups.clusters import GroupSide, Sides  # noqa: PLC0415 -- same
    from mirrorless.groups.round import CheckpointRound  # noqa: PLC0415 -- same
    from mirrorless.mm2.internal_records import EnsuredTopics  # noqa: PLC0415 -- same
    from mirrorless.protocol.map_reads import MapReads, StopMemory  # noqa: PLC0415 -- same
    from mirrorless.topics.acl_sync import AclSync  # noqa: PLC0415 -- same

    if not deployment.flow(flow).enabled:
        raise ConfigurationError("the flow is disabled, and nothing was changed", where=str(flow))
    settings, stores = deployment.settings(flow), deployment.stores(flow)
    name = str(flow)
    if hasattr(arguments, "reconcile_options") and not settings.origins:
        refuse_without_rights(deployment.flow(flow))

    def side(cluster: ClusterSettings) -> FailoverSide:
        def answers() -> str:
            view = ClusterView(lambda: offsets_of(cluster, flow))  # asks anew each time
            view.partitions()
            return view.trouble

        groups = KafkaGroups(cluster, flow=name)
        return FailoverSide(
            answers=answers,
            partitions=KafkaTopics(cluster, flow=name, role="failover").partitions,
            ends=KafkaRecords(cluster, flow=name, client_role="failover-ends").ends,
            acls=KafkaAcls(cluster, flow=name),
            groups=groups,
            static_groups=groups.static,
            records=KafkaRecordRanges(cluster, flow=name),
            looks=KafkaSourceLog(cluster, flow=name),
        )

    source, target = side(settings.source), side(settings.target)
    counterpart = deployment.counterpart_chains(flow)

    of_groups = [
        GroupSide(
            alias=cluster.alias,
            groups=one.groups,
            topics=KafkaRecords(cluster, flow=name, client_role="failover"),
        )
        for cluster, one in ((settings.source, source), (settings.target, target))
    ]
    ensured, left = EnsuredTopics(), set[tuple[Direction, str]]()

    def rounds(documents: StateStore, *, back: bool) -> CheckpointRound:
        """Those of the scheduled function, which commit at once. Args: back: whether on the source as well."""
        at_once = msgspec.structs.replace(
            settings,
            sync_group_offsets_enabled=True,
            sync_group_offsets_interval_seconds=0,
            sync_group_offsets_reverse_enabled=back or settings.sync_group_offsets_reverse_enabled,
        )
        return CheckpointRound.of(
            at_once,
            Sides(source=of_groups[0], target=of_groups[1], clock=now_ms),
            documents,
            chains=MapReads(chains=stores.chains, stops=StopMemory(flow=flow, lanes=stores.states).read),
            source_log=source.looks,
            counterpart=counterpart,
            target_log=target.looks if counterpart is not None else None,
            ensured=ensured,
            groups_left=left,
        )

    return FailoverEffects(
        settings=settings,
        source=source,
        target=target,
        replication=KafkaTarget(settings, environment=f"failover.{uuid4().hex}"),
        shadows=KafkaShadowGroups(settings.target, flow=name),
        chains=stores.chains,
        states=stores.states,
        flow_stops=stores.states,
        documents=stores.documents,
        checkpoints=stores.checkpoints,
        rounds=rounds,
        counterpart=counterpart,
        acl_sync=AclSync(
            settings=settings,
            source=source.acls,
            target=target.acls,
            topics=source.partitions,
            documents=stores.documents,
        ),
        acls_of_others=lambda: needed_by_others(deployment, flow),
        jobs=FailbackJobs(
            deployment=deployment,
            flow=flow,
            options=getattr(arguments, "reconcile_options", ReconcileOptions()),
            runs=lambda: runs_of(deployment, arguments, [flow]),
        ),
        clock=now_ms,
        sleep=time.sleep,
        new_id=lambda: uuid4().hex,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailbackJobs:
    """Implements `mirrorless.failover.work.ReconcileJobs` by the commands of jobs."""

    deployment: DeployedFlows
    flow: FlowName
    options: ReconcileOptions
    """With the policies of orphans."""
    runs: Callable[[], Runs]

    def new_id(self) -> str:
        """See `ReconcileJobs.new_id`."""
        return new_run_id("reconcile")

    def start(self, run_id: str, *, topics: Sequence[str], groups_exclude: Sequence[str]) -> None:
        """See `ReconcileJobs.start`."""
        settings = self.deployment.settings(self.flow)
        excluded = tuple(name if is_literal(name) else re.escape(name) for name in groups_exclude)
        options = msgspec.structs.replace(
            self.options,
            policies={topic: policy for topic, policy in self.options.policies.items() if topic in topics},
            groups=settings.groups,
            groups_exclude=(*settings.groups_exclude, *excluded),
        )
        request = JobRequest(
            run_id=run_id,
            flow=self.deployment.job_settings(self.flow),
            topics=tuple(topics),
            options=options,
            aliases=tuple(sorted(self.deployment.configuration.clusters)),
        )
        self.runs().start(request, size=None)

    def inspect(self, run_id: str) -> ReconcileRun:
        """See `ReconcileJobs.inspect`."""
        from mirrorless.adapters.aws.job_files import open_job_files  # noqa: PLC0415 -- boto3 costs half a second

        try:
            view = self.runs().inspect(run_id)
        except BadInput:
            return ReconcileRun(state="missing")
        phase = view.progress.phase if view.progress is not None else ""
        if not view.over:
            return ReconcileRun(state="running", phase=phase, place=view.place)
        report = open_job_files(view.place).read(REPORT) if view.state == "succeeded" else None
        if report is None:
            return ReconcileRun(state="failed", phase=phase, place=view.place, error=view.error or view.state)
        return ReconcileRun(state="succeeded", place=view.place, report=msgspec.json.decode(report))
