"""The sides of the comparison, Mirrorless in three forms; MM2 is in `mm2`. Each is a process with a folder of its own.

Mirrorless runs as deployed: the bundle under the real runtime client, everything on. The function that replicates is
measured, as MM2's source connector is; those that a schedule starts once a minute are not running.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import psutil
from confluent_kafka import KafkaException, Producer

from lab.servers.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, java_command, resolve
from lab.servers.process import Server
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import FlowName
from mirrorless.config.loading import load
from mirrorless.errors import Retriable
from mirrorless.flow.settings import Tables, decode_settings
from mirrorless.jobs.request import REQUEST, BackfillOptions, JobRequest, encode_request
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from tests.benchmarks.beside_mm2.stand_in import HOLD, POLLED, READY, Request
from tests.benchmarks.ground import PYTHONPATH, QUICK_START, REPOSITORY, Ground
from tests.benchmarks.harness import family, family_cpu, own_cpu, resident_mb
from tests.support.commands import replication_yaml

OURS = "Mirrorless"
POLLED_WITHIN_S, LOOK_S = 60.0, 0.02

AT_ONCE = "    mapping: {maximum.batching.window.seconds: 0}"
"""For latency: deliver what is there. Left out, a mapping gathers for Lambda's own half a second."""
CONTINUOUS = """
    trigger: schedule
    schedule: {continuous: true}
"""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU-seconds so far, user and system."""

    replicator: float
    """Of what is paid for: MM2's process, or the function's processes."""
    poller: float = 0.0
    """Of the event source mapping's poller, which AWS runs. The lab's is a Python program."""

    def __sub__(self, earlier: Self) -> Cpu:
        return Cpu(self.replicator - earlier.replicator, self.poller - earlier.poller)


class Side(Server):
    """One replicator with its settings.

    The source cluster has an alias of this side alone, the prefix of its remote topics: each begins without a chain,
    offsets and remote topics.

    Attributes:
        name: as the report calls it; unique among sides.
    """

    def __init__(self, ground: Ground, *, name: str, alias: str, topics: Sequence[str], log: str) -> None:
        """Describe it. Args: topics: that it replicates; they are there."""
        super().__init__(title=f"{name} ({alias})", folder=ground.folder / alias, log=log)
        self.name = name
        self._ground, self._alias, self._topics = ground, alias, tuple(topics)

    def remote_topic(self, topic: str) -> str:
        """The name of a source topic on the target."""
        return f"{self._alias}.{topic}"

    @abstractmethod
    def cpu(self) -> Cpu:
        """CPU so far."""

    def processes(self) -> list[psutil.Process]:
        """Those that replicate."""
        return family(self.pid)[:1]

    def resident_mb(self) -> float:
        """Their memory now."""
        return resident_mb(self.processes())

    def freeze(self) -> None:
        """Stop it where it is (SIGSTOP)."""
        if self._process:
            self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process:
            self._process.signal(signal.SIGCONT)

    def hold(self) -> None:
        """Have what AWS does for it, and does not count, be done while it is frozen, until it is thawed."""

    def wait_polled(self, records: int) -> None:
        """Wait until that is done for so many records since `hold`."""

    def obstacle(self) -> str:
        """Why it does not replicate any more; empty while it may."""
        return "" if self.alive else f"{self.name} is dead; see {self.log}"

    def discard(self) -> None:
        """Stop it for good, and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_configuration(self, options: str = "") -> Path:
        flow = f"{self._alias}->target:\n    topics: [{', '.join(self._topics)}]\n{options}"
        configuration = self._folder / "replication.yaml"
        configuration.write_text(replication_yaml(flow))
        return configuration


