"""Histories of a replicator that copies, is killed, and begins again, by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from mirrorless.verify.copied_end import CopiedEnd, KeyedRecord, LogWindow, Reach, copied_end
from tests.support.mm2_store import SyncWriter


@dataclass(slots=True)
class History:
    """A source, and a replicator that says rarely how far it has come."""

    chance: Random
    contents: int
    """How many different ones there are."""
    keys: int = 0
    """The same; 0 for records without keys."""
    source: list[KeyedRecord] = field(default_factory=list)
    target: list[KeyedRecord] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    noted: list[tuple[int, int]] = field(default_factory=list)
    """The offset syncs, in order."""
    lag_max: int = 100
    """MirrorMaker's `offset.lag.max`."""
    said: int | None = None
    source_end: int = 0
    target_end: int = 0

    def produce(self, count: int) -> None:
        """Records with gaps between them, as markers leave them."""
        for _ in range(count):
            self.source_end += self.chance.random() < 0.1
            content = self.chance.randrange(self.contents).to_bytes(16)
            key = self.chance.randrange(self.keys) if self.keys else None
            self.source.append(KeyedRecord(self.source_end, content, key))
            self.source_end += 1

    def copy(self, lives: int, most: int) -> None:
        """Copy for some lives; each begins behind what was said, and says it again at times, never what comes last."""
        for _ in range(lives):
            said = self.said
            begins = next((n for n, each in enumerate(self.source) if said is None or each.offset > said), None)
            if begins is None:
                return
            syncs = SyncWriter(lag_max=self.lag_max)
            for each in self.source[begins : begins + self.chance.randint(1, most)]:
                self.target_end += self.chance.random() < 0.1
                self.target.append(KeyedRecord(self.target_end, each.content, each.key))
                self.copied.append(each.offset)
                if syncs.is_due(each.offset, self.target_end):
                    self.noted.append((each.offset, self.target_end))
                self.target_end += 1
                if self.chance.random() < 3 / most:
                    self.said = each.offset

    def compact(self) -> None:
        """Remove records of the source, but for the last few."""
        self.source = [each for each in self.source[:-20] if self.chance.random() < 0.8] + self.source[-20:]

    def expire(self, source: int, target: int) -> None:
        """Remove the first records."""
        self.source, self.target, self.copied = self.source[source:], self.target[target:], self.copied[target:]

    def found(self, reach: Reach | None = None, *, compacts: bool = False) -> CopiedEnd:
        """What is found by windows as they grow."""
        starts = [side[0].offset if side else end for side, end in self.sides]
        reach = reach or Reach(back=40, ahead=40, tail=100)
        while True:
            assert reach is not None
            source = window(
                self.source, reach.of_source(self.said, starts[0], self.source_end), starts[0], self.source_end
            )
            target = window(self.target, reach.of_target(starts[1], self.target_end), starts[1], self.target_end)
            found = copied_end(source, target, self.said, source_compacts=compacts)
            reach = reach.wider(found.needs)
            if reach is None:
                return found

    @property
    def sides(self) -> Sequence[tuple[list[KeyedRecord], int]]:
        """Both logs, and their ends."""
        return (self.source, self.source_end), (self.target, self.target_end)

    def is_right(self, place: int) -> bool:
        """Whether all that the source has below was copied, and nothing above, but for keys that went back."""
        furthest, last = max(self.copied), {each.key: at for each, at in zip(self.target, self.copied, strict=True)}
        back = [
            each.offset
            for each in self.source
            if each.key is not None and last.get(each.key, furthest) < each.offset <= furthest
        ]
        first = min(back, default=furthest + 1)
        return all((each.offset < place) == (each.offset < first) for each in self.source)


def window(log: Sequence[KeyedRecord], bounds: tuple[int, int], start: int, end: int) -> LogWindow:
    """The records of a log within bounds."""
    first, following = bounds
    return LogWindow(
        records=[each for each in log if first <= each.offset < following],
        first=first,
        next=following,
        start=start,
        end=end,
    )
