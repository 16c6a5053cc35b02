"""Runs too large for `make test`, one part after the other, and a report of what each took.

    python -m tests.benchmarks.scale --part kills
    python -m tests.benchmarks.scale --resume

Each part is a program of its own, audits what it did, and fails if a record is lost, repeated, reordered, different or
mistranslated, or if the comparison with MM2 does not run. The report is written after each part: seconds, CPU seconds
and the most resident memory of all its processes, sampled; parts in `OWN_FIGURES` give their own, of what they are
about. A part that failed keeps its last good entry; `--resume` leaves out what this commit has run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "benchmarks" / "scale-report.json"
SAMPLE_SECONDS = 0.5

PARTS: Final[dict[str, Sequence[str]]] = {
    "kills": ("tests.benchmarks.kill_backfill", "--rounds", "4", "--records", "20000"),
    "kill-failback": ("tests.benchmarks.kill_failback",),
    "backfill-live": ("tests.benchmarks.backfill_live", "--kills", "2"),
    "small-backfill": ("tests.benchmarks.small_backfill",),
    "verify": ("tests.benchmarks.verify_five_million", "--records", "20000000"),
    "reconcile": ("tests.benchmarks.reconcile_twenty_million",),
    "rounds": ("tests.benchmarks.checkpoint_rounds",),
    "failover": ("tests.benchmarks.failover_many",),
    "failover-distance": ("tests.benchmarks.failover_distance",),
    "pull-topics": ("tests.benchmarks.pull_topics",),
    "lanes": ("tests.benchmarks.many_lanes",),
    "status": ("tests.benchmarks.status_of_many",),
    "pass-through-memory": ("tests.benchmarks.pass_through_memory",),
    "upgrade": ("tests.benchmarks.rolling_upgrade",),
    "comparison": ("tests.benchmarks.beside_mm2", "--profile", "smoke", "--out", ".lab"),
}
"""By name: the module that runs, and its arguments."""

OWN_FIGURES: Final = frozenset(
    {"failover", "lanes", "pull-topics", "pass-through-memory", "reconcile", "small-backfill", "status", "verify"}
)
"""Parts that write their figures into the file named by `--figures`."""


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--resume", action="store_true", help="leave out what this commit has run")
    parser.add_argument("--report", type=Path, default=REPORT)
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.report.read_text()) if arguments.report.exists() else {}
    commit = _commit()
    failed = []
    for name in [arguments.part] if arguments.part else PARTS:
        if arguments.resume and report.get(name, {}).get("commit") == commit:
            print(f"{name}: has run on {commit}", flush=True)
            continue
        print(f"{name}: python -m {' '.join(PARTS[name])}", flush=True)
        code, took = _own(PARTS[name]) if name in OWN_FIGURES else measured([sys.executable, "-m", *PARTS[name]])
        print(f"{name}: exit code {code}, {json.dumps(took)}", flush=True)
        if code:
            failed.append(name)
            continue
        report[name] = {"command": " ".join(PARTS[name]), "commit": commit, **took}
        arguments.report.write_text(json.dumps(dict(sorted(report.items())), indent=2) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}; run again with --part", file=sys.stderr)
    return 1 if failed else 0


def _own(part: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Run a part that gives figures of its own, which take the place of those of the same names."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        figures = Path(folder, "figures.json")
        code, took = measured([sys.executable, "-m", *part, "--figures", str(figures)])
        return code, took | (json.loads(figures.read_text()) if figures.exists() else {})


def measured(command: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Run a command, and sample its processes.

    Returns:
        its exit code; `seconds`, `cpu_seconds` and `resident_mb`, of all its processes together.
    """
    began, cpu, resident = time.monotonic(), dict[tuple[int, float], float](), 0
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    root = psutil.Process(process.pid)
    while True:
        resident = max(resident, _sample(root, cpu))
        try:
            code = process.wait(SAMPLE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        seconds = time.monotonic() - began
        return code, {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(sum(cpu.values()), 1),
            "resident_mb": resident >> 20,
        }


def _sample(root: psutil.Process, cpu: dict[tuple[int, float], float]) -> int:
    """Note the CPU seconds of each process; the bytes resident now. Pages that processes share count in each."""
    resident = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0  # it ended
    for each in processes:
        try:
            with each.oneshot():
                times = each.cpu_times()
                cpu[each.pid, each.create_time()] = times.user + times.system
                resident += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # its last sample stands
    return resident


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
