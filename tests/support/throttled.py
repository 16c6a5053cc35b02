"""A DynamoDB client whose answers leave things undone: single statements refused, keys and items unprocessed.

DynamoDB answers so under throttling, and DynamoDB Local never does.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ThrottledClient:
    """Every second statement, key and item of a call is refused, each as often as `times` says."""

    client: Any
    times: int = 1
    code: str = "ThrottlingError"
    carried_out: bool = False
    """Whether a refused statement took effect all the same, as it may at an InternalServerError."""
    refused: Counter[str] = field(default_factory=Counter)
    """How often, by statement, key or item."""

    def batch_execute_statement(self, *, Statements: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's."""
        undone = self._undone(Statements)
        sent = [each for index, each in enumerate(Statements) if self.carried_out or index not in undone]
        answers = iter(self.client.batch_execute_statement(Statements=sent)["Responses"] if sent else ())
        error = {"Error": {"Code": self.code, "Message": "throttled"}}
        responses = []
        for index in range(len(Statements)):
            answer = next(answers) if self.carried_out or index not in undone else error
            responses.append(error if index in undone else answer)
        return {"Responses": responses}

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
