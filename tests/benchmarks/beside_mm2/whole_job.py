"""The backfill job beside MM2: the steady state of a large backlog, and the time to catch up from a cold start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tests.benchmarks.beside_mm2 import backlog
from tests.benchmarks.beside_mm2.arrival import LOOK_EVERY_S, NotArrivedError, await_arrival
from tests.benchmarks.beside_mm2.backlog import ARRIVED_WITHIN_S, SETTLED_AFTER_S
from tests.benchmarks.beside_mm2.latency import pairs_of
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_MODE, EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.records import Shape, figures, fill, shape
from tests.benchmarks.beside_mm2.results import Figures, Results
from tests.benchmarks.beside_mm2.sides import OURS, Backfill, Mirrorless, Side
from tests.benchmarks.ground import Ground

AGAINST, AGAINST_UNTUNED = (f"MM2 {mode.name}" for mode in (EXACTLY_ONCE_TUNED, EXACTLY_ONCE_MODE))
SIZE, PARTITIONS = 1_000, 12
BATCHES = (256_000, 16_000)
"""Bytes of a batch of the source, before compression."""
WARM_UP = 200_000
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
    warm = shape(SIZE, 6, int(WARM_UP * profile.backfill_warm_up), batch=BATCHES[0])
    primed = topics | {"steady-warm": warm}
    ground.create({topic: each.partitions for topic, each in primed.items()} | {READY_TOPIC: 1})
    theirs = MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias="mm2steady", topics=["steady-.*"], frozen=True)
    try:
        results.say(f"starting {theirs.name}")
        theirs.start()
        for topic, each in primed.items():
            backlog.prime(ground, [topic], replace(each, batch=0), [theirs])
        ground.clear(list(primed), list(map(theirs.remote_topic, primed)))
        whole = profile.backfill_warm_up == 1.0
        backlog.warm_up(ground, results, ["steady-warm"], warm, [theirs], whole=whole)
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
    by_mm2 = partial(backlog.measured, ground, theirs, [remote], records, before, seconds=seconds)
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
