"""One lane of a job's task: its ranges, its lease, its progress, what it has copied, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease, Stop
from mirrorless.chain.run import Run
from mirrorless.clock import deadline_in
from mirrorless.errors import LaneStopped, LeaseHeld, MirrorlessError, RecordsGone
from mirrorless.jobs.copy_task import CopyResult, CopyTask, HandedOver, LaneLog, OffsetRange
from mirrorless.jobs.lane_start import CHUNK_SECONDS, HeldLog, beginning, first_links
from mirrorless.jobs.progress import EVERY_MS, LaneProgress, LaneStateName, write_progress
from mirrorless.ports.kafka import LogEpochs
from mirrorless.ports.stores import Chains, JobFiles, Leases
from mirrorless.protocol.replicate import Replicator

LINKS: Final = 500
"""Read of the chain in one call."""


@dataclass(slots=True)
class CopiedSums:
    """The sums of some ranges."""

    records: int = 0
    bytes: int = 0
    passed_bytes: int = 0
    first_downstream: int | None = None
    last_downstream: int | None = None

    def add(self, run: Run, wanted: OffsetRange) -> None:
        """Add what a run has of a range."""
        inside = 0
        for span in run.spans:
            first, following = max(span.upstream, wanted.first), min(span.upstream + span.length, wanted.next)
            if first >= following:
                continue
            inside += following - first
            if self.first_downstream is None:
                self.first_downstream = span.downstream + first - span.upstream
            self.last_downstream = span.downstream + following - 1 - span.upstream
        if inside:
            self.records += inside
            # A run that reaches beyond the range has one sum of bytes: each of its records counts alike.
            self.bytes += run.bytes * inside // run.records
            self.passed_bytes += run.passed_bytes * inside // run.records


def sums_of(chains: Chains, lane: Lane, generation: int, ranges: Iterable[OffsetRange]) -> CopiedSums:
    """The sums of ranges of upstream offsets, by the runs of one generation.

    Raises:
        Retriable: the store does not answer.
    """
    sums = CopiedSums()
    for wanted in ranges:
        link = chains.at_or_before(lane, generation, wanted.first)
        links = [link] if link is not None else []
        while links:
            for each in links:
                if isinstance(each, Run):
                    sums.add(each, wanted)
            if links[-1].next >= wanted.next:
                break
            links = chains.after(lane, generation, links[-1].position, limit=LINKS)
    return sums


def lost(lane: Lane) -> LeaseHeld:
    """What is said of a lane that a job does not have any more."""
    return LeaseHeld(
        "the job does not have this lane any more: its lease was ended, or another job has taken it",
        where=str(lane),
        hint="if the job was not cancelled, start it again once no other has the lane: it continues where it was",
    )


class Ending(Protocol):
    """The end of a lane's copy, once its ranges are copied."""

    def step(self, copy: LaneCopy) -> HandedOver | OffsetRange | None:
        """Bring the lane nearer to its end.

        Returns:
            how it was let go; or what to copy before; or None: it waits, and is asked again.

        Raises:
            Retriable: a store or a cluster does not answer.
            LaneStopped: the lane waits for the operator.
        """
        ...


