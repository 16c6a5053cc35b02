"""Spark tasks of the reconcile job, what is known of a lane between them, and the outcome of all lanes.

Tasks inspect a lane, find its orphans, compare keys, join the lanes of a journal, or add up what the run did in a lane,
by the chains: over all attempts. Of a lane's orphans `orphans/<topic>-<partition>.parquet` in the run's folder has a
row for each: its place, time and size, the beginning of its key, and the same of the newest other record of its key,
without the contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.chain.entry import Journal
from mirrorless.chain.lane import Lane
from mirrorless.clock import Deadline, now_ms
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Policy, lane_file
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import JobFiles
from mirrorless.reconcile.conflicts import ConflictSearch, ConflictSide, ConflictTask, KeptOrphan, LaneConflicts
from mirrorless.reconcile.difference import Stretch
from mirrorless.reconcile.inspect import SECONDS, KeptPlaces, LaneEnds, LaneView, chunks_of
from mirrorless.reconcile.join import BackLaneJoin
from mirrorless.reconcile.outcome import (
    FailbackForecast,
    LaneOutcome,
    LocalTopic,
    OrphanReader,
    Tally,
    is_clean,
    totals_of,
)
from mirrorless.reconcile.report import report_of
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.reconcile.tasks import (
    LISTED_RANGES,
    InspectTask,
    JoinTask,
    LaneInspection,
    LaneJoined,
    LaneOrphans,
    LaneTally,
    LaneToJoin,
    OrphanTask,
    ReconciledLane,
    TallyTask,
)
from mirrorless.records.record import Record
from spark.jobs.clients import warm_log, warm_tables, warm_target
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_tasks import TaskAttempt, result_of, run_lanes
from spark.jobs.parquet_rows import write_batches

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class LaneUnderWay:
    """One lane during the job."""

    inspection: LaneInspection
    lane: ReconciledLane
    policy: Policy
    error: str = ""
    waits: str = ""
    orphans: tuple[Stretch, ...] = ()
    until: int = 0
    position: int = 0
    conflicts: LaneConflicts = field(default_factory=LaneConflicts)
    withheld: int = 0
    """Orphans that are not written again, since another record of their key is as new, or newer."""

    @property
    def going(self) -> bool:
        """Whether more is to be done with it."""
        return not self.inspection.differs and not self.error

    @property
    def place(self) -> TopicPartition:
        """Its partition of the source."""
        return self.inspection.topic, self.inspection.partition

    def remember(self, files: JobFiles) -> None:
        """Keep its orphans for the report of an attempt that continues after the join."""
        merged = {stretch.first: stretch for stretch in (*self.remembered(files), *self.orphans)}
        files.write(self._file, msgspec.json.encode(tuple(merged[first] for first in sorted(merged))))

    def remembered(self, files: JobFiles) -> tuple[Stretch, ...]:
        """Its orphans, found in all attempts."""
        known = files.read(self._file)
        return msgspec.json.decode(known, type=tuple[Stretch, ...]) if known else ()

    @property
    def _file(self) -> str:
        return lane_file(self.inspection.topic, self.inspection.partition, "orphans")


def outcome_of(
    run: JobRun,
    lanes: Sequence[LaneUnderWay],
    groups: Sequence[ReturningGroup],
    *,
    tallies: Mapping[int, LaneTally],
    local: Sequence[LocalTopic],
    troubles: Sequence[str],
    look: tuple[FailbackForecast, Sequence[OrphanReader]] | None = None,
) -> JobOutcome:
    """The job's outcome.

    Args:
        run: of the job.
        lanes: its lanes.
        groups: those that were brought back.
        tallies: of each lane that was not left alone, by its place in `lanes`; none where it was only looked.
        local: topics of the target's own.
        troubles: the errors that are no lane's, in words.
        look: where it was only looked: the failback to come, and the groups that had read orphans.

    Raises:
        Retriable: the run's folder does not answer.
    """
    found = [_outcome(each, tallies.get(number), run.files) for number, each in enumerate(lanes)]
    totals = totals_of(found, groups)
    clean = is_clean(found, groups, troubles)
    report = report_of(
        f"Reconcile {run.request.flow.flow}",
        lanes=found,
        groups=groups,
        local=local,
        troubles=troubles,
        totals=totals,
        look=look,
        clean=clean,
        made_at=now_ms(),
    )
    return JobOutcome(
        clean=clean,
        found={
            "totals": totals,
            "lanes": msgspec.to_builtins(found),
            "groups": msgspec.to_builtins(groups),
            "local_topics": msgspec.to_builtins(local),
            "troubles": list(troubles),
            "forecast": msgspec.to_builtins(look[0]) if look else None,
            "orphan_readers": msgspec.to_builtins(look[1]) if look else [],
        },
        report=report,
    )


def _outcome(each: LaneUnderWay, tally: LaneTally | None, files: JobFiles) -> LaneOutcome:
    """The outcome of one lane; without a tally only what this attempt found."""
    inspection = each.inspection
    orphans = each.orphans if tally is None else each.remembered(files) or each.orphans
    new, new_bytes = inspection.late_records + inspection.tail_records, inspection.late_bytes + inspection.tail_bytes
    back = LaneTally(fresh=new, fresh_bytes=new_bytes) if tally is None else tally
    return LaneOutcome(
        topic=inspection.topic,
        partition=inspection.partition,
        remote_topic=inspection.remote_topic,
        policy=each.policy,
        differs=inspection.differs,
        error=each.error or back.error,
        position_before=inspection.position,
        position=each.position or inspection.position,
        claimed_until=inspection.chain_end,
        on_target=inspection.claimed_records + back.fresh,
        bytes_on_target=inspection.claimed_bytes + back.fresh_bytes,
        new=new if tally is None else tally.copied,
        new_bytes=new_bytes if tally is None else tally.copied_bytes,
        new_ranges=back.ranges or inspection.to_copy[:LISTED_RANGES],
        copied_back=back.copied,
        copied_back_bytes=back.copied_bytes,
        copied_back_passed_bytes=back.passed_bytes,
        unmapped=0 if each.error else back.unmapped,
        orphans=orphans[:LISTED_RANGES],
        orphan_records=sum(some.records for some in orphans),
        orphan_bytes=sum(some.bytes for some in orphans),
        orphans_moved=back.moved,
        orphans_withheld=each.withheld,
        orphan_keys=each.conflicts.keys,
        first_orphan_keys=each.conflicts.first_keys,
        oldest_orphan=each.conflicts.oldest,
        newest_orphan=each.conflicts.newest,
        conflicts=each.conflicts.conflicts,
        conflicting=each.conflicts.listed,
        waits=each.waits,
    )


BATCH_ROWS: Final = 20_000
"""Of one batch of a file."""


def find_conflicts(task: ConflictTask) -> LaneConflicts:
    """Do the task.

    Raises:
        Retriable: a cluster or the run's folder does not answer.
    """
    settings = task.settings
    places = {"source": (settings.source, task.topic), "target": (settings.target, task.remote_topic)}

    def read(side: ConflictSide, wanted: OffsetRange) -> Iterator[Sequence[Record]]:
        cluster, topic = places[side]
        log = warm_log(msgspec.json.encode(cluster), settings.flow)
        return (chunk.records for chunk in chunks_of(log, topic, task.partition, wanted))

    search = ConflictSearch(task, read)
    keep_orphans(open_job_files(task.files), task, search.orphans())
    return search.found()


def keep_orphans(files: JobFiles, task: ConflictTask, orphans: Iterator[Sequence[KeptOrphan]]) -> None:
    """Write all orphans of a lane, if it has some; the file of an earlier attempt is replaced.

    Raises:
        Retriable: the run's folder does not take it; or as of the orphans.
    """
    if (first := next(orphans, None)) is None:
        return
    name = lane_file(task.topic, task.partition, "orphans", end=".parquet")
    write_batches(files, name, _batches(task, chain([first], orphans)), _schema())


def _batches(task: ConflictTask, orphans: Iterable[Sequence[KeptOrphan]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    for some in orphans:
        rows = [
            {
                "topic": task.topic,
                "partition": task.partition,
                "offset": each.offset,
                "timestamp": each.timestamp,
                "size": each.size,
                "tombstone": each.tombstone,
                "key": each.label,
                "key_hash": None if each.label is None else each.hash.hex().upper(),
            }
            | {
                f"other_{name}": None if each.other is None else getattr(each.other, name.replace("size", "bytes"))
                for name in ("side", "offset", "timestamp", "size", "tombstone")
            }
            for each in some
        ]
        for first in range(0, len(rows), BATCH_ROWS):
            yield pa.RecordBatch.from_pylist(rows[first : first + BATCH_ROWS], _schema())


def _schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    place = [("offset", pa.int64()), ("timestamp", pa.int64()), ("size", pa.int64()), ("tombstone", pa.bool_())]
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            *place,
            ("key", pa.binary()),
            ("key_hash", pa.string()),
            ("other_side", pa.string()),
            *((f"other_{name}", kind) for name, kind in place),
        ]
    )


T = TypeVar("T")

ReconcileTask = InspectTask | OrphanTask | JoinTask | TallyTask | ConflictTask


def results_of(context: SparkContext, tasks: Sequence[ReconcileTask], kind: type[T]) -> list[T]:
    """The result of each task, in their order. Args: kind: of a result."""
    found = run_lanes(context, do_task, [msgspec.json.encode(task) for task in tasks])
    return [msgspec.json.decode(each, type=kind) for each in found]


def do_task(text: bytes, attempt: TaskAttempt) -> bytes:
    """Do one task, from its JSON to that of its result.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error.
    """
    match msgspec.json.decode(text, type=ReconcileTask):
        case InspectTask() as look:
            found: object = result_of(
                lambda: _view(look.settings, look.files, look.lane).inspect(look),
                attempt,
                failed=lambda error: LaneInspection(
                    topic=look.topic, partition=look.partition, remote_topic=look.remote_topic, differs=error
                ),
            )
        case OrphanTask() as search:
            found = result_of(
                lambda: _view(search.settings, search.files, search.lane.forward).orphans(search),
                attempt,
                failed=lambda error: LaneOrphans(until=search.position, error=error),
            )
        case ConflictTask() as keys:
            found = result_of(lambda: find_conflicts(keys), attempt, failed=lambda error: LaneConflicts(error=error))
        case TallyTask() as sums:
            tally = Tally(chains=_chains(sums.settings), request=sums.run_id)
            found = result_of(
                lambda: tally.of(sums.lane, sums.policy, sums.position, mapped=sums.mapped),
                attempt,
                failed=lambda error: LaneTally(error=error),
            )
        case JoinTask() as joins:
            # A lane that fails is not tried again, nor keeps the others from their turn: the next run joins the rest.
            joining = BackLaneJoin(
                chains=_chains(joins.settings),
                ledger=DynamoDbLossLedger(_tables(joins.settings), joins.settings.tables.loss_ledger),
                clock=now_ms,
                request=joins.run_id,
            )
            found = [_joined(joining, lane) for lane in joins.lanes]
    return msgspec.json.encode(found)


def _joined(joining: BackLaneJoin, lane: LaneToJoin) -> LaneJoined:
    return result_of(
        lambda: LaneJoined(position=joining.join(lane)),
        TaskAttempt(number=0, last=True),
        failed=lambda error: LaneJoined(error=error),
    )


def _view(settings: FlowSettings, files: str, lane: Lane) -> LaneView:
    """The view of a flow's lanes, wired; its looks have the places of one lane."""
    return LaneView(
        chains=_chains(settings),
        states=DynamoDbLaneStates(_tables(settings), settings.tables.lanes),
        target=warm_target(msgspec.json.encode(settings), "records"),
        source_log=warm_log(msgspec.json.encode(settings.source), settings.flow),
        target_log=warm_log(msgspec.json.encode(settings.target), settings.flow),
        source_ends=_ends(settings.source, settings.flow),
        target_ends=_ends(settings.target, settings.flow),
        kept=KeptPlaces(files=open_job_files(files) if files else None, lane=f"{lane.topic}-{lane.partition}"),
    )


