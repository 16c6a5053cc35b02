"""Triggers of a flow's topics: an event source mapping for one topic, or a schedule that reads many topics.

A flow has one trigger, and overrides of it for single topics, by name or pattern; the first entry that matches holds.
Who makes the mapping of a topic that the flow names literally follows from the same rules:

    the template       where nothing but the flow's own trigger, `mapping`, is about the topic
    `refresh_topics`   where an entry is, whatever its trigger: such a topic may have been scheduled before, and the
                       offsets of its group must be set before its mapping is there, which CloudFormation cannot do
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

from mirrorless.flow.filters import NameFilter, is_literal

Trigger = Literal["mapping", "schedule"]

WINDOW_SECONDS: Final = 0.4
"""For which a continuous run gathers records, where nothing is set: each transaction costs writes of the journals."""

LONGEST_WINDOW_SECONDS: Final = 15.0
"""The lease of a shard is renewed between two transactions."""

MAPPING: Final = "mapping"
SCHEDULE: Final = "schedule"


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """The triggers of a flow.

    Attributes:
        default: the trigger of topics that no entry matches.
        overrides: an entry, which is a name or a pattern, and the trigger of the topics that it matches.
    """

    default: Trigger = MAPPING
    overrides: tuple[tuple[str, Trigger], ...] = ()
    _names: dict[str, int] = field(init=False, repr=False, compare=False)
    """The place of each entry; no topic is called like a pattern."""
    _patterns: tuple[tuple[int, NameFilter], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        entries = [(place, entry) for place, (entry, _) in enumerate(self.overrides)]
        patterns = [(place, NameFilter(include=(entry,))) for place, entry in entries if not is_literal(entry)]
        object.__setattr__(self, "_names", {entry: place for place, entry in entries})
        object.__setattr__(self, "_patterns", tuple(patterns))

    def of(self, topic: str) -> Trigger:
        """The trigger of a topic."""
        place = self._place(topic)
        return self.default if place is None else self.overrides[place][1]

    def maps_in_template(self, topic: str) -> bool:
        """Whether the deployment's template maps this topic, if the flow names it literally."""
        return self.default == MAPPING and self._place(topic) is None

    @property
    def schedules(self) -> bool:
        """Whether a topic may be scheduled, or on its way back to a mapping."""
        return self.default == SCHEDULE or bool(self.overrides)

    @property
    def maps(self) -> bool:
        """Whether any topic may be mapped."""
        return self.default == MAPPING or any(trigger == MAPPING for _, trigger in self.overrides)

    def unused(self, topics: Iterable[str]) -> tuple[str, ...]:
        """The entries that decide nothing about these topics, because none matches or an earlier entry does."""
        used = {self._place(topic) for topic in topics}
        return tuple(entry for place, (entry, _) in enumerate(self.overrides) if place not in used)

    def _place(self, topic: str) -> int | None:
        """The place of the first entry that matches."""
        named = self._names.get(topic)
        for place, pattern in self._patterns:
            if named is not None and named < place:
                return named
            if pattern.accepts(topic):
                return place
        return named


@cache
def trigger_rules(default: Trigger, overrides: tuple[tuple[str, Trigger], ...]) -> TriggerRules:
    """The rules of these settings, with their patterns compiled once."""
    return TriggerRules(default, overrides)
