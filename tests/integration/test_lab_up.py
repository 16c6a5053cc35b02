"""`python -m lab up`, seen from outside: one command, one state file, real addresses, and kill -9."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cli.main import main
from lab.cloud import create_topics
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import Retriable
from mirrorless.topics.scheduled_topics import read_scheduled_topics
from tests.support.lab_process import LabProcess, kill
from tests.support.readback import Seen, assert_mirrored, await_settled, read_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: us-east.example.com:9092, region: us-east-1}
  eu-west: {bootstrap.servers: eu-west.example.com:9092, region: eu-west-1}
defaults:
  topics: [orders, 'found-.*', 'tail-.*']
  refresh.topics.interval.seconds: 4
  transaction.timeout.ms: 2000
  mapping: {maximum.batching.window.seconds: 0}
  function: {timeout.seconds: 6}
flows:
  us-east->eu-west: {trigger.overrides: {'tail-.*': schedule}}
  eu-west->us-east: {}
"""
ONE_WAY = CONFIGURATION.replace("  eu-west->us-east: {}\n", "")
PARTITIONS = 2
FORTH, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")

numbers = count()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab that runs both flows; whoever kills a part of it waits until that is back."""
    with LabProcess(tmp_path_factory.mktemp("up"), CONFIGURATION, "--partitions", str(PARTITIONS)) as lab:
        lab.await_ready()
        yield lab


def test_the_state_file_holds_everything_that_an_outsider_needs(lab: LabProcess) -> None:
    state = lab.state

    assert state["ready"] is True
    assert state["clusters"].keys() == {"us-east", "eu-west"}
    for cluster in state["clusters"].values():
        assert cluster["bootstrap"].startswith("127.0.0.1:")
        assert cluster["version"].count(".") == 2
        os.kill(cluster["pid"], 0)
    assert state["dynamodb"]["endpoint"].startswith("http://127.0.0.1:")
    os.kill(state["dynamodb"]["pid"], 0)
    assert set(_dynamodb(lab).list_tables()["TableNames"]) >= set(state["tables"].values())
    assert sorted(state["functions"]) == [
        f"mirrorless-{file}-{flow.source}_{flow.target}"
        for file in ("control", "forward", "pull", "refresh-topics")
        for flow in ((BACK, FORTH) if file != "pull" else (FORTH,))
    ]
    assert all(function["environments"] for function in state["functions"].values())
    for pid in _pids(state):
        os.kill(pid, 0)
    literal = [each for each in state["mappings"] if each["topic"] == "orders"]
    assert [(each["flow"], each["state"]) for each in literal] == [(str(FORTH), "Enabled"), (str(BACK), "Enabled")]
    assert {each["group_id"] for each in literal} == {
        "mirrorless.us-east.eu-west.orders",
        "mirrorless.eu-west.us-east.orders",
    }
    assert len({each["uuid"] for each in state["mappings"]}) == len(state["mappings"])
    assert Path(state["logs"]).is_dir()
    lab.assert_always_whole()


def test_heartbeats_reach_the_other_side_and_come_back_through_the_flow(lab: LabProcess) -> None:
    """The scheduled functions are at work: what one writes on the source, another maps, and the forwarder brings."""
    remote = f"{FORTH.source}.heartbeats"

    def arrived() -> bool:
        return any(read_topic(_bootstrap(lab, FORTH.target), remote).values())

    eventually(
        lambda: {"heartbeats", remote} <= _topics(_bootstrap(lab, FORTH.target)),
        f"both heartbeats topics are on the target; see {lab.log}",
    )
    eventually(arrived, f"heartbeats are replicated; see {lab.log}")


@pytest.mark.parametrize("flow", [FORTH, BACK], ids=str)
def test_what_is_produced_on_one_side_appears_on_the_other_exactly_once(lab: LabProcess, flow: FlowName) -> None:
    _produce(lab, flow, 50)

    _assert_replicated_once(lab, flow)


def test_a_cluster_killed_from_outside_comes_back_at_its_address_and_records_flow_on(lab: LabProcess) -> None:
    """As a managed cluster would be brought back: same address, same data, another process."""
    before = lab.state["clusters"]["eu-west"]
    _produce(lab, FORTH, 20)

    kill(before["pid"])
    _produce(lab, FORTH, 20)
    eventually(lambda: lab.state["clusters"]["eu-west"]["pid"] not in {None, before["pid"]}, "it is back")
    _produce(lab, FORTH, 20)

    _assert_replicated_once(lab, FORTH)
    after = lab.state["clusters"]["eu-west"]
    assert _without_pids(after) == _without_pids(before)
    assert lab.state["ready"] is True
    lab.assert_always_whole()


def test_a_topic_that_a_pattern_finds_is_mapped_and_its_records_flow(lab: LabProcess) -> None:
    """Those too that were produced before anybody had looked."""
    create_topics(_bootstrap(lab, FORTH.source), [NewTopic("found-late", PARTITIONS, 1)])
    _produce(lab, FORTH, 50, topic="found-late")

    def mappings() -> dict[str, str]:
        return {each["topic"]: each["state"] for each in lab.state["mappings"] if each["flow"] == str(FORTH)}

    eventually(lambda: mappings().get("found-late") == "Enabled", f"it is mapped; see {lab.log}")
    source = _assert_replicated_once(lab, FORTH, "found-late")
    assert sum(map(len, source.values())) == 50


def test_a_topic_that_is_scheduled_is_listed_for_its_reader_and_not_mapped(lab: LabProcess) -> None:
    create_topics(_bootstrap(lab, FORTH.source), [NewTopic("tail-late", PARTITIONS, 1)])
    documents = DynamoDbDocuments(_dynamodb(lab), lab.state["tables"]["control"])

    eventually(lambda: read_scheduled_topics(documents, FORTH) == {"tail-late": PARTITIONS}, f"see {lab.log}")

    assert "tail-late" not in {mapping["topic"] for mapping in lab.state["mappings"]}
    assert lab.state["functions"]["mirrorless-pull-us-east_eu-west"]["environments"], "its first run began at once"


def test_ctrl_c_ends_the_lab_with_success_and_no_process_is_left(lab: LabProcess) -> None:
    """The last test of the module's lab."""
    folder = Path(lab.state["logs"])

    code = lab.end(signal.SIGINT)

    assert code == 0, lab.log.read_text()
    assert lab.state["ready"] is False
    assert [each["pid"] for each in lab.state["clusters"].values()] == [None, None]
    assert not _pids(lab.state)
    assert lab.state["pid"] is None
    assert folder.exists(), "another start goes on with the data"
    lab.assert_always_whole()


