"""Lanes that one task copies at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.shared_transactions import SharedTransactions
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.jobs import lane_copies, lane_groups
from spark.jobs.lane_copies import Beside, shared_transactions
from spark.jobs.lane_groups import MOST_ATTEMPTS, TOGETHER, copy_together, dealt_out
from spark.jobs.lane_tasks import TaskAttempt

HERE, THERE = ClusterSettings(alias="us-east", bootstrap="a:9092"), ClusterSettings(alias="eu-west", bootstrap="b:9092")
SETTINGS = FlowSettings(flow="us-east->eu-west", source=HERE, target=THERE)
BACK = replace(SETTINGS, source=THERE, target=HERE)


def task_of(partition: int, *, settings: FlowSettings = SETTINGS, topic: str = "orders") -> CopyTask:
    return CopyTask(
        settings=settings,
        lane_topic=f"{topic}#history",
        read_topic=topic,
        write_topic=f"us-east.{topic}",
        partition=partition,
        ranges=(OffsetRange(0, 10),),
        run_id="run-1",
    )


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


def test_only_lanes_of_one_flow_and_direction_share_their_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failback writes to both clusters at once: by one producer, a part would go to the other lanes' cluster."""
    made: list[list[CopyTask]] = []
    transactions = [cast("SharedTransactions", name) for name in ("there", "back")]

    def share(tasks: Sequence[CopyTask]) -> SharedTransactions:
        made.append(list(tasks))
        return transactions[len(made) - 1]

    monkeypatch.setattr(lane_copies, "_shared", share)
    there, back = [task_of(0), task_of(1)], [task_of(0, settings=BACK), task_of(1, settings=BACK)]
    archived = replace(task_of(2), archive="/archive")

    found = shared_transactions([there[0], back[0], archived, back[1], there[1]])

    assert made == [there, back]
    assert found == [transactions[0], transactions[1], None, transactions[1], transactions[0]]


def test_lanes_that_write_to_one_partition_share_none() -> None:
    tasks = [task_of(0), replace(task_of(0), lane_topic="orders#replay"), task_of(1)]

    assert shared_transactions(tasks) == [None, None, None]


def test_a_lane_without_another_shares_none() -> None:
    assert shared_transactions([task_of(0), task_of(0, settings=BACK)]) == [None, None]


def test_a_lane_that_fails_is_tried_again_while_the_others_go_on_and_fails_for_good_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Counter[int]()

    def copied(task: CopyTask, attempt: TaskAttempt, *, ending: object, beside: Beside) -> CopyResult:  # noqa: ARG001 -- as of `copied`
        tries[task.partition] += 1
        assert (beside.slot, beside.lanes) == (task.partition, 3)
        failing = {0: 0, 1: 1, 2: MOST_ATTEMPTS}[task.partition]
        if attempt.number < failing and not attempt.last:
            raise Retriable("no answer")
        state = "failed" if attempt.number < failing else "done"
        return CopyResult(lane=str(task.lane), partition=task.partition, state=state)  # type: ignore[arg-type]  # one of them

    monkeypatch.setattr(lane_groups, "copied", copied)
    monkeypatch.setattr(lane_groups, "share_one_heap", lambda: None)  # it is this process's
    monkeypatch.setattr(lane_groups, "shared_transactions", lambda tasks: [None] * len(tasks))

    answer = copy_together(
        msgspec.json.encode([task_of(partition) for partition in range(3)]), TaskAttempt(0, last=False)
    )

    results = msgspec.json.decode(answer, type=list[CopyResult])
    assert [each.state for each in results] == ["done", "done", "failed"]
    assert tries == {0: 1, 1: 2, 2: MOST_ATTEMPTS}
