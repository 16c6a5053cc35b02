"""Time to copy a backlog: each side is started cold before the same full topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tests.benchmarks.beside_mm2.arrival import await_arrival
from tests.benchmarks.beside_mm2.backfill_side import Backfill
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.mirrorless_side import Mirrorless
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_MODE, EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.records import Shape, fill
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.side import Side
from tests.benchmarks.beside_mm2.throughput import SETTLED_AFTER_S, figures

KIND = "catch-up"
TOPIC = "backlog"
WITHIN_S = 240.0
AGAINST = tuple(f"MM2 {mode.name}" for mode in (EXACTLY_ONCE_TUNED, EXACTLY_ONCE_MODE))


class ColdSide(Side, Protocol):
    """A side that can be started without waiting until it replicates: the wait is what is measured."""

    def begin_start(self) -> None:
        """Start it."""


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Measure the live lane, the backfill job and MM2, in turns. What fails is in the results as failed.

    Raises:
        RuntimeError: the backlog could not be written.
    """
    records = profile.catch_up_records
    if not profile.catch_up:
        return
    ground.create({TOPIC: records.partitions, READY_TOPIC: 1})
    results.say(f"writing a backlog of {records.count:,} records of {records.size} B")
    fill(ground.source.bootstrap, [TOPIC], records)
    for turn in range(1, profile.catch_up + 1):
        makers: list[Callable[[], ColdSide]] = [
            partial(Mirrorless, ground, alias=f"ours-late{turn}", topics=[TOPIC]),
            partial(MirrorMaker, ground, EXACTLY_ONCE_TUNED, alias=f"mm2-late-tuned{turn}", topics=[TOPIC]),
            partial(Backfill, ground, alias=f"ours-job{turn}", topic=TOPIC),
            partial(MirrorMaker, ground, EXACTLY_ONCE_MODE, alias=f"mm2-late{turn}", topics=[TOPIC]),
        ]
        for make in makers if turn % 2 else makers[::-1]:
            side = make()
            others = [side.name] if isinstance(side, MirrorMaker) else AGAINST
            if not all(results.has(KIND, other, records.name, turn, (side.name,)) for other in others):
                _one(ground, results, side, records, turn=turn, others=others)


def _one(
    ground: Ground, results: Results, side: ColdSide, records: Shape, *, turn: int, others: list[str] | tuple[str, ...]
) -> None:
    found, failed = dict[str, float](), ""
    try:
        found = _caught_up(ground, side, records)
    except Exception as exc:  # noqa: BLE001 -- the next may succeed; this one is kept as failed
        failed = f"{type(exc).__name__}: {exc}"
    for other in others:
        results.add(
            Measurement(
                kind=KIND,
                against=other,
                case=records.name,
                round=turn,
                side=side.name,
                figures=found,
                failed=failed,
                at=now(),
            )
        )


def _caught_up(ground: Ground, side: ColdSide, records: Shape) -> dict[str, float]:
    began = time.perf_counter()
    try:
        side.begin_start()
        ended = await_arrival(ground, [side.remote_topic(TOPIC)], records, {}, seconds=WITHIN_S, alive=side.obstacle)
        time.sleep(SETTLED_AFTER_S)  # late confirmations are part of the work
        return figures(records, ended - began, side.cpu()) | {"resident_mb": side.resident_mb()}
    finally:
        side.discard()
        ground.drop(side.remote_topic(TOPIC))
