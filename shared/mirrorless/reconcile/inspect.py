"""The inspection of one lane on both sides, by reading only what the chain does not prove.

    the chain      all of its runs: the offsets of the target's log that they claim
    the target     holes between runs, and what follows the last one
    the source     the records of the last run, to see that it is still the same source; and, for orphans, what follows

The source was down, and may have come back without its last records, or as another topic. Then its offsets mean other
records than in the chain, and the lane is left alone.

Looks at logs that take as long as they take: chunk by chunk, and a task that is started anew reads on where it was.

The place of a look is kept in the job run's folder every few seconds, with what was found up to it and with its fence:
the state of the lane and of the log that was looked for. A place with another fence does not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run
from mirrorless.clock import TRIES, deadline_in, pause_seconds
from mirrorless.errors import ChainBroken, MirrorlessError, Retriable
from mirrorless.flow.naming import bounded, reset_lane
from mirrorless.jobs.copy_task import Chunk, LaneLog, OffsetRange
from mirrorless.jobs.lane_start import patience
from mirrorless.jobs.request import TOPIC_BYTES
from mirrorless.ports.kafka import Target, TopicPartition
from mirrorless.ports.stores import Chains, JobFiles, LaneStates
from mirrorless.protocol.recovery import settle_doubt
from mirrorless.protocol.replay_check import contradiction
from mirrorless.reconcile.difference import (
    Claims,
    RangesLook,
    Seen,
    apart,
    claims_of,
    committed_runs,
    read_through,
    unclaimed,
)
from mirrorless.reconcile.join import copies_above, places_of
from mirrorless.reconcile.tasks import InspectTask, LaneInspection, LaneOrphans, OrphanTask, ReconciledLane
from mirrorless.records.record import Record
from mirrorless.reports.format import numbered, visible

KEPT_EVERY_SECONDS: Final = 20.0


class LookPlace(msgspec.Struct, frozen=True):
    """How far a look has come."""

    fence: str
    at: int
    """The offset below which everything was read."""
    found: Seen
    """Up to there."""


@dataclass(slots=True, kw_only=True)
class KeptPlaces:
    """The places of the looks at one lane, in the job run's folder."""

    files: JobFiles | None = None
    """None to keep none."""
    lane: str = ""
    """Part of the names of the files."""
    monotonic: Callable[[], float] = time.monotonic
    _kept_at: dict[str, float] = field(default_factory=dict)

    def read(self, what: str, fence: str) -> tuple[int, Seen]:
        """The place of an earlier look for the same, and what it had seen.

        Raises:
            Retriable: the folder cannot be read.
        """
        self._kept_at[what] = self.monotonic()
        text = self.files.read(self._name(what)) if self.files is not None else None
        place = msgspec.json.decode(text, type=LookPlace) if text else None
        return (place.at, place.found) if place is not None and place.fence == fence else (0, Seen())

    def keep(self, what: str, fence: str, at: int, look: RangesLook) -> None:
        """Keep a place, if the last one is old enough. A folder that cannot be written costs time, and nothing else."""
        now = self.monotonic()
        if self.files is None or now < self._kept_at.get(what, now) + KEPT_EVERY_SECONDS:
            return
        self._kept_at[what] = now
        try:
            self.files.write(self._name(what), msgspec.json.encode(LookPlace(fence, at, look.seen())))
        except MirrorlessError as exc:
            print(visible(f"the place of a look is not kept: {exc}"), file=sys.stderr)

    def _name(self, what: str) -> str:
        return f"looks/{bounded(self.lane, TOPIC_BYTES)}-{what}.json"


