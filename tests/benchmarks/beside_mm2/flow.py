"""Records that flow: a producer at a fixed rate, readers that note arrivals, and what they show: latency, and recovery.

A value begins with its writer (8 bytes), its number (8 bytes) and the moment at which it was handed to the producer's
client (8 bytes, ns on the monotonic clock, which all threads of this process share); what is left is filler. A reader
reads one writer's records: what an earlier one has left under way does not count.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.report import Figures, Results
from tests.benchmarks.beside_mm2.sides import (
    AT_ONCE,
    EXACTLY_ONCE_MODE,
    EXACTLY_ONCE_TUNED,
    READY_TOPIC,
    Mirrorless,
    MirrorMaker,
    Pulled,
    Side,
    pairs_of,
)
from tests.benchmarks.ground import Ground, reader

HEAD = struct.Struct(">QQQ")
TICK_S = 0.001
"""Between two looks at the clock; at 10,000 records a second some ten are due at each."""
SIZE = 100
POLL_S = 0.05
BATCH = 1000


@dataclass(slots=True)
class Writer:
    """A producer at a fixed rate, round robin over the partitions; it catches up where it was late."""

    bootstrap: str
    topic: str
    partitions: int
    rate: int
    """Records a second."""
    identity: int = field(default_factory=lambda: secrets.randbits(64))
    written: int = 0
    refused: int = 0
    """Records that the source did not take."""
    sent_at: list[int] = field(default_factory=list)
    """By number: when the record was handed to the client, ns."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more; returns when the source has taken everything."""
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        options = {"enable.idempotence": True, "linger.ms": 1, "compression.type": "lz4", "log_level": 0}
        producer = Producer({"bootstrap.servers": self.bootstrap, **options})

        def on_delivery(error: KafkaError | None, _: object) -> None:
            self.refused += error is not None

        filler = bytes(SIZE - HEAD.size)
        began = time.monotonic_ns()
        while not self._over.wait(TICK_S):
            due = int((time.monotonic_ns() - began) * self.rate / 1e9)
            for number in range(self.written, due):
                moment = time.monotonic_ns()
                self.sent_at.append(moment)
                producer.produce(
                    self.topic,
                    HEAD.pack(self.identity, number, moment) + filler,
                    b"key-%08d" % number,
                    number % self.partitions,
                    on_delivery,
                )
                self.written = number + 1
            producer.poll(0)
        self.refused += producer.flush(30)


@dataclass(slots=True)
class Reader:
    """A consumer of the remote topic, from its present end on."""

    bootstrap: str
    topic: str
    partitions: int
    writer: Writer
    """Whose records are noted."""
    seen: dict[int, int] = field(default_factory=dict)
    """By number: how often."""
    latencies: list[tuple[int, int]] = field(default_factory=list)
    """Of each record, when it was first seen: number, ns since it was handed to the producer."""
    ready: threading.Event = field(default_factory=threading.Event)
    failed: str = ""
    _complete: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()
        if not self.ready.wait(30):
            raise TimeoutError(f"{self.topic}: the reader has no offsets to begin at {self.failed}")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def duplicates(self) -> int:
        """Records that were seen again, each time counted."""
        return sum(self.seen.values()) - len(self.seen)

    def has_all(self, due: int) -> bool:
        """Whether every record below this number was seen."""
        while self._complete < due and self._complete in self.seen:
            self._complete += 1
        return self._complete >= due

    def _run(self) -> None:
        try:
            self._read()
        except KafkaException as exc:
            self.failed = str(exc)

    def _read(self) -> None:
        consumer = reader(
            self.bootstrap,
            auto_offset_reset="error",
            reconnect_backoff_max_ms=200,
            fetch_error_backoff_ms=20,
        )
        try:
            # The end as it is now: what is written from here on is read.
            places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
            for place in places:
                place.offset = consumer.get_watermark_offsets(place, timeout=20)[1]
            consumer.assign(places)
            self.ready.set()
            while not self._over.is_set():
                # Waiting for the first alone: `consume` would wait for a full batch.
                first = consumer.poll(POLL_S)
                if first is None:
                    continue
                for message in (first, *consumer.consume(BATCH, 0)):
                    value = message.value()
                    if message.error() is None and value is not None:
                        self._note(value)
        finally:
            consumer.close()

    def _note(self, value: bytes) -> None:
        identity, number, sent = HEAD.unpack_from(value)
        if identity != self.writer.identity:
            return
        again = self.seen.get(number, 0)
        self.seen[number] = again + 1
        if not again:
            self.latencies.append((number, time.monotonic_ns() - sent))


