"""The operator's writes to a lane's state in DynamoDB; the forwarder's own are in `lane_states`."""

from __future__ import annotations

from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.lane import Lane


class DynamoDbLaneOrders(DynamoDbLaneStates):
    """Lane states as the operator's command uses them."""

    def begin_anew(self, lane: Lane) -> None:
        """Drop the stop, who waits and every quarantine order: the offsets of another generation are other records."""
        self._update(lane, "REMOVE stopped, quarantine, waiting", {})
