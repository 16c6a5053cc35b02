"""The task of verifying a lane, and its parts, each done alone by any task, and the verdict that they are joined to.

    runs       | A | B | C | D | E | F |      each run has its own digest
    sections   |   0   |   1   |   2   |      first pass: every run judged alone; B and C are wrong: they are left open
    portions       | B | C |                  second pass: open runs that touch are compared as one, beside the source

All parts of a lane go by one survey: the log's bounds and the chain's end as they were read once. So the verdict on a
lane does not depend on where it was cut. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import LaneLog, OffsetRange
from mirrorless.jobs.request import Bound
from mirrorless.verify.explanation import LEFT_OVERS, LeftOvers, judge_left_over
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.run_ranges import Border, ChainEnd, LinkKey, TargetRanges, chosen, key_of
from mirrorless.verify.walk import Judged, SeenAs


class VerifyTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a job that is one lane, as it is sent to a task."""

    settings: FlowSettings
    topic: str
    partition: int
    run_id: str
    start: Bound = Bound("earliest")
    end: Bound = Bound("latest")
    against_source: bool = False
    target_compacts: bool = False
    source_compacts: bool = False
    source_silent: str = ""
    """Why the source did not answer the job: then no lane waits for it again. Empty where it answered."""
    files: str = ""
    """URI or path of the run's folder, for the progress; empty for none."""

    @property
    def lane(self) -> Lane:
        """The lane of the chain."""
        return Lane(FlowName.parse(self.settings.flow), self.topic, self.partition)

    def wants(self, run: Run, newest: int) -> bool:
        """Whether a run is to be verified."""
        return chosen(run, self.start, self.end, newest=newest)


def but_its_own(settings: FlowSettings, topic: str) -> SeenAs | None:
    """The target's records without those that were produced there; None where flows mark nothing."""
    rule = settings.origin_rule(topic)
    return None if rule is None else lambda _, records: [record for record in records if rule.is_copy(record)]


class Note(Protocol):
    """Reports the progress of a lane."""

    def __call__(self, phase: str, *, done: int, total: int, records: int, bytes: int) -> None:  # noqa: A002 -- as in LaneProgress
        """Report offsets read, of all; records proved; bytes read."""
        ...


class TargetLog(LaneLog, Protocol):
    """A partition's log with the end that readers do not see."""

    def end(self, topic: str, partition: int, deadline: Deadline) -> int:
        """The offset that the next record will have; transactions may hide what lies before it.

        Raises:
            Retriable: the cluster does not answer.
        """
        ...


SECTION_BYTES: Final = 1_000_000_000
"""Of keys and values in one section, about: runs are whole."""

LEAST_BYTES: Final = 64_000_000
"""A smaller section is not worth its own requests."""

TOGETHER: Final = 60_000
"""Records of open runs that are compared as one."""


class LaneSection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A row of runs of one lane, and what is between them: a part of the first pass."""

    number: int = 0
    begin: Border | None = None
    """The border to begin behind; None for the lane's beginning."""
    upto: LinkKey | None = None
    """The last run; None for the lane's end, and what follows it."""
    end: int | None = None
    """Downstream: where it ends; None for the end of the readable log."""
    position: int | None = None
    """Upstream: behind its last run; None for the lane's position."""
    bytes: int = 0
    """Of keys and values, by its runs."""

    @property
    def name(self) -> str:
        """Of the part, unique in its lane."""
        return str(self.number)


WHOLE: Final = LaneSection()


class OpenRange(msgspec.Struct, frozen=True, array_like=True):
    """A range that the first pass has not settled: it is wrong, or has records that no run claims."""

    run: LinkKey | None
    first: int
    next: int
    hole: bool
    wrong: bool
    """Whether its run is, and not just what is beside it."""
    records: int
    bytes: int
    """Of its run, or of what no run claims."""

    @classmethod
    def of(cls, judged: Judged, *, wrong: bool) -> OpenRange:
        """What was judged, to be read again."""
        run_range, run = judged.run_range, judged.run_range.run
        if run is not None:
            key, records, size = key_of(run), run.records, run.bytes
        else:
            key, records = None, len(judged.unclaimed)
            size = sum(len(each.key or b"") + len(each.value or b"") for each in judged.unclaimed)
        return cls(key, run_range.first, run_range.next, run_range.hole, wrong, records, size)

    def follows(self, other: OpenRange) -> bool:
        """Whether it may have records of a wrong range before it."""
        one_chain = self.run is None or other.run is None or self.run[0] == other.run[0]
        return other.wrong and one_chain and self.first == other.next


