"""A real Kafka cluster of one node or several, each broker and controller in one, as child processes on loopback.

A node keeps its address and its data over kill -9 and restart, as a managed cluster's broker would.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from infra.packaging.wheels import taking_turns
from lab.servers.artifacts import (
    DEFAULT_KAFKA,
    TEMPLATES,
    cache_folder,
    classpath,
    java_command,
    java_version,
    kafka_jars,
)
from lab.servers.process import READY_WITHIN_S, Server, ServerFailed, free_port
from lab.servers.proxy import NetworkLink

FIXED: Mapping[str, str] = {
    # Each node is everything: broker and controller in one process, as Kafka's own quick start has it.
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
"""What makes it a node of the lab: not for the caller to change."""

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
    # A killed broker comes back as a stranger with the same id, and is refused until its old session is over: 9 s by
    # default. Broker and controller share a process here, so a short session needs no allowance for a network.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # The controller appends a record that says nothing twice a second by default: a third of an idle broker's CPU.
    "metadata.max.idle.interval.ms": "0",
    # The compaction map takes 128 MiB of heap by default.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}
"""What suits a lab; the caller's properties win over these."""

REPLICAS = 3
"""Of every topic, where a cluster has as many brokers."""

ARCHIVED_WITHIN_S = 120.0
"""Some 5 s on an idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """The id and the addresses of one node, the same for its whole life."""

    node: int
    address: str
    """Of clients: the link's, where there is one."""
    behind: str
    """Where clients, or their link, reach the broker."""
    direct: str
    """Of other brokers, and of what stands beside the cluster."""
    controller: str

    @classmethod
    def free(cls, node: int, *, linked: bool) -> BrokerPlace:
        """A place on free ports."""
        address, controller = _free_address(), _free_address()
        if not linked:
            return cls(node=node, address=address, behind=address, direct=address, controller=controller)
        return cls(node=node, address=address, behind=_free_address(), direct=_free_address(), controller=controller)

    def listeners(self) -> Mapping[str, str]:
        """The properties: where the node listens, and which addresses it gives to clients."""
        if self.direct == self.address:
            return {
                "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self.controller}",
                "advertised.listeners": f"PLAINTEXT://{self.address}",
            }
        beside = f"BESIDE://{self.direct}"
        return {
            "listeners": f"PLAINTEXT://{self.behind},{beside},CONTROLLER://{self.controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address},{beside}",
            "inter.broker.listener.name": "BESIDE",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,BESIDE:PLAINTEXT",
        }


class KafkaBroker(Server):
    """One node. Ready means that a client could create a topic, and produce to every partition there is.

    Attributes:
        place: its id and addresses.
        version: Kafka's, of its next start.
    """

    def __init__(
        self,
        *,
        title: str,
        place: BrokerPlace,
        folder: Path,
        quorum: Sequence[BrokerPlace] = (),
        cluster_id: str = "",
        version: str = DEFAULT_KAFKA,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
    ) -> None:
        """Args: quorum: every node of its cluster; left out, it is the only one. cluster_id: left out, a new one."""
        super().__init__(title=title, folder=folder, log="kafka.log")
        self.place = place
        self._quorum = quorum or (place,)
        self._cluster_id = cluster_id or new_id()
        self.version = version
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb

    def _command(self) -> list[str]:
        settings = self._write_settings()
        jars = kafka_jars(self.version)
        data = self._folder / "data"
        if not (data / "meta.properties").exists():
            _copy_formatted(self._formatted(jars), data, node=self.place.node, cluster_id=self._cluster_id)
        java = [java_command(), *self._java_options(), *self._class_archive(jars)]
        return [*java, "-cp", classpath(jars), "kafka.Kafka", settings]

    def _formatted(self, jars: Path) -> Path:
        """A data folder as Kafka's storage tool formats it, in the cache: a run of the tool costs 1 s of CPU."""
        folder = cache_folder() / f"kafka-{self.version}-formatted"
        if not folder.is_dir():
            with taking_turns(cache_folder()), tempfile.TemporaryDirectory(dir=cache_folder()) as unfinished:
                if not folder.is_dir():
                    data, settings = Path(unfinished) / "data", Path(unfinished) / "server.properties"
                    lines = {
                        **FIXED,
                        "node.id": "1",
                        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
                        "log.dirs": str(data),
                    }
                    lines["controller.quorum.voters"] = "1@127.0.0.1:9093"
                    settings.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
                    tool = [java_command(), *self._java_options(), "-cp", classpath(jars), "kafka.tools.StorageTool"]
                    tool += ["format", "--cluster-id=template", "-c", str(settings)]
                    done = subprocess.run(tool, capture_output=True, text=True, check=False)
                    if done.returncode:
                        raise ServerFailed(f"{shlex.join(tool)} failed:\n{done.stdout}{done.stderr}", where=self.title)
                    data.rename(folder)
        return folder

    def _write_settings(self) -> str:
        settings = {
            **DEFAULTS,
            **self._properties,
            **FIXED,
            **replication(len(self._quorum)),
            "node.id": str(self.place.node),
            **self.place.listeners(),
            "controller.quorum.voters": ",".join(f"{each.node}@{each.controller}" for each in self._quorum),
            "log.dirs": str(self._folder / "data"),
        }
        path = self._folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)

    def _java_options(self) -> list[str]:
        return [
            f"-Xmx{self._heap_mb}m",
            # The collector with the fewest threads and the least start-up cost; a lab's heap is small.
            "-XX:+UseSerialGC",
            # The first compiler only. The second pays off after minutes; a lab's broker on two cores starts with two
            # thirds of the CPU without it, and its first 200,000 records of 1 KB take 2.6 s instead of 3.4 s.
            "-XX:TieredStopAtLevel=1",
            # Kafka 4 reads the first of these, Kafka 3 the second.
            f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.properties'}",
            f"-Dlog4j.configuration=file:{TEMPLATES / 'log4j.properties'}",
        ]

    def _class_archive(self, jars: Path) -> list[str]:
        return class_archive_options(f"kafka-{self.version}", jars, self._archive_classes)

    def _archive_classes(self, archive: Path) -> bool:
        """Run a broker of this version for a moment: its JVM leaves the archive when it ends, unless it is killed."""
        with tempfile.TemporaryDirectory() as folder:
            broker = _Archiving(folder=Path(folder), version=self.version, archive=archive)
            try:
                broker.start()
                _use(broker.place.address)
            finally:
                broker.stop(ARCHIVED_WITHIN_S)
        return broker.exit_code != -signal.SIGKILL

    def _probe(self) -> Callable[[], str]:
        client = AdminClient(
            {
                "bootstrap.servers": self.place.direct,
                # Back-off is for clusters that may stay away; this one is about to appear.
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # refused connections are what we are here to wait through
            }
        )

        def obstacle() -> str:
            try:
                return first_obstacle(client, brokers=len(self._quorum))
            except KafkaException as exc:
                return str(exc.args[0])

        return obstacle


