"""Runs of jobs, on this machine or on EMR Serverless, and their exit codes.

0  it ended, and is clean
3  it ended, and found something that the operator has to look at
1  it failed, or was cancelled
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from cli.jobs.request import started_at
from mirrorless.jobs.progress import JobProgress, JobState
from mirrorless.jobs.request import PAGE, PROGRESS, REPORT, REQUEST, JobKind, JobRequest, decode_request
from mirrorless.lane import FlowName
from mirrorless.ports.stores import JobFiles

CLEAN, FAILED, LOOK = 0, 1, 3

OVER: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The state of a run."""

    run_id: str
    kind: str
    flow: str
    state: JobState
    place: str
    """URI or path of its folder."""
    progress: JobProgress | None = None
    """None until its driver has begun."""
    error: str = ""
    clean: bool | None = None
    """None until it has ended with a report."""
    verdict: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    """Values that only one of the implementations has, as they are in JSON."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    @property
    def exit_code(self) -> int:
        """The exit code of the command once the run is over."""
        if self.state != "succeeded" or self.clean is None:
            return FAILED
        return CLEAN if self.clean else LOOK

    @property
    def started_at(self) -> int:
        """When it was requested, ms since the epoch."""
        return started_at(self.run_id)

    @property
    def page(self) -> str:
        """URI or path of its page."""
        return f"{self.place}/{PAGE}"


class Runs(Protocol):
    """The runs of jobs on one platform. Every method raises Retriable when the platform does not answer."""

    def start(self, request: JobRequest, *, size: int | None) -> RunView:
        """Start a run, and return at once.

        Args:
            request: the job.
            size: executors at most, or cores on this machine; None for the default.
        """
        ...

    def inspect(self, run_id: str) -> RunView:
        """The state of a run.

        Raises:
            BadInput: there is no such run.
        """
        ...

    def cancel(self, run_id: str) -> RunView:
        """Begin to end a run, and return at once: it releases its lanes first. Raises as `inspect`."""
        ...

    def every(self, kind: JobKind, flows: Sequence[FlowName]) -> list[RunView]:
        """The known runs of a kind, the newest first."""
        ...


class _Ending(msgspec.Struct, frozen=True):
    clean: bool
    report: _Verdict


class _Verdict(msgspec.Struct, frozen=True):
    verdict: str


def read_request(files: JobFiles) -> JobRequest | None:
    """The request in a run's folder; None where the folder is not a run's."""
    text = files.read(REQUEST)
    return None if text is None else decode_request(text)


def read_progress(files: JobFiles) -> JobProgress | None:
    """The progress in a run's folder, as its driver wrote it."""
    text = files.read(PROGRESS)
    return None if text is None else msgspec.json.decode(text, type=JobProgress)


def read_ending(files: JobFiles) -> tuple[bool | None, str]:
    """Whether the run was clean, and its verdict; None and an empty text where there is no report."""
    text = files.read(REPORT)
    if text is None:
        return None, ""
    found = msgspec.json.decode(text, type=_Ending)
    return found.clean, found.report.verdict


def as_json(view: RunView) -> dict[str, Any]:
    """A run for programs."""
    return {
        "run_id": view.run_id,
        "kind": view.kind,
        "flow": view.flow,
        "state": view.state,
        "clean": view.clean,
        "verdict": view.verdict,
        "error": view.error,
        "place": view.place,
        "report": f"{view.place}/{REPORT}",
        "page": view.page,
        "progress": msgspec.to_builtins(view.progress),
        **view.more,
    }
