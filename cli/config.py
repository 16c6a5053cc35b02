"""`mirrorless config check FILE`: what a configuration would deploy, or every problem in it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from cli.output import picked, print_json, say, say_error
from mirrorless.cost.bill import BilledSettings, ReplicationLoad, shared
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import TIMESTAMP_TYPE
from mirrorless.flow.triggers import MAPPING
from mirrorless.scheduled.functions import task_intervals
from mirrorless.topics.configs import NamePatterns

if TYPE_CHECKING:
    from cli.forecast import Forecast
    from mirrorless.config import Flow, Problem
    from mirrorless.config.flow_section import FlowSection
    from mirrorless.transforms.rules import Rule

_HIGHEST_RATE = 100_000

FAILED = 2
"""Exit code of a configuration that cannot be used."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `config` and `config check`."""
    config = subparsers.add_parser("config", help="look at a configuration")
    commands = config.add_subparsers(dest="config_command", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="say what would be made of a configuration, or everything that is wrong with it",
        epilog="Example: mirrorless config check replication.example.yaml",
    )
    check.add_argument("file", metavar="FILE", help="the configuration, usually replication.yaml")
    check.add_argument("--lab", action="store_true", help="for `make lab`: without what only a deployment needs")
    check.add_argument(
        "--mb-per-second",
        type=_rate,
        default=1.0,
        metavar="MB",
        help="of each flow, for the forecast of costs and latency; 1 is assumed",
    )
    check.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    check.set_defaults(run=run)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1
    if not 0 <= rate < _HIGHEST_RATE:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write 0 to {_HIGHEST_RATE:,} MB per second")
    return rate


def run(arguments: argparse.Namespace) -> int:
    """Check one file. Exit code 0: it can be deployed. Exit code 2: it cannot, and every problem is printed."""
    from cli.forecast import forecast  # noqa: PLC0415 -- pydantic would slow every other command down
    from infra.validation import validated  # noqa: PLC0415 -- same
    from mirrorless.config import load  # noqa: PLC0415 -- same

    forecasts: dict[str, tuple[Forecast, list[str]]] = {}
    try:
        if arguments.lab:
            configuration = load(arguments.file, trial=True)
        else:
            deployment = validated(arguments.file)
            configuration = deployment.configuration
            rate = arguments.mb_per_second
            forecasts = {flow.name: forecast(deployment, flow, mb_per_second=rate) for flow in deployment.flows}
    except ConfigurationError as exc:
        if arguments.json:
            print_json({"valid": False, "problems": _problems(exc)})
        else:
            say_error(exc)
        return FAILED
    flows = configuration.flows.values()
    if arguments.json:
        print_json({"valid": True, "flows": [_flow(flow, forecasts.get(str(flow.name))) for flow in flows]})
    else:
        say(f"{configuration.origin} is valid.")
        for flow in flows:
            say("", *_paragraph(flow, forecasts.get(str(flow.name))))
    return 0


def _problems(error: ConfigurationError) -> list[dict[str, Any]]:
    problems: tuple[Problem, ...] = getattr(error, "problems", ())
    found = [{"field": each.where, "problem": each.what, **picked(each, "line hint")} for each in problems]
    return found or [{"field": "", "line": None, "problem": error.what, "hint": error.hint}]


def _flow(flow: Flow, expected: tuple[Forecast, list[str]] | None) -> dict[str, Any]:
    settings = flow.settings
    return {
        "flow": str(flow.name),
        "enabled": flow.enabled,
        **picked(settings, "delivery start trigger"),
        "function": {"region": flow.function_region}
        | picked(settings.function, "memory_mb timeout_seconds architecture"),
        "topics": [
            {
                "topic": topic,
                "remote_topic": flow.remote_topic(topic),
                "consumer_group": flow.group_name(topic),
                "trigger": flow.triggers.of(topic),
            }
            for topic in flow.literal_topics
        ],
        "patterns": list(flow.topic_patterns),
        "trigger_overrides": [
            {"entry": entry, "trigger": trigger} for entry, trigger in settings.trigger_overrides.items()
        ],
        "transforms": [msgspec.to_builtins(rule) for rule in flow.rules],
        "schedule": _schedule(flow) if flow.has_pull else None,
        "forecast": expected[0] if expected else None,
    }


