"""A whole backfill beside a live mapping in the lab, and an audit of every record.

    history on the source  ->  the flow's mapping polls, and waits  ->  the job runs  ->  both meet  ->  audit

Producers write to every partition from before the job until behind it. With `--kills`, Python workers of the job are
killed -9 while they copy, and the job is run again from the start afterwards. Exits 1 when the audit finds anything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from lab.audit.audit import audit_topic, totals, wait_until_replicated
from lab.cloud import Lab, create_topics
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.settings import decode_settings

ROOT = Path(__file__).parents[2]
TOPIC = "orders"

CONFIGURATION = f"""
clusters:
  us-east: {{bootstrap.servers: us-east.example.com:9092, region: us-east-1}}
  eu-west: {{bootstrap.servers: eu-west.example.com:9092, region: eu-west-1}}
flows:
  us-east->eu-west:
    topics: [{TOPIC}]
    start: backfill
    replication.factor: 1
    mapping: {{batch.size: 500, maximum.batching.window.seconds: 0}}
"""


def fill(bootstrap: str, records: int, partitions: int) -> None:
    """A history with nulls, headers, and transactions of which some are taken back."""
    options = {"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex, "linger.ms": 20, "log_level": 0}
    producer = Producer(options | {"transaction.timeout.ms": 60_000})
    producer.init_transactions(30)
    pool, number, transactions, size = bytes(range(256)) * 256, 0, 0, max(500, records // 40)
    while number < records:
        transactions += 1
        aborted = transactions % 10 == 3
        producer.begin_transaction()
        for _ in range(size // 20 if aborted else min(size, records - number)):
            value = None if number % 1000 == 7 else pool[number % 60_000 :][:200]
            headers: Any = [("n", b"%d" % number), ("n", None)] if number % 10 == 0 else None
            while True:
                try:
                    producer.produce(TOPIC, value, b"%d" % number, number % partitions, None, None, 0, headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            if not aborted:
                number += 1
        producer.flush(60)
        (producer.abort_transaction if aborted else producer.commit_transaction)(60)


class LiveProducer:
    """Writes to every partition, some records at a time, until it is stopped."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._partitions = partitions
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live producer")
        self.written = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, everything acknowledged."""
        self._over.set()
        self._thread.join()
        if self._producer.flush(30):
            raise RuntimeError("the live records were not written")

    def _run(self) -> None:
        while not self._over.wait(0.1):
            for partition in range(self._partitions):
                self._producer.produce(TOPIC, b"live %d" % self.written, b"k", partition)
                self.written += 1
            self._producer.poll(0)


class Job:
    """A backfill as its own process, as `--local` starts it."""

    def __init__(self, lab: Lab, flow: Flow, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        settings = decode_settings(flow.function_settings_json())
        request = JobRequest(
            run_id=folder.name, flow=settings, topics=(TOPIC,), options=BackfillOptions(handover_seconds=20)
        )
        (folder / "request.json").write_bytes(encode_request(request))
        environment = os.environ | {
            SPARK_MASTER_VARIABLE: "local[2,4]",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
            "AWS_ENDPOINT_URL_DYNAMODB": lab.dynamodb.endpoint,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
        }
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "spark" / "backfill.py"), str(folder)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def copied(self) -> int:
        """Records that it says it has copied."""
        try:
            return int(json.loads((self.folder / "progress.json").read_bytes())["records"])
        except FileNotFoundError:
            return 0

    def kill_a_worker(self, seconds: float) -> int:
        """Kill -9 a Python worker of this job that is at work; its pid."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            for pid in _workers_below(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return pid
            time.sleep(0.05)  # between two looks at a condition with a deadline
        raise RuntimeError(f"no worker of {self.folder.name} was met at work")

    def wait(self, seconds: float) -> dict[str, Any]:
        """Its report.

        Raises:
            RuntimeError: it did not end clean; with the end of its log.
        """
        try:
            code = self._process.wait(seconds)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        if code != 0:
            raise RuntimeError(f"exit code {code}:\n" + (self.folder / "log").read_text(errors="replace")[-3000:])
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_bytes())
        return found


def _workers_below(ancestor: int) -> list[int]:
    """Python workers that Spark forked: children of its daemon."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                pid = int(folder.name)
                parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                commands[pid] = (folder / "cmdline").read_bytes()

    def descends(pid: int) -> bool:
        while pid in parents:
            if pid == ancestor:
                return True
            pid = parents[pid]
        return False

    daemons = {pid for pid, command in commands.items() if b"pyspark.daemon" in command and descends(pid)}
    return [pid for pid in daemons if parents[pid] in daemons]


def run(folder: Path, *, records: int, partitions: int, kills: int) -> dict[str, Any]:
    """The whole thing; what the audit counted, and the reports of the jobs."""
    lab = Lab(configuration=load(CONFIGURATION), folder=folder / "lab", control=False, say=lambda _: None)
    try:
        lab.start_servers()
        flow = lab.flows[0]
        create_topics(flow.source.bootstrap[0], [NewTopic(TOPIC, partitions, 1)])
        fill(flow.source.bootstrap[0], records, partitions)
        lab.start_flows()
        live = LiveProducer(flow.source.bootstrap[0], partitions)
        live.start()
        try:
            reports = [_job(lab, flow, folder / "jobs" / "backfill-1", kills)]
            if kills:
                reports.append(_job(lab, flow, folder / "jobs" / "backfill-2", 0))
        finally:
            live.stop()
        wait_until_replicated(lab, lab.flow_mappings, deadline=time.monotonic() + 120)
        found = totals(audit_topic(lab, flow, TOPIC).rows)
    finally:
        lab.stop()
    jobs = [each["totals"] | {"joined": sorted({lane["handed_over"] for lane in each["lanes"]})} for each in reports]
    return {"audit": found, "live": live.written, "jobs": jobs}


def _job(lab: Lab, flow: Flow, folder: Path, kills: int) -> dict[str, Any]:
    job = Job(lab, flow, folder)
    for _ in range(kills):
        job.kill_a_worker(120)
        time.sleep(1.0)  # for the next task to be under way: kills are at random
    return job.wait(1800)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--kills", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        outcome = run(Path(place), records=arguments.records, partitions=arguments.partitions, kills=arguments.kills)
    print(json.dumps(outcome, indent=2))
    faults = sum(outcome["audit"][what] for what in ("lost", "duplicated", "reordered", "different", "mistranslated"))
    sys.exit(1 if faults else 0)
