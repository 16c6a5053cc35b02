"""The rights of each part of a flow: what its calls need (`infra.iam.calls`), and what AWS does in its name.

Two kinds of cluster rights: on a cluster that authenticates by IAM those of `kafka-cluster`, by name; on any other a
secret, whose cluster has ACLs of its own. A role of another account than the cluster's needs the cluster's own policy
as well (https://docs.aws.amazon.com/msk/latest/developerguide/mvpc-cross-account-permissions.html).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from infra.deployment import ALIAS, Location
from infra.iam import Part, Right
from infra.iam.calls import (
    APPLIES_RULES,
    KEEPS_RULES,
    KIND,
    NEEDS,
    NOT_ON_SERVERLESS,
    PARTS,
    PartCalls,
    ResourceKind,
    Use,
)
from infra.iam.kafka_names import distinct
from mirrorless.adapters.aws.keys import encryption_context
from mirrorless.config.authentication_rules import is_serverless
from mirrorless.config.cluster import Iam, Scram, WithSecret, secrets_of
from mirrorless.flow.naming import flow_tags

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment
    from mirrorless.config.cluster import AuthenticationSection, Cluster, Vpc


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """Everything that a part of a flow may do, apart from its log, and the files of jobs."""
    subjects = (table_rights, secret_rights, rule_rights, kafka_rights, network_rights, mapping_rights)
    return [right for subject in subjects for right in subject(part, flow)]


def rights_of(deployment: Deployment, flow: FlowDeployment, part: Part) -> list[Right]:
    """The rights of a part's role, but for those of jobs on their files."""
    if part == "jobs":
        return rights(part, flow)
    return [*rights(part, flow), *log_rights(flow, part, deployment.kms_key(flow.place_of(part)))]


# DynamoDB


def table_rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part may do in its tables; or to be the role that may, where the tables are in another account."""
    if role := flow.tables_role_of(part):
        return [Right(actions=("sts:AssumeRole",), resources=(role,))]
    carries_groups = part in {"control", "standby"}
    return [*in_tables(flow, tables_of(part, flow)), *(counterpart_rights(flow) if carries_groups else [])]


def tables_of(part: Part, flow: FlowDeployment) -> Mapping[str, tuple[str, ...]]:
    """What a part does in the tables, by table; one that applies rules keeps them among the flow's documents."""
    wanted = dict(PARTS[part].tables)
    if flow.flow.rules and part in APPLIES_RULES:
        wanted["control"] = tuple(dict.fromkeys((*wanted.get("control", ()), *KEEPS_RULES)))
    return wanted


def counterpart_rights(flow: FlowDeployment) -> list[Right]:
    """To read the offset map of the flow in the other direction, where groups are carried by both maps."""
    table = flow.counterpart_arn
    if table is None or flow.counterpart is None:
        return []
    granted = [Right(actions=("dynamodb:Query", "dynamodb:BatchGetItem"), resources=(table,))]
    if flow.counterpart_key:
        granted.append(_opened(flow.counterpart_key, "dynamodb", flow.counterpart.region))
    return granted


def tables_role_rights(flow: FlowDeployment) -> list[Right]:
    """What the role does by which functions of another account reach the tables: what any of them does."""
    union: dict[str, tuple[str, ...]] = {}
    for part in PARTS:
        if flow.has(part) and flow.tables_role_of(part):
            for table, actions in tables_of(part, flow).items():
                union[table] = tuple(dict.fromkeys((*union.get(table, ()), *actions)))
    return in_tables(flow, union)


def in_tables(flow: FlowDeployment, wanted: Mapping[str, Iterable[str]]) -> list[Right]:
    """To do these things in a flow's tables, and to have them opened. Args: wanted: actions by table."""
    arns = flow.table_arns()
    granted = [
        Right(actions=tuple(f"dynamodb:{action}" for action in actions), resources=(arns[table],))
        for table, actions in wanted.items()
    ]
    # DynamoDB opens a table's key in the name of whoever reads or writes; it makes that key in its own.
    # https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/encryption.usagenotes.html
    return [*granted, _opened(flow.tables_key, "dynamodb", flow.state.region)] if flow.tables_key else granted


