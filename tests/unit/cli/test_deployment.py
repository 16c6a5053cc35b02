"""Where commands find a flow: the tables' account, the source cluster, the lab; advice on a mapping's group."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from moto.core.botocore_stubber import BotocoreStubber

from cli.clusters import ClusterView, group_advice, heartbeats_of
from cli.deployment import DeployedFlows, LabNotRunning, read_lab_state
from cli.groups_view import _asked
from mirrorless.adapters.kafka.offsets import Extent
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError, Retriable
from tests.frozen.small_flow import STATE
from tests.support.chains import LANE
from tests.support.commands import Command, replication_yaml

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


def test_commands_that_only_look_read_the_operators_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions' own let whoever has them write."""
    asked: list[str] = []

    def read(name: str) -> str:
        asked.append(name)
        raise Retriable("not here", where=name)

    monkeypatch.setattr("mirrorless.adapters.aws.secrets.read_secret", read)
    text = (EXAMPLES / "cross-account.yaml").read_text()
    config = tmp_path / "replication.yaml"
    config.write_text(text.replace("      secret: ", "      operator.secret: AmazonMSK_lookers\n      secret: "))
    deployment = DeployedFlows(config=config)

    ClusterView.source(deployment, ACROSS).partitions()
    heartbeats_of(deployment.looking(ACROSS))
    for alias in (ACROSS.source, ACROSS.target):
        _asked(deployment, ACROSS, alias, lambda _: None)

    assert asked == ["AmazonMSK_lookers"] * 4
    assert "AmazonMSK_lookers" not in str(deployment.settings(ACROSS)), "who acts proves to be a function"


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


@pytest.mark.parametrize(
    ("committed", "to", "extent", "says"),
    [
        (10, 10, Extent(0, 20), "from 10 on by itself"),
        (0, 10, Extent(10, 20), "from 10 on by itself"),
        (15, 10, Extent(0, 20), "may not deliver what lies between"),
        (5, 10, Extent(0, 20), "and stop again"),
        (5, 10, None, "and stop again"),
        (None, 10, Extent(0, 20), "If that is below 10"),
        (None, 0, Extent(0, 20), "begins where `start` says."),
    ],
)
def test_the_advice_for_a_reset_compares_the_groups_commit(
    committed: int | None, to: int, extent: Extent | None, says: str
) -> None:
    advice = " ".join(group_advice(LANE, "mirrorless.us-east.eu-west.orders", committed, to, extent))

    assert says in advice
    assert ("--reset-offsets" in advice) == ("between" in says or "again" in says)


def test_a_group_that_was_moved_back_is_moved_on_to_the_position_before_its_lane_is_resumed() -> None:
    group = "mirrorless.us-east.eu-west.orders"

    moved_back = " ".join(group_advice(LANE, group, 3, 10, Extent(0, 20), reset=False))

    assert "below 10: its mapping delivers what was replicated, and stops again where the map has lost" in moved_back
    assert f"--group {group} --topic orders:0 --reset-offsets --to-offset 10 --execute" in moved_back
    assert "new generation" not in moved_back


class SilentCluster:
    """A cluster that never answers, and counts its requests."""

    requests = 0

    def partitions(self) -> dict[str, int]:
        """See KafkaOffsets."""
        self.requests += 1
        raise Retriable("the cluster did not list its topics", where="us-east")

    def extents(self, partitions: Any) -> dict[tuple[str, int], Extent]:
        """See KafkaOffsets."""
        raise AssertionError(f"a second request, for {partitions}")

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """See KafkaOffsets."""
        raise AssertionError(f"a second request, for {group} {topic}-{partition}")


def test_a_source_that_does_not_answer_is_contacted_once() -> None:
    cluster = SilentCluster()
    source = ClusterView(lambda: cluster)  # type: ignore[arg-type, return-value]  # a fake of the methods that are used here

    assert source.partitions() is None
    assert source.extents([LANE]) == {}
    assert source.committed("group", LANE) is None
    assert "us-east" in source.trouble
    assert cluster.requests == 1


@pytest.mark.parametrize(("pid", "passes"), [(os.getpid(), True), (None, False)])
def test_a_lab_that_starts_is_worth_a_retry_and_one_that_has_ended_is_not(
    tmp_path: Path, pid: int | None, *, passes: bool
) -> None:
    state = {**STATE, "ready": False, "pid": pid, "dynamodb": {"endpoint": "http://127.0.0.1:1", "pid": pid}}
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))

    with pytest.raises(LabNotRunning) as raised:
        read_lab_state(file)

    assert raised.value.retriable is passes


@pytest.mark.parametrize("lab_was_here", [True, False])
def test_a_command_without_a_lab_and_without_credentials_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, *, lab_was_here: bool
) -> None:
    """It said that DynamoDB did not answer, and that a retry may help, once the lab had ended."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("replication.yaml").write_text(replication_yaml())
    if lab_was_here:
        Path(".lab").mkdir()
        Path(".lab/state.json").write_text("{}")

    answer = command("status")

    assert answer.code == (1 if lab_was_here else 2)
    assert "there are no credentials for AWS" in answer.err
    assert "retry may help" not in answer.err
    assert ("the lab is not running" in answer.err) is lab_was_here
    assert "`make lab`" in answer.err
