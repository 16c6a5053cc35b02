"""Deployments to simulated accounts, by `make deploy` and the CDK's command line: repeated, disabled, taken back."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from infra import deploy
from infra.deployed import Lookups
from infra.deployment import Location
from infra.packaging.assets import HOLLOW
from infra.packaging.spark_archive import Artifact
from infra.stacks import spark
from mirrorless.jobs.request import JobKind
from tests.support.assembly import Assembly, assemble
from tests.support.changed_examples import written
from tests.support.iam import allowed
from tests.support.simulated_account import VERSION, SimulatedAccounts, serving

TABLE, MAPPING, SCHEDULE = "AWS::DynamoDB::GlobalTable", "AWS::Lambda::EventSourceMapping", "AWS::Scheduler::Schedule"
FUNCTION = "AWS::Lambda::Function"
EAST, WEST = (Location("111122223333", region) for region in ("us-east-1", "eu-west-1"))
ONE_OFF = ("  eu-west->us-east:\n", "  eu-west->us-east:\n    enabled: false\n")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The shipped example: two flows, each at home in its source's region."""
    return _assembled(tmp_path_factory.mktemp("both"), "0")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The same with one flow disabled, and a later version of what jobs are made of."""
    return _assembled(tmp_path_factory.mktemp("one"), "1", ONE_OFF)


def _assembled(folder: Path, version: str, *changes: tuple[str, str]) -> Assembly:
    (script := folder / "script.py").write_text(version)  # archives would take most of the time
    artifacts = dict.fromkeys((*get_args(JobKind), "package", "environment"), Artifact(script, version * 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark, "spark_artifacts", lambda *_: artifacts)
        return assemble(written(folder, "active-active", *changes), folder / "out", **{HOLLOW: True})


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedAccounts]:
    """Accounts with nothing in them but what `cdk bootstrap` makes; whatever it is asked is understood."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line for each request
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    simulated = SimulatedAccounts()
    with serving(simulated) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for place in (EAST, WEST):
            simulated.prepare(place)
        yield simulated
    assert simulated.wrong == []


Deploying = Callable[..., int]


@pytest.fixture
def deploying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deploying:
    """`make deploy` in a pipeline, of what is synthesized, without a look at networks and quotas."""

    def of(assembly: Assembly, *arguments: str) -> int:
        monkeypatch.setattr(deploy, "synth", lambda *_: assembly.deployment)
        argv = ["deploy", "replication.yaml", "--out", str(assembly.folder), "--require-approval", "never"]
        monkeypatch.setattr(sys, "argv", [*argv, *arguments])
        return deploy.main()

    monkeypatch.setenv("NODE_COMPILE_CACHE", str(tmp_path))  # the CDK is 16 MB of JavaScript
    monkeypatch.setattr(deploy, "network_findings", lambda *_: iter(()))  # moto has no cluster
    monkeypatch.setattr(deploy, "quota_findings", lambda *_: iter(()))  # and no quotas
    return of


def of_flow(accounts: SimulatedAccounts, flow: str) -> list[str]:
    """What there is of a flow that does something: functions, mappings, schedules."""
    return [
        name
        for type_ in (FUNCTION, MAPPING, SCHEDULE)
        for name, each in accounts.things(type_).items()
        if flow in name or flow.replace("_", "").replace("-", "") in name
    ]


def job_code(accounts: SimulatedAccounts, flow: str) -> set[tuple[str, str]]:
    """The bucket and the key of each object that a job of a flow is submitted with now."""
    submission = accounts.things("AWS::SSM::Parameter")[f"/mirrorless/{flow}/jobs"].properties["Value"]
    return {(bucket, key) for bucket, key in re.findall(r"s3://([^/]+)/([^\"#]+)", submission)}


