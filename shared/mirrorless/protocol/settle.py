"""Settling of a plan: its deliveries folded into the run that the chain keeps.

What was written of a lane, records or whole batches, gives the run its spans, digest, fingerprint and sums.

Pure: a plan and its downstream offsets in, a prepared run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import DigestOf, Run, Span, spans_of
from mirrorless.errors import ChainBroken
from mirrorless.protocol.digest import Columns, fingerprint
from mirrorless.protocol.outgoing import Element, OutgoingBatch, last_of, of_batches
from mirrorless.protocol.plan import LanePlan
from mirrorless.records.origin import rows_of
from mirrorless.records.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who writes, in which attempt, on whose request, and when."""

    writer: str
    attempt: str
    request: str
    now: int
    """ms since the epoch."""
    throttled_ms: int = 0
    """See `Run.throttled_ms`."""


def settle_lane(plan: LanePlan, downstream: Sequence[int], attempt: Attempt) -> Run:
    """The run for one lane of a batch that was written and acknowledged.

    Args:
        plan: what was to be written.
        downstream: the downstream offset of each record of `plan.write`, in order; of each batch that of its first.
        attempt: who wrote it.

    Raises:
        ChainBroken: when the deliveries are not one growing offset for each record; then order was not kept.
    """
    written = _written(plan.write)
    if not written.in_order(downstream):
        raise ChainBroken(
            f"{len(plan.write)} {written.digest_of} were acknowledged at {len(downstream)} offsets that do not grow "
            "by record",
            where=plan.lane.at(plan.head.position),
            hint="keep the transaction aborted and report this: the Kafka client broke its promise of order",
        )
    return Run(
        lane=plan.lane,
        generation=plan.head.generation,
        position=plan.head.position,
        next=plan.next,
        spans=written.spans(downstream),
        state="prepared",
        writer=attempt.writer,
        attempt=attempt.attempt,
        fingerprint=written.fingerprint() if plan.write else b"",
        digest=written.digest() if plan.write else b"",
        oldest_timestamp=written.oldest_timestamp(),
        newest_timestamp=written.newest_timestamp(),
        records=written.records(),
        bytes=written.bytes(),
        digest_of=written.digest_of,
        passed_bytes=written.passed_bytes(),
        quarantined=plan.quarantined,
        returned=rows_of(plan.returned),
        rule=plan.rule,
        filtered=rows_of(plan.filtered),
        request=attempt.request,
        settled_at=attempt.now,
        examined=plan.examined,
        epoch=plan.epoch,
        throttled_ms=attempt.throttled_ms,
    )


def lost_end(plan: LanePlan, downstream: Sequence[int], *, now: int) -> Stop | None:
    """The stop of a lane whose records stand at or below the chain's newest record: the target no longer has that one.

    It names the position of the newest run. That run is committed, so a reset never takes it for a run in doubt.

    Args:
        plan: what was written.
        downstream: where; offsets that are none are left to `settle_lane`.
        now: ms since the epoch.
    """
    run = plan.head.run
    if run is None or run.last_downstream is None or not downstream or not 0 <= downstream[0] <= run.last_downstream:
        return None
    return Stop(
        reason="broken",
        upstream_offset=run.position,
        detail=f"the next record would stand at downstream offset {downstream[0]}, and the map has one at "
        f"{run.last_downstream}: the remote topic was re-created, or lost records",
        at=now,
        untrue_from=0,
    )


