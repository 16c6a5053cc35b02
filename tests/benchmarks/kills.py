"""Backfills whose Python worker, executor and driver are killed -9 at drawn moments, and which are run again.

Afterwards every record of both sides is audited by a client of Kafka's own, with its translation: nothing may be lost,
repeated, out of order, different or mistranslated.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from lab.audit.audit import count_mistranslated
from lab.audit.topic_reader import read_whole, stable_ends
from mirrorless.flow.settings import FlowSettings, Tables
from mirrorless.jobs.progress import LaneProgress
from mirrorless.jobs.request import REPORT, BackfillOptions, JobRequest, encode_request
from mirrorless.verify.comparison import RecordAt, compare
from tests.benchmarks.ground import Ground, Headers, Written, grounded, produce
from tests.benchmarks.harness import Outcome
from tests.support.lane_stage import LaneStage
from tests.support.spark_cluster import ROOT, RunningJob, plain_environment, submitted
from tests.support.waiting import eventually

TERM: Final = 120.0
"""Seconds within which a job is at work again after a kill."""
NAP_SECONDS: Final = 1.5
"""At most, from the moment that a job is at work to a kill."""
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
            fill_lanes(stage.source.bootstrap, stage.topic, lanes, records)
            # Slow enough to be hit in the middle, three times.
            rate = lanes * records * (VALUE_BYTES + 8) / 1e6 / 25
            options = BackfillOptions(handover_seconds=2, max_mb_per_second=rate)
            code, report = killed_job(stage, folder, draw, options)
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
    suffix = uuid4().hex[:8]
    kinds = ("offset_map", "lanes", "loss_ledger", "checkpoints", "control")
    tables = Tables(**{kind: f"{kind}-{suffix}" for kind in kinds})
    ground.dynamodb.create_tables(tables)

    def nobody(settings: FlowSettings) -> Any:
        raise NotImplementedError(f"no function replicates {settings.flow} here")

    settings = ground.settings(transaction_timeout_ms=2000, tables=tables)
    return LaneStage.of(settings, (ground.source, ground.target), ground.dynamodb.client(), nobody)


def fill_lanes(bootstrap: str, topic: str, lanes: int, count: int) -> None:
    """Write so many records to each partition, all different; some have a header."""

    def records() -> Iterator[Written]:
        for number, partition in product(range(count), range(lanes)):
            value = b"record %d-%d " % (partition, number)
            headers: Headers = [("n", value)] if number % 100 == 0 else []
            yield partition, b"%08d" % number, value.ljust(VALUE_BYTES, b"."), headers

    produce(bootstrap, topic, records())


def lane_faults(
    stage: LaneStage, partition: int, upstream: Sequence[RecordAt], downstream: Sequence[RecordAt], *, seed: int
) -> Counter[str]:
    """Every kind of fault of a lane; of its translations some, by the seed."""
    found = compare(upstream, downstream)
    faults = Counter({name: getattr(found, name) for name in FAULTS})
    faults["mistranslated"] = count_mistranslated(
        stage.chains,
        stage.lane(partition),
        upstream=[each.offset for each in upstream],
        places={one.offset: other.offset for one, other in found.pairs},
        end=stable_ends(stage.source.bootstrap, stage.topic)[partition],
        seed=seed,
    )
    return faults


def killed_job(stage: LaneStage, folder: Path, draw: random.Random, options: BackfillOptions) -> tuple[int, Any]:
    """Kill a worker, an executor and the driver of a job in `local-cluster` mode; exit code and report of another run.

    Raises:
        AssertionError: the job does not come to work, or ends without a report.
    """
    run = folder / "backfill-1"
    run.mkdir()
    request = JobRequest(run_id=run.name, flow=stage.settings, topics=(stage.topic,), options=options, lease_seconds=30)
    (run / "request.json").write_bytes(encode_request(request))
    places: dict[str, Any] = {"folder": folder / "spark", "confs": {}, "environment": plain_environment()}
    with submitted(ROOT / "spark" / "backfill.py", run, **places) as job:
        for victim in ("worker", "executor", "driver"):
            _kill(job, run, victim, draw)
        said = job.log_text()
        assert "Lost executor" in said, said[-3_000:]  # Spark tried again after the first two
        # What the dead driver left behind works on for a while, beside the run that follows.
        with submitted(ROOT / "spark" / "backfill.py", run, **places) as again:
            code = again.driver.wait(TERM * 5)
            assert (run / REPORT).exists(), again.log_text()[-5_000:]
    return code, json.loads((run / REPORT).read_bytes())


def _kill(job: RunningJob, run: Path, kind: str, draw: random.Random) -> None:
    """Wait until a lane moves, since now; kill a worker, an executor or the driver."""
    before = _work(run)

    def moves() -> bool:
        assert job.driver.poll() is None, f"the job ended before its {kind} was killed: {job.log_text()[-3_000:]}"
        return bool(job.workers()) and _work(run) != before

    eventually(moves, f"the job at work, before its {kind} is killed", seconds=TERM * 2)
    time.sleep(draw.uniform(0.0, NAP_SECONDS))  # a moment, whatever happens in it
    if kind == "driver":
        job.kill_driver()
        return
    eventually(job.workers, "a worker to kill", seconds=TERM)
    victim = draw.choice(job.workers() if kind == "worker" else job.executors())
    victim.kill()
    eventually(lambda: not victim.is_running() or victim.status() == "zombie", f"the end of {victim}", seconds=10)


def _work(run: Path) -> dict[str, int]:
    """The positions of lanes in progress, or when they were noted where they have none."""
    notes = (msgspec.json.decode(path.read_bytes(), type=LaneProgress) for path in (run / "lanes").glob("*.json"))
    return {note.lane: note.position or note.at for note in notes if note.state == "running"}
