"""Journals in memory: the double that the contract suite holds to DynamoDB's behaviour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from mirrorless.chain.entry import Entry, EntryState, Journal
from mirrorless.clock import Deadline
from mirrorless.errors import LostRace


@dataclass(slots=True)
class MemoryJournals:
    """Implements `mirrorless.chain.store.Journals` in a dict."""

    entries: dict[tuple[Journal, int], Entry] = field(default_factory=dict)
    reads: int = 0
    """How often the store was read: what a warm event and an idle lane must not cost."""
    inserts: int = 0
    """How often an insert was tried."""

    def newest(self, after: Mapping[Journal, int], limit: int) -> Mapping[Journal, Sequence[Entry]]:
        """See `Journals.newest`."""
        self.reads += len(after)
        return {journal: self._behind(journal, number)[: -limit - 1 : -1] for journal, number in after.items()}

    def at_or_below(self, journal: Journal, number: int) -> Entry | None:
        """See `Journals.at_or_below`."""
        self.reads += 1
        found = [entry for entry in self.of(journal) if entry.number <= number]
        return found[-1] if found else None

    def after(self, journal: Journal, number: int, *, limit: int) -> list[Entry]:
        """See `Journals.after`."""
        self.reads += 1
        return self._behind(journal, number)[:limit]

    def read(self, journal: Journal, numbers: Iterable[int]) -> Mapping[int, Entry]:
        """See `Journals.read`."""
        self.reads += 1
        return {number: self.entries[journal, number] for number in numbers if (journal, number) in self.entries}

    def insert(self, entry: Entry, deadline: Deadline | None = None) -> Entry | None:
        """See `Journals.insert`."""
        self.inserts += 1
        # One step, so that rivals in threads cannot both find the number free.
        standing = self.entries.setdefault((entry.journal, entry.number), entry)
        if standing.attempt != entry.attempt:
            return standing
        if standing.state != entry.state:
            raise LostRace("another settled this attempt before its insert was answered", where=str(entry.journal))
        return None

    def insert_all(self, entries: Sequence[Entry]) -> Entry | None:
        """See `Journals.insert_all`."""
        self.inserts += 1
        taken = [(each, entry) for entry in entries if (each := self.entries.get((entry.journal, entry.number)))]
        rivals = [standing for standing, entry in taken if standing.attempt != entry.attempt]
        if taken and not rivals and len(taken) < len(entries):
            raise LostRace("a part of these entries stands there", where=str(entries[0].journal))
        if not taken:
            self.entries |= {(entry.journal, entry.number): entry for entry in entries}
        return rivals[0] if rivals else None

    def settle(self, entry: Entry, state: EntryState, expires_at: int, deadline: Deadline | None = None) -> bool:
        """See `Journals.settle`."""
        standing = self.entries.get((entry.journal, entry.number))
        if standing is None or standing.attempt != entry.attempt:
            return False
        if standing.open:
            self.entries[entry.journal, entry.number] = replace(standing.settled(state), expires_at=expires_at)
        return standing.state in {"prepared", state}

    def renew(self, journal: Journal, numbers: Iterable[int], expires_at: int) -> None:
        """See `Journals.renew`."""
        for number in numbers:
            standing = self.entries.get((journal, number))
            if standing is not None and standing.expires_at is not None and standing.expires_at < expires_at:
                self.entries[journal, number] = replace(standing, expires_at=expires_at)

    def of(self, journal: Journal) -> list[Entry]:
        """Every entry of a journal, in order."""
        return self._behind(journal, -1)

    def _behind(self, journal: Journal, number: int) -> list[Entry]:
        # Most reads are of an end that is known: numbers are compared first, and nothing is left to sort.
        found = [(at, entry) for (each, at), entry in self.entries.items() if at > number and each == journal]
        return [entry for _, entry in sorted(found, key=itemgetter(0))]

    def expire(self, now: int) -> None:
        """Remove what has expired by `now`, seconds since the epoch, as DynamoDB does some time after it."""
        for key, entry in list(self.entries.items()):
            if entry.expires_at is not None and entry.expires_at <= now:
                del self.entries[key]