def test_a_creation_that_fails_is_repeated_and_what_a_disabled_flow_leaves_comes_back(
    accounts: SimulatedAccounts, deploying: Deploying, both: Assembly, one: Assembly, capfd: pytest.CaptureFixture[str]
) -> None:
    """One story: a deployment costs some seconds."""
    # The state stack fails half-way, twice: it is protected by then, and what it has made is retained.
    for failing in ("mirrorless-lanes-us-east_eu-west", "mirrorless-checkpoints-us-east_eu-west"):
        accounts.failures.append(failing)
        assert deploying(both, "--stacks", "mirrorless-state-eu-west-1") == deploy.FAILED
        stack = accounts.stack("mirrorless-state-eu-west-1")
        assert stack is not None
        assert (stack.status, stack.protected) == ("ROLLBACK_COMPLETE", True)
    half = accounts.things(TABLE, owned=False)
    assert 0 < len(half) < 5
    assert "mirrorless-state-eu-west-1: is ROLLBACK_COMPLETE: it is deleted" in capfd.readouterr().out

    # What the command of each region selects: with the tables that its functions need, wherever those are.
    assert deploying(both, "--stacks", "*-us-east-1") == 0
    assert sorted(accounts.statuses) == [
        "mirrorless-control-us-east-1",
        "mirrorless-monitoring-us-east-1",
        "mirrorless-replication-us-east-1",
        "mirrorless-spark-us-east-1",
        "mirrorless-standby-us-east-1",
        "mirrorless-state-eu-west-1",
        "mirrorless-state-us-east-1",
    ]
    assert deploying(both, "--stacks", "*-eu-west-1") == 0
    assert {*accounts.statuses} == {*both.templates}
    assert {*accounts.statuses.values()} == {"CREATE_COMPLETE"}
    tables = accounts.things(TABLE)
    assert len(tables) == 10
    assert [name for name, each in half.items() if tables[name] is not each] == [], "what failed halfway is taken back"

    was = job_code(accounts, "us-east_eu-west")

    # Nothing of a disabled flow runs, and its tables stay. What has left goes whatever `--stacks` says.
    capfd.readouterr()
    assert deploying(one) == deploy.REFUSED
    shown = capfd.readouterr().out
    left = [each.split()[1].rstrip(":") for each in shown.split("REFUSED")[1:] if "has left" in each]
    assert sorted(left) == sorted({*both.templates} - {*one.templates})
    assert "stay in the account" in shown
    assert deploying(one, "--accept", left[0]) == deploy.REFUSED
    assert accounts.deleted == ["mirrorless-state-eu-west-1"] * 2, "what is accepted in part is not deployed at all"
    assert len(of_flow(accounts, "eu-west_us-east")) > 5
    assert deploying(one, "--accept", *left, "--stacks", "mirrorless-spark-*") == 0
    assert sorted(accounts.deleted[2:]) == sorted(left)
    assert accounts.deleted[2] == "mirrorless-control-eu-west-1"
    assert accounts.deleted[-1] == "mirrorless-state-us-east-1"
    assert of_flow(accounts, "eu-west_us-east") == []
    assert len(of_flow(accounts, "us-east_eu-west")) > 5
    assert accounts.things(TABLE, owned=False) == tables
    assert len(accounts.things(TABLE)) == 5

    # A job that runs meanwhile finds the code that it was started with, and may read it.
    assert was.isdisjoint(job_code(accounts, "us-east_eu-west"))
    policies = [each.properties for each in accounts.things("AWS::IAM::Policy").values()]
    role = "mirrorless-jobs-us-east_eu-west"
    statements = [
        each for policy in policies if role in policy["Roles"] for each in policy["PolicyDocument"]["Statement"]
    ]
    for bucket, key in was:
        assert Lookups().client("s3", WEST).get_object(Bucket=bucket, Key=key)["Body"].read() == b"0"
        context = {"aws:ResourceAccount": WEST.account}
        assert allowed(statements, "s3:GetObject", f"arn:aws:s3:::{bucket}/{key}", context)

    # A flow that is enabled again has the same tables.
    assert deploying(both, "--stacks", "mirrorless-state-us-east-1") == 0
    assert accounts.things(TABLE) == tables


def test_a_failed_creation_whose_tables_hold_something_is_left_alone_until_it_is_accepted(
    accounts: SimulatedAccounts, deploying: Deploying, both: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables were there before it, and hold a flow's positions. Nothing would be lost, but a person should look."""
    name = "mirrorless-state-eu-west-1"
    apply(accounts, both, name, failing="mirrorless-control-us-east_eu-west")
    table = Lookups().client("dynamodb", WEST)
    keys = table.describe_table(TableName="mirrorless-lanes-us-east_eu-west")["Table"]["KeySchema"]
    item = {each["AttributeName"]: {"S": "x"} for each in keys}
    table.put_item(TableName="mirrorless-lanes-us-east_eu-west", Item=item)
    monkeypatch.setattr("infra.deploy.subprocess.run", lambda *_, **__: pytest.fail("the CDK was called"))

    assert deploying(both) == deploy.REFUSED
    assert accounts.statuses == {name: "ROLLBACK_COMPLETE"}

    with pytest.raises(pytest.fail.Exception, match="the CDK was called"):
        deploying(both, "--accept", name)
    assert accounts.statuses == {}
    assert "mirrorless-lanes-us-east_eu-west" in accounts.things(TABLE, owned=False)


def test_an_update_of_code_that_was_rolled_back_can_be_repeated(accounts: SimulatedAccounts, both: Assembly) -> None:
    """Lambda makes one version of the same code: one that a rollback left would be in the way."""
    name = "mirrorless-standby-eu-west-1"
    apply(accounts, both, name)
    (version,) = accounts.things(VERSION)

    apply(accounts, both, name, newer=True, failing="Newer")
    assert accounts.statuses[name] == "UPDATE_ROLLBACK_COMPLETE"
    assert [*accounts.things(VERSION, owned=False)] == [version]

    apply(accounts, both, name, newer=True)
    assert accounts.statuses[name] == "UPDATE_COMPLETE"
    assert len(accounts.things(VERSION, owned=False)) == 2, "an invocation may still run on the former version"


def apply(
    accounts: SimulatedAccounts, assembly: Assembly, name: str, *, newer: bool = False, failing: str = ""
) -> None:
    """Deploy one stack without the CDK. Args: newer: with other code, and one thing more that goes last."""
    template: dict[str, Any] = json.loads(json.dumps(assembly.templates[name]))
    if newer:
        resources = template["Resources"]
        (function,) = (each for each in resources.values() if each["Type"] == FUNCTION)
        function["Properties"]["Code"]["S3Key"] = "newer.zip"
        (version,) = (id_ for id_, each in resources.items() if each["Type"] == VERSION)
        template = json.loads(json.dumps(template).replace(version, f"{version}newer"))
        (alias,) = (id_ for id_, each in template["Resources"].items() if each["Type"] == "AWS::Lambda::Alias")
        template["Resources"]["Newer"] = {"Type": "Custom::Last", "DependsOn": alias}
    accounts.failures += [failing] if failing else []
    cloudformation = Lookups().client("cloudformation", WEST)
    given = {"StackName": name, "ChangeSetName": "change"}
    cloudformation.create_change_set(
        **given,
        ChangeSetType="UPDATE" if name in accounts.statuses else "CREATE",
        TemplateBody=json.dumps(template),
        RoleARN=f"arn:aws:iam::{WEST.account}:role/cdk-hnb659fds-cfn-exec-role-{WEST.account}-{WEST.region}",
        Capabilities=["CAPABILITY_NAMED_IAM"],
    )
    cloudformation.execute_change_set(**given)
