"""Several targets of the Makefile at once: `python -m tests.support.steps --jobs 5 TARGET …`.

A line says when a step begins, and what is under way each minute; what a step prints comes in one piece at its end,
with its seconds, its seconds of CPU and its result. Make's own `--output-sync` is silent until then, and comes with
Make 4.0 only.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

SAY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
LAST_BYTES: Final = 4096
PERCENT: Final = re.compile(rb"\[ *(\d+)%\]")
"""How far pytest is, at the end of its lines."""


@dataclass(frozen=True, slots=True)
class Step:
    """A target that is being made."""

    target: str
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    began: float

    @classmethod
    def begin(cls, target: str) -> Step:
        """Begin to make a target."""
        printed = tempfile.TemporaryFile()  # noqa: SIM115 -- it is closed with the step
        command = [os.environ.get("MAKE", "make"), "--no-print-directory", target]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT)
        return cls(target, process, printed, time.monotonic())

    def under_way(self) -> str:
        """Its name, its seconds, and how far it is, where it says that."""
        size = os.fstat(self.printed.fileno()).st_size
        last = os.pread(self.printed.fileno(), LAST_BYTES, max(0, size - LAST_BYTES))
        percents = PERCENT.findall(last)
        return f"{self.target} {self.seconds()} s" + (f" {int(percents[-1])} %" if percents else "")

    def seconds(self) -> int:
        """Since its begin."""
        return round(time.monotonic() - self.began)

    def show(self, cpu_seconds: float) -> None:
        """Print its result and what it has printed, and forget that. Args: cpu_seconds: that it has taken."""
        result = "FAILED" if self.process.returncode else "passed"
        _say(f"{self.target} {result} after {self.seconds()} s, {cpu_seconds:.0f} s of CPU:")
        self.printed.seek(0)
        with self.printed:
            shutil.copyfileobj(self.printed, sys.stdout.buffer)
        sys.stdout.flush()


def make(targets: Sequence[str], *, jobs: int, say_seconds: float) -> list[str]:
    """Make targets, some at a time and in this order, whether others fail or not. Returns those that failed."""
    waiting, running, failed = list(targets), list[Step](), list[str]()
    began = said_at = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Step.begin(waiting.pop(0)))
                _say(f"{running[-1].target} begins ({len(targets) - len(waiting)} of {len(targets)})")
            time.sleep(LOOK_SECONDS)
            for step in list(running):
                before = _cpu_seconds()
                if step.process.poll() is None:
                    continue
                running.remove(step)
                step.show(_cpu_seconds() - before)
                if step.process.returncode:
                    failed.append(step.target)
                said_at = time.monotonic()
                done = len(targets) - len(waiting) - len(running)
                _say(f"{done} of {len(targets)} done after {round(said_at - began)} s, {_cpu_seconds():.0f} s of CPU")
            if time.monotonic() - said_at >= say_seconds:
                said_at = time.monotonic()
                _say("under way: " + ", ".join(each.under_way() for each in running))
    except SystemExit:  # a terminal's Ctrl-C has reached them already
        for step in running:
            step.process.terminate()
        raise
    finally:
        for step in running:
            before = _cpu_seconds()
            step.process.wait()
            step.show(_cpu_seconds() - before)
    return failed


def _cpu_seconds() -> float:
    """Of the steps that have ended, and of all that they have started and waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def main() -> int:
    """Make the targets; 1 where some failed, which are named last."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.steps", description="Make targets at once.")
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--say-seconds", type=float, default=SAY_SECONDS, help="between lines of what is under way")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = make(given.targets, jobs=given.jobs, say_seconds=given.say_seconds)
    _say(f"FAILED: {', '.join(failed)}" if failed else f"all {len(given.targets)} passed")
    return int(bool(failed))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