class _Records:
    """Records, one by one."""

    digest_of: ClassVar[DigestOf] = "records"

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._columns = Columns.of(records)

    def in_order(self, downstream: Sequence[int]) -> bool:
        """Whether each record has a downstream offset, and they grow."""
        return len(downstream) == len(self._records) and _grow(downstream)

    def spans(self, downstream: Sequence[int]) -> tuple[Span, ...]:
        """The spans of the records."""
        records = self._records
        # Offsets grow, so ends as far apart as their number are the usual case, and all there is.
        if records and records[-1].offset - records[0].offset == len(records) - 1:
            return spans_of(range(records[0].offset, records[-1].offset + 1), downstream)
        return spans_of([record.offset for record in records], downstream)

    def fingerprint(self) -> bytes:
        """Of the last record."""
        return fingerprint(self._records[-1])

    def digest(self) -> bytes:
        """Over all records."""
        return self._columns.digest()

    def oldest_timestamp(self) -> int:
        """Of all records; -1 where there is none."""
        return min(self._columns.timestamps, default=-1)

    def newest_timestamp(self) -> int:
        """Of all records; -1 where there is none."""
        return max(self._columns.timestamps, default=-1)

    def records(self) -> int:
        """How many."""
        return len(self._records)

    def bytes(self) -> int:
        """Key and value bytes."""
        return self._columns.bytes()

    def passed_bytes(self) -> int:
        """None: batches were made of them."""
        return 0


class _Batches:
    """Whole batches: nothing of them is parsed but the last record."""

    digest_of: ClassVar[DigestOf] = "batches"

    def __init__(self, batches: Sequence[OutgoingBatch]) -> None:
        self._batches = batches

    def in_order(self, downstream: Sequence[int]) -> bool:
        """Whether each batch has a downstream offset, behind all records of the batch before it."""
        if len(downstream) != len(self._batches) or not downstream or downstream[0] < 0:
            return False
        lengths = [len(each.upstream) for each in self._batches]
        return all(
            base + length <= following for (base, following), length in zip(pairwise(downstream), lengths, strict=False)
        )

    def spans(self, downstream: Sequence[int]) -> tuple[Span, ...]:
        """A span for each batch; those that continue each other on both sides are one."""
        spans: list[Span] = []
        for each, base in zip(self._batches, downstream, strict=True):
            for span in spans_of(each.upstream, range(base, base + len(each.upstream))):
                if spans and _continues(spans[-1], span):
                    spans[-1] = Span(spans[-1].upstream, spans[-1].downstream, spans[-1].length + span.length)
                else:
                    spans.append(span)
        return tuple(spans)

    def fingerprint(self) -> bytes:
        """Of the last record, so that whoever reads records recognises it."""
        return fingerprint(last_of(self._batches[-1]))

    def digest(self) -> bytes:
        """Over all batches as they were produced."""
        from mirrorless.records.record_batch import batch_digest  # noqa: PLC0415  see `outgoing`

        return batch_digest(each.batch for each in self._batches)

    def oldest_timestamp(self) -> int:
        """The lowest of the batches' first records: their headers have no other. A record within may be older."""
        return min(each.batch.base_timestamp for each in self._batches)

    def newest_timestamp(self) -> int:
        """Of all records."""
        return max(each.batch.max_timestamp for each in self._batches)

    def records(self) -> int:
        """How many."""
        return sum(len(each.upstream) for each in self._batches)

    def bytes(self) -> int:
        """Of the payloads, as they were produced."""
        return sum(len(each.batch.payload) for each in self._batches)

    def passed_bytes(self) -> int:
        """Those of the batches that lie in the source's log as they are."""
        return sum(len(each.batch.payload) for each in self._batches if each.passed)


def _written(elements: Sequence[Element]) -> _Records | _Batches:
    """What was written, by its kind. Nothing is no batch: a run without records is one of records."""
    if of_batches(elements):
        return _Batches(elements)
    return _Records(elements)  # type: ignore[arg-type]  # a plan has elements of one kind


def _continues(before: Span, span: Span) -> bool:
    return (before.upstream + before.length, before.downstream + before.length) == (span.upstream, span.downstream)


def _grow(offsets: Sequence[int]) -> bool:
    if not offsets:
        return True
    # The usual cases first, each settled by one comparison.
    contiguous = isinstance(offsets, range) or offsets == list(range(offsets[0], offsets[-1] + 1))
    return offsets[0] >= 0 and (contiguous or all(map(int.__lt__, offsets, offsets[1:])))
