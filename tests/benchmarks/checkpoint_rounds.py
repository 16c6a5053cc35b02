"""Checkpoint rounds of a large flow: 5,000 lanes that all move, 500 consumer groups, in one warm environment.

    python -m tests.benchmarks.checkpoint_rounds [--topics 500] [--rounds 3]

On real brokers and DynamoDB Local. Each topic has ten partitions and a group that reads all of them. Before each round
every lane gets records and an entry of its journal, and every group commits behind them. It fails where a round
translates an offset wrongly, takes over 30 s here, or more than the function has: its memory, and the share of a vCPU
that comes with it, for as long as a round has at least.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.clock import now_ms
from mirrorless.cost.assumptions import Assumptions
from mirrorless.lane import Lane
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.run import Run, Span
from mirrorless.scheduled.functions import CONTROL
from mirrorless.scheduled.runner import LEASE_MS, RENEW_AFTER_MS, RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions

PARTITIONS: Final = 10
RECORDS: Final = 5
"""Of each lane before each round; the group commits behind the last but one."""

SECONDS: Final = 30.0
MEMORY_MB: Final = CONTROL.memory_mb
CPU_SECONDS: Final = (LEASE_MS - RENEW_AFTER_MS) / 1000 * MEMORY_MB / 1024 / Assumptions().vcpu_gb


@dataclass(frozen=True)
class Took:
    """One round of one task."""

    seconds: float
    cpu_seconds: float
    resident_mb: int
    figures: dict[str, int]
    troubles: list[str]


@contextmanager
def servers() -> Iterator[tuple[FlowSettings, KafkaCluster, KafkaCluster]]:
    """Both clusters and the tables; the address of the tables is in the environment."""
    with tempfile.TemporaryDirectory() as folder:
        clusters = [KafkaCluster(alias=alias, folder=Path(folder, alias)) for alias in ("source", "target")]
        dynamodb = DynamoDbLocal(folder=Path(folder, "dynamodb"), in_memory=True)
        started: list[KafkaCluster | DynamoDbLocal] = [*clusters, dynamodb]
        try:
            for server in started:
                server.begin_start()
            for server in started:
                server.wait_ready()
            os.environ |= {
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
                "AWS_ACCESS_KEY_ID": "lab",
                "AWS_SECRET_ACCESS_KEY": "lab",
            }
            source, target = (
                ClusterSettings(alias=each.alias, bootstrap=each.bootstrap, region="us-east-1") for each in clusters
            )
            settings = FlowSettings(flow="source->target", source=source, target=target, replication_factor=1)
            for table in definitions(settings.tables):
                dynamodb.client().create_table(**table.create_request())
            yield settings, clusters[0], clusters[1]
        finally:
            for server in started:
                server.stop()


def work(orders: Connection, settings: ControlSettings) -> None:
    """The environment of the function, in a process of its own; does the tasks that it is ordered to."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "functions"))
    wiring = importlib.import_module("control").wire(settings)
    tasks = {task.name: task for task in wiring.tasks()}
    orders.send("ready")
    while (name := orders.recv()) is not None:
        report, began, cpu = RoundReport(), time.monotonic(), time.process_time()
        end = began + 60
        tasks[name].act(report, lambda end=end: end - time.monotonic())
        orders.send(
            Took(
                seconds=time.monotonic() - began,
                cpu_seconds=time.process_time() - cpu,
                resident_mb=psutil.Process().memory_info().rss >> 20,
                figures=report.figures,
                troubles=report.troubles,
            )
        )


