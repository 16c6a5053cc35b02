"""The steady state of a backfill beside MM2, exactly once and tuned: one large backlog of 1 KB in twelve lanes.

Both copy the very same topic, one after the other; who begins changes from case to case. MM2 is started and warm, as in
`throughput`. The job is started cold, and its start-up stands apart: it ends with the first look at which a reader sees
a record on the target, and what that look sees counts neither for the speed nor for the CPU of the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.beside_mm2 import throughput
from tests.benchmarks.beside_mm2.arrival import LOOK_EVERY_S, NotArrivedError, await_arrival
from tests.benchmarks.beside_mm2.backfill_side import Backfill
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.records import Shape, shape
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.side import OURS
from tests.benchmarks.beside_mm2.throughput import ARRIVED_WITHIN_S, SETTLED_AFTER_S, figures
from tests.benchmarks.beside_mm2.whole_batches import fill

KIND = "backfill"
AGAINST = f"MM2 {EXACTLY_ONCE_TUNED.name}"
SIZE, PARTITIONS = 1_000, 12
BATCHES = (256_000, 16_000)
"""Bytes of a batch of the source, before compression."""
WARM_UP = 200_000
"""Records of one copy; again and again until MM2 is warm."""
SLOWEST = 10_000
"""Records a second, by which a side is given up."""


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Measure both, case after case; what fails is in the results as failed.

    Raises:
        MirrorlessError: MM2 does not start.
    """
    shapes = [
        shape(SIZE, PARTITIONS, int(profile.backfill_gigabytes * 1e9 / SIZE), batch=batch)
        for batch in BATCHES
        if profile.backfill_gigabytes
    ]
    due = [each for each in shapes if not results.has(KIND, AGAINST, each.name, 1, (OURS, AGAINST))]
    if not due:
        return
    topics = {each: f"steady-{each.batch}" for each in due}
    warm = shape(SIZE, 6, int(WARM_UP * profile.backfill_warm_up), batch=BATCHES[0])
    names = {topic: each.partitions for each, topic in topics.items()} | {"steady-warm": warm.partitions}
    ground.create(names | {READY_TOPIC: 1})
    theirs = MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias="mm2steady", topics=["steady-.*"], frozen=True)
    try:
        results.say(f"starting {theirs.name}")
        theirs.start()
        for topic, partitions in names.items():
            few = shape(SIZE, partitions, throughput.PRIMING * partitions)
            throughput.copy_all(ground, [topic], few, [theirs])
        theirs.freeze()
        ground.clear(list(names), list(map(theirs.remote_topic, names)))
        most = throughput.MOST_WARM_UPS if profile.backfill_warm_up == 1.0 else 1
        throughput.warm_up(ground, results, ["steady-warm"], warm, [theirs], against=theirs.name, most=most)
        for number, (records, topic) in enumerate(topics.items(), 1):
            _one(ground, results, theirs, records, topic, ours_first=number % 2 == 1)
    finally:
        theirs.discard()


def _one(
    ground: Ground, results: Results, theirs: MirrorMaker, records: Shape, topic: str, *, ours_first: bool
) -> None:
    """One backlog, by both sides."""
    remote = theirs.remote_topic(topic)
    before = ground.ends_of([remote])
    results.say(f"writing {records.count:,} records in batches of {records.batch:,} B")
    fill(ground.source.bootstrap, [topic], records)
    seconds = ARRIVED_WITHIN_S + records.count / SLOWEST

    def by_theirs() -> dict[str, float]:
        return throughput.measured(ground, theirs, [remote], records, before, seconds=seconds)

    def by_ours() -> dict[str, float]:
        return _by_job(ground, Backfill(ground, alias=f"ours{topic}", topic=topic), topic, records, seconds=seconds)

    try:
        for name, copy in [(OURS, by_ours), (AGAINST, by_theirs)][:: 1 if ours_first else -1]:
            found, failed = dict[str, float](), ""
            try:
                found = copy()
            except Exception as exc:  # noqa: BLE001 -- the other may succeed; this one is kept as failed
                failed = f"{type(exc).__name__}: {exc}"
            results.add(
                Measurement(
                    kind=KIND,
                    against=AGAINST,
                    case=records.name,
                    round=1,
                    side=name,
                    figures=found,
                    failed=failed,
                    at=now(),
                )
            )
    finally:
        ground.clear([topic], [remote])


def _by_job(ground: Ground, job: Backfill, topic: str, records: Shape, *, seconds: float) -> dict[str, float]:
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
        steady = replace(records, count=records.count - seen)
        found = figures(steady, ended - started, spent) | {"resident_mb": resident}
        _await_exit(job, seconds=seconds)
        return found | {
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


def _await_exit(job: Backfill, *, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while job.alive:
        job.cpu()  # the last look before its end counts
        if time.perf_counter() > deadline:
            raise NotArrivedError(f"the job did not end within {seconds:.0f} s; see {job.log}")
        time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline
    if reason := job.obstacle():
        raise NotArrivedError(reason)
