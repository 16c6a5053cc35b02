"""The driver's way through a verification: long lanes are surveyed and cut, slices proved, and joined to verdicts.

    sizes  ->  surveys of long lanes  ->  slices and small lanes, largest first  ->  rows at borders  ->  verdicts

What a slice has shown is kept in the run's folder, so a run that is started again goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.clock import now_ms
from mirrorless.jobs.progress import LaneProgress
from mirrorless.ports.stores import JobFiles
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.joining import JoinedLane, LanePart, joined
from mirrorless.verify.slices import WHOLE, SlicedLane, VerifiedSlice, rows_to_close, slice_bytes
from mirrorless.verify.task import VerifyTask
from spark.jobs.context import lanes_at_a_time
from spark.jobs.driver import JobRun
from spark.jobs.lane_tasks import BYTES_OF_A_TASK, run_lanes
from spark.jobs.verify.results import PARTS, SURVEYS, part_file, read_part, survey_file, write_findings
from spark.jobs.verify.tasks import (
    Searched,
    SearchWork,
    SliceWork,
    Surveyed,
    SurveyWork,
    failed_part,
    progress_file,
    prove_slice,
    search_part,
    survey_lane,
)

AT_ONCE = 1_000
"""Lanes of one request for bounds or heads."""

RECORD_BYTES = 1_000
"""Of a record, where the newest run says nothing about it."""

UNSEARCHED = (
    "downstream offsets {within.first} to {within.next} could not be searched for the originals of unclaimed records, "
    "so a duplicated record may be listed as different; once the target answers, verify the lane again: {error}"
)


@dataclass(slots=True, kw_only=True)
class _Lane:
    task: VerifyTask
    size: int
    survey: SlicedLane | None = None
    """None for a lane that is proved whole."""
    parts: list[LanePart] = field(default_factory=list)


def verdicts_of(run: JobRun, tasks: Sequence[VerifyTask]) -> list[LaneVerdict]:
    """The verdict on each lane, in the order of the tasks.

    Raises:
        Retriable: the target or the store does not answer.
        Exception: of Spark, when a worker died at a task's last attempt.
    """
    if not tasks:
        return []
    run.expect({progress_file(each, None): _waiting(each) for each in tasks})
    lanes = [_Lane(task=task, size=size) for task, size in zip(tasks, lane_sizes(tasks), strict=True)]
    most = slice_bytes(sum(each.size for each in lanes), lanes_at_a_time(run.context))
    known = {*run.files.names(PARTS), *run.files.names(SURVEYS)}

    run.phase = "survey"
    _survey(run, lanes, most, known)
    run.phase = "read"
    _prove(run, lanes, known)
    run.phase = "join"
    return [_verdict(run.files, run.context, lane) for lane in lanes]


def lane_sizes(tasks: Sequence[VerifyTask]) -> list[int]:
    """The bytes of each lane's copy, about: by the length of its log, and the records of its newest run."""
    settings = tasks[0].settings
    offsets = KafkaOffsets(settings.target, flow=settings.flow)
    chains = DynamoDbChains(
        dynamodb_client(settings.target.region, settings.tables_role, direct=True), settings.tables.offset_map
    )
    sizes: list[int] = []
    for first in range(0, len(tasks), AT_ONCE):
        some = tasks[first : first + AT_ONCE]
        places = [(settings.remote_topic(each.topic), each.partition) for each in some]
        extents = offsets.extents(places)
        heads = chains.heads([each.lane for each in some])
        for task, place in zip(some, places, strict=True):
            extent, newest = extents.get(place), heads[task.lane].run
            records = 0 if extent is None else extent.end - extent.start
            sizes.append(records * (newest.bytes // newest.records if newest and newest.records else RECORD_BYTES))
    return sizes


def _survey(run: JobRun, lanes: Sequence[_Lane], most: int, known: set[str]) -> None:
    """Cut long lanes; one that cannot be surveyed has failed."""
    # One whose older records are larger than its newest is longer than it seems, and is proved whole all the same.
    long = [each for each in lanes if each.size > most or survey_file(each.task) in known]
    work = [msgspec.json.encode(SurveyWork(task=each.task, most=most)) for each in long]
    for lane, answer in zip(long, run_lanes(run.context, survey_lane, work), strict=True):
        found = msgspec.json.decode(answer, type=Surveyed)
        if found.survey is None:
            lane.parts.append(failed_part(lane.task, 0, found.error))
        elif len(found.survey.slices) > 1:
            lane.survey = found.survey


def _prove(run: JobRun, lanes: Sequence[_Lane], known: set[str]) -> None:
    """Prove every lane and slice, the largest first; then rows of wrong runs at borders."""

    def one(lane: _Lane, part: VerifiedSlice) -> tuple[_Lane, SliceWork]:
        before = part_file(lane.task, part.number) in known
        return lane, SliceWork(task=lane.task, survey=lane.survey, part=part, known=before)

    work: list[tuple[int, tuple[_Lane, SliceWork]]] = []
    for lane in lanes:
        if lane.survey is not None:
            work += [(each.bytes, one(lane, each)) for each in lane.survey.slices]
        elif not lane.parts:
            work.append((lane.size, one(lane, WHOLE)))
    work.sort(key=lambda each: -each[0])
    _run(run, [each for _, each in work], [size for size, _ in work])
    rows = [
        one(lane, row)
        for lane in lanes
        if lane.survey is not None and all(part.state == "done" for part in lane.parts)
        for row in rows_to_close(
            lane.survey.slices, [(part.before, part.after) for part in sorted(lane.parts, key=lambda each: each.number)]
        )
    ]
    _run(run, rows, [BYTES_OF_A_TASK] * len(rows))


def _run(run: JobRun, work: Sequence[tuple[_Lane, SliceWork]], sizes: Sequence[int]) -> None:
    run.expect(
        {
            progress_file(each.task, None if each.survey is None else each.part.number): _waiting(each.task)
            for _, each in work
        }
    )
    answers = run_lanes(run.context, prove_slice, [msgspec.json.encode(each) for _, each in work], sizes=sizes)
    for (lane, _), answer in zip(work, answers, strict=True):
        lane.parts.append(msgspec.json.decode(answer, type=LanePart))


def _verdict(files: JobFiles, context: SparkContext, lane: _Lane) -> LaneVerdict:
    if lane.survey is None:
        return lane.parts[0].verdict
    whole = joined(lane.task, lane.survey, [_with_left(files, lane.task, each) for each in lane.parts])
    before = len(whole.verdict.findings)
    verdict = whole.end(_elsewhere(context, lane.task, lane.survey, whole))
    write_findings(files, lane.task, "joined", verdict.findings[before:])
    verdict.show()
    return verdict


def _with_left(files: JobFiles, task: VerifyTask, part: LanePart) -> LanePart:
    """A part with its records that have no partner."""
    return (read_part(files, task, part.number) or part) if part.left_count else part


def _elsewhere(context: SparkContext, task: VerifyTask, survey: SlicedLane, whole: JoinedLane) -> dict[bytes, int]:
    """Where else in the lane the contents of unclaimed records stand, searched slice by slice.

    What could not be searched is a note of the verdict: a kind of fault is less certain then, and none is lost.
    """
    contents, surplus = whole.strangers()
    if not contents:
        return {}
    work = [
        SearchWork(task=task, survey=survey, contents=contents, surplus=surplus, within=survey.reach(each))
        for each in survey.slices
    ]
    found: dict[bytes, int] = {}
    for each, answer in zip(
        work, run_lanes(context, search_part, [msgspec.json.encode(each) for each in work]), strict=True
    ):
        searched = msgspec.json.decode(answer, type=Searched)
        for content, offset in searched.found:
            found.setdefault(content, offset)
        if searched.error:
            whole.verdict.note(UNSEARCHED.format(within=each.within, error=searched.error))
    return found


def _waiting(task: VerifyTask) -> LaneProgress:
    return LaneProgress(lane=str(task.lane), at=now_ms())
