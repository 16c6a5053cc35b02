"""A failback and its verification, whose processes are killed: one lane has 90 % of the records, one fails for good.

    the source has records, all replicated but some orphans; the target has new ones, one too large for the source
    reconcile: a Python worker, an executor and the driver are killed -9 at work; run again, it ends without that lane
    the source takes larger records: another run brings the rest back
    verify: the same kills, a byte that was changed on its way, and a topic that the job may not read; then it may

Every record of both sides is audited by a client of Kafka's own after each step, with its translation:
nothing may be lost, repeated, out of order, different or mistranslated.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from lab.audit.topic_reader import read_topic, stable_ends
from lab.audit.translations import count_mistranslated
from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.jobs.request import JobRequest, Options, ReconcileOptions, VerifyOptions, encode_request
from mirrorless.verify.comparison import RecordAt, compare
from spark.jobs.lane_copies import finished, wire_copy
from spark.jobs.lane_tasks import TaskAttempt
from tests.benchmarks.backfill import new_stage
from tests.benchmarks.ground import copy_task, grounded
from tests.benchmarks.harness import Outcome
from tests.support.kill_rounds import await_work, fill_lanes, killed
from tests.support.lane_stage import LaneStage
from tests.support.spark_cluster import ROOT, RunningJob, plain_environment, submitted
from tests.support.tampering import Tamper, changed, tampered_with

LANES: Final = 4
FAILING: Final = 3
"""The lane with a record that the source refuses."""
WRONG: Final = 1
"""The lane with a record that was changed on its way."""
LARGE: Final = 200_000
"""Bytes of a record, more than the source takes."""
SOME: Final = 100
VALUE_BYTES: Final = 200
ONLY: Final = TaskAttempt(number=0, last=True)
AUTHORIZED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def measure(*, records: int = 1_000_000, seed: int = 1) -> Outcome:
    """Do it all. Args: records: that both sides have. seed: of the moments, and of the victims."""
    with grounded(aliases=("us-east", "eu-west"), target_properties=AUTHORIZED) as ground:
        draw = random.Random(seed)
        failback = KilledFailback(new_stage(ground), ground.dynamodb, ground.folder, records, draw)
        failback.run()
    wrong = [f"{what}: {count}" for what, count in failback.faults.items() if count]
    return Outcome({"records": records, **failback.counts}, wrong)


@dataclass(slots=True)
class KilledFailback:
    """One topic, its flow, and what was found."""

    stage: LaneStage
    dynamodb: DynamoDbLocal
    folder: Path
    records: int
    draw: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    _replicated: dict[int, int] = field(default_factory=dict)
    """By lane: records that both sides have."""
    _orphans: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Every step."""
        self._history()
        self._outage()
        code, found = self._job("reconcile-1", ReconcileOptions(policy="quarantine"), (self.stage.topic,), kills=True)
        self._say("reconciled without the lane that fails", code == 3 and found["totals"]["failed"] == 1)
        self._audit({FAILING})

        self.stage.configure(self.stage.source, self.stage.topic, max_message_bytes="1000000")
        self.stage.orders.resume(Lane(self.stage.settings.name.turned, self.stage.remote_topic, FAILING))
        self._hold()
        code, found = self._job("reconcile-2", ReconcileOptions(policy="quarantine"), (self.stage.topic,))
        self._say("reconciled", code == 0 and not found["totals"]["failed"])
        self._audit(set())
        held = [each for each in self.stage.orders.read(map(self.stage.lane, range(LANES))).values() if each.stop]
        self._say("all lanes let go", not held)

        topics = self.stage.topic, self._closed
        self._reading("create_acls")
        code, found = self._job("verify-1", VerifyOptions(), topics, kills=True)
        self._verified(code, found, failed=1)
        self._reading("delete_acls")
        code, found = self._job("verify-2", VerifyOptions(), topics)
        self._verified(code, found, failed=0)

    # What there is before

    @property
    def _closed(self) -> str:
        """A topic that the job may not read for a while."""
        return f"{self.stage.topic}-closed"

    def _counts(self, whole: int) -> dict[int, int]:
        """Of each lane: the first has nine tenths."""
        rest = whole // 10 // (LANES - 1)
        return {partition: rest if partition else whole - rest * (LANES - 1) for partition in range(LANES)}

    def _history(self) -> None:
        stage = self.stage
        stage.create(stage.source, stage.topic, LANES, max_message_bytes="100000")
        stage.create(stage.source, self._closed)
        self._replicated = self._counts(self.records)
        fill_lanes(stage.source.bootstrap, stage.topic, self._replicated, VALUE_BYTES)
        fill_lanes(stage.source.bootstrap, self._closed, {0: SOME}, VALUE_BYTES)
        assert stable_ends(stage.source.bootstrap, stage.topic) == self._replicated
        for partition, count in self._replicated.items():
            self._copied(stage.topic, partition, count - SOME)
        self._copied(stage.topic, WRONG, self._replicated[WRONG], changed(SOME // 2, value=b"changed"))
        for partition, count in self._replicated.items():
            self._copied(stage.topic, partition, count)
        self._copied(self._closed, 0, SOME)
        self._say("replicated", ok=True)

    def _copied(self, topic: str, partition: int, until: int, fault: Tamper | None = None) -> None:
        """Copy a lane up to an offset. Args: fault: of the last records."""
        settings = self.stage.changed(copy="records" if fault else "auto")  # what passes cannot be tampered with
        copy = wire_copy(copy_task(settings, topic, partition, until), ONLY)
        if fault:
            tampered_with(copy.replicator, {partition: fault})
        result = finished(copy, ONLY)
        assert (result.state, result.position) == ("done", until), result

    def _outage(self) -> None:
        """Orphans on the source, and three tenths as many new records on the target, one of them large."""
        stage = self.stage
        self._hold()
        self._orphans = self._counts(self.records // 100)
        fill_lanes(stage.source.bootstrap, stage.topic, self._orphans, VALUE_BYTES, kind=b"orphan")
        new = self._counts(self.records * 3 // 10)
        half = {partition: count // 2 for partition, count in new.items()}
        fill_lanes(stage.target.bootstrap, stage.remote_topic, half, VALUE_BYTES, kind=b"new")
        stage.configure(stage.target, stage.remote_topic, max_message_bytes="1000000")
        stage.write_to(stage.target, stage.remote_topic, self.draw.randbytes(LARGE), partition=FAILING)
        rest = {partition: count - half[partition] for partition, count in new.items()}
        fill_lanes(stage.target.bootstrap, stage.remote_topic, rest, VALUE_BYTES, kind=b"later")

    def _hold(self) -> None:
        for partition in range(LANES):
            stop = Stop(reason="held", upstream_offset=0, detail="failover", at=1)
            self.stage.orders.stop(self.stage.lane(partition), stop)

    # Jobs

    def _job(
        self, run_id: str, options: Options, topics: tuple[str, ...], *, kills: bool = False
    ) -> tuple[int, dict[str, Any]]:
        """Exit code and report of a run; with kills, it is run again until it ends."""
        run, began = self.folder / run_id, time.monotonic()
        run.mkdir()
        kind = run_id.partition("-")[0]
        request = JobRequest(
            run_id=run_id,
            flow=self.stage.changed(copy="records"),  # slow enough to be hit
            topics=topics,
            options=options,
            lease_seconds=30,
        )
        (run / "request.json").write_bytes(encode_request(request))
        script = ROOT / "spark" / f"{kind}.py"
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        environment = plain_environment(**aws)
        places: dict[str, Any] = {
            "folder": self.folder / "spark",
            "confs": {"spark.task.maxFailures": "4", "spark.sql.shuffle.partitions": "4"},
            "environment": environment,
        }
        victims: Sequence[str] = ("worker", "executor", "driver") if kills else ()
        before: set[Path] = set()
        with submitted(script, run, **places) as job:
            for victim in victims:
                await_work(job, run, victim)
                time.sleep(self.draw.uniform(0.0, 0.3))  # a moment, whatever happens in it
                killed(job, victim, self.draw)
            if not victims:
                return self._ended(job, run, began)
            said = job.log_text()
            assert "Lost executor" in said, said[-3_000:]
            before = set(run.glob("parts/*"))
            with submitted(script, run, **places) as again:
                found = self._ended(again, run, began)
        self.counts[f"{kind}_parts_of_killed_runs"] = len(before)
        return found

    def _ended(self, job: RunningJob, run: Path, began: float) -> tuple[int, dict[str, Any]]:
        code = job.driver.wait(600)
        assert (run / "report.json").exists(), job.log_text()[-5_000:]
        print(f"{run.name}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
        return code, json.loads((run / "report.json").read_bytes())

    def _reading(self, change: str) -> None:
        """Deny the reading of the closed topic's copy, or allow it again: who may but describe it does not read."""
        kind = AclBinding if change == "create_acls" else AclBindingFilter
        acls = [
            kind(
                ResourceType.TOPIC,
                self.stage.settings.remote_topic(self._closed),
                ResourcePatternType.LITERAL,
                "User:ANONYMOUS",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        ]
        admin = AdminClient({"bootstrap.servers": self.stage.target.bootstrap, "log_level": 0})
        for future in getattr(admin, change)(acls).values():
            future.result(20)

    # What there is afterwards

    def _say(self, what: str, ok: bool) -> None:  # noqa: FBT001 -- the claim itself
        print(f"{what}: {'so it is' if ok else 'NOT SO'}", flush=True)
        self.faults[what] += not ok

    def _audit(self, failing: set[int]) -> None:
        """Every record of both sides, and the orphans beside the remote topic."""
        stage = self.stage
        source = _read(stage.source.bootstrap, stage.topic)
        target = _read(stage.target.bootstrap, stage.remote_topic)
        beside = _read(stage.target.bootstrap, f"{stage.remote_topic}.orphans")
        found: Counter[str] = Counter()
        for partition in range(LANES):
            first, orphans = self._replicated[partition], self._orphans[partition]
            upstream = [*source[partition][:first], *source[partition][first + orphans :]]
            downstream = target[partition]
            orphaned = source[partition][first : first + orphans]
            if partition in failing:
                downstream = downstream[: len(upstream)]  # up to the record that the source refuses
                found["stopped_elsewhere"] += (
                    len(upstream) != first + self._counts(self.records * 3 // 10)[partition] // 2
                )
            compared = compare(upstream, downstream)
            found.update({name: getattr(compared, name) for name in ("lost", "duplicated", "reordered", "different")})
            if partition not in failing:
                moved = compare(orphaned, beside[partition])
                found["orphans_wrong"] += moved.lost + moved.duplicated + moved.reordered + moved.different
                found["mistranslated"] += count_mistranslated(
                    stage.chains,
                    stage.lane(partition),
                    upstream=[each.offset for each in source[partition]],
                    places={one.offset: other.offset for one, other in compared.pairs},
                    end=stable_ends(stage.source.bootstrap, stage.topic)[partition],
                    seed=partition,
                )
        found["different"] -= 1  # the record that was changed on its way
        self.counts["records_audited"] = sum(map(len, source.values())) + sum(map(len, target.values()))
        print(f"audited {self.counts['records_audited']:,} records: {dict(found)}", flush=True)
        self.faults.update(found)

    def _verified(self, code: int, found: dict[str, Any], *, failed: int) -> None:
        totals = found["totals"]
        claimed = self.records + (0 if failed else SOME) + self.records * 3 // 10 + 1
        lanes = {(each["topic"], each["partition"]): each for each in found["lanes"]}
        for each in found["lanes"]:
            print(f"verified {each['lane']}: {each['error']}, {each['notes']}, {each['findings']}", flush=True)
        finding: dict[str, Any] = next(iter(lanes[self.stage.topic, WRONG]["findings"]), {})
        self._say("the one wrong record is found, once", totals["different"] == 1 and finding.get("records") == 1)
        self._say("nothing else is found", sum(totals[kind] for kind in ("missing", "duplicated", "reordered")) == 0)
        self._say("every other record is proved", (totals["records"], totals["proved"]) == (claimed, claimed - 1))
        states = Counter(each["state"] for each in found["lanes"])
        self._say("lanes that failed", states["failed"] == failed and code == 3)


def _read(bootstrap: str, topic: str) -> dict[int, list[RecordAt]]:
    return read_topic(bootstrap, topic, stable_ends(bootstrap, topic))
