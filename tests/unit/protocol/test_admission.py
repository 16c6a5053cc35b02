"""The lanes that wait for a job, and why; no others do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, LaneState, Lease, head_of
from mirrorless.protocol.admission import waits_for_history, waits_for_lease, waits_for_rest
from tests.support.chains import LANE, reset, run

COPIED = head_of(replace(run(0, 100, (0, 0, 100)), examined=True))
REPLICATED = head_of(run(0, 100, (0, 0, 100)))
WAITED = LaneState(waiting=100)


def test_a_lane_that_a_job_has_waits_from_its_first_record_on_and_says_for_whom_and_how_long() -> None:
    found = waits_for_lease(LANE, Lease(holder="backfill-7", until=95_000), 42, now=5_000)

    assert found.upstream_offset == 42
    assert "backfill-7" in found.detail
    assert "90 s" in found.detail
    assert "lanes release" in found.hint


@pytest.mark.parametrize(
    ("head", "state", "first", "history_first", "waits"),
    [
        # A lane without a chain
        (NEW_LANE, RUNNING, 42, True, True),
        (NEW_LANE, RUNNING, 42, False, False),
        (NEW_LANE, RUNNING, 0, True, False),  # there is no history
        (head_of(reset(0, 42)), RUNNING, 42, True, False),  # the operator has given it up
        # A lane that a job was in
        (COPIED, WAITED, 100, True, False),
        (COPIED, WAITED, 99, True, False),
        (COPIED, WAITED, 101, True, True),  # the mapping is somewhere else now
        (COPIED, WAITED, 101, False, True),
        (COPIED, RUNNING, 101, True, False),  # nothing was there before: it is a marker, or an aborted record
        # A lane of ours
        (REPLICATED, WAITED, 101, True, False),
        (Head(generation=0, position=0), RUNNING, 1, False, False),
    ],
)
def test_a_lane_waits_until_its_history_is_there_without_a_gap(
    head: Head, state: LaneState, first: int, *, history_first: bool, waits: bool
) -> None:
    found = waits_for_history(LANE, head, state, first, history_first=history_first)

    assert (found is not None) == waits
    if found is not None:
        assert found.upstream_offset == first
        assert "backfill start" in found.hint


@pytest.mark.parametrize(
    ("head", "first", "waits"),
    [
        (COPIED, 101, True),
        (REPLICATED, 101, True),  # the job may have had to bring what a mapping that moved on has left out
        (NEW_LANE, 1, True),  # to begin here would leave no place for what lies before
        (COPIED, 100, False),
        (NEW_LANE, 0, False),
    ],
)
def test_behind_a_job_that_never_let_go_only_a_batch_without_a_gap_goes_on(
    head: Head, first: int, *, waits: bool
) -> None:
    found = waits_for_rest(LANE, head, Lease(holder="backfill-7", until=5), first)

    assert (found is not None) == waits
    if found is not None:
        assert "backfill-7" in found.detail
        assert "lanes resume" in found.hint
