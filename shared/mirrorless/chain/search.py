"""Reads of journals: entries by number, and the link of a lane at a position, found by bisecting numbers.

Every entry shows the place of each lane's newest link as of its number, and places only grow. So whichever entry is
read, it tells on which side of it a position lies, for every lane of the journal. Numbers may have holes where entries
have expired.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mirrorless.chain.entry import NO_ENTRY, Entry, Journal, Place
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.chain.store import Journals

PAGE: Final = 100
"""Entries of one read of a walk along a journal, at most."""

SMALLEST_PAGE: Final = 8

KEPT: Final = 200_000
"""Spans of settled entries that are kept, at some 130 bytes each; an entry counts as eight more, and as its links."""

MapPosition = tuple[int, int]
"""Generation and upstream offset."""


@dataclass(slots=True)
class JournalSearch:
    """Reads of journals that bring no settled entry twice. Threads may share it."""

    journals: Journals
    _settled: dict[tuple[Journal, int], Entry] = field(default_factory=dict)
    _near: dict[tuple[Journal, int], Place] = field(default_factory=dict)
    """Where a lane's last search ended: the next one is likely to end near it."""
    _weight: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, entry: Entry) -> Entry:
        """Keep an entry that does not change any more, and drop those that came first where it gets too much."""
        if entry.open:
            return entry
        with self._lock:
            key = entry.journal, entry.number
            self._weight += _weight(entry) - (_weight(self._settled.pop(key)) if key in self._settled else 0)
            self._settled[key] = entry
            while self._weight > KEPT and len(self._settled) > 1:
                self._weight -= _weight(self._settled.pop(next(iter(self._settled))))
        return entry

    def newest(self, after: Mapping[Journal, int], limit: int) -> Mapping[Journal, Sequence[Entry]]:
        """See `Journals.newest`."""
        found = self.journals.newest(after, limit) if after else {}
        for entries in found.values():
            for entry in entries:
                self.keep(entry)
        return found

    def read(self, journal: Journal, numbers: Iterable[int]) -> dict[int, Entry]:
        """See `Journals.read`."""
        wanted = set(numbers)
        found = {number: entry for number in wanted if (entry := self._settled.get((journal, number))) is not None}
        if missing := wanted - found.keys():
            found |= {number: self.keep(entry) for number, entry in self.journals.read(journal, missing).items()}
        return found

    def after(self, journal: Journal, number: int, *, limit: int) -> list[Entry]:
        """Entries with a greater number, in order: those that are kept, or as many as `limit` from the store."""
        kept: list[Entry] = []
        while len(kept) < limit and (entry := self._settled.get((journal, number + 1 + len(kept)))) is not None:
            kept.append(entry)
        return kept or [self.keep(entry) for entry in self.journals.after(journal, number, limit=limit)]

    def number(self, journal: Journal, partition: int, newest: Place, target: MapPosition) -> int | None:
        """The number of the entry with a lane's last link at or before a target; the link may be withdrawn.

        Args:
            journal: the lane's.
            partition: the lane's.
            newest: its newest place.
            target: the generation and the upstream offset.

        Returns:
            None where no such link is left. Its entry may have expired all the same.
        """
        if newest[:2] <= target:
            return newest.number
        near = self._near.get((journal, partition))
        if near is not None and near[:2] <= target and near.number < newest.number:
            bounds = self._gallop(journal, partition, near, newest.number, target)
        else:
            bounds = self._gallop_back(journal, partition, newest.number, target)
        low, high, found = bounds
        while high - low > 1:
            middle = (low + high) // 2
            entry = self._at_or_below(journal, middle)
            place = entry.place(partition) if entry is not None and entry.number > low else None
            if place is None:
                low = middle
            elif place[:2] <= target:
                low, found = middle, place
            else:
                high = place.number
        if found is None:
            return None
        self._near[journal, partition] = found
        return found.number

    def links_after(
        self, journal: Journal, partition: int, newest: Place, target: MapPosition, limit: int
    ) -> list[Link]:
        """A lane's links of the target's generation behind the target, in order, up to its newest place.

        What was withdrawn is left out, and so is a run in doubt over which the lane was reset. Where such a run was
        confirmed later, both are there, and never on two pages, so `limit` may be exceeded by one.
        """
        links: list[Link] = []
        for entry in self._entries_after(journal, partition, newest, target):
            link = entry.links[partition]
            if links and len(links) >= limit and link.position != links[-1].position:
                break
            if (link.generation, link.position) <= target:
                continue
            if link.generation > target[0]:
                break
            if isinstance(link, Reset) and links and _given_up(links[-1], link):
                links.pop()
            links.append(link)
            self._near[journal, partition] = Place(link.generation, link.position, entry.number)
            reset_may_follow = newest.generation > link.generation or newest.position == link.position
            if len(links) >= limit and not reset_may_follow:
                break
        return links

    def _entries_after(self, journal: Journal, partition: int, newest: Place, target: MapPosition) -> Iterator[Entry]:
        """The entries with a lane's links behind a target, and perhaps one before it, without what was withdrawn."""
        near = self._near.get((journal, partition))
        if near is None or near[:2] != target:
            found = self.number(journal, partition, newest, target)
            number = NO_ENTRY if found is None else found
        else:
            number = near.number
        size = SMALLEST_PAGE
        while number < newest.number:
            page = self.after(journal, number, limit=size)
            if not page:
                return
            touched = [entry for entry in page if partition in entry.links and entry.number <= newest.number]
            yield from (entry for entry in touched if entry.state != "withdrawn")
            number, size = page[-1].number, min(PAGE, 4 * size)
            if not touched and number < newest.number:
                number = self._next(journal, partition, page[-1], newest.number) - 1

    def last_with_records(self, journal: Journal, partition: int, number: int) -> int:
        """The entry at or below one of a lane's links with its last committed run that has records, or with a reset."""
        for entry in self.back(journal, partition, number):
            link = entry.links[partition]
            if entry.state == "committed" and (isinstance(link, Reset) or link.spans):
                return entry.number
        return number

    def back(self, journal: Journal, partition: int, number: int | None) -> Iterator[Entry]:
        """The entries of a lane's links from one of them back, withdrawn ones too, until one is gone."""
        while number is not None and number != NO_ENTRY:
            entry = self.read(journal, {number}).get(number)
            if entry is None:
                return
            yield entry
            number = entry.previous[partition]

    def newest_runs(self, journal: Journal, newest: Mapping[int, int], limit: int) -> dict[int, list[Run]]:
        """The newest runs of lanes, the newest first: up to `limit` each, and none before a lane's last reset.

        The lanes step back together, so that their entries come in as many reads as one of them needs.

        Args:
            journal: theirs.
            newest: by partition, the number of the entry with the lane's newest link.
            limit: of a lane's runs.
        """
        runs: dict[int, list[Run]] = {partition: [] for partition in newest}
        numbers = dict(newest)
        while numbers:
            entries = self.read(journal, numbers.values())
            before: dict[int, int] = {}
            for partition, number in numbers.items():
                entry = entries.get(number)
                link = entry.links[partition] if entry is not None else None
                if entry is None or isinstance(link, Reset):
                    continue
                if link is not None and entry.state != "withdrawn":
                    runs[partition].append(link)
                if len(runs[partition]) < limit and entry.previous[partition] != NO_ENTRY:
                    before[partition] = entry.previous[partition]
            numbers = before
        return runs

    def _gallop(
        self, journal: Journal, partition: int, near: Place, number: int, target: MapPosition
    ) -> tuple[int, int, Place | None]:
        """Step ahead from a link at or before the target, each step twice as far; see `_gallop_back`."""
        low, found, step = near.number, near, 1
        while (probe := low + step) < number:
            entry = self._at_or_below(journal, probe)
            place = entry.place(partition) if entry is not None and entry.number > low else None
            if place is not None and place[:2] > target:
                return low, place.number, found
            low, found, step = probe, place or found, 2 * step
        return low, number, found

    def _gallop_back(
        self, journal: Journal, partition: int, number: int, target: MapPosition
    ) -> tuple[int, int, Place | None]:
        """Step back from a link behind the target, each step twice as far.

        Returns:
            a number at which the lane's newest link is none behind the target; one of a link behind it; and the lane's
            newest link as of the first.
        """
        high, step = number, 1
        while (probe := high - step) >= 0:
            entry = self._at_or_below(journal, probe)
            place = entry.place(partition) if entry is not None else None
            if place is None:
                return probe, high, None
            if place[:2] <= target:
                return probe, high, place
            high, step = place.number, 2 * step
        return NO_ENTRY, high, None

    def _next(self, journal: Journal, partition: int, entry: Entry, newest: int) -> int:
        """The number of a lane's next link after an entry, where its newest link is in a later one."""
        place, low, high, step = entry.place(partition), entry.number, newest, 1
        last = self.read(journal, {newest}).get(newest)
        if last is not None and last.previous.get(partition, NO_ENTRY) <= low:
            return newest
        while high - low > 1:
            probe = min(low + step, (low + high) // 2) if step else (low + high) // 2
            found = self._at_or_below(journal, probe)
            if found is None or found.number <= low or found.place(partition) == place:
                low, step = probe, 2 * step
            else:
                there = found.place(partition)
                high, step = (there.number if there is not None else found.number), 0
        return high

    def _at_or_below(self, journal: Journal, number: int) -> Entry | None:
        kept = self._settled.get((journal, number))
        if kept is not None:
            return kept
        entry = self.journals.at_or_below(journal, number)
        return self.keep(entry) if entry is not None else None


def _given_up(link: Link, reset: Reset) -> bool:
    """Whether a reset passed over this run in doubt."""
    return isinstance(link, Run) and link.state == "prepared" and link.position == reset.position


def _weight(entry: Entry) -> int:
    return 8 + sum(1 + len(link.spans) if isinstance(link, Run) else 1 for link in entry.links.values())
