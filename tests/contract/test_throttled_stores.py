"""Stores under throttling: what DynamoDB leaves undone inside an answer is done before the deadline, or is an error."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb import journals, retries, state_store
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.direct import direct_client
from mirrorless.adapters.dynamodb.journals import DynamoDbJournals
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.entry import Slice
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Stop
from mirrorless.errors import ChainBroken, LostRace, Retriable
from mirrorless.flow.settings import Tables
from tests.support.chains import FLOW, LANE, reset, run
from tests.support.throttled import ThrottledClient
from tests.support.waiting import in_seconds

pytestmark = pytest.mark.integration

LANES = [Lane(FLOW, "orders", partition) for partition in range(40)]
RUNS = [run(0, 9, (0, 2, 9), state="prepared", attempt="own", lane=lane) for lane in LANES]
COMMITTED = [each.committed() for each in RUNS]
FOR_EVER = 10**9

TRANSIENT = [
    "InternalServerError",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "TransactionConflictException",
]


@pytest.fixture(params=["boto3", "asked directly"])
def client(request: pytest.FixtureRequest, dynamodb: DynamoDbLocal) -> Any:
    found = dynamodb.client()
    return found if request.param == "boto3" else direct_client(found, Credentials("lab", "lab", "lab"))


def heads(client: Any, tables: Tables) -> dict[Lane, Head]:
    return made(client, tables).heads(LANES)


def made(client: Any, tables: Tables) -> DynamoDbChains:
    """Chains whose clock stands when their runs were settled."""
    return DynamoDbChains(client, tables.offset_map, clock=lambda: RUNS[0].settled_at / 1000)


def refused(chains: DynamoDbChains) -> set[int]:
    """How often writes were refused."""
    journals = chains.journals
    assert isinstance(journals, DynamoDbJournals)
    return set(journals._client.refused.values())


@pytest.mark.parametrize("code", TRANSIENT)
def test_writes_that_are_throttled_are_made_again(client: Any, tables: Tables, code: str) -> None:
    throttled = made(ThrottledClient(client, code=code, times=2), tables)

    throttled.prepare(RUNS, in_seconds(30))
    assert heads(client, tables) == {each.lane: Head(generation=0, position=0, run=each) for each in RUNS}
    throttled.confirm(COMMITTED[:16], in_seconds(30))
    throttled.withdraw(RUNS[16:], in_seconds(30))

    assert heads(client, tables) == {
        **{each.lane: Head(generation=0, position=9, run=each) for each in COMMITTED[:16]},
        **dict.fromkeys(LANES[16:], NEW_LANE),
    }
    assert refused(throttled) == {2}


def test_resets_and_renewals_that_are_throttled_are_made_again(client: Any, tables: Tables) -> None:
    made(client, tables).prepare(COMMITTED)
    throttled = made(ThrottledClient(client), tables)

    throttled.reset(reset(9, 3))
    assert throttled.renew(LANES, settled_before=2**60, expires_at=1_800_000_000) == 4

    assert made(client, tables).heads([LANE])[LANE].generation == 1
    items = client.scan(TableName=tables.offset_map, ConsistentRead=True)["Items"]
    assert [item["expires_at"]["N"] for item in items] == ["1800000000"] * 4


def test_a_write_that_is_throttled_beyond_the_deadline_is_an_error(client: Any, tables: Tables) -> None:
    plain = made(client, tables)
    plain.prepare(RUNS)
    throttled = made(ThrottledClient(client, times=FOR_EVER), tables)
    began = time.monotonic()

    with pytest.raises(Retriable, match="ThrottlingException"):
        throttled.prepare([replace(RUNS[0], lane=Lane(FLOW, "others", 0))], in_seconds(0.8))
    with pytest.raises(Retriable, match="ThrottlingException"):
        throttled.confirm(COMMITTED, in_seconds(0.8))
    with pytest.raises(Retriable, match="ThrottlingException"):
        throttled.withdraw(RUNS, in_seconds(0.8))

    assert time.monotonic() - began < 10, "without a deadline they are tried for 30 s"


def test_an_error_that_does_not_pass_is_raised_at_once(client: Any, tables: Tables) -> None:
    throttled = made(ThrottledClient(client, code="ValidationException", times=FOR_EVER), tables)

    with pytest.raises(Retriable, match="ValidationException"):
        throttled.prepare(RUNS, in_seconds(30))

    assert refused(throttled) == {1}


def test_writes_that_were_carried_out_all_the_same_are_harmless(client: Any, tables: Tables) -> None:
    """The insert finds its own entry, and the updates leave it as it is."""
    throttled = made(ThrottledClient(client, code="InternalServerError", carried_out=True), tables)

    throttled.prepare(RUNS, in_seconds(30))
    assert [each.run for each in heads(client, tables).values()] == RUNS
    throttled.confirm(COMMITTED[:16], in_seconds(30))
    throttled.withdraw(RUNS[16:], in_seconds(30))

    assert [each.run for each in heads(client, tables).values()] == [*COMMITTED[:16], *[None] * 24]
    items = client.scan(TableName=tables.offset_map, ConsistentRead=True)["Items"]
    assert {int(item["number"]["N"]) for item in items} == {0}


def test_an_insert_whose_answer_was_lost_and_that_another_has_withdrawn_is_a_lost_race(
    client: Any, tables: Tables
) -> None:
    @dataclass
    class WithdrawnMeanwhile:
        def put_item(self, **request: Any) -> Any:
            first = not heads(client, tables)[LANE].run
            answer = client.put_item(**request)
            if first:
                made(client, tables).withdraw(RUNS[:1])
                raise ClientError({"Error": {"Code": "InternalServerError", "Message": "lost"}}, "PutItem")
            return answer

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    with pytest.raises(LostRace, match="settled this attempt"):
        made(WithdrawnMeanwhile(), tables).prepare(RUNS[:1], in_seconds(30))


def test_a_run_that_is_gone_is_found_behind_throttled_confirmations(client: Any, tables: Tables) -> None:
    made(client, tables).prepare(RUNS[16:])

    with pytest.raises(ChainBroken):
        made(ThrottledClient(client), tables).confirm(COMMITTED, in_seconds(30))

    assert [each.run for each in heads(client, tables).values()] == [*[None] * 16, *COMMITTED[16:]]


def test_keys_that_are_left_unprocessed_are_read_again(client: Any, tables: Tables) -> None:
    stop = Stop(reason="refused", upstream_offset=5, detail="", at=7)
    plain = DynamoDbLaneStates(client, tables.lanes)
    for lane in LANES[:3]:
        plain.stop(lane, stop)
    throttled = DynamoDbLaneStates(ThrottledClient(client, times=3), tables.lanes)

    assert throttled.read(LANES, in_seconds(30)) == dict.fromkeys(LANES[:3], LaneState(stop=stop))


def test_entries_that_are_left_unprocessed_are_read_again_and_at_last_an_error(
    client: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_ = Slice.of(LANE)
    made(client, tables).prepare([run(position, position + 1, (position, position, 1)) for position in range(9)])

    throttled = DynamoDbJournals(ThrottledClient(client, times=3), tables.offset_map)
    assert sorted(throttled.read(slice_, range(9))) == [*range(9)]

    monkeypatch.setattr(journals, "tries", lambda deadline: retries.tries(deadline, seconds=0.5))
    with pytest.raises(Retriable, match="throttled"):
        DynamoDbJournals(ThrottledClient(client, times=FOR_EVER), tables.offset_map).read(slice_, range(9))


def test_keys_that_are_left_unprocessed_beyond_the_deadline_are_an_error(client: Any, tables: Tables) -> None:
    throttled = DynamoDbLaneStates(ThrottledClient(client, times=FOR_EVER), tables.lanes)
    began = time.monotonic()

    with pytest.raises(Retriable, match="throttled"):
        throttled.read(LANES, in_seconds(0.8))

    assert time.monotonic() - began < 10, "without a deadline they are tried for 30 s"


def test_items_that_are_left_unprocessed_are_written_again(client: Any, tables: Tables) -> None:
    documents = {f"task/{number}": b"{}" for number in range(60)}

    DynamoDbDocuments(ThrottledClient(client, times=3), tables.control).write(FLOW, documents)

    assert DynamoDbDocuments(client, tables.control).read(FLOW, "task/") == documents


@pytest.mark.parametrize("carried_out", [False, True])
def test_documents_that_are_left_unwritten_under_a_lease_are_written_again(
    client: Any,
    tables: Tables,
    carried_out: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    """New ones and known ones; an insert may have been carried out, and not been answered."""
    documents = {f"task/{number}": b"{}" for number in range(60)}
    DynamoDbDocuments(client, tables.control).write(FLOW, dict.fromkeys(list(documents)[:30], b"before"), epoch=7)

    throttled = ThrottledClient(client, times=3, carried_out=carried_out)
    DynamoDbDocuments(throttled, tables.control).write(FLOW, documents, epoch=8)

    assert DynamoDbDocuments(client, tables.control).read(FLOW, "task/") == documents
    assert sum(throttled.refused.values()) > 60


def test_documents_that_stay_unwritten_under_a_lease_are_an_error(
    client: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "tries", lambda deadline: retries.tries(deadline, seconds=0.5))
    with pytest.raises(Retriable, match="throttled"):
        DynamoDbDocuments(ThrottledClient(client, times=FOR_EVER), tables.control).write(
            FLOW, {"task/a": b"{}", "task/b": b"{}"}, epoch=7
        )
