"""Mappings that Lambda refused to create: remembered, and tried again after ever longer pauses.

What is refused is hardly taken a minute later, and each attempt is one of the few control calls that an account has. A
request that differs from the refused one is tried at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import msgspec

from mirrorless.lane import FlowName
from mirrorless.ports.stores import StateStore

DOCUMENT: Final = "mapping-refusals"
"""The key of the document."""

LONGEST_MINUTES: Final = 60
"""Between two attempts, at most."""

_LONGEST_REASON: Final = 300


class MappingRefusal(msgspec.Struct, frozen=True):
    """The last refusal of one topic's mapping."""

    request: str
    """Digest of the refused request."""
    times: int
    """How often it was refused in a row."""
    at: int
    """ms since the epoch."""
    why: str

    @property
    def again_at(self) -> int:
        """When it is tried again, ms since the epoch."""
        return self.at + min(LONGEST_MINUTES, 1 << min(self.times - 1, 10)) * 60_000


@dataclass(slots=True)
class MappingRefusals:
    """The refusals of one flow, from the document that they are kept in.

    Attributes:
        flow: the flow.
        documents: where they are kept.
        clock: ms since the epoch.
    """

    flow: FlowName
    documents: StateStore
    clock: Callable[[], int]
    _known: dict[str, MappingRefusal] = field(default_factory=dict)
    _kept: dict[str, MappingRefusal] = field(default_factory=dict)

    def read(self) -> None:
        """Read what earlier rounds have kept. Raises Retriable when the store does not answer."""
        text = self.documents.read(self.flow, DOCUMENT).get(DOCUMENT)
        self._known = msgspec.json.decode(text, type=dict[str, MappingRefusal]) if text else {}
        self._kept = dict(self._known)

    def waits(self, topic: str, request: dict[str, Any]) -> bool:
        """Whether a request was refused, and its next attempt is not due."""
        known = self._known.get(topic)
        return known is not None and known.request == _digest(request) and self.clock() < known.again_at

    def add(self, topic: str, request: dict[str, Any], why: str) -> None:
        """Remember a refusal."""
        known, digest = self._known.get(topic), _digest(request)
        times = known.times if known is not None and known.request == digest else 0
        self._known[topic] = MappingRefusal(request=digest, times=times + 1, at=self.clock(), why=why[:_LONGEST_REASON])

    def keep(self, wanted: Collection[str]) -> None:
        """Keep the refusals of these topics, whose mappings are still wanted, and store what has changed."""
        self._known = {topic: each for topic, each in self._known.items() if topic in wanted}
        if self._known != self._kept:
            self.documents.write(self.flow, {DOCUMENT: msgspec.json.encode(self._known)})

    def sentences(self, topics: Collection[str]) -> Iterator[str]:
        """What an operator reads about topics that wait."""
        for topic in sorted(topics):
            known = self._known[topic]
            minutes = max(1, -(-(known.again_at - self.clock()) // 60_000))
            often = "once" if known.times == 1 else f"{known.times} times"
            yield (
                f"{self.flow} {topic}: its mapping was refused {often}, and is tried again in {minutes} min, or at "
                f"once when the flow's options change: {known.why}"
            )


def _digest(request: dict[str, Any]) -> str:
    return sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:16]
