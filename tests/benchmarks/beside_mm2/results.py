"""Results of a run: every measurement with its raw figures, in a file that is whole at any moment.

Nothing is averaged, corrected or dropped here: a measurement that failed stands there with its reason. A run that was
interrupted can be resumed: what the file has is not measured again, and what failed is tried once more.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 1
Figures = dict[str, float]
Against = Sequence[str]
"""The other sides of a side's pairs; `("",)` where it stands alone."""
TIMES = ("seconds", "cpu_s", "poller_cpu_s", "records_per_s", "records_per_cpu_s", "p50_ms", "p99_ms", "p999_ms")
SHOWN = (*TIMES, "duplicates", "duplicates_uncommitted", "lost")
"""Of a measurement's figures, on the terminal."""
SHORT = 100
"""Above this, a figure on the terminal has no decimals."""


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


class Run(msgspec.Struct, kw_only=True):
    """A whole run, as the file holds it."""

    format: int = FORMAT
    profile: str
    began_at: int
    ended_at: int = 0
    machine: dict[str, str] = {}
    method: dict[str, str] = {}
    summary: dict[str, float | None] = {}
    ratios: list[dict[str, Any]] = []
    warm_ups: list[WarmUp] = []
    measurements: list[Measurement] = []
    unmeasured: list[Unmeasured] = []


@dataclass(slots=True)
class Results:
    """The results file."""

    path: Path
    run: Run
    say: Callable[[str], None]
    finish: Callable[[Run], None] = lambda _: None
    """Adds what follows from the measurements."""
    _said: str = ""
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
        shown = f"FAILED: {measurement.failed.splitlines()[0]}" if measurement.failed else _shown(measurement.figures)
        place = f"{measurement.kind} {measurement.case}"
        line = f"{place:<24} round {measurement.round}  {measurement.side:<24} {shown}"
        if line != self._said:  # the same one, in another pair
            self.say(line)
        self._said = line

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
                self.add(Measurement(**place, against=other, figures=figures, failed=failed, at=now()))
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
        self.run.ended_at = now()
        fresh = self.path.with_suffix(".fresh")
        fresh.write_bytes(self.encoded())
        fresh.replace(self.path)

    def encoded(self) -> bytes:
        """What the file holds: JSON, with what follows from the measurements."""
        self.finish(self.run)
        return json.dumps(msgspec.to_builtins(self.run), indent=1).encode()


def open_results(
    path: Path, *, profile: str, say: Callable[[str], None], finish: Callable[[Run], None], resume: bool
) -> Results:
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
        run = Run(profile=profile, began_at=now(), machine=machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Results(path, run, say, finish)


def this_machine() -> dict[str, str]:
    """What the figures depend on."""
    cores = os.cpu_count() or 1
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()[:1]
    return {
        "processor": model or platform.machine(),
        "cores": str(cores),
        "memory": f"{memory / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java[0] if java else "",
    }


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def _shown(figures: Mapping[str, float]) -> str:
    shown = ((name, figures[name]) for name in SHOWN if name in figures)
    return ", ".join(f"{name} {value:,.0f}" if value > SHORT else f"{name} {value:.3g}" for name, value in shown)
