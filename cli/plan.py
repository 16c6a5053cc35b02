"""`mirrorless plan FLOW`: the trigger that costs least for each topic, beside its alternatives.

The topics' rates are sampled on the source, or read from a file. Nothing is changed; `--write` makes a new file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.args import BadInput, add_deployment, add_flow
from cli.billed import billed, mappings_of, shards_of
from cli.clusters import ClusterReads
from cli.deployment import DeployedFlows
from cli.output import print_json
from cli.plan_tables import KnownRates, PlanView, TargetNow, plan_as_json, show
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE
from mirrorless.cost.options import Goal, Option
from mirrorless.cost.plan import FlowPlan, TriggersNow, configured, plan_flow, planned_keys
from mirrorless.cost.rates import read_rates, sample_rates
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.settings import FlowSettings
from mirrorless.flow.triggers import SCHEDULE
from mirrorless.lanes.check_state import LaneNotes
from mirrorless.lanes.foreign import sentences
from mirrorless.reports.format import numbered
from mirrorless.topics.discovery import discover

if TYPE_CHECKING:
    from mirrorless.config import Flow

LONGEST_SAMPLE = 86_400
"""Seconds."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="sample the flow's topics, and say which triggers carry them at least cost",
        epilog="Example: mirrorless plan 'us-east->eu-west' --latency 5",
    )
    add_flow(parser)
    parser.add_argument(
        "--latency",
        metavar="SECONDS",
        type=_seconds,
        default=5.0,
        help="how long a record may be on its way, at the 99th percentile (default: %(default)g)",
    )
    parser.add_argument(
        "--sample-seconds",
        metavar="SECONDS",
        type=_seconds,
        default=60.0,
        help="how long to watch the topics (default: %(default)g)",
    )
    parser.add_argument("--rates", metavar="FILE", help="read the topics' rates from a CSV file, and sample nothing")
    parser.add_argument(
        "--write", metavar="FILE", help="write the configuration with the recommended triggers into a new file"
    )
    parser.add_argument(
        "--beside", action="store_true", help="begin behind records on the target that the flow has not written"
    )
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show the plan. Exit code 1 where no trigger keeps the latency, or where the flow would begin beside others."""
    if arguments.write is not None and Path(arguments.write).exists():
        raise BadInput("this file exists already, and is not overwritten", where=arguments.write, hint="name a new one")
    deployment = DeployedFlows.of(arguments)
    name = deployment.flow_name(arguments.flow)
    flow, settings = deployment.flow(name), deployment.settings(name)
    known = _from_file(Path(arguments.rates), settings) if arguments.rates else _sampled(settings, arguments)
    goal = Goal(
        latency=arguments.latency,
        half_second=flow.settings.mapping.maximum_batching_window_seconds is None,
        settings=billed(flow.settings, deployment.configuration.deployment),
    )
    plan = plan_flow(known.rates, goal)
    view = PlanView(
        flow=str(name),
        plan=plan,
        known=known,
        configured=_configured(flow, known, goal),
        target=_target(deployment, settings, known),
        beside=arguments.beside,
    )
    if arguments.write is not None and not view.refused:
        keys = planned_keys(plan, _now(flow, settings, plan))
        _write(Path(arguments.write), Path(deployment.configuration.origin), name, keys)
        view = replace(view, written=arguments.write)
    if arguments.json:
        print_json(plan_as_json(view))
    else:
        show(view)
    return int(view.refused or not plan.recommended.meets)


def _from_file(path: Path, settings: FlowSettings) -> KnownRates:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"the file of rates cannot be read: {exc}", where=str(path)) from exc

    def refused(topic: str) -> str | None:
        return None if settings.replicates(topic) else f"{settings.name} does not replicate it"

    rates = read_rates(text, origin=str(path), refused=refused)
    missing = sorted(set(settings.topic_filter.literals) - {rate.topic for rate in rates})
    notes = [f"without a row, and not in the plan: {', '.join(missing)}"] if missing else []
    return KnownRates(rates=rates, seconds=None, notes=notes)


def _sampled(settings: FlowSettings, arguments: argparse.Namespace) -> KnownRates:
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- with a file no Kafka client is needed
    from mirrorless.adapters.kafka.rates import KafkaRates  # noqa: PLC0415 -- same

    flow, source = str(settings.name), settings.source
    on_source = KafkaOffsets(source, flow=flow).partitions()
    found = discover(on_source, settings)
    # What heartbeats cost is a part of every flow's price.
    topics = {topic: on_source[topic] for topic in found.taken if not settings.policy.is_heartbeats_topic(topic)}
    if not topics:
        what = "the source has no topic that the flow replicates"
        raise ConfigurationError(
            what, where=flow, hint=f"look at `mirrorless topics '{flow}'`, or give rates by --rates FILE"
        )
    seconds = arguments.sample_seconds
    waiting = progress(f"{numbered(len(topics), 'topic')} of {source.alias}", seconds)
    sampled = sample_rates(KafkaRates(source, flow=flow), topics, seconds=seconds, clock=time.monotonic, wait=waiting)
    notes = []
    if sampled.unseen:
        notes.append(f"no record of {numbered(len(sampled.unseen), 'topic')} was read: an average size was taken")
    if found.missing:
        notes.append(f"not on the source, and not in the plan: {', '.join(found.missing)}")
    return KnownRates(rates=sampled.topics, seconds=sampled.seconds, notes=notes)


def progress(what: str, seconds: float) -> Callable[[float], None]:
    """A wait that tells how far the sample is, on standard error: each second on a terminal, otherwise each time."""
    begun = time.monotonic()

    def wait(duration: float) -> None:
        until = time.monotonic() + duration
        terminal = sys.stderr.isatty()
        while True:
            passed = min(seconds, time.monotonic() - begun)
            text = f"sampling {what}: {passed:.0f} of {seconds:.0f} s"
            print(f"\r{text} " if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
            left = until - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(1.0, left) if terminal else left)  # rates are measured over time
            if not terminal:
                break
        if terminal and passed >= seconds:
            print(file=sys.stderr)

    return wait


def _target(deployment: DeployedFlows, settings: FlowSettings, known: KnownRates) -> TargetNow | None:
    """The target before the plan; None where rates come from a file, or it does not answer."""
    if known.seconds is None:
        return None
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- same

    flow, offsets = settings.name, KafkaOffsets(settings.target, flow=str(settings.name))
    target = ClusterReads()
    there = target.read(offsets.partitions)
    if there is None:
        return None
    remote = {rate.topic: settings.policy.remote_topic(flow.source, rate.topic) for rate in known.rates}
    # Where both clusters produce to a topic, its records are meant to be there.
    places = {
        (remote[topic], partition): Lane(flow, topic, partition)
        for topic in remote
        if settings.origin_rule(topic) is None
        for partition in range(there.get(remote[topic], 0))
    }
    extents = target.read(lambda: offsets.extents(places)) or {}
    begins = {places[place]: each.start for place, each in extents.items() if each.start < each.end}
    unknown = ""
    try:
        heads = deployment.stores(flow).chains.heads(begins) if begins else {}
    except MirrorlessError as exc:  # before the first deployment there is no map
        heads, unknown = {}, str(exc)
    new = {lane: at for lane, at in begins.items() if heads.get(lane, NEW_LANE) == NEW_LANE}
    wanted = {(remote[lane.topic], lane.partition): at for lane, at in new.items()}
    seen = target.read(lambda: offsets.oldest_waiting(wanted)) or {}
    notes = {
        places[place]: LaneNotes(foreign=wanted[place]) for place, timestamp in seen.items() if timestamp is not None
    }
    return TargetNow(
        new_partitions=sum(max(0, rate.partitions - there.get(remote[rate.topic], 0)) for rate in known.rates),
        foreign=tuple(sentences(flow, notes, remote.__getitem__, begun=False)),
        unknown=unknown or target.trouble,
    )


def _now(flow: Flow, settings: FlowSettings, plan: FlowPlan) -> TriggersNow:
    """The triggers as they are configured."""
    return TriggersNow(
        default=flow.settings.trigger,
        entries=bool(flow.settings.trigger_overrides),
        touched={topic.rate.topic for topic in plan.topics if not flow.triggers.maps_in_template(topic.rate.topic)},
        heartbeats=settings.replicates(HEARTBEATS_TOPIC),
        checkpoint_seconds=flow.settings.emit_checkpoints_interval_seconds,
    )


def _configured(flow: Flow, known: KnownRates, goal: Goal) -> Option:
    """The flow as it is configured."""
    scheduled = {rate.topic for rate in known.rates if flow.triggers.of(rate.topic) == SCHEDULE}
    return configured(known.rates, scheduled, mappings_of(flow.settings), shards_of(flow.settings), goal)


def _write(path: Path, origin: Path, flow: FlowName, keys: dict[str, Any]) -> None:
    """Write the configuration with these keys into a new file."""
    from mirrorless.config.key_edits import with_plan  # noqa: PLC0415 -- YAML costs a tenth of a second

    after = with_plan(origin.read_bytes().decode("utf-8"), flow, keys, origin=str(origin))
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(after)
    except OSError as exc:
        raise BadInput(f"the file cannot be written: {exc}", where=str(path), hint="name a new file") from exc


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_SAMPLE:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: write one above 0, a day at most")
    return value
