"""Every role has the actions that its part was recorded to need, and no others.

What is needed stands in the recording of calls (`tests/support/aws_recorder.py`), what is granted is read from the
synthesized templates. `kafka-cluster` actions are no calls of boto3 and are tested in test_kafka_rights; those of jobs
on their bucket and log in test_spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from infra.deployment import ALIAS, FlowDeployment, Location, plan
from infra.iam import Part, file_of, operator
from infra.iam.calls import MIGRATING
from infra.iam.statements import readable, rule_rights, secret_rights, table_rights
from lab.esm.api_model import violations
from mirrorless.config import load
from mirrorless.config.cluster import Mtls, Scram
from mirrorless.flow.naming import JOB_GROUP, flow_tags
from mirrorless.topics.mapping_plan import mapping_request
from tests.support.assembly import EXAMPLES, REPOSITORY, Assembly
from tests.support.aws_recorder import recorded
from tests.support.changed_examples import written
from tests.support.iam import (
    Context,
    Statement,
    allowed,
    granted_anywhere,
    listed,
    many,
    role_statements,
    statements_of,
)
from tests.support.yaml_text import dump_yaml, load_yaml

Assembled = Callable[[str], Assembly]
Need = tuple[str, str, Context]
"""An action, a resource, and the condition keys of the request."""

CALLED = {"dynamodb", "kms", "lambda", "s3", "secretsmanager", "sts"}
"""Services that our code calls, or whose keys it makes use of."""

BY_THE_SERVICE = {
    # Lambda writes a function's log as the function's role.
    # https://docs.aws.amazon.com/lambda/latest/dg/lambda-intro-execution-role.html
    "logs:CreateLogStream",
    "logs:PutLogEvents",
    # Lambda makes the interfaces of a function in a VPC, and a mapping's pollers make theirs.
    # https://docs.aws.amazon.com/lambda/latest/dg/configuration-vpc.html#configuration-vpc-permissions
    # https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
    "ec2:UnassignPrivateIpAddresses",
    # Pollers look the MSK cluster up. The same page.
    "kafka:DescribeCluster",
    "kafka:DescribeClusterV2",
    "kafka:GetBootstrapBrokers",
    "kafka:ListScramSecrets",
}
"""What the examples' functions are granted for AWS's own acts in their name."""

WITH_SCHEDULED_TOPICS = {"data-isolation", "long-tail"}
WITH_STANDBY = {"active-active", "active-passive", "cross-account", "hub-and-spoke", "long-tail"}
CASES = [
    (example, part)
    for example in EXAMPLES
    for part in get_args(Part)
    if (example, part) != ("aggregation", "jobs")
    and (part != "pull" or example in WITH_SCHEDULED_TOPICS)
    and (part != "standby" or example in WITH_STANDBY)
]
"""All but the jobs of the example that wants none, readers without scheduled topics, and standbys where none is."""

each_part = pytest.mark.parametrize(("example", "part"), CASES)


def functions() -> list[Part]:
    """The parts that are functions, each a file of its name."""
    return [part for part in get_args(Part) if part != "jobs"]


def test_every_part_has_its_file_and_every_file_is_a_part() -> None:
    assert {file_of(part) for part in functions()} == {path.stem for path in (REPOSITORY / "functions").glob("*.py")}
    assert {
        *map(file_of, get_args(Part)),
        *(f"operator_{each}" for each in ("look", "repair", "jobs", "keys", "migrate")),
    } == recorded().keys()


# The roles


def secrets_of(flow: FlowDeployment, place: Location) -> Iterator[Need]:
    """The secrets of a flow as they are in a place, each with the six letters that Secrets Manager chose."""
    for cluster in (flow.flow.source, flow.flow.target):
        proof = cluster.authentication
        if isinstance(proof, Scram | Mtls):  # all that the examples have
            for secret in filter(None, (proof.secret, proof.ca)):
                suffix = "" if secret.startswith("arn:") else "-aB3xYz"
                yield "secretsmanager:GetSecretValue", flow.secret_arn(secret, at=place) + suffix, {}
            for key in proof.secret_kms_key_arn:
                if key.split(":")[3:5] == [place.region, place.account]:
                    yield "kms:Decrypt", key, {"kms:ViaService": f"secretsmanager.{place.region}.amazonaws.com"}


def keys_of(flow: FlowDeployment, place: Location) -> Iterator[Need]:
    """The keys of a flow's rules: in secrets of a place, or opened by KMS."""
    for name, key in flow.flow.keys_of_rules.items():
        if key.secret:
            yield "secretsmanager:GetSecretValue", f"{flow.secret_arn(key.secret, at=place)}-aB3xYz", {}
            via = {"kms:ViaService": f"secretsmanager.{place.region}.amazonaws.com"}
            yield from (("kms:Decrypt", each, via) for each in key.secret_kms_key_arn)
        else:
            yield "kms:Decrypt", key.kms_key_arn or "", {"kms:EncryptionContext:mirrorless.key": name}


