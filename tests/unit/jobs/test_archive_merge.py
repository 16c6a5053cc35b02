"""Pieces of an archive, in whatever order and however they overlap, give each record once and in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.errors import ArchiveBroken
from mirrorless.jobs.archive import ArchivePiece, LaneSurvey, in_chunks, merged
from mirrorless.jobs.copy_task import CHUNK_RECORDS, OffsetRange
from mirrorless.records.record import Record


def record(offset: int, value: bytes = b"v") -> Record:
    return Record(offset=offset, timestamp=1_700_000_000_000 + offset, headers=[], key=b"k", value=value)


class Folder:
    """Pieces by name, and which of them are open."""

    def __init__(self, contents: Mapping[str, Sequence[int]], *, at_once: int = 3) -> None:
        self.contents, self.at_once = contents, at_once
        self.open: set[str] = set()
        self.most_open = 0

    def pieces(self) -> list[ArchivePiece]:
        """One for each name."""
        return [
            ArchivePiece(file=name, group=0, first=min(offsets), last=max(offsets), rows=len(offsets))
            for name, offsets in self.contents.items()
        ]

    def read(self, piece: ArchivePiece) -> Iterator[list[Record]]:
        """A piece's records, some at a time."""
        self.open.add(piece.file)
        self.most_open = max(self.most_open, len(self.open))
        offsets = self.contents[piece.file]
        for at in range(0, len(offsets), self.at_once):
            yield [record(offset) for offset in offsets[at : at + self.at_once]]
        self.open.discard(piece.file)

    def merged(self) -> list[int]:
        """The offsets that come out."""
        batches = merged(self.pieces(), self.read, where="archive orders-0")
        return [each.offset for batch in batches for each in batch]


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), max_size=8), st.integers(1, 7))
def test_whatever_the_pieces_hold_each_record_comes_once_in_order(contents: list[list[int]], at_once: int) -> None:
    folder = Folder({str(i): sorted(offsets) for i, offsets in enumerate(contents)}, at_once=at_once)

    assert folder.merged() == sorted({offset for offsets in contents for offset in offsets})


def test_of_files_that_follow_each_other_one_is_open_at_a_time() -> None:
    folder = Folder({f"{i}": range(i * 10, i * 10 + 10) for i in range(20)})

    assert folder.merged() == list(range(200))
    assert folder.most_open == 1


def test_of_files_that_overlap_a_little_two_are_open_at_a_time() -> None:
    folder = Folder({f"{i}": range(i * 10, i * 10 + 12) for i in range(20)})

    assert folder.merged() == list(range(202))
    assert folder.most_open == 2


def test_two_records_of_one_offset_are_refused_with_both_files() -> None:
    contents = {"a.parquet": [record(1), record(2)], "b.parquet": [record(2, b"another"), record(3)]}
    pieces = [
        ArchivePiece(file=name, group=0, first=each[0].offset, last=each[-1].offset, rows=2)
        for name, each in contents.items()
    ]

    with pytest.raises(
        ArchiveBroken, match=r"^/archive orders-0: .* upstream offset 2: one in a\.parquet, one in b\.parquet"
    ):
        list(merged(pieces, lambda piece: iter([contents[piece.file]]), where="/archive orders-0"))


def test_two_records_of_one_offset_in_one_file_are_refused() -> None:
    piece = ArchivePiece(file="a.parquet", group=0, first=1, last=1, rows=2)

    with pytest.raises(ArchiveBroken, match=r"offset 1: one in a\.parquet, one in a\.parquet"):
        list(merged([piece], lambda _: iter([[record(1)], [record(1, b"")]]), where="w"))


def test_the_last_chunk_covers_the_whole_range_also_behind_the_last_record() -> None:
    chunks = list(in_chunks([[record(1)], [], [record(5)]], OffsetRange(0, 9)))

    assert [(len(chunk.records), chunk.covered) for chunk in chunks] == [(2, 9)]
    assert [(chunk.records, chunk.covered) for chunk in in_chunks([], OffsetRange(3, 7))] == [([], 7)]


def test_a_chunk_ends_by_records_or_by_bytes() -> None:
    many = [record(offset) for offset in range(CHUNK_RECORDS + 1)]
    assert [len(chunk.records) for chunk in in_chunks([many], OffsetRange(0, 99_999))] == [CHUNK_RECORDS, 1]

    large = [record(offset, b"x" * 3_000_000) for offset in range(5)]
    chunks = list(in_chunks([large], OffsetRange(0, 5)))
    assert [(len(chunk.records), chunk.covered) for chunk in chunks] == [(3, 3), (2, 5)]


def test_a_survey_without_holes_has_nothing_to_say() -> None:
    assert not LaneSurvey(topic="orders", partition=3, first=5, next=9, records=4).what_is_missing


def test_a_survey_says_what_is_missing_and_that_the_cause_is_unknown() -> None:
    holes = tuple(OffsetRange(i * 10, i * 10 + 1) for i in range(10))
    survey = LaneSurvey(topic="orders", partition=3, next=1_000, records=990, missing=10, holes=holes, hole_count=10)

    assert survey.what_is_missing.startswith("10 of 1,000 offsets are not in the archive: [0, 1), [10, 11), ")
    assert "and 5 more" in survey.what_is_missing
    assert "does not show the difference" in survey.what_is_missing
