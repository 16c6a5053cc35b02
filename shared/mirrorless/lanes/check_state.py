"""The stored state of the lane check: one small document for each topic.

An idle lane costs nothing: its notes hold the high watermark of its last clean check, and while the remote partition
ends there, nothing was written to it and there is nothing to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import FlowName
from mirrorless.chain.run import NO_EPOCH
from mirrorless.ports.stores import StateStore

PREFIX: Final = "lanes/"

UNCLEAN: Final = -1
"""In place of a high watermark: the last check was not clean."""


RECENT_MS: Final = 3_600_000
"""How long a foreign record needs the operator. After that it is said, and nothing more."""

UNKNOWN: Final = -1
"""In place of a downstream offset."""


class LaneNotes(msgspec.Struct, frozen=True, array_like=True):
    """The check state of one lane."""

    clean_at: int = 0
    """The remote partition's high watermark at the last clean check; 0 for an empty partition."""
    generation: int = 0
    checked: int = 0
    """The upstream offset up to which the gaps of this generation are explained."""
    stable: int = 0
    """The remote partition's last stable offset, where it was behind its high watermark."""
    behind_since: int = 0
    """Since when it has not moved, ms since the epoch; 0 while it is not behind."""
    passed_over: int = 0
    """Rounds in a row that had no time for this lane."""
    epoch: int = NO_EPOCH
    """Of the source's leader when its log was last known to be what the chain describes."""
    claimed: int = UNKNOWN
    """The downstream offset behind the last one that a run claims, as far as the chain was checked."""
    foreign: int = UNKNOWN
    """The downstream offset of a record of this generation's time that this flow has not written."""
    foreign_at: int = 0
    """When one was last seen, ms since the epoch."""

    def foreign_lately(self, *, now: int) -> bool:
        """Whether a foreign record was seen so lately that it needs the operator."""
        return self.foreign != UNKNOWN and now - self.foreign_at < RECENT_MS

    def is_clean(self, stable: int, high_watermark: int) -> bool:
        """Whether nothing was written since the last clean check."""
        return high_watermark == stable == self.clean_at

    def updated(self, stable: int, high_watermark: int, *, now: int) -> LaneNotes:
        """The notes after one read of the remote partition's ends."""
        if stable >= high_watermark:
            return replace(self, stable=0, behind_since=0)
        if self.behind_since and self.stable == stable:
            return self
        return replace(self, stable=stable, behind_since=now)

    def behind_for(self, *, now: int) -> int:
        """How long the stable offset has been behind without moving, ms."""
        return now - self.behind_since if self.behind_since else 0


class TopicNotes(msgspec.Struct, frozen=True):
    """The check state of one source topic's lanes; the document `lanes/<topic>`."""

    lanes: dict[int, LaneNotes] = {}
    """By partition."""
    renewed_at: int = 0
    """When the heads of its lanes were last renewed, ms since the epoch."""


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
