"""Real MirrorMaker 2 in dedicated mode: one process, from Maven Central's jars, in four modes.

    default               what one gets without a setting about throughput
    tuned                 larger fetches and batches, lz4, a task per core and more: what a careful operator would set
    exactly once          `exactly.once.source.support`, read_committed
    exactly once, tuned   both

Checkpoints, heartbeats and topic discovery run as they do by default: they are part of the process.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from lab.servers.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, java_command, resolve
from tests.benchmarks import cpu
from tests.benchmarks.beside_mm2.sides import Side
from tests.benchmarks.ground import QUICK_START, Ground

POM = Path(__file__).parent / "mirror-maker-pom.xml"
VERSION = DEFAULT_KAFKA
READY_TOPIC = "ready"

ON_THE_TARGET = (
    "replication.factor",
    *(f"{kind}.topic.replication.factor" for kind in ("checkpoints", "heartbeats")),
    *(f"{kind}.storage.replication.factor" for kind in ("offset", "status", "config")),
)
"""Replication factors of topics on the target; offset syncs are on the source."""

COMMON = {
    "tasks.max": "4",
    "offset-syncs.topic.replication.factor": "1",
    # Topics are there before it starts; this is for those that a measurement adds.
    "refresh.topics.interval.seconds": "5",
}

EXACTLY_ONCE = {
    "target.exactly.once.source.support": "enabled",
    "source.consumer.isolation.level": "read_committed",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
}

TUNED = {
    "target.producer.batch.size": "524288",
    "target.producer.linger.ms": "20",
    "target.producer.compression.type": "lz4",
    "target.producer.buffer.memory": "67108864",
    "target.producer.max.request.size": "8000000",
    "source.consumer.max.poll.records": "10000",
    "source.consumer.fetch.min.bytes": "65536",
    "source.consumer.max.partition.fetch.bytes": "4194304",
}

WHILE_FROZEN = {
    # It is stopped (SIGSTOP) while the others are measured; Connect must not take that for its death.
    "target.session.timeout.ms": "900000",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run MM2."""

    name: str
    properties: Mapping[str, str]


DEFAULT = Mode("default", {})
TUNED_MODE = Mode("tuned", TUNED)
EXACTLY_ONCE_MODE = Mode("exactly once", EXACTLY_ONCE)
EXACTLY_ONCE_TUNED = Mode("exactly once, tuned", EXACTLY_ONCE | TUNED)


def jars() -> Path:
    """The folder of MM2's jars.

    Raises:
        MissingTool: no Maven.
        ArtifactsUnavailable: Maven cannot reach a repository.
    """
    return resolve(f"mirror-maker-{VERSION}", str(POM), VERSION)


class MirrorMaker(Side):
    """One MM2 process. Ready means that it replicates: a record that was written to the source is on the target."""

    def __init__(self, ground: Ground, mode: Mode, *, alias: str, topics: Sequence[str], frozen: bool = False) -> None:
        """Describe it.

        Args:
            ground: the clusters.
            mode: how it is set.
            alias: of the source.
            topics: names and patterns of what it replicates.
            frozen: whether it will be frozen; its timeouts then allow for that.
        """
        super().__init__(ground, name=f"MM2 {mode.name}", alias=alias, topics=[*topics, READY_TOPIC], log="mm2.log")
        self.mode, self._frozen = mode, frozen

    def cpu(self) -> cpu.Cpu:
        """CPU so far."""
        return cpu.Cpu(replicator=cpu.own(self.pid) if self.pid else 0.0)

    def resident_mb(self) -> float:
        """Memory now."""
        return cpu.resident_mb(self.pid) if self.pid else 0.0

    def properties(self) -> dict[str, str]:
        """Its whole properties file: every name that belongs to a cluster carries the cluster's alias."""
        settings = COMMON | dict(self.mode.properties) | (WHILE_FROZEN if self._frozen else {})
        settings |= dict.fromkeys(ON_THE_TARGET, str(self._ground.replicas))
        source, flow = self._alias, f"{self._alias}->target"
        renamed = {re.sub(r"^source\.", f"{source}.", name): value for name, value in settings.items()}
        return {
            "clusters": f"{source},target",
            f"{source}.bootstrap.servers": self._ground.source.bootstrap,
            "target.bootstrap.servers": self._ground.target.bootstrap,
            f"{flow}.enabled": "true",
            f"{flow}.topics": ",".join(self._topics),
            f"target->{source}.enabled": "false",
            f"target->{source}.emit.heartbeats.enabled": "false",
            **renamed,
        }

    def _command(self) -> list[str]:
        path = self._folder / "mm2.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self.properties().items()))
        logging = f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.properties'}"
        options = ["-Xmx2g", *(QUICK_START if self._ground.quick_start else ())]
        run = [java_command(), *options, logging, "-cp", classpath(jars())]
        return [*run, "org.apache.kafka.connect.mirror.MirrorMaker", str(path)]

    def _probe(self) -> Callable[[], str]:
        producer = Producer({"bootstrap.servers": self._ground.source.bootstrap, "log_level": 0})
        topic = self.remote_topic(READY_TOPIC)
        before = dict(self._ground.ends(topic))

        def obstacle() -> str:
            producer.produce(READY_TOPIC, b"", partition=0)
            producer.flush(5)
            try:
                ends = self._ground.ends(topic)
            except KafkaException as exc:
                return str(exc.args[0])
            return "" if ends.get(0, 0) > before.get(0, 0) else f"nothing has come to {topic} yet"

        return obstacle

    def discard(self) -> None:
        """End it, and remove its folder: it leaves nothing that anybody reads, and would take half a minute to stop."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