@pytest.mark.soak(
    "tests/unit/lab/test_processes.py::test_a_child_dies_with_us_even_by_sigkill_and_not_before",
    "tests/unit/lab/test_start.py::test_two_labs_do_not_run_on_the_same_data",
    "tests/integration/test_lab_servers.py::test_stop_leaves_no_process_and_a_later_start_finds_the_data",
)
def test_not_even_kill_9_of_the_lab_leaves_a_process_behind_and_another_start_goes_on_with_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["status", "--json", "--lab", str(tmp_path / "state.json")]
    with LabProcess(tmp_path, ONE_WAY, "--partitions", "1") as lab:
        lab.await_ready()
        before = {alias: each["bootstrap"] for alias, each in lab.state["clusters"].items()}
        lab_records = ["lab", "produce", "orders", "--records", "50", "--lab", str(lab.state_file)]
        assert main(lab_records) == 0
        with LabProcess(tmp_path, ONE_WAY) as second:
            assert second.process.wait(60) == 2
            assert "another lab runs on these data" in second.log.read_text()

        assert lab.end(signal.SIGKILL) == -signal.SIGKILL
        capsys.readouterr()
        assert main(command) == 1
        assert "the lab is not running" in capsys.readouterr().out

    # The configuration changes between.
    with LabProcess(tmp_path, ONE_WAY.replace("[orders,", "[orders, payments,"), "--partitions", "1") as lab:
        lab.await_ready(pid=lab.process.pid)
        assert {alias: each["bootstrap"] for alias, each in lab.state["clusters"].items()} == before
        assert {each["topic"] for each in lab.state["mappings"]} >= {"orders", "payments"}
        for topic in ("orders", "payments"):
            assert main([*lab_records[:2], topic, *lab_records[3:]]) == 0
            _assert_replicated_once(lab, FORTH, topic=topic)
        capsys.readouterr()
        assert main(["lab", "consume", "us-east.orders", "--json", "--lab", str(lab.state_file)]) == 0
        seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [each["value"].rstrip(".") for each in seen] == [f"record {number}" for number in range(50)] * 2


# What an outsider does


def _without_pids(server: dict[str, Any]) -> dict[str, Any]:
    brokers = [{**broker, "pid": None} for broker in server.get("brokers", ())]
    return {**server, "pid": None, "brokers": brokers}


def _pids(state: dict[str, Any]) -> set[int]:
    return {each["pid"] for function in state["functions"].values() for each in function["environments"]}


def _bootstrap(lab: LabProcess, alias: str) -> str:
    return str(lab.state["clusters"][alias]["bootstrap"])


def _dynamodb(lab: LabProcess) -> Any:
    keys = {"aws_access_key_id": "outsider", "aws_secret_access_key": "outsider"}
    return boto3.client("dynamodb", endpoint_url=lab.state["dynamodb"]["endpoint"], region_name="us-east-1", **keys)


def _topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10).topics)


def _produce(lab: LabProcess, flow: FlowName, records: int, *, topic: str = "orders") -> None:
    """Write and have acknowledged; a broker that is down just now is waited for."""
    refused: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": _bootstrap(lab, flow.source),
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    for _ in range(records):
        number = next(numbers)
        producer.produce(
            topic,
            b"value-%d" % number,
            b"key-%d" % number,
            number % PARTITIONS,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not refused


def _assert_replicated_once(lab: LabProcess, flow: FlowName, topic: str = "orders") -> dict[int, list[Seen]]:
    """Wait until as much stands on the target as on the source, then compare every record and every offset."""
    source_at, target_at, remote = _bootstrap(lab, flow.source), _bootstrap(lab, flow.target), f"{flow.source}.{topic}"
    chains = DynamoDbChains(_dynamodb(lab), lab.state["tables"]["offset_map"])
    source = read_topic(source_at, topic)
    lanes = {Lane(flow, topic, partition): seen for partition, seen in source.items() if seen}

    def all_committed() -> bool:
        try:
            heads = chains.heads(lanes)
        except Retriable:
            return False  # it was killed and has another process, which does not answer yet; the deadline decides
        return all(not heads[lane].in_doubt and heads[lane].position > seen[-1].offset for lane, seen in lanes.items())

    eventually(all_committed, f"every record has its place in the map; see {lab.log}")
    await_settled(target_at, remote)
    target = read_topic(target_at, remote)
    for lane, seen in lanes.items():
        assert_mirrored(lane, chains, seen, target[lane.partition])
    return source
