"""`mirrorless backfill | verify | reconcile start | follow | cancel | list`: the commands that all kinds of jobs share.

Each kind has a file with its own options. A job runs on EMR Serverless or on this machine (`--local`, and always with
`--lab`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cli.args import add_deployment, add_flow, partition
from cli.deployment import DeployedFlows
from cli.jobs.request import FORMS, bound, job_request
from cli.jobs.runs import CLEAN, FAILED, Runs, RunView, as_json, ending, live, runs_table, sentence
from cli.output import WIDE_PIPE_WIDTH, console, print_json
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.cost.jobs import EXECUTOR
from mirrorless.jobs.request import JobKind, Options

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 4.0
"""Between two reads of a run on this machine, and of one on EMR Serverless, whose API limits calls."""

USUAL_SIZE = 31
"""Executors that fit into the default maximum of a deployment."""

INTERRUPTED = 130
"""Exit code for Ctrl-C, as shells have it."""

AddOptions = Callable[[argparse.ArgumentParser], None]
OptionsOf = Callable[[argparse.Namespace], Options]


def add_kind(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    kind: JobKind,
    *,
    summary: str,
    example: str,
    more: AddOptions,
    options: OptionsOf,
) -> None:
    """Add a kind of job with its four commands.

    Args:
        subparsers: of the command.
        kind: the job's name.
        summary: its purpose, in a line.
        example: of `start`, without the command's name.
        more: adds the options of this kind.
        options: reads them from the arguments.
    """
    commands = subparsers.add_parser(kind, help=summary).add_subparsers(required=True, metavar="COMMAND")

    start = commands.add_parser("start", help=summary, epilog=f"Example: mirrorless {kind} start {example}")
    add_flow(start)
    start.add_argument("topics", metavar="TOPIC", nargs="*", help="topics on the source (default: all of the flow)")
    start.add_argument(
        "--partition", metavar="N", type=partition, action="append", help="only this partition; may be repeated"
    )
    more(start)
    start.add_argument(
        "--size", metavar="N", type=_count, help="executors at most, two lanes at a time each; with --local, cores"
    )
    start.add_argument("--dry-run", action="store_true", help="only show what would be done, and what it would cost")
    start.add_argument("--detach", action="store_true", help="do not watch it: answer with its id")
    start.set_defaults(options=options)

    follow = commands.add_parser(
        "follow",
        help="watch a run until it is over",
        epilog=f"Example: mirrorless {kind} follow {_EXAMPLES[kind]}",
    )
    cancel = commands.add_parser(
        "cancel",
        help="end a run: what is done stays done, and another run goes on there",
        epilog=f"Example: mirrorless {kind} cancel {_EXAMPLES[kind]}",
    )
    for parser in (follow, cancel):
        parser.add_argument("run_id", metavar="RUN", help="the run's id, as `start` and `list` print it")
        parser.add_argument("--flow", metavar="FLOW", help="'source->target', quoted (default: looked for in all)")

    known = commands.add_parser("list", help="list the runs", epilog=f"Example: mirrorless {kind} list")
    known.add_argument("--flow", metavar="FLOW", help="'source->target', quoted (default: every flow)")

    for parser, run in ((start, run_start), (follow, run_follow), (cancel, run_cancel), (known, run_list)):
        parser.add_argument("--local", action="store_true", help="on this machine, instead of EMR Serverless")
        parser.add_argument("--folder", metavar="DIR", help="where runs of this machine are kept (default: .lab/jobs)")
        add_deployment(parser, run)
        parser.set_defaults(kind=kind)


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add `--from` and `--to`."""
    parser.add_argument("--from", dest="start", metavar="PLACE", type=bound, help=f"{FORMS} (default: earliest)")
    parser.add_argument("--to", dest="end", metavar="PLACE", type=bound, help="same, exclusive (default: latest)")


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
        print(f"{view.run_id} was started: its files are in {view.place}", flush=True)
    return _watch(runs, view.run_id, arguments)


def run_follow(arguments: argparse.Namespace) -> int:
    """Watch a run until it is over. The exit code is the run's: see `cli.jobs.runs`."""
    return _watch(_runs(arguments), arguments.run_id, arguments)


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
        print(f"No {arguments.kind} is known.")
    else:
        console(WIDE_PIPE_WIDTH, soft_wrap=False).print(runs_table(found, now=now_ms()))
    return CLEAN


def runs_of(deployment: DeployedFlows, arguments: argparse.Namespace, flows: Sequence[FlowName]) -> Runs:
    """The platform that the arguments name."""
    if arguments.local or deployment.is_lab:
        from cli.jobs.local import FOLDER, LocalRuns  # noqa: PLC0415 -- one platform is enough

        return LocalRuns(Path(arguments.folder or FOLDER), variables=deployment.job_variables())
    from cli.jobs.emr import EmrRuns  # noqa: PLC0415 -- boto3 costs half a second

    return EmrRuns(deployment, flows)


_EXAMPLES: dict[JobKind, str] = {
    "backfill": "backfill-20261121T203355-1f3a",
    "verify": "verify-20261121T213015-08c2",
    "reconcile": "reconcile-20261122T071200-b4d9",
}


def _runs(arguments: argparse.Namespace) -> Runs:
    deployment = DeployedFlows.of(arguments)
    return runs_of(deployment, arguments, deployment.flow_names(arguments.flow))


def _watch(runs: Runs, run_id: str, arguments: argparse.Namespace) -> int:
    local = arguments.local or arguments.lab is not None
    try:
        return _follow(
            lambda: runs.inspect(run_id),
            as_lines=arguments.json,
            every_seconds=LOCAL_SECONDS if local else REMOTE_SECONDS,
        )
    except KeyboardInterrupt:
        print(f"\n{run_id} goes on. `follow` watches it again, `cancel` ends it.", file=sys.stderr)
        return INTERRUPTED


def _answer(view: RunView, arguments: argparse.Namespace, sentence: str) -> int:
    if arguments.json:
        print_json(as_json(view))
    else:
        print(sentence)
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


LARGEST_COUNT = 10_000


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: write a whole number from 1")
    return int(text)


LINES_SECONDS = 2.0
"""Between two lines, where the output is no terminal."""


def _views(look: Callable[[], RunView], every_seconds: float) -> Iterator[RunView]:
    """Read the run again and again, until it is over."""
    while not (view := look()).over:
        yield view
        time.sleep(every_seconds)  # between two looks: nothing announces what a job does
    yield view


def _follow(look: Callable[[], RunView], *, as_lines: bool, every_seconds: float) -> int:
    """Show a run until it is over, and return the command's exit code. Args: as_lines: JSON lines, for programs."""
    views = _views(look, every_seconds)
    if as_lines:
        return _json_lines(views)
    last = live(views) if sys.stdout.isatty() else _lines(views)
    print("\n".join(ending(last)))
    return last.exit_code


def _json_lines(views: Iterator[RunView]) -> int:
    """Print a line after each change; the last one has `over` and `exit_code`."""
    last_line, code = None, CLEAN
    for view in views:
        line = json.dumps(as_json(view) | {"over": view.over} | ({"exit_code": view.exit_code} if view.over else {}))
        if line != last_line:
            print(line, flush=True)
        last_line, code = line, view.exit_code
    return code


def _lines(views: Iterator[RunView]) -> RunView:
    shown_at, shown_state = 0.0, ""
    for view in views:  # there is always a first look
        if view.state != shown_state or time.monotonic() - shown_at >= LINES_SECONDS:
            print(sentence(view), flush=True)
            shown_at, shown_state = time.monotonic(), view.state
    return view
