"""The lanes that have an item in a table, by a scan of its keys: for small tables, never for the offset map."""

from __future__ import annotations

from typing import Any

from mirrorless.adapters.dynamodb.chains import parse_lane
from mirrorless.adapters.dynamodb.client import translated
from mirrorless.lane import FlowName, Lane


def lanes_in(client: Any, table: str, flow: FlowName) -> list[Lane]:
    """Every lane of a flow that has an item in this table, in order.

    Raises:
        Retriable: DynamoDB does not answer.
    """
    names: set[str] = set()
    request: dict[str, Any] = {"TableName": table, "ProjectionExpression": "lane", "ConsistentRead": True}
    while True:
        with translated(f"list the lanes of {table}", str(flow)):
            answer = client.scan(**request)
        names.update(item["lane"]["S"] for item in answer["Items"])
        if "LastEvaluatedKey" not in answer:
            return sorted(lane for lane in map(parse_lane, names) if lane.flow == flow)
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
