"""Recovery time and duplicates after a kill of the replicator or of the target while records flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from tests.benchmarks.beside_mm2.flow import Reader, Writer
from tests.benchmarks.beside_mm2.latency import PARTITIONS, pairs_of, prime
from tests.benchmarks.beside_mm2.mm2 import DEFAULT, EXACTLY_ONCE_TUNED, READY_TOPIC, MirrorMaker
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Figures, Results
from tests.benchmarks.beside_mm2.sides import AT_ONCE, Mirrorless, Side
from tests.benchmarks.ground import Ground

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
    """Kill ours, MM2 exactly once (tuned) and MM2 default, in turns."""
    for turn in range(1, profile.recovery + 1):
        topic, tuned, default = (f"{name}recovery{turn}" for name in ("", "mm2-tuned-", "mm2-"))
        sides: list[Side] = [
            Mirrorless(ground, alias=f"ours-{topic}", topics=[topic], options=AT_ONCE),
            MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias=tuned, topics=[topic]),
            MirrorMaker(ground, DEFAULT, alias=default, topics=[topic]),
        ]
        mm2 = [side.name for side in sides[1:]]
        for side in sides if turn % 2 else sides[::-1]:
            with results.attempting(f"{KIND} of {side.name}"):
                _faults(ground, results, side, topic, turn=turn, others=pairs_of(side, mm2))


def _faults(ground: Ground, results: Results, side: Side, topic: str, *, turn: int, others: Sequence[str]) -> None:
    """One side, one fault after the other."""
    due = [fault for fault in FAULTS if not all(results.has(KIND, each, fault, turn, (side.name,)) for each in others)]
    if not due:
        return
    ground.create({topic: PARTITIONS, READY_TOPIC: 1})
    try:
        results.say(f"starting {side.name}")
        side.start()
        prime(ground, side, topic)
        for fault in due:
            what = partial(_recovered, ground, side, topic, FAULTS[fault])
            if not results.measure(what, kind=KIND, case=fault, turn=turn, sides={side.name: others}):
                break  # it may not be whole
    finally:
        side.discard()
        ground.target.start()  # whatever a fault has left dead
        ground.drop(side.remote_topic(topic))


def _kill_replicator(_: Ground, side: Side) -> None:
    """SIGKILL the process that replicates; who is expected to bring it back does so at once."""
    if isinstance(side, MirrorMaker):
        side.kill()
        side.begin_start()
    elif isinstance(side, Mirrorless):
        side.kill_busy()


def _kill_broker(ground: Ground, _: Side) -> None:
    """SIGKILL the target's broker and start it again."""
    ground.target.kill()
    ground.target.begin_start()


FAULTS: dict[str, Callable[[Ground, Side], None]] = {
    "replicator killed": _kill_replicator,
    "target broker killed": _kill_broker,
}


def _recovered(ground: Ground, side: Side, topic: str, fault: Callable[[Ground, Side], None]) -> dict[str, Figures]:
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
    found = {
        "records": writer.written,
        "seconds": seconds,
        "slowest_record_s": slowest / 1e9,
        "duplicates": committed.duplicates,
        "duplicates_uncommitted": uncommitted.duplicates,
        "lost": writer.written - len(committed.seen),
    }
    return {side.name: found}


def _fresh(writer: Writer, reader: Reader) -> bool:
    """Whether the reader has everything that was handed to the producer until a second ago."""
    horizon = time.monotonic_ns() - int(FRESH_S * 1e9)
    due = writer.written
    while due and writer.sent_at[due - 1] > horizon:
        due -= 1
    return reader.has_all(due)
