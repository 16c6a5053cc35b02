"""CPU and time of copying a backlog: the same records by one side and then by the other, in turns.

Both sides run and are warm; whoever is not measured is frozen. While the source topic is filled both are. The figures:

    seconds        from the moment that the side goes on until its last record is visible to a read_committed reader;
                   the events of our mappings are ready then: at AWS the poller shares no core with the function
    cpu_s          CPU of the replicating processes from then until half a second after it: late confirmations count
    poller_cpu_s   CPU of the event source mapping's poller, which AWS runs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tests.benchmarks.beside_mm2.arrival import NotArrivedError, Place, await_arrival
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.cpu import Cpu
from tests.benchmarks.beside_mm2.mirrorless_side import Mirrorless
from tests.benchmarks.beside_mm2.mm2 import READY_TOPIC, MirrorMaker, Mode
from tests.benchmarks.beside_mm2.records import Shape, shape
from tests.benchmarks.beside_mm2.results import Measurement, Results, WarmUp, now
from tests.benchmarks.beside_mm2.side import OURS, Side
from tests.benchmarks.beside_mm2.whole_batches import fill

WARM_UP = ((100, 600_000), (1_000, 200_000), (10_000, 12_000))
"""Bytes and records: MM2's first 300,000 records cost up to twice what later ones do, and the first large ones may
start environments of ours that others did not need."""
STEADY = 0.05
"""MM2 is warm when its CPU of two copies in a row differs by less: its compiler may be busy for minutes."""
MOST_WARM_UPS = 8
SETTLED_AFTER_S = 0.5
ARRIVED_WITHIN_S = 120.0
GIVE_UP_AFTER = 2
ONE_AT_A_TIME = partial(Mirrorless, one_at_a_time=True)
PRIMING = 50
"""Records of each partition that bring a topic to both sides before it is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured against one mode of MM2."""

    mode: Mode
    rounds: dict[Shape, int]
    """How often each shape is copied by each side."""
    warm_up: float = 1.0
    """Part of the warm-up's records; with less than all of them they are copied once, warm or not."""
    warm_up_sizes: Collection[int] = frozenset({100, 1_000, 10_000})
    """Of `WARM_UP`."""
    warm_up_batch: int = 0
    """Bytes of a batch of the warm-up, as a shape has them."""


def measure(
    ground: Ground,
    results: Results,
    plan: Plan,
    *,
    number: int,
    kind: str = "throughput",
    ours_of: Callable[..., Side] = ONE_AT_A_TIME,
) -> None:
    """Measure one mode of MM2 beside Mirrorless. What fails is in the results as failed.

    Args:
        ground: the clusters.
        results: where the measurements go; what is there already is left out.
        plan: what to measure.
        number: of this session, for names of its own.
        kind: of the measurements.
        ours_of: makes our side of the ground, an alias and topics.

    Raises:
        MirrorlessError: a side does not start.
        NotArrivedError: two rounds in a row failed: a side may run and copy no more.
    """
    against = f"MM2 {plan.mode.name}"
    warm = [
        shape(size, 6, int(count * plan.warm_up), batch=plan.warm_up_batch)
        for size, count in WARM_UP
        if size in plan.warm_up_sizes
    ]
    topics = {each: _topics(f"s{number}-{each.name}", each) for each in plan.rounds}
    topics |= {each: _topics(f"s{number}-warm{each.size}", each) for each in warm}
    names = {topic: each.partitions for each, some in topics.items() for topic in some}
    due = due_rounds(results, plan, kind)
    if not due:
        return
    ground.create(names | {READY_TOPIC: 1})
    pattern = f"s{number}-.*"
    ours = ours_of(ground, alias=f"ours{number}", topics=list(names))
    theirs = MirrorMaker(ground, plan.mode, alias=f"mm2x{number}", topics=[pattern], frozen=True)
    sides: tuple[Side, Side] = (ours, theirs)
    failures = 0
    try:
        for side in sides:
            results.say(f"starting {side.name}")
            side.start()
            side.freeze()
        for each, some in topics.items():
            few = replace(each, count=PRIMING * each.partitions * each.topics)
            for side in sides:
                side.thaw()
            copy_all(ground, some, few, sides)
            for side in sides:
                side.freeze()
        for each in warm:
            most = MOST_WARM_UPS if plan.warm_up == 1.0 else 1
            warm_up(ground, results, topics[each], each, sides, against=theirs.name, most=most)
        for turn, each in due:
            # Who begins changes from round to round, so that neither always finds the page cache as the other left it.
            order = sides if turn % 2 else sides[::-1]
            well = _round(ground, results, each, topics[each], order, turn=turn, against=against, kind=kind)
            failures = 0 if well else failures + 1
            if failures == GIVE_UP_AFTER:
                raise NotArrivedError(f"{failures} rounds in a row failed, the last one of {each.name}")
    finally:
        for side in sides:
            side.discard()


