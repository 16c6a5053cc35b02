"""One batch, and what becomes of it where something fails, stops or waits. `test_invariants.py` has all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LaneState, LeftOut, Stop
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import ChainBroken, InDoubt, LostRace, Retriable
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.ports.kafka import LookResult
from mirrorless.protocol import hooks
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.protocol.positions import STATES_MS
from mirrorless.protocol.recovery import settle_doubt, settle_doubts
from mirrorless.protocol.replicate import BatchOutcome
from mirrorless.protocol.transaction import SMALLER
from mirrorless.protocol.translate import OffsetMap, Translation
from mirrorless.records.record import Record, size_of
from tests.support.chains import MemoryChains, MemoryLaneStates, reset
from tests.support.clusters import MemoryTarget, MemoryWriter
from tests.support.protocol_world import REMOTE, TOPIC, T, World, lane, records, replicate, world
from tests.support.schedule import lost_answer

# One batch


def test_a_batch_is_replicated_once_with_its_gaps_in_the_map() -> None:
    there = world([3, 4, 7, 8], [0, 1])

    outcome = replicate(there.environment(), there.whole())

    assert [(run.position, run.next, list(run.gaps())) for run in outcome.runs] == [
        (0, 9, [(0, 3), (5, 7)]),
        (0, 2, []),
    ]
    assert outcome.stopped == {}
    there.assert_invariants()


def test_a_missing_remote_topic_is_created_with_the_sources_partition_count() -> None:
    there = world([1], [2], [3])

    replicate(there.environment(), there.batch(p1=[2]))

    assert len(there.cluster.topics[REMOTE]) == 3


def test_a_remote_topic_that_lacks_just_the_next_partition_grows() -> None:
    there = world([1], [2])
    there.cluster.topics[REMOTE] = [[]]

    replicate(there.environment(), there.batch(p1=[2]))

    assert there.visible(1) == [2]


def test_a_remote_topic_that_does_not_grow_is_retriable(monkeypatch: pytest.MonkeyPatch) -> None:
    there = world([1], [2])
    there.cluster.topics[REMOTE] = [[]]
    monkeypatch.setattr(MemoryTarget, "create_partitions", lambda *_: None)

    with pytest.raises(Retriable, match="has 1 partitions and needs 2"):
        replicate(there.environment(), there.batch(p1=[2]))


def test_the_chain_has_the_events_deadline_whenever_a_run_is_written_or_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: set[tuple[str, bool]] = set()

    def noting(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(chains: MemoryChains, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
            calls.add((name, deadline is not None))
            call(chains, runs, deadline)

        return noted

    for name in ("prepare", "confirm", "withdraw"):
        monkeypatch.setattr(MemoryChains, name, noting(name, getattr(MemoryChains, name)))
    for step in STEPS:
        there = world([1, 2, 5], [0, 3])
        late = there.attempt()
        late.until("settled")
        there.crash(step)
        there.deliver()
        late.finish()
    there = world([1])
    assert len(replicate(there.environment(at_least_once=True), there.whole()).runs) == 1

    assert calls == {("prepare", True), ("confirm", True), ("withdraw", True)}


def test_a_writer_is_opened_ahead_of_the_first_event_where_the_cluster_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def writer(self: MemoryTarget, deadline: Deadline) -> MemoryWriter:
        given.append(deadline())
        if len(given) > 1:
            raise lost_answer()
        return opened(self, deadline)

    opened = MemoryTarget.writer
    monkeypatch.setattr(MemoryTarget, "writer", writer)
    environment = world([1]).environment()

    assert environment.warm_up(4.0)
    assert not environment.warm_up(4.0)
    assert given == [4.0, 4.0]


# Crashes: kill -9 after each of the seven steps


@pytest.mark.parametrize("topics", [1, 2], ids=["one topic", "two topics"])
@pytest.mark.parametrize("before", [[], [1, 2]], ids=["the first batch", "the second batch"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_after_any_step_neither_loses_nor_repeats_a_record(step: Step, before: list[int], topics: int) -> None:
    there = world([1, 2, 5], [0, 3])
    there.topics = topics
    environment = there.environment()
    replicate(environment, there.batch(p0=before))
    there.crash(step, environment=environment)

    there.deliver(there.batch(p0=[2, 5] if before else [1, 2, 5], p1=[0, 3]))
    there.cluster.time_transactions_out()

    assert (there.visible(0), there.visible(1)) == ([1, 2, 5], [0, 3])
    there.assert_invariants()


@pytest.mark.parametrize("step", ["prepared", "committed"])
def test_the_lanes_of_one_crash_cost_one_fence_of_their_writer(step: Step) -> None:
    there = world(*([1, 2] for _ in range(30)))
    there.crash(step)
    (writer,) = there.cluster.epochs

    outcome = replicate(there.environment(), there.whole())

    assert there.cluster.epochs[writer] == 2, "its own, and the fence"
    assert len(outcome.runs) == (30 if step == "prepared" else 0)
    there.assert_invariants()


def test_what_one_witness_shows_holds_for_all_lanes_of_its_transaction() -> None:
    """The witness of the other lane is hidden by an open transaction that no run names."""
    there = world([1, 2], [0, 3])
    nameless = there.attempt(there.batch(p0=[1, 2]))
    nameless.until("produced")
    there.crash("committed")

    assert replicate(there.environment(), there.batch(p0=[1, 2])).runs == []

    assert not any(head.in_doubt for head in there.chains.heads([lane(0), lane(1)]).values())
    there.cluster.time_transactions_out()
    there.assert_invariants()


def test_an_entry_that_is_gone_when_its_doubt_is_settled_stops_its_lanes_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = world([1, 2], [0, 3], [5])
    for batch in (there.batch(p0=[1, 2], p1=[0, 3]), there.batch(p2=[5])):
        there.crash("committed", batch)
    gone, confirm = there.head(1).run, MemoryChains.confirm
    assert gone is not None

    def confirm_others(chains: MemoryChains, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        if any(run.attempt == gone.attempt for run in runs):
            raise ChainBroken("a committed run is no longer in the offset map", where=str(runs[0].lane))
        confirm(chains, runs, deadline)

    monkeypatch.setattr(MemoryChains, "confirm", confirm_others)

    outcome = replicate(there.environment(), there.whole())

    assert {place: stop.reason for place, stop in outcome.stopped.items()} == {
        (TOPIC, 0): "broken",
        (TOPIC, 1): "broken",
    }
    assert [there.head(p).in_doubt for p in range(3)] == [True, True, False]


def test_a_strangers_open_transaction_before_the_witness_leaves_the_run_in_doubt() -> None:
    """A crash between produce and prepare leaves a transaction that no run names; the broker's timeout ends it."""
    there = world([1, 2])
    nameless = there.attempt()
    nameless.until("produced")
    there.crash("committed")

    with pytest.raises(InDoubt, match=r"orders-0 @ 0.*a retry may help"):
        replicate(there.environment(), there.whole())
    assert there.head().in_doubt

    there.cluster.time_transactions_out()
    assert replicate(there.environment(), there.whole()).runs == []
    there.assert_invariants()


