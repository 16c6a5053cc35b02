"""Latency from a producer on the source to a reader of the target, by rate, one side at a time.

Each side has a topic of its own, so that the others are idle while it is measured. None is frozen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from tests.benchmarks.beside_mm2.flow import SIZE, Reader, Writer
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_MODE, EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Figures, Results
from tests.benchmarks.beside_mm2.sides import AT_ONCE, OURS, Mirrorless, Pulled, Side
from tests.benchmarks.ground import Ground

PARTITIONS = 6
WARM_S = 2.0
"""At the start of each measurement, not counted."""
FIRST_WARM_S, FIRST_RATE = 10.0, 5_000
"""Before the first measurement of each side: what makes its code warm."""
PRIMED_WITHIN_S = 120.0
DRAIN_S = 20.0

PULLED_RATE = 1_000
HANDED_OVER = f"{OURS}, handed over"
GIVES_WAY_S = 100.0
"""The time of a run that hands over: it begins nothing more in its last 35 s, and gives way in its last 90."""


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Mapped topics: ours at once and by default, and MM2 exactly once, tuned and by default, in turns."""
    _measure(
        ground,
        results,
        {
            "latency-0": partial(Mirrorless, alias="ours-at-once", options=AT_ONCE),
            "latency-1": partial(MirrorMaker, mode=EXACTLY_ONCE_TUNED, alias="mm2-latency-tuned"),
            "latency-2": partial(MirrorMaker, mode=EXACTLY_ONCE_MODE, alias="mm2-latency"),
            "latency-3": partial(Mirrorless, alias="ours-gathering", name=f"{OURS}, default window"),
        },
        kind="latency",
        rounds=profile.latency,
        seconds=profile.latency_seconds,
    )


def measure_pull(ground: Ground, results: Results, profile: Profile) -> None:
    """Scheduled topics: within a continuous run, and by itself over the hand-over to the next."""
    _measure(
        ground,
        results,
        {
            "pulled": partial(Pulled, alias="ours-pulled"),
            "pulled-mm2": partial(MirrorMaker, mode=EXACTLY_ONCE_TUNED, alias="mm2-pulled"),
            "pulled-twice": partial(Pulled, alias="ours-handing-over", name=HANDED_OVER, timeout_seconds=GIVES_WAY_S),
        },
        kind="pull latency",
        rounds={PULLED_RATE: profile.pull_latency},
        seconds=profile.latency_seconds,
    )


def _measure(
    ground: Ground,
    results: Results,
    makers: Mapping[str, Callable[..., Side]],
    *,
    kind: str,
    rounds: Mapping[int, int],
    seconds: float,
) -> None:
    """All sides, by their topics. One that does not start is named in the results, and the others are measured.

    Args:
        ground: the clusters.
        results: where the measurements go; what is there already is left out.
        makers: of the sides.
        kind: of the measurements.
        rounds: by records a second.
        seconds: of a measurement.
    """
    sides = {topic: make(ground, topics=[topic]) for topic, make in makers.items()}
    mm2 = [side.name for side in sides.values() if isinstance(side, MirrorMaker)]
    against = {side.name: pairs_of(side, mm2) for side in sides.values()}
    due = [
        (turn, rate)
        for turn in range(1, max(rounds.values(), default=0) + 1)
        for rate, count in rounds.items()
        if turn <= count
        and not all(
            results.has(kind, other, f"{rate}/s", turn, [name]) for name, others in against.items() for other in others
        )
    ]
    if not due:
        return
    ground.create(dict.fromkeys(sides, PARTITIONS) | {READY_TOPIC: 1})
    ready = []
    try:
        for topic, side in sides.items():
            with results.attempting(f"{kind} of {side.name}"):
                results.say(f"starting {side.name}")
                side.start()
                prime(ground, side, topic)
                ready.append((topic, side))
        for turn, rate in due:
            for topic, side in ready if turn % 2 else ready[::-1]:
                what = partial(_latency, ground, side, topic, rate, seconds)
                pairs = {side.name: against[side.name]}
                results.measure(what, kind=kind, case=f"{rate}/s", turn=turn, sides=pairs)
    finally:
        for side in sides.values():
            side.discard()


def pairs_of(side: Side, mm2: Collection[str]) -> Sequence[str]:
    """With whom a side's figures are compared: ours with each of MM2's, MM2's own with itself."""
    return (side.name,) if isinstance(side, MirrorMaker) else tuple(mm2)


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


def _latency(ground: Ground, side: Side, topic: str, rate: int, seconds: float) -> dict[str, Figures]:
    """One measurement; it lasts so many seconds, after a hand-over where the side is to do one.

    Raises:
        RuntimeError: records did not arrive, or the source did not take them.
    """
    writer = Writer(ground.source.bootstrap, topic, PARTITIONS, rate)
    with Reader(ground.target.bootstrap, side.remote_topic(topic), PARTITIONS, writer) as reader:
        with writer:
            time.sleep(WARM_S)  # a warm-up at this rate
            first, earlier, began = writer.written, side.cpu(), time.monotonic()
            if isinstance(side, Pulled) and side.name == HANDED_OVER:
                side.hand_over()
            time.sleep(seconds)  # the measurement's own length
            last, spent, lasted = writer.written, side.cpu() - earlier, time.monotonic() - began
        deadline = time.monotonic() + DRAIN_S
        while len(reader.seen) < writer.written and time.monotonic() < deadline and not reader.failed:
            time.sleep(0.02)  # between two looks at a condition with a deadline
        missing = writer.written - len(reader.seen)
    if missing or writer.refused:
        raise RuntimeError(f"{missing} of {writer.written} records did not arrive, {writer.refused} were refused")
    counted = sorted(nanoseconds / 1e6 for number, nanoseconds in reader.latencies if first <= number < last)
    found = {
        "records": len(counted),
        "record_bytes": SIZE,
        "records_per_s": len(counted) / lasted,
        **{f"{name}_ms": quantile(counted, part) for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))},
        "longest_ms": counted[-1],
        "cpu_s": spent.replicator,
        "poller_cpu_s": spent.poller,
        "cpu_s_per_million": spent.replicator / max(1, len(counted)) * 1e6,
        "duplicates": reader.duplicates,
        "resident_mb": side.resident_mb(),
    }
    return {side.name: found}


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of all does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
