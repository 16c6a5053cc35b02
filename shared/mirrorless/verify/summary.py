"""The summary of a verification: totals for programs, and the report, with what an auditor asks about rules.

Which rules were in force, from where on, what they did, and what they miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.reports.report import Cell, Figure, LanePlot, Report, ReportSection, Table, Tone
from mirrorless.transforms.rules import RuleInForce
from mirrorless.verify.findings import KINDS, SHOWN, Counts, FindingKind, LaneVerdict, RuleUse

LANE_ROWS = 500
"""Of the table by lane; `report.json` has more."""

SEARCHED = (
    "Original values of masked or dropped fields, of 4 characters and more, were searched for in all parts of {:,} "
    "copies: {}. Each copy was made anew from the source's record; where it is proved, it is what stands on the target."
)

UNSEARCHED = (
    "No copy was searched for original values of masked fields: that needs the source's records (--against-source)."
)

_Used = tuple[str, str, RuleUse]
"""A topic or a lane, the id of a rule, and what it did there."""

_COUNTS: dict[str, Callable[[_Used], Cell]] = {
    "runs": lambda used: used[2].runs,
    "copied": lambda used: used[2].copied,
    "filtered": lambda used: used[2].filtered,
    "left out": lambda used: used[2].left_out,
    "searched": lambda used: used[2].searched,
    "showing": lambda used: used[2].showing,
}


def showing_of(verdicts: Sequence[LaneVerdict]) -> int:
    """The number of copies in which a value stands that their rule masks or drops elsewhere."""
    return sum(use.showing for verdict in verdicts for use in verdict.rules.values())


def rules_section(verdicts: Sequence[LaneVerdict], known: Mapping[str, RuleInForce]) -> ReportSection | None:
    """The section of the report; None where no lane was copied by a rule. Args: known: by id, in hex."""
    by_lane = [(f"{each.topic}-{each.partition}", rule, use) for each in verdicts for rule, use in each.rules.items()]
    if not by_lane:
        return None
    topics: dict[tuple[str, str], RuleUse] = {}
    for verdict in verdicts:
        for rule, use in verdict.rules.items():
            nothing = RuleUse(generation=use.generation, first=use.first, next=use.next)
            topics.setdefault((verdict.topic, rule), nothing).add(use)

    searched, showing = sum(use.searched for *_, use in by_lane), showing_of(verdicts)
    result = f"one stands in {showing:,} of them, where no mask is" if showing else "none stands there"
    return ReportSection(
        heading="Rules",
        text=(SEARCHED.format(searched, result) if searched else UNSEARCHED,),
        tables=(
            Table.of(
                "by topic",
                ((topic, rule, use) for (topic, rule), use in topics.items()),
                {
                    "topic": lambda used: used[0],
                    "rule": lambda used: used[1] or "none",
                    "version": lambda used: known[used[1]].rule.version if used[1] in known else None,
                    "keys": lambda used: _keys(known.get(used[1])),
                    "does": lambda used: _does(used[1], known),
                    **_COUNTS,
                },
                note="Left out are records that a rule could not be applied to, and those of an order: see the ledger.",
            ),
            Table.of(
                "by lane",
                by_lane[:LANE_ROWS],
                {
                    "lane": lambda used: used[0],
                    "rule": lambda used: used[1] or "none",
                    "from upstream": lambda used: used[2].first,
                    "to": lambda used: used[2].next - 1,
                    **_COUNTS,
                    "showing, the first": lambda used: ", ".join(map(str, used[2].shown_at)),
                },
                note=f"{len(by_lane) - LANE_ROWS:,} more are in report.json." if len(by_lane) > LANE_ROWS else "",
            ),
        ),
    )


def _keys(rule: RuleInForce | None) -> str:
    return "" if rule is None else ", ".join(f"{name} {version}" for name, version in rule.key_versions.items())


def _does(rule: str, known: Mapping[str, RuleInForce]) -> str:
    """An entry of `transforms` as JSON, without topics and version."""
    if not rule:
        return "nothing: records are copied as they are"
    if rule not in known:
        return "its document is gone"
    entry = msgspec.to_builtins(known[rule].rule)
    return msgspec.json.encode({name: entry[name] for name in entry if name not in {"topics", "version"}}).decode()


AnyCounts = TypeVar("AnyCounts", bound=Counts)

TABLE_ROWS = 500
"""Findings on the page; `report.json` has more, and the run's folder all that were kept."""

