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
from dataclasses import replace
from functools import partial
from itertools import product

from confluent_kafka import KafkaError, TopicPartition

from tests.benchmarks.beside_mm2.profiles import Plan, Profile
from tests.benchmarks.beside_mm2.records import Shape, figures, fill, shape
from tests.benchmarks.beside_mm2.report import Figures, Results, WarmUp
from tests.benchmarks.beside_mm2.sides import (
    EXACTLY_ONCE_MODE,
    EXACTLY_ONCE_TUNED,
    OURS,
    READY_TOPIC,
    Backfill,
    Mirrorless,
    MirrorMaker,
    Pulled,
    Side,
    pairs_of,
)
from tests.benchmarks.ground import Ground, reader

# The moment of arrival

Place = tuple[str, int]
"""A topic of the target, and a partition."""
LOOK_EVERY_S = 0.02
BEFORE_THE_END = 10
"""How far before an end to begin to look for the last record: markers and nothing else may stand behind it."""
READ_S = 10.0


class NotArrivedError(Exception):
    """The records did not arrive in time, or who was to bring them is dead."""


def await_arrival(
    ground: Ground,
    topics: Collection[str],
    records: Shape,
    before: Mapping[Place, int],
    *,
    seconds: float,
    alive: Callable[[], str],
) -> float:
    """Wait until the records stand on topics of the target; the moment, on the clock of `time.perf_counter`.

    Args:
        ground: the clusters.
        topics: their names on the target.
        records: what was written to their sources.
        before: the ends of the topics before anything of it arrived.
        seconds: how long to wait.
        alive: why none arrive any more; empty while some may.

    Raises:
        NotArrivedError: saying how far they came.
    """
    deadline = time.perf_counter() + seconds
    waiting = set(product(topics, range(records.partitions)))
    looked: dict[Place, int] = {}
    while True:
        ends = ground.ends_of(topics)
        moment = time.perf_counter()
        there = {each for each in waiting if ends.get(each, 0) - before.get(each, 0) >= records.per_partition}
        fresh = {each: ends[each] for each in there if looked.get(each) != ends[each]}
        if fresh:
            looked |= fresh
            numbers = _last_numbers(ground, fresh)
            waiting -= {each for each, last in numbers.items() if last == records.per_partition - 1}
        if not waiting:
            return moment
        if reason := alive():
            raise NotArrivedError(f"{next(iter(topics))}: {reason}")
        if moment > deadline:
            came = sum(end - before.get(each, 0) for each, end in ends.items())
            raise NotArrivedError(
                f"{next(iter(topics))}: {came:,} of {records.count:,} records came within {seconds:.0f} s"
            )
        time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline


def _last_numbers(ground: Ground, ends: Mapping[Place, int]) -> dict[Place, int]:
    """The number of the last visible record before each end; a partition without any is absent."""
    consumer = reader(ground.target.bootstrap, enable_partition_eof=True, auto_offset_reset="earliest")
    found: dict[Place, int] = {}
    unread = set(ends)
    deadline = time.perf_counter() + READ_S
    try:
        consumer.assign([TopicPartition(*each, max(0, end - BEFORE_THE_END)) for each, end in ends.items()])
        while unread and time.perf_counter() < deadline:
            for message in consumer.consume(1000, timeout=0.05):
                place = message.topic() or "", message.partition() or 0
                error, value = message.error(), message.value()
                if error is None and value is not None:
                    found[place] = int(value[:8], 16)
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place)
    finally:
        consumer.close()
    return found


# Rounds by warm sides

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


# The backfill job

AGAINST, AGAINST_UNTUNED = (f"MM2 {mode.name}" for mode in (EXACTLY_ONCE_TUNED, EXACTLY_ONCE_MODE))
SIZE, PARTITIONS = 1_000, 12
BATCHES = (256_000, 16_000)
"""Bytes of a batch of the source, before compression."""
STEADY_WARM_UP = 200_000
"""Records of one copy; again and again until MM2 is warm."""
SLOWEST = 10_000
"""Records a second, by which a side is given up."""
TOPIC = "backlog"
CAUGHT_UP_WITHIN_S = 240.0


def measure_steady(ground: Ground, results: Results, profile: Profile) -> None:
    """One large backlog of 1 KB in twelve lanes, case after case.

    Both copy the very same topic, one after the other; who begins changes from case to case. MM2 is started and warm.
    The job is started cold, and its start-up stands apart: it ends with the first look at which a reader sees a record
    on the target, and what that look sees counts neither for the speed nor for the CPU of the rest.

    Raises:
        MirrorlessError: MM2 does not start.
    """
    count = int(profile.backfill_gigabytes * 1e9 / SIZE)
    shapes = [shape(SIZE, PARTITIONS, count, batch=batch) for batch in BATCHES if count]
    due = [each for each in shapes if not results.has("backfill", AGAINST, each.name, 1, (OURS, AGAINST))]
    if not due:
        return
    topics = {f"steady-{each.batch}": each for each in due}
    warm = shape(SIZE, 6, int(STEADY_WARM_UP * profile.backfill_warm_up), batch=BATCHES[0])
    primed = topics | {"steady-warm": warm}
    ground.create({topic: each.partitions for topic, each in primed.items()} | {READY_TOPIC: 1})
    theirs = MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias="mm2steady", topics=["steady-.*"], frozen=True)
    try:
        results.say(f"starting {theirs.name}")
        theirs.start()
        for topic, each in primed.items():
            prime(ground, [topic], replace(each, batch=0), [theirs])
        ground.clear(list(primed), list(map(theirs.remote_topic, primed)))
        whole = profile.backfill_warm_up == 1.0
        warm_up(ground, results, ["steady-warm"], warm, [theirs], whole=whole)
        for number, (topic, each) in enumerate(topics.items()):
            _steady(ground, results, theirs, each, topic, ours_first=number % 2 == 0)
    finally:
        theirs.discard()


