"""IAM policies of people who operate flows with `mirrorless`, for each flow and kind of command.

    python -m infra.iam.operator replication.yaml            to look: status, translate, losses, groups, topics
    python -m infra.iam.operator replication.yaml --repair   to repair as well: lanes, acl, failover
    python -m infra.iam.operator replication.yaml --jobs     to run jobs as well: backfill, verify, reconcile
    python -m infra.iam.operator replication.yaml --keys     to read what rules mask as well: keys, decrypt
    python -m infra.iam.operator replication.yaml --migrate  to come from MirrorMaker 2 as well: audit, migrate

Nothing of this is deployed: how people get their rights is each account's own affair. The rights are those of the
account that keeps the flow's tables, where the command is used, but for those of jobs and keys of a flow with rules:
they are of the source's account. Who only looks reads a cluster's `operator.secret` and no other credentials:
`status`, `groups`, `topics` and `translate` ask clusters, `losses` does not. Rights inside Kafka are apart, but for
those of `--migrate` on clusters that authenticate by IAM. A test holds them against the recording of the calls, both
ways.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra import spark_settings
from infra.deployment import plan
from infra.iam import Right
from infra.iam.calls import MIGRATING
from infra.iam.statements import (
    cluster_rights,
    counterpart_rights,
    in_account,
    in_tables,
    key_rights,
    readable,
    schema_rights,
)
from mirrorless.config import load
from mirrorless.config.cluster import Tls, WithSecret, for_operators
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.submission import parameter_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from infra.deployment import FlowDeployment
    from mirrorless.config.cluster import AuthenticationSection

LOOK: Final[Mapping[str, tuple[str, ...]]] = {
    "offset_map": ("Query", "BatchGetItem"),
    "lanes": ("BatchGetItem", "Scan"),
    "loss_ledger": ("Query", "Scan"),
    "checkpoints": ("Query",),
    "control": ("Query",),
}
"""DynamoDB's actions by table, to look."""

REPAIR: Final[Mapping[str, tuple[str, ...]]] = {
    "offset_map": ("PutItem", "UpdateItem"),
    "lanes": ("UpdateItem",),
    "loss_ledger": ("PutItem",),
    "checkpoints": ("BatchWriteItem", "DeleteItem", "PartiQLInsert", "PartiQLUpdate"),
    "control": ("PartiQLInsert", "PartiQLUpdate", "BatchWriteItem", "UpdateItem"),
}
"""What a repair needs beside: a lane resumed or reset, a record left out, a group moved back, ACLs applied; and a
failover, which stops the flow, settles runs in doubt and does rounds of checkpoints. A failback runs a job as well."""

_APPLICATIONS: Final = "an application's id is the service's own choice; the flow's role is the only one that is passed"


def rights(
    flow: FlowDeployment,
    *,
    repair: bool = False,
    jobs: bool = False,
    keys: bool = False,
    migrate: bool = False,
    key: str | None = None,
) -> list[Right]:
    """What an operator needs for a flow: in its tables, and secrets where the tables are.

    Args:
        flow: the flow.
        repair: whether lanes and ACLs are to be changed.
        jobs: whether jobs are to be run.
        keys: whether keys are to be made, and what rules have sealed to be opened.
        migrate: whether copies are to be audited, and lanes taken over and given back.
        key: ARN of the customer's key of the place where jobs run.
    """
    more = [LOOK, *([REPAIR] if repair else []), *([MIGRATING.tables] if migrate else [])]
    tables = {table: tuple(dict.fromkeys(action for each in more for action in each.get(table, ()))) for table in LOOK}
    there = flow.home if flow.home.account == flow.state.account else flow.state
    acting = repair or jobs or keys or migrate
    both = counterpart_rights(flow) if repair else []
    opening = key_rights(flow, flow.jobs, "kms:GenerateDataKeyWithoutPlaintext") if keys else []
    looking = [
        *in_tables(flow, tables),
        *both,
        *readable(flow, there, proofs=[*_proofs(flow, acting=acting)]),
        *schema_rights(flow, flow.jobs),
    ]
    on_clusters = cluster_rights(MIGRATING, flow) if migrate else []
    return [*looking, *(_job_rights(flow, key) if jobs else []), *opening, *on_clusters]


