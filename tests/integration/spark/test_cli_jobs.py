"""A job on this machine, as the operator has it: planned, started, watched, cancelled, listed, on real clusters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from cli.main import main
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.flow.settings import Tables
from tests.support.commands import lab_state
from tests.support.lane_stage import ORDERED
from tests.support.readback import read_topic
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration

FLOW = "us-east->eu-west"
RECORDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The operator's commands: a topic of this test alone, and the options that lead to the lab."""

    topic: str
    source: KafkaCluster
    target: KafkaCluster
    words: tuple[str, ...]

    def run(self, *words: str) -> int:
        """The command's exit code."""
        return main([*words, *self.words])


@pytest.fixture
def desk(clusters: tuple[KafkaCluster, KafkaCluster], dynamodb: DynamoDbLocal, tables: Tables, tmp_path: Path) -> Desk:
    """A topic of two partitions with records, and a state file as the lab keeps it."""
    source, target = clusters
    topic = create_topic(source.bootstrap, f"orders-{uuid4().hex[:8]}", 2)
    producer = Producer({"bootstrap.servers": source.bootstrap, **ORDERED})
    for number in range(2 * RECORDS):
        producer.produce(topic, key=b"k", value=str(number).encode(), partition=number % 2)
    assert producer.flush(20) == 0
    flow = f"{FLOW}: {{topics: [{topic}], replication.factor: 1}}"
    bootstrap = {cluster.alias: cluster.bootstrap for cluster in clusters}
    state = lab_state(tmp_path, flow, bootstrap, dynamodb.endpoint, tables)
    words = ("--lab", str(state), "--folder", str(tmp_path / "jobs"), "--json")
    return Desk(topic=topic, source=source, target=target, words=words)


def last(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_backfill_is_planned_started_watched_and_listed(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("backfill", "start", FLOW, desk.topic, "--to", f"offset:{RECORDS}", "--size", "2")

    assert desk.run(*asked, "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["offsets"], len(plan["lanes"])) == (2 * RECORDS, 2)
    assert plan["dollars"] > 0

    assert desk.run(*asked) == 0
    ended = last(capsys)
    assert (ended["state"], ended["clean"], ended["exit_code"]) == ("succeeded", True, 0)
    assert Path(ended["page"]).read_text().startswith("<!doctype html>")
    found = json.loads(Path(ended["report"]).read_text())
    assert found["totals"]["records"] == 2 * RECORDS
    there = read_topic(desk.target.bootstrap, f"us-east.{desk.topic}")
    assert [len(there[partition]) for partition in (0, 1)] == [RECORDS, RECORDS]

    assert desk.run("backfill", "follow", ended["run_id"]) == 0
    assert last(capsys)["over"] is True
    assert desk.run("backfill", "list") == 0
    assert [each["run_id"] for each in json.loads(capsys.readouterr().out)["runs"]] == [ended["run_id"]]


def test_verify_and_reconcile_say_what_they_would_read(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.run("verify", "start", FLOW, desk.topic, "--against-source", "--dry-run") == 0
    assert json.loads(capsys.readouterr().out)["offsets"] == 2 * RECORDS  # nothing is on the target yet

    assert desk.run("reconcile", "start", FLOW, desk.topic, "--dry-run") == 0
    assert json.loads(capsys.readouterr().out)["offsets"] == 2 * RECORDS
