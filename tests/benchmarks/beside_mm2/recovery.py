"""Recovery time and duplicates after a kill of the replicator or of the target while records flow."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.flow import Reader, Writer
from tests.benchmarks.beside_mm2.latency import PARTITIONS, prime
from tests.benchmarks.beside_mm2.mirrorless_side import AT_ONCE, Mirrorless
from tests.benchmarks.beside_mm2.mm2 import DEFAULT, EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.side import Side

KIND = "recovery"
RATE = 2_000
STEADY_S = 4.0
"""Of flowing records before the fault."""
FRESH_S = 1.0
"""A reader that has everything older than this has no lag to speak of."""
RECOVERED_WITHIN_S = 180.0
DRAIN_S = 60.0
LOOK_EVERY_S = 0.02


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Kill ours, MM2 exactly once (tuned) and MM2 default, in turns. What fails is in the results as failed."""
    makers: dict[str, Callable[[str, str], Side]] = {
        "Mirrorless": lambda alias, topic: Mirrorless(ground, alias=f"ours-{alias}", topics=[topic], options=AT_ONCE),
        f"MM2 {EXACTLY_ONCE_TUNED.name}": lambda alias, topic: MirrorMaker(
            ground, EXACTLY_ONCE_TUNED, alias=f"mm2-tuned-{alias}", topics=[topic]
        ),
        f"MM2 {DEFAULT.name}": lambda alias, topic: MirrorMaker(ground, DEFAULT, alias=f"mm2-{alias}", topics=[topic]),
    }
    against = {name: (name,) if name.startswith("MM2") else tuple(makers)[1:] for name in makers}
    for turn in range(1, profile.recovery + 1):
        for name, make in makers.items() if turn % 2 else reversed(makers.items()):
            due = [
                fault
                for fault in FAULTS
                if not all(results.has(KIND, other, fault, turn, (name,)) for other in against[name])
            ]
            if due:
                found, failed = _faults(ground, results, make, turn, due)
                for fault in due:
                    for other in against[name]:
                        results.add(
                            Measurement(
                                kind=KIND,
                                against=other,
                                case=fault,
                                round=turn,
                                side=name,
                                figures=found.get(fault, {}),
                                failed="" if fault in found else failed,
                                at=now(),
                            )
                        )


def _faults(
    ground: Ground, results: Results, make: Callable[[str, str], Side], turn: int, due: list[str]
) -> tuple[dict[str, dict[str, float]], str]:
    """One side, one fault after the other; the figures by fault, and why they end early."""
    found: dict[str, dict[str, float]] = {}
    topic = f"recovery{turn}"
    ground.create({topic: PARTITIONS, READY_TOPIC: 1})
    side = make(f"recovery{turn}", topic)
    try:
        results.say(f"starting {side.name}")
        side.start()
        prime(ground, side, topic)
        for fault in due:
            found[fault] = recovered(ground, side, topic, FAULTS[fault])
    except Exception as exc:  # noqa: BLE001 -- the next side may succeed; what is missing is kept as failed
        return found, f"{type(exc).__name__}: {exc}"
    finally:
        side.discard()
        ground.target.start()  # whatever a fault has left dead
        ground.drop(side.remote_topic(topic))
    return found, ""


def kill_replicator(ground: Ground, side: Side) -> None:  # noqa: ARG001 -- every fault takes both
    """SIGKILL the process that replicates; who is expected to bring it back does so at once."""
    if isinstance(side, MirrorMaker):
        side.kill()
        side.begin_start()
    elif isinstance(side, Mirrorless):
        side.kill_busy()


def kill_broker(ground: Ground, side: Side) -> None:  # noqa: ARG001 -- every fault takes both
    """SIGKILL the target's broker and start it again."""
    ground.target.kill()
    ground.target.begin_start()


FAULTS: dict[str, Callable[[Ground, Side], None]] = {
    "replicator killed": kill_replicator,
    "target broker killed": kill_broker,
}


def recovered(ground: Ground, side: Side, topic: str, fault: Callable[[Ground, Side], None]) -> dict[str, float]:
    """One fault.

    Raises:
        TimeoutError: the lag did not go away in time.
        RuntimeError: the source refused records, or a reader failed.
    """
    remote, bootstrap = side.remote_topic(topic), ground.target.bootstrap
    writer = Writer(ground.source.bootstrap, topic, PARTITIONS, RATE)
    with (
        Reader(bootstrap, remote, PARTITIONS, writer) as committed,
        Reader(bootstrap, remote, PARTITIONS, writer, committed=False) as uncommitted,
        writer,
    ):
        time.sleep(STEADY_S)  # records flow
        fault(ground, side)
        struck = time.monotonic()
        # Not before the fault can be felt: what is under way may still arrive.
        time.sleep(FRESH_S)
        while not _fresh(writer, committed):
            if time.monotonic() - struck > RECOVERED_WITHIN_S:
                raise TimeoutError(f"{side.name} has a lag {RECOVERED_WITHIN_S:.0f} s after the fault")
            time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline
        seconds = time.monotonic() - struck
        writer.stop()
        deadline = time.monotonic() + DRAIN_S
        while len(committed.seen) < writer.written and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline
    if writer.refused or committed.failed or uncommitted.failed:
        raise RuntimeError(f"{writer.refused} refused; {committed.failed}{uncommitted.failed}")
    slowest = max((nanoseconds for _, nanoseconds in committed.latencies), default=0)
    return {
        "records": writer.written,
        "seconds": seconds,
        "slowest_record_s": slowest / 1e9,
        "duplicates": committed.duplicates,
        "duplicates_uncommitted": uncommitted.duplicates,
        "lost": writer.written - len(committed.seen),
    }


def _fresh(writer: Writer, reader: Reader) -> bool:
    """Whether the reader has everything that was handed to the producer until a second ago."""
    horizon = time.monotonic_ns() - int(FRESH_S * 1e9)
    due = writer.written
    while due and writer.sent_at[due - 1] > horizon:
        due -= 1
    return reader.has_all(due)
