"""Stacks that a configuration has no longer: found in every place, shown, deleted in order once that is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
import pytest
from aws_cdk import App
from botocore.stub import Stubber
from moto import mock_aws

from infra.app import build
from infra.deployed import DEPLOY, DeployedStack, LeftStacks, Lookups, left_stacks
from infra.deployment import PLACES_TAG, Deployment, Location, plan
from infra.packaging.assets import HOLLOW
from infra.stacks import PlacedStack
from mirrorless.config import load
from mirrorless.errors import Retriable
from tests.support.assembly import CONTEXT, Assembly, assemble
from tests.support.changed_examples import written
from tests.support.deployed_account import Account, deployer, templates_of

Change = tuple[str, str]

EAST, WEST = (Location("111122223333", region) for region in ("us-east-1", "eu-west-1"))
OFF = ("  eu-west->us-east:\n", "  eu-west->us-east:\n    enabled: false\n")
BOTH_OFF = (OFF, ("  us-east->eu-west:\n", "  us-east->eu-west:\n    enabled: false\n"))
PULLING = ("  us-east->eu-west:\n    topics:\n", "  us-east->eu-west:\n    trigger: schedule\n    topics:\n")


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


Deploying = Callable[..., tuple[int, Account]]


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The shipped example with one of its two flows."""
    folder = tmp_path_factory.mktemp("halved")
    return assemble(written(folder, "active-active", OFF), folder / "out", **{HOLLOW: True})


@pytest.fixture
def deploying(
    assembled: Callable[[str], Assembly], halved: Assembly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Deploying:
    """`make deploy` of the shipped example with changes, where it is deployed as it was; 77 is the CDK's own code."""
    was = assembled("active-active")
    deploy_ = deployer(monkeypatch)

    def of(*changes: Change, arguments: tuple[str, ...] = ()) -> tuple[int, Account]:
        config, out = written(tmp_path, "active-active", *changes), tmp_path / "out"
        account, now = Account(variant()[1], templates_of(was)), halved if changes else was
        if len(changes) < len(BOTH_OFF):  # the CDK's command line refuses an app without stacks
            return deploy_(account, config, now.folder, *arguments, synthesized=now), account
        return deploy_(account, config, out, *arguments), account

    return of


def test_a_flow_that_is_disabled_ends_where_it_was_the_last_one_at_its_home(
    deploying: Deploying, capsys: pytest.CaptureFixture[str]
) -> None:
    code, account = deploying(OFF)
    shown = capsys.readouterr().out

    assert (code, account.destroyed) == (1, [])
    assert shown.count("has left the configuration") == 6
    assert "mirrorless-state-us-east-1: has left" in shown
    assert "stay in the account" in shown

    left = [each.split()[1].rstrip(":") for each in shown.split("REFUSED")[1:] if "has left" in each]
    code, account = deploying(OFF, arguments=("--accept", *left, "--stacks", "mirrorless-state-*"))

    assert (code, sorted(account.destroyed)) == (77, sorted(left))
    assert account.destroyed[0] == "mirrorless-control-eu-west-1"
    assert account.destroyed[-1] == "mirrorless-state-us-east-1"


def test_what_is_accepted_in_part_is_not_deployed_at_all(deploying: Deploying) -> None:
    code, account = deploying(OFF, arguments=("--accept", "mirrorless-control-eu-west-1"))

    assert (code, account.destroyed) == (1, [])


def test_a_deployment_without_an_enabled_flow_takes_everything_down(
    deploying: Deploying, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (former := tmp_path / "out" / "mirrorless-control-us-east-1.template.json").write_text("{}")

    code, account = deploying(*BOTH_OFF)

    assert code == 1
    assert not former.exists()  # else the guard would find it in the folder, and take it for deployed

    everything = [each.name for each in account.there]
    code, account = deploying(*BOTH_OFF, arguments=("--accept", *everything))

    assert (code, sorted(account.destroyed)) == (0, sorted(everything))
    assert "there is nothing to deploy" in capsys.readouterr().out


def test_nothing_has_left_where_nothing_changes(deploying: Deploying, capsys: pytest.CaptureFixture[str]) -> None:
    code, account = deploying()

    assert (code, account.destroyed) == (77, [])
    assert "has left" not in capsys.readouterr().out


PLACE = Location("123456789012", "eu-west-1")


@pytest.mark.usefixtures("credentials")
def test_a_stack_is_listed_with_its_tags_and_deleted() -> None:
    place = PLACE
    with mock_aws():
        client = boto3.client("cloudformation", region_name=place.region)
        client.create_stack(
            StackName="mirrorless-state-eu-west-1",
            TemplateBody=json.dumps({"Description": "Mirrorless: x", "Resources": {"T": {"Type": "AWS::SNS::Topic"}}}),
            Tags=[{"Key": PLACES_TAG, "Value": f"{EAST} {WEST}"}],
        )
        lookups = Lookups()

        (stack,) = lookups.stacks(place)
        assert stack.kind("mirrorless") == "state"
        assert stack.places == {EAST, WEST}

        lookups.destroy(stack)

        assert lookups.stacks(place) == []
        assert lookups.client("ec2", place) is lookups.client("ec2", place), "each client is made once"


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("status", ["DELETE_COMPLETE", "DELETE_FAILED"])
def test_a_protected_stack_loses_its_protection_and_one_that_stays_is_an_error(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests, held to botocore's models: moto has no termination protection."""
    client = boto3.client("cloudformation", region_name=PLACE.region)
    stack = DeployedStack(name="mirrorless-state-eu-west-1", place=PLACE, protected=True)
    listed = {"StackName": stack.name, "CreationTime": datetime.now(UTC), "StackStatus": status}
    role = "arn:aws:iam::123456789012:role/cdk-hnb659fds-cfn-exec-role-123456789012-eu-west-1"
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
