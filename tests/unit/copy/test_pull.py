"""A run of a shard: which lanes it leaves alone after a failure, and what it reports."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import pytest

from mirrorless.chain.lane_state import RUNNING, LaneState, LeftOut, Stop, StopReason
from mirrorless.clock import Deadline
from mirrorless.copy.pull import REPLICATE_SECONDS, PullReport, PullRun
from mirrorless.copy.readings import Readings
from mirrorless.copy.shards import ShardLease
from mirrorless.errors import ChainBroken, NotAcknowledged, Retriable
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.ports.kafka import Delivery, OffsetAndMetadata, TopicPartition
from mirrorless.ports.log import Arrivals
from mirrorless.protocol import hooks
from mirrorless.protocol.hooks import Step
from mirrorless.protocol.portions import BATCH_BYTES, TransactionBytes
from mirrorless.records.batch_records import records as records_of
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch
from tests.support.batches import batch_of
from tests.support.chains import FLOW
from tests.support.clusters import MemoryTarget, MemoryWriter
from tests.support.documents import MemoryDocuments
from tests.support.memory_log import MemoryPartition
from tests.support.protocol_world import World, lane, records, replicate
from tests.support.protocol_world import records as some
from tests.support.pulled import NoGroups, PullFunction, WorldLog


def function(there: World, *, continuous: bool = False) -> PullFunction:
    return PullFunction(there, random.Random(1), MemoryDocuments(), "environment", continuous)


def world(*partitions: list[int]) -> World:
    return World({partition: records(*offsets) for partition, offsets in enumerate(partitions)}, topics=2)


Lanes = Mapping[TopicPartition, Sequence[Record]]


def before_each_write(monkeypatch: pytest.MonkeyPatch, act: Callable[[Lanes], None]) -> None:
    """Let this happen to the records of each transaction, which fails where it raises."""
    write = MemoryWriter.write

    def acting(
        writer: MemoryWriter, lanes: Lanes, deadline: Deadline, meanwhile: object
    ) -> dict[TopicPartition, Delivery]:
        act(lanes)
        return write(writer, lanes, deadline, meanwhile)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(MemoryWriter, "write", acting)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (NotAcknowledged("no leader", partitions=[("us-east.orders", 2)]), "no leader (a retry may help)."),
        (Retriable("no answer"), None),  # the lane is found by smaller transactions
        (ChainBroken("a run is no longer in the map"), "a run is no longer in the map (a retry does not help)."),
    ],
    ids=["not acknowledged", "without a name", "a contradiction of the map"],
)
def test_a_lane_of_which_nothing_comes_through_holds_up_no_other(
    error: Exception, trouble: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world([0, 2, 4], [0], [0, 2], [0])

    def fail(lanes: Lanes) -> None:
        if ("us-east.orders", 2) in lanes:
            raise error

    before_each_write(monkeypatch, fail)

    report = function(there).run()

    assert [there.visible(partition) for partition in (0, 1, 3)] == [[0, 2, 4], [0], [0]]
    if trouble is not None:
        assert (report.ended, report.troubles) == ("drained", [trouble])


def test_a_link_that_is_too_slow_for_a_full_transaction_brings_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one lane alone has the backlog, which no division among lanes makes smaller."""
    large, most = 900_000, BATCH_BYTES * 3 // 16
    there, sizes = world([*range(0, 80, 2)]), list[int]()
    for record in there.source[0]:
        record.value = (record.value or b"").ljust(large)

    def slow(lanes: Lanes) -> None:
        sizes.append(sum(len(each.value or b"") for records in lanes.values() for each in records))
        there.now += int(REPLICATE_SECONDS * 1000 * min(1, sizes[-1] / most))
        if sizes[-1] > most:
            raise NotAcknowledged("no answer in time", partitions=lanes)

    before_each_write(monkeypatch, slow)

    pulling = function(there)
    for _ in range(6):
        pulling.invoke()
        there.now += 60_000  # the lane was left alone for a while

    assert there.visible(0) == list(range(0, 80, 2))
    assert max(sizes) > most


