"""Entries of a journal, and their packed form.

A journal has the chains of up to 16 neighbouring partitions of one topic of one flow: a sequence of entries with
growing numbers. An entry holds one attempt's links, at most one for each lane of the journal, and the heads of the
journal's other
lanes: the place of each lane's newest link at the moment the number was taken.

    number   17                          18                          19
    links    0: [40, 52)  1: [7, 9)      2: [5, 6)                   0: [52, 60)
    heads    2: [0, ...) in 16           0: 17  1: 17                1: 17  2: 18

Each link names the entry of its lane's link before it, so a lane is a linked list through the journal, and an entry
shows where every lane of its journal stood: the newest entry is the head of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import msgspec

from mirrorless.chain.lane import JOURNAL_LANES, FlowName, Lane
from mirrorless.chain.run import NO_EPOCH, Link, Reset, Run, Span, pack_spans, unpack_spans, without
from mirrorless.records.origin import OffsetRows

NO_ENTRY: Final = -1
"""In place of the number of an entry."""

EntryState = Literal["prepared", "committed", "withdrawn"]


@dataclass(frozen=True, slots=True, order=True)
class Journal:
    """Up to 16 neighbouring partitions of one topic of one flow."""

    flow: FlowName
    topic: str
    index: int

    @classmethod
    def of(cls, lane: Lane) -> Journal:
        """The journal of a lane."""
        return cls(lane.flow, lane.topic, lane.partition // JOURNAL_LANES)

    def lane(self, partition: int) -> Lane:
        """One of its lanes."""
        return Lane(self.flow, self.topic, partition)

    def __str__(self) -> str:
        return f"{self.flow} {self.topic}/{self.index}"


class Place(NamedTuple):
    """The place of a lane's newest link. It sorts by generation and position, as links do."""

    generation: int
    position: int
    """The link's first upstream offset, whatever became of the link."""
    number: int
    """Of the entry that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One attempt's links in one journal."""

    journal: Journal
    number: int = NO_ENTRY
    """Of the journal's entries; none until its place is known."""
    state: EntryState
    writer: str = ""
    attempt: str
    request: str = ""
    settled_at: int
    """Clock of the writer, ms since the epoch."""
    examined: bool = False
    """See `Run.examined`."""
    throttled_ms: int = 0
    """See `Run.throttled_ms`."""
    links: Mapping[int, Link]
    """By partition. The state of a run is the entry's; a withdrawn one reads as prepared, and is no part of a chain."""
    previous: Mapping[int, int] = field(default_factory=dict)
    """By partition: the number of the entry with the lane's link before this one; `NO_ENTRY` for the first."""
    heads: Mapping[int, Place] = field(default_factory=dict)
    """By partition: the newest link of every other lane of the journal, as of this entry's number."""
    expires_at: int | None = None
    """Seconds since the epoch; None while it is kept for ever, as every entry is until it is settled."""

    @property
    def open(self) -> bool:
        """Whether the records of its links may be visible or not."""
        return self.state == "prepared"

    def settled(self, state: EntryState) -> Entry:
        """The same entry, committed or withdrawn."""
        committed = state == "committed"
        links = {
            partition: link.committed() if committed and isinstance(link, Run) else link
            for partition, link in self.links.items()
        }
        return replace(self, state=state, links=links)

    def place(self, partition: int) -> Place | None:
        """The newest link of a lane as of this entry."""
        link = self.links.get(partition)
        if link is None:
            return self.heads.get(partition)
        return Place(link.generation, link.position, self.number)

    def places(self) -> dict[int, Place]:
        """The newest link of every lane of the journal as of this entry."""
        own = {partition: Place(link.generation, link.position, self.number) for partition, link in self.links.items()}
        return {**self.heads, **own}


class _PackedFields(msgspec.Struct, frozen=True, array_like=True):
    """What all runs are stored with; offsets beside its position, times beside the entry's, so that they are short."""

    partition: int
    previous: int
    generation: int
    position: int
    length: int
    spans: bytes
    fingerprint: bytes
    digest: bytes
    oldest: int
    newest: int
    size: int
    quarantined: tuple[int, ...] = ()


class _PackedRun(_PackedFields, frozen=True, array_like=True, tag=0):
    """A run of records. Older entries have no epoch, here and below."""

    epoch: int = NO_EPOCH


class _PackedBatchesRun(_PackedFields, frozen=True, array_like=True, tag=2):
    """A run of whole batches: its tag says what its digest is of."""

    packed_anew: int = 0
    """Bytes of the batches that were not passed as they lay."""
    epoch: int = NO_EPOCH


class _PackedReturningRun(_PackedFields, frozen=True, array_like=True, tag=3):
    """A run of records some of which were first produced on the target."""

    returned: bytes = b""
    """As spans that are counted on the other side: one byte more than the ranges themselves, each."""
    epoch: int = NO_EPOCH


class _PackedTransformedRun(_PackedFields, frozen=True, array_like=True, tag=4):
    """A run of records that a rule has changed or left out."""

    rule: bytes = b""
    unfiltered: bytes = b""
    """What the rule has not left out of the gaps, which is mostly nothing, as rows of `_PackedReturningRun`."""
    epoch: int = NO_EPOCH