def table_needs(part: Part, flow: FlowDeployment) -> Iterator[Need]:
    arns = flow.table_arns()
    for action, table in recorded()[file_of(part)]:
        of_rules = (part, table) in {("forward", "control"), ("jobs", "control")}
        if action.startswith("dynamodb:") and (flow.flow.rules or not of_rules):
            yield action, arns[table], {}
    if flow.tables_key:
        yield "kms:Decrypt", flow.tables_key, {"kms:ViaService": f"dynamodb.{flow.state.region}.amazonaws.com"}


def mapping_need(action: str, flow: FlowDeployment) -> Need:
    mapping = flow.home.arn("lambda", "event-source-mapping:14e0db71-5d35-4eb5-b481-8945cf9d10c2")
    resource = mapping if listed(action).get("Resources") else "*"
    return action, resource, {"lambda:FunctionArn": f"{flow.function_arn('forward')}:{ALIAS}"}


def function_needs(part: Part, flow: FlowDeployment) -> Iterator[Need]:
    """What a function does by its own role; tables in another account are not among it."""
    abroad = flow.tables_role_of(part)
    for action, _ in recorded()[file_of(part)]:
        if action == "sts:AssumeRole" and abroad:
            yield action, abroad, {}
        elif action == "secretsmanager:GetSecretValue":
            yield from secrets_of(flow, flow.place_of(part))
        elif action == "kms:Decrypt":
            yield from keys_of(flow, flow.place_of(part))
        elif action.startswith("lambda:"):
            yield mapping_need(action, flow)
            if action == "lambda:CreateEventSourceMapping":  # with tags: the test below
                tag_action, mapping, _ = mapping_need("lambda:TagResource", flow)
                yield (
                    tag_action,
                    mapping,
                    {f"aws:RequestTag/{key}": tag for key, tag in flow_tags(flow.flow.name).items()},
                )
    if not abroad:
        yield from table_needs(part, flow)


def granted(assembly: Assembly, part: Part, flow: FlowDeployment) -> list[Statement]:
    """The statements of a part's role. That of jobs has a name of its own."""
    name = flow.flow.resource_name(part)
    if part != "jobs":
        return statements_of(assembly, name)
    return role_statements(assembly, assembly.only("AWS::IAM::Role", RoleName=name))


def job_needs(assembly: Assembly, flow: FlowDeployment) -> Iterator[Need]:
    """What jobs do where they run; their code is in the bucket of what is deployed."""
    place, abroad = flow.jobs, flow.tables_role_of("jobs")
    yield from secrets_of(flow, place)
    yield from keys_of(flow, place)
    if abroad:
        yield "sts:AssumeRole", abroad, {}
    yield from object_needs(flow)
    yield "s3:GetObject", deployed_objects(assembly, flow)[0], {"aws:ResourceAccount": place.account}
    if key := assembly.deployment.kms_key(place):
        yield from ((action, key, {}) for action in ("kms:Decrypt", "kms:GenerateDataKey"))
    if not abroad:
        yield from table_needs("jobs", flow)


def object_needs(flow: FlowDeployment) -> Iterator[Need]:
    """What jobs do in the bucket of what they write."""
    bucket, folder = f"arn:{flow.jobs.partition}:s3:::{flow.bucket_name}", f"flows/{flow.id}/jobs/verify-1/"
    for action in (action for action, _ in recorded()["jobs"] if action.startswith("s3:")):
        if action == "s3:ListBucket":
            yield action, bucket, {"s3:prefix": f"{folder}lanes/", "aws:ResourceAccount": flow.jobs.account}
        else:
            yield action, f"{bucket}/{folder}report.json", {"aws:ResourceAccount": flow.jobs.account}


