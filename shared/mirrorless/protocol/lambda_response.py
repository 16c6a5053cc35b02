"""The response to Lambda: nothing, a partial batch response, or an error.

The rule of an ordered replicator: where a lane stands still or waits, that record and every later one of its
topic-partition is reported, so that none of them is redelivered out of order. The identifier is an object of the
event's own `topic-partition` key and the offset
(https://docs.aws.amazon.com/lambda/latest/dg/kafka-retry-configurations.html).
"""

from __future__ import annotations

from typing import Any

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import LaneStopped, LaneWaits
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome
from mirrorless.records.record import Record


def partial_batch_response(batch: Batch, outcome: BatchOutcome) -> dict[str, list[dict[str, Any]]]:
    """The records that were not delivered, in the shape that `ReportBatchItemFailures` wants."""
    held = {place: stop.upstream_offset for place, stop in outcome.stopped.items()}
    held |= dict.fromkeys(outcome.waiting, 0)
    return {
        "batchItemFailures": [
            {"itemIdentifier": {"partition": f"{topic}-{partition}", "offset": record.offset}}
            for (topic, partition), upstream_offset in held.items()
            for record in batch.records[topic, partition]
            if isinstance(record, Record) and record.offset >= upstream_offset
        ]
    }


def lanes_stopped(flow: FlowName, outcome: BatchOutcome) -> LaneStopped:
    """The error for a mapping without partial batch responses: the whole batch comes again."""
    first = min(outcome.stopped)
    stop = outcome.stopped[first]
    more = f", and {len(outcome.stopped) - 1} other lanes stopped" if len(outcome.stopped) > 1 else ""
    return LaneStopped(
        f"{stop.reason}: {stop.detail}{more}",
        where=Lane(flow, *first).at(stop.upstream_offset),
        hint=f"see `mirrorless status '{flow}'`; every other lane of the batch was delivered",
    )


def lanes_wait(flow: FlowName, outcome: BatchOutcome) -> LaneWaits:
    """The error of the same kind where no lane is stopped, and some wait for a job."""
    first = min(outcome.waiting)
    waiting = outcome.waiting[first]
    more = f", and {len(outcome.waiting) - 1} other lanes wait" if len(outcome.waiting) > 1 else ""
    return LaneWaits(
        f"{waiting.detail}{more}",
        where=Lane(flow, *first).at(waiting.upstream_offset),
        hint=f"{waiting.hint}. Every other lane of the batch was delivered",
    )