def test_a_target_that_takes_nothing_ends_the_run_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    there = world([0], [0])
    monkeypatch.setattr(MemoryTarget, "writer", lambda *_: (_ for _ in ()).throw(Retriable("the target is gone")))
    pulling = function(there, continuous=True)

    with pytest.raises(Retriable, match="the target is gone"):
        pulling.invoke()

    assert pulling.documents.leases == {}


def test_after_failures_in_a_row_a_lane_is_left_alone_for_longer_each_time() -> None:
    readings, place = Readings(), ("orders", 0)
    readings.only([place])

    waits, now = [], 0.0
    for _ in range(10):
        for _ in range(2):  # noted twice, it is one failure
            readings.failed([place], [place], now)
        waits.append(readings.lanes[place].free_at - now)
        now = readings.lanes[place].free_at

    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert readings.idle(now - 0.1) == []
    assert readings.idle(now) == [place]


def test_what_comes_after_a_full_transaction_waits_for_its_window_and_no_longer() -> None:
    """As behind a record of 20 MB: its journal was never due again."""
    there = world(list(range(30)))
    pulling = function(there)
    pulling.replicator.size = TransactionBytes(20, 20)
    began = there.now

    report = pulling.run()

    assert (report.ended, there.visible(0)) == ("drained", list(range(30)))
    assert there.now - began < 10_000


def test_a_transaction_that_failed_is_tried_in_eighths() -> None:
    readings = Readings()
    places = [("orders", partition) for partition in range(16)]
    readings.only(places)

    readings.failed(places, [], 0.0)

    assert [len(batch) for batch in readings.batches(places)] == [2] * 8


def test_a_run_that_lasts_reports_each_minute() -> None:
    there = world([0])
    pulling = function(there, continuous=True)
    minutes: list[int] = []
    pulling.on_minute = lambda report: minutes.append(report.records)

    report = pulling.run()

    assert report.ended == "time"
    assert minutes == [1] * 4


@pytest.mark.parametrize("reason", ["fence", "held", "contradiction"])
def test_a_run_that_lasts_reports_what_keeps_a_lane_until_that_is_over(reason: StopReason | Literal["fence"]) -> None:
    there = world([0])
    if reason == "fence":
        there.states.stop_flow(
            FLOW, Stop(reason="held", upstream_offset=0, detail="a failback ends that", at=there.now)
        )
    else:
        stop = Stop(reason=reason, upstream_offset=0, detail="a failback ends that", at=there.now)
        there.states.states[lane()] = LaneState(stop=stop)
    pulling = function(there, continuous=True)
    minutes: list[list[str]] = []

    def minute(report: PullReport) -> None:
        minutes.append(list(report.troubles))
        if len(minutes) == 2:
            there.states.resume_flow(FLOW)
            there.states.states.clear()

    pulling.on_minute = minute

    report = pulling.invoke()

    said = ["us-east->eu-west orders-0 @ 0: a failback ends that"]
    assert minutes[:2] == [said] * 2, "it was tried again, and is there"
    assert report is not None
    assert report.troubles == []
    assert there.visible(0) == [0]


