"""What a run of scheduled topics takes, by part: the figures that the cost model has of `pull`.

    python -m tests.benchmarks.pull_cpu

The function is the bundle that is deployed, under the real runtime client; its CPU is the process' own. Each line has
the medians of some runs, less those of a run that finds nothing where it says so.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from mirrorless.lane import SLICE_LANES
from tests.benchmarks.beside_mm2.cpu import own
from tests.benchmarks.pull_stage import PullStage, RunTook, pull_stage

ROUNDS = 5
RATE, SETTLED_S, TRICKLE_S = 1_000, 15.0, 30.0
"""Records a second of a continuous run, and when and for how long it is measured."""
TIMEOUT_S = 95.0
"""Of a run: it begins nothing in its last 35 s."""
MANY = 1_000
"""Topics of six partitions, of which none has a record."""
SPREAD = 100
"""Topics of six partitions, all of which have."""


def main() -> int:
    """Measure, and print the parts."""
    with (
        tempfile.TemporaryDirectory(prefix="pull-cpu-") as folder,
        pull_stage(Path(folder), timeout_seconds=TIMEOUT_S, memory_mb=1024) as stage,
    ):
        one, wide = {"one": 6}, {"wide": 96}
        narrow, spread = (
            {f"{name}-{i}": count for i in range(SPREAD)} for name, count in (("narrow", 1), ("spread", 6))
        )
        stage.schedule(one)
        stage.fill(one, 10, 100)
        _say("a cold run", stage.run())
        idle = _medians(stage, lambda: None)
        _say("a run that finds nothing", idle)
        for size, each in ((100, 50_000), (1_000, 15_000), (10_000, 1_500)):
            took = _medians(stage, partial(stage.fill, one, each, size), rounds=3)
            records = 6 * each
            cpu = took.cpu_seconds - idle.cpu_seconds
            parts = f"{cpu / records * 1000:.5f} ms a record, {cpu * 1e9 / records / size:.2f} ms a MB"
            _say(f"{records:,} records of {size} B", took, f"{parts}, {records / cpu:,.0f} records per CPU-second")
        for topics in (wide, narrow, spread):
            stage.schedule(topics)
            stage.fill(topics, 1, 100)
            stage.run()
            nothing = _medians(stage, lambda: None)
            took = _medians(stage, partial(stage.fill, topics, 1, 100))
            cpu, lanes = took.cpu_seconds - nothing.cpu_seconds, sum(topics.values())
            entries = sum(-(-count // SLICE_LANES) for count in topics.values())
            parts = f"{lanes} lanes, {entries} entries, {took.report['transactions']} transactions"
            _say("a record in each lane", took, f"{parts}: {cpu * 1000:.0f} ms of CPU beside a run that finds nothing")
        for window in (0.4, 4.5):
            _say_continuous(stage, spread, window)
        many = {f"many-{i}": 6 for i in range(MANY)}
        stage.schedule(many)
        _say(f"{6 * MANY} lanes, first seen", stage.run())
        nothing = _medians(stage, lambda: None)
        listed = (nothing.cpu_seconds - idle.cpu_seconds) / (6 * MANY) * 1000
        _say(f"{6 * MANY} lanes without a record", nothing, f"{listed:.4f} ms of CPU a lane")
    return 0


def _say_continuous(stage: PullStage, topics: Mapping[str, int], window: float) -> None:
    """CPU of a continuous run while a thousand records of 1 KB a second come, evenly in all topics."""
    thread = threading.Thread(target=partial(stage.run, continuous=True, window_seconds=window), daemon=True)
    thread.start()
    over = threading.Event()
    writer = threading.Thread(target=_trickle, args=(stage, topics, over), daemon=True)
    writer.start()
    time.sleep(SETTLED_S)
    before, began = sum(map(own, stage.pids)), time.monotonic()
    time.sleep(TRICKLE_S)  # the measurement's own length
    spent = (sum(map(own, stage.pids)) - before) / (time.monotonic() - began)
    over.set()
    writer.join()
    print(f"{RATE} records/s in {len(topics)} topics, window {window} s: {spent * 100:.1f} % of a core", flush=True)
    thread.join()


def _trickle(stage: PullStage, topics: Mapping[str, int], over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": stage.ground.source.bootstrap, "linger.ms": 5, "log_level": 0})
    places = cycle((name, partition) for name, count in topics.items() for partition in range(count))
    began, written = time.monotonic(), 0
    while not over.wait(0.01):
        due = int((time.monotonic() - began) * RATE)
        for name, partition in islice(places, max(0, due - written)):
            producer.produce(name, bytes(1_000), b"key-00000000", partition)
        producer.poll(0)
        written = max(written, due)
    producer.flush(30)


def _medians(stage: PullStage, before: Callable[[], None], rounds: int = ROUNDS) -> RunTook:
    """The medians of some runs, each after `before`."""
    taken = []
    for _ in range(rounds):
        before()
        taken.append(stage.run())
    return RunTook(
        seconds=median(each.seconds for each in taken),
        cpu_seconds=median(each.cpu_seconds for each in taken),
        resident_mb=max(each.resident_mb for each in taken),
        report=taken[-1].report,
    )


def _say(what: str, took: RunTook, more: str = "") -> None:
    figures = f"{took.seconds:.2f} s, {took.cpu_seconds:.2f} s of CPU, {took.resident_mb:.0f} MB"
    print(f"{what}: {figures}{'; ' + more if more else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
