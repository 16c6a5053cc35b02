"""The credentials that a flow's tables need, with moto's accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from moto.core.botocore_stubber import BotocoreStubber

from cli.deployment import DeployedFlows
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ACROSS = FlowName.parse("production->vault")
WITHIN = FlowName.parse("us-east->us-west")


pytestmark = pytest.mark.usefixtures("aws")


def become(monkeypatch: pytest.MonkeyPatch, account: str) -> None:
    """Use credentials of an account."""
    role = f"arn:aws:iam::{account}:role/operator"
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="operator")["Credentials"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


def test_tables_in_another_account_than_the_functions_need_credentials_of_that_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(monkeypatch, "111122223333")  # of the functions: tables of the same names may be there by mistake

    with pytest.raises(
        ConfigurationError, match=r"tables are in account 444455556666.* are of 111122223333.*AWS_PROFILE"
    ):
        DeployedFlows(config=EXAMPLES / "cross-account.yaml").stores(ACROSS)


def test_an_operator_of_the_tables_account_reaches_them_with_the_usual_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    become(monkeypatch, "444455556666")

    stores = DeployedFlows(config=EXAMPLES / "cross-account.yaml").stores(ACROSS)
    credentials = boto3.Session().get_credentials()

    used = stores.client._request_signer._credentials
    assert credentials is not None
    assert used.access_key == credentials.access_key


def test_the_account_is_asked_of_the_region_of_the_tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, "444455556666")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")  # of the source, which may be lost
    monkeypatch.setenv("AWS_STS_REGIONAL_ENDPOINTS", "legacy")  # of which some would be answered in us-east-1
    asked: list[str] = []
    answer = BotocoreStubber.process_request

    def noted(stubber: BotocoreStubber, request: AWSPreparedRequest) -> Any:
        asked.append(request.url)
        return answer(stubber, request)

    monkeypatch.setattr(BotocoreStubber, "process_request", noted)
    deployed = DeployedFlows(config=EXAMPLES / "cross-account.yaml")

    deployed.stores(ACROSS)

    assert asked
    assert all(f".{deployed.flow(ACROSS).target.region}." in url for url in asked), asked


def test_with_a_single_account_the_credentials_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.deployment.require_account", lambda *_: pytest.fail("the account was read"))

    stores = DeployedFlows(config=EXAMPLES / "active-passive.yaml").stores(WITHIN)

    assert stores.client.meta.region_name == "us-west-2"


def test_without_credentials_the_error_names_the_account_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")

    with pytest.raises(ConfigurationError, match=r"is not known.*a profile of account 444455556666"):
        DeployedFlows(config=EXAMPLES / "cross-account.yaml").stores(ACROSS)
