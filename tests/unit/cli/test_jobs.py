"""The commands of jobs: requests, refusals before anything is created, and watching."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.clusters import SourceView
from cli.deployment import DeployedFlows
from cli.jobs.request import bound, is_empty, new_run_id, started_at
from cli.main import main
from mirrorless.jobs.request import Bound, ReconcileOptions, decode_request
from tests.support.started_jobs import end_started

CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "111122223333"}
  eu-west: {bootstrap.servers: [127.0.0.1:1], region: eu-west-1, account: "111122223333"}
flows:
  us-east->eu-west: {topics: [orders, "paid-.*"], topics.exclude: [paid-by-hand]}
"""
FLOW = "us-east->eu-west"

SCRIPT = """
import sys
from pathlib import Path
import msgspec
from mirrorless.jobs.progress import add_up
folder = Path(sys.argv[1])
progress = add_up([], run_id=folder.name, kind="verify", flow="us-east->eu-west", state="succeeded", phase="",
                  started_at=0, at=1)
(folder / "report.json").write_text('{"clean": CLEAN, "report": {"verdict": "all is proved"}}')
(folder / "progress.json").write_bytes(msgspec.json.encode(progress))
import time; time.sleep(30)
"""
"""A driver that succeeds at once."""


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
    scripts(tmp_path, monkeypatch, clean=True)
    monkeypatch.setattr(SourceView, "of", lambda *_: Topics())
    yield tmp_path
    end_started()


def scripts(folder: Path, monkeypatch: pytest.MonkeyPatch, *, clean: bool) -> None:
    """Put drivers in place of the jobs' own."""
    for kind in ("backfill", "verify", "reconcile"):
        (folder / f"{kind}.py").write_text(SCRIPT.replace("CLEAN", str(clean).lower()))
    monkeypatch.setattr("cli.jobs.local.SCRIPTS", folder)


def start(kind: str, *words: str) -> int:
    return main([kind, "start", FLOW, *words, "--local", "--json"])


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


def test_without_topics_a_job_has_all_of_the_flow_but_heartbeats(place: Path) -> None:
    assert start("verify") == 0

    requested = request(place)
    assert requested.topics == ("orders", "paid-online")
    assert requested.flow.flow == FLOW
    assert requested.flow.tables.offset_map == "mirrorless-offset-map-us-east_eu-west"
    assert requested.flow.tables_role is None
    assert requested.aliases == ("eu-west", "us-east")


def test_all_options_of_a_backfill_are_in_its_request(place: Path) -> None:
    words = "orders --partition 2 --partition 0 --from offset:7 --to 2026-11-21T20:30:00Z --archive s3://a/b --into old"
    caps = "--max-mb-per-second 1.5 --free-gb 10 --force --beside"

    assert start("backfill", *words.split(), *caps.split()) == 0

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


def test_a_policy_is_for_all_topics_or_for_one(place: Path) -> None:
    assert start("reconcile", "--policy", "quarantine", "--policy", "orders=replay", "--look-only") == 0

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
    words: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--local"]) == 2

    assert says in capsys.readouterr().err
    assert not (place / ".lab").exists()