def test_lanes_beyond_those_that_are_read_at_the_same_time_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes at their end give way first, then an eighth of the busy ones, those that moved last."""
    monkeypatch.setattr("mirrorless.copy.readings.FOLLOWED", 16)
    readings = Readings()
    places = [("orders", partition) for partition in range(24)]
    readings.only(places)
    readings.follow(places[:16])
    for partition, place in enumerate(places[:16]):
        readings.begin(place, 0, generation=0)
        readings.went_well(place, 1, float(partition), ended=1 if partition in (3, 4) else None)

    assert readings.in_the_way(0) == []
    assert set(readings.in_the_way(1)) < {places[3], places[4]}
    assert readings.in_the_way(8)[2:] == [places[15], places[14]]
    assert {*readings.in_the_way(8)[:2]} == {places[3], places[4]}


def test_lanes_that_are_behind_come_in_the_order_in_which_they_moved() -> None:
    readings = Readings()
    places = [("orders", partition) for partition in range(3)]
    readings.only(places)
    for place, moved_at in zip(places, (5.0, 1.0, 3.0), strict=True):
        readings.begin(place, 0, generation=0)
        readings.went_well(place, 10, moved_at)

    assert list(readings.behind(dict.fromkeys(places, 12))) == [places[1], places[2], places[0]]
    assert readings.behind({places[0]: 10, places[1]: 9}) == {}


def test_a_run_in_a_warm_environment_reads_what_an_earlier_one_had_followed() -> None:
    """One that ended for its time had not read that lane to its end, and its consumer is gone."""
    there = world([0])
    pulling = function(there)
    pulling.readings.only([("orders", 0)])
    pulling.readings.begin(("orders", 0), 0, generation=0)
    pulling.readings.follow([("orders", 0)])

    report = pulling.run()

    assert (report.ended, report.records) == ("drained", 1)


def test_a_new_lane_waits_while_the_source_does_not_show_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first record it would bring what the flow's start leaves out."""
    there = world([0], [0])
    monkeypatch.setattr(NoGroups, "hidden", frozenset({"group-of-payments"}))

    report = function(there).run()

    assert report.records == 1
    assert report.troubles == ["the source does not show where these topics begin, and they wait: payments"]


@pytest.mark.parametrize("forgets", ["nothing", "positions"])
@pytest.mark.parametrize(("to", "arrived"), [(0, [0, 2, 4, 0, 2, 4, 20, 22]), (22, [0, 2, 4, 22])])
def test_a_lane_that_was_reset_is_read_from_there_though_the_run_is_warm(
    to: int, arrived: list[int], forgets: str
) -> None:
    """A failure of any lane drops the remembered positions: what is read on would be taken for what follows."""
    there = world([0, 2, 4], [0])
    pulling = function(there)
    pulling.invoke()
    lane = there.lane(0)
    plan = plan_reset(lane, there.chains.heads([lane])[lane], RUNNING, to, reason="test", now=there.now)
    there.chains.reset(plan.link)
    if forgets == "positions":
        pulling.replicator.forget()
    there.source[0] += records(20, 22)

    pulling.invoke()
    there.now += 2_000  # one lane that fails alone is left alone for a second
    pulling.invoke()

    assert there.visible(0) == arrived


def test_a_lane_that_was_reset_is_read_from_there_though_the_run_before_crashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment still has the place at which that run began, which lies before the reset's."""
    there = world([0, 2, 4], [0])
    pulling = function(there)
    crashes = iter([RuntimeError("crashed")])

    def crash(step: Step) -> None:
        if step == "confirmed":
            for error in crashes:
                raise error

    monkeypatch.setattr(hooks, "observers", [*hooks.observers, crash])
    with pytest.raises(RuntimeError):
        pulling.invoke()
    lane, copied = there.lane(0), there.visible(0)
    plan = plan_reset(lane, there.chains.heads([lane])[lane], RUNNING, 2, reason="test", now=there.now)
    there.chains.reset(plan.link)

    there.now += 60_000  # the lease of the run that crashed
    pulling.invoke()
    there.now += 2_000
    pulling.invoke()

    assert lane not in there.states.states or there.states.states[lane].stop is None
    assert there.visible(0) == [*copied, 2, 4]


def by_batches(*batches: RecordBatch) -> PullFunction:
    """A run over these batches of a lane, and one batch of another lane."""
    other = batch_of(records(0, 1))
    lanes = {0: list(batches), 1: [other]}
    there = World({p: [each for one in found for each in records_of(one)] for p, found in lanes.items()})
    there.batches = lanes
    pulling = function(there)
    pulling.raw = True
    return pulling


def arrive_with(monkeypatch: pytest.MonkeyPatch, **news: object) -> None:
    """Let each arrival of batches come with this, once its lane is followed."""
    arrivals = WorldLog.arrivals

    def more(log: WorldLog, seconds: float, *, records: int, size: int) -> Arrivals:
        found = arrivals(log, seconds, records=records, size=size)
        if ("orders", 0) in log.at:
            for name, value in news.items():
                setattr(found, name, {("orders", 0): value})
        return found

    monkeypatch.setattr(WorldLog, "arrivals", more)


