"""All rights of one part of a flow; apart from them those that jobs alone have, in S3 and on their log group.

The log's rights of jobs are what EMR Serverless needs in a job's role
(https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html); it uses them, no call of ours does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.iam import Right, kafka, mappings, network, secrets, tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from infra.deployment import FlowDeployment
    from infra.iam import Part


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """Everything that a part of a flow may do."""
    return [right for subject in (tables, secrets, kafka, network, mappings) for right in subject.rights(part, flow)]


def log_rights(flow: FlowDeployment, part: Part, key: str | None) -> Iterator[Right]:
    """A function's right to write its log, and to read its own environment where a customer's key encrypts it.

    (https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars-encryption.html)
    """
    yield Right(
        actions=("logs:CreateLogStream", "logs:PutLogEvents"),
        resources=(flow.place_of(part).arn("logs", f"log-group:/aws/lambda/{flow.flow.resource_name(part)}:*"),),
        reason="each environment writes a stream of its own, whose name Lambda makes up",
    )
    if key:
        context = {"kms:EncryptionContext:aws:lambda:FunctionArn": flow.function_arn(part)}
        yield Right(actions=("kms:Decrypt",), resources=(key,), conditions={"StringEquals": context})


def storage_rights(
    flow: FlowDeployment, *, bucket: str, prefix: str, artifacts: Sequence[str], log_group: str, key: str | None
) -> list[Right]:
    """What the jobs of a flow may do, beyond Kafka, tables and secrets.

    Args:
        flow: the flow.
        bucket: the bucket of its place.
        prefix: where in it the flow's jobs read and write, with the slash at its end.
        artifacts: ARNs of the objects that jobs are made of.
        log_group: the log group of their application.
        key: ARN of the customer's key of the place.
    """
    place = flow.state
    bucket_arn = f"arn:{place.partition}:s3:::{bucket}"
    found = [
        Right(actions=("s3:GetObject",), resources=tuple(artifacts)),
        Right(
            # Runs' folders and archives. Spark itself writes nothing: records never pass through it.
            actions=("s3:GetObject", "s3:PutObject"),
            resources=(f"{bucket_arn}/{prefix}*",),
            reason="jobs name their own objects; the prefix is this flow's alone",
        ),
        Right(
            actions=("s3:ListBucket",),
            resources=(bucket_arn,),
            conditions={"StringLike": {"s3:prefix": f"{prefix}*"}},
        ),
        Right(
            actions=("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
            resources=(place.arn("logs", f"log-group:{log_group}:*"),),
            reason="streams are named by job runs; the group is this application's alone",
        ),
        Right(
            actions=("logs:DescribeLogGroups",),
            resources=(place.arn("logs", "log-group:*"),),
            reason="it lists groups, and IAM has no narrower resource for it",
        ),
    ]
    if key:
        # For the bucket's objects and for the logs that EMR keeps for Spark's pages.
        found.append(Right(actions=("kms:Decrypt", "kms:GenerateDataKey"), resources=(key,)))
    return found
