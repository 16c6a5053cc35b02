"""The state stack, which outlives all others: the flows' tables, and a bucket for job files.

The stack is protected, and what is in it stays when it goes. Taken down and deployed again, it takes its tables and its
bucket back by their names: `deploy --import-existing-resources`, as `make deploy` calls it; so too when its creation
failed half-way. They are retained then too: a table that was taken back holds data, whichever operation is rolled back.
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html

Schemas of tables are those of `mirrorless.flow.tables`, which the lab and the tests use too. Where the plan has it,
each table has a copy in the source's region: a global table of two, which DynamoDB keeps equal within seconds. All
writes go home, since a condition holds within one region only; nothing of ours has a right on the copy.

Functions of another account reach tables by a role. IAM refuses a trust policy that names a role which is not there
yet, and the functions' roles are made after the tables. So the account is trusted, on the condition that the caller is
one of the flow's roles, by its path. Both sides must agree: each function's own policy names this role.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-principalarn
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra import spark_settings
from infra.constructs.annotations import acknowledge, excuse
from infra.iam import Part
from infra.iam.statements import tables_role_rights
from infra.stacks import PlacedStack
from mirrorless.flow.settings import Tables
from mirrorless.flow.tables import definitions

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment, Location

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
        JobsBucket(self, "Jobs", name=place.bucket_name(deployment.settings), key_arn=deployment.kms_key(place))
        for flow in (each for each in deployment.flows if each.state == place):
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
        if name.endswith("-an"):
            # The construct takes a prefix for it; a bucket is imported again by its whole name.
            resource = cast("s3.CfnBucket", bucket.node.default_child)
            resource.bucket_namespace = "account-regional"
        excuse(bucket, "S1", _NO_ACCESS_LOG)


RECOVERY_DAYS = 35
"""How far back a table can be restored, to the second: the most that DynamoDB offers."""


class FlowTables(Construct):
    """The five tables of one flow."""

    def __init__(self, scope: Construct, id_: str, *, flow: FlowDeployment) -> None:
        """Make them. Args: scope: the stack. id_: must not change: a table that gets another is made anew."""
        super().__init__(scope, id_)
        replicas = [flow.replica_region] if flow.replica_region else []
        encryption = self._encryption(flow)
        holds = {name: table for table, name in flow.flow.tables.items()}
        for definition in definitions(Tables(**flow.flow.tables)):
            dynamodb.TableV2(
                self,
                holds[definition.name],
                table_name=definition.name,
                partition_key=_key(definition.hash_key),
                sort_key=_key(definition.range_key, definition.range_type) if definition.range_key else None,
                billing=dynamodb.Billing.on_demand(),
                time_to_live_attribute=definition.expiry,
                encryption=encryption,
                # A replica takes over what has no setting of its own: protection, recovery, tags.
                point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                    point_in_time_recovery_enabled=True, recovery_period_in_days=RECOVERY_DAYS
                ),
                deletion_protection=True,
                removal_policy=RemovalPolicy.RETAIN,
                replicas=[dynamodb.ReplicaTableProps(region=region) for region in replicas],
            )

    def _encryption(self, flow: FlowDeployment) -> dynamodb.TableEncryptionV2:
        """The customer's keys; otherwise DynamoDB's own, which costs nothing and needs no policy."""
        if flow.tables_key is None:
            return dynamodb.TableEncryptionV2.dynamo_owned_key()
        copied = {flow.replica_region: flow.replica_key} if flow.replica_region and flow.replica_key else None
        return dynamodb.TableEncryptionV2.customer_managed_key(
            kms.Key.from_key_arn(self, "Key", flow.tables_key), copied
        )


def _key(name: str, kind: str = "S") -> dynamodb.Attribute:
    number, text = dynamodb.AttributeType.NUMBER, dynamodb.AttributeType.STRING
    return dynamodb.Attribute(name=name, type=number if kind == "N" else text)


def trusted(flow: FlowDeployment) -> list[str]:
    """Who may assume the role: functions that need it, by the path of their roles, and jobs by their role's name."""
    users: list[Part] = [part for part in get_args(Part) if flow.has(part) and flow.tables_role_of(part)]
    jobs = f"/{spark_settings.role_name(flow)}"
    return [
        flow.place_of(part).iam_arn(f"role{jobs if part == 'jobs' else f'{flow.role_path(part)}*'}") for part in users
    ]


class TablesRole(Construct):
    """The role of one flow.

    Attributes:
        role: the role, under the name in the functions' settings.
    """

    def __init__(self, scope: Construct, id_: str, *, flow: FlowDeployment) -> None:
        super().__init__(scope, id_)
        granted = tables_role_rights(flow)
        account = flow.flow.source.account  # who needs the role is not where the target is
        self.role = iam.Role(
            self,
            "Role",
            role_name=flow.flow.resource_name("tables"),
            description=f"The functions of {flow.id} reach its tables by it, from account {account}",
            assumed_by=iam.ArnPrincipal(f"arn:{flow.home.partition}:iam::{account}:root").with_conditions(
                {"ArnLike": {"aws:PrincipalArn": trusted(flow)}}
            ),
            inline_policies={"tables": iam.PolicyDocument(statements=[each.statement() for each in granted])},
        )
        acknowledge(self.role, granted)
