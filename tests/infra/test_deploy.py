"""`make deploy`: what AWS has is read, what the guard refuses is not deployed, and what has left is removed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from aws_cdk import App
from botocore.exceptions import BotoCoreError
from botocore.stub import Stubber
from moto import mock_aws

from infra import deploy
from infra.app import build
from infra.deployed import (
    DEPLOY,
    REMOVED_IN_ORDER,
    DeployedStack,
    LeftStacks,
    Lookups,
    halted_findings,
    left_stacks,
)
from infra.deployment import PLACES_TAG, Deployment, Location, plan
from infra.guard.verdict import ApplicationState, ChangeFinding
from infra.packaging.assets import HOLLOW
from infra.stacks import PlacedStack
from infra.synth import stacks_in
from mirrorless.config import load
from mirrorless.errors import Retriable
from tests.support.assembly import CONTEXT, EXAMPLES, REPOSITORY, Assembly
from tests.support.changed_examples import written

Change = tuple[str, str]

DEPLOYED = 0
CDK_REFUSES = 77
"""An exit code of the CDK's command line."""

PLACE = Location("123456789012", "eu-central-1")
"""Of the account that moto has."""
EAST, WEST = (Location("111122223333", region) for region in ("us-east-1", "eu-west-1"))
OFF = ("  eu-west->us-east:\n", "  eu-west->us-east:\n    enabled: false\n")
BOTH_OFF = (OFF, ("  us-east->eu-west:\n", "  us-east->eu-west:\n    enabled: false\n"))
PULLING = ("  us-east->eu-west:\n    topics:\n", "  us-east->eu-west:\n    trigger: schedule\n    topics:\n")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """For moto, which has everything but an account."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")


# What AWS has


@dataclass
class Account(Lookups):
    """Stacks and their templates, the state of every application, and the places that let nobody look."""

    there: Sequence[DeployedStack] = ()
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: str | None = None
    closed: frozenset[Location] = frozenset()
    held: Sequence[str] = ()
    destroyed: list[str] = field(default_factory=list)

    def stacks(self, place: Location) -> list[DeployedStack]:
        """See `Lookups`."""
        if place in self.closed:
            raise Retriable("denied", where=str(place))
        return [each for each in self.there if each.place == place]

    def template(self, stack: str, _: Location) -> Mapping[str, Any] | None:
        """See `Lookups`."""
        return self.templates.get(stack)

    def regions(self, place: Location) -> set[str]:
        """See `Lookups`."""
        return {each.place.region for each in self.there if each.place.account == place.account}

    def application(self, name: str, place: Location) -> ApplicationState | None:
        """See `Lookups`."""
        return ApplicationState(id=f"00f-{name}", state=self.state, region=place.region) if self.state else None

    def holding(self, _: DeployedStack) -> list[str]:
        """See `Lookups`."""
        return [*self.held]

    def destroy(self, stack: DeployedStack) -> None:
        """See `Lookups`."""
        self.destroyed.append(stack.name)


def templates_of(assembly: Assembly) -> dict[str, dict[str, Any]]:
    """The templates of an assembly, by the names that its stacks have in their places."""
    stacks = stacks_in(assembly.folder, assembly.deployment)
    return {each.name: json.loads(Path(each.template).read_text()) for each in stacks}


def test_what_is_deployed_is_read_where_it_is() -> None:
    name, template = f"mirrorless-state-{PLACE.region}", {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}}
    with mock_aws():
        boto3.client("cloudformation", region_name=PLACE.region).create_stack(
            StackName=name,
            TemplateBody=json.dumps({"Description": "Mirrorless: x", **template}),
            Tags=[{"Key": PLACES_TAG, "Value": f"{EAST} {WEST}"}],
        )
        jobs = boto3.client("emr-serverless", region_name=PLACE.region)
        _, ours = [
            jobs.create_application(name=each, releaseLabel="emr-7.1.0", type="SPARK")["applicationId"]
            for each in ("mirrorless-other", "mirrorless-b")
        ]
        jobs.start_application(applicationId=ours)
        lookups = Lookups()

        assert (lookups.template(name, PLACE) or {})["Resources"] == template["Resources"]
        assert lookups.template("mirrorless-spark-eu-central-1", PLACE) is None
        state = ApplicationState(id=ours, state="STARTED", region=PLACE.region)
        assert lookups.application("mirrorless-b", PLACE) == state
        assert lookups.application("mirrorless-c", PLACE) is None
        (stack,) = lookups.stacks(PLACE)
        assert (stack.kind("mirrorless"), stack.places) == ("state", frozenset({EAST, WEST}))
        lookups.destroy(stack)
        assert lookups.stacks(PLACE) == []
        role = "cdk-hnb659fds-lookup-role-123456789012-"
        for name in (f"{role}eu-central-1", f"{role}us-east-1", "cdk-hnb659fds-lookup-role-444455556666-us-west-2"):
            boto3.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")
        assert lookups.regions(PLACE) == {"eu-central-1", "us-east-1"}
        assert lookups.client("ec2", PLACE) is lookups.client("ec2", PLACE), "each client is made once"


def test_a_template_that_cannot_be_read_is_an_error_and_not_a_first_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> object:
        raise BotoCoreError

    monkeypatch.setattr("infra.deployed.boto3.client", nowhere)

    with pytest.raises(Retriable, match="mirrorless-state-eu-west-1 in 123456789012/eu-central-1"):
        Lookups().template("mirrorless-state-eu-west-1", PLACE)


@pytest.mark.parametrize("status", ["DELETE_COMPLETE", "DELETE_FAILED"])
def test_a_protected_stack_loses_its_protection_and_one_that_stays_is_an_error(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests, held to botocore's models: moto has no termination protection."""
    client = boto3.client("cloudformation", region_name=PLACE.region)
    stack = DeployedStack(name="mirrorless-state-eu-west-1", place=PLACE, protected=True)
    listed = {"StackName": stack.name, "CreationTime": datetime.now(UTC), "StackStatus": status}
    role = "arn:aws:iam::123456789012:role/cdk-hnb659fds-cfn-exec-role-123456789012-eu-central-1"
    lookups = Lookups()
    monkeypatch.setattr(Lookups, "client", lambda *_, role: {DEPLOY: client}[role])
    with Stubber(client) as calls:
        calls.add_response(
            "update_termination_protection", {}, {"StackName": stack.name, "EnableTerminationProtection": False}
        )
        calls.add_response("delete_stack", {}, {"StackName": stack.name, "RoleARN": role})
        calls.add_response("describe_stacks", {"Stacks": [listed]}, {"StackName": stack.name})
        if status == "DELETE_COMPLETE":
            lookups.destroy(stack)
        else:
            with pytest.raises(Retriable, match="was not deleted"):
                lookups.destroy(stack)
        calls.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("table", "bucket", "held"),
    [
        pytest.param({"Items": []}, {}, [], id="empty"),
        pytest.param({"Items": [{"k": {"S": "x"}}]}, {}, ["lanes"], id="items"),
        pytest.param({"Items": []}, {"Versions": [{"Key": "report"}]}, ["bucket"], id="objects"),
        pytest.param("ResourceNotFoundException", "NoSuchBucket", [], id="not made"),
        pytest.param("AccessDeniedException", {}, ["lanes, which cannot be looked into: "], id="a customer's key"),
    ],
)
def test_what_a_failed_creation_holds_is_looked_at(
    table: dict[str, Any] | str, bucket: dict[str, Any] | str, held: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    types = {
        "T": ("AWS::DynamoDB::GlobalTable", "TableName", "lanes"),
        "B": ("AWS::S3::Bucket", "BucketName", "bucket"),
    }
    resources = {id_: {"Type": type_, "Properties": {key: name}} for id_, (type_, key, name) in types.items()}
    clients = {each: boto3.client(each, region_name=PLACE.region) for each in ("dynamodb", "s3")}
    asked = {"dynamodb": ("scan", table), "s3": ("list_object_versions", bucket)}
    for service, (operation, answer) in asked.items():
        stub = Stubber(clients[service])
        if isinstance(answer, str):
            stub.add_client_error(operation, answer)
        else:
            stub.add_response(operation, answer)
        stub.activate()
    monkeypatch.setattr(Lookups, "client", lambda _, service, *__: clients[service])
    monkeypatch.setattr(Lookups, "template", lambda *_: {"Resources": {**resources, "R": {"Type": "AWS::IAM::Role"}}})

    found = Lookups().holding(DeployedStack(name="mirrorless-state-eu-west-1", place=PLACE))

    assert [each.startswith(wanted) for each, wanted in zip(found, held, strict=True)] == [True] * len(held)


Deploying = Callable[..., int]


@pytest.fixture
def deploying(monkeypatch: pytest.MonkeyPatch) -> Deploying:
    """`make deploy` of a configuration where an account has something, without the CDK's command line."""

    def run(argv: list[str], **_: object) -> SimpleNamespace:
        assert "--import-existing-resources" in argv
        return SimpleNamespace(returncode=CDK_REFUSES if "refused-by-AWS" in argv else 0)

    def of(account: Account, config: Path, out: Path, *arguments: str, synthesized: Assembly | None = None) -> int:
        if synthesized:
            monkeypatch.setattr(deploy, "synth", lambda *_: synthesized.deployment)
        monkeypatch.setattr(deploy, "Lookups", lambda: account)
        monkeypatch.setattr(sys, "argv", ["deploy", str(config), "--out", str(out), *arguments])
        return deploy.main()

    monkeypatch.setattr("infra.deploy.cdk.install", lambda: None)
    monkeypatch.setattr(deploy, "network_findings", lambda *_: iter(()))
    monkeypatch.setattr(deploy, "quota_findings", lambda *_: iter(()))
    monkeypatch.setattr("infra.deploy.subprocess.run", run)
    return of


# What changes


@pytest.fixture(scope="session")
def built(assembled: Callable[[str], Assembly]) -> Assembly:
    """The example; it is made before anything that it runs is replaced."""
    return assembled("cross-account")


@pytest.fixture
def there(built: Assembly) -> dict[str, dict[str, Any]]:
    """What is deployed: the templates of an example, for a test to change."""
    return templates_of(built)


@pytest.fixture
def changing(built: Assembly, deploying: Deploying) -> Deploying:
    """`make deploy` of that example, with these templates deployed, and applications in this state."""

    def run(
        templates: Mapping[str, Mapping[str, Any]], state: str, *arguments: str, stacks: Sequence[DeployedStack] = ()
    ) -> int:
        account = Account(stacks, templates=templates, state=state)
        return deploying(account, EXAMPLES["cross-account"], built.folder, *arguments, synthesized=built)

    return run


def test_what_is_deployed_for_the_first_time_is_compared_with_nothing(
    changing: Deploying, capsys: pytest.CaptureFixture[str]
) -> None:
    assert changing({}, "STOPPED") == DEPLOYED
    assert "nothing is deployed yet" in capsys.readouterr().out


def test_what_the_guard_refuses_is_not_deployed(
    changing: Deploying, there: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert changing(there, "STARTED") == DEPLOYED, "an application that runs and that nothing changes is left alone"

    resources = there["mirrorless-state-us-west-2"]["Resources"]
    (lanes,) = [id_ for id_, each in resources.items() if each["Properties"].get("TableName", "").count("-lanes-")]
    resources[lanes]["Properties"]["TableName"] = "mirrorless-other"
    assert changing(there, "STOPPED") == deploy.REFUSED
    assert "the guard refuses" in capsys.readouterr().err

    assert changing(there, "STOPPED", "--accept", lanes) == DEPLOYED


def test_a_stack_that_was_never_made_is_compared_with_nothing(
    there: dict[str, dict[str, Any]], built: Assembly, deploying: Deploying
) -> None:
    """The file may be corrected after a first deployment that failed: its template was never in force."""
    name = "mirrorless-state-us-west-2"
    (place,) = (each.place for each in stacks_in(built.folder, built.deployment) if each.name == name)
    for resource in there[name]["Resources"].values():
        if resource["Type"] == "AWS::DynamoDB::GlobalTable":
            resource["Properties"]["TableName"] += "-misspelt"

    for status, code in (
        ("UPDATE_COMPLETE", deploy.REFUSED),
        ("ROLLBACK_COMPLETE", DEPLOYED),
        ("UPDATE_IN_PROGRESS", deploy.FAILED),
    ):
        stack = DeployedStack(name=name, place=place, description="Mirrorless: x", protected=True, status=status)
        account = Account([stack], templates={name: there[name]}, state="STOPPED")
        assert deploying(account, EXAMPLES["cross-account"], built.folder, synthesized=built) == code
        assert account.destroyed == ([name] if code == DEPLOYED else [])


def test_two_pipelines_may_deploy_a_region_each(there: dict[str, dict[str, Any]], changing: Deploying) -> None:
    place = Location("444455556666", "us-west-2")
    busy = DeployedStack(
        name="mirrorless-state-us-west-2", place=place, description="Mirrorless: x", status="UPDATE_IN_PROGRESS"
    )

    assert changing(there, "STOPPED", "--stacks", "*-us-east-1", stacks=[busy]) == DEPLOYED
    assert changing(there, "STOPPED", "--stacks", "*-us-west-2*", stacks=[busy]) == deploy.FAILED


@pytest.mark.parametrize("state", ["STARTED", "STARTING", "STOPPING", "CREATING", "CREATED", "STOPPED"])
def test_an_application_is_changed_only_while_it_stands_still_and_the_command_that_stops_it_is_said(
    state: str, changing: Deploying, there: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (application,) = [
        each["Properties"]
        for each in there["mirrorless-spark-us-west-2"]["Resources"].values()
        if each["Type"] == "AWS::EMRServerless::Application"
    ]
    application["MaximumCapacity"]["Cpu"] = "8vCPU"
    stands = state in {"CREATED", "STOPPED"}

    assert changing(there, state) == (DEPLOYED if stands else deploy.REFUSED)
    shown = " ".join(capsys.readouterr().out.split())
    assert "MaximumCapacity" in shown
    stop = f"stop-application --region us-west-2 --application-id 00f-{application['Name']}`"
    assert (f"`aws emr-serverless {stop}" in shown) is not stands


def test_a_network_that_is_closed_is_refused_until_it_is_accepted(
    changing: Deploying, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = ChangeFinding(refused=True, stack="network", id="sg-1", subject="pollers", what="no rule allows TCP 9096")

    assert changing({}, "STOPPED") == DEPLOYED
    monkeypatch.setattr(deploy, "network_findings", lambda *_: iter([closed]))
    assert changing({}, "STOPPED") == deploy.REFUSED
    assert "no rule allows TCP 9096" in capsys.readouterr().out

    assert changing({}, "STOPPED", "--accept", "sg-1") == DEPLOYED


def test_a_pipeline_can_branch_on_the_exit_code(
    changing: Deploying, built: Assembly, deploying: Deploying, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That nothing is done while the guard refuses is in the tests above."""
    assert changing({}, "STOPPED", "--stacks", "refused-by-AWS") == deploy.FAILED == 1
    closed = Account(closed=frozenset(built.deployment.places))
    assert deploying(closed, EXAMPLES["cross-account"], built.folder, synthesized=built) == deploy.FAILED
    monkeypatch.undo()
    (tmp_path / "replication.yaml").write_text("flows: {a->b: {}}")
    monkeypatch.setattr(sys, "argv", ["deploy", str(tmp_path / "replication.yaml"), "--out", str(tmp_path / "out")])
    assert deploy.main() == deploy.WRONG == 2
    monkeypatch.setattr(sys, "argv", ["deploy", "replication.yaml", "--require-approval", "sometimes"])
    with pytest.raises(SystemExit, match="2"):
        deploy.main()


# What stands still


ONE_WAY = {"ROLLBACK_COMPLETE": "noted", "ROLLBACK_FAILED": "noted", "DELETE_FAILED": "refused"}
STATUSES = boto3.client("cloudformation", "eu-west-1").meta.service_model.shape_for("StackStatus").enum


@pytest.mark.parametrize("status", sorted(set(STATUSES) - {"DELETE_COMPLETE"}))
def test_each_status_of_a_stack_has_its_way_on(status: str) -> None:
    """All that CloudFormation knows. In `REVIEW_IN_PROGRESS` nothing was begun, and the CDK goes on."""
    stack = DeployedStack(name="mirrorless-state-eu-west-1", place=WEST, protected=True, status=status)
    found = LeftStacks(stacks=(), unread=(), present=(stack,))
    way = next((hint for end, hint in WAYS.items() if status.endswith(end) and status != "REVIEW_IN_PROGRESS"), None)

    if status in ONE_WAY:
        (finding,) = halted_findings(found, Account())
        assert ("refused" if finding.refused else "noted") == ONE_WAY[status]
        (finding,) = halted_findings(found, Account(held=["mirrorless-lanes-a_b"]))
        assert (finding.refused, finding.id) == (True, stack.name)
        assert found.to_be_removed == (stack,)
    elif way is not None:
        with pytest.raises(Retriable, match=way):
            list(halted_findings(found, Account()))
    else:
        assert (list(halted_findings(found, Account())), found.to_be_removed) == ([], ())
    assert (stack.name in {name for name, _ in found.never_made}) is status.startswith(("ROLLBACK", "REVIEW"))


WAYS = {"_IN_PROGRESS": "wait until that has ended", "_FAILED": "run `cdk rollback mirrorless-state-eu-west-1"}
"""By how a status ends: what helps where the stack takes no change."""


# What has left


def deployed(deployment: Deployment) -> list[DeployedStack]:
    """Every stack of a deployment, as CloudFormation lists it when all went well; made with nothing of a flow in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deployment, "flows_at", lambda *_: ())
        app = build(App(context={**CONTEXT, HOLLOW: True}), deployment)
    return [
        DeployedStack(
            name=each.stack_name,
            place=each.place,
            description=str(each.template_options.description),
            tags=tuple(each.tags.tag_values().items()),
            protected=bool(each.termination_protection),
        )
        for each in app.node.children
        if isinstance(each, PlacedStack)
    ]


@cache
def variant(changes: tuple[Change, ...] = ()) -> tuple[Deployment, list[DeployedStack]]:
    """The shipped example with changes: its plan and its stacks."""
    with TemporaryDirectory() as folder:
        deployment = plan(load(written(Path(folder), "active-active", *changes)))
    return deployment, deployed(deployment)


def look(
    before: tuple[Change, ...] = (), after: tuple[Change, ...] = (), *, others: tuple[DeployedStack, ...] = ()
) -> LeftStacks:
    now, present = variant(after)
    return left_stacks(now, [(each.name, each.place) for each in present], Account([*variant(before)[1], *others]))


def names(found: LeftStacks) -> list[str]:
    return [each.name for each in found.stacks]


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        pytest.param(
            (),
            (OFF,),
            [
                "mirrorless-control-eu-west-1",
                "mirrorless-standby-us-east-1",
                "mirrorless-monitoring-eu-west-1",
                "mirrorless-replication-eu-west-1",
                "mirrorless-spark-us-east-1",
                "mirrorless-state-us-east-1",
            ],
            id="the last flow at a home",
        ),
        pytest.param((PULLING,), (), ["mirrorless-pull-eu-west-1"], id="the last scheduled topic"),
        pytest.param(
            (),
            (("    memory.mb: 1024\n", "    memory.mb: 1024\n    standby.enabled: false\n"),),
            ["mirrorless-standby-eu-west-1", "mirrorless-standby-us-east-1"],
            id="standbys",
        ),
        pytest.param(
            (),
            (("flows:\n", "deployment: {spark: {enabled: false}}\nflows:\n"),),
            ["mirrorless-spark-eu-west-1", "mirrorless-spark-us-east-1"],
            id="Spark",
        ),
        pytest.param(
            (("flows:\n", "deployment: {mapping.stacks: 2}\nflows:\n"),),
            (),
            ["mirrorless-mappings-1-eu-west-1", "mirrorless-mappings-1-us-east-1"],
            id="mapping.stacks",
        ),
    ],
)
def test_each_stack_that_has_left_is_found_and_no_other(
    before: tuple[Change, ...], after: tuple[Change, ...], left: list[str]
) -> None:
    assert names(look(before, after)) == left


def test_the_page_takes_down_every_stack_but_the_state_each_before_what_it_rests_on() -> None:
    """What is forgotten goes on: the pollers of a stack of mappings cost $135 a month for ten."""
    page = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
    ranks = {kind: rank for rank, kinds in enumerate(REMOVED_IN_ORDER) for kind in kinds}
    _, stacks = variant((("flows:\n", "deployment: {mapping.stacks: 4}\nflows:\n"), PULLING))
    everything = {each.name: each.kind("mirrorless") for each in stacks}
    assert ranks.keys() == set(everything.values())

    for heading in ("### What has left", "## 9. Take it down"):
        section = re.split(r"^##", page.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]
        given = [shlex.split(names) for names in re.findall(r"^    cdk destroy (.+) --excl", section, re.MULTILINE)]
        kinds = [{kind for kind in ranks if any(f"-{kind}-" in name for name in names)} for names in given]
        assert {kind for each in kinds for kind in each} == ranks.keys() - {"state"}
        steps = [{ranks[kind] for kind in each} for each in kinds]
        assert all(max(before) < min(after) for before, after in pairwise(steps))
    patterns = [each for names in given for each in names]
    left = {name: kind for name, kind in everything.items() if not any(fnmatch(name, each) for each in patterns)}
    assert set(left.values()) == {"state"}


def test_a_place_that_only_tags_name_is_looked_at() -> None:
    """The target moved to another region: nothing in the file names the old one."""
    moved = (
        ("    region: eu-west-1\n", "    region: eu-central-1\n"),
        ("arn:aws:kafka:eu-west-1:", "arn:aws:kafka:eu-central-1:"),
        ("arn:aws:kms:eu-west-1:", "arn:aws:kms:eu-central-1:"),
    )

    found = look(after=(*moved, OFF))

    assert "mirrorless-state-eu-west-1" in names(found)
    assert "mirrorless-control-eu-west-1" in names(found)
    assert found.unread == ()


def test_tags_name_all_places_however_many_there_are() -> None:
    deployment, _ = variant()
    (flow, *_) = deployment.flows
    targets = [replace(flow.flow.target, region=f"ap-northeast-{number}") for number in range(30)]
    flows = tuple(replace(flow, flow=replace(flow.flow, target=target)) for target in targets)
    many = replace(deployment, flows=flows)

    tags = many.place_tags

    assert len(tags) > 1
    assert all(len(value) <= 256 for value in tags.values())
    assert DeployedStack(name="s", place=EAST, tags=tuple(tags.items())).places == set(many.places)


def test_stacks_of_others_are_left_alone() -> None:
    ours = DeployedStack(name="mirrorless-pull-eu-west-1", place=WEST, description="Mirrorless: reads")
    assert look(others=(ours,)).stacks == (ours,)

    others = (
        replace(ours, name="staging-pull-eu-west-1"),
        replace(ours, name="mirrorless-network-eu-west-1"),
        replace(ours, name="mirrorless-pull-us-east-1"),  # in another region than its name
        DeployedStack(name="mirrorless-pull-eu-west-1", place=WEST, description="a stack of somebody's"),
    )

    assert look(others=others).stacks == ()


def test_a_place_that_cannot_be_looked_at_is_refused_by_its_name() -> None:
    """A place of the deployment is an error; one of a disabled flow may never have been prepared."""
    nothing, _ = variant(BOTH_OFF)

    found = left_stacks(nothing, [], Account([], closed=frozenset({WEST})))

    (finding,) = found.findings()
    assert (finding.refused, finding.id) == (True, "111122223333/eu-west-1")
    with pytest.raises(Retriable, match="denied"):
        left_stacks(variant()[0], [], Account([], closed=frozenset({WEST})))


Leaving = Callable[..., tuple[int, Account]]


@pytest.fixture(scope="session")
def was(assembled: Callable[[str], Assembly]) -> Assembly:
    """The shipped example; it is made before anything that it runs is replaced."""
    return assembled("active-active")


@pytest.fixture
def leaving(was: Assembly, tmp_path: Path, deploying: Deploying) -> Leaving:
    """`make deploy` of the shipped example with its flows or without any, where it is deployed as it was."""

    def of(*changes: Change, arguments: tuple[str, ...] = ()) -> tuple[int, Account]:
        config, account = written(tmp_path, "active-active", *changes), Account(variant()[1], templates_of(was))
        if changes:
            return deploying(account, config, tmp_path / "out", *arguments), account
        return deploying(account, config, was.folder, *arguments, synthesized=was), account

    return of


def test_a_deployment_without_an_enabled_flow_takes_everything_down(
    leaving: Leaving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (former := tmp_path / "out" / "mirrorless-control-us-east-1.template.json").write_text("{}")

    code, account = leaving(*BOTH_OFF)

    assert code == deploy.REFUSED
    assert not former.exists()  # else the guard would find it in the folder, and take it for deployed

    everything = [each.name for each in account.there]
    code, account = leaving(*BOTH_OFF, arguments=("--accept", *everything))

    assert (code, sorted(account.destroyed)) == (0, sorted(everything))
    assert "there is nothing to deploy" in capsys.readouterr().out


def test_nothing_has_left_where_nothing_changes(leaving: Leaving, capsys: pytest.CaptureFixture[str]) -> None:
    code, account = leaving()

    assert (code, account.destroyed) == (DEPLOYED, [])
    assert "has left" not in capsys.readouterr().out


def test_what_is_accepted_is_accepted_once(leaving: Leaving, capsys: pytest.CaptureFixture[str]) -> None:
    """An id that stays in a pipeline would accept the next change of what it names."""
    code, account = leaving(arguments=("--accept", "mirrorless-pull-eu-west-1"))

    assert (code, account.destroyed) == (deploy.WRONG, [])
    assert "nothing is refused of mirrorless-pull-eu-west-1" in capsys.readouterr().err


def test_a_flow_that_is_replicated_elsewhere_already_is_refused(
    was: Assembly, deploying: Deploying, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another name of the deployment, or other places of all of it, hide it from a look at what has left."""
    config, ours = written(tmp_path, "active-active"), "mirrorless-replication-eu-west-1"
    (replication,) = [each for each in variant()[1] if each.name == ours]
    renamed = replace(replication, name="staging-replication-eu-west-1")
    moved = replace(replication, name="mirrorless-replication-eu-north-1", place=replace(WEST, region="eu-north-1"))
    templates = templates_of(was)

    for other in (renamed, moved):
        there = Account([*variant()[1], other], {**templates, other.name: templates[ours]})
        assert deploying(there, config, was.folder, synthesized=was) == deploy.REFUSED
        shown = capsys.readouterr().out
        assert "replicates already" in shown
        assert f"{other.name} in {other.place}" in " ".join(shown.split())

    hidden = Account([*variant()[1], moved], templates, closed=frozenset({moved.place}))
    assert deploying(hidden, config, was.folder, synthesized=was) == DEPLOYED
    assert "another deployment may have the same flows there" in " ".join(capsys.readouterr().out.split())
    others = {**templates, moved.name: {"Resources": {}}}
    assert deploying(Account([*variant()[1], moved], others), config, was.folder, synthesized=was) == DEPLOYED
