"""The search for a refused record: in smaller and smaller batches, while what lies before it is committed.

A target refuses a whole batch, and a producer says which one. One record per batch would name the record, but costs a
round trip for each record before it. So a lane with a refusal goes in portions of at most `PORTION` batches, each
portion a transaction: the batches before the refused one are committed, and the refused one is written again as
`PORTION` smaller ones, until a batch holds one record. Ten thousand records take four steps, a portion ends within the
transaction's timeout at any usual delay, and a search that is cut off continues from the last commit.

Pure: outcomes of writes in, the size of the next batches out.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.ports.kafka import PORTION


@dataclass(slots=True)
class RefusalSearch:
    """The state of the search in one lane."""

    batch: int
    """How many records the next batches have at most."""
    certain: int = 0
    """How many records at the front the target took before it refused the next batch: they go alone, and first."""
    _suspect: int = 0
    """How many records at the front were refused as one batch."""
    _bytes: int = 0
    """Of that batch, at most."""

    @classmethod
    def among(cls, records: int) -> RefusalSearch:
        """A search among so many records."""
        return cls(_share(records))

    def refused(self, index: int, size: int) -> bool:
        """Narrow the search.

        Args:
            index: of the refused batch's first record.
            size: bytes of as many records as that batch had at most.

        Returns:
            whether that record alone was refused. If so, it ends the search.
        """
        if self.batch == 1:
            self.certain = self._suspect = 0
            return True
        self.certain, self._bytes = index, size
        if not index:
            self._narrow()
        return False

    def first(self, index: int) -> None:
        """Let so many records that the target took go first, and the refused one behind them come again."""
        self.certain = index

    def taken(self, records: int, left: int) -> int:
        """Continue behind records that the target took, of which `left` follow.

        Returns:
            the bytes of a batch that was refused and has been taken in smaller ones: only its size was too large. 0 if
            there was none.
        """
        if self.certain:
            self.certain -= records
            if not self.certain:
                self._narrow()
            return 0
        whole = self._bytes if 0 < self._suspect <= records else 0
        self._suspect = max(0, self._suspect - records)
        if not self._suspect:
            self.batch = max(self.batch, _share(left))
        return whole

    def _narrow(self) -> None:
        self._suspect, self.batch = self.batch, _share(self.batch)


def _share(records: int) -> int:
    return max(1, -(-records // PORTION))