def test_a_lane_whose_log_was_cut_off_while_it_was_read_is_read_anew_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What parts may be only what was read and not written; where it is more, the next reading does not begin."""
    pulling = by_batches(batch_of(records(0, 1, 2)))
    arrive_with(monkeypatch, truncated=2)
    pulling.there.batches[0].append(batch_of(records(3, 4)))
    pulling.there.source[0] += records(3, 4)

    report = pulling.run()

    assert report.troubles == ["us-east->eu-west orders-0: the source's log was cut off while it was read"]
    assert pulling.there.states.states[lane()].stop is None
    assert (pulling.there.visible(0), pulling.there.visible(1)) == ([0, 1, 2, 3, 4], [0, 1])


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_log_of_an_old_format_is_read_by_records_at_once_whoever_goes_on(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a second run of the same environment, with nothing in the status."""
    pulling = by_batches(batch_of(records(0, 1, 2)), *(batch_of(records(0, 1)) for _ in range(partitions - 1)))
    begun = pulling.there.now
    with monkeypatch.context() as patch:
        arrive_with(patch, unreadable=BatchUnreadable("it is old", offset=3, old_format=True))
        first = pulling.run()
    assert pulling.readings.lanes["orders", 0].tally.by_client
    pulling.raw, pulling.there.batches, pulling.there.markers = False, {}, False
    pulling.there.source[0] += records(3, 4)

    second = pulling.run()

    assert (first.ended, second.ended) == ("old format", "drained")
    assert pulling.there.visible(0) == [0, 1, 2, 3, 4]
    assert pulling.there.now - begun < 30_000


def test_a_lane_that_begins_inside_a_batch_is_copied_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pulling = by_batches(batch_of(records(0, 1, 2)), batch_of(records(3, 4)))
    begun = {("orders", 0): OffsetAndMetadata(1), ("orders", 1): OffsetAndMetadata(0)}
    monkeypatch.setattr(NoGroups, "committed", lambda *_: {"group-of-orders": begun})

    pulling.invoke()

    assert pulling.there.visible() == [1, 2, 3, 4]


def test_a_run_by_batches_says_which_bytes_passed() -> None:
    pulling = by_batches(batch_of(records(*range(20))), batch_of(records(20, 22)))

    report = pulling.run()

    assert 0 < report.passed_bytes < report.bytes


def test_a_lane_is_looked_at_less_often_the_longer_it_is_silent_and_each_five_seconds_at_least() -> None:
    readings, place = Readings(), ("orders", 0)
    readings.only([place])
    readings.lanes[place].moved_at = 1_000.0
    looks = [now / 10 for now in range(10_600, 14_000) if readings.due([place], now / 10)]

    pauses = [round(after - before, 1) for before, after in itertools.pairwise(looks)]
    assert looks[0] == 1_060.0
    assert pauses[0] == 2.1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_a_lane_that_waits_for_its_turn_and_one_that_was_followed_are_looked_at_the_next_time() -> None:
    readings, waiting, followed = Readings(), ("orders", 0), ("orders", 1)
    readings.only([waiting, followed])
    assert readings.due([waiting, followed], 1_000.0) == [waiting, followed]
    assert not readings.due([waiting, followed], 1_001.0)

    readings.look_again([waiting])
    readings.follow([followed])

    assert readings.due([waiting, followed], 1_001.0) == [waiting, followed]