def chunks_of(
    log: LaneLog, topic: str, partition: int, wanted: OffsetRange, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Chunk]:
    """The records of a range; after a failure from the chunk on that failed.

    Raises:
        Retriable: the cluster did not answer `TRIES` times in a row.
        RecordsGone: see `LaneLog.read`.
    """
    at, failures = wanted.first, 0
    while at < wanted.next:
        try:
            for chunk in log.read(topic, partition, OffsetRange(at, wanted.next), patience):
                yield chunk
                at, failures = chunk.covered, 0
        except Retriable:
            failures += 1
            if failures >= TRIES:
                raise
            sleep(pause_seconds(failures))


HELD: Final = "held"
"""The reason of an operator's stop of a lane."""

NEAR = 500
"""Downstream offsets between two holes that are read through."""

HIDDEN_SECONDS = 960.0
"""The wait for an open transaction: brokers end one after 15 minutes at most."""

POLL_SECONDS = 0.5

SECONDS = 60.0
"""For one request."""

LaneEnds = Callable[[str, int], "tuple[int, int, int] | None"]
"""First offset, stable end and high watermark of a partition; None when it is not there."""


@dataclass(slots=True, kw_only=True)
class LaneView:
    """The view of a flow's lanes: chains, states, and the logs of both sides."""

    chains: Chains
    states: LaneStates
    target: Target
    """Only for the outcome of a run in doubt."""
    source_log: LaneLog
    target_log: LaneLog
    source_ends: LaneEnds
    target_ends: LaneEnds
    kept: KeptPlaces = field(default_factory=KeptPlaces)
    """Of looks that an earlier attempt has begun."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def inspect(self, task: InspectTask) -> LaneInspection:
        """Find what is new on the target, and whether the source still has the records of the chain.

        Raises:
            Retriable: a cluster or a store does not answer.
        """
        found = LaneInspection(
            topic=task.topic, partition=task.partition, remote_topic=task.remote_topic, compacts=task.compacts
        )
        stop = self.states.read([task.lane]).get(task.lane)
        if stop is not None and stop.stop is not None and stop.stop.reason != HELD:
            return _leave(
                found,
                f"the lane is stopped ({stop.stop.reason}): {stop.stop.detail}; "
                f"see `mirrorless lanes stopped '{task.lane.flow}'`",
            )
        try:
            head = self._head(task)
        except ChainBroken as exc:
            return _leave(found, str(exc))
        if head.expired:
            return _leave(found, "the end of its offset map has expired, or may have: reset the lane")
        since = self._brought_back(task, head.generation)
        claims = claims_of(committed_runs(self.chains, task.lane), since=since, generation=head.generation)
        found = replace(
            found,
            generation=head.generation,
            position=head.position,
            reconciled=head.run is not None and head.run.by_reconcile,
            chain_end=claims.end,
            claimed_records=claims.records,
            claimed_bytes=claims.bytes,
        )
        if task.source_partitions is not None:
            found = self._new(task, found, claims, since)
            return _leave(found, beyond_the_source(found, task.source_partitions)) if found.to_copy else found
        ends = self.source_ends(task.topic, task.partition)
        if reason := self._differs(task, head, claims.last, ends):
            return _leave(found, reason)
        if ends is not None:
            # What an open transaction still hides is decided before orphans are counted: it is waited for.
            found = replace(found, source=OffsetRange(ends[0], ends[2]))
        return self._new(task, found, claims, since)

    def orphans(self, task: OrphanTask) -> LaneOrphans:
        """Find the records of the source that are neither replicated nor copies.

        Raises:
            Retriable: a cluster or a store does not answer, or an open transaction hides records.
        """
        lane = task.lane
        until = task.until
        for run in copies_above(committed_runs(self.chains, lane.back), task.position):
            until = max(until, (run.last_downstream or 0) + 1)
        if task.position >= until:
            return LaneOrphans(until=task.position)
        place = (lane.forward.topic, lane.forward.partition)
        self._await_stable(*place, until)

        # A second pass over the same runs: kept, they would take more memory than all that is read beside them.
        copies = places_of(copies_above(committed_runs(self.chains, lane.back), task.position))
        fence = f"{lane.generation} {task.position} {until} {task.topic_ids}"
        whole = OffsetRange(task.position, until)
        seen = self._look("orphans", fence, self.source_log, place, wanted=[whole], ranges=apart(copies, whole))
        return LaneOrphans(until=until, stretches=seen.stretches)

    def _look(
        self,
        what: str,
        fence: str,
        log: LaneLog,
        place: TopicPartition,
        *,
        wanted: Iterable[OffsetRange],
        ranges: Iterable[OffsetRange],
        first_alone: bool = False,
    ) -> Seen:
        """What stands in ranges of a log; an attempt that is made anew goes on where the one before it was.

        Args:
            what: the name of the look.
            fence: the state of the lane and of the log that it is for.
            log: which.
            place: the partition.
            wanted: what is read of it.
            ranges: of this, what is looked at, growing and apart.
            first_alone: whether a first record is all that is to be found.
        """
        at, before = self.kept.read(what, fence)
        look = RangesLook(ranges, before)
        for some in wanted:
            for chunk in chunks_of(log, *place, OffsetRange(max(at, some.first), some.next), sleep=self.sleep):
                look.add(chunk.records[:1] if first_alone else chunk.records)
                if first_alone and (seen := look.seen()).stretches:
                    return seen
                self.kept.keep(what, fence, chunk.covered, look)
        return look.seen()

    # The chain

    def _head(self, task: InspectTask) -> Head:
        head = self.chains.heads([task.lane])[task.lane]
        if head.run is not None and head.in_doubt:
            settle_doubt(
                head.run,
                lambda _: task.remote_topic,
                chains=self.chains,
                target=self.target,
                deadline=deadline_in(SECONDS),
            )
            head = self.chains.heads([task.lane])[task.lane]
        if head.in_doubt:
            raise Retriable("another writer prepared the lane: it may not be held", where=str(task.lane))
        return head

    # The target

    def _new(self, task: InspectTask, found: LaneInspection, claims: Claims, since: int) -> LaneInspection:
        ends = self.target_ends(task.remote_topic, task.partition)
        if ends is None:
            if claims.end:
                return _leave(found, f"the target has no {task.remote_topic}-{task.partition}, which the chain has")
            return found
        log = OffsetRange(ends[0], ends[1])
        holes, tail = unclaimed(claims, log, since=since)
        fence = f"{found.generation} {found.position} {claims.end} {since} {log.first} {task.topic_ids}"
        place = (task.remote_topic, task.partition)
        near = read_through(holes, near=NEAR)
        late = self._look("late", fence, self.target_log, place, wanted=near, ranges=holes)
        behind = Seen()
        if tail is not None:
            whole, alone = [tail], not task.count
            behind = self._look("tail", fence, self.target_log, place, wanted=whole, ranges=whole, first_alone=alone)
            tail = OffsetRange(behind.stretches[0].first, tail.next) if behind.stretches else None
        return replace(
            found,
            target=log,
            late=late.ranges,
            late_records=late.records,
            late_bytes=late.bytes,
            tail=tail,
            tail_records=behind.records if task.count else 0,
            tail_bytes=behind.bytes if task.count else 0,
        )

    def _brought_back(self, task: InspectTask, generation: int) -> int:
        """The downstream offset below which everything was brought back before, in any generation."""
        lanes = [
            ReconciledLane(forward=task.lane, remote_topic=task.remote_topic, generation=each).back
            for each in range(generation + 1)
        ]
        return max(head.position for head in self.chains.heads(lanes).values())

    # The source

    def _differs(self, task: InspectTask, head: Head, last: Run | None, ends: tuple[int, int, int] | None) -> str:
        """The reason why the source is not the one of the chain; empty when it is."""
        if ends is None:
            return (
                f"the source has no {task.topic}-{task.partition}: create the topic as it was, or let it grow; where "
                f"the chain has records of it, {reset_lane(task.lane, 'earliest')} comes before another reconcile"
            )
        start, _, high = ends
        if high < head.position:
            return (
                f"the source ends at {high}, and upstream offsets up to {head.position - 1} were replicated: it lost "
                "its end, or the topic was created again. The target has what the source lost: compare them, then "
                f"{reset_lane(task.lane, high)}, and start again"
            )
        if last is None or last.next <= start:
            return ""
        return self._contradicts(task, last, start)

    def _contradicts(self, task: InspectTask, last: Run, start: int) -> str:
        """Compare the records of the last run with the source's."""
        self._await_stable(task.topic, task.partition, last.next)
        wanted = OffsetRange(max(start, last.position), last.next)
        seen = list(self._records(self.source_log, task.topic, task.partition, wanted))
        if found := contradiction(seen, [last]):
            offset, reason = found
            return f"upstream offset {offset}: {reason}; it is another source: {reset_lane(task.lane, 'earliest')}"
        end = last.spans[-1].upstream + last.spans[-1].length - 1
        if not task.compacts and end >= start and (not seen or seen[-1].offset < end):
            return f"the record at upstream offset {end} was replicated, and the source does not have it any more"
        return ""

    def _await_stable(self, topic: str, partition: int, until: int) -> None:
        """Wait until no transaction hides anything below an offset of the source."""
        deadline = self.clock() + HIDDEN_SECONDS
        while (stable := self.source_log.bounds(topic, partition, deadline_in(SECONDS)).next) < until:
            if self.clock() > deadline:
                raise Retriable(
                    f"an open transaction hides the records from {stable} on",
                    where=f"{topic}-{partition}",
                    hint="find it with kafka-transactions.sh find-hanging, and abort it",
                )
            self.sleep(POLL_SECONDS)

    def _records(self, log: LaneLog, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Record]:
        for chunk in chunks_of(log, topic, partition, wanted, sleep=self.sleep):
            yield from chunk.records


