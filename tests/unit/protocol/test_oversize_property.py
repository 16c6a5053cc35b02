"""Records that no event can carry, over schedules of crashes, zombies, lost answers and rivals.

The source has markers, aborted and compacted records and large ones, at the beginning, inside and at the end of
batches. The mapping passes large records, or stands at them for ever. The invariants are those of
`tests/support/protocol_world.py`, of all records that a read_committed reader sees.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from mirrorless.chain.lane_state import RUNNING, LeftOut, Stop
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import gaps_of
from mirrorless.protocol.event import Batch
from tests.support.oversize_world import Kind, OversizeWorld, bytes_in_event
from tests.support.protocol_world import lane
from tests.support.schedule import Attempt, Killed, lost_answer
from tests.support.tries import tries

SEEDS = tries(28, many=40)
"""Of 40 the first 27 take every branch of protocol, lanes and pull that all of them take."""


@pytest.fixture(scope="module")
def counted() -> Iterator[Counter[str]]:
    """What all schedules did together: none of it may be missing."""
    counts: Counter[str] = Counter()
    yield counts
    if counts["schedules"] == SEEDS:
        for what in COUNTED:
            assert counts[what] > SEEDS / 4, (what, counts)


COUNTED = ("merged", "portions", "cut", "killed", "lost answers", "zombies", "rivals", "by the task", "blocked")

FATES: list[Callable[[], BaseException | None]] = [lambda: None] * 120 + [Killed, lost_answer]


def log(chance: random.Random, length: int) -> list[Kind]:
    """Offsets of every kind, in runs."""
    kinds: list[Kind] = []
    while len(kinds) < length:
        kind = chance.choice(["record", "record", "record", "marker", "oversize", "aborted", "compacted"])
        kinds += [kind] * (chance.randint(1, 6) if kind == "record" else chance.randint(1, 2))  # type: ignore[list-item]  # one of them
    return kinds


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_schedule_copies_records_that_no_event_can_carry_in_order_and_once(  # noqa: C901, PLR0915  one schedule, in order
    seed: int, monkeypatch: pytest.MonkeyPatch, counted: Counter[str]
) -> None:
    chance = random.Random(seed)
    kinds = {partition: log(chance, chance.randint(5, 50)) for partition in range(chance.randint(1, 3))}
    world = OversizeWorld(kinds, chance, skips=chance.random() < 0.6)
    there, counts = world.there, world.counts
    monkeypatch.setattr("mirrorless.lanes.log_ends.event_bytes", bytes_in_event)
    environments = [world.environment() for _ in range(chance.randint(2, 3))]
    task = world.environment(writer="oversize")
    world.group = dict.fromkeys(kinds, 0)
    flying: dict[int, tuple[Attempt, Batch | None]] = {}

    def begin(index: int) -> None:
        if index == 0:
            flying[index] = Attempt(lambda: world.round(task)), None
            return
        begins = {p: max(0, at - chance.choice([0, 0, 4])) for p, at in world.group.items() if chance.random() < 0.7}
        batch = world.event(begins)
        if batch is not None:
            replicator = environments[index - 1]
            counts["rivals"] += any(other is not None for _, other in flying.values())
            call = lambda: replicator.replicate(batch, request="test", deadline=lambda: 30.0)  # noqa: E731  of this batch
            flying[index] = Attempt(call), batch

    def land(index: int) -> None:
        nonlocal task
        done, batch = flying.pop(index)
        if isinstance(done.error, Killed):
            counts["killed"] += 1
            if index == 0:
                task = world.environment(writer="oversize")
                world.memory.clean.clear()
                world.memory.read_to.clear()
            else:
                environments[index - 1] = world.environment()
        elif isinstance(done.error, Retriable):
            counts["failed"] += 1
        elif done.error is not None:
            raise done.error
        elif batch is not None:
            assert done.result.stopped == done.result.waiting == {}
            counts["portions"] += len(done.result.runs) > len(batch.records)
            for run in done.result.runs:
                offsets = [span.upstream + i for span in run.spans for i in range(span.length)]
                counts["merged"] += sum(kinds[run.lane.partition][offset] == "oversize" for offset in offsets)
            for place in batch.records:
                (_, p), found = place, batch.records_of(place)
                if found[0].offset <= world.next_begin(p, world.group[p]):
                    world.group[p] = max(world.group[p], found[-1].offset + 1)
        else:
            counts["by the task"] += done.result.figures["oversize-copied"]
            counts["blocked"] += done.result.figures["mappings-standing"]
        if chance.random() < 0.5:
            there.cluster.time_transactions_out()

    def step(index: int, steps: int) -> None:
        if index not in flying:
            begin(index)
        for _ in range(steps):
            if index in flying and flying[index][0].running:
                fate = chance.choice(FATES)()
                counts["lost answers"] += isinstance(fate, Retriable)
                flying[index][0].resume(fate)
        if index in flying and not flying[index][0].running:
            land(index)
        else:
            counts["zombies"] += index in flying

    for _ in range(300):
        for partition, found in kinds.items():
            world.written[partition] = min(len(found), world.written[partition] + chance.choice([0, 0, 1, 3]))
            if world.skips and chance.random() < 0.3:
                world.group[partition] = world.next_begin(partition, world.group[partition])
        there.now += chance.choice([0, 1_000, 40_000])
        index = 0 if chance.random() < 0.1 else chance.randint(1, len(environments))
        step(index, chance.choice([1, 20, 60, 200]))
    for index in list(flying):
        flying[index][0].finish()
        land(index)
    there.cluster.time_transactions_out()
    world.written = {partition: len(found) for partition, found in kinds.items()}
    expected = {
        p: [at for at, kind in enumerate(found) if kind in {"record", "oversize"}] for p, found in kinds.items()
    }
    whole = 0
    for _ in range(200):  # what is left: the mapping goes on, the task comes each minute
        there.now += 60_000
        idle = world.environment()  # the lane check settles what is in doubt
        idle.positions.load([lane(partition) for partition in kinds], idle.remote_topic, lambda: 30.0)
        if (batch := world.event(world.group)) is not None:
            try:
                world.environment().replicate(batch, request="last", deadline=lambda: 30.0)
            except Retriable:
                continue
            world.group.update({place[1]: batch.records_of(place)[-1].offset + 1 for place in batch.records})
        world.group = {p: world.next_begin(p, at) for p, at in world.group.items()}
        counts["by the task"] += world.round(task).figures["oversize-copied"]
        there.cluster.time_transactions_out()
        whole += all(there.visible(partition) == copied for partition, copied in expected.items())
        if whole == 30:  # in none of which anything came again
            break

    there.assert_invariants()
    for partition, found in kinds.items():
        assert there.visible(partition) == expected[partition]
        runs = there.runs(partition)
        # What the check of gaps still has to explain is no record.
        for first, following in (gap for run in runs for gap in gaps_of(run, 0)):
            assert not {"record", "oversize"} & set(found[first:following])
    counted.update(counts)
    counted["schedules"] += 1


def test_a_mapping_that_stands_at_a_damaged_batch_is_a_stop_and_an_order_leaves_it_out() -> None:
    world = OversizeWorld({0: ["record"] * 10}, random.Random(4), skips=False)
    there, bad = world.there, (5, 8)
    world.written, world.group = {0: 10}, {0: 5}
    world.environment().replicate(there.batch(p0=[*range(5)]), request="r", deadline=lambda: 30.0)
    there.damaged[0] = bad

    def minutes() -> Stop | None:
        for _ in range(20):  # some reads end early
            there.now += 61_000
            world.round(world.environment(writer="oversize"))
        return there.states.read([lane()]).get(lane(), RUNNING).stop

    stop = minutes()
    assert stop is not None
    assert (stop.reason, stop.upstream_offset, stop.cause) == ("refused", 5, "DAMAGED")

    there.states.quarantine(lane(), LeftOut(first=5, next=6, cause="DAMAGED", why=stop.detail))
    assert minutes() is None
    assert there.visible() == [*range(5), 8, 9]
    assert [(loss.first, loss.next, loss.cause) for loss in there.ledger.read(lane())] == [(5, 8, "quarantined")]
