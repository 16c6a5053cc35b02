"""Runs on EMR Serverless: started once, as the deployment says, and found again by their ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import msgspec
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto.emrserverless.models import emrserverless_backends

from cli.args import BadInput
from cli.deployment import DeployedFlows
from cli.failover import FailbackJobs
from cli.jobs.commands import runs_of
from cli.jobs.emr import JOB_RUN_FILE, EmrRuns, state_of
from cli.jobs.request import new_run_id
from cli.main import build_parser
from mirrorless.adapters.aws.emr_serverless import EmrServerless, JobRunThere
from mirrorless.adapters.aws.job_files import S3JobFiles
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.jobs.progress import JobProgress, JobState
from mirrorless.jobs.request import PROGRESS, REPORT, JobRequest, ReconcileOptions, VerifyOptions, decode_request
from mirrorless.jobs.submission import parameter_name
from tests.support.chains import FLOW
from tests.support.commands import replication_yaml

ACCOUNT, REGION, BUCKET = "123456789012", "eu-west-1", "mirrorless-bucket"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/mirrorless-jobs-us-east_eu-west"


@pytest.fixture
def application(aws: None) -> str:  # noqa: ARG001 -- where it is
    """What the Spark stack deploys; the application's id."""
    boto3.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    made = boto3.client("emr-serverless").create_application(
        name="mirrorless-eu-west", releaseLabel="emr-7.0.0", type="SPARK", clientToken="t"
    )
    submission = {
        "application_id": made["applicationId"],
        "role_arn": ROLE,
        "bucket": BUCKET,
        "prefix": "flows/us-east_eu-west/",
        "jobs": {kind: f"s3://assets/{kind}.py" for kind in ("backfill", "verify", "reconcile")},
        "confs": {"spark.submit.pyFiles": "s3://assets/p.zip", "spark.archives": "s3://assets/e.tgz#environment"},
        "log_group": "/aws/emr-serverless/mirrorless-eu-west",
        "most_executors": 31,
        "added.later": 1,
    }
    boto3.client("ssm").put_parameter(Name=parameter_name(FLOW), Value=json.dumps(submission), Type="String")
    found: str = made["applicationId"]
    return found


def deployment(folder: Path, text: str = replication_yaml()) -> DeployedFlows:
    path = folder / "replication.yaml"
    path.write_text(text)
    return DeployedFlows(config=path)


@pytest.fixture
def runs(application: str, tmp_path: Path) -> EmrRuns:  # noqa: ARG001 -- where they run
    """The runs of the deployed flow."""
    return EmrRuns(deployment(tmp_path), [FLOW])


@pytest.fixture
def requested(tmp_path: Path) -> JobRequest:
    """A request for a verification."""
    flow = deployment(tmp_path).job_settings(FLOW)
    return JobRequest(run_id=new_run_id("verify"), flow=flow, topics=("orders",), options=VerifyOptions())


@pytest.fixture
def there(application: str) -> Callable[[], Any]:
    """The only job run, in the service."""

    def only() -> Any:
        (found,) = emrserverless_backends[ACCOUNT][REGION].job_runs[application]
        return found

    return only


def files(run_id: str) -> S3JobFiles:
    """A run's folder."""
    return S3JobFiles(BUCKET, f"flows/us-east_eu-west/jobs/{run_id}", client=boto3.client("s3"))


def ended(run_id: str, kind: str, state: JobState, report: dict[str, Any] | None = None) -> None:
    """Write what the driver leaves in the run's folder."""
    progress = JobProgress(run_id=run_id, kind=kind, flow=str(FLOW), state=state)
    files(run_id).write(PROGRESS, msgspec.json.encode(progress))
    if report is not None:
        files(run_id).write(REPORT, json.dumps(report).encode())


