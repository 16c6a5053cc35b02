"""The past of a lane: what another replicator copied before its chain begins, as pairs of offsets, some far apart.

      upstream     0 ... 100   ...   201   ... 380 381 382 | 383, the place where the chain begins
      downstream  40     140         241       441 442 443 | 444        downstream(150) = 141, at most 100 too early

A record behind one whose copy is known is copied behind it, and one before it before. So an answer between two pairs
is the place behind the first one: nothing is skipped, and the exact place is no further on than the second one. Of
records that were copied again, the first copy counts. Pure but for the documents.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Span, pack_spans, spans_of, unpack_spans
from mirrorless.ports.stores import StateStore

Side = Literal["upstream", "downstream"]

Pair = tuple[int, int]
"""The upstream offset of a record, and the downstream offset of its copy."""

STEP: Final = 100
"""Pairs are kept whose distance is more than so many parts of what is behind them: some 100 for each time that a log
is 2.7 times as long, so 12 KB for 1,000,000,000 records."""


LIVES: Final = 20
"""Times that a replicator has begun again, at most, before which nothing is known."""


@dataclass(frozen=True, slots=True)
class PastPlace:
    """A place on the other side that is not behind the exact one."""

    offset: int
    furthest: int | None
    """The exact place is here at most; None where that is not known."""
    exact: bool = False
    """Whether it is the copy of the very record."""


class Past(msgspec.Struct, frozen=True):
    """The past of one lane, as it is stored."""

    generation: int
    """Of the chain that begins behind it."""
    packed: bytes
    """Spans, see `pack_spans`. Those without a length say that all from here on is copied from there on: the first one,
    where the remote partition began, and the last one, at the place, which is missing where the end was lost."""

    @classmethod
    def of(cls, generation: int, spans: Sequence[Span]) -> Self:
        """The past with some spans. Args: as the fields."""
        return cls(generation=generation, packed=pack_spans(spans))

    def spans(self) -> tuple[Span, ...]:
        """Both offsets grow from one to the next."""
        return unpack_spans(self.packed)

    def downstream(self, upstream: int) -> PastPlace:
        """Where a consumer goes on that has read up to an upstream offset."""
        spans = self.spans()
        number = bisect_right(spans, upstream, key=lambda span: span.upstream) - 1
        span, following = spans[number], spans[number + 1 :][:1]
        if upstream < span.upstream + span.length:
            return _exact(span.downstream + upstream - span.upstream)
        return PastPlace(span.downstream + span.length, following[0].downstream if following else None)

    def upstream(self, downstream: int) -> PastPlace | None:
        """The same back. None before the first pair.

        A replicator may have begun again between two pairs, below the second one. Till then it had copied records
        beyond that one, as many as fit in between, since it notes a pair where it leaves out an offset.
        """
        spans = self.spans()
        number = bisect_right(spans, downstream, key=lambda span: span.downstream) - 1
        if number < 1:
            return None
        span, following = spans[number], spans[number + 1 :][:1]
        if downstream < span.downstream + span.length:
            return _exact(span.upstream + downstream - span.downstream)
        room = following[0].downstream - span.downstream - span.length if following else 0
        return PastPlace(span.upstream + span.length, following[0].upstream + room if following else None)

    @property
    def end(self) -> Span | None:
        """The last span, which has no length; None where the end was lost."""
        last = self.spans()[-1]
        return None if last.length else last

    def offsets_between(self, first: int, end: int, side: Side) -> int:
        """How many offsets of [first, end) of one side are in it."""
        spans = self.spans()
        begins, *_, ends = [each.upstream if side == "upstream" else each.downstream for each in spans]
        return max(0, min(end, ends) - max(first, begins))

    def before(self, upstream: int) -> Past | None:
        """What is left where all from an upstream offset on is gone; None where that is nothing."""
        kept = _below(self.spans(), upstream)
        return Past.of(self.generation, kept) if kept else None


def _below(spans: Iterable[Span], upstream: int) -> list[Span]:
    """The parts of spans below an upstream offset."""
    return [
        Span(each.upstream, each.downstream, min(each.length, upstream - each.upstream))
        for each in spans
        if each.upstream < upstream
    ]


def _exact(offset: int) -> PastPlace:
    return PastPlace(offset, offset, exact=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedLane:
    """The pairs that a replicator has noted of one lane, in the order in which it did, beside its compared tail.

    It notes a pair now and then. A pair that stands before the one noted last shows that it began again, or that a
    topic was made anew. Only the records themselves tell which: the last pair of each stretch is to be confirmed.
    """

    tail: Sequence[Span]
    """The records that were found on both sides."""
    stretches: Sequence[Sequence[Pair]]
    """The pairs before the tail, growing on both sides within each."""
    confirmed: bool = False
    """Whether pairs within the tail show that the last stretch leads to it."""

    @classmethod
    def of(cls, pairs: Iterable[Pair], tail: Sequence[Span], end: int) -> Self:
        """Sort them.

        Args:
            pairs: as they were noted.
            tail: see `tail`; it may be empty.
            end: of the remote partition.
        """
        begins = tail[0].downstream if tail else end
        stretches: list[list[Pair]] = []
        last, confirmed, joined = (-1, -1), False, False
        for pair in pairs:
            if pair[1] >= begins:
                agrees = _agrees(pair, tail, end)
                if agrees is False:  # they are of another flow, or of topics that are gone
                    return cls(tail=tail, stretches=[])
                if not joined:  # by the first pair alone: a topic that was made anew grows beyond the one before
                    confirmed, joined = bool(agrees) and pair[0] > last[0], bool(agrees) or pair[0] <= last[0]
            elif pair != last:
                if pair[0] > last[0] and pair[1] > last[1] and stretches:
                    stretches[-1].append(pair)
                else:
                    stretches.append([pair])
                last, confirmed, joined = pair, False, False
        return cls(tail=tail, stretches=stretches[-LIVES:], confirmed=confirmed)

    @property
    def to_confirm(self) -> list[Pair]:
        """The pairs whose records are to be compared."""
        last = [each[-1] for each in self.stretches]
        return last[:-1] if self.confirmed else last

    def past(self, same: Collection[Pair], *, start: int, place: int, end: int) -> tuple[Span, ...]:
        """The spans of a lane's past.

        Args:
            same: those of `to_confirm` whose records are the same on both sides.
            start: where the remote partition begins.
            place: see `Past`.
            end: of the remote partition.
        """
        known = list(self.tail)
        for number, stretch in reversed(list(enumerate(self.stretches))):
            leads_on = self.confirmed and number == len(self.stretches) - 1
            if not (leads_on or stretch[-1] in same) or (known and stretch[-1][1] >= known[0].downstream):
                break
            peak = stretch[-1][0] + 1
            known = [*spans_of(*zip(*stretch, strict=True)), *_behind(known, peak)]
        # What stands at the place or behind it comes again; what stands before the log's beginning is gone.
        known = _below([each for each in known if each.downstream >= start], place)
        return tuple(_thinned([Span(0, start, 0), *known, Span(place, end, 0)]))


def _agrees(pair: Pair, tail: Sequence[Span], end: int) -> bool | None:
    """Whether a pair is one of the tail's; None where the tail does not say. Args: end: of the remote partition."""
    for span in tail:
        if span.downstream <= pair[1] < span.downstream + span.length:
            return pair[0] - span.upstream == pair[1] - span.downstream
        if span.upstream <= pair[0] < span.upstream + span.length:
            return None  # a copy of one of these that is not the first
    return False if pair[1] >= end else None


