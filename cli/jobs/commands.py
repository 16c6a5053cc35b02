"""`mirrorless backfill | verify | reconcile start | follow | cancel | list`, with the options of each kind of job.

A job runs on EMR Serverless or on this machine (`--local`, and always with `--lab`). A backfill copies a topic's
history to the target, through the flow's own chain. A verification is the proof that every record of the offset map is
on the target, unchanged. A reconciliation is the way back after an outage, with the records that one of the clusters
does not have.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from cli.args import add_deployment, add_flow, count, partition
from cli.deployment import DeployedFlows
from cli.jobs.request import FORMS, bound, job_request
from cli.jobs.runs import CLEAN, FAILED, Runs, RunView, as_json, ending, live, runs_table, sentence
from cli.output import WIDE_PIPE_WIDTH, console, print_json, say
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.cost.prices import EXECUTOR
from mirrorless.jobs.request import (
    BackfillOptions,
    Conflicts,
    JobKind,
    Options,
    Policy,
    ReconcileOptions,
    VerifyOptions,
)

Kind = TypeVar("Kind", BackfillOptions, VerifyOptions, ReconcileOptions)

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 4.0
"""Between two reads of a run on this machine, and of one on EMR Serverless, whose API limits calls."""

USUAL_SIZE = 31
"""Executors that fit into the default maximum of a deployment."""


Capacity = Literal["flex", "standard"]
"""Of executors: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-flex-execution.html"""

FLEX: Final[frozenset[JobKind]] = frozenset({"backfill", "verify"})
"""Kinds that nobody waits for: by default their executors are of spare capacity. A lane that loses one goes on."""

INTERRUPTED = 130
"""Exit code for Ctrl-C, as shells have it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the four commands of each kind."""
    for kind, (summary, example, run, add_options, options) in _KINDS.items():
        commands = subparsers.add_parser(kind, help=summary).add_subparsers(required=True, metavar="COMMAND")

        start = commands.add_parser("start", help=summary, epilog=f"Example: mirrorless {kind} start {example}")
        add_flow(start)
        start.add_argument("topics", metavar="TOPIC", nargs="*", help="topics on the source (default: all of the flow)")
        start.add_argument(
            "--partition", metavar="N", type=partition, action="append", help="only this partition; may be repeated"
        )
        add_options(start)
        start.add_argument(
            "--size", metavar="N", type=count, help="executors at most, two lanes at a time each; with --local, cores"
        )
        capacity: Capacity = "flex" if kind in FLEX else "standard"
        help_ = "of executors on EMR Serverless: flex costs less and may be taken back, so a run may take longer"
        start.add_argument(
            "--capacity", choices=get_args(Capacity), default=capacity, help=f"{help_} (default: {capacity})"
        )
        help_ = "only show what would be done, and what it would cost"
        start.add_argument("--dry-run", action="store_true", help=help_)
        start.add_argument("--detach", action="store_true", help="do not watch it: answer with its id")
        start.set_defaults(options=options)

        help_ = "watch a run until it is over"
        follow = commands.add_parser("follow", help=help_, epilog=f"Example: mirrorless {kind} follow {run}")
        help_ = "end a run: what is done stays done, and another run goes on there"
        cancel = commands.add_parser("cancel", help=help_, epilog=f"Example: mirrorless {kind} cancel {run}")
        for parser in (follow, cancel):
            parser.add_argument("run_id", metavar="RUN", help="the run's id, as `start` and `list` print it")
            parser.add_argument("--flow", metavar="FLOW", help="'source->target', quoted (default: looked for in all)")

        known = commands.add_parser("list", help="list the runs", epilog=f"Example: mirrorless {kind} list")
        known.add_argument("--flow", metavar="FLOW", help="'source->target', quoted (default: every flow)")

        for parser, command in ((start, run_start), (follow, run_follow), (cancel, run_cancel), (known, run_list)):
            parser.add_argument("--local", action="store_true", help="on this machine, instead of EMR Serverless")
            help_ = "where runs of this machine are kept (default: .lab/jobs)"
            parser.add_argument("--folder", metavar="DIR", help=help_)
            add_deployment(parser, command)
            parser.set_defaults(kind=kind)


def options_of(kind: type[Kind], arguments: argparse.Namespace) -> Kind:
    """The options of a kind of job: those of its fields that were given."""
    given = {name: getattr(arguments, name, None) for name in kind.__struct_fields__}
    return kind(**{name: value for name, value in given.items() if value is not None})


def reconcile_options(arguments: argparse.Namespace) -> ReconcileOptions:
    """The options of a reconciliation: policies by topic, and one for all others, which has no topic."""
    given = arguments.policy_of or ()
    arguments.policy = next((policy for topic, policy in reversed(given) if not topic), None)
    arguments.policies = {topic: policy for topic, policy in given if topic}
    return options_of(ReconcileOptions, arguments)


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="start", metavar="PLACE", type=bound, help=f"{FORMS} (default: earliest)")
    parser.add_argument("--to", dest="end", metavar="PLACE", type=bound, help="same, exclusive (default: latest)")


def _add_to_backfill(parser: argparse.ArgumentParser) -> None:
    _add_bounds(parser)
    parser.add_argument("--archive", metavar="URI", help="read a folder of Parquet files instead of the source")
    parser.add_argument("--into", metavar="TOPIC", help="write to this topic of the target, beside the live one")
    parser.add_argument("--max-mb-per-second", metavar="MB", type=float, help="cap, all lanes together")
    parser.add_argument("--free-gb", metavar="GB", type=float, help="what the target's disks have left, to be checked")
    parser.add_argument(
        "--beside", action="store_true", help="write behind records on the target that the flow has not written"
    )
    parser.add_argument("--force", action="store_true", help="start although a check warns")


def _add_to_verify(parser: argparse.ArgumentParser) -> None:
    _add_bounds(parser)
    parser.add_argument("--against-source", action="store_true", help="read the source's records as well, and compare")


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Add `--policy` and `--conflicts`."""
    parser.add_argument(
        "--policy",
        dest="policy_of",
        metavar="[TOPIC=]POLICY",
        type=_policy,
        action="append",
        help="what becomes of records that were never replicated: replay, quarantine or report (default); may be "
        "repeated, for a topic by its name",
    )
    parser.add_argument(
        "--conflicts",
        choices=get_args(Conflicts),
        default="keep-newest",
        help="which records of a compacted topic `replay` writes again: those that are the newest of their key "
        "(default), or all of them",
    )


