"""A task of a job: some lanes, copied side by side by one thread, each from the position of its chain to its end.

A chunk is gathered of what all of them have, while the log is read on, and is written in one transaction or in some.
By whole record batches where that is better, otherwise by records; from one transaction to the next that may change.
The batch in which a range ends goes by its records, in a transaction of its own: what follows in it is not the job's.

After a failure positions are read again and the copy continues there: the chains have by then what the failed try had
committed, and what a twin of this task wrote meanwhile. A lane that fails again and again is over, and others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Literal

import msgspec

from mirrorless.chain.lane_state import Stop
from mirrorless.clock import Deadline, deadline_in
from mirrorless.copy.choice import EngineChoice
from mirrorless.copy.feed import LaneFeed
from mirrorless.copy.gathering import Gathering
from mirrorless.copy.lane import LaneCopy, lost
from mirrorless.errors import LaneStopped, LeaseHeld, LostRace, MirrorlessError, Retriable
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.jobs.copy_task import CHUNK_BYTES, CopyResult, HandedOver
from mirrorless.jobs.lane_start import CHUNK_SECONDS, gone, patience
from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.request import PROGRESS
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals, Log
from mirrorless.protocol.copy_choice import Engine
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import LaneContent, is_raw, opened_to_records
from mirrorless.protocol.portions import TransactionBytes, parted, side_by_side
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch

FAILURES: Final = 10
"""In a row, until a lane is over: their pauses add up to two minutes."""

POLL_SECONDS: Final = 0.5
"""Between two looks at a lane that waits for its end; and what has come is written if nothing follows for so long."""

GATHER_SECONDS: Final = 5.0
"""For a chunk at most: between two of them leases are renewed."""

SILENCE_SECONDS: Final = 30.0
"""Without a record or an end, until the cluster counts as not answering."""

SHARE_SECONDS: Final = 10.0
"""Between two reads of how many lanes share the cap."""

GATHERED_BYTES: Final = 32_000_000
"""Of whole batches in a chunk, about. Which engine is the better one is seen before they are written."""

FIRST_BYTES: Final = 2_000_000
MOST_BYTES: Final = 2 * GATHERED_BYTES
QUICK_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
"""Of a transaction of whole batches: each has to end before it times out, however long the target takes for a batch.
The first one is small, so that a distant target is known by its pace before much is written; the largest is a chunk."""

CLIENT_LANES: Final = 4
"""Of which a transaction by the Kafka client may have a chunk each: all of its records are held."""


def task_bytes(engine: Engine, lanes: int) -> TransactionBytes:
    """Bytes of one transaction of a task."""
    if engine == "batches":
        return TransactionBytes(FIRST_BYTES, MOST_BYTES, quick=QUICK_SECONDS, slow=SLOW_SECONDS)
    most = CHUNK_BYTES * min(lanes, CLIENT_LANES)
    return TransactionBytes(most, most)


class _OfLaneError(Exception):
    """Something failed that is about one lane; the cause says what."""

    def __init__(self, place: TopicPartition, cause: MirrorlessError) -> None:
        super().__init__(str(cause))
        self.place, self.cause = place, cause


@dataclass(slots=True, kw_only=True)
class JobCopy(LaneFeed):
    """One task in progress."""

    lanes: Mapping[TopicPartition, LaneCopy]
    """By topic and partition of the lane."""
    clients: Callable[[Engine], tuple[Replicator, Log]]
    """Of each engine, with positions of its own; the log by the lanes' names."""
    choice: EngineChoice | None = None
    """None where all is copied by records."""
    engine: Engine = "records"
    """Of the replicator and the log."""
    results: dict[TopicPartition, CopyResult] = field(default_factory=dict)
    _come_to: dict[TopicPartition, int] = field(default_factory=dict)
    """By lane that is followed: the upstream offset below which all has come."""
    _heard_at: float = 0.0
    """When something came last, or was asked for, monotonic seconds."""
    _written_at: float = 0.0
    """When the last transaction was over, monotonic seconds."""
    _gather_until: float = 0.0
    """When what has come is written at last, monotonic seconds."""
    _shared_at: float = 0.0
    """When the number of lanes that share the cap was read."""

    def __post_init__(self) -> None:
        """Begin with nothing gathered."""
        self._gathering = Gathering(inf, self._chunk(), lanes=min(len(self.lanes), CLIENT_LANES))

    def run(self) -> list[CopyResult]:
        """Copy every lane to its end; the results in the order of the lanes."""
        self.readings.only(self.lanes)
        self._written_at = self.monotonic()
        try:
            while self.readings.lanes:
                self._step()
        except BaseException:
            self.log.close()
            raise
        return [self.results[place] for place in self.lanes]

    def _step(self) -> None:
        if self.choice is not None and self._changes_engine:
            self._use(self.choice.engine)
        for place in self.readings.idle(self.monotonic()):
            if place in self.readings.lanes:  # a look at another one may have ended it
                with self._kept_going([place]):
                    self._go_on(place)
        waits = [each.free_at for place, each in self.readings.lanes.items() if place not in self.readings.followed]
        if self.readings.followed:
            self._gather_until = min([self.monotonic() + GATHER_SECONDS, *waits])
            self._look_at = min(self.monotonic() + POLL_SECONDS, self._gather_until)
            self._copy()
        elif waits:
            self.sleep(max(0.0, min(waits) - self.monotonic()))

    def _copy(self) -> None:
        """Write what comes."""
        with self._kept_going(list(self.readings.followed), anew=True):
            arrivals = self._gather()
            for batch in self._batches(arrivals):
                with self._kept_going(list(batch.records), anew=True, blamed=True):
                    self._write(batch, patience)
                if self._changes_engine or not self.readings.followed:
                    return  # after a failure, or by the other engine, the rest is read again
            for place in arrivals.out_of_range & self.readings.followed:
                task, at = self.lanes[place].task, self.readings.lanes[place].next or 0
                where = f"{task.settings.flow} {task.read_topic}-{task.partition}"
                self._finish(place, "failed", error=str(gone(at, where)))
            self._react(arrivals, patience)
        if self._met_old_format and self.choice is not None:
            self._met_old_format = False
            self.choice.use_client()

    def _batches(self, arrivals: Arrivals) -> Iterator[Batch]:
        """What came, in batches for one transaction each."""
        readings = self.readings.lanes
        covered = {
            place: min(max(arrivals.covered.get(place, 0), arrivals.ended.get(place, 0)), readings[place].below)
            for place in arrivals.places()
            if place in self.readings.followed
        }
        moved = [place for place in covered if arrivals.records.get(place) or covered[place] == readings[place].below]
        for alike in self.readings.batches(moved):
            content: dict[TopicPartition, LaneContent] = {place: arrivals.records.get(place, []) for place in alike}
            cut = dict[TopicPartition, RecordBatch]()
            for place, own in content.items():
                if is_raw(own) and own[-1].next > readings[place].below:
                    content[place], cut[place] = own[:-1], own[-1]
            whole = [place for place in alike if content[place] or place not in cut]
            if whole:
                yield self._batch(
                    {place: content[place] for place in whole},
                    covered={place: covered[place] for place in whole if place not in cut},
                    epochs={place: arrivals.epochs[place] for place in whole if place in arrivals.epochs},
                )
            ends = {
                place: self._below(place, opened_to_records([batch], readings[place].next or 0))
                for place, batch in cut.items()
                if place in self.readings.followed
            }
            if ends:
                yield self._batch(
                    ends,
                    covered={place: readings[place].below for place in ends},
                    epochs={place: cut[place].leader_epoch for place in ends},
                )

    def _below(self, place: TopicPartition, content: LaneContent) -> LaneContent:
        """What of a batch is in the range; all of one that cannot be read, at which the lane stops."""
        if is_raw(content):
            return content
        return [each for each in content if isinstance(each, Record) and each.offset < self.readings.lanes[place].below]

    # From one lane's range to the next, and to its end

    def _go_on(self, place: TopicPartition) -> None:
        """Follow a lane from its position on, or bring it to its end."""
        lane, positions = self.lanes[place], self.replicator.positions
        lane.replicator = self.replicator
        lane.hold()
        if lane.phase == "copy":
            lane.note("running")
        lane.refuse_another_log()
        wanted = lane.wanted()
        if wanted is None:
            self._end(place, lane)
            return
        if lane.position() < wanted.first:
            self._pass_over(place, lane, wanted.first)
        if (at := lane.position()) < wanted.first:
            return  # it is stopped before
        head = positions.head(lane.lane)
        self.readings.begin(place, at, generation=head.generation, newest=head.run)
        self.readings.lanes[place].below = wanted.next
        self._come_to[place], self._heard_at = at, self.monotonic()
        self._follow({place: at}, {place: wanted.next})

    def _pass_over(self, place: TopicPartition, lane: LaneCopy, first: int) -> None:
        """Move the chain to the beginning of a range.

        Offsets before the first record of a lane were never the lane's, and a lane of a job has the records that its
        job copies. All other offsets that are passed over are left to the gap check, which reports losses.
        """
        never_of_the_lane = lane.position() == 0 or "#" in lane.task.lane_topic
        head = self.replicator.positions.head(lane.lane)
        self.readings.begin(place, head.position, generation=head.generation, examined=never_of_the_lane)
        self._write(self._batch({place: []}, covered={place: first}), patience)

    def _end(self, place: TopicPartition, lane: LaneCopy) -> None:
        if lane.phase == "copy":
            lane.refuse_a_live_beginning()
        if lane.ending is None:
            lane.let_go()
            self._finish(place, "done")
            return
        found = lane.ending.step(lane)
        if isinstance(found, str):
            self._finish(place, "done", handed_over=found)
        elif found is None:
            self.readings.lanes[place].free_at = self.monotonic() + POLL_SECONDS
        else:
            lane.more = found
            self._go_on(place)

    def _finish(
        self,
        place: TopicPartition,
        state: Literal["done", "stopped", "failed"],
        *,
        handed_over: HandedOver = "",
        error: str = "",
    ) -> None:
        self._leave([place])
        if self.readings.lanes.pop(place, None) is not None:
            self.results[place] = self.lanes[place].result(state, handed_over=handed_over, error=error)

    # What a feed asks for

    def _hold(self, deadline: Deadline) -> None:  # noqa: ARG002 -- a job has none
        for place in self.readings.lanes:
            try:
                self.lanes[place].hold()
            except MirrorlessError as exc:
                raise _OfLaneError(place, exc) from exc

    def _limited(self, deadline: Deadline) -> Deadline:  # noqa: ARG002 -- a job has none
        return deadline_in(CHUNK_SECONDS)

    def _examined(self, place: TopicPartition) -> bool:
        """An offset that an archive does not hold may have been a record: left to the gap check."""
        return self.readings.lanes[place].examined and self.lanes[place].task.archive is None

    @property
    def _changes_engine(self) -> bool:
        return self.choice is not None and self.choice.engine != self.engine

    def _chunk(self) -> TransactionBytes:
        """Bytes of what is gathered; by the client those of a transaction, for records take more than they hold."""
        return TransactionBytes(GATHERED_BYTES, GATHERED_BYTES) if self.engine == "batches" else self.replicator.size

    def _parted(self, batch: Batch) -> tuple[Batch, Batch | None]:
        if self.limit is not None:
            return parted(self._opened(batch), self.limit.allowance)
        if not any(map(is_raw, batch.records.values())):
            return batch, None
        portion, rest = side_by_side(batch, self.replicator.size.most)
        return self._opened(portion), rest

    def _writes_on(self) -> bool:
        return not self._changes_engine

    def _opened(self, batch: Batch) -> Batch:
        return replace(batch, records={place: self._content(place, each) for place, each in batch.records.items()})

    def _enough(self) -> bool:
        came = bool(self._gathering.come) and all(
            self._come_to[place] >= self.readings.lanes[place].below for place in self.readings.followed
        )
        return came or self._gathering.is_full

    def _came(self, come: Arrivals) -> None:
        for place, refused in come.refused.items():
            raise _OfLaneError(place, refused)
        now = self.monotonic()
        if come:
            self._heard_at = now
        elif now - self._heard_at >= SILENCE_SECONDS:
            silent = ", ".join(str(self.lanes[place].lane) for place in sorted(self.readings.followed))
            raise Retriable(f"the log showed nothing in time of {silent}")
        for place in come.places():
            self._come_to[place] = max(
                come.covered.get(place, 0), come.ended.get(place, 0), self._come_to.get(place, 0)
            )
            if self.choice is not None and is_raw(batches := come.records.get(place, [])):
                terms = self.replicator.terms(self.replicator.remote_topic(place[0]))
                if terms is not None:
                    self.choice.seen(batches, terms, alone=len(self.readings.followed) == 1)
        if come:  # from now on: a distant target takes a while to tell its terms
            self._look_at = min(self.monotonic() + POLL_SECONDS, self._gather_until)

    def _settle(self, batch: Batch, outcome: BatchOutcome) -> None:
        for place in batch.records.keys() & self.readings.lanes.keys():
            lane, reading = self.lanes[place], self.readings.lanes[place]
            lane.wrote(run for run in outcome.runs if run.lane == lane.lane)
            if place in outcome.waiting:
                self._finish(place, "failed", error=str(lost(lane.lane)))
            elif (stop := outcome.stopped.get(place)) is not None:
                self._finish(place, "stopped", error=str(lane.stopped(stop)))
            else:
                self._went_well(place, batch, outcome)
                lane.limited = False
                # At the end of its range, or where a twin is ahead, it goes on at its position.
                position = self.replicator.positions.head(lane.lane).position
                if position != reading.next or reading.next >= reading.below:
                    self._leave([place])
        now, size = self.monotonic(), sum(run.bytes for run in outcome.runs)
        if self.choice is not None and size:  # to pass over offsets is no copying
            offsets = sum(run.next - run.position for run in outcome.runs)
            self.choice.copied(offsets, size, now - self._written_at - self.limited_seconds)
        self._note_all()
        self._written_at = self._heard_at = self.monotonic()
        self.limited_seconds = 0.0

    def _stop(self, place: TopicPartition, stop: Stop, deadline: Deadline) -> None:
        lane = self.lanes[place]
        if self._store(place, stop, deadline):
            self._finish(place, "stopped", error=str(lane.stopped(stop)))
        else:
            self._finish(place, "failed", error=str(lost(lane.lane)))

    def _note_of(self, place: TopicPartition, text: str) -> None:
        self.lanes[place].note("running", text, force=True)

    def _note_all(self) -> None:
        """Tell how far the lanes are; at the same time, for a store of files is slow."""
        due = [each for place in self.readings.lanes if (each := self.lanes[place]).note_is_due]
        in_parallel(lambda lane: lane.note("running"), [lane for lane in due if lane.phase == "copy"])

    # Engines, and failures

    def _use(self, engine: Engine) -> None:
        """Go on by another engine; both stay connected."""
        self._leave(list(self.readings.followed))
        self.engine = engine
        self.replicator, self.log = self.clients(engine)
        self.replicator.positions.forget()  # what it remembers was before the other one's transactions
        self._gathering.size = self._chunk()
        self._written_at = self.monotonic()
        for place in self.readings.lanes:
            self.lanes[place].replicator = self.replicator

    @contextmanager
    def _kept_going(
        self, places: Sequence[TopicPartition], *, anew: bool = False, blamed: bool = False
    ) -> Iterator[None]:
        """Let a failure of these lanes be a try of each, or its end.

        Args:
            places: of the lanes.
            anew: whether all lanes are read anew then, from where they stand.
            blamed: whether those that are to be left alone for a while are noted already.
        """
        failure: Exception
        try:
            yield
        except _OfLaneError as exc:
            places, blamed, failure = [exc.place], False, exc.cause
        except Exception as exc:  # noqa: BLE001 -- whatever it is, the other lanes go on
            failure = exc
        else:
            return
        places = [place for place in places if place in self.readings.lanes]
        if not blamed:
            self.readings.failed(places, places, self.monotonic())
        if anew:
            self._drop_all()
            if self.choice is not None:
                self.choice.failed()
        for place in places:
            self._failed(place, failure, alone=len(places) == 1)

    def _failed(self, place: TopicPartition, exc: Exception, *, alone: bool) -> None:
        """Note a failure of a lane, and end it where nothing more helps."""
        lane, known = self.lanes[place], isinstance(exc, MirrorlessError)
        lane.races += isinstance(exc, LostRace)
        # A lease that was ended is not taken again: that would undo an operator's order.
        lasting = isinstance(exc, MirrorlessError) and (not exc.retriable or isinstance(exc, LeaseHeld))
        if (lasting and alone) or self.readings.lanes[place].failures >= FAILURES:
            why = str(exc) if known else f"{exc!r}, of no kind that is expected: report it"
            self._finish(place, "stopped" if isinstance(exc, LaneStopped) else "failed", error=why)
        else:
            lane.note("running", str(exc), force=True)

    # The cap, and what is told about it

    def _between_pauses(self, deadline: Deadline) -> None:
        self._hold(deadline)
        for place in self.readings.lanes:
            self.lanes[place].limited = True
        self._note_all()
        first, at = next(iter(self.lanes.values())), self.monotonic()
        cap, share, files = first.task.job_bytes_per_second, first.task.max_bytes_per_second, first.files
        if self.limit is None or files is None or not cap or not share or at < self._shared_at + SHARE_SECONDS:
            return
        self._shared_at = at
        try:
            text = files.read(PROGRESS)
            lanes = msgspec.json.decode(text, type=JobProgress).lanes if text else {}
        except (MirrorlessError, msgspec.DecodeError):
            return  # the share stays what it was
        # The last lanes of a job take over what tasks leave that begin no more: fewer than may run at a time.
        left = lanes.get("running", 0) + lanes.get("waiting", 0)
        if 0 < left < cap / share:
            self.limit.bytes_per_second = cap / left
