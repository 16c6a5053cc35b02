"""The Spark task that verifies one lane, wired."""

from __future__ import annotations

import time

import msgspec

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.clock import now_ms
from mirrorless.jobs.progress import EVERY_MS, LaneProgress, LaneStateName, write_progress
from mirrorless.ports.stores import JobFiles
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.lane_verification import LaneVerification
from mirrorless.verify.task import VerifyTask
from spark.jobs.clients import warm_batch_log, warm_log
from spark.jobs.lane_tasks import TaskAttempt, limit_garbage_collection, result_of


def verify_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `VerifyTask`, from its JSON to that of its `LaneVerdict`: the work that `run_lanes` sends.

    Raises:
        Retriable: Spark tries again; at the last attempt the verdict is `failed` instead.
    """
    return msgspec.json.encode(_verified(msgspec.json.decode(task, type=VerifyTask), attempt))


def _verified(task: VerifyTask, attempt: TaskAttempt) -> LaneVerdict:
    limit_garbage_collection()
    settings = task.settings
    dynamodb = dynamodb_client(settings.target.region, settings.tables_role)
    notes = _Notes(task)
    began, cpu = time.monotonic(), time.process_time()
    verification = LaneVerification(
        task=task,
        chains=DynamoDbChains(dynamodb, settings.tables.offset_map),
        ledger=DynamoDbLossLedger(dynamodb, settings.tables.loss_ledger),
        target=warm_log(msgspec.json.encode(settings.target), settings.flow),
        source=warm_log(msgspec.json.encode(settings.source), settings.flow),
        target_batches=warm_batch_log(msgspec.json.encode(settings.target), settings.flow),
        source_batches=warm_batch_log(msgspec.json.encode(settings.source), settings.flow),
        note=notes,
    )
    verdict = result_of(
        verification.verify,
        attempt,
        failed=lambda error: LaneVerdict(
            lane=str(task.lane), topic=task.topic, partition=task.partition, state="failed", error=error
        ),
        again=lambda error: notes.write("running", f"tried again by Spark: {error}"),
    )
    if verdict.state == "failed":
        notes.write("failed", verdict.error)
        return verdict
    verdict.seconds, verdict.cpu_seconds = time.monotonic() - began, time.process_time() - cpu
    notes.write("done", f"{verdict.counts.found} records are wrong" if verdict.counts.found else "")
    return verdict


class _Notes:
    """Implements `mirrorless.verify.task.Note` in the run's folder."""

    def __init__(self, task: VerifyTask) -> None:
        self._files: JobFiles | None = open_job_files(task.files) if task.files else None
        self._task = task
        self._last = LaneProgress(lane=str(task.lane), state="running")

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
        if self._files is not None:
            write_progress(self._files, self._task.topic, self._task.partition, self._last)