def _proofs(flow: FlowDeployment, *, acting: bool) -> Iterator[AuthenticationSection]:
    """How an operator proves to be one; whoever only looks reads no secret by which functions write."""
    for cluster in (flow.flow.source, flow.flow.target):
        proof = cluster.authentication
        if acting:
            yield proof
        if isinstance(proof, WithSecret) and proof.operator_secret is None:
            yield Tls(type="tls", ca=proof.ca)
        else:
            yield for_operators(proof)


def policy(flow: FlowDeployment, **more: Any) -> dict[str, Any]:
    """The policy as IAM takes it. Args: more: as of `rights`."""
    statements = [right.statement().to_statement_json() for right in rights(flow, **more)]
    return {"Version": "2012-10-17", "Statement": statements}


def _job_rights(flow: FlowDeployment, key: str | None) -> list[Right]:
    """To start, watch and end job runs, to write their requests and to read their files."""
    place, deployment = flow.jobs, flow.flow.deployment
    prefix = spark_settings.prefix(flow)
    bucket = f"arn:{place.partition}:s3:::{flow.bucket_name}"
    applications = place.arn("emr-serverless", "/applications/*")
    found = [
        Right(
            # Runs are started with tags. (https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/tagging.html)
            actions=("emr-serverless:StartJobRun", "emr-serverless:TagResource", "emr-serverless:ListJobRuns"),
            resources=(applications,),
            reason=_APPLICATIONS,
        ),
        Right(
            actions=("emr-serverless:GetJobRun", "emr-serverless:CancelJobRun", "emr-serverless:TagResource"),
            resources=(f"{applications}/jobruns/*",),
            reason=_APPLICATIONS,
        ),
        Right(
            actions=("iam:PassRole",),
            resources=(place.iam_arn(f"role/{spark_settings.role_name(flow)}"),),
            conditions={"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}},
        ),
        Right(
            actions=("ssm:GetParameter",),
            resources=(place.arn("ssm", f"parameter{parameter_name(flow.flow.name, deployment=deployment)}"),),
        ),
        Right(
            actions=("s3:GetObject", "s3:PutObject"),
            resources=(f"{bucket}/{prefix}jobs/*",),
            conditions=in_account(place),
            reason="runs have folders of their own",
        ),
        Right(
            actions=("s3:ListBucket",),
            resources=(bucket,),
            conditions={**in_account(place), "StringLike": {"s3:prefix": f"{prefix}jobs/*"}},
        ),
    ]
    if key:
        found.append(Right(actions=("kms:Decrypt", "kms:GenerateDataKey"), resources=(key,)))
    return found


def main() -> None:
    """Print the policy of each flow."""
    parser = argparse.ArgumentParser(description="The policies that operators of these flows need.")
    parser.add_argument("config", type=Path, help="replication.yaml")
    parser.add_argument("--repair", action="store_true", help="to change lanes and ACLs, and not only to look")
    parser.add_argument("--jobs", action="store_true", help="to run jobs")
    parser.add_argument("--keys", action="store_true", help="to make keys, and to open what they have sealed")
    parser.add_argument(
        "--migrate", action="store_true", help="to audit copies, take over from MirrorMaker 2, give back"
    )
    arguments = parser.parse_args()
    try:
        deployment = plan(load(arguments.config))
    except MirrorlessError as error:
        sys.exit(str(error))
    for flow in deployment.flows:
        apart = flow.jobs.account != flow.state.account
        where = f"; what concerns jobs and keys, in account {flow.jobs.account}" if apart else ""
        print(f"# {flow.name}, in account {flow.state.account}{where}", file=sys.stderr)
        kinds = {name: getattr(arguments, name) for name in ("repair", "jobs", "keys", "migrate")}
        print(json.dumps(policy(flow, **kinds, key=deployment.kms_key(flow.jobs)), indent=2))


if __name__ == "__main__":
    main()
