"""The driver's way through a verification, and its Spark tasks, wired: each does one part of a lane, or a whole one.

    sizes  ->  surveys of long lanes  ->  sections and small lanes, largest first  ->  portions of what is open
           ->  searches for what no run claims  ->  verdicts  ->  keys of compacted lanes

What a part has shown is kept in the run's folder, so a run that is started again goes on:

    parts/<lane>#<part>.json            what was found in a part
    findings/<lane>#<part>.parquet      its findings, where it has some
    lanes.parquet                       the counts of every lane
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.replicator import kept_rules
from mirrorless.clock import now_ms
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.progress import EVERY_MS, LaneProgress, LaneStateName
from mirrorless.jobs.request import lane_file
from mirrorless.ports.stores import JobFiles
from mirrorless.verify.explanation import LeftOvers
from mirrorless.verify.findings import Counts, Finding, LaneVerdict
from mirrorless.verify.lane import LaneVerification
from mirrorless.verify.parts import (
    WHOLE,
    JoinedLane,
    LaneKeys,
    LanePart,
    LaneSection,
    OpenPortion,
    Search,
    SurveyedLane,
    VerifyTask,
    portions_of,
    section_bytes,
)
from spark.jobs.clients import warm_batch_log, warm_log, warm_tables
from spark.jobs.context import lanes_at_a_time
from spark.jobs.driver import JobRun
from spark.jobs.lane_tasks import BYTES_OF_A_TASK, TaskAttempt, limit_garbage_collection, result_of, run_lanes
from spark.jobs.parquet_rows import write_rows

if TYPE_CHECKING:
    import pyarrow as pa


PARTS: Final = "parts"
LANES: Final = "lanes.parquet"


def part_file(task: VerifyTask, name: str) -> str:
    """The name of the file with what was found in a part."""
    return lane_file(task.topic, task.partition, PARTS, end=f"#{name}.json")


def write_part(files: JobFiles, task: VerifyTask, part: LanePart) -> LanePart:
    """Keep what was found in a part; what the driver needs of it.

    Raises:
        Retriable: the folder's store does not take it.
    """
    write_findings(files, task, part.name, part.verdict.findings)
    part.verdict.show()
    part.left_count = len(part.left)
    files.write(part_file(task, part.name), msgspec.json.encode(part))
    return light(part)


def light(part: LanePart) -> LanePart:
    """A part without its records that have no partner: the folder has them."""
    return msgspec.structs.replace(part, left=LeftOvers())


def read_part(files: JobFiles, task: VerifyTask, name: str) -> LanePart | None:
    """What was found in a part before; None where it was not done yet."""
    text = files.read(part_file(task, name))
    return None if text is None else msgspec.json.decode(text, type=LanePart)


def write_findings(files: JobFiles, task: VerifyTask, name: str, findings: Sequence[Finding]) -> None:
    """Write findings of a lane, where there are some. Args: name: what they are of, unique in the lane."""
    if not findings:
        return
    rows = [
        {
            "topic": task.topic,
            "partition": task.partition,
            "kind": each.kind,
            "generation": each.generation,
            "upstream_first": None if each.upstream is None else each.upstream.first,
            "upstream_next": None if each.upstream is None else each.upstream.next,
            "downstream_first": None if each.downstream is None else each.downstream.first,
            "downstream_next": None if each.downstream is None else each.downstream.next,
            "records": each.records,
            "what": each.what,
        }
        for each in findings
    ]
    write_rows(
        files, lane_file(task.topic, task.partition, "findings", end=f"#{name}.parquet"), rows, _findings_schema()
    )


def write_lanes(files: JobFiles, verdicts: Sequence[LaneVerdict]) -> None:
    """Write the counts of every lane."""
    plain = (
        "topic",
        "partition",
        "state",
        "error",
        "generation",
        "position",
        "read",
        "bytes",
        "seconds",
        "cpu_seconds",
    )
    rows = [
        {name: getattr(each, name) for name in plain}
        | msgspec.to_builtins(each.counts)
        | {"notes": "; ".join(each.notes)}
        for each in verdicts
    ]
    write_rows(files, LANES, rows, _lanes_schema())


def _findings_schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 -- where there are rows

    offsets = ("upstream_first", "upstream_next", "downstream_first", "downstream_next")
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("kind", pa.string()),
            ("generation", pa.int64()),
            *((name, pa.int64()) for name in offsets),
            ("records", pa.int64()),
            ("what", pa.string()),
        ]
    )


def _lanes_schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 -- where there are rows

    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("state", pa.string()),
            ("error", pa.string()),
            *((name, pa.int64()) for name in ("generation", "position", "read", "bytes")),
            *((name, pa.float64()) for name in ("seconds", "cpu_seconds")),
            *((name, pa.int64()) for name in Counts.__struct_fields__),
            ("notes", pa.string()),
        ]
    )


class LaneToCut(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A long lane to cut."""

    most: int
    """Bytes of a section."""

    @property
    def name(self) -> str:
        """See `LaneSection`."""
        return "survey"


