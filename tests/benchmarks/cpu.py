"""CPU time of a process by the kernel: /proc/<pid>/stat, in ticks of 10 ms. Linux only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.lab_process import descendants, running

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MEGABYTE_PAGES = 2**20 // os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """CPU-seconds so far, user and system."""

    replicator: float
    """Of what is paid for: MM2's process, or the function's processes."""
    poller: float = 0.0
    """Of the event source mapping's poller, which AWS runs. The lab's is a Python program."""

    def __sub__(self, earlier: Self) -> Cpu:
        return Cpu(replicator=self.replicator - earlier.replicator, poller=self.poller - earlier.poller)


def own(pid: int) -> float:
    """CPU-seconds of a process, all its threads; 0 when it is gone."""
    return sum(_times(pid)[:2])


def children(pid: int) -> float:
    """CPU-seconds of a process's children: of those that live, and of those that it has reaped."""
    living = (child for (child, _), parent in running().items() if parent == pid)
    return sum(_times(pid)[2:]) + sum(sum(_times(child)) for child in living)


def family(pid: int) -> float:
    """CPU-seconds of a process and of everything that came of it, as far as that lives or was waited for."""
    return sum(sum(_times(each)) for each in _everybody(pid))


def family_resident_mb(pid: int) -> float:
    """Resident memory of a process and of everything that came of it, in MB; shared pages count in each."""
    return sum(map(resident_mb, _everybody(pid)))


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) / _MEGABYTE_PAGES
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def _everybody(pid: int) -> set[int]:
    return {pid} | {child for child, _ in descendants(pid)}


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP), or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _times(pid: int) -> tuple[float, ...]:
    """User and system time, and the same of children that were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return (0.0, 0.0, 0.0, 0.0)
    return tuple(int(each) / TICKS_PER_SECOND for each in fields[11:15])
