"""The outcome of a backfill: totals for programs, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from mirrorless.jobs.copy_task import CopyResult
from mirrorless.jobs.plan import JobPlan
from mirrorless.jobs.progress import percent
from mirrorless.reports.report import Figure, Line, LinePlot, Report, ReportSection, Table, Tone

Sample = tuple[int, int]
"""ms since the run began, and records copied by then."""

_TONES: dict[str, Tone] = {"refuse": "bad", "warn": "bad", "info": "quiet"}


def totals_of(results: Sequence[CopyResult], seconds: float) -> dict[str, Any]:
    """The sums over all lanes. Rates are of the records that this run wrote."""
    written = sum(each.written for each in results)
    cpu = sum(each.cpu_seconds for each in results)
    return {
        "records": sum(each.records for each in results),
        "bytes": sum(each.bytes for each in results),
        "passed_bytes": sum(each.passed_bytes for each in results),
        "written": written,
        "lanes": len(results),
        "done": sum(each.state == "done" for each in results),
        "stopped": sum(each.state == "stopped" for each in results),
        "failed": sum(each.state == "failed" for each in results),
        "attempts": sum(each.attempts for each in results),
        "seconds": round(seconds, 3),
        "records_per_second": round(written / seconds, 1) if seconds > 0 else 0.0,
        "cpu_seconds": round(cpu, 3),
        "cpu_seconds_per_million": round(cpu * 1e6 / written, 2) if written else None,
    }


def report_of(
    plan: JobPlan,
    results: Sequence[CopyResult],
    totals: dict[str, Any],
    samples: Sequence[Sample],
    *,
    made_at: int,
) -> Report:
    """The report: verdict, figures, lanes, throughput, findings of the checks."""
    clean = totals["done"] == totals["lanes"]
    if not clean:
        verdict = f"{totals['lanes'] - totals['done']} of {totals['lanes']} lanes need attention: see the table"
    elif not totals["records"]:
        verdict = f"there is no record in the ranges of {totals['lanes']} lanes, and nothing was copied"
    else:
        verdict = f"{totals['records']:,} records of {totals['lanes']} lanes are on the target, each once and in order"
    return Report(
        title=f"Backfill {plan.flow}",
        verdict=verdict,
        tone="good" if clean else "bad",
        figures=(
            Figure(name="records", value=totals["records"]),
            Figure(name="bytes", value=totals["bytes"], unit="of keys and values, of whole batches compressed"),
            Figure(
                name="passed through", value=percent(totals["passed_bytes"], totals["bytes"]), unit="% of the bytes"
            ),
            Figure(name="lanes done", value=f"{totals['done']} of {totals['lanes']}", tone="" if clean else "bad"),
            Figure(name="records per second", value=round(totals["records_per_second"])),
            Figure(name="CPU", value=totals["cpu_seconds_per_million"], unit="s per million records"),
            Figure(name="took", value=totals["seconds"], unit="s"),
        ),
        sections=(
            ReportSection(heading="Lanes", tables=(_lanes(results, plan.flow),)),
            *(ReportSection(heading="Throughput", plots=(each,)) for each in _throughput(samples, totals["seconds"])),
            ReportSection(
                heading="Checks",
                text=() if plan.findings else ("No findings.",),
                tables=(_checks(plan),) if plan.findings else (),
            ),
        ),
        made_at=made_at,
    )


def _lanes(results: Sequence[CopyResult], flow: str) -> Table:
    results = sorted(results, key=lambda each: each.state == "done")  # those that need a look first
    return Table.of(
        "Lanes",
        results,
        {
            "lane": lambda each: each.lane.removeprefix(f"{flow} "),
            "state": lambda each: each.state if not each.error else f"{each.state}: {each.error}",
            "records": lambda each: each.records,
            "bytes": lambda each: each.bytes,
            "% passed": lambda each: percent(each.passed_bytes, each.bytes),
            "written now": lambda each: each.written,
            "from": lambda each: each.first,
            "position": lambda each: each.position,
            "first on target": lambda each: each.first_downstream,
            "last on target": lambda each: each.last_downstream,
            "joined by": lambda each: each.handed_over or None,
            "tries": lambda each: each.attempts,
            "s": lambda each: round(each.seconds, 1),
        },
        tone=lambda each: "" if each.state == "done" else "bad",
        note="`from` and `position` are upstream offsets. `joined by` is the evidence that the lane meets its mapping. "
        "`% passed` is of bytes whose record batches were copied as they lay in the source's log.",
    )


def _throughput(samples: Sequence[Sample], seconds: float) -> Iterator[LinePlot]:
    """Rates, each at the end of its stretch; that of the first one holds from the beginning on. None of one stretch."""
    rates = tuple(
        (following[0] / 1000, (following[1] - before[1]) * 1000 / (following[0] - before[0]))
        for before, following in pairwise(samples)
        if following[0] > before[0]
    )
    if len(rates) > 1:
        yield LinePlot(
            title="Records copied per second",
            x_unit="s",
            y_unit="records/s",
            lines=(Line(label="all lanes", points=((samples[0][0] / 1000, rates[0][1]), *rates)),),
            x_range=(0.0, seconds),
        )


def _checks(plan: JobPlan) -> Table:
    return Table(
        title="Findings of the checks before the start",
        columns=("weight", "check", "where", "what"),
        rows=tuple((each.severity, each.check, each.where, each.text) for each in plan.findings),
        tones=tuple(_TONES[each.severity] for each in plan.findings),
    )
