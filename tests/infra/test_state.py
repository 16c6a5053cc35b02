"""The state stacks: protection from deployments, mistakes and strangers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_lambda as lambda_
from aws_cdk.assertions import Template
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from infra.constructs import flow_function
from infra.constructs.forwarder import settings
from infra.deployment import Deployment, FlowDeployment, plan
from infra.guard.templates import Resource
from infra.stacks import spark
from infra.stacks.home import ReplicationStack
from infra.stacks.state import StateStack
from mirrorless.config import load
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.flow.settings import Tables
from mirrorless.flow.tables import EXPIRY, TableDefinition, definitions
from tests.support.assembly import CONTEXT, EXAMPLES, Assembly
from tests.support.changed_examples import of_type, replication, written
from tests.support.iam import allowed, role_statements

Assembled = Callable[[str], Assembly]
TABLE = "AWS::DynamoDB::GlobalTable"

HERE = "arn:aws:kms:eu-west-1:111122223333:key/1f2e3d4c-5b6a-4978-8695-a4b3c2d1e0f1"
THERE = "arn:aws:kms:us-east-1:111122223333:key/2a3b4c5d-6e7f-4081-92a3-b4c5d6e7f809"
"""Keys of the target's region and of the source's, in `two_regions`."""


def two_regions(*keys: str, replicas: bool = True, flows: tuple[str, ...] = ("a->b",)) -> Deployment:
    """The plan of flows between clusters in two regions, with a customer's keys."""
    document = {
        "clusters": {
            alias: {"bootstrap.servers": [f"{alias}:9096"], "region": region, "account": "111122223333"}
            for alias, region in (("a", "us-east-1"), ("b", "eu-west-1"), ("c", "us-east-1"))
        },
        "flows": {flow: {"topics": ["orders"]} for flow in flows},
        "deployment": {"kms.key.arns": list(keys), "offset.map.replicas.enabled": replicas},
    }
    return plan(load(json.dumps(document, indent=1)))


def state_of(deployment: Deployment) -> dict[str, Any]:
    """The resources of the only state stack of a plan."""
    (place,) = deployment.states
    stack = StateStack(App(context=dict(CONTEXT)), deployment=deployment, place=place)
    resources: dict[str, Any] = Template.from_stack(stack).to_json()["Resources"]
    return resources


def defined(flow: FlowDeployment) -> Mapping[str, TableDefinition]:
    return {table.name: table for table in definitions(Tables(**flow.flow.tables))}


def tables_of(assembly: Assembly, flow: FlowDeployment) -> Iterator[Resource]:
    """A flow's tables, from whatever stack they are in."""
    for resource in assembly.resources(TABLE):
        if resource.properties["TableName"] in defined(flow):
            yield resource


@pytest.fixture(params=EXAMPLES)
def assembly(request: pytest.FixtureRequest, assembled: Assembled) -> Assembly:
    """Each example in turn."""
    return assembled(request.param)


def test_every_flow_has_its_tables_where_its_target_is_and_there_are_no_others(assembly: Assembly) -> None:
    found = {(each.stack, each.properties["TableName"]) for each in assembly.resources(TABLE)}

    planned = {
        (assembly.deployment.artifact_id("state", flow.state), name)
        for flow in assembly.deployment.flows
        for name in defined(flow)
    }
    assert found == planned
    assert len(found) == 5 * len(assembly.deployment.flows)
    assert {flow.state.region for flow in assembly.deployment.flows} == {
        flow.flow.target.region for flow in assembly.deployment.flows
    }


def test_a_table_has_the_keys_that_the_code_uses_and_only_the_offset_map_expires(assembly: Assembly) -> None:
    for flow in assembly.deployment.flows:
        for table in tables_of(assembly, flow):
            definition = defined(flow)[table.properties["TableName"]]
            request = definition.create_request()
            assert {key: table.properties[key] for key in request} == request
            expiry = {"AttributeName": EXPIRY, "Enabled": True} if "offset-map" in definition.name else None
            assert table.properties.get("TimeToLiveSpecification") == expiry


def test_what_stays_without_its_stack_can_be_taken_back_by_another(assembly: Assembly) -> None:
    """By its name in the template, if that is literal and CloudFormation knows the type's resources by it.

    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/import-resources-automatically.html
    """
    stay = [each for each in assembly.resources() if each.body.get("DeletionPolicy") == "Retain"]

    assert {each.type for each in stay} == {TABLE, "AWS::S3::Bucket"}
    for each in stay:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", each.type).schema
        (identifier,) = schema["primaryIdentifier"]
        assert isinstance(each.properties[identifier.removeprefix("/properties/")], str)
        assert "read" in schema["handlers"]


