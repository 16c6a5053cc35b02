"""The topics of heartbeats, checkpoints and offset syncs, and the circuit breaker of their clusters.

A flow has two clusters, and one that does not answer must not delay the work on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.ports.kafka import Deadline, InternalTopics

COMPACTED: Final = {"cleanup.policy": "compact"}
"""As in MM2: their readers need the last record of each key."""

CALL_SECONDS: Final = 5.0
"""The time limit of one call."""

OPEN_MS: Final = 15_000
"""How long a cluster that did not answer is not called again."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class CircuitBreaker:
    """The calls of one cluster: after one that fails, the cluster is not called for `OPEN_MS`."""

    alias: str
    clock: Callable[[], int]
    """ms since the epoch."""
    _open_until: int = 0
    _error: str = ""

    def call(self, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Call, within `CALL_SECONDS`.

        Raises:
            Retriable: the cluster does not answer, or the breaker is open.
        """
        if self.clock() < self._open_until:
            raise Retriable(self._error, where=self.alias)
        try:
            return call(within(CALL_SECONDS, deadline))
        except (Retriable, ConfigurationError) as exc:
            self._open_until, self._error = self.clock() + OPEN_MS, exc.what
            if isinstance(exc, Retriable):
                raise
            # A secret that lacks a member, for one: it must not stop the work on the other cluster either.
            raise Retriable(exc.what, where=exc.where, hint=exc.hint) from exc


@dataclass(slots=True)
class EnsuredTopics:
    """The topics that exist already, so that an environment creates each once."""

    _topics: set[tuple[str, str]] = field(default_factory=set)

    def ensure(
        self, topics: InternalTopics, alias: str, topic: str, *, replication_factor: int, deadline: Deadline
    ) -> None:
        """Create a compacted topic of one partition on a cluster unless it exists.

        Raises:
            Retriable: the cluster does not answer, or refuses.
        """
        if (alias, topic) not in self._topics:
            topics.ensure_topic(topic, replication_factor=replication_factor, configs=COMPACTED, deadline=deadline)
            self._topics.add((alias, topic))

    def forget(self, alias: str, topic: str) -> None:
        """Check again next time: a write failed, so the topic may have been deleted."""
        self._topics.discard((alias, topic))


def within(seconds: float, deadline: Deadline) -> Deadline:
    """A deadline that is at most so many seconds from now."""
    margin = deadline() - seconds
    return deadline if margin <= 0 else lambda: deadline() - margin
