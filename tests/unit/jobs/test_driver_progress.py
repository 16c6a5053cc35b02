"""The progress that a driver adds up, and the start of its Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import cast
from zipfile import ZipFile

import pytest
from pyspark import SparkContext

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.jobs.progress import LaneProgress, LaneStateName, add_up, write_progress
from mirrorless.jobs.request import BackfillOptions, JobRequest, lane_file
from spark.jobs import driver
from spark.jobs.driver import JobRun
from tests.support.flows import make_flow


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

    def spark_context(_: str, *, quick_java: bool) -> SparkContext:
        assert may_start.wait(20)
        assert quick_java
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
    tries = list[bool]()

    def spark_context(_: str, *, quick_java: bool) -> SparkContext:
        tries.append(quick_java)
        raise RuntimeError("no Java")

    monkeypatch.setattr(driver, "spark_context", spark_context)
    run.start_spark()
    with pytest.raises(RuntimeError, match="no Java"):
        _ = run.context
    assert tries == [True, True]
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
