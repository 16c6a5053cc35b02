"""A warm environment reads stops once a minute, and no more often; and which lanes wait for a job, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, LaneState, Lease, Stop, head_of
from mirrorless.chain.run import Link, Reset
from mirrorless.clock import Deadline
from mirrorless.protocol.admission import waits_for_history, waits_for_lease, waits_for_rest
from mirrorless.protocol.positions import Positions
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, reset, run
from tests.support.clusters import MemoryCluster, MemoryTarget

OTHER = Lane(FLOW, "orders", 1)
STOP = Stop(reason="recreated", upstream_offset=0, detail="", at=1)


@dataclass(slots=True)
class CountedStates(MemoryLaneStates):
    """Records the lanes of each read."""

    reads: list[set[Lane]] = field(default_factory=list)

    def read(self, lanes: Iterable[Lane], deadline: Deadline | None = None) -> dict[Lane, LaneState]:
        """See `LaneStates.read`."""
        assert deadline is not None, "what is throttled is tried again until the event's deadline"
        wanted = list(lanes)
        self.reads.append(set(wanted))
        return {lane: self.states[lane] for lane in wanted if lane in self.states}


@dataclass(slots=True)
class Warm:
    """One environment's positions, and its clock."""

    now: int = 1_763_686_800_000
    seconds: float = 0.0
    """Of the monotonic clock."""
    chains: MemoryChains = field(default_factory=MemoryChains)
    states: CountedStates = field(default_factory=CountedStates)
    positions: Positions = field(init=False)

    def __post_init__(self) -> None:
        self.positions = Positions(
            chains=self.chains,
            states=self.states,
            target=MemoryTarget(MemoryCluster(), "warm"),
            clock=lambda: self.now,
            monotonic=lambda: self.seconds,
        )

    def load(self, *lanes: Lane, after_ms: int = 0, begins: int | None = None) -> None:
        """An event with these lanes, all from one upstream offset on."""
        self.now += after_ms
        firsts = None if begins is None else dict.fromkeys(lanes, begins)
        self.positions.load(lanes, lambda topic: f"us-east.{topic}", lambda: 30.0, firsts)


@pytest.fixture
def warm() -> Warm:
    """An environment that has seen no event."""
    return Warm()


def test_a_stop_of_another_environment_is_read_after_a_minute(warm: Warm) -> None:
    warm.load(LANE)
    warm.states.stop(LANE, STOP)

    warm.load(LANE, after_ms=59_999)
    assert warm.positions.state(LANE) == RUNNING
    warm.load(LANE, after_ms=1)
    assert warm.positions.state(LANE).stop == STOP

    warm.states.resume(LANE)
    warm.load(LANE, after_ms=60_000)
    assert warm.positions.state(LANE) == RUNNING


@pytest.mark.parametrize("set_back_ms", [1, 3_600_000])
def test_a_stop_is_read_after_a_minute_although_the_clock_was_set_back(warm: Warm, set_back_ms: int) -> None:
    """By an hour, a lane that was held took records for an hour more."""
    warm.load(LANE)
    warm.states.stop(LANE, STOP)

    warm.seconds += 59.9
    warm.load(LANE, after_ms=-set_back_ms)
    assert warm.positions.state(LANE) == RUNNING
    warm.seconds += 0.1
    warm.load(LANE)

    assert warm.positions.state(LANE).stop == STOP


def test_states_are_read_once_a_minute_and_heads_once(warm: Warm) -> None:
    warm.chains.prepare([run(0, 10, (0, 0, 10))])

    for _ in range(121):
        warm.load(LANE, OTHER, after_ms=1_000)

    assert warm.states.reads == [{LANE, OTHER}] * 3
    assert warm.chains.reads == 2


