"""Ratios of ours over MM2's, round by round, with median and spread. Pure.

A ratio is formed only within a pair: the same round, the same records, one right after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Literal

import msgspec

from tests.benchmarks.beside_mm2.results import Measurement, Run
from tests.benchmarks.beside_mm2.sides import OURS

Better = Literal["more", "less"]

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
    run.ratios = [_plain(each) for each in found]
    run.summary = summary(found) | counted(run.measurements)


def _plain(ratio: Ratio) -> dict[str, Any]:
    plain = msgspec.to_builtins(ratio)
    assert isinstance(plain, dict)
    return plain
