"""The report of one run of a pull."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PullEnding = Literal["drained", "time", "successor", "lease lost"]


@dataclass(slots=True)
class PullReport:
    """What a run has done."""

    ended: PullEnding = "drained"
    lanes: int = 0
    records: int = 0
    bytes: int = 0
    passed_bytes: int = 0
    """Those of `bytes` whose batches were passed as they lay in the source's log."""
    transactions: int = 0
    failures: int = 0
    troubles: list[str] = field(default_factory=list)
    """One sentence for each lane, or topic, that could not go on."""
