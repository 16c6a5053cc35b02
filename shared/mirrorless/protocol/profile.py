"""A profile of an event's stages, on request: wall time and CPU time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time

from mirrorless.protocol.hooks import Step


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
