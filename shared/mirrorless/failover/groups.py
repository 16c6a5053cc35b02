"""The consumer groups of a failover: each is committed on the target where it goes on, to the record.

The scheduled function does the same, where it lives: then its rounds count. Otherwise the command does rounds itself,
under that function's lease. An operator's order ends the wait for members that have just left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mirrorless.errors import Retriable
from mirrorless.failover.effects import CheckpointRounds
from mirrorless.failover.group_verdicts import GroupVerdict, verdicts
from mirrorless.failover.work import CALL_SECONDS, Done, FailoverWork
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints
from mirrorless.groups.ownership import members_stopped
from mirrorless.ports.stores import StateStore
from mirrorless.reports.format import numbered
from mirrorless.scheduled.functions import CONTROL
from mirrorless.scheduled.lease import HeldLease, LeasedDocuments
from mirrorless.scheduled.runner import LEASE_MS, RoundReport, TaskReport, lease

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
    rounds, troubles = 0, list[str]()
    found: Sequence[GroupVerdict] = ()
    while True:
        report = one_round(work, effects.rounds)
        rounds += report is not None
        troubles = report.troubles if report is not None else troubles
        found = _verdicts(work)
        waiting = [each.group for each in found if each.fate == "waits"]
        late = effects.clock() > began + int(READY_SECONDS * 1000)
        # A group that is behind because of a lane that cannot arrive is not waited for any longer than that.
        if late or ((rounds or _rounds_of_function(work, since=began)) and not waiting):
            break
        if rounds and work.document.order.mode == "source-lost" and report is not None and not report.moved:
            break
        work.wait_for(f"groups {', '.join(waiting[:5]) or 'to be read'}")
        work.pause()
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
    groups, active = checkpoints_of(work), set[str]()
    if work.document.order.mode == "planned":
        states = work.effects.source.groups.states([each.group for each in groups], work.within())
        active = {name for name, state in states.items() if state == "active"}
    return verdicts(groups, work.document.order.mode, active_on_source=active)


def end_waits(work: FailoverWork, direction: Direction) -> None:
    """Order that rounds do not wait for members that have left the other side: the operator has stopped them."""
    waiting = [each.group for each in checkpoints_of(work, direction) if each.left_at]
    claims = [members_stopped(group, direction) for group in waiting]
    if claims:
        work.effects.checkpoints.write(work.flow, {claim.key: msgspec.json.encode(claim) for claim in claims})


def one_round(work: FailoverWork, rounds_of: Callable[[StateStore], CheckpointRounds]) -> RoundReport | None:
    """One round, under the lease of the scheduled function; None where that one has it."""
    effects, key, holder = work.effects, lease(CONTROL.name), f"failover/{work.effects.new_id()}"
    now = effects.clock()
    epoch = effects.documents.claim(work.flow, key, holder=holder, now=now, until=now + LEASE_MS)
    if epoch is None:
        return None
    held, report = HeldLease(epoch=epoch, until=now + LEASE_MS), RoundReport()
    try:
        rounds = rounds_of(LeasedDocuments(effects.checkpoints, held, effects.clock))
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
