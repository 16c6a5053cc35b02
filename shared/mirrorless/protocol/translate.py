"""Offset translation between source and target: exact in both directions, at any lag.

The chain of runs is the map. An upstream offset lies in exactly one run: in a span, then the answer is exact; or
in a gap, then the answer is the next record that exists, which is where a consumer would go on reading.

      upstream   ...98  [99 100 101]  (102)  [103 104] | end
      downstream         517 518 519          520 521  | 522        downstream(100) = 518
                                                                    downstream(102) = 520
                                                                    downstream(105) = 522, the end of the map

What another replicator copied before the chain began has a few pairs of offsets, see `past`: an answer between two of
them is approximate. Pure but for reading links through the `Chains` port, and pasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.ports.stores import ChainReads
from mirrorless.protocol.past import PastStore, Side

TranslationState = Literal[
    "exact", "next_record", "approximate", "ahead_of_replication", "before_map", "no_map", "map_lost"
]
"""
exact                 the very record, or the end of what has been replicated
next_record           the offset lies in a gap: this is the next record that exists
approximate           another replicator has copied it: this is the exact place, or one before it, see `bound`
ahead_of_replication  the offset lies beyond the newest run: this is the end of the map
before_map            no run covers the offset any more: this is the oldest record of the map after it
no_map                nothing of this lane has been replicated
map_lost              the lane is stopped, because the map describes records that are gone: no offset is known
"""

PAGE = 16
"""Links read at a time while looking for the next record."""

LONG_PAGE = 500
"""Links read at a time while walking along a chain to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """An offset on the other side; None only with `no_map` and `map_lost`."""

    offset: int | None
    state: TranslationState
    bound: int = 0
    """How many offsets further on the exact place is at most, where it is approximate."""


NO_MAP = Translation(offset=None, state="no_map")
MAP_LOST = Translation(offset=None, state="map_lost")


