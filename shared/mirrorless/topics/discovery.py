"""The topics that a flow takes, those that it refuses, and the remote topics that they need. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from mirrorless.errors import few
from mirrorless.flow.filters import should_replicate
from mirrorless.flow.policy import HEARTBEATS_TOPIC, is_legal_topic
from mirrorless.flow.settings import FlowSettings
from mirrorless.flow.triggers import MAPPING, SCHEDULE

LONGEST_GROUP = 200
"""Characters of a mapping's consumer group, at most: Lambda's limit."""

SHORTEST_MAPPED = 2
"""Characters of a mapping's topic, at least: Lambda's limit."""

Cause = Literal["cycle", "internal", "group name", "remote name", "one letter"]

_REASONS: Mapping[Cause, str] = {
    "cycle": "they came from this flow's source or target: replicating them would go in circles",
    "internal": "they belong to Kafka or to the replication itself",
    "group name": f"their mapping's consumer group would be longer than the {LONGEST_GROUP} characters that Lambda "
    "takes: name them shorter, schedule them by `trigger.overrides`, or exclude them",
    "remote name": "their name on the target would be no legal topic name: exclude them",
    "one letter": "Lambda maps no topic whose name is one character long: schedule them by `trigger.overrides`, or "
    "exclude them",
}

_NAMED = 5
"""Topics that one sentence names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The source's topics, sorted by what the flow does with them."""

    taken: tuple[str, ...]
    """In order."""
    mapped: frozenset[str]
    """Those of `taken` whose mappings are ours: neither the template's nor scheduled."""
    scheduled: frozenset[str] = frozenset()
    """Those of `taken` whose trigger is `schedule`."""
    missing: tuple[str, ...] = ()
    """Named literally, and not on the source."""
    refused: Mapping[Cause, tuple[str, ...]]
    """Topics that the flow's list includes and that cannot be replicated."""
    literals: frozenset[str]
    template: frozenset[str]
    """Those of `literals` whose mappings are the template's."""
    unused_overrides: tuple[str, ...] = ()
    """Entries of `trigger.overrides` that decide nothing about the topics taken."""

    def troubles(self) -> list[str]:
        """One sentence for the operator per cause.

        Cycles and internal topics that only a pattern matches are expected: `.*` is a legal pattern in both directions
        of a pair. They are counted and not reported.
        """
        reported = {
            cause: names if cause not in {"cycle", "internal"} else tuple(n for n in names if n in self.literals)
            for cause, names in self.refused.items()
        }
        troubles = [f"not replicated: {some(names)}: {_REASONS[cause]}" for cause, names in reported.items() if names]
        if self.missing:
            troubles.append(f"not on the source: {some(self.missing)}, which the flow names")
        if self.unused_overrides:
            troubles.append(
                f"without effect in trigger.overrides: {some(self.unused_overrides)}: the source has no such topic for "
                "the flow, or an earlier entry matches it"
            )
        return troubles


def discover(on_source: Mapping[str, int], settings: FlowSettings) -> Discovery:
    """Sort the source's topics into those that the flow takes and those that it refuses.

    Args:
        on_source: every topic of the source.
        settings: the flow's filters and names.
    """
    flow, policy, topic_filter = settings.name, settings.policy, settings.topic_filter
    literals, template = frozenset(topic_filter.literals), frozenset(settings.template_topics)
    taken: list[str] = []
    refused: dict[Cause, list[str]] = {cause: [] for cause in get_args(Cause)}
    for topic in sorted(on_source):
        if should_replicate(
            topic, flow=flow, topics=topic_filter, policy=policy, heartbeats=settings.heartbeats_replication_enabled
        ):
            if not is_legal_topic(policy.remote_topic(flow.source, topic)):
                refused["remote name"].append(topic)
            elif (cause := None if topic in template else _not_mappable(topic, settings)) is not None:
                refused[cause].append(topic)
            else:
                taken.append(topic)
        elif topic_filter.accepts(topic):
            refused["internal" if policy.is_internal_topic(topic) else "cycle"].append(topic)
    triggers = settings.triggers
    scheduled = frozenset(topic for topic in taken if triggers.of(topic) == SCHEDULE)
    return Discovery(
        taken=tuple(taken),
        mapped=frozenset(topic for topic in taken if triggers.of(topic) == MAPPING) - template,
        scheduled=scheduled,
        template=template,
        unused_overrides=triggers.unused(taken),
        missing=tuple(sorted(literals - on_source.keys())),
        refused={cause: tuple(names) for cause, names in refused.items() if names},
        literals=literals,
    )


def awaits_heartbeats(on_source: Mapping[str, int], settings: FlowSettings) -> bool:
    """Whether the first heartbeat on the source is still to come: `control` makes its topic, in a run of its own.

    MM2's client finds the source by the remote topic, which is made once that of the source is seen.
    """
    emits = settings.emit_heartbeats_enabled and settings.emit_heartbeats_source_enabled
    return (
        emits
        and HEARTBEATS_TOPIC in discover({HEARTBEATS_TOPIC: 1}, settings).taken
        and HEARTBEATS_TOPIC not in on_source
    )


def _not_mappable(topic: str, settings: FlowSettings) -> Cause | None:
    """Why Lambda takes no mapping of this topic; None where it does, or the topic needs none."""
    if settings.triggers.of(topic) != MAPPING:
        return None
    if len(settings.consumer_group(topic)) > LONGEST_GROUP:
        return "group name"
    return "one letter" if len(topic) < SHORTEST_MAPPED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTopics:
    """The remote topics to create and to grow."""

    create: Mapping[str, int]
    """Source topic -> partitions of the remote topic that does not exist."""
    grow: Mapping[str, int]
    """Source topic -> partitions that its remote topic should have. Never fewer than it has."""


def plan_remote_topics(taken: Mapping[str, int], on_target: Mapping[str, int], settings: FlowSettings) -> RemoteTopics:
    """Compare the topics taken, with their partition counts, with the target's topics."""
    counts = {topic: (count, on_target.get(settings.remote_topic(topic), 0)) for topic, count in taken.items()}
    return RemoteTopics(
        create={topic: count for topic, (count, there) in counts.items() if not there},
        grow={topic: count for topic, (count, there) in counts.items() if 0 < there < count},
    )


def some(names: tuple[str, ...]) -> str:
    """The first few names, and how many there are."""
    return few(names, _NAMED)