LISTED = 1_000
"""Findings of all lanes in `report.json`."""

PLOTTED = 100
"""Lanes of the plot."""

TONES: dict[str, Tone] = {
    "proved": "good",
    "wrong": "bad",
    "expired": "quiet",
    "in doubt": "quiet",
    "not provable": "quiet",
    "not in the map": "quiet",
    "thinned out": "",
    "more": "quiet",
}

COUNTED = {
    "proved": "proved",
    "wrong": "found",
    "expired": "expired",
    "in doubt": "in_doubt",
    "not provable": "not_provable",
    "not in the map": "before_map",
    "thinned out": "compacted",
}
"""The count of each kind of the plot."""

UNPROVED = (
    ("foreign", "on the target, and this flow has not written them: another producer's, or older than the flow"),
    ("expired", "the target's log begins above them: retention, or an order to delete"),
    ("in_doubt", "their run is only prepared: the next delivery or the lane check settles it"),
    ("not_provable", "they cannot be proved any more, see the notes"),
    ("compacted", "compaction has thinned out their runs: judged by the latest value of each key"),
    ("before_map", "on the target, and their links have expired"),
    ("source_gone", "the source does not have their originals any more: only the digest proves them"),
    ("rule_gone", "their rule, or a key that it needs, is gone: only the digest proves them"),
    ("known_losses", "on the source and not on the target, by the loss ledger"),
    ("keys_pending", "keys whose latest value is not replicated yet"),
)
"""Counts of records that are not proved, and why they are no findings."""

MASKED_IN_PART = " {:,} of the copies show a value that their rule masks or drops elsewhere: see Rules."


def counts_of(verdicts: Sequence[LaneVerdict]) -> Counts:
    """The sum over all lanes."""
    return added_up(verdicts, Counts())


def added_up(verdicts: Sequence[LaneVerdict], total: AnyCounts) -> AnyCounts:
    """The sum over all lanes. Args: total: nothing yet, of their kind."""
    for verdict in verdicts:
        total.add(verdict.counts)
    return total


def totals_of(verdicts: Sequence[LaneVerdict], *, seconds: float) -> dict[str, int | float]:
    """The totals, for programs."""
    counts = counts_of(verdicts)
    totals: dict[str, int | float] = {name: getattr(counts, name) for name in counts.__struct_fields__}
    return totals | {"lanes": len(verdicts)} | measures_of(verdicts, seconds=seconds)


def measures_of(verdicts: Sequence[LaneVerdict], *, seconds: float) -> dict[str, int | float]:
    """What was read, and how long it took; how many could not be."""
    read = sum(verdict.read for verdict in verdicts)
    return {
        "failed": sum(verdict.state == "failed" for verdict in verdicts),
        "read": read,
        "bytes": sum(verdict.bytes for verdict in verdicts),
        "seconds": round(seconds, 3),
        "records_per_second": round(read / seconds) if seconds else 0,
        "cpu_seconds": round(sum(verdict.cpu_seconds for verdict in verdicts), 3),
    }


def is_clean(verdicts: Sequence[LaneVerdict]) -> bool:
    """Whether nothing is wrong, and every lane was verified."""
    return not _is_wrong(verdicts) and not any(verdict.unsorted for verdict in verdicts)


def _is_wrong(verdicts: Sequence[LaneVerdict]) -> bool:
    return bool(counts_of(verdicts).found) or any(verdict.state == "failed" for verdict in verdicts)