class OffsetMap:
    """Translates offsets of one lane's newest generation.

    Whoever lets others go by the answers reads chains by `MapReads`: only its heads heed the stops of lanes.
    """

    def __init__(self, chains: ChainReads, past: PastStore | None = None) -> None:
        """Args: past: what was copied before the chains began; None where nobody may have."""
        self._chains, self._past = chains, past

    def downstream(self, lane: Lane, upstream: int, *, head: Head | None = None) -> Translation:
        """Translate an upstream offset: the place downstream at which a consumer that has read up to it goes on.

        Args:
            lane: whose offset.
            upstream: the first offset that the consumer has not read.
            head: the lane's, where the caller has read it already.
        """
        head = head or self._chains.heads([lane])[lane]
        if is_lost(head, upstream):
            return MAP_LOST
        found = self.next_downstream(lane, upstream, head=head)
        if found is None and (end := self.end(lane, head)) is not None:
            # Beyond the last record that was replicated: the end of the map.
            return Translation(offset=end, state="exact" if upstream <= head.position else "ahead_of_replication")
        if found is None or found.state == "before_map":
            return self._before(lane, upstream, "upstream", head=head, first=found, end=head.position)
        return found

    def _before(
        self, lane: Lane, offset: int, side: Side, *, head: Head, first: Translation | None, end: int
    ) -> Translation:
        """The place of an offset before all records of the map.

        Args:
            lane: whose.
            offset: to translate.
            side: whose offset it is.
            head: the lane's.
            first: the oldest record of the map; None where it has none.
            end: the offset up to which nothing else stands on this side, where the map has no record.
        """
        past = self._past.of(lane, head.generation) if self._past is not None else None
        found = None if past is None else past.downstream(offset) if side == "upstream" else past.upstream(offset)
        if found is not None and (furthest := found.furthest) is not None:
            if side == "upstream" and first is not None and first.offset is not None:
                furthest = min(furthest, first.offset)  # after a reset to before the past, the chain goes on there
            at = min(found.offset, furthest)
            state: TranslationState = "exact" if found.exact and at == found.offset else "next_record"
            return Translation(offset=at, state=state if at == furthest else "approximate", bound=furthest - at)
        if first is not None:
            return first
        # Behind all that was copied before: the end of the map, while no record follows in the chain behind it.
        if past is None or found is None or past.generation != head.generation or past.end is None:
            return NO_MAP
        end = max(end, past.end.upstream if side == "upstream" else past.end.downstream)
        return Translation(offset=found.offset, state="exact" if offset <= end else "ahead_of_replication")

    def next_downstream(self, lane: Lane, upstream: int, *, head: Head) -> Translation | None:
        """The first record of the map from an upstream offset on; None where there is none. Args: as `downstream`."""
        if upstream < head.position:
            run = self._run_over(lane, head, upstream)

            # Exactly on a record, or in a gap before a record of the same run.
            state: TranslationState = "before_map" if run is None or run.next <= upstream else "next_record"
            for span in run.spans if run is not None else ():
                if upstream < span.upstream:
                    return Translation(offset=span.downstream, state="next_record")
                if upstream < span.upstream + span.length:
                    return Translation(offset=span.downstream + upstream - span.upstream, state="exact")

            # In a gap before a record of a later run; or no run covers it any more, because links expire in no order.
            following = self._first_record_after(lane, head, upstream)
            if following is not None:
                return Translation(offset=following.spans[0].downstream, state=state)
        return None

    def upstream(
        self, lane: Lane, downstream: int, *, head: Head | None = None, stable_end: int | None = None
    ) -> Translation:
        """Translate a downstream offset back: the place on the source at which a consumer of the remote topic goes on.

        A read_committed consumer that has read everything stands behind the last commit marker, and so beyond the last
        record in the map. Whether that was the last one, the map alone cannot show. `stable_end` can: read
        after the consumer's offset and before the head, nothing below it is undecided, and whatever became visible
        below it had been prepared before. So with no run in doubt there are only markers in between.

        Args:
            lane: whose offset.
            downstream: the first offset that the consumer has not read.
            head: the lane's, where the caller has read it already.
            stable_end: of the remote partition, read as said above; None where it was not read, or where records are
                visible before their run is prepared (at_least_once).
        """
        head = head or self._chains.heads([lane])[lane]
        found = self._upstream(lane, downstream, head=head, stable_end=stable_end)
        return MAP_LOST if is_lost(head, found.offset or 0) else found

    def _upstream(self, lane: Lane, downstream: int, *, head: Head, stable_end: int | None) -> Translation:
        run = self._last_run_at_or_before(lane, head, downstream)
        if run is None:
            run = self._first_record_after(lane, head, -1)
            first = None if run is None else Translation(offset=run.spans[0].upstream, state="before_map")
            end = stable_end if stable_end is not None and not head.in_doubt else 0
            return self._before(lane, downstream, "downstream", head=head, first=first, end=end)
        after_last = 0
        for span in run.spans:
            if downstream < span.downstream:
                return Translation(offset=span.upstream, state="next_record")
            if downstream < span.downstream + span.length:
                return Translation(offset=span.upstream + downstream - span.downstream, state="exact")
            after_last = span.downstream + span.length
        following = self._first_record_after(lane, head, run.position)
        if following is not None:
            unbroken = self._unbroken(lane, run, following, head)
            return Translation(offset=following.spans[0].upstream, state="next_record" if unbroken else "before_map")
        if stable_end is not None and not head.in_doubt:
            after_last = max(after_last, stable_end)
        return Translation(offset=head.position, state="exact" if downstream <= after_last else "ahead_of_replication")

    def records_between(self, lane: Lane, first: int, end: int, side: Side, *, head: Head | None = None) -> int:
        """How many records of the map stand at offsets [first, end) of one side; of what was copied before, offsets.

        Args:
            lane: whose records.
            first: the first offset that counts.
            end: the first offset that does not.
            side: whose offsets these are.
            head: the lane's, where the caller has read it already.
        """
        if first >= end:
            return 0
        head = head or self._chains.heads([lane])[lane]
        past = self._past.of(lane, head.generation) if self._past is not None else None
        count, at = (0 if past is None else past.offsets_between(first, end, side)), -1
        if side == "upstream":
            link = self._chains.at_or_before(lane, head.generation, first, head=head)
        else:
            link = self._last_run_at_or_before(lane, head, first)
        links: list[Link] = [] if link is None else [link]
        while True:
            for each in links:
                run = _committed(each)
                for span in run.spans if run is not None else ():
                    start = span.upstream if side == "upstream" else span.downstream
                    if start >= end:
                        return count
                    count += max(0, min(end, start + span.length) - max(first, start))
                at = each.position
                if each.next >= head.position:
                    return count
            links = self._chains.after(lane, head.generation, at, limit=LONG_PAGE, head=head)
            if not links:
                return count

    def _run_over(self, lane: Lane, head: Head, upstream: int) -> Run | None:
        """The committed run with the greatest position that is at most `upstream`; the head's costs no read."""
        last = _committed(head.run)
        if last is not None and last.position <= upstream:
            return last
        return _committed(self._chains.at_or_before(lane, head.generation, upstream, head=head))

    def _unbroken(self, lane: Lane, first: Run, last: Run, head: Head) -> bool:
        """Whether no link between two runs has expired: each begins where the one before it ends."""
        end = first.next
        while end != last.position:
            links = self._chains.after(lane, first.generation, end - 1, limit=1, head=head)
            if not links or links[0].position != end:
                return False
            end = links[0].next
        return True

    def _first_record_after(self, lane: Lane, head: Head, position: int) -> Run | None:
        """The first committed run with a record whose position is greater than `position`, and below the head's.

        More in the store by now is left out: `place_there` rests on the order in which two heads were read.
        """
        at = position
        while at < head.position and (links := self._chains.after(lane, head.generation, at, limit=PAGE, head=head)):
            for link in links:
                if link.position >= head.position:
                    return None
                run = _committed(link)
                if run is not None and run.spans:
                    return run
            at = links[-1].position
        return None

    def end(self, lane: Lane, head: Head) -> int | None:
        """The downstream offset after the last record that was replicated."""
        run = self._with_record(lane, head, head.run)
        return None if run is None else run.spans[-1].downstream + run.spans[-1].length

    def _last_run_at_or_before(self, lane: Lane, head: Head, downstream: int) -> Run | None:
        """The last committed run whose first record stands at or below a downstream offset.

        Downstream order is upstream order within a lane, so the chain itself is the index: bisect upstream
        positions. A chain needs about as many reads as its span of offsets has binary digits, and no second index
        that every write would have to pay for.
        """
        last = _committed(head.run)
        if last is not None and last.spans and last.spans[0].downstream <= downstream:
            return last
        low, high, found = 0, head.position - 1, None
        while low <= high:
            middle = (low + high) // 2
            link = self._chains.at_or_before(lane, head.generation, middle, head=head)
            run = self._with_record(lane, head, link)
            if run is None:
                low = middle + 1
            elif run.spans[0].downstream <= downstream:
                found, low = run, max(run.next, middle + 1)
            else:
                high = run.position - 1
        return found

    def _with_record(self, lane: Lane, head: Head, link: Link | None) -> Run | None:
        """The last committed run with a record, from a link on backwards."""
        while link is not None:
            run = _committed(link)
            if run is not None and run.spans:
                return run
            if link.position == 0:
                return None
            link = self._chains.at_or_before(lane, head.generation, link.position - 1, head=head)
        return None


