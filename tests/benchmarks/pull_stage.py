"""A flow of scheduled topics in the lab, and what its runs take: the bundle under the real runtime client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from infra.packaging import bundle
from lab.functions.function import LambdaFunction
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.naming import PULL
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from mirrorless.settings import Tables
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from tests.benchmarks.beside_mm2 import cpu
from tests.benchmarks.beside_mm2.clusters import Ground

CONFIGURATION = """
clusters:
  source: {bootstrap.servers: source.example.com:9092, region: us-east-1}
  target: {bootstrap.servers: target.example.com:9092, region: us-east-1}
flows:
  source->target:
    topics: [unused]
    trigger: schedule
    replication.factor: 1
"""
SAMPLE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTook:
    """One run: what it took, and its report."""

    seconds: float
    cpu_seconds: float
    resident_mb: float
    """The most that it had, looked at again and again."""
    report: Mapping[str, Any]


@dataclass(slots=True)
class PullStage:
    """A flow with one shard, whose runs are started one by one."""

    ground: Ground
    flow: Flow
    function: LambdaFunction
    stored: dict[str, int] = field(default_factory=dict)

    def schedule(self, topics: Mapping[str, int]) -> None:
        """Create source topics, and have these and no others scheduled."""
        self.ground.create(topics)
        self.ground.create_remote({f"{self.flow.name.source}.{name}": count for name, count in topics.items()})
        documents = DynamoDbDocuments(self.ground.dynamodb.client(), Tables().control)
        write_scheduled_topics(documents, self.flow.name, topics, stored=self.stored)
        self.stored = dict(topics)

    def fill(self, topics: Mapping[str, int], each: int, size: int) -> None:
        """Write so many records of so many bytes to each partition."""
        producer = Producer(
            {"bootstrap.servers": self.ground.source.bootstrap, "compression.type": "lz4", "log_level": 0}
        )
        value = bytes(size)
        for _ in range(each):
            for name, count in topics.items():
                for partition in range(count):
                    while True:
                        try:
                            producer.produce(name, value, b"key-00000000", partition)
                            break
                        except BufferError:
                            producer.poll(0.05)
        if producer.flush(120):
            raise RuntimeError("the source does not take the records")

    def run(self, **changes: Any) -> RunTook:
        """One run in a warm environment; the first is cold.

        Args:
            changes: of the schedule's input.

        Raises:
            RuntimeError: the run failed.
        """
        before = self._cpu()
        most, over = [0.0], threading.Event()
        watch = threading.Thread(target=self._watch, args=(most, over), daemon=True)
        watch.start()
        began = time.monotonic()
        outcome = self.function.invoke(self._event(changes))
        seconds = time.monotonic() - began
        over.set()
        watch.join()
        if outcome.status != "success":
            raise RuntimeError(f"the run failed: {outcome.payload.decode()}")
        return RunTook(
            seconds=seconds,
            cpu_seconds=self._cpu() - before,
            resident_mb=most[0],
            report=json.loads(outcome.payload),
        )

    def begin_run(self, **changes: Any) -> None:
        """A run that goes on until the stage is closed."""
        threading.Thread(target=self.function.invoke, args=(self._event(changes),), daemon=True).start()

    def _event(self, changes: dict[str, Any]) -> bytes:
        return json.dumps(self.flow.pull_settings(0) | changes).encode()

    @property
    def pids(self) -> list[int]:
        """Of the environments."""
        return [each.pid for each in self.function.environments]

    def _cpu(self) -> float:
        return sum(map(cpu.own, self.pids))

    def _watch(self, most: list[float], over: threading.Event) -> None:
        while not over.wait(SAMPLE_S):
            most[0] = max(most[0], sum(map(cpu.resident_mb, self.pids)))


@contextmanager
def pull_stage(folder: Path, *, timeout_seconds: float = PULL_TIMEOUT_SECONDS, **schedule: Any) -> Iterator[PullStage]:
    """Clusters, tables and the function, started, and stopped at the end.

    Args:
        folder: of all of them.
        timeout_seconds: of a run.
        schedule: settings of the flow's `schedule`; underscores are dots.
    """
    section = {name.replace("_", "."): value for name, value in schedule.items()}
    path = folder / "replication.yaml"
    path.write_text(CONFIGURATION + f"    schedule: {json.dumps(section)}\n")
    with Ground(folder).running() as ground:
        addresses = {"source": ground.source.bootstrap, "target": ground.target.bootstrap}
        (flow,) = load(path).with_clusters_at(addresses).enabled_flows
        function = LambdaFunction(
            name=flow.resource_name(PULL),
            bundle=bundle.build(PULL),
            handler=f"{PULL}.handler",
            variables={"AWS_ENDPOINT_URL_DYNAMODB": ground.dynamodb.endpoint},
            timeout_seconds=timeout_seconds,
            memory_mb=flow.settings.schedule.memory_mb,
            folder=folder / "functions",
        )
        try:
            function.initialise()
            yield PullStage(ground, flow, function)
        finally:
            function.stop()
