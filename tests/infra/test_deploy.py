"""`make deploy`: what is deployed is read first, and what the guard refuses of the change is not deployed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError
from moto import mock_aws

from infra import deploy
from infra.deployed import DeployedStack, Lookups
from infra.deployment import Location
from infra.guard.verdict import ApplicationState, ChangeFinding
from infra.synth import stacks_in
from mirrorless.errors import Retriable
from tests.support.assembly import EXAMPLES, Assembly

PLACE = Location(account="123456789012", region="eu-west-1")
TEMPLATE = {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}}

Deploying = Callable[[Mapping[str, Mapping[str, Any]], str], int]


@dataclass(frozen=True, slots=True)
class There:
    """What AWS has: templates, and each application in one state."""

    templates: Mapping[str, Mapping[str, Any]]
    state: str
    left: Sequence[DeployedStack] = ()
    destroyed: list[DeployedStack] = field(default_factory=list)

    def template(self, stack: str, _: Location) -> Mapping[str, Any] | None:
        """See `deploy.Deployed`."""
        return self.templates.get(stack)

    def application(self, name: str, place: Location) -> ApplicationState | None:
        """See `deploy.Deployed`."""
        return ApplicationState(id=f"00f-{name}", state=self.state, region=place.region)

    def stacks(self, place: Location) -> list[DeployedStack]:
        """See `deploy.Deployed`."""
        return [each for each in self.left if each.place == place and each not in self.destroyed]

    def destroy(self, stack: DeployedStack) -> None:
        """See `deploy.Deployed`."""
        self.destroyed.append(stack)


@pytest.mark.usefixtures("credentials")
def test_a_deployed_template_is_read_where_its_stack_is() -> None:
    with mock_aws():
        boto3.client("cloudformation", region_name=PLACE.region).create_stack(
            StackName="mirrorless-state-eu-west-1", TemplateBody=json.dumps(TEMPLATE)
        )

        assert Lookups().template("mirrorless-state-eu-west-1", PLACE) == TEMPLATE
        assert Lookups().template("mirrorless-spark-eu-west-1", PLACE) is None


def test_a_template_that_cannot_be_read_is_an_error_and_not_a_first_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> object:
        raise BotoCoreError

    monkeypatch.setattr("infra.deployed.boto3.client", nowhere)

    with pytest.raises(Retriable, match="mirrorless-state-eu-west-1 in 123456789012/eu-west-1"):
        Lookups().template("mirrorless-state-eu-west-1", PLACE)


@pytest.fixture
def deploying(assembled: Callable[[str], Assembly], monkeypatch: pytest.MonkeyPatch) -> Deploying:
    """`make deploy` of an example, with these templates deployed; 77 is the CDK's own exit code."""
    built = assembled("cross-account")
    monkeypatch.setattr(deploy, "synth", lambda *_: built.deployment)
    monkeypatch.setattr("infra.deploy.cdk.install", lambda: None)
    monkeypatch.setattr("infra.deploy.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=77))
    monkeypatch.setattr(sys, "argv", ["deploy", str(EXAMPLES["cross-account"]), "--out", str(built.folder)])

    def run(there: Mapping[str, Mapping[str, Any]], state: str) -> int:
        monkeypatch.setattr(deploy, "Lookups", lambda: There(there, state))
        monkeypatch.setattr(deploy, "network_findings", lambda *_: iter(()))
        return deploy.main()

    return run


def by_name(assembly: Assembly) -> dict[str, dict[str, Any]]:
    stacks = stacks_in(assembly.folder, assembly.deployment)
    return {each.name: json.loads(Path(each.template).read_text()) for each in stacks}


def test_what_is_deployed_for_the_first_time_is_compared_with_nothing(
    deploying: Deploying, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploying({}, "STOPPED") == 77
    assert "nothing is deployed yet" in capsys.readouterr().out


def test_what_the_guard_refuses_is_not_deployed(
    deploying: Deploying,
    assembled: Callable[[str], Assembly],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = by_name(assembled("cross-account"))
    assert deploying(there, "STOPPED") == 77

    resources = there["mirrorless-state-us-west-2"]["Resources"]
    (lanes,) = [id_ for id_, each in resources.items() if each["Properties"].get("TableName", "").count("-lanes-")]
    resources[lanes]["Properties"]["TableName"] = "mirrorless-other"
    assert deploying(there, "STOPPED") == 1
    assert "the guard refuses" in capsys.readouterr().err

    monkeypatch.setattr(sys, "argv", [*sys.argv, "--accept", lanes])
    assert deploying(there, "STOPPED") == 77


@pytest.mark.parametrize("state", ["STARTED", "STARTING", "STOPPING", "CREATING"])
def test_an_application_that_is_changed_while_it_runs_is_refused_with_the_command_that_stops_it(
    state: str, deploying: Deploying, assembled: Callable[[str], Assembly], capsys: pytest.CaptureFixture[str]
) -> None:
    there = by_name(assembled("cross-account"))
    (application,) = [
        each["Properties"]
        for each in there["mirrorless-spark-us-west-2"]["Resources"].values()
        if each["Type"] == "AWS::EMRServerless::Application"
    ]
    application["MaximumCapacity"]["Cpu"] = "8vCPU"

    assert deploying(there, state) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "MaximumCapacity" in shown
    name = application["Name"]
    assert f"`aws emr-serverless stop-application --region us-west-2 --application-id 00f-{name}`" in shown


@pytest.mark.parametrize("state", ["CREATED", "STOPPED"])
def test_an_application_that_stands_still_is_changed(
    state: str, deploying: Deploying, assembled: Callable[[str], Assembly]
) -> None:
    there = by_name(assembled("cross-account"))
    for each in there["mirrorless-spark-us-west-2"]["Resources"].values():
        if each["Type"] == "AWS::EMRServerless::Application":
            each["Properties"]["MaximumCapacity"]["Cpu"] = "8vCPU"

    assert deploying(there, state) == 77


def test_a_running_application_that_nothing_changes_is_left_alone(
    deploying: Deploying, assembled: Callable[[str], Assembly]
) -> None:
    assert deploying(by_name(assembled("cross-account")), "STARTED") == 77


@pytest.mark.usefixtures("credentials")
def test_an_applications_state_is_read_by_its_name() -> None:
    with mock_aws():
        client = boto3.client("emr-serverless", region_name=PLACE.region)
        made = [
            client.create_application(name=name, releaseLabel="emr-7.1.0", type="SPARK")["applicationId"]
            for name in ("mirrorless-other", "mirrorless-b")
        ]
        client.start_application(applicationId=made[1])

        assert Lookups().application("mirrorless-b", PLACE) == ApplicationState(
            id=made[1], state="STARTED", region="eu-west-1"
        )
        assert Lookups().application("mirrorless-c", PLACE) is None


def test_a_network_that_is_closed_is_refused_until_it_is_accepted(
    deploying: Deploying, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = ChangeFinding(refused=True, stack="network", id="sg-1", subject="pollers", what="no rule allows TCP 9096")

    assert deploying({}, "STOPPED") == 77
    monkeypatch.setattr(deploy, "network_findings", lambda *_: iter([closed]))
    assert deploy.main() == 1
    assert "no rule allows TCP 9096" in capsys.readouterr().out

    monkeypatch.setattr(sys, "argv", [*sys.argv, "--accept", "sg-1"])
    assert deploy.main() == 77
