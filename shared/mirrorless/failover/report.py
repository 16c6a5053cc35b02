"""The report of a failover, a failback or a drill, from its document: what moved, what is missing and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from mirrorless.chain.lane import FlowName
from mirrorless.failover.state import FailoverDocument, StepName, StepResult
from mirrorless.reports.format import moment, numbered
from mirrorless.reports.report import Cell, Figure, Report, ReportSection, Table, Tone

READY: Final = frozenset({"ready", "active_on_source"})
"""States in which a returning group needs no operator."""


def summary(flow: FlowName, document: FailoverDocument) -> dict[str, Any]:
    """The totals, for programs."""
    groups = _groups(document)
    holdings = document.facts("holdings")
    proof = document.facts("prove")
    topics = _facts(document.steps, "check").get("topics", {})
    back = document.back
    return {
        "flow": str(flow),
        "run": document.run,
        "mode": document.order.mode if back is None else "failback",
        "finished": document.is_ended,
        "clean": is_clean(document),
        "seconds": recovery_seconds(document),
        "recovery_point_seconds": _late_seconds(document)
        if document.order.mode == "planned"
        else holdings.get("recovery_point_seconds"),
        "topics": len(topics),
        "partitions": sum(topics.values()),
        "groups_moved": sum(each["fate"] == "moved" for each in groups),
        "groups_left": sum(each["fate"] != "moved" for each in groups),
        "digests_verified": proof.get("proved", 0),
        "digests_wrong": len(proof.get("wrong", {})),
        "missing": missing_of(document),
        "known_until": None if unknown_since(document) is None else holdings.get("seen_at") or None,
    }


def missing_of(document: FailoverDocument) -> list[str]:
    """What is missing, one sentence each with its reason."""
    if document.back is not None:
        late: list[str] = _facts(document.back.steps, "last-look").get("named", [])
        return [
            each
            for step in ("reconcile", "groups-back")
            for each in _missing_back(_facts(document.back.steps, step).get("report", {}))
        ] + late
    found = []
    if document.order.mode == "planned":
        stopped = document.facts("check").get("stopped", ())
        found = [f"{lane}: it was stopped, and not waited for" for lane in stopped]
        found += document.facts("last-look").get("named", [])
    for lane in document.facts("holdings").get("lanes", ()):
        if missing := _missing_offsets(lane):
            found.append(
                f"{lane['topic']}-{lane['partition']}: {missing:,} upstream offsets from {lane['position']} on were on "
                "the source and are not here"
            )
        if lane["in_doubt"]:
            found.append(f"{lane['topic']}-{lane['partition']}: its newest run is in doubt")
    for lane, why in document.facts("prove").get("wrong", {}).items():
        found.append(f"{lane}: {why}")
    groups = sorted(_groups(document), key=lambda each: each["fate"] == "moved")
    found += [f"group {each['group']}: {each['why']}" for each in groups if each["why"] or each["fate"] != "moved"]
    shadows = document.facts("shadow-groups")
    found += [f"group {group}: its offsets did not come back as committed" for group in shadows.get("differing", ())]
    found += [f"group {group}: {why}" for group, why in shadows.get("left", {}).items()]
    return found


def _missing_back(report: Mapping[str, Any]) -> Iterable[str]:
    for lane in report.get("lanes", ()):
        name = f"{lane['topic']}-{lane['partition']}"
        if orphans := lane.get("orphan_records", 0):
            oldest, newest = lane.get("oldest_orphan", -1), lane.get("newest_orphan", -1)
            at, until = moment(oldest), moment(newest)
            when = "" if oldest < 0 else f", written at {at}," if at == until else f", written from {at} to {until},"
            keys = f" with {numbered(lane['orphan_keys'], 'key')}" if lane.get("orphan_keys") else ""
            yield (
                f"{name}: {numbered(orphans, 'record')} of the source{keys}{when} never replicated; policy: "
                f"{lane['policy']}; see the loss ledger"
            )
        if keys := lane.get("conflicts"):
            older = lane.get("orphans_withheld", 0)
            withheld = f"{numbered(older, 'older record')} not written again; " if older else ""
            yield (
                f"{name}: {numbered(keys, 'key')} written on both sides; {withheld}the report of the reconcile has them"
            )
        for what in ("differs", "error", "waits"):
            if lane.get(what):
                yield f"{name}: {lane[what]}"
        if lane.get("unmapped"):
            yield f"{name}: {lane['unmapped']:,} records came back without a place in the offset map"
    for group in report.get("groups", ()):
        if group["readiness"] not in READY:
            yield f"group {group['group']}: {group['readiness']}"
        elif group.get("reread"):
            yield f"group {group['group']}: it reads {group['reread']:,} records again"
    yield from report.get("troubles", ())


def unknown_since(document: FailoverDocument) -> str | None:
    """What nobody has seen of a lost source, in a sentence without its end; None where all was seen."""
    holdings = document.facts("holdings")
    if document.order.mode != "source-lost" or document.back is not None or not holdings:
        return None
    if seen_at := holdings.get("seen_at"):
        return f"what was acknowledged after {moment(seen_at)} is not known"
    return "what was acknowledged is not known, for the source's ends were never seen"


def needs_a_look(document: FailoverDocument) -> bool:
    """Whether anything is known to be missing, but groups that are another application's."""
    others = {
        f"group {each['group']}: {each['why']}" for each in _groups(document) if each["readiness"] == "independent"
    }
    return bool(set(missing_of(document)) - others)


