"""Memory and time of a reconcile's decisions on one lane with a long history, without servers.

    python -m tests.benchmarks.reconcile_memory

2,592,000 runs: a month of a lane with one run a second, as a back lane's and as the forward chain; and 2,000 holes
beside 200,000 records. Runs are made as they are read, so what is measured is what the decisions hold. Exits 1 above
the limit.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import Head
from mirrorless.reconcile.difference import claims_of, seen_in, unclaimed
from mirrorless.reconcile.join import copies_above, joined, places_of
from mirrorless.reconcile.orphans import stretches_of
from mirrorless.record import Record
from mirrorless.run import Run, Span

RUNS, HOLES, RECORDS = 2_592_000, 2_000, 200_000
LIMIT_MB = 100
"""Beyond what the process has at its start."""

LANE = Lane(FlowName("us-east", "eu-west"), "orders", 0)


def runs() -> Iterator[Run]:
    """Runs of ten records, each with a marker behind it on both sides."""
    for number in range(RUNS):
        at = number * 11
        yield Run(
            lane=LANE,
            generation=0,
            position=at,
            next=at + 11,
            spans=(Span(at, at, 10),),
            state="committed",
            writer="writer",
            attempt=f"{number}",
            fingerprint=b"12345678",
            digest=b"d" * 32,
            oldest_timestamp=1,
            newest_timestamp=1,
            records=10,
            bytes=1_000,
        )


def claim() -> int:
    """The claims of the whole chain."""
    return claims_of(runs()).records


def join() -> int:
    """Its links, turned around."""
    links = joined(
        LANE,
        Head(generation=0, position=0),
        copies_above(runs(), 0),
        mapped_from=0,
        until=RUNS * 11,
        request="reconcile-1",
        now=1,
    )
    return sum(link.records for link in links)


def orphans() -> int:
    """The search beside its copies: one record in a thousand runs is an orphan."""
    records = ((number * 11_000 + 10, 100) for number in range(RUNS // 1_000))
    return sum(each.records for each in stretches_of(records, places_of(runs())))


def holes() -> int:
    """Records in holes."""
    every = RECORDS // HOLES
    ranges = [OffsetRange(number * every, number * every + every // 2) for number in range(HOLES)]
    records = (Record(offset=offset, timestamp=1, headers=[], value=b"v" * 100) for offset in range(RECORDS))
    return seen_in(ranges, records).records


def main() -> int:
    """Measure each."""
    assert unclaimed(claims_of(()), OffsetRange(0, 1), since=0)[1] == OffsetRange(0, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    work: dict[str, tuple[Callable[[], int], int]] = {
        "claims": (claim, RUNS * 10),
        "orphans": (orphans, RUNS // 1_000),
        "join": (join, RUNS * 10),
        "holes": (holes, RECORDS // 2),
    }
    wrong = 0
    for name, (do, expected) in work.items():
        began = time.process_time()
        found = do()
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before
        print(f"{name:<8} {time.process_time() - began:6.1f} CPU-s, {used:4d} MB more, {found:,} found", flush=True)
        wrong += found != expected or used > LIMIT_MB
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
