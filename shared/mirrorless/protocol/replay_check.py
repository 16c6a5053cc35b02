"""Comparison of redelivered records with the chain; a contradiction means that the source topic was re-created.

Of a run of whole batches the spans and the last record's fingerprint are held: its digest is that of batches, and its
timestamps are those of their headers.

A batch that begins below the position is usually a redelivery, and is dropped. But the offsets of a topic that
was deleted and created again, or truncated, begin anew: dropping those would be silent loss. So each record
below the position is held against what the chain says about its offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Final, Literal

from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.protocol.digest import digest, fingerprint
from mirrorless.protocol.outgoing import records_in
from mirrorless.protocol.plan import LanePlan
from mirrorless.records.record import Record

CopyOfRecord = Record | Literal["not known"] | None
"""The copy of a record; None where the rule leaves it out."""

Changed = Callable[[bytes, Record], CopyOfRecord]
"""The copy of a record by the rule with this id."""


def not_at_hand(rule: bytes, record: Record) -> CopyOfRecord:  # noqa: ARG001 -- of any rule
    """Of whoever has no rules: what was changed is compared by offset and time alone."""
    return "not known"


def compare_with_chain(plan: LanePlan, links: Sequence[Link], *, now: int, changed: Changed = not_at_hand) -> LanePlan:
    """The plan, or one that stops the lane before anything is dropped that cannot be what was replicated.

    From the first replayed record on all are held: most of those before the contradiction were only not seen to differ.

    Args:
        plan: with records below the position.
        links: the chain's links over them.
        now: ms since the epoch.
        changed: by the flow's rules.
    """
    found = contradiction(records_in(plan.unproven), links, changed)
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
    return replace(plan, write=(), quarantined=(), returned=(), filtered=(), stop=stop)


def contradiction(
    replayed: Iterable[Record], links: Sequence[Link], changed: Changed = not_at_hand
) -> tuple[int, str] | None:
    """The first replayed record that cannot be the one that was replicated.

    Args:
        replayed: records below the position, offsets growing.
        links: the committed runs that cover them, in order, and the resets by which the operator skipped some.
        changed: by the flow's rules.

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
            continue  # left out by an order, so neither timestamps nor digest have it
        copy = changed(link.rule, record) if link.rule else record
        if _is_left_out(record, copy, link):
            continue
        reason = _differs(record, copy, link)
        if reason is None and isinstance(copy, Record) and link.digest_of == "records":
            within.append(copy)
            if len(within) == link.records and digest(within) != link.digest:
                reason = "the records of its run have another digest than when they were replicated"
        if reason is not None:
            return record.offset, reason
    return None


_SPAN_BEGIN: Final = attrgetter("upstream")


def _in_span(record: Record, run: Run) -> bool:
    # A rule that leaves out every other record makes thousands of spans.
    at = bisect_right(run.spans, record.offset, key=_SPAN_BEGIN) - 1
    return at >= 0 and record.offset < run.spans[at].upstream + run.spans[at].length


def _is_filtered(record: Record, run: Run) -> bool:
    at = bisect_right(run.filtered, record.offset, key=itemgetter(0)) - 1
    return at >= 0 and record.offset < run.filtered[at][1]


def _is_left_out(record: Record, copy: CopyOfRecord, run: Run) -> bool:
    """Whether it is no copy's original, and was none: by its rule then and now, or where a job read the log."""
    if _is_filtered(record, run):
        return not isinstance(copy, Record)
    return run.examined and not _in_span(record, run)  # it was aborted then, or it is in the loss ledger


def _moment(timestamp: int) -> str:
    """A timestamp in UTC, to the millisecond; as it is where no calendar has it."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp % 1000:03}Z"
    except (OverflowError, OSError, ValueError):
        return str(timestamp)


def _differs(record: Record, copy: CopyOfRecord, run: Run) -> str | None:
    if _is_filtered(record, run):
        return "its rule keeps this record, and left out the one that stood at this offset"
    if not _in_span(record, run):
        return "a record stands where there was none when this offset was passed"
    if copy is None:
        return "its rule leaves this record out, and kept the one that stood at this offset"
    timed = run.digest_of == "records"
    if timed and not run.oldest_timestamp <= record.timestamp <= run.newest_timestamp:
        return (
            f"its timestamp, {_moment(record.timestamp)}, is outside of those that were replicated here, "
            f"{_moment(run.oldest_timestamp)} to {_moment(run.newest_timestamp)}"
        )
    last = run.spans[-1]
    is_last = record.offset == last.upstream + last.length - 1
    if is_last and isinstance(copy, Record) and fingerprint(copy) != run.fingerprint:
        return "it has another key, value or headers than the record that was replicated from this offset"
    return None
