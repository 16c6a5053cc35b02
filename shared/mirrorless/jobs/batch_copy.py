"""The copy of a lane by whole record batches: what is read of its log, in portions of one transaction each.

A batch inside which the range begins, and one that cannot pass, is opened by the plan, as in a pull. The batch inside
which the range ends goes by its records, in a transaction of its own: what follows in it is not the job's.

The engine that copies a lane in a job: whole record batches, or records by the Kafka client.

A request to a broker takes one batch of each lane of a task: where batches are small and the target is far, the task
waits for most of its time, and the client, which packs larger batches, is faster. So there are two grounds. What the
chunks would cost either way, by what their batches are like, is estimated before they are written. And where whole
batches are slow, the client is tried, and the faster one goes on. Both are forgotten after a while, for a log changes.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.jobs.copy_task import CHUNK_RECORDS, BatchLog, OffsetRange
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.copy_choice import MARGIN, BatchTally, Engine
from mirrorless.protocol.outgoing import LaneContent
from mirrorless.protocol.portions import TransactionBytes
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.batch_records import records
from mirrorless.records.record_batch import BatchUnreadable, PassTerms, RecordBatch, obstacle

LEAST_SAVED_US: Final = 50_000.0
"""Of CPU: what the client would have saved so far, until it is taken, for its producer must be opened."""

COLD_SECONDS: Final = 4.0
"""Of copying at first, whose pace does not count: brokers that have just started seem to be distant."""

WATCHED_SECONDS: Final = 4.0
WATCHED_BYTES: Final = 1_000_000
"""Of copying by whole batches, both, until their pace counts. Shorter lanes never try the client."""

SLOW_BYTES: Final = 4_000_000
"""A second, of all lanes that share their requests: what comes to less waits for a distant target, about 25 ms away
where six lanes have batches of 16 KB."""

TRIAL_SECONDS: Final = 10.0
TRIAL_BYTES: Final = 64_000_000
"""Of copying by the client, both, until its pace counts."""

FIRST_HELD_SECONDS: Final = 20.0
HELD_SECONDS: Final = 300.0
"""Of copying, after which a choice is made anew. The client is held for the first, and for twice as long each time:
what was slow may have passed."""

FAILURES: Final = 3
"""In a row by whole batches, until the client has a try: it serves brokers that are too old for the other engine."""

LONE_BATCH_US: Final = 90.0
"""CPU of a batch that passes alone in its request, beside what it takes where several lanes share one."""

REQUEST_BYTES: Final = 64 * 1024
"""By which a batch counts for more than its own bytes: the target's answer is waited for."""

FIRST_BYTES: Final = 8_000_000
LEAST_BYTES: Final = 1_000_000
MOST_BYTES: Final = 64_000_000
QUICK_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
"""Of a transaction of whole batches: each has to end before it times out, however long the target takes for a batch."""


def budget(first: int = FIRST_BYTES) -> TransactionBytes:
    """Bytes of whole batches in one transaction, each with `REQUEST_BYTES` beside its own."""
    return TransactionBytes(first, MOST_BYTES, LEAST_BYTES, QUICK_SECONDS, SLOW_SECONDS)


