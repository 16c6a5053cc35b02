"""The driver's way through a verification: long lanes are surveyed and cut, slices proved, and joined to verdicts.

    sizes  ->  surveys of long lanes  ->  slices and small lanes, largest first  ->  rows at borders  ->  verdicts

What a slice has shown is kept in the run's folder, so a run that is started again goes on.

The Spark tasks of a verification, wired: of a whole lane, or of one slice of a long one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.clock import now_ms
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.progress import EVERY_MS, LaneProgress, LaneStateName
from mirrorless.jobs.request import lane_file
from mirrorless.ports.stores import Chains, JobFiles
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.joining import JoinedLane, LanePart, joined
from mirrorless.verify.slice_proof import LaneVerification
from mirrorless.verify.slices import WHOLE, SlicedLane, VerifiedSlice, cut_lane, rows_to_close, slice_bytes
from mirrorless.verify.task import VerifyTask
from spark.jobs.clients import warm_batch_log, warm_log, warm_tables
from spark.jobs.context import lanes_at_a_time
from spark.jobs.driver import JobRun
from spark.jobs.lane_tasks import BYTES_OF_A_TASK, TaskAttempt, limit_garbage_collection, result_of, run_lanes
from spark.jobs.verify.results import (
    PARTS,
    SURVEYS,
    light,
    part_file,
    read_part,
    read_survey,
    survey_file,
    write_findings,
    write_part,
)


class SliceWork(msgspec.Struct, frozen=True, kw_only=True):
    """One slice to prove."""

    task: VerifyTask
    survey: SlicedLane | None = None
    """None for a lane that is proved whole: the task surveys it."""
    part: VerifiedSlice = WHOLE
    known: bool = False
    """Whether an earlier run may have proved it."""


class SurveyWork(msgspec.Struct, frozen=True, kw_only=True):
    """A long lane to cut."""

    task: VerifyTask
    most: int
    """Bytes of a slice."""


class SearchWork(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a lane in which contents are searched for."""

    task: VerifyTask
    survey: SlicedLane
    contents: set[bytes]
    surplus: set[int]
    within: OffsetRange


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """Where contents stand in a part of a lane, or why that is not known."""

    found: list[tuple[bytes, int]] = []
    """Content and downstream offset."""
    error: str = ""


class Surveyed(msgspec.Struct, frozen=True, kw_only=True):
    """The survey of a lane, or why there is none."""

    survey: SlicedLane | None
    error: str = ""


