"""The loss ledger in DynamoDB."""

from __future__ import annotations

from typing import Any, cast

from mirrorless.adapters.dynamodb import translated
from mirrorless.lane import Lane
from mirrorless.ledger import Cause, Loss


class DynamoDbLossLedger:
    """Implements `mirrorless.ledger.LossLedger`."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table

    def note(self, loss: Loss) -> None:
        """See `LossLedger.note`."""
        item = {
            "lane": {"S": str(loss.lane)},
            "first": {"S": f"{loss.generation:06d}/{loss.first:019d}"},
            "next": {"N": str(loss.next)},
            "cause": {"S": loss.cause},
            "detail": {"S": loss.detail},
            "at": {"N": str(loss.at)},
        }
        with translated("note a loss", loss.lane.at(loss.first)):
            self._client.put_item(TableName=self._table, Item=item)

    def read(self, lane: Lane) -> list[Loss]:
        """See `LossLedger.read`."""
        losses: list[Loss] = []
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "lane = :lane",
            "ExpressionAttributeValues": {":lane": {"S": str(lane)}},
            "ConsistentRead": True,
        }
        while True:
            with translated("read the loss ledger", str(lane)):
                answer = self._client.query(**request)
            losses += [_loss(lane, item) for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return losses
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _loss(lane: Lane, item: dict[str, Any]) -> Loss:
    generation, _, first = item["first"]["S"].partition("/")
    return Loss(
        lane=lane,
        generation=int(generation),
        first=int(first),
        next=int(item["next"]["N"]),
        cause=cast("Cause", item["cause"]["S"]),
        detail=item["detail"]["S"],
        at=int(item["at"]["N"]),
    )
