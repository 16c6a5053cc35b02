"""Keys that were written on both sides of an outage: the orphans of a lane, and the newest other record of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.reconcile import conflicts
from mirrorless.reconcile.conflicts import LISTED, ConflictSearch, ConflictSide, ConflictTask, LaneConflicts
from mirrorless.reconcile.difference import united
from mirrorless.records.record import Record
from spark.jobs.reconcile.tasks import keep_orphans
from tests.support.flows import make_flow


class Written(NamedTuple):
    """A record of either side, by its offset."""

    key: bytes | None
    timestamp: int
    kind: str = "orphan"
    """Or `other`, `again`: an orphan that was written again, or `target`."""


@dataclass(slots=True)
class Lane:
    """A lane whose logs are these records, each with its number as its offset."""

    written: Sequence[Written]
    reads: list[OffsetRange] = field(default_factory=list)

    def of(self, *kinds: str) -> list[tuple[int, Written]]:
        """Those of some kinds."""
        return [(at, each) for at, each in enumerate(self.written) if each.kind in kinds]

    def ranges(self, kind: str) -> tuple[OffsetRange, ...]:
        """Their offsets."""
        return united(OffsetRange(at, at + 1) for at, _ in self.of(kind))

    @property
    def task(self) -> ConflictTask:
        """The task of this lane."""
        return ConflictTask(
            settings=make_flow("a->b"),
            topic="t",
            remote_topic="a.t",
            partition=12,
            files="",
            orphans=self.ranges("orphan"),
            wanted=OffsetRange(0, len(self.written)),
            skipped=self.ranges("again"),
            on_target=self.ranges("target"),
        )

    def read(self, side: ConflictSide, wanted: OffsetRange) -> Iterator[list[Record]]:
        """Chunks of three records."""
        self.reads.append(wanted)
        there = [
            Record(at, each.timestamp, [], each.key, b"v" * at)
            for at, each in enumerate(self.written)
            if (each.kind == "target") == (side == "target") and wanted.first <= at < wanted.next
        ]
        yield from (there[at : at + 3] for at in range(0, len(there), 3))

    def search(self) -> ConflictSearch:
        """Not begun."""
        return ConflictSearch(self.task, self.read)

    def found(self, *, held: int = 1_000) -> LaneConflicts:
        """What is found. Args: held: orphans at a time."""
        search = self.search()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conflicts, "HELD_ORPHANS", held)
            kept = [each.offset for some in search.orphans() for each in some]
        assert kept == [at for at, _ in self.of("orphan")]
        return search.found()


KEYS = st.one_of(st.none(), st.integers(0, 5).map(lambda number: b"%d" % number))
WRITTEN = st.builds(Written, KEYS, st.integers(-1, 8), st.sampled_from(["orphan", "other", "again", "target"]))


@pytest.mark.parametrize("held", [1_000, 2])
@given(st.lists(WRITTEN, max_size=40))
def test_conflicts_are_those_that_a_search_by_hand_finds(held: int, written: list[Written]) -> None:
    lane = Lane(written)
    orphans, others = lane.of("orphan"), lane.of("other", "target")
    beside = {at: [each for _, each in others if each.key == orphan.key is not None] for at, orphan in orphans}
    withheld = {
        at
        for at, orphan in orphans
        if any(orphan.timestamp <= each.timestamp or each.timestamp < 0 for each in beside[at])
    }
    last = {orphan.key: at for at, orphan in orphans if beside[at]}
    times = [orphan.timestamp for _, orphan in orphans if orphan.timestamp >= 0]

    found = lane.found(held=held)

    assert {offset for each in found.older for offset in range(each.first, each.next)} == withheld
    assert found.keys == len({orphan.key for _, orphan in orphans if orphan.key is not None})
    assert found.conflicts == len(last)
    assert (found.oldest, found.newest) == (min(times, default=-1), max(times, default=-1))
    assert [each.orphan.offset for each in found.listed] == sorted(last.values())
    assert all(each.older == (each.orphan.offset in withheld) for each in found.listed)


def test_a_lane_lists_its_first_conflicts_and_counts_them_all() -> None:
    keys = [b"key %d" % number for number in range(LISTED + 50)]
    lane = Lane([Written(key, 1) for key in keys] + [Written(key, 2, "target") for key in keys])

    found = lane.found()

    assert (found.conflicts, len(found.listed), found.older) == (LISTED + 50, LISTED, (OffsetRange(0, LISTED + 50),))
    assert [each.key for each in found.first_keys] == ["key 0", "key 1", "key 2", "key 3", "key 4"]


def test_orphans_without_keys_are_not_compared_and_need_no_reading_of_the_rest() -> None:
    lane = Lane([Written(None, 1), Written(None, 2, "other")])

    assert (lane.found().keys, lane.reads) == (0, [OffsetRange(0, 1)])


def test_every_orphan_is_in_the_runs_folder_by_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "HELD_ORPHANS", 7)
    lane = Lane([*(Written(b"%d" % (at % 9) if at % 5 else None, at) for at in range(30)), Written(b"3", 5, "target")])

    keep_orphans(open_job_files(str(tmp_path)), lane.task, lane.search().orphans())
    keep_orphans(open_job_files(str(tmp_path / "none")), lane.task, Lane([]).search().orphans())

    rows = parquet.read_table(tmp_path / "orphans" / "t-12.parquet").to_pylist()
    assert [(each["offset"], each["timestamp"]) for each in rows] == [(at, at) for at in range(30)]
    assert {(each["topic"], each["partition"], each["tombstone"]) for each in rows} == {("t", 12, False)}
    assert [each["key"] is None for each in rows] == [at % 5 == 0 for at in range(30)]
    assert len({each["key_hash"] for each in rows if each["key"]}) == 9
    met = {each["offset"]: (each["other_side"], each["other_offset"], each["other_timestamp"]) for each in rows}
    assert {at for at, other in met.items() if other == ("target", 30, 5)} == {3, 12, 21}
    assert set(met.values()) == {("target", 30, 5), (None, None, None)}
    assert not (tmp_path / "none").exists()
