"""Which configs of a remote topic have drifted from its source topic's, and what brings them back?

MM2 writes every config of every topic at each interval. Here only what differs is written. Like MM2's, the rule
reverts what somebody set on the remote topic by hand, unless the flow protects that property's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirrorless.filters import CONFIG_PROPERTIES_EXCLUDE
from mirrorless.ports.topics import ConfigChange, ConfigEntry
from mirrorless.topics.configs import DefaultsFrom, NamePatterns, configs_to_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a remote topic differs from its source topic."""

    change: ConfigChange
    unknown: tuple[str, ...] = ()
    """Set on the source topic and not known to the target's brokers, which may be older: they stay behind."""


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
        exclude: patterns of names that are never touched.
        protect: patterns of names that the operator sets on the target: not touched after creation either.
        defaults_from: what becomes of configs that the source topic leaves at default.
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
        # A config that the source's brokers do not know is none of theirs, and one that they keep secret may be set.
        and (theirs := on_source.get(entry.name)) is not None
        and not theirs.is_override
        and not excluded.match(entry.name)
        and not protected.match(entry.name)
    )
    return Drift(
        change=ConfigChange(
            set={name: value for name, value in differing.items() if name in on_target},
            delete=tuple(sorted(surplus)),
        ),
        # What the source merely has by default is not missed.
        unknown=tuple(sorted(name for name in differing if name not in on_target and on_source[name].is_override)),
    )


def _override(entry: ConfigEntry | None) -> str | None:
    return entry.value if entry is not None and entry.is_override else None
