"""The audit job: topics that any replicator keeps, a task for each partition, then the report.

It reads, and changes nothing; it needs no tables. A run that is started again begins again.
"""

from __future__ import annotations

import sys
import time
from typing import cast

import msgspec

from mirrorless.adapters.audits import audit_partition, audit_tasks
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.clock import now_ms
from mirrorless.jobs.progress import LaneProgress
from mirrorless.jobs.request import PLAN, AuditOptions, lane_file
from mirrorless.verify.audit import AuditTask, AuditVerdict, audit_report, audit_totals, found_of, is_true_copy
from spark.jobs.driver import JobOutcome, JobRun, drive
from spark.jobs.lane_tasks import TaskAttempt, limit_garbage_collection, result_of, run_lanes
from spark.jobs.verify.lanes import TaskNotes


class AuditWork(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, and the folder of the run."""

    task: AuditTask
    files: str


def audit(run: JobRun) -> JobOutcome:
    """Run the job.

    Raises:
        ConfigurationError: a topic is not there, or its configs are not shown.
        Retriable: a cluster does not answer.
    """
    began = time.monotonic()
    run.phase, flow = "plan", run.request.flow
    run.start_spark()
    tasks = audit_tasks(flow.source, flow.target, cast("AuditOptions", run.request.options))
    names = {lane_file(each.topic, each.partition): AuditVerdict.of(each).lane for each in tasks}
    run.files.write(PLAN, msgspec.json.encode({"lanes": list(names.values())}))
    run.expect({name: LaneProgress(lane=lane, at=now_ms()) for name, lane in names.items()})

    run.phase = "compare"
    work = [msgspec.json.encode(AuditWork(task=each, files=run.files.place)) for each in tasks]
    found = [msgspec.json.decode(each, type=AuditVerdict) for each in run_lanes(run.context, do_audit, work)]
    verdicts = sorted(found, key=lambda verdict: (verdict.topic, verdict.partition))
    seconds, title = time.monotonic() - began, f"Audit of {flow.source.alias} and {flow.target.alias}"
    return JobOutcome(
        clean=is_true_copy(verdicts),
        found={"totals": audit_totals(verdicts, seconds=seconds), "partitions": msgspec.to_builtins(verdicts)},
        report=audit_report(verdicts, title=title, seconds=seconds, made_at=now_ms()),
    )


def do_audit(work: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `AuditWork`, from its JSON to that of an `AuditVerdict`.

    Raises:
        Retriable: Spark tries again; at the last attempt the partition has failed instead.
    """
    limit_garbage_collection()
    given = msgspec.json.decode(work, type=AuditWork)
    lane, name = AuditVerdict.of(given.task).lane, lane_file(given.task.topic, given.task.partition)
    notes = TaskNotes(lane, open_job_files(given.files), name)
    verdict = result_of(
        lambda: audit_partition(given.task, notes),
        attempt,
        failed=lambda error: AuditVerdict.of(given.task, error=error),
        again=lambda error: notes.write("running", f"tried again by Spark: {error}"),
    )
    verdict.show()
    if verdict.state == "failed":
        notes.write("failed", verdict.error)
    else:
        wrong = found_of(verdict.counts)
        notes.write("done", f"{wrong} records are wrong" if wrong else "")
    return msgspec.json.encode(verdict)


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from spark.audit import audit as job

    sys.exit(drive(job))
