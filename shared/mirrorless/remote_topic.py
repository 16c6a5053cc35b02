"""Which of a source topic's configs does its remote topic get? MirrorMaker 2's rules.

What the operator set on the source topic is copied; broker defaults are not turned into overrides; what belongs
to the cluster and not to the records stays behind (MirrorMaker 2's `config.properties.exclude`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

EXCLUDED = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.before\.max\.ms",
    r"message\.timestamp\.after\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
"""Names, as patterns that must match whole. Timestamps are the source's: the target must not judge or rewrite them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One topic config as the source's broker describes it."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool = False
    is_sensitive: bool = False


def configs_to_copy(entries: Iterable[ConfigEntry], exclude: Iterable[str] = EXCLUDED) -> dict[str, str]:
    """The overrides with which the remote topic is created."""
    patterns = [re.compile(pattern) for pattern in exclude]
    return {
        entry.name: entry.value
        for entry in entries
        if entry.value is not None
        and not (entry.is_default or entry.is_read_only or entry.is_sensitive)
        and not any(pattern.fullmatch(entry.name) for pattern in patterns)
    }
