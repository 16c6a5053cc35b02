"""Runs of jobs on EMR Serverless. The flow's parameter says how; their folders are in the deployment's bucket.

A run's id is the name of its job run and of its folder. Its request is written to the folder before it is
started, so each can be found from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from cli.args import BadInput
from cli.deployment import DeployedFlows
from cli.jobs.request import started_at
from cli.jobs.runs import RunView, read_progress, read_request, view_of
from mirrorless.adapters.aws.emr_serverless import EmrServerless, JobRunThere
from mirrorless.adapters.aws.job_files import S3JobFiles
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.progress import JobProgress, JobState
from mirrorless.jobs.request import REQUEST, JobKind, JobRequest, encode_request
from mirrorless.jobs.submission import Submission

JOB_RUN_FILE = "emr.json"
"""The file with the service's id of a run. Where it is missing, the run is searched by its name."""

LISTED_DAYS = 30
"""Age of the oldest runs that `list` shows."""


class _JobRunId(msgspec.Struct, frozen=True):
    job_run_id: str


class EmrRuns:
    """Implements `Runs` on EMR Serverless."""

    def __init__(self, deployment: DeployedFlows, flows: Sequence[FlowName], *, flex: bool = False) -> None:
        """Make it.

        Args:
            deployment: the flows.
            flows: whose runs are searched, each where its jobs run.
            flex: whether executors of runs that are started are of spare capacity.
        """
        self._deployment, self._flows, self._flex = deployment, flows, flex
        self._service = cache(self._open)

    def start(self, request: JobRequest, *, size: int | None) -> RunView:
        """See `Runs.start`."""
        service = self._service(request.flow.name)
        submission = service.submission
        if size is not None and submission.most_executors is not None and size > submission.most_executors:
            raise BadInput(
                f"an application of this deployment has room for {submission.most_executors} executors",
                where="--size",
                hint="raise spark.maximum.vcpu and spark.maximum.memory.gb, and deploy",
            )
        files = service.files(request.run_id)
        role = self._deployment.flow(request.flow.name).jobs_tables_role
        there = msgspec.structs.replace(request, flow=msgspec.structs.replace(request.flow, tables_role=role))
        files.write(REQUEST, encode_request(there))
        started = service.start(request.run_id, request.kind, most_executors=size, flex=self._flex)
        files.write(JOB_RUN_FILE, msgspec.json.encode(_JobRunId(started)))
        return self.inspect(request.run_id)

    def inspect(self, run_id: str) -> RunView:
        """See `Runs.inspect`."""
        service, request = self._found(run_id)
        job_run = self._job_run(service, run_id)
        files = service.files(run_id)
        return _view((run_id, request.kind, request.flow.flow), files, job_run, service.submission)

    def cancel(self, run_id: str) -> RunView:
        """See `Runs.cancel`."""
        service, _ = self._found(run_id)
        job_run = self._job_run(service, run_id)
        if job_run is not None and job_run.is_under_way:
            service.cancel(job_run.job_run_id)
        return self.inspect(run_id)

    def every(self, kind: JobKind, flows: Sequence[FlowName]) -> list[RunView]:
        """See `Runs.every`."""
        since = datetime.now(UTC) - timedelta(days=LISTED_DAYS)
        found = []
        for flow in flows:
            service = self._service(flow)
            for job_run in service.runs(since=since):
                if job_run.name.startswith(f"{kind}-"):
                    files = service.files(job_run.name)
                    found.append(_view((job_run.name, kind, str(flow)), files, job_run, service.submission))
        return sorted(found, key=lambda view: view.run_id, reverse=True)

    def _open(self, flow: FlowName) -> EmrServerless:
        if not self._deployment.configuration.deployment.spark.enabled:
            raise ConfigurationError(
                "jobs are not deployed: `spark` is not enabled",
                where="deployment.spark",
                hint="write `enabled: true` and deploy, or run the job here with --local",
            )
        there = self._deployment.flow(flow)
        return EmrServerless(flow, region=there.jobs_home.region, deployment=there.deployment)

    def _found(self, run_id: str) -> tuple[EmrServerless, JobRequest]:
        for flow in self._flows:
            service = self._service(flow)
            request = read_request(service.files(run_id))
            if request is not None:
                return service, request
        raise BadInput(
            "there is no such run",
            where=run_id,
            hint="`list` has the runs of the last days; those of this machine are found by --local",
        )

    def _job_run(self, service: EmrServerless, run_id: str) -> JobRunThere | None:
        known = service.files(run_id).read(JOB_RUN_FILE)
        if known is not None:
            return service.run(msgspec.json.decode(known, type=_JobRunId).job_run_id)
        requested = datetime.fromtimestamp(started_at(run_id) / 1000, UTC)
        since_then = service.runs(since=requested - timedelta(hours=1))  # clocks may differ
        found = next((each for each in since_then if each.name == run_id), None)
        return None if found is None else service.run(found.job_run_id)


def _view(run: tuple[str, str, str], files: S3JobFiles, job_run: JobRunThere | None, submission: Submission) -> RunView:
    progress = read_progress(files)
    return view_of(run, files, progress, state_of(job_run, progress), dict(_more(job_run, submission)))


def _more(job_run: JobRunThere | None, submission: Submission) -> Iterator[tuple[str, Any]]:
    yield "application_id", submission.application_id
    if job_run is not None:
        yield "job_run_id", job_run.job_run_id
        if job_run.vcpu_hours is not None:
            yield "vcpu_hours", job_run.vcpu_hours
            yield "gb_hours", job_run.gb_hours
    if submission.log_group:
        yield "log_group", submission.log_group


def state_of(job_run: JobRunThere | None, progress: JobProgress | None) -> tuple[JobState, str]:
    """The state of a run, and why it did not succeed."""
    if job_run is None:
        return "failed", "it was requested, and EMR Serverless has no such job run: start another"
    by_driver = None if progress is None else progress.state
    if job_run.state == "SUCCESS" or (job_run.state == "FAILED" and by_driver == "succeeded"):
        return "succeeded", ""  # a driver that found something exits with an error code
    if job_run.state == "FAILED":
        return "failed", (progress.error if progress is not None else "") or job_run.details
    if job_run.state == "CANCELLED":
        return "cancelled", "ended by the operator"
    if job_run.state == "CANCELLING":
        return "cancelling", ""
    # The driver's last state may be of an attempt that another one follows.
    return ("running" if job_run.state == "RUNNING" else "starting"), ""
