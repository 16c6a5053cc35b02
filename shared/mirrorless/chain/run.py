"""A run, one link of a lane's chain: the upstream offsets that it covers, and their downstream offsets.

A run covers the upstream offsets [position, next). Its spans are those that became records on the target:

    upstream    100        103 104     107 108
                 |  span A  |           |  span B ...      position 100, next 110
    downstream  517        520         521                 A = (100, 517, 3), B = (107, 520, 3)
                           gap [103, 107)

What is in no span is a gap: compacted away, a transaction marker, aborted, quarantined, returned, filtered, lost. A gap
is never dropped from the map; the loss ledger explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from mirrorless.chain.lane import Lane
from mirrorless.records.origin import OffsetRows

RunState = Literal["prepared", "committed"]

NO_EPOCH: Final = -1
"""In place of a leader epoch: an event of a mapping has none, nor has an archive."""

DigestOf = Literal["records", "batches"]
"""
records  the lane was copied record by record: the digest is over its records
batches  it was copied by whole record batches: the digest is over the batches as they were produced, and the
         timestamps are those of their headers
"""


@dataclass(frozen=True, slots=True)
class Span:
    """`length` records whose offsets grow by one on both sides."""

    upstream: int
    downstream: int
    length: int


BY_RECONCILE = "reconcile-"
"""The prefix of the ids of such job runs, and so of the request of the links that they join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One link of the chain of `lane`, as it is stored."""

    lane: Lane
    generation: int
    """Counts the chains of this lane: a reset starts a new one."""
    position: int
    """First upstream offset covered; with the generation, the run's key."""
    next: int
    """First upstream offset not covered: the lane's position after this run."""
    spans: tuple[Span, ...]
    state: RunState
    writer: str
    """The transactional id that wrote the records: fencing it settles a run in doubt."""
    attempt: str
    """Unique to one attempt to write, so that a writer never changes a rival's run at the same key."""
    fingerprint: bytes
    """Of the last record; empty when the run has no record."""
    digest: bytes
    rule: bytes = b""
    """The id of the rule by which its records were changed, see `mirrorless.transforms.rules`; empty: they are as they
    were. Digest, fingerprint and sizes are of what is on the target."""
    oldest_timestamp: int
    """Of all records, ms since the epoch; -1 when there is none. Of whole batches the lowest timestamp of a batch's
    first record: their headers have that and the highest, and a record within may be older."""
    newest_timestamp: int
    records: int
    bytes: int
    """Key and value bytes; of whole batches the bytes of their payloads as they were produced, compressed."""
    digest_of: DigestOf = "records"
    passed_bytes: int = 0
    """Those of `bytes` whose batches were passed as they lay in the source's log."""
    quarantined: tuple[int, ...] = ()
    """Upstream offsets that were left out by an operator's order."""
    returned: OffsetRows = ()
    """Upstream offsets of records that were first produced on the target; see `mirrorless.records.origin`."""
    filtered: OffsetRows = ()
    """Upstream offsets of records that the rule left out."""
    request: str = ""
    """The Lambda request or the job run that wrote it."""
    settled_at: int = 0
    """Clock of the writer, ms since the epoch."""
    examined: bool = False
    """Whether a job read this part of the source's log itself: then what is in no span was no committed record, or is
    in the loss ledger already. A mapping's batch does not show that."""
    epoch: int = NO_EPOCH
    """Leader epoch of the last record in the source's log, which markers of a later one may follow; where a run has no
    record, of what stands before `next`."""
    throttled_ms: int = 0
    """The longest pause that a broker of the target asked for meanwhile: a quota holds the flow back."""

    @property
    def known_to(self) -> int:
        """The upstream offset behind that of which `epoch` is known at least; markers may follow it."""
        return self.spans[-1].upstream + self.spans[-1].length if self.spans else self.next

    @property
    def begins(self) -> int | None:
        """The upstream offset of its first record, on the target or left out by the rule; None where it has none."""
        first = [*(span.upstream for span in self.spans[:1]), *(first for first, _ in self.filtered[:1])]
        return min(first, default=None)

    @property
    def last_downstream(self) -> int | None:
        """Downstream offset of the last record; None when the run has no record."""
        return self.spans[-1].downstream + self.spans[-1].length - 1 if self.spans else None

    @property
    def by_reconcile(self) -> bool:
        """Whether a reconcile joined it to the chain: its records are a producer's of the target."""
        return self.request.startswith(BY_RECONCILE)

    @property
    def has_marker(self) -> bool:
        """Whether a transaction of the flow ended behind its last record, and left a marker there."""
        return bool(self.spans and self.writer) and not self.by_reconcile

    def committed(self) -> Run:
        """Return the same run as committed."""
        return replace(self, state="committed")

    @property
    def unfiltered_gaps(self) -> OffsetRows:
        """The parts of its gaps that the rule has not left out."""
        return without(tuple(self.gaps()), self.filtered)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Return the half-open ranges of upstream offsets that this run covers without a record."""
        at = self.position
        for span in self.spans:
            if span.upstream > at:
                yield at, span.upstream
            at = span.upstream + span.length
        if self.next > at:
            yield at, self.next


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A link by which an operator closed a chain and opened the next one.

    It has the key of the old generation's next run, so that a forwarder with the old position collides with it.
    """

    lane: Lane
    generation: int
    position: int
    to_generation: int
    next: int
    """Upstream position at which the new generation begins."""
    reason: str
    at: int
    """ms since the epoch."""