def test_a_table_survives_its_stack_and_a_mistake_in_every_region(assembly: Assembly) -> None:
    for table in assembly.resources(TABLE):
        assert table.body["DeletionPolicy"] == table.body["UpdateReplacePolicy"] == "Retain"
        for replica in table.properties["Replicas"]:
            assert replica["DeletionProtectionEnabled"] is True
            assert replica["PointInTimeRecoverySpecification"] == {
                "PointInTimeRecoveryEnabled": True,
                "RecoveryPeriodInDays": 35,
            }
            assert {"Key": "mirrorless", "Value": "state"} in replica["Tags"]
            assert "ContributorInsightsSpecification" not in replica


def test_the_state_stacks_and_no_others_are_protected_from_deletion(assembly: Assembly) -> None:
    artifacts = json.loads((assembly.folder / "manifest.json").read_text())["artifacts"]

    protected = {
        name for name in assembly.templates if artifacts[name]["properties"].get("terminationProtection") is True
    }

    assert protected == {assembly.deployment.artifact_id("state", place) for place in assembly.deployment.states}


@pytest.mark.parametrize(
    ("example", "regions"),
    [
        ("active-active", {("eu-west-1",), ("us-east-1",)}),  # nobody asks for it
        ("active-passive", {("us-west-2", "us-east-1")}),
        ("aggregation", {("us-east-2",)}),  # source and target in one region
        ("cross-account", {("us-west-2",)}),  # a global table has one account
        ("self-managed-to-msk", {("eu-west-1",)}),  # no region of the source is written
    ],
)
def test_a_copy_is_kept_where_the_source_is_and_nowhere_else(
    example: str, regions: set[tuple[str, ...]], assembled: Assembled
) -> None:
    assembly = assembled(example)

    found = {
        tuple(sorted((each["Region"] for each in table.properties["Replicas"]), key=lambda each: each != home))
        for flow in assembly.deployment.flows
        for table in tables_of(assembly, flow)
        if (home := flow.state.region)
    }

    assert found == regions


