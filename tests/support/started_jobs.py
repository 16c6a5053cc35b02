"""Drivers of jobs that this process has started on this machine."""

from __future__ import annotations

from cli.jobs.local import _STARTED


def end_started() -> None:
    """End them, and wait: one that has written its result may still be about to end, and Python warns of it."""
    for process in _STARTED.values():
        process.kill()
        process.wait()
    _STARTED.clear()
