"""The lower bound of a copy: kcat to kcat, a consumer and a producer in C, and nothing in between."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from functools import partial

from tests.benchmarks.beside_mm2.arrival import NotArrivedError
from tests.benchmarks.beside_mm2.records import Shape, figures, fill
from tests.benchmarks.beside_mm2.results import Figures, Results
from tests.benchmarks.cpu import Cpu
from tests.benchmarks.ground import Ground

NAME = "kcat | kcat"
WITHIN_S = 120.0


def pipe(ground: Ground, results: Results, shapes: Iterable[Shape], *, rounds: int, kind: str) -> None:
    """Copy each shape so often with kcat. Records travel as `key:value` lines."""
    kcat = shutil.which("kcat")
    if rounds and kcat is None:
        results.not_measured("pipe", "kcat is not on this machine (Debian: apt-get install kcat)")
    for records in shapes if kcat else ():
        due = [turn for turn in range(1, rounds + 1) if not results.has(kind, "", records.name, turn, (NAME,))]
        if not due:
            continue
        topic, remote = f"pipe-{records.name}", f"pipe-copy-{records.name}"
        ground.create({topic: records.partitions})
        ground.create_remote({remote: records.partitions})
        fill(ground.source.bootstrap, [topic], records)
        for turn in due:
            copied = partial(_piped, str(kcat), ground, topic, remote, records)
            results.measure(copied, kind=kind, case=records.name, turn=turn, sides={NAME: ("",)})
        ground.clear([topic], [])
        ground.drop(remote)


def _piped(kcat: str, ground: Ground, topic: str, remote: str, records: Shape) -> dict[str, Figures]:
    """One copy; it ends with the processes: kcat ends when all is acknowledged.

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
    if (copied := sum(ground.ends(remote).values()) - there) != records.count:
        raise NotArrivedError(f"kcat copied {copied:,} of {records.count:,} records")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {NAME: figures(records, seconds, Cpu(replicator=spent))}
