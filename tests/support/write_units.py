"""What an event writes to the offset map, by DynamoDB's own word: write units, and the bytes of its entry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from mirrorless.chain.run import DigestOf, Run, Span
from mirrorless.clock import now_ms
from mirrorless.flow.naming import transactional_id
from tests.support.chains import FLOW
from tests.support.metered import MeteredClient


def replicated(chains: DynamoDbChains, number: int, lanes: Sequence[int], *, digest_of: DigestOf = "records") -> None:
    """What an event of 2,000 records writes; ids and offsets are as long as real ones."""
    each = 2_000 // len(lanes)
    first, now = 7_000_000_000 + number * each, now_ms()
    writer, attempt, request = transactional_id(FLOW, uuid4().hex), uuid4().hex, str(uuid4())
    runs = [
        Run(
            lane=Lane(FLOW, "customer-orders", partition),
            generation=0,
            position=first if number else 0,
            next=first + each,
            spans=(Span(first, 9_000_000_000 + number * (each + 1), each),),
            state="prepared",
            writer=writer,
            attempt=attempt,
            fingerprint=uuid4().bytes[:8],
            digest=os.urandom(32),
            oldest_timestamp=now - 60_000,
            newest_timestamp=now - 100,
            records=each,
            bytes=1_000 * each,
            digest_of=digest_of,
            passed_bytes=990 * each if digest_of == "batches" else 0,
            request=request,
            settled_at=now,
        )
        for partition in lanes
    ]
    chains.prepare(runs)
    chains.confirm([run.committed() for run in runs])


def size_of(item: dict[str, Any]) -> int:
    """Bytes of an item: names and values, numbers as about half their digits."""
    total = 0
    for name, value in item.items():
        ((kind, content),) = value.items()
        total += len(name) + (1 if kind == "BOOL" else (len(content) + 1) // 2 + 1 if kind == "N" else len(content))
    return total


def stored_bytes(client: Any, table: str, *, lanes: int) -> int:
    """Bytes of the entry of a lane's second event, once it is settled."""
    metered = MeteredClient(client)
    chains = DynamoDbChains(metered, table)
    for number in range(2):
        replicated(chains, number, range(lanes))
    (item,) = metered.items[1:]
    return size_of({**item, "state": {"S": "committed"}, "expires_at": {"N": "1800000000"}})
