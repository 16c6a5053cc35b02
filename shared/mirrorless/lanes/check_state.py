"""How far has each lane been checked, and does its remote partition stand still? One small document for each topic.

A lane at rest costs nothing: its notes say at which high watermark everything was in order, and while the remote
partition ends there, nobody has written to it and there is nothing to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.lane import FlowName
from mirrorless.ports.stores import StateStore

PREFIX: Final = "lanes/"

UNCLEAN: Final = -1
"""No high watermark: something was left to do."""


class LaneNotes(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of one lane."""

    clean_at: int = 0
    """The remote partition's high watermark at the last check that found everything in order; 0 as long as nobody has
    written to it."""
    generation: int = 0
    checked: int = 0
    """The upstream offset up to which the gaps of this generation are explained."""
    stable: int = 0
    """The remote partition's last stable offset, where it was behind its high watermark."""
    behind_since: int = 0
    """Since when it has stood there, ms since the epoch; 0 while it is not behind."""

    def is_clean(self, stable: int, high_watermark: int) -> bool:
        """Whether nothing has happened since the last check that found everything in order."""
        return high_watermark == stable == self.clean_at

    def watched(self, stable: int, high_watermark: int, *, now: int) -> LaneNotes:
        """The notes after one look at the remote partition."""
        if stable >= high_watermark:
            return replace(self, stable=0, behind_since=0)
        if self.behind_since and self.stable == stable:
            return self
        return replace(self, stable=stable, behind_since=now)

    def behind_for(self, *, now: int) -> int:
        """For how long the stable offset has not moved while it was behind, ms."""
        return now - self.behind_since if self.behind_since else 0


class TopicNotes(msgspec.Struct, frozen=True):
    """What is remembered of one source topic's lanes; the document `lanes/<topic>`."""

    lanes: dict[int, LaneNotes] = {}
    """By partition."""
    renewed_at: int = 0
    """When the heads of its lanes were last kept from expiring, ms since the epoch."""


def read_notes(documents: StateStore, flow: FlowName) -> dict[str, TopicNotes]:
    """The notes of every topic of a flow.

    Raises:
        Retriable: the store does not answer.
    """
    stored = documents.read(flow, PREFIX)
    return {key.removeprefix(PREFIX): msgspec.json.decode(text, type=TopicNotes) for key, text in stored.items()}


def write_notes(documents: StateStore, flow: FlowName, notes: Mapping[str, TopicNotes]) -> None:
    """Write the notes of these topics.

    Raises:
        Retriable: the store does not answer.
    """
    documents.write(flow, {PREFIX + topic: msgspec.json.encode(each) for topic, each in notes.items()})
