"""Time until a group's commit is on the other cluster, and its exactness there, measured in the lab.

Moving groups: consumers read a topic while records flow, and commit at random moments. A commit has arrived when the
group's own offset on the target leaves out no record and repeats none. The scheduled functions run as they are
deployed, at the intervals that a configuration has without saying anything.

Lagging groups: they stand far behind the end of a topic that is wholly replicated, and fail over. What a consumer of
the group then reads on the target is counted, record by record.

Every record says which one of its partition it is, so that neither count needs the offset map. Prints a table, and one
line of JSON; exits 1 if one offset was off by a record. No time is a condition.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from lab.audit.audit import wait_until_replicated
from lab.cloud import Lab
from mirrorless.config.loading import load
from tests.support.mm2_stage import QUIET, Side

CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: us-east.example.com:9092, region: us-east-1}
  eu-west: {bootstrap.servers: eu-west.example.com:9092, region: eu-west-1}
flows:
  us-east->eu-west:
    topics: [live, backlog]
    sync.group.offsets.enabled: true
    mapping: {maximum.batching.window.seconds: 0}
"""
PARTITIONS = 6

# Moving groups.
GROUPS = 4
RECORDS_PER_SECOND = 300
COMMIT_EVERY_SECONDS = 2.0
"""On average; the moments are random."""
LOOK_EVERY_SECONDS = 0.05
SETTLED_WITHIN_SECONDS = 60.0
REPLICATED_WITHIN_SECONDS = 240.0

# Lagging groups: the case in which MM2 4.1.1 with exactly-once translated two of six partitions to offset 1.
BACKLOG = 33_000
"""Records of each partition."""
LAGS = (20_000, 10)
PER_TRANSACTION = 3_000

