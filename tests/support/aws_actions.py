"""The IAM actions that calls of AWS need.

An action is called like its operation, but for those of `_OTHERWISE`
(https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazondynamodb.html).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mirrorless.flow.settings import Tables

Need = tuple[str, str]
"""An action, and the kind of table that it is about; empty where it is about none."""

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
