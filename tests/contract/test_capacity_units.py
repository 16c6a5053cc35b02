"""Read and write units of DynamoDB: what each call of ours costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import Lane
from mirrorless.chain.run import DigestOf
from mirrorless.clock import Deadline, now_ms
from mirrorless.cost.bill import HOURS, ITEM_BYTES, entry_bytes
from mirrorless.cost.prices import DYNAMODB_READ_UNIT
from mirrorless.flow.settings import IDLE_AFTER_SECONDS, Tables
from mirrorless.groups import round as checkpoint_round
from mirrorless.lanes.foreign import ForeignCheck
from mirrorless.lanes.gap_check import GapCheck
from mirrorless.lanes.lane_check import LaneCheck
from mirrorless.lanes.log_comparison import LogComparison
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.map_reads import STOPS_SECONDS
from mirrorless.scheduled.runner import Task, TaskRunner
from tests.support.chains import FLOW, MemoryChains, MemoryLossLedger, run
from tests.support.clusters import MemoryCluster, MemoryTarget
from tests.support.documents import MemoryDocuments
from tests.support.group_cluster import MARKER, TwoClusters, settings
from tests.support.metered import MeteredClient
from tests.support.write_units import replicated, size_of, stored_bytes

pytestmark = pytest.mark.integration

PART = 100
"""Of the flow that is looked at: one in so many journals and groups."""

TOPICS, PARTITIONS = 1_000 // PART, 6
GROUPS, LAGGING = 500 // PART, 100 // PART
HISTORY = 30
"""Events behind which the lagging groups stand."""

RECORDS = 3
"""Of a lane in an event."""

EVENT_MS = 5_000
"""Between two events of each journal, and two commits of each group: the consumers' default interval of commits."""


