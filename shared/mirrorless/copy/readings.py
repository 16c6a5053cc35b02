"""How far each lane of a shard has been read, which lanes are behind, and which are left alone for a while. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirrorless.chain.run import Run
from mirrorless.clock import pause_seconds
from mirrorless.copy.shards import LANES_OF_TRANSACTION, transactions
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.copy_choice import BatchTally

FOLLOWED: Final = 1_024
"""Lanes that are read at the same time, at most: each of them is named in every request of the consumer."""

ASIDE_SECONDS: Final = 60.0
"""For which a lane that is stopped, or waits for a job, is left alone; as long as states of lanes are remembered."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at the ends of lanes that are not followed."""

LONGEST_LOOK_SECONDS: Final = 5.0
"""The same of a lane that has been silent for long, in a continuous run."""

LOOKS_OF_SILENCE: Final = 30
"""A silent lane is looked at again after such a part of its silence."""

NO_END: Final = 2**62
"""Above every offset."""

UNSEEN: Final = -1
"""In place of an upstream offset, where the log's end was not met."""

FEWER: Final = 8
"""By which the lanes of a transaction are divided after a failure: one lane must not hold up many."""


@dataclass(slots=True)
class Reading:
    """One lane."""

    next: int | None = None
    """The upstream offset to read next; None where it is to be found out."""
    generation: int = 0
    """Of the chain at whose position the reading began: after a reset, what is read on is not what follows."""
    newest: Run | None = None
    """The lane's newest run: its epoch shows whether the log is still the one that it was copied from."""
    below: int = NO_END
    """From which upstream offset on nothing is wanted."""
    stands_at: int = 0
    """The lane's position, where it is read from below: no record comes from between in the log that was copied."""
    ended: int = UNSEEN
    """Below which the log was read to its end: what lies between are transaction markers and aborted records."""
    examined: bool = True
    """Whether all offsets from the lane's position on are read, and none was passed over."""
    moved_at: float = 0.0
    """When records last came, monotonic seconds."""
    looked_at: float | None = None
    """When its end was last looked at, monotonic seconds; None: not in this run."""
    free_at: float = 0.0
    """Until when it is left alone, monotonic seconds."""
    failures: int = 0
    """In a row."""
    together: int = LANES_OF_TRANSACTION
    """Lanes of its next transaction, at most."""
    tally: BatchTally = field(default_factory=BatchTally)
    """Of its batches, where its log is read by them."""

    def is_due(self, now: float) -> bool:
        """Whether to look at its end again."""
        if self.looked_at is None:
            return True
        pause = min(max(LOOK_SECONDS, (now - self.moved_at) / LOOKS_OF_SILENCE), LONGEST_LOOK_SECONDS)
        return now - self.looked_at >= pause


