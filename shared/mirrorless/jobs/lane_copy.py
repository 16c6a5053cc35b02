"""The copy of one lane by a job: chunk by chunk from the position of its chain, while the job has the lane's lease.

By whole record batches where that is better, otherwise by records; from one transaction to the next that may change.

After a failure the position is read again and the copy continues there: the chain has by then what the failed try had
committed, and what a twin of this task wrote meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease, Stop
from mirrorless.chain.run import NO_EPOCH, Run
from mirrorless.clock import TRIES, deadline_in, pause_seconds
from mirrorless.errors import LaneStopped, LeaseHeld, LostRace, MirrorlessError, RecordsGone, Retriable
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.jobs.batch_copy import BatchCopy, Content
from mirrorless.jobs.copy_task import CopyResult, CopyTask, LaneLog, OffsetRange
from mirrorless.jobs.lane_start import CHUNK_SECONDS, HeldLog, beginning, first_links, patience
from mirrorless.jobs.progress import EVERY_MS, JobProgress, LaneProgress, LaneStateName, write_progress
from mirrorless.jobs.request import PROGRESS
from mirrorless.jobs.shared_transactions import SharedTransactions
from mirrorless.ports.kafka import LogEpochs
from mirrorless.ports.stores import Chains, JobFiles, Leases
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import following_offset
from mirrorless.protocol.plan import passed_over, unreadable_stop
from mirrorless.protocol.portions import bytes_in, portions
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record_batch import BatchUnreadable

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


SHARE_SECONDS = 10.0
"""Between two reads of how many lanes share the cap."""

HandedOver = Literal["", "waiting", "committed", "pinned", "idle"]


class Ending(Protocol):
    """The end of a lane's copy, once its ranges are copied."""

    def end(self, copy: LaneCopy) -> HandedOver:
        """Bring the lane to its end, and let go of it.

        Raises:
            Retriable: a store or a cluster does not answer.
            LaneStopped: the lane waits for the operator.
        """
        ...


