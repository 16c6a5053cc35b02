"""Settling of a plan: its deliveries folded into the run that the chain keeps.

Pure: a plan and its downstream offsets in, a prepared run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorless.errors import ChainBroken
from mirrorless.lane_state import Stop
from mirrorless.origin import rows_of
from mirrorless.protocol.plan import LanePlan
from mirrorless.protocol.written import written_as
from mirrorless.run import Run


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
        downstream: the downstream offset of each record of `plan.write`, in order; of each batch that of its first.
        attempt: who wrote it.

    Raises:
        ChainBroken: when the deliveries are not one growing offset for each record; then order was not kept.
    """
    written = written_as(plan.write)
    if not written.in_order(downstream):
        raise ChainBroken(
            f"{len(plan.write)} {written.digest_of} were acknowledged at {len(downstream)} offsets that do not grow "
            "by record",
            where=plan.lane.at(plan.head.position),
            hint="keep the transaction aborted and report this: the Kafka client broke its promise of order",
        )
    return Run(
        lane=plan.lane,
        generation=plan.head.generation,
        position=plan.head.position,
        next=plan.next,
        spans=written.spans(downstream),
        state="prepared",
        writer=attempt.writer,
        attempt=attempt.attempt,
        fingerprint=written.fingerprint() if plan.write else b"",
        digest=written.digest() if plan.write else b"",
        oldest_timestamp=written.oldest_timestamp(),
        newest_timestamp=written.newest_timestamp(),
        records=written.records(),
        bytes=written.bytes(),
        digest_of=written.digest_of,
        passed_bytes=written.passed_bytes(),
        quarantined=plan.quarantined,
        returned=rows_of(plan.returned),
        request=attempt.request,
        settled_at=attempt.now,
        examined=attempt.examined or plan.examined,
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
