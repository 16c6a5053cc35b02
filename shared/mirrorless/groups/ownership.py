"""The offsets of groups that this flow may replace: those that it committed itself, or carried back.

On the target, a group of the same name may be another application. Its offsets look like those of a group that moved,
so nothing is concluded from where they are. An offset there is the flow's own if

    it was committed     by a round, which records it before the commit; or by `mirrorless groups --move-back`; or by
                         MirrorMaker before it was taken over, whose checkpoints have it
    it was carried back  by a round of the way back, or by a reconcile
    it was reached       from one of its own, with no record in between: a consumer that passed a transaction's marker;
                         or, where the way back is switched on and a group's name means one application, by a group
                         whose offsets on the source were at that place already, or beyond

An operator's order to move a group back on the other side, to where its offsets on this side are.

A group that was rewound on one side keeps its offsets on the other: these never go backwards. Moved there, it would
skip the records in between. Pure: the group's document and its offsets there come in, a plan or a refusal comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName, Lane, by_lane, by_topic
from mirrorless.errors import Refused
from mirrorless.groups.checkpoints import (
    CommittedOffsets,
    Direction,
    GroupCheckpoints,
    Numbers,
    OwnOffsets,
    TranslatedGroup,
    document_key,
    here_and_there,
)
from mirrorless.groups.offset_translation import CommittedOffset, TranslatedOffset
from mirrorless.ports.kafka import GroupState, OffsetAndMetadata

KEPT: Final = 2
"""Offsets of a lane that are kept: the last one, and the one before its commit."""


class ClaimedOffsets(msgspec.Struct, frozen=True):
    """Offsets that become the flow's own though no round committed them; the document `claim/<direction>/<group>`.

    Only the scheduled function writes the documents of rounds. Whoever else commits for a group leaves a claim before,
    or an order that rounds need not wait for its members; a round takes it over within a minute, and deletes it.
    """

    group: str
    direction: Direction
    offsets: Numbers
    """Offsets there that were committed for the flow, or were carried back."""
    reached: Numbers = {}
    """Offsets there that needed no carrying back; claimed only where the flow has offsets of its own."""
    left: bool = False
    """Whether its members there are stopped on purpose: no commit waits for them to come back."""

    @property
    def key(self) -> str:
        """The key of the document. A claim that members have left replaces none of offsets."""
        return f"claim/{'left/' if self.left else ''}{document_key(self.direction, self.group)}"


def committed_by_another(
    group: str,
    said: Mapping[Lane, Collection[int]],
    there: Mapping[Lane, OffsetAndMetadata],
    state: GroupState,
) -> ClaimedOffsets | str:
    """The claim of a group whose offsets another replicator has committed there; or why they are not that one's.

    Args:
        group: its name.
        said: the offsets there that the replicator says to have translated for it.
        there: the group's commits there.
        state: of the group there.
    """
    if state == "active":
        return "it has members there, and they commit its offsets"
    offsets = {lane: there[lane].offset for lane in sorted(there)}
    for lane, offset in offsets.items():
        if offset not in said.get(lane, ()):
            return f"its offset {offset} there, of {lane.topic}-{lane.partition}, is of no checkpoint"
    return ClaimedOffsets(group=group, direction="forward", offsets=by_topic(offsets))


LONG_AGO: Final = 1
"""When members have left that are stopped on purpose: `GroupCheckpoints.left_at`."""


def members_stopped(group: str, direction: Direction) -> ClaimedOffsets:
    """The claim of an operator who moves a group: the members that it had there do not come back."""
    return ClaimedOffsets(group=group, direction=direction, offsets={}, left=True)


def other(direction: Direction) -> Direction:
    """The other direction."""
    return "reverse" if direction == "forward" else "forward"


def new_document(direction: Direction, group: str, now: int) -> GroupCheckpoints:
    """The document of a group that no round has found yet in this direction."""
    return GroupCheckpoints(
        group=group, direction=direction, at=now, readiness="behind", offsets={}, own={}, emitted=False
    )


def with_own(known: OwnOffsets, lane: Lane, offset: int, *, before: int | None = None) -> tuple[int, ...]:
    """A lane's own offsets with one more. Args: before: what is committed now; None for nothing, or not known."""
    offsets = known.get(lane, ()) if before is None else (before,)
    return tuple(dict.fromkeys((*(each for each in offsets if each != offset), offset)))[-KEPT:]


