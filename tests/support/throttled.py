"""A DynamoDB client that is throttled: writes refused, keys and items left unprocessed.

DynamoDB answers so under throttling, and DynamoDB Local never does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError


@dataclass(slots=True)
class ThrottledClient:
    """Every write, and every second key and item of a batch, is refused as often as `times` says."""

    client: Any
    times: int = 1
    code: str = "ThrottlingException"
    carried_out: bool = False
    """Whether a refused write took effect all the same, as it may at an InternalServerError."""
    refused: Counter[str] = field(default_factory=Counter)
    """How often, by write, key or item."""

    def put_item(self, **request: Any) -> Any:
        """As boto3's."""
        return self._write("PutItem", self.client.put_item, request)

    def update_item(self, **request: Any) -> Any:
        """As boto3's."""
        return self._write("UpdateItem", self.client.update_item, request)

    def _write(self, operation: str, write: Callable[..., Any], request: dict[str, Any]) -> Any:
        name = f"{operation} {json.dumps(request, default=repr)}"
        if self.refused[name] >= self.times:
            return write(**request)
        self.refused[name] += 1
        if self.carried_out:
            write(**request)
        raise ClientError({"Error": {"Code": self.code, "Message": "throttled"}}, operation)

    def batch_get_item(self, *, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's."""
        ((table, request),) = RequestItems.items()
        undone = self._undone(request["Keys"])
        read, left = _split(request["Keys"], undone)
        asked = {table: {**request, "Keys": read}}
        answer = self.client.batch_get_item(RequestItems=asked) if read else {"Responses": {}}
        return {**answer, "UnprocessedKeys": {table: {**request, "Keys": left}} if left else {}}

    def batch_write_item(self, *, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's."""
        ((table, requests),) = RequestItems.items()
        written, left = _split(requests, self._undone(requests))
        if written:
            self.client.batch_write_item(RequestItems={table: written})
        return {"UnprocessedItems": {table: left} if left else {}}

    def batch_execute_statement(self, *, Statements: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's. A refused statement may have been carried out all the same, see `carried_out`."""
        undone = self._undone(Statements)
        wanted = [each for index, each in enumerate(Statements) if self.carried_out or index not in undone]
        answers = iter(self.client.batch_execute_statement(Statements=wanted)["Responses"] if wanted else [])
        responses = [
            next(answers) if self.carried_out or index not in undone else {} for index in range(len(Statements))
        ]
        refusal = {"Error": {"Code": "ThrottlingError", "Message": "throttled"}}
        return {"Responses": [refusal if index in undone else each for index, each in enumerate(responses)]}

    def _undone(self, parts: list[dict[str, Any]]) -> set[int]:
        """The indices of what is refused this time. A part that is asked for alone is as good as a second one."""
        found: set[int] = set()
        for index, part in enumerate(parts):
            name = json.dumps(part, default=repr)
            if (index % 2 or name in self.refused) and self.refused[name] < self.times:
                self.refused[name] += 1
                found.add(index)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def _split(parts: list[dict[str, Any]], undone: set[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The parts that are done, and those that are not."""
    return (
        [part for index, part in enumerate(parts) if index not in undone],
        [part for index, part in enumerate(parts) if index in undone],
    )
