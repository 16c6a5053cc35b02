"""What an outsider did to a remote topic, and what the audit expects of its lanes after that.

An operator's reset divides the lane's log at the downstream offset where the target ended at that moment:

    older    [0, downstream)   records of the source, each at most once, in order, unchanged; where nothing but a known
                               truncation removed any (`kept`), all of those before the reset's upstream offset
    newest   [downstream, …)   the source's records from the reset's upstream offset on: each once, in order, unchanged,
                               and translated exactly

Where the source lost its end, a lane is reset twice if the mapping went on meanwhile; what is older is then of several
generations, each in order, and each record of the source below the newest one's is in one of them.

A lane without a reset is expected whole. Records that a truncation removed were read before and count as arrived, so
that a truncation hides no fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mirrorless.verify.comparison import Comparison, ComparisonFaults, LeftOver, RecordAt, align, compare, sort_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPoint:
    """Where a lane's reset divides its log."""

    upstream: int
    """The first upstream offset of the newest generation."""
    downstream: int
    """The end of the remote partition at the reset: what was written before lies below."""
    kept: bool
    """Whether the records below `downstream` are those that were replicated before the reset, without a loss."""
    earlier: tuple[int, ...] = ()
    """The same as `downstream` of the lane's earlier resets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanges:
    """What happened to one remote topic, by partition."""

    removed: Mapping[int, Sequence[RecordAt]] = field(default_factory=dict)
    """Visible records that a truncation removed, in offset order."""
    resets: Mapping[int, ResetPoint] = field(default_factory=dict)
    """The newest reset of each lane that has one."""
    lost: Mapping[int, Sequence[RecordAt]] = field(default_factory=dict)
    """Visible records of the source that were lost with the ends of its logs, in offset order."""
    copied: Mapping[int, int] = field(default_factory=dict)
    """Of the source's logs that lost their ends: the upstream offset up to which they had been copied."""
    foreign: frozenset[bytes] = frozenset()
    """The contents of records that another producer wrote to the remote topic: they are none of the flow's."""

    def arrived(self, partition: int, present: Sequence[RecordAt]) -> list[RecordAt]:
        """What is on the target now, and what was there until it was removed, without what others wrote.

        A broker that is killed soon after a truncation forgets the log's new start, and shows the records again.
        """
        first = present[0].offset if present else None
        removed = self.removed.get(partition, ())
        seen = (*(each for each in removed if first is None or each.offset < first), *present)
        return [each for each in seen if each.content not in self.foreign]


UNCHANGED = LogChanges()


def compare_lane(
    source: Sequence[RecordAt],
    target: Sequence[RecordAt],
    point: ResetPoint | None,
    lost: Sequence[RecordAt] = (),
    *,
    copied: int = 0,
) -> Comparison:
    """Compare a lane's visible records with those that arrived; `pairs` are those of the newest generation.

    Args:
        source: in offset order.
        target: the same.
        point: the lane's newest reset; None where the lane is expected whole.
        lost: what the source had from the reset's offset on before it lost that; it may be on the target, once.
        copied: the upstream offset below which it must be.
    """
    if point is None:
        return compare(source, target)
    newest = compare(
        [each for each in source if each.offset >= point.upstream],
        [each for each in target if each.offset >= point.downstream],
    )
    there = sorted([*(each for each in source if each.offset < point.upstream), *lost]) if lost else source
    faults = _older(there, target, (0, *point.earlier, point.downstream))
    uncopied = {each for each in lost if each.offset >= copied}
    missing = [each for each in faults.lost if point.kept and each.offset < point.upstream and each not in uncopied]
    return Comparison(
        lost=newest.lost + len(missing),
        duplicated=newest.duplicated + len(faults.duplicated),
        reordered=newest.reordered + len(faults.reordered),
        different=newest.different + len(faults.different),
        pairs=newest.pairs,
    )


def _older(there: Sequence[RecordAt], target: Sequence[RecordAt], bounds: Sequence[int]) -> ComparisonFaults:
    """The faults of what is older than the newest generation. Args: bounds: downstream, of each older one."""
    missing, surplus, seen = list[LeftOver](), list[LeftOver](), set[RecordAt]()
    for first, following in pairwise(bounds):
        found = align(there, [each for each in target if first <= each.offset < following])
        surplus += found.surplus
        surplus += [LeftOver(0, arrived) for record, arrived in found.pairs if record in seen]  # a generation has it
        seen.update(record for record, _ in found.pairs)
        missing = [each for each in found.missing if each.seen not in seen]
    return sort_out(missing, surplus, {each.content for each in there})
