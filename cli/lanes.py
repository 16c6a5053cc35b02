"""`mirrorless lanes stopped | show | resume | quarantine | reset | hold | release`: stopped lanes, orders for lanes.

`hold`, `resume` and `release` are for one lane, a topic's, or all of a flow. `quarantine` and `reset` are in
`lane_orders`, `show` is in `lane_record`. A command that changes state shows its plan first, and carries it out with
`--execute`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.args import BadInput, add_deployment, add_flow, add_lane, add_lanes, add_order, offset, partition
from cli.clusters import SourceView
from cli.deployment import DeployedFlows, Stores
from cli.lane_orders import destination, foreign_notes, run_quarantine, run_reset
from cli.lane_record import run_show
from cli.output import PLAN_ONLY, lane_as_json, moment, print_json, sentence
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, LaneState, Stop
from mirrorless.clock import now_ms
from mirrorless.lanes.operator_actions import NotAllowed, advice, given_up, plan_hold, resumption
from mirrorless.ports.stores import Chains
from mirrorless.protocol.positions import STATES_MS
from mirrorless.reports.format import numbered

BLOCK = 16
"""Partitions that are tried at a time where their number is not known."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of `lanes`."""
    lanes = subparsers.add_parser(
        "lanes", help="list stopped lanes, bring them back, hold them, end a dead job's lease"
    )
    commands = lanes.add_subparsers(required=True, metavar="COMMAND")

    stopped = commands.add_parser(
        "stopped",
        help="list the lanes that wait for you, why, and what to do",
        epilog="Example: mirrorless lanes stopped 'us-east->eu-west'",
    )
    add_flow(stopped, optional=True)
    add_deployment(stopped)
    stopped.set_defaults(run=run_stopped)

    _add_show(commands)
    _add_orders_for_several(commands)

    quarantine = commands.add_parser(
        "quarantine",
        help="leave out the record that the target refused, or a range from there, and go on",
        epilog="Example: mirrorless lanes quarantine 'us-east->eu-west' orders 3 1234 --execute",
    )
    reset = commands.add_parser(
        "reset",
        help="close a lane's chain and go on from another upstream offset, as after a topic was re-created",
        epilog="Example: mirrorless lanes reset 'us-east->eu-west' orders --to earliest "
        "--reason 'orders was re-created, ticket 4711'",
    )
    for parser, run in ((quarantine, run_quarantine), (reset, run_reset)):
        if parser is reset:
            add_flow(parser)
            parser.add_argument("topic", metavar="TOPIC", help="the topic's name on the source")
            help_ = "its partition (default: every stopped one that is not held)"
            parser.add_argument("partition", metavar="PARTITION", nargs="?", type=partition, help=help_)
        else:
            add_lane(parser)
        if parser is quarantine:
            parser.add_argument("offset", metavar="OFFSET", type=offset, help="upstream offset of the refused record")
            help_ = "leave out a range, up to before this upstream offset (default with --alike: the source's end)"
            parser.add_argument("--to", metavar="OFFSET", type=offset, help=help_)
            help_ = "of the range only what is refused for the same cause"
            parser.add_argument("--alike", action="store_true", help=help_)
        if parser is reset:
            parser.add_argument(
                "--to",
                required=True,
                metavar="OFFSET",
                type=destination,
                help="upstream offset, earliest, latest, or target: behind the last record that the target has",
            )
            parser.add_argument(
                "--until",
                metavar="OFFSET",
                type=offset,
                help="stand still there: what the source has from this upstream offset on was replicated already",
            )
            parser.add_argument("--reason", required=True, metavar="TEXT", help="kept in the chain and the ledger")
        add_order(parser)
        add_deployment(parser)
        parser.set_defaults(run=run)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser(
        "show",
        help="show a record of the source as it is: headers, sizes, and its first bytes in hexadecimal",
        epilog="Example: mirrorless lanes show 'us-east->eu-west' orders 3 1234 --to poison.bin",
    )
    add_lane(show)
    show.add_argument("offset", metavar="OFFSET", type=offset, help="upstream offset of the record")
    show.add_argument("--to", metavar="FILE", help="write the bytes of its value there; an existing file is kept")
    add_deployment(show)
    show.set_defaults(run=run_show)


