"""CPU and time of copying a backlog: the same records by one side and then by the other, in turns.

Both sides run and are warm; whoever is not measured is frozen. While the source topic is filled both are. The figures:

    seconds        from the moment that the side goes on until its last record is visible to a read_committed reader;
                   the events of our mappings are ready then: at AWS the poller shares no core with the function
    cpu_s          CPU of the replicating processes from then until half a second after it: late confirmations count
    poller_cpu_s   CPU of the event source mapping's poller, which AWS runs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tests.benchmarks.beside_mm2.arrival import NotArrivedError, Place, await_arrival
from tests.benchmarks.beside_mm2.mm2 import READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Plan, Profile
from tests.benchmarks.beside_mm2.records import Shape, figures, fill, shape
from tests.benchmarks.beside_mm2.results import Figures, Results, WarmUp
from tests.benchmarks.beside_mm2.sides import Mirrorless, Pulled, Side
from tests.benchmarks.ground import Ground

WARM_UP = ((100, 600_000), (1_000, 200_000), (10_000, 12_000))
"""Bytes and records: MM2's first 300,000 records cost up to twice what later ones do, and the first large ones may
start environments of ours that others did not need."""
STEADY = 0.05
"""MM2 is warm when its CPU of two copies in a row differs by less: its compiler may be busy for minutes."""
MOST_WARM_UPS = 8
SETTLED_AFTER_S = 0.5
ARRIVED_WITHIN_S = 120.0
GIVE_UP_AFTER = 2
ATTEMPTS = 2
"""Where a side has died, another try begins with fresh ones, and measures what is missing."""
ONE_AT_A_TIME = partial(Mirrorless, one_at_a_time=True)
PRIMING = 50
"""Records of each partition that bring a topic to both sides before it is measured."""


def measure(
    ground: Ground,
    results: Results,
    plan: Plan,
    *,
    number: int,
    kind: str = "throughput",
    ours_of: Callable[..., Side] = ONE_AT_A_TIME,
) -> None:
    """Measure one mode of MM2 beside Mirrorless, in as many tries as it may take. What fails is kept as failed.

    Args:
        ground: the clusters.
        results: where the measurements go; what is there already is left out.
        plan: what to measure.
        number: of this session and, counted on, of its tries, for names of their own.
        kind: of the measurements.
        ours_of: makes our side of the ground, an alias and topics.
    """
    for attempt in range(ATTEMPTS):
        with results.attempting(f"{kind} beside {plan.against}"):
            _session(ground, results, plan, f"{number + attempt}", kind=kind, ours_of=ours_of)


def _session(
    ground: Ground, results: Results, plan: Plan, number: str, *, kind: str, ours_of: Callable[..., Side]
) -> None:
    """One try.

    Raises:
        MirrorlessError: a side does not start.
        NotArrivedError: two rounds in a row failed: a side may run and copy no more.
    """
    due = plan.due(results, kind)
    if not due:
        return
    warm = [
        shape(size, 6, int(count * plan.warm_up), batch=plan.warm_up_batch)
        for size, count in WARM_UP
        if size in plan.warm_up_sizes
    ]
    topics = {each: _topics(f"s{number}-{each.name}", each) for each in plan.rounds}
    topics |= {each: _topics(f"s{number}-warm{each.size}", each) for each in warm}
    names = {topic: each.partitions for each, some in topics.items() for topic in some}
    ground.create(names | {READY_TOPIC: 1})
    ours = ours_of(ground, alias=f"ours{number}", topics=list(names))
    theirs = MirrorMaker(ground, plan.mode, alias=f"mm2x{number}", topics=[f"s{number}-.*"], frozen=True)
    sides, failures = (ours, theirs), 0
    try:
        for side in sides:
            results.say(f"starting {side.name}")
            side.start()
            side.freeze()
        for each, some in topics.items():
            prime(ground, some, each, sides)
        for each in warm:
            warm_up(ground, results, topics[each], each, sides, whole=plan.warm_up == 1.0)
        for turn, each in due:
            # Who begins changes from round to round, so that neither always finds the page cache as the other left it.
            order = sides if turn % 2 else sides[::-1]
            well = results.measure(
                partial(_copy, ground, topics[each], each, order),
                kind=kind,
                case=each.name,
                turn=turn,
                sides=dict.fromkeys((side.name for side in order), (plan.against,)),
            )
            failures = 0 if well else failures + 1
            if failures == GIVE_UP_AFTER:
                raise NotArrivedError(f"{failures} rounds in a row failed, the last one of {each.name}")
    finally:
        for side in sides:
            side.discard()


def _topics(name: str, records: Shape) -> list[str]:
    return [name] if records.topics == 1 else [f"{name}-{number}" for number in range(records.topics)]


def prime(ground: Ground, topics: Sequence[str], records: Shape, sides: Sequence[Side]) -> None:
    """Have frozen sides copy a few records of the topics, so that nothing of them is new."""
    few = replace(records, count=PRIMING * records.partitions * records.topics)
    remote, before = _remote(ground, topics, sides)
    for side in sides:
        side.thaw()
    fill(ground.source.bootstrap, topics, few)
    for side in sides:
        await_arrival(ground, remote[side.name], few, before[side.name], seconds=ARRIVED_WITHIN_S, alive=side.obstacle)
    for side in sides:
        side.freeze()


def _remote(
    ground: Ground, topics: Sequence[str], sides: Sequence[Side]
) -> tuple[dict[str, list[str]], dict[str, dict[Place, int]]]:
    """The topics on the target, and their ends, by side."""
    remote = {side.name: list(map(side.remote_topic, topics)) for side in sides}
    return remote, {side.name: ground.ends_of(remote[side.name]) for side in sides}


def warm_up(
    ground: Ground, results: Results, topics: Sequence[str], records: Shape, sides: Sequence[Side], *, whole: bool
) -> None:
    """Copy the records until MM2, the last side, is warm, or so often as is reasonable; once where it is not whole."""
    taken, against = list[float](), sides[-1].name
    results.say(f"warming up with {records.count:,} records of {records.size} B")
    while len(taken) < (MOST_WARM_UPS if whole else 1) and not is_steady(taken):
        taken.append(_copy(ground, topics, records, sides)[against]["cpu_s"])
        results.say(f"{against} took {taken[-1]:.2f} s of CPU")
    results.warmed_up(WarmUp(against=against, case=records.name, cpu_s=tuple(taken), steady=is_steady(taken)))


def is_steady(taken: Sequence[float]) -> bool:
    """Whether the last two copies took the same CPU, nearly."""
    return len(taken) > 1 and abs(taken[-1] - taken[-2]) < STEADY * taken[-2]


def _copy(ground: Ground, topics: Sequence[str], records: Shape, sides: Sequence[Side]) -> dict[str, Figures]:
    """Fill, let one side after the other copy, and clear; the figures by side."""
    remote, before = _remote(ground, topics, sides)
    for side in sides:
        side.hold()
    fill(ground.source.bootstrap, topics, records)
    for side in sides:
        side.wait_polled(records.count)
    try:
        return {
            side.name: measured(ground, side, remote[side.name], records, before[side.name], seconds=ARRIVED_WITHIN_S)
            for side in sides
        }
    finally:
        ground.clear(topics, [topic for each in remote.values() for topic in each])


def measured(
    ground: Ground, side: Side, remote: Sequence[str], records: Shape, before: Mapping[Place, int], *, seconds: float
) -> Figures:
    """Let a frozen side copy what was filled, within so many seconds, and freeze it again; its figures."""
    earlier, began = side.cpu(), time.perf_counter()
    side.thaw()
    try:
        ended = await_arrival(ground, remote, records, before, seconds=seconds, alive=side.obstacle)
        time.sleep(SETTLED_AFTER_S)  # late confirmations are part of the work
        return figures(records, ended - began, side.cpu() - earlier) | {"resident_mb": side.resident_mb()}
    finally:
        side.freeze()


def measure_throughput(ground: Ground, results: Results, profile: Profile) -> None:
    """Mapped topics, beside each mode of MM2."""
    for number, plan in enumerate(profile.throughput, 1):
        measure(ground, results, plan, number=number * 10)


def measure_pull(ground: Ground, results: Results, profile: Profile) -> None:
    """Scheduled topics: a continuous run of one shard."""
    if profile.pull is not None:
        measure(ground, results, profile.pull, number=90, kind="pull", ours_of=Pulled)


def measure_pass_through(ground: Ground, results: Results, profile: Profile) -> None:
    """Whole batches of a given size, by the same run.

    The same with three replicas has a target of its own, of three brokers: then a broker answers a batch once two
    others have it.
    """
    if profile.pass_through is not None:
        measure(ground, results, profile.pass_through, number=70, kind="pass-through", ours_of=Pulled)
    plan, kind = profile.pass_through_replicated, "pass-through, three replicas"
    if plan is not None and plan.due(results, kind):
        with results.attempting(kind):
            results.say("starting a target of three brokers")
            other = Ground(ground.folder / "replicated", quick_start=profile.quick_start, replicas=3)
            with other.running():
                measure(other, results, plan, number=80, kind=kind, ours_of=Pulled)
