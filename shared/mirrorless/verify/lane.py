"""The verification of one lane: its survey, the parts of its two passes, and their verdict.

    survey   1 the target's first offset and its stable end
             2 the head of the chain: every record visible below that end had been prepared before
             3 wait until the stable end has passed what the head claims, or note that a transaction hides it
    first    4 section by section, every run alone: what holds is proved, what does not is left open
    second   5 portion by portion, open runs with their neighbours, beside the source
    search   6 the target once more, only if it has unclaimed records: they may be equal to other records of the lane

A long lane is surveyed once, and its parts are done by any task. Nothing is changed: no doubt is settled, no writer is
fenced. A lane may be live meanwhile: what arrives after step 2 is not verified. Pure but for its ports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.chain.run import Link, Run
from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import BatchLog, Chunk, LaneLog, OffsetRange
from mirrorless.lanes.taken_over import was_taken_over
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.records.record import Record
from mirrorless.verify.compacted_keys import Expiry, every_key
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.parts import (
    WHOLE,
    JoinedLane,
    LaneKeys,
    LanePart,
    LaneSection,
    OpenPortion,
    Search,
    SurveyedLane,
    cut_lane,
    new_verdict,
    portions_of,
)
from mirrorless.verify.passes import LanePass
from mirrorless.verify.run_ranges import ChainEnd, first_claims, of_batches, runs_of
from mirrorless.verify.source_copies import RuleById, SourceCopies
from mirrorless.verify.task import Note, TargetLog, VerifyTask, but_its_own
from mirrorless.verify.walk import WalkedSide, patience

HIDDEN_SECONDS: Final = 30.0
"""The wait for an open transaction: longer than its own timeout and the coordinator's interval."""

TAKEN_OVER: Final = "taken over from MirrorMaker 2: what that copied has no run, and is not proved"

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
    rules: RuleById
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
        lane, proved = JoinedLane(self.task, survey), self.do(survey, WHOLE)
        lane.add(proved)
        for portion in portions_of([proved]):
            lane.add(self.do(survey, portion))
        return lane.end(dict(pair for search in lane.searches() for pair in self.do(survey, search).known))

    # Survey

    def survey(self, *, most: int | None = None) -> SurveyedLane:
        """Read the bounds of the lane.

        Args:
            most: bytes of a section; None: it is one.

        Raises:
            Retriable: the target or the store does not answer.
        """
        # In this order.
        bounds = self._target().bounds()
        head = self.chains.heads([self.task.lane])[self.task.lane]
        chain = ChainEnd.of(head)
        if head.run is None and head.generation == 0 and not head.expired:
            return SurveyedLane(chain=chain, notes=(NOTHING,), empty=True)
        notes = (
            [TAKEN_OVER] if head.generation and was_taken_over(self.chains.at_or_before(self.task.lane, 0, 0)) else []
        )
        claimed = self._last_claimed(head)
        end = log_end = bounds.next
        if claimed >= bounds.next:
            end, log_end = self._settled_end(claimed, notes)
        survey = SurveyedLane(
            chain=chain,
            log_start=bounds.first,
            end=end,
            log_end=log_end,
            lowest=first_claims(self.chains, self.task.lane, head.generation),
            notes=tuple(notes),
        )
        if most is None:
            return survey
        runs = runs_of(self.chains, self.task.lane, chain)
        wanted = (run if run is not None and self.task.wants(run, chain.generation) else None for run in runs)
        return replace(survey, sections=cut_lane(wanted, survey.run_ranges(None), most=most))

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
        side = self._target()
        end = time.monotonic() + HIDDEN_SECONDS
        place = f"{side.topic}-{side.partition}"
        stable, whole = self._stable(side)
        while stable <= claimed and not whole and time.monotonic() < end:
            self.pause(0.2)
            stable, whole = self._stable(side)
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

    def _stable(self, side: WalkedSide) -> tuple[int, bool]:
        """The stable end, and whether nothing at all lies behind it: not even what a transaction hides."""
        stable = side.bounds().next
        return stable, self.target.end(side.topic, side.partition, patience) == stable

    # Parts

    def do(self, survey: SurveyedLane, part: LaneSection | OpenPortion | Search) -> LanePart:
        """Read one part on the requested sides, and judge it.

        Raises:
            Retriable: the target or the store does not answer; or the source, where the request wants it.
        """
        found = LanePart(name=part.name, verdict=new_verdict(self.task, survey.chain))
        if survey.empty:
            return found
        copies = SourceCopies(
            origin=self.task.settings.origin_rule(self.task.topic),
            partition=self.task.partition,
            rules=self.rules,
            verdict=found.verdict,
            looks=isinstance(part, LaneSection),
        )
        return LanePass(
            task=self.task,
            chains=self.chains,
            ledger=self.ledger,
            survey=survey,
            target=self._target(),
            source=self._source(copies),
            copies=copies,
            found=found,
            note=self.note,
        ).run(part)

    # The latest value of each key

    def keys(self, part: LaneKeys) -> LanePart:
        """Compare the latest record of each key, all of both sides.

        Raises:
            Retriable: a cluster or the store does not answer, or a transaction hides the end of the target.
        """
        lane, verdict = self.task.lane, new_verdict(self.task, ChainEnd.of(NEW_LANE))
        target = self._target()
        ours = WalkedSide(log=self.source, topic=self.task.topic, partition=self.task.partition)
        position, end, behind = 0, 0, False

        def read(chunks: Iterable[Chunk], *, total: int) -> Iterator[list[Record]]:
            for chunk in chunks:
                verdict.read += len(chunk.records)
                self.note("compare keys", done=chunk.covered, total=total, records=verdict.read, bytes=0)
                yield chunk.records

        def theirs() -> Iterator[list[Record]]:
            nonlocal position, end
            end = ours.bounds().next
            head = self.chains.heads([lane])[lane]
            position, verdict.generation, log = head.position, head.generation, target.bounds()
            if log.next <= self._last_claimed(head):
                raise Retriable("an open transaction hides the end of the remote partition", where=str(lane))
            yield from read(target.read(log), total=log.next)

        def originals() -> Iterator[list[Record]]:
            nonlocal behind
            log, behind = ours.bounds(), False
            for records in read(ours.read(log), total=log.next):
                behind = behind or any(position <= each.offset < end for each in records)
                yield records
            # A newer record may have replaced a key's record during the reading: it is below the end as it is by now.
            yield from read(ours.read(OffsetRange(log.next, ours.bounds().next)), total=log.next)

        for held in every_key(theirs, originals):
            expiry = Expiry(source=part.source_expires, target=part.target_expires, behind=behind)
            held.judge(verdict, expiry, position)
        return LanePart(name=part.name, verdict=verdict)

    def _target(self) -> WalkedSide:
        settings, topic = self.task.settings, self.task.topic
        return WalkedSide(
            log=self.target,
            topic=settings.remote_topic(topic),
            partition=self.task.partition,
            batches=self.target_batches,
            compacts=self.task.target_compacts,
            seen=but_its_own(settings, topic),
        )

    def _source(self, copies: SourceCopies) -> WalkedSide:
        return WalkedSide(
            log=self.source,
            topic=self.task.topic,
            partition=self.task.partition,
            batches=self.source_batches,
            compacts=self.task.source_compacts,
            by_batches=lambda run: of_batches(run) and run.passed_bytes == run.bytes,
            seen=copies,
        )
