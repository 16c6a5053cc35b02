"""Rules on the triggers and the schedules of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorless.config.cluster import Mtls, Scram
from mirrorless.config.messages import Path, Problem
from mirrorless.config.rules import FlowPaths, section
from mirrorless.filters import NameFilter, is_literal, should_replicate
from mirrorless.policy import HEARTBEATS_TOPIC

if TYPE_CHECKING:
    from mirrorless.config.flow import Flow


def problems_with_schedule_keys(data: Any) -> Iterator[Problem]:
    """Find keys of schedules that exclude each other. The values of the document may still be invalid."""
    shared = section(section(data, "defaults"), "schedule")
    if shared.get("continuous") is True:
        yield from _interval(shared, ("defaults", "schedule"))
    flows = section(data, "flows")
    for name in flows:
        own = section(section(flows, name), "schedule")
        if own.get("continuous", shared.get("continuous")) is True:
            yield from _interval(own, ("flows", name, "schedule"))


def _interval(schedule: dict[str, Any], path: Path) -> Iterator[Problem]:
    if "interval.seconds" in schedule:
        what = "a schedule that is continuous has no interval"
        yield Problem(path=(*path, "interval.seconds"), what=what, hint="remove it, or write `continuous: false`")


def problems_with_schedule(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find problems of the triggers and the schedules of one flow."""
    if flow.triggers.schedules and not flow.settings.refresh_topics_enabled:
        key = "trigger" if flow.settings.trigger == "schedule" else "trigger.overrides"
        what = "nothing keeps the list of scheduled topics, nor maps those that change back"
        yield Problem(path=paths.of(flow, key), what=what, hint="write `refresh.topics.enabled: true`")
    if flow.has_pull:
        yield from _secrets_out_of_reach(flow)


def problems_with_overrides(flows: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """Find entries of `trigger.overrides` that can decide nothing; those of `defaults` if they do so in no flow."""
    found: dict[Path, list[Problem | None]] = {}
    for flow in flows:
        for entry, problem in _overrides(flow).items():
            path = (*paths.of(flow, "trigger.overrides"), entry)
            placed = None if problem is None else Problem(path=path, what=problem[0], hint=problem[1])
            found.setdefault(path, []).append(placed)
    for same in found.values():
        problems = [problem for problem in same if problem is not None]
        if len(problems) == len(same):
            yield problems[0]


def _overrides(flow: Flow) -> dict[str, tuple[str, str] | None]:
    """What is wrong with each entry, and what to write instead. What a pattern of the flow finds is not known."""
    earlier: list[str] = []
    found: dict[str, tuple[str, str] | None] = {}
    for entry in flow.settings.trigger_overrides:
        found[entry] = None
        if is_literal(entry):
            if not _takes(flow, entry):
                found[entry] = f"the flow does not replicate {entry!r}", "remove it, or add the topic to `topics`"
            elif covering := next((each for each in earlier if _matches(each, entry)), None):
                hint = f"write it above {covering!r}: the first entry that matches holds"
                found[entry] = f"{covering!r} matches {entry!r} already", hint
        elif not flow.topic_patterns and not any(_matches(entry, topic) for topic in _named(flow)):
            found[entry] = f"no topic of the flow matches {entry!r}", "remove it, or add such topics to `topics`"
        earlier.append(entry)
    return found


def _takes(flow: Flow, topic: str) -> bool:
    return should_replicate(
        topic,
        flow=flow.name,
        topics=flow.topics,
        policy=flow.policy,
        heartbeats=flow.settings.heartbeats_replication_enabled,
    )


def _named(flow: Flow) -> Iterator[str]:
    """The topics that a flow without patterns may take: those that it names, and heartbeats."""
    yield from flow.literal_topics
    separator = flow.settings.replication_policy_separator
    yield from filter(
        partial(_takes, flow),
        (HEARTBEATS_TOPIC, *(f"{alias}{separator}{HEARTBEATS_TOPIC}" for alias in sorted(flow.aliases))),
    )


def _matches(entry: str, topic: str) -> bool:
    return NameFilter(include=(entry,)).accepts(topic)


def _secrets_out_of_reach(flow: Flow) -> Iterator[Problem]:
    """Find secrets in another region than that of the function `pull`, which reads them."""
    home = flow.pull_home.region
    for cluster in (flow.source, flow.target):
        proof = cluster.authentication
        if home is None or not isinstance(proof, Scram | Mtls) or not proof.secret.startswith("arn:"):
            continue
        if (region := proof.secret.split(":")[3]) != home:
            what = f"the secret is in {region}, and scheduled topics of {flow.name} are read in {home}"
            hint = f"write its name alone and replicate it to {home}, or change `schedule: {{run.in: …}}`"
            yield Problem(path=("clusters", cluster.alias, "authentication", "secret"), what=what, hint=hint)
