"""What do the scheduled functions ask of a cluster's own small topics? Heartbeats, checkpoints, offset syncs.

And how long is a cluster left alone that did not answer? A flow has two, and the one that is gone must not keep the
work for the other waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.ports.kafka import Deadline, InternalTopics

COMPACTED: Final = {"cleanup.policy": "compact"}
"""Their readers want the last record of each key, as in MM2."""

ANSWER_SECONDS: Final = 5.0
"""What one cluster may take of a round."""

ALONE_MS: Final = 15_000
"""How long a cluster that did not answer is not asked again, where others wait for the same round."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Patience:
    """One cluster of a flow, asked in turns: after a silence it is left alone for a while."""

    alias: str
    clock: Callable[[], int]
    """ms since the epoch."""
    _silent_until: int = 0
    _why: str = ""

    def ask(self, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Call, within what one cluster may take of a round.

        Raises:
            Retriable: the cluster does not answer, or did not a moment ago.
        """
        if self.clock() < self._silent_until:
            raise Retriable(self._why, where=self.alias)
        try:
            return call(within(ANSWER_SECONDS, deadline))
        except (Retriable, ConfigurationError) as exc:
            self._silent_until, self._why = self.clock() + ALONE_MS, exc.what
            if isinstance(exc, Retriable):
                raise
            # A secret that lacks a member, for one: for the work on the other side it is a silence like any other.
            raise Retriable(exc.what, where=exc.where, hint=exc.hint) from exc


@dataclass(slots=True)
class Ensured:
    """The topics that are known to be there, so that an environment asks for each once."""

    _topics: set[tuple[str, str]] = field(default_factory=set)

    def ensure(
        self, topics: InternalTopics, alias: str, topic: str, *, replication_factor: int, deadline: Deadline
    ) -> None:
        """Create a compacted topic of one partition on a cluster unless it is there.

        Raises:
            Retriable: the cluster does not answer, or refuses.
        """
        if (alias, topic) not in self._topics:
            topics.ensure_topic(topic, replication_factor=replication_factor, configs=COMPACTED, deadline=deadline)
            self._topics.add((alias, topic))

    def forget(self, alias: str, topic: str) -> None:
        """Ask again: what is written there fails, so perhaps somebody deleted it."""
        self._topics.discard((alias, topic))


def within(seconds: float, deadline: Deadline) -> Deadline:
    """A deadline that is at most so many seconds from now."""
    margin = deadline() - seconds
    return deadline if margin <= 0 else lambda: deadline() - margin
