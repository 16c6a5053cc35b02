"""Source topics filled by whole batches of a given size: each batch is packed once, and written again and again.

Values and keys are those of `records`, but for the numbers: only the last batch of a partition has them, for whoever
looks at the last record. So a topic is filled at the speed of the broker, and the batches are as large as is asked for,
whatever a client would have gathered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from uuid import uuid4

from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.batch_records import packed
from mirrorless.record import Record
from mirrorless.record_batch import RecordBatch
from mirrorless.settings import ClusterSettings
from tests.benchmarks.beside_mm2 import records as by_client
from tests.benchmarks.beside_mm2.records import KEY, TIMEOUT_S, Shape, values

DIFFERENT_BYTES = 4_000_000
"""Of batches, before they come again."""
TRANSACTION_BYTES = 32_000_000
FRAMING = 12
"""Bytes of a record beside key and value, about."""
NO_NUMBER = b"f" * 8


def fill(bootstrap: str, topics: Sequence[str], records: Shape, *, seed: int = 1) -> None:
    """Write the records to the topics, by whole batches where the shape names their size.

    Raises:
        RuntimeError: the cluster refused one.
        MirrorlessError: the cluster took them for too long.
    """
    if not records.batch:
        by_client.fill(bootstrap, topics, records, seed=seed)
        return
    some, last = _batches(records, seed=seed)
    writer = RawWriter(
        ClusterSettings(alias="source", bootstrap=bootstrap),
        flow="fill",
        transactional_id=f"fill-{uuid4()}",
        timeout_ms=int(TIMEOUT_S * 1000),
        deadline=lambda: TIMEOUT_S,
    )
    places = list(product(topics, range(records.partitions)))
    try:
        portion = max(1, TRANSACTION_BYTES // len(places) // last[0].size)
        for at in range(0, len(some) + 1, portion):
            part = some[at : at + portion] + (last if at + portion > len(some) else [])
            written = writer.write(dict.fromkeys(places, part), lambda: TIMEOUT_S)
            if refused := [each.refusal for each in written.values() if each.refusal]:
                raise RuntimeError(f"{topics[0]} was not filled: {refused[0]}")
            writer.commit(lambda: TIMEOUT_S)
    finally:
        writer.close()


def _batches(records: Shape, *, seed: int) -> tuple[list[RecordBatch], list[RecordBatch]]:
    """All batches of a partition but the last, most of them the same objects, and the last one."""
    each = max(1, records.batch // (records.size + len(KEY % 0) + FRAMING))
    tails = values(replace(records, batch=0), seed=seed)
    now = time.time_ns() // 1_000_000

    def batch(first: int, count: int, *, numbered: bool = False) -> list[RecordBatch]:
        some = [
            Record(number, now, [], KEY % number, (b"%08x" % number if numbered else NO_NUMBER) + tail)
            for number in range(first, first + count)
            for tail in (tails[number % len(tails)],)
        ]
        (packed_batch,) = packed(some, "lz4", max_bytes=2**31)
        return [packed_batch]

    whole, left = divmod(records.per_partition, each)
    if not left:
        whole, left = whole - 1, each
    different = max(1, min(whole, DIFFERENT_BYTES // (each * records.size)))
    made = [batch(number * each, each)[0] for number in range(different)] if whole else []
    return [made[number % different] for number in range(whole)], batch(whole * each, left, numbered=True)