# A target that is not what it was


def test_a_run_in_doubt_whose_witness_the_target_has_lost_stops_its_lane_and_no_other() -> None:
    there = world([1, 2], [0, 3])
    there.crash("committed", there.batch(p0=[1, 2]))
    there.cluster.topics[REMOTE] = [[], []]

    for environment in (there.environment(), there.environment()):
        outcome = replicate(environment, there.whole())
        stop = outcome.stopped[TOPIC, 0]
        assert (list(outcome.stopped), stop.reason, stop.upstream_offset) == ([(TOPIC, 0)], "broken", 0)
        assert "ends before its witness" in stop.detail
    assert (there.visible(0), there.visible(1)) == ([], [0, 3])

    plan = plan_reset(lane(), there.head(), there.states.states[lane()], 0, reason="remade", now=T)
    assert plan.given_up is not None
    there.chains.reset(plan.link, plan.given_up)
    there.states.resume(lane())
    assert replicate(there.environment(), there.whole()).stopped == {}
    assert there.visible(0) == [1, 2]


@pytest.mark.parametrize("lost", [[1], [0, 1]])
def test_a_lane_that_lost_its_witness_is_settled_by_the_lane_beside_it_and_named_where_that_has_none(
    lost: list[int],
) -> None:
    there = world([1, 2], [0, 3])
    there.crash("committed")
    for partition in lost:
        del there.cluster.topics[REMOTE][partition][1:]
    doubt = there.head(1).run
    assert doubt is not None

    with (
        pytest.raises(ChainBroken, match=r"ends before its witness us-east.orders-1 @ 1")
        if len(lost) > 1
        else nullcontext()
    ):
        settle_doubt(
            doubt, lambda _: REMOTE, chains=there.chains, target=MemoryTarget(there.cluster, "next"), deadline=nine
        )

    assert [there.head(p).in_doubt for p in (0, 1)] == [len(lost) > 1] * 2


def test_a_lane_that_was_reset_says_nothing_of_the_attempt_that_it_left() -> None:
    """Its witness may be a record of the generation that follows."""
    there = world([1, 2], [0, 3])
    there.crash("prepared")
    there.chains.reset(reset(0, 1, lane=lane(0)), there.chains.heads([lane(0)])[lane(0)].run)

    assert [run.lane for run in there.chains.of_attempts([there.chains.heads([lane(1)])[lane(1)].run])] == [lane(1)]  # type: ignore[list-item]  # there is one


@pytest.mark.parametrize(
    ("lose", "why", "untrue", "left"),
    [
        pytest.param(lambda log: setattr(log[0][1], "record", None), "no longer holds its", None, [1], id="compacted"),
        pytest.param(lambda log: log[0].clear(), "log ends before its", 0, [], id="made anew"),
        pytest.param(lambda log: log.clear(), "log ends before its", 0, [], id="without its partition"),
        pytest.param(lambda log: setattr(log[0][1], "record", records(9)[0]), "another record", 0, [1, 9], id="other"),
    ],
)
def test_a_run_in_doubt_whose_witness_is_not_there_stops_its_lane_and_is_not_written_again(
    lose: Callable[[Any], None], why: str, untrue: int | None, left: list[int]
) -> None:
    there = world([1, 2], [0, 3])
    there.crash("committed", there.batch(p0=[1, 2]))
    lose(there.cluster.topics[REMOTE])

    outcome = replicate(there.environment(), there.whole())

    stop = outcome.stopped[TOPIC, 0]
    assert (list(outcome.stopped), stop.reason, stop.upstream_offset) == ([(TOPIC, 0)], "broken", 0)
    assert why in stop.detail
    assert stop.untrue_from == untrue, "whether the map below the run in doubt still holds"
    assert (there.visible(0), there.visible(1)) == (left, [0, 3])


