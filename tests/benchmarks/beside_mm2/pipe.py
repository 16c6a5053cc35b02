"""The lower bound of a copy: kcat to kcat, a consumer and a producer in C, and nothing in between."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable

from confluent_kafka.admin import NewTopic

from tests.benchmarks.beside_mm2.arrival import NotArrivedError
from tests.benchmarks.beside_mm2.clusters import ANSWER_S, Ground
from tests.benchmarks.beside_mm2.cpu import Cpu
from tests.benchmarks.beside_mm2.profiles import MAIN_PARTITIONS, SIZES, Profile
from tests.benchmarks.beside_mm2.records import Shape, shape
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.throughput import figures
from tests.benchmarks.beside_mm2.whole_batches import fill

KIND = "pipe"
NAME = "kcat | kcat"
WITHIN_S = 120.0
QUICK_PART = 4
"""A run with a single round copies a fourth."""


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Copy each size with kcat, as often as the profile says.

    Records travel as `key:value` lines. The end is that of the processes: kcat ends when all is acknowledged.
    """
    if profile.pipe:
        parts = QUICK_PART if profile.pipe == 1 else 1
        shapes = [shape(size, MAIN_PARTITIONS, about // parts) for size, about in SIZES.items()]
        measure_shapes(ground, results, shapes, rounds=profile.pipe, kind=KIND)


def measure_shapes(ground: Ground, results: Results, shapes: Iterable[Shape], *, rounds: int, kind: str) -> None:
    """Copy each shape so often with kcat."""
    kcat = shutil.which("kcat")
    if kcat is None:
        results.not_measured("pipe", "kcat is not on this machine (Debian: apt-get install kcat)")
        return
    for records in shapes:
        due = [turn for turn in range(1, rounds + 1) if not results.has(kind, "", records.name, turn, (NAME,))]
        if not due:
            continue
        topic, remote = f"pipe-{records.name}", f"pipe-copy-{records.name}"
        ground.create({topic: records.partitions})
        ground.target_admin.create_topics([NewTopic(remote, records.partitions, 1)])[remote].result(ANSWER_S)
        fill(ground.source.bootstrap, [topic], records)
        for turn in due:
            found, failed = dict[str, float](), ""
            try:
                seconds, spent = piped(kcat, ground, topic, remote, count=records.count)
                found = figures(records, seconds, spent)
            except Exception as exc:  # noqa: BLE001 -- the next may succeed; this one is kept as failed
                failed = f"{type(exc).__name__}: {exc}"
            results.add(
                Measurement(kind=kind, case=records.name, round=turn, side=NAME, figures=found, failed=failed, at=now())
            )
        ground.clear(topic, [])
        ground.drop(remote)


def piped(kcat: str, ground: Ground, topic: str, remote: str, *, count: int) -> tuple[float, Cpu]:
    """One copy: seconds, and CPU of both processes.

    Raises:
        NotArrivedError: kcat failed, took too long, or left something out.
    """
    there = sum(ground.ends(remote).values())
    quiet = ["-q", "-X", "log_level=0"]
    reading = [kcat, "-C", *quiet, "-b", ground.source.bootstrap, "-t", topic, "-o", "beginning", "-e", "-K", ":"]
    writing = [kcat, "-P", *quiet, "-b", ground.target.bootstrap, "-t", remote, "-K", ":", "-z", "lz4"]
    before, began = os.times(), time.perf_counter()
    with (
        subprocess.Popen(reading, stdout=subprocess.PIPE) as reader,
        subprocess.Popen([*writing, "-X", "linger.ms=5"], stdin=reader.stdout) as writer,
    ):
        try:
            codes = writer.wait(WITHIN_S), reader.wait(WITHIN_S)
        except subprocess.TimeoutExpired as exc:
            writer.kill()
            reader.kill()
            raise NotArrivedError(f"kcat did not end within {WITHIN_S:.0f} s") from exc
    seconds, after = time.perf_counter() - began, os.times()
    if any(codes):
        raise NotArrivedError(f"kcat ended with {codes}")
    if (copied := sum(ground.ends(remote).values()) - there) != count:
        raise NotArrivedError(f"kcat copied {copied:,} of {count:,} records")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, Cpu(replicator=spent)