@pytest.mark.parametrize("words", [["reconcile", "start", FLOW, "--local"], ["failback", FLOW, "--execute", "--local"]])
def test_nothing_is_brought_back_to_a_source_to_which_jobs_must_not_write(
    words: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = CONFIGURATION.replace("topics.exclude", "reconcile.enabled: false, topics.exclude")
    (place / "replication.yaml").write_text(configuration)

    assert main(words) == 2

    assert "its jobs have no right to write to us-east" in capsys.readouterr().err
    assert main(["reconcile", "start", FLOW, "--local", "--look-only", "--json"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify", "start", FLOW, "--into", "x"], "unrecognized arguments: --into"),
        (["backfill", "start", FLOW, "--from", "yesterday"], "no place in a topic's history"),
        (["reconcile", "start", FLOW, "--policy", "burn"], "is no policy"),
        (["verify", "start", FLOW, "--size", "0"], "whole number from 1"),
    ],
)
def test_invalid_options_are_refused_by_the_parser(
    words: list[str], says: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)

    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
    assert not (place / ".lab").exists()


def test_a_verification_of_named_topics_does_not_need_the_source(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source may be down; the digests are enough."""
    monkeypatch.setattr(SourceView, "of", lambda *_: SourceView(None, "it is down"))

    assert start("verify", "orders") == 0
    assert request(place).topics == ("orders",)
    assert start("verify") == 1
    assert start("backfill", "orders") == 1
    assert "it is down" in capsys.readouterr().out


def lab_state(place: Path, *, brokers: int) -> dict[str, Any]:
    """A lab's state file, written."""
    tables = {name: f"lab-{name}" for name in ("offset_map", "lanes", "loss_ledger", "checkpoints", "control")}
    nodes = [{"id": node, "address": f"127.0.0.1:{node}", "pid": node} for node in range(1, brokers + 1)]
    state = {
        "config": str(place / "replication.yaml"),
        "clusters": {
            "us-east": {"bootstrap": "127.0.0.1:7", "brokers": nodes},
            "eu-west": {"bootstrap": "127.0.0.1:8", "brokers": nodes},
        },
        "dynamodb": {"endpoint": "http://127.0.0.1:9"},
        "tables": tables,
    }
    (place / "lab.json").write_text(json.dumps(state))
    return state


@pytest.mark.parametrize(("brokers", "replicas"), [(0, 1), (1, 1), (2, 1), (3, 3), (4, 3)])
def test_in_a_lab_of_three_brokers_a_job_creates_topics_with_three_replicas(
    place: Path, brokers: int, replicas: int
) -> None:
    """With fewer, a topic that needs two in sync takes no records."""
    lab_state(place, brokers=brokers)

    assert main(["verify", "start", FLOW, "--lab", "lab.json", "--json"]) == 0

    assert request(place).flow.replication_factor == replicas


def test_in_a_lab_a_job_has_the_labs_clusters_and_tables(place: Path) -> None:
    tables = lab_state(place, brokers=1)["tables"]

    assert main(["verify", "start", FLOW, "--lab", "lab.json", "--json"]) == 0

    requested = request(place)
    assert (requested.flow.source.bootstrap, requested.flow.target.bootstrap) == ("127.0.0.1:7", "127.0.0.1:8")
    assert msgspec.to_builtins(requested.flow.tables) == tables
    lab = DeployedFlows.of(argparse.Namespace(lab="lab.json", config=""))
    assert lab.job_variables()["AWS_ENDPOINT_URL_DYNAMODB"] == "http://127.0.0.1:9"


# Watching


def test_a_run_that_found_something_ends_the_command_with_three(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts(place, monkeypatch, clean=False)

    assert start("verify") == 3

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["over"] is True
    assert lines[-1]["exit_code"] == 3
    assert lines[-1]["state"] == "succeeded"
    assert lines[-1]["verdict"] == "all is proved"
    assert Path(lines[-1]["report"]).exists()


def test_a_detached_run_can_be_followed_later(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "start", FLOW, "--local", "--detach"]) == 0
    run_id = request(place).run_id
    assert run_id in capsys.readouterr().out

    assert main(["verify", "follow", run_id, "--local"]) == 0

    shown = capsys.readouterr().out
    assert "all is proved" in shown
    assert f"{run_id}/report.html" in shown


@pytest.mark.usefixtures("place")
def test_runs_are_listed_the_newest_first_and_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert start("verify") == 0
    assert start("backfill", "orders") == 0
    capsys.readouterr()

    assert main(["verify", "list", "--local"]) == 0
    table = capsys.readouterr().out
    assert main(["verify", "list", "--local", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]

    assert [each["kind"] for each in listed] == ["verify"]
    assert "succeeded" in table
    assert listed[0]["run_id"] in table
    assert main(["reconcile", "list", "--local"]) == 0
    assert "No reconcile is known" in capsys.readouterr().out
