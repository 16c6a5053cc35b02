"""The number of pollers by the lag, and the pace of one of them."""

from __future__ import annotations

import pytest

from lab.esm.scaling import Throughput, wanted_pollers


@pytest.mark.parametrize(
    ("pollers", "lag", "lag_before", "wanted"),
    [
        (1, 0, 0, 1),
        (1, 9, 0, 2),
        (2, 9, 9, 4),
        (4, 9, 9, 5),
        (2, 8, 9, 2),
        (4, 0, 8, 3),
    ],
    ids=["idle", "a lag", "it stays", "at most five", "it falls", "it is gone"],
)
def test_pollers_double_while_the_lag_does_not_fall_and_go_one_by_one(
    pollers: int, lag: int, lag_before: int, wanted: int
) -> None:
    assert wanted_pollers(pollers, lag=lag, lag_before=lag_before, minimum=1, maximum=5) == wanted


def test_a_poller_pays_for_each_payload_before_the_next_one_and_saves_nothing_up() -> None:
    pace = Throughput(bytes_per_second=5_000_000)

    pace.spend(6_000_000, now=100.0)
    assert pace.ready_at == pytest.approx(101.2)
    pace.spend(1_000_000, now=200.0)
    assert pace.ready_at == pytest.approx(200.2)
    pace.spend(1_000_000, now=200.1)
    assert pace.ready_at == pytest.approx(200.4), "the one before is still being paid for"


def test_a_poller_without_a_limit_is_always_ready() -> None:
    pace = Throughput(bytes_per_second=0)

    pace.spend(6_000_000, now=100.0)

    assert pace.ready_at == 0
