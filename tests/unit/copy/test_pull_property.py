"""Runs of a shard over schedules of crashes, zombies, lost answers, hand-overs and a mapping beside them.

The invariants are those of `tests/support/protocol_world.py`; the lease may fail, and they hold all the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from mirrorless.errors import Retriable
from mirrorless.records.record import Record
from tests.support.batches import in_batches
from tests.support.documents import MemoryDocuments
from tests.support.protocol_world import World, records
from tests.support.pulled import PullFunction
from tests.support.schedule import Attempt, Killed, lost_answer
from tests.support.tries import tries

FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 120 + [Killed, lost_answer, lost_answer]


# Of 30 the first 22 take every branch of protocol, lanes and pull that all of them take.
@pytest.mark.parametrize("seed", range(tries(22, many=30)))
def test_any_schedule_of_runs_of_a_shard_keeps_the_invariants(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("mirrorless.copy.gathering.BATCH_RECORDS", chance.choice([3, 1_000]))
    offsets = [sorted(chance.sample(range(0, 160, 2), chance.randint(1, 60))) for _ in range(chance.randint(1, 4))]
    there = World({partition: [] for partition in range(len(offsets))}, topics=chance.choice([1, 2]))

    shard(there, {partition: records(*found) for partition, found in enumerate(offsets)}, chance)

    for partition, found in enumerate(offsets):
        assert there.visible(partition) == found
    there.assert_invariants()


@pytest.mark.parametrize("seed", range(tries(5, many=12)))
def test_any_schedule_of_runs_by_batches_beside_runs_by_records_keeps_the_invariants(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most environments pull whole batches, some lanes' are opened, and the mapping beside them forwards records."""
    chance = random.Random(seed)
    counts = Counter[str]()
    for opened_record_us in (100, 100, 100, 8):
        monkeypatch.setattr("mirrorless.protocol.copy_choice.OPENED_RECORD_US", opened_record_us)
        offsets = [sorted(chance.sample(range(100), chance.randint(60, 95))) for _ in range(chance.randint(1, 4))]
        waiting = {partition: records(*found) for partition, found in enumerate(offsets)}
        there = World({partition: [] for partition in waiting}, topics=chance.choice([1, 2]))
        there.batches = {p: in_batches(found, chance, largest=9) for p, found in waiting.items()}

        shard(there, waiting, chance, raw=0.7)

        for partition, found in enumerate(offsets):
            assert there.visible(partition) == found
            runs = [each for each in there.runs(partition) if each.records]
            counts.update(run.digest_of for run in runs)
            counts["engine changed"] += len({run.digest_of for run in runs}) - 1
            counts["passed"] += sum(run.passed_bytes > 0 for run in runs)
            counts["packed anew"] += sum(run.passed_bytes < run.bytes for run in runs if run.digest_of == "batches")
        there.assert_invariants()
    assert min(counts[each] for each in ("records", "batches", "engine changed", "passed", "packed anew")) > 0, counts


def shard(there: World, waiting: dict[int, list[Record]], chance: random.Random, *, raw: float = 0.0) -> None:  # noqa: C901, PLR0912  one schedule, in order
    """Write to the source, and let runs of one shard and a mapping replicate it.

    Args:
        there: with partitions that are empty yet, and with all their batches, where runs read by them.
        waiting: what the source gets.
        chance: of the schedule.
        raw: the share of environments that read whole batches.
    """
    documents, continuous = MemoryDocuments(), chance.random() < 0.5
    count = iter(range(1_000))

    def function() -> PullFunction:
        by_batches = chance.random() < raw if raw else False
        return PullFunction(
            there,
            chance,
            documents,
            f"environment-{next(count)}",
            continuous,
            raw=by_batches,
            window_seconds=chance.choice([0.0, 0.4, 5.0]),
        )

    functions = [function() for _ in range(chance.randint(1, 3))]
    forwarder = there.environment()
    flying: dict[int, Attempt] = {}

    def land(index: int) -> None:
        done = flying.pop(index)
        if isinstance(done.error, Killed):
            functions[index] = function()
        elif done.error is not None and not isinstance(done.error, Retriable):
            raise done.error
        elif raw and chance.random() < 0.3:
            functions[index] = function()  # another environment, and perhaps another engine
        there.cluster.time_transactions_out()

    for _ in range(400):
        for partition, left in waiting.items():
            if left and chance.random() < 0.1:
                some = chance.randint(1, 4)
                if there.batches:  # a log grows by whole batches
                    end = next(each.next for each in there.batches[partition] if left[0].offset < each.next)
                    some = sum(record.offset < end for record in left)
                there.source[partition] += left[:some]
                del left[:some]
        there.now += 70_000 if chance.random() < 0.02 else chance.choice([0, 10, 100])
        index = chance.randrange(len(functions))
        if index not in flying:
            flying[index] = Attempt(functions[index].invoke)
        # Some run far, some stand still until their lease is over: that is what makes zombies.
        for _ in range(chance.choice([3, 20, 60, 150])):
            if flying[index].running:
                flying[index].resume(chance.choice(FATES)())
        if not flying[index].running:
            land(index)
        if chance.random() < 0.02:  # a mapping that is being deleted, or was just created
            batch = there.whole()
            try:
                forwarder.replicate(batch, request="mapping", deadline=lambda: 30.0)
            except Retriable:
                there.cluster.time_transactions_out()
    for index in list(flying):
        while flying[index].running:
            there.now += 10_000
            flying[index].resume()
        land(index)
    for partition, left in waiting.items():
        there.source[partition] += left
    there.now += 120_000
    there.cluster.time_transactions_out()
    last = function()
    last.continuous = False
    report = last.invoke()

    assert report is not None
    assert report.ended == "drained"
