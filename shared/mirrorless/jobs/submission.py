"""How are a flow's jobs submitted to EMR Serverless? By one parameter of the flow, which the deployment writes.

    /mirrorless/us-east_eu-west/jobs     in the region of the target, where the flow's tables are

It says which application, which role, which code: a job takes what is deployed when it starts.
"""

from __future__ import annotations

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.lane import FlowName


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """The parameter's value. What a later version adds to it is passed over."""

    application_id: str
    role_arn: str
    bucket: str
    prefix: str
    """What the flow's jobs may touch in the bucket, with the slash at its end."""
    jobs: dict[str, str]
    """URI of the script of each kind of job."""
    confs: dict[str, str]
    """Spark's, with which driver and workers find our package and its dependencies."""
    kms_key_arn: str | None = None
    log_group: str | None = None
    """Where the jobs log; None where an older deployment does not say."""
    most_executors: int | None = None
    """That one job may have beside its driver."""
    architecture: str = "arm64"

    def folder(self, run_id: str) -> str:
        """URI of the folder of a run."""
        return f"s3://{self.bucket}/{self.prefix}jobs/{run_id}"

    def folders(self) -> str:
        """URI of the folder of all runs."""
        return f"s3://{self.bucket}/{self.prefix}jobs"


def parameter_name(flow: FlowName) -> str:
    """The name of the SSM parameter that says how a flow's jobs are submitted."""
    return f"/mirrorless/{flow.source}_{flow.target}/jobs"


def decode_submission(text: str, *, where: str) -> Submission:
    """Read the parameter's value.

    Raises:
        ConfigurationError: it is not what our deployment writes.
    """
    try:
        return msgspec.json.decode(text, type=Submission)
    except msgspec.DecodeError as exc:
        raise ConfigurationError(
            f"this is no way to submit jobs: {exc}", where=where, hint="deploy the Spark stack again"
        ) from exc