@dataclass(slots=True, kw_only=True)
class LaneCopy:
    """One lane of a task in progress."""

    task: CopyTask
    replicator: Replicator
    """Of the engine that copies now."""
    log: LaneLog
    """What is read beside the copy: bounds, and the record that was copied last."""
    epochs: LogEpochs | None = None
    """Of the same cluster; None where an archive is read."""
    leases: Leases | None = None
    """None where the task has no holder."""
    files: JobFiles | None = None
    """For the progress; None for none."""
    ending: Ending | None = None
    attempt: int = 0
    clock: Callable[[], int]
    """ms since the epoch."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds, for ages: the wall clock may be set back."""
    phase: str = "copy"
    limited: bool = False
    """Whether the cap holds it back."""
    more: OffsetRange | None = None
    """What its end has to be copied before."""
    written: int = 0
    written_bytes: int = 0
    passed_bytes: int = 0
    """Those of `written_bytes` whose batches were passed as they lay in the source's log."""
    runs: int = 0
    races: int = 0
    _compared: bool = False
    """Whether its last record was compared with the log in this attempt."""
    _began: float = field(default_factory=time.monotonic)
    _renew_at: float | None = None
    _noted_at: float | None = None

    @property
    def lane(self) -> Lane:
        """The lane of the chain."""
        return self.task.lane

    def position(self) -> int:
        """The position of the lane's chain; runs in doubt are settled.

        Raises:
            LeaseHeld: another job has the lane.
            Retriable: a store or the target does not answer.
        """
        positions, deadline = self.replicator.positions, deadline_in(CHUNK_SECONDS)
        if self.lane in positions.load([self.lane], self.replicator.remote_topic, deadline):
            raise lost(self.lane)
        return positions.head(self.lane).position

    def wanted(self) -> OffsetRange | None:
        """What is to be copied next; None where all of it is."""
        at = self.position()
        ranges = [*self.task.ranges, *([self.more] if self.more is not None else [])]
        return next((each for each in ranges if at < each.next), None)

    def wrote(self, runs: Iterable[Run]) -> None:
        """Count what was written."""
        for run in runs:
            self.written += run.records
            self.written_bytes += run.bytes
            self.passed_bytes += run.passed_bytes
            self.runs += 1

    def refuse_another_log(self) -> None:
        """Refuse a log that parted from what was copied of it. An archive stays what it is.

        Raises:
            ChainBroken: its records are others: the topic was made anew, or truncated.
            Retriable: the cluster does not answer.
        """
        ranges, epochs, by_record = self.task.ranges, self.epochs, not self._compared
        if epochs is not None and ranges and 0 < self.position() < ranges[-1].next:
            held = HeldLog(
                lane=self.lane,
                log=self.log,
                place=(self.task.read_topic, self.task.partition),
                chains=self.replicator.chains,
                epochs=epochs,
                changed=self.replicator.changed_of(self.lane),
            )
            held.refuse_another(self.replicator.positions.head(self.lane), by_record=by_record)
        self._compared = True

    def refuse_a_live_beginning(self) -> None:
        """Refuse a lane that went live after the plan: its mapping may have been faster than the lease.

        Raises:
            RecordsGone: it did.
            Retriable: the cluster or a store does not answer.
        """
        if not self.task.ranges or "#" in self.task.lane_topic:
            return
        first, head = self.task.ranges[0].first, self.replicator.positions.head(self.lane)
        links = first_links(self.replicator.chains, self.lane, head)
        found = beginning(self.lane, links, OffsetRange(first, self.task.ranges[-1].next), self.log)
        if head.generation == 0 and found.before:
            raise RecordsGone(
                f"the lane went live at upstream offset {found.begins} before the job had its lease, and older records "
                "cannot be put before that in order",
                where=self.lane.at(first),
                hint="give the job a topic of its own for them (`into`)",
            )

    def stopped(self, stop: Stop) -> LaneStopped:
        """What its result says of a stop."""
        return LaneStopped(
            f"the lane stopped ({stop.reason}): {stop.detail}",
            where=self.lane.at(stop.upstream_offset),
            hint=f"see `mirrorless lanes stopped '{self.lane.flow}'`; resume the lane, or quarantine the record, "
            "and start again",
        )

    # The lease

    def hold(self) -> None:
        """Take the lane, or renew its lease once a third of the term is over.

        Raises:
            LeaseHeld: another job has it, or the lease was ended.
            Retriable: the store does not answer.
        """
        at, now = self.monotonic(), self.clock()
        if self.leases is None or not self.task.holder or (self._renew_at is not None and at < self._renew_at):
            return
        lease = Lease(holder=self.task.holder, until=now + self.task.lease_seconds * 1000)
        if not self.leases.keep(self.lane, lease):
            if self._renew_at is not None:
                raise lost(self.lane)
            self.leases.take(self.lane, lease, now=now)
        self._renew_at = at + self.task.lease_seconds / 3

    def let_go(self, *, position: int | None = None) -> bool:
        """End the lease; see `Leases.let_go`."""
        if self.leases is None or not self.task.holder:
            return True
        return self.leases.let_go(self.lane, self.task.holder, position=position)

    # Progress and result

    @property
    def note_is_due(self) -> bool:
        """Whether its progress was not written for a few seconds."""
        long_ago = self._noted_at is None or (self.monotonic() - self._noted_at) * 1000 >= EVERY_MS
        return self.files is not None and long_ago

    def note(self, state: LaneStateName, text: str = "", *, force: bool = False) -> None:
        """Write the progress of the lane, every few seconds or now."""
        if self.files is None or not (force or self.note_is_due):
            return
        self._noted_at = self.monotonic()
        ranges = self.task.ranges
        position = self._position_or(ranges[0].first if ranges else 0)
        progress = LaneProgress(
            lane=str(self.lane),
            state=state,
            phase=self.phase,
            done=sum(max(0, min(position, each.next) - each.first) for each in ranges),
            total=sum(each.next - each.first for each in ranges),
            records=self.written,
            bytes=self.written_bytes,
            passed_bytes=self.passed_bytes,
            position=position,
            note=text or self._of_the_cap(state),
            at=self.clock(),
        )
        write_progress(self.files, self.task.lane_topic, self.task.partition, progress)

    def _of_the_cap(self, state: LaneStateName) -> str:
        cap = self.task.job_bytes_per_second
        return f"limited to {cap / 1e6:g} MB/s of the whole job" if cap and self.limited and state == "running" else ""

    def result(
        self, state: Literal["done", "stopped", "failed"], *, handed_over: HandedOver = "", error: str = ""
    ) -> CopyResult:
        """The result of the lane, with the sums of the task's ranges in its chain."""
        self.note(state, error, force=True)
        copied = self._copied()
        return CopyResult(
            lane=str(self.lane),
            partition=self.task.partition,
            state=state,
            records=copied.records,
            bytes=copied.bytes,
            passed_bytes=copied.passed_bytes,
            written=self.written,
            runs=self.runs,
            first=self.task.ranges[0].first if self.task.ranges else 0,
            position=self._position_or(0),
            first_downstream=copied.first_downstream,
            last_downstream=copied.last_downstream,
            handed_over=handed_over,
            attempts=self.attempt + 1,
            races=self.races,
            seconds=time.monotonic() - self._began,
            error=error,
        )

    def _position_or(self, unknown: int) -> int:
        try:
            return self.position()
        except MirrorlessError:
            return unknown

    def _copied(self) -> CopiedSums:
        try:
            self.position()
            generation = self.replicator.positions.head(self.lane).generation
            return sums_of(self.replicator.chains, self.lane, generation, self.task.ranges)
        except MirrorlessError:
            return CopiedSums()  # without an answer of the store there are no sums; the next run reads the chain again
