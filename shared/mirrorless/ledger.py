"""What did not arrive, and why? The loss ledger has an entry for every record we know to be missing on the target.

Nothing is dropped in silence: a record is on the target, or its offset is in a gap of a run, or here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from mirrorless.lane import Lane

Cause = Literal["quarantined", "reset"]
"""`quarantined`: left out on the operator's order. `reset`: skipped when the operator reset the lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A range of upstream offsets that the target does not have."""

    lane: Lane
    generation: int
    first: int
    """First upstream offset."""
    next: int
    """First upstream offset after the loss."""
    cause: Cause
    detail: str
    at: int
    """ms since the epoch."""


class LossLedger(Protocol):
    """The store of losses; noting one twice keeps one."""

    def note(self, loss: Loss) -> None:
        """Raises Retriable when the store does not answer."""
        ...

    def read(self, lane: Lane) -> list[Loss]:
        """Every loss of a lane, by upstream offset."""
        ...


def quarantined_loss(lane: Lane, generation: int, offset: int, *, at: int) -> Loss:
    """One record that the operator ordered to leave out."""
    return Loss(
        lane=lane,
        generation=generation,
        first=offset,
        next=offset + 1,
        cause="quarantined",
        detail="left out on the operator's order",
        at=at,
    )
