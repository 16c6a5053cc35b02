"""What an auditor asks about the rules of a flow: which were in force, from where on, what they did, what they miss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from mirrorless.reports.report import Cell, ReportSection, Table
from mirrorless.transforms.rules import RuleInForce
from mirrorless.verify.findings import LaneVerdict, RuleUse

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
