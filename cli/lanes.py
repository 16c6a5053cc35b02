"""`mirrorless lanes stopped | show | resume | quarantine | reset | hold | release`: stopped lanes, orders for lanes.

`hold`, `resume` and `release` are for one lane, a topic's, or all of a flow. `reset` is in `lane_reset`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cli.args import BadInput, add_deployment, add_flow, add_lane, add_lanes, add_order, offset, partition, write_new
from cli.clusters import ClusterView, offsets_of
from cli.deployment import DeployedFlows, Stores
from cli.lane_reset import destination, foreign_notes, named_lane, run_reset
from cli.orders import Order, obey
from cli.output import lane_as_json, moment, picked, print_json, say, sentence, stop_as_json
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import RUNNING, LaneState, Stop
from mirrorless.clock import now_ms
from mirrorless.lanes.operator_actions import advice, given_up, plan_hold, plan_quarantine, resumption
from mirrorless.ports.stores import lanes_with_a_chain
from mirrorless.protocol.positions import STATES_MS
from mirrorless.records.record import Record, size_of

SHOWN_BYTES = 256
"""Of a key, a value or a header; `show --to` writes a whole value."""

LINE_BYTES = 16


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
    add_deployment(stopped, run_stopped)

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
    add_lane(quarantine)
    quarantine.add_argument("offset", metavar="OFFSET", type=offset, help="upstream offset of the refused record")
    help_ = "leave out a range, up to before this upstream offset (default with --alike: the source's end)"
    quarantine.add_argument("--to", metavar="OFFSET", type=offset, help=help_)
    help_ = "of the range only what is refused for the same cause"
    quarantine.add_argument("--alike", action="store_true", help=help_)
    add_flow(reset)
    reset.add_argument("topic", metavar="TOPIC", help="the topic's name on the source")
    help_ = "its partition (default: every stopped one that is not held)"
    reset.add_argument("partition", metavar="PARTITION", nargs="?", type=partition, help=help_)
    help_ = "upstream offset, earliest, latest, or target: behind the last record that the target has"
    reset.add_argument("--to", required=True, metavar="OFFSET", type=destination, help=help_)
    help_ = "stand still there: what the source has from this upstream offset on was replicated already"
    reset.add_argument("--until", metavar="OFFSET", type=offset, help=help_)
    reset.add_argument("--reason", required=True, metavar="TEXT", help="kept in the chain and the ledger")
    for parser, run in ((quarantine, run_quarantine), (reset, run_reset)):
        add_order(parser)
        add_deployment(parser, run)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser(
        "show",
        help="show a record of the source as it is: headers, sizes, and its first bytes in hexadecimal",
        epilog="Example: mirrorless lanes show 'us-east->eu-west' orders 3 1234 --to poison.bin",
    )
    add_lane(show)
    show.add_argument("offset", metavar="OFFSET", type=offset, help="upstream offset of the record")
    show.add_argument("--to", metavar="FILE", help="write the bytes of its value there; an existing file is kept")
    add_deployment(show, run_show)


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
        add_deployment(parser, run)


def run_stopped(arguments: argparse.Namespace) -> int:
    """List stopped lanes. Exit code 1 where there is one."""
    deployment = DeployedFlows.of(arguments)
    found: dict[Lane, Stop] = {}
    of_flows: dict[FlowName, Stop] = {}
    for flow in deployment.flow_names(arguments.flow):
        stores = deployment.stores(flow)
        found |= stops_of(stores, flow)
        if (of_flow := stores.states.flow_stop(flow)) is not None:
            of_flows[flow] = of_flow
    if arguments.json:
        fenced = [{"flow": str(flow), **picked(each, "detail at")} for flow, each in of_flows.items()]
        print_json({"stopped": [stop_as_json(lane, stop) for lane, stop in found.items()], "fenced": fenced})
    elif not found and not of_flows:
        say("No lane is stopped.")
    else:
        for flow, stop in of_flows.items():
            say(f"{flow}: stopped as a whole since {moment(stop.at)}: {stop.detail}")
        for lane, stop in found.items():
            say(f"{lane.at(stop.upstream_offset)}: {stop.reason} since {moment(stop.at)}")
            say(f"  why         {stop.detail}")
            say(f"  what to do  {advice(lane, stop)}")
    return 1 if found or of_flows else 0


def stops_of(stores: Stores, flow: FlowName) -> Mapping[Lane, Stop]:
    """Every stop of a flow, by lane, in order."""
    states = sorted(stores.states.stopped(flow).items(), key=lambda each: each[0])
    return {lane: state.stop for lane, state in states if state.stop is not None}


def run_show(arguments: argparse.Namespace) -> int:
    """Show one record. Only the source is read; nothing is committed."""
    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    record = offsets_of(deployment.settings(lane.flow).source, lane.flow).record_from(
        (lane.topic, lane.partition), arguments.offset
    )
    if record is None or record.offset != arguments.offset:
        following = _following(None if record is None else record.offset, asked=arguments.offset)
        raise BadInput(
            f"the source has no record there that read_committed readers see; {following}",
            where=lane.at(arguments.offset),
            hint="it may be a transaction's marker, aborted, removed by compaction or by retention",
        )
    if arguments.to is not None:
        if record.value is None:
            raise BadInput("the record has no value to write: it is a tombstone", where=arguments.to)
        write_new(arguments.to, record.value, "the value")
    if arguments.json:
        print_json(lane_as_json(lane) | record_as_json(record))
        return 0
    say(f"{lane.at(record.offset)}: {size_of(record):,} bytes, written {_written(record)}")
    for line in described(record):
        say(f"  {line}")
    if arguments.to is not None:
        say(f"The value is in {arguments.to}.")
    return 0


def _following(found: int | None, *, asked: int) -> str:
    """Where the search for a record ended: beyond the end of the log it begins at the oldest record."""
    if found is None:
        return "none follows"
    return f"the next record is at {found}" if found > asked else f"the log ends before it, and begins at {found}"


def record_as_json(record: Record) -> dict[str, Any]:
    """A record for programs: bytes in hexadecimal, the first of them; null is null."""
    return {
        "upstream_offset": record.offset,
        "timestamp": record.timestamp,
        "bytes": size_of(record),
        "headers": [{"name": name} | _bytes("", value) for name, value in record.headers],
        **_bytes("key_", record.key),
        **_bytes("value_", record.value),
    }


def _bytes(of: str, content: bytes | None) -> dict[str, Any]:
    if content is None:
        return {f"{of}bytes": None, f"{of}hex": None}
    return {f"{of}bytes": len(content), f"{of}hex": content[:SHOWN_BYTES].hex()}


def described(record: Record) -> Iterator[str]:
    """Lines about a record for people."""
    yield from _dumped("key", record.key)
    for name, value in record.headers:
        yield from _dumped(f"header {name}", value)
    yield from _dumped("value", record.value)


def _dumped(what: str, content: bytes | None) -> Iterator[str]:
    if content is None:
        yield f"{what}: null"
        return
    more = f", the first {SHOWN_BYTES} of them" if len(content) > SHOWN_BYTES else ""
    yield f"{what}: {len(content):,} bytes{more}"
    for start in range(0, min(len(content), SHOWN_BYTES), LINE_BYTES):
        line = content[start : min(start + LINE_BYTES, SHOWN_BYTES)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)  # noqa: PLR2004 -- printable ASCII
        yield f"  {start:04x}  {line.hex(' '):<{3 * LINE_BYTES - 1}}  {text}"


def _written(record: Record) -> str:
    return moment(record.timestamp) if record.timestamp >= 0 else "without a timestamp"


def run_hold(arguments: argparse.Namespace) -> int:
    """Stop lanes at their position. A warm function reads the states of lanes once a minute."""
    deployment, stores = _flow_stores(arguments)
    lanes, doubt = _named_lanes(arguments, deployment, stores)
    heads, states = stores.chains.heads(lanes), stores.states.read(lanes)
    at = now_ms()

    def order(lane: Lane) -> Order:
        state = states.get(lane, RUNNING)
        stop = plan_hold(heads[lane], state, reason=arguments.reason, now=at)
        if stop is None:
            why = state.stop.reason if state.stop is not None else ""
            return _order(lane, f"It is stopped already ({why}): nothing to do.", None)
        plan = f"Stop it at upstream offset {stop.upstream_offset}: {stop.detail}{_after_job(state, at)}"
        return _order(lane, plan, lambda: stores.states.stop(lane, stop), stop.upstream_offset)

    resume = f"`mirrorless lanes resume '{arguments.flow}' --execute`"
    notes = [f"Warm functions follow within {STATES_MS // 1000} s. {resume} ends what is held of the flow.", *doubt]
    return _obey(arguments, map(order, lanes), notes)


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

    def order(lane: Lane) -> Order:
        state = states.get(lane, RUNNING)
        plan, stop = resumption(lane, heads[lane], state, now=at), state.stop
        if plan is None:
            return _order(lane, "The lane is not stopped: nothing to do.", None)
        if stop is not None:
            why = f"{stop.upstream_offset} ({stop.reason}): {sentence(stop.detail)}"
            plan = f"It is stopped at upstream offset {why} {plan}"

        def carry_out() -> None:
            stores.states.resume(lane)
            if (lease := given_up(state, now=at)) is not None:
                stores.states.drop(lane, lease)

        return _order(lane, plan, carry_out)

    notes = foreign_notes(deployment, stores, lanes)
    for lane in lanes:
        stop = states.get(lane, RUNNING).stop
        # Its mapping delivers from where its group stands, and so comes to the same stop again.
        if stop is not None and stop.reason == "contradiction" and (group := deployment.mapping_group(lane)):
            source = ClusterView.source(deployment, lane.flow)
            notes += source.place_advice(lane, group, heads[lane].position, reset=False)
    return _obey(arguments, map(order, lanes), notes)


def run_release(arguments: argparse.Namespace) -> int:
    """End the leases of dead jobs."""
    deployment, stores = _flow_stores(arguments)
    noted, at = stores.states.noted(deployment.flow_name(arguments.flow)), now_ms()
    orders = [
        _order(
            lane,
            f"End the lease of job run {lease.holder}, which ends at {moment(lease.until)} by itself.",
            partial(stores.states.release, lane, lease.holder),
        )
        for lane, state in sorted(noted.items(), key=lambda each: each[0])
        if (lease := state.lease) is not None
        and at < lease.until
        and arguments.topic in {None, lane.topic}
        and arguments.partition in {None, lane.partition}
    ]
    notes = [
        "A job that still runs fails on these lanes. Nothing is lost, but cancel it first.",
        "Where the job left something out, the lane waits for another one, or until it is resumed without that.",
    ]
    return _obey(arguments, orders, notes)


def run_quarantine(arguments: argparse.Namespace) -> int:
    """Leave out a refused record, or a range that begins with it, and drop the stop."""
    deployment, stores, lane, state = named_lane(arguments)
    to = _range_end(arguments, deployment, lane)
    head = stores.chains.heads([lane])[lane]
    left_out = plan_quarantine(lane, head, state, arguments.offset, to=to, alike=arguments.alike)
    cause, why = (state.stop.cause, sentence(state.stop.detail)) if state.stop is not None else ("", "")
    if to is None and cause == "DAMAGED":
        what = "exactly this batch,"
        why += " Where the damage hides at which offset the next batch begins, the lane goes on once one stands there."
    elif to is None:
        what = "exactly this record,"
    elif arguments.alike:
        what = f"each record from here to {to - 1} that is refused for the same cause, {cause},"
    else:
        what = f"ALL records from here to {to - 1}, whether the target would take them or not,"
    plan = [
        f"The record at upstream offset {arguments.offset} was refused: {why}",
        f"Leave out {what} note it in the loss ledger when the lane passes it, and drop the stop.",
    ]
    carry_out = partial(stores.states.quarantine, lane, *left_out)
    return obey(arguments, [Order(about=lane, plan=plan, carry_out=carry_out, programs=lane_as_json(lane))])


def _range_end(arguments: argparse.Namespace, deployment: DeployedFlows, lane: Lane) -> int | None:
    """The upstream offset behind the range of a quarantine; None for one record. The source's end bounds it."""
    if arguments.to is None and not arguments.alike:
        return None
    source = ClusterView.source(deployment, lane.flow)
    extent = source.extent(lane)
    if extent is None:
        raise BadInput(
            f"a range ends where the source ends: {source.trouble or 'it has no such partition'}",
            where=str(lane),
            hint="once the source answers, run the command again",
        )
    if arguments.to is not None and arguments.to > extent.end:
        raise BadInput(
            f"the source ends at {extent.end}, below {arguments.to}",
            where=str(lane),
            hint="records that are yet to come are not left out ahead",
        )
    return extent.end if arguments.to is None else int(arguments.to)


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
    source = ClusterView.source(deployment, flow)
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


def _order(lane: Lane, plan: str, carry_out: Callable[[], None] | None, at: int | None = None) -> Order:
    programs = lane_as_json(lane) | {"changes": carry_out is not None, "upstream_offset": at}
    return Order(about=lane, plan=[plan], carry_out=carry_out, programs=programs)


def _obey(arguments: argparse.Namespace, orders: Iterable[Order], notes: Sequence[str]) -> int:
    found = list(orders)
    return obey(arguments, found, notes=notes, many=arguments.partition is None or not found)


def partitions_seen(stores: Stores, flow: FlowName) -> dict[str, int]:
    """The topics of earlier refreshes, each with its partitions."""
    from mirrorless.topics.topic_state import StoredTopics  # noqa: PLC0415 -- commands about one lane start sooner

    return {
        topic: seen.partitions for topic, seen in StoredTopics.of(stores.documents.read(flow, "topic")).topics.items()
    }