def beyond_the_source(found: LaneInspection, partitions: int) -> str:
    """What stays on a partition that the source's topic does not have, and how it comes back."""
    return (
        f"{numbered(found.late_records + found.tail_records, 'record')} of {found.remote_topic}-{found.partition} "
        f"stay there: the source's topic has {numbered(partitions, 'partition')}, and not this one. To bring them "
        f"back, give the topic {found.partition + 1} partitions, and reconcile again"
    )


def orphans_ahead(inspection: LaneInspection) -> int:
    """The upstream offset up to which a lane's orphans are searched, when no copies stand beyond it."""
    return inspection.position if inspection.reconciled else max(inspection.position, inspection.source.next)


def counts_orphans(inspection: LaneInspection) -> bool:
    """Whether a record that a producer adds to the source now would count as an orphan."""
    return not inspection.reconciled or bool(inspection.to_copy)


def left_to_watch(
    inspected: Mapping[TopicPartition, int], before: Mapping[TopicPartition, int], *, seconds: float, still: float
) -> float:
    """For how many seconds the source is watched on, to see whether it is written to.

    Args:
        inspected: its ends when the lanes were inspected.
        before: the same some time before.
        seconds: since then.
        still: for which they stand still where nobody writes.
    """
    stood = all(before.get(place) == end for place, end in inspected.items())
    return max(0.0, still - seconds) if stood else still


def still_written(inspection: LaneInspection, end: int) -> str:
    """The reason to leave a lane alone whose source grew since its inspection; empty where it did not.

    Args:
        inspection: of the lane, before anything was copied.
        end: of the source's log since then, or of its orphans.
    """
    if end <= inspection.source.next or not counts_orphans(inspection):
        return ""
    return (
        f"the source is written to: its end was {inspection.source.next}, and a moment later {end}. What producers "
        "write there would count as orphans, and not be replicated: stop them, and start again; or give `--live-source`"
    )


def _leave(found: LaneInspection, reason: str) -> LaneInspection:
    return replace(found, differs=reason)
