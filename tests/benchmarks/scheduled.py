"""Runs of scheduled topics in the lab: the bundle under the real runtime client; figures are of its process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import msgspec
import psutil

from lab.cloud import LabKeys
from lab.functions.function import LambdaFunction
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import JOURNAL_LANES
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.flow.naming import KEYS_VARIABLE
from mirrorless.flow.settings import Tables
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from tests.benchmarks.beside_mm2.records import fill, shape
from tests.benchmarks.beside_mm2.stand_in import pull_function
from tests.benchmarks.ground import Ground, Written, grounded, produce
from tests.benchmarks.harness import Meter, Outcome, family, own_cpu
from tests.support.commands import replication_yaml

SAMPLE_S = 0.05

CPU_SECONDS = 20.0
IDLE_FROM_S, IDLE_S = 20.0, 60.0
"""When an idle run is measured, and for how long."""

BATCHES = (256_000, 16_000)
MOST_MB = 256
"""Half of what the function has."""

TIMEOUT_S = 95.0
"""Of a run: it begins nothing in its last 35 s."""
ONE = {"one": 6}
SPREAD = {f"spread-{number}": 6 for number in range(100)}
"""All of which have records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One run: what it took, and its report."""

    seconds: float
    cpu_seconds: float
    resident_mb: float
    """The most that it had, looked at again and again."""
    report: Mapping[str, Any]

    @property
    def figures(self) -> dict[str, float]:
        """For the report of a scenario."""
        seconds, spent = round(self.seconds, 1), round(self.cpu_seconds, 2)
        return {"seconds": seconds, "cpu_seconds": spent, "resident_mb": round(self.resident_mb)}


@dataclass(slots=True)
class PullStage:
    """A flow with one shard, whose runs are started one by one."""

    ground: Ground
    flow: Flow
    function: LambdaFunction
    stored: dict[str, int] = field(default_factory=dict)

    def schedule(self, topics: Mapping[str, int], **config: str) -> None:
        """Create source topics, and have these and no others scheduled."""
        self.ground.create(topics, **config)
        self.ground.create_remote({f"{self.flow.name.source}.{name}": count for name, count in topics.items()})
        documents = DynamoDbDocuments(self.ground.dynamodb.client(), Tables().control)
        write_scheduled_topics(documents, self.flow.name, topics, stored=self.stored)
        self.stored = dict(topics)

    def fill(self, topics: Mapping[str, int], each: int, value: bytes) -> None:
        """Write so many records of a value to each partition."""
        for name, count in topics.items():
            some: Iterator[Written] = (
                (partition, b"key-00000000", value, []) for _ in range(each) for partition in range(count)
            )
            produce(self.ground.source.bootstrap, name, some, compression_type="lz4", linger_ms=5)

    def run(self, **changes: Any) -> Took:
        """One run in a warm environment; the first is cold. Args: changes: of the schedule's input.

        Raises:
            RuntimeError: the run failed.
        """
        before, began = self.cpu(), time.monotonic()
        with Meter(self._processes, every=SAMPLE_S) as meter:
            outcome = self.function.invoke(self._event(changes))
            seconds = time.monotonic() - began
        if outcome.status != "success":
            raise RuntimeError(f"the run failed: {outcome.payload.decode()}")
        spent, report = self.cpu() - before, json.loads(outcome.payload)
        return Took(seconds=seconds, cpu_seconds=spent, resident_mb=meter.resident_mb, report=report)

    def begin_run(self, **changes: Any) -> threading.Thread:
        """A continuous run, in a thread."""
        event = self._event({"continuous": True, **changes})
        thread = threading.Thread(target=self.function.invoke, args=(event,), daemon=True)
        thread.start()
        return thread

    def cpu(self) -> float:
        """CPU seconds of the environments so far."""
        return sum(map(own_cpu, self._processes()))

    def cpu_of_a_core(self, seconds: float) -> float:
        """How much of a core they use in the seconds to come."""
        before, began = self.cpu(), time.monotonic()
        time.sleep(seconds)  # the measurement's own length
        return (self.cpu() - before) / (time.monotonic() - began)

    def medians(self, before: Callable[[], None] = lambda: None, rounds: int = 5) -> Took:
        """The medians of some runs, each after `before`."""
        taken = []
        for _ in range(rounds):
            before()
            taken.append(self.run())
        return Took(
            seconds=median(each.seconds for each in taken),
            cpu_seconds=median(each.cpu_seconds for each in taken),
            resident_mb=max(each.resident_mb for each in taken),
            report=taken[-1].report,
        )

    def _event(self, changes: dict[str, Any]) -> bytes:
        return json.dumps(msgspec.to_builtins(self.flow.pull_settings(0)) | changes).encode()

    def _processes(self) -> list[psutil.Process]:
        return [root for each in self.function.environments for root in family(each.pid)[:1]]


@contextmanager
def pull_stage(
    *, timeout_seconds: float = PULL_TIMEOUT_SECONDS, memory_mb: int = 512, more: str = "", rest: str = ""
) -> Iterator[PullStage]:
    """Clusters, tables and the function, started, and stopped at the end.

    Args:
        timeout_seconds: of a run.
        memory_mb: of the function.
        more: of the flow, in YAML.
        rest: of the configuration.
    """
    with grounded(quick_start=False) as ground:
        own = f"trigger: schedule, replication.factor: 1, schedule: {{memory.mb: {memory_mb}}}{more}"
        text = replication_yaml(f"source->target: {{topics: [unused], {own}}}", rest=rest)
        addresses = {"source": ground.source.bootstrap, "target": ground.target.bootstrap}
        (flow,) = load(text).with_clusters_at(addresses).enabled_flows
        endpoint = ground.dynamodb.endpoint
        function = pull_function(flow, ground.folder, dynamodb=endpoint, timeout_seconds=timeout_seconds)
        keys = LabKeys(folder=ground.folder / "keys")
        for name, key in flow.all_settings().keys.items():
            keys.make(name, key.version)
        function.set_variables({**function.variables, KEYS_VARIABLE: str(keys.folder)})
        try:
            function.initialise()
            yield PullStage(ground, flow, function)
        finally:
            function.stop()


def many_topics(*, topics: int = 1_000, active: int = 50, idle_seconds: float = IDLE_S) -> Outcome:
    """1,000 scheduled topics of six partitions on one shard, 50 with a record in each; and an idle run.

    In a round the active topics have a record in each of their six partitions. The function has 512 MB, beyond which
    the lab ends it.
    """
    every = {f"topic-{number}": 6 for number in range(topics)}
    some = dict(list(every.items())[:: topics // active][:active])
    with pull_stage() as stage:
        stage.schedule(every)
        stage.fill(some, 1, bytes(1_000))
        _say("the first run, cold", stage.run())
        stage.fill(some, 1, bytes(1_000))
        took = stage.run()
        stage.begin_run()
        time.sleep(IDLE_FROM_S)  # it has read its lanes by then
        idle = stage.cpu_of_a_core(idle_seconds)
    wrong, lanes = [], 6 * len(some)
    if (took.report["ended"], took.report["records"], took.report["failures"]) != ("drained", lanes, 0):
        wrong.append(f"the round did not replicate {lanes} records: {took.report}")
    if took.cpu_seconds > CPU_SECONDS:
        wrong.append(f"the limit is {CPU_SECONDS:.0f} s of CPU")
    return Outcome(took.figures | {"idle_cpu_percent": round(idle * 100, 1)}, wrong)


def whole_batches(*, topics: int = 100, records: int = 1_000_000) -> Outcome:
    """Memory of a run that copies 1 GB of whole batches from 100 topics.

    They hold random bytes, so that they are as large on the wire as they were made: of half of the topics 256 KB, of
    the others 16 KB.
    """
    each = topics // len(BATCHES)
    shapes = [shape(1_000, 6, records // len(BATCHES), noise=True, topics=each, batch=batch) for batch in BATCHES]
    names = {some: [f"topic-{some.batch}-{number}" for number in range(each)] for some in shapes}
    with pull_stage() as stage:
        stage.schedule({name: 6 for some in names.values() for name in some})
        for some, of_shape in names.items():
            fill(stage.ground.source.bootstrap, of_shape, some)
        took = stage.run()
    wrong, report, due = [], took.report, sum(some.count for some in shapes)
    if (report["records"], report["passed_bytes"], report["failures"]) != (due, report["bytes"], 0):
        wrong.append(f"of {due} records not all were copied, or not all passed as they lay: {report}")
    if took.resident_mb > MOST_MB:
        wrong.append(f"{took.resident_mb:.0f} MB were resident, and {MOST_MB} is the limit")
    return Outcome(took.figures | {"megabytes": round(report["bytes"] / 1e6)}, wrong)


def parts(*, only: tuple[str, ...] = ("bulk", "lanes", "silent"), silent: int = 1_000) -> Outcome:
    """What a run of scheduled topics takes, by part: the cost model's figures.

    Args: silent: topics that have no record.
    """
    with pull_stage(timeout_seconds=TIMEOUT_S, memory_mb=1024) as stage:
        stage.schedule(ONE)
        stage.fill(ONE, 10, bytes(100))
        _say("a cold run", stage.run())
        idle = stage.medians()
        _say("a run that finds nothing", idle)
        for size, each in ((100, 50_000), (1_000, 15_000), (10_000, 1_500)) if "bulk" in only else ():
            took, records = stage.medians(partial(stage.fill, ONE, each, bytes(size)), rounds=3), 6 * each
            spent = took.cpu_seconds - idle.cpu_seconds
            of_each = f"{spent / records * 1000:.5f} ms a record, {spent * 1e9 / records / size:.2f} ms a MB"
            _say(f"{records:,} records of {size} B", took, f"{of_each}, {records / spent:,.0f} records per CPU-second")
        narrow = {f"narrow-{number}": 1 for number in range(100)}
        for topics in ({"wide": 96}, narrow, SPREAD) if "lanes" in only else ():
            stage.schedule(topics)
            stage.fill(topics, 1, bytes(100))
            stage.run()
            nothing, took = stage.medians(), stage.medians(partial(stage.fill, topics, 1, bytes(100)))
            entries = sum(-(-count // JOURNAL_LANES) for count in topics.values())
            of_all = f"{sum(topics.values())} lanes, {entries} entries, {took.report['transactions']} transactions"
            spent = (took.cpu_seconds - nothing.cpu_seconds) * 1000
            _say("a record in each lane", took, f"{of_all}: {spent:.0f} ms of CPU beside a run that finds nothing")
        if "silent" in only:
            stage.schedule({f"many-{number}": 6 for number in range(silent)})
            _say(f"{6 * silent} lanes, first seen", stage.run())
            nothing = stage.medians()
            listed = (nothing.cpu_seconds - idle.cpu_seconds) / (6 * silent) * 1000
            _say(f"{6 * silent} lanes without a record", nothing, f"{listed:.4f} ms of CPU a lane")
    return Outcome({})


def _say(what: str, took: Took, more: str = "") -> None:
    print(f"{what}: {took.figures}{'; ' + more if more else ''}", flush=True)
