"""Which of a source topic's configs does its remote topic get? MirrorMaker 2's rules.

What the operator set on the source topic is copied; broker defaults are not turned into overrides; what belongs
to the cluster and not to the records stays behind (MirrorMaker 2's `config.properties.exclude`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from mirrorless.filters import CONFIG_PROPERTIES_EXCLUDE
from mirrorless.ports.topics import ConfigEntry

DefaultsFrom = Literal["source", "target"]
"""`target`: what the source topic leaves at default is left to the target's default. `source`: it is set explicitly."""


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