def two_crashes(step: Step) -> tuple[World, list[Run]]:
    """Lanes of different attempts, in doubt."""
    there = world([1, 2], [0, 3])
    for some in (there.batch(p0=[1, 2]), there.batch(p1=[0, 3])):
        there.crash(step, some)
    heads = there.chains.heads([lane(0), lane(1)])
    return there, [run for each in (lane(0), lane(1)) if (run := heads[each].run) is not None]


def nine() -> float:
    return 9.0


def settle_both(there: World, runs: Sequence[Run]) -> dict[Lane, ChainBroken]:
    target = MemoryTarget(there.cluster, "next")
    return settle_doubts(runs, lambda _: REMOTE, chains=there.chains, target=target, deadline=nine)


@pytest.mark.parametrize(("step", "position"), [("committed", (3, 4)), ("prepared", (0, 0))])
def test_runs_of_several_crashes_are_settled_together(step: Step, position: tuple[int, int]) -> None:
    there, runs = two_crashes(step)

    assert settle_both(there, runs) == {}

    heads = [there.head(p) for p in (0, 1)]
    assert [(head.in_doubt, head.position) for head in heads] == [(False, at) for at in position]
    there.assert_journals()


def test_of_several_crashes_each_lane_is_named_whose_witness_is_gone_and_the_first_that_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, runs = two_crashes("committed")
    seen: list[LookResult] = ["expired"]
    monkeypatch.setattr(MemoryTarget, "look", lambda _, offsets, deadline: dict.fromkeys(offsets, seen[0]))  # noqa: ARG005 -- the port's

    assert settle_both(there, runs).keys() == {lane(0), lane(1)}

    seen[0] = "unsettled"
    with pytest.raises(InDoubt, match=r"orders-0 @ 0: an open transaction hides us-east\.orders-0 @ 1"):
        settle_both(there, runs)


def test_a_lane_without_a_record_is_stopped_with_what_became_of_the_witnesses_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = world([1, 2], [])
    both = Batch.of_topic(TOPIC, {0: there.source[0], 1: []}, {1: 5})  # only markers in the second
    there.crash("prepared", both)
    monkeypatch.setattr(MemoryTarget, "look", lambda _, offsets, deadline: dict.fromkeys(offsets, "expired"))  # noqa: ARG005 -- the port's

    stopped = replicate(there.environment(), both).stopped

    assert [stopped[TOPIC, partition].reason for partition in (0, 1)] == ["broken", "broken"]
    assert stopped[TOPIC, 1].detail == (
        f"{lane(1)} @ 0: a run in doubt has no record of its own, and the target has lost the witnesses of the lanes "
        "beside it (a retry does not help). What to do: reset the lane to its position"
    )


@pytest.mark.parametrize("at_least_once", [False, True])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("fresh", [3, 99])
def test_a_target_that_lost_records_stops_the_lane_and_no_other(
    *, fresh: int, left: int, warm: bool, at_least_once: bool
) -> None:
    """Re-created, or without the records behind the first; seen by the head as remembered, or as read again."""
    there = world([1, 2, fresh], [0, 3])
    environment = there.environment(at_least_once=at_least_once)
    replicate(environment, there.batch(p0=[1, 2]))
    del there.cluster.topics[REMOTE][0][left:]

    again = environment if warm else there.environment(at_least_once=at_least_once)
    for _ in range(2):
        outcome = replicate(again, there.batch(p0=[fresh], p1=[0, 3]))
        stop = outcome.stopped[TOPIC, 0]
        assert (list(outcome.stopped), stop.reason, stop.upstream_offset) == ([(TOPIC, 0)], "broken", 0)
    assert there.states.states[lane()].stop == stop

    assert (there.visible(0), there.visible(1)) == ([1][:left] + [fresh] * at_least_once, [0, 3])
    assert there.head().position == 3
    assert OffsetMap(there.chains).downstream(lane(), 99).state == "ahead_of_replication"


def test_a_lane_with_a_refused_record_is_stopped_by_what_the_target_lost() -> None:
    there = world([1, 2, 5, 6])
    environment = there.environment()
    replicate(environment, there.batch(p0=[1, 2]))
    there.cluster.topics[REMOTE][0].clear()
    refuse(there, 6)

    assert replicate(environment, there.batch(p0=[5, 6])).stopped[TOPIC, 0].reason == "broken"
    assert there.visible() == []


# Zombies: paused after each step while a successor does the whole batch, then going on


