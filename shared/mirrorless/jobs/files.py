"""The files of a job run, in a folder of its own.

    jobs/<run id>/request.json        the request; written once, when the run is started
    jobs/<run id>/plan.json           the plan, lane by lane; written by the driver before it begins
    jobs/<run id>/lanes/<lane>.json   the progress of each lane; written by its task, every few seconds
    jobs/<run id>/progress.json       the sum, with the run's state; written by the driver
    jobs/<run id>/report.json, .html  the report; written last, by the driver

The folder is in the flow's part of the deployment's bucket, or anywhere on disk for a run on this machine. The
correctness of a job rests on the chains alone: losing the folder loses the report, nothing else.
"""

from __future__ import annotations

REQUEST, PLAN, PROGRESS, REPORT, PAGE = "request.json", "plan.json", "progress.json", "report.json", "report.html"


def lane_file(topic: str, partition: int, what: str = "lanes") -> str:
    """The name of the file with the progress of a lane."""
    return f"{what}/{topic}-{partition}.json"
