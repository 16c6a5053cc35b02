"""What is known of a job's run, wherever it runs, and what can be done with it?

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
from mirrorless.jobs.files import PAGE, PROGRESS, REPORT, REQUEST
from mirrorless.jobs.progress import JobProgress, JobState
from mirrorless.jobs.request import JobKind, JobRequest, decode_request
from mirrorless.lane import FlowName
from mirrorless.ports.stores import JobFiles

CLEAN, FAILED, LOOK = 0, 1, 3

OVER: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it is now."""

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
    """What only where it runs knows: plain values."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    @property
    def exit_code(self) -> int:
        """What the command ends with once the run is over."""
        if self.state != "succeeded" or self.clean is None:
            return FAILED
        return CLEAN if self.clean else LOOK

    @property
    def started_at(self) -> int:
        """When it was asked for, ms since the epoch."""
        return started_at(self.run_id)

    @property
    def page(self) -> str:
        """Where its page is."""
        return f"{self.place}/{PAGE}"


class Runs(Protocol):
    """Where jobs run. Every method raises Retriable when that place does not answer."""

    def start(self, request: JobRequest, *, size: int | None) -> RunView:
        """Start a run, and answer at once.

        Args:
            request: what it is asked.
            size: executors at most, or cores on this machine; None for what is usual there.
        """
        ...

    def look(self, run_id: str) -> RunView:
        """How it is now.

        Raises:
            BadInput: there is no such run.
        """
        ...

    def cancel(self, run_id: str) -> RunView:
        """End it, and answer at once: it lets its lanes go first. Raises as `look`."""
        ...

    def every(self, kind: JobKind, flows: Sequence[FlowName]) -> list[RunView]:
        """The runs of a kind that are known, the newest first."""
        ...


class _Ending(msgspec.Struct, frozen=True):
    clean: bool
    report: _Verdict


class _Verdict(msgspec.Struct, frozen=True):
    verdict: str


def read_request(files: JobFiles) -> JobRequest | None:
    """What a folder's run was asked; None where the folder is none of a run."""
    text = files.read(REQUEST)
    return None if text is None else decode_request(text)


def read_progress(files: JobFiles) -> JobProgress | None:
    """How far its driver says it is."""
    text = files.read(PROGRESS)
    return None if text is None else msgspec.json.decode(text, type=JobProgress)


def read_ending(files: JobFiles) -> tuple[bool | None, str]:
    """Whether it was clean, and its verdict; None and nothing where there is no report."""
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
