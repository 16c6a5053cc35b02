"""Decisions after an invocation: which records are done, retried or given up. Pure.

A *flight* is one batch under way, and its partitions wait for it. It consists of *pieces*, invoked one after the
other: one at first, more after a bisect. The position that may be committed for a partition is its lowest
unresolved offset, because Kafka keeps one offset per partition and nothing else.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lab.esm.event import EncodedRecord
    from lab.functions.invocation import Invocation

RETRIES_EXHAUSTED = "RetryAttemptsExhausted"
PAYLOAD_TOO_LARGE = "MaximumPayloadSizeExceeded"
RECORD_TOO_OLD = "RecordAgeExceeded"  # AWS shows no record of this kind; the name is the lab's.


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What a mapping does about failures.

    Attributes:
        maximum_retries: not counting the first attempt; -1 for ever.
        maximum_age_s: older records are given up; -1 never.
        bisect: a failed batch is split in two, each half invoked alone.
        partial_response: the function may name the records that failed.
        bisect_consumes_retry: whether a split counts as a retry.
    """

    maximum_retries: int = -1
    maximum_age_s: int = -1
    bisect: bool = False
    partial_response: bool = False
    bisect_consumes_retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """Records that are invoked together.

    Attributes:
        records: in order of partition arrival and offset.
        failures: how many attempts counted against the retries so far.
        condition: why the piece is given up without being invoked; empty when it is to be invoked.
    """

    records: tuple[EncodedRecord, ...]
    failures: int = 0
    condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one invocation of a piece came to.

    Attributes:
        resolved: records that need no further delivery (done, or given up).
        again: pieces to invoke later, in this order, before anything else of the flight.
        given_up: records among `resolved` that the function never accepted.
        condition: why they were given up, in AWS's word.
        problem: LastProcessingResult in AWS's words; `OK` when nothing failed.
    """

    resolved: tuple[EncodedRecord, ...] = ()
    again: tuple[BatchPart, ...] = ()
    given_up: tuple[EncodedRecord, ...] = ()
    condition: str = ""
    problem: str = "OK"


def judge(piece: BatchPart, invocation: Invocation, policy: RetryPolicy, *, topic: str) -> Verdict:
    """Decide about a piece from its invocation's outcome."""
    if invocation.status != "success":
        throttled = invocation.status == "throttled"
        problem = "PROBLEM: Function call throttled" if throttled else "PROBLEM: Function call failed"
        # A throttled call says nothing about the records: splitting them would not help.
        if policy.bisect and not throttled and len(piece.records) > 1:
            return Verdict(again=_halves(piece, policy), problem=problem)
        return _after_failure(piece, piece.records, policy, problem)
    if not policy.partial_response:
        return Verdict(resolved=piece.records)
    failed = failed_records(piece.records, invocation.payload, topic=topic)
    if not failed:
        return Verdict(resolved=piece.records)
    return _after_failure(piece, failed, policy, "PROBLEM: Function returned batch item failures")


def failed_records(records: Sequence[EncodedRecord], answer: bytes, *, topic: str) -> tuple[EncodedRecord, ...]:
    """The records that a partial batch response names: `{"batchItemFailures": [{"itemIdentifier": {…}}]}`.

    An identifier is `{"partition": "topic-0", "offset": 100}`. One that is not in the batch, or an answer that
    cannot be read, means the whole batch. `null`, `{}` and an empty list mean none.
    """
    places = {(f"{topic}-{record.partition}", record.offset): record for record in records}
    try:
        response = json.loads(answer) if answer.strip() else None
        failures = response.get("batchItemFailures") if response else None
        named = {_place(failure) for failure in failures or ()}
    except (ValueError, TypeError, LookupError, AttributeError):
        return tuple(records)  # not JSON, or not of this shape
    if not named <= places.keys():
        return tuple(records)
    return tuple(record for place, record in places.items() if place in named)