def test_a_batch_below_the_remembered_position_has_the_head_read_again(warm: Warm) -> None:
    """The lane may have been reset."""
    warm.chains.prepare([run(0, 10, (0, 0, 10))])
    warm.load(LANE, begins=10)
    warm.chains.reset(reset(10, 2))

    warm.load(LANE, begins=2)

    assert (warm.positions.head(LANE).generation, warm.positions.head(LANE).position) == (1, 2)


def test_a_batch_beyond_the_remembered_position_has_the_head_read_again_and_the_state_not(warm: Warm) -> None:
    warm.chains.prepare([run(0, 10, (0, 0, 10))])
    warm.load(LANE, begins=10)
    warm.chains.prepare([run(10, 20, (10, 10, 10))])  # another environment's

    warm.load(LANE, begins=20)

    assert warm.positions.head(LANE).position == 20
    assert len(warm.states.reads) == 1


@pytest.mark.parametrize("begins", [10, 11])
def test_a_batch_at_the_remembered_position_or_behind_a_transactions_marker_reads_nothing(begins: int) -> None:
    warm = Warm()
    warm.chains.prepare([run(0, 10, (0, 0, 10))])
    warm.load(LANE, begins=10)
    reads = warm.chains.reads

    warm.load(LANE, begins=begins)

    assert warm.chains.reads == reads


def test_only_lanes_that_were_not_read_for_a_minute_are_read_again(warm: Warm) -> None:
    warm.load(LANE)
    warm.load(LANE, OTHER, after_ms=30_000)
    warm.load(LANE, OTHER, after_ms=30_000)
    warm.positions.forget([OTHER])
    warm.load(LANE, OTHER, after_ms=1)

    assert warm.states.reads == [{LANE}, {OTHER}, {LANE}, {OTHER}]


def test_all_is_forgotten_of_a_lane_whose_head_was_never_read(warm: Warm) -> None:
    """A job has it: only its state is read."""
    warm.states.take(LANE, Lease(holder="backfill-1", until=warm.now + 60_000), now=warm.now)
    warm.load(LANE)

    warm.positions.forget()
    warm.load(LANE)

    assert warm.states.reads == [{LANE}, {LANE}]
    assert warm.chains.reads == 0


def test_a_lane_that_was_never_loaded_is_forgotten_all_the_same(warm: Warm) -> None:
    warm.load(OTHER)

    warm.positions.forget([LANE])
    warm.load(OTHER)

    assert warm.states.reads == [{OTHER}]


# Links below the position


def test_links_are_read_across_resets_that_went_on_where_they_stood_or_beyond(warm: Warm) -> None:
    links: list[Link] = [
        reset(0, 1),
        run(1, 3, (1, 0, 2), generation=1),
        reset(3, 3, generation=1),
        run(3, 5, (3, 4, 2), generation=2),
    ]
    for link in links:
        if isinstance(link, Reset):
            warm.chains.reset(link)
        else:
            warm.chains.prepare([link])
    warm.load(LANE)

    assert warm.positions.links_over(LANE, 0, 4) == links
    assert warm.positions.links_over(LANE, 2, 4) == links[1:]


def test_the_newest_run_is_no_read(warm: Warm) -> None:
    warm.chains.prepare([run(0, 3, (0, 0, 3)), run(3, 5, (3, 4, 2))])
    warm.load(LANE)
    before = warm.chains.reads

    assert warm.positions.links_over(LANE, 3, 4) == [run(3, 5, (3, 4, 2))]
    assert warm.chains.reads == before


def test_a_lane_whose_chain_is_older_than_the_note_that_it_has_begun_gets_that_once(warm: Warm) -> None:
    warm.chains.prepare([run(0, 10, (0, 0, 10))])
    warm.load(LANE, OTHER)

    assert {lane: state.begun for lane, state in warm.states.states.items()} == {LANE: 0}, "a new lane has not begun"

    warm.states.states[LANE] = replace(warm.states.states[LANE], begun=7)
    warm.load(LANE, after_ms=1)
    assert warm.states.states[LANE].begun == 7, "it is not written again while the environment remembers it"


# Lanes that wait

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
