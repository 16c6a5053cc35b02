"""Lanes that one task copies at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.copy.job import JobCopy
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import CopyResult, CopyTask
from mirrorless.jobs.progress import LaneProgress, write_progress
from spark.jobs import lane_copies
from spark.jobs.lane_copies import TOGETHER, apart, copy_together, dealt_out
from spark.jobs.lane_tasks import (
    BYTES_OF_A_TASK,
    LANES_OF_A_TASK,
    TaskAttempt,
    gathered,
    result_of,
    run_lanes,
)
from tests.support.flows import make_copy_task, make_flow

SETTINGS = make_flow()
BACK = replace(SETTINGS, source=SETTINGS.target, target=SETTINGS.source)


def task_of(partition: int, *, settings: FlowSettings = SETTINGS) -> CopyTask:
    return make_copy_task(partition, (0, 10), settings=settings, lane_topic="orders#history")


def test_every_lane_has_one_task_and_no_slot_is_idle_while_a_task_has_several() -> None:
    for count in range(1, 40):
        for slots in range(1, 9):
            groups = dealt_out(count, slots)
            assert sorted(number for group in groups for number in group) == list(range(count))
            assert all(1 <= len(group) <= TOGETHER for group in groups)
            assert len(groups) >= min(count, slots)
            first = [number for group in groups[:slots] for number in group]
            assert sorted(first) == list(range(min(count, slots * TOGETHER))), (
                "what is first in the plan is begun first"
            )


def test_only_lanes_of_one_flow_and_direction_with_partitions_of_their_own_share_transactions() -> None:
    """A failback writes to both clusters at once: by one producer, a part would go to the other lanes' cluster."""
    there, back = [task_of(0), task_of(1)], [task_of(0, settings=BACK), task_of(1, settings=BACK)]
    archived, replay = replace(task_of(2), archive="/archive"), replace(task_of(0), lane_topic="orders#replay")

    assert apart([there[0], back[0], archived, back[1], there[1], replay]) == [[0, 4], [1, 3], [2], [5]]


def test_a_task_whose_clients_cannot_be_made_is_tried_again_and_fails_for_good_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wire(*_: object) -> JobCopy:
        raise Retriable("no answer")

    monkeypatch.setattr(lane_copies, "wire_copy", wire)
    monkeypatch.setattr(lane_copies, "limit_garbage_collection", lambda: None)  # it is this process's
    tasks = msgspec.json.encode([task_of(partition) for partition in range(3)])

    with pytest.raises(Retriable):
        copy_together(tasks, TaskAttempt(0, last=False))
    results = msgspec.json.decode(copy_together(tasks, TaskAttempt(3, last=True)), type=list[CopyResult])

    assert [(each.partition, each.state) for each in results] == [(0, "failed"), (1, "failed"), (2, "failed")]


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
@pytest.mark.parametrize("long", [3, None], ids=["of known sizes", "of unknown sizes"])
def test_a_long_lane_shares_its_task_with_no_other_and_small_ones_leave_no_slot_idle(
    slots: int, long: int | None
) -> None:
    spark = InThisProcess(slots)
    pieces = [b"%d" % number for number in range(10_000)]
    sizes = [BYTES_OF_A_TASK] * long + [0] * (10_000 - long) if long else None

    run_lanes(spark, lambda piece, _: piece, pieces, sizes=sizes)  # type: ignore[arg-type]  # as above

    (tasks,) = spark.stages
    assert tasks[:3] == [[b"0"], [b"1"], [b"2"]] or not long
    assert 8 * slots <= len(tasks) < 10_000


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 200])
def test_few_lanes_have_as_many_tasks_as_there_are_slots_for(count: int) -> None:
    spark = InThisProcess(slots=4)

    run_lanes(spark, lambda piece, _: piece, [b"%d" % number for number in range(count)])  # type: ignore[arg-type]  # as above

    assert len(spark.stages[0]) >= min(count, 4)


FIRST, LAST = TaskAttempt(number=0, last=False), TaskAttempt(number=3, last=True)


def outcome(failure: Exception, attempt: TaskAttempt) -> tuple[str, list[str]]:
    """The result of a lane that fails, and what was noted before another attempt."""
    notes: list[str] = []

    def work() -> str:
        raise failure

    return result_of(work, attempt, failed=lambda error: error, again=notes.append), notes


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Retriable("slow", where="orders-0"), "slow"),
        (SystemError("a client's own"), "SystemError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_what_another_attempt_may_mend_is_left_to_spark_and_at_the_last_one_is_the_lanes_result(
    failure: Exception, words: str
) -> None:
    with pytest.raises(type(failure)):
        outcome(failure, FIRST)

    assert words in outcome(failure, LAST)[0]


def test_what_no_attempt_mends_is_the_lanes_result_at_once() -> None:
    assert "retention" in outcome(RecordsGone("retention was faster"), FIRST)[0]


def test_a_lane_whose_progress_is_not_taken_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "lanes").write_text("in the way of the folder of notes")

    write_progress(open_job_files(str(tmp_path)), "orders", 0, LaneProgress(lane="us-east->eu-west orders-0"))

    assert "us-east->eu-west orders-0 is not written" in capsys.readouterr().out
