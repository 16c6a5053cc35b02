"""The recorder sees every call, and says whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.credentials import Credentials
from botocore.stub import Stubber

from cli.main import COMMANDS
from mirrorless.adapters.dynamodb.direct import DirectLine, direct_client
from tests.support.aws_recorder import (
    FOLDER,
    ROOT,
    UNSEEN,
    WITHOUT_SERVER,
    Call,
    differences,
    journal_call,
    journalled,
    recorded,
    recording,
)

KEYS = {"region_name": "eu-west-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}


@pytest.fixture
def calls() -> Iterator[list[Call]]:
    seen: list[Call] = []
    with recording(seen.append):
        yield seen


def client() -> Any:
    """A client whose scans are answered."""
    made = boto3.client("dynamodb", **KEYS)
    stubber = Stubber(made)
    stubber.add_response("scan", {"Items": []})
    stubber.activate()
    return made


def within(file: str, act: Callable[[], Any]) -> Any:
    """What an act gives when a function of this file calls it."""
    names: dict[str, Any] = {"act": act}
    exec(compile("def run():\n    return act()\n", str(ROOT / file), "exec"), names)  # noqa: S102 -- our own two lines
    return names["run"]()


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("functions/refresh_topics.py", "refresh_topics"),
        ("spark/verify.py", "jobs"),
        ("spark/lane_worker.py", "jobs"),
        ("spark/jobs/lane_copies.py", "jobs"),
        ("cli/status.py", "operator_look"),
        ("cli/lanes_reset.py", "operator_repair"),
        ("cli/jobs/commands.py", "operator_jobs"),
        ("cli/deployment.py", ""),
        ("lab/servers/dynamodb.py", ""),
    ],
)
def test_a_call_is_of_the_part_whose_code_is_running(file: str, part: str, calls: list[Call]) -> None:
    scan = client().scan

    within(
        file,
        partial(within, "shared/mirrorless/protocol/replicate.py", partial(scan, TableName="mirrorless-loss-ledger")),
    )

    (call,) = calls
    assert (call.part, call.module) == (part, "shared/mirrorless/protocol/replicate.py")
    assert call.needs == {("dynamodb:Scan", "loss_ledger")}


def test_the_outermost_part_is_the_one_that_acts(calls: list[Call]) -> None:
    """The plan of a job is the operator's, though the job's own code makes it."""
    scan = client().scan
    plan = "spark/jobs/backfill/plan.py"

    within("cli/jobs/commands.py", partial(within, plan, partial(scan, TableName="t")))

    assert [call.part for call in calls] == ["operator_jobs"]


@pytest.mark.parametrize(
    "module", [each for each in dict.fromkeys(COMMANDS.values()) if each != "cli.lab"]
)  # which never meets AWS
def test_every_command_is_of_an_operator(module: str, calls: list[Call]) -> None:
    within(f"{module.replace('.', '/')}.py", partial(client().scan, TableName="t"))

    assert [call.part in recorded() for call in calls] == [True]


def test_a_client_is_of_the_part_that_made_it_unless_a_test_uses_it_itself(calls: list[Call]) -> None:
    ours, theirs = (within("functions/forward.py", client) for _ in range(2))

    within("shared/mirrorless/protocol/replicate.py", partial(ours.scan, TableName="t"))
    within("shared/mirrorless/adapters/dynamodb/chains.py", partial(theirs.scan, TableName="t"))

    assert [call.part for call in calls] == ["forward", ""]


def test_a_direct_call_is_recorded_without_boto3(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    def wired() -> Any:
        return direct_client(boto3.client("dynamodb", **KEYS), Credentials("k", "s"))

    monkeypatch.setattr(DirectLine, "_call", lambda *_: (200, {"Items": []}))
    direct = within("functions/forward.py", wired)

    within("shared/mirrorless/protocol/replicate.py", partial(direct.query, TableName="offset_map-1"))

    (call,) = calls
    assert (call.part, call.needs) == ("forward", frozenset({("dynamodb:Query", "offset_map")}))


def test_what_was_recorded_is_kept_by_part_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    before = BaseClient._make_api_call

    with recording(journal_call):
        within(
            "functions/forward.py",
            partial(within, "shared/mirrorless/chain/run.py", partial(client().scan, TableName="x")),
        )
        client().scan(TableName="mirrorless-lanes")

    assert journalled() == {("forward", "dynamodb:Scan", "x")}
    assert BaseClient._make_api_call is before


def test_the_journal_and_the_recording_are_compared_both_ways() -> None:
    everything = {(part, *need) for part, needs in recorded().items() for need in needs}
    known = ("refresh_topics", "lambda:ListTags", "")

    assert differences(everything, whole=True) == []
    assert differences(set(), whole=False) == []
    assert differences({("forward", "dynamodb:Scan", "lanes")}, whole=False) == [
        "forward calls dynamodb:Scan lanes, which is not in recorded_calls.json"
    ]
    (missing,) = differences(everything - {known}, whole=True)
    assert missing.startswith("refresh_topics never called lambda:ListTags")


def test_what_is_said_to_be_unseen_is_recorded_and_services_without_a_server_are_needed() -> None:
    needs = {(part, *need) for part, needs in recorded().items() for need in needs}

    assert UNSEEN.keys() <= {" ".join(each) for each in needs}
    assert WITHOUT_SERVER.keys() <= {action.partition(":")[0] for _, action, _ in needs}