def _behind(spans: Iterable[Span], upstream: int) -> list[Span]:
    """The parts of spans from an upstream offset on."""
    cut = [(span, max(0, upstream - span.upstream)) for span in spans]
    return [Span(each.upstream + n, each.downstream + n, each.length - n) for each, n in cut if n < each.length]


def _thinned(spans: Sequence[Span]) -> list[Span]:
    """The spans, without those that lie near others as seen from the end; the first pair stays, for the way back."""
    end, kept = spans[-1].downstream, [spans[-1]]
    for span, before in zip(reversed(spans[2:-1]), reversed(spans[1:-2]), strict=True):
        gap = kept[-1].downstream - before.downstream - before.length
        if gap > (end - kept[-1].downstream) // STEP:
            kept.append(span)
    return [*spans[: 2 if len(spans) > 2 else 1], *reversed(kept)]  # noqa: PLR2004 -- the ends


@dataclass(slots=True, kw_only=True)
class PastStore:
    """The pasts of lanes, in documents `past/<topic>/<partition>`. What was read is kept: a generation has one past."""

    documents: StateStore
    _known: dict[tuple[Lane, int], Past | None] = field(default_factory=dict)

    def of(self, lane: Lane, generation: int) -> Past | None:
        """What was copied before a lane's chains; None where nothing is known of it.

        Args:
            lane: whose.
            generation: of its chain now. The first chain of a lane has nothing behind it.

        Raises:
            Retriable: the store does not answer.
        """
        if generation == 0:
            return None
        if (lane, generation) not in self._known:
            self._known[lane, generation] = self._read(lane)
        return self._known[lane, generation]

    def begin(self, lane: Lane, generation: int, spans: Sequence[Span]) -> None:
        """Write a lane's past, with what is known of the time before it. It goes before the link.

        Args:
            lane: whose.
            generation: of the chain that is to begin.
            spans: of `SyncedLane.past`.

        Raises:
            Retriable: the store does not answer.
        """
        before = self._read(lane)
        first, *rest = spans
        older = [
            each
            for each in (before.spans()[1:] if before is not None else ())
            if first.downstream <= each.downstream
            and each.upstream + each.length <= rest[0].upstream
            and each.downstream + each.length <= rest[0].downstream
        ]
        self._write(lane, Past.of(generation, [first, *older, *rest]))

    def cut(self, lane: Lane, upstream: int) -> None:
        """Drop what is gone from an upstream offset on.

        Raises:
            Retriable: the store does not answer.
        """
        past = self._read(lane)
        if past is None:
            return
        if (left := past.before(upstream)) is None:
            self.documents.delete(lane.flow, _key(lane))
        else:
            self._write(lane, left)

    def _read(self, lane: Lane) -> Past | None:
        text = self.documents.read(lane.flow, _key(lane)).get(_key(lane))
        return None if text is None else msgspec.json.decode(text, type=Past)

    def _write(self, lane: Lane, past: Past) -> None:
        self.documents.write(lane.flow, {_key(lane): msgspec.json.encode(past)})


def _key(lane: Lane) -> str:
    """Slashes are in no name of a topic, and the last one keeps partition 1 apart from 10."""
    return f"past/{lane.topic}/{lane.partition}/"