def test_a_successor_cannot_prepare_while_the_zombies_run_is_in_doubt() -> None:
    there = world([1, 2])
    zombie, successor = there.attempt(), there.attempt()
    successor.until("settled")
    zombie.until("prepared")

    # Its positions are stale: the zombie prepared after it had read them.
    successor.until("before chains.withdraw")
    assert [run.writer for run in there.chains.of(lane()) if isinstance(run, Run)] == ["environment-1"]

    successor.finish()
    zombie.finish()
    assert isinstance(zombie.error, Retriable)
    assert there.visible() == [1, 2]
    there.assert_invariants()


def test_a_rival_that_is_always_faster_ends_in_a_retriable_error() -> None:
    there = world([*range(50)])
    slow, fast = there.environment(), there.environment()
    losing = there.attempt(there.batch(p0=[*range(50)]), slow)
    for end in range(1, 6):
        losing.until("settled")
        replicate(fast, there.batch(p0=[*range(end)]))
        losing.resume()
    losing.finish()

    assert isinstance(losing.error, LostRace)
    assert "second mapping" in losing.error.hint
    assert losing.error.retriable
    there.cluster.time_transactions_out()
    there.assert_invariants()


# Refusals and orders


@pytest.mark.parametrize("refused", [(), (5,)])
def test_what_is_unclear_to_a_writer_is_aborted_and_written_again(refused: tuple[int, ...]) -> None:
    there = world([1, 2, 5, 6], [0, 3])
    refuse(there, *refused)
    answers = iter([True])
    there.cluster.blurs = lambda _, partition: partition == 1 and next(answers, False)

    outcome = replicate(there.environment(), there.whole())

    assert set(outcome.stopped) == ({(TOPIC, 0)} if refused else set())
    assert (there.visible(0), there.visible(1)) == ([1, 2] if refused else [1, 2, 5, 6], [0, 3])
    there.assert_invariants()


def refuse(there: World, *offsets: int) -> None:
    there.cluster.refuses = lambda _, partition, record: partition == 0 and record.offset in offsets


def test_a_refused_record_stops_its_lane_and_no_other() -> None:
    there = world([1, 2, 5, 6], [0, 3])
    refuse(there, 5)

    outcome = replicate(there.environment(), there.whole())

    stop = Stop(reason="refused", upstream_offset=5, detail="too large", at=T, cause="MSG_SIZE_TOO_LARGE")
    assert outcome.stopped == {(TOPIC, 0): stop}
    assert sorted((run.lane.partition, run.next) for run in outcome.runs) == [(0, 3), (1, 4)]
    assert there.states.states[lane()].stop == stop
    assert (there.visible(0), there.visible(1)) == ([1, 2], [0, 3])
    assert there.head().position == 3


def fits_only_by(there: World, codec: str, *offsets: int) -> None:
    there.cluster.fits = lambda by, record: record.offset not in offsets or by == codec


@pytest.mark.parametrize("codec", SMALLER)
@pytest.mark.parametrize("indexes", [(0,), (1,), (299, 300), (3_000,), (3_999,), (0, 17, 3_999)])
def test_a_record_that_fits_by_its_producers_codec_is_packed_by_the_one_by_which_it_fits(
    indexes: tuple[int, ...], codec: str
) -> None:
    there = world([*range(4_000)], [0, 3])
    fits_only_by(there, codec, *indexes)

    assert replicate(there.environment(), there.whole()).stopped == {}

    assert (there.visible(0), there.visible(1)) == ([*range(4_000)], [0, 3])
    there.assert_invariants()


def test_the_codec_by_which_a_record_fitted_is_used_from_then_on() -> None:
    there = world([*range(10)])
    fits_only_by(there, SMALLER[-1], 2, 7)
    environment = there.environment()
    replicate(environment, there.batch(p0=[0, 1, 2]))
    there.cluster.requests.clear()

    replicate(environment, there.batch(p0=[3, 4, 5, 6, 7, 8, 9]))

    assert there.visible() == [*range(10)]
    assert there.cluster.requests == [7]


@pytest.mark.parametrize("index", [0, 5])
def test_a_record_that_fits_by_no_codec_stops_its_lane(index: int) -> None:
    there = world([*range(8)], [10, 13])
    fits_only_by(there, "a codec of a later Kafka", index)

    stop = replicate(there.environment(), there.whole()).stopped[TOPIC, 0]

    assert (stop.reason, stop.upstream_offset) == ("refused", index)
    assert (there.visible(0), there.visible(1)) == ([*range(index)], [10, 13])
    there.assert_invariants()


def test_a_record_that_is_refused_for_another_reason_is_not_tried_by_other_codecs() -> None:
    there = world([1])
    refuse(there, 1)

    replicate(there.environment(), there.whole())

    assert there.cluster.requests == [1, 1]


@pytest.mark.parametrize("index", [0, 1, 299, 3_000, 3_999])
def test_a_refused_record_among_many_is_found_in_few_requests(index: int) -> None:
    there = world([*range(4_000)])
    refuse(there, index)

    outcome = replicate(there.environment(), there.whole())

    assert (outcome.stopped[TOPIC, 0].reason, outcome.stopped[TOPIC, 0].upstream_offset) == ("refused", index)
    assert there.visible() == [*range(index)]
    assert len(there.cluster.requests) < 90
    there.assert_invariants()
    assert there.head().position == index


