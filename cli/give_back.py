"""`mirrorless migrate give-back FLOW`: MirrorMaker 2 goes on where the chains of a paused flow stand."""

from __future__ import annotations

import argparse
from collections import defaultdict

from cli.args import add_deployment, add_flow, add_order
from cli.copied_places import READ_SECONDS, PlaceSearch
from cli.deployment import DeployedFlows
from cli.orders import Order, obey
from cli.take_over import STOP_IT, add_offsets, refuse_unless_paused, search_of
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import InDoubt, Refused
from mirrorless.lanes.taken_over import read_given_back, write_given_back
from mirrorless.mm2.source_offsets import SourcePartition


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "give-back",
        help="let MirrorMaker 2 go on where the chains of a paused flow stand, without a gap and without a duplicate",
        epilog="Example: mirrorless migrate give-back 'us-east->eu-west' --execute",
    )
    add_flow(parser)
    add_offsets(parser)
    add_order(parser)
    add_deployment(parser, run_give_back)


def run_give_back(arguments: argparse.Namespace) -> int:
    """Write MirrorMaker's source offsets for the positions of a flow's lanes.

    Raises:
        Refused: MirrorMaker writes, or the flow is not paused. Nothing was changed.
        InDoubt: a run is not settled yet.
    """
    deployment = DeployedFlows.of(arguments)
    search = search_of(deployment, arguments)
    flow = search.settings.name
    stores = deployment.stores(flow)
    refuse_unless_paused(stores, deployment.flow(flow))
    if moving := search.moving([]):
        raise Refused(f"MirrorMaker does not stand still: {moving}", where=str(flow), hint=STOP_IT)
    connector = next(iter(search.said())).connector
    given_back = read_given_back(stores.documents, flow)
    topics: dict[str, dict[Lane, int]] = defaultdict(dict)
    for lane, head in stores.chains.heads(search.lanes()).items():
        if _is_ours(lane, head) and given_back.get(lane) != head.position:
            topics[lane.topic][lane] = head.position

    def write(positions: dict[Lane, int]) -> None:
        _write(search, connector, positions)
        write_given_back(stores.documents, flow, positions)

    orders = [
        Order(
            about=topic,
            plan=[_sentence(positions)],
            carry_out=lambda positions=positions: write(positions),  # type: ignore[misc]  # bound now
            programs={
                "topic": topic,
                "goes_on_at": {lane.partition: position for lane, position in sorted(positions.items())},
                "error": "",
            },
        )
        for topic, positions in sorted(topics.items())
    ]
    return obey(
        arguments,
        orders,
        notes=["Then start MirrorMaker, and leave the flow paused: both would copy."],
        many=True,
        nothing="No lane of the flow has anything to give back: nothing to do.",
    )


def _is_ours(lane: Lane, head: Head) -> bool:
    """Whether a lane has a chain, whose end is certain.

    Raises:
        InDoubt: its newest run is not settled yet.
        Refused: the end of its chain has expired.
    """
    if head.in_doubt:
        raise InDoubt("its newest run is not settled", where=lane.at(head.position), hint="wait for the lane check")
    if head.expired:
        raise Refused(
            "the end of its chain has expired, so where it stands is not known",
            where=str(lane),
            hint="reset the lane first: `mirrorless status` has the command",
        )
    return head != NEW_LANE


def _sentence(positions: dict[Lane, int]) -> str:
    some = sorted(positions.items())
    shown = ", ".join(f"{lane.partition} at {position}" for lane, position in some[:10])
    return f"Let MirrorMaker go on in partition {shown}" + (f" and {len(some) - 10} more." if some[10:] else ".")


def _write(search: PlaceSearch, connector: str, positions: dict[Lane, int]) -> None:
    """MirrorMaker goes on behind the last record that it is said to have copied; from the beginning without one."""
    assert search.offsets is not None  # noqa: S101 -- it is not by the logs alone
    search.offsets.write(
        {
            SourcePartition(
                connector=connector, cluster=search.alias, topic=lane.topic, partition=lane.partition
            ): position - 1
            for lane, position in positions.items()
        },
        deadline_in(READ_SECONDS),
        now=now_ms(),
    )
