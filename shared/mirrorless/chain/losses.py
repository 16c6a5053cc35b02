"""The entries of the loss ledger: every record that is known to be missing on the target, and why.

A record is on the target, or its offset is in a gap of a run. What the scheduled check finds in a gap is a loss, with
its exact offsets, or harmless: then it is counted in one summary for each lane and generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from mirrorless.chain.lane import Lane

Lost = Literal["retention", "truncation", "oversize", "unexplained"]


Harmless = Literal["aborted", "transaction_marker", "compaction", "superseded"]


GapCause = Lost | Harmless
"""
retention           the source's own cleanup removed it: before it was forwarded, or before it could be looked at
truncation          removed from a topic without retention: only DeleteRecords does that
oversize            the record is there, and larger than any event can be
unexplained         the record is there, and could have been forwarded
aborted             of a transaction that the source's producer aborted
transaction_marker  the end of a transaction; no record
compaction          a later record with the same key replaced it, or it was a marker
superseded          its generation was closed by a reset before it was explained: the source may be another one now
"""


LOSSES: Final[frozenset[GapCause]] = frozenset(get_args(Lost))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGap:
    """A part of a gap with one cause."""

    first: int
    next: int
    cause: GapCause


LossCause = Literal["quarantined", "reset", "orphaned"] | Lost
"""`quarantined`: left out by an operator's order. `reset`: skipped when the operator reset the lane. `orphaned`: on
the source alone when the flow was reconciled; the detail has what became of it. The others are what the scheduled
check found in a gap: see `mirrorless.chain.losses.GapCause`."""

DETAILS: Mapping[str, str] = {
    "retention": "the source's retention had removed it when the gap was looked at",
    "truncation": "removed on the source by DeleteRecords: its topic has no retention",
    "oversize": "larger than any event can be, so the mapping dropped it; it is still on the source: "
    "`trigger: schedule` copies such records from now on, and `oversize: stop` stops before them",
    "unexplained": "on the source, visible and not too large, and never delivered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A range of upstream offsets that the target does not have."""

    lane: Lane
    generation: int
    first: int
    """First upstream offset."""
    next: int
    """First upstream offset after the loss."""
    cause: LossCause
    detail: str
    at: int
    """ms since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSummary:
    """All gaps of one generation of a lane that are explained so far, losses included."""

    lane: Lane
    generation: int
    until: int = -1
    """Upstream offset below which every gap is explained; -1 before the first."""
    offsets: Mapping[Harmless, int] = field(default_factory=dict)
    """How many by harmless cause."""
    at: int = 0
    """When it was last added to, ms since the epoch."""

    def plus(self, pieces: Sequence[ExplainedGap], *, until: int, at: int) -> GapSummary:
        """Return the summary with these pieces added; losses are entries of their own."""
        offsets = dict(self.offsets)
        for piece in pieces:
            if piece.cause not in LOSSES:
                harmless = cast("Harmless", piece.cause)
                offsets[harmless] = offsets.get(harmless, 0) + piece.next - piece.first
        return GapSummary(lane=self.lane, generation=self.generation, until=until, offsets=offsets, at=at)


def quarantine_detail(why: str) -> str:
    """The detail of a quarantined record's loss. Args: why: it was refused; empty where that is not known."""
    return f"left out on the operator's order{': ' if why else ''}{why}"


def quarantined_loss(lane: Lane, generation: int, offset: int, why: str = "", *, at: int) -> Loss:
    """Return the loss of one record that an operator has quarantined. Args: why: see `quarantine_detail`."""
    return Loss(
        lane=lane,
        generation=generation,
        first=offset,
        next=offset + 1,
        cause="quarantined",
        detail=quarantine_detail(why),
        at=at,
    )


def losses_in(lane: Lane, generation: int, pieces: Sequence[ExplainedGap], *, at: int) -> list[Loss]:
    """Return the losses among the pieces of a lane's gaps."""
    return [
        Loss(
            lane=lane,
            generation=generation,
            first=piece.first,
            next=piece.next,
            cause=cast("Lost", piece.cause),
            detail=DETAILS[piece.cause],
            at=at,
        )
        for piece in pieces
        if piece.cause in LOSSES
    ]