Offsets = Mapping[int, Sequence[int]]
"""Of the visible records of each partition, in order: a record's index is its number."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a group stood at a moment: an offset by partition."""

    at: float
    """On the clock of `time.monotonic`."""
    offsets: Mapping[int, int]

    def read(self, records: Offsets) -> dict[int, int]:
        """How many records of each partition lie behind the group."""
        return {partition: bisect_left(records[partition], offset) for partition, offset in self.offsets.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What became of the commits of all moving groups."""

    commits: int
    p50: float
    """Seconds from a commit on the source to an offset on the target that is as good."""
    p95: float
    longest: float
    beyond: int
    """Offsets seen on the target that lay beyond what the group had committed on the source by then."""
    off: int
    """Records, in the end, between where groups stand on the target and where they do on the source."""

    @property
    def exact(self) -> bool:
        """Whether no record would ever have been skipped, and none is read twice in the end."""
        return not self.beyond and not self.off


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver:
    """What a group that lagged reads on the target."""

    lag: int
    """Records of each partition that it has not read on the source."""
    reread: int
    skipped: int

    @property
    def exact(self) -> bool:
        """Whether it reads just what it has not read."""
        return not self.reread and not self.skipped


@dataclass(slots=True, kw_only=True)
class LiveTopic:
    """A topic that grows, and groups that read it and commit."""

    source: Side
    target: Side
    topic: str
    remote: str
    chance: Random
    seconds: float
    _over: threading.Event = field(default_factory=threading.Event)
    _settled: threading.Event = field(default_factory=threading.Event)
    _commits: dict[str, list[Stand]] = field(default_factory=dict)
    _seen: dict[str, list[Stand]] = field(default_factory=dict)

    def measure(self, lab: Lab) -> Moved:
        """Run for the time given, wait for what is under way, and compare."""
        groups = [f"moving-{number}" for number in range(GROUPS)]
        self._commits = {group: [] for group in groups}
        self._seen = {group: [] for group in groups}
        with ThreadPoolExecutor() as pool:
            watching = pool.submit(self._watch)
            try:
                producing = pool.submit(self._produce)
                reading = [pool.submit(self._read, group, Random(self.chance.random())) for group in groups]  # noqa: S311  no secret
                self._over.wait(self.seconds)
                self._over.set()
                for each in (producing, *reading):
                    each.result()
                live = [mapping for mapping in lab.flow_mappings if mapping.topic == self.topic]
                wait_until_replicated(lab, live, deadline=time.monotonic() + SETTLED_WITHIN_SECONDS)
                self._await_arrivals()
            finally:
                self._over.set()
                self._settled.set()
            watching.result()
        return self._compare()

    def _produce(self) -> None:
        options = {"bootstrap.servers": self.source.bootstrap, "transactional.id": self.topic, "linger.ms": 0}
        producer = Producer(options | QUIET)
        producer.init_transactions(30)
        while not self._over.is_set():
            count = self.chance.randint(1, RECORDS_PER_SECOND // 5)
            producer.begin_transaction()
            for _ in range(count):
                producer.produce(self.topic, b"v", partition=self.chance.randrange(PARTITIONS))
            producer.commit_transaction(30)
            self._over.wait(count / RECORDS_PER_SECOND)

    def _read(self, group: str, chance: Random) -> None:
        """A consumer, as applications write them."""
        consumer = _consumer(self.source, group)
        consumer.subscribe([self.topic])
        try:
            read: dict[int, int] = {}
            while not self._over.is_set():
                commit_at = time.monotonic() + chance.expovariate(1 / COMMIT_EVERY_SECONDS)
                while (left := commit_at - time.monotonic()) > 0 and not self._over.is_set():
                    for message in consumer.consume(100, timeout=min(left, 0.1)):
                        if message.error() is None:
                            partition, offset = _place(message)
                            read[partition] = offset + 1
                if read and (not self._commits[group] or read != self._commits[group][-1].offsets):
                    at = time.monotonic()
                    consumer.commit(asynchronous=False)
                    self._commits[group].append(Stand(at, dict(read)))
        finally:
            consumer.close()

    def _watch(self) -> None:
        """Look at the groups' offsets on the target; reading them makes no member."""
        places = [TopicPartition(self.remote, partition) for partition in range(PARTITIONS)]
        askers = {group: _consumer(self.target, group) for group in self._seen}
        try:
            while not self._settled.wait(LOOK_EVERY_SECONDS):
                for group, seen in self._seen.items():
                    try:
                        committed = askers[group].committed(places, timeout=30)
                    except KafkaException:
                        continue  # its coordinator is still being made; what is never seen counts as off in the end
                    offsets = {place.partition: place.offset for place in committed if place.offset >= 0}
                    if offsets and (not seen or seen[-1].offsets != offsets):
                        seen.append(Stand(time.monotonic(), offsets))
        finally:
            for asker in askers.values():
                asker.close()

    def _await_arrivals(self) -> None:
        """Wait until the last commit of every group is on the target; the comparison shows if it never is."""
        deadline = time.monotonic() + SETTLED_WITHIN_SECONDS
        while self._compare().off and time.monotonic() < deadline:
            self._settled.wait(1.0)  # between two looks at a condition with a deadline

    def _compare(self) -> Moved:
        upstream, downstream = _offsets(self.source, self.topic), _offsets(self.target, self.remote)
        delays: list[float] = []
        beyond = off = 0
        for group, commits in self._commits.items():
            there = [(stand.at, stand.read(downstream)) for stand in list(self._seen[group])]
            here = [(stand.at, stand.read(upstream)) for stand in commits]
            for at, numbers in here:
                arrivals = (seen for seen, read in there if all(read.get(p, -1) >= n for p, n in numbers.items()))
                delays.append(next(arrivals, float("inf")) - at)
            for seen, read in there:
                known = [numbers for at, numbers in here if at <= seen]
                beyond += any(n > max((each.get(p, 0) for each in known), default=0) for p, n in read.items())
            last_here, last_there = here[-1][1], there[-1][1] if there else {}
            off += sum(abs(number - last_there.get(p, 0)) for p, number in last_here.items())
        delays.sort()
        return Moved(
            commits=len(delays),
            p50=_percentile(delays, 0.5),
            p95=_percentile(delays, 0.95),
            longest=delays[-1],
            beyond=beyond,
            off=off,
        )


@dataclass(slots=True, kw_only=True)
class Backlog:
    """A topic that does not grow any more, and groups far behind its end."""

    source: Side
    target: Side
    topic: str
    remote: str

    def produce(self) -> None:
        """Write all of it, in transactions: their markers make the offsets of the two sides differ."""
        options = {"bootstrap.servers": self.source.bootstrap, "transactional.id": self.topic, "linger.ms": 5}
        producer = Producer(options | QUIET)
        producer.init_transactions(30)
        for _ in range(BACKLOG // PER_TRANSACTION):
            producer.begin_transaction()
            for number in range(PER_TRANSACTION * PARTITIONS):
                producer.produce(self.topic, b"v", partition=number % PARTITIONS)
                producer.poll(0)
            producer.commit_transaction(60)

    def fail_over(self, lag: int) -> FailedOver:
        """Let a group commit on the source, wait for its offsets on the target, and read there what it reads."""
        group, first = f"lagging-{lag}", BACKLOG - lag
        upstream, downstream = _offsets(self.source, self.topic), _offsets(self.target, self.remote)
        self.source.commit(group, {(self.topic, p): offsets[first] for p, offsets in upstream.items()})
        places = {(self.remote, partition) for partition in upstream}
        self.target.await_committed(group, places)

        # What it reads, not what its offset promises.
        consumer, read, at_end = _consumer(self.target, group), dict[int, list[int]](), set[int]()
        consumer.subscribe([self.remote])
        deadline = time.monotonic() + SETTLED_WITHIN_SECONDS
        try:
            while len(at_end) < PARTITIONS and time.monotonic() < deadline:
                for message in consumer.consume(5_000, timeout=0.5):
                    partition, offset = _place(message)
                    if message.error() is None:
                        read.setdefault(partition, []).append(bisect_left(downstream[partition], offset))
                    else:
                        at_end.add(partition)
        finally:
            consumer.close()
        reread = sum(number < first for numbers in read.values() for number in numbers)
        fresh = sum(number >= first for numbers in read.values() for number in numbers)
        return FailedOver(lag=lag, reread=reread, skipped=lag * PARTITIONS - fresh)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long groups move")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Progress goes to stderr: the figures are all that stands on stdout.
        lab = Lab(configuration=load(CONFIGURATION), folder=Path(folder), say=lambda text: print(text, file=sys.stderr))
        try:
            lab.start_servers()
            lab.create_topics(PARTITIONS)
            lab.start_flows()
            moved, failed_over = measure(lab, seconds=arguments.seconds, chance=Random(arguments.seed))  # noqa: S311  no secret
        finally:
            lab.stop()
    print(f"{moved.commits} commits on the source, until they are on the target: p50 {moved.p50:.1f} s, ", end="")
    print(f"p95 {moved.p95:.1f} s, longest {moved.longest:.1f} s; {moved.off} records off in the end")
    for each in failed_over:
        print(f"lag {each.lag:,} on each of {PARTITIONS} partitions of {BACKLOG:,}: ", end="")
        print(f"{each.reread:,} records read again after failover, {each.skipped:,} skipped")
    print(json.dumps({"moving": asdict(moved), "lagging": [asdict(each) for each in failed_over]}))
    return int(not moved.exact or not all(each.exact for each in failed_over))


def measure(lab: Lab, *, seconds: float, chance: Random) -> tuple[Moved, list[FailedOver]]:
    """Both halves, on a lab whose flows run."""
    source, target = (Side(alias, lab.clusters[alias].bootstrap) for alias in ("us-east", "eu-west"))
    backlog = Backlog(source=source, target=target, topic="backlog", remote="us-east.backlog")
    live = LiveTopic(source=source, target=target, topic="live", remote="us-east.live", chance=chance, seconds=seconds)
    lab.say(f"groups move for {seconds:g} s")
    moved = live.measure(lab)
    lab.say(f"writing {BACKLOG * PARTITIONS:,} records")
    backlog.produce()
    mappings = [mapping for mapping in lab.flow_mappings if mapping.topic == backlog.topic]
    wait_until_replicated(lab, mappings, deadline=time.monotonic() + REPLICATED_WITHIN_SECONDS)
    lab.say("groups that lag fail over")
    return moved, [backlog.fail_over(lag) for lag in LAGS]


def _consumer(side: Side, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": side.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )


def _place(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _offsets(side: Side, topic: str) -> Offsets:
    return {partition: [seen.offset for seen in found] for partition, found in side.records(topic).items()}


def _percentile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of them does not exceed."""
    return ordered[max(0, ceil(part * len(ordered)) - 1)]


if __name__ == "__main__":
    sys.exit(main())