def _tables(settings: FlowSettings) -> Any:
    return warm_tables(settings.target.region, settings.tables_role)


def _chains(settings: FlowSettings) -> DynamoDbChains:
    days = settings.offset_map_retention_days
    return DynamoDbChains(_tables(settings), settings.tables.offset_map, retention_days=days)


def _ends(cluster: ClusterSettings, flow: str) -> LaneEnds:
    records = ends_of(cluster, flow)

    def ends(topic: str, partition: int) -> tuple[int, int, int] | None:
        return records([(topic, partition)], lambda: SECONDS).get((topic, partition))

    return ends


def ends_of(
    cluster: ClusterSettings, flow: str
) -> Callable[[Iterable[TopicPartition], Deadline], dict[TopicPartition, tuple[int, int, int]]]:
    """The read of first offsets, stable ends and high watermarks of a cluster's partitions."""
    return _warm_records(msgspec.json.encode(cluster), flow).ends


@cache
def _warm_records(cluster: bytes, flow: str) -> KafkaRecords:
    """The process's admin client of a cluster, given as JSON."""
    settings = msgspec.json.decode(cluster, type=ClusterSettings)
    return KafkaRecords(settings, flow=flow, client_role=f"reconcile-{uuid4().hex[:8]}")


def join_all(context: SparkContext, settings: FlowSettings, run_id: str, lanes: Sequence[LaneUnderWay]) -> None:
    """Join the copies and orphans of lanes to their chains; positions and errors are noted in them.

    Lanes share a journal, in which two tasks would take each other's places.
    """
    journals: dict[Journal, list[LaneUnderWay]] = {}
    for each in lanes:
        journals.setdefault(Journal.of(each.lane.forward), []).append(each)
    tasks = [JoinTask(settings=settings, run_id=run_id, lanes=tuple(map(_to_join, some))) for some in journals.values()]
    found = results_of(context, tasks, list[LaneJoined])
    for some, results in zip(journals.values(), found, strict=True):
        for each, result in zip(some, results, strict=True):
            each.position, each.error = result.position, result.error


def tallies(
    context: SparkContext, settings: FlowSettings, run_id: str, lanes: Sequence[LaneUnderWay]
) -> Mapping[int, LaneTally]:
    """What the run did in each lane that was not left alone, over all its attempts; by the lane's place in `lanes`."""
    wanted = {number: each for number, each in enumerate(lanes) if not each.inspection.differs}
    tasks = [
        TallyTask(
            settings=settings,
            run_id=run_id,
            lane=each.lane,
            position=each.inspection.position,
            policy=each.policy,
            mapped=not each.error,
        )
        for each in wanted.values()
    ]
    return dict(zip(wanted, results_of(context, tasks, LaneTally), strict=True))


def _to_join(each: LaneUnderWay) -> LaneToJoin:
    return LaneToJoin(
        lane=each.lane,
        position=each.inspection.position,
        chain_end=each.inspection.chain_end,
        until=each.until,
        orphans=each.orphans,
        policy=each.policy,
    )
