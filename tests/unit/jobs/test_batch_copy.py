"""The copy of a lane by whole batches in a job, over schedules of crashes, lost answers and twins.

The invariants are those of `tests/support/protocol_world.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as appended

from mirrorless.chain.lane_state import LaneState, LeftOut
from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.errors import ChainBroken, Retriable
from mirrorless.jobs.batch_copy import (
    COLD_SECONDS,
    FAILURES,
    FIRST_BYTES,
    FIRST_HELD_SECONDS,
    HELD_SECONDS,
    LEAST_BYTES,
    REQUEST_BYTES,
    SLOW_BYTES,
    TRIAL_BYTES,
    WATCHED_BYTES,
    WATCHED_SECONDS,
    BatchCopy,
    EngineChoice,
    budget,
)
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, Chunk, CopyResult, LaneLog, OffsetRange
from mirrorless.jobs.lane_copy import LaneCopy
from mirrorless.jobs.shared_transactions import SharedTransactions
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.protocol import hooks
from mirrorless.protocol.copy_choice import Engine
from mirrorless.protocol.hooks import Step
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable, PassTerms, RecordBatch
from tests.support.batches import LARGEST, batch_of, in_batches
from tests.support.flows import make_copy_task
from tests.support.protocol_world import World, lane, others, records
from tests.support.pulled import MemoryEpochs
from tests.support.schedule import Attempt, Killed, effects, lost_answer
from tests.support.tries import tries

TERMS = PassTerms(max_message_bytes=LARGEST)
FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 60 + [Killed, lost_answer, lost_answer]


@dataclass(slots=True)
class MemoryLogs:
    """Implements `LaneLog` and, under `batches`, `BatchLog` over the source of a world."""

    there: World
    chance: random.Random = field(default_factory=lambda: random.Random(6))
    old_below: int = 0
    """Batches below this upstream offset have an old format."""
    read_by_client: list[int] = field(default_factory=list)

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        return OffsetRange(0, self.there.batches[partition][-1].next)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        at = wanted.first
        while at < wanted.next:
            following = min(at + self.chance.randint(1, 12), wanted.next)
            if (damage := self.there.damage(partition, at, following)) is not None:
                if damage.offset <= at:
                    raise damage
                following = damage.offset
            some = [each for each in self.there.source[partition] if at <= each.offset < following]
            self.read_by_client += [each.offset for each in some]
            yield Chunk(some, following, self.epoch_at(partition, some[-1].offset) if some else NO_EPOCH)
            at = following

    def epoch_at(self, partition: int, offset: int) -> int:
        """Of the leader that appended what stands there."""
        return max(epoch for epoch, first in self.there.epochs_of(partition) if first <= offset)


@dataclass(slots=True)
class MemoryBatches:
    """Implements `BatchLog` over the same logs."""

    logs: MemoryLogs

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """See `BatchLog.read`."""
        at = wanted.first
        while at < wanted.next:
            some = [each for each in self.logs.there.batches[partition] if at < each.next]
            some = [each for each in some if each.base_offset < wanted.next][: self.logs.chance.randint(1, 5)]
            if some and some[0].base_offset < self.logs.old_below:
                raise BatchUnreadable("the batch has the old format 1", offset=some[0].base_offset, old_format=True)
            if some and (damage := self.logs.there.damage(partition, at, some[-1].next)) is not None:
                some = [each for each in some if each.next <= damage.offset]
                if not some:
                    raise damage
            covered = some[-1].next if some else wanted.next
            epoch = self.logs.epoch_at(partition, covered - 1)
            epochs = [self.logs.epoch_at(partition, each.last_offset) for each in some]
            some = [appended(each, leader_epoch=found) for each, found in zip(some, epochs, strict=True)]
            yield BatchChunk([BatchAt(max(each.base_offset, at), each) for each in some], covered, epoch)
            at = covered


def copy_of(
    logs: MemoryLogs,
    *ranges: tuple[int, int],
    choice: EngineChoice | None = None,
    partition: int = 0,
    shared: SharedTransactions | None = None,
) -> LaneCopy:
    """One more try of a job's task, in a process of its own, or beside those of other lanes."""
    there = logs.there
    by_batches = BatchCopy(
        replicator=there.environment(job="backfill-1"),
        log=MemoryBatches(logs),
        terms=lambda: TERMS,
        choice=choice or EngineChoice(size=budget(logs.chance.choice([1, 3, 64]) * REQUEST_BYTES)),
    )
    return LaneCopy(
        task=make_copy_task(partition, *ranges),
        replicator=there.environment(job="backfill-1"),
        log=cast("LaneLog", logs),
        epochs=MemoryEpochs(there),
        by_batches=by_batches,
        shared=shared,
        clock=lambda: there.now,
        sleep=lambda seconds: _pass(there, seconds),
        monotonic=lambda: there.now / 1000,
    )


