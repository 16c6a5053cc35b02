"""Jobs run where their target is, within bounds, as a role that can do nothing beyond its flow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from aws_cdk import App

from infra import spark_settings
from infra.deployment import PLACES_TAG, plan
from infra.guard.templates import Resource
from infra.packaging.assets import HOLLOW
from infra.packaging.spark_archive import Artifact
from infra.stacks import spark
from infra.stacks.spark import SparkStack
from mirrorless.config import load
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.config.schema import SparkSection
from mirrorless.cost.prices import DRIVER, EXECUTOR
from mirrorless.jobs.request import JobKind
from mirrorless.jobs.submission import decode_submission, parameter_name
from tests.support.assembly import CONTEXT, EXAMPLES, Assembly
from tests.support.changed_examples import without_networks, written
from tests.support.iam import allowed, role_statements

Assembled = Callable[[str], Assembly]

APPLICATION = "AWS::EMRServerless::Application"


def application(assembly: Assembly, name: str) -> Resource:
    return assembly.only(APPLICATION, Name=name)


def role(assembly: Assembly, name: str) -> Resource:
    return assembly.only("AWS::IAM::Role", RoleName=name)


def submission(assembly: Assembly, flow: str) -> dict[str, Any]:
    """What the parameter of a flow says, with `application` for what the deployment makes."""
    found = assembly.only("AWS::SSM::Parameter", Name=f"/mirrorless/{flow}/jobs")
    parts = found.properties["Value"]["Fn::Join"][1]
    read: dict[str, Any] = json.loads("".join(part if isinstance(part, str) else "application" for part in parts))
    return read


WITH_JOBS = pytest.mark.parametrize("example", [name for name in EXAMPLES if name != "aggregation"])


@WITH_JOBS
def test_an_application_costs_nothing_while_idle_has_an_upper_bound_and_runs_no_task_twice(
    example: str, assembled: Assembled
) -> None:
    for each in assembled(example).resources(APPLICATION):
        found = each.properties
        (configured,) = found["RuntimeConfiguration"]

        assert (found["ReleaseLabel"], found["Type"]) == ("emr-spark-8.1.0", "SPARK")
        assert "InitialCapacity" not in found
        assert found["AutoStartConfiguration"] == {"Enabled": True}
        assert found["AutoStopConfiguration"] == {"Enabled": True, "IdleTimeoutMinutes": 15}
        assert found["MaximumCapacity"] == {"Cpu": "64vCPU", "Memory": "256GB"}
        assert found["InteractiveConfiguration"] == {"LivyEndpointEnabled": False, "StudioEnabled": False}
        assert configured["Classification"] == "spark-defaults"
        assert configured["Properties"]["spark.speculation"] == "false"
        assert configured["Properties"]["spark.dynamicAllocation.maxExecutors"] == "31"


def test_flows_towards_one_cluster_share_its_application_and_its_network(assembled: Assembled) -> None:
    assembly = assembled("hub-and-spoke")
    found = {each.properties["Name"]: each for each in assembly.resources(APPLICATION)}

    assert sorted(found) == ["mirrorless-dublin", "mirrorless-hub", "mirrorless-paris"]
    assert found["mirrorless-hub"].stack == "mirrorless-spark-eu-central-1"
    for flow in assembly.deployment.flows:
        network = found[spark_settings.application_name(flow)].properties["NetworkConfiguration"]
        assert flow.flow.target.vpc is not None
        assert network["SubnetIds"] == list(flow.flow.target.vpc.subnets)
        assert network["SecurityGroupIds"] == list(flow.flow.target.vpc.security_groups)


def test_jobs_of_a_flow_with_rules_run_beside_its_source_and_nothing_runs_where_its_tables_are(
    assembled: Assembled,
) -> None:
    assembly = assembled("data-isolation")
    (flow,) = assembly.deployment.flows
    made = application(assembly, "mirrorless-europe")
    said = submission(assembly, "europe_analytics")
    (access,) = assembly.resources("AWS::IAM::Role", stack="mirrorless-state-us-east-1")
    (trust,) = access.properties["AssumeRolePolicyDocument"]["Statement"]

    assert flow.flow.source.vpc is not None
    assert made.properties["NetworkConfiguration"]["SubnetIds"] == list(flow.flow.source.vpc.subnets)
    assert (said["bucket"], said["role_arn"]) == (
        "mirrorless-111122223333-eu-central-1",
        "arn:aws:iam::111122223333:role/mirrorless-jobs-europe_analytics",
    )
    assert said["role_arn"] in trust["Condition"]["ArnLike"]["aws:PrincipalArn"]
    assert [name for name in assembly.templates if "us-east-1" in name] == ["mirrorless-state-us-east-1-444455556666"]


@pytest.mark.parametrize(
    "spark",
    [
        SparkSection(),
        SparkSection.model_validate({"maximum.vcpu": 4, "maximum.memory.gb": 16}),
        SparkSection.model_validate({"maximum.vcpu": 4_000, "maximum.memory.gb": 16}),
    ],
)
def test_every_job_that_runs_has_room_for_an_executor_and_none_exceeds_the_application(spark: SparkSection) -> None:
    runs, executors = spark_settings.most_runs(spark), spark_settings.most_executors(spark)

    assert runs * (DRIVER.cores + EXECUTOR.cores) <= spark.maximum_vcpu
    assert runs * (DRIVER.gb + EXECUTOR.gb) <= spark.maximum_memory_gb
    assert DRIVER.cores + executors * EXECUTOR.cores <= spark.maximum_vcpu
    assert DRIVER.gb + executors * EXECUTOR.gb <= spark.maximum_memory_gb
    assert runs >= 1
    assert executors >= 1


def test_logs_end_and_the_customers_key_encrypts_them(assembled: Assembled) -> None:
    assembly = assembled("cross-account")
    key = assembly.deployment.settings.kms_key_arns[0]
    (group,) = assembly.resources("AWS::Logs::LogGroup", stack="mirrorless-spark-")
    monitoring = application(assembly, "mirrorless-vault").properties["MonitoringConfiguration"]

    assert group.properties["RetentionInDays"] == 30
    assert group.properties["KmsKeyId"] == key
    assert monitoring["CloudWatchLoggingConfiguration"] == {"Enabled": True, "LogGroupName": {"Ref": group.id}}
    assert monitoring["ManagedPersistenceMonitoringConfiguration"] == {"Enabled": True, "EncryptionKeyArn": key}


def test_only_this_account_and_this_application_can_put_on_the_role(assembled: Assembled) -> None:
    assembly = assembled("cross-account")
    arn = {"Fn::GetAtt": [application(assembly, "mirrorless-vault").id, "Arn"]}
    (statement,) = role(assembly, "mirrorless-jobs-production_vault").properties["AssumeRolePolicyDocument"][
        "Statement"
    ]

    assert statement["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert statement["Condition"] == {
        "StringEquals": {"aws:SourceAccount": "444455556666"},
        "ArnLike": {"aws:SourceArn": [arn, {"Fn::Join": ["", [arn, "/jobruns/*"]]}]},
    }


def test_what_a_job_is_submitted_with_is_uploaded_and_its_role_may_read_it(assembled: Assembled) -> None:
    """Spark unpacks by the ending of the name, and PySpark imports by it."""
    assembly = assembled("cross-account")
    manifest = json.loads((assembly.folder / "mirrorless-spark-us-west-2-444455556666.assets.json").read_text())
    uploaded = {
        f"s3://{place['bucketName']}/{place['objectKey']}"
        for file in manifest["files"].values()
        for place in file["destinations"].values()
    }
    said = submission(assembly, "production_vault")
    confs, uris = said["confs"], artifacts(said)

    assert all(reads(assembly, "mirrorless-jobs-production_vault", uri) for uri in uris)
    assert uris <= uploaded
    assert confs["spark.submit.pyFiles"].endswith(".zip")
    assert confs["spark.archives"].endswith(".tgz#environment")
    assert said["application_id"] == "application"
    assert said["role_arn"] == "arn:aws:iam::444455556666:role/mirrorless-jobs-production_vault"
    assert (said["bucket"], said["prefix"]) == ("mirrorless-444455556666-us-west-2", "flows/production_vault/")


def test_a_job_that_runs_keeps_its_code_when_a_deployment_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that comes later, and another attempt, load what the run was submitted with.

    A deployment publishes objects by their hashes and removes none, so what it can take away is the right to read.
    """
    before = deployed_jobs(tmp_path / "before")
    (script := tmp_path / "changed.py").write_text("print('the next version')")
    changed = dict.fromkeys((*get_args(JobKind), "package", "environment"), Artifact(script, "0" * 64))
    monkeypatch.setattr(spark, "spark_artifacts", lambda *_: changed)
    after = deployed_jobs(tmp_path / "after")
    was, now = (artifacts(submission(each, "us-east_eu-west")) for each in (before, after))
    some = min(now)

    assert len(was) == 5
    assert was & now == set()
    assert all(reads(after, "mirrorless-jobs-us-east_eu-west", uri) for uri in was | now)
    assert not reads(after, "mirrorless-jobs-us-east_eu-west", some.replace("mirrorless/jobs/", "other/jobs/"))
    assert not reads(after, "mirrorless-jobs-us-east_eu-west", some.replace("mirrorless/jobs/", ""))


