"""A task of a job: lanes copied side by side, over schedules of crashes, lost answers and twins.

The invariants are those of `tests/support/protocol_world.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mirrorless.adapters.aws.job_files import LocalJobFiles, open_job_files
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LaneState, LeftOut, Stop
from mirrorless.clock import Deadline
from mirrorless.copy.choice import (
    COLD_SECONDS,
    FAILURES,
    FIRST_HELD_SECONDS,
    HELD_SECONDS,
    SLOW_BYTES,
    TRIAL_BYTES,
    WATCHED_BYTES,
    WATCHED_SECONDS,
    EngineChoice,
)
from mirrorless.copy.job import FAILURES as LAST
from mirrorless.copy.job import JobCopy
from mirrorless.copy.lane import Ending, LaneCopy
from mirrorless.copy.readings import Readings
from mirrorless.errors import ChainBroken, LeaseHeld, Retriable
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.jobs.copy_task import Chunk, CopyResult, HandedOver, LaneLog, OffsetRange
from mirrorless.jobs.progress import EVERY_MS
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals, Log
from mirrorless.protocol import hooks
from mirrorless.protocol.copy_choice import Engine
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import Step
from mirrorless.protocol.portions import TransactionBytes
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record import Record
from mirrorless.records.record_batch import PassTerms, RecordBatch
from tests.support.batches import batch_of, in_batches
from tests.support.clusters import MemoryWriter
from tests.support.flows import make_copy_task
from tests.support.protocol_world import TOPIC, World, lane, others, records
from tests.support.pulled import MemoryEpochs, WorldLog
from tests.support.schedule import Attempt, Killed, effects, lost_answer
from tests.support.tries import tries

ENGINES: list[Engine] = ["batches", "batches", "records"]
FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 60 + [Killed, lost_answer, lost_answer]


@dataclass(slots=True)
class WorldLaneLog:
    """Implements `LaneLog` over the source of a world."""

    there: World

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        return OffsetRange(0, self.there.source[partition][-1].offset + 1)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        some = [each for each in self.there.source[partition] if wanted.first <= each.offset < wanted.next]
        yield Chunk(some, wanted.next)


def task_of(
    there: World,
    *ranges: tuple[int, int],
    engine: Engine = "batches",
    partitions: Sequence[int] = (0,),
    most: int = 16_000_000,
    old_below: int = 0,
    chance: random.Random | None = None,
    ending: Callable[[int], Ending | None] = lambda _: None,
    **more: Any,
) -> JobCopy:
    """One more try of a job's task, in a process of its own. Args: most: bytes of a transaction."""
    chance = chance or random.Random(6)
    made = dict[Engine, tuple[Replicator, Log]]()
    tasks = [make_copy_task(place, *ranges, topic=there.lane(place).topic, **more) for place in partitions]

    def clients(engine: Engine) -> tuple[Replicator, Log]:
        if engine not in made:
            replicator = there.environment(job="backfill-1")
            replicator.size = TransactionBytes(most, most)
            log = WorldLog(there=there, chance=chance, raw=engine == "batches", old_below=old_below)
            made[engine] = replicator, log
        return made[engine]

    replicator, log = clients(engine)
    lanes = {
        (task.lane_topic, task.partition): LaneCopy(
            task=task,
            replicator=replicator,
            log=cast("LaneLog", WorldLaneLog(there)),
            epochs=MemoryEpochs(there),
            leases=there.states if task.holder else None,
            ending=ending(task.partition),
            clock=lambda: there.now,
            monotonic=lambda: there.now / 1000,
        )
        for task in tasks
    }
    return JobCopy(
        replicator=replicator,
        log=log,
        lanes=lanes,
        clients=clients,
        choice=EngineChoice(engine),
        engine=engine,
        request="backfill-1",
        clock=lambda: there.now,
        sleep=lambda seconds: passes(there, seconds),
        monotonic=lambda: there.now / 1000,
    )


def copied(there: World, *ranges: tuple[int, int], **more: Any) -> CopyResult:
    """One more try of a task of one lane."""
    (result,) = task_of(there, *ranges, **more).run()
    return result


def passes(there: World, seconds: float) -> None:
    """Let time pass in a world."""
    with effects:
        there.now += int(seconds * 1000) + 1
        there.cluster.time_transactions_out()


def a_world(*batches: RecordBatch, offsets: list[int]) -> World:
    there = World({0: records(*offsets)})
    there.batches = {0: list(batches)}
    return there


def tens(first: int, following: int, *, partitions: int = 1) -> World:
    """All offsets, in batches of ten records."""
    there = World({partition: records(*range(first, following)) for partition in range(partitions)})
    there.batches = {
        partition: [
            replace(batch_of(records(*range(at, at + 10))), leader_epoch=0) for at in range(first, following, 10)
        ]
        for partition in range(partitions)
    }
    return there


def over(each: Attempt) -> bool:
    """Whether a try has brought its lanes to their ends."""
    if isinstance(each.error, Exception) and not isinstance(each.error, Retriable):
        raise each.error
    found = each.result or []
    assert all(result.state == "done" or "a retry may help" in result.error for result in found), found
    return bool(found) and all(result.state == "done" for result in found)


