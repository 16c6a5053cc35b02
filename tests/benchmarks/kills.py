"""Jobs whose Python worker, executor and driver are killed -9 at drawn moments, and which are run again until they end.

Afterwards every record of both sides is audited by a client of Kafka's own, with its translation: nothing may be lost,
repeated, out of order, different or mistranslated. A failback goes like this:

    the source has records, all replicated but some orphans; the target has new ones, one too large for the source
    reconcile: killed at work; run again, it ends without the lane of the large record
    the source takes larger records: another run brings the rest back
    verify: the same kills, a byte that was changed on its way, and a topic that the job may not read; then it may
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from lab.audit.topic_reader import read_whole, stable_ends
from lab.audit.translations import count_mistranslated
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.flow.settings import FlowSettings, Tables
from mirrorless.flow.tables import definitions
from mirrorless.jobs.progress import LaneProgress
from mirrorless.jobs.request import (
    BackfillOptions,
    JobRequest,
    Options,
    ReconcileOptions,
    VerifyOptions,
    encode_request,
)
from mirrorless.verify.comparison import RecordAt, compare
from spark.jobs.lane_copies import finished, wire_copy
from spark.jobs.lane_tasks import TaskAttempt
from tests.benchmarks.ground import Ground, Headers, Written, copy_task, grounded, produce
from tests.benchmarks.harness import Outcome
from tests.support.lane_stage import LaneStage
from tests.support.spark_cluster import ROOT, RunningJob, plain_environment, submitted
from tests.support.tampering import Tamper, changed, tampered_with
from tests.support.topics import admin_of
from tests.support.waiting import eventually

VICTIMS: Final = ("worker", "executor", "driver")
TERM: Final = 120.0
"""Seconds within which a job is at work again after a kill."""
FAULTS: Final = ("lost", "duplicated", "reordered", "different")
VALUE_BYTES: Final = 200
ALIASES: Final = ("us-east", "eu-west")


def backfills(*, rounds: int = 10, seed: int = 1, lanes: int = 4, records: int = 100_000) -> Outcome:
    """Backfills whose worker, executor and driver are killed -9, round after round, each from another seed.

    A round that failed comes again by its seed. Args: records: of each lane.
    """
    faults, seen = Counter[str](), 0
    with grounded(aliases=ALIASES) as ground:
        for each in range(seed, seed + rounds):
            stage, folder, draw, began = new_stage(ground), ground.folder / f"{each}", random.Random(each), time.time()
            folder.mkdir()
            stage.create(stage.source, stage.topic, lanes)
            fill_lanes(stage.source.bootstrap, stage.topic, dict.fromkeys(range(lanes), records))
            # Slow enough to be hit in the middle, three times.
            rate = lanes * records * (VALUE_BYTES + 8) / 1e6 / 25
            job = KilledJob(stage, folder, draw, naps=1.5, confs={})
            options = BackfillOptions(handover_seconds=2, max_mb_per_second=rate)
            code, report = job.run("backfill-1", options, (stage.topic,), VICTIMS)
            if code:
                faults["failed"] += 1
            source, target = (
                read_whole(cluster.bootstrap, topic)
                for cluster, topic in ((stage.source, stage.topic), (stage.target, stage.remote_topic))
            )
            for partition, upstream in source.items():
                faults += lane_faults(stage, partition, upstream, target[partition], seed=each + partition)
            seen += sum(map(len, target.values()))
            before = report["totals"]["records"] - report["totals"]["written"]
            print(f"seed {each}: {before:,} records by runs that were killed, {time.time() - began:.0f} s", flush=True)
    return Outcome(
        {"rounds": rounds, "records": seen, **faults}, [f"{name}: {count}" for name, count in faults.items() if count]
    )


def new_stage(ground: Ground) -> LaneStage:
    """The stage of a topic that is not there yet, with tables of its own."""
    suffix, client = uuid4().hex[:8], ground.dynamodb.client()
    kinds = ("offset_map", "lanes", "loss_ledger", "checkpoints", "control")
    tables = Tables(**{kind: f"{kind}-{suffix}" for kind in kinds})
    for definition in definitions(tables):
        client.create_table(**definition.create_request())

    def nobody(settings: FlowSettings) -> Any:
        raise NotImplementedError(f"no function replicates {settings.flow} here")

    settings = ground.settings(transaction_timeout_ms=2000, tables=tables)
    return LaneStage.of(settings, (ground.source, ground.target), client, nobody)


def fill_lanes(bootstrap: str, topic: str, counts: Mapping[int, int], *, kind: bytes = b"record") -> None:
    """Write so many records to each partition, all different; some have a header. Args: kind: in their values."""

    def records() -> Iterator[Written]:
        for number, (partition, count) in product(range(max(counts.values())), counts.items()):
            if number < count:
                value = b"%s %d-%d " % (kind, partition, number)
                headers: Headers = [("n", value)] if number % 100 == 0 else []
                yield partition, b"%08d" % number, value.ljust(VALUE_BYTES, b"."), headers

    # In order, and in batches that a topic takes that takes no larger ones.
    produce(bootstrap, topic, records(), batch_size=64_000, max_in_flight=1)


def lane_faults(
    stage: LaneStage,
    partition: int,
    upstream: Sequence[RecordAt],
    downstream: Sequence[RecordAt],
    *,
    orphans: Sequence[RecordAt] = (),
    seed: int,
) -> Counter[str]:
    """Every kind of fault of a lane of which all but orphans is replicated; of its translations some, by the seed."""
    found = compare(upstream, downstream)
    faults = Counter({name: getattr(found, name) for name in FAULTS})
    faults["mistranslated"] = count_mistranslated(
        stage.chains,
        stage.lane(partition),
        upstream=sorted(each.offset for each in (*upstream, *orphans)),
        places={one.offset: other.offset for one, other in found.pairs},
        end=stable_ends(stage.source.bootstrap, stage.topic)[partition],
        seed=seed,
    )
    return faults


@dataclass(frozen=True, slots=True)
class KilledJob:
    """Runs jobs of a stage's flow in `local-cluster` mode, and kills their processes at work."""

    stage: LaneStage
    folder: Path
    draw: random.Random
    naps: float
    """Seconds at most from the moment that a job is at work to a kill."""
    confs: Mapping[str, str]

    def run(
        self, run_id: str, options: Options, topics: tuple[str, ...], victims: Sequence[str] = (), **changes: Any
    ) -> tuple[int, dict[str, Any]]:
        """Exit code and report of a run; where processes are killed, of the run that ends. Args: changes: of the flow.

        Raises:
            AssertionError: the job does not come to work, or ends without a report.
        """
        run, began = self.folder / run_id, time.monotonic()
        run.mkdir()
        flow = self.stage.changed(**changes)
        request = JobRequest(run_id=run_id, flow=flow, topics=topics, options=options, lease_seconds=30)
        (run / "request.json").write_bytes(encode_request(request))
        script = ROOT / "spark" / f"{run_id.partition('-')[0]}.py"
        places: dict[str, Any] = {"folder": self.folder / "spark", "confs": self.confs}
        with submitted(script, run, environment=plain_environment(), **places) as job:
            for victim in victims:
                self._kill(job, run, victim)
            if not victims:
                return _ended(job, run, began)
            said = job.log_text()
            assert "Lost executor" in said, said[-3_000:]  # Spark tried again after the first two
            # What the dead driver left behind works on for a while, beside the run that follows.
            with submitted(script, run, environment=plain_environment(), **places) as again:
                return _ended(again, run, began)

    def _kill(self, job: RunningJob, run: Path, kind: str) -> None:
        """Wait until a lane moves, since now, or a part of it is proved; kill a worker, an executor or the driver."""
        before = _work(run)

        def moves() -> bool:
            assert job.driver.poll() is None, f"the job ended before its {kind} was killed: {job.log_text()[-3_000:]}"
            return bool(job.workers()) and _work(run) != before

        eventually(moves, f"the job at work, before its {kind} is killed", seconds=TERM * 2)
        time.sleep(self.draw.uniform(0.0, self.naps))  # a moment, whatever happens in it
        if kind == "driver":
            job.kill_driver()
            return
        eventually(job.workers, "a worker to kill", seconds=TERM)
        victim = self.draw.choice(job.workers() if kind == "worker" else job.executors())
        victim.kill()
        eventually(lambda: not victim.is_running() or victim.status() == "zombie", f"the end of {victim}", seconds=10)


