"""Runs on this machine: separate processes that are watched, ended, and not confused with others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from cli.args import BadInput
from cli.jobs.local import _STARTED, PROCESS, LocalRuns, bring_spark
from cli.jobs.request import new_run_id
from cli.jobs.runs import RunView, sentence
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.request import JobRequest, VerifyOptions
from tests.support.flows import make_flow
from tests.support.started_jobs import end_started

FLOW = make_flow(source="127.0.0.1:1", target="127.0.0.1:1")
THERE, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")

DRIVER = """
import os, signal, sys, time
from pathlib import Path
import msgspec
from mirrorless.jobs.progress import add_up

def say(state):
    progress = add_up([], run_id="r", kind="verify", flow="f", state=state, phase="", started_at=0, at=1, error="")
    folder = Path(sys.argv[1])
    (folder / ".new").write_bytes(msgspec.json.encode(progress))
    (folder / ".new").replace(folder / "progress.json")

def end(*_):
    say("cancelled")
    sys.exit(1)

signal.signal(signal.SIGTERM, end)
print(os.environ["MIRRORLESS_SPARK_MASTER"], os.environ["WHERE"], flush=True)
say("running")  # who sees that may end it at once
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRuns]:
    """Runs whose driver ends on SIGTERM only."""
    scripts = tmp_path / "spark"
    scripts.mkdir()
    (scripts / "verify.py").write_text(DRIVER)
    monkeypatch.setattr("cli.jobs.local.SCRIPTS", scripts)
    made = LocalRuns(tmp_path / "jobs", variables={"WHERE": "in the lab"})
    yield made
    end_started()


def request() -> JobRequest:
    return JobRequest(run_id=new_run_id("verify"), flow=FLOW, topics=("orders",), options=VerifyOptions())


def await_(runs: LocalRuns, run_id: str, wanted: Callable[[RunView], bool]) -> RunView:
    end = time.monotonic() + 20
    while not wanted(view := runs.inspect(run_id)):
        assert time.monotonic() < end, view
        time.sleep(0.02)
    return view


def running(runs: LocalRuns) -> RunView:
    requested = request()
    runs.start(requested, size=3)
    return await_(runs, requested.run_id, lambda view: view.state == "running")


def pid_of(view: RunView) -> int:
    return int(msgspec.json.decode((Path(view.place) / PROCESS).read_bytes())["pid"])


def test_a_run_is_started_watched_and_cancelled(runs: LocalRuns) -> None:
    view = running(runs)

    runs.cancel(view.run_id)

    ended = await_(runs, view.run_id, lambda view: view.over)
    assert (ended.state, ended.exit_code) == ("cancelled", 1)
    assert (Path(view.place) / "driver.log").read_text() == "local[3,4] in the lab\n"


def test_a_run_is_being_cancelled_until_its_driver_has_let_go_and_cancelled_where_it_just_ended(
    runs: LocalRuns,
) -> None:
    """A driver that is frozen hears the signal, and does nothing; one that is killed never heard of it."""
    view = running(runs)
    os.kill(pid_of(view), signal.SIGSTOP)

    assert runs.cancel(view.run_id).state == "cancelling"
    assert "being cancelled" in sentence(runs.inspect(view.run_id))
    assert not runs.inspect(view.run_id).over

    os.kill(pid_of(view), signal.SIGKILL)
    ended = await_(runs, view.run_id, lambda view: view.over)
    assert (ended.state, ended.exit_code) == ("cancelled", 1)


def test_a_killed_driver_is_a_failed_run(runs: LocalRuns) -> None:
    """The last state that it wrote is `running`."""
    view = running(runs)

    os.kill(pid_of(view), signal.SIGKILL)

    ended = await_(runs, view.run_id, lambda view: view.over)
    assert (ended.state, ended.exit_code) == ("failed", 1)
    assert "driver.log" in ended.error


def test_another_process_of_the_command_finds_the_run_too(runs: LocalRuns, tmp_path: Path) -> None:
    view = running(runs)
    mine = dict(_STARTED)
    _STARTED.clear()  # the run is not a child of the other process
    others = LocalRuns(tmp_path / "jobs", variables={})

    assert others.inspect(view.run_id).state == "running"
    assert [each.run_id for each in others.every("verify", [THERE])] == [view.run_id]
    assert others.every("verify", [BACK]) == []
    assert others.every("backfill", [THERE]) == []
    others.cancel(view.run_id)
    assert await_(others, view.run_id, lambda view: view.over).state == "cancelled"
    _STARTED.update(mine)


def test_a_process_with_the_pid_of_an_ended_driver_is_not_killed(runs: LocalRuns, tmp_path: Path) -> None:
    view = running(runs)
    os.kill(pid_of(view), signal.SIGKILL)
    await_(runs, view.run_id, lambda view: view.over)
    _STARTED.clear()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (Path(view.place) / PROCESS).write_text(f'{{"pid": {stranger.pid}}}')
        others = LocalRuns(tmp_path / "jobs", variables={})

        assert others.cancel(view.run_id).state == "failed"

        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_unknown_run_is_bad_input(runs: LocalRuns) -> None:
    with pytest.raises(BadInput, match="no such run"):
        runs.inspect("verify-20261121T203355-1f3a")


@pytest.fixture
def without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A checkout whose environment has no Spark, and whose Makefile does this for it."""

    def checkout(recipe: str) -> Path:
        monkeypatch.setattr("cli.jobs.local.find_spec", lambda _: None)
        monkeypatch.setattr("cli.jobs.local.CHECKOUT", tmp_path)
        (tmp_path / "Makefile").write_text(f"spark:\n\t@{recipe}\n")
        return tmp_path

    return checkout


def test_the_first_job_brings_spark_by_the_checkouts_makefile_and_shows_it(
    without_spark: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The standard output is for the answer."""
    checkout = without_spark("echo 400 MB; touch brought")
    monkeypatch.setattr("sys.prefix", str(checkout / ".venv"))

    bring_spark()

    assert (checkout / "brought").exists()
    assert capfd.readouterr() == ("", "400 MB\n")
    without_spark("exit 1")
    with pytest.raises(ConfigurationError, match="could not be brought") as error:
        bring_spark()
    assert error.value.hint == "try `make spark` again"


def test_nothing_is_brought_into_another_environment_than_the_checkouts(
    without_spark: Callable[[str], Path], runs: LocalRuns
) -> None:
    checkout = without_spark("touch brought")

    with pytest.raises(ConfigurationError, match="Spark is not installed here"):
        runs.start(request(), size=None)

    assert not (checkout / "brought").exists()