def _add_to_reconcile(parser: argparse.ArgumentParser) -> None:
    add_policies(parser)
    parser.add_argument("--look-only", action="store_true", help="inspect and report, and change nothing")
    parser.add_argument(
        "--live-source",
        action="store_true",
        help="go on although producers write to the source: their records count as orphans",
    )


def _policy(text: str) -> tuple[str, Policy]:
    topic, _, policy = text.rpartition("=")
    if policy not in get_args(Policy):
        raise argparse.ArgumentTypeError(f"{policy!r} is no policy: write one of {', '.join(get_args(Policy))}")
    return topic, policy  # type: ignore[return-value]  # it is one of them


_KINDS: dict[JobKind, tuple[str, str, str, Callable[[argparse.ArgumentParser], None], Callable[..., Options]]] = {
    "backfill": (
        "copy topics' history to the target, and hand over to the live flow",
        "'us-east->eu-west' orders --from 2026-11-01T00:00:00Z --max-mb-per-second 50",
        "backfill-20261121T203355-1f3a",
        _add_to_backfill,
        partial(options_of, BackfillOptions),
    ),
    "verify": (
        "prove what was replicated, record by record, by the offset map's digests",
        "'us-east->eu-west' orders --against-source",
        "verify-20261121T213015-08c2",
        _add_to_verify,
        partial(options_of, VerifyOptions),
    ),
    "reconcile": (
        "bring back what is new on the target after an outage, and make the flow ready to run again",
        "'us-east->eu-west' --policy quarantine --policy payments=replay",
        "reconcile-20261122T071200-b4d9",
        _add_to_reconcile,
        reconcile_options,
    ),
}
"""Of each kind its purpose, an example of `start`, the id of a run, and its own options: added, and read."""


def run_start(arguments: argparse.Namespace) -> int:
    """Start a run, and watch it. Everything is checked before anything is created."""
    deployment = DeployedFlows.of(arguments)
    request = job_request(deployment, arguments, arguments.options(arguments))
    if arguments.dry_run:
        from cli.jobs.plan import is_refused, plan_of, show_plan  # noqa: PLC0415 -- it reads the clusters

        local = arguments.local or deployment.is_lab
        cores = (arguments.size or os.cpu_count() or 1) if local else (arguments.size or USUAL_SIZE) * EXECUTOR.cores
        with environment(deployment.job_variables()):
            plan = plan_of(request, cores=cores, architecture=deployment.configuration.deployment.spark.architecture)
        show_plan(request, plan, as_json=arguments.json)
        return FAILED if is_refused(request, plan) else CLEAN
    runs = runs_of(deployment, arguments, [request.flow.name])
    view = runs.start(request, size=arguments.size)
    if arguments.detach:
        return _answer(view, arguments, f"{view.run_id} was started: its files are in {view.place}")
    if not arguments.json:
        say(f"{view.run_id} was started: its files are in {view.place}")
    return watch(runs, view.run_id, arguments)


