"""Records that have come and wait for their transaction: each journal is written once in a window, in turn. Pure.

Every journal has a window of its own, which begins with its last transaction. Journals that came into one transaction
are due together from then on, and those of the next one a little later, so transactions spread over the window by
themselves: a record waits for one window and for its own transaction, not for those of all lanes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from mirrorless.chain.lane import JOURNAL_LANES
from mirrorless.copy.shards import LANES_OF_TRANSACTION
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals
from mirrorless.protocol.outgoing import LaneContent, is_raw
from mirrorless.protocol.portions import TransactionBytes
from mirrorless.records.record import Record

BATCH_RECORDS: Final = 20_000
"""Of what waits for its transactions, or so many bytes as one may have, whichever comes first: then journals are
written before their windows end."""

EARLY: Final = 1 / 8
"""Of a window that a journal may be early to share a transaction with one that is due: fewer, fuller transactions."""

_Journal = tuple[str, int]


@dataclass(slots=True)
class _Waiting:
    """One journal that something has come of."""

    due: float
    """Monotonic seconds."""
    places: set[TopicPartition] = field(default_factory=set)


@dataclass(slots=True)
class Gathering:
    """What has come of a shard's lanes and is not yet written."""

    window_seconds: float
    """Infinite where nothing waits for its turn: then all that has come is taken together."""
    size: TransactionBytes = field(default_factory=TransactionBytes)
    lanes: int = 1
    """Of which each may have `BATCH_RECORDS`, where lanes are few."""
    cap: int | None = None
    """Bytes that may be written at once, where there is a cap."""
    come: Arrivals = field(default_factory=Arrivals)
    due_at: float = inf
    """When the first journal is due, monotonic seconds; infinite where nothing waits."""
    _waiting: dict[_Journal, _Waiting] = field(default_factory=dict)
    _records: int = 0
    _written_at: dict[_Journal, float] = field(default_factory=dict)

    @property
    def room(self) -> tuple[int, int]:
        """Records and bytes that may come until journals are written early; none where either is zero."""
        most = self.size.most if self.cap is None else min(self.cap, self.size.most)
        return max(0, BATCH_RECORDS * self.lanes - self._records), max(0, most - self.come.bytes)

    @property
    def has_news(self) -> bool:
        """Whether something came of lanes of which no record waits: the end of their logs, or trouble."""
        return bool((self.come.ended.keys() | _troubled(self.come)) - self.come.records.keys())

    @property
    def is_full(self) -> bool:
        """Whether journals are due before their windows end."""
        return min(self.room) == 0

    def add(self, more: Arrivals) -> None:
        """Join what came. What is wrong with a lane's log waits until its records are written, which is at once."""
        for place, content in more.records.items():
            self._wait(place, self._due(place))
            self._records += len(content)
        self.come.add(more)
        for place in _troubled(more) & self.come.records.keys():
            self._wait(place, -inf)

    def take(self, now: float, *, early: bool = False) -> Arrivals:
        """What is due, for one transaction; and the ends and troubles of lanes of which no record waits.

        Args:
            now: monotonic seconds.
            early: whether not to wait for the ends of windows.
        """
        taken: set[TopicPartition] = set()
        limit = inf if early or self.is_full or self.window_seconds == inf else now
        for journal, waiting in sorted(self._waiting.items(), key=lambda each: each[1].due):
            shared = 0.0 if not taken else self.window_seconds * EARLY
            if waiting.due > limit + shared or (taken and len(taken) + len(waiting.places) > LANES_OF_TRANSACTION):
                break
            taken |= waiting.places
            self._written_at[journal] = now
            del self._waiting[journal]
        return self._part(taken)

    def drop(self, places: Iterable[TopicPartition]) -> None:
        """Forget what has come of lanes that are read no more, or are to be read anew."""
        for place, content in self.come.without(set(places)).records.items():
            self._records -= len(content)
            self.come.bytes -= _bytes(content)
            waiting = self._waiting[_journal(place)]
            waiting.places.discard(place)
            if not waiting.places:
                del self._waiting[_journal(place)]
        self._look()

    def clear(self) -> None:
        """Forget all that has come."""
        self.come, self._records = Arrivals(), 0
        self._waiting.clear()
        self._look()

    def _due(self, place: TopicPartition) -> float:
        if self.window_seconds == inf:
            return inf
        return self._written_at.get(_journal(place), -inf) + self.window_seconds

    def _wait(self, place: TopicPartition, due: float) -> None:
        waiting = self._waiting.setdefault(_journal(place), _Waiting(due))
        waiting.places.add(place)
        waiting.due = min(waiting.due, due)
        self.due_at = min(self.due_at, waiting.due)

    def _look(self) -> None:
        self.due_at = min((each.due for each in self._waiting.values()), default=inf)

    def _part(self, places: set[TopicPartition]) -> Arrivals:
        """What has come of some lanes, and of all of which no record waits. The rest goes on waiting."""
        found, left = self.come, self.come.records.keys() - places
        self.come = found.without(left)
        if left:
            written = sum(map(_bytes, found.records.values()))
            found.bytes, self.come.bytes = written, found.bytes - written
        self._records -= sum(map(len, found.records.values()))
        self._look()
        return found


def _journal(place: TopicPartition) -> _Journal:
    return place[0], place[1] // JOURNAL_LANES


def _troubled(come: Arrivals) -> set[TopicPartition]:
    """Lanes whose log cannot be read on."""
    return come.out_of_range | come.truncated.keys() | come.unreadable.keys()


def _bytes(content: LaneContent) -> int:
    """As the log counts them: of records their values."""
    if is_raw(content):
        return sum(batch.size for batch in content)
    return sum(len(record.value or b"") for record in content if isinstance(record, Record))
