"""The end of a job's driver by a signal: what it holds is let go, and its notes say so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from pyspark import SparkContext

from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from spark.jobs.driver import Cancelled, JobOutcome, JobRun, drive
from tests.support.flows import make_flow


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A driver takes the process's signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder."""
    request = JobRequest("backfill-1", make_flow(), ("orders",), BackfillOptions())
    (tmp_path / "request.json").write_bytes(encode_request(request))
    return tmp_path


def end_of(folder: Path) -> JobProgress:
    """The last progress of a run."""
    return msgspec.json.decode((folder / "progress.json").read_bytes(), type=JobProgress)


def test_a_second_signal_does_not_interrupt_the_release_of_the_lanes(folder: Path) -> None:
    def job(run: JobRun) -> JobOutcome:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            run.files.write("let-go", b"")

    assert drive(job, [str(folder)]) == 1
    assert (folder / "let-go").exists()
    assert end_of(folder).state == "cancelled"


@dataclass(slots=True)
class Java:
    """Spark's other half: it answers a call once its jobs are ended."""

    answered: threading.Event = field(default_factory=threading.Event)
    calls: int = 0

    def cancelAllJobs(self) -> None:  # noqa: N802 -- Spark's name
        """End every job."""
        self.calls += 1
        self.answered.set()


CALL = """
def call(begin, answered):
    begin()
    return answered.wait(20)
"""


@pytest.mark.parametrize("module", ["py4j.clientserver", "pyspark.core.rdd"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_inside_a_call_of_spark_ends_its_jobs_and_the_answer_is_read(
    folder: Path, module: str, number: signal.Signals
) -> None:
    """Left unread it would be the answer to the next call, which waits for it until all is copied."""
    java, spark, states = Java(), dict[str, Any](__name__=module), list[str]()
    exec(CALL, spark)  # noqa: S102 -- a function of that module

    def job(run: JobRun) -> JobOutcome:
        run._context = cast("SparkContext", java)
        assert spark["call"](lambda: os.kill(os.getpid(), number), java.answered)
        states.append(run.state)
        with pytest.raises(Cancelled):
            _ = run.context  # nothing more is begun
        os.kill(os.getpid(), number)  # the lanes are being let go
        raise RuntimeError("Job 0 cancelled part of cancellation of all jobs")  # as Spark's answer says

    assert drive(job, [str(folder)]) == 1
    assert states == ["cancelling"]
    assert end_of(folder).state == "cancelled"


def test_spark_is_told_again_and_again_for_its_next_job_may_begin_behind_an_order(folder: Path) -> None:
    java, spark = Java(), dict[str, Any](__name__="pyspark.core.rdd")
    exec(CALL, spark)  # noqa: S102 -- a function of that module

    def job(run: JobRun) -> JobOutcome:
        run._context = cast("SparkContext", java)
        for _ in range(3):
            java.answered.clear()
            assert spark["call"](lambda: os.kill(os.getpid(), signal.SIGTERM), java.answered)
        raise RuntimeError("Job 2 cancelled part of cancellation of all jobs")

    assert drive(job, [str(folder)]) == 1
    assert java.calls >= 3


def test_what_fails_behind_a_signal_is_the_end_of_a_cancelled_run(folder: Path) -> None:
    def job(_: JobRun) -> JobOutcome:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError
        except Cancelled:
            raise RuntimeError("Java has ended") from None

    assert drive(job, [str(folder)]) == 1
    assert end_of(folder).state == "cancelled"