def _steady(
    ground: Ground, results: Results, theirs: MirrorMaker, records: Shape, topic: str, *, ours_first: bool
) -> None:
    """One backlog, by both sides."""
    remote = theirs.remote_topic(topic)
    before = ground.ends_of([remote])
    results.say(f"writing {records.count:,} records in batches of {records.batch:,} B")
    fill(ground.source.bootstrap, [topic], records)
    seconds = ARRIVED_WITHIN_S + records.count / SLOWEST
    job = Backfill(ground, alias=f"ours{topic}", topic=topic)
    by_job = partial(_by_job, ground, job, topic, records, seconds=seconds)
    by_mm2 = partial(measured, ground, theirs, [remote], records, before, seconds=seconds)
    copies: list[tuple[str, Callable[[], Figures]]] = [(OURS, by_job), (AGAINST, by_mm2)]
    try:
        for name, copy in copies if ours_first else copies[::-1]:
            results.measure(
                lambda name=name, copy=copy: {name: copy()},  # type: ignore[misc]  # bound now
                kind="backfill",
                case=records.name,
                turn=1,
                sides={name: (AGAINST,)},
            )
    finally:
        ground.clear([topic], [remote])


def _by_job(ground: Ground, job: Backfill, topic: str, records: Shape, *, seconds: float) -> Figures:
    """The figures of a whole job: its steady state, and beside that its start-up and the whole."""
    remote = [job.remote_topic(topic)]
    began = time.perf_counter()
    job.begin_start()
    try:
        seen = _first_seen(ground, job, remote, seconds=seconds)
        started, start_cpu = time.perf_counter(), job.cpu()
        ended = await_arrival(ground, remote, records, {}, seconds=seconds, alive=job.obstacle)
        resident = job.resident_mb()  # before its end
        time.sleep(SETTLED_AFTER_S)  # late confirmations are part of the work
        spent = job.cpu() - start_cpu
        found = figures(replace(records, count=records.count - seen), ended - started, spent)
        job.await_exit(seconds=seconds)
        return found | {
            "resident_mb": resident,
            "start_seconds": started - began,
            "start_cpu_s": start_cpu.replicator,
            "whole_seconds": time.perf_counter() - began,
            "whole_cpu_s": job.cpu().replicator,
        }
    finally:
        job.discard()
        ground.drop(remote[0])


def _first_seen(ground: Ground, job: Backfill, remote: Sequence[str], *, seconds: float) -> int:
    """How many records a reader of the target sees, as soon as there is one."""
    deadline = time.perf_counter() + seconds
    while not (seen := sum(ground.ends_of(remote).values())):
        if reason := job.obstacle():
            raise NotArrivedError(f"{remote[0]}: {reason}")
        if time.perf_counter() > deadline:
            raise NotArrivedError(f"{remote[0]}: no record came within {seconds:.0f} s")
        time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline
    return seen


def measure_catch_up(ground: Ground, results: Results, profile: Profile) -> None:
    """The live lane, the backfill job and MM2, in turns: each side is started cold before the same full topic."""
    records = profile.catch_up_records
    if not profile.catch_up:
        return
    ground.create({TOPIC: records.partitions, READY_TOPIC: 1})
    results.say(f"writing a backlog of {records.count:,} records of {records.size} B")
    fill(ground.source.bootstrap, [TOPIC], records)
    for turn in range(1, profile.catch_up + 1):
        makers: list[Callable[[], Side]] = [
            partial(Mirrorless, ground, alias=f"ours-late{turn}", topics=[TOPIC]),
            partial(MirrorMaker, ground, EXACTLY_ONCE_TUNED, alias=f"mm2-late-tuned{turn}", topics=[TOPIC]),
            partial(Backfill, ground, alias=f"ours-job{turn}", topic=TOPIC),
            partial(MirrorMaker, ground, EXACTLY_ONCE_MODE, alias=f"mm2-late{turn}", topics=[TOPIC]),
        ]
        for side in (make() for make in (makers if turn % 2 else makers[::-1])):
            others = pairs_of(side, (AGAINST, AGAINST_UNTUNED))
            if not all(results.has("catch-up", other, records.name, turn, (side.name,)) for other in others):
                what = partial(_caught_up, ground, side, records)
                results.measure(what, kind="catch-up", case=records.name, turn=turn, sides={side.name: others})


def _caught_up(ground: Ground, side: Side, records: Shape) -> dict[str, Figures]:
    began, remote = time.perf_counter(), side.remote_topic(TOPIC)
    try:
        side.begin_start()
        ended = await_arrival(ground, [remote], records, {}, seconds=CAUGHT_UP_WITHIN_S, alive=side.obstacle)
        time.sleep(SETTLED_AFTER_S)  # late confirmations are part of the work
        return {side.name: figures(records, ended - began, side.cpu()) | {"resident_mb": side.resident_mb()}}
    finally:
        side.discard()
        ground.drop(remote)
