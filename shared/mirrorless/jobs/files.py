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

REQUEST, PLAN, PROGRESS, REPORT, PAGE = "request.json", "plan.json", "progress.json", "report.json", "report.html"


def lane_file(topic: str, partition: int, what: str = "lanes") -> str:
    """The file in which a lane's task says how far it is."""
    return f"{what}/{topic}-{partition}.json"
