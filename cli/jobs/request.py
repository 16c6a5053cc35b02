"""The request of a job, from the command line: checked before anything is created.

A bound in a topic's history is `earliest`, `latest`, `offset:4711` or a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from cli.args import BadInput, offset
from cli.clusters import ClusterView
from cli.deployment import DeployedFlows
from cli.output import moment
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.jobs.request import (
    AuditOptions,
    BackfillOptions,
    Bound,
    JobKind,
    JobRequest,
    Options,
    ReconcileOptions,
    VerifyOptions,
)
from mirrorless.reconcile.tasks import refuse_one_way
from mirrorless.topics.discovery import Discovery, discover

if TYPE_CHECKING:
    from mirrorless.config.flow import Flow


def new_run_id(kind: JobKind) -> str:
    """`backfill-20261121T203355-1f3a`: unique, and in order of time."""
    return f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:4]}"


def started_at(run_id: str) -> int:
    """When a run was requested, by its id, in ms since the epoch; 0 where the id has another form."""
    try:
        return int(datetime.strptime(run_id.split("-")[1] + "+0000", "%Y%m%dT%H%M%S%z").timestamp() * 1000)
    except (IndexError, ValueError):
        return 0


def job_request(deployment: DeployedFlows, arguments: argparse.Namespace, options: Options) -> JobRequest:
    """The request that the command line describes.

    Raises:
        BadInput: something in it cannot be done.
        ConfigurationError: there is no such flow.
        Retriable: the source does not answer, and the topics are not known without it.
    """
    flow = deployment.flow_name(arguments.flow)
    _check(options)
    topics, counts = topics_of(deployment, flow, arguments.topics, by_source=not isinstance(options, VerifyOptions))
    if isinstance(options, ReconcileOptions):
        refuse_one_way(deployment.settings(flow), topics)
        if not options.look_only:
            refuse_without_rights(deployment.flow(flow))
        _known(options.policies, topics)
    return JobRequest(
        run_id=new_run_id(arguments.kind),
        flow=deployment.job_settings(flow),
        topics=topics,
        options=options,
        aliases=tuple(sorted(deployment.configuration.clusters)),
        partitions=_partitions(arguments.partition, topics, counts),
    )


def refuse_without_rights(flow: Flow) -> None:
    """Refuse to bring records back to a source to which jobs must not write.

    Raises:
        ConfigurationError: it is one.
    """
    if not flow.settings.reconcile_enabled:
        raise ConfigurationError(
            f"its jobs have no right to write to {flow.name.source}",
            where=f"{flow.name} reconcile.enabled",
            hint="set `reconcile.enabled: true`, deploy, and start again",
        )


def topics_of(
    deployment: DeployedFlows, flow: FlowName, named: Sequence[str], *, by_source: bool
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The topics of a job, and the number of partitions of each on the source.

    Args:
        deployment: of the flow.
        flow: its name.
        named: topics; none means every topic of the flow.
        by_source: whether the job needs the source.
    """
    # Old heartbeats are of no use: they are neither copied, verified nor reconciled.
    settings = msgspec.structs.replace(deployment.settings(flow), heartbeats_replication_enabled=False)
    source = ClusterView.source(deployment, flow)
    counts = source.partitions()
    if counts is None:
        literals = settings.topic_filter.literals
        if by_source or (settings.topic_filter.patterns and not named):
            raise Retriable(
                f"{flow.source} does not answer, so its topics are not known: {source.trouble}",
                where=str(flow),
                hint="start the job when it is back" + ("" if by_source else ", or name the topics"),
            )
        counts = dict.fromkeys({*literals, *named}, 0)
    found = discover(counts, settings)
    for topic in named:
        if topic not in found.taken:
            raise BadInput(
                f"topic {topic} is not replicated by this flow: {_why_not(topic, found)}",
                where=str(flow),
                hint=f"`mirrorless topics '{flow}'` lists those that are",
            )
    chosen = tuple(dict.fromkeys(named)) or found.taken
    if not chosen:
        raise BadInput("this flow has no topic on the source", where=str(flow), hint="look at its `topics`")
    return chosen, {topic: counts[topic] for topic in chosen}


def _why_not(topic: str, found: Discovery) -> str:
    if topic in found.missing:
        return "it is not on the source"
    for cause, names in found.refused.items():
        if topic in names:
            return f"it is refused ({cause})"
    return "its `topics` do not name it, or it is not on the source"


def _partitions(
    wanted: Iterable[int] | None, topics: Sequence[str], counts: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    partitions = tuple(sorted(set(wanted or ())))
    for topic in topics if partitions else ():
        if counts[topic] and partitions[-1] >= counts[topic]:
            raise BadInput(
                f"topic {topic} has no partition {partitions[-1]}",
                where="--partition",
                hint=f"it has 0 to {counts[topic] - 1}",
            )
    return dict.fromkeys(topics, partitions) if partitions else {}


def _check(options: Options) -> None:
    if isinstance(options, ReconcileOptions | AuditOptions):
        return
    if is_empty(options.start, options.end):
        raise BadInput(f"nothing lies from {written(options.start)} to {written(options.end)}", where="--from, --to")
    if (
        isinstance(options, BackfillOptions)
        and options.max_mb_per_second is not None
        and options.max_mb_per_second <= 0
    ):
        raise BadInput("nothing would ever be copied", where="--max-mb-per-second", hint="leave it out for no cap")


def _known(policies: Iterable[str], topics: Sequence[str]) -> None:
    for topic in policies:
        if topic not in topics:
            raise BadInput(f"{topic} is none of the topics of this job", where="--policy", hint=", ".join(topics))


FORMS = "earliest, latest, offset:N, a time such as 2026-11-21T20:30:00Z, or milliseconds since 1970"

LEAST_MS = 100_000_000_000
"""A plain number below it would be a time before March 1973, and is taken for an offset by mistake."""

LARGEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


def bound(text: str) -> Bound:
    """Read `--from` or `--to`.

    Raises:
        ArgumentTypeError: it is none of the forms.
    """
    if text in {"earliest", "latest"}:
        return Bound(text)  # type: ignore[arg-type]  # one of the two
    if text.startswith("offset:"):
        return Bound("offset", offset(text.removeprefix("offset:")))
    if text.isascii() and text.isdigit():
        return Bound("timestamp", _ms(text))
    return Bound("timestamp", _time(text))


def written(each: Bound) -> str:
    """A bound for people."""
    match each.kind:
        case "offset":
            return f"upstream offset {each.value}"
        case "timestamp":
            return moment(each.value)
        case _:
            return each.kind


def is_empty(start: Bound, end: Bound) -> bool:
    """Whether nothing can lie between two bounds, as far as that is known without a cluster."""
    if start.kind == end.kind and start.kind in {"offset", "timestamp"}:
        return start.value >= end.value
    return start.kind == "latest" or end.kind == "earliest"


def _ms(text: str) -> int:
    value = int(text)
    if not LEAST_MS <= value <= LARGEST_MS:
        raise argparse.ArgumentTypeError(
            f"{text} is no time in milliseconds since 1970: write offset:{text} if an upstream offset is meant"
        )
    return value


def _time(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no place in a topic's history: write {FORMS}") from None
    if found.tzinfo is None:
        whole = text if "T" in text or " " in text else f"{text}T00:00:00"
        raise argparse.ArgumentTypeError(f"{text} has no time zone: write {whole}Z for UTC, or +01:00")
    if found < datetime(1970, 1, 1, tzinfo=UTC):
        raise argparse.ArgumentTypeError(f"{text} is before 1970, and no record is as old")
    return int(found.timestamp() * 1000)
