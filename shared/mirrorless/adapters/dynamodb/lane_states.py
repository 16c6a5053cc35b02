"""Stops, leases and the operator's orders in DynamoDB.

a lane    <flow> <topic>-<partition>   stopped, left_out (quarantine: of an earlier version), lease, waiting, begun
a flow    <flow>                       stopped: all its lanes, read in the request that reads lanes
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from mirrorless.adapters.dynamodb.chains import parse_lane
from mirrorless.adapters.dynamodb.client import batches, pages, translated, unless_unmet
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import RUNNING, LaneState, Lease, LeftOut, Stop
from mirrorless.clock import Deadline
from mirrorless.errors import LeaseHeld

KEYS = 100
"""Keys that one BatchGetItem takes."""


class DynamoDbLaneStates:
    """Implements `mirrorless.ports.stores.LaneStates`, and what the operator's commands need beside it."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table
        self._answered: tuple[int, float] | None = None
        """The store's time in its last answer, and when that came."""

    def store_now(self) -> int | None:
        """See `FlowStops.store_now`."""
        if self._answered is None:
            return None
        at, came = self._answered
        return at + int((time.monotonic() - came) * 1000)

    def read(self, lanes: Iterable[Lane], deadline: Deadline | None = None) -> dict[Lane, LaneState]:
        """See `LaneStates.read`."""
        wanted = list(lanes)
        flows = sorted({lane.flow for lane in wanted}, key=str)
        room = KEYS - len(flows)
        found: dict[Lane, LaneState] = {}
        for start in range(0, len(wanted), room):
            # The flow's stop is read with the lanes: it costs a read unit, and no request.
            items = self._items([*map(str, flows), *map(str, some := wanted[start : start + room])], deadline)
            of_flows = {flow: _stop(item) for flow in flows if (item := items.pop(str(flow), None)) is not None}
            found |= dict(map(_state, items.values()))
            for lane in some:
                # The flow's stops what is replicated, and not the job that brings it back.
                of_flow = None if lane.is_of_a_job else of_flows.get(lane.flow)
                if of_flow is not None and found.get(lane, RUNNING).stop is None:
                    found[lane] = replace(found.get(lane, RUNNING), stop=of_flow, of_flow=True)
        return found

    def _items(self, names: Sequence[str], deadline: Deadline | None) -> dict[str, dict[str, Any]]:
        """Those of some items that are there, by key."""
        found: dict[str, dict[str, Any]] = {}
        keys, call = [_key(name) for name in names], self._client.batch_get_item
        for answer in batches("read lane states", names[-1], self._table, keys, call, deadline=deadline):
            if date := answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"):
                self._answered = int(parsedate_to_datetime(date).timestamp() * 1000), time.monotonic()
            found |= {item["lane"]["S"]: item for item in answer["Responses"].get(self._table, [])}
        return found

    def stop(self, lane: Lane, stop: Stop) -> None:
        """See `LaneStates.stop`."""
        self._stop(str(lane), stop)

    def _stop(self, key: str, stop: Stop) -> None:
        self._update(key, "SET stopped = :stop", {":stop": _stored_stop(stop)})

    def wait(self, lane: Lane, upstream_offset: int | None) -> None:
        """See `LaneStates.wait`."""
        if upstream_offset is None:
            self._update(lane, "REMOVE waiting", {})
            return
        self._update(lane, "SET waiting = :offset", {":offset": {"N": str(upstream_offset)}})

    def drop(self, lane: Lane, lease: Lease) -> None:
        """See `LaneStates.drop`."""
        values = {":me": {"S": lease.holder}, ":until": {"N": str(lease.until)}}
        condition = "lease.holder = :me AND lease.#until = :until"
        self._conditionally(lane, "REMOVE lease", condition, values, names={"#until": "until"})

    def begin(self, lane: Lane, generation: int) -> None:
        """See `LaneStates.begin`."""
        self._update(lane, "SET begun = :generation", {":generation": {"N": str(generation)}})

    def take(self, lane: Lane, lease: Lease, *, now: int) -> LaneState:
        """See `Leases.take`."""
        # The usual case first: a lane that nobody has. One of the holder's own is kept, with who waits for it.
        taken = self._conditionally(
            lane,
            "SET lease = :lease REMOVE waiting",
            "attribute_not_exists(lease) OR (lease.#until <= :now AND lease.holder <> :me)",
            {":lease": _stored(lease), ":now": {"N": str(now)}, ":me": {"S": lease.holder}},
            names={"#until": "until"},
        )
        state = taken or self._keep(lane, lease)
        if state is not None:
            return state
        held = self.read([lane]).get(lane, LaneState()).lease
        until = datetime.fromtimestamp(held.until / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if held else ""
        raise LeaseHeld(
            f"job run {held.holder} has this lane until {until}" if held else "a job just let go of this lane",
            where=str(lane),
            hint=f"wait for that job; if it is dead: `mirrorless lanes release {lane.arguments} --execute`",
        )

    def keep(self, lane: Lane, lease: Lease) -> bool:
        """See `Leases.keep`."""
        return self._keep(lane, lease) is not None

    def let_go(self, lane: Lane, holder: str, *, position: int | None = None) -> bool:
        """See `Leases.let_go`."""
        condition, values = "lease.holder = :me", {":me": {"S": holder}}
        if position is not None:
            condition += " AND (attribute_not_exists(waiting) OR waiting <= :position)"
            values[":position"] = {"N": str(position)}
        if self._conditionally(lane, "REMOVE lease", condition, values) is not None:
            return True
        lease = self.read([lane]).get(lane, LaneState()).lease
        return lease is None or lease.holder != holder

    def resume(self, lane: Lane) -> None:
        """Let the lane try again from where it stopped, or go on from where its mapping is."""
        self._update(lane, "REMOVE stopped, waiting", {})

    def retry(self, lane: Lane, stop: Stop) -> bool:
        """See `RefusedStops.retry`."""
        values = {":at": {"N": str(stop.at)}, ":offset": {"N": str(stop.upstream_offset)}}
        condition = "stopped.#at = :at AND stopped.upstream_offset = :offset"
        return self._conditionally(lane, "REMOVE stopped", condition, values, names={"#at": "at"}) is not None

    def quarantine(self, lane: Lane, *orders: LeftOut) -> None:
        """Let these be all orders of a lane to leave out records, and let it go on."""
        stored = [
            {
                "M": {
                    "first": {"N": str(order.first)},
                    "next": {"N": str(order.next)},
                    "cause": {"S": order.cause},
                    "why": {"S": order.why},
                }
            }
            for order in orders
        ]
        self._update(lane, "REMOVE stopped, quarantine SET left_out = :orders", {":orders": {"L": stored}})

    def stopped(self, flow: FlowName) -> dict[Lane, LaneState]:
        """Every stopped lane of a flow; see `noted`. What was noted within the last second may be missing.

        Rounds read this every few seconds, and each lane that has begun is in the table.
        """
        return {lane: state for lane, state in self._noted(flow, consistent=False).items() if state.stop is not None}

    def noted(self, flow: FlowName) -> dict[Lane, LaneState]:
        """Every lane of a flow of which anything was ever noted: a stop of its own, an order, a lease.

        Reads the whole table. That of a flow is none of them.
        """
        return self._noted(flow, consistent=True)

    def _noted(self, flow: FlowName, *, consistent: bool) -> dict[Lane, LaneState]:
        page = partial(self._client.scan, TableName=self._table, ConsistentRead=consistent)
        states = dict(_state(item) for item in pages("read lane states", str(flow), page) if not _is_flow(item))
        return {lane: state for lane, state in states.items() if lane.flow == flow}

    def _keep(self, lane: Lane, lease: Lease) -> LaneState | None:
        values = {":lease": _stored(lease), ":me": {"S": lease.holder}}
        return self._conditionally(lane, "SET lease = :lease", "lease.holder = :me", values)

    def _conditionally(
        self,
        lane: Lane,
        expression: str,
        condition: str,
        values: dict[str, Any],
        *,
        names: dict[str, str] | None = None,
    ) -> LaneState | None:
        """Update where a condition holds; the state afterwards, or None where it does not hold."""
        request: dict[str, Any] = {
            "TableName": self._table,
            "Key": _key(lane),
            "UpdateExpression": expression,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_NEW",
        }
        if names:
            request["ExpressionAttributeNames"] = names
        with translated("update a lane's lease", str(lane)):
            answer = unless_unmet(self._client.update_item, **request)
        return None if answer is None else _state(answer["Attributes"])[1]

    def _update(self, key: Lane | str, expression: str, values: dict[str, Any]) -> None:
        request = {"TableName": self._table, "Key": _key(key), "UpdateExpression": expression}
        if values:
            request["ExpressionAttributeValues"] = values
        with translated("update a lane's state", str(key)):
            self._client.update_item(**request)


def _stored(lease: Lease) -> dict[str, Any]:
    return {"M": {"holder": {"S": lease.holder}, "until": {"N": str(lease.until)}}}


def _stored_stop(stop: Stop) -> dict[str, Any]:
    stored: dict[str, Any] = {
        "reason": {"S": stop.reason},
        "upstream_offset": {"N": str(stop.upstream_offset)},
        "detail": {"S": stop.detail},
        "at": {"N": str(stop.at)},
    }
    if stop.cause:
        stored["cause"] = {"S": stop.cause}
    if stop.untrue_from is not None:
        stored["untrue_from"] = {"N": str(stop.untrue_from)}
    if stop.by_store:
        stored["by_store"] = {"BOOL": True}
    if stop.replicated:
        stored["replicated"] = {"L": [{"N": str(each)} for ends in stop.replicated for each in ends]}
    return {"M": stored}


def _key(key: Lane | str) -> dict[str, Any]:
    return {"lane": {"S": str(key)}}


def _is_flow(item: dict[str, Any]) -> bool:
    """Whether it is a flow's and no lane's: no alias has a space."""
    return " " not in item["lane"]["S"]


def _stop(item: dict[str, Any]) -> Stop | None:
    if "stopped" not in item:
        return None
    stored = item["stopped"]["M"]
    replicated = [int(each["N"]) for each in stored.get("replicated", {}).get("L", [])]
    return Stop(
        reason=stored["reason"]["S"],
        upstream_offset=int(stored["upstream_offset"]["N"]),
        detail=stored["detail"]["S"],
        cause=stored["cause"]["S"] if "cause" in stored else "",
        at=int(stored["at"]["N"]),
        untrue_from=int(stored["untrue_from"]["N"]) if "untrue_from" in stored else None,
        by_store="by_store" in stored,
        replicated=tuple(zip(replicated[::2], replicated[1::2], strict=True)),
    )


def _state(item: dict[str, Any]) -> tuple[Lane, LaneState]:
    lease = None
    if "lease" in item:
        held = item["lease"]["M"]
        lease = Lease(holder=held["holder"]["S"], until=int(held["until"]["N"]))
    state = LaneState(
        stop=_stop(item),
        quarantine=_left_out(item),
        lease=lease,
        waiting=int(item["waiting"]["N"]) if "waiting" in item else None,
        begun=int(item["begun"]["N"]) if "begun" in item else None,
    )
    return parse_lane(item["lane"]["S"]), state


def _left_out(item: dict[str, Any]) -> tuple[LeftOut, ...]:
    single = LeftOut.each(*map(int, item.get("quarantine", {}).get("NS", [])))
    stored = [each["M"] for each in item.get("left_out", {}).get("L", [])]
    orders = [
        LeftOut(
            first=int(each["first"]["N"]), next=int(each["next"]["N"]), cause=each["cause"]["S"], why=each["why"]["S"]
        )
        for each in stored
    ]
    return tuple(sorted((*single, *orders)))


class DynamoDbLaneOrders(DynamoDbLaneStates):
    """Lane states as the operator's command uses them."""

    def begin_anew(self, lane: Lane, stop: Stop | None = None) -> None:
        """Drop the stop, or put another in its place, and drop who waits, a job's lease and every quarantine order.

        The offsets of another generation are other records.
        """
        if stop is None:
            self._update(lane, "REMOVE stopped, quarantine, left_out, waiting, lease", {})
        else:
            expression = "SET stopped = :stop REMOVE quarantine, left_out, waiting, lease"
            self._update(lane, expression, {":stop": _stored_stop(stop)})

    def release(self, lane: Lane, holder: str) -> None:
        """End the lease of a job that is dead, as its term would: what it left out is still to come."""
        ended = Lease(holder=f"{holder} (released)", until=0)  # of another name: what is ended is not renewed
        self._conditionally(
            lane, "SET lease = :lease", "lease.holder = :me", {":lease": _stored(ended), ":me": {"S": holder}}
        )

    def flow_stop(self, flow: FlowName) -> Stop | None:
        """See `FlowStops.flow_stop`."""
        item = self._items([str(flow)], None).get(str(flow))
        return None if item is None else _stop(item)

    def stop_flow(self, flow: FlowName, stop: Stop) -> None:
        """See `FlowStops.stop_flow`."""
        self._stop(str(flow), stop)

    def resume_flow(self, flow: FlowName) -> None:
        """See `FlowStops.resume_flow`."""
        self._update(str(flow), "REMOVE stopped", {})
