"""The verdict on a lane: findings, each of one kind; counts; and the parts of the lane that are proved.

A finding is a fault, for the operator to examine, or a record of another producer. Everything else that is not proved
has a category of its own: records that retention deleted, that are in doubt, that cannot be proved. None of these is
called missing.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import msgspec

from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.reports.report import Segment

CopyFault = Literal["missing", "duplicated", "reordered", "different", "misplaced"]
FindingKind = CopyFault | Literal["foreign"]
"""
missing     the map has it on the target, or the source has it: and it is not there
duplicated  on the target once more than it should be
reordered   on the target, and not where it belongs
different   on the target with another content
misplaced   on the target and right, but the map has another offset
foreign     on the target and not of this flow: no run claims it, and nothing of the lane is equal to it. No fault of
            the copy
"""

KINDS: tuple[CopyFault, ...] = get_args(CopyFault)

SHOWN = 50
"""Findings of one lane in the report; the run's folder has the others."""

KEPT = 100_000
"""Findings of one part of a lane that are kept in all; more are counted."""

SHOWN_AT = 10
"""Copies of one rule and lane that show a value which the rule masks elsewhere, by place; more are counted."""

SEGMENTS = 500
"""Parts of one lane that a plot shows; the rest is one part."""


class HasOffset(Protocol):
    """A record, or what is known of one."""

    @property
    def offset(self) -> int:
        """Its offset."""
        ...


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: of a record, or of several in a row."""

    kind: FindingKind
    generation: int
    upstream: OffsetRange | None
    """None for a record that the source never had."""
    downstream: OffsetRange | None
    """None where there is nothing on the target."""
    records: int
    what: str
    """The difference in words; never a record's content."""


