"""Orders of faults, and what waits for them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lab.faults.orders import FaultOrders


def test_an_order_is_awaited_until_it_is_carried_out_or_all_is_over_or_the_time_is(tmp_path: Path) -> None:
    orders, over = FaultOrders(tmp_path), threading.Event()
    order = orders.order("kill", "produced")
    with pytest.raises(TimeoutError, match=r"no environment carried out kill\.produced\.0 within 0 s"):
        orders.await_claimed(order, seconds=0, over=over)

    over.set()
    assert not orders.await_claimed(order, seconds=60, over=over)

    (tmp_path / order).rename(tmp_path / "claimed" / order)
    assert orders.await_claimed(order, seconds=60, over=over)
