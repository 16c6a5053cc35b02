"""Where does the time of an event go? A stage profile, on request."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from mirrorless.steps import STEPS, Step


class StageProfile:
    """Collects the wall milliseconds of each step; register it as an observer of `mirrorless.steps`."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """An event has come."""
        self._at = self._clock()
        self._stages: dict[str, float] = {}

    def __call__(self, step: Step | str) -> None:
        """A step is done; what passed since the last one was its time."""
        now = self._clock()
        self._stages[step] = self._stages.get(step, 0.0) + (now - self._at) * 1000
        self._at = now

    def milliseconds(self) -> dict[str, float]:
        """By stage, in the protocol's order; stages outside of the protocol (decode) come first."""
        ordered = [stage for stage in self._stages if stage not in STEPS] + [s for s in STEPS if s in self._stages]
        return {stage: round(self._stages[stage], 3) for stage in ordered}
