"""A planned failover of 200 topics of 6 partitions and 100 groups, by the operator's command, measured.

Two clusters with an authorizer, and DynamoDB Local. The flow replicates in this process; the last records of each
topic are still on their way when the command begins. It fails unless nothing is missing. Its figure is the time from
the first ACL that keeps producers out until producers and groups may start on the target.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.drills.operator_command import operate
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.record_ranges import KafkaRecordRanges
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.replicator import flow_replicator
from mirrorless.errors import Retriable
from mirrorless.lane import FlowName
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.settings import ClusterSettings, FlowSettings, Tables
from mirrorless.tables import definitions
from mirrorless.topics.acls import Acl
from tests.support.guarded_cluster import guarded_clusters

FLOW = FlowName("us-east", "eu-west")
RECORDS, TAIL = 10, 2
"""Of each partition: replicated before the command, and after it has begun."""
TOPICS_OF_GROUP = 4
LANES_AT_ONCE = 64
TOPICS_AT_ONCE = 25


def main() -> int:
    """Run it; 0 where nothing is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    arguments = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "lab", "AWS_SECRET_ACCESS_KEY": "lab", "AWS_DEFAULT_REGION": "us-east-1"}
    with TemporaryDirectory() as name, guarded_clusters(Path(name)) as (source, target):
        dynamodb = DynamoDbLocal(folder=Path(name) / "dynamodb", in_memory=True)
        dynamodb.start()
        try:
            figures = ManyTopics(Path(name), source, target, dynamodb, arguments).measure()
        finally:
            dynamodb.stop()
    print(json.dumps(figures))
    if arguments.figures is not None:
        arguments.figures.write_text(json.dumps(figures))
    return 0 if not figures["missing"] and figures["finished"] else 1


