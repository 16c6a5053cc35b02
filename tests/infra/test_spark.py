"""Jobs run where their target is, within bounds, as a role that can do nothing beyond its flow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import pytest
from aws_cdk import App

from infra import spark_settings
from infra.deployment import plan
from infra.guard.templates import Resource
from infra.packaging import spark_archive, wheels
from infra.packaging.assets import HOLLOW
from infra.packaging.bundle import LOCK as FUNCTIONS_LOCK
from infra.stacks.spark import SparkStack
from mirrorless.config import load
from mirrorless.config.problems import InvalidConfiguration
from mirrorless.config.schema import SparkSection
from mirrorless.cost.jobs import DRIVER, EXECUTOR
from mirrorless.jobs.request import JobKind
from mirrorless.jobs.submission import decode_submission, parameter_name
from tests.support.assembly import CONTEXT, EXAMPLES, Assembly
from tests.support.changed_examples import without_networks, written
from tests.support.iam import many, role_statements

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


def test_nothing_is_made_where_jobs_are_not_wanted(assembled: Assembled) -> None:
    assert not [name for name in assembled("aggregation").templates if "spark" in name]


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


def test_a_flows_jobs_reach_no_object_of_another_flow(assembled: Assembled) -> None:
    assembly = assembled("hub-and-spoke")
    ours = role(assembly, "mirrorless-jobs-paris_hub")
    objects = [
        resource
        for statement in role_statements(assembly, ours)
        if any(action.startswith("s3:") and action != "s3:ListBucket" for action in many(statement["Action"]))
        for resource in many(statement["Resource"])
    ]
    bucket = "arn:aws:s3:::mirrorless-111122223333-eu-central-1/flows"

    assert not any("*" in many(each["Resource"]) for each in role_statements(assembly, ours))
    assert any(fnmatchcase(f"{bucket}/paris_hub/report.json", pattern) for pattern in objects)
    assert not any(fnmatchcase(f"{bucket}/dublin_hub/report.json", pattern) for pattern in objects)
    (listing,) = (each for each in role_statements(assembly, ours) if many(each["Action"]) == ["s3:ListBucket"])
    assert listing["Condition"] == {"StringLike": {"s3:prefix": "flows/paris_hub/*"}}


def test_what_a_job_is_submitted_with_is_what_its_role_may_read(assembled: Assembled) -> None:
    assembly = assembled("cross-account")
    said = submission(assembly, "production_vault")
    confs = said["confs"]
    uris = {confs["spark.submit.pyFiles"], confs["spark.archives"].removesuffix("#environment"), *said["jobs"].values()}
    ours = role(assembly, "mirrorless-jobs-production_vault")
    readable = next(each["Resource"] for each in role_statements(assembly, ours) if each["Action"] == "s3:GetObject")

    assert {uri.replace("s3://", "arn:aws:s3:::") for uri in uris} == set(many(readable))
    assert said["application_id"] == "application"
    assert said["role_arn"] == "arn:aws:iam::444455556666:role/mirrorless-jobs-production_vault"
    assert (said["bucket"], said["prefix"]) == ("mirrorless-444455556666-us-west-2", "flows/production_vault/")


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


def test_artifacts_are_uploaded_to_the_place_of_the_jobs_by_names_that_spark_unpacks(assembled: Assembled) -> None:
    """Spark unpacks by the ending of the name, and PySpark imports by it."""
    assembly = assembled("cross-account")
    confs = submission(assembly, "production_vault")["confs"]
    manifest = json.loads((assembly.folder / "mirrorless-spark-us-west-2-444455556666.assets.json").read_text())
    uploaded = {
        f"s3://{place['bucketName']}/{place['objectKey']}"
        for file in manifest["files"].values()
        for place in file["destinations"].values()
    }

    assert confs["spark.submit.pyFiles"] in uploaded
    assert confs["spark.submit.pyFiles"].endswith(".zip")
    assert confs["spark.archives"].removesuffix("#environment") in uploaded
    assert re.search(r"\.tgz#environment$", confs["spark.archives"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("\nflows:", "\ndeployment: {spark: {enabled: false}}\n\nflows:"),
            "begins with a Spark job, and there are to be",
        ),
        (("    vpc:", "    # vpc:"), "reaches no broker without a network"),
    ],
)
def test_a_flow_that_begins_with_a_job_needs_jobs_and_a_network(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=problem):
        plan(load(written(tmp_path, "self-managed-to-msk", change)))


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


def test_a_local_assembly_has_an_archive_for_this_machine(assembled: Assembled, assembled_here: Assembly) -> None:
    archives = [
        submission(each, "production_vault")["confs"]["spark.archives"]
        for each in (assembled("cross-account"), assembled_here)
    ]

    assert archives[0] != archives[1]


ELF = b"\x7fELF"
AARCH64 = 183
"""e_machine of an ELF file, two bytes at offset 18: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html"""


@pytest.fixture
def dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder in the place of 180 MB of wheels."""
    folder = tmp_path / "deps-0"
    (folder / "library").mkdir(parents=True)
    (folder / "library" / "__init__.py").write_text("answer = 42\n")
    (folder / "library" / "native.so").write_bytes(ELF)
    monkeypatch.setattr(wheels, "install", lambda *_, **__: folder)
    return folder


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this machine, as Spark unpacks it beside a job."""
    folder = tmp_path_factory.mktemp("job") / "environment"
    with tarfile.open(spark_archive.environment(python=wheels.running_python()).path) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def masked() -> Iterator[None]:
    """Build as somebody with another umask."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def test_an_archive_is_the_same_bytes_whoever_builds_it_and_when(dependencies: Path, tmp_path: Path) -> None:
    one = spark_archive.environment(out=tmp_path / "one")
    with masked():
        for path in wheels.files(dependencies):
            os.utime(path, (1, 1))
        two = spark_archive.environment(out=tmp_path / "two")

    assert (one.hash, one.path.read_bytes()) == (two.hash, two.path.read_bytes())
    (dependencies / "library" / "__init__.py").write_text("answer = 43\n")
    assert spark_archive.environment(out=tmp_path / "three").hash != one.hash


