"""Lanes that share a task."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.errors import Retriable
from spark.jobs.lane_tasks import BYTES_OF_A_TASK, LANES_OF_A_TASK, TaskAttempt, gathered, groups_of, run_lanes


def test_every_lane_has_one_task_and_no_slot_is_idle_while_a_task_has_several() -> None:
    for count in range(40):
        for slots in range(1, 9):
            groups = groups_of(count, least=slots, most=4)
            assert sorted(number for group in groups for number in group) == list(range(count))
            assert all(1 <= len(group) <= 4 for group in groups)
            assert len(groups) >= min(count, slots)


@given(sizes=st.lists(st.integers(0, 50), max_size=100), most=st.integers(1, 100))
def test_small_lanes_are_gathered_in_their_order_and_none_is_left_out(sizes: list[int], most: int) -> None:
    groups = gathered(enumerate(sizes), most=most)

    assert [number for group in groups for number in group] == list(range(len(sizes)))
    for group in groups:
        assert 0 < len(group) <= LANES_OF_A_TASK
        assert len(group) == 1 or sum(sizes[each] for each in group) <= most


class InThisProcess:
    """As much of Spark as sends tasks out; the tasks of each stage are kept."""

    def __init__(self, slots: int) -> None:
        self.stages: list[list[list[bytes]]] = []
        self.master = f"local[{slots},4]"
        self.defaultParallelism = slots

    def getConf(self) -> dict[str, str]:  # noqa: N802 -- Spark's
        """None."""
        return {}

    def parallelize(self, tasks: list[list[bytes]], partitions: int) -> Any:
        """Do what is mapped, in order."""
        assert partitions == len(tasks)
        self.stages.append(tasks)

        def mapped(do: Callable[[list[bytes]], object]) -> Any:
            return SimpleNamespace(collect=lambda: [do(each) for each in tasks])

        return SimpleNamespace(map=mapped)


def test_a_lane_that_fails_among_others_is_done_again_alone_and_they_are_not() -> None:
    spark, done = InThisProcess(slots=1), list[bytes]()

    def work(piece: bytes, _: TaskAttempt) -> bytes:
        done.append(piece)
        if piece == b"7" and done.count(piece) == 1:
            raise Retriable("no answer")
        return b"result of " + piece

    pieces = [b"%d" % number for number in range(100)]
    found = run_lanes(spark, work, pieces)  # type: ignore[arg-type]  # as much of a context as is used

    assert found == [b"result of " + piece for piece in pieces]
    assert max(map(len, spark.stages[0])) > 1
    assert spark.stages[1:] == [[[b"7"]]]
    assert len(done) == 101


def test_a_lane_that_fails_alone_is_left_to_spark() -> None:
    def work(*_: object) -> bytes:
        raise Retriable("no answer")

    with pytest.raises(Retriable):
        run_lanes(InThisProcess(slots=1), work, [b"1"])  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("slots", [2, 100])
def test_a_long_lane_shares_its_task_with_no_other_and_small_ones_leave_no_slot_idle(slots: int) -> None:
    spark = InThisProcess(slots)
    pieces = [b"%d" % number for number in range(10_000)]

    run_lanes(spark, lambda piece, _: piece, pieces, sizes=[BYTES_OF_A_TASK] * 3 + [0] * 9_997)  # type: ignore[arg-type]  # as above

    (tasks,) = spark.stages
    assert tasks[:3] == [[b"0"], [b"1"], [b"2"]]
    assert 8 * slots <= len(tasks) < 10_000