def _place(failure: Any) -> tuple[str, int]:
    identifier = failure["itemIdentifier"]
    partition, offset = identifier["partition"], identifier["offset"]
    if not isinstance(partition, str) or type(offset) is not int:
        raise TypeError("an identifier is a partition's name and an offset's number")
    return partition, offset


def too_old(piece: BatchPart, *, now_ms: int, maximum_age_s: int) -> tuple[BatchPart | None, BatchPart | None]:
    """Split a piece into what is given up for its age and what remains."""
    if maximum_age_s < 0 or piece.condition:
        return None, piece
    oldest_ms = now_ms - maximum_age_s * 1000
    old = tuple(record for record in piece.records if record.timestamp_ms < oldest_ms)
    if not old:
        return None, piece
    young = tuple(record for record in piece.records if record.timestamp_ms >= oldest_ms)
    given_up = BatchPart(records=old, failures=piece.failures, condition=RECORD_TOO_OLD)
    return given_up, BatchPart(records=young, failures=piece.failures) if young else None


def _after_failure(piece: BatchPart, failed: tuple[EncodedRecord, ...], policy: RetryPolicy, problem: str) -> Verdict:
    failures = piece.failures + 1
    if 0 <= policy.maximum_retries < failures:
        return Verdict(resolved=piece.records, given_up=failed, condition=RETRIES_EXHAUSTED, problem=problem)
    accepted = set(map(id, piece.records)) - set(map(id, failed))
    done = tuple(record for record in piece.records if id(record) in accepted)
    return Verdict(resolved=done, again=(BatchPart(records=failed, failures=failures),), problem=problem)


def _halves(piece: BatchPart, policy: RetryPolicy) -> tuple[BatchPart, BatchPart]:
    middle = len(piece.records) // 2
    failures = piece.failures + (1 if policy.bisect_consumes_retry else 0)
    first, second = piece.records[:middle], piece.records[middle:]
    return BatchPart(records=first, failures=failures), BatchPart(records=second, failures=failures)


@dataclass(slots=True)
class Flight:
    """A batch under way. Partitions that the poller loses are forgotten, and their late results with them."""

    pieces: deque[BatchPart]
    attempts: int = 0
    not_before: float = 0.0
    _unresolved: dict[int, set[int]] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Sequence[EncodedRecord], *, condition: str = "") -> Flight:
        """A flight of one piece with these records."""
        flight = cls(deque([BatchPart(records=tuple(records), condition=condition)]))
        for record in records:
            flight._unresolved.setdefault(record.partition, set()).add(record.offset)
            flight._ends[record.partition] = record.offset + 1
        return flight

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that wait for this flight."""
        return frozenset(self._ends)

    @property
    def landed(self) -> bool:
        """Whether every record is resolved or forgotten."""
        return not any(self._unresolved.values())

    def resolve(self, records: Iterable[EncodedRecord]) -> None:
        """These records need no further delivery."""
        for record in records:
            self._unresolved.get(record.partition, set()).discard(record.offset)

    def positions(self) -> dict[int, int]:
        """The next offset to read, per partition: the lowest unresolved one, or the end of the batch."""
        return {
            partition: min(unresolved) if (unresolved := self._unresolved[partition]) else end
            for partition, end in self._ends.items()
        }

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions went to another poller: nothing of them is retried or committed here."""
        for partition in partitions:
            self._unresolved.pop(partition, None)
            self._ends.pop(partition, None)
        self.repeat(())

    def repeat(self, again: Sequence[BatchPart]) -> None:
        """Deliver these pieces next, as far as their partitions are still ours."""
        kept = [
            BatchPart(
                records=tuple(record for record in piece.records if record.partition in self._ends),
                failures=piece.failures,
                condition=piece.condition,
            )
            for piece in (*again, *self.pieces)
        ]
        self.pieces = deque(piece for piece in kept if piece.records)
