"""Stores under throttling: what DynamoDB leaves undone inside an answer is done before the deadline, or is an error."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb import client as calls
from mirrorless.adapters.dynamodb import state_store
from mirrorless.adapters.dynamodb.chains import DynamoDbChains, DynamoDbJournals
from mirrorless.adapters.dynamodb.direct import direct_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.entry import Journal
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Stop
from mirrorless.clock import deadline_in
from mirrorless.errors import ChainBroken, LostRace, Retriable
from mirrorless.flow.settings import Tables
from tests.support.chains import FLOW, LANE, reset, run

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


@dataclass(slots=True)
class ThrottledClient:
    """Throttled as DynamoDB Local never is: every write and every second part of a batch, as often as `times` says."""

    client: Any
    times: int = 1
    code: str = "ThrottlingException"
    carried_out: bool = False
    """Whether a refused write took effect all the same, as it may at an InternalServerError."""
    refused: Counter[str] = field(default_factory=Counter)
    """How often, by write, key or item."""

    def _write(self, operation: str, **request: Any) -> Any:
        write = getattr(self.client, operation)
        name = f"{operation} {json.dumps(request, default=repr)}"
        if self.refused[name] >= self.times:
            return write(**request)
        self.refused[name] += 1
        if self.carried_out:
            write(**request)
        raise ClientError({"Error": {"Code": self.code, "Message": "throttled"}}, operation)

    def batch_get_item(self, *, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's."""
        ((table, request),) = RequestItems.items()
        undone = self._undone(request["Keys"])
        read, left = _split(request["Keys"], undone)
        asked = {table: {**request, "Keys": read}}
        answer = self.client.batch_get_item(RequestItems=asked) if read else {"Responses": {}}
        return {**answer, "UnprocessedKeys": {table: {**request, "Keys": left}} if left else {}}

    def batch_write_item(self, *, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's."""
        ((table, requests),) = RequestItems.items()
        written, left = _split(requests, self._undone(requests))
        if written:
            self.client.batch_write_item(RequestItems={table: written})
        return {"UnprocessedItems": {table: left} if left else {}}

    def batch_execute_statement(self, *, Statements: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 -- boto3's
        """As boto3's. A refused statement may have been carried out all the same, see `carried_out`."""
        undone = self._undone(Statements)
        wanted = [each for index, each in enumerate(Statements) if self.carried_out or index not in undone]
        answers = iter(self.client.batch_execute_statement(Statements=wanted)["Responses"] if wanted else [])
        responses = [
            next(answers) if self.carried_out or index not in undone else {} for index in range(len(Statements))
        ]
        refusal = {"Error": {"Code": "ThrottlingError", "Message": "throttled"}}
        return {"Responses": [refusal if index in undone else each for index, each in enumerate(responses)]}

    def _undone(self, parts: list[dict[str, Any]]) -> set[int]:
        """The indices of what is refused this time. A part that is asked for alone is as good as a second one."""
        found: set[int] = set()
        for index, part in enumerate(parts):
            name = json.dumps(part, default=repr)
            if (index % 2 or name in self.refused) and self.refused[name] < self.times:
                self.refused[name] += 1
                found.add(index)
        return found

    def __getattr__(self, name: str) -> Any:
        return partial(self._write, name) if name in {"put_item", "update_item"} else getattr(self.client, name)


def _split(parts: list[dict[str, Any]], undone: set[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The parts that are done, and those that are not."""
    return (
        [part for index, part in enumerate(parts) if index not in undone],
        [part for index, part in enumerate(parts) if index in undone],
    )


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

    throttled.prepare(RUNS, deadline_in(30))
    assert heads(client, tables) == {each.lane: Head(generation=0, position=0, run=each) for each in RUNS}
    throttled.confirm(COMMITTED[:16], deadline_in(30))
    throttled.withdraw(RUNS[16:], deadline_in(30))

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
        throttled.prepare([replace(RUNS[0], lane=Lane(FLOW, "others", 0))], deadline_in(0.8))
    with pytest.raises(Retriable, match="ThrottlingException"):
        throttled.confirm(COMMITTED, deadline_in(0.8))
    with pytest.raises(Retriable, match="ThrottlingException"):
        throttled.withdraw(RUNS, deadline_in(0.8))

    assert time.monotonic() - began < 10, "without a deadline they are tried for 30 s"


def test_an_error_that_does_not_pass_is_raised_at_once(client: Any, tables: Tables) -> None:
    throttled = made(ThrottledClient(client, code="ValidationException", times=FOR_EVER), tables)

    with pytest.raises(Retriable, match="ValidationException"):
        throttled.prepare(RUNS, deadline_in(30))

    assert refused(throttled) == {1}


def test_writes_that_were_carried_out_all_the_same_are_harmless(client: Any, tables: Tables) -> None:
    """The insert finds its own entry, and the updates leave it as it is."""
    throttled = made(ThrottledClient(client, code="InternalServerError", carried_out=True), tables)

    throttled.prepare(RUNS, deadline_in(30))
    assert [each.run for each in heads(client, tables).values()] == RUNS
    throttled.confirm(COMMITTED[:16], deadline_in(30))
    throttled.withdraw(RUNS[16:], deadline_in(30))

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
        made(WithdrawnMeanwhile(), tables).prepare(RUNS[:1], deadline_in(30))


def test_a_run_that_is_gone_is_found_behind_throttled_confirmations(client: Any, tables: Tables) -> None:
    made(client, tables).prepare(RUNS[16:])

    with pytest.raises(ChainBroken):
        made(ThrottledClient(client), tables).confirm(COMMITTED, deadline_in(30))

    assert [each.run for each in heads(client, tables).values()] == [*[None] * 16, *COMMITTED[16:]]


def test_keys_that_are_left_unprocessed_are_read_again_until_the_deadline(client: Any, tables: Tables) -> None:
    stop = Stop(reason="refused", upstream_offset=5, detail="", at=7)
    plain = DynamoDbLaneStates(client, tables.lanes)
    for lane in LANES[:3]:
        plain.stop(lane, stop)
    throttled = DynamoDbLaneStates(ThrottledClient(client, times=3), tables.lanes)

    assert throttled.read(LANES, deadline_in(30)) == dict.fromkeys(LANES[:3], LaneState(stop=stop))
    began = time.monotonic()
    with pytest.raises(Retriable, match="throttled"):
        DynamoDbLaneStates(ThrottledClient(client, times=FOR_EVER), tables.lanes).read(LANES, deadline_in(0.8))
    assert time.monotonic() - began < 10, "without a deadline they are tried for 30 s"


def test_entries_that_are_left_unprocessed_are_read_again_and_at_last_an_error(
    client: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.of(LANE)
    made(client, tables).prepare([run(position, position + 1, (position, position, 1)) for position in range(9)])

    throttled = DynamoDbJournals(ThrottledClient(client, times=3), tables.offset_map)
    assert sorted(throttled.read(journal, range(9))) == [*range(9)]

    monkeypatch.setattr(calls, "tries", partial(calls.tries, seconds=0.5))
    with pytest.raises(Retriable, match="throttled"):
        DynamoDbJournals(ThrottledClient(client, times=FOR_EVER), tables.offset_map).read(journal, range(9))


@pytest.mark.parametrize(
    ("epochs", "carried_out"),
    [
        pytest.param((None, None), False, id="without a lease"),
        pytest.param((7, 8), False, id="under a lease"),
        pytest.param((7, 8), True, id="under a lease, carried out and not answered"),
    ],
)
def test_documents_that_are_left_unwritten_are_written_again(
    client: Any, tables: Tables, epochs: tuple[int | None, int | None], *, carried_out: bool
) -> None:
    """New ones and known ones."""
    before, now = epochs
    documents = {f"task/{number}": b"{}" for number in range(60)}
    DynamoDbDocuments(client, tables.control).write(FLOW, dict.fromkeys(list(documents)[:30], b"before"), epoch=before)

    throttled = ThrottledClient(client, times=3, carried_out=carried_out)
    DynamoDbDocuments(throttled, tables.control).write(FLOW, documents, epoch=now)

    assert DynamoDbDocuments(client, tables.control).read(FLOW, "task/") == documents
    assert sum(throttled.refused.values()) > 60


def test_documents_that_stay_unwritten_under_a_lease_are_an_error(
    client: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "tries", lambda deadline: calls.tries(deadline, seconds=0.5))
    with pytest.raises(Retriable, match="throttled"):
        DynamoDbDocuments(ThrottledClient(client, times=FOR_EVER), tables.control).write(
            FLOW, {"task/a": b"{}", "task/b": b"{}"}, epoch=7
        )
