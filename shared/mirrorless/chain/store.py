"""The store of entries: conditional inserts at a number, updates of an entry's state, reads by number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from mirrorless.chain.entry import Entry, EntryState, Journal
from mirrorless.clock import Deadline

TOGETHER: Final = 100
"""Entries of one `insert_all`, at most.
(https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_TransactWriteItems.html)"""


class Journals(Protocol):
    """The entries of all journals. Reads are strongly consistent.

    Every method raises Retriable when the store does not answer. What is throttled is tried again until the deadline,
    seconds left; without one, for as long as the store chooses.
    """

    def newest(self, after: Mapping[Journal, int], limit: int) -> Mapping[Journal, Sequence[Entry]]:
        """The newest entries of journals, the newest first; one request for each journal.

        Args:
            after: the journals, and the numbers above which entries are wanted; `NO_ENTRY` for any.
            limit: of a journal's entries.
        """
        ...

    def at_or_below(self, journal: Journal, number: int) -> Entry | None:
        """The entry with the greatest number that is at most `number`."""
        ...

    def after(self, journal: Journal, number: int, *, limit: int) -> list[Entry]:
        """Up to `limit` entries with a greater number, in order."""
        ...

    def read(self, journal: Journal, numbers: Iterable[int]) -> Mapping[int, Entry]:
        """The entries with these numbers; those that are gone are left out."""
        ...

    def insert(self, entry: Entry, deadline: Deadline | None = None) -> Entry | None:
        """Insert an entry where its number is free.

        Returns:
            the rival's entry that has the number; None where this one stands there now, also where an earlier
            try has inserted it whose answer was lost.

        Raises:
            LostRace: an earlier try inserted it, and it was settled since: its writer has been fenced.
            Retriable: whether it was inserted is unknown.
        """
        ...

    def insert_all(self, entries: Sequence[Entry]) -> Entry | None:
        """Insert entries of one journal, whose numbers follow each other, all or none.

        Args:
            entries: settled ones, `TOGETHER` at most.

        Returns:
            the first entry of another attempt that has one of the numbers; None where all stand there now.

        Raises:
            LostRace: a part of them stands there: not inserted by this.
            Retriable: whether they were inserted is unknown.
        """
        ...

    def settle(self, entry: Entry, state: EntryState, expires_at: int, deadline: Deadline | None = None) -> bool:
        """Mark an entry as committed or as withdrawn, where it is there, of the same attempt, and not the opposite.

        Args:
            entry: as it was read or inserted.
            state: committed or withdrawn.
            expires_at: seconds since the epoch.
            deadline: seconds left.

        Returns:
            whether it is so now.
        """
        ...

    def renew(self, journal: Journal, numbers: Iterable[int], expires_at: int) -> None:
        """Let entries expire later, where they are there and settled.

        Args:
            journal: theirs.
            numbers: theirs.
            expires_at: seconds since the epoch; an entry that expires later already stays as it is.
        """
        ...
