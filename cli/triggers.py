"""The trigger of each topic as it is configured, and whether `refresh_topics` is still changing it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirrorless.flow.triggers import MAPPING, SCHEDULE, Trigger
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.scheduled_topics import read_scheduled_topics


@dataclass(frozen=True, slots=True)
class TopicTrigger:
    """The trigger of one topic."""

    configured: Trigger
    now: Trigger
    """`schedule` while the topic is read by a schedule, also while it changes back."""

    @property
    def changing(self) -> bool:
        """Whether the topic is still read as it was before."""
        return self.now != self.configured

    def __str__(self) -> str:
        return f"{self.now} -> {self.configured}" if self.changing else self.configured


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTriggers:
    """The triggers of one flow's topics."""

    settings: ControlSettings
    scheduled: Collection[str]
    """The topics that a schedule reads now."""

    @classmethod
    def read(cls, settings: ControlSettings, documents: StateStore) -> FlowTriggers:
        """Read what is scheduled now.

        Raises:
            Retriable: the store does not answer.
        """
        return cls(settings=settings, scheduled=read_scheduled_topics(documents, settings.name).keys())

    def of(self, topic: str) -> TopicTrigger:
        """The trigger of a topic."""
        return TopicTrigger(self.settings.trigger_of(topic), SCHEDULE if topic in self.scheduled else MAPPING)
