"""Job runs of a flow on EMR Serverless: submit by the flow's SSM parameter, describe, cancel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from mirrorless.adapters.aws.job_files import S3JobFiles
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.naming import DEPLOYMENT, ENDS_ONCE_VARIABLE, flow_tags
from mirrorless.jobs.request import JobKind
from mirrorless.jobs.submission import Submission, decode_submission, parameter_name

TIMEOUT_MINUTES = 10_080
"""Seven days, the longest that a batch job may run. By default it would be ended after twelve hours."""

ATTEMPTS = 2
"""A driver that is lost is started again, and its lanes go on; what has ended with a report only says so again."""

GRACE_SECONDS = 60
"""For a cancelled driver to let its lanes go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunThere:
    """A job run, as EMR Serverless describes it."""

    job_run_id: str
    name: str
    state: str
    """SUBMITTED, PENDING, SCHEDULED, QUEUED, RUNNING, SUCCESS, FAILED, CANCELLING or CANCELLED."""
    details: str = ""
    vcpu_hours: float | None = None
    gb_hours: float | None = None
    """What is charged for, once that is known."""

    @property
    def is_under_way(self) -> bool:
        """Whether there is something to end."""
        return self.state not in {"SUCCESS", "FAILED", "CANCELLING", "CANCELLED"}


class EmrServerless:
    """One flow's way to EMR Serverless. Every method raises Retriable when a service does not answer."""

    def __init__(self, flow: FlowName, *, region: str | None, deployment: str = DEPLOYMENT) -> None:
        """Read how jobs are submitted. Args: deployment: what its names begin with.

        Raises:
            ConfigurationError: nothing is deployed for this flow, or there is no region to look in.
        """
        self._flow = flow
        self._where = f"{flow} in {region or 'no region'}"
        with _Translated("read how jobs are submitted", self._where):
            session = boto3.Session(region_name=region)
            self._emr: Any = session.client("emr-serverless")
            self._s3: Any = session.client("s3")
            self.submission = _submission(
                session.client("ssm"), parameter_name(flow, deployment=deployment), self._where
            )

    def files(self, run_id: str) -> S3JobFiles:
        """The folder of a run."""
        submission = self.submission
        prefix = f"{submission.prefix}jobs/{run_id}"
        return S3JobFiles(submission.bucket, prefix, kms_key_arn=submission.kms_key_arn, client=self._s3)

    def start(self, run_id: str, kind: JobKind, *, most_executors: int | None, flex: bool = False) -> str:
        """Start a run whose request is in its folder, and return the service's id of it. Two calls start one run.

        With `flex`, executors are of spare capacity, and the service starts the tasks of one that it takes back again;
        the driver, which holds the leases, is not.
        """
        submission = self.submission
        confs = {**submission.confs, f"spark.emr-serverless.driverEnv.{ENDS_ONCE_VARIABLE}": "true"}
        if most_executors is not None:
            confs["spark.dynamicAllocation.maxExecutors"] = str(most_executors)
        hint = "start it with `--capacity standard`, if it is Flex that is refused; else " if flex else ""
        with _Translated("start the job", self._where, hint):
            answer = self._emr.start_job_run(
                applicationId=submission.application_id,
                clientToken=run_id,
                executionRoleArn=submission.role_arn,
                name=run_id,
                mode="BATCH",
                executionTimeoutMinutes=TIMEOUT_MINUTES,
                retryPolicy={"maxAttempts": ATTEMPTS},
                flexExecution={"enabled": flex},
                tags={**flow_tags(self._flow), "mirrorless:job": kind},
                jobDriver={
                    "sparkSubmit": {
                        "entryPoint": submission.jobs[kind],
                        "entryPointArguments": [submission.folder(run_id)],
                        "sparkSubmitParameters": " ".join(f"--conf {name}={value}" for name, value in confs.items()),
                    }
                },
            )
        return str(answer["jobRunId"])

    def runs(self, *, since: datetime) -> Iterator[JobRunThere]:
        """The flow's runs that were made since then, in no order that is promised."""
        submission = self.submission
        with _Translated("list its jobs", self._where):
            pages = self._emr.get_paginator("list_job_runs").paginate(
                applicationId=submission.application_id, createdAtAfter=since
            )
            for page in pages:
                for each in page["jobRuns"]:
                    if each["executionRole"] == submission.role_arn:
                        yield JobRunThere(
                            job_run_id=each["id"],
                            name=each.get("name", ""),
                            state=each["state"],
                            details=each.get("stateDetails", ""),
                        )

    def run(self, job_run_id: str) -> JobRunThere:
        """One run, with what it is charged for so far."""
        with _Translated("describe the job run", self._where):
            found = self._emr.get_job_run(applicationId=self.submission.application_id, jobRunId=job_run_id)
        described = found["jobRun"]
        billed = described.get("billedResourceUtilization") or {}
        return JobRunThere(
            job_run_id=job_run_id,
            name=described.get("name", ""),
            state=described["state"],
            details=described.get("stateDetails") or "",
            vcpu_hours=billed.get("vCPUHour"),
            gb_hours=billed.get("memoryGBHour"),
        )

    def cancel(self, job_run_id: str) -> None:
        """Cancel a run: its driver gets SIGTERM, and some time to release its lanes."""
        with _Translated("cancel the job", self._where):
            self._emr.cancel_job_run(
                applicationId=self.submission.application_id,
                jobRunId=job_run_id,
                shutdownGracePeriodInSeconds=GRACE_SECONDS,
            )


def _submission(ssm: Any, name: str, where: str) -> Submission:
    try:
        answer = ssm.get_parameter(Name=name)
    except ssm.exceptions.ParameterNotFound:
        raise ConfigurationError(
            f"no jobs are deployed for this flow: there is no parameter {name}",
            where=where,
            hint="deploy its Spark stack (docs/how-to/deploy.md), or run the job here with --local",
        ) from None
    return decode_submission(answer["Parameter"]["Value"], where=name)


class _Translated:
    """Turns botocore's errors into ours."""

    def __init__(self, what: str, where: str, hint: str = "") -> None:
        self._what, self._where, self._hint = what, where, hint

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BotoCoreError | ClientError):
            raise Retriable(
                f"AWS did not {self._what}: {error}",
                where=self._where,
                hint=f"{self._hint}check the credentials, and that they have the rights of "
                "`python -m infra.iam.operator --jobs`",
            ) from error
