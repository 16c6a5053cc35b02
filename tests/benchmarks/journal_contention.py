"""Eight environments in one slice beside eight slices: the time of an event, and what collisions cost.

    python -m tests.benchmarks.journal_contention [--events 40] [--target-ms 20]

Each environment has two lanes of its own and gets five events of ten records a second, at random moments. On a real
broker, by default as far away as a neighbouring region, and DynamoDB Local at 3 ms, in alternating rounds. It fails
where a transaction is lost to an environment with other lanes, or where the median event of one slice takes over 1.1
of the median of eight.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any, Final
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from lab.servers.process import free_port
from lab.servers.proxy import NetworkLink
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.clock import now_ms
from mirrorless.errors import LostRace
from mirrorless.lane import SLICE_LANES
from mirrorless.protocol.event import Batch
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.record import Record
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from tests.support.metered import MeteredClient

ENVIRONMENTS: Final = 8
EVERY_SECONDS: Final = 0.2
RECORDS: Final = 10
ROUND_TRIP_MS: Final = 3.0
"""To DynamoDB, in the function's own region."""
TARGET_MS: Final = 20.0
"""The round trip between two neighbouring regions."""
LIMIT: Final = 1.1
ROUNDS: Final = 5
TOPIC: Final = "contended"


class CountedChains(DynamoDbChains):
    """Chains that count their lost races."""

    lost = 0

    def prepare(self, runs: Any, deadline: Any = None) -> None:
        """See `Chains.prepare`."""
        try:
            super().prepare(runs, deadline)
        except LostRace:
            self.lost += 1
            raise


@dataclass
class Environment:
    """One warm execution environment, with its lanes."""

    replicator: Replicator
    chains: CountedChains
    client: MeteredClient
    lanes: tuple[int, int]
    random: Random
    took: list[float] = field(default_factory=list)
    _next: int = 0

    def event(self, number: int) -> Batch:
        """The next records of both lanes."""
        first = number * RECORDS
        at = now_ms()
        records = [
            Record(offset=first + i, timestamp=at, headers=[], key=b"k", value=b"v" * 100) for i in range(RECORDS)
        ]
        return Batch.of_topic(TOPIC, dict.fromkeys(self.lanes, records))

    def run(self, events: int, start: float) -> None:
        """Take events at their moments; one that comes late does not put off the next."""
        for number in range(self._next, self._next + events):
            due = start + (number - self._next + self.random.random()) * EVERY_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
            batch, began = self.event(number), time.perf_counter()
            self.replicator.replicate(batch, request=str(uuid4()), deadline=lambda: 30.0)
            self.took.append((time.perf_counter() - began) * 1000)
        self._next += events


def environment(settings: FlowSettings, endpoint: str, lanes: tuple[int, int]) -> Environment:
    """One that is wired as the forwarder is."""
    os.environ |= {
        "AWS_ENDPOINT_URL_DYNAMODB": endpoint,
        "AWS_LAMBDA_RUNTIME_API": "none",
        "AWS_ACCESS_KEY_ID": "lab",
        "AWS_SECRET_ACCESS_KEY": "lab",
    }
    client, tables = MeteredClient(dynamodb_client("us-east-1", direct=True)), settings.tables
    chains = CountedChains(client, tables.offset_map)
    target = KafkaTarget(settings, environment=uuid4().hex)
    replicator = Replicator(
        flow=settings.name,
        delivery="exactly_once",
        remote_topic=settings.remote_topic,
        chains=chains,
        positions=Positions(
            chains=chains, states=DynamoDbLaneStates(client, tables.lanes), target=target, clock=now_ms
        ),
        ledger=DynamoDbLossLedger(client, tables.loss_ledger),
        target=target,
        source=KafkaSource(settings),
        clock=now_ms,
        new_id=lambda: uuid4().hex,
    )
    return Environment(replicator, chains, client, lanes, Random(lanes[0]))  # noqa: S311 -- moments, no secret


@contextmanager
def servers(target_ms: float) -> Iterator[tuple[KafkaCluster, DynamoDbLocal, str]]:
    """A broker and DynamoDB Local, and the latter's address at a distance."""
    with tempfile.TemporaryDirectory() as folder:
        target = KafkaCluster(alias="target", folder=Path(folder, "target"), linked=True)
        dynamodb = DynamoDbLocal(folder=Path(folder, "dynamodb"), in_memory=True)
        port = free_port()
        link = NetworkLink({port: int(dynamodb.endpoint.rpartition(":")[2])})
        try:
            for server in (target, dynamodb):
                server.start()
            link.open()
            target.link.round_trip_ms, link.round_trip_ms = target_ms, ROUND_TRIP_MS
            yield target, dynamodb, f"http://127.0.0.1:{port}"
        finally:
            link.close()
            for server in (target, dynamodb):
                server.stop()


