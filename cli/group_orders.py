"""`mirrorless groups FLOW --move-back GROUP`: the order to move a group back where it would skip records.

Beside the look at groups, for whoever may only look has fewer rights.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cli.args import BadInput
from cli.deployment import DeployedFlows
from cli.groups_view import checkpoints_of
from cli.orders import Order, obey
from cli.output import picked
from mirrorless.chain.lane import Lane
from mirrorless.clock import deadline_in
from mirrorless.groups.checkpoints import Direction
from mirrorless.groups.ownership import Move, claim_of, plan_move_back
from mirrorless.groups.readiness import Rereads
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.past import PastStore, Side
from mirrorless.protocol.translate import OffsetMap
from mirrorless.reports.format import numbered

ANSWER_SECONDS = 20.0
"""Limit for the cluster on which the group is moved."""


class MoveBack(argparse.Action):
    """The option `--move-back GROUP`. With it the command is an order, and no look."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 -- argparse's
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002 -- argparse's
    ) -> None:
        """Keep the group's name."""
        setattr(namespace, self.dest, values)
        namespace.run = run_move_back


def run_move_back(arguments: argparse.Namespace) -> int:
    """Show which offsets go back, and commit them with `--execute`.

    Raises:
        BadInput: the group has no checkpoint, or its commits cannot be read.
        Refused: it has members, or an offset that is not the flow's own.
        Retriable: the cluster or the store does not answer.
    """
    from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- commands without Kafka start sooner

    deployment = DeployedFlows.of(arguments)
    flow = deployment.flow_name(arguments.flow)
    direction: Direction = "reverse" if arguments.reverse else "forward"
    stores, name = deployment.stores(flow), arguments.move_back
    document = checkpoints_of(deployment, stores.checkpoints, flow, direction, name)

    settings = deployment.settings(flow)
    cluster = settings.target if direction == "forward" else settings.source
    groups, limit = KafkaGroups(cluster, flow=str(flow)), deadline_in(ANSWER_SECONDS)
    state = groups.states([name], limit)[name]
    committed = groups.committed([name], limit)
    if name not in committed:
        raise BadInput("its commits cannot be read", where=f"group {name} on {cluster.alias}", hint="check the rights")
    places = {lane: _place(deployment, lane, direction) for lane, _ in document.lanes(flow)}
    there = {lane: committed[name][place] for lane, place in places.items() if place in committed[name]}
    side: Side = "downstream" if direction == "forward" else "upstream"
    counterpart = deployment.counterpart_chains(flow)
    maps = Rereads(
        offset_map=OffsetMap(stores.chains, PastStore(documents=stores.checkpoints)),
        counterpart=None if counterpart is None else OffsetMap(counterpart),
    )
    moves = plan_move_back(
        document, flow, there=there, state=state, count=lambda lane, first, end: maps.records(lane, first, end, side)
    )

    def carry_out() -> None:
        claimed = claim_of(document, moves)
        # The claim first: the scheduled function must not take the group for another application's.
        stores.checkpoints.write(flow, {claimed.key: msgspec.json.encode(claimed)})
        groups.commit(name, {places[move.lane]: move.to for move in moves}, limit)

    plan = [_sentence(move, places, cluster.alias) for move in moves]
    order = Order(
        about=f"group {name}",
        plan=plan or ["It would skip nothing: there is nothing to move."],
        carry_out=carry_out if moves else None,
        programs={
            "flow": str(flow),
            "direction": direction,
            "group": name,
            "moves": [_as_json(move) for move in moves],
        },
    )
    return obey(arguments, [order])


def _place(deployment: DeployedFlows, lane: Lane, direction: Direction) -> TopicPartition:
    configured = deployment.flow(lane.flow)
    return configured.remote_topic(lane.topic) if direction == "forward" else lane.topic, lane.partition


def _sentence(move: Move, places: Mapping[Lane, TopicPartition], alias: str) -> str:
    topic, partition = places[move.lane]
    over = numbered(move.records, "record")
    return f"{alias} {topic}-{partition}: from {move.now} back to {move.to.offset}, over {over}"


def _as_json(move: Move) -> dict[str, object]:
    lane = picked(move.lane, "topic partition")
    return lane | {"from": move.now, "to": move.to.offset, "records": move.records}
