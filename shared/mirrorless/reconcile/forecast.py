"""What a look tells of the failback to come: how long it takes at this distance, and who had read the orphans before.

A lane is written with some megabytes under way, and each transaction waits for some round trips more. So the longest
lane takes its time, all lanes together theirs, and the target is read at a pace that the look has measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mirrorless.jobs.copy_task import CHUNK_BYTES
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.reconcile.difference import Stretch

UNDER_WAY_BYTES: Final = 5_000_000
"""Of one lane: five requests of a batch of 1 MB."""

TRANSACTION_ROUND_TRIPS: Final = 3
"""Beside its records: the partition is added, the commit is answered, the last batch is acknowledged."""


class FailbackForecast(msgspec.Struct, frozen=True):
    """How long a failback takes at least, once producers stand still."""

    bytes: int
    """Of new records."""
    round_trip_ms: float
    """Between the job and the source, measured by the look."""
    bytes_per_second: int
    """Read from the target by the look; 0 where it was over too soon to tell."""
    seconds: int


class OrphanReader(msgspec.Struct, frozen=True):
    """A group that had read orphans on the source: of a replay it reads them once more."""

    group: str
    records: int
    """Orphans below its offsets; of a stretch that it had read in part, at most so many."""


def forecast(sizes: Sequence[int], *, round_trip: float, bytes_per_second: float, at_a_time: int) -> FailbackForecast:
    """The forecast of a failback.

    Args:
        sizes: bytes of new records, lane by lane.
        round_trip: seconds.
        bytes_per_second: at which the target is read; 0 where that is not known.
        at_a_time: lanes.
    """
    waits = [_wait(size, round_trip) for size in sizes if size]
    written = max([*waits, sum(waits) / max(1, at_a_time)], default=0.0)
    read = sum(sizes) / bytes_per_second if bytes_per_second else 0.0
    return FailbackForecast(
        sum(sizes), round(round_trip * 1000, 1), int(bytes_per_second), -int(-max(written, read) // 1)
    )


def _wait(size: int, round_trip: float) -> float:
    """Seconds in which one lane waits for answers."""
    transactions = -(-size // CHUNK_BYTES)
    return round_trip * (size / UNDER_WAY_BYTES + TRANSACTION_ROUND_TRIPS * transactions)


def readers_of(
    committed: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]],
    orphans: Mapping[TopicPartition, Sequence[Stretch]],
) -> list[OrphanReader]:
    """The groups that had read orphans, most of them first.

    Args:
        committed: offsets on the source, by group.
        orphans: by partition of the source.
    """
    found = []
    for group, offsets in committed.items():
        records = sum(
            min(each.records, offsets[place].offset - each.first)
            for place, stretches in orphans.items()
            if place in offsets
            for each in stretches
            if each.first < offsets[place].offset
        )
        if records:
            found.append(OrphanReader(group, records))
    return sorted(found, key=lambda each: (-each.records, each.group))