# Latency, by rate: each side has a topic of its own, so that the others are idle; none is frozen

PARTITIONS = 6
WARM_S = 2.0
"""At the start of each measurement, not counted."""
FIRST_WARM_S, FIRST_RATE = 10.0, 5_000
"""Before the first measurement of each side: what makes its code warm."""
PRIMED_WITHIN_S = 120.0

PULLED_RATE = 1_000


def measure_latency(ground: Ground, results: Results, profile: Profile) -> None:
    """Mapped topics: ours at once, and MM2 exactly once, tuned and by default, in turns."""
    _in_turns(
        ground,
        results,
        {
            "latency-0": partial(Mirrorless, alias="ours-at-once", options=AT_ONCE),
            "latency-1": partial(MirrorMaker, mode=EXACTLY_ONCE_TUNED, alias="mm2-latency-tuned"),
            "latency-2": partial(MirrorMaker, mode=EXACTLY_ONCE_MODE, alias="mm2-latency"),
        },
        kind="latency",
        rounds=profile.latency,
        seconds=profile.latency_seconds,
    )


def measure_pull_latency(ground: Ground, results: Results, profile: Profile) -> None:
    """Scheduled topics, within a continuous run."""
    _in_turns(
        ground,
        results,
        {
            "pulled": partial(Pulled, alias="ours-pulled"),
            "pulled-mm2": partial(MirrorMaker, mode=EXACTLY_ONCE_TUNED, alias="mm2-pulled"),
        },
        kind="pull latency",
        rounds={PULLED_RATE: profile.pull_latency},
        seconds=profile.latency_seconds,
    )


def _in_turns(
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
    """One measurement; it lasts so many seconds.

    Raises:
        RuntimeError: records did not arrive, or the source did not take them.
    """
    writer = Writer(ground.source.bootstrap, topic, PARTITIONS, rate)
    with Reader(ground.target.bootstrap, side.remote_topic(topic), PARTITIONS, writer) as reader:
        with writer:
            time.sleep(WARM_S)  # a warm-up at this rate
            first, earlier, began = writer.written, side.cpu(), time.monotonic()
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


# Recovery time and duplicates after a kill of the replicator or of the target

KIND = "recovery"
RATE = 2_000
STEADY_S = 4.0
"""Of flowing records before the fault."""
FRESH_S = 1.0
"""A reader that has everything older than this has no lag to speak of."""
RECOVERED_WITHIN_S = 180.0
DRAIN_S = 60.0
LOOK_EVERY_S = 0.02


def measure_recovery(ground: Ground, results: Results, profile: Profile) -> None:
    """Kill ours, and MM2 exactly once and tuned, in turns."""
    for turn in range(1, profile.recovery + 1):
        topic = f"recovery{turn}"
        sides: list[Side] = [
            Mirrorless(ground, alias=f"ours-{topic}", topics=[topic], options=AT_ONCE),
            MirrorMaker(ground, EXACTLY_ONCE_TUNED, alias=f"mm2-tuned-{topic}", topics=[topic]),
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
    if writer.refused or committed.failed:
        raise RuntimeError(f"{writer.refused} refused; {committed.failed}")
    slowest = max((nanoseconds for _, nanoseconds in committed.latencies), default=0)
    found = {
        "records": writer.written,
        "seconds": seconds,
        "slowest_record_s": slowest / 1e9,
        "duplicates": committed.duplicates,
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