def _pass(there: World, seconds: float) -> None:
    with effects:
        there.now += int(seconds * 1000) + 1
        there.cluster.time_transactions_out()


def a_world(*batches: RecordBatch, offsets: list[int]) -> World:
    there = World({0: records(*offsets)})
    there.batches = {0: list(batches)}
    return there


def tens(first: int, following: int) -> World:
    """All offsets, in batches of ten records."""
    batches = [batch_of(records(*range(at, at + 10))) for at in range(first, following, 10)]
    return a_world(*batches, offsets=list(range(first, following)))


# Of 40 the first 24 take every branch of jobs, protocol and lanes that all of them take.
@pytest.mark.parametrize("seed", range(tries(24, many=40)))
def test_any_schedule_of_tries_and_a_mapping_behind_keeps_the_invariants(seed: int) -> None:
    """Ranges begin and end inside batches, tries are killed or stand still, and engines change."""
    chance = random.Random(seed)
    offsets = sorted(chance.sample(range(120), chance.randint(40, 110)))
    batches = in_batches(records(*offsets), chance, largest=9)
    first, following = offsets[chance.randint(0, 9)], offsets[-chance.randint(1, 9)]
    there = a_world(*batches, offsets=[each for each in offsets if each >= first])
    logs = MemoryLogs(there, chance, old_below=chance.choice([0, 0, 40]))
    tries: list[Attempt] = []

    def another() -> None:
        choice = EngineChoice(
            engine=chance.choice(["batches", "batches", "records"]), size=budget(chance.randint(1, 5) * REQUEST_BYTES)
        )
        tries.append(Attempt(copy_of(logs, (first, following), choice=choice).run))

    def over(each: Attempt) -> bool:
        if isinstance(each.error, Exception) and not isinstance(each.error, Retriable):
            raise each.error
        return isinstance(each.result, CopyResult)

    another()
    for _ in range(300):
        each = chance.choice(tries[-2:])  # the one before may be a twin, or a zombie
        for _ in range(chance.choice([3, 20, 60])):
            if each.running:
                each.resume(chance.choice(FATES)())
        _pass(there, 0.1)
        if (not tries[-1].running and not over(tries[-1])) or chance.random() < 0.02:
            another()
    for each in tries:
        each.finish()
    while not over(tries[-1]):
        another()
        tries[-1].finish()
    there.now += 120_000
    there.cluster.time_transactions_out()
    forwarder = there.environment()
    forwarder.replicate(
        there.batch(p0=[each for each in offsets if each >= following]), request="", deadline=lambda: 9.0
    )

    assert there.visible() == [each for each in offsets if each >= first]
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

    logs = MemoryLogs(there)
    result = copy_of(logs, (5, 33), choice=EngineChoice()).run()

    assert (result.state, result.records, result.position) == ("done", 5 + 5 + 10 + 3, 33)
    assert there.visible() == [each for each in offsets if 5 <= each < 33]
    assert result.passed_bytes == len(batches[2].payload) < result.bytes
    assert there.runs()[-1].digest_of == "records", "of the batch in which the range ends"
    there.assert_invariants()


def test_a_log_that_begins_in_an_old_format_goes_by_records_and_counts_what_passed() -> None:
    there = tens(0, 60)
    logs = MemoryLogs(there, old_below=20)
    copy = copy_of(logs, (0, 60), choice=EngineChoice())

    result = copy.run()

    assert (result.records, result.passed_bytes) == (60, 0)
    assert logs.read_by_client == list(range(60))
    there.assert_invariants()


def test_the_pace_of_a_lane_whose_log_begins_above_zero_is_that_of_its_records() -> None:
    """To pass over what retention has deleted is no copying: it counted from the clock's zero, as hours."""
    there = tens(500, 560)
    copy = copy_of(MemoryLogs(there), (500, 560), choice=EngineChoice())
    noted = list[tuple[int, float]]()

    def copied(_: EngineChoice, offsets: int, __: int, seconds: float) -> None:
        noted.append((offsets, seconds))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineChoice, "copied", copied)
        result = copy.run()

    assert (result.records, sum(offsets for offsets, _ in noted)) == (60, 60)
    assert max(seconds for _, seconds in noted) < 60
    there.assert_invariants()


