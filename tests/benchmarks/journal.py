"""Eight environments in one journal beside eight journals: the time of an event, and what collisions cost.

Each environment has two lanes of its own and gets five events of ten records a second, at random moments. On a real
broker, by default as far away as a neighbouring region, and DynamoDB Local at 3 ms, in alternating rounds.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random
from statistics import median, quantiles
from typing import Any, Final
from uuid import uuid4

from lab.servers.process import free_port
from lab.servers.proxy import NetworkLink
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.replicator import flow_replicator
from mirrorless.chain.lane import JOURNAL_LANES
from mirrorless.clock import now_ms
from mirrorless.errors import LostRace
from mirrorless.flow.settings import FlowSettings
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.record import Record
from tests.benchmarks.ground import grounded
from tests.benchmarks.harness import Outcome
from tests.support.metered import MeteredClient

ENVIRONMENTS: Final = 8
EVERY_SECONDS: Final = 0.2
RECORDS: Final = 10
ROUND_TRIP_MS: Final = 3.0
"""To DynamoDB, in the function's own region."""
LIMIT: Final = 1.1
TOPIC: Final = "contended"
FORMS: Final = ("one journal", "eight journals")


@dataclass(frozen=True)
class Share:
    """What one environment measured in one round."""

    took: list[float]
    inserts: int
    reads: int
    lost: int


@dataclass
class Environment:
    """One warm execution environment, with its lanes."""

    settings: FlowSettings
    lanes: tuple[int, int]
    replicator: Replicator = field(init=False)
    client: MeteredClient = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        """Wire it as the forwarder is."""
        self.client = MeteredClient(dynamodb_client("us-east-1", direct=True))
        self._random = Random(self.lanes[0])
        self.replicator = flow_replicator(self.settings, self.client, environment=uuid4().hex)

    def run(self, events: int, start: float) -> Share:
        """Take events at their moments; one that comes late does not put off the next."""
        took = []
        self.client.inserts = self.client.reads = lost[0] = 0
        for number in range(self._next, self._next + events):
            due = start + (number - self._next + self._random.random()) * EVERY_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
            first, at = number * RECORDS, now_ms()
            records = [Record(first + each, at, [], b"k", b"v" * 100) for each in range(RECORDS)]
            batch, began = Batch.of_topic(TOPIC, dict.fromkeys(self.lanes, records)), time.perf_counter()
            self.replicator.replicate(batch, request=str(uuid4()), deadline=lambda: 30.0)
            took.append((time.perf_counter() - began) * 1000)
        self._next += events
        return Share(took, self.client.inserts, self.client.reads, lost[0])


lost = [0]
"""Races that this process has lost since its last order."""


_environments: dict[str, Environment] = {}
"""One of each form, in a process of its own as on Lambda."""


def _wire(settings: FlowSettings, number: int) -> None:
    prepare = DynamoDbChains.prepare

    def counted(chains: DynamoDbChains, runs: Any, deadline: Any = None) -> None:
        try:
            prepare(chains, runs, deadline)
        except LostRace:
            lost[0] += 1
            raise

    DynamoDbChains.prepare = counted  # type: ignore[assignment, method-assign]  # in this process alone
    apart = JOURNAL_LANES * (number + 1)
    _environments[FORMS[0]] = Environment(settings, (2 * number, 2 * number + 1))
    _environments[FORMS[1]] = Environment(settings, (apart, apart + 1))


def _ready() -> bool:
    return bool(_environments)


def _run(form: str, events: int, start: float) -> Share:
    return _environments[form].run(events, start)


def measure(*, events: int = 40, target_ms: float = 20.0, rounds: int = 5) -> Outcome:
    """The time of an event of eight environments in one journal, and what collisions cost.

    Args: events: of each environment in a round. target_ms: the round trip to the target.
    """
    shares: dict[str, list[list[Share]]] = {form: [] for form in FORMS}
    with grounded(linked="target") as ground, ExitStack() as stack:
        port = free_port()
        link = NetworkLink({port: int(ground.dynamodb.endpoint.rpartition(":")[2])})
        link.open()
        stack.callback(link.close)
        os.environ |= {"AWS_ENDPOINT_URL_DYNAMODB": f"http://127.0.0.1:{port}", "AWS_LAMBDA_RUNTIME_API": "none"}
        ground.target.link.round_trip_ms, link.round_trip_ms = target_ms, ROUND_TRIP_MS
        settings, spawn = ground.settings(), get_context("spawn")
        ground.create_remote({settings.remote_topic(TOPIC): JOURNAL_LANES * (ENVIRONMENTS + 1)})
        workers = [
            stack.enter_context(ProcessPoolExecutor(1, spawn, _wire, (settings, number)))
            for number in range(ENVIRONMENTS)
        ]
        for ready in [each.submit(_ready) for each in workers]:
            ready.result()
        for number in range(rounds + 1):
            for form in FORMS:
                start = time.monotonic() + 0.2
                found = [each.result() for each in [worker.submit(_run, form, events, start) for worker in workers]]
                shares[form] += [found] if number else []  # the first one warms up
    return _outcome(shares)


def _outcome(shares: dict[str, list[list[Share]]]) -> Outcome:
    print("| | median, ms | p99, ms | inserts an event | reads an event | lost to others |")
    print("| --- | --- | --- | --- | --- | --- |")
    all_lost = 0
    for form, rounds in shares.items():
        every = [share for found in rounds for share in found]
        took = [each for share in every for each in share.took]
        all_lost += (lost_here := sum(each.lost for each in every))
        print(
            f"| {form} | {median(took):.1f} | {quantiles(took, n=100)[98]:.1f} "
            f"| {sum(each.inserts for each in every) / len(took):.2f} "
            f"| {sum(each.reads for each in every) / len(took):.2f} | {lost_here} |"
        )
    medians = [[median(each for share in found for each in share.took) for found in shares[form]] for form in FORMS]
    ratios = [one / eight for one, eight in zip(*medians, strict=True)]
    print(f"\none journal over eight, medians by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    wrong = [f"{all_lost} transactions were lost to environments with other lanes"] * bool(all_lost)
    return Outcome({}, wrong + [f"the limit is {LIMIT}"] * (median(ratios) > LIMIT))