def _schedule(flow: Flow) -> dict[str, Any]:
    schedule = flow.settings.schedule
    return picked(schedule, "continuous shards memory_mb maximum_bytes_per_second") | {
        "interval_seconds": None if schedule.continuous else schedule.interval_seconds,
        "region": flow.pull_home.region,
    }


def _paragraph(flow: Flow, expected: tuple[Forecast, list[str]] | None) -> list[str]:
    settings, mapping, function = flow.settings, flow.settings.mapping, flow.settings.function
    if not flow.enabled:
        return [f"{flow.name}: disabled, nothing is deployed"]
    region = flow.function_region or "an unspecified region"
    pollers = (
        f", {mapping.minimum_pollers} to {mapping.maximum_pollers} pollers" if mapping.mode == "provisioned" else ""
    )
    lines = [
        f"{flow.name}: {settings.delivery.replace('_', ' ')}, from {settings.start}",
        f"  function in {region}: {function.memory_mb} MB, {function.timeout_seconds} s, {function.architecture}",
        f"  {mapping.mode} event source mappings, up to {mapping.batch_size:,} records a batch{pollers}",
    ]
    width = max(map(len, flow.literal_topics), default=0)
    lines += [
        f"    {topic:<{width}}  ->  {flow.remote_topic(topic)}{_by_schedule(flow, topic)}"
        for topic in flow.literal_topics
    ]
    lines += [f"    topics that match {pattern}, as they are found" for pattern in flow.topic_patterns]
    lines += [f"  {_rule(rule)}" for rule in flow.rules]
    if flow.has_pull:
        lines += _scheduled_topics(flow)
    shared = flow.all_settings()
    on_schedule = ", ".join(f"{task} every {seconds:g} s" for task, seconds in task_intervals(shared).items())
    lines.append(f"  on schedule: {on_schedule}")
    if offsets := shared.sync_group_offsets_seconds:
        lines.append(f"  group offsets are committed every {offsets:g} s")
    if not NamePatterns(settings.config_properties_exclude).match(TIMESTAMP_TYPE):
        lines.append(f"  {TIMESTAMP_TYPE} is not copied, though `config.properties.exclude` does not name it")
    if settings.emit_heartbeats_enabled and (more := _heartbeats_below_a_minute(settings)) > 0:
        lines.append(
            f"  heartbeats that often keep a function running: about ${more:.0f} a month more than once a minute"
        )
    return [*lines, *(expected[1] if expected else [])]


def _rule(rule: Rule) -> str:
    """What becomes of records of some topics, and of which of their parts."""
    actions = {**rule.fields, **{f"header {name}": action for name, action in rule.headers.items()}}
    actions |= {part: action for part, action in (("value", rule.value), ("key", rule.key)) if action}
    changed = [name for name, action in actions.items() if action != "pass"]
    done = [f"kept where {rule.keep}"] if rule.keep else []
    done += [f"changed in {', '.join(changed)}"] if changed else []
    done += [f"then by {rule.function}"] if rule.function else []
    return f"rule {rule.version} of {', '.join(rule.topics)}: {'; '.join(done) or 'as they are'}"


def _by_schedule(flow: Flow, topic: str) -> str:
    return "" if (trigger := flow.triggers.of(topic)) == MAPPING else f", by {trigger}"


def _scheduled_topics(flow: Flow) -> list[str]:
    """What is scheduled, and when and where it is read."""
    settings, schedule = flow.settings, flow.settings.schedule
    often = "all the time" if schedule.continuous else f"every {schedule.interval_seconds:,} s"
    limit = schedule.maximum_bytes_per_second
    runs = f"{schedule.shards} run{'s' if schedule.shards > 1 else ''} of {schedule.memory_mb} MB"
    where = flow.pull_home.region or "an unspecified region"
    lines = [
        f"  scheduled topics are read {often} in {where}, by {runs}{f', {limit:,} bytes/s at most' if limit else ''}"
    ]
    lines += [f"    {entry}: {trigger}" for entry, trigger in settings.trigger_overrides.items()]
    others = "all other topics" if settings.trigger_overrides else "all topics"
    return [*lines, f"    {others}: {settings.trigger}"]


def _heartbeats_below_a_minute(settings: FlowSection) -> float:
    """Dollars a month of a flow in which nothing else moves, above those of the default interval."""
    still = [ReplicationLoad(mb_per_second=0)]
    often = BilledSettings(heartbeat_seconds=settings.emit_heartbeats_interval_seconds)
    return sum(shared(still, often).values()) - sum(shared(still).values())
