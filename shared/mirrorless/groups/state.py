"""What does a round of checkpoints know of the rounds before it? One document a group and direction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.groups.checkpoints import Direction, GroupCheckpoints
from mirrorless.lane import FlowName, Lane
from mirrorless.ports.groups import OffsetAndMetadata
from mirrorless.ports.stores import StateStore

REMEMBER_MS: Final = 60_000
"""After this long everything is read anew: an operator may have reset a lane, another run may have written."""

KEPT_MS: Final = 7 * 86_400_000
"""How long the document of a group outlives the group: as long as Kafka keeps the offsets of one without members."""


@dataclass(slots=True, kw_only=True)
class CheckpointMemory:
    """The documents of one flow. One run at a time has them, by its lease."""

    flow: FlowName
    documents: StateStore
    clock: Callable[[], int]
    """ms since the epoch."""
    _known: dict[str, GroupCheckpoints] = field(default_factory=dict)
    _loaded_at: int = -REMEMBER_MS

    def load(self) -> bool:
        """Read the documents, unless they were read a moment ago.

        Returns:
            whether they were read.

        Raises:
            Retriable: the store does not answer.
        """
        now = self.clock()
        if now < self._loaded_at + REMEMBER_MS:
            return False
        stored = self.documents.read(self.flow, "forward/") | self.documents.read(self.flow, "reverse/")
        self._known = {key: msgspec.json.decode(text, type=GroupCheckpoints) for key, text in stored.items()}
        self._loaded_at = now
        return True

    def get(self, direction: Direction, group: str) -> GroupCheckpoints | None:
        """What is known of a group."""
        return self._known.get(f"{direction}/{group}")

    def commits_on_source(self) -> dict[str, dict[Lane, OffsetAndMetadata]]:
        """What each group had committed on the source when it was read last."""
        return {
            document.group: {
                lane: OffsetAndMetadata(offset.upstream, offset.metadata)
                for lane, offset in document.lanes(self.flow)
                if offset.upstream is not None
            }
            for document in self._known.values()
            if document.direction == "forward"
        }

    def write(self, documents: Mapping[str, GroupCheckpoints]) -> None:
        """Write what has changed.

        Raises:
            Retriable: the store does not answer.
        """
        news = {
            key: msgspec.json.encode(document)
            for key, document in documents.items()
            if not _same(self._known.get(key), document)
        }
        if news:
            self.documents.write(self.flow, news)
        self._known |= {key: documents[key] for key in news}

    def drop_others(self, current: Collection[str], directions: Collection[Direction]) -> None:
        """Delete the documents of groups that have been gone for long, in directions whose groups could be read.

        Raises:
            Retriable: the store does not answer.
        """
        for key, document in list(self._known.items()):
            gone = key not in current and document.direction in directions
            if gone and self.clock() - document.at > KEPT_MS:
                self.documents.delete(self.flow, key)
                del self._known[key]


def _same(one: GroupCheckpoints | None, other: GroupCheckpoints) -> bool:
    """Whether two documents say the same, whenever they said it."""
    return one is not None and msgspec.structs.replace(one, at=other.at) == other