class KafkaCluster:
    """One Kafka cluster, known to flows by its alias. What is done to it is done to all of its brokers.

    Ready means that a client could create a topic, and produce to every partition there is.

    Attributes:
        alias: the cluster's name in flows.
        version: Kafka's version, 3.9.0 or newer.
        brokers: its nodes, each broker and controller.
        bootstrap: `127.0.0.1:port` of each broker, with commas; the same for the life of this object.
        direct: the same without the link, for what stands beside the cluster.
        title: what it is and where, for people.
        log: the first broker's log file.
    """

    def __init__(
        self,
        *,
        alias: str,
        folder: Path,
        version: str = DEFAULT_KAFKA,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        linked: bool = False,
        brokers: int = 1,
        places: Sequence[BrokerPlace] = (),
        cluster_id: str = "",
        kind: Callable[..., KafkaBroker] = KafkaBroker,
    ) -> None:
        """A cluster that is not started.

        Args:
            alias: the cluster's name in flows.
            folder: of its data, settings and logs.
            version: Kafka's.
            properties: of its brokers.
            heap_mb: of each broker.
            linked: whether clients call through a `NetworkLink`, which brokers and controllers do not.
            brokers: how many.
            places: of its brokers, where they had some before.
            cluster_id: the same.
            kind: of broker.
        """
        self.alias = alias
        self.version = version
        places = places or [BrokerPlace.free(node, linked=linked) for node in range(1, brokers + 1)]
        self.bootstrap = ",".join(place.address for place in places)
        self.direct = ",".join(place.direct for place in places)
        self.title = f"Kafka {version} {alias} at {self.bootstrap}"
        self._link = NetworkLink({_port(place.address): _port(place.behind) for place in places}) if linked else None
        cluster_id = cluster_id or new_id()
        self.brokers = [
            kind(
                title=f"Kafka {version} {alias} at {place.address}",
                place=place,
                folder=folder if len(places) == 1 else folder / f"broker-{place.node}",
                quorum=places,
                cluster_id=cluster_id,
                version=version,
                properties=properties,
                heap_mb=heap_mb,
            )
            for place in places
        ]
        self.log = self.brokers[0].log

    @property
    def link(self) -> NetworkLink:
        """The network between clients and the cluster.

        Raises:
            ValueError: the cluster has none.
        """
        if self._link is None:
            raise ValueError(f"{self.title} was made without a link")
        return self._link

    @property
    def pid(self) -> int | None:
        """The first broker's process id; None while it is not running."""
        return self.brokers[0].pid

    @property
    def alive(self) -> bool:
        """Whether every broker runs; they may not be ready yet."""
        return all(broker.alive for broker in self.brokers)

    def start(self) -> None:
        """See `Server.start`."""
        self.begin_start()
        self.wait_ready()

    def begin_start(self) -> None:
        """See `Server.begin_start`; the link is opened first, and stays open over a kill."""
        if self._link is not None:
            self._link.open()
        for broker in self.brokers:
            broker.begin_start()

    def wait_ready(self, timeout: float = READY_WITHIN_S) -> None:
        """See `Server.wait_ready`."""
        for broker in self.brokers:
            broker.wait_ready(timeout)

    def kill(self) -> None:
        """See `Server.kill`."""
        for broker in self.brokers:
            broker.kill()

    def stop(self, timeout: float = 20.0) -> None:
        """See `Server.stop`; the link is closed too."""
        # Side by side: a broker that is stopped without a quorum waits for one.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.stop(timeout), self.brokers))
        if self._link is not None:
            self._link.close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class _Archiving(KafkaBroker):
    """A broker whose JVM archives its classes when it ends."""

    def __init__(self, *, folder: Path, version: str, archive: Path) -> None:
        place = BrokerPlace.free(1, linked=False)
        super().__init__(title=f"Kafka {version} at {place.address}", place=place, folder=folder, version=version)
        self._archive = archive

    def _class_archive(self, jars: Path) -> list[str]:  # noqa: ARG002 -- what it overrides
        return [f"-XX:ArchiveClassesAtExit={self._archive}"]


