"""A real MirrorMaker 2 between two clusters, which can be killed and started again; its topics stay."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lab.servers.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, java_command, resolve
from lab.servers.process import ChildProcess
from mirrorless.adapters.kafka.wire.cluster import WireCluster
from mirrorless.adapters.kafka.wire.group_members import running_group
from mirrorless.clock import deadline_in
from mirrorless.flow.settings import ClusterSettings
from tests.support.waiting import eventually

POM = Path(__file__).parent.parent / "benchmarks" / "beside_mm2" / "mirror-maker-pom.xml"
SOURCE, TARGET = "us-east", "eu-west"


@dataclass(slots=True, kw_only=True)
class RealMirrorMaker:
    """One process for the flow us-east->eu-west, with every interval as short as it goes."""

    source: str
    """The cluster's address."""
    target: str
    folder: Path
    topics: str
    """A pattern."""
    groups: str = "nobody"
    """A pattern: of those whose offsets are synced."""
    version: str = DEFAULT_KAFKA
    exactly_once: bool = False
    poll_records: int = 500
    flush_ms: int = 60_000
    """Between two times at which it stores its offsets, without transactions."""
    _process: ChildProcess | None = None

    def start(self) -> None:
        """Start it; it takes some seconds until it copies."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "mm2.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
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
        cluster = ClusterSettings(alias=TARGET, bootstrap=self.target)
        with closing(WireCluster(cluster, flow="test", client_role="test", needed=())) as wire:
            return not running_group(wire, "", f"{SOURCE}-mm2", deadline_in(20.0))

    def _properties(self) -> dict[str, str]:
        once = {
            f"{TARGET}.exactly.once.source.support": "enabled",
            f"{SOURCE}.consumer.isolation.level": "read_committed",
            f"{TARGET}.producer.transaction.timeout.ms": "10000",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": "http://127.0.0.1:0",
        }
        kinds = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
        rounds = ("refresh.groups", "emit.checkpoints", "sync.group.offsets")
        stores = ("offset.storage", "status.storage", "config.storage")
        return {
            "clusters": f"{SOURCE},{TARGET}",
            f"{SOURCE}.bootstrap.servers": self.source,
            f"{TARGET}.bootstrap.servers": self.target,
            f"{SOURCE}->{TARGET}.enabled": "true",
            f"{SOURCE}->{TARGET}.topics": self.topics,
            f"{TARGET}->{SOURCE}.enabled": "false",
            f"{TARGET}->{SOURCE}.emit.heartbeats.enabled": "false",
            "tasks.max": "2",
            "replication.factor": "1",
            **{f"{each}.replication.factor": "1" for each in (*kinds, *stores)},
            "refresh.topics.interval.seconds": "1",
            "groups": self.groups,
            "sync.group.offsets.enabled": "true",
            **dict.fromkeys(map("{}.interval.seconds".format, rounds), "1"),
            f"{SOURCE}.consumer.max.poll.records": str(self.poll_records),
            f"{TARGET}.offset.flush.interval.ms": str(self.flush_ms),
            f"{TARGET}.session.timeout.ms": "6000",
            f"{TARGET}.heartbeat.interval.ms": "1000",
            f"{TARGET}.scheduled.rebalance.max.delay.ms": "0",
            **(once if self.exactly_once else {}),
        }
