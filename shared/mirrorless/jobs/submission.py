"""The submission of a flow's jobs to EMR Serverless, in one SSM parameter that the deployment writes.

    /mirrorless/us-east_eu-west/jobs     in the region of the target, where the flow's tables are

It names the application, the role and the code: a job runs the code that is deployed when it starts.
"""

from __future__ import annotations

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import DEPLOYMENT, flow_id


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """The parameter's value. Fields of a later version are ignored."""

    application_id: str
    role_arn: str
    bucket: str
    prefix: str
    """The part of the bucket that the flow's jobs may use, with a slash at its end."""
    jobs: dict[str, str]
    """URI of the script of each kind of job."""
    confs: dict[str, str]
    """Of Spark: with these, driver and workers find the package and its dependencies."""
    kms_key_arn: str | None = None
    log_group: str | None = None
    """Of the jobs; None where an older deployment has not written it."""
    most_executors: int | None = None
    """That one job may have beside its driver."""
    architecture: str = "arm64"

    def folder(self, run_id: str) -> str:
        """URI of the folder of a run."""
        return f"s3://{self.bucket}/{self.prefix}jobs/{run_id}"


def parameter_name(flow: FlowName, *, deployment: str = DEPLOYMENT) -> str:
    """The name of the SSM parameter of a flow."""
    return f"/{deployment}/{flow_id(flow)}/jobs"


def decode_submission(text: str, *, where: str) -> Submission:
    """Read the parameter's value.

    Raises:
        ConfigurationError: the deployment did not write this.
    """
    try:
        return msgspec.json.decode(text, type=Submission)
    except msgspec.DecodeError as exc:
        raise ConfigurationError(
            f"this is no submission of jobs: {exc}", where=where, hint="deploy the Spark stack again"
        ) from exc