Link = Run | Reset

_SEVEN_BITS, _MORE = 0x7F, 0x80


def without(rows: Sequence[tuple[int, int]], others: Iterable[tuple[int, int]]) -> OffsetRows:
    """Half-open ranges of offsets without those of others; both growing and apart."""
    left: list[tuple[int, int]] = []
    coming = iter(others)
    other = next(coming, None)
    for first, following in rows:
        at = first
        while other is not None and other[0] < following:
            if other[0] > at:
                left.append((at, other[0]))
            at = max(at, other[1])
            if other[1] > following:
                break
            other = next(coming, None)
        if at < following:
            left.append((at, following))
    return tuple(left)


def spans_of(upstream: Sequence[int], downstream: Sequence[int]) -> tuple[Span, ...]:
    """Fold pairs of offsets, both strictly growing, into spans.

    Growing offsets whose ends are as far apart as their number have no gap: one comparison on each side decides the
    usual batch.
    """
    count = len(upstream)
    if count == 0:
        return ()
    if upstream[-1] - upstream[0] == count - 1 and downstream[-1] - downstream[0] == count - 1:
        return (Span(upstream[0], downstream[0], count),)
    spans = []
    first = 0
    for i in range(1, count + 1):
        if i == count or upstream[i] - upstream[i - 1] != 1 or downstream[i] - downstream[i - 1] != 1:
            spans.append(Span(upstream[first], downstream[first], i - first))
            first = i
    return tuple(spans)


def pack_spans(spans: Sequence[Span], position: int = 0) -> bytes:
    """Encode spans as unsigned varints (LEB128): gap upstream, gap downstream, length.

    The first gaps count from `position` and from 0. A span for each of 4,000 records is 12 KB, which zlib brings to
    50 bytes where the gaps are regular, and to a sixth where they are not.
    """
    packed = bytearray()
    upstream, downstream = position, 0
    for span in spans:
        for number in (span.upstream - upstream, span.downstream - downstream, span.length):
            rest = number
            while rest > _SEVEN_BITS:
                packed.append(rest & _SEVEN_BITS | _MORE)
                rest >>= 7
            packed.append(rest)
        upstream, downstream = span.upstream + span.length, span.downstream + span.length
    return bytes(packed)


def unpack_spans(packed: bytes, position: int = 0) -> tuple[Span, ...]:
    """Decode what `pack_spans` encoded."""
    numbers = []
    number = shift = 0
    for byte in packed:
        if byte & _MORE:
            number |= (byte & _SEVEN_BITS) << shift
            shift += 7
        else:
            numbers.append(number | byte << shift)
            number = shift = 0
    spans = []
    upstream, downstream = position, 0
    for i in range(0, len(numbers), 3):
        upstream, downstream = upstream + numbers[i], downstream + numbers[i + 1]
        spans.append(Span(upstream, downstream, numbers[i + 2]))
        upstream, downstream = upstream + numbers[i + 2], downstream + numbers[i + 2]
    return tuple(spans)