def deployed_objects(assembly: Assembly, flow: FlowDeployment) -> list[str]:
    """The ARNs of what jobs are made of."""
    return next(
        many(statement["Resource"])
        for statement in granted(assembly, "jobs", flow)
        if many(statement["Action"]) == ["s3:GetObject"]
    )


def unused(statements: list[Statement], wanted: list[Need]) -> list[tuple[str, str]]:
    """What is granted of the services that we call, and matches nothing that is wanted."""
    granted = [
        (action, resource)
        for statement in statements
        if statement["Effect"] == "Allow"
        for action in many(statement["Action"])
        for resource in many(statement["Resource"])
        if action.partition(":")[0] in CALLED
    ]

    def used(action: str, resource: str) -> bool:
        alone: Statement = {"Effect": "Allow", "Action": action, "Resource": resource}
        return any(action == need and allowed([alone], need, arn) for need, arn, _ in wanted)

    return [pair for pair in granted if not used(*pair)]


@each_part
def test_a_part_has_every_right_that_its_calls_need_and_no_other(
    example: str, part: Part, assembled: Assembled
) -> None:
    assembly = assembled(example)
    for flow in assembly.deployment.flows:
        statements = granted(assembly, part, flow)
        wanted = list(job_needs(assembly, flow) if part == "jobs" else function_needs(part, flow))

        assert wanted
        assert [need for need in wanted if not allowed(statements, *need)] == []
        ours = deployed_objects(assembly, flow) if part == "jobs" else []
        assert [each for each in unused(statements, wanted) if each[1] not in ours] == []
        abroad = [(action, arn, {**context, "aws:ResourceAccount": "9"}) for action, arn, context in wanted]
        assert [need for need in abroad if need[0].startswith("s3:") and allowed(statements, *need)] == []


CHANGING = ("Create", "Update", "Delete")


@each_part
def test_a_part_reaches_nothing_of_other_flows(example: str, part: Part, assembled: Assembled) -> None:
    assembly = assembled(example)
    for flow in assembly.deployment.flows:
        statements = granted(assembly, part, flow)
        for other in assembly.deployment.flows:
            if other is not flow:
                theirs = [need for need in table_needs(part, other) if need[0] != "kms:Decrypt"]
                theirs += [mapping_need(f"lambda:{verb}EventSourceMapping", other) for verb in CHANGING]
                theirs += [need for need in object_needs(other) if part == "jobs"]
                assert [need for need in theirs if allowed(statements, *need)] == []


@pytest.mark.parametrize("example", ["cross-account", "data-isolation"])
def test_the_role_of_tables_in_another_account_has_what_who_runs_elsewhere_needs_together(
    example: str, assembled: Assembled
) -> None:
    assembly = assembled(example)
    (flow,) = assembly.deployment.flows
    name = flow.flow.resource_name("tables")
    users = [part for part in get_args(Part) if flow.has(part) and flow.tables_role_of(part)]
    wanted = [need for part in users for need in table_needs(part, flow)]

    statements = role_statements(assembly, assembly.only("AWS::IAM::Role", RoleName=name))

    assert flow.flow.tables_role == flow.state.iam_arn(f"role/{name}")
    assert [need for need in wanted if not allowed(statements, *need)] == []
    assert unused(statements, wanted) == []


def test_what_aws_does_in_a_functions_name_is_listed_action_by_action(assembled: Assembled) -> None:
    granted = {
        action
        for example in EXAMPLES
        for flow in assembled(example).deployment.flows
        for part in functions()
        if flow.has(part)
        for statement in statements_of(assembled(example), flow.flow.resource_name(part))
        if statement["Effect"] == "Allow"
        for action in many(statement["Action"])
    }

    assert {each for each in granted if each.partition(":")[0] not in CALLED | {"kafka-cluster"}} == BY_THE_SERVICE


def test_a_mapping_is_made_with_tags_by_a_request_that_lambda_takes(assembled: Assembled) -> None:
    """Hence `lambda:TagResource` beside the creation (https://docs.aws.amazon.com/lambda/latest/dg/tags-esm.html)."""
    for example in EXAMPLES:
        for flow in assembled(example).deployment.flows:
            settings = flow.flow.control_settings("forward:live", secret_arn=flow.secret_arn)
            request = {"FunctionName": settings.function_name, **mapping_request(settings, "orders")}

            assert request["Tags"]
            assert violations("CreateEventSourceMapping", request) == []


