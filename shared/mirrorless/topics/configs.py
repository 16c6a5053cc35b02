"""The configs of a remote topic: those to copy from its source topic, and its drift from them.

MirrorMaker 2's rules: overrides of the source topic are copied, broker defaults are not turned into overrides, and
configs of the cluster rather than the records are left out (`config.properties.exclude`). MM2 writes every config of
every topic at each interval; here only differences are written. As with MM2, a change made by hand on the remote topic
is reverted, unless the flow protects that property's name. A limit on records is never lowered: what the source once
took must fit, and an operator raises it where a record was refused.

The creation of remote topics, each with those of its configs that the target takes.

A broker refuses a topic with a config that it does not have (`redpanda.*`, `confluent.*`), that its cluster has
switched off (`remote.storage.enable`) or that its service lets nobody set (MSK Serverless, MSK Express). A list of the
names that it has would show the first kind only, and needs a right that creation does not. So a refused topic is
validated config by config, and created with what was taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from mirrorless.clock import Deadline
from mirrorless.flow.filters import CONFIG_PROPERTIES_EXCLUDE, TIMESTAMP_TYPE
from mirrorless.ports.topics import ConfigChange, ConfigEntry, NewRemoteTopic, TargetTopics

LIMITS: Final = frozenset(
    {
        "max.message.bytes",
        *(f"message.timestamp.{bound}.max.ms" for bound in ("difference", "before", "after")),
    }
)
"""Configs of which a larger value lets more records in, and harms none."""

DefaultsFrom = Literal["source", "target"]
"""`target`: a config at its default on the source gets the target's default. `source`: it is set explicitly."""


def configs_to_copy(
    entries: Iterable[ConfigEntry],
    exclude: Iterable[str] = CONFIG_PROPERTIES_EXCLUDE,
    *,
    defaults_from: DefaultsFrom = "target",
) -> dict[str, str]:
    """The overrides that the remote topic should have; `exclude` holds patterns that match whole names."""
    excluded = excluded_names(exclude)
    return {
        entry.name: entry.value
        for entry in entries
        if (entry.is_override or defaults_from == "source")
        and entry.is_copyable
        and entry.value is not None
        and not excluded.match(entry.name)
    }


def excluded_names(exclude: Iterable[str]) -> NamePatterns:
    """The names that are never copied: those that a flow excludes, and the type of times."""
    return NamePatterns((*exclude, re.escape(TIMESTAMP_TYPE)))


class NamePatterns:
    """Patterns of property names, each of which matches a whole name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def match(self, name: str) -> bool:
        """Whether one of them matches."""
        return any(pattern.fullmatch(name) for pattern in self._patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The difference of a remote topic from its source topic."""

    change: ConfigChange
    unknown: tuple[str, ...] = ()
    """Set on the source topic, but unknown to the target's brokers, which may be older; not copied."""


def drift(
    source: Iterable[ConfigEntry],
    target: Iterable[ConfigEntry],
    *,
    exclude: Iterable[str] = CONFIG_PROPERTIES_EXCLUDE,
    protect: Iterable[str] = (),
    defaults_from: DefaultsFrom = "target",
) -> Drift:
    """Compare a source topic with its remote topic.

    Args:
        source: every config of the source topic, as its broker describes it.
        target: the same of the remote topic.
        exclude: patterns of names that are never changed.
        protect: patterns of names that the operator sets on the target: not changed after creation.
        defaults_from: for configs at their default on the source topic.
    """
    on_source, on_target = ({entry.name: entry for entry in entries} for entries in (source, target))
    wide = {name for name in LIMITS if _is_wider(on_target.get(name), on_source.get(name))}
    protected, excluded = NamePatterns(protect), excluded_names(exclude)
    wanted = configs_to_copy(on_source.values(), exclude, defaults_from=defaults_from)
    differing = {
        name: value
        for name, value in wanted.items()
        if name not in wide and not protected.match(name) and _override(on_target.get(name)) != value
    }
    surplus = {
        entry.name
        for entry in on_target.values()
        if entry.is_override
        and entry.is_copyable
        and entry.name not in wanted
        and entry.name not in wide
        # A config unknown to the source's brokers was set for the target alone, and a sensitive one may be set there.
        and (counterpart := on_source.get(entry.name)) is not None
        and not counterpart.is_override
        and not excluded.match(entry.name)
        and not protected.match(entry.name)
    }
    # The target's default may be lower than a limit that somebody set there, and what the source takes must fit.
    raised = {name: str(on_source[name].value) for name in surplus & LIMITS}
    return Drift(
        change=ConfigChange(
            set={name: value for name, value in differing.items() if name in on_target} | raised,
            delete=tuple(sorted(surplus - LIMITS)),
        ),
        # A default of the source is not reported as unknown.
        unknown=tuple(sorted(name for name in differing if name not in on_target and on_source[name].is_override)),
    )


def rewriting_configs(source: Iterable[ConfigEntry], target: Iterable[ConfigEntry]) -> dict[str, str]:
    """What a remote topic does to records or batches that its source topic does not: by config its value and effect.

    Its own configs count like its cluster's defaults.
    """
    here, there = ({entry.name: entry.value for entry in entries} for entries in (source, target))
    found = {}
    if there.get(TIMESTAMP_TYPE) == "LogAppendTime":
        found[TIMESTAMP_TYPE] = (
            "LogAppendTime: readers get the time of the copy instead of the record's. Set CreateTime on it; what was "
            "copied until then keeps the wrong times"
        )
    codec = there.get("compression.type") or "producer"
    if codec not in {"producer", here.get("compression.type")}:
        found["compression.type"] = (
            f"{codec}, and not so on the source: the target compresses each batch anew, and none is copied as it lies. "
            "Set producer on it, unless that is meant"
        )
    return found


def _is_wider(on_target: ConfigEntry | None, on_source: ConfigEntry | None) -> bool:
    """Whether a limit was set on the remote topic that is no lower than the source topic's, or its cluster's."""
    limit, other = _override(on_target), on_source.value if on_source is not None else None
    return limit is not None and other is not None and _number(limit) >= _number(other)


def _number(value: str) -> int:
    return int(value) if value.lstrip("-").isdigit() else 0


def _override(entry: ConfigEntry | None) -> str | None:
    return entry.value if entry is not None and entry.is_override else None


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
