"""`make deploy`: what is deployed is read first, and what the guard refuses of the change is not deployed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError
from moto import mock_aws

from infra import deploy
from infra.deployed import Lookups
from infra.deployment import Location
from infra.guard.verdict import ApplicationState, ChangeFinding
from mirrorless.errors import Retriable
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.deployed_account import CDK_CODE, Account, deployer, templates_of

PLACE = Location(account="123456789012", region="eu-west-1")
TEMPLATE = {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}}

Deploying = Callable[..., int]


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
def there(assembled: Callable[[str], Assembly]) -> dict[str, dict[str, Any]]:
    """What is deployed: the templates of an example, for a test to change."""
    return templates_of(assembled("cross-account"))


@pytest.fixture
def deploying(assembled: Callable[[str], Assembly], monkeypatch: pytest.MonkeyPatch) -> Deploying:
    """`make deploy` of that example, with these templates deployed, and applications in this state."""
    built, of = assembled("cross-account"), deployer(monkeypatch)

    def run(templates: Mapping[str, Mapping[str, Any]], state: str, *arguments: str) -> int:
        account = Account(templates=templates, state=state)
        return of(account, EXAMPLES["cross-account"], built.folder, *arguments, synthesized=built)

    return run


def test_what_is_deployed_for_the_first_time_is_compared_with_nothing(
    deploying: Deploying, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploying({}, "STOPPED") == CDK_CODE
    assert "nothing is deployed yet" in capsys.readouterr().out


def test_what_the_guard_refuses_is_not_deployed(
    deploying: Deploying, there: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploying(there, "STARTED") == CDK_CODE, "an application that runs and that nothing changes is left alone"

    resources = there["mirrorless-state-us-west-2"]["Resources"]
    (lanes,) = [id_ for id_, each in resources.items() if each["Properties"].get("TableName", "").count("-lanes-")]
    resources[lanes]["Properties"]["TableName"] = "mirrorless-other"
    assert deploying(there, "STOPPED") == 1
    assert "the guard refuses" in capsys.readouterr().err

    assert deploying(there, "STOPPED", "--accept", lanes) == CDK_CODE


@pytest.mark.parametrize("state", ["STARTED", "STARTING", "STOPPING", "CREATING", "CREATED", "STOPPED"])
def test_an_application_is_changed_only_while_it_stands_still_and_the_command_that_stops_it_is_said(
    state: str, deploying: Deploying, there: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (application,) = [
        each["Properties"]
        for each in there["mirrorless-spark-us-west-2"]["Resources"].values()
        if each["Type"] == "AWS::EMRServerless::Application"
    ]
    application["MaximumCapacity"]["Cpu"] = "8vCPU"
    stands = state in {"CREATED", "STOPPED"}

    assert deploying(there, state) == (CDK_CODE if stands else 1)
    shown = " ".join(capsys.readouterr().out.split())
    assert "MaximumCapacity" in shown
    stop = f"stop-application --region us-west-2 --application-id 00f-{application['Name']}`"
    assert (f"`aws emr-serverless {stop}" in shown) is not stands


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

    assert deploying({}, "STOPPED") == CDK_CODE
    monkeypatch.setattr(deploy, "network_findings", lambda *_: iter([closed]))
    assert deploying({}, "STOPPED") == 1
    assert "no rule allows TCP 9096" in capsys.readouterr().out

    assert deploying({}, "STOPPED", "--accept", "sg-1") == CDK_CODE
