"""Where does a job run keep what it was asked, how far it is, and what it found? In a folder of its own.

    jobs/<run id>/request.json        what was asked; written once, by whoever started it
    jobs/<run id>/plan.json           what will be done, lane by lane; written by the driver before it begins
    jobs/<run id>/lanes/<lane>.json   how far each lane is; written by the task that has it, every few seconds
    jobs/<run id>/progress.json       the sum, with the run's state; written by the driver
    jobs/<run id>/report.json, .html  what came of it; written last, by the driver

The folder is in the flow's part of the deployment's bucket, or anywhere on disk for a run on this machine. Nothing that
a job needs to be right is in it: that is in the chains. Losing the folder loses the report, nothing else.
"""

from __future__ import annotations

from typing import Protocol

REQUEST, PLAN, PROGRESS, REPORT, PAGE = "request.json", "plan.json", "progress.json", "report.json", "report.html"


class JobFiles(Protocol):
    """The folder of one job run. Every method raises Retriable when the store does not answer."""

    @property
    def place(self) -> str:
        """Its URI or path, to show and to open again by."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole: a reader sees the old one or the new one."""
        ...

    def read(self, name: str) -> bytes | None:
        """A file's content; None when it is not there."""
        ...

    def names(self, under: str = "") -> list[str]:
        """The files whose names begin with `under`, in order."""
        ...


def lane_file(topic: str, partition: int, what: str = "lanes") -> str:
    """The file in which a lane's task says how far it is."""
    return f"{what}/{topic}-{partition}.json"
