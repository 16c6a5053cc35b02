"""The copy of a lane by whole record batches: what is read of its log, in portions of one transaction each.

A batch inside which the range begins, and one that cannot pass, is opened by the plan, as in a pull. The batch inside
which the range ends goes by its records, in a transaction of its own: what follows in it is not the job's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrorless.batch_records import records
from mirrorless.jobs.copy_task import CHUNK_RECORDS, BatchLog, OffsetRange
from mirrorless.jobs.engine_choice import REQUEST_BYTES, EngineChoice
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.protocol.outgoing import LaneContent
from mirrorless.protocol.replicate import Replicator
from mirrorless.record_batch import BatchUnreadable, PassTerms, RecordBatch, obstacle


class Content(NamedTuple):
    """What one transaction copies of a lane."""

    of_lane: LaneContent
    covered: int
    """The upstream offset below which everything was read."""
    begins: int = 0
    """The upstream offset from which it was read: the first batch may begin below."""


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
                for content in self._portions(batches, OffsetRange(at, min(chunk.covered, wanted.next)), terms):
                    yield content
                    if self.choice.engine != "batches":
                        return
                at = chunk.covered
        except BatchUnreadable as exc:
            if not exc.old_format:
                raise
            self.choice.use_client()

    def _portions(self, batches: Sequence[RecordBatch], wanted: OffsetRange, terms: PassTerms) -> Iterator[Content]:
        cut = batches[-1] if batches and batches[-1].next > wanted.next else None
        at, some, size, opened = wanted.first, list[RecordBatch](), 0, 0
        for batch in batches[:-1] if cut is not None else batches:
            some.append(batch)
            size += batch.size + REQUEST_BYTES
            opened += 0 if obstacle(batch, terms, position=at) is None else batch.records_count
            if size >= self.choice.budget or opened >= CHUNK_RECORDS:
                yield Content(some, batch.next, at)
                at, some, size, opened = batch.next, [], 0, 0
        if cut is None:
            if some or at < wanted.next:
                yield Content(some, wanted.next, at)
            return
        if some:
            yield Content(some, cut.base_offset, at)
            at = cut.base_offset
        yield Content([each for each in records(cut) if at <= each.offset < wanted.next], wanted.next, at)
