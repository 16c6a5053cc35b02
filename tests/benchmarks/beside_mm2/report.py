"""The results of a run, the ratios of ours over MM2's that follow from them, and the page that shows both.

A ratio is formed only within a pair: the same round, the same records, one right after the other.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec
import psutil

from mirrorless.clock import now_ms
from tests.benchmarks.beside_mm2.sides import OURS

FORMAT = 1
Figures = dict[str, float]
Against = Sequence[str]
"""The other sides of a side's pairs; `("",)` where it stands alone."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measurement of one side."""

    kind: str
    """`throughput`, `latency`, ..."""
    against: str = ""
    """The other side of the pair, or nothing: ratios are formed within such a pair."""
    case: str
    """`100B-x6`, `1000/s`, ..."""
    round: int
    """From 1."""
    side: str
    figures: Figures = {}
    failed: str = ""
    """Why there are no figures."""
    at: int = 0
    """ms since the epoch."""

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What makes it this measurement and no other."""
        return self.kind, self.against, self.case, self.round, self.side


class Unmeasured(msgspec.Struct, frozen=True):
    """What the report says instead of a number."""

    what: str
    why: str


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """The copies before the first round, which are not measurements."""

    against: str
    case: str
    cpu_s: tuple[float, ...]
    """Of the other side, copy by copy."""
    steady: bool
    """Whether the last two differ by less than a twentieth."""


Better = Literal["more", "less"]


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Ours over theirs, of one figure in one case."""

    kind: str
    side: str
    """Ours, where there is more than one way to run it."""
    against: str
    case: str
    figure: str
    better: Better
    per_round: tuple[float, ...]
    median: float
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        """Whether the median is in our favour, or even."""
        return self.median >= 1 if self.better == "more" else self.median <= 1


class Run(msgspec.Struct, kw_only=True):
    """A whole run, as the file holds it."""

    format: int = FORMAT
    profile: str
    began_at: int
    ended_at: int = 0
    machine: dict[str, str] = {}
    summary: dict[str, float | None] = {}
    ratios: list[Ratio] = []
    warm_ups: list[WarmUp] = []
    measurements: list[Measurement] = []
    unmeasured: list[Unmeasured] = []


