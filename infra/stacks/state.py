"""The state stack, which outlives all others: the flows' tables, and a bucket for job files.

The stack is protected, and what is in it stays when it goes. Taken down and deployed again, it takes its tables and its
bucket back by their names: `deploy --import-existing-resources`, as `make deploy` calls it.
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.constructs.annotations import excuse
from infra.constructs.tables import FlowTables, TablesRole
from infra.stacks import PlacedStack

if TYPE_CHECKING:
    from infra.deployment import Deployment, Location

NONCURRENT_DAYS = 30
"""How long a version stays that was overwritten or deleted."""

UPLOAD_DAYS = 7
"""How long the parts of an unfinished upload stay."""

_NO_ACCESS_LOG = (
    "One bucket, written by jobs and read by operators: CloudTrail's data events say who did what, in an account that"
    " needs it; a log bucket would be a second one to keep and to protect."
)


class StateStack(PlacedStack):
    """The state stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        super().__init__(
            scope, "state", deployment=deployment, place=place, description="offset maps, and what jobs write"
        )
        self.termination_protection = True
        JobsBucket(self, "Jobs", name=place.bucket_name(deployment.settings.name), key_arn=deployment.kms_key(place))
        for flow in deployment.kept_at(place):
            tables = FlowTables(self, flow.id, flow=flow)
            if flow.flow.tables_role or (flow.pull and flow.flow.pull_tables_role):
                TablesRole(tables, "Access", flow=flow)


class JobsBucket(Construct):
    """The bucket of one place: reports and archives of its flows' jobs, each flow's under `flows/<flow id>/`."""

    def __init__(self, scope: Construct, id_: str, *, name: str, key_arn: str | None) -> None:
        super().__init__(scope, id_)
        key = kms.Key.from_key_arn(self, "Key", key_arn) if key_arn else None
        bucket = s3.Bucket(
            self,
            "Bucket",
            bucket_name=name,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,  # one call of KMS for many objects
            enforce_ssl=True,
            minimum_tls_version=1.2,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="old-versions-and-unfinished-uploads",
                    noncurrent_version_expiration=Duration.days(NONCURRENT_DAYS),
                    expired_object_delete_marker=True,
                    abort_incomplete_multipart_upload_after=Duration.days(UPLOAD_DAYS),
                )
            ],
            removal_policy=RemovalPolicy.RETAIN,
        )
        excuse(bucket, "S1", _NO_ACCESS_LOG)
