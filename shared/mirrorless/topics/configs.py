"""The configs of a remote topic: those to copy from its source topic, and its drift from them.

MirrorMaker 2's rules: overrides of the source topic are copied, broker defaults are not turned into overrides, and
configs of the cluster rather than the records are left out (`config.properties.exclude`). MM2 writes every config of
every topic at each interval; here only differences are written. As with MM2, a change made by hand on the remote topic
is reverted, unless the flow protects that property's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mirrorless.filters import CONFIG_PROPERTIES_EXCLUDE
from mirrorless.ports.topics import ConfigChange, ConfigEntry

DefaultsFrom = Literal["source", "target"]
"""`target`: a config at its default on the source gets the target's default. `source`: it is set explicitly."""


def configs_to_copy(
    entries: Iterable[ConfigEntry],
    exclude: Iterable[str] = CONFIG_PROPERTIES_EXCLUDE,
    *,
    defaults_from: DefaultsFrom = "target",
) -> dict[str, str]:
    """The overrides that the remote topic should have; `exclude` holds patterns that match whole names."""
    excluded = NamePatterns(exclude)
    return {
        entry.name: entry.value
        for entry in entries
        if (entry.is_override or defaults_from == "source")
        and entry.is_copyable
        and entry.value is not None
        and not excluded.match(entry.name)
    }


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
    protected, excluded = NamePatterns(protect), NamePatterns(exclude)
    wanted = configs_to_copy(on_source.values(), exclude, defaults_from=defaults_from)
    differing = {
        name: value
        for name, value in wanted.items()
        if not protected.match(name) and _override(on_target.get(name)) != value
    }
    surplus = (
        entry.name
        for entry in on_target.values()
        if entry.is_override
        and entry.is_copyable
        and entry.name not in wanted
        # A config unknown to the source's brokers was set for the target alone, and a sensitive one may be set there.
        and (counterpart := on_source.get(entry.name)) is not None
        and not counterpart.is_override
        and not excluded.match(entry.name)
        and not protected.match(entry.name)
    )
    return Drift(
        change=ConfigChange(
            set={name: value for name, value in differing.items() if name in on_target},
            delete=tuple(sorted(surplus)),
        ),
        # A default of the source is not reported as unknown.
        unknown=tuple(sorted(name for name in differing if name not in on_target and on_source[name].is_override)),
    )


def _override(entry: ConfigEntry | None) -> str | None:
    return entry.value if entry is not None and entry.is_override else None