@dataclass(slots=True, kw_only=True)
class LaneCopy:
    """One task in progress."""

    task: CopyTask
    replicator: Replicator
    """Of the engine that copies now, with positions of this lane alone."""
    log: LaneLog
    epochs: LogEpochs | None = None
    """Of the same cluster; None where an archive is read."""
    by_batches: BatchCopy | None = None
    """None where all is copied by records."""
    shared: SharedTransactions | None = None
    """With other lanes of the task, for whole batches; None where the lane is alone."""
    leases: Leases | None = None
    """None where the task has no holder."""
    files: JobFiles | None = None
    """For the progress; None for none."""
    ending: Ending | None = None
    limit: ByteRateLimit | None = None
    """Of its task, which other lanes of it share; None where the job has no cap."""
    attempt: int = 0
    clock: Callable[[], int]
    """ms since the epoch."""
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    """Seconds, for ages: the wall clock may be set back."""
    phase: str = "copy"
    written: int = 0
    written_bytes: int = 0
    passed_bytes: int = 0
    """Those of `written_bytes` whose batches were passed as they lay in the source's log."""
    runs: int = 0
    races: int = 0
    _by_records: Replicator = field(init=False)
    _copied_at: float = 0.0
    """When the last chunk was over."""
    _limited: bool = False
    """Whether the last chunk had to wait for the cap."""
    _shared_at: float = 0.0
    """When the number of lanes that share the cap was read."""
    _began: float = field(default_factory=time.monotonic)
    _began_cpu: float = field(default_factory=time.process_time)
    _renew_at: float | None = None
    _noted_at: float | None = None

    def __post_init__(self) -> None:
        """Keep the replicator of the Kafka client."""
        self._by_records = self.replicator

    @property
    def lane(self) -> Lane:
        """The lane of the chain."""
        return self.task.lane

    def run(self) -> CopyResult:
        """Copy the task's ranges, and end the lane.

        Raises:
            Retriable: nothing is lost; the same task continues where this one failed.
            RecordsGone: retention has deleted records of the ranges.
            ChainBroken: the offset map contradicts the target, or the source, whose topic was made anew.
        """
        try:
            self.hold()
            self.note("running", force=True)
            self._refuse_another_log(by_record=True)
            for each in self.task.ranges:
                self.copy(each)
            self._refuse_a_live_beginning()
            handed = self.ending.end(self) if self.ending is not None else ""
            if self.ending is None:
                self.let_go()
        except LaneStopped as exc:
            return self.result("stopped", error=str(exc))
        return self.result("done", handed_over=handed)

    def position(self) -> int:
        """The position of the lane's chain; runs in doubt are settled.

        Raises:
            LeaseHeld: another job has the lane.
            Retriable: a store or the target does not answer.
        """
        positions, deadline = self.replicator.positions, deadline_in(CHUNK_SECONDS)
        if self.lane in positions.load([self.lane], self.replicator.remote_topic, deadline):
            raise self._lost_to_another()
        return positions.head(self.lane).position

    def copy(self, wanted: OffsetRange) -> None:  # noqa: C901 -- one row for each way to go on
        """Copy a range; raises as `run` does."""
        failures = 0
        while True:
            try:
                at = self.position()
                if at < wanted.first:
                    self._pass_over(wanted.first)
                elif at < wanted.next:
                    self._refuse_another_log(by_record=False)
                    with closing(self._contents(OffsetRange(at, wanted.next))) as contents:
                        for content in self._portions(contents):
                            # An offset that an archive does not hold may have been a record: left to the gap check.
                            self._replicate(content, examined=self.task.archive is None)
                            failures = 0
                            if self.position() > content.covered:
                                break  # a twin is ahead: continue at its position
                else:
                    return
            except BatchUnreadable as exc:
                self._leave_out(exc, wanted)
            except LeaseHeld:
                raise  # another job has the lane now
            except Retriable as exc:
                failures += 1
                self.races += isinstance(exc, LostRace)
                if failures >= TRIES:
                    raise
                self.replicator.forget()
                if self.by_batches is not None:
                    self.by_batches.choice.failed()
                self.note("running", str(exc), force=True)
                self.sleep(pause_seconds(failures))

    def _leave_out(self, exc: BatchUnreadable, wanted: OffsetRange) -> None:
        """Pass a batch that nobody can read, where the operator ordered that.

        Raises:
            LaneStopped: there is no such order; the lane's stop says so.
        """
        at, positions = self.position(), self.replicator.positions
        passed = passed_over(exc, positions.state(self.lane), at)
        if passed is None:
            stop = unreadable_stop(exc, now=self.clock())
            positions.stop(self.lane, stop)
            raise self._stopped(stop)
        first, following = passed[0], min(passed[1], wanted.next)
        self._replicate(Content([], following, first, left_out=(first, following)))

    def _stopped(self, stop: Stop) -> LaneStopped:
        return LaneStopped(
            f"the lane stopped ({stop.reason}): {stop.detail}",
            where=self.lane.at(stop.upstream_offset),
            hint=f"see `mirrorless lanes stopped '{self.lane.flow}'`; resume the lane, or quarantine the record, "
            "and start again",
        )

    def _contents(self, wanted: OffsetRange) -> Generator[Content]:
        """What the log has of a range, by the engine of now; less of it where the other engine is to go on."""
        place, engine = (self.task.read_topic, self.task.partition), self.by_batches
        by_batches = engine is not None and engine.choice.engine == "batches"
        replicator = engine.replicator if engine is not None and by_batches else self._by_records
        if replicator is not self.replicator:
            replicator.positions.forget()  # what it remembers was before the other one's transactions
            self.replicator = replicator
        if engine is not None and by_batches:
            with self.shared.sharing() if self.shared is not None else nullcontext():
                self._copied_at = self.monotonic()
                yield from engine.read(place, wanted, patience)
            return
        with self.shared.client_turn(self.hold) if self.shared is not None else nullcontext():
            self._copied_at = self.monotonic()
            for chunk in self.log.read(*place, wanted, patience):
                yield Content(chunk.records, chunk.covered, epoch=chunk.epoch)
                if engine is not None and engine.choice.engine == "batches":
                    return

    def _portions(self, contents: Iterator[Content]) -> Iterator[Content]:
        """What is read, in pieces that the cap allows."""
        place = (self.task.lane_topic, self.task.partition)
        for content in contents:
            if self.limit is None:
                yield content
                continue
            whole = Batch(
                records={place: content.of_lane},
                covered={place: content.covered},
                begins={place: content.begins},
                epochs={place: content.epoch},
            )
            for each in portions(whole, self.limit.allowance):
                of_lane = each.records[place]
                covered = each.covered.get(place) or following_offset(of_lane)
                yield Content(of_lane, covered, each.begins[place], each.epochs.get(place, NO_EPOCH))

    # The lease

    def hold(self) -> None:
        """Take the lane, or renew its lease once a third of the term is over."""
        at, now = self.monotonic(), self.clock()
        if self.leases is None or not self.task.holder or (self._renew_at is not None and at < self._renew_at):
            return
        lease = Lease(holder=self.task.holder, until=now + self.task.lease_seconds * 1000)
        if not self.leases.keep(self.lane, lease):
            if self._renew_at is not None:
                raise self._lost_to_another()
            self.leases.take(self.lane, lease, now=now)
        self._renew_at = at + self.task.lease_seconds / 3

    def _lost_to_another(self) -> LeaseHeld:
        return LeaseHeld(
            "the job does not have this lane any more: its lease was ended, or another job has taken it",
            where=str(self.lane),
            hint="if the job was not cancelled, start it again: it continues where it was",
        )

    def let_go(self, *, position: int | None = None) -> bool:
        """End the lease; see `Leases.let_go`."""
        if self.leases is None or not self.task.holder:
            return True
        return self.leases.let_go(self.lane, self.task.holder, position=position)

    # Progress and result

    def note(self, state: LaneStateName, text: str = "", *, force: bool = False) -> None:
        """Write the progress of the lane, every few seconds or now."""
        at = self.monotonic()
        noted = self._noted_at is not None and (at - self._noted_at) * 1000 < EVERY_MS
        if self.files is None or (noted and not force):
            return
        self._noted_at = at
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
        return f"limited to {cap / 1e6:g} MB/s of the whole job" if cap and self._limited and state == "running" else ""

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
            cpu_seconds=time.process_time() - self._began_cpu,
            error=error,
        )

    def _replicate(self, content: Content, *, examined: bool = True) -> None:
        self.hold()
        place, before = (self.task.lane_topic, self.task.partition), self.position()
        batch = Batch(
            records={place: content.of_lane},
            covered={place: content.covered},
            begins={place: content.begins},
            epochs={place: content.epoch},
            left_out={} if content.left_out is None else {place: content.left_out},
            unexamined=frozenset() if examined else frozenset({place}),
        )
        with self._paid(content):
            outcome = self._written(batch)
        if outcome.waiting:
            raise self._lost_to_another()
        size = sum(run.bytes for run in outcome.runs)
        self.written += sum(run.records for run in outcome.runs)
        self.written_bytes += size
        self.passed_bytes += sum(run.passed_bytes for run in outcome.runs)
        self.runs += len(outcome.runs)
        if (stop := outcome.stopped.get((self.lane.topic, self.lane.partition))) is not None:
            raise self._stopped(stop)
        self.note("running")
        if self.by_batches is not None and size:  # to pass over offsets is no copying
            seconds = self.monotonic() - self._copied_at
            self.by_batches.choice.copied(outcome.runs[-1].next - before, size, seconds)
        self._copied_at = self.monotonic()

    def _written(self, batch: Batch) -> BatchOutcome:
        """Write a batch, beside those of other lanes where that is possible."""
        if self.shared is not None and self.by_batches is not None and self.replicator is self.by_batches.replicator:
            outcome = self.shared.replicate(batch)
            self.by_batches.choice.lanes = 1 if outcome is None else self.shared.lanes
            if outcome is not None:
                if outcome.runs:
                    self.replicator.positions.advance(outcome.runs)
                else:
                    self.replicator.positions.forget([self.lane])  # a twin has written it
                return outcome
        return self.replicator.replicate(batch, request=self.task.run_id, deadline=deadline_in(CHUNK_SECONDS))

    @contextmanager
    def _paid(self, content: Content) -> Iterator[None]:
        """Wait until the cap has room for what is written in the block."""
        if self.limit is None:
            yield
            return
        began, self._limited = self.monotonic(), False
        with self.limit.paid(bytes_in(content.of_lane), self._between_pauses):
            self._copied_at += self.monotonic() - began  # how fast an engine is does not depend on the cap
            yield

    def _between_pauses(self) -> None:
        self._limited = True
        self.hold()
        self.note("running")
        at, cap, share = self.monotonic(), self.task.job_bytes_per_second, self.task.max_bytes_per_second
        if self.limit is None or self.files is None or not cap or not share or at < self._shared_at + SHARE_SECONDS:
            return
        self._shared_at = at
        try:
            text = self.files.read(PROGRESS)
            lanes = msgspec.json.decode(text, type=JobProgress).lanes if text else {}
        except (MirrorlessError, msgspec.DecodeError):
            return  # the share stays what it was
        # The last lanes of a job take over what tasks leave that begin no more: fewer than may run at a time.
        left = lanes.get("running", 0) + lanes.get("waiting", 0)
        if 0 < left < cap / share:
            self.limit.bytes_per_second = cap / left

    def _pass_over(self, first: int) -> None:
        """Move the chain to the beginning of a range.

        Offsets before the first record of a lane were never the lane's, and a lane of a job has the records that its
        job copies. All other offsets that are passed over are left to the gap check, which reports losses.
        """
        never_of_the_lane = self.position() == 0 or "#" in self.task.lane_topic
        self._replicate(Content([], first), examined=never_of_the_lane)

    def _refuse_another_log(self, *, by_record: bool) -> None:
        """Refuse a log that parted from what was copied of it. An archive stays what it is."""
        ranges, epochs = self.task.ranges, self.epochs
        if self.task.archive is None and epochs is not None and ranges and 0 < self.position() < ranges[-1].next:
            held = HeldLog(
                lane=self.lane,
                log=self.log,
                place=(self.task.read_topic, self.task.partition),
                chains=self.replicator.chains,
                epochs=epochs,
                changed=self.replicator.changed_of(self.lane),
            )
            held.refuse_another(self.replicator.positions.head(self.lane), by_record=by_record)

    def _refuse_a_live_beginning(self) -> None:
        """Refuse a lane that went live after the plan: its mapping may have been faster than the lease."""
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