class _PackedReset(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A reset as it is stored."""

    partition: int
    previous: int
    generation: int
    position: int
    to_generation: int
    next: int
    reason: str


_PackedAnyRun = _PackedRun | _PackedBatchesRun | _PackedReturningRun | _PackedTransformedRun
_PackedLink = _PackedAnyRun | _PackedReset
_encoder = msgspec.msgpack.Encoder()
_links = msgspec.msgpack.Decoder(list[_PackedLink])
_heads = msgspec.msgpack.Decoder(list[int])


def pack_links(entry: Entry) -> bytes:
    """Encode the links of an entry, in the order of their partitions."""
    return _encoder.encode(
        [_packed(link, entry.previous[partition], entry) for partition, link in sorted(entry.links.items())]
    )


def pack_heads(entry: Entry) -> bytes:
    """Encode the heads of an entry: partition, generation, position and distance to the entry, flat."""
    numbers: list[int] = []
    for partition, (generation, position, number) in sorted(entry.heads.items()):
        numbers += (partition, generation, position, entry.number - number)
    return _encoder.encode(numbers)


def unpack_heads(packed: bytes, number: int) -> dict[int, Place]:
    """Decode what `pack_heads` encoded in the entry of that number."""
    flat = _heads.decode(packed)
    return {flat[i]: Place(flat[i + 1], flat[i + 2], number - flat[i + 3]) for i in range(0, len(flat), 4)}


@dataclass(frozen=True, slots=True)
class UnpackedLinks:
    """The links of an entry, and the number of the entry before each."""

    links: dict[int, Link] = field(default_factory=dict)
    previous: dict[int, int] = field(default_factory=dict)


def unpack_links(packed: bytes, entry: Entry) -> UnpackedLinks:
    """Decode what `pack_links` encoded.

    Args:
        packed: the bytes.
        entry: the one that they are of, still without links.
    """
    found = UnpackedLinks()
    for each in _links.decode(packed):
        lane = entry.journal.lane(each.partition)
        found.previous[each.partition] = entry.number - each.previous if each.previous else NO_ENTRY
        found.links[each.partition] = (
            _unpacked_reset(each, lane, entry) if isinstance(each, _PackedReset) else _unpacked_run(each, lane, entry)
        )
    return found


def _packed(link: Link, previous: int, entry: Entry) -> _PackedLink:
    partition = link.lane.partition
    back = entry.number - previous if previous != NO_ENTRY else 0
    if isinstance(link, Reset):
        return _PackedReset(partition, back, link.generation, link.position, link.to_generation, link.next, link.reason)
    of_records = (
        partition,
        back,
        link.generation,
        link.position,
        link.next - link.position,
        pack_spans(link.spans, link.position),
        link.fingerprint,
        link.digest,
        link.oldest_timestamp - entry.settled_at,
        link.newest_timestamp - entry.settled_at,
        link.bytes,
        tuple(offset - link.position for offset in link.quarantined),
    )
    if link.rule:
        unfiltered = _pack_rows(link.unfiltered_gaps, link.position)
        return _PackedTransformedRun(*of_records, link.rule, unfiltered, link.epoch)
    if link.returned:
        return _PackedReturningRun(*of_records, _pack_rows(link.returned, link.position), link.epoch)
    if link.digest_of == "records":
        return _PackedRun(*of_records, link.epoch)
    return _PackedBatchesRun(*of_records, link.bytes - link.passed_bytes, link.epoch)


def _unpacked_run(packed: _PackedAnyRun, lane: Lane, entry: Entry) -> Run:
    spans = unpack_spans(packed.spans, packed.position)
    run = Run(
        lane=lane,
        generation=packed.generation,
        position=packed.position,
        next=packed.position + packed.length,
        spans=spans,
        state="committed" if entry.state == "committed" else "prepared",
        writer=entry.writer,
        attempt=entry.attempt,
        fingerprint=packed.fingerprint,
        digest=packed.digest,
        oldest_timestamp=packed.oldest + entry.settled_at,
        newest_timestamp=packed.newest + entry.settled_at,
        records=sum(span.length for span in spans),
        bytes=packed.size,
        digest_of="batches" if isinstance(packed, _PackedBatchesRun) else "records",
        passed_bytes=packed.size - packed.packed_anew if isinstance(packed, _PackedBatchesRun) else 0,
        quarantined=tuple(offset + packed.position for offset in packed.quarantined),
        returned=_unpack_rows(packed.returned, packed.position) if isinstance(packed, _PackedReturningRun) else (),
        request=entry.request,
        settled_at=entry.settled_at,
        examined=entry.examined,
        epoch=packed.epoch,
        throttled_ms=entry.throttled_ms,
    )
    if not isinstance(packed, _PackedTransformedRun):
        return run
    filtered = without(tuple(run.gaps()), _unpack_rows(packed.unfiltered, packed.position))
    return replace(run, rule=packed.rule, filtered=filtered)


def _unpacked_reset(packed: _PackedReset, lane: Lane, entry: Entry) -> Reset:
    return Reset(
        lane=lane,
        generation=packed.generation,
        position=packed.position,
        to_generation=packed.to_generation,
        next=packed.next,
        reason=packed.reason,
        at=entry.settled_at,
    )


def _pack_rows(rows: OffsetRows, position: int) -> bytes:
    spans, counted = [], 0
    for first, following in rows:
        spans.append(Span(first, counted, following - first))
        counted += following - first
    return pack_spans(spans, position)


def _unpack_rows(packed: bytes, position: int) -> OffsetRows:
    return tuple((span.upstream, span.upstream + span.length) for span in unpack_spans(packed, position))
