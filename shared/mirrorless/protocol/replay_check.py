"""Comparison of redelivered records with the chain; a contradiction means that the source topic was re-created.

Of a run of whole batches the spans and the last record's fingerprint are held: its digest is that of batches, and its
timestamps are those of their headers.

A batch that begins below the position is usually a redelivery, and is dropped. But the offsets of a topic that
was deleted and created again, or truncated, begin anew: dropping those would be silent loss. So each record
below the position is held against what the chain says about its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.protocol.digest import digest, fingerprint
from mirrorless.protocol.outgoing import records_in
from mirrorless.protocol.plan import LanePlan
from mirrorless.records.record import Record


def compare_with_chain(plan: LanePlan, links: Sequence[Link], *, now: int) -> LanePlan:
    """The plan, or one that stops the lane before anything is dropped that cannot be what was replicated.

    From the first replayed record on all are held: most of those before the contradiction were only not seen to differ.

    Args:
        plan: with records below the position.
        links: the chain's links over them.
        now: ms since the epoch.
    """
    found = contradiction(records_in(plan.unproven), links)
    if found is None:
        return plan
    offset, reason = found
    stop = Stop(
        reason="contradiction",
        upstream_offset=plan.replayed[0].offset,
        detail=f"upstream offset {offset}: {reason}: the source topic was re-created or truncated, or its group's "
        "offsets were moved",
        at=now,
        untrue_from=offset,
    )
    return replace(plan, write=(), quarantined=(), returned=(), stop=stop)


def contradiction(replayed: Iterable[Record], links: Sequence[Link]) -> tuple[int, str] | None:
    """The first replayed record that cannot be the one that was replicated.

    Args:
        replayed: records below the position, offsets growing.
        links: the committed runs that cover them, in order, and the resets by which the operator skipped some.

    Returns:
        its upstream offset and the reason, or None when everything agrees.
    """
    by_offset = iter(links)
    link = next(by_offset, None)
    within: list[Record] = []
    for record in replayed:
        while link is not None and record.offset >= link.next:
            link, within = next(by_offset, None), []
        if link is None or record.offset < link.position:
            return record.offset, "the offset map no longer says what stood at this offset"
        if isinstance(link, Reset) or record.offset in link.quarantined:
            continue  # left out on the operator's order, so neither timestamps nor digest have it
        if link.examined and not _in_span(record, link):
            continue  # a job read the log here: it was aborted then, or it is in the loss ledger
        reason = _differs(record, link)
        if reason is None and link.digest_of == "records":
            within.append(record)
            if len(within) == link.records and digest(within) != link.digest:
                reason = "the records of its run have another digest than when they were replicated"
        if reason is not None:
            return record.offset, reason
    return None


def _in_span(record: Record, run: Run) -> bool:
    return any(span.upstream <= record.offset < span.upstream + span.length for span in run.spans)


def _moment(timestamp: int) -> str:
    """A timestamp in UTC, to the millisecond; as it is where no calendar has it."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp % 1000:03}Z"
    except (OverflowError, OSError, ValueError):
        return str(timestamp)


def _differs(record: Record, run: Run) -> str | None:
    if not _in_span(record, run):
        return "a record stands where there was none when this offset was passed"
    timed = run.digest_of == "records"
    if timed and not run.oldest_timestamp <= record.timestamp <= run.newest_timestamp:
        return (
            f"its timestamp, {_moment(record.timestamp)}, is outside of those that were replicated here, "
            f"{_moment(run.oldest_timestamp)} to {_moment(run.newest_timestamp)}"
        )
    last = run.spans[-1]
    if record.offset == last.upstream + last.length - 1 and fingerprint(record) != run.fingerprint:
        return "it has another key, value or headers than the record that was replicated from this offset"
    return None
