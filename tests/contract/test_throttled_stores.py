"""Stores under throttling: what DynamoDB leaves undone inside an answer is done before the deadline, or is an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.credentials import Credentials

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.direct import direct_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.errors import ChainBroken, LostRace, Retriable
from mirrorless.lane import Lane
from mirrorless.lane_state import NEW_LANE, Head, LaneState, Stop
from mirrorless.settings import Tables
from tests.support.chains import FLOW, LANE, reset, run
from tests.support.throttled import ThrottledClient

pytestmark = pytest.mark.integration

LANES = [Lane(FLOW, "orders", partition) for partition in range(40)]
RUNS = [run(0, 9, (0, 2, 9), state="prepared", attempt="own", lane=lane) for lane in LANES]
COMMITTED = [each.committed() for each in RUNS]
FOR_EVER = 10**9

TRANSIENT = [
    "InternalServerError",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
    "ThrottlingError",
    "TransactionConflict",
]


@pytest.fixture(params=["boto3", "asked directly"])
def client(request: pytest.FixtureRequest, dynamodb: DynamoDbLocal) -> Any:
    made = dynamodb.client()
    return made if request.param == "boto3" else direct_client(made, Credentials("lab", "lab", "lab"))


def deadline_in(seconds: float) -> Callable[[], float]:
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()


def heads(client: Any, tables: Tables) -> dict[Lane, Head]:
    return DynamoDbChains(client, tables.offset_map).heads(LANES)


def chains(client: Any, tables: Tables, **options: Any) -> DynamoDbChains:
    return DynamoDbChains(ThrottledClient(client, **options), tables.offset_map)


@pytest.mark.parametrize("code", TRANSIENT)
def test_statements_that_are_throttled_are_made_again(client: Any, tables: Tables, code: str) -> None:
    throttled = chains(client, tables, code=code, times=2)

    throttled.prepare(RUNS, deadline_in(30))
    assert heads(client, tables) == {each.lane: Head(generation=0, position=0, run=each) for each in RUNS}
    throttled.confirm(COMMITTED[:20], deadline_in(30))
    throttled.withdraw(RUNS, deadline_in(30))

    assert heads(client, tables) == {
        **{each.lane: Head(generation=0, position=9, run=each) for each in COMMITTED[:20]},
        **dict.fromkeys(LANES[20:], NEW_LANE),
    }


def test_resets_and_renewals_that_are_throttled_are_made_again(client: Any, tables: Tables) -> None:
    plain = DynamoDbChains(client, tables.offset_map)
    plain.prepare(COMMITTED)
    throttled = chains(client, tables)
    throttled.reset(reset(9, 3))
    throttled.renew(COMMITTED, 1_800_000_000)

    assert plain.heads([LANE])[LANE].generation == 1
    items = client.scan(TableName=tables.offset_map, ConsistentRead=True)["Items"]
    assert [item["expires_at"]["N"] for item in items if item["kind"]["S"] == "run"] == ["1800000000"] * len(RUNS)


def test_a_statement_that_is_throttled_beyond_the_deadline_is_an_error(client: Any, tables: Tables) -> None:
    throttled = chains(client, tables, times=FOR_EVER)
    began = time.monotonic()

    with pytest.raises(Retriable, match="ThrottlingError"):
        throttled.prepare(RUNS, deadline_in(0.8))
    with pytest.raises(Retriable, match="ThrottlingError"):
        throttled.confirm(COMMITTED, deadline_in(0.8))
    with pytest.raises(Retriable, match="ThrottlingError"):
        throttled.withdraw(RUNS, deadline_in(0.8))

    assert time.monotonic() - began < 2.4


def test_an_error_that_does_not_pass_is_raised_at_once(client: Any, tables: Tables) -> None:
    throttled = chains(client, tables, code="ValidationError", times=FOR_EVER)

    with pytest.raises(Retriable, match="ValidationError"):
        throttled.prepare(RUNS, deadline_in(30))

    assert set(throttled._client.refused.values()) == {1}


def test_a_lost_race_is_found_while_other_statements_are_throttled(client: Any, tables: Tables) -> None:
    rival = replace(RUNS[0], attempt="rival")
    DynamoDbChains(client, tables.offset_map).prepare([rival])
    throttled = chains(client, tables, times=FOR_EVER)

    with pytest.raises(LostRace):
        throttled.prepare(RUNS, deadline_in(30))

    assert set(throttled._client.refused.values()) == {1}
    assert heads(client, tables)[LANES[0]].run == rival


def test_an_insert_that_was_carried_out_all_the_same_is_withdrawn_as_after_a_lost_race(
    client: Any, tables: Tables
) -> None:
    throttled = chains(client, tables, code="InternalServerError", carried_out=True)

    with pytest.raises(LostRace):
        throttled.prepare(RUNS, deadline_in(30))
    throttled.withdraw(RUNS, deadline_in(30))

    assert heads(client, tables) == dict.fromkeys(LANES, NEW_LANE)


def test_confirmations_and_withdrawals_that_were_carried_out_all_the_same_are_harmless(
    client: Any, tables: Tables
) -> None:
    DynamoDbChains(client, tables.offset_map).prepare(RUNS)
    throttled = chains(client, tables, code="InternalServerError", carried_out=True)

    throttled.confirm(COMMITTED[:20], deadline_in(30))
    throttled.withdraw(RUNS[20:], deadline_in(30))

    assert [each.run for each in heads(client, tables).values()] == [*COMMITTED[:20], *[None] * 20]


def test_a_run_that_is_gone_is_found_behind_throttled_confirmations(client: Any, tables: Tables) -> None:
    DynamoDbChains(client, tables.offset_map).prepare(RUNS[1:])

    with pytest.raises(ChainBroken):
        chains(client, tables).confirm(COMMITTED, deadline_in(30))

    assert [each.run for each in heads(client, tables).values()] == [None, *COMMITTED[1:]]


def test_keys_that_are_left_unprocessed_are_read_again(client: Any, tables: Tables) -> None:
    stop = Stop(reason="refused", upstream_offset=5, detail="", at=7)
    plain = DynamoDbLaneStates(client, tables.lanes)
    for lane in LANES[:3]:
        plain.stop(lane, stop)
    throttled = DynamoDbLaneStates(ThrottledClient(client, times=3), tables.lanes)

    assert throttled.read(LANES, deadline_in(30)) == dict.fromkeys(LANES[:3], LaneState(stop=stop))


def test_keys_that_are_left_unprocessed_beyond_the_deadline_are_an_error(client: Any, tables: Tables) -> None:
    throttled = DynamoDbLaneStates(ThrottledClient(client, times=FOR_EVER), tables.lanes)
    began = time.monotonic()

    with pytest.raises(Retriable, match="throttled"):
        throttled.read(LANES, deadline_in(0.8))

    assert time.monotonic() - began < 0.8


def test_items_that_are_left_unprocessed_are_written_again(client: Any, tables: Tables) -> None:
    documents = {f"task/{number}": b"{}" for number in range(60)}

    DynamoDbDocuments(ThrottledClient(client, times=3), tables.control).write(FLOW, documents)

    assert DynamoDbDocuments(client, tables.control).read(FLOW, "task/") == documents