# Of 40 the first 24 take every branch of jobs, protocol and lanes that all of them take.
@pytest.mark.parametrize("seed", range(tries(24, many=40)))
def test_any_schedule_of_tries_and_a_mapping_behind_keeps_the_invariants(seed: int) -> None:
    """Ranges begin and end inside batches, tries are killed or stand still, and engines change."""
    chance = random.Random(seed)
    lanes = range(chance.randint(1, 3))
    offsets = sorted(chance.sample(range(120), chance.randint(40, 110)))
    first, following = offsets[chance.randint(0, 9)], offsets[-chance.randint(1, 9)]
    there = World({place: records(*(each for each in offsets if each >= first)) for place in lanes})
    there.batches = {place: list(in_batches(records(*offsets), chance, largest=9)) for place in lanes}
    old_below = chance.choice([0, 0, 40])
    tries: list[Attempt] = []

    def another() -> None:
        engine, most = chance.choice(ENGINES), chance.randint(100, 2_000)
        task = task_of(
            there, (first, following), engine=engine, partitions=lanes, most=most, old_below=old_below, chance=chance
        )
        tries.append(Attempt(task.run))

    another()
    for _ in range(300):
        each = chance.choice(tries[-2:])  # the one before may be a twin, or a zombie
        for _ in range(chance.choice([3, 20, 60])):
            if each.running:
                each.resume(chance.choice(FATES)())
        passes(there, 0.1)
        if (not tries[-1].running and not over(tries[-1])) or chance.random() < 0.02:
            another()
    for each in tries:
        each.finish()
    while not over(tries[-1]):
        another()
        tries[-1].finish()
    passes(there, 120.0)
    left = [each for each in offsets if each >= following]
    forwarder = there.environment()
    forwarder.replicate(there.batch(**{f"p{place}": left for place in lanes}), request="", deadline=lambda: 9.0)

    for place in lanes:
        assert there.visible(place) == [each for each in offsets if each >= first]
    there.assert_invariants()


def test_what_passes_what_is_packed_anew_and_both_ends_of_a_range_are_exact() -> None:
    offsets = [*range(10), *range(10, 20, 2), *range(20, 40)]
    batches = [
        batch_of(records(*range(10)), "lz4"),
        batch_of(records(*range(10, 20, 2)), "lz4", until=20),
        batch_of(records(*range(20, 30)), "zstd"),
        batch_of(records(*range(30, 40)), "zstd"),
    ]
    there = a_world(*batches, offsets=offsets[5:])

    result = copied(there, (5, 33))

    assert (result.state, result.records, result.position) == ("done", 5 + 5 + 10 + 3, 33)
    assert there.visible() == [each for each in offsets if 5 <= each < 33]
    assert result.passed_bytes == len(batches[2].payload) < result.bytes
    assert there.runs()[-1].digest_of == "records", "of the batch in which the range ends"
    there.assert_invariants()


def test_a_log_that_begins_in_an_old_format_goes_by_records_and_counts_what_passed() -> None:
    there = tens(0, 60)
    task = task_of(there, (0, 60), old_below=20)

    (result,) = task.run()

    assert (result.records, result.passed_bytes) == (60, 0)
    assert task.engine == "records"
    assert {run.digest_of for run in there.runs()} == {"records"}
    there.assert_invariants()


@pytest.mark.parametrize("first", [0, 500])
def test_the_pace_of_a_lane_is_that_of_its_records_wherever_its_log_begins(first: int) -> None:
    """It counted from the clock's zero, as hours. To pass over what retention has deleted is no copying."""
    there = tens(first, first + 60)
    noted = list[tuple[int, float]]()

    def copied_so(_: EngineChoice, offsets: int, __: int, seconds: float) -> None:
        noted.append((offsets, seconds))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineChoice, "copied", copied_so)
        result = copied(there, (first, first + 60))

    assert (result.records, sum(offsets for offsets, _ in noted)) == (60, 60)
    assert max(seconds for _, seconds in noted) < 60
    there.assert_invariants()


def test_the_progress_of_a_lane_is_written_every_few_seconds(tmp_path: Path) -> None:
    there = tens(0, 200)
    task = task_of(there, (0, 200), most=20)
    files, notes, write = open_job_files(str(tmp_path)), [0], LocalJobFiles.write
    (only,) = task.lanes.values()
    only.files = files

    def counted(*arguments: Any) -> None:
        notes[0] += 1
        write(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalJobFiles, "write", counted)
        began = there.now
        task.run()

    assert notes[0] <= (there.now - began) / EVERY_MS + 3


def test_the_pace_of_an_engine_is_not_that_of_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    there, noted = tens(0, 60), list[float]()
    task = task_of(there, (0, 60), chance=AT_ONCE)
    task.limit = ByteRateLimit(50.0, sleep=lambda seconds: passes(there, seconds), clock=lambda: there.now / 1000)
    monkeypatch.setattr(EngineChoice, "copied", lambda *arguments: noted.append(arguments[-1]))
    began = there.now

    task.run()

    assert sum(noted) < 2.0 < (there.now - began) / 1000 - 5.0


def test_an_engine_that_is_tried_in_between_leaves_one_chain() -> None:
    """Whoever goes on reads the position anew: what it remembers is from before the other one's transactions."""
    there = tens(0, 90, partitions=2)
    task = task_of(there, (0, 85), partitions=(0, 1), most=20, chance=AT_ONCE)
    taken, choice = Counter[str](), task.choice
    assert choice is not None

    def change(*_: object) -> None:
        assert task.engine == choice.engine, "nothing more is written by the one before"
        taken[choice.engine] += 1
        choice.engine = "records" if choice.engine == "batches" else "batches"

    def begin(readings: Readings, place: TopicPartition, offset: int, **more: Any) -> None:
        assert offset == there.head(place[1]).position, "nothing is read twice"
        unchanged(readings, place, offset, **more)

    unchanged = Readings.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineChoice, "copied", change)
        patch.setattr(Readings, "begin", begin)
        results = task.run()

    assert [(each.state, each.records, each.races) for each in results] == [("done", 85, 0)] * 2
    assert min(taken.values()) > 2, taken
    assert {run.digest_of for run in there.runs() if run.records} == {"records", "batches"}
    there.assert_invariants()


