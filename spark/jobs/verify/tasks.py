"""The Spark tasks of a verification, wired: of a whole lane, or of one slice of a long one."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.clock import now_ms
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.progress import EVERY_MS, LaneProgress, LaneStateName
from mirrorless.jobs.request import lane_file
from mirrorless.ports.stores import Chains
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.joining import LanePart, joined
from mirrorless.verify.lane_verification import LaneVerification
from mirrorless.verify.slices import WHOLE, SlicedLane, VerifiedSlice, cut_lane
from mirrorless.verify.task import VerifyTask
from spark.jobs.clients import warm_batch_log, warm_log, warm_tables
from spark.jobs.lane_tasks import TaskAttempt, limit_garbage_collection, result_of
from spark.jobs.verify.results import light, read_part, read_survey, survey_file, write_part


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