def shorten(verdicts: Sequence[LaneVerdict]) -> None:
    """Leave out what a report of many lanes has no room for: findings beyond the first, parts not drawn."""
    room = LISTED
    for place, verdict in enumerate(sorted(verdicts, key=_first_looked_at)):
        verdict.show(min(room, SHOWN))
        room -= len(verdict.findings)
        if place >= PLOTTED:
            verdict.segments.clear()


def report_of(
    verdicts: Sequence[LaneVerdict],
    *,
    flow: str,
    seconds: float,
    made_at: int,
    folder: str = "",
    rules: Mapping[str, RuleInForce] | None = None,
) -> Report:
    """The report.

    Args:
        verdicts: on all lanes.
        flow: its name.
        seconds: that it took.
        made_at: ms since the epoch.
        folder: of the run, where all findings are.
        rules: by id, in hex: those that are known of the ones that lanes were copied by.
    """
    counts = counts_of(verdicts)
    showing = showing_of(verdicts)
    totals = totals_of(verdicts, seconds=seconds)
    figures = [
        Figure(name="records in the map", value=counts.records),
        Figure(name="proved", value=counts.proved, tone="good" if counts.proved else "quiet"),
        *(Figure(name=kind, value=getattr(counts, kind), tone="bad") for kind in KINDS if getattr(counts, kind)),
        Figure(name="lanes", value=len(verdicts)),
        Figure(name="read", value=totals["records_per_second"], unit="records/s"),
        Figure(name="took", value=round(seconds, 1), unit="s"),
    ]
    if counts.foreign:
        figures.insert(2, Figure(name="of other producers", value=counts.foreign))
    if counts.keys:
        figures.insert(2, Figure(name="keys compared", value=counts.keys))
    good = counts.proved + counts.keys
    return Report(
        title=f"Verification of {flow}",
        verdict=_verdict(verdicts, counts) + (MASKED_IN_PART.format(showing) if showing else ""),
        tone="bad" if _is_wrong(verdicts) else "good" if good and not counts.foreign and not showing else "",
        figures=tuple(figures),
        sections=tuple(
            section
            for section in (
                findings_section(verdicts, KINDS, folder),
                rules_section(verdicts, rules or {}),
                _unproved(verdicts, counts),
                _lanes(verdicts),
            )
            if section is not None
        ),
        made_at=made_at,
    )


def _verdict(verdicts: Sequence[LaneVerdict], counts: Counts) -> str:
    failed = sum(verdict.state == "failed" for verdict in verdicts)
    found = ", ".join(f"{getattr(counts, kind):,} {kind}" for kind in KINDS if getattr(counts, kind))
    more = f"; {counts.foreign:,} more that this flow has not written" if counts.foreign else ""
    lost = f"{failed} of {len(verdicts)} lanes could not be verified. " if failed else ""
    if found:
        return f"{lost}Of {counts.records:,} records {found}{more}."
    if not counts.records and not counts.keys:
        return f"{lost}There was nothing {'else ' if lost else ''}to verify{more}."
    rest = counts.records - counts.proved - counts.compacted
    proved = f"{counts.proved:,} of {counts.records:,} records are proved"
    if counts.keys:
        proved += f", and the latest values of {counts.keys:,} keys"
    because = "" if not rest else f"; {rest:,} cannot be, and none of them is known to be wrong"
    return f"{lost}{'Nothing else' if lost else 'Nothing'} is wrong: {proved}{because}{more}."


def findings_section(
    verdicts: Sequence[LaneVerdict], kinds: Sequence[FindingKind], folder: str = ""
) -> ReportSection | None:
    """The findings of some kinds; None where there is none. Args: folder: of the run, where all of them are."""
    rows = [
        (
            finding.kind,
            _named(verdict),
            row_of(finding.upstream),
            row_of(finding.downstream),
            finding.records,
            finding.what,
        )
        for verdict in verdicts
        for finding in verdict.findings
        if finding.kind in kinds
    ]
    if not rows:
        return None
    left_out = sum(verdict.left_out for verdict in verdicts) + max(0, len(rows) - TABLE_ROWS)
    where = f"; {folder}/findings has a Parquet file for each lane" if folder else ""
    table = Table(
        title="what is wrong",
        columns=("kind", "lane", "upstream", "downstream", "records", "what differs"),
        rows=tuple(rows[:TABLE_ROWS]),
        note=f"{left_out:,} more findings are counted above and not listed{where}." if left_out else "",
    )
    return ReportSection(
        heading="Findings",
        text=(
            (
                "Upstream offsets are the source's, downstream offsets the target's. A record that is missing has no "
                "place downstream, one that is there too much none upstream. Contents are not shown."
            ),
        ),
        tables=(table,),
    )