def due_rounds(results: Results, plan: Plan, kind: str) -> list[tuple[int, Shape]]:
    """What of a plan was not measured yet."""
    against = f"MM2 {plan.mode.name}"
    return [
        (turn, each)
        for turn in range(1, max(plan.rounds.values()) + 1)
        for each, rounds in plan.rounds.items()
        if turn <= rounds and not results.has(kind, against, each.name, turn, (OURS, against))
    ]


def _topics(name: str, records: Shape) -> list[str]:
    return [name] if records.topics == 1 else [f"{name}-{number}" for number in range(records.topics)]


def warm_up(
    ground: Ground,
    results: Results,
    topics: Sequence[str],
    records: Shape,
    sides: Sequence[Side],
    *,
    against: str,
    most: int,
) -> None:
    """Copy the records until MM2, the side of that name, is warm, or so many times."""
    taken = list[float]()
    results.say(f"warming up with {records.count:,} records of {records.size} B")
    while len(taken) < most and not is_steady(taken):
        taken.append(_copy(ground, topics, records, sides)[against]["cpu_s"])
        results.say(f"{against} took {taken[-1]:.2f} s of CPU")
    results.warmed_up(WarmUp(against=against, case=records.name, cpu_s=tuple(taken), steady=is_steady(taken)))


def is_steady(taken: Sequence[float]) -> bool:
    """Whether the last two copies took the same CPU, nearly."""
    return len(taken) > 1 and abs(taken[-1] - taken[-2]) < STEADY * taken[-2]


def copy_all(ground: Ground, topics: Sequence[str], records: Shape, sides: Sequence[Side]) -> None:
    """Fill, and wait until all sides have copied."""
    remote = {side.name: list(map(side.remote_topic, topics)) for side in sides}
    before = {side.name: ground.ends_of(remote[side.name]) for side in sides}
    fill(ground.source.bootstrap, topics, records)
    for side in sides:
        await_arrival(
            ground,
            remote[side.name],
            records,
            before[side.name],
            seconds=ARRIVED_WITHIN_S,
            alive=side.obstacle,
        )


def _copy(ground: Ground, topics: Sequence[str], records: Shape, sides: Sequence[Side]) -> dict[str, dict[str, float]]:
    """Fill, let one side after the other copy, and clear; the figures by side."""
    remote = {side.name: list(map(side.remote_topic, topics)) for side in sides}
    before = {side.name: ground.ends_of(remote[side.name]) for side in sides}
    ours = [side for side in sides if isinstance(side, Mirrorless)]
    for each in ours:
        each.hold()
    fill(ground.source.bootstrap, topics, records)
    for each in ours:
        each.wait_polled(records.count)
    found = {}
    try:
        for side in sides:
            found[side.name] = measured(ground, side, remote[side.name], records, before[side.name])
    finally:
        ground.clear(topics, [topic for each in remote.values() for topic in each])
    return found


def measured(
    ground: Ground,
    side: Side,
    remote: Sequence[str],
    records: Shape,
    before: Mapping[Place, int],
    *,
    seconds: float = ARRIVED_WITHIN_S,
) -> dict[str, float]:
    """Let a frozen side copy what was filled, within so many seconds, and freeze it again; its figures."""
    earlier, began = side.cpu(), time.perf_counter()
    side.thaw()
    try:
        ended = await_arrival(ground, remote, records, before, seconds=seconds, alive=side.obstacle)
        time.sleep(SETTLED_AFTER_S)  # late confirmations are part of the work
        return figures(records, ended - began, side.cpu() - earlier) | {"resident_mb": side.resident_mb()}
    finally:
        side.freeze()


def figures(records: Shape, seconds: float, spent: Cpu) -> dict[str, float]:
    """What the report shows of one copy."""
    return {
        "records": records.count,
        "megabytes": records.megabytes,
        "seconds": seconds,
        "cpu_s": spent.replicator,
        "poller_cpu_s": spent.poller,
        "records_per_s": records.count / seconds,
        "megabytes_per_s": records.megabytes / seconds,
        "records_per_cpu_s": records.count / max(spent.replicator, 0.01),
        "cpu_s_per_million": spent.replicator / records.count * 1e6,
        "cpu_s_per_million_with_poller": (spent.replicator + spent.poller) / records.count * 1e6,
    }


def _round(
    ground: Ground,
    results: Results,
    records: Shape,
    topics: Sequence[str],
    sides: Sequence[Side],
    *,
    turn: int,
    against: str,
    kind: str,
) -> bool:
    failed, found = "", dict[str, dict[str, float]]()
    try:
        found = _copy(ground, topics, records, sides)
    except Exception as exc:  # noqa: BLE001 -- the next round may succeed; this one is kept as failed
        failed = f"{type(exc).__name__}: {exc}"
    for side in sides:
        results.add(
            Measurement(
                kind=kind,
                against=against,
                case=records.name,
                round=turn,
                side=side.name,
                figures=found.get(side.name, {}),
                failed="" if side.name in found else failed,
                at=now(),
            )
        )
    return not failed
