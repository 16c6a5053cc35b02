"""A run of a shard over logs that are not those any more that were copied: cut off and written on, or made anew."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import NO_EPOCH
from mirrorless.copy.pull import PullReport
from mirrorless.lanes.operator_actions import plan_reset
from tests.support.batches import in_batches
from tests.support.documents import MemoryDocuments
from tests.support.protocol_world import NEW, World, lane, others, records, replicate
from tests.support.pulled import PullFunction


def world(*partitions: int) -> World:
    """A source with so many records in each of its partitions."""
    return World({p: records(*range(count)) for p, count in enumerate(partitions)}, markers=False)


def function(there: World, *, raw: bool, name: str = "environment") -> PullFunction:
    pulling = PullFunction(there, random.Random(1), MemoryDocuments(), name, continuous=False)
    pulling.raw = raw
    return pulling


def run(pulling: PullFunction) -> list[str]:
    """A run over the log as it is now, a minute after the one before; its troubles."""
    there = pulling.there
    there.now += 61_000
    if pulling.raw:
        there.batches = {p: in_batches(found, random.Random(2), thinned=0.0) for p, found in there.source.items()}
    return pulling.run().troubles


def copied(there: World | None = None, *, raw: bool) -> tuple[World, PullFunction]:
    """A log of ten records, if no other is given, of which all have been copied."""
    there = there or world(10)
    pulling = function(there, raw=raw)
    run(pulling)
    return there, pulling


def stop_of(there: World, partition: int = 0) -> Stop:
    stop = there.states.states[lane(partition)].stop
    assert stop is not None
    return stop


def carry_out_advice(there: World, partition: int = 0) -> None:
    """What the stop prints, as an operator runs it."""
    printed = re.search(
        rf"`mirrorless lanes reset '.*' orders {partition} --to (\d+) .*--execute`", stop_of(there, partition).detail
    )
    assert printed is not None
    state, head = there.states.states[lane(partition)], there.head(partition)
    plan = plan_reset(lane(partition), head, state, int(printed[1]), reason="as advised", now=there.now)
    if plan.loss is not None:
        there.ledger.note(plan.loss)
    there.chains.reset(plan.link, plan.given_up)
    there.states.resume(lane(partition))


both = pytest.mark.parametrize("raw", [True, False], ids=["by batches", "by records"])


@both
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "another environment"])
@pytest.mark.parametrize(
    ("at", "until"), [(5, 12), (5, 11), (9, 30), (0, 11), (1, 50), (5, 9), (5, 8), (5, 5), (0, 3), (0, 0)]
)
def test_a_log_that_was_cut_off_stops_where_it_parts_however_far_it_grew_and_the_advice_loses_nothing(
    at: int, until: int, *, raw: bool, warm: bool
) -> None:
    there = world(10, 4)
    pulling = function(there, raw=raw)
    run(pulling)
    there.cut_off(0, at, *others(*range(at, until)))
    there.source[1] += records(4, 5)
    pulling = pulling if warm else function(there, raw=raw, name="another")

    run(pulling)

    assert (stop_of(there).reason, stop_of(there).upstream_offset) == ("truncated", at)
    assert there.visible(0) == list(range(10))
    assert there.visible(1) == list(range(6))

    carry_out_advice(there)
    run(pulling)

    assert there.visible(0) == [*range(10), *(NEW + offset for offset in range(at, until))]
    assert there.ledger.read(lane()) == []
    assert there.states.states[lane()].stop is None


def test_a_lane_that_is_followed_while_its_log_is_cut_off_below_stops_within_seconds() -> None:
    there, cut_at = world(10), list[int]()

    def minute(_report: PullReport) -> None:
        if len(there.source[0]) == 10:
            there.source[0] += records(10)  # so that it is followed in the next minute, too
        elif not cut_at:
            cut_at.append(there.now)
            there.cut_off(0, 5)

    pulling = function(there, raw=False)
    pulling.continuous, pulling.on_minute = True, minute
    pulling.invoke()

    assert stop_of(there).upstream_offset == 5
    assert stop_of(there).at - cut_at[0] < 10_000


@both
def test_a_log_that_parts_stays_stopped_when_it_is_resumed_without_a_reset(*, raw: bool) -> None:
    there, pulling = copied(raw=raw)
    there.cut_off(0, 5, *others(*range(5, 12)))
    run(pulling)
    there.states.resume(lane())

    run(pulling)

    assert stop_of(there).upstream_offset == 5
    assert there.visible() == list(range(10))


@both
def test_a_stop_for_another_reason_stands_until_it_is_lifted(*, raw: bool) -> None:
    there, pulling = copied(raw=raw)
    there.cut_off(0, 5, *others(*range(5, 12)))
    held = Stop(reason="held", upstream_offset=10, detail="as ordered", at=there.now)
    there.states.stop(lane(), held)

    run(pulling)

    assert stop_of(there) == replace(held, untrue_from=5)


@both
def test_a_new_leader_that_has_all_of_the_log_changes_nothing(*, raw: bool) -> None:
    there = world(10)
    pulling = function(there, raw=raw)
    for more in (4, 1, 0, 6):
        run(pulling)
        count = len(there.source[0])
        there.epochs[0] = [*there.epochs_of(0), (there.epochs_of(0)[-1][0] + 2, count)]
        there.source[0] += records(*range(count, count + more))

    assert run(pulling) == []
    assert there.visible() == list(range(21))
    there.assert_invariants()


def test_markers_of_another_leader_behind_the_last_record_are_no_sign_of_another_log() -> None:
    there, pulling = copied(World({0: records(0, 2, 4)}), raw=False)  # a marker stands at each odd offset
    there.epochs[0] = [(0, 0), (2, 5)]
    there.source[0] += records(6, 8)

    assert run(pulling) == []
    assert there.visible() == [0, 2, 4, 6, 8]


def test_a_record_in_the_place_of_a_lost_marker_is_not_passed_over() -> None:
    there, pulling = copied(World({0: records(0, 2, 4)}), raw=False)
    there.cut_off(0, 5, *others(5, 6, 8))

    run(pulling)

    assert (stop_of(there).reason, stop_of(there).upstream_offset) == ("truncated", 5)
    assert there.visible() == [0, 2, 4]

    carry_out_advice(there)
    run(pulling)

    assert there.visible() == [0, 2, 4, NEW + 5, NEW + 6, NEW + 8]


@both
def test_a_log_whose_epochs_fell_is_another_one(*, raw: bool) -> None:
    there = world(10)
    there.epochs[0] = [(3, 0), (6, 7)]
    pulling = function(there, raw=raw)
    run(pulling)
    there.source[0] = [*records(*range(4)), *others(*range(4, 15))]
    there.epochs[0] = [(3, 0), (4, 4)]

    run(pulling)

    assert stop_of(there).reason == "truncated"
    assert stop_of(there).upstream_offset <= 4
    assert there.visible() == list(range(10))


@both
def test_a_lane_without_a_leader_is_not_read_until_it_is_known_to_be_the_same(*, raw: bool) -> None:
    there, pulling = copied(raw=raw)
    there.source[0] += records(10, 11)
    pulling.epochs.leaderless.add(("orders", 0))
    run(pulling)
    assert there.visible() == list(range(10))

    pulling.epochs.leaderless.clear()
    run(pulling)

    assert there.visible() == list(range(12))


@both
def test_a_cluster_that_is_too_old_to_say_its_epochs_is_read_all_the_same(*, raw: bool) -> None:
    there = world(10)
    pulling = function(there, raw=raw)
    pulling.epochs.unknown = True
    pulling.known_ids = {"orders": "old"}
    run(pulling)
    there.source[0] += records(10, 11)

    run(pulling)

    assert there.visible() == list(range(12))


@both
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "another environment"])
@pytest.mark.parametrize("count", [11, 40])
def test_nothing_of_a_topic_that_was_made_anew_is_read_behind_the_old_one(count: int, *, raw: bool, warm: bool) -> None:
    there = world(10)
    there.topic_ids = {"orders": "old"}
    pulling = function(there, raw=raw)
    pulling.known_ids = {"orders": "old"}
    run(pulling)
    there.source[0], there.topic_ids = others(*range(count)), {"orders": "new"}
    if not warm:
        pulling = function(there, raw=raw, name="another")
        pulling.known_ids = {"orders": "old"}

    (trouble,) = run(pulling)

    assert "its id was old" in trouble
    assert there.visible() == list(range(10))
    assert there.states.states[lane()].stop is None

    # `topics` has stopped it, the operator has reset it, and its next look knows the new one.
    head = there.head()
    there.states.stop(lane(), Stop(reason="recreated", upstream_offset=0, detail="", at=there.now))
    state = there.states.states[lane()]
    there.chains.reset(plan_reset(lane(), head, state, 0, reason="re-created", now=there.now).link)
    there.states.resume(lane())
    pulling.known_ids = {"orders": "new"}
    run(pulling)

    assert there.visible() == [*range(10), *(NEW + offset for offset in range(count))]


@both
def test_a_topic_that_a_broker_has_not_seen_yet_is_looked_at_again(*, raw: bool) -> None:
    there = world(10)
    pulling = function(there, raw=raw)
    pulling.known_ids = {"orders": "old"}

    assert run(pulling) == []
    assert there.cluster.topics == {}, "nothing was written"
    assert pulling.readings.lanes["orders", 0].free_at == 0

    there.topic_ids = {"orders": "old"}
    run(pulling)
    assert there.visible() == list(range(10))


@both
def test_a_part_of_what_was_read_has_not_the_epoch_of_its_end(*, raw: bool) -> None:
    """With it, a lane would stop where the log parts behind that part."""
    there = world(10)
    there.epochs[0] = [(0, 0), (2, 8)]
    there.cluster.refuses = lambda _, partition, record: (partition, record.value) == (0, b"6")
    pulling = function(there, raw=raw)
    run(pulling)
    assert stop_of(there).reason == "refused"
    assert {each.epoch for each in there.runs()} <= {NO_EPOCH, 0}

    there.cut_off(0, 8, *others(8, 9, 10))
    there.cluster.refuses = lambda *_: False
    there.states.resume(lane())

    assert run(pulling) == []
    assert there.visible() == [*range(8), NEW + 8, NEW + 9, NEW + 10]


def test_what_a_mapping_delivers_again_beyond_the_place_leaves_the_stop_where_it_is() -> None:
    """Its comparison with the map would find the lane's stop in the first record of the batch."""
    there = world(10)
    replicate(there.environment(), there.batch(p0=list(range(10))))
    there.cut_off(0, 5, *others(*range(5, 8)))
    for record in there.source[0][5:]:
        record.timestamp += 10**9
    stop = Stop(reason="truncated", upstream_offset=5, detail="", at=there.now)
    there.states.stop(lane(), stop)

    outcome = replicate(there.environment(), there.batch(p0=list(range(8))))

    assert outcome.stopped == {("orders", 0): stop}
    assert stop_of(there) == stop


def test_what_a_mapping_delivers_again_below_the_place_is_still_held_against_the_map() -> None:
    there = world(10)
    replicate(there.environment(), there.batch(p0=list(range(10))))
    there.source[0] = others(*range(8), more=5)
    there.states.stop(lane(), Stop(reason="truncated", upstream_offset=9, detail="", at=there.now))
    there.source[0][3].timestamp += 10**9

    replicate(there.environment(), there.batch(p0=list(range(8))))

    assert stop_of(there).reason == "contradiction"
