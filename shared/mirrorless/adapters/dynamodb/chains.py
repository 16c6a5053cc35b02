"""The offset map in DynamoDB: chains of lanes in journals; and the names of lanes in the other tables' keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from mirrorless.adapters.dynamodb.calls import pages
from mirrorless.adapters.dynamodb.journals import DynamoDbJournals
from mirrorless.chain.chains import JournalChains
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.flow.rate_limit import in_parallel


class DynamoDbChains(JournalChains):
    """The chains of all lanes of the offset map."""

    def __init__(
        self, client: Any, table: str, *, retention_days: int = 30, clock: Callable[[], float] = time.time
    ) -> None:
        """Args: client: a boto3 DynamoDB client. retention_days: after which an entry may expire. clock: seconds."""
        super().__init__(
            journals=DynamoDbJournals(client, table),
            retention_seconds=retention_days * 86_400,
            clock=clock,
            each=in_parallel,
        )


def parse_lane(text: str) -> Lane:
    """The inverse of `str(lane)`."""
    flow, _, topic_partition = text.partition(" ")
    topic, _, partition = topic_partition.rpartition("-")
    return Lane(FlowName.parse(flow), topic, int(partition))


def lanes_in(client: Any, table: str, flow: FlowName) -> list[Lane]:
    """Every lane of a flow that has an item in this table, in order: a scan of its keys, never of the offset map.

    Raises:
        Retriable: DynamoDB does not answer.
    """
    page = partial(client.scan, TableName=table, ProjectionExpression="lane", ConsistentRead=True)
    names = {item["lane"]["S"] for item in pages(f"list the lanes of {table}", str(flow), page)}
    return sorted(lane for lane in map(parse_lane, names) if lane.flow == flow)
