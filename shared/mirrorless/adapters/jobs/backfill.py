"""The backfill job, wired."""

from __future__ import annotations

from mirrorless.adapters.jobs.driver import JobRun, Outcome


def backfill(run: JobRun) -> Outcome:
    """Run it."""
    raise NotImplementedError(run.request.kind)
