"""The stored documents of checkpoint rounds: one for each group and direction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, document_key
from mirrorless.groups.ownership import ClaimedOffsets, claim, new_document, other
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.ports.stores import StateStore

RELOAD_MS: Final = 60_000
"""After this long everything is read again: an operator may have reset a lane, another run may have written."""

KEPT_MS: Final = 7 * 86_400_000
"""How long a document is kept after its group has gone: as long as Kafka keeps the
offsets of a group without members."""


@dataclass(slots=True, kw_only=True)
class CheckpointStore:
    """The documents of one flow, cached. One run at a time writes them, under its lease."""

    flow: FlowName
    documents: StateStore
    clock: Callable[[], int]
    """ms since the epoch."""
    watches_claims: bool = False
    """Whether each `load` looks for claims: one may end what a group waits for."""
    _stored: dict[str, GroupCheckpoints] = field(default_factory=dict)
    _loaded_at: int = -RELOAD_MS

    def load(self) -> bool:
        """Read the documents, unless they were read within `RELOAD_MS` and there is no claim to look for.

        Returns:
            whether they were read.

        Raises:
            Retriable: the store does not answer.
        """
        now = self.clock()
        claimed = self.watches_claims and bool(self.documents.read(self.flow, "claim/"))
        if now < self._loaded_at + RELOAD_MS and not claimed:
            return False
        stored = self.documents.read(self.flow, "forward/") | self.documents.read(self.flow, "reverse/")
        self._stored = {key: msgspec.json.decode(text, type=GroupCheckpoints) for key, text in stored.items()}
        self._take_over_claims()
        self._loaded_at = now
        return True

    def expire(self) -> None:
        """Let the next `load` read."""
        self._loaded_at = -RELOAD_MS

    def _take_over_claims(self) -> None:
        """1. Write the documents with the claims. 2. Delete the claims: taking one over twice is harmless."""
        claims = self.documents.read(self.flow, "claim/")
        for text in claims.values():
            claimed = msgspec.json.decode(text, type=ClaimedOffsets)
            there, back = (self.expected(each, claimed.group) for each in (claimed.direction, other(claimed.direction)))
            self.write({document.key: document for document in claim(claimed, self.flow, there, back)})
        for key in claims:
            self.documents.delete(self.flow, key)

    def expected(self, direction: Direction, group: str) -> GroupCheckpoints:
        """The document of a group; an empty one for none."""
        return self.get(direction, group) or new_document(direction, group, self.clock())

    def get(self, direction: Direction, group: str) -> GroupCheckpoints | None:
        """The document of a group; None for none."""
        return self._stored.get(document_key(direction, group))

    def commits_on_source(self) -> dict[str, dict[Lane, OffsetAndMetadata]]:
        """What each group had committed on the source at the last successful read."""
        return {
            document.group: {
                lane: OffsetAndMetadata(offset.upstream, offset.metadata)
                for lane, offset in document.lanes(self.flow)
                if offset.upstream is not None
            }
            for document in self._stored.values()
            if document.direction == "forward"
        }

    def write(self, documents: Mapping[str, GroupCheckpoints]) -> int:
        """Write the documents that have changed. Returns how many.

        Raises:
            Retriable: the store does not answer.
        """
        changed = {
            key: msgspec.json.encode(document)
            for key, document in documents.items()
            if not _same(self._stored.get(key), document)
        }
        if changed:
            self.documents.write(self.flow, changed)
        self._stored |= {key: documents[key] for key in changed}
        return len(changed)

    def drop_others(self, current: Collection[str], directions: Collection[Direction]) -> None:
        """Delete the documents of groups gone for longer than `KEPT_MS`, in directions whose groups could be read.

        Raises:
            Retriable: the store does not answer.
        """
        for key, document in list(self._stored.items()):
            gone = key not in current and document.direction in directions
            if gone and self.clock() - document.at > KEPT_MS:
                self.documents.delete(self.flow, key)
                del self._stored[key]


def _same(one: GroupCheckpoints | None, other: GroupCheckpoints) -> bool:
    """Whether two documents are equal but for their time."""
    return one is not None and msgspec.structs.replace(one, at=other.at) == other
