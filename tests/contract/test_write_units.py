"""Write units and stored bytes of an event, by DynamoDB's own word, and the reads of a warm one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.clock import now_ms
from mirrorless.cost.assumptions import Assumptions
from mirrorless.cost.replication import entry_bytes
from mirrorless.lane import Lane
from mirrorless.naming import transactional_id
from mirrorless.run import Run, Span
from mirrorless.settings import Tables
from tests.support.chains import FLOW

pytestmark = pytest.mark.integration


@dataclass
class MeteredClient:
    """A DynamoDB client that adds up what its calls consumed."""

    client: Any
    writes: float = 0.0
    reads: int = 0
    items: list[dict[str, Any]] = field(default_factory=list)

    def put_item(self, **request: Any) -> Any:
        """As boto3's."""
        self.items.append(request["Item"])
        return self._write(self.client.put_item, request)

    def update_item(self, **request: Any) -> Any:
        """As boto3's."""
        return self._write(self.client.update_item, request)

    def query(self, **request: Any) -> Any:
        """As boto3's."""
        self.reads += 1
        return self.client.query(**request)

    def batch_get_item(self, **request: Any) -> Any:
        """As boto3's."""
        self.reads += 1
        return self.client.batch_get_item(**request)

    def _write(self, call: Any, request: dict[str, Any]) -> Any:
        answer = call(**request, ReturnConsumedCapacity="TOTAL")
        self.writes += answer["ConsumedCapacity"]["CapacityUnits"]
        return answer


def replicated(chains: DynamoDbChains, number: int, lanes: Sequence[int]) -> None:
    """What an event of 2,000 records writes; ids and offsets are as long as real ones."""
    each = 2_000 // len(lanes)
    first, now = 7_000_000_000 + number * each, now_ms()
    writer, attempt, request = transactional_id(FLOW, uuid4().hex), uuid4().hex, str(uuid4())
    runs = [
        Run(
            lane=Lane(FLOW, "customer-orders", partition),
            generation=0,
            position=first if number else 0,
            next=first + each,
            spans=(Span(first, 9_000_000_000 + number * (each + 1), each),),
            state="prepared",
            writer=writer,
            attempt=attempt,
            fingerprint=uuid4().bytes[:8],
            digest=os.urandom(32),
            oldest_timestamp=now - 60_000,
            newest_timestamp=now - 100,
            records=each,
            bytes=1_000 * each,
            request=request,
            settled_at=now,
        )
        for partition in lanes
    ]
    chains.prepare(runs)
    chains.confirm([run.committed() for run in runs])


def size_of(item: dict[str, Any]) -> int:
    """Bytes of an item: names and values, numbers as about half their digits."""
    total = 0
    for name, value in item.items():
        ((kind, content),) = value.items()
        total += len(name) + (1 if kind == "BOOL" else (len(content) + 1) // 2 + 1 if kind == "N" else len(content))
    return total


@pytest.mark.parametrize(("lanes", "units"), [(1, 2), (6, 2), (10, 2), (16, 4)])
def test_an_event_costs_so_many_write_units_and_a_warm_one_reads_nothing(
    dynamodb: DynamoDbLocal, tables: Tables, lanes: int, units: int
) -> None:
    client = MeteredClient(dynamodb.client())
    chains = DynamoDbChains(client, tables.offset_map)
    replicated(chains, 0, range(lanes))
    client.writes, client.reads = 0.0, 0

    for number in range(1, 11):
        replicated(chains, number, range(lanes))

    assert client.writes == 10 * units
    assert client.reads == 0


def test_an_event_of_six_lanes_is_stored_in_900_bytes(dynamodb: DynamoDbLocal, tables: Tables) -> None:
    assert stored(dynamodb, tables, lanes=6) + Assumptions().item_bytes <= 900


@pytest.mark.parametrize("lanes", [1, 6, 16])
def test_the_cost_model_takes_entries_for_as_large_as_they_are(
    dynamodb: DynamoDbLocal, tables: Tables, lanes: int
) -> None:
    assert entry_bytes(lanes) == pytest.approx(stored(dynamodb, tables, lanes=lanes), rel=0.05)


def stored(dynamodb: DynamoDbLocal, tables: Tables, *, lanes: int) -> int:
    """Bytes of the entry of a lane's second event, once it is settled."""
    client = MeteredClient(dynamodb.client())
    chains = DynamoDbChains(client, tables.offset_map)
    for number in range(2):
        replicated(chains, number, range(lanes))
    (item,) = client.items[1:]
    return size_of({**item, "state": {"S": "committed"}, "expires_at": {"N": "1800000000"}})


def test_an_environment_that_shares_its_slice_pays_two_and_a_half_units_on_average(
    dynamodb: DynamoDbLocal, tables: Tables
) -> None:
    """Eight environments with two lanes each, in turn, each of which reads what was added before it inserts."""
    client = MeteredClient(dynamodb.client())
    environments = [DynamoDbChains(client, tables.offset_map) for _ in range(8)]
    rounds = 6
    for number in range(rounds):
        if number == 1:
            client.writes = 0.0  # at the first event nobody has met anybody yet
        for which, chains in enumerate(environments):
            lanes = (2 * which, 2 * which + 1)
            catch_up = chains.catch_up([Lane(FLOW, "customer-orders", partition) for partition in lanes])
            if catch_up is not None:
                catch_up()
            replicated(chains, number, lanes)

    assert client.writes / (8 * (rounds - 1)) <= 2.5