FORMS: Final = ("one slice", "eight slices")


@dataclass(frozen=True)
class Share:
    """What one process measured of one form in one round."""

    took: list[float]
    inserts: int
    reads: int
    lost: int


def work(orders: Connection, settings: FlowSettings, dynamodb: str, number: int) -> None:
    """One environment of each form, in a process of its own as on Lambda; runs what it is ordered to."""
    apart = SLICE_LANES * (number + 1)
    environments = {
        "one slice": environment(settings, dynamodb, (2 * number, 2 * number + 1)),
        "eight slices": environment(settings, dynamodb, (apart, apart + 1)),
    }
    orders.send("ready")
    while (order := orders.recv()) is not None:
        form, events, start = order
        each = environments[form]
        each.took.clear()
        each.client.inserts = each.client.reads = each.chains.lost = 0
        each.run(events, start)
        orders.send(Share(list(each.took), each.client.inserts, each.client.reads, each.chains.lost))


def measure(events: int, target_ms: float) -> bool:
    """Print the table; whether both limits are kept."""
    with servers(target_ms) as (target, dynamodb, endpoint):
        settings = FlowSettings(
            flow="source->target",
            source=ClusterSettings(alias="source", bootstrap=target.bootstrap),
            target=ClusterSettings(alias="target", bootstrap=target.bootstrap, region="us-east-1"),
            replication_factor=1,
        )
        for table in definitions(settings.tables):
            dynamodb.client().create_table(**table.create_request())
        admin, topic = AdminClient({"bootstrap.servers": target.bootstrap}), settings.remote_topic(TOPIC)
        admin.create_topics([NewTopic(topic, SLICE_LANES * (ENVIRONMENTS + 1), 1)])[topic].result(30)
        spawn, workers, ends = get_context("spawn"), [], []
        for number in range(ENVIRONMENTS):
            ours, theirs = spawn.Pipe()
            workers.append(spawn.Process(target=work, args=(theirs, settings, endpoint, number)))
            ends.append(ours)
        try:
            for worker in workers:
                worker.start()
            for end in ends:
                end.recv()
            shares: dict[str, list[list[Share]]] = {form: [] for form in FORMS}
            for round_ in range(ROUNDS + 1):
                for form in FORMS:
                    found = _round(ends, form, events)
                    if round_:  # the first one warms up
                        shares[form].append(found)
        finally:
            for end, worker in zip(ends, workers, strict=True):
                if worker.is_alive():
                    end.send(None)
                worker.join(30)
        return _report(shares)


def _round(ends: list[Any], form: str, events: int) -> list[Share]:
    for end in ends:
        end.send((form, events, time.monotonic() + 0.2))
    return [end.recv() for end in ends]


def _report(shares: dict[str, list[list[Share]]]) -> bool:
    print("| | median, ms | p99, ms | inserts an event | reads an event | lost to others |")
    print("| --- | --- | --- | --- | --- | --- |")
    for form, rounds in shares.items():
        every = [share for found in rounds for share in found]
        took = [each for share in every for each in share.took]
        print(
            f"| {form} | {median(took):.1f} | {quantiles(took, n=100)[98]:.1f} "
            f"| {sum(each.inserts for each in every) / len(took):.2f} "
            f"| {sum(each.reads for each in every) / len(took):.2f} | {sum(each.lost for each in every)} |"
        )
    medians = [[median(each for share in found for each in share.took) for found in shares[form]] for form in FORMS]
    ratios = [one / eight for one, eight in zip(*medians, strict=True)]
    print(f"\none slice over eight, medians by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    lost = sum(share.lost for rounds in shares.values() for found in rounds for share in found)
    return lost == 0 and median(ratios) <= LIMIT


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.journal_contention", description=__doc__)
    parser.add_argument("--events", type=int, default=40, help="of each environment in a round")
    parser.add_argument("--target-ms", type=float, default=TARGET_MS, help="the round trip to the target")
    args = parser.parse_args()
    return 0 if measure(args.events, args.target_ms) else 1


if __name__ == "__main__":
    raise SystemExit(main())
