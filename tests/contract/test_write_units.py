"""Write units and stored bytes of an event, by DynamoDB's own word, and the reads of a warm one."""

from __future__ import annotations

import os

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.clock import now_ms
from mirrorless.cost.assumptions import Assumptions
from mirrorless.cost.replication import entry_bytes
from mirrorless.lane import Lane
from mirrorless.run import DigestOf
from mirrorless.settings import Tables
from tests.support.chains import FLOW
from tests.support.metered import MeteredClient
from tests.support.write_units import replicated, size_of, stored_bytes

pytestmark = pytest.mark.integration


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


def test_an_event_of_six_lanes_is_stored_in_700_bytes(dynamodb: DynamoDbLocal, tables: Tables) -> None:
    assert stored_bytes(dynamodb.client(), tables.offset_map, lanes=6) + Assumptions().item_bytes <= 700


@pytest.mark.parametrize("lanes", [1, 2, 6, 16])
def test_the_cost_model_takes_entries_for_as_large_as_they_are(
    dynamodb: DynamoDbLocal, tables: Tables, lanes: int
) -> None:
    assert entry_bytes(lanes) == pytest.approx(
        stored_bytes(dynamodb.client(), tables.offset_map, lanes=lanes), rel=0.05
    )


def test_an_environment_that_shares_its_slice_pays_two_and_a_half_units_on_average(
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