class RuleUse(msgspec.Struct, kw_only=True):
    """What a rule has done to a lane."""

    generation: int
    """The newest one in which it was in force."""
    first: int
    """Upstream, in that generation."""
    next: int
    """Upstream: the end of its last run; runs of other rules may lie between."""
    runs: int = 0
    copied: int = 0
    filtered: int = 0
    left_out: int = 0
    """Records that it could not be applied to, or that the operator ordered to leave out: they are in the ledger."""
    searched: int = 0
    """Copies that were searched for values that the rule masks or drops."""
    showing: int = 0
    """Those that have such a value in another place."""
    shown_at: list[int] = []
    """The upstream offsets of the first of these."""

    def add(self, other: RuleUse) -> None:
        """Add another part's, or another lane's."""
        if other.generation == self.generation:
            self.first, self.next = min(self.first, other.first), max(self.next, other.next)
        elif other.generation > self.generation:
            self.generation, self.first, self.next = other.generation, other.first, other.next
        for name in ("runs", "copied", "filtered", "left_out", "searched", "showing"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.shown_at = sorted(self.shown_at + other.shown_at)[:SHOWN_AT]

    def look(self, upstream: int, *, shows: bool) -> None:
        """Count a copy that was searched."""
        self.searched += 1
        if shows:
            self.showing += 1
            if len(self.shown_at) < SHOWN_AT:
                self.shown_at.append(upstream)


class Counts(msgspec.Struct, kw_only=True):
    """Counts of records, unless noted otherwise."""

    records: int = 0
    """On the target by the chosen part of the map."""
    runs: int = 0
    proved: int = 0
    """By their run's digest, or each beside the source's."""
    missing: int = 0
    duplicated: int = 0
    reordered: int = 0
    different: int = 0
    misplaced: int = 0
    foreign: int = 0
    """On the target, and not written by this flow."""
    expired: int = 0
    """The target's log begins above them: retention, or an order to delete."""
    in_doubt: int = 0
    """Of a run that is only prepared: not decided yet."""
    not_provable: int = 0
    compacted: int = 0
    """Of runs that compaction has thinned out: judged by the latest value of each key."""
    before_map: int = 0
    """On the target, between runs whose links have expired."""
    compared: int = 0
    """Of runs that were proved against the source as well."""
    source_gone: int = 0
    """Of runs that the source does not have any more, so that only the digest proves them."""
    rule_gone: int = 0
    """Of runs whose rule, or a key of it, is gone, so that only the digest proves them."""
    known_losses: int = 0
    """On the source, not on the target, and in the loss ledger."""
    keys: int = 0
    """Of a compacted topic, whose latest values were compared."""
    keys_pending: int = 0
    """Whose latest value is not replicated yet."""

    def add(self, other: Counts) -> None:
        """Add another lane's."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def found(self) -> int:
        """The number of wrong records."""
        return sum(getattr(self, kind) for kind in KINDS)


class LaneVerdict(msgspec.Struct, kw_only=True):
    """The verdict on one lane."""

    lane: str
    topic: str
    partition: int
    state: Literal["done", "failed"] = "done"
    error: str = ""
    counts: Counts = msgspec.field(default_factory=Counts)
    findings: list[Finding] = msgspec.field(default_factory=list)
    left_out: int = 0
    """Findings that are counted, and are not among `findings`."""
    segments: list[Segment] = msgspec.field(default_factory=list)
    """Of the newest generation, by upstream offset."""
    rules: dict[str, RuleUse] = msgspec.field(default_factory=dict)
    """By id, in hex; an empty id for runs without a rule, where the flow has rules."""
    notes: list[str] = msgspec.field(default_factory=list)
    unsorted: bool = False
    """Whether some records that are said to be foreign may be duplicates: not all could be searched for."""
    generation: int = 0
    position: int = 0
    """Upstream: the end of the verified part."""
    bytes: int = 0
    """Of keys and values that were read."""
    read: int = 0
    """Records that were read, on both sides."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def find(self, finding: Finding) -> None:
        """Count a finding, and keep it."""
        kind = finding.kind
        setattr(self.counts, kind, getattr(self.counts, kind) + finding.records)
        self.keep(finding)

    def find_one(self, kind: FindingKind, source: HasOffset | None, target: HasOffset | None, what: str) -> None:
        """Count a finding of one record, and keep it. Args: source, target: the record there; None where it is not."""
        self.find(
            Finding(
                kind=kind,
                generation=self.generation,
                upstream=None if source is None else OffsetRange(source.offset, source.offset + 1),
                downstream=None if target is None else OffsetRange(target.offset, target.offset + 1),
                records=1,
                what=what,
            )
        )

    def keep(self, finding: Finding) -> None:
        """Keep a finding that is counted, or join it to the one before, up to `KEPT`."""
        if self.findings and (joined := _joined(self.findings[-1], finding)):
            self.findings[-1] = joined
        elif len(self.findings) < KEPT:
            self.findings.append(finding)
        else:
            self.left_out += 1

    def add(self, other: LaneVerdict) -> None:
        """Add the verdict on another part of the lane; parts of its first reading come in order."""
        self.read += other.read
        self.bytes += other.bytes
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        if other.state == "failed":
            self.state, self.error = "failed", self.error or other.error
            return
        self.counts.add(other.counts)
        for rule, use in other.rules.items():
            self._add_rule(rule, use)
        self.left_out += other.left_out
        self.unsorted |= other.unsorted
        for finding in other.findings:
            self.keep(finding)
        for each in other.segments:
            if self.segments and self.segments[-1].next < each.first:
                self.mark(self.segments[-1].next, each.first, "not in the map")
            self.mark(each.first, each.next, each.kind)
        for note in other.notes:
            self.note(note)

    def show(self, most: int = SHOWN) -> None:
        """Leave out all findings but the first ones."""
        self.left_out += len(self.findings[most:])
        del self.findings[most:]

    def mark(self, first: int, following: int, kind: str) -> None:
        """Mark a part of the lane with its kind; parts come in order."""
        if first >= following:
            return
        if self.segments and self.segments[-1].kind == kind and self.segments[-1].next == first:
            first = self.segments.pop().first
        elif len(self.segments) >= SEGMENTS:
            first, kind = self.segments.pop().first, "more"
        self.segments.append(Segment(first=first, next=following, kind=kind))

    def count_rule(self, run: Run) -> None:
        """Count a run of a rule, or of none where the flow has rules."""
        use = RuleUse(
            generation=run.generation,
            first=run.position,
            next=run.next,
            runs=1,
            copied=run.records,
            filtered=sum(following - first for first, following in run.filtered),
            left_out=len(run.quarantined),
        )
        self._add_rule(run.rule.hex(), use)

    def _add_rule(self, rule: str, use: RuleUse) -> None:
        if rule in self.rules:
            self.rules[rule].add(use)
        else:
            self.rules[rule] = use

    def note(self, text: str) -> None:
        """Add a note for the reader, once."""
        if text not in self.notes:
            self.notes.append(text)


def _joined(one: Finding, other: Finding) -> Finding | None:
    """Join two findings, where they are the same fault of records in a row."""
    if (one.kind, one.generation, one.what) != (other.kind, other.generation, other.what):
        return None
    upstream, downstream = _row(one.upstream, other.upstream), _row(one.downstream, other.downstream)
    if (upstream is None) != (one.upstream is None) or (downstream is None) != (one.downstream is None):
        return None
    if upstream is None and downstream is None:
        return None
    return Finding(
        kind=one.kind,
        generation=one.generation,
        upstream=upstream,
        downstream=downstream,
        records=one.records + other.records,
        what=one.what,
    )


def _row(one: OffsetRange | None, other: OffsetRange | None) -> OffsetRange | None:
    if one is None or other is None or one.next != other.first:
        return None
    return OffsetRange(one.first, other.next)
