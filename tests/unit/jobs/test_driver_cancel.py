"""The end of a job's driver by a signal: what it holds is let go, and its notes say so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.jobs.driver import Cancelled, JobOutcome, JobRun, drive


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
    flow = FlowSettings(
        flow="us-east->eu-west",
        source=ClusterSettings(alias="us-east", bootstrap="source:9092"),
        target=ClusterSettings(alias="eu-west", bootstrap="target:9092"),
    )
    request = JobRequest("backfill-1", flow, ("orders",), BackfillOptions())
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


def test_what_fails_behind_a_signal_is_the_end_of_a_cancelled_run(folder: Path) -> None:
    def job(_: JobRun) -> JobOutcome:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError
        except Cancelled:
            raise RuntimeError("Java has ended") from None

    assert drive(job, [str(folder)]) == 1
    assert end_of(folder).state == "cancelled"
