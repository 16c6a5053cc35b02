"""Mirrorless as deployed, by a schedule: the function that reads scheduled topics, in continuous runs of one shard."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence

import msgspec

from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.lane import FlowName
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from mirrorless.settings import Tables
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from tests.benchmarks.beside_mm2 import cpu
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.mirrorless_side import Mirrorless
from tests.benchmarks.beside_mm2.schedule_stand_in import READY, RUNS, ScheduleRequest
from tests.benchmarks.beside_mm2.side import OURS

HANDED_OVER_WITHIN_S = 90.0

CONTINUOUS = """
    trigger: schedule
    schedule: {continuous: true}
"""


class Pulled(Mirrorless):
    """One flow whose topics are scheduled, with a single shard. Ready means that its first run was started."""

    def __init__(
        self,
        ground: Ground,
        *,
        alias: str,
        topics: Sequence[str],
        name: str = OURS,
        timeout_seconds: float = PULL_TIMEOUT_SECONDS,
    ) -> None:
        """Args: timeout_seconds: of a run, which gives way some time before. The others are those of `Mirrorless`."""
        super().__init__(ground, alias=alias, topics=topics, options=CONTINUOUS, name=name)
        self._timeout_seconds = timeout_seconds
        self._frozen: list[int] = []

    def freeze(self) -> None:
        """Stop schedule and run where they are (SIGSTOP); environments that are idle are stopped anyway."""
        super().freeze()
        self._frozen = [pid for pid in self.environments() if not cpu.is_stopped(pid)]
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        for pid in self._frozen:
            os.kill(pid, signal.SIGCONT)
        self._frozen = []
        super().thaw()

    def hold(self) -> None:
        """Nothing: the function reads by itself."""

    def wait_polled(self, records: int) -> None:
        """Nothing: the function reads by itself."""

    def hand_over(self) -> None:
        """Let the schedule start a run that takes over from the one under way; returns when it has.

        Raises:
            TimeoutError: it did not.
        """
        assert self._process is not None
        before, deadline = self._handed_over(), time.monotonic() + HANDED_OVER_WITHIN_S
        self._process.signal(signal.SIGUSR1)
        while self._handed_over() == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no run took over; see {self._folder / RUNS}")
            time.sleep(0.05)  # between two looks at a condition with a deadline

    def _handed_over(self) -> int:
        """How many runs have ended because their successor waited."""
        path = self._folder / RUNS
        payloads = [json.loads(line)["payload"] for line in path.read_text().splitlines()] if path.exists() else []
        return sum(json.loads(payload).get("ended") == "successor" for payload in payloads)

    def _command(self) -> list[str]:
        (self._folder / READY).unlink(missing_ok=True)
        documents = DynamoDbDocuments(self._ground.dynamodb.client(), Tables().control)
        partitions = {topic: self._ground.partitions[topic] for topic in self._topics}
        self._ground.create_remote({self.remote_topic(topic): count for topic, count in partitions.items()})
        write_scheduled_topics(documents, FlowName(self._alias, "target"), partitions, stored={})
        request = self._folder / "request.json"
        request.write_bytes(
            msgspec.json.encode(
                ScheduleRequest(
                    configuration=str(self._write_configuration()),
                    source=self._ground.source.bootstrap,
                    target=self._ground.target.bootstrap,
                    source_alias=self._alias,
                    dynamodb=self._ground.dynamodb.endpoint,
                    folder=str(self._folder),
                    timeout_seconds=self._timeout_seconds,
                )
            )
        )
        return self._program("schedule_stand_in", request)
