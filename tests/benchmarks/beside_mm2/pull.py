"""Scheduled topics beside MM2, exactly once and tuned: backlogs as in `throughput`, and latency as in `latency`.

Ours is a continuous run of one shard. Latency is measured within a run, and by itself over the hand-over to the next.
"""

from __future__ import annotations

from tests.benchmarks.beside_mm2 import throughput
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.latency import PARTITIONS, latency, prime
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.pulled_side import Pulled
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.side import OURS, Side

KIND, LATENCY_KIND = "pull", "pull latency"
AGAINST = f"MM2 {EXACTLY_ONCE_TUNED.name}"
RATE = 1_000
HANDED_OVER = f"{OURS}, handed over"
GIVES_WAY_S = 100.0
"""The time of a run that hands over: it begins nothing more in its last 35 s, and gives way in its last 90."""
NUMBER = 90
"""Of its sessions, apart from those of `throughput`."""
ATTEMPTS = 2


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Measure both; what fails is in the results as failed."""
    if profile.pull is not None:
        for attempt in range(ATTEMPTS):
            with results.attempting("pull beside MM2"):
                throughput.measure(ground, results, profile.pull, number=NUMBER + attempt, kind=KIND, ours_of=Pulled)
    if profile.pull_latency:
        with results.attempting("latency of pull"):
            _latencies(ground, results, profile)


def _latencies(ground: Ground, results: Results, profile: Profile) -> None:
    topics = ["pulled", "pulled-mm2", "pulled-twice"]
    handing = Pulled(
        ground, alias="ours-handing-over", topics=topics[2:], name=HANDED_OVER, timeout_seconds=GIVES_WAY_S
    )
    sides: list[Side] = [
        Pulled(ground, alias="ours-pulled", topics=topics[:1]),
        MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias="mm2-pulled", topics=topics[1:2]),
        handing,
    ]
    turns = [
        turn
        for turn in range(1, profile.pull_latency + 1)
        if not results.has(LATENCY_KIND, AGAINST, f"{RATE}/s", turn, [side.name for side in sides])
    ]
    if not turns:
        return
    ground.create(dict.fromkeys(topics, PARTITIONS) | {READY_TOPIC: 1})
    try:
        for side, topic in zip(sides, topics, strict=True):
            results.say(f"starting {side.name}")
            side.start()
            prime(ground, side, topic)
        for turn in turns:
            order = list(zip(sides, topics, strict=True))
            for side, topic in order if turn % 2 else order[::-1]:
                _one(ground, results, side, topic, turn=turn, seconds=profile.latency_seconds)
    finally:
        for side in sides:
            side.discard()


def _one(ground: Ground, results: Results, side: Side, topic: str, *, turn: int, seconds: float) -> None:
    found, failed = dict[str, float](), ""
    meanwhile = side.hand_over if isinstance(side, Pulled) and side.name == HANDED_OVER else lambda: None
    try:
        found = latency(ground, side, topic, RATE, seconds, meanwhile=meanwhile)
    except Exception as exc:  # noqa: BLE001 -- the next may succeed; this one is kept as failed
        failed = f"{type(exc).__name__}: {exc}"
    else:
        found["resident_mb"] = side.resident_mb()
    results.add(
        Measurement(
            kind=LATENCY_KIND,
            against=AGAINST,
            case=f"{RATE}/s",
            round=turn,
            side=side.name,
            figures=found,
            failed=failed,
            at=now(),
        )
    )
