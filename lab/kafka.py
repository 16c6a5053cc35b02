"""How is one real Kafka cluster had on this machine? A single KRaft node as a child process, on loopback.

The cluster keeps its address and its data over kill -9 and restart, as a managed cluster would.
"""

from __future__ import annotations

import shlex
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lab.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, java_command, kafka_jars
from lab.process import ChildProcess, free_port, tail
from mirrorless.errors import MirrorlessError

if TYPE_CHECKING:
    from collections.abc import Mapping

FIXED: Mapping[str, str] = {
    # One node is everything: broker and controller in one process, as Kafka's own quick start has it.
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # There is one copy of everything, so nothing may wait for a second.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""What makes it a single-node cluster: not for the caller to change."""

DEFAULTS: Mapping[str, str] = {
    # A topic that appears by accident would hide a mirror that forgot to create it.
    "auto.create.topics.enable": "false",
    # The first member of a group need not wait 3 s for others.
    "group.initial.rebalance.delay.ms": "0",
    # The coordinator looks for timed-out transactions every second instead of every ten: fault schedules wait for it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Room for records far above the 1 MB default: an event's 6 MB is the limit we want to meet, not the broker's.
    "message.max.bytes": str(16 * 1024 * 1024),
    "replica.fetch.max.bytes": str(16 * 1024 * 1024),
    # The audit reads everything again at the end: nothing may expire by time or size while the lab lives.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    # 50 partitions each by default: nearly all of the time that the first group or transaction waits for.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # Two clusters, their clients and the functions share few cores.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # After kill -9 every log is checked before the broker answers.
    "num.recovery.threads.per.data.dir": "2",
    # The compaction map takes 128 MiB of heap by default.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}
"""What suits a lab; the caller's properties win over these."""

READY_WITHIN_S = 90.0
"""A cold start takes some 5 s on two idle cores; the rest is for machines that are busy or slow."""


class ServerFailed(MirrorlessError):
    """A lab server died or did not become ready. The end of its log is in the text."""


class KafkaCluster:
    """One Kafka cluster of one node, known to flows by its alias.

    Attributes:
        alias: the cluster's name in flows.
        version: Kafka's version, 3.9.0 or newer.
        bootstrap: `127.0.0.1:port`, the same for the life of this object.
        log: the broker's log file; restarts append to it.
    """

    def __init__(
        self,
        *,
        alias: str,
        folder: Path,
        version: str = DEFAULT_KAFKA,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
    ) -> None:
        self.alias = alias
        self.version = version
        self.log = folder / "kafka.log"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._folder = folder.absolute()
        self._controller = f"127.0.0.1:{free_port()}"
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """The broker's process id; None while it is not running."""
        return self._process.pid if self._process and self._process.alive else None

    @property
    def alive(self) -> bool:
        """Whether the broker's process runs; it may not be ready yet."""
        return self.pid is not None

    def start(self) -> None:
        """Start, and return when a client could create a topic and produce to every partition there is.

        Raises:
            ServerFailed: the broker died, or is not ready in time.
            MissingTool: Java or Maven is not there.
        """
        self.begin_start()
        self.wait_ready()

    def begin_start(self) -> None:
        """Start without waiting, so that several servers start side by side. Does nothing while it runs."""
        if self.alive:
            return
        java, jars, settings = java_command(), kafka_jars(self.version), self._write_settings()
        run = [java, *self._java_options(), "-cp", classpath(jars)]
        broker = shlex.join([*run, "kafka.Kafka", str(settings)])
        if not (self._folder / "data" / "meta.properties").exists():
            cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            form = [
                *run,
                "kafka.tools.StorageTool",
                "format",
                "--ignore-formatted",
                "-t",
                cluster_id,
                "-c",
                str(settings),
            ]
            broker = f"{shlex.join(form)} && exec {broker}"
        else:
            broker = f"exec {broker}"
        # The shell becomes the broker, so the pid that we know is the broker's.
        self._process = ChildProcess.start(["sh", "-c", broker], self.log, cwd=self._folder)

    def wait_ready(self, timeout: float = READY_WITHIN_S) -> None:
        """Wait until the broker answers, its controller takes orders, and every partition has a leader.

        Raises:
            ServerFailed: the broker died, or is not ready after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                # Back-off is for clusters that may stay away; this one is about to appear.
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # refused connections are what we are here to wait through
            }
        )
        obstacle = "it was not asked yet"
        while time.monotonic() < deadline:
            if not self.alive:
                raise self._failed("it died while starting")
            try:
                obstacle = first_obstacle(client)
            except KafkaException as exc:
                obstacle = str(exc.args[0])
            if not obstacle:
                return
            time.sleep(0.05)  # between two questions of a poll, not a guess at how long it takes
        raise self._failed(f"it is not ready after {timeout:.0f} s: {obstacle}")

    def kill(self) -> None:
        """SIGKILL, as when the host is lost. Data that the broker acknowledged is in the page cache and survives."""
        if self._process:
            self._process.kill()

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, then SIGKILL after `timeout` seconds. Data and address stay for another start."""
        if self._process:
            self._process.stop(timeout)

    def restart(self) -> None:
        """Start again at the same address with the same data, whatever state it is in."""
        self.stop()
        self.start()

    def _write_settings(self) -> Path:
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self._controller}"
        settings = {
            **DEFAULTS,
            **self._properties,
            **FIXED,
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{self._controller}",
            "log.dirs": str(self._folder / "data"),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _java_options(self) -> list[str]:
        log4j2, log4j1 = TEMPLATES / "log4j2.properties", TEMPLATES / "log4j.properties"
        return [
            f"-Xmx{self._heap_mb}m",
            # The collector with the least threads and start-up cost; a lab's heap is small.
            "-XX:+UseSerialGC",
            # Kafka 4 reads the first, Kafka 3 the second.
            f"-Dlog4j2.configurationFile={log4j2}",
            f"-Dlog4j.configuration=file:{log4j1}",
        ]

    def _failed(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"{what}. The end of its log:\n{tail(self.log)}\n",
            where=f"Kafka {self.version} {self.alias} at {self.bootstrap}",
            hint=f"read {self.log}",
        )


def first_obstacle(client: AdminClient) -> str:
    """Why a client could not work with this cluster yet; empty when it could."""
    metadata = client.list_topics(timeout=1.0)
    if not metadata.brokers:
        return "no broker is registered yet"
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            if partition.leader < 0:
                return f"{topic.topic}-{partition.id} has no leader yet"
    # Only validated, never created: the controller itself has to answer this one.
    question = NewTopic("is-the-controller-there", num_partitions=1, replication_factor=1)
    for answer in client.create_topics([question], validate_only=True, request_timeout=5.0).values():
        answer.result(timeout=10.0)
    return ""