class ManyTopics:
    """The clusters with their topics and groups, and the flow between them."""

    def __init__(
        self,
        folder: Path,
        source: KafkaCluster,
        target: KafkaCluster,
        dynamodb: DynamoDbLocal,
        arguments: argparse.Namespace,
    ) -> None:
        """Args: arguments: the numbers of topics, partitions and groups."""
        self._folder, self._source, self._target, self._dynamodb = folder, source, target, dynamodb
        self._topics = [f"load-{number:03}" for number in range(arguments.topics)]
        self._groups = [f"group-{number:03}" for number in range(arguments.groups)]
        self._places = [(topic, partition) for topic in self._topics for partition in range(arguments.partitions)]
        self._partitions = arguments.partitions
        self._settings = FlowSettings(
            flow=str(FLOW),
            source=ClusterSettings(alias=source.alias, bootstrap=source.bootstrap),
            target=ClusterSettings(alias=target.alias, bootstrap=target.bootstrap, region="us-east-1"),
            replication_factor=1,
            tables=Tables(),
            transaction_timeout_ms=60_000,
        )
        self._ends = KafkaRecords(self._settings.source, flow=str(FLOW), client_role="load")
        self._reader = KafkaRecordRanges(self._settings.source, flow=str(FLOW))
        self._copied: dict[TopicPartition, int] = dict.fromkeys(self._places, 0)
        self._over = threading.Event()

    def measure(self) -> dict[str, Any]:
        """Prepare, fail over, and return the figures."""
        for definition in definitions(self._settings.tables):
            self._dynamodb.client().create_table(**definition.create_request())
        acls = KafkaAcls(self._settings.source, flow=str(FLOW))
        everything = Acl("TOPIC", "LITERAL", "*", "User:dummy", "*", "ALLOW", "ALL")
        acls.create([everything], lambda: 20.0)
        self._create(self._source, self._topics)
        self._create(self._target, [self._settings.remote_topic(topic) for topic in self._topics])
        self._produce(RECORDS)
        replicator = flow_replicator(self._settings, self._dynamodb.client(), environment=uuid4().hex)
        while min(self._copied.values()) < RECORDS:
            self._replicate(replicator)
        self._commit_groups()
        self._produce(TAIL)
        print(f"{len(self._places)} lanes, {len(self._groups)} groups: the command begins", flush=True)
        replicating = threading.Thread(target=self._go_on, args=(replicator,))
        replicating.start()
        began = time.monotonic()
        try:
            words = ["failover", str(FLOW), "--planned", "--execute"]
            answer = operate(words, state=self._state(), say=lambda line: print(line, flush=True), folder=self._folder)
        finally:
            self._over.set()
            replicating.join()
        (found,) = answer["flows"]
        totals = found["totals"]
        return {
            "topics": totals["topics"],
            "partitions": totals["partitions"],
            "groups": totals["groups_moved"],
            "seconds_from_fence_to_producers": round(totals["seconds"], 1),
            "seconds_of_command": round(time.monotonic() - began, 1),
            "steps_ms": {step["step"]: step["ms"] for step in found["steps"]},
            "digests_verified": totals["digests_verified"],
            "missing": totals["missing"],
            "finished": totals["finished"],
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
        }

    def _create(self, cluster: KafkaCluster, topics: list[str]) -> None:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for some in _portions(topics, TOPICS_AT_ONCE):
            for future in admin.create_topics([NewTopic(topic, self._partitions, 1) for topic in some]).values():
                future.result(60)

    def _produce(self, records: int) -> None:
        producer = Producer({"bootstrap.servers": self._source.bootstrap, "linger.ms": 50, "log_level": 0})
        for topic, partition in self._places:
            for number in range(records):
                producer.produce(topic, f"{topic}-{partition} {number}".encode(), partition=partition)
            producer.poll(0)
        assert producer.flush(120) == 0

    def _replicate(self, replicator: Any) -> None:
        """Everything that the source has, 64 lanes in a transaction."""
        ends = self._ends.ends(self._places, lambda: 60.0)
        behind = {place: (self._copied[place], end) for place, (_, _, end) in ends.items() if self._copied[place] < end}
        for some in _portions(list(behind), LANES_AT_ONCE):
            read = dict(self._reader.ranges({place: behind[place] for place in some}, lambda: 60.0))
            try:
                outcome = replicator.replicate(Batch(records=read), request="load", deadline=lambda: 60.0)
            except Retriable as exc:
                print(f"delivered again: {exc}", flush=True)
                return
            if outcome.stopped:
                return  # the flow is fenced
            self._copied |= {place: behind[place][1] for place in some}

    def _go_on(self, replicator: Any) -> None:
        while not self._over.wait(1.0):
            self._replicate(replicator)

    def _commit_groups(self) -> None:
        """Each group has read half of some topics."""
        groups = KafkaGroups(self._settings.source, flow=str(FLOW))
        for number, group in enumerate(self._groups):
            chosen = [self._topics[(number + each * 7) % len(self._topics)] for each in range(TOPICS_OF_GROUP)]
            offsets = {
                (topic, partition): OffsetAndMetadata(RECORDS // 2)
                for topic in chosen
                for partition in range(self._partitions)
            }
            groups.commit(group, offsets, lambda: 30.0)

    def _state(self) -> Path:
        configuration = self._folder / "replication.yaml"
        configuration.write_text(
            """
clusters:
  us-east: {bootstrap.servers: [127.0.0.1:1], region: us-east-1}
  eu-west: {bootstrap.servers: [127.0.0.1:1], region: us-east-1}
flows:
  us-east->eu-west:
    topics: ["load-.*"]
    replication.factor: 1
"""
        )
        state = {
            "config": str(configuration),
            "clusters": {each.alias: {"bootstrap": each.bootstrap} for each in (self._source, self._target)},
            "dynamodb": {"endpoint": self._dynamodb.endpoint},
            "tables": msgspec.to_builtins(self._settings.tables),
        }
        path = self._folder / "lab.json"
        path.write_text(json.dumps(state))
        return path


def _portions(items: list[Any], size: int) -> Iterable[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


if __name__ == "__main__":
    sys.exit(main())