def test_a_job_is_submitted_as_the_deployment_says(
    there: Callable[[], Any], runs: EmrRuns, requested: JobRequest
) -> None:
    view = runs.start(requested, size=4)

    made = there()
    made.state = "SUBMITTED"
    spark = made.job_driver["sparkSubmit"]
    assert (made.name, made.client_token, made.execution_role_arn) == (requested.run_id, requested.run_id, ROLE)
    assert spark["entryPoint"] == "s3://assets/verify.py"
    assert spark["entryPointArguments"] == [view.place]
    assert spark["sparkSubmitParameters"].split(" --conf ") == [
        "--conf spark.submit.pyFiles=s3://assets/p.zip",
        "spark.archives=s3://assets/e.tgz#environment",
        "spark.emr-serverless.driverEnv.MIRRORLESS_ENDS_ONCE=true",
        "spark.dynamicAllocation.maxExecutors=4",
    ]
    assert made.tags == {"mirrorless:flow": "us-east.eu-west", "mirrorless:job": "verify"}
    assert decode_request(files(requested.run_id).read("request.json") or b"") == requested
    assert runs.inspect(requested.run_id).state == "starting"
    assert view.more["log_group"] == "/aws/emr-serverless/mirrorless-eu-west"


@pytest.mark.parametrize(
    ("words", "flex"),
    [
        ("backfill start", True),
        ("verify start", True),
        ("verify start --capacity standard", False),
        ("reconcile start", False),  # an outage lasts as long as it does
        ("reconcile start --capacity flex", True),
    ],
)
@pytest.mark.usefixtures("application")
def test_executors_are_of_spare_capacity_where_nobody_waits_for_the_job(
    tmp_path: Path, words: str, *, flex: bool, requested: JobRequest
) -> None:
    """And a refusal says how to start it without."""
    deployed = deployment(tmp_path)
    arguments = build_parser(words.split()[:1]).parse_args([*words.split(), str(FLOW)])
    started = runs_of(deployed, arguments, [FLOW])
    assert isinstance(started, EmrRuns)
    asked: list[Any] = []
    events = started._service(FLOW)._emr.meta.events
    events.register("before-parameter-build.emr-serverless.StartJobRun", lambda params, **_: asked.append(params))
    refusal = ClientError({"Error": {"Code": "ValidationException", "Message": "no Flex here"}}, "StartJobRun")
    events.register("before-send.emr-serverless.StartJobRun", Mock(side_effect=refusal))

    with pytest.raises(Retriable) as caught:
        started.start(requested, size=None)

    assert [each["flexExecution"] for each in asked] == [{"enabled": flex}]
    assert ("`--capacity standard`" in str(caught.value)) == flex


@pytest.mark.usefixtures("application")
def test_a_job_of_a_flow_with_rules_is_submitted_beside_its_source_and_reaches_the_tables_by_a_role(
    tmp_path: Path,
) -> None:
    clusters = {
        "us-east": f"bootstrap.servers: [127.0.0.1:1], region: {REGION}, account: '{ACCOUNT}'",
        "eu-west": "bootstrap.servers: [127.0.0.1:1], region: us-west-2, account: '444455556666'",
    }
    rules = "us-east->eu-west: {topics: [orders], transforms: [{topics: orders, key: drop}]}"
    deployed = deployment(tmp_path, replication_yaml(rules, clusters=clusters))
    flow = deployed.job_settings(FLOW)
    asked = JobRequest(run_id=new_run_id("verify"), flow=flow, topics=("orders",), options=VerifyOptions())

    EmrRuns(deployed, [FLOW]).start(asked, size=None)

    request = decode_request(files(asked.run_id).read("request.json") or b"")
    assert request.flow.transforms == flow.transforms != ()
    assert request.flow.tables_role == "arn:aws:iam::444455556666:role/mirrorless-tables-us-east_eu-west"
    assert flow.tables_role is None, "on this machine it runs with the operator's own credentials"


