"""The page of a run: the first figures with their spread, what is behind, what is missing, and how it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tests.benchmarks.beside_mm2.ratios import COUNTED, SUMMARY, Ratio
from tests.benchmarks.beside_mm2.results import Run
from tests.benchmarks.beside_mm2.sides import OURS

KINDS = {
    "throughput": "",
    "latency": "",
    "pull": "scheduled topics",
    "pull latency": "scheduled topics",
    "pass-through": "whole batches",
    "pass-through, three replicas": "whole batches to three replicas",
    "backfill": "backfill",
    "recovery": "a killed target broker",
}
FIGURES = {
    "records_per_cpu_s": "records per CPU-second",
    "records_per_s": "records a second",
    "p99_ms": "p99 latency",
    "resident_mb": "resident memory",
    "seconds": "seconds until its lag is gone",
}
COUNTS = {
    "write_units_per_event_6_lanes": "write units of an event of six lanes",
    "stored_bytes_per_event_6_lanes": "bytes stored for an event of six lanes",
}
CHIEF = {"records_per_cpu_s", "p99_ms", "seconds"}
"""The figure of each kind of measurement that says most."""
TUNED = "MM2 exactly once, tuned"
"""The mode of MM2 in a row that names none."""
LESS = ("p99", "recovery", "memory")
"""In the names of first figures of which less is better."""

METHOD = """

## How it is measured

Two single-node Kafka clusters, DynamoDB Local with its tables in memory, the replicators and the measuring program
share the machine. No write waits for a disk. No round is left out, and nothing was set for Mirrorless that a flow's
configuration does not offer. A ratio is formed in each round between two measurements of the same kind and case, one
after the other. MM2 is exactly once and tuned, unless a row says otherwise. “1000B-x6-16KB” are values of 1,000 bytes
on six partitions, in batches of 16 KB; “100x6” are 100 topics of six partitions. Values are JSON, which lz4 brings to a
third; MM2's default writes without a codec.

- **Backlogs.** A topic is filled while both sides are frozen (SIGSTOP). One copies it, then the other the very same
  records; who begins changes from round to round. Before the first, both copy until MM2's CPU of two copies in a row
  differs by less than 5 %. Seconds end when a read_committed reader of the target sees the last record. CPU is that of
  the replicating processes, without those that a schedule starts once a minute.
- **Mapped topics.** The poller, which AWS runs and which is a Python program here, encodes the events before the clock
  runs, and one event is under way at a time.
- **Scheduled topics.** One continuous run of one shard of 512 MB. Memory is that at the end of a copy of 100 topics.
- **Whole batches.** The same run copies batches as they lie in the source's log: of 16 KB, the default of Java's
  producer, or 256 KB, before lz4. With three replicas, the target's three brokers share the cores as well.
- **Backfill.** 10 GB of 1 KB in twelve lanes. MM2 is warm; the job is started cold, and figures begin with the first
  record that is visible on the target.
- **Latency.** A producer at 1,000 records a second of 100 B. Every value carries the moment at which it was handed to
  the client. Mirrorless delivers at once (`maximum.batching.window.seconds: 0`); a continuous run gathers as ever.
- **Recovery.** While 2,000 records a second flow, the broker is killed and started again at once. Seconds are from the
  fault until a reader has everything that was written up to one second before.

The raw figures have more: other partitions, rates and modes of MM2, noise, catching up from a cold start, a killed
replicator, and each round's memory and CPU.
"""


def page(run: Run, *, raw: str) -> str:
    """Markdown. Args: raw: where the figures of all rounds are, for a link."""
    found = {(each.kind, each.against, each.case, each.figure): each for each in _ratios(run) if each.side == OURS}
    rows: dict[str, list[str]] = {}
    for name, place in SUMMARY.items():
        kind, against, case, figure = place
        ratio = found.get(place)
        spread = (
            f"{case}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else f"{case}: not measured"
        )
        behind = ratio is not None and not _ahead(name, ratio.median)
        rows.setdefault(what(kind, figure) + _over(against), []).append(f"**{spread}**" if behind else spread)
    made = f"{verdict(run)} Made by `make bench`; [{raw}]({raw}) has every round."
    table = ["| ours over MM2's | by case: median of the rounds, lowest and highest; **behind** |", "| --- | --- |"]
    table += [f"| {name} | {'; '.join(cases)} |" for name, cases in rows.items()]
    lines = ["# Mirrorless beside MirrorMaker 2", "", made, "", *table, ""]
    lines += [f"Counted: {', '.join(_counts(run))}.", "", _machine(run), *_unmeasured(run)]
    return "\n".join(lines) + METHOD


def what(kind: str, figure: str) -> str:
    """Words for a ratio."""
    named = KINDS.get(kind, kind)
    return f"{named}: {FIGURES[figure]}" if named else FIGURES[figure]


def verdict(run: Run) -> str:
    """Where ours is behind, first of all."""
    missing = [name for name, value in run.summary.items() if value is None]
    behind = [
        f"{what(kind, figure)}, {case}{_over(against)}"
        for name, (kind, against, case, figure) in SUMMARY.items()
        if (value := run.summary.get(name)) and not _ahead(name, value)
    ]
    failed = sum(bool(each.failed) for each in run.measurements)
    said = f"{len(run.measurements)} measurements, {failed} of them failed ({run.profile} run)."
    if run.profile != "full":
        return f"This run shows that the comparison works; its figures are too short to mean anything. {said}"
    if behind:
        return f"Behind MM2 in: {'; '.join(behind)}. {said}"
    if others := [
        f"{each.kind} {each.case}, {each.side} over {each.against}, {each.figure} {each.median:.2f}"
        for each in _ratios(run)
        if each.figure in CHIEF and not each.ahead  # the lab's poller limits our records a second
    ]:
        said = f"Behind in others: {'; '.join(others)}. {said}"
    if missing:
        return f"Not everything was measured. {said}"
    return f"Ahead of MM2 in all of the first figures. {said}"


def _over(against: str) -> str:
    return "" if against == TUNED else f", over {against}"


def _ratios(run: Run) -> list[Ratio]:
    return msgspec.convert(run.ratios, list[Ratio])


def _ahead(name: str, value: float) -> bool:
    return value <= 1 if any(part in name for part in LESS) else value >= 1


def _counts(run: Run) -> Iterator[str]:
    for name in COUNTED:
        value = run.summary.get(name)
        yield f"{COUNTS[name]}: {'not measured' if value is None else f'{value:g}'}"


def _machine(run: Run) -> str:
    minutes = max(0, run.ended_at - run.began_at) / 60_000
    return f"The machine: {', '.join(f'{name} {value}' for name, value in run.machine.items())}; {minutes:.0f} minutes."


def _unmeasured(run: Run) -> Iterator[str]:
    for each in run.unmeasured:
        why = re.sub(r"\s+", " ", each.why)
        yield f"\nNot measured: {each.what}: {why}"
