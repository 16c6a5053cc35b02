"""The report of a run as plain values: all rounds, the ratios with their spread, and what is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

import msgspec

from infra.cost import cost_section
from mirrorless.reports.report import Bar, BarPlot, Cell, Figure, Report, ReportSection, Table, Tone
from tests.benchmarks.beside_mm2.explained import CONDITIONS, HEADINGS, RATIOS, TEXTS, paragraphs
from tests.benchmarks.beside_mm2.ratios import COUNTED, SUMMARY, Ratio
from tests.benchmarks.beside_mm2.results import Measurement, Run
from tests.benchmarks.beside_mm2.side import OURS


def _name_of_whole_batches(name: str) -> str:
    """Of `passthrough_cpu_ratio_1KB_16KB_three_replicas`, or without its end."""
    _, ratio, _, size, batch, *replicas = name.split("_")
    what = {"cpu": "records per CPU-second", "wall": "records a second"}[ratio]
    parts = [f"whole batches of {batch}: {what}", size, " ".join(replicas), "over MM2 exactly once, tuned"]
    return re.sub(r"(\d)(K?B)", r"\1 \2", ", ".join(part for part in parts if part))


NAMES = {name: _name_of_whole_batches(name) for name in SUMMARY if name.startswith("passthrough")} | {
    "cpu_ratio_100B": "records per CPU-second, 100 B, over MM2 exactly once, tuned",
    "cpu_ratio_1KB": "records per CPU-second, 1 KB, over MM2 exactly once, tuned",
    "cpu_ratio_10KB": "records per CPU-second, 10 KB, over MM2 exactly once, tuned",
    "cpu_ratio_100B_default": "records per CPU-second, 100 B, over MM2 exactly once",
    "cpu_ratio_1KB_default": "records per CPU-second, 1 KB, over MM2 exactly once",
    "p99_ratio_1000rps": "p99 latency at 1,000 records/s, over MM2 exactly once, tuned",
    "p99_ratio_1000rps_default": "p99 latency at 1,000 records/s, over MM2 exactly once",
    "write_units_per_event_6_lanes": "write units of an event of six lanes",
    "stored_bytes_per_event_6_lanes": "bytes stored for an event of six lanes",
    "pull_cpu_ratio_100B": "scheduled topics: records per CPU-second, 100 B, over MM2 exactly once, tuned",
    "pull_cpu_ratio_1KB": "scheduled topics: records per CPU-second, 1 KB, over MM2 exactly once, tuned",
    "pull_cpu_ratio_10KB": "scheduled topics: records per CPU-second, 10 KB, over MM2 exactly once, tuned",
    "pull_wall_ratio_100B": "scheduled topics: records a second, 100 B, over MM2 exactly once, tuned",
    "pull_wall_ratio_1KB": "scheduled topics: records a second, 1 KB, over MM2 exactly once, tuned",
    "pull_wall_ratio_10KB": "scheduled topics: records a second, 10 KB, over MM2 exactly once, tuned",
    "pull_p99_ratio_1000rps": "scheduled topics: p99 latency at 1,000 records/s, over MM2 exactly once, tuned",
    "pull_memory_ratio": "scheduled topics: resident memory, 100 topics of 6 partitions, over MM2 exactly once, tuned",
    "backfill_cpu_ratio_16KB": "backfill, batches of 16 KB: records per CPU-second over MM2 exactly once, tuned",
    "backfill_cpu_ratio_256KB": "backfill, batches of 256 KB: records per CPU-second over MM2 exactly once, tuned",
    "backfill_wall_ratio_16KB": "backfill, batches of 16 KB: records a second over MM2 exactly once, tuned",
    "backfill_wall_ratio_256KB": "backfill, batches of 256 KB: records a second over MM2 exactly once, tuned",
    "recovery_ratio_target_broker": "seconds until a killed target broker's lag is gone, over MM2 exactly once, tuned",
}


def report_of(run: Run) -> Report:
    """The report of a run, finished or not."""
    found = msgspec.convert(run.ratios, list[Ratio])
    kinds = list(dict.fromkeys(each.kind for each in run.measurements))
    verdict, tone = _verdict(run)
    sections = [_ratio_section(found)] if found else []
    sections += [_section(run, kind, found) for kind in kinds]
    sections += [cost_section(), _conditions(run)]
    return Report(
        title="Mirrorless beside MirrorMaker 2",
        verdict=verdict,
        tone=tone,
        figures=tuple(_summary(run)),
        sections=tuple(sections),
        made_at=run.ended_at,
    )


CHIEF_OF = {
    "throughput": ("records_per_cpu_s", "records"),
    "latency": ("p99_ms", "ms"),
    "pull": ("records_per_cpu_s", "records"),
    "pull latency": ("p99_ms", "ms"),
    "pass-through": ("records_per_cpu_s", "records"),
    "pass-through, three replicas": ("records_per_cpu_s", "records"),
    "pass-through pipe": ("records_per_cpu_s", "records"),
    "backfill": ("records_per_cpu_s", "records"),
}
"""The figure of a kind's plots, and its unit; of others it is seconds."""

