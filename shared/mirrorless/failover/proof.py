"""The proof of each lane's newest run by its digest: what was replicated last stands on the target, byte for byte.

The whole history is what `mirrorless verify` proves; it takes minutes, and nobody waits for it in a failover.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mirrorless.failover.work import Done, FailoverWork
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.digest import digest
from mirrorless.record import Record
from mirrorless.run import Run

READ_SECONDS: Final = 60.0
"""For the runs that are read at a time."""

AT_ONCE_BYTES: Final = 48_000_000
"""Of runs that are read at a time: they are in memory."""


def prove(work: FailoverWork) -> Done:
    """Read the newest run of each lane, and compare. A digest that does not hold is named, and stops nothing.

    Raises:
        Retriable: the target or the store does not answer.
    """
    effects = work.effects
    heads = effects.chains.heads(work.lanes())
    runs = {
        (effects.remote_topic(lane.topic), lane.partition): head.run
        for lane, head in heads.items()
        if head.run is not None and head.run.spans and not head.in_doubt
    }
    proved, wrong = 0, dict[str, str]()
    for some in _portions(runs):
        wanted = {place: (run.spans[0].downstream, (run.last_downstream or 0) + 1) for place, run in some.items()}
        for place, records in effects.target_records.ranges(wanted, work.within(READ_SECONDS)):
            trouble = judge(some[place], records)
            proved += not trouble
            if trouble:
                wrong[str(some[place].lane)] = trouble
        work.keep()
    said = f"{proved:,} digests hold" if proved or wrong else "no lane has a record"
    return Done(
        said=said + (f", {len(wrong):,} do not" if wrong else ""),
        facts={"proved": proved, "wrong": wrong, "empty": len(heads) - len(runs)},
    )


def judge(run: Run, records: Sequence[Record]) -> str:
    """Why records are not those of a run; empty where they are. Others may stand between them. Pure."""
    claimed = {offset for span in run.spans for offset in range(span.downstream, span.downstream + span.length)}
    ours = [record for record in records if record.offset in claimed]
    if len(ours) < len(claimed):
        return f"{len(claimed) - len(ours):,} records of its newest run are not there: retention, compaction, or lost"
    return "" if digest(ours) == run.digest else "the digest of its newest run does not hold"


def _portions(runs: Mapping[TopicPartition, Run]) -> Iterator[dict[TopicPartition, Run]]:
    portion, size = dict[TopicPartition, Run](), 0
    for place, run in runs.items():
        if portion and size + run.bytes > AT_ONCE_BYTES:
            yield portion
            portion, size = {}, 0
        portion[place] = run
        size += run.bytes
    if portion:
        yield portion
