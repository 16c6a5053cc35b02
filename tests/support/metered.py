"""A DynamoDB client that counts its calls, and what they consume by DynamoDB's own word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class MeteredClient:
    """Calls as boto3's; those that journals and states make are counted."""

    client: Any
    reads: int = 0
    inserts: int = 0
    """Tries of them."""
    statements: int = 0
    """Of PartiQL."""
    read_units: float = 0.0
    write_units: float = 0.0
    items: list[dict[str, Any]] = field(default_factory=list)
    """That inserts were tried with."""

    def query(self, **request: Any) -> Any:
        """As boto3's."""
        return self._read(self.client.query, request)

    def scan(self, **request: Any) -> Any:
        """As boto3's."""
        return self._read(self.client.scan, request)

    def batch_get_item(self, **request: Any) -> Any:
        """As boto3's."""
        return self._read(self.client.batch_get_item, request)

    def put_item(self, **request: Any) -> Any:
        """As boto3's."""
        self.inserts += 1
        self.items.append(request["Item"])
        return self._write(self.client.put_item, request)

    def update_item(self, **request: Any) -> Any:
        """As boto3's."""
        return self._write(self.client.update_item, request)

    def batch_execute_statement(self, **request: Any) -> Any:
        """As boto3's. DynamoDB Local does not tell what statements consume: each write is that of its item."""
        self.statements += len(request["Statements"])
        return self.client.batch_execute_statement(**request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def _read(self, call: Any, request: dict[str, Any]) -> Any:
        self.reads += 1
        answer = call(**request, ReturnConsumedCapacity="TOTAL")
        consumed = answer["ConsumedCapacity"]
        units = sum(each["CapacityUnits"] for each in (consumed if isinstance(consumed, list) else [consumed]))
        self.read_units += max(1.0, units)  # DynamoDB charges that for an empty answer, DynamoDB Local counts none
        return answer

    def _write(self, call: Any, request: dict[str, Any]) -> Any:
        answer = call(**request, ReturnConsumedCapacity="TOTAL")
        self.write_units += answer["ConsumedCapacity"]["CapacityUnits"]
        return answer