def is_clean(document: FailoverDocument) -> bool:
    """Whether everything is done, all was seen, and nothing is missing."""
    return document.is_ended and unknown_since(document) is None and not needs_a_look(document)


def recovery_seconds(document: FailoverDocument) -> float:
    """From the first change until applications may start on the other side, with pauses between two commands."""
    steps = [each for each in document.current if each.step != "check"]
    if not steps:
        return 0.0
    return (steps[-1].at + steps[-1].ms - steps[0].at) / 1000


def _late_seconds(document: FailoverDocument) -> float:
    """The age of the moment at which the target had all of the source; 0 where nothing came late."""
    look = _facts(document.steps, "last-look")
    stood_at = _facts(document.steps, "standstill").get("at")
    if not look.get("late") or stood_at is None:
        return 0.0
    return float(max(0, look["at"] - stood_at)) / 1000


def report_of(flow: FlowName, document: FailoverDocument) -> Report:
    """The report."""
    totals, missing = summary(flow, document), missing_of(document)
    back = document.back is not None
    target, source = flow.target, flow.source
    goes_to = source if back else target
    title = {"planned": "Planned failover", "source-lost": "Failover", "drill": "Drill of a failover"}
    clean = bool(totals["clean"])
    tone: Tone
    if not totals["finished"]:
        verdict, tone = "It is unfinished: the same command continues.", "bad"
    elif document.order.mode == "drill":
        verdict, tone = "A failover would take this long and lose this much. Nothing was changed.", "good"
    else:
        unknown = unknown_since(document)
        left = f"{numbered(len(missing), 'thing')} to look at, below" if missing else "Nothing is missing"
        if unknown is not None:
            left = f"{left if missing else 'Nothing is known to be missing'}; {unknown}"
        verdict = f"Producers and groups may start on {goes_to}. {left}."
        tone = "good" if clean else "bad" if needs_a_look(document) else ""
    return Report(
        title=f"{'Failback' if back else title[document.order.mode]} of {flow}",
        verdict=verdict,
        tone=tone,
        figures=tuple(_figures(totals)),
        sections=tuple(_sections(flow, document, missing)),
        made_at=(document.back or document).ended_at,
    )


def _figures(totals: Mapping[str, Any]) -> Iterable[Figure]:
    yield Figure(name="recovery time", value=totals["seconds"], unit="s")
    point = totals["recovery_point_seconds"]
    yield Figure(
        name="recovery point",
        value="not known" if point is None else point,
        unit="" if point is None else "s at most",
    )
    yield Figure(name="partitions", value=totals["partitions"])
    if totals["mode"] not in {"failback", "drill"}:
        left: Tone = "bad" if totals["groups_left"] else "good"
        yield Figure(name="groups moved", value=totals["groups_moved"], tone="good")
        yield Figure(name="groups left", value=totals["groups_left"], tone=left)
    if totals["mode"] == "planned":
        wrong: Tone = "bad" if totals["digests_wrong"] else "good"
        yield Figure(name="digests verified", value=totals["digests_verified"], tone=wrong)


