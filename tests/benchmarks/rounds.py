"""Checkpoint rounds of a large flow: 5,000 lanes that all move, 500 consumer groups, in one warm environment."""

from __future__ import annotations

import importlib
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, Final
from uuid import uuid4

import msgspec
import psutil

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Run
from mirrorless.clock import now_ms
from mirrorless.cost.bill import VCPU_GB
from mirrorless.flow.counts import Count
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.scheduled.functions import CONTROL
from mirrorless.scheduled.runner import LEASE_MS, RENEW_AFTER_MS, RoundReport
from tests.benchmarks.ground import REPOSITORY, Ground, Written, grounded, produce
from tests.benchmarks.harness import Outcome
from tests.support.chains import run

PARTITIONS: Final = 10
RECORDS: Final = 5
"""Of each lane before each round; the group commits behind the last but one."""

SECONDS: Final = 30.0
MEMORY_MB: Final = CONTROL.memory_mb
CPU_SECONDS: Final = (LEASE_MS - RENEW_AFTER_MS) / 1000 * MEMORY_MB / 1024 / VCPU_GB
"""The share of a vCPU that comes with the function's memory, for as long as a round has at least."""


@dataclass(frozen=True)
class Took:
    """One round of one task."""

    seconds: float
    cpu_seconds: float
    resident_mb: int
    counts: dict[Count, int]
    troubles: list[str]


_tasks: dict[str, Any] = {}
"""Of the environment of the function, which has a process of its own."""


def _wire(settings: FlowSettings) -> None:
    sys.path.insert(0, str(REPOSITORY / "functions"))
    _tasks.update({task.name: task for task in importlib.import_module("control").wire(settings).tasks()})


def _act(name: str) -> Took:
    report, began, cpu = RoundReport(), time.monotonic(), time.process_time()
    _tasks[name].act(report, lambda: began + 60 - time.monotonic())
    seconds, spent = time.monotonic() - began, time.process_time() - cpu
    return Took(seconds, spent, psutil.Process().memory_info().rss >> 20, report.counts, report.troubles)


def measure(*, topics: int = 500, rounds: int = 3) -> Outcome:
    """Checkpoint rounds of 5,000 lanes that all move, with 500 groups.

    Before each round every lane gets records and an entry of its journal, and every group commits behind them. Every
    offset must be translated exactly, in 30 s here, within the memory and the CPU that the function has.
    """
    names, wrong = [f"topic-{number:04}" for number in range(topics)], []
    with grounded() as ground:
        flow = ground.settings()
        places = dict.fromkeys(names, PARTITIONS)
        ground.create(places)
        ground.create_remote({flow.remote_topic(name): count for name, count in places.items()})
        settings = msgspec.structs.replace(
            flow,
            topics=("topic-.*",),
            emit_heartbeats_enabled=False,
            checkpoints_topic_replication_factor=1,
            sync_group_offsets_enabled=True,
            sync_group_offsets_interval_seconds=0.001,
        )
        with ProcessPoolExecutor(1, get_context("spawn"), _wire, (settings,)) as environment:
            print(f"at most {CPU_SECONDS:.1f} CPU-s a round")
            print("| round | seconds | CPU-s | resident, MB | offsets wrong |")
            print("| --- | --- | --- | --- | --- |")
            for number in range(rounds + 1):
                _move(ground, flow, names, number * RECORDS)
                took = environment.submit(_act, "checkpoints").result()
                off = _wrong(flow, names, (number + 1) * RECORDS - 1)
                print(
                    f"| {number} | {took.seconds:.1f} | {took.cpu_seconds:.1f} | {took.resident_mb} | {off} |",
                    flush=True,
                )
                wrong += [f"round {number}: {off} offsets are wrong"] * bool(off) + took.troubles[:5]
                if took.seconds > SECONDS or took.cpu_seconds > CPU_SECONDS or took.resident_mb > MEMORY_MB:
                    wrong.append(
                        f"round {number} is beyond a limit: {SECONDS} s, {CPU_SECONDS:.1f} CPU-s, {MEMORY_MB} MB"
                    )
            lanes = environment.submit(_act, "lanes").result()
            print(f"\nthe lane check: {lanes.seconds:.1f} s, {lanes.cpu_seconds:.1f} CPU-s, {lanes.counts}")
    return Outcome({}, wrong)


def _move(ground: Ground, flow: FlowSettings, topics: list[str], first: int) -> None:
    """Records on both sides, an entry for each topic, and a commit of each group."""
    some: list[Written] = [(partition, None, b"v", []) for partition in range(PARTITIONS) for _ in range(RECORDS)]
    chains, groups = DynamoDbChains(dynamodb_client("us-east-1"), flow.tables.offset_map), _groups(flow, "source")
    for topic in topics:
        produce(ground.source.bootstrap, topic, some, linger_ms=0)
        produce(ground.target.bootstrap, flow.remote_topic(topic), some, linger_ms=0)
        attempt, at = uuid4().hex, now_ms()
        lanes = [Lane(flow.name, topic, partition) for partition in range(PARTITIONS)]
        chains.prepare([_moved(lane, first, attempt, at) for lane in lanes])
        commits = {(topic, lane.partition): OffsetAndMetadata(first + RECORDS - 1, "") for lane in lanes}
        groups.commit(f"group-of-{topic}", commits, lambda: 30.0)


def _groups(flow: FlowSettings, side: str) -> KafkaGroups:
    return KafkaGroups(getattr(flow, side), flow="benchmark")


def _wrong(flow: FlowSettings, topics: list[str], right: int) -> int:
    """How many offsets of the groups on the target are not the exact ones."""
    committed = _groups(flow, "target").committed([f"group-of-{topic}" for topic in topics], lambda: 60.0)
    found = {place for offsets in committed.values() for place, at in offsets.items() if at.offset == right}
    return len({(flow.remote_topic(topic), partition) for topic in topics for partition in range(PARTITIONS)} - found)


def _moved(lane: Lane, first: int, attempt: str, at: int) -> Run:
    moved = run(first, first + RECORDS, (first, first, RECORDS), lane=lane, attempt=attempt)
    return replace(moved, digest=os.urandom(32), oldest_timestamp=at, newest_timestamp=at, settled_at=at)
