"""The evaluator decides as AWS documents it; the recorder sees every call, and says whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
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
    note_call,
    noted,
    recorded,
    recording,
)
from tests.support.iam import allowed

# The evaluator

BOOKS = "arn:aws:dynamodb:us-west-2:111122223333:table/Books"
NAMED = "arn:aws:secretsmanager:us-east-1:111122223333:secret:name"
QUERY = "dynamodb:Query"


def allow(action: str = "*", resource: str = "*", effect: str = "Allow", **condition: Any) -> dict[str, Any]:
    return {"Effect": effect, "Action": action, "Resource": resource, "Condition": condition}


@pytest.mark.parametrize(
    ("statements", "resource", "expected"),
    [
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
        pytest.param([], BOOKS, False, id="what is not allowed is denied"),
        pytest.param([allow("dynamodb:GetItem")], BOOKS, False, id="another action"),
        pytest.param([allow(), allow("dynamodb:*", effect="Deny")], BOOKS, False, id="a deny wins"),
        pytest.param([allow(), allow("s3:*", effect="Deny")], BOOKS, True, id="a deny of another action"),
        *(
            pytest.param([allow(pattern)], BOOKS, True, id=f"action {pattern}")
            for pattern in ("dynamodb:query", "DynamoDB:Query", "dynamodb:Q*", "dynamodb:?uery")
        ),
        *(
            pytest.param([allow(QUERY, pattern)], BOOKS, expected, id=f"resource {pattern}")
            for pattern, expected in {
                BOOKS: True,
                BOOKS.replace("111122223333", "*"): True,
                BOOKS.replace("Books", "Boo?s"): True,
                f"{BOOKS}/index/*": False,
                BOOKS.lower(): False,
                "arn:aws:dynamodb:us-west-2:*": False,
                "arn:aws:dynamodb:*:table/Books": False,
            }.items()
        ),
        # https://docs.aws.amazon.com/secretsmanager/latest/userguide/auth-and-access_iam-policies.html
        pytest.param([allow(QUERY, f"{NAMED}-??????")], f"{NAMED}-a1b2c3", True, id="six letters"),
        pytest.param([allow(QUERY, f"{NAMED}-??????")], f"{NAMED}-a1b2c34", False, id="seven letters"),
        pytest.param([allow(QUERY, f"{NAMED}-??????")], NAMED, False, id="no letters"),
    ],
)
def test_actions_and_resources_are_compared_as_documented(
    statements: list[dict[str, Any]], resource: str, *, expected: bool
) -> None:
    assert allowed(statements, QUERY, resource) is expected


ROLE = "aws:PrincipalTag/role"
TAGS = {"aws:TagKeys": ["a", "b"]}


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        # Several values: any of them. Several keys: all of them.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-logic-multiple-context-keys-or-values.html
        ({"StringEquals": {ROLE: ["audit", "security"]}}, {ROLE: "audit"}, True),
        ({"StringEquals": {"k:A": "a", "k:B": "b"}}, {"k:A": "a", "k:B": "b"}, True),
        ({"StringEquals": {"k:A": "a", "k:B": "b"}}, {"k:A": "a"}, False),
        ({"StringEquals": {"k:A": "a"}, "StringLike": {"k:B": "b*"}}, {"k:A": "a", "k:B": "cc"}, False),
        # Names of keys have no case; values have.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition.html
        ({"StringEquals": {"aws:username": "john"}}, {"AWS:UserName": "john"}, True),
        ({"StringEquals": {"aws:username": "john"}}, {"aws:username": "John"}, False),
        # A key that is not there: no match, but for negations and IfExists.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
        ({"StringEquals": {"k:A": "a"}}, {}, False),
        ({"StringNotEquals": {"k:A": "a"}}, {}, True),
        ({"StringNotEquals": {"k:A": ["a", "b"]}}, {"k:A": "b"}, False),
        ({"StringEqualsIfExists": {"k:A": "a"}}, {}, True),
        ({"StringEqualsIfExists": {"k:A": "a"}}, {"k:A": "b"}, False),
        ({"Null": {"k:A": "true"}}, {}, True),
        ({"Null": {"k:A": "false"}}, {}, False),
        ({"Bool": {"aws:SecureTransport": "true"}}, {"aws:SecureTransport": "true"}, True),
        ({"StringLike": {"s3:prefix": ["home/*", ""]}}, {"s3:prefix": "home/x"}, True),
        # ARNs piece by piece; both operators alike.
        ({"ArnEquals": {"k:Arn": "arn:aws:lambda:*:1:function:f"}}, {"k:Arn": "arn:aws:lambda:x:1:function:f"}, True),
        ({"ArnLike": {"k:Arn": "arn:aws:lambda:*:function:f"}}, {"k:Arn": "arn:aws:lambda:x:1:function:f"}, False),
        # Keys with several values.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
        ({"ForAllValues:StringEquals": TAGS}, {"aws:TagKeys": ["a"]}, True),
        ({"ForAllValues:StringEquals": TAGS}, {"aws:TagKeys": ["a", "c"]}, False),
        ({"ForAllValues:StringEquals": TAGS}, {}, True),
        ({"ForAnyValue:StringEquals": TAGS}, {"aws:TagKeys": ["a", "c"]}, True),
        ({"ForAnyValue:StringEquals": TAGS}, {}, False),
    ],
)
def test_conditions_hold_as_documented(condition: dict[str, Any], context: dict[str, Any], *, expected: bool) -> None:
    assert allowed([allow(**condition)], "x:Do", BOOKS, context) is expected


@pytest.mark.parametrize(
    "statement",
    [
        {"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"},
        allow(IpAddress={"aws:SourceIp": "10.0.0.0/8"}),
        allow(resource="arn:aws:s3:::bucket/${aws:username}"),
        allow(StringEquals={"aws:SourceIp": "several"}),
    ],
)
def test_what_is_unknown_is_not_guessed(statement: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError):
        allowed([statement], "x:Do", "arn:aws:s3:::bucket/me", {"aws:SourceIp": ["a", "b"]})


# The recorder

KEYS = {"region_name": "eu-west-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
PROTOCOL = "shared/mirrorless/protocol/replicate.py"


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
    ("file", "through", "part"),
    [
        ("functions/refresh_topics.py", PROTOCOL, "refresh_topics"),
        ("spark/verify.py", PROTOCOL, "jobs"),
        ("spark/jobs/lane_copies.py", PROTOCOL, "jobs"),
        ("cli/status.py", PROTOCOL, "operator_look"),
        ("cli/lanes_reset.py", PROTOCOL, "operator_repair"),
        ("cli/jobs/commands.py", PROTOCOL, "operator_jobs"),
        ("cli/deployment.py", PROTOCOL, ""),
        ("lab/servers/dynamodb.py", PROTOCOL, ""),
        # The plan of a job is the operator's, though the job's own code makes it.
        ("cli/jobs/commands.py", "spark/jobs/backfill/plan.py", "operator_jobs"),
    ],
)
def test_a_call_is_of_the_outermost_part_whose_code_is_running(
    file: str, through: str, part: str, calls: list[Call]
) -> None:
    within(file, partial(within, through, partial(client().scan, TableName="mirrorless-loss-ledger")))

    (call,) = calls
    assert (call.part, call.module) == (part, through)
    assert call.needs == {("dynamodb:Scan", "loss_ledger")}


@pytest.mark.parametrize(
    "module", [each for each in dict.fromkeys(COMMANDS.values()) if each != "cli.lab"]
)  # which never meets AWS
def test_every_command_is_of_an_operator(module: str, calls: list[Call]) -> None:
    within(f"{module.replace('.', '/')}.py", partial(client().scan, TableName="t"))

    assert [call.part in recorded() for call in calls] == [True]


def test_a_client_is_of_the_part_that_made_it_unless_a_test_uses_it_itself(calls: list[Call]) -> None:
    ours, theirs = (within("functions/forward.py", client) for _ in range(2))

    within(PROTOCOL, partial(ours.scan, TableName="t"))
    within("shared/mirrorless/adapters/dynamodb/chains.py", partial(theirs.scan, TableName="t"))

    assert [call.part for call in calls] == ["forward", ""]


def test_a_direct_call_is_recorded_without_boto3(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    def wired() -> Any:
        return direct_client(boto3.client("dynamodb", **KEYS), Credentials("k", "s"))

    monkeypatch.setattr(DirectLine, "_call", lambda *_: (200, {"Items": []}))
    direct = within("functions/forward.py", wired)

    within(PROTOCOL, partial(direct.query, TableName="offset_map-1"))

    (call,) = calls
    assert (call.part, call.needs) == ("forward", frozenset({("dynamodb:Query", "offset_map")}))


def test_the_journal_keeps_what_parts_call_and_is_compared_with_the_recording_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with recording(note_call):
        within("functions/forward.py", partial(within, PROTOCOL, partial(client().scan, TableName="x")))
        client().scan(TableName="mirrorless-lanes")
    everything = {(part, *need) for part, needs in recorded().items() for need in needs}

    assert noted() == {("forward", "dynamodb:Scan", "x")}
    assert differences(noted(), whole=False) == ["forward calls dynamodb:Scan x, which is not in recorded_calls.json"]
    assert differences(everything, whole=True) == []
    (missing,) = differences(everything - {("refresh_topics", "lambda:ListTags", "")}, whole=True)
    assert missing.startswith("refresh_topics never called lambda:ListTags")


def test_what_is_said_to_be_unseen_is_recorded_and_services_without_a_server_are_needed() -> None:
    needs = {(part, *need) for part, needs in recorded().items() for need in needs}

    assert UNSEEN.keys() <= {" ".join(each) for each in needs}
    assert WITHOUT_SERVER.keys() <= {action.partition(":")[0] for _, action, _ in needs}