def test_a_continuous_run_lists_silent_lanes_each_few_seconds_and_finds_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = world([], [], [])
    listed: list[tuple[int, int]] = []
    stable_ends = WorldLog.stable_ends

    def noted(log: WorldLog, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        wanted = list(places)
        listed.append((there.now, len(wanted)))
        if len(listed) == 20:
            there.source[0] += records(0)
        return stable_ends(log, wanted, deadline)

    monkeypatch.setattr(WorldLog, "stable_ends", noted)

    report = function(there, continuous=True).run()

    assert report.records == 1
    assert there.visible(0) == [0]
    seconds = (listed[-1][0] - listed[0][0]) / 1000
    lanes = sum(count for _, count in listed)
    assert 3 * seconds / 5 < lanes < 3 * seconds / 2  # of three lanes, each second at first, then more and more rarely


def test_a_lane_of_which_records_wait_for_their_window_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log had ended before they came: left and followed anew, they would be read again and again."""
    there = world([0], list(range(0, 1_000, 2)))  # of which the second does not end before the next look
    pulling = function(there)
    pulling.window_seconds = 5.0
    monkeypatch.setattr("mirrorless.copy.pull.LOOK_SECONDS", 3.0)  # when they have come
    followed: list[TopicPartition] = []
    arrivals, follow = WorldLog.arrivals, WorldLog.follow

    def more(log: WorldLog, seconds: float, *, records: int, size: int) -> Arrivals:
        if there.cluster.topics and there.visible(0) == [0] and len(there.source[0]) == 1:
            there.source[0] += some(2)
        return arrivals(log, min(seconds, 0.05), records=records, size=size)

    def noted(log: WorldLog, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int]) -> None:
        followed.extend(offsets)
        follow(log, offsets, below)

    monkeypatch.setattr(WorldLog, "arrivals", more)
    monkeypatch.setattr(WorldLog, "follow", noted)

    report = pulling.run()

    assert (report.ended, there.visible(0)) == ("drained", [0, 2])
    assert followed.count(("orders", 0)) == 1


def test_what_comes_while_records_wait_for_their_window_is_taken_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call for each record would go through a thousand lanes each time."""
    there = world([0])
    pulling = function(there)
    pulling.window_seconds = 5.0
    arrivals, calls = WorldLog.arrivals, [0]

    def more(log: WorldLog, seconds: float, *, records: int, size: int) -> Arrivals:
        calls[0] += 1
        if len(there.source[0]) < 400:
            there.source[0] += some(2 * len(there.source[0]))
        return arrivals(log, min(seconds, 0.05), records=records, size=size)

    monkeypatch.setattr(WorldLog, "arrivals", more)

    pulling.run()

    assert len(there.visible(0)) == 400
    assert calls[0] < 600


def test_a_partition_that_the_cluster_does_not_show_is_a_failure_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    there, own = world([0, 1]), WorldLog.own

    def hidden(log: WorldLog, place: TopicPartition) -> MemoryPartition:
        found = own(log, place)
        found.refused = True
        return found

    monkeypatch.setattr(WorldLog, "own", hidden)

    with pytest.raises(Retriable, match="does not show"):
        function(there).run()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_damaged_batch_of_a_lane_that_a_job_has_taken_is_left_to_the_job(
    monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    batches = [batch_of(records(*each)) for each in ((0, 1, 2), (3, 4, 5))]
    there = World({0: records(*range(6))}, batches={0: batches})
    there.damaged[0] = (3, 6)
    if ordered:
        there.states.quarantine(lane(), LeftOut(first=3, next=6, cause="", why=""))
    pulling, react = function(there), PullRun._react
    pulling.raw = True

    def taken(run: PullRun, come: Arrivals, deadline: Deadline) -> None:
        if come.unreadable:
            there.lease(0)
            run.replicator.positions.forget()
        react(run, come, deadline)

    monkeypatch.setattr(PullRun, "_react", taken)

    pulling.invoke()

    assert (there.head().position, there.states.states[lane()].stop) == (3, None)


def test_a_run_with_a_successor_writes_what_waits_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    there = world([0], [0])
    pulling = function(there, continuous=True)
    pulling.window_seconds = 15.0
    arrivals = WorldLog.arrivals

    def more(log: WorldLog, seconds: float, *, records: int, size: int) -> Arrivals:
        found = arrivals(log, min(seconds, 0.1), records=records, size=size)
        if there.cluster.topics and there.visible(0) == [0]:
            if len(there.source[0]) == 1:
                there.source[0] += some(2)
            elif ("orders", 0) in found.records:
                monkeypatch.setattr(ShardLease, "has_successor", lambda _: True)
        return found

    monkeypatch.setattr(WorldLog, "arrivals", more)

    report = pulling.run()

    assert (report.ended, there.visible(0)) == ("successor", [0, 2])


def test_a_cluster_that_does_not_answer_is_asked_again_within_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for a lost answer waits as long as it may."""
    there = world([0, 1])
    pulling = function(there)
    lost = [True]
    left: list[float] = []
    committed = NoGroups.committed

    def answer(
        groups: NoGroups, names: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        left.append(deadline())
        if lost.pop() if lost else False:
            raise Retriable("no answer in time")
        return committed(groups, names, deadline)

    monkeypatch.setattr(NoGroups, "committed", answer)

    pulling.invoke()

    assert len(left) == 2
    assert max(left) <= REPLICATE_SECONDS
    assert there.visible(0) == [0, 1]


def test_a_scheduled_topic_whose_map_is_gone_is_not_copied_again() -> None:
    """Nothing ran for so long that the journals of some of its lanes are gone; neither a run nor a job begins anew."""
    there = world([0, 2, 4], [0, 2], [0])
    function(there).run()
    journals = there.chains.memory.entries
    for key in [key for key in journals if key[0].topic == "orders"]:
        del journals[key]

    function(there).run()

    assert [there.visible(partition) for partition in range(3)] == [[0, 2, 4], [0, 2], [0]]
    stops = {each: state.stop and state.stop.reason for each, state in there.states.states.items()}
    assert stops == {there.lane(0): "expired", there.lane(1): None, there.lane(2): "expired"}
    assert replicate(there.environment(job="backfill-1"), there.chunk(0, 9)).stopped
    assert there.visible(0) == [0, 2, 4]


def test_a_lane_that_was_reset_has_begun_with_its_new_generation() -> None:
    there = world([0, 2])
    function(there).run()
    head = there.head()
    there.chains.beside().reset(plan_reset(lane(), head, RUNNING, 0, reason="again", now=1).link)
    function(there).run()
    assert there.states.states[lane()].begun == 1
    there.chains.memory.entries.clear()

    function(there).run()
    stop = there.states.states[lane()].stop
    assert stop is not None
    assert stop.reason == "expired"
    assert there.visible() == [0, 2, 0, 2]


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("cause", ["", "DAMAGED"])
@pytest.mark.parametrize("following", [6, 9])
def test_a_damaged_batch_is_never_copied_and_an_order_leaves_out_all_of_it(
    cause: str, following: int, *, raw: bool
) -> None:
    batches = [batch_of(records(*each)) for each in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]
    there = World({0: records(*range(9)), 1: records(0, 1)}, batches={0: batches, 1: [batch_of(records(0, 1))]})
    there.damaged[0] = (following - 3, following)
    pulling = function(there)
    pulling.raw = raw
    for _ in range(2):  # it stays where it is
        pulling.invoke()
        assert pulling.readings.lanes["orders", 0].free_at > there.now / 1000, "it is left alone for a while"
        there.now += 61_000
        stop = there.states.states[lane()].stop or Stop(reason="held", upstream_offset=0, detail="none", at=0)
        assert (stop.reason, stop.upstream_offset, stop.cause) == ("refused", following - 3, "DAMAGED")
    assert (there.visible(0), there.visible(1)) == (list(range(following - 3)), [0, 1])

    there.states.quarantine(lane(), LeftOut(first=following - 3, next=following - 2, cause=cause, why=stop.detail))
    pulling.invoke()

    assert there.visible(0) == [offset for offset in range(9) if not following - 3 <= offset < following]
    (loss,) = there.ledger.read(lane())
    assert (loss.first, loss.next, loss.cause) == (following - 3, following, "quarantined")
    assert "checksum" in loss.detail
    assert there.states.states[lane()].stop is None
    assert there.head().position == 9
