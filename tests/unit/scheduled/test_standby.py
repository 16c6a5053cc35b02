"""Which region's `control` works: the home while it runs, the standby while it is silent, and never both at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from mirrorless.flow.settings import SILENT_SECONDS
from mirrorless.scheduled.runner import HeldLease, RoundReport, Task, TaskRunner
from mirrorless.scheduled.standby import RegionClock, RegionRun, RegionRuns, read_region_runs
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

MINUTE = 60_000
START = 1_763_700_000_000


@dataclass
class TwoRegions:
    """The starts of both regions by minutes, with one store and one clock."""

    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = START
    worked: list[tuple[str, int]] = field(default_factory=list)

    def clock(self) -> RegionClock:
        """The stored times."""
        return RegionClock(flow=FLOW, documents=self.documents, clock=lambda: self.now)

    def home(self) -> None:
        """A start at home."""
        self.clock().home_runs("us-east-1")
        self.run("home")

    def standby(self) -> None:
        """A start beside the tables."""
        if self.clock().standby_works("eu-west-1"):
            self.run("standby")

    def run(self, who: str) -> None:
        """One run of a task, without time: a lease that another run holds ends it at once."""

        def act(_report: RoundReport, _deadline: object) -> None:
            self.worked.append((who, (self.now - START) // MINUTE))

        TaskRunner(
            flow=FLOW,
            function="control",
            documents=self.documents,
            clock=lambda: self.now,
            sleep=lambda _seconds: None,
            holder=who,
            lease=HeldLease(),
        ).run([Task(name="checkpoints", every_seconds=60, act=act)], window_seconds=0, deadline=lambda: 60.0)

    def runs(self) -> RegionRuns:
        """What `status` reads."""
        return read_region_runs(self.documents, FLOW)


def test_the_standby_does_nothing_while_the_home_runs_and_works_after_three_minutes_of_silence() -> None:
    regions = TwoRegions()
    for minute in range(12):
        regions.now = START + minute * MINUTE
        if minute < 4 or minute >= 9:
            regions.home()
        regions.standby()

    assert regions.worked == [
        *(("home", minute) for minute in range(4)),
        *(("standby", minute) for minute in (6, 7, 8)),
        *(("home", minute) for minute in (9, 10, 11)),
    ]


def test_a_home_that_has_never_run_is_not_taken_for_a_lost_one() -> None:
    regions = TwoRegions()
    for minute in range(60):
        regions.now = START + minute * MINUTE
        regions.standby()

    assert regions.worked == []
    assert regions.runs().home is None
    assert regions.runs().standby == RegionRun(region="eu-west-1", at=regions.now, works=False)


def test_a_standby_waits_for_the_lease_of_a_home_that_still_runs() -> None:
    """A home that was frozen for minutes: its time is old, and its lease is held."""
    regions = TwoRegions()
    regions.home()
    regions.now += int(SILENT_SECONDS * 1000)
    regions.documents.claim(FLOW, "lease/control", holder="frozen", now=regions.now, until=regions.now + 45_000)

    regions.standby()
    assert [who for who, _ in regions.worked] == ["home"]

    regions.now += 45_001
    regions.standby()
    assert [who for who, _ in regions.worked] == ["home", "standby"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_starts_are_missed_each_minute_has_one_worker_at_most_and_no_gap_is_long(seed: int) -> None:
    chance, regions = random.Random(seed), TwoRegions()
    regions.home()
    alive = True
    for minute in range(1, 240):
        alive = alive if chance.random() < 0.95 else not alive
        regions.now = START + minute * MINUTE
        if alive:
            regions.home()
        regions.standby()
    minutes = [minute for _, minute in regions.worked]
    standbys = sum(who == "standby" for who, _ in regions.worked)

    assert minutes == sorted(set(minutes)), "two regions worked in one minute"
    assert max(after - before for before, after in pairwise(minutes)) <= SILENT_SECONDS / 60
    assert standbys > 10, "the schedule never needed the standby"


def test_status_needs_the_operator_when_the_standby_itself_is_silent() -> None:
    home = RegionRun(region="us-east-1", at=START)
    late = START + int(SILENT_SECONDS * 1000)

    assert RegionRuns(home=home).standby_is_silent(START)
    assert RegionRuns(home=home, standby=RegionRun(region="eu-west-1", at=START)).standby_is_silent(late)
    assert not RegionRuns(home=home, standby=RegionRun(region="eu-west-1", at=late)).standby_is_silent(late)
    assert not RegionRuns().standby_is_silent(late), "nothing has been deployed yet"