def survey_lane(work: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `SurveyWork`, from its JSON to that of a `Surveyed`.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error instead.
    """
    given = msgspec.json.decode(work, type=SurveyWork)
    return msgspec.json.encode(
        result_of(lambda: _surveyed(given), attempt, failed=lambda error: Surveyed(survey=None, error=error))
    )


def _surveyed(work: SurveyWork) -> Surveyed:
    task = work.task
    files = open_job_files(task.files)
    if (known := read_survey(files, task)) is not None:
        return Surveyed(survey=known)
    lane = _verification(task, _chains(task), _Notes(task, WHOLE))
    survey = lane.survey()
    slices = (WHOLE,) if survey.empty else cut_lane(lane.runs(survey), survey.windows(None), most=work.most)
    survey = msgspec.structs.replace(survey, slices=slices)
    if len(slices) > 1:
        files.write(survey_file(task), msgspec.json.encode(survey))
    return Surveyed(survey=survey)


def prove_slice(work: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `SliceWork`, from its JSON to that of a `LanePart`.

    What is proved is kept in the run's folder, and is not read again when the task is tried again.

    Raises:
        Retriable: Spark tries again; at the last attempt the part is `failed` instead.
    """
    limit_garbage_collection()
    given = msgspec.json.decode(work, type=SliceWork)
    return msgspec.json.encode(_proved(given, _chains(given.task), attempt))


def search_part(work: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `SearchWork`, from its JSON to that of a `Searched`.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error.
    """
    limit_garbage_collection()
    given = msgspec.json.decode(work, type=SearchWork)

    def search() -> Searched:
        lane = _verification(given.task, _chains(given.task), _Notes(given.task, WHOLE))
        found = lane.elsewhere(given.survey, given.contents, given.surplus, given.within)
        return Searched(found=list(found.items()))

    return msgspec.json.encode(result_of(search, attempt, failed=lambda error: Searched(error=error)))


def _proved(work: SliceWork, chains: Chains, attempt: TaskAttempt) -> LanePart:
    task, part = work.task, work.part
    files, notes = open_job_files(task.files), _Notes(task, part, alone=work.survey is None)
    began, cpu = time.monotonic(), time.process_time()

    def prove() -> LanePart:
        if (work.known or attempt.number) and (before := read_part(files, task, part.number)) is not None:
            notes.write("done", "proved before")
            return light(before)
        lane = _verification(task, chains, notes)
        found = _whole(lane) if work.survey is None else lane.prove(work.survey, part)
        verdict = found.verdict
        verdict.seconds, verdict.cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        found = write_part(files, task, found)
        notes.write("done", f"{verdict.counts.found} records are wrong" if verdict.counts.found else "")
        return found

    found = result_of(
        prove,
        attempt,
        failed=lambda error: failed_part(task, part.number, error),
        again=lambda error: notes.write("running", f"tried again by Spark: {error}"),
    )
    if found.state == "failed":
        notes.write("failed", found.error)
    return found


def failed_part(task: VerifyTask, number: int, error: str) -> LanePart:
    """The part of a slice that could not be proved."""
    verdict = LaneVerdict(lane=str(task.lane), topic=task.topic, partition=task.partition, state="failed", error=error)
    return LanePart(number=number, state="failed", error=error, verdict=verdict)


def _whole(lane: LaneVerification) -> LanePart:
    survey = lane.survey()
    whole = joined(lane.task, survey, [lane.prove(survey)])
    return LanePart(number=0, verdict=whole.end(lane.elsewhere(survey, *whole.strangers())))


def _chains(task: VerifyTask) -> DynamoDbChains:
    """Read anew in each task: what a warm one remembers may be old."""
    settings = task.settings
    tables = warm_tables(settings.target.region, settings.tables_role)
    return DynamoDbChains(tables, settings.tables.offset_map)


def _verification(task: VerifyTask, chains: Chains, notes: _Notes) -> LaneVerification:
    settings = task.settings
    source, target = msgspec.json.encode(settings.source), msgspec.json.encode(settings.target)
    tables = warm_tables(settings.target.region, settings.tables_role)
    return LaneVerification(
        task=task,
        chains=chains,
        ledger=DynamoDbLossLedger(tables, settings.tables.loss_ledger),
        target=warm_log(target, settings.flow),
        source=warm_log(source, settings.flow),
        target_batches=warm_batch_log(target, settings.flow),
        source_batches=warm_batch_log(source, settings.flow),
        note=notes,
    )


class _Notes:
    """Implements `mirrorless.verify.task.Note` in the run's folder."""

    def __init__(self, task: VerifyTask, part: VerifiedSlice, *, alone: bool = True) -> None:
        self._files = open_job_files(task.files)
        self._name = progress_file(task, None if alone else part.number)
        self._last = LaneProgress(lane=str(task.lane), state="running", at=now_ms())

    def __call__(self, phase: str, *, done: int, total: int, records: int, bytes: int) -> None:  # noqa: A002 -- the port's
        """See `Note`."""
        at = self._last.at
        self._last = msgspec.structs.replace(
            self._last, phase=phase, done=done, total=total, records=records, bytes=bytes
        )
        if now_ms() - at >= EVERY_MS:
            self.write("running")

    def write(self, state: LaneStateName, text: str = "") -> None:
        """Say it now."""
        self._last = msgspec.structs.replace(self._last, state=state, note=text, at=now_ms())
        with suppress(MirrorlessError):  # nothing depends on a note
            self._files.write(self._name, msgspec.json.encode(self._last))


def progress_file(task: VerifyTask, number: int | None) -> str:
    """The file with the progress of a lane, or of one of its slices."""
    whole = lane_file(task.topic, task.partition)
    return whole if number is None else f"{whole.removesuffix('.json')}#{number}.json"


AT_ONCE = 1_000
"""Lanes of one request for bounds or heads."""

RECORD_BYTES = 1_000
"""Of a record, where the newest run says nothing about it."""

UNSEARCHED = (
    "downstream offsets {within.first} to {within.next} could not be searched for the originals of unclaimed records, "
    "so a duplicated record may be counted as foreign; once the target answers, verify the lane again: {error}"
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
    known = {*run.files.names(f"{PARTS}/"), *run.files.names(f"{SURVEYS}/")}

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
            whole.verdict.unsorted = True
    return found


def _waiting(task: VerifyTask) -> LaneProgress:
    return LaneProgress(lane=str(task.lane), at=now_ms())