def test_what_an_engine_has_not_written_is_not_left_behind_a_batch_that_it_could_not_read() -> None:
    """The other one reads it again, and comes to the damaged batch by itself."""
    there = tens(0, 60)
    there.damaged[0] = (50, 60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineChoice, "copied", lambda choice, *_: choice.use_client())
        result = copied(there, (0, 60), most=20, chance=AT_ONCE)

    assert (result.state, there.visible()) == ("stopped", list(range(50)))
    assert {run.digest_of for run in there.runs() if run.records} == {"records", "batches"}


def test_batches_of_a_few_small_records_are_packed_anew() -> None:
    there = a_world(*(batch_of(records(n)) for n in range(50)), offsets=list(range(50)))
    task = task_of(there, (0, 50))

    (result,) = task.run()

    assert (result.records, result.passed_bytes, task.engine) == (50, 0, "batches")
    there.assert_invariants()


def write_on(there: World, at: int, *more: Record) -> None:
    """Let the log lose its end, and be written on."""
    there.cut_off(0, at, *more)
    epoch = there.epochs_of(0)[-1][0]
    new = [replace(batch_of([each]), leader_epoch=epoch) for each in more]
    there.batches[0] = [*(each for each in there.batches[0] if each.next <= at), *new]


by_both = pytest.mark.parametrize("engine", ["batches", "records"])


@by_both
@pytest.mark.parametrize("known", [True, False], ids=["epochs known", "copied by a mapping"])
@pytest.mark.parametrize(("at", "until"), [(20, 60), (20, 41), (30, 80), (0, 50)])
def test_a_log_that_was_cut_off_and_written_on_is_refused_and_the_advice_loses_and_doubles_nothing(
    at: int, until: int, engine: Engine, *, known: bool
) -> None:
    there = tens(0, 40)
    if known:
        copied(there, (0, 40), engine=engine)
    else:
        for n in range(0, 40, 10):
            there.environment().replicate(there.batch(p0=list(range(n, n + 10))), request="", deadline=lambda: 9.0)
    write_on(there, at, *others(*range(at, until)))
    began = there.now

    refused = copied(there, (0, until), engine=engine)

    assert (refused.state, there.now - began < 100) == ("failed", True), "it is not tried again"
    assert "is not the log that was copied up to" in refused.error
    assert there.visible() == list(range(40))
    assert f"--to {at or 'earliest'} " in refused.error
    head = there.head()
    reset = plan_reset(lane(), head, LaneState(), at, reason="as advised", now=there.now)
    assert reset.loss is None
    there.chains.reset(reset.link)
    copied(there, (0, until), engine=engine)
    assert there.visible() == [*range(40), *(1_000 + n for n in range(at, until))]


@by_both
def test_a_log_that_is_cut_off_while_a_job_reads_it_is_not_read_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its try fails when the log shows it, and the next one begins with a look."""
    there = tens(0, 40)
    there.source[0] += records(*range(40, 60))
    there.batches[0] += [batch_of(records(*range(at, at + 10))) for at in (40, 50)]
    task = task_of(there, (0, 60), engine=engine, most=20)
    cuts = iter([5])

    def cut(step: Step) -> None:
        if step == "planned" and there.head().position >= 10 and (at := next(cuts, None)) is not None:
            write_on(there, at, *others(*range(at, 60)))
            raise Retriable("the log was cut off at 5")

    monkeypatch.setattr(hooks, "observers", [cut])
    (refused,) = task.run()

    assert "From 5 on" in refused.error
    assert all(each < 1_000 for each in there.visible())


@by_both
def test_a_topic_that_was_made_anew_is_refused_though_its_epoch_is_the_same(engine: Engine) -> None:
    there = tens(0, 40)
    copied(there, (0, 40), engine=engine)
    there.source[0] = others(*range(80))
    there.batches[0] = [batch_of([each]) for each in there.source[0]]

    refused = copied(there, (0, 80), engine=engine)

    assert "From 0 on" in refused.error
    assert "--to earliest " in refused.error


@by_both
@pytest.mark.parametrize("cause", ["", "DAMAGED"])
@pytest.mark.parametrize("following", [6, 9])
def test_a_damaged_batch_stops_the_copy_until_an_order_leaves_it_out(
    engine: Engine, cause: str, following: int
) -> None:
    """In the middle of the log, and at its end; of either engine, by an order for it alone or for all that are."""
    there = World({0: records(*range(9)), 1: records(*range(9))})
    there.batches = {place: [batch_of(records(*range(at, at + 3))) for at in (0, 3, 6)] for place in (0, 1)}
    there.damaged[0] = (following - 3, following)

    stopped, beside = task_of(there, (0, 9), engine=engine, partitions=(0, 1)).run()

    stop = there.states.states[lane()].stop
    assert (stopped.state, beside.state) == ("stopped", "done")
    assert (there.visible(0), there.visible(1)) == (list(range(following - 3)), list(range(9)))
    assert stop is not None
    assert (stop.reason, stop.upstream_offset, stop.cause) == ("refused", following - 3, "DAMAGED")

    there.states.quarantine(lane(), LeftOut(first=following - 3, next=following - 2, cause=cause, why=stop.detail))
    done = copied(there, (0, 9), engine=engine)

    left = [offset for offset in range(9) if not following - 3 <= offset < following]
    assert (done.state, there.visible()) == ("done", left)
    (loss,) = there.ledger.read(lane())
    assert (loss.first, loss.next, loss.cause) == (following - 3, following, "quarantined")
    assert "checksum" in loss.detail
    assert there.head().position == 9


# Lanes that are copied side by side


def writes(monkeypatch: pytest.MonkeyPatch, act: Callable[[list[int]], None] = lambda _: None) -> list[list[int]]:
    """The partitions of each transaction from now on. Args: act: called before it is written."""
    found, write = list[list[int]](), MemoryWriter.write

    def noted(writer: MemoryWriter, lanes: Mapping[TopicPartition, Any], *more: Any) -> Any:
        found.append(sorted(partition for _, partition in lanes))
        act(found[-1])
        return write(writer, lanes, *more)

    monkeypatch.setattr(MemoryWriter, "write", noted)
    return found


def failures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lanes whose failures a task notes."""
    found, failed = list[int](), JobCopy._failed

    def noted(task: JobCopy, place: TopicPartition, exc: Exception, *, alone: bool) -> None:
        found.append(place[1])
        failed(task, place, exc, alone=alone)

    monkeypatch.setattr(JobCopy, "_failed", noted)
    return found