def test_records_that_are_only_too_large_together_are_all_written_and_the_next_batch_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    limit = MemoryTarget.limit_batches

    def noted(target: MemoryTarget, refused_bytes: int) -> None:
        given.append(refused_bytes)
        limit(target, refused_bytes)

    monkeypatch.setattr(MemoryTarget, "limit_batches", noted)
    there = world([*range(4_000)], [0, 3])
    there.cluster.batch_bytes = 500
    environment = there.environment()

    assert replicate(environment, there.batch(p0=[*range(3_000)], p1=[0, 3])).stopped == {}
    assert given == [sum(map(size_of, there.source[0][:188]))]
    there.cluster.requests.clear()
    assert replicate(environment, there.batch(p0=[*range(3_000, 4_000)])).stopped == {}

    assert sum(there.cluster.requests) == 1_000
    assert (len(there.visible(0)), there.visible(1)) == (4_000, [0, 3])
    there.assert_invariants()


def test_a_search_that_is_cut_off_continues_from_its_last_commit() -> None:
    there = world([*range(4_000)])
    refuse(there, 3_000)
    there.crash("confirmed")
    begun = there.head().position

    outcome = there.deliver()

    assert begun > 2_000
    assert outcome.stopped[TOPIC, 0].upstream_offset == 3_000
    assert there.visible() == [*range(3_000)]
    there.assert_invariants()


@pytest.mark.parametrize("warm", [True, False])
def test_a_quarantined_record_is_passed_and_stands_in_the_loss_ledger(*, warm: bool) -> None:
    there = world([1, 2, 5, 6])
    refuse(there, 5)
    environment = there.environment()
    replicate(environment, there.whole())

    there.states.quarantine(lane(), *LeftOut.each(5))
    outcome = replicate(environment if warm else there.environment(), there.batch(p0=[2, 5, 6]))

    assert outcome.stopped == {}
    assert there.visible() == [1, 2, 6]
    assert [(loss.first, loss.next, loss.cause) for loss in there.ledger.read(lane())] == [(5, 6, "quarantined")]
    # Delivered once more, it is known: nothing is noted or stopped again.
    assert replicate(there.environment(), there.whole()) == BatchOutcome(runs=[], stopped={})
    assert len(there.ledger.read(lane())) == 1


def test_each_of_several_refused_records_stops_the_lane_in_turn() -> None:
    there = world([1, 2, 5, 6])
    refuse(there, 1, 5)

    assert replicate(there.environment(), there.whole()).stopped[TOPIC, 0].upstream_offset == 1
    there.states.quarantine(lane(), *LeftOut.each(1))
    assert replicate(there.environment(), there.whole()).stopped[TOPIC, 0].upstream_offset == 5
    there.states.quarantine(lane(), *LeftOut.each(5))
    assert replicate(there.environment(), there.whole()).stopped == {}
    assert there.visible() == [2, 6]


def test_a_topic_that_was_created_again_stops_the_lane_at_its_first_record() -> None:
    there = world([*range(10)])
    environment = there.environment()
    replicate(environment, there.whole())
    there.source[0] = [Record(offset=o, timestamp=T + 900 + o, headers=[], value=b"%d" % o) for o in range(3)]

    for each in (environment, there.environment()):
        outcome = replicate(each, there.whole())

        assert outcome.stopped[TOPIC, 0].reason == "contradiction"
        assert outcome.stopped[TOPIC, 0].upstream_offset == 0
    assert len(there.visible()) == 10


def test_what_a_contradiction_stopped_is_not_passed_in_smaller_batches() -> None:
    """The check has a run's last record and its timestamps only; the records before it are not proven by silence."""
    there = world([*range(10)])
    replicate(there.environment(), there.whole())
    there.source[0] = [Record(offset=o, timestamp=T + 5, headers=[], value=b"new") for o in range(11)]

    first = replicate(there.environment(), there.batch(p0=[4, 5, 6, 7, 8, 9]))
    again = replicate(there.environment(), there.batch(p0=[4, 5]))

    assert first.stopped[TOPIC, 0].upstream_offset == again.stopped[TOPIC, 0].upstream_offset == 4


def test_what_was_replicated_before_a_reset_is_still_held_against_its_old_chain() -> None:
    there = world([*range(12)])
    replicate(there.environment(), there.batch(p0=[0, 1, 2]))
    there.chains.reset(reset(3, 3, lane=lane()))
    there.source[0] = [Record(offset=o, timestamp=T + 900, headers=[], value=b"new") for o in range(12)]

    outcome = replicate(there.environment(), there.whole())

    assert outcome.stopped[TOPIC, 0].upstream_offset == 0


def test_after_a_reset_that_went_back_nothing_below_it_is_taken_for_replicated() -> None:
    """The records before the reset were another topic's."""
    there = world([*range(12)])
    replicate(there.environment(), there.whole())
    there.chains.reset(reset(12, 5, lane=lane()))

    assert replicate(there.environment(), there.batch(p0=[5, 6, 7])).stopped == {}
    assert replicate(there.environment(), there.batch(p0=[4, 5, 6])).stopped[TOPIC, 0].upstream_offset == 4


