"""`make deploy`: what is deployed is read first, and what the guard refuses of the change is not deployed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError
from moto import mock_aws

from infra import deploy
from infra.deployment import Location
from infra.synth import stacks_in
from mirrorless.errors import Retriable
from tests.support.assembly import EXAMPLES, Assembly

PLACE = Location(account="123456789012", region="eu-west-1")
TEMPLATE = {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}}

Deployed = Callable[[Mapping[str, Mapping[str, Any]]], int]


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")


@pytest.mark.usefixtures("credentials")
def test_a_deployed_template_is_read_where_its_stack_is() -> None:
    with mock_aws():
        boto3.client("cloudformation", region_name=PLACE.region).create_stack(
            StackName="mirrorless-state-eu-west-1", TemplateBody=json.dumps(TEMPLATE)
        )

        assert deploy.deployed("mirrorless-state-eu-west-1", PLACE) == TEMPLATE
        assert deploy.deployed("mirrorless-spark-eu-west-1", PLACE) is None


def test_a_template_that_cannot_be_read_is_an_error_and_not_a_first_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> object:
        raise BotoCoreError

    monkeypatch.setattr("infra.deploy.boto3.client", nowhere)

    with pytest.raises(Retriable, match="mirrorless-state-eu-west-1 in 123456789012/eu-west-1"):
        deploy.deployed("mirrorless-state-eu-west-1", PLACE)


@pytest.fixture
def deploying(assembled: Callable[[str], Assembly], monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """`make deploy` of an example, with these templates deployed; 77 is the CDK's own exit code."""
    built = assembled("cross-account")
    monkeypatch.setattr(deploy, "synth", lambda *_: built.deployment)
    monkeypatch.setattr("infra.deploy.cdk.install", lambda: None)
    monkeypatch.setattr("infra.deploy.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=77))
    monkeypatch.setattr(sys, "argv", ["deploy", str(EXAMPLES["cross-account"]), "--out", str(built.folder)])

    def run(there: Mapping[str, Mapping[str, Any]]) -> int:
        monkeypatch.setattr(deploy.may_deploy, "__defaults__", (lambda name, _: there.get(name),))
        return deploy.main()

    return run


def by_name(assembly: Assembly) -> dict[str, dict[str, Any]]:
    stacks = stacks_in(assembly.folder, assembly.deployment)
    return {each.name: json.loads(Path(each.template).read_text()) for each in stacks}


def test_what_is_deployed_for_the_first_time_is_compared_with_nothing(
    deploying: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploying({}) == 77
    assert "nothing is deployed yet" in capsys.readouterr().out


def test_what_the_guard_refuses_is_not_deployed(
    deploying: Deployed,
    assembled: Callable[[str], Assembly],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = by_name(assembled("cross-account"))
    assert deploying(there) == 77

    resources = there["mirrorless-state-us-west-2"]["Resources"]
    (lanes,) = [id_ for id_, each in resources.items() if each["Properties"].get("TableName", "").count("-lanes-")]
    resources[lanes]["Properties"]["TableName"] = "mirrorless-other"
    assert deploying(there) == 1
    assert "the guard refuses" in capsys.readouterr().err

    monkeypatch.setattr(sys, "argv", [*sys.argv, "--accept", lanes])
    assert deploying(there) == 77
