"""Which of a source topic's configs does its remote topic get? MirrorMaker 2's rules.

What the operator set on the source topic is copied; broker defaults are not turned into overrides; what belongs
to the cluster and not to the records stays behind (MirrorMaker 2's `config.properties.exclude`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mirrorless.filters import CONFIG_PROPERTIES_EXCLUDE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One topic config as the source's broker describes it."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool = False
    is_sensitive: bool = False


def configs_to_copy(
    entries: Iterable[ConfigEntry], exclude: Iterable[str] = CONFIG_PROPERTIES_EXCLUDE
) -> dict[str, str]:
    """The overrides with which the remote topic is created; `exclude` holds patterns that match whole names."""
    patterns = [re.compile(pattern) for pattern in exclude]
    return {
        entry.name: entry.value
        for entry in entries
        if entry.value is not None
        and not (entry.is_default or entry.is_read_only or entry.is_sensitive)
        and not any(pattern.fullmatch(entry.name) for pattern in patterns)
    }
