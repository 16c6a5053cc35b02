"""Where a source's log parts from the copy of it, by what stands in both: the chain has no epochs of mapped lanes.

A log can part only where a leader's epoch ended. So at each end of an epoch below the lane's position the first run
that reaches beyond it is held against the log: its last record, and all of it where an event brought it.

A mapping's poller reads on in a log that was cut off and written on. So an event may hold records of both logs, and the
newest runs may be of the new one again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, ReplicatedRanges
from mirrorless.chain.run import NO_EPOCH, Run
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import GapRange, gaps_of, never_forwarded
from mirrorless.ports.kafka import CommittedLog, LogEpochs, RangesRead, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.replay_check import Changed, contradiction, not_at_hand
from mirrorless.records.record import Record, event_bytes

EPOCHS: Final = 16
"""Epochs below the ones that are asked for that are looked at in one step, where the log is found to be another."""

RUNS: Final = 8
"""Runs that are held against the log at one place: of some nothing may be left to compare."""

WINDOW: Final = 1_000
"""Offsets that are read at once in search of the last record below a place."""

LOOK_BYTES: Final = 16_000_000
"""Of records of one look at the log, about."""


class Elected(NamedTuple):
    """A lane whose log has another leader than at its last comparison."""

    head: Head
    """Of its chain; not in doubt."""
    since: int
    """The leader epoch at the last comparison."""
    current: int
    """The leader epoch now."""

    @property
    def ended(self) -> range:
        """The epochs that may have ended since. Where epochs fell, those of the log as it is."""
        fell = self.current < self.since
        return range(max(0, self.current - EPOCHS) if fell else self.since, self.current)


class LogParting(NamedTuple):
    """Where a lane's log parts from its copy."""

    at: int
    """The first upstream offset whose record in the log is not the one that was copied; 0 where all is another log."""
    replicated: ReplicatedRanges
    """The upstream offsets whose records, as the log has them now, were copied already, see `Stop.replicated`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """Compares lanes with their logs."""

    chains: Chains
    epochs: LogEpochs
    log: CommittedLog
    place_of: Callable[[Lane], TopicPartition] = lambda lane: (lane.topic, lane.partition)
    """A lane's place on the source."""
    changed_of: Callable[[Lane], Changed] = lambda _: not_at_hand
    """The copies of a lane's records, by the flow's rules."""

    def suspects(self, lanes: Mapping[Lane, Elected], deadline: Deadline) -> set[Lane]:
        """Those of some lanes whose logs do not show at a glance that they are the same: a glance is for many.

        Raises:
            Retriable: the source or the store does not answer.
        """
        ends: dict[Lane, set[int]] = {lane: set() for lane in lanes}
        for step in range(max((len(each.ended) for each in lanes.values()), default=0)):
            asked = {lane: each.ended[step] for lane, each in lanes.items() if step < len(each.ended)}
            answers = self.epochs.ends({self.place_of(lane): epoch for lane, epoch in asked.items()}, deadline) or {}
            for lane in asked:
                answer = answers.get(self.place_of(lane))
                if answer is not None and 0 <= answer.end < lanes[lane].head.position:
                    ends[lane].add(answer.end)
        witnesses: dict[Lane, list[Run]] = {}
        for lane, found in ends.items():
            by_last = {_seen_to(run): run for end in found for run in self._witnesses(lane, lanes[lane].head, end)}
            if by_last:
                witnesses[lane] = list(by_last.values())
        suspects: set[Lane] = set()
        while witnesses:
            wanted = {self.place_of(lane): list(map(_looked_at, runs)) for lane, runs in witnesses.items()}
            read = self.log.read(wanted, deadline, near=0, size=LOOK_BYTES)
            seen = [lane for lane in witnesses if read[self.place_of(lane)].until >= 0]
            if not seen:
                break
            suspects |= {lane for lane in seen if not self._all_there(lane, witnesses.pop(lane), read)}
        return suspects | witnesses.keys()

    def parting(self, lane: Lane, elected: Elected, deadline: Deadline) -> LogParting | None:
        """Where the log parts from the lane's copy; None where it was not found to.

        Raises:
            Retriable: the source or the store does not answer.
        """
        head, since, compared = elected.head, elected.ended.start, elected.current
        at: int | None = None
        while compared > 0:
            ends = self._ends(lane, range(max(since, 0), compared), head.position, deadline)
            differing = [end for end in ends if self._differs_above(lane, head, end, deadline)]
            if not differing:
                break
            at, compared = differing[0], since
            if not self.differs_below(lane, head, at, deadline):
                break
            since = compared - EPOCHS
        if at is None:
            return None
        if compared <= 0 and self.differs_below(lane, head, at, deadline):
            at = 0
        return LogParting(at, self.replicated(lane, head, at, deadline))

    def replicated(
        self, lane: Lane, head: Head, at: int, deadline: Deadline, *, known: int | None = None
    ) -> ReplicatedRanges:
        """The upstream offsets above `at` whose records, as the log has them, the lane has: see `Stop.replicated`.

        Args:
            lane: the lane.
            head: of its chain.
            at: where the log parts from the copy.
            deadline: seconds left.
            known: the offset from which the runs are of the log as it is; None: it is looked for.

        Raises:
            Retriable: the source or the store does not answer, or a leader that was just elected shows less than it
                has.
        """
        begin = self._again(lane, head, at, deadline) if known is None else known
        found = []
        for first, following in [*self._passed(lane, head, begin, deadline), (head.position, head.position)]:
            if first > begin:
                found.append((begin, first))
            begin = following
        return tuple(found)

    def stands_at(self, lane: Lane, first: int, following: int, deadline: Deadline) -> int:
        """The offset behind the last record of [first, following), where a lane stands that is stopped behind them.

        Raises:
            Retriable: the source does not answer.
        """
        place = self.place_of(lane)
        while first < following:
            begin, last = max(first, following - WINDOW), None
            at = begin
            while at < following:
                read = self._read(place, at, following, deadline)
                last = read.records[-1].offset if read.records else last
                if read.until <= at:
                    # A leader that was just elected: what follows would be left out.
                    raise Retriable("the source shows less than was replicated of it", where=f"{place[0]}-{place[1]}")
                at = read.until
            if last is not None:
                return last + 1
            following = begin
        return first

    def differs_below(self, lane: Lane, head: Head, offset: int, deadline: Deadline) -> bool:
        """Whether the newest run below an offset that can be compared with the log differs."""
        for _ in range(RUNS):
            link = self.chains.at_or_before(lane, head.generation, offset - 1) if offset > 0 else None
            if not isinstance(link, Run):
                return False
            if link.next <= offset and (found := self._differs(lane, link, deadline)) is not None:
                return found
            offset = link.position
        return False

    def _ends(self, lane: Lane, epochs: range, position: int, deadline: Deadline) -> list[int]:
        """The ends of these epochs, those below the position, growing."""
        place, found = self.place_of(lane), set[int]()
        for epoch in epochs:
            answer = (self.epochs.ends({place: epoch}, deadline) or {}).get(place)
            if answer is not None and 0 <= answer.end < position:
                found.add(answer.end)
        return sorted(found)

    def _differs_above(self, lane: Lane, head: Head, offset: int, deadline: Deadline) -> bool:
        """Whether the first run that can be compared with the log above an offset differs."""
        for run in self._seen_above(lane, head, offset):
            found = self._differs(lane, run, deadline)
            if found or (found is not None and _has_copy_above(run, offset)):
                return found
        return False

    def _again(self, lane: Lane, head: Head, at: int, deadline: Deadline) -> int:
        """The offset from which the newest runs are of the log as it is: the position where none is.

        Of runs above `at` the lower ones end otherwise and the upper ones do not, so halves are enough. Runs without a
        copy above it are of neither: what stood there was aborted, or left out, and is no copy twice.
        """
        low, high, first = at, head.position, None
        while low < high:
            run = next(self._runs(lane, head, (low + high) // 2), None)
            if run is None or run.position >= high:
                high = (low + high) // 2
            elif run.known_to > at and self._ends_otherwise(lane, run, deadline) is False:
                high, first = run.position, run
            else:
                low = max(run.next, low + 1)
        if first is None:
            return head.position
        if self._is_other(lane, first, deadline, in_gaps=False):
            return first.next  # it holds records of both logs, and nothing shows where in it the new one begins
        return max(first.position, at)

    def _passed(self, lane: Lane, head: Head, first: int, deadline: Deadline) -> Iterator[GapRange]:
        """The gaps from an offset on in which the log has a record that an event could have brought.

        A poller whose place lies beyond a log that was cut off goes on at its end, so what came behind a gap is no
        sign that the lane has the records in it.
        """
        at = first
        while runs := list(self._committed(lane, head, at)):
            for low, high in [gap for run in runs for gap in gaps_of(run, first)]:
                if self._holds_a_record(lane, low, high, deadline):
                    yield low, high
            at = runs[-1].next

    def _holds_a_record(self, lane: Lane, low: int, high: int, deadline: Deadline) -> bool:
        """Whether the log has a record in [low, high) that is not too large for an event."""
        place = self.place_of(lane)
        while low < high:
            read = self._read(place, low, high, deadline)
            if any(_fits(record) for record in read.records):
                return True
            if read.until <= low:
                raise Retriable("the source shows less than was replicated of it", where=f"{place[0]}-{place[1]}")
            low = read.until
        return False

    def _runs(self, lane: Lane, head: Head, offset: int) -> Iterator[Run]:
        """The committed runs with copies from an offset on."""
        return (run for run in self._committed(lane, head, offset) if run.spans)

    def _seen_above(self, lane: Lane, head: Head, offset: int) -> Iterator[Run]:
        """The committed runs that have copied a record above an offset, or left one out by a rule."""
        seen = (run for run in self._committed(lane, head, offset) if run.spans or run.filtered)
        return (run for run in seen if _seen_to(run) > offset)

    def _witnesses(self, lane: Lane, head: Head, offset: int) -> Iterator[Run]:
        """Those up to the first one with a copy: that a rule leaves out what is there now, too, shows nothing."""
        for run in self._seen_above(lane, head, offset):
            yield run
            if _has_copy_above(run, offset):
                return

    def _committed(self, lane: Lane, head: Head, offset: int) -> Iterator[Run]:
        """Those from an offset on, as far as they are needed."""
        covering = self.chains.at_or_before(lane, head.generation, offset)
        links = [covering] if covering is not None else []
        links += self.chains.after(lane, head.generation, offset, limit=RUNS, head=head)
        for link in links:
            if isinstance(link, Run) and link.state == "committed" and link.next > offset:
                yield link

    def _differs(self, lane: Lane, run: Run, deadline: Deadline) -> bool | None:
        """Whether a run is not what the log has at its offsets; None where nothing there can be compared."""
        compared = self._is_other if _is_read_whole(run) else self._ends_otherwise
        return compared(lane, run, deadline)

    def _ends_otherwise(self, lane: Lane, run: Run, deadline: Deadline) -> bool | None:
        """The same of a run's last record, and where that is gone, of all that is left."""
        found = self._is_other(lane, run, deadline, run.known_to - 1)
        return self._is_other(lane, run, deadline) if found is None else found

    def _is_other(
        self, lane: Lane, run: Run, deadline: Deadline, first: int = 0, *, in_gaps: bool = True
    ) -> bool | None:
        """The same of a run's records from an offset on, with or without what the log has in its gaps."""
        place, last, at = self.place_of(lane), _seen_to(run) - 1, max(first, run.position)
        records = list[Record]()
        while at <= last:
            read = self._read(place, at, last + 1, deadline)
            if read.log_start > last:
                return None
            if read.until <= at:
                return True  # the log ends there or below
            records += read.records
            at = read.until
        if contradiction(_brought(run, records, in_gaps=in_gaps), [run], self.changed_of(lane)) is not None:
            return True
        return False if records and records[-1].offset == last else None

    def _all_there(self, lane: Lane, runs: Sequence[Run], reads: Mapping[TopicPartition, RangesRead]) -> bool:
        """Whether the last record of each run was read, and what was read of the run is what was copied."""
        records, changed = reads[self.place_of(lane)].records, self.changed_of(lane)
        offsets = {record.offset for record in records}
        return all(
            _seen_to(run) - 1 in offsets and contradiction(_brought(run, records), [run], changed) is None
            for run in runs
        )

    def _read(self, place: TopicPartition, first: int, following: int, deadline: Deadline) -> RangesRead:
        read = self.log.read({place: [(first, following)]}, deadline, near=0, size=LOOK_BYTES)[place]
        if read.damage is not None:
            raise Retriable(read.damage.what, where=f"{place[0]}-{place[1]} {read.damage.where}")
        if read.until < 0:
            raise Retriable("the source's log was not read in time", where=f"{place[0]}-{place[1]}")
        return read


def _seen_to(run: Run) -> int:
    """The upstream offset behind the last record that a run has copied, or left out by a rule."""
    copied = run.known_to if run.spans or not run.filtered else run.position
    return max(copied, run.filtered[-1][1]) if run.filtered else copied


def _has_copy_above(run: Run, offset: int) -> bool:
    return bool(run.spans) and run.known_to > offset


def _is_read_whole(run: Run) -> bool:
    """Whether its last record alone does not show that it is of this log: a rule may leave out another one, too."""
    return run.epoch == NO_EPOCH or bool(run.filtered)


def _looked_at(run: Run) -> GapRange:
    return run.position if _is_read_whole(run) else run.known_to - 1, _seen_to(run)


def _brought(run: Run, records: Sequence[Record], *, in_gaps: bool = True) -> list[Record]:
    """Those of a log's records that a run has if it is of this log: no event brings one that is too large."""
    gaps = gaps_of(run, run.position) if in_gaps else []
    spans = [(span.upstream, span.upstream + span.length) for span in run.spans]
    return [
        record
        for record in records
        if _within(record.offset, spans)
        or _within(record.offset, run.filtered)
        or (_within(record.offset, gaps) and _fits(record))
    ]


def _fits(record: Record) -> bool:
    return never_forwarded(event_bytes(record)) != "oversize"


def _within(offset: int, ranges: Sequence[GapRange]) -> bool:
    at = bisect_right(ranges, offset, key=itemgetter(0))
    return at > 0 and offset < ranges[at - 1][1]
