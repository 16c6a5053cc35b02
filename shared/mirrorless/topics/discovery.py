"""The topics that a flow takes, those that it refuses, and the remote topics that they need. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from mirrorless.filters import should_replicate
from mirrorless.policy import is_legal_topic
from mirrorless.scheduled.settings import ControlSettings

LONGEST_GROUP = 200
"""Characters of a mapping's consumer group, at most: Lambda's limit."""

SHORTEST_MAPPED = 2
"""Characters of a mapping's topic, at least: Lambda's limit."""

Cause = Literal["cycle", "internal", "group name", "remote name", "one letter"]

_REASONS: Mapping[Cause, str] = {
    "cycle": "they came from this flow's source or target: replicating them would go in circles",
    "internal": "they belong to Kafka or to the replication itself",
    "group name": f"their mapping's consumer group would be longer than the {LONGEST_GROUP} characters that Lambda "
    "takes: name them shorter, or exclude them",
    "remote name": "their name on the target would be no legal topic name: exclude them",
    "one letter": "Lambda maps no topic whose name is one character long: exclude them",
}

_NAMED = 5
"""Topics that one sentence names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The source's topics, sorted by what the flow does with them."""

    taken: tuple[str, ...]
    """In order."""
    mapped: frozenset[str]
    """Those of `taken` whose mappings are ours; a literal topic's mapping belongs to the deployment."""
    missing: tuple[str, ...] = ()
    """Named literally, and not on the source."""
    refused: Mapping[Cause, tuple[str, ...]]
    """Topics that the flow's list includes and that cannot be replicated."""
    literals: frozenset[str]

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
        return troubles


def discover(on_source: Mapping[str, int], settings: ControlSettings) -> Discovery:
    """Sort the source's topics into those that the flow takes and those that it refuses.

    Args:
        on_source: every topic of the source.
        settings: the flow's filters and names.
    """
    flow, policy, topic_filter = settings.name, settings.policy, settings.topic_filter
    literals = frozenset(topic_filter.literals)
    taken: list[str] = []
    refused: dict[Cause, list[str]] = {cause: [] for cause in get_args(Cause)}
    for topic in sorted(on_source):
        if should_replicate(
            topic, flow=flow, topics=topic_filter, policy=policy, heartbeats=settings.heartbeats_replication
        ):
            if not is_legal_topic(policy.remote_topic(flow.source, topic)):
                refused["remote name"].append(topic)
            elif topic not in literals and len(settings.consumer_group(topic)) > LONGEST_GROUP:
                refused["group name"].append(topic)
            elif topic not in literals and len(topic) < SHORTEST_MAPPED:
                refused["one letter"].append(topic)
            else:
                taken.append(topic)
        elif topic_filter.accepts(topic):
            refused["internal" if policy.is_internal_topic(topic) else "cycle"].append(topic)
    return Discovery(
        taken=tuple(taken),
        mapped=frozenset(taken) - literals,
        missing=tuple(sorted(literals - on_source.keys())),
        refused={cause: tuple(names) for cause, names in refused.items() if names},
        literals=literals,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTopics:
    """The remote topics to create and to grow."""

    create: Mapping[str, int]
    """Source topic -> partitions of the remote topic that does not exist."""
    grow: Mapping[str, int]
    """Source topic -> partitions that its remote topic should have. Never fewer than it has."""


def plan_remote_topics(
    taken: Mapping[str, int], on_target: Mapping[str, int], settings: ControlSettings
) -> RemoteTopics:
    """Compare the topics taken, with their partition counts, with the target's topics."""
    counts = {
        topic: (count, on_target.get(settings.policy.remote_topic(settings.name.source, topic), 0))
        for topic, count in taken.items()
    }
    return RemoteTopics(
        create={topic: count for topic, (count, there) in counts.items() if not there},
        grow={topic: count for topic, (count, there) in counts.items() if 0 < there < count},
    )


def some(names: tuple[str, ...]) -> str:
    """The first few names, and how many there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
