"""The DynamoDB tables, defined once for the deployment, the lab and the tests.

    offset map    slice (hash), number (range)  journals: runs and resets of up to 16 neighbouring lanes
    lanes         lane (hash)                   stops and the operator's orders
    loss ledger   lane (hash), first (range)    losses by generation and upstream offset; one summary of explained gaps
    checkpoints   flow (hash), key (range)      where each consumer group would resume on the other cluster
    control       flow (hash), key (range)      state of the scheduled functions between runs

The last two have documents, and parts of large ones (`mirrorless.adapters.dynamodb.state_store`). All are in the
target's region: the map is needed most when the source is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mirrorless.flow.settings import Tables

EXPIRY = "expires_at"
"""Attribute of the offset map with the expiry in epoch seconds. The end of a journal must not expire: the lane check
renews it for idle lanes (`mirrorless.lanes.lane_check`). DynamoDB's TTL may be on wherever that task is scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table paid per request."""

    name: str
    hash_key: str
    range_key: str | None = None
    range_type: Literal["S", "N"] = "S"
    expiry: str | None = None

    def create_request(self) -> dict[str, Any]:
        """Return the arguments of DynamoDB's CreateTable."""
        keys = [(self.hash_key, "HASH")] + ([(self.range_key, "RANGE")] if self.range_key else [])
        return {
            "TableName": self.name,
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": self.range_type if kind == "RANGE" else "S"}
                for name, kind in keys
            ],
        }


def definitions(tables: Tables) -> tuple[TableDefinition, ...]:
    """Return the tables of a flow, with the names of its settings."""
    return (
        TableDefinition(name=tables.offset_map, hash_key="slice", range_key="number", range_type="N", expiry=EXPIRY),
        TableDefinition(name=tables.lanes, hash_key="lane"),
        TableDefinition(name=tables.loss_ledger, hash_key="lane", range_key="first"),
        TableDefinition(name=tables.checkpoints, hash_key="flow", range_key="key"),
        TableDefinition(name=tables.control, hash_key="flow", range_key="key"),
    )