def _add_orders_for_several(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    hold = commands.add_parser(
        "hold",
        help="stop lanes where they stand, as before a reconciliation: nothing more is written until they are resumed",
        epilog="Example: mirrorless lanes hold 'us-east->eu-west' --reason 'maintenance, ticket 4711' --execute",
    )
    resume = commands.add_parser(
        "resume",
        help="let a stopped lane try again from where it stopped; without PARTITION, lanes that are held",
        epilog="Example: mirrorless lanes resume 'us-east->eu-west' orders 3 --execute",
    )
    release = commands.add_parser(
        "release",
        help="end the lease of a job that is dead, so that another one may take its lanes before the lease's term",
        epilog="Example: mirrorless lanes release 'us-east->eu-west' orders --execute",
    )
    for parser, run in ((hold, run_hold), (resume, run_resume), (release, run_release)):
        add_lanes(parser)
        if parser is hold:
            parser.add_argument("--reason", metavar="TEXT", default="held by hand", help="shown wherever the stop is")
        add_order(parser)
        add_deployment(parser)
        parser.set_defaults(run=run)


def run_stopped(arguments: argparse.Namespace) -> int:
    """List stopped lanes. Exit code 1 where there is one."""
    deployment = DeployedFlows.of(arguments)
    found: dict[Lane, Stop] = {}
    fences: dict[FlowName, Stop] = {}
    for flow in deployment.flow_names(arguments.flow):
        stores = deployment.stores(flow)
        found |= stops_of(stores, flow)
        if (fence := stores.states.fenced(flow)) is not None:
            fences[flow] = fence
    if arguments.json:
        fenced = [{"flow": str(flow), "detail": each.detail, "at": each.at} for flow, each in fences.items()]
        print_json({"stopped": [stop_as_json(lane, stop) for lane, stop in found.items()], "fenced": fenced})
    elif not found and not fences:
        print("No lane is stopped.")
    else:
        for flow, fence in fences.items():
            print(f"{flow}: fenced as a whole since {moment(fence.at)}: {fence.detail}")
        for lane, stop in found.items():
            print(f"{lane.at(stop.upstream_offset)}: {stop.reason} since {moment(stop.at)}")
            print(f"  why         {stop.detail}")
            print(f"  what to do  {advice(lane, stop)}")
    return 1 if found or fences else 0


def stops_of(stores: Stores, flow: FlowName) -> Mapping[Lane, Stop]:
    """Every stop of a flow, by lane, in order."""
    states = sorted(stores.states.stopped(flow).items(), key=lambda each: each[0])
    return {lane: state.stop for lane, state in states if state.stop is not None}


def stop_as_json(lane: Lane, stop: Stop) -> dict[str, Any]:
    """A stop for programs; `at` in ms since the epoch."""
    return lane_as_json(lane) | {
        "reason": stop.reason,
        "upstream_offset": stop.upstream_offset,
        "detail": stop.detail,
        "at": stop.at,
        "what_to_do": advice(lane, stop),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaneOrder:
    """An order for one lane."""

    lane: Lane
    plan: str
    carry_out: Callable[[], object] | None
    """None where there is nothing to do."""
    upstream_offset: int | None = None


def run_hold(arguments: argparse.Namespace) -> int:
    """Stop lanes at their position. A warm function reads the states of lanes once a minute."""
    deployment, stores = _flow_stores(arguments)
    lanes, doubt = _named_lanes(arguments, deployment, stores)
    heads, states = stores.chains.heads(lanes), stores.states.read(lanes)
    at = now_ms()

    def order(lane: Lane) -> _LaneOrder:
        state = states.get(lane, RUNNING)
        stop = plan_hold(heads[lane], state, reason=arguments.reason, now=at)
        if stop is None:
            why = state.stop.reason if state.stop is not None else ""
            return _LaneOrder(lane=lane, plan=f"It is stopped already ({why}): nothing to do.", carry_out=None)
        return _LaneOrder(
            lane=lane,
            plan=f"Stop it at upstream offset {stop.upstream_offset}: {stop.detail}{_after_job(state, at)}",
            carry_out=lambda: stores.states.stop(lane, stop),
            upstream_offset=stop.upstream_offset,
        )

    resume = f"`mirrorless lanes resume '{arguments.flow}' --execute`"
    notes = [f"Warm functions follow within {STATES_MS // 1000} s. {resume} ends what is held of the flow.", *doubt]
    return _answer(arguments, [order(lane) for lane in lanes], notes)


def run_resume(arguments: argparse.Namespace) -> int:
    """Drop the stop of one lane, or of all that are held."""
    deployment, stores = _flow_stores(arguments)
    if arguments.partition is not None:
        lanes = [deployment.lane(arguments.flow, arguments.topic, arguments.partition)]
        states = stores.states.read(lanes)
    else:
        noted = stores.states.noted(deployment.flow_name(arguments.flow))
        states = {lane: state for lane, state in noted.items() if state.stop and state.stop.reason == "held"}
        lanes = sorted(lane for lane in states if arguments.topic in {None, lane.topic})
    heads, at = stores.chains.heads(lanes), now_ms()

    def order(lane: Lane) -> _LaneOrder:
        state = states.get(lane, RUNNING)
        try:
            plan = resumption(lane, heads[lane], state, now=at)
        except NotAllowed as exc:
            raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
        if plan is None:
            return _LaneOrder(lane=lane, plan="The lane is not stopped: nothing to do.", carry_out=None)
        stop = state.stop
        why = (
            f"It is stopped at upstream offset {stop.upstream_offset} ({stop.reason}): {sentence(stop.detail)} "
            if stop is not None
            else ""
        )

        def carry_out() -> None:
            stores.states.resume(lane)
            if (lease := given_up(state, now=at)) is not None:
                stores.states.drop(lane, lease)

        return _LaneOrder(lane=lane, plan=why + plan, carry_out=carry_out)

    notes = foreign_notes(deployment, stores, lanes)
    for lane in lanes:
        stop = states.get(lane, RUNNING).stop
        # Its mapping delivers from where its group stands, and so comes to the same stop again.
        if stop is not None and stop.reason == "contradiction" and (group := deployment.mapping_group(lane)):
            source = SourceView.of(deployment, lane.flow)
            notes += source.place_advice(lane, group, heads[lane].position, reset=False)
    return _answer(arguments, [order(lane) for lane in lanes], notes)


def run_release(arguments: argparse.Namespace) -> int:
    """End the leases of dead jobs."""
    deployment, stores = _flow_stores(arguments)
    noted = stores.states.noted(deployment.flow_name(arguments.flow))
    at = now_ms()
    lanes = sorted(
        lane
        for lane, state in noted.items()
        if state.lease is not None
        and at < state.lease.until
        and arguments.topic in {None, lane.topic}
        and arguments.partition in {None, lane.partition}
    )

    def order(lane: Lane) -> _LaneOrder:
        lease = noted[lane].lease
        assert lease is not None  # noqa: S101 -- that is how they were chosen
        return _LaneOrder(
            lane=lane,
            plan=f"End the lease of job run {lease.holder}, which ends at {moment(lease.until)} by itself.",
            carry_out=lambda: stores.states.release(lane, lease.holder),
        )

    notes = [
        "A job that still runs fails on these lanes. Nothing is lost, but cancel it first.",
        "Where the job left something out, the lane waits for another one, or until it is resumed without that.",
    ]
    return _answer(arguments, [order(lane) for lane in lanes], notes)


def _flow_stores(arguments: argparse.Namespace) -> tuple[DeployedFlows, Stores]:
    deployment = DeployedFlows.of(arguments)
    return deployment, deployment.stores(deployment.flow_name(arguments.flow))


def _named_lanes(
    arguments: argparse.Namespace, deployment: DeployedFlows, stores: Stores
) -> tuple[list[Lane], Sequence[str]]:
    """The lanes that are named, and a note where the source does not answer and some may be missing."""
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
    doubt = [f"The source does not answer, so its new partitions are not held: {source.trouble}"]
    lanes = [Lane(flow, topic, partition) for topic, count in counts.items() for partition in range(count)]
    return lanes, doubt if source.trouble else ()


def _after_job(state: LaneState, at: int) -> str:
    lease = state.lease
    return f" (when job run {lease.holder} has released it)" if lease is not None and at < lease.until else ""


def _answer(arguments: argparse.Namespace, orders: Sequence[_LaneOrder], notes: Sequence[str]) -> int:
    """Show the plan of each lane, and carry it out with `--execute`."""
    executed = arguments.execute and any(order.carry_out for order in orders)
    if executed:
        for order in orders:
            if order.carry_out is not None:
                order.carry_out()
    if arguments.json and arguments.partition is not None and orders:
        print_json(_as_json(orders[0]) | {"executed": executed})
    elif arguments.json:
        print_json({"lanes": [_as_json(order) for order in orders], "notes": notes, "executed": executed})
    elif not orders:
        print("No lane fits: nothing to do.")
    else:
        _show(orders, notes, executed=executed)
    return 0


def _show(orders: Sequence[_LaneOrder], notes: Sequence[str], *, executed: bool) -> None:
    for order in orders:
        print(f"{order.lane}:")
        print(f"  - {order.plan}")
    changes = sum(order.carry_out is not None for order in orders)
    if changes:
        for note in notes:
            print(note)
        print(f"Done: {numbered(changes, 'lane')}." if executed else PLAN_ONLY)


def _as_json(order: _LaneOrder) -> dict[str, Any]:
    return lane_as_json(order.lane) | {
        "plan": [order.plan],
        "changes": order.carry_out is not None,
        "upstream_offset": order.upstream_offset,
    }


def lanes_with_a_chain(chains: Chains, flow: FlowName, topic: str) -> int:
    """One more than the highest partition with a chain. Blocks are read until a whole block has none."""
    found = block = 0
    while True:
        lanes = [Lane(flow, topic, partition) for partition in range(block, block + BLOCK)]
        heads = chains.heads(lanes)
        replicated = [lane.partition for lane in lanes if heads[lane] != NEW_LANE]
        if not replicated:
            return found
        found, block = replicated[-1] + 1, block + BLOCK


def partitions_seen(stores: Stores, flow: FlowName) -> dict[str, int]:
    """The topics of earlier refreshes, each with its partitions."""
    from mirrorless.topics.topic_state import StoredTopics  # noqa: PLC0415 -- commands about one lane start sooner

    return {
        topic: seen.partitions for topic, seen in StoredTopics.of(stores.documents.read(flow, "topic")).topics.items()
    }
