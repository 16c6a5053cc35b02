"""The consumer groups of a failover: each is committed on the target where it goes on, to the record.

The scheduled function does the same, where it lives: then its rounds count. Otherwise the command does rounds itself,
under that function's lease. An operator's order ends the wait for members that have just left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from mirrorless.errors import Retriable, few
from mirrorless.failover.state import FailoverMode
from mirrorless.failover.work import CALL_SECONDS, Done, FailoverWork
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints
from mirrorless.groups.ownership import members_stopped
from mirrorless.reports.format import numbered
from mirrorless.scheduled.functions import CONTROL
from mirrorless.scheduled.runner import LEASE_MS, HeldLease, LeasedDocuments, RoundReport, TaskReport, lease

READY_SECONDS: Final = 180.0
"""Until the step leaves the groups that are not ready, and names them."""

ROUNDS: Final = "task/checkpoints"


def bring_groups(work: FailoverWork) -> Done:
    """Bring every group that can move to `ready`. Those that cannot are named.

    Raises:
        Retriable: the target or a store does not answer.
    """
    effects, began = work.effects, work.effects.clock()
    end_waits(work, "forward")
    rounds, static, troubles = 0, False, list[str]()
    found: Sequence[GroupVerdict] = ()
    for late in work.tries(READY_SECONDS):
        if static:
            end_waits(work, "forward")  # of members that have gone meanwhile
        report = one_round(work)
        rounds += report is not None
        troubles = report.troubles if report is not None else troubles
        found = _verdicts(work)
        waiting = [each.group for each in found if each.fate == "waits" or each.static]
        static = any(each.static for each in found)
        # A group that is behind because of a lane that cannot arrive is not waited for any longer than that.
        if late or ((rounds or _rounds_of_function(work, since=began)) and not waiting):
            break
        settled = report is not None and not report.moved and not static
        if rounds and work.document.order.mode == "source-lost" and settled:
            break
        work.wait_for(f"groups {few(waiting, 5) or 'to be read'}" + (f": {STATIC}" if static else ""))
    moved = [each for each in found if each.fate == "moved"]
    rest = len(found) - len(moved)
    return Done(
        said=f"go on on {work.flow.target}: {numbered(len(moved), 'group')}" + (f"; not: {rest:,}" if rest else ""),
        facts={"groups": msgspec.to_builtins(list(found), str_keys=True), "troubles": troubles},
        commands=tuple(
            f"group {each.group} on {work.flow.target}: "
            + ", ".join(
                f"{effects.remote_topic(topic)}-{partition} at {offset}"
                for topic, offsets in each.offsets.items()
                for partition, offset in offsets.items()
            )
            for each in moved
        ),
    )


def checkpoints_of(work: FailoverWork, direction: Direction = "forward") -> list[GroupCheckpoints]:
    """The groups of the flow by their stored checkpoints.

    Raises:
        Retriable: the store does not answer.
    """
    stored = work.effects.checkpoints.read(work.flow, f"{direction}/").values()
    return [msgspec.json.decode(text, type=GroupCheckpoints) for text in stored]


def _verdicts(work: FailoverWork) -> list[GroupVerdict]:
    effects, groups, active = work.effects, checkpoints_of(work), set[str]()
    if work.document.order.mode == "planned":
        states = effects.source.groups.states([each.group for each in groups], work.within())
        active = {name for name, state in states.items() if state == "active"}
    members = [
        (effects.source, active),
        (effects.target, {each.group for each in groups if each.readiness == "active_on_target"}),
    ]
    static = {name for side, names in members if names for name in side.static_groups(names, work.within())}
    found = verdicts(groups, work.document.order.mode, active_on_source=active, static=static)
    before = work.document.facts("groups").get("groups", [])
    return with_started(found, msgspec.convert(before, list[GroupVerdict], str_keys=True))


def end_waits(work: FailoverWork, direction: Direction) -> None:
    """Order that rounds do not wait for members that have left the other side: the operator has stopped them."""
    waiting = [each.group for each in checkpoints_of(work, direction) if each.left_at]
    claims = [members_stopped(group, direction) for group in waiting]
    if claims:
        work.effects.checkpoints.write(work.flow, {claim.key: msgspec.json.encode(claim) for claim in claims})


def one_round(work: FailoverWork, *, back: bool = False) -> RoundReport | None:
    """One round, under the lease of the scheduled function; None where that one has it. Args: back: as `FlowRounds`."""
    effects, key, holder = work.effects, lease(CONTROL.name), f"failover/{work.effects.new_id()}"
    now = effects.clock()
    epoch = effects.documents.claim(work.flow, key, holder=holder, now=now, until=now + LEASE_MS)
    if epoch is None:
        return None
    held, report = HeldLease(epoch=epoch, until=now + LEASE_MS), RoundReport()
    try:
        rounds = effects.rounds(LeasedDocuments(effects.checkpoints, held, effects.clock), back=back)
        rounds.act(report, lambda: min(CALL_SECONDS, (held.until - effects.clock()) / 1000))
    except Retriable as exc:
        work.say(f"a round of checkpoints failed, and is repeated: {exc}")
        return None
    finally:
        effects.documents.release(work.flow, key, holder=holder)
    return report


def _rounds_of_function(work: FailoverWork, *, since: int) -> bool:
    """Whether the scheduled function, where it commits, has begun and ended a round since then."""
    if work.effects.settings.sync_group_offsets_seconds is None:
        return False
    text = work.effects.documents.read(work.flow, ROUNDS).get(ROUNDS)
    report = None if text is None else msgspec.json.decode(text, type=TaskReport)
    return report is not None and not report.error and report.at - report.ms > since


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
    static: bool = False
    """Whether it is held up, or named, because of members all of which are static: brokers keep one that was closed."""


def verdicts(
    groups: Iterable[GroupCheckpoints],
    mode: FailoverMode,
    *,
    active_on_source: Collection[str] = (),
    static: Collection[str] = (),
) -> list[GroupVerdict]:
    """The fate of each group, by its checkpoints of the last round.

    Args:
        groups: with their checkpoints.
        mode: of the failover.
        active_on_source: those with members there.
        static: those whose members are all static.
    """
    return [
        _verdict(group, mode, active=group.group in active_on_source, static=group.group in static) for group in groups
    ]


def with_started(found: Iterable[GroupVerdict], before: Iterable[GroupVerdict]) -> list[GroupVerdict]:
    """Verdicts, where a group that had moved already counts as moved, though it has begun to read on the target."""
    moved = {each.group: each for each in before if each.fate == "moved"}
    return [moved[each.group] if each.group in moved and each.readiness in _BEGUN else each for each in found]


def _verdict(group: GroupCheckpoints, mode: FailoverMode, *, active: bool, static: bool) -> GroupVerdict:
    fate, why = _fate(group, mode)
    if fate == "moved" and active:
        why = "it has members on the source still: stop them, what they commit there is carried over by the schedule"
    elif static and group.readiness == "active_on_target":
        fate = "waits"
    else:
        static = False
    return GroupVerdict(
        group=group.group,
        fate=fate,
        readiness=group.readiness,
        why=f"{why}. {STATIC}" if static else why,
        static=static,
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
    if state == "out_of_range" and committed:
        return "moved", BESIDE
    if state in _WAITING:
        return "waits", _WAITING[state].format(group=group)
    return "left", _LEFT.get(state, "it would skip {group.skip:,} records on the target").format(group=group)


_BEGUN: Final = frozenset({"active_on_target", "independent"})
BESIDE: Final = (
    "an offset of it lies beyond the end of the source's log, or on a partition that is not there: "
    "its consumer begins there where its auto.offset.reset says"
)

STATIC: Final = "Its members are static (group.instance.id): one that was closed stays for its session time-out"

_WAITING: Final[Mapping[str, str]] = {
    "ready": "its offsets are not committed yet",
    "ahead_of_replication": "it has read more than was replicated",
    "behind": "it would read {group.reread:,} records again",
}
_LEFT: Final[Mapping[str, str]] = {
    "independent": "another application has its name on the target, or it has read there itself",
    "active_on_target": "it has members on the target",
    "out_of_range": BESIDE,
    "map_lost": "a lane of it is stopped, and the map describes records that are gone: its place is not known",
    "before_map": "a position of it has expired from the offset map: set it yourself",
}
