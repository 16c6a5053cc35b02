"""Documents and leases in DynamoDB: one item each, compressed, so that 400 KB hold some megabytes of JSON."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from mirrorless.adapters.dynamodb.client import translated
from mirrorless.adapters.dynamodb.retries import tries
from mirrorless.errors import Retriable
from mirrorless.lane import FlowName

ITEMS = 25
"""Items that one BatchWriteItem takes."""


class DynamoDbDocuments:
    """Implements `mirrorless.ports.stores.StateStore` on one table."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """See `Documents.read`."""
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "flow = :flow AND begins_with(#key, :prefix)",
            "ExpressionAttributeNames": {"#key": "key"},
            "ExpressionAttributeValues": {":flow": {"S": str(flow)}, ":prefix": {"S": prefix}},
            "ConsistentRead": True,
        }
        found: dict[str, bytes] = {}
        while True:
            with translated(f"read {prefix} of {self._table}", str(flow)):
                answer = self._client.query(**request)
            for item in answer["Items"]:
                if "document" in item:
                    found[item["key"]["S"]] = zlib.decompress(item["document"]["B"])
            if "LastEvaluatedKey" not in answer:
                return found
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def write(self, flow: FlowName, documents: Mapping[str, bytes]) -> None:
        """See `Documents.write`."""
        items = [
            {"PutRequest": {"Item": _key(flow, key) | {"document": {"B": zlib.compress(document)}}}}
            for key, document in documents.items()
        ]
        for start in range(0, len(items), ITEMS):
            waiting = items[start : start + ITEMS]
            for _ in tries(None):
                with translated(f"write to {self._table}", str(flow)):
                    answer = self._client.batch_write_item(RequestItems={self._table: waiting})
                waiting = answer.get("UnprocessedItems", {}).get(self._table, [])
                if not waiting:
                    break
            else:
                raise Retriable("DynamoDB keeps leaving items unwritten: it is throttled", where=str(flow))

    def delete(self, flow: FlowName, key: str) -> None:
        """See `Documents.delete`."""
        with translated(f"delete {key} from {self._table}", str(flow)):
            self._client.delete_item(TableName=self._table, Key=_key(flow, key))

    def claim(self, flow: FlowName, key: str, *, holder: str, now: int, until: int) -> bool:
        """See `Documents.claim`."""
        return self._conditionally(
            f"claim {key}",
            flow,
            self._client.put_item,
            Item=_key(flow, key) | {"holder": {"S": holder}, "until": {"N": str(until)}},
            ConditionExpression="attribute_not_exists(holder) OR holder = :holder OR #until < :now",
            ExpressionAttributeNames={"#until": "until"},
            ExpressionAttributeValues={":holder": {"S": holder}, ":now": {"N": str(now)}},
        )

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """See `Documents.release`."""
        self._conditionally(
            f"release {key}",
            flow,
            self._client.delete_item,
            Key=_key(flow, key),
            ConditionExpression="holder = :holder",
            ExpressionAttributeValues={":holder": {"S": holder}},
        )

    def _conditionally(self, what: str, flow: FlowName, call: Any, **request: Any) -> bool:
        """Whether the call's condition held."""
        with translated(what, str(flow)):
            try:
                call(TableName=self._table, **request)
            except ClientError as exc:
                if exc.response.get("Error", {}).get("Code") != "ConditionalCheckFailedException":
                    raise
                return False
        return True


def _key(flow: FlowName, key: str) -> dict[str, Any]:
    return {"flow": {"S": str(flow)}, "key": {"S": key}}