@dataclass
class Workload:
    """The topics, and what happens before each round."""

    settings: FlowSettings
    source: KafkaCluster
    target: KafkaCluster
    topics: list[str]
    _end: int = 0

    def create(self) -> None:
        """Make the topics on both sides."""
        for cluster, names in (
            (self.source, self.topics),
            (self.target, [self.settings.remote_topic(topic) for topic in self.topics]),
        ):
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            for start in range(0, len(names), 50):
                wanted = [NewTopic(name, PARTITIONS, 1) for name in names[start : start + 50]]
                for made in admin.create_topics(wanted, operation_timeout=60, request_timeout=90).values():
                    made.result(120)

    def move(self) -> None:
        """Records on both sides, an entry for each topic, and a commit of each group."""
        for cluster, names in (
            (self.source, self.topics),
            (self.target, [self.settings.remote_topic(topic) for topic in self.topics]),
        ):
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50})
            for name in names:
                for partition in range(PARTITIONS):
                    for _ in range(RECORDS):
                        producer.produce(name, b"v", partition=partition)
                producer.poll(0)
            left = producer.flush(120)
            assert not left, f"{left} records are not written"
        chains = DynamoDbChains(dynamodb_client("us-east-1"), self.settings.tables.offset_map)
        groups = KafkaGroups(self.settings.source, flow="benchmark")
        first, self._end = self._end, self._end + RECORDS
        for topic in self.topics:
            attempt, at = uuid4().hex, now_ms()
            lanes = [Lane(self.settings.name, topic, partition) for partition in range(PARTITIONS)]
            chains.prepare([self._run(lane, first, attempt, at) for lane in lanes])
            commits = {(topic, lane.partition): OffsetAndMetadata(self._end - 1, "") for lane in lanes}
            groups.commit(f"group-of-{topic}", commits, lambda: 30.0)

    def _run(self, lane: Lane, first: int, attempt: str, at: int) -> Run:
        return Run(
            lane=lane,
            generation=0,
            position=first,
            next=first + RECORDS,
            spans=(Span(first, first, RECORDS),),
            state="committed",
            writer="benchmark",
            attempt=attempt,
            fingerprint=b"12345678",
            digest=os.urandom(32),
            oldest_timestamp=at,
            newest_timestamp=at,
            records=RECORDS,
            bytes=RECORDS,
            request=attempt,
            settled_at=at,
        )

    def wrong(self) -> int:
        """How many offsets of the groups on the target are not the exact ones."""
        groups = KafkaGroups(self.settings.target, flow="benchmark")
        committed = groups.committed([f"group-of-{topic}" for topic in self.topics], lambda: 60.0)
        right = {
            (self.settings.remote_topic(topic), partition) for topic in self.topics for partition in range(PARTITIONS)
        }
        found = {place for offsets in committed.values() for place, at in offsets.items() if at.offset == self._end - 1}
        return len(right - found)


def measure(topics: int, rounds: int) -> bool:
    """Print the table; whether every round kept its limits."""
    with servers() as (flow, source, target):
        workload = Workload(flow, source, target, [f"topic-{number:04}" for number in range(topics)])
        workload.create()
        settings = ControlSettings(
            flow=flow,
            topics=("topic-.*",),
            heartbeats_seconds=None,
            checkpoints_replication_factor=1,
            sync_group_offsets_seconds=0.001,
        )
        spawn = get_context("spawn")
        ours, theirs = spawn.Pipe()
        worker = spawn.Process(target=work, args=(theirs, settings))
        kept = True
        try:
            worker.start()
            theirs.close()  # or its end would not be noticed
            ours.recv()
            print(
                f"{topics} topics of {PARTITIONS} partitions, a group on each; at most {CPU_SECONDS:.1f} CPU-s a round"
            )
            print("| round | seconds | CPU-s | resident, MB | offsets that are wrong |")
            print("| --- | --- | --- | --- | --- |")
            for number in range(rounds + 1):
                workload.move()
                took = _do(ours, "checkpoints")
                wrong = workload.wrong()
                kept &= wrong == 0 and not took.troubles and took.seconds <= SECONDS
                kept &= took.cpu_seconds <= CPU_SECONDS and took.resident_mb <= MEMORY_MB
                name = "cold" if number == 0 else f"warm, {number}"
                print(
                    f"| {name} | {took.seconds:.1f} | {took.cpu_seconds:.1f} | {took.resident_mb} | {wrong} |",
                    flush=True,
                )
                for trouble in took.troubles[:5]:
                    print(f"  {trouble}", flush=True)
            lanes = _do(ours, "lanes")
            print(f"\nthe lane check: {lanes.seconds:.1f} s, {lanes.cpu_seconds:.1f} CPU-s, {lanes.figures}")
        finally:
            if worker.is_alive():
                ours.send(None)
            worker.join(30)
        return kept


def _do(orders: Any, task: str) -> Took:
    orders.send(task)
    took: Took = orders.recv()
    return took


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    return 0 if measure(arguments.topics, arguments.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
