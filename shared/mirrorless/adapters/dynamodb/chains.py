"""The offset map in DynamoDB: conditional inserts, and reads by position.

A link's key is its generation and its position as digits of fixed width, so that the order of the keys is the
order of the chain. Inserts go in batches of 25 by PartiQL, whose INSERT fails where an item stands: half the price
of a transaction, and all that the protocol needs, because it withdraws its own runs if one of them lost. Statements
of a batch fail one by one, inside a successful answer; those that were throttled are tried again.
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/ql-reference.multiplestatements.batching.html)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mirrorless.adapters.dynamodb.client import translated
from mirrorless.adapters.dynamodb.retries import tries
from mirrorless.errors import ChainBroken, LostRace, Retriable
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import Head, head_of
from mirrorless.ports.kafka import Deadline
from mirrorless.run import Link, Reset, Run, pack_spans, unpack_spans
from mirrorless.tables import EXPIRY

STATEMENTS = 25
"""Statements that one BatchExecuteStatement takes."""

OPEN_SECONDS = 5.0
"""Of tries while a transaction is open, which holds up the target's readers and ends by itself after its timeout."""

_TAKEN = "DuplicateItem"
_TRANSIENT = frozenset(
    (
        "InternalServerError",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ThrottlingError",
        "TransactionConflict",
    )
)
"""Errors of a statement that pass. After an InternalServerError an insert may stand, and then collides with itself: the
writer aborts and withdraws as after a lost race."""

Item = dict[str, dict[str, Any]]


