"""The progress of a job: each lane's task writes its own every few seconds, the driver adds them up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from mirrorless.jobs.request import lane_file
from mirrorless.ports.stores import JobFiles

EVERY_MS = 2_000
"""Between two writes of one lane."""

LaneStateName = Literal["waiting", "running", "done", "stopped", "failed"]
_WORST_FIRST: tuple[LaneStateName, ...] = ("failed", "stopped", "running", "waiting")
JobState = Literal["starting", "running", "cancelling", "succeeded", "failed", "cancelled"]


class LaneProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a job, as its task wrote it."""

    lane: str
    state: LaneStateName = "waiting"
    phase: str = ""
    """`copy`, `hand over`, `read target`, …."""
    done: int = 0
    """Upstream offsets below the position, of `total`."""
    total: int = 0
    records: int = 0
    """Copied, or proved, in this attempt."""
    bytes: int = 0
    """Of keys and values; of whole batches those of their payloads, compressed."""
    passed_bytes: int = 0
    """Those of `bytes` whose batches were passed as they lay in the source's log."""
    position: int = 0
    note: str = ""
    """For the operator; an error's text for `stopped` and `failed`."""
    at: int = 0
    """ms since the epoch."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """`progress.json`."""

    run_id: str
    kind: str
    flow: str
    state: JobState
    phase: str = ""
    started_at: int = 0
    at: int = 0
    done: int = 0
    total: int = 0
    """With an estimate for lanes that wait and do not say theirs: as much as the others have on average."""
    records: int = 0
    bytes: int = 0
    passed_bytes: int = 0
    records_per_second: float = 0.0
    seconds_left: float | None = None
    """None while there is no estimate."""
    lanes: dict[str, int] = {}
    """The number of lanes in each state."""
    pid: int | None = None
    """Of the driver, where it runs on the operator's machine."""
    error: str = ""
    running: tuple[LaneProgress, ...] = ()
    """The lanes in progress, and those that stopped or failed."""


def percent(passed: int, whole: int) -> float | None:
    """The share of bytes that were passed as they lay in the source's log, in percent; None where there are none."""
    return round(100 * passed / whole, 1) if whole else None


def write_progress(files: JobFiles, topic: str, partition: int, progress: LaneProgress) -> None:
    """Write the progress of one lane into the run's folder, where that takes it: nothing depends on a note."""
    try:
        files.write(lane_file(topic, partition), msgspec.json.encode(progress))
    except Exception as exc:  # noqa: BLE001 -- a lane that is finished is finished, whatever the folder's store says
        print(f"the progress of {progress.lane} is not written: {exc!r}")


def by_lane(parts: Iterable[LaneProgress]) -> list[LaneProgress]:
    """One progress for each lane, where several tasks write of parts of it."""
    lanes: dict[str, list[LaneProgress]] = {}
    for each in parts:
        lanes.setdefault(each.lane, []).append(each)
    return [each[0] if len(each) == 1 else _of_parts(each) for each in lanes.values()]


def _of_parts(parts: Sequence[LaneProgress]) -> LaneProgress:
    states = {each.state for each in parts}
    worst: LaneStateName = next((each for each in _WORST_FIRST if each in states), "done")
    if states == {"waiting", "done"}:
        worst = "running"
    return LaneProgress(
        lane=parts[0].lane,
        state=worst,
        phase=next((each.phase for each in parts if each.state == worst), ""),
        done=sum(each.done for each in parts),
        total=sum(each.total for each in parts),
        records=sum(each.records for each in parts),
        bytes=sum(each.bytes for each in parts),
        passed_bytes=sum(each.passed_bytes for each in parts),
        position=max(each.position for each in parts),
        note=next((each.note for each in parts if each.state == worst and each.note), ""),
        at=max(each.at for each in parts),
    )


def add_up(
    lanes: Iterable[LaneProgress],
    *,
    run_id: str,
    kind: str,
    flow: str,
    state: JobState,
    phase: str,
    started_at: int,
    at: int,
    pid: int | None = None,
    error: str = "",
) -> JobProgress:
    """Add up the progress of the lanes. Rates are over the whole time since the run began."""
    every = list(lanes)
    done, total = sum(each.done for each in every), sum(each.total for each in every)
    known = sum(each.state != "waiting" or each.total > 0 for each in every)
    total = round(total * len(every) / known) if known else 0
    records = sum(each.records for each in every)
    seconds = max(0.0, (at - started_at) / 1000)
    left = (total - done) * seconds / done if done and state == "running" else None
    counts: dict[str, int] = {}
    for each in every:
        counts[each.state] = counts.get(each.state, 0) + 1
    return JobProgress(
        run_id=run_id,
        kind=kind,
        flow=flow,
        state=state,
        phase=phase,
        started_at=started_at,
        at=at,
        done=done,
        total=total,
        records=records,
        bytes=sum(each.bytes for each in every),
        passed_bytes=sum(each.passed_bytes for each in every),
        records_per_second=records / seconds if seconds else 0.0,
        seconds_left=left,
        lanes=counts,
        pid=pid,
        error=error,
        running=tuple(each for each in every if each.state in {"running", "stopped", "failed"}),
    )