@dataclass(slots=True)
class AllAtOnce:
    """In the place of chance: all lanes show all that there is."""

    @staticmethod
    def sample(population: list[Any], k: int) -> list[Any]:  # noqa: ARG004 -- as of `Random`
        """All."""
        return population

    @staticmethod
    def randint(low: int, high: int) -> int:
        """Most; and as many partitions."""
        return 1_000 if low == 1 else high


AT_ONCE = cast("random.Random", AllAtOnce())


def test_what_all_lanes_have_is_one_transaction_until_one_fails_and_each_has_its_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one's target is away for a moment, the third one's for good."""
    there = tens(0, 10, partitions=3)

    def act(partitions: list[int]) -> None:
        if 2 in partitions or (1 in partitions and len(seen) < 4):
            raise Retriable("no answer")

    seen = writes(monkeypatch, act)
    results = task_of(there, (0, 10), partitions=(0, 1, 2), chance=AT_ONCE).run()

    assert [each.state for each in results] == ["done", "done", "failed"]
    assert "no answer" in results[2].error
    assert seen[0] == [0, 1, 2]
    assert all(len(each) == 1 for each in seen[1:])
    assert seen.count([2]) == LAST
    assert [there.visible(place) for place in range(3)] == [list(range(10)), list(range(10)), []]


def test_what_is_wrong_with_one_lane_for_good_is_not_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    there = tens(0, 10, partitions=2)

    def act(partitions: list[int]) -> None:
        if 1 in partitions:
            raise ChainBroken("the target has other records")

    seen = writes(monkeypatch, act)
    fine, broken = task_of(there, (0, 10), partitions=(0, 1), chance=AT_ONCE).run()

    assert (fine.state, broken.state, seen) == ("done", "failed", [[0, 1], [0], [1]])


def test_after_a_failure_nothing_more_of_a_chunk_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a range goes by itself: written behind what failed, it would leave a hole."""
    there = tens(0, 40)
    fails = iter([Retriable("no answer")])

    def act(_: list[int]) -> None:
        for exc in fails:
            raise exc

    writes(monkeypatch, act)
    result = copied(there, (0, 35), chance=AT_ONCE)

    assert (result.state, there.visible()) == ("done", list(range(35)))
    there.assert_invariants()


def test_a_lane_that_stops_before_the_batch_in_which_its_range_ends_is_no_trouble_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = tens(0, 40, partitions=2)
    there.states.stop(lane(), Stop(reason="refused", upstream_offset=12, detail="", at=there.now))

    tries = failures(monkeypatch)
    stopped, other = task_of(there, (0, 35), partitions=(0, 1), chance=AT_ONCE).run()

    assert (stopped.state, other.state, tries) == ("stopped", "done", [])
    assert [len(there.visible(place)) for place in (0, 1)] == [12, 35]


def test_a_lane_that_is_stopped_before_its_range_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    there, begun, begin = tens(0, 40), list[int](), Readings.begin
    there.states.stop(lane(), Stop(reason="refused", upstream_offset=5, detail="", at=there.now))

    def noted(readings: Readings, place: TopicPartition, offset: int, **more: Any) -> None:
        begun.append(offset)
        begin(readings, place, offset, **more)

    monkeypatch.setattr(Readings, "begin", noted)

    assert (copied(there, (20, 40)).state, begun) == ("stopped", [0])