def encryption_of(*keys: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The tables of a plan with these keys, and how its bucket is encrypted."""
    resources = state_of(two_regions(*keys)).values()
    tables = [each["Properties"] for each in resources if each["Type"] == TABLE]
    (bucket,) = (each["Properties"] for each in resources if each["Type"] == "AWS::S3::Bucket")
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert len(tables) == 5
    return tables, rule["ServerSideEncryptionByDefault"]


def test_tables_copies_and_bucket_are_encrypted_with_the_keys_of_their_regions_or_with_those_of_aws() -> None:
    tables, bucket = encryption_of(HERE, THERE)
    for table in tables:
        keys = {each["Region"]: each["SSESpecification"]["KMSMasterKeyId"] for each in table["Replicas"]}
        assert keys == {"eu-west-1": HERE, "us-east-1": THERE}
        assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS"}
    assert bucket == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": HERE}

    tables, bucket = encryption_of()
    assert all(table["SSESpecification"] == {"SSEEnabled": False} for table in tables)  # DynamoDB's own key
    assert "kms" not in json.dumps(tables).lower()
    assert bucket == {"SSEAlgorithm": "AES256"}


@pytest.mark.parametrize(("key", "lacking"), [(HERE, "us-east-1"), (THERE, "eu-west-1")])
def test_a_key_for_one_of_two_regions_is_refused_before_anything_is_made(key: str, lacking: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        two_regions(key)

    (problem,) = caught.value.problems
    assert problem.where == "deployment.kms.key.arns"
    assert f"add a key of {lacking} in account 111122223333" in problem.hint
    assert [flow.replica_key for flow in two_regions(key, replicas=False).flows] == [None]


def test_a_flow_keeps_its_tables_whatever_flows_come_before_it() -> None:
    alone = state_of(two_regions(flows=("a->b",)))
    together = state_of(two_regions(flows=("c->b", "a->b")))

    assert len(together) == len(alone) + 5
    assert {name: together[name] for name in alone} == alone


def test_each_place_has_one_bucket_that_is_closed_kept_and_swept(assembly: Assembly) -> None:
    buckets = {each.stack: each for each in assembly.resources("AWS::S3::Bucket")}

    deployment = assembly.deployment
    assert {(stack, each.properties["BucketName"]) for stack, each in buckets.items()} == {
        (deployment.artifact_id("state", place), place.bucket_name(deployment.settings)) for place in deployment.states
    }
    for bucket in buckets.values():
        named = (str(bucket.properties["BucketName"])[-3:], bucket.properties.get("BucketNamespace"))
        reserved = assembly.deployment.settings.bucket_namespace == "account-regional"
        assert (named == ("-an", "account-regional")) is reserved, "S3 takes both, or neither"
        assert bucket.body["DeletionPolicy"] == bucket.body["UpdateReplacePolicy"] == "Retain"
        assert set(bucket.properties["PublicAccessBlockConfiguration"].values()) == {True}
        assert bucket.properties["VersioningConfiguration"] == {"Status": "Enabled"}
        assert bucket.properties["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
        (rule,) = bucket.properties["LifecycleConfiguration"]["Rules"]
        assert rule["Status"] == "Enabled"
        assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
        assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
        assert "ExpirationInDays" not in rule, "reports stay until they are deleted"


def roles_by_path(assembly: Assembly) -> dict[str, Resource]:
    """The roles of functions by their ARN's pattern, given the account of their stack."""
    found = {}
    for home in assembly.deployment.homes:
        for kind in ("replication", "control"):
            for role in assembly.resources("AWS::IAM::Role", stack=assembly.deployment.artifact_id(kind, home)):
                found[home.iam_arn(f"role{role.properties.get('Path', '/')}*")] = role
    return found


def test_only_where_functions_are_in_another_account_is_there_a_role_to_the_tables(assembly: Assembly) -> None:
    stacks = {assembly.deployment.artifact_id("state", place) for place in assembly.deployment.states}
    roles = {each.properties["RoleName"] for each in assembly.resources("AWS::IAM::Role") if each.stack in stacks}

    assert roles == {
        str(flow.flow.tables_role).rpartition("/")[2] for flow in assembly.deployment.flows if flow.flow.tables_role
    }


def test_the_role_to_the_tables_trusts_only_the_functions_that_may_assume_it(assembled: Assembled) -> None:
    assembly = assembled("cross-account")
    (flow,) = assembly.deployment.flows
    role = tables_role(assembly, flow)
    functions = ("forward", "control", "refresh_topics", "remove_mappings")
    trusted = [f"arn:aws:iam::111122223333:role/mirrorless/production_vault/{each}/*" for each in functions]

    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Effect"] == "Allow"
    assert statement["Action"] == "sts:AssumeRole"
    # The account by itself would let everybody in it come; each of its roles would do.
    assert statement["Principal"] == {"AWS": "arn:aws:iam::111122223333:root"}
    assert {operator: dict(keys) for operator, keys in statement["Condition"].items()} == {
        "ArnLike": {"aws:PrincipalArn": trusted}
    }
    holders = {path for path, function in roles_by_path(assembly).items() if may_assume(assembly, function, flow)}
    assert holders == set(trusted)


def tables_role(assembly: Assembly, flow: FlowDeployment) -> Mapping[str, Any]:
    """The role in the settings of the flow's functions, from the state stack."""
    resources = assembly.template("state", flow.state)["Resources"].values()
    (role,) = (each["Properties"] for each in resources if each["Type"] == "AWS::IAM::Role")
    assert flow.flow.tables_role == flow.state.iam_arn(f"role/{role['RoleName']}")
    found: Mapping[str, Any] = role
    return found


def may_assume(assembly: Assembly, role: Resource, flow: FlowDeployment) -> bool:
    """Whether a policy of a role lets it become the one that reaches the flow's tables."""
    return allowed(role_statements(assembly, role), "sts:AssumeRole", str(flow.flow.tables_role))


MAPPING = "AWS::Lambda::EventSourceMapping"
FUNCTION = "AWS::Lambda::Function"


REPLICAS = "    replication.factor: 3"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return replication(written(tmp_path_factory.mktemp("before"), "active-passive"))


def without_versions(resources: dict[str, Any]) -> set[str]:
    return resources.keys() - versions(resources)


def versions(resources: dict[str, Any]) -> set[str]:
    found = of_type(resources, "AWS::Lambda::Version")
    # One that is replaced stays for the invocations that run on it, whichever way it is removed; not a rolled-back one.
    kept = {(each["DeletionPolicy"], each["UpdateReplacePolicy"]) for each in found.values()}
    assert kept == {("RetainExceptOnCreate", "Retain")}
    return set(found)


def test_new_settings_are_a_new_version_and_another_topic_leaves_the_mappings_of_the_others_alone(
    before: dict[str, Any], tmp_path: Path
) -> None:
    topics = ('["orders.*", payments]', '[added, "orders.*", payments]')
    after = replication(written(tmp_path, "active-passive", (REPLICAS, REPLICAS.replace("3", "2")), topics))
    (added,) = of_type(after, MAPPING).keys() - of_type(before, MAPPING).keys()

    assert versions(after) != versions(before)
    assert without_versions(after) == without_versions(before) | {added}
    assert of_type(before, MAPPING).items() < of_type(after, MAPPING).items()


def test_new_code_is_a_new_version_behind_the_same_alias(
    before: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "forward.py").write_text("handler = None")
    monkeypatch.setattr(flow_function, "function_code", lambda *_: lambda_.Code.from_asset(str(tmp_path / "code")))
    after = replication(written(tmp_path, "active-passive"))

    assert versions(after) != versions(before)
    assert without_versions(after) == without_versions(before)
    assert of_type(after, MAPPING) == of_type(before, MAPPING)


def test_the_code_of_functions_and_jobs_has_what_rules_need_where_a_flow_has_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "forward.py").write_text("handler = None")

    def function_code(_: object, part: str, __: str, own: object) -> lambda_.Code:
        given[part] = own
        return lambda_.Code.from_asset(str(tmp_path / "code"))

    def spark_artifacts(_: object, __: str, own: object) -> dict[str, Any]:
        given["jobs"] = own
        return {}

    monkeypatch.setattr(flow_function, "function_code", function_code)
    monkeypatch.setattr(spark, "spark_artifacts", spark_artifacts)
    (tmp_path / "masks.py").write_text("def mask(record): return record")
    rule = (REPLICAS, f"{REPLICAS}\n    transforms: [{{topics: [payments], function: 'masks:mask'}}]")
    back = [("sync.group.offsets.reverse.enabled: true", "sync.group.offsets.reverse.enabled: false")]
    for changes, own in (([], None), ([rule, *back], {"masks.py": b"def mask(record): return record"})):
        deployment = plan(load(written(tmp_path, "active-passive", *changes)))
        app = App(context=dict(CONTEXT))
        ReplicationStack(app, deployment=deployment, place=deployment.homes[0])
        spark._deployed(Stack(app, "jobs"), deployment)  # type: ignore[arg-type]

        assert (given["forward"], given["jobs"]) == (own, own)


