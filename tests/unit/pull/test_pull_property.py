"""Runs of a shard over schedules of crashes, zombies, lost answers, hand-overs and a mapping beside them.

The invariants are those of `tests/support/protocol_world.py`; the lease may fail, and they hold all the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from mirrorless.errors import Retriable
from mirrorless.ports.kafka import Deadline, OffsetAndMetadata, TopicPartition
from mirrorless.protocol.replicate import Replicator
from mirrorless.pull.log import Arrivals
from mirrorless.pull.run import PullReport, PullRun
from mirrorless.pull.shard_lease import ShardLease
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments
from tests.support.protocol_world import World, records
from tests.support.schedule import Attempt, Killed, lost_answer, watch_steps, watched

RUN_SECONDS = 300

Offsets = dict[TopicPartition, OffsetAndMetadata]


@pytest.fixture(autouse=True)
def _steps() -> Iterator[None]:
    undo = watch_steps()
    yield
    undo()


@dataclass(slots=True)
class MemoryLog:
    """Implements `PulledLog` over the source of a world, of which a growing part has been written."""

    there: World
    chance: random.Random
    followed: dict[TopicPartition, int] = field(default_factory=dict)
    reported: dict[TopicPartition, int] = field(default_factory=dict)
    """Ends, each of which is returned once."""

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:  # noqa: ARG002  the port's
        """See `PulledLog.stable_ends`."""
        return {place: self._end(place) for place in places}

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:  # noqa: ARG002  the port's
        """See `PulledLog.starts`."""
        return dict.fromkeys(places, 0)

    def follow(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `PulledLog.follow`."""
        self.followed |= offsets
        self.reported = {place: end for place, end in self.reported.items() if place not in offsets}

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `PulledLog.leave`."""
        for place in places:
            del self.followed[place]

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:  # noqa: ARG002  the port's
        """See `PulledLog.arrivals`."""
        found = Arrivals()
        self.there.now += int(seconds * 1000) + 1
        for place in self.chance.sample(sorted(self.followed), self.chance.randint(0, len(self.followed))):
            at, end = self.followed[place], self._end(place)
            some = [each for each in self.there.source[place[1]] if at <= each.offset < end]
            taken = some[: min(records, self.chance.randint(1, 8))]
            if taken:
                found.records[place] = taken
                self.followed[place] = taken[-1].offset + 1
            if len(taken) == len(some) and self.reported.get(place) != end:
                found.ended[place] = self.followed[place] = self.reported[place] = end
        return found

    def close(self) -> None:
        """See `PulledLog.close`."""
        self.followed.clear()

    def _end(self, place: TopicPartition) -> int:
        stored = self.there.source[place[1]] if self.there.lane(place[1]).topic == place[0] else []
        return stored[-1].offset + 2 if stored else 0  # behind a record, at an odd offset, there may be a marker


class NoGroups:
    """Groups without an offset, which take every commit."""

    def committed(self, groups: Iterable[str], deadline: Deadline) -> dict[str, Offsets]:  # noqa: ARG002  the port's
        """See `Groups.committed`."""
        return {}

    def commit(self, group: str, offsets: Offsets, deadline: Deadline) -> None:
        """See `Groups.commit`."""


@dataclass(slots=True)
class Function:
    """One execution environment of the function."""

    there: World
    chance: random.Random
    documents: MemoryDocuments
    name: str
    continuous: bool
    replicator: Replicator = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.replicator = self.there.environment(writer="pull.0")

    def invoke(self) -> PullReport | None:
        """What its handler does; None where another run has the shard."""
        there, begins = self.there, self.there.now
        self.runs += 1
        lease = ShardLease(
            flow=FLOW,
            shard=0,
            holder=f"{self.name}/{self.runs}",
            ends_at=begins + RUN_SECONDS * 1000,
            documents=watched(self.documents, "documents"),
            clock=lambda: there.now,
        )
        run = PullRun(
            replicator=self.replicator,
            log=MemoryLog(there, self.chance),
            groups=NoGroups(),  # type: ignore[arg-type]  # what a run asks for
            lease=lease,
            topics=self._topics,
            consumer_group=lambda topic: f"group-of-{topic}",
            shard=0,
            shards=1,
            continuous=self.continuous,
            sleep=self._sleep,
            monotonic=lambda: there.now / 1000,
        )
        if not lease.take():
            if not lease.succeeds():
                return None
            run.warm_up(lambda: 60.0)
            for _ in range(200):
                if lease.take():
                    break
                self._sleep(0.5)
            else:
                return None
        return run.run(lambda: (begins - there.now) / 1000 + RUN_SECONDS)

    def _topics(self) -> dict[str, int]:
        lanes = [self.there.lane(partition) for partition in self.there.source]
        return {each.topic: max(other.partition for other in lanes if other.topic == each.topic) + 1 for each in lanes}

    def _sleep(self, seconds: float) -> None:
        self.there.now += int(seconds * 1000) + 1


FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 120 + [Killed, lost_answer, lost_answer]


@pytest.mark.parametrize("seed", range(30))
def test_any_schedule_of_runs_of_a_shard_keeps_the_invariants(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: C901, PLR0912  one schedule, in order
    chance = random.Random(seed)  # noqa: S311  no secret: a schedule that can be replayed by its seed
    monkeypatch.setattr("mirrorless.pull.run.BATCH_RECORDS", chance.choice([3, 1_000]))
    offsets = [sorted(chance.sample(range(0, 160, 2), chance.randint(1, 60))) for _ in range(chance.randint(1, 4))]
    waiting = {partition: records(*found) for partition, found in enumerate(offsets)}
    there = World({partition: [] for partition in waiting}, topics=chance.choice([1, 2]))
    documents, continuous = MemoryDocuments(), chance.random() < 0.5
    count = iter(range(1_000))

    def function() -> Function:
        return Function(there, chance, documents, f"environment-{next(count)}", continuous)

    functions = [function() for _ in range(chance.randint(1, 3))]
    forwarder = there.environment()
    flying: dict[int, Attempt] = {}

    def land(index: int) -> None:
        done = flying.pop(index)
        if isinstance(done.error, Killed):
            functions[index] = function()
        elif done.error is not None and not isinstance(done.error, Retriable):
            raise done.error
        there.cluster.time_transactions_out()

    for _ in range(400):
        for partition, left in waiting.items():
            if left and chance.random() < 0.1:
                there.source[partition] += left[: (some := chance.randint(1, 4))]
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
    for partition, found in enumerate(offsets):
        assert there.visible(partition) == found
    there.assert_invariants()
