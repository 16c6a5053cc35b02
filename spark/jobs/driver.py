"""The driver of every job: reads the request, writes progress and metrics, runs the job, writes the report.

    python spark/backfill.py s3://bucket/flows/us-east_eu-west/jobs/<run id>

SIGTERM (a cancelled run on EMR Serverless, by way of Java: see `spark.jobs.context`) and SIGINT (Ctrl-C) end the run:
what it holds is let go. While the driver waits for an answer of Java, its Spark jobs are ended from another thread, and
the answer brings the end: an answer that is left unread would be waited for by the next call, until all is copied.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.aws.metrics import METRICS_EVERY_MS, emit_progress
from mirrorless.clock import now_ms
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.flow.naming import ENDS_ONCE_VARIABLE
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.jobs.progress import EVERY_MS, JobState, LaneProgress, add_up, by_lane
from mirrorless.jobs.request import PAGE, PROGRESS, REPORT, REQUEST, JobRequest, decode_request
from mirrorless.ports.stores import JobFiles
from mirrorless.reports.format import visible
from mirrorless.reports.page import render
from mirrorless.reports.report import Report
from spark.jobs.context import spark_context

PAUSES = 9
"""Between two sums of the progress, as many times as long as one takes."""

AGAIN_SECONDS: Final = 0.25
"""Between two orders to Spark to end its jobs: the next one may begin just behind an order."""

_OF_SPARK: Final = ("pyspark", "py4j")
"""Packages whose calls wait for an answer of Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of a job."""

    clean: bool
    """Whether the operator has nothing to do; the exit code is 0 then, else 3."""
    found: dict[str, Any]
    """Of `report.json`, beside `report`: plain values, `totals` among them."""
    report: Report


@dataclass(slots=True)
class JobRun:
    """The state of a job run in its driver."""

    request: JobRequest
    files: JobFiles
    started_at: int
    phase: str = ""
    state: JobState = "starting"
    error: str = ""
    clean: bool | None = None
    """None until there is a report."""
    cancelled: bool = False
    """Whether a signal has ended the run: what fails from then on is its end."""
    samples: list[tuple[int, int]] = field(default_factory=list)
    """Of the whole: ms since the run began, and records copied by then."""
    _context: SparkContext | None = None
    _starting: threading.Thread | None = None
    _not_started: Exception = field(default_factory=Exception)
    _waiting: Mapping[str, LaneProgress] = field(default_factory=dict)
    _done: dict[str, LaneProgress] = field(default_factory=dict)
    """By file: read once, where there may be 50,000 to read every few seconds."""
    _over: threading.Event = field(default_factory=threading.Event)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _measured_at: int = 0

    @property
    def context(self) -> SparkContext:
        """Spark for tasks, started when it is first needed, or by `start_spark` before.

        Always in a thread: in the main one it would take the signal of Ctrl-C.

        Raises:
            Cancelled: the run is being ended.
        """
        if self.cancelled:
            raise Cancelled
        self.start_spark().join()
        if self._context is None:
            self._starting = None  # what failed beside the plan is tried once more
            self.start_spark().join()
        if self._context is None:
            raise self._not_started
        return self._context

    def start_spark(self) -> threading.Thread:
        """Start Spark in a thread, while the driver reads the facts for its plan."""
        if self._starting is None:
            self._starting = threading.Thread(target=self._start_spark, name="spark", daemon=True)
            self._starting.start()
        return self._starting

    def _start_spark(self) -> None:
        try:
            self._context = spark_context(f"mirrorless {self.request.run_id}")
        except Exception as exc:  # noqa: BLE001 -- raised where Spark is needed
            print(f"Spark has not started: {exc!r}", file=sys.stderr)
            self._not_started = exc

    def cancel(self, _: int, frame: FrameType | None) -> None:
        """End the run: the handler of its signals.

        Raises:
            Cancelled: at once, or, where Spark is waited for, what it raises when its jobs are ended.
        """
        if self.cancelled:  # another signal would interrupt the release of the lanes
            return
        self.cancelled, self.state = True, "cancelling"
        if not _waits_for_java(frame):
            raise Cancelled
        threading.Thread(target=self._end_spark_jobs, name="cancel", daemon=True).start()

    def _end_spark_jobs(self) -> None:
        """End what runs in Spark, and what is begun in it from now on, where it still answers: Java may be ending."""
        try:
            while not self._over.is_set() and self._context is not None:
                self._context.cancelAllJobs()
                self._over.wait(AGAIN_SECONDS)
        except Exception as exc:  # noqa: BLE001 -- the lanes are to be let go, whatever Spark says
            print(f"Spark does not end its tasks: {exc!r}", file=sys.stderr)

    def expect(self, waiting: Mapping[str, LaneProgress]) -> None:
        """Count lanes that wait, so that the sum is right from the beginning; by the file that each will write."""
        self._waiting = waiting

    def lanes(self) -> list[LaneProgress]:
        """The progress of every lane: as its task wrote it, or of one that waits."""
        names = [name for name in self.files.names("lanes/") if name not in self._done]
        found = zip(names, in_parallel(self.files.read, names), strict=True)
        running = {name: msgspec.json.decode(text, type=LaneProgress) for name, text in found if text}
        self._done |= {name: each for name, each in running.items() if each.state == "done"}
        return by_lane({**self._waiting, **self._done, **running}.values())

    def write_progress(self) -> None:
        """Add up the lanes, and write the sum for `follow`."""
        with self._writing:  # so that an older sum of the thread never replaces the end
            progress = add_up(
                self.lanes(),
                run_id=self.request.run_id,
                kind=self.request.kind,
                flow=self.request.flow.flow,
                state=self.state,
                phase=self.phase,
                started_at=self.started_at,
                at=now_ms(),
                pid=os.getpid(),
                error=self.error,
            )
            self.samples.append((progress.at - self.started_at, progress.records))
            self.files.write(PROGRESS, msgspec.json.encode(progress))
            if self._over.is_set() or progress.at >= self._measured_at + METRICS_EVERY_MS:
                emit_progress(progress, clean=self.clean)
                self._measured_at = progress.at

    def watch(self) -> threading.Thread:
        """Write the progress every few seconds, in a thread, until `end`."""
        thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        thread.start()
        return thread

    def end(self, state: JobState, error: str = "") -> None:
        """Write the last of the progress."""
        self._over.set()
        self.state, self.error = state, error
        self.write_progress()

    def _watch(self) -> None:
        took = 0.0
        # To list and read the notes of 50,000 lanes may take seconds: that is not to be all that the driver does.
        while not self._over.wait(max(EVERY_MS / 1000, PAUSES * took)):
            began = time.monotonic()
            try:
                self.write_progress()
            except MirrorlessError as exc:
                print(visible(f"progress is not written: {exc}"), file=sys.stderr)  # the job continues
            took = time.monotonic() - began


Job = Callable[[JobRun], JobOutcome]


class Cancelled(BaseException):
    """A signal ended the run."""


def drive(job: Job, arguments: Iterable[str] | None = None) -> int:
    """Run a job from its folder; 0 when it is clean, 3 when it needs the operator, 1 when it failed."""
    places = list(sys.argv[1:] if arguments is None else arguments)
    if len(places) != 1:
        print("usage: the URI or path of the run's folder, with its request.json", file=sys.stderr)
        return 2
    files = open_job_files(places[0])
    text = files.read(REQUEST)
    if text is None:
        raise ConfigurationError("there is no request", where=f"{files.place}/{REQUEST}")
    run = JobRun(decode_request(text), files, now_ms())
    if os.environ.get(ENDS_ONCE_VARIABLE) and (ended := _ended_before(files)) is not None:
        return ended

    signal.signal(signal.SIGTERM, run.cancel)
    signal.signal(signal.SIGINT, run.cancel)
    run.state = "running"
    run.write_progress()
    run.watch()
    try:
        outcome = job(run)
        content = {"run_id": run.request.run_id, "kind": run.request.kind, "clean": outcome.clean} | outcome.found
        content["report"] = msgspec.to_builtins(outcome.report)
        files.write(REPORT, json.dumps(content, indent=2).encode())
        files.write(PAGE, render(outcome.report).encode())
        run.clean = outcome.clean
        run.end("succeeded")
    except MirrorlessError as exc:
        if run.cancelled:
            return _ended_by_the_operator(run)
        run.end("failed", str(exc))
        print(visible(f"mirrorless: {exc}"), file=sys.stderr)
        return 1
    except BaseException as exc:
        if run.cancelled or isinstance(exc, Cancelled):
            return _ended_by_the_operator(run)
        run.end("failed", f"{type(exc).__name__}: {exc}")
        raise
    return 0 if outcome.clean else 3


def _waits_for_java(frame: FrameType | None) -> bool:
    """Whether what is being done is a call of Spark."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _OF_SPARK:
            return True
        frame = frame.f_back
    return False


def _ended_by_the_operator(run: JobRun) -> int:
    run.end("cancelled", "ended by the operator")
    return 1


def _ended_before(files: JobFiles) -> int | None:
    """The exit code of an earlier attempt of this run; None where it left no report."""
    text = files.read(REPORT)
    return None if text is None else 0 if json.loads(text)["clean"] else 3