CHIEF = {"records_per_cpu_s", "p99_ms", "seconds"}
"""The figure of each kind of measurement that says most."""


def _verdict(run: Run) -> tuple[str, Tone]:
    missing = [name for name, value in run.summary.items() if value is None]
    behind = [NAMES[name] for name in SUMMARY if (value := run.summary.get(name)) and not _ahead(name, value)]
    failed = sum(bool(each.failed) for each in run.measurements)
    said = f"{len(run.measurements)} measurements, {failed} of them failed ({run.profile} run)."
    if run.profile != "full":
        return f"This run shows that the comparison works; its figures are too short to mean anything. {said}", "quiet"
    if behind:
        return f"Behind MM2 in: {'; '.join(behind)}. {said}", "bad"
    if others := _behind_elsewhere(run):
        said = f"Behind in others, see the ratios: {'; '.join(others)}. {said}"
    if missing:
        return f"Not everything was measured. {said}", "quiet"
    return f"Ahead of MM2 in all of the first figures. {said}", "good"


def _behind_elsewhere(run: Run) -> list[str]:
    """What the first figures do not show. Records a second are left out: the lab's poller limits ours."""
    return [
        f"{each.kind} {each.case}, {each.side} over {each.against}, {each.figure} {each.median:.2f}"
        for each in msgspec.convert(run.ratios, list[Ratio])
        if each.figure in CHIEF and not each.ahead
    ]


LESS = ("p99", "recovery", "memory")
"""In the names of first figures of which less is better."""


def _ahead(name: str, value: float) -> bool:
    return value <= 1 if any(part in name for part in LESS) else value >= 1


def _summary(run: Run) -> Iterator[Figure]:
    for name in SUMMARY:
        value = run.summary.get(name)
        tone: Tone = "quiet" if value is None else "good" if _ahead(name, value) else "bad"
        yield Figure(
            name=NAMES[name], value="not measured" if value is None else round(value, 2), unit="times", tone=tone
        )
    for name in COUNTED:
        value = run.summary.get(name)
        yield Figure(name=NAMES[name], value="not measured" if value is None else value, unit="", tone="quiet")


def _ratio_section(found: Sequence[Ratio]) -> ReportSection:
    shown = [each for each in found if each.figure == "records_per_cpu_s"]
    shown += [each for each in found if each.figure == "p99_ms" and each.side == OURS]
    plots = []
    for kind, title, note in (
        ("throughput", "Records per CPU-second, ours over MM2's", "More is better; 1 is even."),
        ("latency", "p99 latency, ours over MM2's", "Less is better; 1 is even."),
        ("pull", "Scheduled topics: records per CPU-second, ours over MM2's", "More is better; 1 is even."),
        ("backfill", "Backfill: records per CPU-second, ours over MM2's", "More is better; 1 is even."),
        ("pass-through", "Whole batches: records per CPU-second, ours over MM2's", "More is better; 1 is even."),
    ):
        bars = tuple(
            Bar(
                label=f"{each.case}, {each.against}",
                value=each.median,
                low=each.low,
                high=each.high,
                tone="good" if each.ahead else "bad",
            )
            for each in shown
            if each.kind == kind
        )
        if bars:
            plots.append(BarPlot(title=title, unit="times", bars=bars, note=f"{note} Lines span all rounds."))
    return ReportSection(
        heading="Ratios",
        text=paragraphs(RATIOS),
        plots=tuple(plots),
        tables=(
            Table(
                title="All ratios",
                columns=("what", "case", "ours", "over", "figure", "better", "median", "lowest", "highest", "rounds"),
                rows=tuple(
                    (
                        each.kind,
                        each.case,
                        each.side,
                        each.against,
                        each.figure,
                        each.better,
                        round(each.median, 2),
                        round(each.low, 2),
                        round(each.high, 2),
                        len(each.per_round),
                    )
                    for each in found
                ),
                tones=tuple("" if each.ahead else "bad" for each in found),
            ),
        ),
    )


