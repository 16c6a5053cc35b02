"""The results of soak runs: the file of progress, the totals, and the page of a complete soak."""

from __future__ import annotations

import fcntl
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from lab.audit.audit import FINDINGS
from lab.faults.schedule import DrawnTrigger, FaultKind, RunTrigger

_SHOWN = 12
"""Kinds of faults on the page; the file of progress has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one seed came to."""

    seed: int
    trigger: RunTrigger
    records: int
    lost: int
    duplicated: int
    reordered: int
    different: int
    mistranslated: int
    faults: dict[DrawnTrigger, dict[str, int]]
    """Faults carried out, by the topic's trigger, and by kind and step."""
    stuck_seconds: dict[DrawnTrigger, dict[str, float]]
    """The longest time in which a lane was stuck at each of them; see `lab.audit.stuck_lanes`."""
    lanes_reset: int
    """Lanes that stopped for the documented reason, and went on by the documented command."""
    broker_restarts: int
    cold_starts: int
    seconds: float
    resets: int = 0
    """Commands that were carried out for them: two for a lane whose mapping had brought records of a changed source."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not any(getattr(self, finding) for finding in FINDINGS)

    def count(self) -> int:
        """How many faults were carried out."""
        return sum(sum(faults.values()) for faults in self.faults.values())

    def described(self) -> str:
        """One line."""
        verdict = "clean" if self.clean else str({finding: getattr(self, finding) for finding in FINDINGS})
        by_topic = [
            (f"{trigger}: " if len(self.faults) > 1 else "")
            + ", ".join(
                (f"{kind} x{count}" if count > 1 else kind) + f" ({self.stuck_seconds[trigger][kind]:.0f} s)"
                for kind, count in faults.items()
            )
            for trigger, faults in self.faults.items()
        ]
        resets = [f"{self.lanes_reset} lanes reset by {self.resets} commands"] if self.lanes_reset else []
        said = "; ".join([verdict, f"{self.records:,} records, {self.seconds:.0f} s", *by_topic, *resets])
        return f"seed {self.seed:3} {self.trigger:8}: {said}"


def read_results(path: Path) -> dict[int, RunResult]:
    """The results in a file of progress, by seed; none without the file."""
    if not path.exists():
        return {}
    return {int(seed): RunResult(**each) for seed, each in json.loads(path.read_text()).items()}


def add_result(path: Path, result: RunResult) -> dict[int, RunResult]:
    """Add a result to a file of progress, to which other soaks may add theirs. Returns all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read_results(path) | {result.seed: result}
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({str(seed): asdict(each) for seed, each in sorted(results.items())}, indent=1))
        draft.replace(path)
    return results


def summary(results: Iterable[RunResult]) -> str:
    """One line of totals."""
    results = list(results)
    totals = ", ".join(f"{sum(getattr(each, finding) for each in results)} {finding}" for finding in FINDINGS)
    records = sum(each.records for each in results)
    faults = sum(each.count() for each in results)
    lanes, commands = sum(each.lanes_reset for each in results), sum(each.resets for each in results)
    reset = f", {lanes} lanes reset by {commands} commands" if lanes else ""
    return f"{len(results)} schedules, {records:,} records, {faults} faults{reset}: {totals}"


def report(results: Iterable[RunResult], kafka_version: str, *, always: Sequence[FaultKind] = ()) -> str:
    """The page of a soak. Args: always: faults that each of its schedules had."""
    results = list(results)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    restarts, cold_starts = sum(each.broker_restarts for each in results), sum(each.cold_starts for each in results)
    resets = sum(each.lanes_reset for each in results)
    runs = Counter(each.trigger for each in results)
    replay = "python -m lab soak --seed 7" if always else "make soak SEED=7"
    kinds = _by_kind(results)
    longest = sorted(kinds.items(), key=lambda each: -each[1][1])
    lines = [
        f"# {'The last soak with certain faults' if always else 'The last complete soak'}",
        "",
        f"`{'python -m lab soak --always' if always else 'make soak'}` on Kafka {kafka_version}, {day}, two cores.",
        "",
        f"**{summary(results)}.**",
        "",
        *([f"Each schedule had {_all_of(always)}, and few other faults."] if always else []),
        f"Servers were restarted {restarts} times, execution environments started {cold_starts} times.",
        f"{resets} lanes stopped for the documented reason, and went on by the documented command:",
        "their remote topic was deleted or truncated, or their source lost its end.",
        "",
        f"Each schedule is drawn from its seed: `{replay}` with the same options replays one.",
        "What is counted is defined in `lab/audit/audit.py`, and for changed topics in `lab/audit/log_changes.py`.",
        "Timed-out transactions are looked for every second, not every 10 s, and a minute of `pull` lasts 10 s.",
        "",
        "| topics of a schedule | schedules |",
        "| --- | --- |",
        *(f"| {_TOPICS[trigger]} | {runs[trigger]} |" for trigger in get_args(RunTrigger) if runs[trigger]),
        "",
        "A lane is stuck until it moves again (`lab/audit/stuck_lanes.py`). Other faults may have their part.",
        "",
        f"The {_SHOWN} of {len(kinds)} kinds of faults that a lane was stuck at longest:",
        "",
        "| fault | times | stuck at most, s |",
        "| --- | --- | --- |",
        *(f"| {kind} | {count} | {stuck:.1f} |" for kind, (count, stuck) in longest[:_SHOWN]),
    ]
    return "\n".join(lines) + "\n"


def _by_kind(results: Iterable[RunResult]) -> dict[str, tuple[int, float]]:
    """How often each kind of fault was carried out, at whatever step, and the longest that a lane was stuck at it."""
    found: dict[str, tuple[int, float]] = {}
    for result in results:
        for trigger, faults in result.faults.items():
            for name, times in faults.items():
                kind = name.partition(" at step ")[0]
                count, stuck = found.get(kind, (0, 0.0))
                found[kind] = count + times, max(stuck, result.stuck_seconds[trigger][name])
    return found


def _all_of(kinds: Sequence[FaultKind]) -> str:
    return " and ".join(filter(None, (", ".join(f"`{each}`" for each in kinds[:-1]), f"`{kinds[-1]}`")))


_TOPICS = {
    "mapping": "one, mapped",
    "schedule": "one, read by a schedule",
    "change": "one, whose trigger changes there and back while it is written",
    "mixed": "two of one flow, one mapped and one read by a schedule",
}
