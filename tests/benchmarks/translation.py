"""Records that a group reads again after failover because of translation alone: MM2 and ours, side by side.

One partition, all of its records replicated, and a group at every lag there is. MM2 sees its best case: offsets equal
on both sides, no gap, a task that lives from the first record on. Ours sees what the forwarder leaves behind: batches
of random size, each with a commit marker behind it. Every figure is counted from translated offsets; nothing is timed,
and the same seed gives the same table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lab.audit.audit import LoadedChains
from tests.benchmarks.harness import Outcome
from tests.support.chains import LANE, MemoryChains, run
from tests.support.mm2_store import Sync, SyncStore, SyncWriter

RECORDS = 1_000_000
LARGEST_BATCH = 10_000
LAG_MAXIMA = (0, 10, 100, 1_000)
"""Values of MM2's `offset.lag.max`; 100 is its default."""
BANDS = ((0, 99), (100, 999), (1_000, 9_999), (10_000, 99_999), (100_000, 1_000_000))
"""First and last lag of each, in records."""


Bands = dict[tuple[int, int], tuple[float, int, int]]
"""By first and last lag: records that a group reads again, on average and at worst, and the most that one skips."""


@dataclass(frozen=True, slots=True)
class Column:
    """One way of translating."""

    title: str
    written: int
    """Entries written for the whole partition: offset syncs, or runs."""
    kept: int
    """Different entries that translate at the end."""
    bands: Bands


def measure(*, records: int = RECORDS, seed: int = 1, report: str = "") -> Outcome:
    """Records that lagging groups read again after failover; writes its page."""
    columns = [*(mm2(records, lag_max) for lag_max in LAG_MAXIMA), ours(records, Random(seed))]
    found = table(columns)
    print(found)
    if report:
        Path(report).write_text(page(records, seed, found))
    return Outcome({}, [str(band) for band, found in columns[-1].bands.items() if any(found)])


def mm2(records: int, lag_max: int) -> Column:
    """MM2, every record acknowledged once and every sync stored at once."""
    writer, store, written = SyncWriter(lag_max=lag_max), SyncStore(), 0
    for offset in range(records):
        if writer.is_due(offset, offset):
            store.add(Sync(offset, offset))
            written += 1

    def translate(upstream: int) -> int:
        # Without a checkpoint the group begins at the beginning.
        return max(0, store.translate(upstream) or 0)

    title = f"MM2, `offset.lag.max` {lag_max}"
    return Column(title, written, len(store.kept), _bands(translate, downstream=range(records)))


def ours(records: int, chance: Random) -> Column:
    """The chain of runs that the forwarder would leave, and the product's own translation on it."""
    chains, downstream = MemoryChains(), list[int]()
    upstream = place = 0
    while upstream < records:
        length = min(chance.randint(1, LARGEST_BATCH), records - upstream)
        chains.prepare([run(upstream, upstream + length, (upstream, place, length))])
        downstream += range(place, place + length)
        upstream += length
        place += length + 1  # the marker that commits the batch
    offsets = LoadedChains(chains, LANE).offset_map()

    def translate(upstream: int) -> int:
        found = offsets.downstream(LANE, upstream).offset
        assert found is not None  # there is a run
        return found

    runs = len(chains.links)
    return Column("Mirrorless", runs, runs, _bands(translate, downstream=downstream))


def _bands(translate: Callable[[int], int], *, downstream: Sequence[int]) -> Bands:
    """A group at every lag of each band, held against the list of where every record stands.

    Args:
        translate: a committed upstream offset to the downstream offset at which the group goes on.
        downstream: the place of each record; the record's index is its upstream offset.
    """
    records, found = len(downstream), Bands()
    for first, last in [(first, min(last, records)) for first, last in BANDS if first <= records]:
        places = (records - lag for lag in range(first, last + 1))
        errors = [upstream - bisect_left(downstream, translate(upstream)) for upstream in places]
        again = [max(0, error) for error in errors]
        found[first, last] = sum(again) / len(again), max(again), max(0, -min(errors))
    return found


def table(columns: Sequence[Column]) -> str:
    """Markdown; one row for each lag band."""

    def shown(mean: float, worst: int, skipped: int) -> str:
        return f"{mean:,.0f} / {worst:,}" + (f", skips {skipped:,}" if skipped else "")

    rows = [
        ["Lag of the group, records", *(column.title for column in columns)],
        ["---"] * (len(columns) + 1),
        *([f"{b[0]:,} to {b[1]:,}", *(shown(*column.bands[b]) for column in columns)] for b in columns[0].bands),
        ["entries written", *(f"{column.written:,}" for column in columns)],
        ["entries that translate", *(f"{column.kept:,}" for column in columns)],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(records: int, seed: int, found: str) -> str:
    """The page of the documentation."""
    return f"""# Translation, side by side

How many records does a consumer group read again after failover, because its offset was translated badly? Mean / worst
over every group offset in a band of lags, for one partition of {records:,} records that is fully replicated.

{found}

An entry is an offset sync for MirrorMaker 2 (MM2), and a run, one DynamoDB item a batch, for Mirrorless.

**Why MM2 errs.** It keeps 64 slots of syncs per partition, in memory, denser near the end and thinner with age. A group
that lags is sent to the nearest older sync that is left. More syncs (a smaller `offset.lag.max`) do not help a group
that lags, because the slots thin them out again. **Why Mirrorless does not.** It keeps every run, and looks up the one
that holds the offset.

**How it was made.** `python -m tests.benchmarks translation records={records} seed={seed}` writes this page; the same
seed writes the same page. MM2 is a port of its algorithm to Python (`tests/support/mm2_store.py`), held to the cases of
MM2's own tests (`tests/unit/mm2/test_mm2_store.py`). It sees its best case: no gaps, equal offsets on both sides, every
sync stored at once, no restart. Mirrorless is the code
that ships, on a chain as the forwarder leaves it: batches of 1 to {LARGEST_BATCH:,} records with a commit marker behind
each. Its figures are counted against a list of where every record stands, as MM2's are. That they hold over gaps,
aborted records, retries and resets as well is shown by `tests/unit/protocol/test_invariants.py` and, on real
clusters, by `tests/integration/test_translation_oracle.py`.
"""
