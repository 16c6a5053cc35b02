"""Transactions that the lanes of one task share."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.clock import Deadline, deadline_in
from mirrorless.errors import Retriable
from mirrorless.jobs import shared_transactions
from mirrorless.jobs.batch_copy import REQUEST_BYTES, EngineChoice, budget
from mirrorless.jobs.copy_task import CopyResult
from mirrorless.jobs.shared_transactions import APART_SECONDS, CLIENTS, SharedTransactions
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol import hooks
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import Step
from mirrorless.protocol.portions import BATCH_BYTES
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record import Record
from tests.support.batches import in_batches
from tests.support.chains import FLOW, run
from tests.support.protocol_world import World, records, replicate
from tests.unit.jobs.test_batch_copy import MemoryLogs, copy_of

SECONDS = 20
STOP = Stop(reason="refused", upstream_offset=0, detail="too large", at=0)


@dataclass(slots=True)
class WatchedReplicator:
    """In the place of a `Replicator`: it keeps what it gets, and fails as it is ordered."""

    failures: list[Exception] = field(default_factory=list)
    stopped: int = -1
    """The partition whose lane stops."""
    written: list[list[TopicPartition]] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def replicate(self, batch: Batch, *, request: str, deadline: Deadline) -> BatchOutcome:
        """See `Replicator.replicate`."""
        assert (request, round(deadline())) == ("job-1", 60)
        assert self._busy.acquire(blocking=False), "another transaction is under way"
        self.meanwhile()
        self.written.append(sorted(batch.records))
        self._busy.release()
        if self.failures:
            raise self.failures.pop()
        runs = [run(0, 1, (0, 0, 1), lane=Lane(FLOW, *place)) for place in sorted(batch.records)]
        return BatchOutcome(runs=runs, stopped={place: STOP for place in batch.records if place[1] == self.stopped})


@dataclass(slots=True)
class Task:
    """Some lanes at the same time."""

    replicator: WatchedReplicator = field(default_factory=WatchedReplicator)
    now: float = 0.0
    shared: SharedTransactions = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedTransactions(
            replicator=cast("Replicator", self.replicator),
            request="job-1",
            deadline=lambda: deadline_in(60),
            monotonic=lambda: self.now,
        )

    def write(self, lanes: int, *, reading: int = 0) -> list[object]:
        """Let each of so many lanes write, while some read; their outcomes, or failures, in the order of the lanes."""

        def one(partition: int) -> object:
            batch = Batch.of_topic("orders", {partition: [Record(0, 1, [], None, b"v")]})
            try:
                return self.shared.replicate(batch)
            except Retriable as exc:
                return exc

        with ExitStack() as stack, ThreadPoolExecutor(lanes) as pool:
            for _ in range(lanes + reading):
                stack.enter_context(self.shared.sharing())
            work = [pool.submit(one, partition) for partition in range(lanes)]
            return [each.result(SECONDS) for each in work]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for all lanes, however long that takes."""
    monkeypatch.setattr(shared_transactions, "GATHER_SECONDS", 600.0)


@pytest.mark.usefixtures("patient")
def test_what_all_lanes_have_is_one_transaction_and_each_has_its_own_outcome() -> None:
    task = Task(WatchedReplicator(stopped=1))

    outcomes = task.write(3)

    assert task.replicator.written == [[("orders", 0), ("orders", 1), ("orders", 2)]]
    for partition, outcome in enumerate(outcomes):
        assert isinstance(outcome, BatchOutcome)
        assert [each.lane.partition for each in outcome.runs] == [partition]
        assert dict(outcome.stopped) == ({("orders", 1): STOP} if partition == 1 else {})


def test_a_lane_that_nobody_shares_with_writes_by_itself() -> None:
    task = Task()

    assert task.write(1) == [None]
    assert task.replicator.written == []


def test_a_lane_that_only_reads_is_waited_for_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_transactions, "GATHER_SECONDS", 0.01)
    task = Task()

    assert all(isinstance(each, BatchOutcome) for each in task.write(2, reading=1))


