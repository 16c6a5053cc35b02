"""An archive gives a lane's records back as they were, from disk and from S3, however its files are cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrorless.adapters.archive import ArchiveLog, ParquetArchive, S3ArchiveFiles, open_archive
from mirrorless.adapters.aws.job_files import s3_client
from mirrorless.clock import deadline_in
from mirrorless.errors import ArchiveBroken, ConfigurationError, Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.log import Arrivals
from mirrorless.records.record import Record
from spark.jobs.backfill.archive_survey import survey_lane
from tests.support.archives import rows_of, write_archive, write_file

BUCKET = "archive-of-topics"
ALL = OffsetRange(0, 10**9)

ODD = [
    Record(0, 1_600_000_000_000, [], None, b"no key"),
    Record(1, 1_600_000_000_001, [], b"", b""),
    Record(2, 1, [], b"k", None),
    Record(3, -1, [("h", b"\xff\x00"), ("h", None), ("h", b""), ("", b"1")], b"\x00\xff", bytes(range(256))),
    Record(4, 9_999_999_999_999, [("ünï", b"x")], b"k", b"v"),
]


def plain(count: int, first: int = 0) -> list[Record]:
    return [
        Record(n, 1_600_000_000_000 + n, [("n", b"%d" % n)], b"k%d" % (n % 7), b"v%d" % n)
        for n in range(first, first + count)
    ]


@pytest.fixture(params=["disk", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ParquetArchive]:
    """Opens what the test has written below `tmp_path`."""
    if request.param == "disk":
        return lambda: open_archive(str(tmp_path))
    client = request.getfixturevalue("s3")

    def upload() -> ParquetArchive:
        for path in tmp_path.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), BUCKET, f"raw/{path.relative_to(tmp_path).as_posix()}")
        return open_archive(f"s3://{BUCKET}/raw/")

    return upload


def read(archive: ParquetArchive, topic: str, partition: int, first: int = 0, following: int = 10**9) -> list[Record]:
    chunks = list(archive.read(topic, partition, OffsetRange(first, following), deadline_in(60)))
    assert chunks[-1].covered == following
    return [record for chunk in chunks for record in chunk.records]


def test_records_come_back_byte_for_byte(tmp_path: Path, opened: Callable[[], ParquetArchive]) -> None:
    write_archive(tmp_path, rows_of("orders", 3, ODD), group=2)

    assert read(opened(), "orders", 3) == ODD


def test_a_lane_is_found_among_others(tmp_path: Path, opened: Callable[[], ParquetArchive]) -> None:
    lanes = [("orders", 0), ("orders", 1), ("orders.eu", 0), ("payments", 0)]
    write_archive(tmp_path, [row for lane in lanes for row in rows_of(*lane, plain(10, first=len(lane[0])))])
    archive = opened()

    assert archive.lanes() == {"orders": (0, 1), "orders.eu": (0,), "payments": (0,)}
    assert read(archive, "orders.eu", 0) == plain(10, first=9)
    assert archive.bounds("orders", 1, deadline_in(9)) == OffsetRange(6, 16)
    assert archive.bounds("orders", 2, deadline_in(9)) == OffsetRange(0, 0)
    assert read(archive, "orders", 2) == []


@pytest.mark.parametrize("statistics", [True, False])
def test_files_that_mix_lanes_in_any_order_are_sorted_out(tmp_path: Path, statistics: bool) -> None:  # noqa: FBT001 -- a parameter of pytest
    rows = [*rows_of("orders", 0, plain(300)), *rows_of("orders", 1, plain(200, first=50)), *rows_of("other", 0, ODD)]
    random.Random(7).shuffle(rows)
    for at in range(0, len(rows), 100):
        write_file(tmp_path / f"{at}.parquet", rows[at : at + 100], group=30, statistics=statistics)
    archive = open_archive(str(tmp_path))

    assert archive.lanes() == {"orders": (0, 1), "other": (0,)}
    assert read(archive, "orders", 0) == plain(300)
    assert read(archive, "orders", 1, 60, 70) == plain(10, first=60)
    assert read(archive, "other", 0) == ODD


def test_a_range_is_read_and_no_file_beside_it(tmp_path: Path) -> None:
    write_archive(tmp_path, rows_of("orders", 0, plain(1_000)), per_file=100, group=10)
    archive = open_archive(str(tmp_path))
    assert archive.bounds("orders", 0, deadline_in(9)) == OffsetRange(0, 1_000)
    for path in sorted(tmp_path.rglob("*.parquet"))[5:]:
        path.unlink()

    assert read(archive, "orders", 0, 395, 500) == plain(105, first=395)
    with pytest.raises(Retriable, match=r"00500\.parquet: the file cannot be read"):
        read(archive, "orders", 0, 495, 505)


def test_an_archive_is_a_log_whose_lanes_come_in_turn_each_to_the_end_of_what_is_wanted(tmp_path: Path) -> None:
    one, other = ("orders", 0), ("orders", 1)
    write_archive(tmp_path, [row for lane in (one, other) for row in rows_of(*lane, plain(5))])
    log, found = ArchiveLog(open_archive(str(tmp_path))), Arrivals()

    log.follow({one: 1, other: 0}, {one: 4, other: 9})
    for lanes in (1, 2, 2):
        found.add(log.arrivals(0.0, records=1, size=1))
        assert len(found.covered) == lanes
    log.follow({one: 0}, {one: 5})
    log.leave([one])

    assert not log.arrivals(0.0, records=1, size=1)
    assert (found.records, found.covered) == ({one: plain(3, first=1), other: plain(5)}, {one: 4, other: 9})


def test_what_was_archived_twice_is_read_once(tmp_path: Path) -> None:
    for name, records in {"a": plain(60), "b": plain(60, first=40), "c": plain(60, first=40), "d": plain(5)}.items():
        write_file(tmp_path / f"{name}.parquet", rows_of("orders", 0, records), group=25)
    archive = open_archive(str(tmp_path))

    assert read(archive, "orders", 0) == plain(100)
    survey = survey_lane(archive, "orders", 0, ALL)
    assert (survey.records, survey.copies, survey.missing) == (100, 85, 0)


def test_a_survey_finds_every_hole(tmp_path: Path, opened: Callable[[], ParquetArchive]) -> None:
    kept = [record for record in plain(1_000, first=100) if record.offset not in {150, 151, 599, 600, 1_000}]
    write_archive(tmp_path, rows_of("orders", 0, kept), per_file=500, group=100)
    survey = survey_lane(opened(), "orders", 0, ALL)

    assert (survey.first, survey.next, survey.records, survey.missing) == (100, 1_100, 995, 5)
    assert survey.holes == (OffsetRange(150, 152), OffsetRange(599, 601), OffsetRange(1_000, 1_001))
    assert (survey.oldest, survey.newest) == (1_600_000_000_100, 1_600_000_001_099)
    assert survey.clusters == ("us-east",)
    assert 5_000 < survey.bytes < 100_000


@pytest.mark.parametrize(
    ("missing", "wanted", "records", "holes"),
    [
        pytest.param([10, 50, 90], (45, 60), (45, 60), [(50, 51)], id="no hole beside it"),
        pytest.param([*range(40, 50), *range(60, 80)], (45, 70), (50, 60), [(45, 50), (60, 70)], id="at its ends"),
        pytest.param([*range(60, 80)], (60, 70), (0, 0), [(60, 70)], id="all of it, and no file reaches into it"),
    ],
)
def test_a_survey_of_a_range_finds_the_holes_in_it(
    tmp_path: Path, missing: list[int], wanted: tuple[int, int], records: tuple[int, int], holes: list[tuple[int, int]]
) -> None:
    kept = [record for record in plain(100) if record.offset not in missing]
    write_archive(tmp_path, rows_of("orders", 0, kept), per_file=20, group=10)

    survey = survey_lane(open_archive(str(tmp_path)), "orders", 0, OffsetRange(*wanted))

    assert ((survey.first, survey.next), survey.holes) == (wanted, tuple(OffsetRange(*hole) for hole in holes))
    assert survey.missing == sum(following - first for first, following in holes)
    assert survey.records == wanted[1] - wanted[0] - survey.missing
    times = tuple(1_600_000_000_000 + n for n in (records[0], records[1] - 1)) if survey.records else (-1, -1)
    assert (survey.oldest, survey.newest) == times


def test_a_survey_of_a_lane_that_is_not_there_is_empty(tmp_path: Path) -> None:
    write_archive(tmp_path, rows_of("orders", 0, ODD))
    survey = survey_lane(open_archive(str(tmp_path)), "orders", 7, ALL)

    assert (survey.first, survey.next, survey.records, survey.what_is_missing) == (0, 0, 0, "")


def test_a_time_is_found_by_its_first_record(tmp_path: Path) -> None:
    records = [Record(n, time, [], b"", b"") for n, time in enumerate([10, 30, 20, 40, -1, 50])]
    write_archive(tmp_path, rows_of("orders", 0, records), per_file=2)
    archive = open_archive(str(tmp_path))

    found = {time: archive.offset_at("orders", 0, time) for time in (0, 11, 31, 45, 51)}
    assert found == {0: 0, 11: 1, 31: 3, 45: 5, 51: None}


def test_hidden_files_and_those_of_unfinished_writes_are_no_part_of_it(
    tmp_path: Path, opened: Callable[[], ParquetArchive]
) -> None:
    write_archive(tmp_path, rows_of("orders", 0, ODD))
    for name in ("_temporary/0/x.parquet", ".x.parquet", "_SUCCESS", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no Parquet")

    assert read(opened(), "orders", 0) == ODD


def test_a_file_that_is_cut_off_is_named(tmp_path: Path, opened: Callable[[], ParquetArchive]) -> None:
    write_file(tmp_path / "a.parquet", rows_of("orders", 0, plain(100)))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-20])

    with pytest.raises(ArchiveBroken, match=r"a\.parquet: this is no whole Parquet file"):
        opened().bounds("orders", 0, deadline_in(9))


@pytest.mark.parametrize("column", ["topic", "offset", "timestamp_ms", "headers"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    write_file(tmp_path / "a.parquet", rows_of("orders", 0, ODD), without=[column])

    with pytest.raises(ArchiveBroken, match=rf"a\.parquet: the file has no column {column}"):
        open_archive(str(tmp_path)).bounds("orders", 0, deadline_in(9))


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", rows_of("orders", 0, ODD))
    table = pq.read_table(tmp_path / "a.parquet")
    times = table["timestamp_ms"].cast(pa.timestamp("ms"))
    pq.write_table(table.set_column(4, "timestamp_ms", times), tmp_path / "a.parquet")

    with pytest.raises(ArchiveBroken, match=r"column timestamp_ms is timestamp\[ms\], not bigint"):
        open_archive(str(tmp_path)).lanes()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        open_archive(str(tmp_path / "nowhere")).lanes()


def test_s3_that_fails_in_the_middle_of_a_file_can_be_tried_again(tmp_path: Path, s3: Any) -> None:
    write_archive(tmp_path, rows_of("orders", 0, plain(100)))
    (path,) = tmp_path.rglob("*.parquet")
    s3.upload_file(str(path), BUCKET, f"raw/{path.relative_to(tmp_path).as_posix()}")
    client = s3_client()
    archive = ParquetArchive(S3ArchiveFiles(BUCKET, "raw", client=client))
    archive.pieces("orders", 0)
    s3.delete_object(Bucket=BUCKET, Key=f"raw/{path.relative_to(tmp_path).as_posix()}")

    with pytest.raises(Retriable, match=r"s3://archive-of-topics/raw/.*: S3 refused to read the archive"):
        read(archive, "orders", 0)