def is_lost(head: Head, upstream: int) -> bool:
    """Whether the map may describe records that are gone, from an upstream offset on."""
    return head.untrue_from is not None and upstream >= head.untrue_from


def _committed(link: Link | None) -> Run | None:
    """A prepared run is not yet part of the map, a reset never is."""
    if link is None or isinstance(link, Reset) or link.state == "prepared":
        return None
    return link


# Between two clusters that replicate a topic to each other under one name


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWay:
    """The map of one flow, and its lane with the head as it was read."""

    offsets: OffsetMap
    lane: Lane
    head: Head

    @classmethod
    def of(cls, chains: ChainReads, lane: Lane, head: Head) -> OneWay:
        """A lane of a flow, by its chains."""
        return cls(offsets=OffsetMap(chains), lane=lane, head=head)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWayPlace:
    """A committed offset on the other side."""

    found: Translation
    reread: int = 0
    """Records from the place on that the group has read here already."""
    lags: bool = False
    """Whether the flow from there to here has not come as far as the other one yet: the place moves on when it has."""
    parts: tuple[int | None, int | None] = (None, None)
    """The first unread record that was copied there, and of those produced there: equal for equal reading."""


NOWHERE = TwoWayPlace(found=Translation(offset=None, state="no_map"))


def place_there(out: OneWay, back: OneWay, offset: int, *, stable_end: int | None) -> TwoWayPlace:
    """The place on the other side of an offset that a group has committed here.

    Each log holds records of its own and copies, in an order of its own, so no single offset on the other side has read
    exactly what a group has read here. The place to go on is the first record there that the group has not read, of
    either kind, by the maps of both flows:

        copied there   the first record here, from the offset on, that the flow from here to there has copied
        produced there the first record there whose copy here stands at the offset or behind it, by the flow from there
                       to here; what that flow has not read yet, is unread as well

    Nothing is skipped. Records between the place and what the group has read are read again, and counted; where
    producers stand still and both flows have arrived there are none, and the place is exact.

    Args:
        out: of the flow from here to there.
        back: of the flow from there to here.
        offset: the first offset here that the group has not read.
        stable_end: of the log here, read after the group's offset and before the heads; None where it was not read.
    """
    if back.head == NEW_LANE:
        return NOWHERE  # of the records there, nothing is known
    copied = out.offsets.next_downstream(out.lane, offset, head=out.head)
    produced = back.offsets.upstream(back.lane, offset, head=back.head, stable_end=stable_end)
    if is_lost(out.head, offset) or produced.state == "map_lost":
        return TwoWayPlace(found=MAP_LOST)
    at_end = produced.state == "no_map" or produced.offset == back.head.position
    own = back.head.position if produced.offset is None else produced.offset
    parts = (None if copied is None else copied.offset, own)
    before = "before_map" in (produced.state, copied.state if copied is not None else "")
    if copied is not None and copied.offset is not None and copied.offset <= own:
        # What was produced there and read here, between the two.
        reread = back.offsets.records_between(back.lane, copied.offset, own, "upstream", head=back.head)
        found = Translation(offset=copied.offset, state="before_map") if before else copied
        return TwoWayPlace(found=found, reread=reread, parts=parts)
    # What was copied there before the group's offset ends here, or at the next copy.
    end = out.offsets.end(out.lane, out.head) if copied is None else copied.offset
    reread = 0 if end is None else out.offsets.records_between(out.lane, own, end, "downstream", head=out.head)
    if before:
        return TwoWayPlace(found=Translation(offset=own, state="before_map"), reread=reread, parts=parts)
    ahead = offset > out.head.position
    if not at_end:
        found = Translation(offset=own, state="ahead_of_replication" if ahead else "next_record")
        return TwoWayPlace(found=found, reread=reread, parts=parts)
    lags = (end is not None and own < end) or produced.state == "ahead_of_replication"
    found = Translation(offset=own, state="ahead_of_replication" if ahead or lags else "exact")
    return TwoWayPlace(found=found, reread=reread, lags=lags, parts=parts)