def test_a_package_is_the_same_bytes_whoever_builds_it(tmp_path: Path) -> None:
    one = spark_archive.package(out=tmp_path / "one")
    with masked():
        two = spark_archive.package(out=tmp_path / "two")

    assert (one.hash, one.path.read_bytes()) == (two.hash, two.path.read_bytes())
    with zipfile.ZipFile(one.path) as wheel:  # two builds of one moment would agree about any other date
        assert {entry.date_time for entry in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_bare_python_finds_the_libraries_in_the_archive_and_our_package_beside_it(unpacked: Path) -> None:
    imports = (
        "import boto3, confluent_kafka, msgspec, pyarrow, sys; "
        "import mirrorless.protocol.replicate, mirrorless.adapters.kafka.source; "
        "boto3.client('s3', region_name='eu-west-1'); boto3.client('dynamodb', region_name='eu-west-1'); "
        "import pandas, pyarrow.compute, pyarrow.parquet, pyarrow.dataset, pyarrow.fs; "
        "assert pyarrow.Table.from_pandas(pandas.DataFrame({'a': [1]})).to_pydict() == {'a': [1]}; "
        "table = pyarrow.table({'offset': [1, 2, 3], 'value': [b'a', None, b'']}); "
        "assert table.to_pylist()[1] == {'offset': 2, 'value': None}; "
        "from mirrorless.reports.page import render; from mirrorless.reports.report import Report; "
        "assert '<h1>a report</h1>' in render(Report(title='a report', verdict='', tone='')); "
        "print(mirrorless.protocol.replicate.__file__, *(m.__file__ for m in (confluent_kafka, pyarrow, msgspec)))"
    )
    package = spark_archive.package().path
    done = subprocess.run(
        [sys.executable, "-S", "-c", imports],  # without site-packages: EMR's Python has none of these
        cwd=unpacked.parent,
        env={"PYTHONPATH": f"{package}:./environment", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    ours, *theirs = done.stdout.split()
    assert ours.startswith(str(package))
    assert all(Path(path).is_relative_to(unpacked) for path in theirs)


def test_pip_takes_the_package_for_a_wheel(tmp_path: Path) -> None:
    package = spark_archive.package().path
    wheel = tmp_path / f"{package.stem}.whl"
    wheel.write_bytes(package.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path / "there")]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "mirrorless" / "protocol" / "replicate.py").is_file()


def test_the_archive_for_arm64_has_no_other_machines_code_and_stays_small() -> None:
    """Every executor of every job fetches it and unpacks it before its first task."""
    path = spark_archive.environment(platform="manylinux arm64").path
    with tarfile.open(path) as archive:
        heads = {
            entry.name: (archive.extractfile(entry) or pytest.fail(entry.name)).read(20)
            for entry in archive
            if ".so" in Path(entry.name).name
        }

    assert path.stat().st_size < 65_000_000
    assert len(heads) > 20
    assert all(head.startswith(ELF) for head in heads.values())
    assert {int.from_bytes(head[18:20], "little") for head in heads.values()} == {AARCH64}


def test_jobs_and_functions_have_the_same_version_of_what_they_share() -> None:
    pins = [
        dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))
        for lock in (FUNCTIONS_LOCK, spark_archive.LOCK)
    ]
    functions, jobs = pins

    assert {name: jobs.get(name) for name in functions} == functions
    assert "pyspark" not in jobs
