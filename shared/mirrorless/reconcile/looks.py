"""Looks at logs that take as long as they take: chunk by chunk, and a task that is started anew reads on where it was.

The place of a look is kept in the job run's folder every few seconds, with what was found up to it and with its fence:
the state of the lane and of the log that was looked for. A place with another fence does not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.jobs.copy_task import Chunk, LaneLog, OffsetRange
from mirrorless.jobs.lane_copy import TRIES, patience, pause_seconds
from mirrorless.ports.stores import JobFiles

KEPT_EVERY_SECONDS: Final = 20.0

T = TypeVar("T", bound=msgspec.Struct)


class LookPlace(msgspec.Struct, frozen=True):
    """How far a look has come."""

    fence: str
    at: int
    """The offset below which everything was read."""
    found: msgspec.Raw
    """Up to there."""


@dataclass(slots=True, kw_only=True)
class KeptPlaces:
    """The places of the looks at one lane, in the job run's folder."""

    files: JobFiles | None = None
    """None to keep none."""
    lane: str = ""
    """Part of the names of the files."""
    monotonic: Callable[[], float] = time.monotonic
    _kept_at: dict[str, float] = field(default_factory=dict)

    def read(self, what: str, fence: str, kind: type[T]) -> tuple[int, T] | None:
        """The place of an earlier look for the same, and what it had found; None where there is none.

        Raises:
            Retriable: the folder cannot be read.
        """
        self._kept_at[what] = self.monotonic()
        text = self.files.read(self._name(what)) if self.files is not None else None
        if not text:
            return None
        place = msgspec.json.decode(text, type=LookPlace)
        return (place.at, msgspec.json.decode(place.found, type=kind)) if place.fence == fence else None

    def keep(self, what: str, fence: str, at: int, found: Callable[[], msgspec.Struct]) -> None:
        """Keep a place, if the last one is old enough. A folder that cannot be written costs time, and nothing else."""
        now = self.monotonic()
        if self.files is None or now < self._kept_at.get(what, now) + KEPT_EVERY_SECONDS:
            return
        self._kept_at[what] = now
        place = LookPlace(fence, at, msgspec.Raw(msgspec.json.encode(found())))
        try:
            self.files.write(self._name(what), msgspec.json.encode(place))
        except MirrorlessError as exc:
            print(f"the place of a look is not kept: {exc}", file=sys.stderr)

    def _name(self, what: str) -> str:
        return f"looks/{self.lane}-{what}.json"


def chunks_of(
    log: LaneLog, topic: str, partition: int, wanted: OffsetRange, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Chunk]:
    """The records of a range; after a failure from the chunk on that failed.

    Raises:
        Retriable: the cluster did not answer `TRIES` times in a row.
        RecordsGone: see `LaneLog.read`.
    """
    at, failures = wanted.first, 0
    while at < wanted.next:
        try:
            for chunk in log.read(topic, partition, OffsetRange(at, wanted.next), patience):
                yield chunk
                at, failures = chunk.covered, 0
        except Retriable:
            failures += 1
            if failures >= TRIES:
                raise
            sleep(pause_seconds(failures))