def test_an_engine_that_is_tried_in_between_leaves_one_chain() -> None:
    """Whoever goes on reads the position anew: what it remembers is from before the other one's transactions."""
    there = tens(0, 90)
    logs = MemoryLogs(there)
    choice = EngineChoice(size=budget(1))
    copy = copy_of(logs, (0, 90), choice=choice)
    taken = Counter[str]()

    def copied(*_: object) -> None:
        taken[choice.engine] += 1
        choice.engine = "records" if choice.engine == "batches" else "batches"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineChoice, "copied", copied)
        result = copy.run()

    assert (result.state, result.records) == ("done", 90)
    assert min(taken.values()) > 2, taken
    assert {run.digest_of for run in there.runs() if run.records} == {"records", "batches"}
    assert result.races == 0
    there.assert_invariants()


def write_on(there: World, at: int, *more: Record) -> None:
    """Let the log lose its end, and be written on."""
    there.cut_off(0, at, *more)
    there.batches[0] = [*(each for each in there.batches[0] if each.next <= at), *(batch_of([each]) for each in more)]


by_both = pytest.mark.parametrize("engine", ["batches", "records"])


@by_both
@pytest.mark.parametrize("known", [True, False], ids=["epochs known", "copied by a mapping"])
@pytest.mark.parametrize(("at", "until"), [(20, 60), (20, 41), (30, 80), (0, 50)])
def test_a_log_that_was_cut_off_and_written_on_is_refused_and_the_advice_loses_and_doubles_nothing(
    at: int, until: int, engine: Engine, *, known: bool
) -> None:
    there = tens(0, 40)
    logs = MemoryLogs(there)
    if known:
        copy_of(logs, (0, 40), choice=EngineChoice(engine=engine)).run()
    else:
        for n in range(0, 40, 10):
            there.environment().replicate(there.batch(p0=list(range(n, n + 10))), request="", deadline=lambda: 9.0)
    write_on(there, at, *others(*range(at, until)))

    with pytest.raises(ChainBroken, match=r"is not the log that was copied up to") as refused:
        copy_of(logs, (0, until), choice=EngineChoice(engine=engine)).run()

    assert there.visible() == list(range(40))
    assert f"--to {at or 'earliest'} " in refused.value.hint
    head = there.head()
    reset = plan_reset(lane(), head, LaneState(), at, reason="as advised", now=there.now)
    assert reset.loss is None
    there.chains.reset(reset.link)
    copy_of(logs, (0, until), choice=EngineChoice(engine=engine)).run()
    assert there.visible() == [*range(40), *(1_000 + n for n in range(at, until))]


