"""A real MirrorMaker 2 between two clusters, which can be killed and started again; its topics stay."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from lab.servers.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, java_command, resolve
from lab.servers.kafka import KafkaCluster
from lab.servers.process import ChildProcess
from mirrorless.adapters.kafka.wire.cluster import WireCluster
from mirrorless.adapters.kafka.wire.group_members import has_members
from mirrorless.clock import deadline_in
from mirrorless.flow.settings import ClusterSettings
from tests.support.waiting import eventually

POM = Path(__file__).parent.parent / "benchmarks" / "beside_mm2" / "mirror-maker-pom.xml"

EXACTLY_ONCE = {
    "eu-west.exactly.once.source.support": "enabled",
    "us-east.consumer.isolation.level": "read_committed",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
    "eu-west.producer.transaction.timeout.ms": "10000",
}


@dataclass(slots=True, kw_only=True)
class RealMirrorMaker:
    """One process for the flow us-east->eu-west, with every interval as short as it goes."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    topics: str
    """A pattern."""
    options: Mapping[str, str] = field(default_factory=dict)
    version: str = DEFAULT_KAFKA
    _process: ChildProcess | None = None

    def start(self) -> None:
        """Start it; it takes some seconds until it copies."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "mm2.properties"
        properties = self._properties() | dict(self.options)
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        jars = resolve(f"mirror-maker-{self.version}", str(POM), self.version)
        java = [java_command(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += [f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.properties'}", "-cp", classpath(jars)]
        program = [*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(path)]
        self._process = ChildProcess.start(program, self.folder / "mm2.log")

    def kill(self) -> None:
        """SIGKILL it, and wait until its group has noticed."""
        assert self._process is not None
        self._process.kill()
        eventually(self._is_gone, "the group of its workers is empty")

    def stop(self) -> None:
        """Stop it cleanly."""
        assert self._process is not None
        self._process.stop(30)
        eventually(self._is_gone, "the group of its workers is empty")

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self._process.kill()

    def _is_gone(self) -> bool:
        target = ClusterSettings(alias="eu-west", bootstrap=self.target.bootstrap)
        with closing(WireCluster(target, flow="test", client_role="test", needed=())) as wire:
            return not has_members(wire, "us-east-mm2", deadline_in(20.0))

    def _properties(self) -> dict[str, str]:
        kinds = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
        stores = ("offset.storage", "status.storage", "config.storage")
        return {
            "clusters": "us-east,eu-west",
            "us-east.bootstrap.servers": self.source.bootstrap,
            "eu-west.bootstrap.servers": self.target.bootstrap,
            "us-east->eu-west.enabled": "true",
            "us-east->eu-west.topics": self.topics,
            "eu-west->us-east.enabled": "false",
            "eu-west->us-east.emit.heartbeats.enabled": "false",
            "tasks.max": "2",
            "replication.factor": "1",
            **{f"{each}.replication.factor": "1" for each in (*kinds, *stores)},
            "refresh.topics.interval.seconds": "1",
            "eu-west.session.timeout.ms": "6000",
            "eu-west.heartbeat.interval.ms": "1000",
            "eu-west.scheduled.rebalance.max.delay.ms": "0",
        }