class DynamoDbChains:
    """Implements `mirrorless.ports.stores.Chains`."""

    def __init__(self, client: Any, table: str, *, retention_days: int = 30) -> None:
        """Args: client: a boto3 DynamoDB client. retention_days: after which a link may expire."""
        self._client = client
        self._table = table
        self._retention_seconds = retention_days * 86_400
        own = '"lane" = ? AND "link" = ? AND "attempt" = ?'
        self._insert = f'INSERT INTO "{table}" VALUE '
        self._confirm = f'UPDATE "{table}" SET "state" = \'committed\' WHERE {own}'  # noqa: S608 -- our table's name
        self._renew = f'UPDATE "{table}" SET "{EXPIRY}" = ? WHERE {own}'  # noqa: S608 -- same
        self._withdraw = f'DELETE FROM "{table}" WHERE {own} AND "state" = \'prepared\''  # noqa: S608 -- same

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """See `Chains.heads`."""
        return {lane: head_of(self._newest(lane)) for lane in lanes}

    def prepare(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """See `Chains.prepare`."""
        inserts = [_insertion(self._insert, self._item(run)) for run in runs]
        failures = self._execute(inserts, runs, "prepare runs", tries(deadline, seconds=OPEN_SECONDS))
        lost = [run for run, code in failures if code == _TAKEN]
        if lost:
            raise LostRace("a rival's link stands at this position", where=lost[0].lane.at(lost[0].position))
        _raise_first(failures, "prepare a run")

    def confirm(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """See `Chains.confirm`."""
        updates = [{"Statement": self._confirm, "Parameters": _own_key(run)} for run in runs]
        failures = self._execute(updates, runs, "confirm runs", tries(deadline))
        gone = [run for run, code in failures if code == "ConditionalCheckFailed"]
        if gone:
            raise ChainBroken(
                "a committed run is no longer in the offset map",
                where=gone[0].lane.at(gone[0].position),
                hint="it was deleted or replaced: compare the target with the map before the lane goes on",
            )
        _raise_first(failures, "confirm a run")

    def withdraw(self, runs: Sequence[Run], deadline: Deadline | None = None) -> None:
        """See `Chains.withdraw`."""
        deletions = [{"Statement": self._withdraw, "Parameters": _own_key(run)} for run in runs]
        failures = self._execute(deletions, runs, "withdraw runs", tries(deadline))
        # A rival's run at the same key, or none: there is nothing of ours to delete.
        _raise_first([each for each in failures if each[1] != "ConditionalCheckFailed"], "withdraw a run")

    def reset(self, link: Reset) -> None:
        """See `Chains.reset`."""
        failures = self._execute([_insertion(self._insert, _reset_item(link))], [link], "reset a lane", tries(None))
        if any(code == _TAKEN for _, code in failures):
            raise LostRace("the lane has moved on meanwhile", where=link.lane.at(link.position))
        _raise_first(failures, "reset a lane")

    def renew(self, runs: Sequence[Run], expires_at: int) -> None:
        """See `Chains.renew`."""
        expiry = {"N": str(expires_at)}
        updates = [{"Statement": self._renew, "Parameters": [expiry, *_own_key(run)]} for run in runs]
        failures = self._execute(updates, runs, "renew runs", tries(None))
        _raise_first([each for each in failures if each[1] != "ConditionalCheckFailed"], "renew a run")

    def at_or_before(self, lane: Lane, generation: int, upstream: int) -> Link | None:
        """See `Chains.at_or_before`."""
        links = self._query(
            lane, "#k BETWEEN :low AND :high", _key(generation, 0), _key(generation, upstream), forward=False, limit=1
        )
        return links[0] if links else None

    def after(self, lane: Lane, generation: int, upstream: int, *, limit: int) -> list[Link]:
        """See `Chains.after`."""
        return self._query(
            lane,
            "#k BETWEEN :low AND :high",
            _key(generation, upstream + 1),
            _key(generation, 2**63 - 1),
            forward=True,
            limit=limit,
        )

    def _newest(self, lane: Lane) -> Link | None:
        links = self._query(lane, None, forward=False, limit=1)
        return links[0] if links else None

    def _query(self, lane: Lane, condition: str | None, *bounds: str, forward: bool, limit: int) -> list[Link]:
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "lane = :lane" + (f" AND {condition}" if condition else ""),
            "ExpressionAttributeValues": {":lane": {"S": str(lane)}},
            "ConsistentRead": True,
            "ScanIndexForward": forward,
            "Limit": limit,
        }
        if condition:
            request["ExpressionAttributeNames"] = {"#k": "link"}
            request["ExpressionAttributeValues"] |= {":low": {"S": bounds[0]}, ":high": {"S": bounds[1]}}
        with translated("read the offset map", str(lane)):
            items = self._client.query(**request)["Items"]
        return [_link(lane, item) for item in items]

    def _execute(
        self, statements: Sequence[dict[str, Any]], links: Sequence[Link], what: str, attempts: Iterator[None]
    ) -> list[tuple[Link, str]]:
        """Run the statements, and those that failed for a reason that passes once per attempt.

        Returns:
            the links whose statement failed, with DynamoDB's code. Once an insert has found its key taken, nothing is
            tried again.
        """
        failures: list[tuple[Link, str]] = []
        waiting = list(zip(links, statements, strict=True))
        passing: list[str] = []
        for _ in attempts:
            errors = self._errors(waiting, what)
            failed = [(each, code) for each, code in zip(waiting, errors, strict=True) if code]
            failures += [(link, code) for (link, _), code in failed if code not in _TRANSIENT]
            waiting = [each for each, code in failed if code in _TRANSIENT]
            passing = [code for _, code in failed if code in _TRANSIENT]
            if not waiting or any(code == _TAKEN for _, code in failures):
                break
        return failures + [(link, code) for (link, _), code in zip(waiting, passing, strict=True)]

    def _errors(self, statements: Sequence[tuple[Link, dict[str, Any]]], what: str) -> list[str]:
        """Run the statements in batches, once; DynamoDB's code for each, empty for a success."""
        codes: list[str] = []
        for start in range(0, len(statements), STATEMENTS):
            batch = statements[start : start + STATEMENTS]
            with translated(what, str(batch[0][0].lane)):
                responses = self._client.batch_execute_statement(Statements=[each for _, each in batch])["Responses"]
            codes += [response.get("Error", {}).get("Code", "") for response in responses]
        return codes

    def _item(self, run: Run) -> Item:
        item: Item = {
            "lane": {"S": str(run.lane)},
            "link": {"S": _key(run.generation, run.position)},
            "kind": {"S": "run"},
            "next": {"N": str(run.next)},
            "spans": {"B": pack_spans(run.spans)},
            "state": {"S": run.state},
            "writer": {"S": run.writer},
            "attempt": {"S": run.attempt},
            "fingerprint": {"B": run.fingerprint},
            "digest": {"B": run.digest},
            "oldest": {"N": str(run.oldest_timestamp)},
            "newest": {"N": str(run.newest_timestamp)},
            "records": {"N": str(run.records)},
            "bytes": {"N": str(run.bytes)},
            "request": {"S": run.request},
            "settled_at": {"N": str(run.settled_at)},
            EXPIRY: {"N": str(run.settled_at // 1000 + self._retention_seconds)},
        }
        if run.examined:
            item["examined"] = {"BOOL": True}
        if run.quarantined:
            item["quarantined"] = {"L": [{"N": str(offset)} for offset in run.quarantined]}
        return item


def _key(generation: int, position: int) -> str:
    return f"{generation:06d}/{position:019d}"


def _own_key(run: Run) -> list[dict[str, str]]:
    return [{"S": str(run.lane)}, {"S": _key(run.generation, run.position)}, {"S": run.attempt}]


def _insertion(insert: str, item: Item) -> dict[str, Any]:
    names = ",".join(f"'{name}':?" for name in item)
    return {"Statement": f"{insert}{{{names}}}", "Parameters": list(item.values())}


def _reset_item(link: Reset) -> Item:
    return {
        "lane": {"S": str(link.lane)},
        "link": {"S": _key(link.generation, link.position)},
        "kind": {"S": "reset"},
        "next": {"N": str(link.next)},
        "to_generation": {"N": str(link.to_generation)},
        "reason": {"S": link.reason},
        "at": {"N": str(link.at)},
    }


def _link(lane: Lane, item: Item) -> Link:
    generation, _, position = item["link"]["S"].partition("/")
    if item["kind"]["S"] == "reset":
        return Reset(
            lane=lane,
            generation=int(generation),
            position=int(position),
            to_generation=int(item["to_generation"]["N"]),
            next=int(item["next"]["N"]),
            reason=item["reason"]["S"],
            at=int(item["at"]["N"]),
        )
    state = item["state"]["S"]
    return Run(
        lane=lane,
        generation=int(generation),
        position=int(position),
        next=int(item["next"]["N"]),
        spans=unpack_spans(item["spans"]["B"]),
        state="committed" if state == "committed" else "prepared",
        writer=item["writer"]["S"],
        attempt=item["attempt"]["S"],
        fingerprint=item["fingerprint"]["B"],
        digest=item["digest"]["B"],
        oldest_timestamp=int(item["oldest"]["N"]),
        newest_timestamp=int(item["newest"]["N"]),
        records=int(item["records"]["N"]),
        bytes=int(item["bytes"]["N"]),
        quarantined=tuple(int(each["N"]) for each in item.get("quarantined", {}).get("L", [])),
        request=item["request"]["S"],
        settled_at=int(item["settled_at"]["N"]),
        examined=item.get("examined", {}).get("BOOL", False),
    )


def _raise_first(failures: Sequence[tuple[Link, str]], what: str) -> None:
    for link, code in failures:
        raise Retriable(f"DynamoDB refused to {what}: {code}", where=link.lane.at(link.position))


def parse_lane(text: str) -> Lane:
    """The inverse of `str(lane)`."""
    flow, _, topic_partition = text.partition(" ")
    topic, _, partition = topic_partition.rpartition("-")
    return Lane(FlowName.parse(flow), topic, int(partition))


def lanes_in(client: Any, table: str, flow: FlowName) -> list[Lane]:
    """Every lane of a flow that has an item in this table, in order: a scan of its keys, never of the offset map.

    Raises:
        Retriable: DynamoDB does not answer.
    """
    names: set[str] = set()
    request: dict[str, Any] = {"TableName": table, "ProjectionExpression": "lane", "ConsistentRead": True}
    while True:
        with translated(f"list the lanes of {table}", str(flow)):
            answer = client.scan(**request)
        names.update(item["lane"]["S"] for item in answer["Items"])
        if "LastEvaluatedKey" not in answer:
            return sorted(lane for lane in map(parse_lane, names) if lane.flow == flow)
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
