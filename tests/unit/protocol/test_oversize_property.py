"""Lanes that stop before what no event can carry, over schedules of crashes, zombies, lost answers and rivals.

The source has markers, aborted and compacted records and large ones, at the beginning, inside and at the end of
batches. The mapping passes large records, or stands at them for ever. However it goes, no lane gets past one; and what
reads the log itself, as runs of a schedule do, brings it and all behind it once and in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from mirrorless.chain.lane_state import RUNNING
from mirrorless.errors import Retriable
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import Replicator
from mirrorless.protocol.undelivered import LARGE_BYTES, UndeliveredRecords
from mirrorless.records.record import Record
from tests.support.oversize_world import MemoryCommittedLog, SkippingMapping
from tests.support.protocol_world import World, lane, records, replicate
from tests.support.schedule import Attempt, Killed, lost_answer, watched
from tests.support.tries import tries

SEEDS = tries(16, many=40)

FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 120 + [Killed, lost_answer]

LARGE = "large"
"""The name of a header that stands for a size, so that many schedules need no memory."""


def bytes_in_event(record: Record) -> int:
    return LARGE_BYTES + 1 if any(name == LARGE for name, _ in record.headers) else 10


@pytest.fixture(scope="module")
def counted() -> Iterator[Counter[str]]:
    """What all schedules did together: none of it may be missing."""
    counts: Counter[str] = Counter()
    yield counts
    if counts["schedules"] == SEEDS:
        for what in ("stopped", "cut", "killed", "lost answers", "zombies"):
            assert counts[what] > SEEDS / 4, (what, counts)


def log(chance: random.Random, length: int) -> list[str]:
    """Offsets of every kind, in runs."""
    kinds: list[str] = []
    while len(kinds) < length:
        kind = chance.choice([*["record"] * 4, "marker", "marker", "aborted", "compacted", "large"])
        kinds += [kind] * (chance.randint(1, 6) if kind == "record" else chance.randint(1, 2))
    return kinds


@dataclass
class Schedule:
    """Invocations of three environments that stop and die at any point, and what they did."""

    there: World
    mapping: SkippingMapping
    chance: random.Random
    counts: Counter[str]
    flying: dict[int, tuple[Attempt, Batch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environments = [self.environment() for _ in range(3)]

    def environment(self) -> Replicator:
        """Some of them do not read logs to their end in time."""
        made, committed = self.there.environment(), MemoryCommittedLog(self.there)
        if self.chance.random() < 0.4:
            committed.ends_at = self.chance.randint(1, 20)
        made.undelivered = UndeliveredRecords(log=watched(committed, "log"), from_log_start=True)
        return made

    def step(self, index: int, steps: int) -> None:
        """Let one go on."""
        if index not in self.flying:
            batch, made = self.mapping.event(), self.environments[index]
            if not batch.records:
                return
            self.flying[index] = Attempt(lambda: replicate(made, batch)), batch
        attempt = self.flying[index][0]
        for _ in range(steps):
            if attempt.running:
                fate = self.chance.choice(FATES)()
                self.counts["lost answers"] += isinstance(fate, Retriable)
                attempt.resume(fate)
        if attempt.running:
            self.counts["zombies"] += 1
        else:
            self.land(index)

    def land(self, index: int) -> None:
        """One has come to its end."""
        done, batch = self.flying.pop(index)
        if done.error is None:
            self.counts["cut"] += len(done.result.waiting)
            self.mapping.delivered(batch, {*done.result.stopped, *done.result.waiting})
        elif isinstance(done.error, Killed | Retriable):
            self.counts["killed"] += isinstance(done.error, Killed)
            self.environments[index] = self.environment()
        else:
            raise done.error
        if self.chance.random() < 0.5:
            self.there.cluster.time_transactions_out()

    def run(self) -> None:
        """All of it."""
        for _ in range(200):
            self.there.now += self.chance.choice([0, 1_000, 40_000])
            self.step(self.chance.randrange(3), self.chance.choice([1, 20, 60, 200]))
        for index in list(self.flying):
            self.flying[index][0].finish()
            self.land(index)
        self.there.cluster.time_transactions_out()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_schedule_stops_before_what_no_event_can_carry_and_a_reader_of_the_log_brings_it_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch, counted: Counter[str]
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("mirrorless.protocol.undelivered.event_bytes", bytes_in_event)
    kinds = {partition: log(chance, chance.randint(5, 50)) for partition in range(chance.randint(1, 3))}
    some = {p: [at for at, kind in enumerate(found) if kind in {"record", "large"}] for p, found in kinds.items()}
    there = World({partition: records(*offsets) for partition, offsets in some.items()})
    for partition, stored in there.source.items():
        for record in stored:
            record.headers += [(LARGE, None)] * (kinds[partition][record.offset] == "large")
    mapping = SkippingMapping(there, kinds, skips=chance.random() < 0.6, chance=chance)

    Schedule(there, mapping, chance, counted).run()

    for partition, found in kinds.items():
        first = found.index("large") if "large" in found else len(found)
        stop = there.states.read([lane(partition)]).get(lane(partition), RUNNING).stop
        counted["stopped"] += stop is not None
        assert stop is None or (stop.reason, stop.upstream_offset) == ("undelivered", first)
        assert there.head(partition).position <= first
        there.states.resume(lane(partition))
        idle = there.environment()  # settles what is in doubt
        idle.positions.load([lane(partition)], idle.remote_topic, lambda: 30.0)
        rest = there.chunk(there.head(partition).position, len(found), partition)
        replicate(there.environment(job="pull"), rest)
        assert there.visible(partition) == some[partition]
    there.assert_invariants()
    counted["schedules"] += 1