@WITH_JOBS
def test_a_place_more_changes_no_application_while_jobs_run(example: str, assembled: Assembled) -> None:
    """A stack's tags, which name the places, become those of its resources: the state stack has them there."""
    artifacts = json.loads((assembled(example).folder / "manifest.json").read_text())["artifacts"]
    tags = {name: each["properties"].get("tags", {}) for name, each in artifacts.items() if "properties" in each}

    for name in (name for name in tags if "-spark-" in name and not name.endswith(".assets")):
        assert tags[name] == {}
        assert PLACES_TAG in tags[name.replace("-spark-", "-state-")]


def deployed_jobs(folder: Path) -> Assembly:
    """The Spark stack of the first example's European region."""
    deployment = plan(load(EXAMPLES["active-active"]))
    place = next(each for each in deployment.jobs if each.region == "eu-west-1")
    app = App(outdir=str(folder), context={**CONTEXT, HOLLOW: True})
    SparkStack(app, deployment=deployment, place=place)
    app.synth()
    return Assembly(folder, deployment)


def artifacts(said: dict[str, Any]) -> set[str]:
    """The URIs of what a job is made of."""
    confs = said["confs"]
    return {confs["spark.submit.pyFiles"], confs["spark.archives"].removesuffix("#environment"), *said["jobs"].values()}