def _sections(flow: FlowName, document: FailoverDocument, missing: Sequence[str]) -> Iterable[ReportSection]:
    unknown = unknown_since(document)
    last = () if unknown is None else (f"{unknown[0].upper()}{unknown[1:]}.",)
    yield ReportSection(
        heading="Missing, and why",
        text=(*(missing or ["Nothing." if unknown is None else "Nothing is known."]), *last),
    )
    if warnings := document.facts("check").get("warnings"):
        yield ReportSection(heading="What does not come back", text=tuple(warnings))
    of_step: dict[str, Callable[[tuple[int, StepResult]], Cell]] = {
        "": itemgetter(0),
        "step": lambda each: each[1].step,
        "began": lambda each: moment(each[1].at),
        "seconds": lambda each: each[1].ms / 1000,
        "result": lambda each: each[1].said,
    }
    yield ReportSection(heading="Steps", tables=(Table.of("Steps", enumerate(document.current, 1), of_step),))
    if document.back is None:
        if groups := sorted(_groups(document), key=lambda each: each["fate"] == "moved"):
            yield ReportSection(heading="Groups", tables=(_group_table(groups),))
        if lanes := document.facts("holdings").get("lanes"):
            yield ReportSection(heading="What the target holds", tables=(_lane_table(document, lanes),))
        elif ends := _facts(document.steps, "standstill").get("ends"):
            rows = tuple((topic, flow.target, len(by), sum(by)) for topic, by in sorted(ends.items()))
            columns = ("topic", "moved to", "partitions", "upstream offsets, all replicated")
            yield ReportSection(heading="Topics", tables=(Table(title="Topics", columns=columns, rows=rows),))
    else:
        report = _facts(document.back.steps, "reconcile").get("report", {})
        yield ReportSection(heading="Topics", tables=(_back_table(report.get("lanes", ())),))
        yield ReportSection(heading="Groups", tables=(_back_groups(report.get("groups", ())),))
    commands = [(each.step, command) for each in document.current for command in each.commands]
    table = Table(title="Changes", columns=("step", "change"), rows=tuple(commands))
    yield ReportSection(heading="Everything that was changed", tables=(table,))


def _group_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    names = {"group": "group", "fate": "fate", "state": "readiness", "reads again": "reread", "skips": "skip"}
    return Table.of(
        "Groups",
        groups,
        {head: itemgetter(name) for head, name in (names | {"ahead": "ahead", "why": "why"}).items()},
        tone=lambda each: "" if each["fate"] == "moved" else "bad",
    )


def _lane_table(document: FailoverDocument, lanes: Sequence[Mapping[str, Any]]) -> Table:
    lanes = sorted(lanes, key=lambda each: not (_missing_offsets(each) or each["in_doubt"]))  # of which some is missing
    seen_at = document.facts("holdings").get("seen_at", 0)
    seen = moment(seen_at) if seen_at else "never"
    return Table.of(
        "Partitions",
        lanes,
        {
            "partition": _named,
            "position": lambda each: each["position"],
            "last copied record": lambda each: moment(each["copied_at"]) if each["copied_at"] else None,
            "copied": lambda each: moment(each["written_at"]) if each["written_at"] else None,
            "source's end": lambda each: each["seen_end"],
            "missing": _missing_offsets,
        },
        tone=lambda each: "bad" if _missing_offsets(each) or each["in_doubt"] else "",
        note=f"The source's ends were last seen at {seen}.",
    )


def _named(lane: Mapping[str, Any]) -> str:
    return f"{lane['topic']}-{lane['partition']}"


def _missing_offsets(lane: Mapping[str, Any]) -> int:
    """Upstream offsets that were on the source and are not here."""
    return max(0, (lane["seen_end"] or 0) - int(lane["position"]))


def _needs_a_look(lane: Mapping[str, Any]) -> bool:
    return any(lane.get(what) for what in ("orphans", "differs", "error", "waits", "unmapped"))


def _back_table(lanes: Sequence[Mapping[str, Any]]) -> Table:
    lanes = sorted(lanes, key=lambda each: not _needs_a_look(each))
    return Table.of(
        "Partitions",
        lanes,
        {
            "partition": _named,
            "on the target": lambda each: each["on_target"],
            "copied back": lambda each: each["copied_back"],
            "not copied back": lambda each: max(0, each.get("new", 0) - each["copied_back"]),
            "orphans": lambda each: each.get("orphan_records", 0),
            "policy": lambda each: each["policy"],
        },
        tone=lambda each: "bad" if _needs_a_look(each) else "",
    )


def _back_groups(groups: Sequence[Mapping[str, Any]]) -> Table:
    groups = sorted(groups, key=lambda each: each["readiness"] in READY and not each["reread"])
    return Table.of(
        "Groups",
        groups,
        {"group": itemgetter("group"), "state": itemgetter("readiness"), "reads again": itemgetter("reread")},
        tone=lambda each: "" if each["readiness"] in READY and not each["reread"] else "bad",
    )


def _facts(steps: Sequence[StepResult], step: StepName) -> dict[str, Any]:
    return next((each.facts for each in steps if each.step == step), {})


def _groups(document: FailoverDocument) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document.facts("groups").get("groups", [])
    return found
