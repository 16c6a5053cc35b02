"""`mirrorless audit`: topics and the copies that any replicator keeps of them, compared whole, on this machine.

It needs two clusters and nothing else: no deployment, no tables, no map. Several processes read, a partition each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.args import BadInput, add_deployment, add_without_header, count
from cli.deployment import DeployedFlows
from cli.output import WIDE_PIPE_WIDTH, TableColumns, console, print_json, progress_line, say, size, table
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.errors import MirrorlessError
from mirrorless.flow.settings import Authentication, ClusterSettings, FlowSettings
from mirrorless.jobs.request import PROVENANCE, AuditOptions
from mirrorless.reports.format import numbered

if TYPE_CHECKING:
    from mirrorless.verify.audit import AuditTask, AuditVerdict
    from mirrorless.verify.findings import Finding

FAULTLESS, FAILED, FOUND = 0, 1, 3

SHOWN = 20
"""Findings in the terminal; the report has more."""

LOOK_SECONDS, LINE_SECONDS = 0.2, 10.0
"""Between two looks at the processes, and between two lines where the output is no terminal."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `audit`."""
    parser = subparsers.add_parser(
        "audit",
        help="compare topics with the copies that MirrorMaker 2 or any other replicator keeps, record by record",
        epilog="Example: mirrorless audit --source kafka-a:9092 --target kafka-b:9092 --prefix us-east. orders",
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}",
            metavar="CLUSTER",
            required=True,
            help="bootstrap servers, host:port,…; a Java client.properties with them; or an alias of the configuration",
        )
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="topics on the source")
    named = parser.add_mutually_exclusive_group()
    named.add_argument(
        "--prefix",
        metavar="TEXT",
        help="what copies have before a topic's name (default: the source's alias and a dot)",
    )
    named.add_argument("--identity", action="store_true", help="copies have the topics' own names")
    named.add_argument("--target-topic", metavar="NAME", help="the copy's name, of one topic")
    add_without_header(parser)
    parser.add_argument("--without-timestamps", action="store_true", help="compare no timestamps")
    parser.add_argument(
        "--wait", metavar="SECONDS", type=float, default=30.0, help="for what is on its way at the end (default: 30)"
    )
    parser.add_argument(
        "--processes", metavar="N", type=count, help="at most (default: one for each core); on EMR, executors"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--report", metavar="FILE", help="write the report there, as a page")
    where.add_argument(
        "--spark",
        choices=("local", "emr"),
        help="as a Spark job: on this machine, or on EMR Serverless where two aliases are a flow that is deployed",
    )
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Audit the topics. Exit code 0: every copy is true; 3: something was found; 1: not all could be read."""
    from mirrorless.adapters.audits import audit_tasks  # noqa: PLC0415 -- the Kafka client is slow to import
    from mirrorless.verify.audit import audit_report, audit_totals, is_true_copy  # noqa: PLC0415 -- same

    source, target = (_cluster(arguments, side) for side in ("source", "target"))
    options = _options(arguments, source)
    if arguments.spark:
        return _run_job(arguments, source, target, options)
    began = time.monotonic()
    verdicts = _audited(audit_tasks(source, target, options), arguments.processes or os.cpu_count() or 1)
    seconds = time.monotonic() - began
    for verdict in verdicts:
        verdict.show()
    report = audit_report(
        verdicts, title=f"Audit of {source.alias} and {target.alias}", seconds=seconds, made_at=now_ms()
    )
    if arguments.report:
        from mirrorless.reports.page import render  # noqa: PLC0415 -- templates are slow to import

        Path(arguments.report).write_text(render(report))
    clean = is_true_copy(verdicts)
    if arguments.json:
        totals = audit_totals(verdicts, seconds=seconds)
        print_json({"clean": clean, "verdict": report.verdict, "totals": totals, "partitions": verdicts})
    else:
        _show(verdicts, options, report.verdict)
    if any(verdict.state == "failed" for verdict in verdicts):
        return FAILED
    return FAULTLESS if clean else FOUND


# Clusters and names


def _cluster(arguments: argparse.Namespace, side: str) -> ClusterSettings:
    """One of the two clusters.

    Raises:
        BadInput: there is none of this name.
        ConfigurationError: its file is none.
    """
    name = getattr(arguments, side)
    if Path(name).is_file():
        from mirrorless.adapters.kafka.client_properties import read_client_properties  # noqa: PLC0415 -- as in `run`

        path = str(Path(name).absolute())
        authentication = Authentication(type="properties", secret=path)
        bootstrap = read_client_properties(path)["bootstrap.servers"]
        return ClusterSettings(alias=side, bootstrap=bootstrap, authentication=authentication)
    if ":" in name:
        return ClusterSettings(alias=side, bootstrap=name)
    clusters = DeployedFlows.of(arguments).configuration.clusters
    if name not in clusters:
        known = ", ".join(clusters)
        raise BadInput(
            f"there is no file and no cluster {name}", where=f"--{side}", hint=f"the configuration has {known}"
        )
    return clusters[name].settings()


def _options(arguments: argparse.Namespace, source: ClusterSettings) -> AuditOptions:
    """What is compared with what.

    Raises:
        BadInput: the names of the copies are not known.
    """
    topics = tuple(dict.fromkeys(arguments.topics))
    prefix = "" if arguments.identity else arguments.prefix
    if arguments.target_topic is not None and topics[1:]:
        raise BadInput("one topic has one copy", where="--target-topic", hint="name one TOPIC, or use --prefix")
    if arguments.target_topic is None and prefix is None:
        if source.alias != arguments.source:
            raise BadInput(
                "it is not known what the copies are called",
                where="--source",
                hint="add --prefix ALIAS. with the alias that the replicator has for the source, --identity where "
                "copies keep the names, or --target-topic",
            )
        prefix = f"{DeployedFlows.of(arguments).configuration.clusters[source.alias].topic_prefix}."
    return AuditOptions(
        copies={topic: arguments.target_topic or f"{prefix}{topic}" for topic in topics},
        timestamps=not arguments.without_timestamps,
        headers_left_out=(*PROVENANCE, *arguments.without_header),
        wait_seconds=arguments.wait,
    )


def _run_job(
    arguments: argparse.Namespace, source: ClusterSettings, target: ClusterSettings, options: AuditOptions
) -> int:
    """Audit by a Spark job, and watch it. The exit code is the run's: see `cli.jobs.runs`."""
    from cli.jobs.commands import runs_of, watch  # noqa: PLC0415 -- audits in place need none
    from cli.jobs.request import new_run_id  # noqa: PLC0415 -- same
    from mirrorless.jobs.request import JobRequest  # noqa: PLC0415 -- same

    flow, deployment = FlowName(source.alias, target.alias), DeployedFlows.of(arguments)
    arguments.local, arguments.folder = arguments.spark == "local", None
    settings = FlowSettings(flow=str(flow), source=source, target=target)
    if not arguments.local:
        settings = deployment.job_settings(deployment.flow_name(str(flow)))
    request = JobRequest(run_id=new_run_id("audit"), flow=settings, topics=tuple(options.copies), options=options)
    runs = runs_of(deployment, arguments, [flow])
    view = runs.start(request, size=arguments.processes)
    say(f"{view.run_id} was started: its files are in {view.place}", err=True)
    return watch(runs, view.run_id, arguments)


class _Worker:
    """A process of the pool: where its progress goes."""

    news: Any = None


# Processes


def _begin(news: Any) -> None:
    """Begin a process of the pool."""
    _Worker.news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's: it ends its processes


def _audit(task: AuditTask) -> AuditVerdict:
    """Audit one partition in a process of the pool."""
    from mirrorless.adapters.audits import audit_partition  # noqa: PLC0415 -- as in `run`
    from mirrorless.verify.audit import AuditVerdict  # noqa: PLC0415 -- same

    place, said_at = (task.topic, task.partition), 0.0

    def note(phase: str, *, done: int, total: int, records: int, bytes: int) -> None:  # noqa: A002, ARG001 -- the port's
        nonlocal said_at
        if time.monotonic() - said_at >= LOOK_SECONDS:
            said_at = time.monotonic()
            _Worker.news.put((place, {"done": done, "total": total, "records": records, "bytes": bytes}))

    try:
        return audit_partition(task, note)
    except MirrorlessError as exc:
        return AuditVerdict.of(task, error=str(exc))


def _audited(tasks: Sequence[AuditTask], processes: int) -> list[AuditVerdict]:
    """The verdicts on all partitions, by topic and partition."""
    context = multiprocessing.get_context("spawn")  # the Kafka client does not survive a fork
    news: Any = context.SimpleQueue()
    with ProcessPoolExecutor(min(processes, len(tasks)), context, _begin, (news,)) as pool:
        futures = [pool.submit(_audit, task) for task in tasks]
        try:
            _follow(futures, news)
            found = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    return sorted(found, key=lambda verdict: (verdict.topic, verdict.partition))


def _follow(futures: Sequence[Future[AuditVerdict]], news: Any) -> None:
    """Say how far the partitions are, until all are done: in one line of a terminal, or from time to time."""
    known: dict[tuple[str, int], dict[str, int]] = {}
    began = said_at = time.monotonic()
    terminal = sys.stderr.isatty()
    while wait(futures, LOOK_SECONDS).not_done:
        while not news.empty():
            place, progress = news.get()
            known[place] = progress
        if known and time.monotonic() - said_at >= (LOOK_SECONDS if terminal else LINE_SECONDS):
            said_at = time.monotonic()
            done, total, records, read = (
                sum(each[name] for each in known.values()) for name in ("done", "total", "records", "bytes")
            )
            line = (
                f"{sum(each.done() for each in futures)} of {len(futures)} partitions done; read "
                f"{100 * done // max(1, total)} % of those begun, {numbered(records, 'record')}, {size(read)}, "
                f"{records / (said_at - began):,.0f}/s"
            )
            progress_line(line)
    progress_line("")


# For people


def _show(verdicts: Sequence[AuditVerdict], options: AuditOptions, result: str) -> None:
    """Show the topics, the first findings with their places, what there is to say of partitions, and the result."""
    from mirrorless.verify.audit import total_of, wrong_of  # noqa: PLC0415 -- as in `run`
    from mirrorless.verify.summary import row_of  # noqa: PLC0415 -- same

    topics = [(topic, [each for each in verdicts if each.topic == topic]) for topic in options.copies]
    columns: TableColumns[tuple[str, list[AuditVerdict]]] = (
        ("=topic", lambda row: row[0]),
        ("=copy", lambda row: options.copies[row[0]]),
        (">partitions", lambda row: len(row[1])),
        (">records", lambda row: total_of(row[1]).records),
        (">in order", lambda row: total_of(row[1]).proved),
        (">keys", lambda row: total_of(row[1]).keys),
        (">not there yet", lambda row: total_of(row[1]).pending + total_of(row[1]).keys_pending),
        ("wrong", lambda row: wrong_of(total_of(row[1])) or "nothing"),
    )
    found: TableColumns[tuple[str, Finding]] = (
        ("=partition", lambda row: row[0]),
        ("=kind", lambda row: row[1].kind),
        (">records", lambda row: row[1].records),
        ("=upstream", lambda row: row_of(row[1].upstream)),
        ("=downstream", lambda row: row_of(row[1].downstream)),
        ("", lambda row: row[1].what),
    )
    findings = [(verdict.lane, finding) for verdict in verdicts for finding in verdict.findings]
    console(WIDE_PIPE_WIDTH).print(table(None, columns, topics))
    if findings:
        console(WIDE_PIPE_WIDTH).print(table("the first findings", found, findings[:SHOWN], spaced=True))
    if left := len(findings[SHOWN:]) + sum(verdict.left_out for verdict in verdicts):
        say(f"{left:,} more are counted, and not shown.")
    said = [f"{each.lane}: {text}" for each in verdicts for text in (each.error, *each.notes) if text]
    say(*said[:SHOWN], *([f"and {len(said) - SHOWN} more"] if said[SHOWN:] else []), result)
