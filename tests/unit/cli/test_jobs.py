"""The commands of jobs: requests, refusals, watching; and runs on this machine, which are processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from cli.clusters import ClusterView
from cli.deployment import DeployedFlows
from cli.jobs.commands import _json_lines, _lines
from cli.jobs.local import _STARTED, PROCESS, LocalRuns, bring_spark
from cli.jobs.request import bound, is_empty, new_run_id, started_at
from cli.jobs.runs import RunView, sentence
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.jobs.request import Bound, JobRequest, ReconcileOptions, VerifyOptions, decode_request
from spark.jobs.driver import JobRun
from spark.reconcile import Reconciliation
from tests.frozen.small_flow import STATE, end_jobs_at_once
from tests.support.commands import Answer, Command, replication_yaml
from tests.support.flows import make_flow
from tests.support.started_jobs import end_started

CONFIGURATION = replication_yaml('us-east->eu-west: {topics: [orders, "paid-.*"], topics.exclude: [paid-by-hand]}')
FLOW = "us-east->eu-west"


class Topics:
    """A source that lists its topics."""

    trouble = ""

    def partitions(self) -> dict[str, int]:
        """Its topics."""
        return {"orders": 3, "paid-online": 2, "paid-by-hand": 1, "eu-west.orders": 3, "heartbeats": 1}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration, a folder for runs, and jobs that end at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replication.yaml").write_text(CONFIGURATION)
    end_jobs_at_once(monkeypatch, tmp_path)
    monkeypatch.setattr(ClusterView, "source", lambda *_: Topics())
    yield tmp_path
    end_started()


@pytest.fixture
def start(command: Command) -> Callable[..., Answer]:
    """Starts a job of a kind."""
    return lambda kind, *words: command(kind, "start", FLOW, *words, "--local", "--json")


def request(place: Path) -> Any:
    """The request of the only run."""
    (found,) = place.glob(".lab/jobs/*/request.json")
    return decode_request(found.read_bytes())


# Bounds in a topic's history


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Bound("earliest")),
        ("latest", Bound("latest")),
        ("offset:4711", Bound("offset", 4711)),
        ("1795297000000", Bound("timestamp", 1_795_297_000_000)),
        ("2026-11-21T20:30:00Z", Bound("timestamp", 1_795_293_000_000)),
        ("2026-11-21T21:30:00+01:00", Bound("timestamp", 1_795_293_000_000)),
    ],
)
def test_a_bound_has_five_forms(text: str, expected: Bound) -> None:
    assert bound(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4711", "write offset:4711"),
        ("offset:-1", "not an offset"),
        ("offset:", "not an offset"),
        ("yesterday", "no place in a topic's history"),
        ("2026-11-21", "write 2026-11-21T00:00:00Z"),
        ("2026-11-21T20:30:00", "no time zone"),
        ("1969-01-01T00:00:00Z", "before 1970"),
        ("9" * 20, "no time in milliseconds"),
    ],
)
def test_a_bound_of_no_form_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        bound(text)


def test_bounds_with_nothing_between_them_are_empty() -> None:
    assert is_empty(Bound("offset", 5), Bound("offset", 5))
    assert is_empty(Bound("latest"), Bound("latest"))
    assert not is_empty(Bound("offset", 5), Bound("timestamp", 1))
    assert not is_empty(Bound("earliest"), Bound("latest"))


def test_a_runs_id_has_the_time_of_its_request() -> None:
    first = new_run_id("verify")

    assert first.startswith("verify-2")
    assert started_at(first) > 1_700_000_000_000
    assert started_at("something-else") == 0
    assert len({new_run_id("verify") for _ in range(50)}) > 1


# Requests


def test_without_topics_a_job_has_all_of_the_flow_but_heartbeats(place: Path, start: Callable[..., Answer]) -> None:
    assert start("verify").code == 0

    requested = request(place)
    assert requested.topics == ("orders", "paid-online")
    assert requested.flow.flow == FLOW
    assert requested.flow.tables.offset_map == "mirrorless-offset-map-us-east_eu-west"
    assert requested.flow.tables_role is None
    assert requested.aliases == ("eu-west", "us-east")


def test_all_options_of_a_backfill_are_in_its_request(place: Path, start: Callable[..., Answer]) -> None:
    words = "orders --partition 2 --partition 0 --from offset:7 --to 2026-11-21T20:30:00Z --archive s3://a/b --into old"
    caps = "--max-mb-per-second 1.5 --free-gb 10 --force --beside"

    assert start("backfill", *words.split(), *caps.split()).code == 0

    requested = request(place)
    assert requested.partitions == {"orders": (0, 2)}
    options = msgspec.to_builtins(requested.options)
    assert options.pop("start") == {"kind": "offset", "value": 7}
    assert options.pop("end") == {"kind": "timestamp", "value": 1_795_293_000_000}
    assert options == {
        "kind": "backfill",
        "archive": "s3://a/b",
        "into": "old",
        "max_mb_per_second": 1.5,
        "free_gb": 10.0,
        "force": True,
        "beside": True,
        "handover_seconds": 120,
    }


def test_a_policy_is_for_all_topics_or_for_one(place: Path, start: Callable[..., Answer]) -> None:
    assert start("reconcile", "--policy", "quarantine", "--policy", "orders=replay", "--look-only").code == 0

    assert request(place).options == ReconcileOptions(
        policy="quarantine", policies={"orders": "replay"}, look_only=True
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify", "start", "us-east->mars"], "mars"),
        (["verify", "start", "nonsense"], "not a flow"),
        (["verify", "start", FLOW, "nothing"], "not replicated by this flow"),
        (["verify", "start", FLOW, "paid-by-hand"], "not replicated by this flow"),
        (["verify", "start", FLOW, "eu-west.orders"], "not replicated by this flow"),
        (["verify", "start", FLOW, "orders", "--partition", "3"], "no partition 3"),
        (["verify", "start", FLOW, "--from", "latest"], "nothing lies from latest"),
        (["backfill", "start", FLOW, "--max-mb-per-second", "0"], "nothing would ever be copied"),
        (["reconcile", "start", FLOW, "--policy", "nothing=replay"], "none of the topics"),
        (["verify", "follow", "verify-20261121T203355-1f3a"], "no such run"),
        (["verify", "cancel", "verify-20261121T203355-1f3a"], "no such run"),
    ],
)
def test_a_job_that_cannot_work_is_refused_before_anything_is_created(
    words: list[str], says: str, place: Path, command: Command
) -> None:
    answer = command(*words, "--local")

    assert (answer.code, says in answer.err) == (2, True), answer
    assert not (place / ".lab").exists()


@pytest.mark.parametrize("words", [["reconcile", "start", FLOW, "--local"], ["failback", FLOW, "--execute", "--local"]])
def test_nothing_is_brought_back_to_a_source_to_which_jobs_must_not_write(
    words: list[str], place: Path, command: Command
) -> None:
    configuration = CONFIGURATION.replace("topics.exclude", "reconcile.enabled: false, topics.exclude")
    (place / "replication.yaml").write_text(configuration)

    answer = command(*words)

    assert (answer.code, "its jobs have no right to write to us-east" in answer.err) == (2, True)
    assert command("reconcile", "start", FLOW, "--local", "--look-only", "--json").code == 0


def test_what_was_masked_is_not_brought_back_by_the_command_nor_by_a_job_that_was_requested_before(
    place: Path, command: Command
) -> None:
    masking = CONFIGURATION.replace("topics.exclude", "transforms: [{topics: paid-.*}], topics.exclude")
    (place / "replication.yaml").write_text(masking)

    for look in ([], ["--look-only"]):
        answer = command("reconcile", "start", FLOW, "--local", *look)
        assert (answer.code, "records of paid-online, so nothing may come back" in answer.err) == (2, True)
    assert not (place / ".lab").exists()
    assert command("reconcile", "start", FLOW, "orders", "--local", "--json").code == 0, "it has no rule"
    files = open_job_files(str(place))
    asked = msgspec.structs.replace(request(place), topics=("orders", "paid-online"))
    with pytest.raises(ConfigurationError, match="records of paid-online, so nothing may come back"):
        Reconciliation(JobRun(asked, files, 0)).act()


def test_a_verification_of_named_topics_does_not_need_the_source(
    place: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Answer]
) -> None:
    """The source may be down; the digests are enough."""

    def down() -> NoReturn:
        raise Retriable("it is down")

    monkeypatch.setattr(ClusterView, "source", lambda *_: ClusterView(down))

    assert start("verify", "orders").code == 0
    assert request(place).topics == ("orders",)
    assert start("verify").code == 1
    answer = start("backfill", "orders")
    assert (answer.code, "it is down" in answer.out) == (1, True)


def in_lab(place: Path, command: Command, *, brokers: int = 1) -> Any:
    """The request of a verification in a lab of so many brokers."""
    nodes = [{"id": node, "address": f"127.0.0.1:{node}", "pid": node} for node in range(1, brokers + 1)]
    clusters = {
        alias: {"bootstrap": f"127.0.0.1:{port}", "brokers": nodes} for alias, port in (("us-east", 7), ("eu-west", 8))
    }
    state = {**STATE, "clusters": clusters, "config": str(place / "replication.yaml"), "keys": "/lab/keys"}
    (place / "lab.json").write_text(json.dumps(state))
    assert command("verify", "start", FLOW, "--lab", "lab.json", "--json").code == 0
    return request(place)


@pytest.mark.parametrize(("brokers", "replicas"), [(0, 1), (1, 1), (2, 1), (3, 3), (4, 3)])
def test_in_a_lab_of_three_brokers_a_job_creates_topics_with_three_replicas(
    place: Path, command: Command, brokers: int, replicas: int
) -> None:
    """With fewer, a topic that needs two in sync takes no records."""
    assert in_lab(place, command, brokers=brokers).flow.replication_factor == replicas


def test_in_a_lab_a_job_has_the_labs_clusters_tables_and_keys(place: Path, command: Command) -> None:
    flow = in_lab(place, command).flow

    assert (flow.source.bootstrap, flow.target.bootstrap) == ("127.0.0.1:7", "127.0.0.1:8")
    assert msgspec.to_builtins(flow.tables) == STATE["tables"]
    lab = DeployedFlows.of(argparse.Namespace(lab="lab.json", config=""))
    assert lab.job_variables()["AWS_ENDPOINT_URL_DYNAMODB"] == STATE["dynamodb"]["endpoint"]
    assert lab.job_variables()["MIRRORLESS_KEYS"] == "/lab/keys"


def test_a_job_on_this_machine_finds_a_function_of_one_s_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    deployed = DeployedFlows(config=place / "replication.yaml")
    assert deployed.job_variables() == {}
    masking = CONFIGURATION.replace("topics.exclude", "transforms: [{topics: orders, function: own:f}], topics.exclude")
    (place / "replication.yaml").write_text(masking)

    found = DeployedFlows(config=place / "replication.yaml").job_variables()

    assert found["PYTHONPATH"].split(os.pathsep) == [str(place), "elsewhere"]


# Watching


def test_a_run_that_found_something_ends_the_command_with_three(
    place: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Answer]
) -> None:
    end_jobs_at_once(monkeypatch, place, clean=False)

    answer = start("verify")

    last = answer.lines[-1]
    assert (answer.code, last["over"], last["exit_code"], last["state"]) == (3, True, 3, "succeeded")
    assert last["verdict"] == "all is proved"
    assert Path(last["report"]).exists()


def test_of_a_run_that_is_followed_each_change_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    seen = RunView(run_id="verify-1", kind="verify", flow=FLOW, state="running", place="jobs/verify-1")
    views = [seen, seen, replace(seen, state="succeeded", clean=False)]

    code, last = _json_lines(iter(views)), _lines(iter(views))

    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["state"] for line in lines[:2]] == ["running", "succeeded"]
    assert lines[2:] == ["verify-1: running", "verify-1: look at it"]
    assert code == last.exit_code == 3


def test_a_detached_run_can_be_followed_later(place: Path, command: Command) -> None:
    answer = command("verify", "start", FLOW, "--local", "--detach")
    run_id = request(place).run_id
    assert (answer.code, run_id in answer.out) == (0, True)

    shown = command("verify", "follow", run_id, "--local")

    assert shown.code == 0
    assert "all is proved" in shown.out
    assert f"{run_id}/report.html" in shown.out


@pytest.mark.usefixtures("place")
def test_runs_are_listed_the_newest_first_and_by_kind(start: Callable[..., Answer], command: Command) -> None:
    assert (start("verify").code, start("backfill", "orders").code) == (0, 0)

    table = command("verify", "list", "--local")
    (listed,) = command("verify", "list", "--local", "--json").json["runs"]

    assert (table.code, listed["kind"]) == (0, "verify")
    assert "succeeded" in table.out
    assert listed["run_id"] in table.out
    assert "No reconcile is known" in command("reconcile", "list", "--local").out


# Runs on this machine


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


def verification() -> JobRequest:
    flow = make_flow(source="127.0.0.1:1", target="127.0.0.1:1")
    return JobRequest(run_id=new_run_id("verify"), flow=flow, topics=("orders",), options=VerifyOptions())


def await_(runs: LocalRuns, run_id: str, wanted: Callable[[RunView], bool]) -> RunView:
    end = time.monotonic() + 20
    while not wanted(view := runs.inspect(run_id)):
        assert time.monotonic() < end, view
        time.sleep(0.02)
    return view


def running(runs: LocalRuns) -> RunView:
    requested = verification()
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
        runs.start(verification(), size=None)

    assert not (checkout / "brought").exists()
