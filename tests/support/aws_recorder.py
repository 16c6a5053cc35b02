"""A recorder of the calls of AWS: each with its IAM actions, its kind of table, and the part that makes it.

`recorded_calls.json` is the committed recording: what each deployed part, and each kind of operator's command, was seen
to call. The roles are compared with it both ways (`tests/infra/test_rights.py`); the adapters are run against it in
every check (`tests/contract/test_requests.py`), and the parts themselves in the integration tests, which fail on a call
that it does not have and, when all of them ran, on an entry that no test used (`differences`).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from botocore.client import BaseClient

from mirrorless.adapters.dynamodb.direct import DirectLine
from mirrorless.flow.settings import Tables

ROOT = Path(__file__).parents[2]
RECORDING = Path(__file__).with_name("recorded_calls.json")
WITHIN_JOBS = Path(__file__).with_name("within_jobs")
"""A folder for PYTHONPATH: with it, the drivers and workers of jobs note their calls too."""
FOLDER = "MIRRORLESS_TEST_CALLS"
"""The variable with the folder of the calls, for processes that tests start."""

Need = tuple[str, str]
"""An action, and the kind of table that it is about; empty where it is about none."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "operator_keys": ("keys",),
    "operator_look": ("config", "groups", "losses", "plan", "status", "topics", "transform", "translate"),
    "operator_migrate": ("audit", "give_back", "migrate", "take_over"),
    "operator_repair": ("acl", "failover", "group_orders", "lane", "pause"),
}
"""How the files of the operator's commands begin, by what the commands do; those of `cli/jobs/` are `operator_jobs`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        part: who made it, as `infra.iam.Part` or a key of `COMMANDS`, `operator_jobs`; empty where a test made it,
            or no role.
        module: the file of ours that called boto3, below the repository.
        service: as boto3 names it.
        operation: as the API names it.
        request: its parameters.
    """

    part: str
    module: str
    service: str
    operation: str
    request: Mapping[str, Any]

    @property
    def needs(self) -> frozenset[Need]:
        """The actions that it needs."""
        return needs_of(self.service, self.operation, self.request)


@cache
def recorded() -> Mapping[str, frozenset[Need]]:
    """The committed recording, by part."""
    parts: dict[str, dict[str, list[str]]] = json.loads(RECORDING.read_text())
    return {
        part: frozenset((action, table) for table, actions in tables.items() for action in actions)
        for part, tables in parts.items()
    }


@contextmanager
def recording(note: Callable[[Call], None]) -> Iterator[None]:
    """Note every call that this process makes, before it is made."""
    kept = [(cls, name, cls.__dict__[name]) for cls, call in _WAYS for name in ("__init__", call)]
    for cls, call in _WAYS:
        _watch(cls, call, note)
    try:
        yield
    finally:
        for cls, name, function in kept:
            setattr(cls, name, function)


_WAYS: tuple[tuple[type, str], ...] = ((BaseClient, "_make_api_call"), (DirectLine, "call"))
"""How calls are made: by boto3, and directly. Both are methods of an operation and its request."""


def _watch(cls: type, name: str, note: Callable[[Call], None]) -> None:
    make, call = cls.__dict__["__init__"], cls.__dict__[name]

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.made_for = _part(_modules())

    def called(self: Any, operation: str, request: dict[str, Any]) -> Any:
        service = "dynamodb" if cls is DirectLine else self.meta.service_model.service_name
        modules = _modules()
        # A test may use a part's own store to look what stands there: that is no call of the part's.
        outside = next((each for each in modules if each.startswith(_OF_JOBS) or not each.startswith(_ADAPTERS)), "")
        part = "" if outside.startswith("tests/") else _part(modules) or getattr(self, "made_for", "")
        note(Call(part, modules[0] if modules else "", service, operation, request))
        return call(self, operation, request)

    cls.__init__ = init  # type: ignore[misc]  # on the class itself, for clients made elsewhere
    setattr(cls, name, called)