def test_only_mappings_without_a_flow_or_of_this_one_get_its_tags(assembled: Assembled) -> None:
    flow = assembled("active-active").deployment.flows[0]
    statements = granted(assembled("active-active"), "refresh_topics", flow)
    action, mapping, _ = mapping_need("lambda:TagResource", flow)
    ours, theirs = "us-east.eu-west", "us-east.elsewhere"

    def may(*, wanted: str, present: str | None) -> bool:
        context = {"aws:RequestTag/mirrorless:flow": wanted}
        return allowed(
            statements, action, mapping, context | ({"aws:ResourceTag/mirrorless:flow": present} if present else {})
        )

    assert may(wanted=ours, present=None)
    assert may(wanted=ours, present=ours)
    assert not may(wanted=theirs, present=None)
    assert not may(wanted=ours, present=theirs)


# Rights that no part has


@pytest.mark.parametrize("example", EXAMPLES)
def test_everything_is_allowed_only_where_iam_has_nothing_narrower(example: str, assembled: Assembled) -> None:
    """No role has a policy of AWS either, whose actions none of these lists would hold."""
    too_wide = [
        (where, action)
        for where, action, resource in granted_anywhere(assembled(example))
        if "*" in action or (resource == "*" and listed(action).get("Resources"))
    ]

    assert too_wide == []


# Secrets and keys


def test_keys_open_what_they_are_for_and_nothing_else(assembled: Assembled) -> None:
    assembly = assembled("aggregation")
    for flow in assembly.deployment.flows:
        statements = statements_of(assembly, flow.flow.resource_name("forward"))
        assert flow.tables_key
        for service, expected in {"dynamodb": True, "s3": False}.items():
            context = {"kms:ViaService": f"{service}.{flow.state.region}.amazonaws.com"}
            assert allowed(statements, "kms:Decrypt", flow.tables_key, context) is expected
        assert not allowed(statements, "kms:Decrypt", flow.tables_key)


BETWEEN_REGIONS = """
clusters:
  a:
    bootstrap.servers: a1.example.com:9096
    region: us-east-1
    account: "111122223333"
    authentication: {{type: scram, secret: proof, secret.kms.key.arn: "arn:aws:kms:us-east-1:111122223333:key/{key}"}}
    vpc: {{subnets: [subnet-0a100000000000000], security.groups: [sg-0a100000000000000]}}
  b: {{bootstrap.servers: b1.example.com:9092, region: eu-west-1, account: "111122223333"}}
flows:
  a->b: {{topics: [orders], function: {{run.in: source}}}}
"""


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("mrk-1234abcd", {"kms:Decrypt": ["arn:aws:kms:eu-west-1:111122223333:key/mrk-1234abcd"]}),
        ("1234abcd", {}),  # a copy of the secret, whose key is not in the configuration
    ],
)
def test_a_job_in_another_region_reads_the_copy_of_the_secret_there(key: str, expected: dict[str, list[str]]) -> None:
    (flow,) = plan(load(BETWEEN_REGIONS.format(key=key))).flows

    granted = {action: list(right.resources) for right in secret_rights("jobs", flow) for action in right.actions}

    copy = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:proof-??????"
    assert granted == {"secretsmanager:GetSecretValue": [copy], **expected}


def test_a_replica_of_anothers_key_opens_no_secret(tmp_path: Path) -> None:
    """A multi-region key has replicas in its own account only."""
    changed = ("us-east-1:111122223333:key/1f2e3d4c", "us-east-1:111122223333:key/mrk-1f2e3d4c")
    (flow,) = plan(load(written(tmp_path, "cross-account", changed))).flows

    keys = {arn for right in secret_rights("jobs", flow) if "kms:Decrypt" in right.actions for arn in right.resources}

    assert {arn.split(":")[4] for arn in keys} == {"444455556666"}


