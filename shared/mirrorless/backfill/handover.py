"""When is a lane joined to its mapping, so that the job may let go of it? Pure decisions over what is seen.

    waiting    a batch of the mapping waits for the lease to end, and the lane has come to where it begins
    committed  the mapping's group has committed an offset that the lane has come to
    pinned     the group sleeps: the lane's position was committed for it, and there it will go on
    idle       the group is there, has committed nothing, and nothing came for a while: it reads from the log's end

Whichever it is: the mapping's next batch begins at or below the lane's position, and the forwarder drops what is
below. While none of them holds, the job goes on copying what arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mirrorless.ports.groups import GroupState

Joined = Literal["waiting", "committed", "pinned", "idle"]
HandoverStep = Literal["waiting", "committed", "pin", "idle", "copy", "hold"]
"""The first two and `idle`: let go. `pin`: commit the position for the group, then let go. `copy`: go on to the log's
end. `hold`: stop the lane where it is, for the mapping would skip what lies between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverState:
    """How a lane and its mapping stand to each other."""

    position: int
    """Of the lane, upstream."""
    end: int
    """The log's stable end, upstream."""
    waiting: int | None
    """Where the batch begins that waits for the lease."""
    committed: int | None
    """By the mapping's group."""
    group: GroupState
    quiet_seconds: float
    """Since the log's end has moved last."""


def next_step(seen: HandoverState, *, idle_after: float) -> HandoverStep:
    """What to do with a lane that goes on to the log's end."""
    if seen.waiting is not None:
        # The batch was read before anything that is committed now would matter: it comes first.
        return "waiting" if seen.position >= seen.waiting else "copy"
    if seen.committed is not None:
        return "committed" if seen.position >= seen.committed else "copy"
    if seen.position < seen.end:
        return "copy"
    if seen.group != "active":
        return "pin"
    return "idle" if seen.quiet_seconds >= idle_after else "copy"


def step_at_exact_end(seen: HandoverState, *, idle_after: float) -> HandoverStep:
    """What to do with a lane whose range ends where the operator said."""
    if seen.waiting is not None:
        return "waiting" if seen.position >= seen.waiting else "hold"
    if seen.committed is not None:
        return "committed" if seen.position >= seen.committed else "hold"
    if seen.group != "active":
        return "pin"
    if seen.position < seen.end:
        return "hold"  # nobody can tell where the mapping begins
    return "idle" if seen.quiet_seconds >= idle_after else "copy"
