"""The chains of lanes, kept in journals.

An insert takes the number after the newest entry that is remembered. Where that number is taken, what was added is
read: entries that touch none of the run's lanes are no rivals, and the next number is tried while the transaction is
still open; another link of one of its lanes is a race that is lost.

What is remembered of the end of a journal may be stale, and then costs an insert that fails. Settled entries never
change, so they are kept; an open one is read again whenever its state matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mirrorless.chain.ends import JournalEnd, JournalEnds
from mirrorless.chain.entry import NO_ENTRY, Entry, EntryState, Journal, Place
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.chain.search import JournalSearch
from mirrorless.chain.store import TOGETHER, Journals
from mirrorless.clock import Deadline
from mirrorless.errors import ChainBroken, LostRace, Retriable

Each = Callable[[Callable[[Any], Any], list[Any]], list[Any]]
"""A call, and the items to make it for; returns the results in the order of the items."""

COLLISIONS: Final = 3
"""Inserts that fail in a row before what was added is read again."""

SPANS_TOGETHER: Final = 200_000
"""Of entries that are inserted together, at up to 15 bytes each: a transaction of DynamoDB's takes 4 MB."""

IN_DOUBT: Final = 1_000
"""Entries in doubt that are remembered, at most."""


@dataclass(slots=True, kw_only=True)
class JournalChains:
    """Implements `mirrorless.ports.stores.Chains`."""

    journals: Journals
    retention_seconds: int = 30 * 86_400
    """For which an entry is kept from its time on; longer where the one below is kept longer."""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""
    each: Each = field(default=lambda call, items: [call(item) for item in items])
    """The call for each item: writes of several journals at the same time, where a store allows it. All of them are
    over when it returns, or raises the first error."""
    _search: JournalSearch = field(init=False)
    _ends: JournalEnds = field(init=False)
    _in_doubt: dict[tuple[Journal, str], Entry] = field(default_factory=dict)
    """Entries that were prepared or read here, by attempt, to be settled without another read."""

    def __post_init__(self) -> None:
        """Search the same journals."""
        self._search = JournalSearch(self.journals)
        self._ends = JournalEnds(search=self._search, clock=self.clock)

    # Heads

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """See `Chains.heads`."""
        wanted: dict[Journal, list[int]] = {}
        for lane in lanes:
            wanted.setdefault(Journal.of(lane), []).append(lane.partition)
        heads: dict[Lane, Head] = {}
        for journal, page in self._ends.read(wanted).items():
            current = self._ends.current(journal, wanted[journal], page)
            for entry in current.entries.values():
                if entry.open:
                    self._doubted(entry)
            heads |= self._ends.heads(journal, wanted[journal], current)
        return heads

    # Writes

    def _expiry(self, entry: Entry) -> int:
        """When an entry may expire: its writer's clock may be behind, and that of an entry below need not be."""
        end = self._ends.get(entry.journal)
        now = max(entry.settled_at // 1000, int(self.clock()))  # a doubt may be settled long after it was prepared
        return max(now + self.retention_seconds, end.kept_until if end is not None else 0)

    def prepare(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """See `Chains.prepare`."""

        def insert(of_journal: Sequence[Run]) -> None:
            for entry in _entries(of_journal):
                self._insert([entry], deadline)

        self.each(insert, _by_journal(runs))

    def extend(self, runs: Sequence[Run]) -> None:
        """See `Chains.extend`."""
        for some in _portions(runs):
            self._insert([_draft([run]) for run in some], None)

    def confirm(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """See `Chains.confirm`."""
        gone = self._settle(runs, "committed", deadline)
        if gone:
            raise ChainBroken(
                "a committed run is no longer in the offset map",
                where=gone[0].lane.at(gone[0].position),
                hint="it was deleted or withdrawn: compare the target with the map before the lane goes on",
            )

    def withdraw(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """See `Chains.withdraw`."""
        self._settle(runs, "withdrawn", deadline)

    def of_attempts(self, runs: Sequence[Run]) -> list[Run]:
        """See `Chains.of_attempts`."""
        found = {run.lane: run for run in runs}
        for journal, attempt in dict.fromkeys((Journal.of(run.lane), run.attempt) for run in runs):
            run = next(run for run in runs if (Journal.of(run.lane), run.attempt) == (journal, attempt))
            entry, end = self._entry_of(run), self._ends.get(journal)
            if entry is None or end is None:
                continue
            for partition, link in entry.links.items():
                if isinstance(link, Run) and end.places.get(partition) == entry.place(partition):
                    found.setdefault(link.lane, link)
        return list(found.values())

    def reset(self, link: Reset, over: Run | None = None) -> None:
        """See `Chains.reset`."""
        self._insert([_reset_draft(link)], None, over)

    def catch_up(self, lanes: Iterable[Lane]) -> Callable[[], None] | None:
        """See `Chains.catch_up`."""
        shared = [
            (journal, end)
            for journal in dict.fromkeys(map(Journal.of, lanes))
            if (end := self._ends.get(journal)) is not None and end.shared
        ]

        def read() -> None:
            try:
                for journal, end in shared:
                    self._ends.read_added(journal, end)
                    end.shared = False  # of an end that is still the newest
            except Retriable:
                return  # an insert that collides finds the same; an error here would leave the transaction open

        return read if shared else None

    def renew(self, lanes: Iterable[Lane], *, settled_before: int, expires_at: int) -> int:
        """See `Chains.renew`."""
        renewed = 0
        for journal in self._ends.read(map(Journal.of, lanes)):
            end = self._ends.get(journal)
            if end is None or self._ends.expired(end):
                continue  # to renew an end that is not believed would hide that
            numbers = {end.number} | {place.number for place in end.places.values()}
            for partition, entry in self._ends.current(journal, end.places).entries.items():
                numbers |= {entry.number, self._search.last_with_records(journal, partition, entry.number)}
            entries = self._search.read(journal, numbers)
            old = [number for number, entry in entries.items() if entry.settled_at < settled_before and not entry.open]
            if old and end.number not in old and end.number in entries and not entries[end.number].open:
                old.append(end.number)  # the end outlives what lies below
            self.journals.renew(journal, old, expires_at)
            renewed += len(old)
        return renewed

    def _insert(self, drafts: Sequence[Entry], deadline: Deadline | None, over: Run | None = None) -> None:
        """Insert an entry behind the newest one, or several of one lane.

        Args:
            drafts: the entries, without their places; the second and the following are settled ones.
            deadline: seconds left.
            over: the run in doubt that a reset gives up.

        Raises:
            LostRace: one of its lanes has another newest link than its run continues.
        """
        journal = drafts[0].journal
        trusted = self._ends.trusted(journal)
        if trusted is None or self._ends.expired(trusted):
            self._ends.read([journal])
        collisions = 0
        while True:
            end = self._ends.get(journal)
            entries = self._following(self._continued(drafts[0], end, over), drafts[1:])
            if len(entries) == 1:
                standing = self.journals.insert(entries[0], deadline)
            else:
                standing = self.journals.insert_all(entries)
            if standing is None:
                break
            # Where what was added has just been read, this is the newest. Otherwise there may be many more.
            met = self._ends.remember(self._search.keep(standing), shared=True)
            collisions += 1
            if end is None or not end.shared or collisions > COLLISIONS:
                self._ends.read_added(journal, met)
        for entry in entries:
            self._ends.remember(entry, shared=collisions > 0 or (end is not None and end.shared))
            if entry.open:
                self._doubted(entry)
            else:
                self._search.keep(entry)

    def _following(self, first: Entry, drafts: Sequence[Entry]) -> list[Entry]:
        """An entry, and drafts of the same lane behind it."""
        entries = [first]
        for draft in drafts:
            before = entries[-1].number
            entries.append(
                replace(
                    draft,
                    number=before + 1,
                    previous=dict.fromkeys(draft.links, before),
                    heads=first.heads,
                    expires_at=self._expiry(draft),
                )
            )
        return entries

    def _doubted(self, entry: Entry) -> None:
        if len(self._in_doubt) >= IN_DOUBT:
            self._in_doubt.clear()
        self._in_doubt[entry.journal, entry.attempt] = entry

    def _continued(self, draft: Entry, end: JournalEnd | None, over: Run | None) -> Entry:
        """The draft as the entry behind an end, each of whose lanes it continues."""
        places = end.places if end is not None else {}
        current = self._ends.current(draft.journal, draft.links)
        if end is not None and self._ends.expired(end):
            # This entry will be believed. What stands in it of the other lanes must not be, until each is reset; but
            # where they stood is still seen now.
            others = self._ends.current(draft.journal, places)
            heads = {partition: self._ends.head(draft.journal, partition, others) for partition in places}
            places = {each: Place(head.generation, head.position, NO_ENTRY) for each, head in heads.items()}
        for partition, link in draft.links.items():
            head = self._ends.head(draft.journal, partition, current)
            # A reset may follow the run that its operator gave up, and no other in doubt: it closes that lane alone.
            rival = head.run is not None and head.in_doubt and (over is None or head.run.attempt != over.attempt)
            if rival or (link.generation, link.position) < (head.generation, head.position):
                raise LostRace("a rival's link stands at this position", where=link.lane.at(link.position))
        return replace(
            draft,
            number=end.number + 1 if end is not None else 0,
            previous={
                partition: before.number if (before := current.entries.get(partition)) is not None else NO_ENTRY
                for partition in draft.links
            },
            heads={partition: place for partition, place in places.items() if partition not in draft.links},
            expires_at=None if draft.open else self._expiry(draft),
        )

    def _settle(self, runs: Sequence[Run], state: EntryState, deadline: Deadline | None) -> list[Run]:
        """Settle the entries of some runs; those runs that are not there, or settled otherwise."""
        found = self.each(lambda of_journal: self._settle_in_journal(of_journal, state, deadline), _by_journal(runs))
        return [run for gone in found for run in gone]

    def _settle_in_journal(self, runs: Sequence[Run], state: EntryState, deadline: Deadline | None) -> list[Run]:
        done: list[tuple[Entry, bool]] = []
        gone: list[Run] = []
        for run in runs:
            known = next((each for each in done if _holds(each[0], run)), None)
            if known is None:
                entry = self._entry_of(run)
                if entry is None:
                    gone.append(run)
                    continue
                known = entry, self.journals.settle(entry, state, self._expiry(entry), deadline)
                done.append(known)
                self._in_doubt.pop((entry.journal, entry.attempt), None)
                if known[1]:
                    self._search.keep(entry.settled(state))
            if not known[1]:
                gone.append(run)
        return gone

    def _entry_of(self, run: Run) -> Entry | None:
        """The entry with this run, of the same attempt; usually one that is in doubt here, else it is looked up."""
        journal, partition = Journal.of(run.lane), run.lane.partition
        entry = self._in_doubt.get((journal, run.attempt))
        if entry is not None and _holds(entry, run):
            return entry
        place, target = self._newest(run.lane), (run.generation, run.position)
        number = self._search.number(journal, partition, place, target) if place is not None else None
        # Those before it at the same position: a reset or a later try may stand over it.
        for entry in self._search.back(journal, partition, number):
            if _holds(entry, run):
                return entry
            if entry.place(partition) != Place(run.generation, run.position, entry.number):
                return None
        return None

    # Lookups

    def at_or_before(self, lane: Lane, generation: int, upstream: int, *, head: Head | None = None) -> Link | None:
        """See `Chains.at_or_before`."""
        journal, target = Journal.of(lane), (generation, upstream)
        end = self._ends.get(journal) if head is not None else None
        place = end.place(lane.partition) if end is not None else self._remembered(lane, target) or self._newest(lane)
        number = self._search.number(journal, lane.partition, place, target) if place is not None else None
        for entry in self._search.back(journal, lane.partition, number):
            if entry.state != "withdrawn":
                link = entry.links[lane.partition]
                return link if link.generation == generation else None
        return None

    def after(self, lane: Lane, generation: int, upstream: int, *, limit: int, head: Head | None = None) -> list[Link]:
        """See `Chains.after`."""
        journal, target = Journal.of(lane), (generation, upstream)
        place = self._remembered(lane, target)
        found = self._search.links_after(journal, lane.partition, place, target, limit) if place is not None else []
        if len(found) >= limit or (head is not None and self._ends.get(journal) is not None):
            return found
        now = self._newest(lane)
        if now is None or now == place:
            return found
        return self._search.links_after(journal, lane.partition, now, target, limit)

    def newest_runs(self, lanes: Iterable[Lane], *, limit: int) -> dict[Lane, list[Run]]:
        """Up to `limit` runs of each lane, the newest first, and none before its last reset.

        Args:
            lanes: whose heads were read here: what was added since is not looked for.
            limit: of a lane's runs.

        Raises:
            Retriable: the store does not answer.
        """
        wanted: dict[Journal, dict[int, int]] = {}
        for lane in lanes:
            journal = Journal.of(lane)
            end = self._ends.get(journal)
            place = end.place(lane.partition) if end is not None else None
            if place is not None:
                wanted.setdefault(journal, {})[lane.partition] = place.number
        found = self.each(lambda each: self._search.newest_runs(each, wanted[each], limit), list(wanted))
        return {
            journal.lane(partition): runs
            for journal, of_journal in zip(wanted, found, strict=True)
            for partition, runs in of_journal.items()
        }

    def _remembered(self, lane: Lane, target: tuple[int, int]) -> Place | None:
        """A lane's newest place as it is remembered, where it lies behind the target."""
        end = self._ends.trusted(Journal.of(lane))
        place = end.place(lane.partition) if end is not None else None
        return place if place is not None and place[:2] > target else None

    def _newest(self, lane: Lane) -> Place | None:
        """A lane's newest place as it is now."""
        self._ends.read([Journal.of(lane)])
        end = self._ends.get(Journal.of(lane))
        return end.place(lane.partition) if end is not None else None


def _holds(entry: Entry, run: Run) -> bool:
    link = entry.links.get(run.lane.partition)
    if not isinstance(link, Run) or entry.attempt != run.attempt:
        return False
    return (link.lane, link.generation, link.position) == (run.lane, run.generation, run.position)


def _portions(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """What is inserted together, of one lane."""
    some: list[Run] = []
    spans = 0
    for run in runs:
        if some and (len(some) == TOGETHER or spans + len(run.spans) > SPANS_TOGETHER):
            yield some
            some, spans = [], 0
        some.append(run)
        spans += len(run.spans)
    if some:
        yield some


def _by_journal(runs: Sequence[Run]) -> list[list[Run]]:
    found: dict[Journal, list[Run]] = {}
    for run in runs:
        found.setdefault(Journal.of(run.lane), []).append(run)
    return list(found.values())


def _entries(runs: Sequence[Run]) -> list[Entry]:
    """Runs of one journal as drafts of entries, in the order of their inserts: those of one attempt share one."""
    groups: list[list[Run]] = []
    for run in runs:
        if not groups or _shared(groups[-1][0]) != _shared(run) or any(run.lane == each.lane for each in groups[-1]):
            groups.append([])
        groups[-1].append(run)
    return [_draft(group) for group in groups]


def _shared(run: Run) -> tuple[object, ...]:
    """What all runs of one entry have in common."""
    return run.state, run.writer, run.attempt, run.request, run.settled_at, run.examined, run.throttled_ms


def _draft(runs: Sequence[Run]) -> Entry:
    first = runs[0]
    return Entry(
        journal=Journal.of(first.lane),
        state=first.state,
        writer=first.writer,
        attempt=first.attempt,
        request=first.request,
        settled_at=first.settled_at,
        examined=first.examined,
        throttled_ms=first.throttled_ms,
        links={run.lane.partition: run for run in runs},
    )


def _reset_draft(link: Reset) -> Entry:
    return Entry(
        journal=Journal.of(link.lane),
        state="committed",
        attempt=f"reset {link.generation}/{link.position} {link.at}",
        settled_at=link.at,
        links={link.lane.partition: link},
    )
