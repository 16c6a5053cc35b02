"""The demonstration ends with the first work that fails: what waits for it would wait for ever, and hide why."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import pytest

from lab.audit.audit import TopicAudit
from lab.drills.demo import work_is_over
from lab.drills.group_move import ClusterSide, GroupFindings, has_arrived, judge
from tests.support.chains import LANE, MemoryChains, run


def ended(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


@pytest.mark.parametrize(
    ("work", "over"),
    [
        ([ended(), Future()], False),
        ([ended(), ended()], True),
        ([Future(), ended(TimeoutError("the source takes no records"))], True),
    ],
    ids=["some of it runs", "all has ended", "some failed though the rest runs for ever"],
)
def test_work_is_over_when_all_of_it_has_ended_or_some_has_failed(work: list[Future[None]], *, over: bool) -> None:
    assert work_is_over(work, seconds=0.0) is over


# Upstream 0, 1, 5 stand at 10, 11, 13 downstream; 7 did not arrive, and 14 is a stranger.
AUDIT = TopicAudit(rows=[], upstream={0: [0, 1, 5, 7]}, upstream_of={0: {10: 0, 11: 1, 13: 5}})
PLACE = ("orders", 0)


@pytest.mark.parametrize(
    ("on_source", "on_target", "reread", "skipped"),
    [
        ([0, 1, 5, 7], [], 0, 0),
        ([0, 7], [11, 13], 0, 0),
        ([0, 1, 7], [11, 13], 1, 0),
        ([0, 0, 0, 1, 5, 7], [], 2, 0),
        ([0, 7], [11], 0, 1),
        ([], [], 0, 4),
        ([0, 1, 5, 7], [14], 1, 0),
    ],
)
def test_a_record_read_twice_or_never_is_counted_on_whichever_side(
    on_source: list[int], on_target: list[int], reread: int, skipped: int
) -> None:
    found = judge(
        {"orders": AUDIT},
        Counter((PLACE, offset) for offset in on_source),
        Counter((PLACE, offset) for offset in on_target),
    )

    assert found == {"records": 4, "reread": reread, "skipped": skipped}


@pytest.mark.parametrize(
    ("reread", "skipped", "strays", "clean"), [(0, 0, 0, True), (1, 0, 0, False), (0, 1, 0, False), (0, 0, 1, False)]
)
def test_a_group_is_clean_when_each_record_was_read_once_and_it_was_given_nothing_else(
    *, reread: int, skipped: int, strays: int, clean: bool
) -> None:
    assert GroupFindings(records=4, reread=reread, skipped=skipped, strays=strays, read_on={}).clean is clean


@pytest.mark.parametrize(
    ("side", "left_at", "here", "arrived"),
    [
        # It left right behind the record at 223, where the marker stands; downstream that is 154, a marker as well.
        ("target", 224, 154, True),
        ("target", 224, 155, True),
        ("target", 224, 153, False),
        ("target", 267, 155, False),
        ("target", 267, 156, True),
        ("target", 400, 258, False),
        ("source", 154, 224, True),
        ("source", 155, 224, True),
        ("source", 156, 224, False),
        ("source", 156, 267, True),
    ],
)
def test_a_group_has_arrived_when_only_markers_lie_between_where_it_is_and_where_it_left(
    side: ClusterSide, left_at: int, here: int, *, arrived: bool
) -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 224, (156, 86, 68)), run(224, 369, (266, 155, 103))])
    assert has_arrived(chains, side, LANE, left_at=left_at, here=here) is arrived
