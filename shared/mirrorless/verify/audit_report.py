"""The summary of an audit: totals for programs, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirrorless.reports.format import numbered
from mirrorless.reports.report import Figure, Report, ReportSection, Table
from mirrorless.verify.audit import AuditCounts, AuditVerdict
from mirrorless.verify.findings import KINDS, FindingKind
from mirrorless.verify.summary import findings_section

FOUND: Final[tuple[FindingKind, ...]] = (*(kind for kind in KINDS if kind != "misplaced"), "foreign")
"""What an audit finds."""

UNPROVED: Final = (
    ("pending", "on the source, and not on the target yet"),
    ("expired", "on the source, older than the target's log"),
    ("source_gone", "on the target, older than the source's log"),
    ("keys_pending", "keys whose latest value is not on the target yet"),
    ("not_provable", "keys that the source may have removed since they were copied"),
)
"""Counts of what could not be compared, and why."""

TOTALS: Final = ("records", "proved", *FOUND, *(name for name, _ in UNPROVED), "keys")


def found_of(counts: AuditCounts) -> int:
    """The number of records that are wrong."""
    return sum(getattr(counts, kind) for kind in FOUND)


def wrong_of(counts: AuditCounts) -> str:
    """What is wrong, in words; empty for nothing."""
    return ", ".join(f"{getattr(counts, kind):,} {kind}" for kind in FOUND if getattr(counts, kind))


def total_of(verdicts: Sequence[AuditVerdict]) -> AuditCounts:
    """The sum over all partitions."""
    total = AuditCounts()
    for verdict in verdicts:
        total.add(verdict.counts)
    return total


def is_empty_copy(verdict: AuditVerdict) -> bool:
    """Whether there was something to compare, and nothing could be."""
    counts = verdict.counts
    something = counts.records or counts.pending or counts.expired or counts.keys
    return bool(something) and not counts.proved and counts.keys == counts.keys_pending


def is_true_copy(verdicts: Sequence[AuditVerdict]) -> bool:
    """Whether every partition was compared, and nothing is wrong."""
    return not any(
        found_of(each.counts) or each.state == "failed" or each.unsorted or is_empty_copy(each) for each in verdicts
    )


def audit_totals(verdicts: Sequence[AuditVerdict], *, seconds: float) -> dict[str, int | float]:
    """The totals, for programs."""
    counts, read = total_of(verdicts), sum(each.read for each in verdicts)
    return {name: getattr(counts, name) for name in TOTALS} | {
        "partitions": len(verdicts),
        "failed": sum(each.state == "failed" for each in verdicts),
        "read": read,
        "bytes": sum(each.bytes for each in verdicts),
        "seconds": round(seconds, 3),
        "records_per_second": round(read / seconds) if seconds else 0,
        "cpu_seconds": round(sum(each.cpu_seconds for each in verdicts), 3),
    }


def audit_sentence(verdicts: Sequence[AuditVerdict]) -> str:
    """The result in words."""
    counts = total_of(verdicts)
    failed = sum(each.state == "failed" for each in verdicts)
    parts = [f"{failed} of {len(verdicts)} partitions could not be read"] if failed else []
    if empty := [each.lane for each in verdicts if is_empty_copy(each) and each.state == "done"]:
        parts.append(f"nothing of {', '.join(empty[:3])}{' and others' if empty[3:] else ''} could be compared")
    wrong = wrong_of(counts)
    right = [f"{numbered(counts.proved, 'record')} in order"] if counts.proved or not counts.keys else []
    right += [f"the latest values of {numbered(counts.keys, 'key')}"] if counts.keys else []
    parts.append((f"{wrong}, beside " if wrong else "nothing is wrong: ") + " and ".join(right))
    if counts.pending:
        parts.append(f"{counts.pending:,} not there yet")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def audit_report(verdicts: Sequence[AuditVerdict], *, title: str, seconds: float, made_at: int) -> Report:
    """The report. Args: title: what was audited. made_at: ms since the epoch."""
    counts = total_of(verdicts)
    figures = (
        Figure(name="records on the target", value=counts.records),
        Figure(name="in order", value=counts.proved, tone="good" if counts.proved else "quiet"),
        *(Figure(name=kind, value=getattr(counts, kind), tone="bad") for kind in FOUND if getattr(counts, kind)),
        *((Figure(name="keys compared", value=counts.keys),) if counts.keys else ()),
        Figure(name="partitions", value=len(verdicts)),
        Figure(name="took", value=round(seconds, 1), unit="s"),
    )
    unproved = Table.of(
        "what could not be compared",
        [(name, why) for name, why in UNPROVED if getattr(counts, name)],
        {"records": lambda each: getattr(counts, each[0]), "why": lambda each: each[1]},
    )
    partitions = Table.of(
        "by partition",
        sorted(verdicts, key=lambda each: (each.state != "failed", not found_of(each.counts))),
        {
            "partition": lambda each: each.lane,
            "records": lambda each: each.counts.records,
            "in order": lambda each: each.counts.proved,
            "keys": lambda each: each.counts.keys,
            "wrong": lambda each: found_of(each.counts),
            "not there yet": lambda each: each.counts.pending + each.counts.keys_pending,
            "": lambda each: each.error or "; ".join(each.notes),
        },
        tone=lambda each: "bad" if found_of(each.counts) or each.state == "failed" else "",
    )
    sections = (
        findings_section(verdicts, FOUND),
        ReportSection(heading="Not compared", tables=(unproved,)) if unproved.rows else None,
        ReportSection(heading="Partitions", tables=(partitions,)),
    )
    return Report(
        title=title,
        verdict=audit_sentence(verdicts),
        tone="good" if is_true_copy(verdicts) else "bad",
        figures=figures,
        sections=tuple(each for each in sections if each is not None),
        made_at=made_at,
    )