@by_both
def test_a_log_that_is_cut_off_while_a_job_reads_it_is_not_read_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its try fails when the log shows it, and the next one begins with a look."""
    there = tens(0, 40)
    logs = MemoryLogs(there)
    copy = copy_of(logs, (0, 60), choice=EngineChoice(engine=engine, size=budget(1)))
    calls = 0

    def cut(_: Step) -> None:
        nonlocal calls
        calls += 1
        if calls == 12:
            write_on(there, 5, *others(*range(5, 60)))
            raise Retriable("the log was cut off at 5")

    monkeypatch.setattr(hooks, "observers", [cut])
    with pytest.raises(ChainBroken, match="From 5 on"):
        copy.run()

    assert all(each < 1_000 for each in there.visible())


@by_both
def test_a_topic_that_was_made_anew_is_refused_though_its_epoch_is_the_same(engine: Engine) -> None:
    there = tens(0, 40)
    logs = MemoryLogs(there)
    copy_of(logs, (0, 40), choice=EngineChoice(engine=engine)).run()
    there.source[0] = others(*range(80))
    there.batches[0] = [batch_of([each]) for each in there.source[0]]

    with pytest.raises(ChainBroken, match="From 0 on") as refused:
        copy_of(logs, (0, 80), choice=EngineChoice(engine=engine)).run()

    assert "--to earliest " in refused.value.hint


@by_both
@pytest.mark.parametrize("cause", ["", "DAMAGED"])
@pytest.mark.parametrize("following", [6, 9])
def test_a_damaged_batch_stops_the_copy_until_an_order_leaves_it_out(
    engine: Engine, cause: str, following: int
) -> None:
    """In the middle of the log, and at its end; of either engine, by an order for it alone or for all that are."""
    there = World(
        {0: records(*range(9))}, batches={0: [batch_of(records(*each)) for each in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]}
    )
    there.damaged[0] = (following - 3, following)
    logs = MemoryLogs(there)
    copy = copy_of(logs, (0, 9), choice=EngineChoice(engine=engine))

    stopped = copy.run()

    stop = there.states.states[lane()].stop
    assert (stopped.state, there.visible()) == ("stopped", list(range(following - 3)))
    assert stop is not None
    assert (stop.reason, stop.upstream_offset, stop.cause) == ("refused", following - 3, "DAMAGED")

    there.states.quarantine(lane(), LeftOut(first=following - 3, next=following - 2, cause=cause, why=stop.detail))
    done = copy_of(logs, (0, 9), choice=EngineChoice(engine=engine)).run()

    left = [offset for offset in range(9) if not following - 3 <= offset < following]
    assert (done.state, there.visible()) == ("done", left)
    (loss,) = there.ledger.read(lane())
    assert (loss.first, loss.next, loss.cause) == (following - 3, following, "quarantined")
    assert "checksum" in loss.detail
    assert there.head().position == 9


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
    ("records", "size", "lanes", "batches", "engine"),
    [
        (250, 1_000, 1, None, "batches"),
        (150, 100, 1, None, "batches"),
        (15, 1_000, 1, None, "records"),
        (15, 1_000, 2, None, "batches"),  # where other lanes share its requests
        (1, 1_000, 1, None, "records"),
        (1, 1_000, 1, 100, "batches"),  # too few to open another producer
    ],
)
def test_large_batches_pass_and_many_of_a_few_records_are_left_to_the_client(
    records: int, size: int, lanes: int, batches: int | None, engine: Engine
) -> None:
    choice = EngineChoice(lanes=lanes)

    choice.seen(a_chunk(records, size)[:batches], ONE_MB)

    assert choice.engine == engine


def test_what_the_client_would_have_saved_adds_up_over_small_chunks() -> None:
    choice, chunk = EngineChoice(), a_chunk(1, 1_000)[:100]

    chunks = 0
    while choice.engine == "batches":
        choice.seen(chunk, ONE_MB)
        chunks += 1

    assert 2 < chunks < 20


def test_batches_that_cannot_pass_are_left_to_the_client() -> None:
    compressed_anew, thinned = EngineChoice(), EngineChoice()

    compressed_anew.seen(a_chunk(250, 1_000), PassTerms(max_message_bytes=1 << 20, compression_type="zstd"))
    thinned.seen([replace(each, last_offset_delta=999) for each in a_chunk(250, 1_000)], ONE_MB)

    assert (compressed_anew.engine, thinned.engine) == ("records", "records")


@pytest.mark.parametrize(
    ("lanes", "stretches", "engines"),
    [
        pytest.param(1, [trial(1_000), trial(60_000)], ["records", "records"], id="the client is tried and is faster"),
        pytest.param(1, [trial(50_000), trial(60_000)], ["records", "batches"], id="the client is tried and is not"),
        pytest.param(6, [trial(1_000)], ["batches"], id="lanes that share their requests are slow or not together"),
        pytest.param(
            1,
            [(1, SLOW_BYTES * 20, 20.0), trial(1_000), (1, 1, HELD_SECONDS), trial(1_000)],
            ["batches", "batches", "batches", "records"],
            id="a lane that is quick tries nothing for a while",
        ),
        pytest.param(
            1, [(1, SLOW_BYTES // 10, 1.0)] * 4 + [(1, SLOW_BYTES, 1.0)] * 4, ["batches"], id="slow when cold alone"
        ),
        pytest.param(1, [(1, SLOW_BYTES - 1, 1.0)] * 8, ["records"], id="slow for longer"),
        pytest.param(1, [(1, WATCHED_BYTES - 1, WATCHED_SECONDS * 20)], ["batches"], id="of few bytes"),
        pytest.param(
            1, [(1, 1, COLD_SECONDS), (1, WATCHED_BYTES, WATCHED_SECONDS * 0.9)], ["batches"], id="of few seconds"
        ),
        pytest.param(1, ["old", trial(1), (1, 1, FIRST_HELD_SECONDS)], ["records", "batches"], id="an old format"),
        pytest.param(1, ["failed"] * FAILURES, ["batches", "records"], id="a broker that may be too old"),
        pytest.param(
            1, [*["failed"] * (FAILURES - 1), (1, 1, 0.1), *["failed"] * (FAILURES - 1)], ["batches"], id="not in a row"
        ),
    ],
)
def test_the_other_engine_is_tried_where_whole_batches_are_slow_and_the_faster_one_goes_on_for_a_while(
    lanes: int, stretches: list[Stretch | str], engines: list[Engine]
) -> None:
    choice, found = EngineChoice(lanes=lanes), list[Engine]()

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


def test_transactions_grow_while_the_target_is_quick_and_shrink_where_it_is_slow() -> None:
    choice = EngineChoice()

    choice.copied(1, 1, 0.1)
    assert choice.size.most == 2 * FIRST_BYTES
    choice.copied(1, 1, 2.0)
    assert choice.size.most == 2 * FIRST_BYTES
    choice.copied(1, 1, 5.0)
    choice.failed()
    assert choice.size.most == FIRST_BYTES // 2
    for _ in range(9):
        choice.failed()
    assert choice.size.most == LEAST_BYTES
