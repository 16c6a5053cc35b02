"""The creation of remote topics, each with those of its configs that the target takes.

A broker refuses a topic with a config that it does not have (`redpanda.*`, `confluent.*`), that its cluster has
switched off (`remote.storage.enable`) or that its service lets nobody set (MSK Serverless, MSK Express). A list of the
names that it has would show the first kind only, and needs a right that creation does not. So a refused topic is
validated config by config, and created with what was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorless.ports.kafka import Deadline
from mirrorless.ports.topics import NewRemoteTopic, TargetTopics

KEPT: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
"""Never left out: without them a topic would lose records that its source topic has."""


@dataclass(frozen=True, slots=True)
class Creation:
    """The outcome for one remote topic."""

    error: str | None = None
    left_out: tuple[str, ...] = ()
    """The configs that the target refused, where the topic stands without them."""


def create_topics(target: TargetTopics, topics: Sequence[NewRemoteTopic], deadline: Deadline) -> dict[str, Creation]:
    """Create remote topics.

    Returns:
        by the topic's name what went wrong, and what was left out.

    Raises:
        Retriable: the cluster does not answer.
    """
    errors = target.create(topics, deadline)
    refused = [topic for topic in topics if errors.get(topic.name) and topic.configs.keys() - KEPT]
    taken = _taken(target, refused, deadline) if refused else []
    if taken:
        errors |= target.create(taken, deadline)
    wanted = {topic.name: topic.configs for topic in refused}
    left_out = {topic.name: tuple(sorted(wanted[topic.name].keys() - topic.configs.keys())) for topic in taken}
    return {
        topic.name: Creation(error)
        if (error := errors.get(topic.name))
        else Creation(None, left_out.get(topic.name, ()))
        for topic in topics
    }


def _taken(target: TargetTopics, topics: Sequence[NewRemoteTopic], deadline: Deadline) -> list[NewRemoteTopic]:
    """Refused topics with the configs that the target takes; without a topic that it refuses for another reason."""
    least = [
        replace(topic, configs={name: topic.configs[name] for name in KEPT & topic.configs.keys()}) for topic in topics
    ]
    errors = target.create(least, deadline, validate_only=True)
    taken = {topic.name: topic for topic in least if not errors.get(topic.name)}
    others = {
        topic.name: sorted(topic.configs.items() - taken[topic.name].configs.items())
        for topic in topics
        if topic.name in taken
    }
    # One config of every topic in one call: what a config needs may be another of its topic, so they are added up.
    for index in range(max(map(len, others.values()), default=0)):
        trials = [
            replace(taken[name], configs={**taken[name].configs, configs[index][0]: configs[index][1]})
            for name, configs in others.items()
            if index < len(configs)
        ]
        errors = target.create(trials, deadline, validate_only=True)
        taken |= {trial.name: trial for trial in trials if not errors.get(trial.name)}
    return list(taken.values())
