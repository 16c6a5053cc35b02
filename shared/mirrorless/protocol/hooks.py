"""Hooks of the exactly-once protocol: seven numbered steps with observers.

The protocol calls `reached(step)` after each step's effect. Observers time the stages, or, in the lab, kill the
process exactly there. With no observer the call costs one loop over an empty list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

Step = Literal["position", "planned", "produced", "settled", "prepared", "committed", "confirmed"]

STEPS: tuple[Step, ...] = get_args(Step)
"""In the order in which the protocol passes them."""

observers: list[Callable[[Step], None]] = []
"""Called in order with each step that was reached; an exception passes through to the protocol."""


def reached(step: Step) -> None:
    """Call every observer: `step` is done."""
    for observer in observers:
        observer(step)
