"""What a run of scheduled topics takes, by part: the figures that the cost model has of `pull`.

    python -m tests.benchmarks.pull_cpu [--only continuous]

The function is the bundle that is deployed, under the real runtime client; its CPU is the process' own. Each line has
the medians of some runs, less those of a run that finds nothing where it says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

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
ONE = {"one": 6}
SPREAD_TOPICS = {f"spread-{i}": 6 for i in range(SPREAD)}
"""All of which have records."""


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pull_cpu")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part")
    chosen = parser.parse_args(arguments).only or PARTS
    with (
        tempfile.TemporaryDirectory(prefix="pull-cpu-") as folder,
        pull_stage(Path(folder), timeout_seconds=TIMEOUT_S, memory_mb=1024) as stage,
    ):
        stage.schedule(ONE)
        stage.fill(ONE, 10, 100)
        _say("a cold run", stage.run())
        idle = _medians(stage, lambda: None)
        _say("a run that finds nothing", idle)
        for part in (each for each in PARTS if each in chosen):  # in their order: the first has the first topic
            PARTS[part](stage, idle)
    return 0


def _bulk(stage: PullStage, idle: RunTook) -> None:
    for size, each in ((100, 50_000), (1_000, 15_000), (10_000, 1_500)):
        took = _medians(stage, partial(stage.fill, ONE, each, size), rounds=3)
        records = 6 * each
        cpu = took.cpu_seconds - idle.cpu_seconds
        parts = f"{cpu / records * 1000:.5f} ms a record, {cpu * 1e9 / records / size:.2f} ms a MB"
        _say(f"{records:,} records of {size} B", took, f"{parts}, {records / cpu:,.0f} records per CPU-second")


def _lanes(stage: PullStage, _: RunTook) -> None:
    for topics in ({"wide": 96}, {f"narrow-{i}": 1 for i in range(SPREAD)}, SPREAD_TOPICS):
        stage.schedule(topics)
        stage.fill(topics, 1, 100)
        stage.run()
        nothing = _medians(stage, lambda: None)
        took = _medians(stage, partial(stage.fill, topics, 1, 100))
        cpu, lanes = took.cpu_seconds - nothing.cpu_seconds, sum(topics.values())
        entries = sum(-(-count // SLICE_LANES) for count in topics.values())
        parts = f"{lanes} lanes, {entries} entries, {took.report['transactions']} transactions"
        _say("a record in each lane", took, f"{parts}: {cpu * 1000:.0f} ms of CPU beside a run that finds nothing")


def _continuous(stage: PullStage, _: RunTook) -> None:
    stage.schedule(SPREAD_TOPICS)
    _stamp_by_broker(stage, SPREAD_TOPICS)
    stage.fill(SPREAD_TOPICS, 1, 100)
    stage.run()
    for window in (0.4, 4.5):
        _say_continuous(stage, SPREAD_TOPICS, window)


def _silent(stage: PullStage, idle: RunTook) -> None:
    stage.schedule({f"many-{i}": 6 for i in range(MANY)})
    _say(f"{6 * MANY} lanes, first seen", stage.run())
    nothing = _medians(stage, lambda: None)
    listed = (nothing.cpu_seconds - idle.cpu_seconds) / (6 * MANY) * 1000
    _say(f"{6 * MANY} lanes without a record", nothing, f"{listed:.4f} ms of CPU a lane")


PARTS: Final[Mapping[str, Callable[[PullStage, RunTook], None]]] = {
    "bulk": _bulk,
    "lanes": _lanes,
    "continuous": _continuous,
    "silent": _silent,
}


def _stamp_by_broker(stage: PullStage, topics: Iterable[str]) -> None:
    """Have records stamped where they arrive: what a busy producer keeps back is not late."""
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in topics]
    admin = AdminClient({"bootstrap.servers": stage.ground.source.bootstrap})
    for future in admin.incremental_alter_configs(resources).values():
        future.result()


def _say_continuous(stage: PullStage, topics: Mapping[str, int], window: float) -> None:
    """CPU of a continuous run while a thousand records of 1 KB a second come, evenly in all topics; and how late."""
    run = threading.Thread(target=partial(stage.run, continuous=True, window_seconds=window), daemon=True)
    over, measuring = threading.Event(), threading.Event()
    late: list[float] = []
    others = [
        threading.Thread(target=_trickle, args=(stage, topics, over), daemon=True),
        threading.Thread(target=_read, args=(stage, topics, over, measuring, late), daemon=True),
    ]
    for thread in (run, *others):
        thread.start()
    time.sleep(SETTLED_S)
    before, began = sum(map(own, stage.pids)), time.monotonic()
    measuring.set()
    time.sleep(TRICKLE_S)  # the measurement's own length
    measuring.clear()
    spent = (sum(map(own, stage.pids)) - before) / (time.monotonic() - began)
    over.set()
    for thread in others:
        thread.join()
    late.sort()
    waits = ", ".join(f"{late[int(len(late) * part)]:.2f}" for part in (0.5, 0.99, 0.9999))
    what = f"{RATE} records/s in {len(topics)} topics, window {window} s"
    print(f"{what}: {spent * 100:.1f} % of a core; {waits} s late (p50, p99, p99.99)", flush=True)
    run.join()


def _read(
    stage: PullStage, topics: Mapping[str, int], over: threading.Event, measuring: threading.Event, late: list[float]
) -> None:
    """Seconds from each record's arrival on the source to that at a reader of what is committed on the target."""
    reader = Consumer(
        {
            "bootstrap.servers": stage.ground.target.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    remote = {f"{stage.flow.name.source}.{name}": count for name, count in topics.items()}
    reader.assign([TopicPartition(name, part, OFFSET_END) for name, count in remote.items() for part in range(count)])
    while not over.is_set():
        arrived = [message for message in reader.consume(1_000, timeout=0.05) if message.error() is None]
        if measuring.is_set():
            late.extend(time.time() - message.timestamp()[1] / 1000 for message in arrived)
    reader.close()


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