@pytest.mark.parametrize(
    ("authentication", "read"),
    [
        ("{type: tls, ca: root}", ["root"]),
        ("{type: plain, secret: user}", ["user"]),
        ("{type: oauthbearer, secret: client, ca: root}", ["client", "root"]),
        ("{type: mtls, secret: client, ca: root}", ["client", "root"]),
        ("{type: plaintext}", []),
    ],
)
def test_what_proves_a_client_may_be_read_and_so_may_the_authority(
    tmp_path: Path, authentication: str, read: list[str]
) -> None:
    written_there = "{type: mtls, secret: mirrorless/client-certificate, ca: mirrorless/authority}"
    (flow,) = plan(load(written(tmp_path, "self-managed-to-msk", (written_there, authentication)))).flows

    for part in ("forward", "control", "jobs"):
        granted = [arn for right in secret_rights(part, flow) for arn in right.resources]
        assert granted == [f"arn:aws:secretsmanager:eu-west-1:111122223333:secret:{name}-??????" for name in read]


USERS_KEY = "arn:aws:kms:us-east-1:111122223333:key/4c8e7f90-91a2-4b3c-8d4e-5f6071829304"
MASKED = """
clusters:
  a: {{bootstrap.servers: a1:9092, region: us-east-1, account: "111122223333", schema.registry: {{{registry}}}}}
  b: {{bootstrap.servers: b1:9092, region: eu-west-1, account: "111122223333"}}
keys: {{pii: {{secret: masks}}, unused: {{secret: others}}}}
flows:
  a->b:
    topics: [orders]
    schedule: {{shards: 1}}
    transforms: [{{topics: orders, format: avro, fields: {{card: {{hmac: pii}}}}}}]
"""


@pytest.mark.parametrize(
    ("registry", "schemas"),
    [
        (
            f"url: 'https://registry', secret: user, secret.kms.key.arn: ['{USERS_KEY}'], ca: root",
            {"secret:user-??????", "secret:root-??????", USERS_KEY},
        ),
        ("type: glue", {"*"}),
    ],
)
def test_keys_and_schemas_are_read_where_rules_are_applied_and_nowhere_else(registry: str, schemas: set[str]) -> None:
    (flow,) = plan(load(MASKED.format(registry=registry))).flows

    for part in (each for each in get_args(Part) if flow.has(each)):
        found = [arn for right in rule_rights(part, flow) for arn in right.resources]
        here = "arn:aws:secretsmanager:us-east-1:111122223333:"
        wanted = {"secret:masks-??????", *schemas} if part in {"forward", "pull", "control", "jobs"} else set()
        assert {arn.removeprefix(here) for arn in found} == wanted