def with_carried(document: GroupCheckpoints, offsets: Mapping[Lane, int]) -> GroupCheckpoints:
    """A document in which these offsets here are not to be carried over."""
    carried = {topic: document.carried.get(topic, {}) | new for topic, new in by_topic(offsets).items()}
    return msgspec.structs.replace(document, carried=document.carried | carried)


def claim(
    claimed: ClaimedOffsets, flow: FlowName, there: GroupCheckpoints, back: GroupCheckpoints
) -> list[GroupCheckpoints]:
    """The documents of a group's two directions, with a claim.

    Args:
        claimed: the claim.
        flow: whose.
        there: the document of the claim's direction.
        back: that of the other one.
    """
    known = there.own_offsets(flow)
    reached = {lane: offset for lane, offset in by_lane(flow, claimed.reached).items() if known.get(lane)}
    taken = by_lane(flow, claimed.offsets) | reached
    own = {**known, **{lane: with_own(known, lane, offset) for lane, offset in taken.items()}}
    gone = LONG_AGO if claimed.left else there.left_at
    return [msgspec.structs.replace(there, own=by_topic(own), left_at=gone), with_carried(back, taken)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The own offsets of a round's groups."""

    flow: FlowName
    previous: Callable[[Direction, str], GroupCheckpoints | None]
    """A group's document of the round before."""
    reverse: bool
    """Whether the way back is switched on."""

    def to_compare(self, committed: CommittedOffsets) -> set[CommittedOffset]:
        """The own offsets on the target of groups that have another one there, to be translated beside it."""
        return {
            ("reverse", lane, own[lane][-1])
            for name in committed.source.keys() & committed.target.keys()
            for own in [self._known("forward", name)]
            for lane, there in committed.target[name].items()
            if lane in own and there.offset not in own[lane]
        }

    def of(self, group: TranslatedGroup, translations: Mapping[CommittedOffset, TranslatedOffset]) -> TranslatedGroup:
        """A group with its own offsets. Args: translations: with those of `to_compare`."""
        known = self._known(group.direction, group.name)
        own = {lane: offsets for lane, offsets in known.items() if lane in group.offsets or lane in group.there}
        if group.direction == "forward":
            back = self.previous("reverse", group.name) if self.reverse else None
            for lane in own.keys() & group.there.keys():
                offset = group.there[lane].offset
                if offset in own[lane]:
                    continue
                passed = _next_record(translations, lane, own[lane][-1])
                same = passed is not None and passed == _next_record(translations, lane, offset)
                if same or (back is not None and back.carried_offset(lane) == offset):
                    own[lane] = with_own(own, lane, offset)
        return replace(group, own=own)

    def _known(self, direction: Direction, group: str) -> dict[Lane, tuple[int, ...]]:
        document = self.previous(direction, group)
        return document.own_offsets(self.flow) if document is not None else {}


def _next_record(
    translations: Mapping[CommittedOffset, TranslatedOffset], lane: Lane, downstream: int
) -> tuple[int | None, ...] | None:
    """The upstream offsets at which a consumer at this offset goes on; None where that is not certain."""
    found = translations.get(("reverse", lane, downstream))
    if found is None or found.state not in {"exact", "next_record"}:
        return None
    return (found.offset,) if found.two_way is None else found.two_way.parts


class NotMovable(Refused):
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
    offsets = by_topic({move.lane: move.to.offset for move in moves})
    return ClaimedOffsets(group=document.group, direction=document.direction, offsets=offsets)