@dataclass
class Region:
    """The scheduled function of a flow in a warm environment, beside a forwarder whose events come at an interval."""

    client: MeteredClient
    tables: Tables
    moving: bool = False
    world: TwoClusters = field(init=False)
    control: DynamoDbChains = field(init=False)
    forwarder: DynamoDbChains = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the history."""
        self.control, self.forwarder = (
            DynamoDbChains(client, self.tables.offset_map, clock=lambda: self.world.now / 1000)
            for client in (self.client, self.client.client)
        )
        self.world = TwoClusters(
            settings(sync=2, topics=("topic-.*",)),
            chains=cast("MemoryChains", self.control),
            documents=cast("MemoryDocuments", DynamoDbDocuments(self.client, self.tables.checkpoints)),
            now=1_763_686_800_000,
        )
        for number in range(HISTORY):
            self.event(range(TOPICS) if number == HISTORY - 1 else range(2 * LAGGING))
        self.commit()

    def event(self, topics: range) -> None:
        """An event of each topic, with records of all its lanes."""
        for topic in topics:
            runs = []
            for partition in range(PARTITIONS):
                lane = Lane(FLOW, f"topic-{topic:03}", partition)
                source, target = self.world.source_log(lane), self.world.target_log(lane)
                first = len(source)
                link = run(
                    first,
                    first + RECORDS,
                    (first, len(target), RECORDS),
                    lane=lane,
                    attempt=f"{topic} {self.world.now} {first}",
                )
                runs.append(replace(link, settled_at=self.world.now))
                source += range(RECORDS)
                target += [*range(RECORDS), MARKER]
            self.forwarder.prepare(runs)

    def commit(self) -> None:
        """Every group moves on: to the end, or by an event of those that it has before it."""
        for group in range(GROUPS):
            for topic in (2 * group, 2 * group + 1):
                for partition in range(PARTITIONS):
                    lane = Lane(FLOW, f"topic-{topic:03}", partition)
                    end = len(self.world.source_log(lane))
                    behind = RECORDS * (HISTORY - 5) if group < LAGGING else 0
                    self.world.source.put(f"group-{group:02}", (lane.topic, partition), end - behind)

    def sleep(self, seconds: float) -> None:
        """Let time pass, and events and commits with it."""
        end = self.world.now + int(seconds * 1000)
        while self.moving and (due := (self.world.now // EVENT_MS + 1) * EVENT_MS) <= end:
            self.world.now = due
            self.event(range(TOPICS))
            self.commit()
        self.world.now = end

    def minute(self) -> float:
        """One run of the function, at its minute's start. Returns the read units."""
        before, began = self.client.read_units, self.world.now
        self.world.chains = cast("MemoryChains", self.control)
        self.world.restart()
        tasks = [
            Task(name="checkpoints", every_seconds=2, idle_seconds=60, act=self.world.round.act),
            Task(name="lanes", every_seconds=60, act=self._lanes().act),
        ]
        runner = TaskRunner(
            flow=FLOW,
            function="control",
            documents=DynamoDbDocuments(self.client, self.tables.control),
            clock=lambda: self.world.now,
            sleep=self.sleep,
            holder=uuid4().hex,
            idle_after_seconds=IDLE_AFTER_SECONDS if self.moving else 1,
        )
        reports = runner.run(tasks, window_seconds=58, deadline=lambda: 90 - (self.world.now - began) / 1000)
        assert not any(report.error or report.troubles for report in reports.values()), reports
        self.sleep((began + 60_000 - self.world.now) / 1000)
        return self.client.read_units - before

    def current(self, topics: Iterable[str], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `LogEpochs.current`: no leader changes."""
        return {(topic, partition): 0 for topic in topics for partition in range(PARTITIONS)}

    def _lanes(self) -> LaneCheck:
        states = DynamoDbLaneStates(self.client, self.tables.lanes)
        clock: Callable[[], int] = lambda: self.world.now  # noqa: E731 -- three of its arguments
        return LaneCheck(
            flow=FLOW,
            remote_topic=lambda topic: f"us-east.{topic}",
            topics=lambda _deadline: {f"topic-{topic:03}": PARTITIONS for topic in range(TOPICS)},
            ends=self.world.target_topics,
            gaps=GapCheck(source=cast("Any", None), ledger=MemoryLossLedger(), states=states, clock=clock),
            logs=LogComparison(chains=self.control, epochs=cast("Any", self), log=cast("Any", None)),
            chains=self.control,
            states=states,
            target=MemoryTarget(MemoryCluster(), "lanes"),
            documents=DynamoDbDocuments(self.client, self.tables.control),
            log_ends=None,
            foreign=ForeignCheck(
                remote_topic=lambda topic: f"us-east.{topic}",
                target=cast("Any", None),
                states=states,
                alone=frozenset,
            ),
            clock=clock,
            transaction_timeout_ms=10_000,
            map_retention_days=30,
        )


def dollars(units: float) -> float:
    """A month of minutes that cost so many read units, for the whole flow."""
    return units * PART * HOURS * 60 * DYNAMODB_READ_UNIT


def test_idle_rounds_read_for_ten_dollars_a_month_and_a_cold_one_for_twenty_times_as_much_at_most(
    dynamodb: DynamoDbLocal, tables: Tables
) -> None:
    region = Region(MeteredClient(dynamodb.client()), tables)

    cold, warm = region.minute(), region.minute()

    assert dollars(warm) <= 10
    assert warm < cold <= 20 * warm


def test_the_rounds_of_a_flow_in_which_everything_moves_read_for_sixty_dollars_a_month_at_most(
    dynamodb: DynamoDbLocal, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_round, "JOURNALS_PER_SECOND", checkpoint_round.JOURNALS_PER_SECOND / PART)
    region = Region(MeteredClient(dynamodb.client()), tables, moving=True)
    region.minute()

    assert dollars(region.minute()) <= 60


def test_the_stops_of_five_thousand_lanes_are_looked_up_for_a_dollar_and_a_half_a_month_at_most(
    dynamodb: DynamoDbLocal, tables: Tables
) -> None:
    """As often as rounds do that follow each other without a pause; each lane that has begun is in the table."""
    client = MeteredClient(dynamodb.client())
    states = DynamoDbLaneStates(client, tables.lanes)
    states.stopped(FLOW)
    before = client.read_units  # of what other tests have noted
    part = 20
    for partition in range(5_000 // part):
        states.begin(Lane(FLOW, "topic-of-an-average-name", partition), 0)
    client.read_units = 0

    states.stopped(FLOW)

    a_month = HOURS * 3600 / STOPS_SECONDS * DYNAMODB_READ_UNIT
    assert 0.5 <= (client.read_units - before) * part * a_month <= 1.5


@pytest.mark.parametrize(
    ("lanes", "digest_of", "units"),
    [(1, "records", 2), (6, "records", 2), (10, "records", 2), (16, "records", 4), (6, "batches", 2)],
)
def test_an_event_costs_so_many_write_units_and_a_warm_one_reads_nothing(
    dynamodb: DynamoDbLocal, tables: Tables, lanes: int, digest_of: DigestOf, units: int
) -> None:
    client = MeteredClient(dynamodb.client())
    chains = DynamoDbChains(client, tables.offset_map)
    replicated(chains, 0, range(lanes), digest_of=digest_of)
    client.write_units, client.reads = 0.0, 0

    for number in range(1, 11):
        replicated(chains, number, range(lanes), digest_of=digest_of)

    assert client.write_units == 10 * units
    assert client.reads == 0


@pytest.mark.parametrize("lanes", [1, 2, 6, 16])
def test_the_cost_model_takes_entries_for_as_large_as_they_are_and_six_lanes_take_700_bytes(
    dynamodb: DynamoDbLocal, tables: Tables, lanes: int
) -> None:
    stored = stored_bytes(dynamodb.client(), tables.offset_map, lanes=lanes)

    assert entry_bytes(lanes) == pytest.approx(stored, rel=0.05)
    assert lanes > 6 or stored + ITEM_BYTES <= 700


def test_an_environment_that_shares_its_journal_pays_two_and_a_half_units_on_average(
    dynamodb: DynamoDbLocal, tables: Tables
) -> None:
    """Eight environments with two lanes each, in turn, each of which reads what was added before it inserts."""
    client = MeteredClient(dynamodb.client())
    environments = [DynamoDbChains(client, tables.offset_map) for _ in range(8)]
    rounds = 6
    for number in range(rounds):
        if number == 1:
            client.write_units = 0.0  # at the first event nobody has met anybody yet
        for which, chains in enumerate(environments):
            lanes = (2 * which, 2 * which + 1)
            catch_up = chains.catch_up([Lane(FLOW, "customer-orders", partition) for partition in lanes])
            if catch_up is not None:
                catch_up()
            replicated(chains, number, lanes)

    assert client.write_units / (8 * (rounds - 1)) <= 2.5


def test_a_document_costs_as_much_under_a_lease_as_without(dynamodb: DynamoDbLocal, tables: Tables) -> None:
    """One write of its item, which grows by some bytes. Only where it is new, there is a second statement."""
    client = MeteredClient(dynamodb.client())
    documents = DynamoDbDocuments(client, tables.control)
    many = {f"forward/group-{number}": os.urandom(300) for number in range(40)}

    def sizes() -> list[int]:
        return [size_of(item) for item in client.scan(TableName=tables.control)["Items"]]

    documents.write(FLOW, many)
    plain, epoch = sizes(), now_ms()
    documents.write(FLOW, many, epoch=epoch)
    documents.write(FLOW, many, epoch=epoch + 1)

    assert client.statements == 2 * len(many)
    assert {after - before for before, after in zip(plain, sizes(), strict=True)} == {13}
    documents.write(FLOW, {"forward/new": b""}, epoch=epoch + 1)
    assert client.statements == 2 * len(many) + 2
