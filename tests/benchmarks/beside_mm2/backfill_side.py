"""The backfill job as on an operator's machine: its own script, with Spark on this machine.

On EMR Serverless the driver and the workers are machines of their own; here they share these cores with everything.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from lab.servers.server import Server
from mirrorless.config.loading import load
from mirrorless.jobs.request import REQUEST, BackfillOptions, JobRequest, encode_request
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.settings import decode_settings
from tests.benchmarks.beside_mm2 import cpu
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.mirrorless_side import CONFIGURATION, REPOSITORY

HANDOVER_SECONDS = 2
"""No mapping is there to join: the job need not wait for one."""


class Backfill(Server):
    """One backfill of one topic. It is never ready: it works, and ends."""

    name = "Mirrorless, backfill job"

    def __init__(self, ground: Ground, *, alias: str, topic: str) -> None:
        """Describe it. The source cluster has an alias of this job alone."""
        super().__init__(title=f"backfill ({alias})", folder=ground.folder / alias, log="backfill.log")
        self._ground = ground
        self._alias = alias
        self._topic = topic
        self._spent = cpu.Cpu(replicator=0.0)

    def remote_topic(self, topic: str) -> str:
        """The name of a source topic on the target."""
        return f"{self._alias}.{topic}"

    @property
    def folder(self) -> Path:
        """The run's folder, with its report once it has ended."""
        return self._folder

    def cpu(self) -> cpu.Cpu:
        """CPU so far, of the driver, its JVM and the workers; of a job that has ended, as far as it was seen."""
        if self.pid is not None:
            now = cpu.Cpu(replicator=cpu.family(self.pid))
            self._spent = max(self._spent, now, key=lambda each: each.replicator)
        return self._spent

    def resident_mb(self) -> float:
        """Memory now, of all its processes."""
        return cpu.family_resident_mb(self.pid) if self.pid is not None else 0.0

    def freeze(self) -> None:
        """Stop it where it is (SIGSTOP)."""
        if self._process:
            self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process:
            self._process.signal(signal.SIGCONT)

    def obstacle(self) -> str:
        """Why it does not copy any more; empty while it may, and when it has ended well."""
        self.cpu()  # the last look before its end counts
        code = self._process.exit_code if self._process else None
        return f"it ended with {code}; see {self.log}\n{self.log.read_text()[-2000:]}" if code else ""

    def discard(self) -> None:
        """Stop it, and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> list[str]:
        configuration = self._folder / "replication.yaml"
        configuration.write_text(CONFIGURATION.format(alias=self._alias, topics=self._topic, options=""))
        addresses = {self._alias: self._ground.source.bootstrap, "target": self._ground.target.bootstrap}
        (flow,) = load(configuration).with_clusters_at(addresses).enabled_flows
        request = JobRequest(
            run_id=self._alias,
            flow=decode_settings(flow.function_settings_json()),
            topics=(self._topic,),
            options=BackfillOptions(handover_seconds=HANDOVER_SECONDS),
            aliases=(self._alias, "target"),
        )
        (self._folder / REQUEST).write_bytes(encode_request(request))
        variables = {
            "PYTHONPATH": os.pathsep.join(str(each) for each in (REPOSITORY / "shared", REPOSITORY)),
            SPARK_MASTER_VARIABLE: f"local[{os.cpu_count()},4]",
            "PYSPARK_PYTHON": sys.executable,
            "AWS_ENDPOINT_URL_DYNAMODB": self._ground.dynamodb.endpoint,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        door = Path(REPOSITORY, "spark", "backfill.py")
        environment = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *environment, sys.executable, str(door), str(self._folder)]

    def _probe(self) -> Callable[[], str]:
        return lambda: ""
