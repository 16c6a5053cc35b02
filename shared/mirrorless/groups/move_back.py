"""An operator's order to move a group back on the other side, to where its offsets on this side are.

A group that was rewound on one side keeps its offsets on the other: these never go backwards. Moved there, it would
skip the records in between. Pure: the group's document and its offsets there come in, a plan or a refusal comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirrorless.errors import MirrorlessError
from mirrorless.groups.checkpoints import GroupCheckpoints, here_and_there
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.lane import FlowName, Lane
from mirrorless.ports.kafka import GroupState, OffsetAndMetadata


class NotMovable(MirrorlessError):
    """The group cannot be moved back. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition of a group."""

    lane: Lane
    now: int
    """Its offset there."""
    to: OffsetAndMetadata
    """The translation of its offset here."""
    records: int
    """Records in between: it would skip them."""


def plan_move_back(
    document: GroupCheckpoints,
    flow: FlowName,
    *,
    there: Mapping[Lane, OffsetAndMetadata],
    state: GroupState,
    count: Callable[[Lane, int, int], int],
) -> list[Move]:
    """The partitions on which a group would skip records, in order; empty where there is none.

    Args:
        document: of the last round.
        flow: whose.
        there: the group's commits on the other side, as they are now, on lanes of the document.
        state: of the group there.
        count: how many records lie between two offsets there.

    Raises:
        NotMovable: it has members there, or an offset there is not the flow's own.
        Retriable: the store of chains does not answer.
    """
    cluster = flow.target if document.direction == "forward" else flow.source
    where = f"group {document.group} on {cluster}"
    moves = []
    for lane, offset in sorted(document.lanes(flow), key=lambda each: each[0]):
        _, to = here_and_there(document.direction, offset)
        if lane not in there or to is None or not offset.usable or there[lane].offset <= to:
            continue
        now = there[lane].offset
        if records := count(lane, to, now):
            moves.append(Move(lane=lane, now=now, to=OffsetAndMetadata(to, offset.metadata), records=records))
    if not moves:
        return []
    if state == "active":
        raise NotMovable(
            "it has members, and only they may commit its offsets", where=where, hint="stop its consumers there"
        )
    own = document.own_offsets(flow)
    for lane, committed in there.items():
        if committed.offset not in own.get(lane, ()):
            raise NotMovable(
                f"offset {committed.offset} of {lane} there is not one that this flow committed or carried back",
                where=where,
                hint="another application may have its name, or it has read there itself; if it is to follow this "
                "flow, delete its offsets there (kafka-consumer-groups.sh --delete-offsets)",
            )
    return moves


def claim_of(document: GroupCheckpoints, moves: list[Move]) -> ClaimedOffsets:
    """The claim that goes before the commit. Args: moves: at least one."""
    offsets: dict[str, dict[int, int]] = {}
    for move in moves:
        offsets.setdefault(move.lane.topic, {})[move.lane.partition] = move.to.offset
    return ClaimedOffsets(group=document.group, direction=document.direction, offsets=offsets)