def test_a_lane_whose_lease_is_lost_while_others_are_written_is_no_trouble_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failure each lane goes by itself."""
    there, lost = tens(0, 10, partitions=3), list[bool]()

    def act(partitions: list[int]) -> None:
        if len(partitions) > 1:
            raise Retriable("no answer")
        lost.append(True)

    def hold(copy: LaneCopy) -> None:
        if lost and copy.task.partition == 2:
            raise LeaseHeld("another job has it")

    writes(monkeypatch, act)
    monkeypatch.setattr(LaneCopy, "hold", hold)
    tries = failures(monkeypatch)
    results = task_of(there, (0, 10), partitions=(0, 1, 2), chance=AT_ONCE).run()

    assert [each.state for each in results] == ["done", "done", "failed"]
    assert tries == [0, 1, 2, 2]


@pytest.mark.parametrize("leave", [lambda task: task._leave([(TOPIC, 0)]), JobCopy._drop_all])
def test_what_came_of_lanes_that_are_read_no_more_is_not_written(leave: Callable[[JobCopy], None]) -> None:
    """They are read anew, from where they stand: it would be written twice."""
    task, place = task_of(tens(0, 40), (0, 40), chance=AT_ONCE), (TOPIC, 0)
    task.readings.only([place])
    task._follow({place: 0}, {place: 40})
    task._gathering.add(task.log.arrivals(1.0, records=10, size=10_000))
    assert task._gathering.come.records

    leave(task)

    assert not task._gathering.come.records


def test_a_broker_that_takes_no_whole_batches_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    there = tens(0, 40)
    task = task_of(there, (0, 40))

    def act(_: list[int]) -> None:
        if task.engine == "batches":
            raise Retriable("it is too old")

    writes(monkeypatch, act)
    (result,) = task.run()

    assert (result.state, result.passed_bytes) == ("done", 0)


def test_how_long_a_transaction_takes_is_no_silence_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    there = tens(0, 200)

    def act(_: list[int]) -> None:
        there.now += 40_000

    writes(monkeypatch, act)
    tries = failures(monkeypatch)

    assert (copied(there, (0, 200), most=20).state, tries) == ("done", [])


def test_a_task_that_is_killed_leaves_no_log_that_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker keeps it for the next task, to which what comes would not belong."""
    there = tens(0, 40)
    task = task_of(there, (0, 40))

    def act(_: list[int]) -> None:
        raise Killed

    writes(monkeypatch, act)
    with pytest.raises(Killed):
        task.run()

    assert not cast("WorldLog", task.log).at


def test_an_error_of_no_kind_that_is_expected_has_its_tries_and_is_the_lanes_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = tens(0, 10)

    def act(_: list[int]) -> None:
        raise MemoryError

    seen = writes(monkeypatch, act)
    result = copied(there, (0, 10))

    assert (result.state, len(seen)) == ("failed", LAST)
    assert "MemoryError" in result.error


def test_lanes_that_come_together_are_one_transaction_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    there, seen = tens(0, 60, partitions=3), writes(monkeypatch)

    results = task_of(there, (0, 60), partitions=(0, 1, 2), chance=AT_ONCE).run()

    assert [each.records for each in results] == [60] * 3
    assert seen == [[0, 1, 2]]


@pytest.mark.parametrize("most", [16_000_000, 200], ids=["in one transaction", "in portions"])
def test_of_lanes_that_are_written_together_each_says_whether_all_of_its_log_was_read(most: int) -> None:
    there = tens(0, 10, partitions=2)
    task = task_of(there, (0, 10), partitions=(0, 1), most=most, chance=AT_ONCE)
    archived = task.lanes["orders", 1]
    archived.task = replace(archived.task, archive="/archive")

    task.run()

    runs = [run for place in (0, 1) for run in there.runs(place)]
    assert {(run.lane.partition, run.examined) for run in runs} == {(0, True), (1, False)}


