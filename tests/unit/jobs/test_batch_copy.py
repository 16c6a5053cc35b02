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

from mirrorless.errors import Retriable
from mirrorless.jobs.batch_copy import BatchCopy
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, Chunk, CopyResult, CopyTask, LaneLog, OffsetRange
from mirrorless.jobs.engine_choice import REQUEST_BYTES, EngineChoice
from mirrorless.jobs.lane_copy import LaneCopy
from mirrorless.jobs.shared_transactions import SharedTransactions
from mirrorless.ports.kafka import Deadline
from mirrorless.record_batch import BatchUnreadable, PassTerms, RecordBatch
from mirrorless.run import Run
from mirrorless.settings import ClusterSettings, FlowSettings
from tests.support.batches import LARGEST, batch_of, in_batches
from tests.support.chains import FLOW
from tests.support.protocol_world import REMOTE, TOPIC, World, lane, records
from tests.support.schedule import Attempt, Killed, effects, lost_answer, watch_steps

SETTINGS = FlowSettings(
    flow=str(FLOW),
    source=ClusterSettings(alias=FLOW.source, bootstrap="source:9092"),
    target=ClusterSettings(alias=FLOW.target, bootstrap="target:9092"),
)
TERMS = PassTerms(max_message_bytes=LARGEST)
FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 60 + [Killed, lost_answer, lost_answer]


@dataclass(slots=True)
class MemoryLogs:
    """Implements `LaneLog` and, under `batches`, `BatchLog` over the source of a world."""

    there: World
    chance: random.Random
    old_below: int = 0
    """Batches below this upstream offset have an old format."""
    read_by_client: list[int] = field(default_factory=list)

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:  # noqa: ARG002  the port's
        """See `LaneLog.bounds`."""
        return OffsetRange(0, self.there.batches[partition][-1].next)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:  # noqa: ARG002  the port's
        """See `LaneLog.read`."""
        at = wanted.first
        while at < wanted.next:
            following = min(at + self.chance.randint(1, 12), wanted.next)
            some = [each for each in self.there.source[partition] if at <= each.offset < following]
            self.read_by_client += [each.offset for each in some]
            yield Chunk(some, following)
            at = following


@dataclass(slots=True)
class MemoryBatches:
    """Implements `BatchLog` over the same logs."""

    logs: MemoryLogs

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:  # noqa: ARG002  the port's
        """See `BatchLog.read`."""
        at = wanted.first
        while at < wanted.next:
            some = [each for each in self.logs.there.batches[partition] if at < each.next]
            some = [each for each in some if each.base_offset < wanted.next][: self.logs.chance.randint(1, 5)]
            if some and some[0].base_offset < self.logs.old_below:
                raise BatchUnreadable("the batch has the old format 1", offset=some[0].base_offset, old_format=True)
            covered = some[-1].next if some else wanted.next
            yield BatchChunk([BatchAt(max(each.base_offset, at), each) for each in some], covered)
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
        choice=choice or EngineChoice(budget=logs.chance.choice([1, 3, 64]) * REQUEST_BYTES),
    )
    task = CopyTask(
        settings=SETTINGS,
        lane_topic=TOPIC,
        read_topic=TOPIC,
        write_topic=REMOTE,
        partition=partition,
        ranges=tuple(OffsetRange(*each) for each in ranges),
        run_id="backfill-1",
    )
    return LaneCopy(
        task=task,
        replicator=there.environment(job="backfill-1"),
        log=cast("LaneLog", logs),
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


def runs_of(there: World) -> list[Run]:
    return [link for link in there.chains.of(lane()) if isinstance(link, Run) and link.records]


@pytest.fixture
def _steps() -> Iterator[None]:
    undo = watch_steps()
    yield
    undo()


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_of_tries_and_a_mapping_behind_keeps_the_invariants(seed: int) -> None:
    """Ranges begin and end inside batches, tries are killed or stand still, and engines change."""
    chance = random.Random(seed)  # noqa: S311  no secret: a schedule that can be replayed by its seed
    offsets = sorted(chance.sample(range(120), chance.randint(40, 110)))
    batches = in_batches(records(*offsets), chance, largest=9)
    first, following = offsets[chance.randint(0, 9)], offsets[-chance.randint(1, 9)]
    there = a_world(*batches, offsets=[each for each in offsets if each >= first])
    logs = MemoryLogs(there, chance, old_below=chance.choice([0, 0, 40]))
    tries: list[Attempt] = []

    def another() -> None:
        choice = EngineChoice(
            engine=chance.choice(["batches", "batches", "records"]), budget=chance.randint(1, 5) * REQUEST_BYTES
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

    logs = MemoryLogs(there, random.Random(1))  # noqa: S311  see above
    result = copy_of(logs, (5, 33), choice=EngineChoice()).run()

    assert (result.state, result.records, result.position) == ("done", 5 + 5 + 10 + 3, 33)
    assert there.visible() == [each for each in offsets if 5 <= each < 33]
    assert result.passed_bytes == len(batches[2].payload) < result.bytes
    assert [run.digest_of for run in runs_of(there)][-1] == "records", "of the batch in which the range ends"
    there.assert_invariants()


def test_a_log_that_begins_in_an_old_format_goes_by_records_and_counts_what_passed() -> None:
    there = a_world(*(batch_of(records(*range(at, at + 10))) for at in range(0, 60, 10)), offsets=list(range(60)))
    logs = MemoryLogs(there, random.Random(2), old_below=20)  # noqa: S311  see above
    copy = copy_of(logs, (0, 60), choice=EngineChoice())

    result = copy.run()

    assert (result.records, result.passed_bytes) == (60, 0)
    assert logs.read_by_client == list(range(60))
    there.assert_invariants()


def test_the_pace_of_a_lane_whose_log_begins_above_zero_is_that_of_its_records() -> None:
    """To pass over what retention has deleted is no copying: it counted from the clock's zero, as hours."""
    there = a_world(*(batch_of(records(*range(at, at + 10))) for at in range(500, 560, 10)), offsets=[*range(500, 560)])
    copy = copy_of(MemoryLogs(there, random.Random(4)), (500, 560), choice=EngineChoice())  # noqa: S311  see above
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
    there = a_world(*(batch_of(records(*range(at, at + 10))) for at in range(0, 90, 10)), offsets=list(range(90)))
    logs = MemoryLogs(there, random.Random(3))  # noqa: S311  see above
    choice = EngineChoice(budget=1)
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
    assert {run.digest_of for run in runs_of(there)} == {"records", "batches"}
    assert result.races == 0
    there.assert_invariants()