def _opened(key: str, service: str, region: str) -> Right:
    """To have a service open what a customer's key encrypts."""
    via = {"kms:ViaService": f"{service}.{region}.amazonaws.com"}
    return Right(actions=("kms:Decrypt",), resources=(key,), conditions={"StringEquals": via})


# Secrets: credentials, and certificates of private authorities. Pollers act by the forwarder's role, and read the same.


def secret_rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part may read where it runs: secrets of the same names must be there."""
    return readable(flow, flow.place_of(part)) if _calls_clusters(part) else []


def _calls_clusters(part: Part) -> bool:
    """Whether a part calls a cluster. One that talks to AWS only would need an endpoint in a VPC."""
    return part != "remove_mappings"


def readable(
    flow: FlowDeployment, place: Location, *, proofs: Iterable[AuthenticationSection] | None = None
) -> list[Right]:
    """To read a flow's secrets as they are called in a place. Args: proofs: None: those of functions and jobs."""
    secrets: dict[str, None] = {}
    keys: dict[tuple[str, str], None] = {}
    for proof in proofs or (flow.flow.source.authentication, flow.flow.target.authentication):
        secrets |= dict.fromkeys(_secret(flow, secret, place) for secret in secrets_of(proof))
        if not isinstance(proof, WithSecret):
            continue
        region, account = flow.secret_arn(proof.secret, at=place).split(":")[3:5]
        found = (_key_there(key, region, account) for key in proof.secret_kms_key_arn)
        if key := next(filter(None, found), None):
            keys[key, region] = None
    if not secrets:
        return []
    read = Right(actions=("secretsmanager:GetSecretValue",), resources=tuple(secrets))
    return [read, *(_opened(key, "secretsmanager", region) for key, region in keys)]


def rule_rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """To read what rules need, where they are applied."""
    if part not in APPLIES_RULES:
        return []
    place = flow.place_of(part)
    return [*key_rights(flow, place), *schema_rights(flow, place)]


def key_rights(flow: FlowDeployment, place: Location, *actions: str) -> list[Right]:
    """To read the keys of a flow's rules in a place. Args: actions: more to do with keys of KMS."""
    found, secrets = list[Right](), dict[str, tuple[str, ...]]()
    for name, key in flow.flow.keys_of_rules.items():
        if key.secret:
            secrets[key.secret] = (*secrets.get(key.secret, ()), *key.secret_kms_key_arn)
        elif key.kms_key_arn:
            context = {f"kms:EncryptionContext:{field}": said for field, said in encryption_context(name).items()}
            named = {"StringEquals": context}
            found.append(Right(actions=("kms:Decrypt", *actions), resources=(key.kms_key_arn,), conditions=named))
    return [*_reading(flow, secrets, place), *found]


def schema_rights(flow: FlowDeployment, place: Location) -> list[Right]:
    """To read the schemas of a flow's records from a place, where it has rules."""
    registry = flow.flow.registry
    if registry is None:
        return []
    if registry.type == "glue":
        why = "Glue is asked by the id of a schema's version, which is in no ARN"
        return [Right(actions=("glue:GetSchemaVersion",), resources=("*",), reason=why)]
    return _reading(flow, dict.fromkeys(registry.secrets, registry.secret_kms_key_arn), place)


def _reading(flow: FlowDeployment, secrets: Mapping[str, tuple[str, ...]], place: Location) -> list[Right]:
    """To read secrets as they are called in a place, and to have them opened. Args: secrets: each with its keys."""
    if not secrets:
        return []
    opening: dict[tuple[str, str], None] = {}
    for secret, keys in secrets.items():
        region, account = flow.secret_arn(secret, at=place).split(":")[3:5]
        opening |= dict.fromkeys((each, region) for key in keys if (each := _key_there(key, region, account)))
    arns = tuple(_secret(flow, secret, place) for secret in secrets)
    read = Right(actions=("secretsmanager:GetSecretValue",), resources=arns)
    return [*(_opened(key_arn, "secretsmanager", region) for key_arn, region in opening), read]