@pytest.mark.parametrize("example", EXAMPLES)
def test_who_reads_a_secret_of_msk_may_decrypt_it_there(example: str) -> None:
    """MSK takes only secrets under a key of one's own. A copy in another account is MSK's no more."""
    for flow in plan(load(EXAMPLES[example])).flows:
        proofs = (flow.flow.source.authentication, flow.flow.target.authentication)
        owners = {key.split(":")[4] for proof in proofs if isinstance(proof, Scram) for key in proof.secret_kms_key_arn}
        parts = [part for part in get_args(Part) if flow.has(part)]
        granted = [*(secret_rights(part, flow) for part in parts), readable(flow, flow.state)]
        for rights in granted:
            secret = tuple(f"{owner}:secret:AmazonMSK_" for owner in owners)
            read = {arn for right in rights for arn in right.resources if any(each in arn for each in secret)}
            keys = [right for right in rights if right.actions == ("kms:Decrypt",)]

            assert {arn.split(":")[3] for arn in read} == {arn.split(":")[3] for key in keys for arn in key.resources}
            for key in keys:
                region = key.resources[0].split(":")[3]
                service = {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com"}
                assert key.conditions == {"StringEquals": service}


# Operators


def tables_in(actions: Mapping[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(f"dynamodb:{action}", table) for table, names in actions.items() for action in names}


def test_operators_may_do_what_their_commands_do() -> None:
    look, repair = tables_in(operator.LOOK), tables_in(operator.REPAIR)
    secrets = {("secretsmanager:GetSecretValue", "")}
    jobs = recorded()["operator_jobs"]

    assert recorded()["operator_look"] == look | secrets | {("glue:GetSchemaVersion", "")}
    assert recorded()["operator_repair"] - secrets - look == repair, "a repair is granted beside a look"
    assert recorded()["operator_migrate"] - secrets == tables_in(MIGRATING.tables)
    assert {need for need in jobs if need[1]} <= look
    assert {need for need in jobs if not need[1]} == secrets | {(action, "") for action in RUNS}


RUNS = {
    "emr-serverless:CancelJobRun",
    "emr-serverless:GetJobRun",
    "emr-serverless:ListJobRuns",
    "emr-serverless:StartJobRun",
    "s3:GetObject",
    "s3:ListBucket",
    "s3:PutObject",
    "ssm:GetParameter",
}
"""What running jobs needs beyond the tables."""


def test_who_runs_jobs_may_do_so_on_the_flows_own_and_on_nothing_else(assembled: Assembled) -> None:
    (flow,) = assembled("cross-account").deployment.flows
    place = flow.state
    policy = operator.policy(flow, jobs=True)["Statement"]
    application, bucket = (
        place.arn("emr-serverless", "/applications/00f"),
        f"arn:aws:s3:::{flow.bucket_name}",
    )
    run, jobs = f"{application}/jobruns/00g", f"flows/{flow.id}/jobs/"
    passed = {"iam:PassedToService": "emr-serverless.amazonaws.com"}
    ours = {"aws:ResourceAccount": place.account}
    needed: list[Need] = [
        *((f"emr-serverless:{action}", application, {}) for action in ("StartJobRun", "TagResource", "ListJobRuns")),
        *((f"emr-serverless:{action}", run, {}) for action in ("GetJobRun", "CancelJobRun")),
        ("iam:PassRole", place.iam_arn(f"role/{flow.flow.resource_name('jobs')}"), passed),
        ("ssm:GetParameter", place.arn("ssm", f"parameter/mirrorless/{flow.id}/jobs"), {}),
        ("s3:GetObject", f"{bucket}/{jobs}verify-1/progress.json", ours),
        ("s3:PutObject", f"{bucket}/{jobs}verify-1/request.json", ours),
        ("s3:ListBucket", bucket, {"s3:prefix": f"{jobs}verify-1/report.json", **ours}),
        ("dynamodb:BatchGetItem", flow.table_arns()["lanes"], {}),
    ]

    assert {need[0] for need in needed} >= RUNS
    assert [need for need in needed if not allowed(policy, *need)] == []
    assert not allowed(policy, "iam:PassRole", place.iam_arn("role/another"), passed)
    assert not allowed(policy, "s3:GetObject", f"{bucket}/flows/another/jobs/verify-1/report.json", ours)
    assert not allowed(policy, "s3:PutObject", f"{bucket}/{jobs}verify-1/request.json", {"aws:ResourceAccount": "9"})
    assert not allowed(policy, "dynamodb:UpdateItem", flow.table_arns()["lanes"])
    assert not allowed(operator.policy(flow)["Statement"], *needed[0])


def test_who_opens_what_rules_have_sealed_is_told_so_and_nobody_else_may(assembled: Assembled) -> None:
    (flow,) = assembled("data-isolation").deployment.flows
    look, keys = (operator.policy(flow, keys=keys)["Statement"] for keys in (False, True))
    key = flow.flow.keys["vault"].kms_key_arn or ""
    sealed: Context = {"kms:EncryptionContext:mirrorless.key": "vault"}
    opens = [(action, key, sealed) for action, _ in recorded()["operator_keys"] if action.startswith("kms:")]
    secret = f"{flow.jobs.arn('secretsmanager', 'secret:mirrorless-people')}-aB3xYz"
    opens.append(("secretsmanager:GetSecretValue", secret, {}))

    assert [need for need in opens if not allowed(keys, *need)] == []
    assert [need for need in opens if allowed(look, *need)] == []
    assert not allowed(keys, "kms:Decrypt", key, {"kms:EncryptionContext:mirrorless.key": "another"})


def test_who_comes_from_mirrormaker_reads_both_sides_and_writes_where_it_goes_on(assembled: Assembled) -> None:
    """On MSK by IAM; the groups are those of mappings, of MirrorMaker's workers, and of the reader."""
    (flow,) = assembled("active-passive").deployment.flows
    look, migrate = (operator.policy(flow, migrate=migrate)["Statement"] for migrate in (False, True))
    source, target = (cluster.msk_arn or "" for cluster in (flow.flow.source, flow.flow.target))

    def on(cluster: str, kind: str, name: str) -> str:
        return f"{cluster.replace(':cluster/', f':{kind}/')}/{name}"

    offsets, read = "mm2-offsets.us-east.internal", ("DescribeTopic", "ReadData", "DescribeTopicDynamicConfiguration")
    needed: list[Need] = [
        (f"kafka-cluster:{action}", resource, {})
        for actions, resource in (
            (("Connect",), source),
            (("Connect", "WriteDataIdempotently"), target),
            (read, on(source, "topic", "payments")),
            (read, on(target, "topic", "us-east.payments")),
            (read, on(source, "topic", "mm2-offset-syncs.us-west.internal")),
            (read, on(target, "topic", "mm2-offset-syncs.us-east.internal")),
            (read, on(target, "topic", "us-east.checkpoints.internal")),
            (("DescribeGroup",), on(target, "group", "shop")),
            ((*read, "WriteData"), on(target, "topic", offsets)),
            (("DescribeGroup", "AlterGroup"), on(source, "group", JOB_GROUP)),
            (("AlterGroup",), on(source, "group", flow.flow.group_name("payments"))),
            (("DescribeGroup",), on(target, "group", "us-east-mm2")),
        )
        for action in actions
    ]
    needed.append(("dynamodb:PutItem", flow.table_arns()["offset_map"], {}))
    assert [need for need in needed if not allowed(migrate, *need)] == []
    assert [need for need in needed if allowed(look, *need)] == []
    assert not allowed(migrate, "kafka-cluster:WriteData", on(target, "topic", "us-east.payments"))
    assert not allowed(migrate, "kafka-cluster:AlterGroup", on(target, "group", "us-east-mm2"))


def test_an_operators_policy_is_about_the_flow_and_where_its_tables_are(assembled: Assembled) -> None:
    (flow,) = assembled("cross-account").deployment.flows
    look, repair = (operator.policy(flow, repair=repair)["Statement"] for repair in (False, True))
    table = flow.table_arns()["offset_map"]
    secret = flow.state.arn("secretsmanager", "secret:AmazonMSK_mirrorless_vault-aB3xYz")
    assert allowed(look, "dynamodb:Query", table)
    assert not allowed(look, "dynamodb:PutItem", table)
    assert allowed(repair, "dynamodb:PutItem", table)
    assert not allowed(look, "secretsmanager:GetSecretValue", secret)
    assert allowed(repair, "secretsmanager:GetSecretValue", secret)


@pytest.mark.parametrize("kind", ["look", "repair", "jobs", "keys", "migrate"])
def test_who_only_looks_reads_no_secret_by_which_functions_write(tmp_path: Path, kind: str) -> None:
    theirs = "secret: AmazonMSK_mirrorless_vault"
    config = written(tmp_path, "cross-account", (theirs, f"operator.secret: AmazonMSK_lookers\n      {theirs}"))
    (flow,) = plan(load(config)).flows
    statements = operator.policy(flow, **({} if kind == "look" else {kind: True}))["Statement"]

    def reads(name: str) -> bool:
        secret = flow.state.arn("secretsmanager", f"secret:{name}-aB3xYz")
        return allowed(statements, "secretsmanager:GetSecretValue", secret)

    assert reads("AmazonMSK_lookers")
    for own in ("AmazonMSK_mirrorless_vault", "AmazonMSK_mirrorless"):
        assert reads(own) is (kind != "look")


@pytest.mark.parametrize("part", ["control", "standby"])
def test_who_carries_groups_between_the_same_names_reads_the_map_of_the_other_flow(part: Part) -> None:
    document = load_yaml(EXAMPLES["active-active"].read_text())
    document["defaults"] |= {"replication.policy": "identity", "loop.prevention": "header"}
    document["defaults"] |= {"sync.topic.acls.enabled": False, "sync.topic.configs.enabled": False}
    one, other = plan(load(dump_yaml(document))).flows
    theirs = {*other.table_arns().values()}

    def granted(part: Part) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        rights = table_rights(part, one)
        return [(right.actions, right.resources) for right in rights if theirs & set(right.resources)]

    assert granted(part) == [(("dynamodb:Query", "dynamodb:BatchGetItem"), (other.table_arns()["offset_map"],))]
    assert granted("forward") == []
