"""The verdict on a lane, joined from the parts that were proved alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from mirrorless.verify.explanation import LEFT_OVERS, LeftOvers, judge_left_over
from mirrorless.verify.findings import Finding, FindingKind, LaneVerdict
from mirrorless.verify.slices import Row, SlicedLane
from mirrorless.verify.task import VerifyTask

GONE: Final[tuple[FindingKind, str]] = (
    "different",
    "the source does not have it any more, or has another record instead",
)

TOO_MANY = "there are more records without a partner than can be kept: some duplicated ones are reported as foreign"


class LanePart(msgspec.Struct, kw_only=True):
    """What was found in one slice of a lane."""

    number: int
    """Of its slice."""
    state: Literal["done", "failed"] = "done"
    error: str = ""
    verdict: LaneVerdict
    """On this part; its findings are those of the target."""
    beside: list[Finding] = []
    """Findings of the comparison with the source."""
    left: LeftOvers = msgspec.field(default_factory=LeftOvers)
    """Records without a partner, of the target's reading."""
    left_beside: LeftOvers = msgspec.field(default_factory=LeftOvers)
    """The same, of the source's."""
    left_count: int = 0
    """The number of both, where they are left out here: the run's folder has them."""
    before: Row | None = None
    """Runs at its beginning that are left to a slice of their own."""
    after: Row | None = None
    """The same, at its end."""


def new_verdict(task: VerifyTask, survey: SlicedLane) -> LaneVerdict:
    """The verdict on a lane before anything was read."""
    return LaneVerdict(
        lane=str(task.lane),
        topic=task.topic,
        partition=task.partition,
        generation=survey.chain.generation,
        position=survey.chain.position,
    )


@dataclass(slots=True)
class JoinedLane:
    """The parts of a lane, added one after the other in its order."""

    task: VerifyTask
    survey: SlicedLane
    verdict: LaneVerdict = field(init=False)
    _left: LeftOvers = field(default_factory=LeftOvers)
    _left_beside: LeftOvers = field(default_factory=LeftOvers)
    _beside: list[Finding] = field(default_factory=list)
    _failed: int = 0

    def __post_init__(self) -> None:
        """Begin with what the survey has seen."""
        self.verdict = new_verdict(self.task, self.survey)
        for note in self.survey.notes:
            self.verdict.note(note)

    def add(self, part: LanePart) -> None:
        """Add the next part of the lane."""
        verdict, other = self.verdict, part.verdict
        verdict.read += other.read
        verdict.bytes += other.bytes
        verdict.seconds += other.seconds
        verdict.cpu_seconds += other.cpu_seconds
        if part.state == "failed":
            self._failed += 1
            verdict.state, verdict.error = "failed", verdict.error or part.error
            return
        verdict.counts.add(other.counts)
        verdict.left_out += other.left_out
        verdict.unsorted |= other.unsorted
        for finding in other.findings:
            verdict.keep(finding)
        self._beside += part.beside
        for each in other.segments:
            if verdict.segments and verdict.segments[-1].next < each.first:
                verdict.mark(verdict.segments[-1].next, each.first, "not in the map")
            verdict.mark(each.first, each.next, each.kind)
        for note in other.notes:
            verdict.note(note)
        self._left.add(part.left)
        self._left_beside.add(part.left_beside)
        if len(self._left) > LEFT_OVERS:
            verdict.note(TOO_MANY)
            verdict.unsorted = True
            judge_left_over(verdict, self._left, {})
            self._left = LeftOvers()

    def strangers(self) -> tuple[set[bytes], set[int]]:
        """See `LeftOvers.strangers`."""
        return self._left.strangers()

    def end(self, known: Mapping[bytes, int]) -> LaneVerdict:
        """The verdict.

        Args:
            known: the downstream offset of each content of `strangers` that the lane has elsewhere.
        """
        verdict = self.verdict
        judge_left_over(verdict, self._left, known)
        for finding in self._beside:
            verdict.keep(finding)
        judge_left_over(verdict, self._left_beside, {}, stranger=GONE)
        if self._failed and self._failed < (pieces := len(self.survey.slices)):
            verdict.error = f"{self._failed} of {pieces} slices: {verdict.error}"
        return verdict


def joined(task: VerifyTask, survey: SlicedLane, parts: Sequence[LanePart]) -> JoinedLane:
    """The parts of a lane, in its order."""
    lane = JoinedLane(task, survey)
    for part in sorted(parts, key=lambda each: each.number):
        lane.add(part)
    return lane
