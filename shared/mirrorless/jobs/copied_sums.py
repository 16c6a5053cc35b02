"""The sums of a job's ranges in the chain of a lane: what was copied, whichever attempt wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lane import Lane
from mirrorless.ports.stores import Chains
from mirrorless.run import Run

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
