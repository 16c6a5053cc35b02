"""A backfill whose processes are killed at drawn moments, run again until it ends, and every record audited."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Producer

from lab.audit.topic_reader import read_topic, stable_ends
from lab.audit.translations import count_mistranslated
from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.jobs.progress import LaneProgress
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from mirrorless.verify.comparison import compare
from tests.support.lane_stage import ORDERED, LaneStage
from tests.support.spark_cluster import ROOT, RunningJob, alive, plain_environment, submitted
from tests.support.waiting import eventually

SCRIPT = ROOT / "spark" / "backfill.py"
TERM = 120.0
"""Seconds within which a job is at work again after a kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRound:
    """The result of one round."""

    killed: tuple[str, ...]
    """In order; each was seen at work before and gone after."""
    records: int
    """Visible on the target."""
    written_before_the_end: int
    """By runs that were killed: what the last one found done."""
    faults: dict[str, int]
    seconds: float


def kill_round(
    stage: LaneStage,
    dynamodb: DynamoDbLocal,
    folder: Path,
    *,
    seed: int,
    lanes: int,
    records: int,
    value_bytes: int = 100,
) -> KillRound:
    """Fill a topic, back it up under fire, and audit it.

    Args:
        stage: a topic that is not there yet.
        dynamodb: where its tables are.
        folder: for the run's folder and what Spark leaves.
        seed: of the moments, and of the victims.
        lanes: the topic's partitions.
        records: in each.
        value_bytes: of each record.

    Raises:
        AssertionError: the job does not come to work, or does not end well.
    """
    draw, began = random.Random(seed), time.monotonic()
    stage.create(stage.source, stage.topic, lanes)
    fill_lanes(stage.source.bootstrap, stage.topic, dict.fromkeys(range(lanes), records), value_bytes)
    run = folder / "backfill-killed"
    run.mkdir()
    # Slow enough to be hit in the middle, three times.
    rate = lanes * records * (value_bytes + 8) / 1e6 / 25
    request = JobRequest(
        run_id=run.name,
        flow=stage.settings,
        topics=(stage.topic,),
        options=BackfillOptions(handover_seconds=2, max_mb_per_second=rate),
    )
    (run / "request.json").write_bytes(encode_request(request))
    environment = plain_environment(
        AWS_ENDPOINT_URL_DYNAMODB=dynamodb.endpoint,
        AWS_ACCESS_KEY_ID="lab",
        AWS_SECRET_ACCESS_KEY="lab",  # noqa: S106 -- DynamoDB Local takes any
        AWS_DEFAULT_REGION="us-east-1",
    )
    places: dict[str, Any] = {"folder": folder / "spark", "confs": {}, "environment": environment}
    victims = []
    with submitted(SCRIPT, run, **places) as job:
        for kind in ("worker", "executor", "driver"):
            await_work(job, run, kind)
            time.sleep(draw.uniform(0.0, 1.5))  # a moment, whatever happens in it
            killed(job, kind, draw)
            victims.append(kind)
        said = job.log_text()
        # After the first two, Spark's log shows that it tried again.
        assert "Lost task" in said, said[-3_000:]
        assert "Lost executor" in said, said[-3_000:]
        # What the dead driver left behind works on for a while, beside the run that follows.
        with submitted(SCRIPT, run, **places) as again:
            assert again.driver.wait(TERM * 5) == 0, again.log_text()[-3_000:]
    report = msgspec.json.decode((run / "report.json").read_bytes())
    before = report["totals"]["records"] - report["totals"]["written"]
    faults, seen = _audit(stage, seed)
    return KillRound(
        killed=tuple(victims),
        records=seen,
        written_before_the_end=before,
        faults=faults,
        seconds=time.monotonic() - began,
    )


def fill_lanes(
    bootstrap: str, topic: str, counts: Mapping[int, int], value_bytes: int, *, kind: bytes = b"record"
) -> None:
    """Write so many records to each partition, all different; some have a header. Args: kind: in their values."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 64_000,  # also where a topic takes no larger ones
            "queue.buffering.max.messages": 1_000_000,
            **ORDERED,
        }
    )
    for number in range(max(counts.values())):
        for partition, count in counts.items():
            if number >= count:
                continue
            value = b"%s %d-%d " % (kind, partition, number)
            headers: list[tuple[str, str | bytes | None]] = [("n", value)] if number % 100 == 0 else []
            producer.produce(topic, value.ljust(value_bytes, b"."), b"%08d" % number, partition, headers=headers)
        producer.poll(0)
    assert producer.flush(300) == 0


def await_work(job: RunningJob, run: Path, kind: str) -> None:
    """Wait until a lane moves, since now, or a part of it is proved."""
    before = _work(run)

    def moves() -> bool:
        assert job.driver.poll() is None, f"the job ended before its {kind} was killed: {job.log_text()[-3_000:]}"
        return bool(job.workers()) and _work(run) != before

    eventually(moves, f"the job at work, before its {kind} is killed", seconds=TERM * 2)


def _work(run: Path) -> tuple[dict[str, int], int]:
    """The positions of lanes in progress, or when they were noted where they have none; the parts that are proved."""
    notes = (msgspec.json.decode(path.read_bytes(), type=LaneProgress) for path in (run / "lanes").glob("*.json"))
    return {note.lane: note.position or note.at for note in notes if note.state == "running"}, len(
        list(run.glob("parts/*"))
    )


def killed(job: RunningJob, kind: str, draw: random.Random) -> None:
    """Kill -9 a worker, an executor or the driver."""
    if kind == "driver":
        job.kill_driver()
        return
    eventually(job.workers, "a worker to kill", seconds=TERM)
    victim = draw.choice(job.workers() if kind == "worker" else job.executors())
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: not alive(victim), f"the end of {kind} {victim}", seconds=10)


def _audit(stage: LaneStage, seed: int) -> tuple[dict[str, int], int]:
    """Every kind of fault, counted over all lanes, and the target's records."""
    written = read_topic(stage.source.bootstrap, stage.topic, stable_ends(stage.source.bootstrap, stage.topic))
    ends = stable_ends(stage.target.bootstrap, stage.remote_topic)
    arrived = read_topic(stage.target.bootstrap, stage.remote_topic, ends)
    faults: Counter[str] = Counter()
    for partition, upstream in written.items():
        found = compare(upstream, arrived[partition])
        faults.update({name: getattr(found, name) for name in ("lost", "duplicated", "reordered", "different")})
        faults["mistranslated"] += count_mistranslated(
            stage.chains,
            stage.lane(partition),
            upstream=[each.offset for each in upstream],
            places={source.offset: target.offset for source, target in found.pairs},
            end=len(upstream),
            seed=seed + partition,
        )
    return dict(faults), sum(map(len, arrived.values()))