@pytest.mark.parametrize(
    ("emr", "driver", "expected"),
    [
        ("SUBMITTED", None, "starting"),
        ("QUEUED", None, "starting"),
        ("RUNNING", "running", "running"),
        ("RUNNING", "failed", "running"),  # an attempt failed, another one runs
        ("CANCELLING", "running", "cancelling"),
        ("CANCELLED", "cancelled", "cancelled"),
        ("SUCCESS", "succeeded", "succeeded"),
        ("FAILED", "succeeded", "succeeded"),  # it found something, and exited with an error code
        ("FAILED", "failed", "failed"),
        ("FAILED", "running", "failed"),  # killed
        ("FAILED", None, "failed"),
    ],
)
def test_a_runs_state_follows_from_the_services_and_the_drivers(emr: Any, driver: Any, expected: str) -> None:
    error = "the target is gone" if driver == "failed" else ""
    progress = JobProgress(run_id="r", kind="verify", flow="f", state=driver, error=error) if driver else None

    state, why = state_of(JobRunThere(job_run_id="1", name="r", state=emr, details="out of memory"), progress)

    assert state == expected
    if state == "failed":
        assert why == (error or "out of memory")


def test_a_driver_that_found_something_ends_the_command_with_three(
    there: Callable[[], Any], runs: EmrRuns, requested: JobRequest
) -> None:
    runs.start(requested, size=None)
    there().state = "FAILED"
    ended(requested.run_id, "verify", "succeeded", {"clean": False, "report": {"verdict": "it is so"}})

    view = runs.inspect(requested.run_id)

    assert (view.state, view.exit_code, view.verdict) == ("succeeded", 3, "it is so")


def test_a_run_is_cancelled_once(there: Callable[[], Any], runs: EmrRuns, requested: JobRequest) -> None:
    runs.start(requested, size=None)
    there().state = "RUNNING"

    assert runs.cancel(requested.run_id).state == "cancelled"
    there().state = "SUCCESS"
    runs.cancel(requested.run_id)

    assert there().state == "SUCCESS"


def test_a_run_without_the_file_of_the_services_id_is_found_by_its_name(
    there: Callable[[], Any], runs: EmrRuns, requested: JobRequest
) -> None:
    """The command may have been killed before it wrote the file."""
    runs.start(requested, size=None)
    there().created_at = datetime.now(UTC).replace(tzinfo=None)
    boto3.client("s3").delete_object(Bucket=BUCKET, Key=f"flows/us-east_eu-west/jobs/{requested.run_id}/{JOB_RUN_FILE}")

    assert runs.inspect(requested.run_id).more["job_run_id"]


def test_a_request_that_was_never_submitted_is_a_failed_run(runs: EmrRuns, requested: JobRequest) -> None:
    runs.start(requested, size=None)
    other = msgspec.structs.replace(requested, run_id=new_run_id("verify"))
    files(other.run_id).write("request.json", msgspec.json.encode(other))

    view = runs.inspect(other.run_id)

    assert view.state == "failed"
    assert "no such job run" in view.error


def test_the_runs_of_a_kind_are_listed(runs: EmrRuns, requested: JobRequest) -> None:
    runs.start(requested, size=None)
    ended(requested.run_id, "verify", "running")

    (view,) = runs.every("verify", [FLOW])

    assert view.run_id == requested.run_id
    assert view.progress is not None
    assert runs.every("backfill", [FLOW]) == []


def test_more_executors_than_the_maximum_are_refused_before_anything_is_created(
    application: str, runs: EmrRuns, requested: JobRequest
) -> None:
    with pytest.raises(BadInput, match="room for 31"):
        runs.start(requested, size=32)

    assert files(requested.run_id).names() == []
    assert application not in emrserverless_backends[ACCOUNT][REGION].job_runs