def _secret(flow: FlowDeployment, secret: str, place: Location) -> str:
    """The ARN of a secret; one that is written by its name ends with six letters of Secrets Manager's choice.

    (https://docs.aws.amazon.com/secretsmanager/latest/userguide/auth-and-access_iam-policies.html)
    """
    arn = flow.secret_arn(secret, at=place)
    return arn if secret.startswith("arn:") else f"{arn}-??????"


def _key_there(key: str, region: str, account: str) -> str | None:
    """The key that opens a secret in a place, if this may be it: of a multi-region key, the replica there."""
    parts = key.split(":")
    if parts[4] != account:
        return None
    if parts[3] == region:
        return key
    return ":".join([*parts[:3], region, *parts[4:]]) if ":key/mrk-" in key else None


# Kafka, where a cluster authenticates by IAM


_WHY: Final[Mapping[ResourceKind, str]] = {
    "cluster": "",
    "topic": "topics are found by pattern, are heartbeats of any cluster, or begin as `topics.rights.prefixes` says",
    "group": "groups are followed by pattern, and each mapping has a group of its own",
    "transactional-id": "each execution environment has a transactional id of its own",
}


def kafka_rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part of a flow may do on the flow's clusters."""
    return cluster_rights(PARTS[part], flow)


def cluster_rights(calls: PartCalls, flow: FlowDeployment) -> list[Right]:
    """What some calls need on a flow's clusters."""
    clusters, uses = (flow.flow.source, flow.flow.target), calls.clusters(flow.flow)
    return [right for cluster, its in zip(clusters, uses, strict=True) for right in _on_cluster(cluster, its)]


def _on_cluster(cluster: Cluster, uses: Iterable[Use]) -> Iterator[Right]:
    """What some uses of a cluster need; what is about the same names together."""
    if not isinstance(cluster.authentication, Iam):
        return
    lacking = NOT_ON_SERVERLESS if is_serverless(cluster) else frozenset()
    actions: dict[tuple[ResourceKind, str], set[str]] = {}
    for use in uses:
        for action in (action for call in use.calls for action in NEEDS[call] if action not in lacking):
            for name in use.about(KIND[action]):
                actions.setdefault((KIND[action], name), set()).add(f"kafka-cluster:{action}")
    together: dict[tuple[ResourceKind, tuple[str, ...]], list[str]] = {}
    for (kind, name), allowed in actions.items():
        together.setdefault((kind, tuple(sorted(allowed))), []).append(name)
    path, unknown = _path(cluster)
    owner = Location(account=_owner(cluster), region=cluster.region or "*")
    for (kind, allowed_there), names in together.items():
        fewest = distinct(names)
        wild = _WHY[kind] if any("*" in name for name in fewest) else ""
        yield Right(
            actions=allowed_there,
            resources=tuple(owner.arn("kafka", f"{kind}/{path}/{name}".rstrip("/")) for name in fewest),
            reason="; ".join(filter(None, (unknown, wild))),
        )


def _path(cluster: Cluster) -> tuple[str, str]:
    """The name and the id of a cluster as ARNs have them, and why a part of it is missing."""
    kind, *rest = cluster.msk_arn.split(":", 5)[5].split("/") if cluster.msk_arn else [""]
    if kind == "cluster":
        return "/".join(rest), ""
    if kind == "vpc-connection":
        # .../vpc-connection/<the cluster's account>/<the cluster's name>/<the connection's own id>
        return f"{rest[1]}/*", f"the ARN of a VPC connection lacks the id of {cluster.alias}"
    return "*/*", f"the name of {cluster.alias} is in `msk.cluster.arn` alone, which is not set"


def _owner(cluster: Cluster) -> str:
    """The account of a cluster; that of a VPC connection is its client's."""
    if cluster.msk_arn and ":vpc-connection/" in cluster.msk_arn:
        return cluster.msk_arn.split("/")[1]
    return cluster.account or "*"


# Lambda. A mapping has no name of ours, only a UUID that Lambda gives it. What narrows these rights is the function
# that a mapping calls (https://docs.aws.amazon.com/service-authorization/latest/reference/list_lambda.html). AWS does
# not say whether a mapping to an alias shows the alias there or its function, so both are named; it is one function
# either way. No `iam:PassRole`: a mapping's pollers take the function's role by themselves.


