"""The batches of a fetched part that a read_committed reader sees. Pure.

A transactional batch is dropped if its producer's transaction was aborted. The answer names those transactions by
producer and first offset, and the producer's next marker ends it: also where all of that lies below the position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mirrorless.record_batch import RecordBatch


def committed(batches: Iterable[RecordBatch], aborted: Sequence[tuple[int, int]]) -> Iterator[tuple[RecordBatch, bool]]:
    """Each batch, and whether its records are seen.

    Args:
        batches: of one answer, in order.
        aborted: producer id and first offset of the transactions that the answer says were aborted.
    """
    to_come = sorted(aborted, key=lambda each: each[1], reverse=True)
    dropped: set[int] = set()
    for batch in batches:
        while to_come and to_come[-1][1] <= batch.last_offset:
            dropped.add(to_come.pop()[0])
        if batch.is_control:
            dropped.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, not (batch.is_transactional and batch.producer_id in dropped)