@dataclass(slots=True)
class EngineChoice:
    """The choice for one lane."""

    engine: Engine = "batches"
    lanes: int = 1
    """That share their requests now, this one among them."""
    size: TransactionBytes = field(default_factory=budget)
    _pace: float = 0.0
    """Upstream offsets a second of whole batches, where the client is tried."""
    _held_seconds: float = 0.0
    """For which the other engine is not to be tried."""
    _next_held_seconds: float = FIRST_HELD_SECONDS
    """The same, when the client is taken next."""
    _lost_us: float = 0.0
    """CPU that the client would have saved since the engine was taken."""
    _cold_seconds: float = COLD_SECONDS
    """Left of `COLD_SECONDS`."""
    _failures: int = 0
    _offsets: int = 0
    _bytes: int = 0
    _seconds: float = 0.0
    """All three: copied since the engine was taken."""

    def seen(self, batches: Sequence[RecordBatch], terms: PassTerms) -> None:
        """Choose by the batches of a chunk that was read, before it is written."""
        passing, opened = BatchTally(), BatchTally()
        passes = {each.base_offset for each in batches if obstacle(each, terms, position=0) is None}
        passing.note([each for each in batches if each.base_offset in passes])
        opened.note([each for each in batches if each.base_offset not in passes])
        by_batches = passing.cost_passed() + opened.cost_opened() + len(batches) * LONE_BATCH_US * (self.lanes == 1)
        by_client = passing.cost_by_client() + opened.cost_by_client()
        if by_client * MARGIN < by_batches:
            self._lost_us += by_batches - by_client
        if self._lost_us >= LEAST_SAVED_US:
            self.use_client()

    def use_client(self) -> None:
        """Take the Kafka client for a while, without a trial."""
        self._take("records", held_seconds=self._next_held_seconds)
        self._next_held_seconds = min(2 * self._next_held_seconds, HELD_SECONDS)

    def copied(self, offsets: int, size: int, seconds: float) -> None:
        """Note a chunk that was copied, and choose by pace.

        Args:
            offsets: upstream, that it covered.
            size: of its bytes.
            seconds: that reading and writing took.
        """
        self._failures = 0
        if self.engine == "batches":
            self.size.went_well(seconds)
            self._cold_seconds -= seconds
            if self._cold_seconds >= 0:
                return
        self._offsets += offsets
        self._bytes += size
        self._seconds += seconds
        if self._held_seconds:
            if self._seconds >= self._held_seconds:
                self._take("batches", held_seconds=0.0)
        elif self.engine == "batches":
            if self._seconds >= WATCHED_SECONDS and self._bytes >= WATCHED_BYTES:
                self._pace = self._offsets / self._seconds
                if self._bytes * self.lanes < self._seconds * SLOW_BYTES:
                    self._take("records", held_seconds=0.0)
                else:
                    self._take("batches", held_seconds=HELD_SECONDS)
        elif self._seconds >= TRIAL_SECONDS and self._bytes >= TRIAL_BYTES:
            if self._offsets / self._seconds > self._pace * MARGIN:
                self.use_client()
            else:
                self._take("batches", held_seconds=HELD_SECONDS)

    def failed(self) -> None:
        """Note that a chunk was not copied: the next transaction of whole batches has less to wait for."""
        self.size.halve()
        self._failures += 1
        if self._failures >= FAILURES and self.engine == "batches":
            self.use_client()

    def _take(self, engine: Engine, *, held_seconds: float) -> None:
        self.engine, self._held_seconds = engine, held_seconds
        self._offsets, self._bytes, self._seconds, self._lost_us, self._failures = 0, 0, 0.0, 0.0, 0


class Content(NamedTuple):
    """What one transaction copies of a lane."""

    of_lane: LaneContent
    covered: int
    """The upstream offset below which everything was read."""
    begins: int = 0
    """The upstream offset from which it was read: the first batch may begin below."""
    epoch: int = NO_EPOCH
    """Of the leader that appended what stands before `covered`, or of the last record's; see `Run.epoch`."""
    left_out: tuple[int, int] | None = None
    """See `Batch.left_out`."""


@dataclass(slots=True, kw_only=True)
class BatchCopy:
    """The engine of whole batches for one lane, and the choice between it and the Kafka client."""

    replicator: Replicator
    log: BatchLog
    terms: Callable[[], PassTerms]
    """Of the topic that is written, now."""
    choice: EngineChoice = field(default_factory=EngineChoice)

    def read(self, place: TopicPartition, wanted: OffsetRange, deadline: Deadline) -> Iterator[Content]:
        """Every batch that reaches into a range, in portions; fewer once the other engine is to go on.

        Raises:
            Retriable: the cluster does not answer.
            RecordsGone: the log begins above `wanted.first`.
            BatchUnreadable: a batch is damaged.
        """
        at = wanted.first
        try:
            for chunk in self.log.read(*place, wanted, deadline):
                batches = [each.batch for each in chunk.records]
                terms = self.terms()
                self.choice.seen(batches, terms)
                if self.choice.engine != "batches":
                    return
                some = OffsetRange(at, min(chunk.covered, wanted.next))
                last = batches[-1].leader_epoch if batches else NO_EPOCH
                epoch = chunk.epoch if chunk.covered <= wanted.next else last
                for content in self._portions(batches, some, terms, epoch):
                    yield content
                    if self.choice.engine != "batches":
                        return
                at = chunk.covered
        except BatchUnreadable as exc:
            if not exc.old_format:
                raise
            self.choice.use_client()

    def _portions(
        self, batches: Sequence[RecordBatch], wanted: OffsetRange, terms: PassTerms, epoch: int
    ) -> Iterator[Content]:
        cut = batches[-1] if batches and batches[-1].next > wanted.next else None
        at, some, size, opened = wanted.first, list[RecordBatch](), 0, 0
        for batch in batches[:-1] if cut is not None else batches:
            some.append(batch)
            size += batch.size + REQUEST_BYTES
            opened += 0 if obstacle(batch, terms, position=at) is None else batch.records_count
            if size >= self.choice.size.most or opened >= CHUNK_RECORDS:
                yield Content(some, batch.next, at, batch.leader_epoch)
                at, some, size, opened = batch.next, [], 0, 0
        if cut is None:
            if some or at < wanted.next:
                yield Content(some, wanted.next, at, epoch)
            return
        if some:
            yield Content(some, cut.base_offset, at)
            at = cut.base_offset
        some_records = [each for each in records(cut) if at <= each.offset < wanted.next]
        yield Content(some_records, wanted.next, at, cut.leader_epoch)
