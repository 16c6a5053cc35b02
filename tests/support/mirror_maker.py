"""A real MirrorMaker 2 between two clusters, which can be killed and started again; its topics stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from lab.servers.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, java_command, resolve
from lab.servers.process import ChildProcess, free_port
from mirrorless.adapters.kafka.wire.cluster import WireCluster
from mirrorless.adapters.kafka.wire.group_members import running_group
from mirrorless.clock import deadline_in
from mirrorless.flow.settings import ClusterSettings
from tests.support.waiting import eventually

POM = Path(__file__).parent.parent / "benchmarks" / "beside_mm2" / "mirror-maker-pom.xml"
SOURCE, TARGET = "us-east", "eu-west"
MIRRORING = "org.apache.kafka.connect.mirror"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


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
    connect: str = ""
    """The name of a Connect cluster, and of the connector in it; empty where MirrorMaker runs by itself."""
    exactly_once: bool = False
    poll_records: int = 500
    flush_ms: int = 60_000
    """Between two times at which it stores its offsets, without transactions."""
    _process: ChildProcess | None = None
    _port: int = field(default_factory=free_port)

    @property
    def words(self) -> tuple[str, ...]:
        """By which the operator names it."""
        return ("--offsets-topic", f"{self.connect}-offset", "--connector", self.connect) if self.connect else ()

    def start(self) -> None:
        """Start it; it takes some seconds until it copies."""
        if self._process is not None:
            self._process.stop(30)  # the worker of a connector that was stopped
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "mm2.properties"
        properties = self._worker() if self.connect else self._dedicated()
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        jars = resolve(f"mirror-maker-{self.version}", str(POM), self.version)
        java = [java_command(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += [f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.properties'}", "-cp", classpath(jars)]
        program = "org.apache.kafka.connect.cli.ConnectDistributed" if self.connect else f"{MIRRORING}.MirrorMaker"
        self._process = ChildProcess.start([*java, program, str(path)], self.folder / "mm2.log")
        if self.connect:
            eventually(lambda: self._ask("PUT", "config", self._connector()), "the connector is configured")
            eventually(lambda: self._ask("PUT", "resume"), "the connector goes on")

    def kill(self) -> None:
        """SIGKILL it, and wait until its group has noticed."""
        assert self._process is not None
        self._process.kill()
        eventually(self._is_gone, "the group of its workers is empty")

    def stop(self) -> None:
        """Stop it cleanly; in a Connect cluster the connector alone, and its worker lives on."""
        assert self._process is not None
        if self.connect:
            eventually(lambda: self._ask("PUT", "stop"), "the connector stops")
        else:
            self._process.stop(30)
        eventually(self._is_gone, "the group of its workers is empty, or has no task of the connector")

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self._process.kill()

    def _is_gone(self) -> bool:
        cluster = ClusterSettings(alias=TARGET, bootstrap=self.target)
        with closing(WireCluster(cluster, flow="test", client_role="test", needed=())) as wire:
            return not running_group(wire, self.connect, "" if self.connect else f"{SOURCE}-mm2", deadline_in(20.0))

    def _ask(self, method: str, what: str, body: Mapping[str, str] | None = None) -> bool:
        """Ask the worker about its connector. Returns whether it did so: it may be starting, or rebalancing."""
        assert self._process is not None
        assert self._process.alive
        url = f"http://127.0.0.1:{self._port}/connectors/{self.connect}/{what}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(url, data, {"Content-Type": "application/json"}, method=method)
        with suppress(HTTPError, URLError, TimeoutError, ConnectionError), urlopen(request, timeout=90):  # noqa: S310 -- on loopback
            return True
        return False

    def _mirroring(self) -> dict[str, str]:
        """What is the connector's own."""
        once = {"consumer.isolation.level": "read_committed"} if self.exactly_once else {}
        return {
            "tasks.max": "2",
            "topics": self.topics,
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "1",
            "consumer.max.poll.records": str(self.poll_records),
            **once,
        }

    def _stores(self) -> dict[str, str]:
        """What is the worker's own."""
        once = {"exactly.once.source.support": "enabled", "producer.transaction.timeout.ms": "10000"}
        return {
            **{f"{each}.storage.replication.factor": "1" for each in ("offset", "status", "config")},
            "offset.flush.interval.ms": str(self.flush_ms),
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            **(once if self.exactly_once else {}),
        }

    def _connector(self) -> dict[str, str]:
        return self._mirroring() | {
            "connector.class": f"{MIRRORING}.MirrorSourceConnector",
            "source.cluster.alias": SOURCE,
            "target.cluster.alias": TARGET,
            "source.cluster.bootstrap.servers": self.source,
            "target.cluster.bootstrap.servers": self.target,
            **({"exactly.once.support": "required"} if self.exactly_once else {}),
        }

    def _worker(self) -> dict[str, str]:
        return self._stores() | {
            "bootstrap.servers": self.target,
            "group.id": self.connect,
            "listeners": f"http://127.0.0.1:{self._port}",
            **{f"{each}.converter": BYTES for each in ("key", "value", "header")},
            **{f"{each}.storage.topic": f"{self.connect}-{each}" for each in ("offset", "status", "config")},
            "offset.storage.partitions": "5",
        }

    def _dedicated(self) -> dict[str, str]:
        mirroring = self._mirroring()
        consumer = {f"{SOURCE}.{name}": mirroring.pop(name) for name in list(mirroring) if name.startswith("consumer.")}
        return {
            **mirroring,
            **consumer,
            **{f"{TARGET}.{name}": value for name, value in self._stores().items()},
            **{f"{name}.replication.factor": "1" for name in ("checkpoints.topic", "heartbeats.topic")},
            "clusters": f"{SOURCE},{TARGET}",
            f"{SOURCE}.bootstrap.servers": self.source,
            f"{TARGET}.bootstrap.servers": self.target,
            f"{SOURCE}->{TARGET}.enabled": "true",
            f"{TARGET}->{SOURCE}.enabled": "false",
            f"{TARGET}->{SOURCE}.emit.heartbeats.enabled": "false",
            "groups": self.groups,
            "sync.group.offsets.enabled": "true",
            **{
                f"{each}.interval.seconds": "1" for each in ("refresh.groups", "emit.checkpoints", "sync.group.offsets")
            },
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": "http://127.0.0.1:0",
        }
