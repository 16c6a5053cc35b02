"""A flow that has failed over: replicated records, orphans, new records on the target, and the job that reconciles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, TopicPartition
from msgspec.structs import replace
from pyspark.sql import SparkSession

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Run
from mirrorless.clock import now_ms
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.jobs.request import JobRequest, Policy, ReconcileOptions
from spark.jobs.driver import JobOutcome, JobRun
from spark.reconcile import ReconcileStep, Reconciliation
from tests.support.chains import every_run
from tests.support.lane_stage import LaneStage
from tests.support.readback import committed, read_topic

Values = list[bytes | None]


def nothing(_: ReconcileStep) -> None:
    """What is done after a step, usually."""


@dataclass(slots=True, kw_only=True)
class FailoverStage:
    """One topic of two partitions, whose source was lost and is back."""

    stage: LaneStage
    spark: SparkSession
    folder: Path
    settle_ms: int = 0
    _run: int = field(default=0)

    @property
    def settings(self) -> FlowSettings:
        """Of the forward flow."""
        return self.stage.settings

    @property
    def remote(self) -> str:
        """The topic's name on the target."""
        return self.settings.remote_topic(self.stage.topic)

    def create(self, partitions: int = 1, **configs: str) -> None:
        """The topic on the source."""
        self.stage.create(self.stage.source, self.stage.topic, partitions, **configs)

    def replicate(self) -> None:
        """Let the flow take everything that the source has, from its first record on."""
        event = self.stage.event()
        outcome = self.stage.replicate(
            self.stage.environment(replication_policy=self.settings.replication_policy), event
        )
        assert not outcome.stopped

    def hold(self, *partitions: int) -> None:
        """What `lanes hold` writes."""
        for partition in partitions or range(self._partitions()):
            stop = Stop(reason="held", upstream_offset=0, detail="failover", at=1)
            self.stage.orders.stop(self.stage.lane(partition), stop)

    def held(self) -> list[int]:
        """Partitions that stand still."""
        lanes = {partition: self.stage.lane(partition) for partition in range(self._partitions())}
        states = self.stage.orders.read(lanes.values())
        return [partition for partition, lane in lanes.items() if lane in states and states[lane].stop is not None]

    def on_source(self, *values: bytes | None, partition: int = 0, **options: Any) -> None:
        """Write records to the source; `options` are those of `Producer.produce`."""
        self.stage.write(*values, partition=partition, **options)

    def on_target(self, *values: bytes | None, partition: int = 0, **options: Any) -> None:
        """Write records to the remote topic, as producers that have moved do."""
        self.stage.write_to(self.stage.target, self.remote, *values, partition=partition, **options)

    def claimed(self, group: str) -> dict[int, int]:
        """The offsets on the target of a group that were brought back, by partition."""
        stored = self.stage.checkpoints.read(self.settings.name, "claim/forward/").values()
        claims = [msgspec.json.decode(text, type=ClaimedOffsets) for text in stored]
        (claim,) = [each for each in claims if each.group == group and self.stage.topic in each.offsets | each.reached]
        return claim.offsets.get(self.stage.topic, {})

    def reconcile(
        self,
        policy: Policy = "report",
        *,
        run: int = 0,
        on_step: Callable[[ReconcileStep], None] = nothing,
        **options: object,
    ) -> JobOutcome:
        """One run of the job; the same number is the same run, started again."""
        run_id = f"reconcile-test-{run}"
        request = JobRequest(
            run_id=run_id,
            flow=self.settings,
            topics=(self.stage.topic,),
            options=replace(ReconcileOptions(policy=policy), **options),
            lease_seconds=30,
        )
        job = JobRun(request, open_job_files(str(self.folder / run_id)), now_ms())
        job._context = self.spark.sparkContext
        return Reconciliation(job, on_step=on_step, settle_ms=self.settle_ms, still_seconds=0).act()

    # What there is afterwards

    def source_values(self, partition: int = 0) -> Values:
        """Visible values on the source."""
        return self._values(self.stage.source.bootstrap, self.stage.topic, partition)

    def target_values(self, partition: int = 0, topic: str = "") -> Values:
        """Visible values on the target, of the remote topic or another one."""
        return self._values(self.stage.target.bootstrap, topic or self.remote, partition)

    def runs(self, partition: int = 0) -> list[Run]:
        """The forward chain."""
        return every_run(self.stage.chains, Lane(self.settings.name, self.stage.topic, partition))

    def commit(self, group: str, downstream: int, *, partition: int = 0) -> None:
        """Let a group have read the remote topic up to an offset."""
        self._commit(self.stage.target.bootstrap, group, TopicPartition(self.remote, partition, downstream))

    def commit_on_source(self, group: str, upstream: int, *, partition: int = 0) -> None:
        """Let a group have read the source topic up to an offset."""
        self._commit(self.stage.source.bootstrap, group, TopicPartition(self.stage.topic, partition, upstream))

    def committed_on_source(self, group: str) -> dict[int, int]:
        """Where a group would go on there, by partition."""
        return committed(self.stage.source.bootstrap, group, self.stage.topic)

    def next_value(self, upstream: int, partition: int = 0) -> bytes | None:
        """The value of the first visible record at or after an offset of the source."""
        seen = read_topic(self.stage.source.bootstrap, self.stage.topic)[partition]
        return next(each.content.value for each in seen if each.offset >= upstream)

    @staticmethod
    def _values(bootstrap: str, topic: str, partition: int) -> Values:
        return [each.content.value for each in read_topic(bootstrap, topic)[partition]]

    @staticmethod
    def _commit(bootstrap: str, group: str, place: TopicPartition) -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        try:
            consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()

    def _partitions(self) -> int:
        return len(read_topic(self.stage.source.bootstrap, self.stage.topic))