def _unproved(verdicts: Sequence[LaneVerdict], counts: Counts) -> ReportSection | None:
    rows = [
        (name.replace("_", " "), getattr(counts, name), meaning) for name, meaning in UNPROVED if getattr(counts, name)
    ]
    notes = [f"{verdict.lane}: {note}" for verdict in verdicts for note in (*verdict.notes, *_foreign(verdict))]
    if not rows and not notes:
        return None
    tables = (Table(title="neither proved nor wrong", columns=("what", "records", "why"), rows=tuple(rows)),)
    return ReportSection(heading="Not proved", text=tuple(notes[:TABLE_ROWS]), tables=tables if rows else ())


def _foreign(verdict: LaneVerdict) -> Iterator[str]:
    """One sentence on the records of other producers."""
    places = [each.downstream for each in verdict.findings if each.kind == "foreign" and each.downstream is not None]
    if places:
        yield (
            f"{verdict.counts.foreign:,} records from downstream offset {min(each.first for each in places)} on are "
            "not of this flow: another producer writes there, or they are older than the flow"
        )


def _lanes(verdicts: Sequence[LaneVerdict]) -> ReportSection:
    # Lanes that need a look come first, in the table and in the plot.
    verdicts = sorted(verdicts, key=_first_looked_at)
    table = Table.of(
        "by lane",
        verdicts,
        {
            "lane": _named,
            "is": _state,
            "records": lambda each: each.counts.records,
            "proved": lambda each: each.counts.proved,
            "wrong": lambda each: each.counts.found,
            "runs": lambda each: each.counts.runs,
            "looked at up to": lambda each: each.position,
            "seconds": lambda each: round(each.seconds, 1),
        },
        tone=lambda each: "bad" if each.counts.found or each.state == "failed" else "",
    )
    looked_at = [each for each in verdicts if each.segments or each.state == "failed"]
    counts = counts_of(verdicts)
    note = "Runs of the newest generation, whole: a run with one wrong record is drawn as wrong."
    if len(looked_at) > PLOTTED:
        note += f" Shown are {PLOTTED} of {len(looked_at):,} lanes; counted are all."
    plot = LanePlot(
        title="what of each lane is proved, by upstream offset",
        lanes=tuple((_named(each), tuple(each.segments)) for each in looked_at[:PLOTTED]),
        tones=TONES,
        counts={kind: getattr(counts, name) for kind, name in COUNTED.items()},
        first=tuple(_named(each) for each in looked_at[:PLOTTED] if each.state == "failed" or each.counts.found),
        note=note,
    )
    return ReportSection(heading="Lanes", tables=(table,), plots=(plot,) if plot.lanes else ())


def _first_looked_at(verdict: LaneVerdict) -> tuple[bool, bool]:
    return verdict.state != "failed", not verdict.counts.found


def _named(verdict: LaneVerdict) -> str:
    return f"{verdict.topic}-{verdict.partition}"


def _state(verdict: LaneVerdict) -> str:
    if verdict.error or verdict.counts.found:
        return verdict.error or "wrong"
    return "; ".join(verdict.notes) if verdict.notes and not verdict.counts.records else "fine"


def row_of(offsets: OffsetRange | None) -> str:
    """Offsets in a table."""
    if offsets is None:
        return "none"
    return str(offsets.first) if offsets.next == offsets.first + 1 else f"{offsets.first} to {offsets.next - 1}"
