"""The region in which a flow's function `control` runs: its home, or the target's region while the home is silent.

    home      each run stores the time at which it began, before anything else
    standby   each run reads that time; unless it is older than `SILENT_SECONDS`, the run ends there

The times are in the control table, which is in the target's region, and so is what stands by: the loss of the home's
region takes neither. A standby that works takes the same lease as the home's runs, so that one run is active at a time,
and its documents are fenced by the same epochs. It looks at the home's time once a run: when the home is back, its runs
wait for the lease until the standby's minute is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.flow.settings import SILENT_SECONDS
from mirrorless.ports.stores import StateStore

PREFIX: Final = "region/"
"""Of keys in the control table."""


class RegionRun(msgspec.Struct, frozen=True):
    """The last run in one region; the document `region/home` or `region/standby`."""

    region: str
    at: int
    """When it began, ms since the epoch."""
    works: bool = True
    """Whether it did the tasks; a standby does so only while the home is silent."""


class RegionRuns(msgspec.Struct, frozen=True):
    """The last runs of a flow's function `control` in both regions. None for a run that has never been."""

    home: RegionRun | None = None
    standby: RegionRun | None = None

    def home_is_silent(self, now: int, *, after_seconds: float = SILENT_SECONDS) -> bool:
        """Whether the standby is to work. A home that has never run is none that was lost. `now` in ms."""
        return self.home is not None and now - self.home.at >= after_seconds * 1000

    def standby_is_silent(self, now: int) -> bool:
        """Whether the standby has not run for so long that it may not work when it is needed."""
        return self.home is not None and (self.standby is None or now - self.standby.at >= SILENT_SECONDS * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionClock:
    """The stored times of one flow's runs, as the function `control` keeps them."""

    flow: FlowName
    documents: StateStore
    """The control table."""
    clock: Callable[[], int]
    """ms since the epoch."""
    after_seconds: float = SILENT_SECONDS

    def home_runs(self, region: str) -> None:
        """Store that a run of the home begins.

        Raises:
            Retriable: the store does not answer.
        """
        self._write("home", RegionRun(region=region, at=self.clock()))

    def standby_works(self, region: str) -> bool:
        """Whether the standby is to do the tasks in this run; stored for `mirrorless status`.

        Raises:
            Retriable: the store does not answer.
        """
        runs = read_region_runs(self.documents, self.flow)
        works = runs.home_is_silent(self.clock(), after_seconds=self.after_seconds)
        self._write("standby", RegionRun(region=region, at=self.clock(), works=works))
        return works

    def _write(self, key: str, run: RegionRun) -> None:
        self.documents.write(self.flow, {f"{PREFIX}{key}": msgspec.json.encode(run)})


def read_region_runs(documents: StateStore, flow: FlowName) -> RegionRuns:
    """The stored runs of a flow in both regions.

    Raises:
        Retriable: the store does not answer.
    """
    stored = documents.read(flow, PREFIX)
    runs = {key.removeprefix(PREFIX): msgspec.json.decode(text, type=RegionRun) for key, text in stored.items()}
    return RegionRuns(home=runs.get("home"), standby=runs.get("standby"))
