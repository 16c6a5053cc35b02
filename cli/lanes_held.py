"""`mirrorless lanes hold | resume | release`: orders for one lane, a topic's, or all of a flow.

A hold is known to every function that is warm within a minute: for so long it may trust what it has read.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cli.deployment import DeployedFlows, Stores
from cli.errors import BadInput
from cli.format import moment, numbered
from cli.lanes_found import lanes_with_a_chain, partitions_seen
from cli.lanes_order import lane_as_json
from cli.source import SourceView
from mirrorless.lane import Lane
from mirrorless.lane_state import RUNNING, LaneState
from mirrorless.lanes.operator_actions import NotAllowed, plan_hold, resumption
from mirrorless.protocol.positions import STATES_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What is to be done for one lane."""

    lane: Lane
    plan: str
    carry_out: Callable[[], object] | None
    """None where there is nothing to do."""
    upstream_offset: int | None = None


def run_hold(arguments: argparse.Namespace) -> int:
    """Stop lanes where they stand."""
    deployment, stores = _where(arguments)
    lanes, doubt = _every_lane(arguments, deployment, stores)
    heads, states = stores.chains.heads(lanes), stores.states.read(lanes)
    now = _now()

    def order(lane: Lane) -> _Order:
        state = states.get(lane, RUNNING)
        stop = plan_hold(heads[lane], state, reason=arguments.reason, now=now)
        if stop is None:
            why = state.stop.reason if state.stop is not None else ""
            return _Order(lane=lane, plan=f"It is stopped already ({why}): nothing to do.", carry_out=None)
        return _Order(
            lane=lane,
            plan=f"Stop it at upstream offset {stop.upstream_offset}: {stop.detail}{_after_job(state, now)}",
            carry_out=lambda: stores.states.stop(lane, stop),
            upstream_offset=stop.upstream_offset,
        )

    notes = [f"Functions that are warm know it within {STATES_MS // 1000} s. `lanes resume` ends it.", *doubt]
    return _tell(arguments, [order(lane) for lane in lanes], notes)


def run_resume(arguments: argparse.Namespace) -> int:
    """Drop the stop of one lane, or of all that are held."""
    deployment, stores = _where(arguments)
    if arguments.partition is not None:
        lanes = [deployment.lane(arguments.flow, arguments.topic, arguments.partition)]
        states = stores.states.read(lanes)
    else:
        noted = stores.states.noted(deployment.flow_name(arguments.flow))
        states = {lane: state for lane, state in noted.items() if state.stop and state.stop.reason == "held"}
        lanes = sorted(lane for lane in states if arguments.topic in {None, lane.topic})
    heads, now = stores.chains.heads(lanes), _now()

    def order(lane: Lane) -> _Order:
        state = states.get(lane, RUNNING)
        try:
            plan = resumption(lane, heads[lane], state, now=now)
        except NotAllowed as exc:
            raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
        if plan is None:
            return _Order(lane=lane, plan="The lane is not stopped: nothing to do.", carry_out=None)
        stop = state.stop
        why = (
            f"It is stopped at upstream offset {stop.upstream_offset} ({stop.reason}): {stop.detail} "
            if stop is not None
            else ""
        )
        return _Order(lane=lane, plan=why + plan, carry_out=lambda: stores.states.resume(lane))

    return _tell(arguments, [order(lane) for lane in lanes], [])


def run_release(arguments: argparse.Namespace) -> int:
    """End the leases of dead jobs."""
    deployment, stores = _where(arguments)
    noted = stores.states.noted(deployment.flow_name(arguments.flow))
    lanes = sorted(
        lane
        for lane, state in noted.items()
        if state.lease is not None
        and arguments.topic in {None, lane.topic}
        and arguments.partition in {None, lane.partition}
    )
    now = _now()

    def order(lane: Lane) -> _Order:
        lease = noted[lane].lease
        assert lease is not None  # noqa: S101 -- that is how they were chosen
        ends = "ends" if now < lease.until else "ended"
        return _Order(
            lane=lane,
            plan=f"End the lease of job run {lease.holder}, which {ends} at {moment(lease.until)} by itself.",
            carry_out=lambda: stores.states.let_go(lane, lease.holder),
        )

    notes = ["A job that still lives fails on these lanes. Nothing is lost by that, but cancel it first."]
    return _tell(arguments, [order(lane) for lane in lanes], notes)


def _where(arguments: argparse.Namespace) -> tuple[DeployedFlows, Stores]:
    deployment = DeployedFlows.of(arguments)
    return deployment, deployment.stores(deployment.flow_name(arguments.flow))


def _every_lane(
    arguments: argparse.Namespace, deployment: DeployedFlows, stores: Stores
) -> tuple[list[Lane], Sequence[str]]:
    """The lanes that are named, and what is not known of them. The source may be the very thing that is down."""
    flow = deployment.flow_name(arguments.flow)
    if arguments.partition is not None:
        return [Lane(flow, arguments.topic, arguments.partition)], ()
    source = SourceView.of(deployment, flow)
    there, seen = source.partitions() or {}, partitions_seen(stores, flow)
    topics = {arguments.topic} if arguments.topic else {*deployment.flow(flow).literal_topics, *seen}
    counts = {
        topic: max(there.get(topic, 0), seen.get(topic, 0), lanes_with_a_chain(stores.chains, flow, topic))
        for topic in sorted(topics)
    }
    doubt = [f"The source does not answer, so partitions that nobody has seen yet are not held: {source.trouble}"]
    lanes = [Lane(flow, topic, partition) for topic, count in counts.items() for partition in range(count)]
    return lanes, doubt if source.trouble else ()


def _after_job(state: LaneState, now: int) -> str:
    lease = state.lease
    return f" (when job run {lease.holder} has let go of it)" if lease is not None and now < lease.until else ""


def _tell(arguments: argparse.Namespace, orders: Sequence[_Order], notes: Sequence[str]) -> int:
    """Show the plan of each lane, and carry it out where that was said."""
    executed = arguments.execute and any(order.carry_out for order in orders)
    if executed:
        for order in orders:
            if order.carry_out is not None:
                order.carry_out()
    if arguments.json and arguments.partition is not None and orders:
        print(json.dumps(_as_json(orders[0]) | {"executed": executed}, indent=2))
        return 0
    if arguments.json:
        answer = {"lanes": [_as_json(order) for order in orders], "notes": notes, "executed": executed}
        print(json.dumps(answer, indent=2))
        return 0
    if not orders:
        print("No lane fits: nothing to do.")
        return 0
    for order in orders:
        print(f"{order.lane}:")
        print(f"  - {order.plan}")
    if any(order.carry_out for order in orders):
        for note in notes:
            print(note)
        many = numbered(sum(order.carry_out is not None for order in orders), "lane")
        plan = "Nothing was changed: this was the plan. Add --execute to carry it out."
        print(f"Done: {many}." if executed else plan)
    return 0


def _as_json(order: _Order) -> dict[str, Any]:
    return lane_as_json(order.lane) | {
        "plan": [order.plan],
        "changes": order.carry_out is not None,
        "upstream_offset": order.upstream_offset,
    }


def _now() -> int:
    return time.time_ns() // 1_000_000
