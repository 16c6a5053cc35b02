"""Settling of a plan: its deliveries folded into the run that the chain keeps.

Pure: a plan and its downstream offsets in, a prepared run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorless.errors import ChainBroken
from mirrorless.lane_state import Stop
from mirrorless.protocol.digest import Columns, fingerprint
from mirrorless.protocol.plan import LanePlan
from mirrorless.record import Record
from mirrorless.run import Run, spans_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who writes, in which attempt, on whose request, and when."""

    writer: str
    attempt: str
    request: str
    now: int
    """ms since the epoch."""
    examined: bool = False
    """See `Run.examined`."""


def settle_lane(plan: LanePlan, downstream: Sequence[int], attempt: Attempt) -> Run:
    """The run for one lane of a batch that was written and acknowledged.

    Args:
        plan: what was to be written.
        downstream: the downstream offset of each record of `plan.write`, in order.
        attempt: who wrote it.

    Raises:
        ChainBroken: when the deliveries are not one growing offset for each record; then order was not kept.
    """
    records = plan.write
    if len(downstream) != len(records) or not _grow(downstream):
        raise ChainBroken(
            f"{len(records)} records were acknowledged at {len(downstream)} offsets that do not grow by record",
            where=plan.lane.at(plan.head.position),
            hint="keep the transaction aborted and report this: the Kafka client broke its promise of order",
        )
    columns = Columns.of(records)
    return Run(
        lane=plan.lane,
        generation=plan.head.generation,
        position=plan.head.position,
        next=plan.next,
        spans=spans_of(_upstream(records), downstream),
        state="prepared",
        writer=attempt.writer,
        attempt=attempt.attempt,
        fingerprint=fingerprint(records[-1]) if records else b"",
        digest=columns.digest() if records else b"",
        oldest_timestamp=min(columns.timestamps, default=-1),
        newest_timestamp=max(columns.timestamps, default=-1),
        records=len(records),
        bytes=columns.bytes(),
        quarantined=plan.quarantined,
        request=attempt.request,
        settled_at=attempt.now,
        examined=attempt.examined,
    )


def lost_end(plan: LanePlan, downstream: Sequence[int], *, now: int) -> Stop | None:
    """The stop of a lane whose records stand at or below the chain's newest record: the target no longer has that one.

    It names the position of the newest run. That run is committed, so a reset never takes it for a run in doubt.

    Args:
        plan: what was written.
        downstream: where; offsets that are none are left to `settle_lane`.
        now: ms since the epoch.
    """
    run = plan.head.run
    if run is None or run.last_downstream is None or not downstream or not 0 <= downstream[0] <= run.last_downstream:
        return None
    return Stop(
        reason="broken",
        upstream_offset=run.position,
        detail=f"the next record would stand at downstream offset {downstream[0]}, and the map has one at "
        f"{run.last_downstream}: the remote topic was re-created, or lost records",
        at=now,
    )


def _upstream(records: Sequence[Record]) -> Sequence[int]:
    """The records' offsets. They grow, so ends as far apart as their number are the usual case, and all there is."""
    if records and records[-1].offset - records[0].offset == len(records) - 1:
        return range(records[0].offset, records[-1].offset + 1)
    return [record.offset for record in records]


def _grow(offsets: Sequence[int]) -> bool:
    if not offsets:
        return True
    # The usual cases first, each settled by one comparison.
    contiguous = isinstance(offsets, range) or offsets == list(range(offsets[0], offsets[-1] + 1))
    return offsets[0] >= 0 and (contiguous or all(map(int.__lt__, offsets, offsets[1:])))