def _section(run: Run, kind: str, found: Sequence[Ratio]) -> ReportSection:
    mine = [each for each in run.measurements if each.kind == kind]
    return ReportSection(
        heading=HEADINGS.get(kind, kind),
        text=paragraphs(TEXTS.get(kind, "")),
        tables=(_medians(mine), _raw(mine)),
        plots=tuple(_plots(kind, mine)) if found else (),
    )


def _medians(measurements: Sequence[Measurement]) -> Table:
    groups: dict[tuple[str, str, str], list[Measurement]] = defaultdict(list)
    for each in measurements:
        if not each.failed:
            groups[each.case, each.against, each.side].append(each)
    names = _figure_names(measurements)
    rows = [
        (case, side, against if against != side else "", len(group), *(_median(group, name) for name in names))
        for (case, against, side), group in groups.items()
    ]
    return Table(title="Medians", columns=("case", "side", "in turns with", "rounds", *names), rows=tuple(rows))


def _median(group: Iterable[Measurement], name: str) -> Cell:
    values = [each.figures[name] for each in group if name in each.figures]
    return _rounded(median(values)) if values else None


def _raw(measurements: Sequence[Measurement]) -> Table:
    names = _figure_names(measurements)
    rows = [
        (
            each.case,
            each.side,
            each.against if each.against != each.side else "",
            each.round,
            *(_rounded(each.figures[name]) if name in each.figures else None for name in names),
            each.failed,
        )
        for each in measurements
    ]
    return Table(
        title="Every round",
        columns=("case", "side", "in turns with", "round", *names, "failed"),
        rows=tuple(rows),
        tones=tuple("bad" if each.failed else "" for each in measurements),
    )


def _figure_names(measurements: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(name for each in measurements for name in each.figures))


def _plots(kind: str, measurements: Sequence[Measurement]) -> Iterator[BarPlot]:
    figure, unit = CHIEF_OF.get(kind, ("seconds", "s"))
    for case in dict.fromkeys(each.case for each in measurements):
        bars = []
        sides: dict[str, list[float]] = defaultdict(list)
        for each in measurements:
            if each.case == case and figure in each.figures:
                sides[each.side].append(each.figures[figure])
        for side, values in sides.items():
            tone: Tone = "good" if side.startswith(OURS) else ""
            bars.append(Bar(label=side, value=median(values), low=min(values), high=max(values), tone=tone))
        if bars:
            yield BarPlot(title=f"{case}: {figure}", unit=unit, bars=tuple(bars), note="Median; lines span all rounds.")


def _conditions(run: Run) -> ReportSection:
    seconds = max(0, run.ended_at - run.began_at) / 1000
    tables = [
        Table(
            title="The machine",
            columns=("what", "is"),
            rows=(*run.machine.items(), ("duration", f"{seconds / 60:.0f} min")),
        )
    ]
    if run.unmeasured:
        rows = tuple((each.what, each.why) for each in run.unmeasured)
        tables.append(Table(title="Not measured", columns=("what", "why"), rows=rows))
    return ReportSection(
        heading="Conditions",
        text=paragraphs(CONDITIONS),
        tables=tuple(tables),
    )


def _rounded(value: float) -> float | int:
    """Four digits that mean something; a count as it is."""
    if value == int(value):
        return int(value)
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def markdown(report: Report, *, raw: str, page: str) -> str:
    """The report as a page of the documentation, without the tables of every round, which the other files have."""
    parts = [
        f"# {report.title}",
        f"{report.verdict} Made by `make bench`; every round is in [{raw}]({raw}), with plots in [{page}]({page}).",
        _markdown_table(("figure", "value"), [(each.name, each.value) for each in report.figures]),
    ]
    for section in report.sections:
        parts += [f"## {section.heading}", *section.text]
        for table in section.tables:
            if table.title != "Every round":
                parts += [f"### {table.title}", _markdown_table(table.columns, table.rows)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(each) for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) else value.replace("|", "/").replace("\n", " ")