AnyPart = LaneToCut | LaneSection | OpenPortion | Search | LaneKeys


class PartWork(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a lane to do."""

    task: VerifyTask
    part: AnyPart
    survey: SurveyedLane | None = None
    """Of a long lane, behind its survey; a task that has none verifies the lane whole, or its keys."""
    known: bool = False
    """Whether an earlier run may have done it."""


def do_part(work: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `PartWork`, from its JSON to that of a `LanePart`.

    What is done is kept in the run's folder, and is not read again when the task is tried again.

    Raises:
        Retriable: Spark tries again; at the last attempt the part has failed instead.
    """
    limit_garbage_collection()
    given = msgspec.json.decode(work, type=PartWork)
    return msgspec.json.encode(_done(given, attempt))


def _done(work: PartWork, attempt: TaskAttempt) -> LanePart:
    task, part = work.task, work.part
    files, name = open_job_files(task.files), progress_file(work)
    notes = TaskNotes(str(task.lane), files, name)
    began, cpu = time.monotonic(), time.process_time()

    def do() -> LanePart:
        if (work.known or attempt.number) and (before := read_part(files, task, part.name)) is not None:
            notes.write("done", "proved before")
            return light(before)
        found = _found(work, _verification(task, notes))
        verdict = found.verdict
        verdict.seconds, verdict.cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        found = write_part(files, task, found)
        notes.write("done", f"{verdict.counts.found} records are wrong" if verdict.counts.found else "")
        return found

    found = result_of(
        do,
        attempt,
        failed=lambda error: LanePart(name=part.name, verdict=_verdict(task, state="failed", error=error)),
        again=lambda error: notes.write("running", f"tried again by Spark: {error}"),
    )
    if found.verdict.state == "failed":
        notes.write("failed", found.verdict.error)
    return found


def _found(work: PartWork, lane: LaneVerification) -> LanePart:
    match work.part:
        case LaneToCut() as part:
            return LanePart(name=part.name, verdict=_verdict(work.task), survey=lane.survey(most=part.most))
        case LaneKeys() as part:
            return lane.keys(part)
        case part if work.survey is None:
            return LanePart(name=part.name, verdict=lane.verify())
        case part:
            return lane.do(work.survey, part)


def _verdict(task: VerifyTask, **how: Any) -> LaneVerdict:
    return LaneVerdict(lane=str(task.lane), topic=task.topic, partition=task.partition, **how)


def _verification(task: VerifyTask, notes: TaskNotes) -> LaneVerification:
    settings = task.settings
    source, target = msgspec.json.encode(settings.source), msgspec.json.encode(settings.target)
    tables = warm_tables(settings.target.region, settings.tables_role)
    return LaneVerification(
        task=task,
        chains=DynamoDbChains(tables, settings.tables.offset_map),  # anew: what a warm one remembers may be old
        ledger=DynamoDbLossLedger(tables, settings.tables.loss_ledger),
        target=warm_log(target, settings.flow),
        source=warm_log(source, settings.flow),
        rules=lambda rule: kept_rules(settings, tables).by_id(task.topic, rule),
        target_batches=warm_batch_log(target, settings.flow),
        source_batches=warm_batch_log(source, settings.flow),
        note=notes,
    )


class TaskNotes:
    """Implements `mirrorless.verify.parts.Note` in the run's folder."""

    def __init__(self, lane: str, files: JobFiles, name: str) -> None:
        """Args: lane: its name. files: the folder. name: of the file."""
        self._files, self._name = files, name
        self._last = LaneProgress(lane=lane, state="running", at=now_ms())

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


def progress_file(work: PartWork) -> str:
    """The file with the progress of a lane, or of one part of it."""
    whole = lane_file(work.task.topic, work.task.partition)
    apart = work.survey is not None or isinstance(work.part, LaneKeys)
    return f"{whole.removesuffix('.json')}#{work.part.name}.json" if apart else whole


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
    survey: SurveyedLane | None = None
    """None for a lane that is proved whole."""
    parts: list[LanePart] = field(default_factory=list)
    """Of both passes, in order."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Does parts of lanes by Spark."""

    run: JobRun
    known: set[str]
    """The files of parts that an earlier run has done."""

    def do(self, work: Sequence[tuple[_Lane, AnyPart, int]]) -> Iterator[tuple[_Lane, LanePart]]:
        """Each part done, in its order; begun with the largest. Args: work: with the bytes of each."""
        largest_first = sorted(range(len(work)), key=lambda number: -work[number][2])
        pieces = [
            PartWork(
                task=lane.task,
                part=part,
                survey=lane.survey,
                known=part_file(lane.task, part.name) in self.known,
            )
            for lane, part, _ in (work[number] for number in largest_first)
        ]
        self.run.expect({progress_file(each): _waiting(each.task) for each in pieces})
        answers = run_lanes(
            self.run.context,
            do_part,
            [msgspec.json.encode(each) for each in pieces],
            sizes=[work[number][2] for number in largest_first],
        )
        for number, answer in sorted(zip(largest_first, answers, strict=True)):
            yield work[number][0], msgspec.json.decode(answer, type=LanePart)


def verdicts_of(run: JobRun, tasks: Sequence[VerifyTask]) -> list[LaneVerdict]:
    """The verdict on each lane, in the order of the tasks.

    Raises:
        Retriable: the target or the store does not answer.
        Exception: of Spark, when a worker died at a task's last attempt.
    """
    if not tasks:
        return []
    run.expect({lane_file(each.topic, each.partition): _waiting(each) for each in tasks})
    lanes = [_Lane(task=task, size=size) for task, size in zip(tasks, lane_sizes(tasks), strict=True)]
    most = section_bytes(sum(each.size for each in lanes), lanes_at_a_time(run.context))
    parts = _Parts(run, {*run.files.names(f"{PARTS}/")})

    run.phase = "survey"
    survey = LaneToCut(most=most)
    # One whose older records are larger than its newest is longer than it seems, and is proved whole all the same.
    long = [each for each in lanes if each.size > most or part_file(each.task, survey.name) in parts.known]
    for lane, part in parts.do([(lane, survey, 0) for lane in long]):
        if part.survey is None:
            lane.parts.append(part)
        elif len(part.survey.sections) > 1:
            lane.survey = part.survey

    run.phase = "read"
    work: list[tuple[_Lane, AnyPart, int]] = []
    for lane in lanes:
        if lane.survey is not None:
            work += [(lane, each, each.bytes) for each in lane.survey.sections]
        elif not lane.parts:
            work.append((lane, WHOLE, lane.size))
    for lane, part in parts.do(work):
        lane.parts.append(part)

    run.phase = "explain"
    opened = [
        (lane, portion, portion.bytes)
        for lane in lanes
        if all(part.verdict.state == "done" for part in lane.parts)
        for portion in portions_of(lane.parts, most=most)
    ]
    for lane, part in parts.do(opened):
        lane.parts.append(part)

    run.phase = "join"
    return [_joined(lane, parts) for lane in lanes]


def take_keys(run: JobRun, lanes: Sequence[tuple[VerifyTask, LaneVerdict, LaneKeys]]) -> None:
    """Compare the latest values of compacted lanes, and add what is found to their verdicts.

    Raises:
        Exception: of Spark, when a worker died at a task's last attempt.
    """
    if not lanes:
        return
    run.phase = "compare keys"
    parts = _Parts(run, {*run.files.names(f"{PARTS}/")})
    work = [(_Lane(task=task, size=0), keys, BYTES_OF_A_TASK) for task, _, keys in lanes]
    for (_, verdict, _), (_, part) in zip(lanes, parts.do(work), strict=True):
        verdict.add(part.verdict)
        verdict.show()


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


def _joined(lane: _Lane, parts: _Parts) -> LaneVerdict:
    if lane.survey is None:
        return lane.parts[0].verdict
    files, whole = parts.run.files, JoinedLane(lane.task, lane.survey)
    for part in lane.parts:
        # Without its records that have no partner: the folder has them.
        whole.add((read_part(files, lane.task, part.name) or part) if part.left_count else part)
    before = len(whole.verdict.findings)
    verdict = whole.end(_elsewhere(lane, whole, parts))
    write_findings(files, lane.task, "joined", verdict.findings[before:])
    verdict.show()
    return verdict


def _elsewhere(lane: _Lane, whole: JoinedLane, parts: _Parts) -> dict[bytes, int]:
    """Where else in the lane the contents of unclaimed records stand.

    What could not be searched is a note of the verdict: a kind of fault is less certain then, and none is lost.
    """
    searches, found = whole.searches(), dict[bytes, int]()
    for search, (_, part) in zip(searches, parts.do([(lane, each, BYTES_OF_A_TASK) for each in searches]), strict=True):
        if part.verdict.state == "failed":
            whole.verdict.note(UNSEARCHED.format(within=search.within, error=part.verdict.error))
            whole.verdict.unsorted = True
        for content, offset in part.known:
            found.setdefault(content, offset)
    return found


def _waiting(task: VerifyTask) -> LaneProgress:
    return LaneProgress(lane=str(task.lane), at=now_ms())
