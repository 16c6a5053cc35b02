"""The ends of journals as they were read or written last, and the heads of lanes that they show.

An end is only a memory: others may have added entries since. It may also be too old to be believed, because nothing
renewed it and the entries above it have expired; then its lanes' heads are marked as expired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mirrorless.chain.entry import NO_ENTRY, Entry, Journal, Place
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, head_of
from mirrorless.chain.search import JournalSearch

NEWEST: Final = 8
"""Entries that one read of a journal's heads brings: those of its busy lanes are among them."""

ADDED: Final = 100
"""Entries that a later read brings: whoever follows a journal needs most of them."""

REMEMBERED_SECONDS: Final = 86_400.0
"""For how long an end is remembered. Its number is free again once its entry and all above it have expired, which takes
many times as long."""

EXPIRY_MARGIN_SECONDS: Final = 3_600
"""Before its expiry the newest entry of a journal is no longer believed: clocks differ, and the entries above it,
settled by other clocks, may be gone already."""


@dataclass(slots=True)
class JournalEnd:
    """The end of one journal."""

    number: int
    places: Mapping[int, Place]
    at: float
    """When it was so, seconds since the epoch."""
    expires_at: int | None
    kept_until: int
    """Seconds since the epoch: before which no entry behind this end may expire."""
    shared: bool
    """Whether other writers were met lately."""

    @property
    def open(self) -> bool:
        """Whether its entry was not settled yet."""
        return self.expires_at is None

    def place(self, partition: int) -> Place | None:
        """The newest link of a lane."""
        return self.places.get(partition)


class CurrentLinks(NamedTuple):
    """The entries of lanes' newest links that were not withdrawn, by partition, and the lanes whose entry is gone."""

    entries: Mapping[int, Entry]
    gone: frozenset[int]


@dataclass(slots=True, kw_only=True)
class JournalEnds:
    """The ends of all journals that were met here."""

    search: JournalSearch
    clock: Callable[[], float]
    """Seconds since the epoch."""
    _ends: dict[Journal, JournalEnd] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, journal: Journal) -> JournalEnd | None:
        """An end, however old."""
        return self._ends.get(journal)

    def trusted(self, journal: Journal) -> JournalEnd | None:
        """An end that is young enough to be built upon; it may be stale all the same."""
        end = self._ends.get(journal)
        return end if end is not None and self.clock() - end.at <= REMEMBERED_SECONDS else None

    def expired(self, end: JournalEnd) -> bool:
        """Whether entries behind this end may have expired before it."""
        return end.expires_at is not None and end.expires_at < self.clock() + EXPIRY_MARGIN_SECONDS

    def remember(self, newest: Entry, *, shared: bool = False) -> JournalEnd:
        """Take an entry for the newest of its journal."""
        before = self._ends.get(newest.journal)
        kept_until = max(newest.expires_at or 0, before.kept_until if before is not None else 0)
        end = JournalEnd(newest.number, newest.places(), self.clock(), newest.expires_at, kept_until, shared)
        self._ends[newest.journal] = end
        return end

    def read(self, journals: Iterable[Journal]) -> dict[Journal, dict[int, Entry]]:
        """Read ends anew; the entries that this brought, by number, so that open ones need not be read again.

        Of an end that is remembered, only what was added behind it is read, and so each settled entry once. One that
        was open is read again with what was added.
        """
        wanted = list(dict.fromkeys(journals))
        before = {journal: self.get(journal) for journal in wanted}
        known = {journal: end for journal in wanted if (end := self.trusted(journal)) and not self.expired(end)}
        added = self.search.newest({journal: end.number - end.open for journal, end in known.items()}, ADDED)
        for journal, newest in added.items():
            if not newest and known[journal].open:
                del known[journal]  # its entry is gone, which no expiry does
        found = {**added, **self.search.newest({each: NO_ENTRY for each in wanted if each not in known}, NEWEST)}
        for journal, newest in found.items():
            with self._lock:
                now = self.get(journal)
                if now is not None and now is not before[journal] and not (newest and newest[0].number >= now.number):
                    continue  # another thread has read on meanwhile
                if newest:
                    end = self.remember(newest[0])
                    end.kept_until = max(end.kept_until, *(entry.expires_at or 0 for entry in newest))
                elif journal in known:
                    known[journal].at = self.clock()
                else:
                    self._ends.pop(journal, None)
        return {journal: {entry.number: entry for entry in newest} for journal, newest in found.items()}

    def read_added(self, journal: Journal, end: JournalEnd) -> None:
        """Read an end again. The newest entry that was added shows what all of them changed."""
        (newest,) = self.search.newest({journal: end.number}, 1).values()
        end.at = self.clock()
        if newest:
            self.remember(newest[0], shared=True)

    def current(
        self, journal: Journal, partitions: Iterable[int], page: Mapping[int, Entry] | None = None
    ) -> CurrentLinks:
        """What counts of each lane as of the end.

        Args:
            journal: theirs.
            partitions: the lanes.
            page: entries that were just read.
        """
        end, page = self._ends.get(journal), page or {}
        if end is None:
            return CurrentLinks({}, frozenset())
        at = {partition: end.places[partition].number for partition in partitions if partition in end.places}
        entries: dict[int, Entry] = {}
        gone: set[int] = set()
        while at:
            found = {**page, **self.search.read(journal, set(at.values()) - page.keys())}
            following: dict[int, int] = {}
            for partition, number in at.items():
                entry = found.get(number)
                if entry is None:
                    gone.add(partition)
                elif entry.state != "withdrawn":
                    entries[partition] = entry
                elif entry.previous[partition] != NO_ENTRY:
                    following[partition] = entry.previous[partition]
            at = following
        return CurrentLinks(entries, frozenset(gone))

    def head(self, journal: Journal, partition: int, current: CurrentLinks) -> Head:
        """The head of a lane, believed or not."""
        if partition in current.entries:
            return head_of(current.entries[partition].links[partition])
        end = self._ends.get(journal)
        place = end.place(partition) if end is not None else None
        # Its first link was withdrawn, or its entry is gone: then the lane goes on from what is known of it.
        return NEW_LANE if place is None else Head(generation=place.generation, position=place.position)

    def heads(self, journal: Journal, partitions: Iterable[int], current: CurrentLinks) -> dict[Lane, Head]:
        """The heads of lanes, those marked that are not to be believed."""
        end = self._ends.get(journal)
        late = end is not None and self.expired(end)
        heads: dict[Lane, Head] = {}
        for partition in partitions:
            head = self.head(journal, partition, current)
            expired = partition in current.gone or (late and head != NEW_LANE)
            heads[journal.lane(partition)] = replace(head, expired=True) if expired else head
        return heads
