"""What do we answer to Lambda? Nothing, a partial batch response, or an error.

The rule of an ordered replicator: where a lane stands still, that record and every later one of its
topic-partition is reported, so that none of them is redelivered out of order. The identifier is an object of the
event's own `topic-partition` key and the offset
(https://docs.aws.amazon.com/lambda/latest/dg/kafka-retry-configurations.html).
"""

from __future__ import annotations

from typing import Any

from mirrorless.errors import LaneStopped
from mirrorless.event import Batch
from mirrorless.lane import FlowName, Lane
from mirrorless.replicate import Outcome


def partial_batch_response(batch: Batch, outcome: Outcome) -> dict[str, list[dict[str, Any]]]:
    """The records that were not delivered, in the shape that `ReportBatchItemFailures` wants."""
    return {
        "batchItemFailures": [
            {"itemIdentifier": {"partition": f"{batch.topic}-{partition}", "offset": record.offset}}
            for partition, stop in outcome.stopped.items()
            for record in batch.records[partition]
            if record.offset >= stop.upstream_offset
        ]
    }


def lanes_stopped(flow: FlowName, batch: Batch, outcome: Outcome) -> LaneStopped:
    """The error for a mapping without partial batch responses: the whole batch comes again."""
    partition, stop = min(outcome.stopped.items())
    more = f", and {len(outcome.stopped) - 1} other lanes stopped" if len(outcome.stopped) > 1 else ""
    return LaneStopped(
        f"{stop.reason}: {stop.detail}{more}",
        where=Lane(flow, batch.topic, partition).at(stop.upstream_offset),
        hint="see `mirrorless status`; every other lane of the batch was delivered",
    )
