"""Tries of what DynamoDB left undone: the first at once, the others after pauses, none behind the deadline."""

from __future__ import annotations

import random
import time
from itertools import islice

import pytest

from mirrorless.adapters.dynamodb.retries import MARGIN_SECONDS, tries


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, each as long as it may be; the clock moves by nothing else."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0 + sum(made))
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    return made


def test_the_first_try_needs_no_pause_and_the_pauses_double_up_to_two_seconds(pauses: list[float]) -> None:
    attempts = tries(None)
    next(attempts)
    assert pauses == []

    list(islice(attempts, 8))

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_pause_is_any_time_up_to_its_longest(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that were throttled together must not come again together."""
    monkeypatch.setattr(random, "uniform", lambda least, longest: least + longest / 4)

    list(islice(tries(None), 4))

    assert pauses == [0.0125, 0.025, 0.05]


@pytest.mark.parametrize("left", [0.0, MARGIN_SECONDS])
def test_there_is_one_try_however_late_it_is(pauses: list[float], left: float) -> None:
    assert len(list(tries(lambda: left))) == 1
    assert pauses == []


def test_the_last_try_leaves_a_margin_of_the_deadline(pauses: list[float]) -> None:
    list(tries(lambda: 2.0 - sum(pauses)))

    assert sum(pauses) == pytest.approx(2.0 - MARGIN_SECONDS)


def test_a_later_deadline_makes_it_no_longer(pauses: list[float]) -> None:
    list(tries(lambda: 60.0 - sum(pauses), seconds=5.0))

    assert sum(pauses) == pytest.approx(5.0)