LISTS_CONNECTIONS: Final = "kafka:ListVpcConnections"
"""Whoever makes a mapping to a cluster of another account needs it; the mapping's own role does not.
(https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html)"""

_UNNAMED: Final = "Lambda names a mapping by a UUID when it is made"


def mapping_rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """To manage the mappings of found topics, as `refresh_topics` does, or to delete them."""
    every, forwarder = flow.home.arn("lambda", "event-source-mapping:*"), flow.function_arn("forward")
    of_flow = {"ArnEquals": {"lambda:FunctionArn": (forwarder, f"{forwarder}:{ALIAS}")}}
    # What is created with tags needs TagResource (https://docs.aws.amazon.com/lambda/latest/dg/tags-esm.html). A new
    # mapping has no tags; others have those of their flow, which must be this one: nobody else's mapping becomes ours.
    tags = flow_tags(flow.flow.name)
    ours = {
        "StringEquals": {f"aws:RequestTag/{key}": value for key, value in tags.items()},
        "StringEqualsIfExists": {f"aws:ResourceTag/{key}": value for key, value in tags.items()},
    }
    unmade = "IAM has no resource for a mapping that is not there yet; the condition allows the forwarder only"
    rows: tuple[tuple[set[str], str, Mapping[str, Mapping[str, str | tuple[str, ...]]], str], ...] = (
        ({"ListEventSourceMappings"}, "*", {}, "IAM has no resource for listing event source mappings"),
        ({"CreateEventSourceMapping"}, "*", of_flow, unmade),
        ({"TagResource"}, every, ours, f"{_UNNAMED}, and its tags are given with it"),
        ({"ListTags"}, every, {}, f"{_UNNAMED}; its tags say whose it is"),
        (
            {"UpdateEventSourceMapping", "DeleteEventSourceMapping"},
            every,
            of_flow,
            f"{_UNNAMED}; the condition allows those of the flow's forwarder only",
        ),
    )
    granted = [
        Right(actions=called, resources=(resource,), conditions=conditions, reason=reason)
        for actions, resource, conditions, reason in rows
        if (called := tuple(f"lambda:{action}" for action in PARTS[part].mappings if action in actions))
    ]
    makes = flow.flow.mapped_by_arn and "CreateEventSourceMapping" in PARTS[part].mappings
    if makes and ":vpc-connection/" in str(flow.flow.source.msk_arn):
        why = "MSK has no resource for listing VPC connections"
        granted.append(Right(actions=(LISTS_CONNECTIONS,), resources=("*",), reason=why))
    return granted


# Networks. AWS acts here, not our code: Lambda makes the interfaces of a function that is in a VPC; the pollers of a
# mapping make theirs, describe the MSK cluster and list its brokers. All of them act by the function's role.
# (https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html,
# https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html,
# https://docs.aws.amazon.com/lambda/latest/dg/with-kafka-permissions.html)


def network_of(part: Part, flow: FlowDeployment) -> Vpc | None:
    """The network that a function is attached to; None where it needs none, or none is written."""
    return flow.end_of(part).vpc if _calls_clusters(part) else None


def network_rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """To reach brokers. Jobs have no rights of this kind: EMR's own role makes their interfaces."""
    if part == "jobs":
        return []
    if part == "forward" and flow.flow.mapped_by_arn:
        return [*_interfaces(part, flow, where_msk_is=True), *_description(flow)]
    return _interfaces(part, flow, polled=part == "forward") if network_of(part, flow) else []