@pytest.mark.usefixtures("patient")
def test_a_lane_that_ends_is_not_waited_for() -> None:
    task, reads = Task(), threading.Event()

    def read_and_end() -> None:
        with task.shared.sharing():
            reads.set()
            while len(task.shared._waiting) < 2:
                time.sleep(0.001)

    other = threading.Thread(target=read_and_end, daemon=True)
    other.start()
    assert reads.wait(SECONDS)

    assert all(isinstance(each, BatchOutcome) for each in task.write(2))
    other.join(SECONDS)


@pytest.mark.usefixtures("patient")
def test_after_a_failure_of_any_of_them_the_lanes_write_by_themselves_for_a_while() -> None:
    task = Task(WatchedReplicator(failures=[Retriable("no answer")]))

    assert [str(each) for each in task.write(2)] == ["no answer (a retry may help)."] * 2
    task.now = APART_SECONDS - 0.1
    assert task.write(2) == [None, None]
    task.now = APART_SECONDS
    assert all(isinstance(each, BatchOutcome) for each in task.write(2))


@pytest.mark.parametrize("most", [BATCH_BYTES, 1], ids=["in one transaction", "in portions"])
def test_of_lanes_that_are_written_together_each_says_whether_all_of_its_log_was_read(most: int) -> None:
    there = World({partition: records(0, 1, 2) for partition in range(2)})
    job = there.environment(job="backfill-1")
    job.size.most = most

    outcome = replicate(job, replace(there.whole(), unexamined=frozenset({("orders", 1)})))

    assert {(run.lane.partition, run.examined) for run in outcome.runs} == {(0, True), (1, False)}


def test_what_comes_while_a_transaction_is_written_waits_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_transactions, "GATHER_SECONDS", 0.0)
    task = Task()
    all_there = threading.Barrier(2)
    first = iter([True])

    def meanwhile() -> None:
        if next(first, False):
            all_there.wait(SECONDS)  # until the others wait

    task.replicator.meanwhile = meanwhile
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(task.write, 4)
        while len(task.shared._waiting) < 3:
            assert not work.done()
        all_there.wait(SECONDS)
        work.result(SECONDS)

    sizes = list(map(len, task.replicator.written))
    assert sizes == [1, 3]


def test_only_some_lanes_have_the_kafka_client_at_a_time_and_the_others_keep_their_leases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_transactions, "TURN_SECONDS", 0.01)
    task, kept, at_once, most = Task(), threading.Event(), [0], [0]
    counting = threading.Lock()

    def copy(_: int) -> None:
        with task.shared.client_turn(kept.set):
            with counting:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            assert kept.wait(SECONDS)
            with counting:
                at_once[0] -= 1

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(copy, range(5), timeout=SECONDS))

    assert most == [CLIENTS]


def in_small_batches(count: int, *, partitions: int = 1, largest: int) -> World:
    """So many records in each partition, in batches of a few."""
    there = World({partition: records(*range(count)) for partition in range(partitions)})
    chance = random.Random(1)
    there.batches = {partition: in_batches(found, chance, largest=largest) for partition, found in there.source.items()}
    return there


def test_a_lane_that_no_other_shares_with_counts_as_alone() -> None:
    """Alone in its requests it may be cheaper by the Kafka client."""
    there = in_small_batches(40, largest=7)
    choice = EngineChoice(lanes=6)

    copy_of(MemoryLogs(there), (0, 40), choice=choice, shared=Task().shared).run()

    assert choice.lanes == 1


def test_lanes_that_share_their_requests_are_counted() -> None:
    """By all of them together they are slow or not."""
    there = in_small_batches(40, partitions=3, largest=7)
    choices = [EngineChoice(size=budget(REQUEST_BYTES)) for _ in range(3)]
    shared = SharedTransactions(
        replicator=there.environment(job="backfill-1"), request="backfill-1", deadline=lambda: deadline_in(60)
    )
    counted, together = set[int](), threading.Barrier(3)
    sharing, here = shared.sharing, threading.local()

    @contextmanager
    def sharing_all() -> Iterator[None]:
        with sharing():
            if not hasattr(here, "waited"):  # however slow a thread is, none copies before all share
                here.waited = together.wait(SECONDS)
            yield

    def copy(partition: int) -> CopyResult:
        logs = MemoryLogs(there)
        return copy_of(logs, (0, 40), choice=choices[partition], partition=partition, shared=shared).run()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.setattr(EngineChoice, "copied", lambda choice, *_: counted.add(choice.lanes))
        patch.setattr(SharedTransactions, "sharing", lambda _: sharing_all())
        results = list(pool.map(copy, range(3), timeout=SECONDS))

    assert [each.records for each in results] == [40] * 3
    assert max(counted) == 3


