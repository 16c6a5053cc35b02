"""Portions of a batch: each goes in a transaction of its own, which ends before its time, or within a cap. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import attrgetter
from typing import Final

from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import LaneContent, following_offset, is_raw, opened_to_records
from mirrorless.records.record import size_of

BATCH_BYTES: Final = 16_000_000
"""Of a transaction, where nothing makes it smaller."""

LEAST_BATCH_BYTES: Final = BATCH_BYTES // 1024
SUSPECT_BYTES: Final = BATCH_BYTES // 16
"""Of which none was acknowledged: where less was tried, its size is hardly the reason."""

QUICK_SECONDS: Final = 5.0
"""Half of what a transaction may take by default: what fails later was too much for its time."""


@dataclass(slots=True)
class TransactionBytes:
    """Bytes of a transaction at most: less where one failed or was slow, so that any link brings one to its end."""

    most: int = BATCH_BYTES
    usual: int = BATCH_BYTES
    """Beyond which it does not grow."""
    least: int = LEAST_BATCH_BYTES
    quick: float = QUICK_SECONDS
    slow: float = inf
    """Seconds: a transaction that takes less is followed by one of twice as many bytes, after a longer one by half."""

    @property
    def is_usual(self) -> bool:
        """Whether nothing makes it smaller."""
        return self.most == self.usual

    def failed(self, tried: int, share: float) -> None:
        """Take half of what was tried, or of what of it was acknowledged in its time.

        Args:
            tried: bytes.
            share: of them that was acknowledged; 0 where that is not known.
        """
        self.most = min(self.most, int(tried * share) if share else max(tried, SUSPECT_BYTES))
        self.halve()

    def halve(self) -> None:
        """Take half, whatever was tried."""
        self.most = max(self.least, self.most // 2)

    def went_well(self, seconds: float) -> None:
        """Note how long a transaction took that was not refused."""
        if seconds < self.quick:
            self.most = min(self.usual, self.most * 2)
        elif seconds > self.slow:
            self.halve()


def joined(rest: Batch | None, later: Batch | None, held: Collection[TopicPartition]) -> Batch | None:
    """What follows a portion: what is left of it, and then what was parted from it; nothing of lanes that are held."""
    if later is None:
        return rest
    first = rest or Batch(records={})
    follows = {place: content for place, content in later.records.items() if place not in held}
    left = dict(first.records)
    for place, content in follows.items():
        left[place] = [*left[place], *content] if place in left else content
    if not left:
        return None
    begin = {place: first if place in first.records else later for place in left}
    end = {place: later if place in follows else first for place in left}
    return Batch(
        records=left,
        covered={place: each.covered[place] for place, each in end.items() if place in each.covered},
        begins={place: each.begins[place] for place, each in begin.items() if place in each.begins},
        epochs={place: each.epochs[place] for place, each in end.items() if place in each.epochs},
        left_out={place: each.left_out[place] for place, each in end.items() if place in each.left_out},
        unexamined=first.unexamined | later.unexamined,
    )


def bytes_in(content: LaneContent) -> int:
    """Of batches as they lie in the log, of records those of keys, values and headers."""
    return sum(batch.size for batch in content) if is_raw(content) else sum(map(size_of, content))  # type: ignore[arg-type]  # what is not raw has records


def parted(batch: Batch, most: int) -> tuple[Batch, Batch | None]:
    """The first portion of a batch, of so many bytes at most, lane after lane; and what is left, None for nothing.

    Only a record that is larger is a portion by itself.
    """
    room, some = most, False

    def fitting(place: TopicPartition, content: LaneContent) -> tuple[LaneContent, LaneContent]:
        nonlocal room, some
        head, tail = _cut(content, room, batch.begins.get(place, 0), alone=not some)
        some, room = some or bool(head), 0 if tail else room - bytes_in(head)
        return head, tail

    return _split(batch, fitting)


def side_by_side(batch: Batch, most: int) -> tuple[Batch, Batch | None]:
    """The same with an equal share of each lane's batches, one at least: a request takes one of each lane."""
    count = -(-sum(map(bytes_in, batch.records.values())) // most)

    def shared(_: TopicPartition, content: LaneContent) -> tuple[LaneContent, LaneContent]:
        first = max(1, len(content) // max(1, count))
        return content[:first], content[first:]

    return _split(batch, shared)


def of_one_epoch(batch: Batch) -> tuple[Batch, Batch | None]:
    """What of a batch is of one leader epoch in each lane, and what is left; where lanes are read by whole batches.

    A run has the epoch of its end. Where a log was cut off, nothing else shows which of the run's records it still has.
    """
    if not any(is_raw(each) and each[0].leader_epoch != each[-1].leader_epoch for each in batch.records.values()):
        return batch, None

    def begun(_: TopicPartition, content: LaneContent) -> tuple[LaneContent, LaneContent]:
        if not is_raw(content):
            return content, []
        count = bisect_right(content, content[0].leader_epoch, key=attrgetter("leader_epoch"))
        return content[:count], content[count:]

    return _split(batch, begun)


def _split(
    batch: Batch, cut: Callable[[TopicPartition, LaneContent], tuple[LaneContent, LaneContent]]
) -> tuple[Batch, Batch | None]:
    """A batch whose lanes are cut, and what is left of them."""
    taken, left = dict[TopicPartition, LaneContent](), dict[TopicPartition, LaneContent]()
    begins, epochs = dict(batch.begins), dict(batch.epochs)
    for place, content in batch.records.items():
        head, tail = cut(place, content)
        if head or not tail:
            taken[place] = head
        if tail:
            left[place] = tail
            if head:
                begins[place] = max(begins.get(place, 0), following_offset(head))
            epochs.pop(place, None)  # it is that of the end; a batch has its own
            if is_raw(head):
                epochs[place] = head[-1].leader_epoch
    portion = Batch(
        records=taken,
        covered={place: offset for place, offset in batch.covered.items() if place not in left},
        begins={place: offset for place, offset in batch.begins.items() if place in taken},
        epochs={place: epoch for place, epoch in epochs.items() if place in taken},
        left_out=batch.left_out,  # nothing else of such a lane is in a batch
        unexamined=batch.unexamined,
    )
    if not left:
        return portion, None
    return (
        portion,
        Batch(
            records=left,
            covered={place: offset for place, offset in batch.covered.items() if place in left},
            begins={place: offset for place, offset in begins.items() if place in left},
            epochs={place: epoch for place, epoch in batch.epochs.items() if place in left},
            unexamined=batch.unexamined,
        ),
    )


def _cut(content: LaneContent, room: int, begins: int, *, alone: bool) -> tuple[LaneContent, LaneContent]:
    """What fits of a lane, and the rest. Where it is alone, a batch that does not fit goes by its records."""
    if is_raw(content):
        count = _fitting([batch.size for batch in content], room)
        if count or not content or not alone:
            return content[:count], content[count:]
        opened = opened_to_records(content[:1], begins)
        if is_raw(opened):
            return content[:1], content[1:]  # it holds nothing, or cannot be opened
        head, more = _cut(opened, room, begins, alone=True)
        return head, content if more else content[1:]
    count = _fitting([size_of(record) for record in content], room)  # type: ignore[arg-type]  # what is not raw has records
    count = max(count, int(alone))
    return content[:count], content[count:]


def _fitting(sizes: list[int], room: int) -> int:
    return bisect_right(list(accumulate(sizes)), room)
