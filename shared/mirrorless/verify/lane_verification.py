"""The verification of one lane: the target is read once, in order; then the source, where the request wants it.

    survey  1 the target's first offset and its stable end
            2 the head of the chain: every record visible below that end had been prepared before
            3 wait until the stable end has passed what the head claims, or note that a transaction hides it
    prove   4 the target, window by window: digests; a wrong window is compared with the source's records at once
            5 the source, window by window: digests again, and records that no run covers
    join    6 the target once more, only if it has unclaimed records: they may be equal to other records of the lane

A long lane is surveyed once and proved slice by slice, see `slices`. Nothing is changed: no doubt is settled, no writer
is fenced. A lane may be live meanwhile: what arrives after step 2 is not verified. Pure but for its ports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass
from typing import Final

from mirrorless.jobs.copy_task import BatchLog, LaneLog, OffsetRange
from mirrorless.lane_state import Head
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.run import Link, Run
from mirrorless.verify.comparison import RecordAt
from mirrorless.verify.explanation import Explanation
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.joining import LanePart, joined, new_verdict
from mirrorless.verify.slice_proof import SliceProof
from mirrorless.verify.slices import WHOLE, SlicedLane, VerifiedSlice
from mirrorless.verify.source_side import SourceSide
from mirrorless.verify.task import Note, TargetLog, VerifiedSide, VerifyTask, as_written, but_its_own
from mirrorless.verify.windows import ChainEnd, first_claims, runs_of

HIDDEN_SECONDS: Final = 30.0
"""The wait for an open transaction: longer than its own timeout and the coordinator's interval."""

NOTHING: Final = "nothing of this lane has been replicated"


@dataclass(slots=True, kw_only=True)
class LaneVerification:
    """One lane, with the stores and logs that it is verified by."""

    task: VerifyTask
    chains: Chains
    ledger: LossLedger
    target: TargetLog
    source: LaneLog
    note: Note
    target_batches: BatchLog | None = None
    """The target by whole batches; None: runs of batches are compared by records."""
    source_batches: BatchLog | None = None
    """The source, the same."""
    pause: Callable[[float], None] = time.sleep

    def verify(self) -> LaneVerdict:
        """Verify the lane whole.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        survey = self.survey()
        lane = joined(self.task, survey, [self.prove(survey)])
        return lane.end(self.elsewhere(survey, *lane.strangers()))

    # Survey

    def survey(self, head: Head | None = None, bounds: OffsetRange | None = None) -> SlicedLane:
        """Read the bounds of the lane.

        Args:
            head: of the chain, where it was read already.
            bounds: of the target; where `head` is given, read before it.

        Raises:
            Retriable: the target or the store does not answer.
        """
        # In this order.
        bounds = bounds or self._side().bounds()
        head = head or self.chains.heads([self.task.lane])[self.task.lane]
        chain = ChainEnd.of(head)
        if head.run is None and head.generation == 0 and not head.expired:
            return SlicedLane(chain=chain, notes=(NOTHING,), empty=True)
        notes: list[str] = []
        claimed = self._last_claimed(head)
        end = log_end = bounds.next
        if claimed >= bounds.next:
            end, log_end = self._settled_end(claimed, notes)
        return SlicedLane(
            chain=chain,
            log_start=bounds.first,
            end=end,
            log_end=log_end,
            lowest=first_claims(self.chains, self.task.lane, head.generation),
            notes=tuple(notes),
        )

    def runs(self, survey: SlicedLane) -> Iterator[tuple[Run | None, bool]]:
        """Every run of the lane, and whether it is to be verified: what `cut_lane` needs."""
        newest = survey.chain.generation
        for run in runs_of(self.chains, self.task.lane, survey.chain):
            yield run, run is not None and self.task.wants(run, newest)

    def _side(self) -> VerifiedSide:
        settings, topic = self.task.settings, self.task.topic
        return VerifiedSide(
            self.target, settings.remote_topic(topic), self.task.partition, seen=but_its_own(settings, topic)
        )

    def _last_claimed(self, head: Head) -> int:
        """The last downstream offset of the newest run that is committed; -1 where that has no record."""
        newest: Link | None = head.run
        if head.in_doubt:
            newest = self.chains.at_or_before(self.task.lane, head.generation, head.position - 1)
        last = newest.last_downstream if isinstance(newest, Run) else None
        return -1 if last is None else last

    def _settled_end(self, claimed: int, notes: list[str]) -> tuple[int, int]:
        """The ends of the judged and of the readable part of the target.

        It is judged as far as it is claimed, once that is readable or known to be empty. The records behind an open
        transaction are hidden; behind the log's own end there are none.
        """
        side = self._side()
        end = time.monotonic() + HIDDEN_SECONDS
        place = f"{side.topic}-{side.partition}"
        stable, whole = side.settled(self.target)
        while stable <= claimed and not whole and time.monotonic() < end:
            self.pause(0.2)
            stable, whole = side.settled(self.target)
        if stable > claimed:
            return claimed + 1, claimed + 1
        if whole:
            notes.append(
                f"{place} ends at {stable}, and the map has records up to {claimed}: its end was lost (an unclean "
                "leader election), or it was deleted and created again"
            )
            return claimed + 1, stable
        notes.append(f"an open transaction hides what follows downstream offset {stable} of {place}")
        return stable, stable

    # Proof

    def prove(self, survey: SlicedLane, part: VerifiedSlice = WHOLE) -> LanePart:
        """Read one slice on the requested sides, and judge it.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        found = LanePart(number=part.number, verdict=new_verdict(self.task, survey))
        return found if survey.empty else self._proof(survey, part, found).run()

    def _proof(self, survey: SlicedLane, part: VerifiedSlice, found: LanePart) -> SliceProof:
        target, explanation = self._side(), Explanation(found.verdict)
        source = VerifiedSide(
            self.source, self.task.topic, self.task.partition, seen=as_written(self.task.settings, self.task.topic)
        )
        return SliceProof(
            task=self.task,
            chains=self.chains,
            survey=survey,
            part=part,
            found=found,
            target=target,
            batches=self.target_batches,
            note=self.note,
            explanation=explanation,
            beside=SourceSide(
                task=self.task,
                source=source,
                target=target,
                chains=self.chains,
                ledger=self.ledger,
                chain=survey.chain,
                part=part,
                verdict=found.verdict,
                found=explanation,
                batches=self.source_batches,
            ),
        )

    def elsewhere(
        self,
        survey: SlicedLane,
        contents: Collection[bytes],
        surplus: Container[int],
        within: OffsetRange | None = None,
    ) -> dict[bytes, int]:
        """The offsets in the lane of contents that also stand somewhere unclaimed.

        Args:
            survey: of the lane.
            contents: of unclaimed records.
            surplus: the downstream offsets of these.
            within: the part of the target to search; None for all of it.

        Raises:
            Retriable: the target does not answer.
        """
        found: dict[bytes, int] = {}
        if not contents:
            return found
        side = self._side()
        first, end = side.bounds().first, survey.log_end
        if within is not None:
            first, end = max(first, within.first), min(end, within.next)
        for chunk in side.read(OffsetRange(first, end)) if first < end else ():
            for record in chunk.records:
                seen = RecordAt.of(record)
                if seen.content in contents and record.offset not in surplus:
                    found.setdefault(seen.content, record.offset)
            self.note("look for originals", done=chunk.covered - first, total=end - first, records=0, bytes=0)
            if len(found) == len(contents):
                break
        return found