@dataclass(slots=True)
class Results:
    """The results file."""

    path: Path
    run: Run
    say: Callable[[str], None]
    _known: dict[tuple[str, str, str, int, str], Measurement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what the run holds already."""
        self._known = {each.key: each for each in self.run.measurements if not each.failed}

    def has(self, kind: str, against: str, case: str, number: int, sides: Iterable[str]) -> bool:
        """Whether this round was measured already, all of these sides."""
        return all((kind, against, case, number, side) in self._known for side in sides)

    def add(self, measurement: Measurement) -> None:
        """Keep a measurement, in the file as well; also beside a try of it that failed."""
        self.run.measurements.append(measurement)
        if not measurement.failed:
            self._known[measurement.key] = measurement
        self.write()
        shown = ", ".join(f"{name} {value:,.3g}" for name, value in measurement.figures.items())
        place = f"{measurement.kind} {measurement.case} round {measurement.round}"
        self.say(f"{place:<32} {measurement.side:<24} {measurement.failed or shown}")

    def measure(
        self,
        what: Callable[[], Mapping[str, Figures]],
        *,
        kind: str,
        case: str,
        turn: int,
        sides: Mapping[str, Against],
    ) -> bool:
        """Measure once, and keep the figures or why there are none; whether there are some.

        Args:
            what: gives the figures by side; whatever it raises, others are measured after it.
            kind: of the measurement.
            case: of the kind.
            turn: its round.
            sides: those that are measured, each with the other sides of its pairs.
        """
        found, failed = dict[str, Figures](), ""
        try:
            found = dict(what())
        except Exception as exc:  # noqa: BLE001 -- the next may succeed; this one is kept as failed
            failed = f"{type(exc).__name__}: {exc}"
        for side, against in sides.items():
            figures = found.get(side, {})
            place: dict[str, Any] = {"kind": kind, "case": case, "round": turn, "side": side}
            for other in against:
                self.add(Measurement(**place, against=other, figures=figures, failed=failed, at=now_ms()))
        return not failed

    def warmed_up(self, warm_up: WarmUp) -> None:
        """Keep how warm the other side was."""
        self.run.warm_ups.append(warm_up)
        self.write()

    def not_measured(self, what: str, why: str) -> None:
        """Say in the report what is missing, and why."""
        self.run.unmeasured = [each for each in self.run.unmeasured if each.what != what] + [Unmeasured(what, why)]
        self.write()
        self.say(f"not measured: {what}: {why.splitlines()[0] if why else ''}")

    @contextmanager
    def attempting(self, what: str) -> Iterator[None]:
        """Go on with the next part when this one fails; the report says so."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 -- whatever it is, it must not cost what else can be measured
            self.not_measured(what, f"{type(exc).__name__}: {exc}")
        else:
            self.run.unmeasured = [each for each in self.run.unmeasured if each.what != what]

    def write(self) -> None:
        """Write the file anew, whole or not at all."""
        self.run.ended_at = now_ms()
        fresh = self.path.with_suffix(".fresh")
        fresh.write_bytes(self.encoded())
        fresh.replace(self.path)

    def encoded(self) -> bytes:
        """What the file holds: JSON, with what follows from the measurements."""
        conclude(self.run)
        return json.dumps(msgspec.to_builtins(self.run), indent=1).encode()


def open_results(path: Path, *, profile: str, say: Callable[[str], None], resume: bool) -> Results:
    """The results of a new run, or of one that was interrupted.

    Raises:
        ValueError: the file is no run of this profile and machine.
    """
    machine = this_machine()
    if resume and path.exists():
        run = msgspec.json.decode(path.read_bytes(), type=Run)
        if (run.format, run.profile, run.machine) != (FORMAT, profile, machine):
            raise ValueError(f"{path} is not of this profile, machine and version: measure anew, without --resume")
    else:
        run = Run(profile=profile, began_at=now_ms(), machine=machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Results(path, run, say)


def this_machine() -> dict[str, str]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()[:1]
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java[0] if java else "",
    }


# Ratios

_COPIED: tuple[tuple[str, Better], ...] = (
    ("records_per_cpu_s", "more"),
    ("records_per_s", "more"),
    ("resident_mb", "less"),
)
_LATE: tuple[tuple[str, Better], ...] = (
    ("p50_ms", "less"),
    ("p99_ms", "less"),
    ("p999_ms", "less"),
    ("cpu_s_per_million", "less"),
)
COMPARED: Mapping[str, tuple[tuple[str, Better], ...]] = {
    "throughput": (*_COPIED, ("cpu_s_per_million_with_poller", "less")),
    **dict.fromkeys(("pull", "pass-through", "pass-through, three replicas", "backfill"), _COPIED),
    **dict.fromkeys(("latency", "pull latency"), _LATE),
    "catch-up": (("seconds", "less"), ("cpu_s", "less")),
    "recovery": (("seconds", "less"),),
}
"""By kind of measurement: which figures are compared, and whether more or less of it is better."""

EXACTLY_ONCE_TUNED, EXACTLY_ONCE = "MM2 exactly once, tuned", "MM2 exactly once"

_SIZES: Mapping[str, str] = {"100B": "100B", "1KB": "1000B", "10KB": "10000B"}
_FIGURES: Mapping[str, str] = {"cpu": "records_per_cpu_s", "wall": "records_per_s"}
_PASSED: Mapping[str, tuple[str, str, str, str]] = {
    f"passthrough_{ratio}_ratio_{name}_{batch}": ("pass-through", EXACTLY_ONCE_TUNED, f"{size}-x6-{batch}", figure)
    for ratio, figure in _FIGURES.items()
    for batch in ("16KB", "256KB")
    for name, size in _SIZES.items()
}
SUMMARY: Mapping[str, tuple[str, str, str, str]] = {
    **{
        f"cpu_ratio_{name}{suffix}": ("throughput", against, f"{_SIZES[name]}-x6", "records_per_cpu_s")
        for against, suffix, names in ((EXACTLY_ONCE_TUNED, "", _SIZES), (EXACTLY_ONCE, "_default", ("100B", "1KB")))
        for name in names
    },
    "p99_ratio_1000rps": ("latency", EXACTLY_ONCE_TUNED, "1000/s", "p99_ms"),
    "p99_ratio_1000rps_default": ("latency", EXACTLY_ONCE, "1000/s", "p99_ms"),
    **{
        f"pull_{ratio}_ratio_{name}": ("pull", EXACTLY_ONCE_TUNED, f"{size}-x6", figure)
        for ratio, figure in _FIGURES.items()
        for name, size in _SIZES.items()
    },
    "pull_p99_ratio_1000rps": ("pull latency", EXACTLY_ONCE_TUNED, "1000/s", "p99_ms"),
    "pull_memory_ratio": ("pull", EXACTLY_ONCE_TUNED, "1000B-100x6", "resident_mb"),
    **_PASSED,
    **{
        f"{name}_three_replicas": (f"{kind}, three replicas", other, case, figure)
        for name, (kind, other, case, figure) in _PASSED.items()
        if "_1KB_" in name
    },
    **{
        f"backfill_{ratio}_ratio_{batch}": ("backfill", EXACTLY_ONCE_TUNED, f"1000B-x12-{batch}", figure)
        for ratio, figure in _FIGURES.items()
        for batch in ("16KB", "256KB")
    },
    "recovery_ratio_target_broker": ("recovery", EXACTLY_ONCE_TUNED, "target broker killed", "seconds"),
}
"""The figures that come first: kind, other side, case, figure."""


COUNTED: Mapping[str, tuple[str, str, str]] = {
    "write_units_per_event_6_lanes": ("offset map", "6 lanes", "write_units_per_event"),
    "stored_bytes_per_event_6_lanes": ("offset map", "6 lanes", "stored_bytes_per_event"),
}
"""First figures that stand for themselves: kind, case, figure."""


def ratios(measurements: Iterable[Measurement]) -> list[Ratio]:
    """Every ratio that the measurements allow, in their order."""
    rounds: dict[tuple[str, str, str, int], dict[str, Measurement]] = defaultdict(dict)
    for each in measurements:
        if not each.failed:
            rounds[each.kind, each.against, each.case, each.round][each.side] = each
    found: dict[tuple[str, str, str, str, str, Better], list[float]] = defaultdict(list)
    for (kind, against, case, _), sides in rounds.items():
        theirs = sides.get(against)
        if theirs is None:
            continue
        for name, ours in sides.items():
            if not name.startswith(OURS):
                continue
            for figure, better in COMPARED.get(kind, ()):
                if ours.figures.get(figure) is not None and theirs.figures.get(figure):
                    ratio = ours.figures[figure] / theirs.figures[figure]
                    found[kind, name, against, case, figure, better].append(ratio)
    names = ("kind", "side", "against", "case", "figure", "better")
    return [
        Ratio(
            **dict(zip(names, place, strict=True)),  # type: ignore[arg-type]  # the last one is a literal
            per_round=tuple(each),
            median=median(each),
            low=min(each),
            high=max(each),
        )
        for place, each in found.items()
    ]


def summary(found: Iterable[Ratio]) -> dict[str, float | None]:
    """The first figures; None where a measurement is missing."""
    medians = {(each.kind, each.against, each.case, each.figure): each.median for each in found if each.side == OURS}
    return {name: medians.get(place) for name, place in SUMMARY.items()}


def counted(measurements: Iterable[Measurement]) -> dict[str, float | None]:
    """The first figures that are no ratios; None where a measurement is missing."""
    figures = {(each.kind, each.case, name): value for each in measurements for name, value in each.figures.items()}
    return {name: figures.get(place) for name, place in COUNTED.items()}


def conclude(run: Run) -> None:
    """Write into a run what follows from its measurements."""
    found = ratios(run.measurements)
    run.ratios = found
    run.summary = summary(found) | counted(run.measurements)


# The page

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

The raw figures have more: catching up from a cold start, a killed replicator, and each round's memory and CPU.
"""


def page(run: Run, *, raw: str) -> str:
    """Markdown. Args: raw: where the figures of all rounds are, for a link."""
    found = _firsts(run)
    rows: dict[str, list[str]] = {}
    for kind, against, case, figure in SUMMARY.values():
        ratio = found.get((kind, against, case, figure))
        spread = (
            f"{case}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else f"{case}: not measured"
        )
        behind = ratio is not None and not ratio.ahead
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
    found = _firsts(run)
    behind = [
        f"{what(kind, figure)}, {case}{_over(against)}"
        for kind, against, case, figure in SUMMARY.values()
        if (ratio := found.get((kind, against, case, figure))) is not None and not ratio.ahead
    ]
    failed = sum(bool(each.failed) for each in run.measurements)
    said = f"{len(run.measurements)} measurements, {failed} of them failed ({run.profile} run)."
    if run.profile != "full":
        return f"This run shows that the comparison works; its figures are too short to mean anything. {said}"
    if behind:
        return f"Behind MM2 in: {'; '.join(behind)}. {said}"
    if others := [
        f"{each.kind} {each.case}, {each.side} over {each.against}, {each.figure} {each.median:.2f}"
        for each in run.ratios
        if each.figure in CHIEF and not each.ahead  # the lab's poller limits our records a second
    ]:
        said = f"Behind in others: {'; '.join(others)}. {said}"
    if missing:
        return f"Not everything was measured. {said}"
    return f"Ahead of MM2 in all of the first figures. {said}"


def _over(against: str) -> str:
    return "" if against == EXACTLY_ONCE_TUNED else f", over {against}"


def _firsts(run: Run) -> dict[tuple[str, str, str, str], Ratio]:
    """Our ratios by their places in `SUMMARY`."""
    return {(each.kind, each.against, each.case, each.figure): each for each in run.ratios if each.side == OURS}


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
