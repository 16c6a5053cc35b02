"""Decisions after an invocation: which records are done, and which are delivered again, for ever. Pure.

A *flight* is one batch under way, and its partitions wait for it. The position that may be committed for a partition
is its lowest unresolved offset, because Kafka keeps one offset per partition and nothing else.

Buffers of one poller: which fetched records make the next payload, and when it is due. No clock, no socket.

A payload is due when its first record has waited for the batching window, when BatchSize records are there, or when
6 MB of JSON are. A partition whose last batch is still under way is *busy*: its records wait, so that there is never
more than one batch in flight per partition.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.esm.event import PAYLOAD_LIMIT, EventDraft

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lab.esm.event import EncodedRecord, EventSource
    from lab.functions.invocation import Invocation

PAYLOAD_TOO_LARGE = "MaximumPayloadSizeExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one invocation of a batch came to.

    Attributes:
        again: records to deliver once more, before anything else of their partitions.
        problem: LastProcessingResult in AWS's words; `OK` when nothing failed.
    """

    again: tuple[EncodedRecord, ...] = ()
    problem: str = "OK"


def judge(records: tuple[EncodedRecord, ...], invocation: Invocation, *, partial_response: bool, topic: str) -> Verdict:
    """Decide about a batch from its invocation's outcome. Args: partial_response: it may name records that failed."""
    if invocation.status != "success":
        throttled = invocation.status == "throttled"
        problem = "PROBLEM: Function call throttled" if throttled else "PROBLEM: Function call failed"
        return Verdict(again=records, problem=problem)
    failed = failed_records(records, invocation.payload, topic=topic) if partial_response else ()
    return Verdict(again=failed, problem="PROBLEM: Function returned batch item failures" if failed else "OK")


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


@dataclass(slots=True)
class Flight:
    """A batch under way. Partitions that the poller loses are forgotten, and their late results with them.

    Attributes:
        records: those that are not resolved, in order of partition arrival and offset.
        condition: why they cannot be invoked; empty when they are to be invoked.
        attempts: invocations so far.
        not_before: when the next one may begin, on the monotonic clock.
    """

    records: tuple[EncodedRecord, ...]
    condition: str = ""
    attempts: int = 0
    not_before: float = 0.0
    _ends: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Note where each partition's part ends."""
        self._ends = {record.partition: record.offset + 1 for record in self.records}

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that wait for this flight."""
        return frozenset(self._ends)

    @property
    def landed(self) -> bool:
        """Whether every record is resolved or forgotten."""
        return not self.records

    def leave(self, records: Iterable[EncodedRecord]) -> None:
        """Deliver these again, as far as their partitions are still ours; all others are resolved."""
        self.records = tuple(record for record in records if record.partition in self._ends)

    def positions(self) -> dict[int, int]:
        """The next offset to read, per partition: the lowest unresolved one, or the end of the batch."""
        return self._ends | {record.partition: record.offset for record in reversed(self.records)}

    def forget(self, partitions: Iterable[int]) -> None:
        """These partitions went to another poller: nothing of them is retried or committed here."""
        for partition in partitions:
            self._ends.pop(partition, None)
        self.leave(self.records)


@dataclass(slots=True)
class LaneBuffer:
    """The records of one partition that wait for their payload, with their arrival times."""

    records: deque[tuple[float, EncodedRecord]] = field(default_factory=deque)
    size: int = 0
    busy: bool = False

    @property
    def ready(self) -> bool:
        """Whether a batch may be taken from here now."""
        return bool(self.records) and not self.busy

    def take(self) -> EncodedRecord:
        """Remove the oldest record."""
        _, record = self.records.popleft()
        self.size -= len(record.body) + 1
        return record


@dataclass(slots=True, kw_only=True)
class Buffers:
    """A poller's assigned partitions and what was fetched of them.

    Attributes:
        source: where events of these records say they come from.
        batch_size: records per payload, at most.
        window_s: how long a payload waits for more after its first record arrived.
        limit: bytes of one serialized event, at most.
    """

    source: EventSource
    batch_size: int
    window_s: float
    limit: int = PAYLOAD_LIMIT
    lanes: dict[int, LaneBuffer] = field(default_factory=dict)

    def assign(self, partitions: Iterable[int]) -> None:
        """These partitions are ours now; their buffers are empty."""
        for partition in partitions:
            self.lanes[partition] = LaneBuffer()

    def revoke(self, partitions: Iterable[int]) -> None:
        """These partitions are ours no longer; what was buffered of them is forgotten."""
        for partition in partitions:
            self.lanes.pop(partition, None)

    def put(self, record: EncodedRecord, arrived: float) -> None:
        """Keep a fetched record; one of a partition that is not ours is forgotten."""
        lane = self.lanes.get(record.partition)
        if lane is not None:
            lane.records.append((arrived, record))
            lane.size += len(record.body) + 1

    def waiting(self, partition: int) -> float:
        """How many whole payloads wait in this partition."""
        lane = self.lanes[partition]
        return max(len(lane.records) / self.batch_size, lane.size / self.limit)

    def due_at(self) -> float | None:
        """When the next payload is due (a past moment means now); None when nothing waits."""
        ready = self._ready()
        return self._moment(ready) if ready else None

    def take(self, now: float) -> Flight | None:
        """The next payload that is due, as a flight; its partitions are busy until `release`."""
        ready = self._ready()
        if not ready or self._moment(ready) > now:
            return None
        flight = self._draw(ready)
        for partition in flight.partitions:
            self.lanes[partition].busy = True
        return flight

    def release(self, partitions: Iterable[int]) -> None:
        """The flight of these partitions has landed."""
        for partition in partitions:
            if partition in self.lanes:
                self.lanes[partition].busy = False

    def _ready(self) -> list[int]:
        """Ready partitions, longest waiting first; they share a payload."""
        ready = [partition for partition, lane in self.lanes.items() if lane.ready]
        ready.sort(key=lambda partition: self.lanes[partition].records[0][0])
        return ready

    def _moment(self, ready: Sequence[int]) -> float:
        lanes = [self.lanes[partition] for partition in ready]
        if sum(len(lane.records) for lane in lanes) >= self.batch_size or self._event_size(ready) >= self.limit:
            return 0.0
        return lanes[0].records[0][0] + self.window_s

    def _event_size(self, ready: Sequence[int]) -> int:
        """The exact size of one event with all that these partitions have waiting."""
        brackets = sum(len(self.source.lane_opening(partition)) + 1 for partition in ready)
        return EventDraft(source=self.source).size + brackets + sum(self.lanes[it].size for it in ready) - 1

    def _draw(self, ready: Sequence[int]) -> Flight:
        draft = EventDraft(source=self.source)
        taken: list[EncodedRecord] = []
        for partition in ready:
            lane = self.lanes[partition]
            while lane.records and draft.count < self.batch_size:
                if draft.size_with(lane.records[0][1]) > self.limit:
                    break
                taken.append(lane.take())
                draft.add(taken[-1])
        if not taken:
            # Not even alone: this record can never be delivered to a function.
            return Flight((self.lanes[ready[0]].take(),), condition=PAYLOAD_TOO_LARGE)
        return Flight(tuple(taken))
