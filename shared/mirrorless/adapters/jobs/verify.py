"""The verify job, wired."""

from __future__ import annotations

from mirrorless.adapters.jobs.driver import JobRun, Outcome


def verify(run: JobRun) -> Outcome:
    """Run it."""
    raise NotImplementedError(run.request.kind)
