"""Both clusters of a flow from Kafka 3.9.1 to 4.1.1, broker by broker under load, and every record read again.

Three nodes each, broker and controller in one, on the same data. The source goes first, then the target, each with
`kafka-features upgrade` behind it; producers write all the time, some of it in transactions.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from lab.audit.audit import audit_topic, totals, wait_until_replicated
from lab.cloud import Lab
from lab.drills.workload import SHAPES, Workload
from mirrorless.config.loading import load
from tests.benchmarks.harness import Outcome
from tests.support.commands import replication_yaml
from tests.support.kafka_upgrade import features, raise_features, roll

OLD, NEW, RELEASE = "3.9.1", "4.1.1", "4.1"
TOPICS = ("orders", "payments", "customers")
FLOW = f"us-east->eu-west: {{topics: [{', '.join(TOPICS)}], mapping: {{maximum.batching.window.seconds: 0}}}}"
REPLICATED_WITHIN_S = 120.0


def measure(*, records: int = 200_000) -> Outcome:
    """Both clusters of a flow from Kafka 3.9.1 to 4.1.1, broker by broker under load."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="upgrade-"))  # its logs are kept
    lab = Lab(configuration=load(replication_yaml(FLOW)), folder=folder, kafka_version=OLD, brokers=3, say=say)
    try:
        found = _run(lab, records)
    finally:
        lab.stop()
    say(f"{found}; logs are in {folder}")
    return Outcome({}, [f"{name}: {count}" for name, count in found.items() if name != "records" and count])


def _run(lab: Lab, records: int) -> dict[str, int]:
    lab.start_servers()
    source, target = lab.clusters["us-east"], lab.clusters["eu-west"]
    # Slower than the upgrade, so that it never meets a flow at rest; it is cut off when the upgrade is over.
    shapes = {topic: SHAPES[topic] for topic in TOPICS}
    workload = Workload(source.bootstrap, records=records, seed=1, seconds=records / 200, shapes=shapes)
    workload.create_topics()
    lab.start_flows()
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            workload.produce()
        except Exception as exc:  # noqa: BLE001 -- given to the main thread
            failures.append(exc)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for cluster in (source, target):
            roll(cluster, NEW, supervisor=lab.supervisor)
            lab.say(f"{cluster.title}: every broker has {NEW}; {workload.produced:,} records; {features(cluster)}")
            raise_features(cluster, RELEASE)
            lab.say(f"{cluster.title}: {features(cluster)}")
            if failures or not producing.is_alive():
                raise RuntimeError("the producers ended before the upgrade did")
    finally:
        workload.stop()
        producing.join()
        if failures:
            raise failures[0]
    wait_until_replicated(lab, lab.flow_mappings, deadline=time.monotonic() + REPLICATED_WITHIN_S)
    (flow,) = lab.flows
    return totals(row for topic in TOPICS for row in audit_topic(lab, flow, topic).rows)