def replication(brokers: int) -> Mapping[str, str]:
    """The properties of replicas in a cluster of so many brokers."""
    several = brokers >= REPLICAS
    # One broker has one copy of everything, so nothing may wait for a second.
    factor, least = (str(REPLICAS), "2") if several else ("1", "1")
    internal = {
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": least,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": least,
    }
    return internal | ({"default.replication.factor": factor, "min.insync.replicas": least} if several else {})


def _use(bootstrap: str) -> None:
    """Write in a transaction and read with a group, so that the classes for this are loaded too."""
    topic = "some-topic"
    # A coordinator that still loads is waited for; the client's line about it would stand between the lab's own.
    address: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "log_level": 0}
    admin = AdminClient(address)
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(ARCHIVED_WITHIN_S)
    producer = Producer({**address, "transactional.id": topic})
    producer.init_transactions(ARCHIVED_WITHIN_S)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(ARCHIVED_WITHIN_S)
    reader = Consumer({**address, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        reader.subscribe([topic])
        if reader.poll(ARCHIVED_WITHIN_S) is not None:
            reader.commit(asynchronous=False)
    finally:
        reader.close()


def _copy_formatted(formatted: Path, data: Path, *, node: int, cluster_id: str) -> None:
    """A formatted data folder of this node, with a directory id of its own."""
    shutil.copytree(formatted, data)
    meta = data / "meta.properties"
    ids = {"cluster.id": cluster_id, "directory.id": new_id(), "node.id": str(node)}
    meta.write_text(
        re.sub(
            r"(?m)^(cluster\.id|directory\.id|node\.id)=.*$", lambda key: f"{key[1]}={ids[key[1]]}", meta.read_text()
        )
    )


def new_id() -> str:
    """16 random bytes as Kafka writes ids: URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def _free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def first_obstacle(client: AdminClient, *, brokers: int) -> str:
    """Why a client could not work with this cluster of so many brokers yet; empty when it could."""
    metadata = client.list_topics(timeout=1.0)
    if len(metadata.brokers) < brokers:
        return f"{len(metadata.brokers)} of {brokers} brokers are registered yet"
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            if partition.leader < 0:
                return f"{topic.topic}-{partition.id} has no leader yet"
    # Only validated, never created: the controller itself has to answer this one.
    question = NewTopic("is-the-controller-there", num_partitions=1, replication_factor=1)
    for answer in client.create_topics([question], validate_only=True, request_timeout=5.0).values():
        answer.result(timeout=10.0)
    return ""


def class_archive_options(name: str, jars: Path, make: Callable[[Path], bool]) -> list[str]:
    """The options that let a JVM start from the archive of these jars' classes (AppCDS), which it maps instead.

    A broker starts with three fifths of the CPU. An archive fits one Java and one class path, is made once, and lies in
    the cache beside the jars. None where this Java makes no archives.

    Args:
        name: the server's, for people who look into the cache.
        jars: the folder of its jars.
        make: called where the archive is missing: runs the server once, with `-XX:ArchiveClassesAtExit` at this path.
            Returns whether it ended by itself: where it was killed, the next start tries again.
    """
    archive = cache_folder() / f"{name}-classes-{_key(jars)}.jsa"
    if not archive.exists():
        with taking_turns(archive.parent):
            if not archive.exists():
                _make(archive, make)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() and archive.stat().st_size else []


def _make(archive: Path, make: Callable[[Path], bool]) -> None:
    print(f"lab: archiving the classes of {archive.name} (once; about 10 s) ...", file=sys.stderr, flush=True)
    draft = archive.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    if not make(draft):
        return
    draft.touch()  # empty where this Java made none: nobody need try again
    draft.rename(archive)


def _key(jars: Path) -> str:
    """Changes with Java and with the jars: a JVM refuses an archive whose jars have another path, size or time."""
    found = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(jars.glob("*.jar"))]
    return hashlib.sha256(repr((java_version(), found)).encode()).hexdigest()[:12]