@dataclass(slots=True)
class Readings:
    """The lanes of one shard."""

    lanes: dict[TopicPartition, Reading] = field(default_factory=dict)
    followed: set[TopicPartition] = field(default_factory=set)
    """Those that the consumer reads."""
    found_at: float | None = None
    """When the positions of silent lanes were last found out, monotonic seconds."""

    def only(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Have these lanes and no others. Returns those that are dropped."""
        wanted = dict.fromkeys(places)
        dropped = self.lanes.keys() - wanted.keys()
        self.lanes = {place: self.lanes.get(place) or Reading() for place in wanted}
        return dropped

    def idle(self, now: float) -> list[TopicPartition]:
        """The lanes that are not followed, and not left alone."""
        return [place for place, each in self.lanes.items() if place not in self.followed and each.free_at <= now]

    def due(self, places: Iterable[TopicPartition], now: float) -> list[TopicPartition]:
        """Those of these lanes at whose ends to look now: the longer one was silent, the rarer. They are noted."""
        found = [place for place in places if self.lanes[place].is_due(now)]
        for place in found:
            self.lanes[place].looked_at = now
        return found

    def look_again(self, places: Iterable[TopicPartition]) -> None:
        """Look at the ends of these lanes the next time: they are behind, and wait for their turn."""
        for place in places:
            self.lanes[place].looked_at = None

    def begin_run(self) -> None:
        """No lane is followed yet in a new run, and the ends of all are to be seen."""
        self.followed.clear()
        self.look_again(self.lanes)

    def begin(
        self, place: TopicPartition, offset: int, *, generation: int, newest: Run | None = None, examined: bool = True
    ) -> None:
        """Read a lane from this upstream offset on, for this generation of its chain."""
        reading = self.lanes[place]
        reading.newest = newest
        reading.next, reading.examined, reading.ended = offset, examined, UNSEEN
        reading.generation, reading.stands_at = generation, 0

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Find out anew where lanes are to be read."""
        for place in places:
            self.lanes[place].next = None

    def behind(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets from which to follow lanes that are behind; those first that have not moved for the longest.

        Args:
            ends: the last stable offsets of lanes that are not followed.
        """
        found = {
            place: begins
            for place, end in ends.items()
            if (begins := self.lanes[place].next) is not None and max(begins, self.lanes[place].ended) < end
        }
        return {place: found[place] for place in sorted(found, key=lambda place: self.lanes[place].moved_at)}

    def beyond(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The positions of lanes whose log ends below them: it lost its end, or its new leader does not show it yet."""
        return {
            place: begins
            for place, end in ends.items()
            if (begins := self.lanes[place].next) is not None and end < begins
        }

    def in_the_way(self, wanted: int) -> list[TopicPartition]:
        """The followed lanes to leave for so many others: those read to their end first, then those that moved last.

        Lanes that keep a long backlog give way too, an eighth of all at a time, so that each has its turn.
        """
        surplus = len(self.followed) + wanted - FOLLOWED
        if surplus <= 0:
            return []
        ended = set(self.silent(float("inf")))
        rest = sorted(self.followed - ended, key=lambda place: -self.lanes[place].moved_at)
        return [*ended, *rest[: FOLLOWED // 8]][:surplus]

    def follow(self, places: Iterable[TopicPartition]) -> None:
        """The consumer reads these lanes too; their ends are to be seen anew."""
        for place in places:
            self.lanes[place].ended = UNSEEN
            self.lanes[place].looked_at = None  # to be looked at as soon as it is followed no more
            self.followed.add(place)

    def silent(self, since: float) -> list[TopicPartition]:
        """The followed lanes that were read to their end and have had no record since."""
        return [
            place
            for place in self.followed
            if self.lanes[place].ended >= (self.lanes[place].next or 0) and self.lanes[place].moved_at <= since
        ]

    @property
    def all_ended(self) -> bool:
        """Whether there are followed lanes, and each was read to its end."""
        return bool(self.followed) and len(self.silent(float("inf"))) == len(self.followed)

    def batches(self, places: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
        """The lanes of one transaction after another: fewer after a failure."""
        kinds: dict[int, list[TopicPartition]] = {}
        for place in places:
            kinds.setdefault(self.lanes[place].together, []).append(place)
        for together, alike in kinds.items():
            yield from transactions(alike, together)

    def went_well(
        self,
        place: TopicPartition,
        following: int,
        now: float,
        *,
        ended: int | None = None,
        newest: Run | None = None,
    ) -> None:
        """Its records up to this upstream offset are on the target, and the log ended there where that was seen."""
        reading = self.lanes[place]
        reading.newest = newest or reading.newest
        reading.ended = UNSEEN if ended is None else ended
        reading.next, reading.moved_at, reading.examined = max(following, reading.stands_at), now, True
        reading.stands_at = 0
        reading.failures, reading.together = 0, LANES_OF_TRANSACTION

    def put_aside(self, place: TopicPartition, now: float) -> None:
        """Leave alone a lane that is stopped, or waits for a job."""
        self.lanes[place].free_at = now + ASIDE_SECONDS

    def failed(self, places: Iterable[TopicPartition], blamed: Iterable[TopicPartition], now: float) -> None:
        """A transaction of these lanes failed; those blamed for it are left alone for a while, and all found anew."""
        tried = list(places)
        for place in tried:
            self.lanes[place].next = None
            self.lanes[place].together = max(1, min(self.lanes[place].together, len(tried)) // FEWER)
        for place in blamed:
            reading = self.lanes[place]
            if reading.free_at > now:
                continue  # this failure is noted already
            reading.failures += 1
            reading.free_at = now + pause_seconds(reading.failures, ASIDE_SECONDS)