_ADAPTERS = "shared/mirrorless/adapters/"
_CARRIER = f"{_ADAPTERS}dynamodb/client.py"
"""It makes the calls that stores name: they count as theirs."""

_OF_JOBS = "spark/"


def _modules() -> list[str]:
    """The files of ours that are being run, innermost first, but for this one."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if module := _ours(frame.f_code.co_filename):
            found.append(module)
        frame = frame.f_back
    return found


@cache
def _ours(file: str) -> str:
    if file == __file__ or not file.startswith(f"{ROOT}/") or "/site-packages/" in file:
        return ""
    return "" if (own := file.removeprefix(f"{ROOT}/")) == _CARRIER else own


def _part(modules: list[str]) -> str:
    """Whose code began it: the outermost file that belongs to a part."""
    for module in reversed(modules):
        folder, _, name = module.removesuffix(".py").rpartition("/")
        if folder == "functions":
            return name
        if folder == "cli" and (
            part := next((each for each, begins in COMMANDS.items() if name.startswith(begins)), "")
        ):
            return part
        if folder == "cli/jobs":
            return "operator_jobs"
        if module.startswith(_OF_JOBS):
            return "jobs"
    return ""


# The IAM actions that calls need: called like their operations, but for those of `_OTHERWISE`
# (https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazondynamodb.html)


_FREE = {"sts:GetCallerIdentity"}
"""What needs no permission (https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html)."""

_OTHERWISE = {"s3:ListObjectsV2": "s3:ListBucket"}
"""Actions that are not called like their operations
(https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html)."""


def needs_of(service: str, operation: str, request: Mapping[str, Any]) -> frozenset[Need]:
    """What a call needs. Args: service: as boto3 names it. operation: as the API does. request: its parameters."""
    if service == "dynamodb":
        return frozenset((action, kind_of(name)) for action, name in dynamodb_actions(operation, request))
    action = f"{service}:{operation}"
    return frozenset({(_OTHERWISE.get(action, action), "")} - {(free, "") for free in _FREE})


def kind_of(table: str) -> str:
    """What a table holds, by its name; a name that is none of ours comes back as it is."""
    return next((kind for kind in Tables.__struct_fields__ if kind in table.replace("-", "_")), table)


def dynamodb_calls(target_header: str, body: bytes | str) -> list[tuple[str, str]]:
    """The actions that one HTTP request to DynamoDB needs, each with its table's name.

    Args:
        target_header: `X-Amz-Target`, as `DynamoDB_20120810.Query`.
        body: the request's JSON.
    """
    return dynamodb_actions(target_header.rpartition(".")[2], json.loads(body))


def dynamodb_actions(operation: str, request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The actions that a call of DynamoDB needs, each with its table's name."""
    if "RequestItems" in request:
        tables = [(operation, table) for table in request["RequestItems"]]
    elif "TransactItems" in request:
        tables = [_transacted(item) for item in request["TransactItems"]]
    elif "Statements" in request:
        tables = [_partiql(each["Statement"]) for each in request["Statements"]]
    else:
        tables = [(operation, request["TableName"])]
    return list(dict.fromkeys((f"dynamodb:{action}", table.rpartition("/")[2]) for action, table in tables))


_PARTIQL = re.compile(r'(?P<verb>INSERT INTO|UPDATE) "(?P<table>[^"]+)" ')


def _partiql(statement: str) -> tuple[str, str]:
    """The action, `PartiQLInsert`, and the table of a PartiQL statement.

    Raises:
        ValueError: it is none that is known here.
    """
    found = _PARTIQL.match(statement)
    if found is None:
        raise ValueError(f"not a PartiQL statement: {statement}")
    return f"PartiQL{found['verb'].split()[0].title()}", found["table"]


def _transacted(item: Mapping[str, Any]) -> tuple[str, str]:
    ((kind, request),) = item.items()
    return {"Put": "PutItem", "Delete": "DeleteItem", "Update": "UpdateItem", "Get": "GetItem"}.get(
        kind, "ConditionCheckItem"
    ), request["TableName"]