class Deployed(Side):
    """A function of a flow, with what AWS does for it in a process of its own. Ready is what that says of itself."""

    _options = ""
    _timeout_seconds = 0.0
    """Of a run, where a schedule starts it."""

    def __init__(
        self, ground: Ground, *, alias: str, topics: Sequence[str], options: str = "", one_at_a_time: bool = False
    ) -> None:
        """Describe it.

        Args:
            ground: the clusters and the tables.
            alias: of the source.
            topics: the literal topics that it replicates.
            options: more lines of the flow's configuration, at its indentation.
            one_at_a_time: whether one event is under way, as if alone on its processor, instead of as many as come.
        """
        super().__init__(ground, name=OURS, alias=alias, topics=topics, log="aws.log")
        self._options, self._one_at_a_time = options or self._options, one_at_a_time

    def cpu(self) -> Cpu:
        """CPU so far; a cold start's is in it."""
        poller = sum(map(own_cpu, family(self.pid)[:1]))
        return Cpu(replicator=family_cpu(self.pid) - poller, poller=poller)

    def processes(self) -> list[psutil.Process]:
        """The function's execution environments."""
        return family(self.pid, recursive=False)[1:]

    def _command(self) -> list[str]:
        (self._folder / READY).unlink(missing_ok=True)
        request = self._folder / "request.json"
        asked = Request(
            configuration=str(self._write_configuration(self._options)),
            source=self._ground.source.bootstrap,
            target=self._ground.target.bootstrap,
            source_alias=self._alias,
            dynamodb=self._ground.dynamodb.endpoint,
            folder=str(self._folder),
            topics=self._topics,
            one_at_a_time=self._one_at_a_time,
            timeout_seconds=self._timeout_seconds,
        )
        request.write_bytes(msgspec.json.encode(asked))
        # It runs in a folder of its own, and is to find this repository's code, not an installed one's.
        program = [sys.executable, "-m", "tests.benchmarks.beside_mm2.stand_in", str(request)]
        return ["env", f"PYTHONPATH={PYTHONPATH}", *program]

    def _probe(self) -> Callable[[], str]:
        ready = self._folder / READY
        return lambda: "" if ready.exists() else "it does not replicate yet"


class Mirrorless(Deployed):
    """One flow with a mapping per topic. Ready means that the mappings poll every partition."""

    _polled = 0

    def kill_busy(self) -> None:
        """SIGKILL one execution environment, one that works if there is one: idle ones are stopped (SIGSTOP)."""
        if environments := self.processes():
            min(environments, key=_is_stopped).kill()

    def thaw(self) -> None:
        """Let it go on, and its mappings invoke."""
        (self._folder / HOLD).unlink(missing_ok=True)
        super().thaw()

    def hold(self) -> None:
        """Have the mappings invoke nothing until it is thawed."""
        (self._folder / HOLD).touch()
        self._polled = self._while_it_runs(lambda polled: polled >= 0)

    def wait_polled(self, records: int) -> None:
        """Have the mappings read so many records since `hold`, and encode them into events.

        Raises:
            Retriable: they were not read in time.
        """
        self._while_it_runs(lambda polled: polled >= self._polled + records)

    def _while_it_runs(self, reached: Callable[[int], bool]) -> int:
        """Let its process run until that many records are polled; the number."""
        file, polled = self._folder / POLLED, -1
        super().thaw()
        for _ in range(int(POLLED_WITHIN_S / LOOK_S)):
            polled = int(file.read_text()) if file.exists() else -1
            if reached(polled):
                break
            time.sleep(LOOK_S)  # between two looks at its file
        else:
            raise Retriable(f"the mappings have read {polled} records, too few", where=self.title)
        self.freeze()
        return polled


def _is_stopped(process: psutil.Process) -> bool:
    """Whether it is stopped (SIGSTOP), or gone."""
    try:
        return process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE}
    except psutil.NoSuchProcess:
        return True