@pytest.mark.parametrize("refused", [(), (5,)])
@pytest.mark.parametrize(
    "batches", [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3, 4, 5]], [[1, 2], [3, 4, 5]], [[3, 4, 5]]], ids=str
)
def test_an_environment_that_was_warm_before_a_reset_takes_nothing_of_the_old_generation_for_replicated(
    batches: list[list[int]], refused: tuple[int, ...]
) -> None:
    """The remote topic was created again: what the old chain has is gone, and the reset has it copied again.

    Its memory has a newest record beyond the new topic's end; the lane's newest generation has none.
    """
    there = world([*range(6)])
    warm = there.environment()
    replicate(warm, there.batch(p0=[0, 1, 2]))
    there.cluster.topics[REMOTE][0].clear()
    there.chains.reset(reset(3, batches[0][0], lane=lane()))
    refuse(there, *refused)

    stops = [stop.reason for batch in batches for stop in replicate(warm, there.batch(p0=batch)).stopped.values()]

    assert stops == ["refused"] * len(refused)
    assert there.visible() == [offset for batch in batches for offset in batch if offset not in refused]


@pytest.mark.parametrize("step", ["planned", "produced", "settled"])
def test_a_batch_on_its_way_when_its_lane_is_reset_is_not_written_into_the_new_generation(
    monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """The reset went back to 0: records from 3 on, written there, would hide that 0 to 2 are missing."""
    there = world([*range(6)])
    warm = there.environment()
    replicate(warm, there.batch(p0=[0, 1, 2]))
    resets = iter([reset(3, 0, lane=lane())])

    def operator(reached: Step) -> None:
        if reached == step:
            for link in resets:
                there.chains.reset(link)

    monkeypatch.setattr(hooks, "observers", [*hooks.observers, operator])

    with pytest.raises(Retriable, match="reset while this batch was on its way"):
        replicate(warm, there.batch(p0=[3, 4, 5]))

    assert list(resets) == []
    assert there.visible() == [0, 1, 2]
    assert replicate(warm, there.batch(p0=[*range(6)])).stopped == {}
    assert there.visible() == [0, 1, 2, *range(6)]


@pytest.mark.parametrize("to", [0, 7])
def test_a_quarantine_order_of_the_old_generation_leaves_out_nothing_of_the_new_one(to: int) -> None:
    """It named a record of another topic; a warm environment remembers orders for a minute."""
    there = world([*range(12)])
    warm = there.environment()
    there.states.states[lane()] = LaneState(quarantine=LeftOut.each(2, 8))
    replicate(warm, there.batch(p0=[0, 1, 2, 3, 4]))
    there.chains.reset(reset(5, to, lane=lane()))
    there.states.states[lane()] = LaneState()

    replicate(warm, there.batch(p0=[*range(to, 12)]))

    assert there.visible() == [0, 1, 3, 4, *range(to, 12)]


# Jobs beside forwarders


def test_a_lane_that_a_job_has_waits_and_the_others_go_on() -> None:
    there = world([1, 2, 5], [0, 3])
    there.lease()

    outcome = replicate(there.environment(), there.whole())

    assert outcome.stopped == {}
    assert {place: each.upstream_offset for place, each in outcome.waiting.items()} == {(TOPIC, 0): 1}
    assert (there.visible(0), there.visible(1)) == ([], [0, 3])
    assert there.states.states[lane()].waiting == 1
    assert there.states.states[lane()].stop is None


def test_what_waited_goes_on_where_the_job_has_let_go_with_nothing_lost_or_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = world([1, 2, 5, 7, 9])
    noted: list[int | None] = []
    wait = there.states.wait

    def note(_: MemoryLaneStates, each: Lane, offset: int | None) -> None:
        noted.append(offset)
        wait(each, offset)

    monkeypatch.setattr(MemoryLaneStates, "wait", note)
    warm = there.environment()
    there.lease()
    assert replicate(warm, there.batch(p0=[5, 7])).waiting

    replicate(there.environment(job="backfill-1"), there.chunk(0, 5))
    assert not there.states.let_go(lane(), "backfill-1", position=4)
    assert there.states.let_go(lane(), "backfill-1", position=5)

    assert replicate(warm, there.batch(p0=[5, 7])).waiting == {}
    assert there.states.states[lane()].waiting is None
    assert replicate(warm, there.batch(p0=[9])).waiting == {}
    assert noted == [5, None], "it is noted once that the lane went on"
    assert there.visible() == [1, 2, 5, 7, 9]
    there.assert_invariants()


def test_a_job_is_not_fenced_by_a_delivery_that_waits_for_it() -> None:
    """Its newest run is in doubt only to others; to settle it would end the job's transaction."""
    there = world([1, 2, 5, 7])
    there.lease()
    job = there.attempt(there.chunk(0, 5), there.environment(job="backfill-1"))
    job.until("prepared")

    assert replicate(there.environment(), there.batch(p0=[5, 7])).waiting
    job.finish()

    assert job.error is None
    assert there.visible() == [1, 2]
    there.assert_invariants()


@pytest.mark.parametrize(("order", "kept"), [("none", []), ("hold", [0]), ("fence", [0, 1])])
def test_an_order_is_kept_by_an_event_that_began_before_it_and_takes_longer_than_a_state_is_remembered(
    order: str, kept: list[int]
) -> None:
    """A reconcile that looked meanwhile would have brought its records back to the source as new ones."""
    there = world([1, 2, 5], [0, 3])
    slow = there.attempt()
    slow.until("settled")
    stop = Stop(reason="held", upstream_offset=0, detail="failover", at=there.now)
    if order == "hold":
        there.states.stop(lane(), stop)
    if order == "fence":
        there.states.stop_flow(lane().flow, stop)

    there.now += 10 * STATES_MS
    slow.finish()

    assert {place: stop.reason for place, stop in slow.result.stopped.items()} == {(TOPIC, p): "held" for p in kept}
    assert [there.visible(p) for p in (0, 1)] == [[] if p in kept else at for p, at in enumerate(([1, 2, 5], [0, 3]))]
    assert order != "none" or len(there.cluster.requests) == 2, "one batch for each lane"
    assert order != "fence" or not there.states.states, "nothing is written for a lane"
    there.states.resume_flow(lane().flow)
    there.states.resume(lane())
    assert not replicate(there.environment(), there.whole()).stopped
    there.assert_invariants()


def test_a_dead_jobs_lease_keeps_a_lane_no_longer_than_its_term() -> None:
    there = world([1, 2, 5, 7])
    warm = there.environment()
    there.lease(seconds=60)
    there.crash("committed", there.chunk(0, 5), there.environment(job="backfill-1"))

    there.now += 59_999
    assert replicate(warm, there.whole()).waiting
    there.now += 1
    assert replicate(warm, there.whole()).waiting == {}

    assert there.visible() == [1, 2, 5, 7]
    there.assert_invariants()


def test_a_lane_of_a_flow_that_starts_with_a_backfill_waits_until_its_history_is_there() -> None:
    there = world([*range(9)], [*range(3)])
    there.history_first = True
    warm = there.environment()

    outcome = replicate(warm, there.batch(p0=[6, 7], p1=[0, 1]))
    assert {place: each.upstream_offset for place, each in outcome.waiting.items()} == {(TOPIC, 0): 6}
    assert there.visible(1) == [0, 1]
    there.lease()
    assert replicate(warm, there.batch(p0=[6, 7])).waiting
    replicate(there.environment(job="backfill-1"), there.chunk(0, 6))
    there.states.let_go(lane(), "backfill-1", position=6)

    assert replicate(warm, there.batch(p0=[6, 7])).waiting == {}
    assert there.visible() == [*range(8)]
    there.assert_invariants()


def test_a_mapping_that_begins_further_behind_after_a_job_leaves_nothing_out() -> None:
    """Without a committed offset, pollers that restart begin at the end, which is not where they were."""
    there = world([*range(20)])
    warm = there.environment()
    there.lease()
    replicate(warm, there.batch(p0=[6, 7]))
    replicate(there.environment(job="backfill-1"), there.chunk(0, 6))
    there.states.let_go(lane(), "backfill-1", position=6)

    outcome = replicate(warm, there.batch(p0=[15, 16]))
    assert outcome.waiting[TOPIC, 0].upstream_offset == 15
    assert there.visible() == [*range(6)]

    there.lease(job="backfill-2")
    assert replicate(warm, there.batch(p0=[15, 16])).waiting
    replicate(there.environment(job="backfill-2"), there.chunk(6, 15))
    assert there.states.let_go(lane(), "backfill-2", position=15)
    replicate(warm, there.batch(p0=[15, 16]))
    assert there.visible() == [*range(17)]
    there.assert_invariants()


def test_an_operator_may_let_a_lane_go_on_where_its_mapping_is() -> None:
    there = world([*range(20)])
    there.lease()
    replicate(there.environment(), there.batch(p0=[6, 7]))
    replicate(there.environment(job="backfill-1"), there.chunk(0, 6))
    there.states.let_go(lane(), "backfill-1", position=6)
    assert replicate(there.environment(), there.batch(p0=[15])).waiting

    there.states.resume(lane())

    assert [[*run.gaps()] for run in replicate(there.environment(), there.batch(p0=[15])).runs] == [[(6, 15)]]


# At least once


def test_at_least_once_writes_without_transactions_and_keeps_the_same_map() -> None:
    there = world([1, 2, 5], [0])
    environment = there.environment(at_least_once=True)

    replicate(environment, there.whole())
    replicate(environment, there.whole())

    there.assert_invariants()


def test_at_least_once_repeats_only_what_stood_between_produce_and_put() -> None:
    there = world([1, 2])
    there.crash("produced", environment=there.environment(at_least_once=True))

    replicate(there.environment(at_least_once=True), there.whole())

    assert there.visible() == [1, 2, 1, 2]
    assert OffsetMap(there.chains).downstream(lane(), 1) == Translation(offset=2, state="exact")


def test_at_least_once_does_not_write_a_lane_again_because_another_was_refused() -> None:
    there = world([1, 2], [0, 3])
    refuse(there, 2)

    outcome = replicate(there.environment(at_least_once=True), there.whole())

    assert outcome.stopped[TOPIC, 0].upstream_offset == 2
    assert there.visible(1) == [0, 3]


def test_one_transaction_carries_the_lanes_of_two_topics() -> None:
    there = world([3, 4], [0, 1])
    there.topics = 2

    outcome = replicate(there.environment(), there.whole())

    assert {str(run.lane) for run in outcome.runs} == {str(there.lane(0)), str(there.lane(1))}
    assert len({run.attempt for run in outcome.runs}) == 1
    assert [entry.state for log in there.cluster.topics.values() for entry in log[0]].count("marker") <= 1
    assert {topic: len(partitions) for topic, partitions in there.cluster.topics.items()} == {
        "us-east.orders": 2,
        "us-east.payments": 2,
    }
    there.assert_invariants()


def test_a_refused_record_of_one_topic_stops_its_lane_and_the_other_topics_go_on() -> None:
    there = world([1, 2, 5], [0, 3])
    there.topics = 2
    there.cluster.refuses = lambda topic, _, record: topic == "us-east.payments" and record.offset == 3

    outcome = replicate(there.environment(), there.whole())

    assert {place: stop.upstream_offset for place, stop in outcome.stopped.items()} == {("payments", 1): 3}
    assert (there.visible(0), there.visible(1)) == ([1, 2, 5], [0])


# Orders for many records


@pytest.mark.parametrize("names_records", [True, False])
def test_ten_thousand_refused_records_are_left_out_by_one_small_order(*, names_records: bool) -> None:
    """A topic that became compact: three of four records have no key."""
    count = 10_000 if names_records else 400
    there = world(list(range(count)))
    there.cluster.refuses = lambda _topic, _partition, record: record.offset % 4 != 3
    there.cluster.names_records, there.cluster.cause = names_records, "INVALID_RECORD"
    environment = there.environment()
    assert replicate(environment, there.whole()).stopped[TOPIC, 0].cause == "INVALID_RECORD"
    order = LeftOut(first=0, next=count, cause="INVALID_RECORD", why="without a key")
    there.states.quarantine(lane(), order)

    assert replicate(environment, there.whole()).stopped == {}

    assert there.visible() == list(range(3, count, 4))
    losses = there.ledger.read(lane())
    assert [(loss.first, loss.next) for loss in losses] == [(at, at + 3) for at in range(0, count, 4)]
    assert {(loss.cause, loss.detail) for loss in losses} == {
        ("quarantined", "left out on the operator's order: without a key")
    }
    assert there.states.states[lane()].quarantine == (order,), "whatever it left out"
    if names_records:
        assert len(there.cluster.requests) < 50


INVALID, TOO_LARGE = "INVALID_RECORD", "MSG_SIZE_TOO_LARGE"


@pytest.mark.parametrize(
    ("order", "refused", "cause", "stops_at", "expected"),
    [
        pytest.param(LeftOut(first=0, next=99, cause=INVALID), (2, 6), TOO_LARGE, 2, ([1], []), id="for another cause"),
        pytest.param(LeftOut(first=2, next=7), (2, 6, 8), TOO_LARGE, 8, ([1, 7], [(2, 3), (5, 7)]), id="for any cause"),
        pytest.param(LeftOut(first=1, next=6, cause=INVALID), (1, 2, 6), INVALID, 6, ([5], [(1, 3)]), id="before it"),
    ],
)
def test_an_order_leaves_out_what_it_covers_and_only_offsets_that_had_a_record_are_losses(
    order: LeftOut, refused: tuple[int, ...], cause: str, stops_at: int, expected: tuple[list[int], list[Any]]
) -> None:
    there = world([1, 2, 5, 6, 7, 8], [0])
    refuse(there, *refused)
    there.cluster.names_records, there.cluster.cause = cause == INVALID, cause
    there.states.quarantine(lane(), order)

    stop = replicate(there.environment(), there.whole()).stopped[TOPIC, 0]

    losses = [(loss.first, loss.next) for loss in there.ledger.read(lane())]
    assert (stop.upstream_offset, stop.cause) == (stops_at, cause)
    assert (there.visible(0), losses) == expected
    assert there.visible(1) == [0]


def test_a_batch_that_nobody_can_read_is_not_passed_in_a_generation_in_which_it_was_not_met() -> None:
    """Its lane was reset meanwhile, to below it: what lies between would be passed too."""
    there = world(list(range(10)))
    environment = there.environment()
    replicate(environment, there.batch(p0=[0, 1, 2]))
    there.chains.beside().reset(reset(3, 0))
    passed = Batch(records={(TOPIC, 0): []}, covered={(TOPIC, 0): 6}, left_out={(TOPIC, 0): (3, 6)})

    with pytest.raises(Retriable, match="was reset while"):
        there.environment().replicate(passed, request="r", deadline=lambda: 30.0, generations={lane(): 0})

    assert there.ledger.read(lane()) == []
    assert there.chains.beside().heads([lane()])[lane()].position == 0