def test_new_tags_and_new_options_of_a_mapping_publish_nothing_and_change_it_in_place(
    before: dict[str, Any], tmp_path: Path
) -> None:
    """Lambda refuses to publish a version that changes neither code nor configuration."""
    tagged = ("deployment:", "deployment:\n  tags: {team: streams}")
    options = (REPLICAS, f"{REPLICAS}\n    mapping: {{batch.size: 500, maximum.pollers: 2}}")
    after = replication(written(tmp_path, "active-passive", tagged, options))
    ((name, old),) = of_type(before, MAPPING).items()
    new = after[name]["Properties"]

    assert {"Key": "team", "Value": "streams"} in next(iter(of_type(after, FUNCTION).values()))["Properties"]["Tags"]
    assert versions(after) == versions(before)
    changed = {key for key in new if new[key] != old["Properties"].get(key)}
    assert changed == {"BatchSize", "ProvisionedPollerConfig", "Tags"}


def test_a_diff_names_the_setting_that_changes(tmp_path: Path) -> None:
    old, new = (
        settings(plan(load(written(tmp_path, "active-passive", *changes))).flows[0])["settings"]
        for changes in ([], [("sync.group.offsets.enabled: true", "sync.group.offsets.enabled: false")])
    )

    assert {key for key in old if old[key] != new[key]} == {"sync.group.offsets.enabled"}


def test_a_mapping_reads_failed_records_before_its_function_names_any(before: dict[str, Any], tmp_path: Path) -> None:
    """A deployment changes the function first: turning the answer on or off must change no mapping."""
    turned = str(not plan(load(EXAMPLES["active-passive"])).flows[0].flow.partial_responses).lower()
    option = (REPLICAS, f"    mapping: {{partial.batch.response: {turned}}}\n{REPLICAS}")
    after = replication(written(tmp_path, "active-passive", option))

    assert of_type(after, MAPPING) == of_type(before, MAPPING)
    assert of_type(after, FUNCTION) != of_type(before, FUNCTION)