# The calls of the integration tests


def note(part: str, need: Need) -> None:
    """Note, where calls are kept, that a part needed an action. A process writes a file of its own."""
    folder = os.environ.get(FOLDER)
    if folder and part and (part, need, os.getpid()) not in _written:
        _written.add((part, need, os.getpid()))
        with Path(folder, str(os.getpid())).open("a") as file:
            file.write(json.dumps([part, *need]) + "\n")


_written: set[tuple[str, Need, int]] = set()


def note_call(call: Call) -> None:
    """Note a call."""
    for need in call.needs if call.part else ():
        note(call.part, need)


def noted() -> set[tuple[str, str, str]]:
    """Part, action and table of all calls, of all processes."""
    files = Path(os.environ[FOLDER]).iterdir()
    return {tuple(json.loads(line)) for file in files for line in file.read_text().splitlines()}


def differences(seen: set[tuple[str, str, str]], *, whole: bool) -> list[str]:
    """What the calls of a run of the integration tests and the recording have against each other.

    Args:
        seen: the calls.
        whole: whether all tests ran, so that all that can be seen was seen.
    """
    known = {(part, *need) for part, needs in recorded().items() for need in needs}
    found = [
        f"{part} calls {action} {table}, which is not in {RECORDING.name}"
        for part, action, table in sorted(seen - known)
    ]
    if whole:
        found += [
            f"{part} never called {action} {table}: take it out of {RECORDING.name}, or say in UNSEEN why"
            for part, action, table in sorted(known - seen)
            if action.partition(":")[0] not in WITHOUT_SERVER and f"{part} {action} {table}" not in UNSEEN
        ]
    return found


WITHOUT_SERVER = {
    "emr-serverless": "runs only on AWS; tests/unit/cli/test_job_emr.py has moto's",
    "glue": "the lab has no registry; tests/unit/adapters/test_schema_registry.py has moto's",
    "kms": "the lab has its keys in a folder; tests/unit/adapters/test_keys.py has moto's",
    "s3": "jobs of the lab keep their folders on disk; tests/contract has moto's",
    "secretsmanager": "the lab's clusters need no credentials but in tests/integration/test_secured_clusters.py",
    "ssm": "says where jobs run on AWS; tests/unit/cli/test_job_emr.py has moto's",
    "sts": "the lab is one account; tests/unit/adapters/test_assumed_role.py has moto's",
}
"""Services that no integration test has, and why. Their adapters are run in every check."""

UNSEEN: Mapping[str, str] = {
    **{
        f"operator_repair {action}": "a failover's command, a process of its own in lab/drills, or in tests/support"
        for action in (
            "dynamodb:DeleteItem checkpoints",
            "dynamodb:PartiQLInsert checkpoints",
            "dynamodb:PartiQLUpdate checkpoints",
            "dynamodb:UpdateItem offset_map",
        )
    },
    "control dynamodb:UpdateItem lanes": "only a doubt without an answer: unit/test_lane_check.py",
    **{
        f"{part} dynamodb:BatchWriteItem {table}": "only documents larger than an item: test_documents.py"
        for part, table in (("control", "checkpoints"), ("control", "control"), ("refresh_topics", "control"))
    },
    "jobs dynamodb:Query checkpoints": "only groups on lanes that were taken over: test_returning_groups.py",
    **{
        f"{part} dynamodb:Query control": "only runs by an earlier rule: test_flow_rules.py"
        for part in ("forward", "jobs")
    },
    **{
        f"{part} dynamodb:BatchGetItem offset_map": "only lanes behind eight entries of their journal: test_chains.py"
        for part in (
            "forward",
            "pull",
            "control",
            "refresh_topics",
            "jobs",
            "operator_look",
            "operator_migrate",
            "operator_repair",
            "operator_jobs",
        )
    },
}
"""Entries of the recording that no integration test comes to, and why they are right."""


if __name__ == "__main__":  # after all parts of the integration tests; the folder is in the environment
    sys.exit("\n".join(differences(noted(), whole=True)) or None)