def _work(run: Path) -> tuple[dict[str, int], int]:
    """The positions of lanes in progress, or when they were noted where they have none; the parts that are proved."""
    notes = (msgspec.json.decode(path.read_bytes(), type=LaneProgress) for path in (run / "lanes").glob("*.json"))
    return {note.lane: note.position or note.at for note in notes if note.state == "running"}, len(
        list(run.glob("parts/*"))
    )


def _ended(job: RunningJob, run: Path, began: float) -> tuple[int, dict[str, Any]]:
    code = job.driver.wait(TERM * 5)
    assert (run / "report.json").exists(), job.log_text()[-5_000:]
    print(f"{run.name}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    return code, json.loads((run / "report.json").read_bytes())


# A failback

LANES: Final = 4
FAILING: Final = 3
"""The lane with a record that the source refuses."""
WRONG: Final = 1
"""The lane with a record that was changed on its way."""
LARGE: Final = 200_000
"""Bytes of a record, more than the source takes."""
SOME: Final = 100
ONLY: Final = TaskAttempt(number=0, last=True)
AUTHORIZED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
CONFS: Final = {"spark.task.maxFailures": "4", "spark.sql.shuffle.partitions": "4"}


def failback(*, records: int = 1_000_000, seed: int = 1) -> Outcome:
    """A failback and its verification, killed likewise; one lane has 90 % of the records, one fails for good.

    Args:
        records: that both sides have.
        seed: of the moments, and of the victims.
    """
    with grounded(aliases=ALIASES, target_properties=AUTHORIZED) as ground:
        stage = new_stage(ground)
        job = KilledJob(stage, ground.folder, random.Random(seed), naps=0.3, confs=CONFS)
        killed = KilledFailback(stage, job, records)
        killed.run()
    wrong = [f"{what}: {count}" for what, count in killed.faults.items() if count]
    return Outcome({"records": records, **killed.counts}, wrong)


@dataclass(slots=True)
class KilledFailback:
    """One topic, its flow, and what was found."""

    stage: LaneStage
    job: KilledJob
    records: int
    faults: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    _replicated: dict[int, int] = field(default_factory=dict)
    """By lane: records that both sides have."""
    _orphans: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """Every step."""
        self._history()
        self._outage()
        back, one = ReconcileOptions(policy="quarantine"), (self.stage.topic,)
        code, found = self._run("reconcile-1", back, one, kills=True)
        self._say("reconciled without the lane that fails", code == 3 and found["totals"]["failed"] == 1)
        self._audit({FAILING})

        self.stage.configure(self.stage.source, self.stage.topic, max_message_bytes="1000000")
        self.stage.orders.resume(Lane(self.stage.settings.name.turned, self.stage.remote_topic, FAILING))
        self._hold()
        code, found = self._run("reconcile-2", back, one)
        self._say("reconciled", code == 0 and not found["totals"]["failed"])
        self._audit(set())
        held = [each for each in self.stage.orders.read(map(self.stage.lane, range(LANES))).values() if each.stop]
        self._say("all lanes let go", not held)

        self._reading("create_acls")
        self._verified(*self._run("verify-1", VerifyOptions(), (*one, self._closed), kills=True), failed=1)
        self._reading("delete_acls")
        self._verified(*self._run("verify-2", VerifyOptions(), (*one, self._closed)), failed=0)

    def _run(
        self, run_id: str, options: Options, topics: tuple[str, ...], *, kills: bool = False
    ) -> tuple[int, dict[str, Any]]:
        found = self.job.run(run_id, options, topics, VICTIMS if kills else (), copy="records")  # slow enough to be hit
        self.counts[f"{run_id}_parts"] = len(list((self.job.folder / run_id).glob("parts/*")))
        return found

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
        fill_lanes(stage.source.bootstrap, stage.topic, self._replicated)
        fill_lanes(stage.source.bootstrap, self._closed, {0: SOME})
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
        settings = self.stage.changed(copying="records" if fault else "auto")  # what passes cannot be tampered with
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
        fill_lanes(stage.source.bootstrap, stage.topic, self._orphans, kind=b"orphan")
        new = self._counts(self.records * 3 // 10)
        half = {partition: count // 2 for partition, count in new.items()}
        fill_lanes(stage.target.bootstrap, stage.remote_topic, half, kind=b"new")
        stage.configure(stage.target, stage.remote_topic, max_message_bytes="1000000")
        stage.write_to(stage.target, stage.remote_topic, os.urandom(LARGE), partition=FAILING)
        rest = {partition: count - half[partition] for partition, count in new.items()}
        fill_lanes(stage.target.bootstrap, stage.remote_topic, rest, kind=b"later")

    def _hold(self) -> None:
        for partition in range(LANES):
            stop = Stop(reason="held", upstream_offset=0, detail="failover", at=1)
            self.stage.orders.stop(self.stage.lane(partition), stop)

    def _reading(self, change: str) -> None:
        """Deny the reading of the closed topic's copy, or allow it again: who may but describe it does not read."""
        kind = AclBinding if change == "create_acls" else AclBindingFilter
        place = (ResourceType.TOPIC, self.stage.settings.remote_topic(self._closed), ResourcePatternType.LITERAL)
        acls = [
            kind(*place, "User:ANONYMOUS", "*", operation, AclPermissionType.ALLOW)
            for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        ]
        for future in getattr(admin_of(self.stage.target.bootstrap), change)(acls).values():
            future.result(20)

    # What there is afterwards

    def _say(self, what: str, ok: bool) -> None:  # noqa: FBT001 -- the claim itself
        print(f"{what}: {'so it is' if ok else 'NOT SO'}", flush=True)
        self.faults[what] += not ok

    def _audit(self, failing: set[int]) -> None:
        """Every record of both sides, and the orphans beside the remote topic."""
        stage = self.stage
        source = read_whole(stage.source.bootstrap, stage.topic)
        target = read_whole(stage.target.bootstrap, stage.remote_topic)
        beside = read_whole(stage.target.bootstrap, f"{stage.remote_topic}.orphans")
        found: Counter[str] = Counter()
        for partition in range(LANES):
            first, orphans = self._replicated[partition], self._orphans[partition]
            upstream = [*source[partition][:first], *source[partition][first + orphans :]]
            if partition in failing:  # up to the record that the source refuses
                compared = compare(upstream, target[partition][: len(upstream)])
                found.update({name: getattr(compared, name) for name in FAULTS})
                new = self._counts(self.records * 3 // 10)[partition]
                found["stopped_elsewhere"] += len(upstream) != first + new // 2
                continue
            orphaned = source[partition][first : first + orphans]
            found += lane_faults(stage, partition, upstream, target[partition], orphans=orphaned, seed=partition)
            moved = compare(orphaned, beside[partition])
            found["orphans_wrong"] += sum(getattr(moved, name) for name in FAULTS)
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