def test_a_lane_reads_its_head_once_however_many_transactions_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    there = in_small_batches(60, partitions=2, largest=1)
    shared = SharedTransactions(
        replicator=there.environment(job="backfill-1"), request="backfill-1", deadline=lambda: deadline_in(60)
    )
    read, load, together = Counter[Lane](), Positions.load, threading.Barrier(2)

    def counted(positions: Positions, lanes: list[Lane], *arguments: Any) -> frozenset[Lane]:
        before = dict(positions._heads)
        leased = load(positions, lanes, *arguments)
        read.update(lane for lane in lanes if before.get(lane) is not positions._heads[lane])
        return leased

    def copy(partition: int) -> CopyResult:
        logs, choice = MemoryLogs(there), EngineChoice(size=budget(1))
        lane = copy_of(logs, (0, 60), choice=choice, partition=partition, shared=shared)
        together.wait(SECONDS)
        return lane.run()

    monkeypatch.setattr(Positions, "load", counted)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(copy, range(2), timeout=SECONDS))

    assert min(each.runs for each in results) > 10
    # By itself, and by the transactions that it shares; and when a lane is the last one, alone again.
    assert max(read.values()) <= 4, read


def test_a_lane_whose_twin_was_faster_by_one_offset_goes_on_behind_it() -> None:
    """What it remembers of itself is from before."""
    there = in_small_batches(40, largest=1)
    twin, calls = there.environment(job="backfill-1"), list[int]()

    def faster(_: SharedTransactions, batch: Batch) -> BatchOutcome:
        assert len(calls) < 40, "the same offset comes again and again"
        calls.append(batch.covered["orders", 0])
        twin.replicate(batch, request="backfill-1", deadline=deadline_in(60))
        return BatchOutcome(runs=[], stopped={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedTransactions, "replicate", faster)
        logs, choice = MemoryLogs(there), EngineChoice(size=budget(1))
        found = copy_of(logs, (0, 40), choice=choice, shared=Task().shared).run()

    assert (found.state, found.position, sorted(set(calls)) == calls) == ("done", 40, True)


@pytest.mark.parametrize("seed", range(12))
def test_lanes_that_share_transactions_keep_the_invariants_whichever_step_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    offsets = {partition: sorted(chance.sample(range(150), 90)) for partition in range(4)}
    there = World({partition: records(*each) for partition, each in offsets.items()})
    there.batches = {
        partition: list(in_batches(records(*each), chance, largest=7)) for partition, each in offsets.items()
    }
    monkeypatch.setattr(shared_transactions, "APART_SECONDS", 0.3)  # of the world's time
    shared = SharedTransactions(
        replicator=there.environment(job="backfill-1"),
        request="backfill-1",
        deadline=lambda: deadline_in(60),
        monotonic=lambda: there.now / 1000,
    )
    failing = random.Random(seed)

    def observe(step: Step) -> None:
        if failing.random() < 0.02:
            raise Retriable(f"no answer at {step}")

    together = threading.Barrier(4)

    def copy(partition: int) -> list[CopyResult]:
        together.wait(SECONDS)
        logs = MemoryLogs(there, random.Random(seed + partition))
        for _ in range(50):  # as the task is tried again
            try:
                ends = (0, offsets[partition][-1] + 1)
                return [copy_of(logs, ends, partition=partition, shared=shared).run()]
            except Retriable:
                continue
        return []

    hooks.observers.append(observe)
    try:
        with ThreadPoolExecutor(4) as pool:
            results = [each for found in pool.map(copy, offsets, timeout=60) for each in found]
    finally:
        hooks.observers.remove(observe)

    assert [(each.state, each.records) for each in results] == [("done", 90)] * 4
    assert max(len(entry.links) for entry in there.chains.memory.entries.values()) > 1, "some were shared"
    for partition, expected in offsets.items():
        assert there.visible(partition) == expected
    there.assert_invariants()
