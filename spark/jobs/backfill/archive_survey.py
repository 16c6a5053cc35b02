"""The survey of an archive: the offsets that it has of each lane, and the missing ones, before anything is copied.

Only offsets and timestamps are read. Each lane is a Spark task.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

import msgspec
import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from mirrorless.adapters.archive import ParquetArchive, open_archive
from mirrorless.errors import ArchiveBroken, Retriable
from mirrorless.jobs.archive import HOLES, ArchivePiece, LaneSurvey, Survey
from mirrorless.jobs.copy_task import OffsetRange
from spark.jobs.lane_tasks import TaskAttempt, run_lanes

Offsets = npt.NDArray[np.int64]


class _SurveyTask(msgspec.Struct, frozen=True):
    archive: str
    topic: str
    partition: int
    wanted: OffsetRange


class _SurveyResult(msgspec.Struct, frozen=True):
    survey: LaneSurvey | None = None
    error: str = ""
    where: str = ""
    hint: str = ""
    retriable: bool = False


def survey_archive(
    context: SparkContext, archive: str, wanted: Mapping[tuple[str, int], OffsetRange]
) -> dict[tuple[str, int], LaneSurvey]:
    """Survey ranges of lanes.

    Raises:
        ArchiveBroken: a file is no file of an archive.
        Retriable: the store did not answer in any attempt of Spark.
    """
    tasks = [msgspec.json.encode(_SurveyTask(archive, *lane, offsets)) for lane, offsets in wanted.items()]
    answers = [msgspec.json.decode(each, type=_SurveyResult) for each in run_lanes(context, survey_work, tasks)]
    found = {}
    for lane, answer in zip(wanted, answers, strict=True):
        if answer.survey is None:
            kind = Retriable if answer.retriable else ArchiveBroken
            raise kind(answer.error, where=answer.where, hint=answer.hint)
        found[lane] = answer.survey
    return found


def surveyor(context: SparkContext, archive: str) -> Survey:
    """A survey by Spark that counts each range once: a job plans twice."""
    known: dict[tuple[tuple[str, int], OffsetRange], LaneSurvey] = {}

    def survey(wanted: Mapping[tuple[str, int], OffsetRange]) -> Mapping[tuple[str, int], LaneSurvey]:
        new = {lane: offsets for lane, offsets in wanted.items() if (lane, offsets) not in known}
        found = survey_archive(context, archive, new)
        known.update({(lane, new[lane]): each for lane, each in found.items()})
        return {lane: known[lane, offsets] for lane, offsets in wanted.items()}

    return survey


def survey_work(task: bytes, attempt: TaskAttempt) -> bytes:
    """Survey one lane, from JSON to JSON: the work that `run_lanes` sends."""
    wanted = msgspec.json.decode(task, type=_SurveyTask)
    try:
        answer = _SurveyResult(survey_lane(open_archive(wanted.archive), wanted.topic, wanted.partition, wanted.wanted))
    except (ArchiveBroken, Retriable) as exc:
        if exc.retriable and not attempt.last:
            raise
        answer = _SurveyResult(error=exc.what, where=exc.where, hint=exc.hint, retriable=exc.retriable)
    return msgspec.json.encode(answer)


def survey_lane(archive: ParquetArchive, topic: str, partition: int, wanted: OffsetRange) -> LaneSurvey:
    """Count a lane's offsets in a range, piece after piece; in memory are those of the pieces that overlap here.

    Raises:
        ArchiveBroken: a file is no file of an archive.
        Retriable: the store does not answer.
    """
    extent = archive.bounds(topic, partition)
    requested = OffsetRange(max(wanted.first, extent.first), min(wanted.next, extent.next))
    if requested.first >= requested.next:
        return LaneSurvey(topic=topic, partition=partition)
    pieces = sorted(archive.inside(topic, partition, requested), key=lambda piece: piece.first)
    count = _Count(requested.first)
    waiting = np.empty(0, np.int64)
    size, clusters = 0, set[str]()
    oldest: list[int] = []
    newest: list[int] = []
    for piece, following in zip_longest(pieces, pieces[1:]):
        offsets, times = _read(archive, piece, (topic, partition), requested)
        count.rows += len(offsets)
        if len(times):
            oldest.append(int(times.min()))
            newest.append(int(times.max()))
        waiting = np.union1d(waiting, offsets)
        cut = len(waiting) if following is None else int(np.searchsorted(waiting, following.first))
        count.add(waiting[:cut])
        waiting = waiting[cut:]
        added, named = archive.footprint(piece)
        size, clusters = size + added, clusters | named
    count.end(requested.next)
    return LaneSurvey(
        topic=topic,
        partition=partition,
        first=requested.first,
        next=requested.next,
        records=count.records,
        copies=count.rows - count.records,
        missing=requested.next - requested.first - count.records,
        holes=tuple(count.holes),
        hole_count=count.hole_count,
        oldest=min(oldest, default=-1),
        newest=max(newest, default=-1),
        bytes=size * count.records // max(1, count.rows),
        clusters=tuple(sorted(clusters)),
    )


def _read(
    archive: ParquetArchive, piece: ArchivePiece, lane: tuple[str, int], wanted: OffsetRange
) -> tuple[Offsets, Offsets]:
    """The offsets, and the timestamps of records that have one."""
    table = archive.rows(piece, *lane, ("timestamp_ms",))
    offsets: Offsets = table["offset"].to_numpy().astype(np.int64)
    requested = (offsets >= wanted.first) & (offsets < wanted.next)
    times: Offsets = table["timestamp_ms"].fill_null(-1).to_numpy().astype(np.int64)
    return offsets[requested], times[requested & (times >= 0)]


class _Count:
    """Distinct offsets, added in growing slices, and the holes between them."""

    def __init__(self, first: int) -> None:
        self.rows = self.records = self.hole_count = 0
        self.holes: list[OffsetRange] = []
        self._next = first

    def add(self, offsets: Offsets) -> None:
        """Count the next slice."""
        if not len(offsets):
            return
        before: Offsets = np.concatenate((np.array([self._next - 1], np.int64), offsets[:-1]))
        at = np.flatnonzero(offsets - before > 1)
        self.hole_count += len(at)
        for index in at[: HOLES - len(self.holes)]:
            self.holes.append(OffsetRange(int(before[index]) + 1, int(offsets[index])))
        self.records += len(offsets)
        self._next = int(offsets[-1]) + 1

    def end(self, following: int) -> None:
        """Count the hole behind the last one."""
        if self._next < following:
            self.hole_count += 1
            self.holes = [*self.holes, OffsetRange(self._next, following)][:HOLES]