def run_follow(arguments: argparse.Namespace) -> int:
    """Watch a run until it is over. The exit code is the run's: see `cli.jobs.runs`."""
    return watch(_runs(arguments), arguments.run_id, arguments)


def run_cancel(arguments: argparse.Namespace) -> int:
    """End a run; one that is over already is left as it is."""
    view = _runs(arguments).cancel(arguments.run_id)
    if view.over:
        return _answer(view, arguments, f"{view.run_id} is over already: {view.state}")
    return _answer(view, arguments, f"{view.run_id} is being cancelled: its lanes are released within a minute.")


def run_list(arguments: argparse.Namespace) -> int:
    """List the runs of a kind, the newest first."""
    deployment = DeployedFlows.of(arguments)
    flows = deployment.flow_names(arguments.flow)
    found = runs_of(deployment, arguments, flows).every(arguments.kind, flows)
    if arguments.json:
        print_json({"runs": [as_json(view) for view in found]})
    elif not found:
        say(f"No {arguments.kind} is known.")
    else:
        console(WIDE_PIPE_WIDTH, soft_wrap=False).print(runs_table(found, now=now_ms()))
    return CLEAN


def runs_of(deployment: DeployedFlows, arguments: argparse.Namespace, flows: Sequence[FlowName]) -> Runs:
    """The platform that the arguments name."""
    if arguments.local or deployment.is_lab:
        from cli.jobs.local import FOLDER, LocalRuns  # noqa: PLC0415 -- one platform is enough

        return LocalRuns(Path(arguments.folder or FOLDER), variables=deployment.job_variables())
    from cli.jobs.emr import EmrRuns  # noqa: PLC0415 -- boto3 costs half a second

    return EmrRuns(deployment, flows, flex=getattr(arguments, "capacity", "") == "flex")


def _runs(arguments: argparse.Namespace) -> Runs:
    deployment = DeployedFlows.of(arguments)
    return runs_of(deployment, arguments, deployment.flow_names(arguments.flow))


def watch(runs: Runs, run_id: str, arguments: argparse.Namespace) -> int:
    """Show a run until it is over, and return the command's exit code."""
    local = arguments.local or arguments.lab is not None
    try:
        return _follow(
            lambda: runs.inspect(run_id),
            as_lines=arguments.json,
            every_seconds=LOCAL_SECONDS if local else REMOTE_SECONDS,
        )
    except KeyboardInterrupt:
        say("", f"{run_id} goes on. `follow` watches it again, `cancel` ends it.", err=True)
        return INTERRUPTED


def _answer(view: RunView, arguments: argparse.Namespace, sentence: str) -> int:
    if arguments.json:
        print_json(as_json(view))
    else:
        say(sentence)
    return CLEAN


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables of a job, for a plan in this process."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


LINES_SECONDS = 2.0
"""Between two lines, where the output is no terminal."""


def _views(inspect: Callable[[], RunView], every_seconds: float) -> Iterator[RunView]:
    """Read the run again and again, until it is over."""
    while not (view := inspect()).over:
        yield view
        time.sleep(every_seconds)  # between two reads: nothing announces what a job does
    yield view


def _follow(inspect: Callable[[], RunView], *, as_lines: bool, every_seconds: float) -> int:
    """Show a run until it is over, and return the command's exit code. Args: as_lines: JSON lines, for programs."""
    views = _views(inspect, every_seconds)
    if as_lines:
        return _json_lines(views)
    last = live(views) if sys.stdout.isatty() else _lines(views)
    say(*ending(last))
    return last.exit_code


def _json_lines(views: Iterator[RunView]) -> int:
    """Print a line after each change; the last one has `over` and `exit_code`."""
    last, code = None, CLEAN
    for view in views:
        found = as_json(view) | {"over": view.over} | ({"exit_code": view.exit_code} if view.over else {})
        if found != last:
            print_json(found, indent=None)
        last, code = found, view.exit_code
    return code


def _lines(views: Iterator[RunView]) -> RunView:
    shown_at, shown_state = 0.0, ""
    for view in views:  # there is always a first one
        if view.state != shown_state or time.monotonic() - shown_at >= LINES_SECONDS:
            say(sentence(view))
            shown_at, shown_state = time.monotonic(), view.state
    return view