class OpenPortion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Open ranges of one lane: a part of the second pass."""

    number: int
    opened: list[OpenRange]
    bytes: int = 0

    @property
    def name(self) -> str:
        """See `LaneSection`."""
        return f"open-{self.number}"


class Search(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A part of the target in which the contents of unclaimed records are searched for."""

    number: int
    contents: set[bytes]
    surplus: set[int]
    """The downstream offsets of these."""
    within: OffsetRange

    @property
    def name(self) -> str:
        """See `LaneSection`."""
        return f"search-{self.number}"


class LaneKeys(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The latest values of a compacted lane's keys, on both sides."""

    source_expires: bool
    """Whether it also deletes old records by time or size."""
    target_expires: bool

    @property
    def name(self) -> str:
        """See `LaneSection`."""
        return "keys"


class SurveyedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a lane as they were read once, for all of its parts."""

    chain: ChainEnd
    log_start: int = 0
    """The target's first offset."""
    end: int = 0
    """Downstream: below which the target is judged."""
    log_end: int = 0
    """Downstream: the end of the readable part of the target."""
    lowest: dict[int, int] = {}
    """See `first_claims`."""
    notes: tuple[str, ...] = ()
    empty: bool = False
    """Whether nothing of the lane has been replicated."""
    sections: tuple[LaneSection, ...] = (WHOLE,)

    def run_ranges(self, begin: Border | None) -> TargetRanges:
        """The ranges of the target from a border on."""
        if begin is None:
            return TargetRanges(start=self.log_start, lowest=self.lowest, at=self.log_start)
        return TargetRanges(start=self.log_start, lowest=self.lowest, at=begin.at, hole=begin.hole, begun=True)

    def reach(self, part: LaneSection) -> OffsetRange:
        """The downstream offsets of a section, in which contents are searched for; the first has what lies before."""
        begin = 0 if part.begin is None else part.begin.at
        return OffsetRange(begin, self.log_end if part.end is None else min(part.end, self.log_end))


class LanePart(msgspec.Struct, kw_only=True):
    """What was found in one part of a lane."""

    name: str
    verdict: LaneVerdict
    """On this part."""
    opened: list[OpenRange] = []
    """Of the first pass: what is left to the second."""
    left: LeftOvers = msgspec.field(default_factory=LeftOvers)
    """Records without a partner."""
    left_count: int = 0
    """Their number, also where they are left out here."""
    survey: SurveyedLane | None = None
    """Of a survey, with the sections of the lane."""
    known: list[tuple[bytes, int]] = []
    """Of a search: contents, and where they stand."""


def new_verdict(task: VerifyTask, chain: ChainEnd) -> LaneVerdict:
    """The verdict on a lane before anything was read."""
    return LaneVerdict(
        lane=str(task.lane),
        topic=task.topic,
        partition=task.partition,
        generation=chain.generation,
        position=chain.position,
    )


def section_bytes(whole: int, slots: int) -> int:
    """The size of a section: 1 GB, or less where cores would have nothing to do at the end.

    Args:
        whole: bytes of all lanes.
        slots: tasks at a time.
    """
    return min(SECTION_BYTES, max(LEAST_BYTES, whole // (4 * slots)))


def cut_lane(runs: Iterable[Run | None], run_ranges: TargetRanges, *, most: int) -> tuple[LaneSection, ...]:
    """Cut a lane at borders of runs, behind the first run that is to be read.

    Args:
        runs: see `runs_of`; None as well for those that are not to be verified.
        run_ranges: of the target, from the lane's beginning.
        most: bytes of a section: it ends with the first run that reaches this.

    Returns:
        one section or more, in order.
    """
    sections: list[LaneSection] = []
    begin: Border | None = None
    border: Border | None = None
    size = 0
    for run in runs:
        # Behind the last run of a generation a reset may stand at that run's own position.
        if run is not None and border is not None and size >= most and run.generation == border.generation:
            sections.append(_section(len(sections), begin, border, size))
            begin, border, size = border, None, 0
        for _ in run_ranges.of(run):
            pass  # the state behind them is wanted
        if run is not None and run_ranges.begun:
            size += run.bytes
            border = Border(
                generation=run.generation,
                position=run.position,
                expected=(run.generation, run.next),
                at=run_ranges.at,
                hole=run_ranges.hole,
            )
        # Links that are gone behind a border are met again by whoever begins there.
    sections.append(_section(len(sections), begin, None, size))
    return tuple(sections)


def _section(number: int, begin: Border | None, border: Border | None, size: int) -> LaneSection:
    return LaneSection(
        number=number,
        begin=begin,
        upto=None if border is None else (border.generation, border.position),
        end=None if border is None else border.at,
        position=None if border is None else border.expected[1],
        bytes=size,
    )


def rows_of(opened: Iterable[OpenRange]) -> Iterator[list[OpenRange]]:
    """Open ranges that are to be compared as one."""
    row: list[OpenRange] = []
    records = 0
    for each in opened:
        if row and (records > TOGETHER or not each.follows(row[-1])):
            yield row
            row, records = [], 0
        row.append(each)
        records += each.records
    if row:
        yield row


def portions_of(parts: Iterable[LanePart], *, most: int = SECTION_BYTES) -> Iterator[OpenPortion]:
    """The second pass of a lane in portions.

    Args:
        parts: all of its first pass, in order.
        most: bytes of a portion: it ends with the first row that reaches this.
    """
    number, some, size = 0, list[OpenRange](), 0
    for row in rows_of(each for part in parts for each in part.opened):
        some += row
        size += sum(each.bytes for each in row)
        if size >= most:
            yield OpenPortion(number=number, opened=some, bytes=size)
            number, some, size = number + 1, [], 0
    if some:
        yield OpenPortion(number=number, opened=some, bytes=size)


TOO_MANY: Final = (
    "there are more records without a partner than can be kept: some duplicated ones are reported as foreign"
)


@dataclass(slots=True)
class JoinedLane:
    """The parts of a lane, added one after the other: those of the first pass, then those of the second."""

    task: VerifyTask
    survey: SurveyedLane
    verdict: LaneVerdict = field(init=False)
    _left: LeftOvers = field(default_factory=LeftOvers)
    _parts: int = 0
    _failed: int = 0

    def __post_init__(self) -> None:
        """Begin with what the survey has seen."""
        self.verdict = new_verdict(self.task, self.survey.chain)
        for note in self.survey.notes:
            self.verdict.note(note)

    def add(self, part: LanePart) -> None:
        """Add the next part of the lane."""
        self.verdict.add(part.verdict)
        self._parts += 1
        self._failed += part.verdict.state == "failed"
        self._left.add(part.left)
        if len(self._left) > LEFT_OVERS:
            self.verdict.note(TOO_MANY)
            self.verdict.unsorted = True
            judge_left_over(self.verdict, self._left, {})
            self._left = LeftOvers()

    def searches(self) -> list[Search]:
        """Where to search for the contents of unclaimed records: section by section, or nowhere."""
        contents, surplus = self._left.strangers()
        return [
            Search(number=each.number, contents=contents, surplus=surplus, within=self.survey.reach(each))
            for each in (self.survey.sections if contents else ())
        ]

    def end(self, known: Mapping[bytes, int]) -> LaneVerdict:
        """The verdict.

        Args:
            known: the downstream offset of each content of `searches` that the lane has elsewhere.
        """
        verdict = self.verdict
        judge_left_over(verdict, self._left, known)
        if self._failed and self._parts > 1:
            verdict.error = f"{self._failed} of {self._parts} parts: {verdict.error}"
        return verdict
