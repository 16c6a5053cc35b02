"""The command `audit`: which clusters and which copies its words mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.audit import _show
from cli.jobs.local import LocalRuns
from mirrorless.adapters import audits
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.request import AuditOptions, JobRequest, decode_request, encode_request
from mirrorless.verify.audit import AuditVerdict
from mirrorless.verify.findings import Finding
from tests.support.commands import Command, replication_yaml

Asked = tuple[ClusterSettings, ClusterSettings, AuditOptions]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Asked]:
    """What was to be audited; no cluster answers. The current folder has a configuration, and a file for a client."""
    found: list[Asked] = []

    def ask(*words: Any) -> None:
        found.append(words)
        raise Retriable("no cluster answers")

    monkeypatch.setattr(audits, "audit_tasks", ask)
    monkeypatch.chdir(tmp_path)
    a, b = ("bootstrap.servers: [a:1], topic.prefix: US_East", "bootstrap.servers: [b:1], region: eu-west-1")
    Path("replication.yaml").write_text(
        replication_yaml("us-east->eu-west: {topics: [orders]}", clusters={"us-east": a, "eu-west": b})
    )
    Path("b.properties").write_text("bootstrap.servers = b:2\n")
    return found


@pytest.mark.parametrize(
    ("words", "copies"),
    [
        ("a:1,a:2 b:1 --prefix x. t u", {"t": "x.t", "u": "x.u"}),
        ("a:1 b:1 --identity t t", {"t": "t"}),
        ("a:1 b:1 --target-topic copy t", {"t": "copy"}),
        ("us-east eu-west t", {"t": "US_East.t"}),
        ("us-east eu-west --prefix x- t", {"t": "x-t"}),
    ],
)
def test_the_words_name_the_copies(words: str, copies: dict[str, str], asked: list[Asked], command: Command) -> None:
    source, target, *more = words.split()

    assert command("audit", "--source", source, "--target", target, "--config", "replication.yaml", *more).code == 1
    assert asked[0][2].copies == copies


def test_clusters_are_addresses_or_aliases_or_files(asked: list[Asked], command: Command) -> None:
    config = ("--config", "replication.yaml", "t", "--identity")
    command("audit", "--source", "us-east", "--target", "b:1", *config)
    command("audit", "--source", "a:1", "--target", "b.properties", "--without-header", "x", "--wait", "1", *config)

    assert [(each[0].bootstrap, each[1].bootstrap) for each in asked] == [("a:1", "b:1"), ("a:1", "b:2")]
    assert asked[1][1].authentication.type == "properties"
    assert asked[1][2].headers_left_out == ("__mskmr", "x")
    assert (asked[1][2].timestamps, asked[1][2].wait_seconds) == (True, 1.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a:1 b:1 t", "--prefix ALIAS."),
        ("b.properties b:1 t", "--prefix ALIAS."),
        ("a:1 b:1 t u --target-topic copy", "one topic has one copy"),
        ("us-west b:1 t --identity", "the configuration has us-east, eu-west"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_cluster_is_asked(
    words: str, said: str, asked: list[Asked], command: Command
) -> None:
    source, target, *more = words.split()

    refused = command("audit", "--source", source, "--target", target, "--config", "replication.yaml", *more)

    assert (refused.code, asked) == (2, [])
    assert said in refused.err


def test_a_spark_job_is_given_the_same_clusters_and_copies(
    monkeypatch: pytest.MonkeyPatch, asked: list[Asked], command: Command
) -> None:
    requests: list[JobRequest] = []

    def start(_: LocalRuns, request: JobRequest, *, size: int | None) -> None:
        requests.append(request)
        raise Retriable(f"no more than {size}")

    monkeypatch.setattr(LocalRuns, "start", start)

    words = ("--spark", "local", "--processes", "3", "--identity", "t")
    refused = command("audit", "--source", "a:1", "--target", "b.properties", *words)

    assert (refused.code, "no more than 3" in refused.err, asked) == (1, True, [])
    (request,) = requests
    assert (request.kind, request.topics, request.flow.source.bootstrap) == ("audit", ("t",), "a:1")
    assert request.flow.target.authentication.type == "properties"
    assert decode_request(encode_request(request)) == request


def test_what_a_terminal_would_obey_of_an_audit_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nasty = "left\x9b2J\u202e\nall is proved"
    finding = Finding(kind="different", generation=0, upstream=None, downstream=None, records=1, what=nasty)
    place: dict[str, Any] = {"lane": "orders-3", "topic": "orders", "partition": 3, "state": "failed"}
    verdict = AuditVerdict(**place, error=nasty, findings=[finding])

    _show([verdict], AuditOptions(copies={"orders": "copies"}), "not proved")

    assert capsys.readouterr().out.count("left\\x9b2J\\u202e\\nall is proved") == 2