def reads(assembly: Assembly, name: str, uri: str) -> bool:
    """Whether a role may read an object. Args: name: of the role."""
    bucket = uri.removeprefix("s3://").partition("/")[0]
    account = next(
        account for account in bucket.split("-") if account.isdecimal() and len(account) == len("111122223333")
    )
    object_, ours = uri.replace("s3://", "arn:aws:s3:::"), {"aws:ResourceAccount": account}
    return allowed(role_statements(assembly, role(assembly, name)), "s3:GetObject", object_, ours)


@WITH_JOBS
def test_whoever_starts_a_job_can_read_what_the_deployment_says(example: str, assembled: Assembled) -> None:
    assembly = assembled(example)
    for flow in assembly.deployment.flows:
        name = parameter_name(flow.flow.name)
        said = decode_submission(json.dumps(submission(assembly, flow.id)), where=name)

        assert name == f"/mirrorless/{flow.id}/jobs"
        assert said.folder("verify-1") == f"s3://{said.bucket}/flows/{flow.id}/jobs/verify-1"
        assert set(said.jobs) == set(get_args(JobKind))
        assert said.most_executors == 31


def test_a_flow_that_begins_with_a_job_needs_a_network(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="reaches no broker without a network"):
        plan(load(written(tmp_path, "self-managed-to-msk", ("    vpc:", "    # vpc:"))))


def test_an_application_without_a_network_is_made_with_a_warning(tmp_path: Path) -> None:
    """Such brokers are public to functions; EMR Serverless has no way to them."""
    deployment = plan(load(without_networks(tmp_path, "active-active")))
    place = next(each for each in deployment.states if each.region == "eu-west-1")
    app = App(outdir=str(tmp_path / "out"), context={**CONTEXT, HOLLOW: True})
    SparkStack(app, deployment=deployment, place=place)
    app.synth()
    assembly = Assembly(tmp_path / "out", deployment)
    notes = (assembly.folder / "mirrorless-spark-eu-west-1.metadata.json").read_text()

    assert "NetworkConfiguration" not in application(assembly, "mirrorless-eu-west").properties
    assert "write `vpc` under clusters.eu-west" in notes
