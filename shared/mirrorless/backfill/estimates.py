"""How long is a backfill expected to take? By speeds that were measured. Its cost is in `mirrorless.jobs.cost`."""

from __future__ import annotations

from typing import Final

MEASURED: Final = "2026-11-21"
"""When the speeds below were measured: 200 bytes a record, both clusters and Spark on the same two cores. They took
3.2 s of CPU for a million such records; what is below is twice as much, for a network is not a loopback."""

CPU_SECONDS_PER_RECORD: Final = 5e-6
"""Of a worker, beside what a byte takes."""

CPU_SECONDS_PER_BYTE: Final = 6e-9
"""Digests, compression and copies of memory."""

WAITING: Final = 1.6
"""Wall seconds of a lane for each of its CPU seconds: acknowledgements, commits, the offset map."""
