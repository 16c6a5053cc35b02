"""Hooks of the exactly-once protocol: seven numbered steps with observers, among them a profile of stages.

The protocol calls `reached(step)` after each step's effect. Observers time the stages, or, in the lab, kill the
process exactly there. With no observer the call costs one loop over an empty list.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time
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


class StageProfile:
    """Collects the milliseconds of each step; register it as an observer of `mirrorless.protocol.hooks`.

    CPU is that of the whole process: the Kafka client's own threads work while a step waits.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, cpu_clock: Callable[[], float] = process_time
    ) -> None:
        self._clocks = (clock, cpu_clock)
        self.begin()

    def begin(self) -> None:
        """An event has come."""
        self._at = [clock() for clock in self._clocks]
        self._stages: dict[str, list[float]] = {}

    def __call__(self, step: Step | str) -> None:
        """A step is done; what passed since the last one was its time."""
        now = [clock() for clock in self._clocks]
        took = self._stages.setdefault(step, [0.0, 0.0])
        for i in range(len(took)):
            took[i] += (now[i] - self._at[i]) * 1000
        self._at = now

    def milliseconds(self) -> dict[str, float]:
        """Wall time by stage, in the order in which an event first reached them."""
        return self._rounded(0)

    def cpu_milliseconds(self) -> dict[str, float]:
        """CPU by stage, in the same order."""
        return self._rounded(1)

    def _rounded(self, clock: int) -> dict[str, float]:
        return {stage: round(took[clock], 3) for stage, took in self._stages.items()}
