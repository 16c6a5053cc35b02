"""The command `migrate config`: where the configuration goes, and what is said beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mirrorless.config import load
from tests.support.commands import Command

FILE = """
clusters = A, B
A.bootstrap.servers = a1:9092
B.bootstrap.servers = b1:9092
A->B.enabled = true
A->B.topics = orders
tasks.max = 4
max.tasks = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text(FILE)
    return path


def test_the_configuration_is_printed_and_the_summary_goes_to_the_standard_error(command: Command, file: Path) -> None:
    answer = command("migrate", "config", str(file))

    assert answer.code == 1
    assert load(answer.out).flow("a->b").remote_topic("orders") == "A.orders"
    assert answer.err.splitlines()[:4] == [
        "7 keys:",
        "     5 stay, or have a counterpart",
        "     1 have none: the comments say what there is instead",
        "     1 were ignored by MirrorMaker, too",
    ]
    assert "clusters.b.region: a->b is deployed in its region" in answer.err


def test_a_file_is_written_once_and_can_be_deployed_where_nothing_is_to_fill_in(
    command: Command, file: Path, tmp_path: Path
) -> None:
    file.write_text(FILE.replace("b1:9092", "b-1.x.c2.kafka.eu-west-1.amazonaws.com:9092"))
    written = tmp_path / "replication.yaml"

    answer = command("migrate", "config", str(file), "--write", str(written))
    assert (answer.code, answer.out) == (1, "")
    assert f"as `mirrorless config check {written}` says" in answer.err
    checked = command("config", "check", str(written)).err.splitlines()
    assert checked[1:] == answer.err.splitlines()[-len(checked[1:]) :]

    again = command("migrate", "config", str(file), "--write", str(written))
    assert (again.code, again.out) == (2, "")
    assert "File exists" in again.err


def test_programs_get_the_answer_to_each_key(command: Command, file: Path) -> None:
    answer = command("migrate", "config", str(file), "--json").json

    assert load(answer["configuration"]).flow("a->b").literal_topics == ("orders",)
    assert [each["key"] for each in answer["keys"] if each["outcome"] == "ignored"] == ["max.tasks"]
    assert {each["file"] for each in answer["keys"]} == {"mm2.properties"}
    assert [each["field"] for each in answer["problems"]] == ["clusters.b.region", "clusters.b.account"]


def test_files_of_the_same_name_are_told_apart(command: Command, tmp_path: Path) -> None:
    paths = [tmp_path / folder / "mm2.properties" for folder in ("one", "two")]
    for path, text in zip(paths, (FILE, FILE.replace("A", "C")), strict=True):
        path.parent.mkdir()
        path.write_text(text)

    answer = command("migrate", "config", *map(str, paths), "--json").json

    assert {each["file"] for each in answer["keys"]} == set(map(str, paths))


@contextmanager
def connect_cluster(answer: Any) -> Iterator[tuple[str, list[str]]]:
    """A Connect cluster's REST API: its address, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/connectors", "/connectors?expand=info"])
def test_a_connect_cluster_is_asked_for_its_connectors(path: str, command: Command) -> None:
    keys = {"bootstrap.servers": "k:9092", "alias": "x"}
    config = {f"{end}.cluster.{key}": f"{end}-{value}" for end in ("source", "target") for key, value in keys.items()}
    source = {"name": "mm2", "config": config | {"connector.class": "MirrorSourceConnector", "topics": "orders"}}
    other = {"name": "jdbc", "config": {"connector.class": "JdbcSinkConnector", "connection.password": "hunter2"}}

    with connect_cluster({each["name"]: {"info": each} for each in (source, other)}) as (address, asked):
        answer = command("migrate", "config", address + path)

    assert asked == ["/connectors?expand=info"]
    assert load(answer.out).flow("source-x->target-x").literal_topics == ("orders",)
    assert "connection.password" not in answer.out


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("missing.json", 2, "missing.json: the file cannot be read: No such file or directory"),
        (".", 2, "the file cannot be read: Is a directory"),
        ("http://127.0.0.1:1", 1, "127.0.0.1:1: the Connect cluster does not answer"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, code: int, words: str, command: Command) -> None:
    answer = command("migrate", "config", name)

    assert (answer.code, answer.out) == (code, "")
    assert words in answer.err
