"""Delivery reports of a producer: the downstream offset of each record of a lane, or its error.

A report copies its record, which cost an eighth of an event's CPU. In a transaction the first and the last report of a
lane are enough as long as they are as far apart as the lane's records: a producer's records stand in their order, and a
commit fails if any of them was not delivered. Whatever else the two say, the transaction is aborted and written again
under the eyes of every report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from mirrorless.ports.kafka import Delivery, Refusal
from mirrorless.protocol.refusal_causes import REMEDIES

REFUSALS: Final = frozenset(getattr(KafkaError, cause) for cause in REMEDIES if hasattr(KafkaError, cause))
"""A retry of the same record gets the same answer."""

TOO_LARGE: Final = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE))
_ALSO: Final = KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001 -- the constant's name: another record of the batch

_ENDS: Final = 2


class Watch:
    """Lanes of the target whose reports are all looked at, because the first and the last left the offsets unclear.

    Another producer writes there, or something failed.
    """

    EVENTS: Final = 100
    """After as many events without a gap downstream, the ends of a lane are trusted again."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, int], int] = {}

    def __contains__(self, lane: tuple[str, int]) -> bool:
        return lane in self._left

    def begin(self, lane: tuple[str, int]) -> None:
        """Look at every report of this lane."""
        self._left[lane] = self.EVENTS

    def seen(self, lane: tuple[str, int], offsets: Sequence[int]) -> None:
        """All reports of a lane came."""
        if lane not in self._left:
            return
        if offsets and offsets[-1] - offsets[0] != len(offsets) - 1:
            self.begin(lane)
        elif self._left[lane] > 1:
            self._left[lane] -= 1
        else:
            del self._left[lane]


class Reports:
    """The reports of one lane of a write, in the order in which they came: that of the records."""

    __slots__ = ("_by_record", "_count", "by_ends", "failed", "offsets", "refusal")

    def __init__(self, count: int, *, by_ends: bool, by_record: bool = False) -> None:
        """Create the reports of a write.

        Args:
            count: records of the lane.
            by_ends: only the first and the last are reported.
            by_record: each record has a callback of its own, which costs CPU. A refusal then names its record, also
                where others timed out, before it or ahead of its answer.
        """
        self._count = count
        self.by_ends = by_ends
        self._by_record = by_record
        self.offsets: list[int] = []
        self.refusal: Refusal | None = None
        self.failed: KafkaError | None = None

    def callbacks(self) -> Iterable[Any]:
        """For each record what the client calls, or None."""
        if self._by_record:
            return map(self._callback, range(self._count))
        callback = self._callback()
        if self.by_ends and self._count > _ENDS:
            return (callback, *repeat(None, self._count - _ENDS), callback)
        return repeat(callback, self._count)

    @property
    def missing(self) -> int:
        """How many reports did not come, or carried an error."""
        expected = min(self._count, _ENDS) if self.by_ends else self._count
        return expected - len(self.offsets)

    @property
    def unclear(self) -> bool:
        """Whether the ends of the lane leave the offsets of its other records open."""
        if not self.by_ends or not self._count:
            return False
        if self.missing or self.refusal is not None or self.failed is not None:
            return True
        return self.offsets[0] < 0 or self.offsets[-1] - self.offsets[0] != self._count - 1

    def delivery(self) -> Delivery:
        """What became of the records, once nothing is unclear."""
        if self.by_ends and self.offsets:
            return Delivery(downstream=range(self.offsets[0], self.offsets[0] + self._count))
        return Delivery(downstream=self.offsets, refusal=self.refusal)

    def refuse(self, error: KafkaError, index: int) -> None:
        """Only the first refusal counts: what follows it is refused for its sake."""
        cause = "INVALID_RECORD" if error.code() == _ALSO else error.name()
        detail, too_large = f"{cause}: {error.str()}", error.code() in TOO_LARGE
        self.refusal = self.refusal or Refusal(index=index, detail=detail, cause=cause, too_large=too_large)

    def _callback(self, index: int | None = None) -> Callable[[KafkaError | None, Message], None]:
        """What the client calls once per record. It runs ten thousand times an event, hence the local name.

        Args:
            index: of its record; None where all records share it, and only the number of earlier offsets is known.
        """
        acknowledge = self.offsets.append

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                # None is librdkafka's "unknown"; -1 lets settle.py refuse it.
                acknowledge(-1 if (offset := message.offset()) is None else offset)
            elif error.code() in REFUSALS or error.code() == _ALSO:
                self.refuse(error, len(self.offsets) if index is None else index)
            else:
                self.failed = self.failed or error

        return on_delivery
