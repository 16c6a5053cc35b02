"""Which groups have moved, which can still move, and which are left where they are, with the reason. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from mirrorless.failover.state import FailoverMode
from mirrorless.groups.checkpoints import GroupCheckpoints

GroupFate = Literal["moved", "waits", "left"]


class GroupVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One group."""

    group: str
    fate: GroupFate
    readiness: str
    why: str = ""
    """Of `waits` and `left`; of `moved`, what the operator should be aware of."""
    reread: int = 0
    """Records that it reads again on the target."""
    skip: int = 0
    ahead: int = 0
    """Upstream offsets that it has read on the source and that are not on the target."""
    offsets: dict[str, dict[int, int]] = {}
    """Downstream, by source topic and partition: where it goes on."""


def verdicts(
    groups: Iterable[GroupCheckpoints], mode: FailoverMode, *, active_on_source: Collection[str] = ()
) -> list[GroupVerdict]:
    """The fate of each group, by its checkpoints of the last round."""
    return [_verdict(group, mode, active=group.group in active_on_source) for group in groups]


def _verdict(group: GroupCheckpoints, mode: FailoverMode, *, active: bool) -> GroupVerdict:
    fate, why = _fate(group, mode)
    if fate == "moved" and active:
        why = "it has members on the source still: stop them, what they commit there is carried over by the schedule"
    return GroupVerdict(
        group=group.group,
        fate=fate,
        readiness=group.readiness,
        why=why,
        reread=group.reread,
        skip=group.skip,
        ahead=group.ahead,
        offsets={
            topic: {partition: at.downstream for partition, at in offsets.items() if at.downstream is not None}
            for topic, offsets in group.offsets.items()
        },
    )


def _fate(group: GroupCheckpoints, mode: FailoverMode) -> tuple[GroupFate, str]:
    state, committed = group.readiness, group.by == "group"
    if state == "ready" and committed:
        return "moved", ""
    if state == "ahead_of_replication" and committed and mode == "source-lost":
        return "moved", f"{group.ahead:,} upstream offsets that it has read are not on the target"
    if state in _WAITING:
        return "waits", _WAITING[state].format(group=group)
    return "left", _LEFT.get(state, "it would skip {group.skip:,} records on the target").format(group=group)


_WAITING: Final[Mapping[str, str]] = {
    "ready": "its offsets are not committed yet",
    "ahead_of_replication": "it has read more than was replicated",
    "behind": "it would read {group.reread:,} records again",
}
_LEFT: Final[Mapping[str, str]] = {
    "independent": "another application has its name on the target, or it has read there itself",
    "active_on_target": "it has members on the target",
    "before_map": "a position of it has expired from the offset map: set it yourself",
}