@pytest.mark.parametrize("partitions", [(0,), (0, 1)])
def test_a_lane_that_no_other_shares_requests_with_counts_as_alone(
    partitions: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in its requests it may be cheaper by the Kafka client."""
    there, alone = tens(0, 40, partitions=2), set[bool]()
    monkeypatch.setattr(EngineChoice, "seen", lambda *_, **more: alone.add(more["alone"]))

    task_of(there, (0, 40), partitions=partitions, chance=AT_ONCE).run()

    assert alone == {len(partitions) == 1}


def test_a_lane_reads_its_head_once_however_many_transactions_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    there = tens(0, 200, partitions=2)
    read, load = Counter[Lane](), Positions.load

    def counted(positions: Positions, lanes: Any, *arguments: Any) -> frozenset[Lane]:
        wanted, before = list(lanes), dict(positions._heads)
        leased = load(positions, wanted, *arguments)
        read.update(each for each in wanted if before.get(each) is not positions._heads[each])
        return leased

    monkeypatch.setattr(Positions, "load", counted)
    results = task_of(there, (0, 200), partitions=(0, 1), most=200).run()

    assert min(each.runs for each in results) > 10
    assert set(read.values()) == {1}


def test_a_lane_whose_twin_was_faster_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it remembers of itself is from before, and what its twin has copied is not read."""
    there = tens(0, 100)
    twin, ahead, write, replicate = there.environment(job="backfill-1"), iter([90]), MemoryWriter.write, [0]

    def faster(writer: MemoryWriter, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryWriter, "write", write)
            for until in ahead:
                twin.replicate(there.batch(p0=list(range(until))), request="twin", deadline=lambda: 9.0)
        return write(writer, *arguments)

    def counted(task: JobCopy, batch: Batch, outcome: BatchOutcome) -> None:
        replicate[0] += 1
        settle(task, batch, outcome)

    settle = JobCopy._settle
    monkeypatch.setattr(MemoryWriter, "write", faster)
    monkeypatch.setattr(JobCopy, "_settle", counted)
    found = copied(there, (0, 100), most=20, chance=AT_ONCE)

    assert (found.state, found.position, there.visible()) == ("done", 100, list(range(100)))
    assert replicate[0] <= 3
    there.assert_invariants()


def test_offsets_without_a_record_at_the_end_of_a_range_are_covered() -> None:
    there = World({0: records(*range(10))})

    copied(there, (0, 10), engine="records")
    result = copied(there, (0, 11), engine="records")

    assert (result.state, result.written, result.position, result.error) == ("done", 0, 11, "")


def test_each_of_some_lanes_has_its_records_in_a_transaction_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    there, seen = tens(0, 100, partitions=2), writes(monkeypatch)
    monkeypatch.setattr("mirrorless.copy.gathering.BATCH_RECORDS", 50)

    task_of(there, (0, 100), partitions=(0, 1), engine="records", chance=AT_ONCE).run()

    assert len(seen) == 2


def test_an_engine_is_chosen_by_all_of_a_chunk_before_any_of_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a distant target the first transaction of whole batches takes seconds, however small it is."""
    there, batches = tens(0, 100, partitions=2), [0]

    def seen(choice: EngineChoice, some: Sequence[RecordBatch], *_: object, **__: object) -> None:
        batches[0] += len(some)
        if batches[0] == 20:
            choice.use_client()

    monkeypatch.setattr(EngineChoice, "seen", seen)
    results = task_of(there, (0, 100), partitions=(0, 1), most=20, chance=AT_ONCE).run()

    assert [(each.records, each.passed_bytes) for each in results] == [(100, 0)] * 2


def test_a_lane_that_waits_in_one_portion_of_a_chunk_gets_nothing_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written behind the job that had it for a moment, it would have a hole."""
    there, load, times = tens(0, 100, partitions=2), Positions.load, [0]

    def leased(positions: Positions, lanes: Any, *more: Any) -> frozenset[Lane]:
        some = list(lanes)
        positions.forget(some)  # as after a minute
        if len(some) == 1 or not there.head(0).position or times[0]:
            return load(positions, some, *more)
        times[0] += 1
        there.lease(0, job="another")
        try:
            return load(positions, some, *more)
        finally:
            there.states.let_go(lane(0), "another")

    monkeypatch.setattr(Positions, "load", leased)
    tries = failures(monkeypatch)
    waited, other = task_of(there, (0, 100), partitions=(0, 1), most=20, chance=AT_ONCE).run()

    assert (waited.state, other.records, times, tries) == ("failed", 100, [1], [])
    assert there.visible(0) == list(range(len(there.visible(0))))
    there.assert_invariants()


@pytest.mark.parametrize("seed", range(12))
def test_lanes_that_share_transactions_keep_the_invariants_whichever_step_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    offsets = {partition: sorted([*chance.sample(range(149), 89), 149]) for partition in range(4)}
    there = World({partition: records(*each) for partition, each in offsets.items()})
    there.batches = {
        partition: list(in_batches(records(*each), chance, largest=7)) for partition, each in offsets.items()
    }

    def observe(step: Step) -> None:
        if chance.random() < 0.02:
            raise Retriable(f"no answer at {step}")

    monkeypatch.setattr(hooks, "observers", [observe])
    results = task_of(there, (0, 150), partitions=range(4), chance=chance, most=3_000).run()

    assert [(each.state, each.error, each.records) for each in results] == [("done", "", 90)] * 4
    assert max(len(entry.links) for entry in there.chains.memory.entries.values()) > 1, "some were shared"
    passes(there, 120.0)  # what the other engine has left open hides what was written
    for partition, expected in offsets.items():
        assert there.visible(partition) == expected
    there.assert_invariants()


@by_both
def test_of_a_damaged_batch_that_an_order_leaves_out_a_range_passes_what_is_its_own(engine: Engine) -> None:
    there = tens(0, 30)
    there.damaged[0] = (10, 20)
    there.states.quarantine(lane(), LeftOut(first=10, next=20, cause="", why=""))

    result = copied(there, (0, 15), engine=engine)

    assert (result.state, result.position) == ("done", 15)
    assert [(each.first, each.next) for each in there.ledger.read(lane())] == [(10, 15)]


# A lane's lease, its log, and its end


def test_a_lane_whose_lease_was_ended_is_not_taken_again_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try took the lane again, and the operator's release was undone."""
    there = tens(0, 100, partitions=2)

    def act(_: list[int]) -> None:
        there.now += 200_000  # a third of the term
        if there.states.states[lane(0)].lease is not None:
            there.states.let_go(lane(0), "backfill-1")

    writes(monkeypatch, act)
    tries = failures(monkeypatch)
    lost, other = task_of(there, (0, 100), partitions=(0, 1), most=1, holder="backfill-1").run()

    assert (lost.state, other.state, tries) == ("failed", "done", [0])
    assert "lease was ended" in lost.error
    assert lost.written == len(there.visible(0)) < 100, "nothing was written behind it"
    assert there.states.states[lane(0)].lease is None


def test_a_lane_that_is_over_before_its_turn_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    there, held = tens(0, 60, partitions=2), list[int]()

    def hold(copy: LaneCopy) -> None:
        held.append(copy.task.partition)
        if copy.task.partition:
            raise LeaseHeld("another job has it")

    monkeypatch.setattr(LaneCopy, "hold", hold)
    other, lost = task_of(there, (20, 60), partitions=(0, 1)).run()

    assert (other.state, lost.state, held.count(1)) == ("done", "failed", 1)


def test_the_record_that_was_copied_last_is_compared_once_in_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    there, read, times = tens(0, 60), WorldLaneLog.read, [0]
    copied(there, (0, 20))

    def counted(log: WorldLaneLog, *arguments: Any) -> Iterator[Chunk]:
        times[0] += 1
        return read(log, *arguments)

    monkeypatch.setattr(WorldLaneLog, "read", counted)
    result = copied(there, (0, 30), (40, 60))

    assert (result.records, times) == (50, [1])


def test_a_lane_that_was_reset_may_begin_behind_the_beginning_of_a_range() -> None:
    there = tens(0, 60)
    there.environment().replicate(there.batch(p0=list(range(20, 30))), request="", deadline=lambda: 9.0)
    reset = plan_reset(lane(), there.head(), LaneState(), 30, reason="as ordered", now=there.now)
    there.chains.reset(reset.link)
    there.environment().replicate(there.batch(p0=list(range(35, 45))), request="", deadline=lambda: 9.0)

    result = copied(there, (0, 60))

    assert (result.state, result.error) == ("done", "")
    assert there.visible() == [*range(20, 30), *range(35, 60)]


def test_a_lane_that_went_live_before_its_job_had_it_is_refused_for_what_is_older() -> None:
    there = tens(0, 60)
    there.environment().replicate(there.batch(p0=list(range(20, 30))), request="", deadline=lambda: 9.0)

    result = copied(there, (0, 60))

    assert (result.state, there.visible()) == ("failed", list(range(20, 60)))
    assert "went live at upstream offset 20" in result.error


@pytest.mark.parametrize("shown", ["nothing", "refused", "gone"])
def test_a_log_that_shows_nothing_is_a_failed_lane(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tens(0, 20, partitions=2)
    own = WorldLog.own

    def hidden(log: WorldLog, place: TopicPartition) -> Any:
        found = own(log, place)
        if place[1] == 0:
            found.content, found.refused = [], shown == "refused"
            found.start, found.end = (5, 20) if shown == "gone" else (0, 0)
            found.shown = 0 if shown == "nothing" else None
            log.told[place] = 0
        return found

    monkeypatch.setattr(WorldLog, "own", hidden)
    began = there.now
    failed, other = task_of(there, (0, 20), partitions=(0, 1)).run()

    words = {"nothing": "showed nothing in time", "refused": "does not show", "gone": "does not hold upstream offset 0"}
    assert (failed.state, other.state) == ("failed", "done")
    assert words[shown] in failed.error
    assert (there.now - began > LAST * 30_000) == (shown == "nothing")


@dataclass(slots=True)
class Ends:
    """Implements `Ending`: the log grows twice, and then it waits once."""

    there: World
    asked: int = 0

    def step(self, copy: LaneCopy) -> HandedOver | OffsetRange | None:
        """See `Ending.step`."""
        self.asked += 1
        if self.asked <= 2:
            return OffsetRange(copy.position(), 10 + 10 * self.asked)
        return None if self.asked == 3 else "pinned"


def test_what_a_log_has_grown_by_is_copied_before_a_lane_ends() -> None:
    there = tens(0, 30, partitions=2)

    results = task_of(there, (0, 10), partitions=(0, 1), ending=lambda _: Ends(there)).run()

    assert [(each.state, each.handed_over, each.position) for each in results] == [("done", "pinned", 30)] * 2
    assert [there.visible(place) for place in (0, 1)] == [list(range(30))] * 2


@dataclass(slots=True)
class Waits:
    """The same: it waits for some seconds."""

    there: World
    asked_at: list[int]

    def step(self, _: LaneCopy) -> HandedOver | OffsetRange | None:
        """See `Ending.step`."""
        self.asked_at.append(self.there.now)
        return None if self.there.now < self.asked_at[0] + 4_000 else "pinned"


@pytest.mark.parametrize("beside", [False, True])
def test_a_chunk_is_gathered_while_records_come_for_a_few_seconds_at_most_and_no_waiting_lane_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    """A log that gives a batch each 0.3 s was written batch by batch; and a lease would end before a chunk is full."""
    there, arrivals, asked_at = tens(0, 400, partitions=2), WorldLog.arrivals, list[int]()
    seen = writes(monkeypatch)

    def slow(log: WorldLog, seconds: float, *, records: int, size: int) -> Arrivals:
        passes(there, min(seconds, 0.3))
        return arrivals(log, 0.0, records=records, size=size) if seconds >= 0.3 else Arrivals()

    monkeypatch.setattr(WorldLog, "arrivals", slow)
    monkeypatch.setattr(WorldLog, "due", lambda log: [max(log.at)])
    monkeypatch.setattr(WorldLog, "portion", lambda log: 40 if (TOPIC, 1) in log.at else 1)
    task = task_of(
        there,
        (0, 400),
        partitions=(0, 1) if beside else (0,),
        chance=AT_ONCE,
        ending=lambda place: Waits(there, asked_at) if place else None,
    )
    terms, took = task.replicator.terms, iter([1.0])

    def told(topic: str) -> PassTerms | None:
        passes(there, next(took, 0.0))  # by a distant target, the first time
        return terms(topic)

    task.replicator.terms = told
    task.run()

    assert len(seen) in (range(5, 20) if beside else [3])
    assert max((after - before for before, after in pairwise(asked_at)), default=0) < 1_000


def test_offsets_between_two_ranges_are_left_to_the_gap_check_and_nothing_else_is() -> None:
    there = tens(0, 60)

    result = copied(there, (0, 15), (35, 60))

    assert (result.error, result.records, result.position) == ("", 40, 60)
    assert there.visible() == [*range(15), *range(35, 60)]
    runs = there.runs()
    assert [gap for run in runs if not run.examined for gap in run.gaps()] == [(15, 35)]
    assert [gap for run in runs if run.examined for gap in run.gaps()] == []
    assert {run.digest_of for run in runs if run.records} == {"records", "batches"}


# The choice of an engine


ONE_MB = PassTerms(max_message_bytes=1 << 20)


def a_chunk(records: int, size: int) -> list[RecordBatch]:
    """32 MB of batches of so many records of a size."""
    (first,) = [batch_of([Record(i, 1, [], b"k", bytes(size)) for i in range(records)])]
    return [replace(first, base_offset=i * records) for i in range(32_000_000 // first.size)]


Stretch = tuple[int, int, float]
"""Of copying: upstream offsets, bytes and seconds."""


def trial(rate: float) -> Stretch:
    """Slow copying, at so many offsets a second, for long enough to judge by."""
    seconds = TRIAL_BYTES / SLOW_BYTES * 1.01
    return int(rate * seconds), TRIAL_BYTES, seconds


@pytest.mark.parametrize(
    ("records", "size", "alone", "batches", "engine"),
    [
        (250, 1_000, True, None, "batches"),
        (150, 100, True, None, "batches"),
        (15, 1_000, True, None, "records"),
        (15, 1_000, False, None, "batches"),  # where other lanes share its requests
        (1, 1_000, True, None, "records"),
        (1, 1_000, True, 100, "batches"),  # too few to open another producer
    ],
)
def test_large_batches_pass_and_many_of_a_few_records_are_left_to_the_client(
    records: int, size: int, batches: int | None, engine: Engine, *, alone: bool
) -> None:
    choice = EngineChoice()

    choice.seen(a_chunk(records, size)[:batches], ONE_MB, alone=alone)

    assert choice.engine == engine


def test_what_the_client_would_have_saved_adds_up_over_small_chunks() -> None:
    choice, chunk = EngineChoice(), a_chunk(1, 1_000)[:100]

    chunks = 0
    while choice.engine == "batches":
        choice.seen(chunk, ONE_MB, alone=True)
        chunks += 1

    assert 2 < chunks < 20


def test_batches_that_cannot_pass_are_left_to_the_client() -> None:
    compressed_anew, thinned = EngineChoice(), EngineChoice()

    compressed_anew.seen(
        a_chunk(250, 1_000), PassTerms(max_message_bytes=1 << 20, compression_type="zstd"), alone=False
    )
    thinned.seen([replace(each, last_offset_delta=999) for each in a_chunk(250, 1_000)], ONE_MB, alone=False)

    assert (compressed_anew.engine, thinned.engine) == ("records", "records")


@pytest.mark.parametrize(
    ("stretches", "engines"),
    [
        pytest.param([trial(1_000), trial(60_000)], ["records", "records"], id="the client is tried and is faster"),
        pytest.param([trial(50_000), trial(60_000)], ["records", "batches"], id="the client is tried and is not"),
        pytest.param(
            [(1, SLOW_BYTES * 20, 20.0), trial(1_000), (1, 1, HELD_SECONDS), trial(1_000)],
            ["batches", "batches", "batches", "records"],
            id="a lane that is quick tries nothing for a while",
        ),
        pytest.param(
            [(1, SLOW_BYTES // 10, COLD_SECONDS), (1, SLOW_BYTES * 2, WATCHED_SECONDS)],
            ["batches"],
            id="slow when cold alone",
        ),
        pytest.param([(1, SLOW_BYTES - 1, 1.0)] * 8, ["records"], id="slow for longer"),
        pytest.param([(1, WATCHED_BYTES - 1, WATCHED_SECONDS * 20)], ["batches"], id="of few bytes"),
        pytest.param(
            [(1, 1, COLD_SECONDS), (1, WATCHED_BYTES, WATCHED_SECONDS * 0.9)], ["batches"], id="of few seconds"
        ),
        pytest.param(["old", trial(1), (1, 1, FIRST_HELD_SECONDS)], ["records", "batches"], id="an old format"),
        pytest.param(["failed"] * FAILURES, ["batches", "records"], id="a broker that may be too old"),
        pytest.param(
            [*["failed"] * (FAILURES - 1), (1, 1, 0.1), *["failed"] * (FAILURES - 1)], ["batches"], id="not in a row"
        ),
    ],
)
def test_the_other_engine_is_tried_where_whole_batches_are_slow_and_the_faster_one_goes_on_for_a_while(
    stretches: list[Stretch | str], engines: list[Engine]
) -> None:
    choice, found = EngineChoice(), list[Engine]()

    for stretch in stretches:
        if isinstance(stretch, tuple):
            choice.copied(*stretch)
        elif stretch == "failed":
            choice.failed()
        else:
            choice.use_client()
        found.append(choice.engine)

    assert found[-len(engines) :] == engines


def test_each_time_that_the_client_is_faster_it_is_held_for_twice_as_long_up_to_five_minutes() -> None:
    """Brokers that were cold are soon looked at again, and a distant target is not for long."""
    choice, held = EngineChoice(), []

    for _ in range(6):
        choice.copied(*trial(1_000))
        choice.copied(*trial(60_000))
        engines = list[Engine]()
        while not engines or engines[-1] == "records":
            choice.copied(1, 1, 1.0)
            engines.append(choice.engine)
        held.append(len(engines))

    assert held == [20, 40, 80, 160, 300, 300]
