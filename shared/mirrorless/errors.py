"""Errors: what went wrong, where, whether a retry helps, and what the operator can do.

MirrorlessError
├── ConfigurationError      invalid input, found before anything is created; a retry does not help
├── Refused                 an order that does not fit the state of what it is about; nothing was changed
├── EventError              an event that is not what a Kafka event source mapping sends
├── Retriable               the same call may succeed later; Lambda's own retry is the right answer
│   ├── LostRace            another writer prepared this lane first; read the positions again
│   ├── InDoubt             a run's fate cannot be known yet (an open transaction hides it)
│   ├── NotAcknowledged     the target has not acknowledged the records of some partitions in time
│   ├── LeaseHeld           another job holds this lane, until it releases it or its lease ends
│   ├── LeaseLost           this run's lease is over, and another run may be at work: nothing more is written
│   └── LaneWaits           nothing of this lane is written until a job has ended; the other lanes go on
├── LaneStopped             one lane waits for the operator; the other lanes go on
├── RecordsGone             a log begins above what a job was to read of it
├── ArchiveBroken           an archive contradicts itself, or is none
└── ChainBroken             an invariant of the offset map does not hold; the operator must look
"""

from __future__ import annotations

from collections.abc import Iterable


class MirrorlessError(Exception):
    """Base of every error that is raised on purpose.

    Attributes:
        where: flow, topic-partition and offset, or a field: `us-east->eu-west orders-3 @ 1234`.
        hint: what the operator can do; empty when waiting is all.
        retriable: whether the same call may succeed later without any change.
    """

    retriable = False

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        retry = "a retry may help" if self.retriable else "a retry does not help"
        advice = f" What to do: {self.hint}" if self.hint else ""
        return f"{place}{self.what} ({retry}).{advice}"


class ConfigurationError(MirrorlessError):
    """The configuration cannot be used. `where` names the field."""


class Refused(MirrorlessError):
    """The order does not fit the state of what it is about. Nothing was changed."""


class EventError(MirrorlessError):
    """The event is not what a Kafka event source mapping sends."""


class Retriable(MirrorlessError):
    """The effect failed for a reason that may pass."""

    retriable = True


class LostRace(Retriable):
    """Another writer prepared a run at this lane's position first."""


class InDoubt(Retriable):
    """Whether a run was committed cannot be known yet."""


class NotAcknowledged(Retriable):
    """Records were not acknowledged in time.

    Attributes:
        partitions: the remote topics and partitions that lack acknowledgements.
        tried: the bytes of all that was to be written; 0 where that is not known.
        share: of them that was acknowledged; 0 where that is not known.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        partitions: Iterable[tuple[str, int]] = (),
        tried: int = 0,
        share: float = 0.0,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.partitions = frozenset(partitions)
        self.tried, self.share = tried, share


class LeaseHeld(Retriable):
    """A job holds this lane, and another job must wait."""


class LeaseLost(Retriable):
    """The lease of this run is over, and another run may be at work. Nothing more may be written by this one."""


class LaneWaits(Retriable):
    """This lane waits for a job. `where` names the lane and the upstream offset."""


class LaneStopped(MirrorlessError):
    """This lane waits for the operator. `where` names the lane and the upstream offset."""


class RecordsGone(MirrorlessError):
    """What was to be read is not in the log any more. `where` names the partition and the offsets."""


class ArchiveBroken(MirrorlessError):
    """An archive contradicts itself, or is not what an archive looks like. `where` names it."""


class ChainBroken(MirrorlessError):
    """The offset map contradicts itself or the target.

    Attributes:
        target_lost: whether the target may not have any of what the map says it has.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", target_lost: bool = False) -> None:
        super().__init__(what, where=where, hint=hint)
        self.target_lost = target_lost


def few(names: Iterable[str], most: int = 3) -> str:
    """Names with commas between, the first of them; the others are counted: `a, b, c and 2 more`."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
