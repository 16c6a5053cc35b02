"""Read units of the scheduled rounds, by DynamoDB's own word, in dollars a month.

A twentieth of the flow that the figures are about: 50 slices of six lanes instead of 1,000, 25 groups instead of 500, a
fifth of them far behind. Each slice and each group costs by itself, so twenty times the units are the whole flow's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.cost.assumptions import HOURS
from mirrorless.cost.prices import PRICES
from mirrorless.groups import round as checkpoint_round
from mirrorless.lane import Lane
from mirrorless.lanes.gap_check import GapCheck
from mirrorless.lanes.lane_check import LaneCheck
from mirrorless.scheduled.runner import IDLE_AFTER_SECONDS, Task, TaskRunner
from mirrorless.settings import Tables
from tests.support.chains import FLOW, MemoryChains, MemoryLossLedger, run
from tests.support.clusters import MemoryCluster, MemoryTarget
from tests.support.documents import MemoryDocuments
from tests.support.group_cluster import MARKER, TwoClusters, settings
from tests.support.metered import MeteredClient

pytestmark = pytest.mark.integration

PART = 20
"""Of the flow that is looked at: one in so many slices and groups."""

TOPICS, PARTITIONS = 1_000 // PART, 6
GROUPS, LAGGING = 500 // PART, 100 // PART
HISTORY = 30
"""Events behind which the lagging groups stand."""

RECORDS = 3
"""Of a lane in an event."""

EVENT_MS = 5_000
"""Between two events of each slice, and two commits of each group: the consumers' default interval of commits."""


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

    def _lanes(self) -> LaneCheck:
        states = DynamoDbLaneStates(self.client, self.tables.lanes)
        clock: Callable[[], int] = lambda: self.world.now  # noqa: E731 -- three of its arguments
        return LaneCheck(
            flow=FLOW,
            remote_topic=lambda topic: f"us-east.{topic}",
            topics=lambda _deadline: {f"topic-{topic:03}": PARTITIONS for topic in range(TOPICS)},
            ends=self.world.target_topics,
            gaps=GapCheck(source=cast("Any", None), ledger=MemoryLossLedger(), states=states, clock=clock),
            chains=self.control,
            states=states,
            target=MemoryTarget(MemoryCluster(), "lanes"),
            documents=DynamoDbDocuments(self.client, self.tables.control),
            clock=clock,
            transaction_timeout_ms=10_000,
            map_retention_days=30,
        )


def dollars(units: float) -> float:
    """A month of minutes that cost so many read units, for the whole flow."""
    return units * PART * HOURS * 60 * PRICES.dynamodb_read_unit


def test_the_rounds_of_a_flow_in_which_nothing_moves_read_for_ten_dollars_a_month_at_most(
    dynamodb: DynamoDbLocal, tables: Tables
) -> None:
    region = Region(MeteredClient(dynamodb.client()), tables)
    region.minute()

    assert dollars(region.minute()) <= 10


def test_a_cold_environment_reads_for_as_much_as_twenty_idle_minutes_at_most(
    dynamodb: DynamoDbLocal, tables: Tables
) -> None:
    region = Region(MeteredClient(dynamodb.client()), tables)

    cold, warm = region.minute(), region.minute()

    assert warm < cold <= 20 * warm


def test_the_rounds_of_a_flow_in_which_everything_moves_read_for_sixty_dollars_a_month_at_most(
    dynamodb: DynamoDbLocal, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_round, "SLICES_PER_SECOND", checkpoint_round.SLICES_PER_SECOND / PART)
    region = Region(MeteredClient(dynamodb.client()), tables, moving=True)
    region.minute()

    assert dollars(region.minute()) <= 60