def _interfaces(part: Part, flow: FlowDeployment, *, where_msk_is: bool = False, polled: bool = False) -> list[Right]:
    """To make, find and delete interfaces.

    Args:
        part: whose.
        flow: its flow.
        where_msk_is: for an MSK mapping's pollers too, who use the cluster's own subnets and security groups.
        polled: for a self-managed mapping's pollers too, who use the flow's.
    """
    network, here = flow.end_of(part).vpc, flow.place_of(part)
    subnets, groups = (network.subnets, network.security_groups) if network else ((), ())
    if where_msk_is:
        subnets, groups = ("*",), ("*",)
    why = " and the pollers use subnets and groups of MSK's own" if where_msk_is else ""
    places = [
        *(here.arn("ec2", f"subnet/{subnet}") for subnet in subnets),
        *(here.arn("ec2", f"security-group/{group}") for group in groups),
    ]
    looking = ["ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"]
    if where_msk_is or polled:
        looking += ["ec2:DescribeSecurityGroups", "ec2:DescribeVpcs"]
    addresses = ("ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses") if network else ()
    return [
        Right(
            actions=("ec2:CreateNetworkInterface",),
            resources=(*places, here.arn("ec2", "network-interface/*")),
            reason=f"an interface has no name before it is made{why}",
        ),
        Right(
            # Only network interfaces are resources of these; Lambda refuses a role with a narrower ARN than this.
            actions=("ec2:DeleteNetworkInterface", *addresses),
            resources=(here.arn("ec2", "*/*"),),
            reason="Lambda makes the interfaces, gives them their names, and needs all of them",
        ),
        Right(actions=tuple(looking), resources=("*",), reason="EC2 describes everything or nothing"),
    ]


def _description(flow: FlowDeployment) -> list[Right]:
    """To look the cluster up. A VPC connection is of a cluster of another account, and has only its name."""
    arn = str(flow.flow.source.msk_arn)
    describe: tuple[str, ...] = ("kafka:DescribeCluster", "kafka:DescribeClusterV2")
    why = "MSK has no resource for bootstrap brokers"
    found = [Right(actions=("kafka:GetBootstrapBrokers",), resources=("*",), reason=why)]
    if ":vpc-connection/" in arn:
        name = arn.split("/")[-2]
        cluster = f"arn:{flow.home.partition}:kafka:{flow.home.region}:*:cluster/{name}/*"
        why = "the connection's ARN has the cluster's name, but neither its owner nor its id"
        return [
            *found,
            Right(actions=("kafka:DescribeVpcConnection",), resources=(arn,)),
            Right(actions=describe, resources=(cluster,), reason=why),
        ]
    if isinstance(flow.flow.source.authentication, Scram):
        describe = (*describe, "kafka:ListScramSecrets")
    return [*found, Right(actions=describe, resources=(arn,))]


# Logs, and the files of jobs


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


def in_account(place: Location) -> Mapping[str, Mapping[str, str]]:
    """A bucket of this name is ours only in this account: names are those of all accounts."""
    return {"StringEquals": {"aws:ResourceAccount": place.account}}


def storage_rights(
    flow: FlowDeployment, *, bucket: str, prefix: str, artifacts: Sequence[str], log_group: str, key: str | None
) -> list[Right]:
    """What the jobs of a flow may do, beyond Kafka, tables and secrets.

    The log's rights are what EMR Serverless needs in a job's role, and uses; no call of ours does.
    (https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html)

    Args:
        flow: the flow.
        bucket: the bucket of its place.
        prefix: where in it the flow's jobs read and write, with the slash at its end.
        artifacts: ARNs of the objects that jobs are made of, of this deployment and of earlier ones.
        log_group: the log group of their application.
        key: ARN of the customer's key of the place.
    """
    place = flow.jobs
    bucket_arn, ours = f"arn:{place.partition}:s3:::{bucket}", in_account(place)
    found = [
        Right(
            actions=("s3:GetObject",),
            resources=tuple(artifacts),
            conditions=ours,
            reason="a job that runs loads the code of the deployment that started it; the prefix has jobs' code alone",
        ),
        Right(
            # Runs' folders and archives. Spark itself writes nothing: records never pass through it.
            actions=("s3:GetObject", "s3:PutObject"),
            resources=(f"{bucket_arn}/{prefix}*",),
            conditions=ours,
            reason="jobs name their own objects; the prefix is this flow's alone",
        ),
        Right(
            actions=("s3:ListBucket",),
            resources=(bucket_arn,),
            conditions={**ours, "StringLike": {"s3:prefix": f"{prefix}*"}},
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
        # For the bucket's objects, and for the logs that EMR keeps for Spark's pages. For the latter AWS documents no
        # `kms:ViaService`. (https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-log-encryption.html)
        found.append(Right(actions=("kms:Decrypt", "kms:GenerateDataKey"), resources=(key,)))
    return found