class Pulled(Deployed):
    """One flow whose topics are scheduled, in continuous runs of a single shard. Ready: its first run was started."""

    _options = CONTINUOUS
    _timeout_seconds = PULL_TIMEOUT_SECONDS
    _frozen: Sequence[psutil.Process] = ()

    def freeze(self) -> None:
        """Stop schedule and run where they are (SIGSTOP); environments that are idle are stopped anyway."""
        super().freeze()
        self._frozen = [each for each in self.processes() if not _is_stopped(each)]
        for each in self._frozen:
            each.suspend()

    def thaw(self) -> None:
        """Let them go on."""
        for each in self._frozen:
            each.resume()
        self._frozen = ()
        super().thaw()

    def _command(self) -> list[str]:
        documents = DynamoDbDocuments(self._ground.dynamodb.client(), Tables().control)
        partitions = {topic: self._ground.partitions[topic] for topic in self._topics}
        self._ground.create_remote({self.remote_topic(topic): count for topic, count in partitions.items()})
        write_scheduled_topics(documents, FlowName(self._alias, "target"), partitions, stored={})
        return super()._command()


class Backfill(Side):
    """The backfill of one topic as on an operator's machine: its own script, with Spark on this machine.

    It is never ready: it works, and ends. On EMR Serverless the driver and the workers are machines of their own; here
    they share these cores with everything.
    """

    def __init__(
        self, ground: Ground, *, alias: str, topic: str, slots: int = os.cpu_count() or 1, handover_seconds: int = 2
    ) -> None:
        """Describe it.

        Args:
            ground: the clusters and the tables.
            alias: of the source.
            topic: all of which is copied.
            slots: of Spark.
            handover_seconds: how long it waits for a mapping to join; by default there is none.
        """
        super().__init__(ground, name=f"{OURS}, backfill job", alias=alias, topics=[topic], log="backfill.log")
        self._slots, self._handover = slots, handover_seconds
        self._spent = 0.0

    @property
    def folder(self) -> Path:
        """The run's folder, with its report once it has ended."""
        return self._folder

    def cpu(self) -> Cpu:
        """CPU so far, of the driver, its JVM and the workers; of a job that has ended, as far as it was seen."""
        if self.pid is not None:
            self._spent = max(self._spent, family_cpu(self.pid))
        return Cpu(self._spent)

    def processes(self) -> list[psutil.Process]:
        """The driver, its JVM and the workers."""
        return family(self.pid)

    def obstacle(self) -> str:
        """Why it does not copy any more; empty while it may, and when it has ended well."""
        self.cpu()  # the last look before its end counts
        code = self._process.exit_code if self._process else None
        return f"it ended with {code}; see {self.log}\n{self.log.read_text()[-2000:]}" if code else ""

    def await_exit(self, *, seconds: float, look: Callable[[], object] = lambda: None) -> None:
        """Wait for its end, looking at it again and again.

        Raises:
            TimeoutError: it did not end in time.
            RuntimeError: it failed.
        """
        deadline = time.monotonic() + seconds
        while self.alive:
            self.cpu()
            look()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job did not end within {seconds:.0f} s; see {self.log}")
            time.sleep(LOOK_S)  # between two looks at a condition with a deadline
        if reason := self.obstacle():
            raise RuntimeError(reason)

    def _command(self) -> list[str]:
        addresses = {self._alias: self._ground.source.bootstrap, "target": self._ground.target.bootstrap}
        (flow,) = load(self._write_configuration()).with_clusters_at(addresses).enabled_flows
        request = JobRequest(
            run_id=self._alias,
            flow=decode_settings(flow.function_settings_json()),
            topics=self._topics,
            options=BackfillOptions(handover_seconds=self._handover),
            aliases=(self._alias, "target"),
        )
        (self._folder / REQUEST).write_bytes(encode_request(request))
        environment = [f"{name}={value}" for name, value in self._ground.variables(self._slots).items()]
        door = REPOSITORY / "spark" / "backfill.py"
        return ["env", *environment, sys.executable, str(door), str(self._folder)]

    def _probe(self) -> Callable[[], str]:
        return lambda: ""


# MirrorMaker 2

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

    def cpu(self) -> Cpu:
        """CPU so far."""
        return Cpu(sum(map(own_cpu, self.processes())))

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


def pairs_of(side: Side, mm2: Collection[str]) -> Sequence[str]:
    """With whom a side's figures are compared: ours with each of MM2's, MM2's own with itself."""
    return (side.name,) if isinstance(side, MirrorMaker) else tuple(mm2)