def test_jobs_that_are_not_deployed_are_a_configuration_error(
    runs: EmrRuns, tmp_path: Path, requested: JobRequest
) -> None:
    boto3.client("ssm").delete_parameter(Name=parameter_name(FLOW))
    with pytest.raises(ConfigurationError, match="no parameter /mirrorless/us-east_eu-west/jobs"):
        runs.start(requested, size=None)

    without = deployment(tmp_path, replication_yaml(rest="deployment: {spark: {enabled: false}}"))
    with pytest.raises(ConfigurationError, match="not enabled"):
        EmrRuns(without, [FLOW]).start(requested, size=None)


def test_an_unknown_run_is_bad_input(runs: EmrRuns) -> None:
    with pytest.raises(BadInput, match="no such run"):
        runs.inspect("verify-20261121T203355-1f3a")


# The job of a failback


@pytest.fixture
def failback(runs: EmrRuns, tmp_path: Path) -> FailbackJobs:
    """The jobs of the command `failback`."""
    options = ReconcileOptions(policies={"orders": "replay", "gone": "quarantine"})
    return FailbackJobs(deployment=deployment(tmp_path), flow=FLOW, options=options, runs=lambda: runs)


def test_a_failback_starts_the_reconcile_that_the_deployment_has_and_follows_it_to_its_report(
    there: Callable[[], Any], failback: FailbackJobs
) -> None:
    run_id = failback.new_id()
    assert failback.inspect(run_id).state == "missing"

    failback.start(run_id, topics=["orders"], groups_exclude=["audit.app", "[a]"])

    made = there()
    assert (made.name, made.client_token, made.execution_role_arn) == (run_id, run_id, ROLE)
    assert made.job_driver["sparkSubmit"]["entryPoint"] == "s3://assets/reconcile.py"
    request = decode_request(files(run_id).read("request.json") or b"")
    assert isinstance(request.options, ReconcileOptions)
    assert (request.topics, request.options.policies) == (("orders",), {"orders": "replay"})
    assert request.options.groups_exclude[-2:] == ("audit.app", r"\[a\]"), "a group's name is no pattern"
    assert request.flow.tables_role is None, "the job's role reaches the tables by itself"
    made.state = "RUNNING"
    assert failback.inspect(run_id).state == "running"
    ended(run_id, "reconcile", "succeeded", {"clean": False, "report": {"verdict": "v"}, "totals": {"orphans": 2}})
    made.state = "FAILED"  # of a driver that found something

    found = failback.inspect(run_id)

    assert (found.state, found.report["totals"]) == ("succeeded", {"orphans": 2})


def test_a_failback_that_died_between_request_and_submission_is_run_again(
    application: str, failback: FailbackJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    failback.start(failback.new_id(), topics=["payments"], groups_exclude=[])  # moto lists no runs where there is none
    run_id = failback.new_id()
    with monkeypatch.context() as patch:
        patch.setattr(EmrServerless, "start", lambda *_, **__: (_ for _ in ()).throw(Retriable("the command is gone")))
        with pytest.raises(Retriable):
            failback.start(run_id, topics=["orders"], groups_exclude=[])

    found = failback.inspect(run_id)

    assert (found.state, len(emrserverless_backends[ACCOUNT][REGION].job_runs[application])) == ("failed", 1)
    assert "start another" in found.error


def test_a_missing_file_is_none_also_where_s3_answers_access_denied() -> None:
    """S3 answers `AccessDenied` for a missing object where the caller may list a prefix only."""
    client = boto3.client("s3", region_name=REGION, aws_access_key_id="k", aws_secret_access_key="s")  # noqa: S106
    prefix = "flows/us-east_eu-west/jobs/r"
    with Stubber(client) as s3:
        for listed in ([], [{"Key": f"{prefix}/report.json"}]):
            s3.add_client_error("get_object", "AccessDenied")
            s3.add_response(
                "list_objects_v2", {"Contents": listed}, {"Bucket": BUCKET, "Prefix": f"{prefix}/report.json"}
            )
        kept = S3JobFiles(BUCKET, prefix, client=client)

        assert kept.read("report.json") is None
        with pytest.raises(Retriable, match="AccessDenied"):
            kept.read("report.json")
