"""Mirrorless as deployed: the bundle under the real runtime client, fed by event source mappings.

Everything is on: exactly once, digests, metrics. The forwarder is measured, as MM2's source connector is; the two
functions that a schedule starts once a minute are not running.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from lab.servers.server import Server
from mirrorless.errors import Retriable
from tests.benchmarks.beside_mm2 import cpu
from tests.benchmarks.beside_mm2.aws_stand_in import HOLD, POLLED, READY, Request
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.support.lab_process import running

REPOSITORY = Path(__file__).parents[3]
READY_WITHIN_S = 240.0
POLLED_WITHIN_S, LOOK_S = 60.0, 0.02

CONFIGURATION = """
clusters:
  {alias}: {{bootstrap.servers: source.example.com:9092, region: us-east-1}}
  target: {{bootstrap.servers: target.example.com:9092, region: us-east-1}}
flows:
  {alias}->target:
    topics: [{topics}]
{options}
"""

AT_ONCE = "    mapping: {maximum.batching.window.seconds: 0}"
"""For latency: deliver what is there. Left out, a mapping gathers for Lambda's own half a second."""


class Mirrorless(Server):
    """One flow with a mapping per topic. Ready means that the mappings poll every partition.

    The source cluster has an alias of this flow alone, so that each starts without a chain and without remote topics.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        alias: str,
        topics: Sequence[str],
        options: str = "",
        name: str = "Mirrorless",
        one_at_a_time: bool = False,
    ) -> None:
        """Describe it.

        Args:
            ground: the clusters and the tables.
            alias: of the source, the prefix of its remote topics.
            topics: the literal topics that it replicates; they are there.
            options: more lines of the flow's configuration, at its indentation.
            name: in the report.
            one_at_a_time: whether one event is under way, as if alone on its processor, instead of as many as come.
        """
        super().__init__(title=f"{name} ({alias})", folder=ground.folder / alias, log="aws.log")
        self.name = name
        self._ground = ground
        self._alias = alias
        self._topics = tuple(topics)
        self._options = options
        self._one_at_a_time = one_at_a_time
        self._polled = 0

    def wait_ready(self, timeout: float = READY_WITHIN_S) -> None:
        """See `Server.wait_ready`; a busy machine gets its time."""
        super().wait_ready(timeout)

    def remote_topic(self, topic: str) -> str:
        """The name of a source topic on the target."""
        return f"{self._alias}.{topic}"

    def cpu(self) -> cpu.Cpu:
        """CPU so far; a cold start's is in it."""
        if self.pid is None:
            return cpu.Cpu(replicator=0.0)
        return cpu.Cpu(replicator=cpu.children(self.pid), poller=cpu.own(self.pid))

    def resident_mb(self) -> float:
        """Memory of all function processes now."""
        return sum(map(cpu.resident_mb, self.environments()))

    def environments(self) -> list[int]:
        """The pids of the function's execution environments."""
        return sorted(child for (child, _), parent in running().items() if parent == self.pid)

    def kill_busy(self) -> None:
        """SIGKILL one execution environment, one that works if there is one: idle ones are stopped (SIGSTOP)."""
        pids = self.environments()
        if pids:
            os.kill(min(pids, key=cpu.is_stopped), signal.SIGKILL)

    def freeze(self) -> None:
        """Stop polling where it is (SIGSTOP); idle functions are frozen anyway."""
        if self._process:
            self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, and its mappings invoke."""
        (self._folder / HOLD).unlink(missing_ok=True)
        if self._process:
            self._process.signal(signal.SIGCONT)

    def hold(self) -> None:
        """Have the mappings invoke nothing until it is thawed."""
        (self._folder / HOLD).touch()
        self._polled = self._while_it_runs(lambda polled: polled >= 0)

    def wait_polled(self, records: int) -> None:
        """Have the mappings read so many records since `hold`, and encode them into events; what AWS does.

        Raises:
            Retriable: they were not read in time.
        """
        self._while_it_runs(lambda polled: polled >= self._polled + records)

    def _while_it_runs(self, reached: Callable[[int], bool]) -> int:
        """Let its process run until that many records are polled; the number."""
        file, polled = self._folder / POLLED, -1
        if self._process:
            self._process.signal(signal.SIGCONT)
        for _ in range(int(POLLED_WITHIN_S / LOOK_S)):
            polled = int(file.read_text()) if file.exists() else -1
            if reached(polled):
                break
            time.sleep(LOOK_S)  # between two looks at its file
        else:
            raise Retriable(f"the mappings have read {polled} records, too few", where=self.title)
        self.freeze()
        return polled

    def obstacle(self) -> str:
        """Why it does not replicate any more; empty while it may."""
        return "" if self.alive else f"the mappings' process is dead; see {self.log}"

    def discard(self) -> None:
        """Stop it, and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> list[str]:
        (self._folder / READY).unlink(missing_ok=True)
        request = self._folder / "request.json"
        request.write_bytes(
            msgspec.json.encode(
                Request(
                    configuration=str(self._write_configuration()),
                    source=self._ground.source.bootstrap,
                    target=self._ground.target.bootstrap,
                    source_alias=self._alias,
                    dynamodb=self._ground.dynamodb.endpoint,
                    folder=str(self._folder),
                    topics=self._topics,
                    one_at_a_time=self._one_at_a_time,
                )
            )
        )
        return self._program("aws_stand_in", request)

    def _write_configuration(self) -> Path:
        text = CONFIGURATION.format(alias=self._alias, topics=", ".join(self._topics), options=self._options)
        configuration = self._folder / "replication.yaml"
        configuration.write_text(text)
        return configuration

    def _program(self, module: str, request: Path) -> list[str]:
        # It runs in a folder of its own, and is to find this repository's code, not an installed one's.
        path = os.pathsep.join(str(each) for each in (REPOSITORY, REPOSITORY / "shared"))
        return [
            "env",
            f"PYTHONPATH={path}",
            sys.executable,
            "-m",
            f"tests.benchmarks.beside_mm2.{module}",
            str(request),
        ]

    def _probe(self) -> Callable[[], str]:
        ready = self._folder / READY
        return lambda: "" if ready.exists() else "its mappings do not poll yet"
