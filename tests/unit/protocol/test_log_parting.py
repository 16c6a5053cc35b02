"""The place at which a log parts from what was copied of it, for replicas that were elected clean and unclean."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Run, Span
from mirrorless.ports.kafka import EpochEnd
from mirrorless.protocol.log_parting import STEPS, Parting, compare, parted_stop
from tests.support.chains import LANE, run
from tests.support.tries import tries

Log = list[tuple[int, int]]
"""Of each record its leader's epoch, and a number that no other has."""


def answer(log: Log, leader_epoch: int, asked: int) -> EpochEnd:
    """As a broker answers that leads with this epoch."""
    epochs = sorted({epoch for epoch, _ in log} | {leader_epoch})
    starts = {epoch: next((i for i, each in enumerate(log) if each[0] >= epoch), len(log)) for epoch in epochs}
    if asked == epochs[-1]:
        return EpochEnd(asked, len(log))
    following = next((epoch for epoch in epochs if epoch > asked), None)
    if following is None:
        return EpochEnd(-1, -1)
    return EpochEnd(max((epoch for epoch in epochs if epoch <= asked), default=asked), starts[following])


@dataclass
class Replicas:
    """Three replicas of a partition, and a reader that copies what their leader shows."""

    chance: random.Random
    logs: list[Log] = field(default_factory=lambda: [[], [], []])
    leader: int = 0
    epoch: int = 0
    copied: Log = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def append(self) -> None:
        """Records, some of which reach a follower."""
        for _ in range(self.chance.randint(0, 4)):
            self.logs[self.leader].append((self.epoch, next(self._numbers)))
        for follower in range(3):
            if follower != self.leader and self.chance.random() < 0.4:
                self.logs[follower] = list(self.logs[self.leader])

    def elect(self, *, clean: bool) -> None:
        """Another leader: one that has everything, or whichever."""
        self.epoch += self.chance.randint(1, 2)
        able = [i for i in range(3) if not clean or self.logs[i] == self.logs[self.leader]]
        self.leader = self.chance.choice(able)

    def copy(self, largest: int) -> None:
        """A few runs of what is new."""
        log = self.logs[self.leader]
        while len(self.copied) < len(log) and self.chance.random() < 0.8:
            first = len(self.copied)
            self.copied += log[first : first + self.chance.randint(1, largest)]
            following = len(self.copied)
            spans = (Span(first, first, following - first),)
            self.runs.append(replace(run(first, following), spans=spans, epoch=self.copied[-1][0]))

    def parting(self) -> int | None:
        """As the comparison finds it."""
        newest = self.runs[-1] if self.runs else None
        found = Parting(newest, lambda at: next((each for each in self.runs if each.position <= at < each.next), None))
        log = self.logs[self.leader]
        compare({LANE: found}, lambda asked: {LANE: answer(log, self.epoch, asked[LANE])})
        assert found.asks is None
        return found.at

    def mixed(self, found: int | None, truth: int | None) -> bool:
        """Whether a place is that of a run with records of two epochs, inside which the log parts."""
        around = [each for each in self.runs if each.position == found and truth in range(found or 0, each.next)]
        return any(len({epoch for epoch, _ in self.copied[each.position : each.next]}) > 1 for each in around)

    def truth(self) -> int | None:
        """The first copied offset at which the log has another record, or none."""
        log = self.logs[self.leader]
        return next((i for i, each in enumerate(self.copied) if log[i : i + 1] != [each]), None)


@pytest.mark.parametrize("seed", range(tries(300, many=20_000)))
def test_the_place_is_exact_where_a_log_lost_its_end_once(seed: int) -> None:
    chance = random.Random(seed)
    there = Replicas(chance)
    for _ in range(chance.randint(1, 5)):
        there.append()
        there.copy(largest=5)
        if chance.random() < 0.5:
            there.elect(clean=True)
    there.elect(clean=False)
    for _ in range(chance.randint(0, 3)):
        there.append()
        there.elect(clean=True)

    found, truth = there.parting(), there.truth()
    assert found == truth or there.mixed(found, truth)


@pytest.mark.parametrize("seed", range(tries(300, many=20_000)))
def test_no_place_is_too_high_however_often_a_log_lost_its_end(seed: int) -> None:
    """Too low only where a run has records of two epochs: those of it would come twice, and none is lost."""
    chance = random.Random(seed)
    there = Replicas(chance)
    largest = chance.choice([1, 1, 4])
    for _ in range(chance.randint(2, 8)):
        there.append()
        if there.truth() is None:  # what is stopped copies nothing
            there.copy(largest)
        there.elect(clean=chance.random() < 0.4)
        found, truth = there.parting(), there.truth()
        assert (found is None) == (truth is None)
        if found is not None and truth is not None:
            assert found == truth if largest == 1 else found <= truth


def test_a_run_whose_epoch_is_not_known_asks_nothing() -> None:
    for newest in (None, run(0, 5)):
        parting = Parting(newest, lambda _: None)
        assert compare({LANE: parting}, unasked) == set()
        assert parting.at is None


def unasked(epochs: Mapping[Lane, int]) -> dict[Lane, EpochEnd]:
    raise AssertionError(f"asked for {epochs}")


def test_a_log_that_knows_no_epoch_like_it_is_the_same_nowhere() -> None:
    questions = 0

    def ends(_: Mapping[Lane, int]) -> dict[Lane, EpochEnd]:
        nonlocal questions
        questions += 1
        return {LANE: EpochEnd(-1, -1)}

    parting = Parting(replace(run(0, 5), epoch=1_000), lambda _: None)
    compare({LANE: parting}, ends)

    assert (parting.at, questions) == (0, STEPS)


def test_a_lane_of_which_nothing_is_answered_is_named() -> None:
    parting = Parting(replace(run(0, 5), epoch=1), lambda _: None)

    assert compare({LANE: parting}, lambda _: {}) == {LANE}


def test_the_stop_has_the_place_and_the_command() -> None:
    stop = parted_stop(LANE, 7, position=9, now=3)

    assert (stop.reason, stop.upstream_offset, stop.at) == ("truncated", 7, 3)
    assert "--to 7 " in stop.detail
    assert "parts at 7 from what was replicated up to 9" in stop.detail
