"""Latency from a producer on the source to a reader of the target, by rate, one side at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.flow import SIZE, Reader, Writer
from tests.benchmarks.beside_mm2.mirrorless_side import AT_ONCE, Mirrorless
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_MODE, EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.side import Side

PARTITIONS = 6
KIND = "latency"
WARM_S = 2.0
"""At the start of each measurement, not counted."""
FIRST_WARM_S, FIRST_RATE = 10.0, 5_000
"""Before the first measurement of each side: what makes its code warm."""
PRIMED_WITHIN_S = 120.0
DRAIN_S = 20.0


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Measure ours at once and by default, and MM2 exactly once, tuned and by default, in turns.

    Each side has a topic of its own, so that the others are idle while it is measured. None is frozen. A side that
    does not start is named in the results, and the others are measured.
    """
    topics = [f"latency-{number}" for number in range(4)]
    sides: list[Side] = [
        Mirrorless(ground, alias="ours-at-once", topics=topics[:1], options=AT_ONCE),
        MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias="mm2-latency-tuned", topics=topics[1:2]),
        MirrorMaker(ground, EXACTLY_ONCE_MODE, alias="mm2-latency", topics=topics[2:3]),
        Mirrorless(ground, alias="ours-gathering", topics=topics[3:], name="Mirrorless, default window"),
    ]
    topic_of = dict(zip((side.name for side in sides), topics, strict=True))
    due = [
        (turn, rate)
        for turn in range(1, max(profile.latency.values(), default=0) + 1)
        for rate, rounds in profile.latency.items()
        if turn <= rounds
    ]
    due = [each for each in due if not _known(results, sides, *each)]
    if not due:
        return
    ground.create(dict.fromkeys(topics, PARTITIONS) | {READY_TOPIC: 1})
    try:
        ready = []
        for side in sides:
            with results.attempting(f"latency of {side.name}"):
                results.say(f"starting {side.name}")
                side.start()
                prime(ground, side, topic_of[side.name])
                ready.append(side)
        for turn, rate in due:
            for side in ready if turn % 2 else ready[::-1]:
                topic = topic_of[side.name]
                _one(ground, results, side, topic, rate=rate, turn=turn, seconds=profile.latency_seconds)
    finally:
        for side in sides:
            side.discard()


def _others(side: Side) -> Sequence[str]:
    """With whom a side's figures are compared: ours with each of MM2's, MM2's own with itself."""
    if isinstance(side, MirrorMaker):
        return (side.name,)
    return tuple(f"MM2 {mode.name}" for mode in (EXACTLY_ONCE_TUNED, EXACTLY_ONCE_MODE))


def _known(results: Results, sides: Sequence[Side], turn: int, rate: int) -> bool:
    return all(results.has(KIND, other, f"{rate}/s", turn, (side.name,)) for side in sides for other in _others(side))


def prime(ground: Ground, side: Side, topic: str) -> None:
    """Let the remote topic come into being, and the code become warm; returns when all of that has arrived.

    Raises:
        TimeoutError: it does not arrive.
    """
    with Writer(ground.source.bootstrap, topic, PARTITIONS, FIRST_RATE):
        time.sleep(0.1)  # some records on every partition
    deadline = time.monotonic() + PRIMED_WITHIN_S
    while len(ends := ground.ends(side.remote_topic(topic))) < PARTITIONS or not all(ends.values()):
        if time.monotonic() > deadline or side.obstacle():
            raise TimeoutError(f"{side.name} did not begin to replicate {topic}: {side.obstacle()}")
        time.sleep(0.1)  # between two looks at a condition with a deadline
    writer = Writer(ground.source.bootstrap, topic, PARTITIONS, FIRST_RATE)
    with Reader(ground.target.bootstrap, side.remote_topic(topic), PARTITIONS, writer) as reader:
        with writer:
            time.sleep(FIRST_WARM_S)  # the warm-up itself
        while not reader.has_all(writer.written):
            if time.monotonic() > deadline or side.obstacle() or reader.failed:
                raise TimeoutError(f"{side.name} did not copy {topic} in time: {side.obstacle()}{reader.failed}")
            time.sleep(0.1)  # between two looks at a condition with a deadline


def _one(ground: Ground, results: Results, side: Side, topic: str, *, rate: int, turn: int, seconds: float) -> None:
    found, failed = dict[str, float](), ""
    try:
        found = latency(ground, side, topic, rate, seconds)
    except Exception as exc:  # noqa: BLE001 -- the next may succeed; this one is kept as failed
        failed = f"{type(exc).__name__}: {exc}"
    for other in _others(side):
        results.add(
            Measurement(
                kind=KIND,
                against=other,
                case=f"{rate}/s",
                round=turn,
                side=side.name,
                figures=found,
                failed=failed,
                at=now(),
            )
        )


def latency(
    ground: Ground,
    side: Side,
    topic: str,
    rate: int,
    seconds: float,
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """One measurement; it lasts until `meanwhile` has returned, and so many seconds more.

    Raises:
        RuntimeError: records did not arrive, or the source did not take them.
    """
    bootstrap = ground.target.bootstrap
    writer = Writer(ground.source.bootstrap, topic, PARTITIONS, rate)
    with Reader(bootstrap, side.remote_topic(topic), PARTITIONS, writer) as reader:
        with writer:
            time.sleep(WARM_S)  # a warm-up at this rate
            first, earlier, began = writer.written, side.cpu(), time.monotonic()
            meanwhile()
            time.sleep(seconds)  # the measurement's own length
            last, spent, lasted = writer.written, side.cpu() - earlier, time.monotonic() - began
        deadline = time.monotonic() + DRAIN_S
        while len(reader.seen) < writer.written and time.monotonic() < deadline and not reader.failed:
            time.sleep(0.02)  # between two looks at a condition with a deadline
        missing = writer.written - len(reader.seen)
    if missing or writer.refused:
        raise RuntimeError(f"{missing} of {writer.written} records did not arrive, {writer.refused} were refused")
    counted = sorted(nanoseconds / 1e6 for number, nanoseconds in reader.latencies if first <= number < last)
    return {
        "records": len(counted),
        "record_bytes": SIZE,
        "records_per_s": len(counted) / lasted,
        "p50_ms": quantile(counted, 0.5),
        "p99_ms": quantile(counted, 0.99),
        "p999_ms": quantile(counted, 0.999),
        "longest_ms": counted[-1],
        "cpu_s": spent.replicator,
        "poller_cpu_s": spent.poller,
        "cpu_s_per_million": spent.replicator / max(1, len(counted)) * 1e6,
        "duplicates": reader.duplicates,
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of all does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
