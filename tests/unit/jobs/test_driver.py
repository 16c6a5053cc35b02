"""A job's driver: the plan that it shows, the progress that it adds up, Spark's start, and its end by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import msgspec
import pytest
from pyspark import SparkContext

from cli.jobs.plan import is_refused, show_plan
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.plan import CheckFinding, JobPlan, PlannedLane
from mirrorless.jobs.progress import JobProgress, LaneProgress, LaneStateName, add_up, write_progress
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request, lane_file
from spark.jobs import driver
from spark.jobs.driver import Cancelled, JobOutcome, JobRun, drive
from tests.support.flows import make_flow

# The plan

COPIED = PlannedLane(
    topic="orders",
    partition=3,
    lane_topic="orders",
    write_topic="us-east.orders",
    range=OffsetRange(10, 2_000),
    position=500,
    offsets=1_500,
    bytes=150_000,
)
PLAN = JobPlan(
    run_id="backfill-1",
    flow="us-east->eu-west",
    lanes=(COPIED,),
    findings=(CheckFinding(severity="warn", check="retention", where="orders-3", text="gone"),),
    records=1_500,
    bytes=150_000,
    seconds=121.5,
    dollars=0.02,
    priced="2026-11-01",
    lanes_at_a_time=1,
)


def backfill(*, force: bool = False) -> JobRequest:
    return JobRequest(run_id="backfill-1", flow=make_flow(), topics=("orders",), options=BackfillOptions(force=force))


def test_a_dry_run_shows_the_plan_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(backfill(), PLAN, as_json=True)

    assert json.loads(capsys.readouterr().out) == {
        "kind": "backfill",
        "flow": "us-east->eu-west",
        "lanes": [{"lane": "orders-3", "read": "upstream 500 to 2,000", "offsets": 1_500, "bytes": 150_000}],
        "offsets": 1_500,
        "bytes": 150_000,
        "seconds": 121.5,
        "dollars": 0.02,
        "priced": "2026-11-01",
        "refused": True,
        "findings": [{"severity": "warn", "where": "orders-3", "text": "gone"}],
    }


def test_plan_json_has_the_fields_of_a_backfill_and_no_others() -> None:
    written = json.loads(msgspec.json.encode(PLAN))

    assert set(written) == {
        "run_id", "flow", "lanes", "findings", "records", "bytes", "seconds", "dollars", "priced", "lanes_at_a_time",
        "hands_over",
    }  # fmt: skip
    assert set(written["lanes"][0]) == {
        "topic", "partition", "lane_topic", "write_topic", "range", "position", "offsets", "bytes", "group",
        "expires_at",
    }  # fmt: skip
    assert set(written["findings"][0]) == {"severity", "check", "where", "text"}


@pytest.mark.parametrize(("severity", "force", "refused"), [
    ("refuse", False, True),
    ("refuse", True, True),
    ("warn", False, True),
    ("warn", True, False),
    ("info", False, False),
])  # fmt: skip
def test_only_warnings_give_way_to_force(severity: str, force: bool, refused: bool) -> None:  # noqa: FBT001 -- given
    finding = msgspec.convert({"severity": severity, "check": "c", "where": "w", "text": "t"}, CheckFinding)

    assert is_refused(backfill(force=force), msgspec.structs.replace(PLAN, findings=(finding,))) is refused


# Progress, and Spark


@pytest.fixture
def run(tmp_path: Path) -> JobRun:
    """A run that has just begun."""
    request = JobRequest("backfill-1", make_flow(), ("orders",), BackfillOptions())
    return JobRun(request, open_job_files(str(tmp_path)), 1)


def test_a_lane_that_waits_counts_until_its_task_writes(run: JobRun) -> None:
    waiting = {lane_file("orders", each): LaneProgress(lane=f"orders-{each}", total=10) for each in range(2)}
    run.expect(waiting)
    assert [each.done for each in run.lanes()] == [0, 0]
    assert not list(run.files.names("lanes/"))
    write_progress(run.files, "orders", 1, LaneProgress(lane="orders-1", total=10, done=4))
    assert {each.lane: each.done for each in run.lanes()} == {"orders-0": 0, "orders-1": 4}


def test_lanes_that_wait_and_do_not_say_how_long_they_are_count_as_much_as_the_others() -> None:
    """A job whose first lanes are done is not done, and has time left."""
    done = LaneProgress(lane="orders-0", state="done", done=10, total=10)
    lanes = [done, LaneProgress(lane="orders-1", state="done"), *(LaneProgress(lane=f"orders-{n}") for n in (2, 3))]

    found = add_up(lanes, run_id="r", kind="verify", flow="a->b", state="running", phase="", started_at=0, at=8_000)

    assert (found.done, found.total, found.seconds_left) == (10, 20, 8.0)
    assert found.lanes == {"done": 2, "waiting": 2}


def test_the_file_of_a_lane_that_is_done_is_read_once(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition, state in enumerate(("done", "running", "stopped", "failed")):
        progress = LaneProgress(lane=f"orders-{partition}", state=cast("LaneStateName", state), done=partition)
        write_progress(run.files, "orders", partition, progress)
    first, read = run.lanes(), list[str]()
    read_file = run.files.read

    def counted(name: str) -> bytes | None:
        read.append(name)
        return read_file(name)

    monkeypatch.setattr(run.files, "read", counted, raising=False)
    assert sorted(run.lanes(), key=lambda each: each.lane) == sorted(first, key=lambda each: each.lane)
    assert sorted(read) == [lane_file("orders", each) for each in (1, 2, 3)]


def test_spark_starts_beside_the_plan_and_only_once(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    may_start, started = threading.Event(), list[str]()
    context = cast("SparkContext", object())

    def spark_context(_: str) -> SparkContext:
        assert may_start.wait(20)
        started.append(threading.current_thread().name)
        return context

    monkeypatch.setattr(driver, "spark_context", spark_context)
    run.start_spark()  # does not wait
    may_start.set()
    assert run.context is context
    run.start_spark()
    assert run.context is context
    assert started == ["spark"]


def test_a_start_that_failed_beside_the_plan_is_tried_where_spark_is_needed(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = list[str]()

    def spark_context(name: str) -> SparkContext:
        tries.append(name)
        raise RuntimeError("no Java")

    monkeypatch.setattr(driver, "spark_context", spark_context)
    run.start_spark()
    with pytest.raises(RuntimeError, match="no Java"):
        _ = run.context
    assert len(tries) == 2
    assert "no Java" in capsys.readouterr().err


_IN_A_WORKER = """
import gc, importlib, sys
from zipimport import zipimporter
from spark.jobs.lane_tasks import make_worker_light
sys.path.insert(0, sys.argv[1])
import inside
assert any(isinstance(each, zipimporter) for each in sys.path_importer_cache.values())
make_worker_light()
assert not any(isinstance(each, zipimporter) for each in sys.path_importer_cache.values())
import later
first = gc.get_freeze_count()
assert first > 10_000
made = [[] for _ in range(1_000)]
make_worker_light()
assert gc.get_freeze_count() <= first
"""


def test_a_worker_reads_no_archive_anew_and_collects_only_what_its_tasks_made(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as modules:
        modules.writestr("inside.py", "")
        modules.writestr("later.py", "")
    subprocess.run([sys.executable, "-c", _IN_A_WORKER, str(archive)], check=True)


# The end by a signal: what the driver holds is let go, and its notes say so


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
