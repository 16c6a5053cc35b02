"""The refresh of topics on real Kafka and DynamoDB Local, with the lab's mappings behind boto3's own client.

Each test has a prefix of topic names to itself, so that one pair of clusters serves all of them.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any, Literal, cast
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from msgspec.structs import replace

from lab.esm.behaviour import LabBehaviour
from lab.esm.lambda_api import LambdaApi
from lab.esm.mappings import EventSourceMappings
from lab.functions.invocation import Invocation, Invoker
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import RUNNING, LaneState, Stop
from mirrorless.chain.run import Reset
from mirrorless.clock import now_ms
from mirrorless.errors import LeaseLost, MirrorlessError
from mirrorless.flow.naming import FLOW_VARIABLE
from mirrorless.flow.settings import FlowSettings, PullSettings
from mirrorless.lanes.log_ends import STANDING_MS
from mirrorless.lanes.operator_actions import advice
from mirrorless.ports.topics import ConfigEntry as SourceConfig
from mirrorless.ports.topics import SourceTopics
from mirrorless.protocol.refusal_causes import REMEDIES
from mirrorless.scheduled.runner import RoundReport, Task
from mirrorless.topics.refresh import RemoteTopicSync
from mirrorless.topics.scheduled_topics import read_scheduled_topics
from tests.support.chains import run
from tests.support.lane_stage import ORDERED
from tests.support.readback import committed, read_topic
from tests.support.topics import broker_default
from tests.support.tries import tries
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

OF_ONE_CALL = 30
TOPICS = tries(36, many=1_000)
"""More than those of one call, so that calls must grow with batches and not with topics."""

SECONDS = 60.0
"""What a round may take."""


class Nobody:
    """A function that takes every batch and does nothing."""

    def invoke(self, event: bytes) -> Invocation:
        """See `Invoker.invoke`."""
        return Invocation(status="success", payload=b"null", request_id="r", duration_ms=1)


@dataclass(slots=True)
class Context:
    """As much of Lambda's context as the function asks for."""

    aws_request_id: str = "request-1"
    seconds: float = SECONDS

    def get_remaining_time_in_millis(self) -> int:
        """What is left."""
        return int(self.seconds * 1000)


@dataclass(slots=True, kw_only=True)
class RefreshStage:
    """A flow of all topics with one prefix, and rounds of its refresh."""

    prefix: str
    settings: FlowSettings
    source: AdminClient
    target: AdminClient
    bootstrap: str
    chains: DynamoDbChains
    orders: DynamoDbLaneOrders
    documents: DynamoDbDocuments
    mappings: EventSourceMappings
    functions: dict[str, Invoker]
    wire: Callable[[FlowSettings], list[Task]]

    def topic(self, name: str) -> str:
        """A source topic's name."""
        return f"{self.prefix}-{name}"

    def remote(self, name: str) -> str:
        """Its remote topic's."""
        return self.settings.policy.remote_topic("us-east", self.topic(name))

    def lane(self, name: str, partition: int = 0) -> Lane:
        """One of its lanes."""
        return Lane(self.settings.name, self.topic(name), partition)

    def pause_mappings(self) -> None:
        """Let mappings be created without pollers: for topics that are to be deleted."""
        self.settings = replace(self.settings, mapping_template=self.settings.mapping_template | {"Enabled": False})

    def refresh(self, **changes: Any) -> RoundReport:
        """One round of the task `topics`."""
        return self._round("topics", changes)

    def sync_configs(self, **changes: Any) -> RoundReport:
        """One round of the task `configs`."""
        return self._round("configs", changes)

    def _round(self, task: str, changes: dict[str, Any]) -> RoundReport:
        report = RoundReport()
        for each in self.wire(replace(self.settings, **changes)):
            if each.name == task:
                each.act(report, lambda: SECONDS)
        return report

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a source topic; underscores in config names are dots."""
        topic = self.topic(name)
        config = {key.replace("_", "."): value for key, value in configs.items()}
        self.source.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(20)
        eventually(lambda: len(self.source.list_topics(topic, timeout=5).topics[topic].partitions) == partitions)

    def delete(self, name: str) -> None:
        """Delete a source topic."""
        topic = self.topic(name)
        self.source.delete_topics([topic])[topic].result(20)
        eventually(lambda: topic not in self.source.list_topics(timeout=5).topics)

    def write(self, name: str, *values: int | bytes, partition: int = 0, timestamp: int = 0) -> None:
        """Write records to a source topic: so many, or these."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "message.max.bytes": 30_000_000, **ORDERED})
        for value in (some for each in values for some in ([each] if isinstance(each, bytes) else [b"v"] * each)):
            producer.produce(self.topic(name), value, b"k", partition, timestamp=timestamp)
        assert producer.flush(20) == 0

    def partitions(self, name: str) -> int:
        """How many partitions the remote topic has; 0 when there is none."""
        topic = self.target.list_topics(timeout=5).topics.get(self.remote(name))
        return 0 if topic is None else len(topic.partitions)

    def overrides(self, name: str) -> dict[str, str]:
        """What is set on the remote topic itself."""
        resource = ConfigResource(ResourceType.TOPIC, self.remote(name))
        described = self.target.describe_configs([resource])[resource].result(20)
        return {entry.name: entry.value for entry in described.values() if int(entry.source) == 1}

    def await_overrides(self, name: str, expected: dict[str, str]) -> None:
        """Wait until the remote topic has these overrides and no others: brokers show late what they were given."""
        eventually(lambda: self.overrides(name) == expected)

    def configure(self, admin: AdminClient, topic: str, **configs: str | None) -> None:
        """Set or, with None, delete overrides of a topic, and wait until the broker shows it: it learns of it later."""
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(20)

        def shown() -> bool:
            plain = ConfigResource(ResourceType.TOPIC, topic)
            described = admin.describe_configs([plain])[plain].result(20)
            set_here = {name: entry.value for name, entry in described.items() if int(entry.source) == 1}
            return all(set_here.get(each.name) == each.value for each in entries)

        eventually(shown)

    def stop_of(self, name: str, partition: int = 0) -> str:
        """Why a lane is stopped; empty while it is running."""
        lane = self.lane(name, partition)
        state: LaneState = self.orders.read([lane]).get(lane, RUNNING)
        return "" if state.stop is None else state.stop.reason

    def mapped(self) -> dict[str, dict[str, Any]]:
        """The mappings by the name under the prefix."""
        return {each["Topics"][0].removeprefix(f"{self.prefix}-"): each for each in self.mappings.list()}

    def scheduled(self) -> dict[str, int]:
        """The topics that `pull` reads, by the name under the prefix."""
        found = read_scheduled_topics(self.documents, self.settings.name)
        return {topic.removeprefix(f"{self.prefix}-"): count for topic, count in found.items()}

    def committed(self, name: str) -> dict[int, int]:
        """What the topic's mapping's group has committed on the source."""
        topic = self.topic(name)
        return committed(self.settings.source.bootstrap, self.settings.consumer_group(topic), topic)


@pytest.fixture
def stage(
    clusters: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
    flow_settings: FlowSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RefreshStage]:
    """A flow that nobody has refreshed yet."""
    source, target = clusters
    prefix = f"t{uuid4().hex[:8]}"
    functions: dict[str, Invoker] = {"forward": Nobody()}
    mappings = EventSourceMappings(functions=functions, folder=tmp_path)
    door = LambdaApi(mappings, behaviour=LabBehaviour())
    door.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", door.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    function = importlib.import_module("refresh_topics")
    settings = msgspec.structs.replace(
        flow_settings,
        aliases=("us-east", "eu-west"),
        topics=(f"{prefix}-.*",),
        heartbeats_replication_enabled=False,
        function_name="forward:live",
        function_region="eu-west-1",
        mapping_template={
            "Enabled": True,
            "BatchSize": 100,
            "MaximumBatchingWindowInSeconds": 0,
            "SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": [source.bootstrap]}},
            "SelfManagedKafkaEventSourceConfig": {},
        },
    )
    tables = flow_settings.tables
    yield RefreshStage(
        prefix=prefix,
        settings=settings,
        source=AdminClient({"bootstrap.servers": source.bootstrap, "log_level": 0}),
        target=AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0}),
        bootstrap=source.bootstrap,
        chains=DynamoDbChains(dynamodb.client(), tables.offset_map),
        orders=DynamoDbLaneOrders(dynamodb.client(), tables.lanes),
        documents=function.documents(settings),
        mappings=mappings,
        functions=functions,
        wire=function.wire,
    )
    for client in (function.aws_lambda("eu-west-1"), function.dynamodb("us-east-1")):
        client.close()
    function.aws_lambda.cache_clear()
    function.dynamodb.cache_clear()
    mappings.stop()
    door.stop()


# Remote topics and mappings


def test_a_topic_found_late_gets_its_remote_topic_and_a_mapping_from_its_first_record(stage: RefreshStage) -> None:
    """Records that were written before it was found are the ones that replicators lose."""
    stage.refresh()
    stage.create("orders", 3, cleanup_policy="compact", retention_bytes="1000", min_insync_replicas="1")
    stage.write("orders", 10)

    report = stage.refresh()

    assert (report.troubles, report.counts["topics-created"], report.counts["mappings-created"]) == ([], 1, 1)
    assert stage.partitions("orders") == 3
    stage.await_overrides("orders", {"cleanup.policy": "compact", "retention.bytes": "1000"})
    mapping = stage.mapped()["orders"]
    assert mapping["StartingPosition"] == "TRIM_HORIZON"
    assert mapping["SelfManagedKafkaEventSourceConfig"]["ConsumerGroupId"] == stage.settings.consumer_group(
        stage.topic("orders")
    )


def test_no_mapping_is_made_for_a_topic_whose_remote_topic_is_refused(stage: RefreshStage) -> None:
    stage.create("orders")

    report = stage.refresh(replication_factor=3)

    assert stage.mapped() == {}
    assert "not created" in report.troubles[0]
    assert stage.refresh().troubles == []
    assert sorted(stage.mapped()) == ["orders"]


def test_records_lost_with_a_deleted_topic_are_reported_until_the_operator_settles_it(stage: RefreshStage) -> None:
    stage.pause_mappings()
    stage.create("orders")
    stage.write("orders", 5)
    stage.refresh()
    stage.chains.prepare([run(0, 3, (0, 0, 3), lane=stage.lane("orders"))])
    stage.chains.confirm([run(0, 3, (0, 0, 3), lane=stage.lane("orders"))])
    stage.delete("orders")

    troubles = [stage.refresh().troubles for _ in range(2)]

    assert ["which ended at 5; replicated up to 3" in trouble for (trouble,) in troubles] == [True, True]
    stage.chains.reset(_reset(stage.lane("orders"), position=3, following=5))
    assert stage.refresh().troubles == []


# Where a flow begins


def test_topics_that_were_there_before_the_flow_begin_at_their_end_and_later_ones_at_their_first_record(
    stage: RefreshStage,
) -> None:
    stage.pause_mappings()
    stage.create("old", 2)
    stage.write("old", 4)
    stage.refresh(start="latest")
    stage.write("old", 3)
    stage.create("new", 2)
    stage.write("new", 4)

    stage.refresh(start="latest")

    assert stage.committed("old") == {0: 4, 1: 0}
    assert stage.committed("new") == {}
    assert sorted(stage.mapped()) == ["new", "old"]


def test_a_flow_that_begins_at_a_moment_begins_at_the_first_record_of_that_moment(stage: RefreshStage) -> None:
    stage.create("old")
    stage.write("old", 4, timestamp=1_700_000_000_000)
    stage.write("old", 3, timestamp=1_800_000_000_000)

    stage.pause_mappings()

    report = stage.refresh(start="2026-01-01T00:00:00Z")

    assert report.troubles == []
    assert stage.committed("old") == {0: 4}


# Triggers


# Configs


class Forwarder:
    """The real function, in this process, for one flow; events that it was given are counted by their first offsets."""

    def __init__(self, settings: FlowSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(FLOW_VARIABLE, msgspec.json.encode(settings).decode())
        sys.modules.pop("forward", None)
        self._module = importlib.import_module("forward")
        self._one_at_a_time = Lock()

    def invoke(self, event: bytes) -> Invocation:
        """See `Invoker.invoke`."""
        with self._one_at_a_time:
            try:
                answer = self._module.handler(event, Context(aws_request_id=uuid4().hex))
            except MirrorlessError as exc:
                return Invocation(status="function_error", payload=str(exc).encode(), request_id="r", duration_ms=1)
        return Invocation(status="success", payload=json.dumps(answer).encode(), request_id="r", duration_ms=1)


@pytest.mark.parametrize("oversize", ["pass", "stand"])
def test_lanes_that_stopped_before_large_records_go_on_with_the_schedule_as_their_stop_advises(
    stage: RefreshStage, monkeypatch: pytest.MonkeyPatch, oversize: Literal["pass", "stand"]
) -> None:
    """In the middle of a log, and as its last record; the mapping passes them, or stands before them."""
    monkeypatch.setattr(stage.mappings, "_behaviour", LabBehaviour(oversize=oversize, stop_grace_s=1.0))
    stage.settings = replace(stage.settings, oversize="stop", transaction_timeout_ms=10_000)
    stage.functions["forward"] = Forwarder(stage.settings, monkeypatch)
    stage.create("orders", 3, max_message_bytes="30000000")
    large = [Random(size).randbytes(size * 1_000_000) for size in (8, 20)]
    written = [[b"0", b"1", large[0], b"3", large[1], b"5"], [b"0", large[0]], [b"0", b"1", b"2"]]
    for partition, values in enumerate(written):
        stage.write("orders", *values, partition=partition)
    stage.refresh()
    check = importlib.import_module("control").wire(stage.settings).log_ends
    check.clock = lambda: now_ms() + STANDING_MS

    def stops() -> dict[int, Stop]:
        check.look(RoundReport(), lambda: SECONDS)
        found = stage.orders.read([stage.lane("orders", partition) for partition in range(3)])
        return {lane.partition: state.stop for lane, state in found.items() if state.stop is not None}

    def seen() -> list[list[bytes | None]]:
        found = read_topic(stage.settings.target.bootstrap, stage.remote("orders"))
        return [[each.content.value for each in found[partition]] for partition in range(3)]

    eventually(lambda: {partition: stop.upstream_offset for partition, stop in stops().items()} == {0: 2, 1: 1})
    eventually(lambda: seen() == [written[0][:2], written[1][:1], written[2]])
    for partition, stop in stops().items():
        assert stop.reason == "undelivered"
        assert "8,000,001 bytes" in stop.detail
        said = advice(stage.lane("orders", partition), stop)
        assert f"make '{stage.topic('orders')}: schedule' the first entry" in said
        assert f"`mirrorless lanes resume 'us-east->eu-west' {stage.topic('orders')} {partition} --execute`" in said

    # As advised.
    stage.settings = replace(stage.settings, trigger_overrides={stage.topic("orders"): "schedule"})
    stage.write("orders", b"6")
    stage.refresh()
    eventually(lambda: stage.mapped() == {})
    for partition in stops():
        stage.orders.resume(stage.lane("orders", partition))
    pull = importlib.import_module("pull")
    pull.warm.clear()
    for part in ("lease", "holder", "successor"):
        stage.documents.delete(stage.settings.name, f"pull/0/{part}")
    pull.handler(msgspec.to_builtins(PullSettings(flow=stage.settings, shard=0, shards=1)), Context())
    pull.warm.clear()

    assert seen() == [[*written[0], b"6"], *written[1:]]
    assert stops() == {}


def test_configs_follow_the_source_and_a_manual_override_is_reverted(stage: RefreshStage) -> None:
    stage.create("orders", retention_bytes="1000")
    stage.refresh()
    stage.configure(stage.target, stage.remote("orders"), retention_bytes="2000", segment_bytes="1048576")
    stage.configure(stage.target, stage.remote("orders"), min_insync_replicas="1")

    report = stage.sync_configs()

    assert report.counts["configs-altered"] == 2
    stage.await_overrides("orders", {"retention.bytes": "1000", "min.insync.replicas": "1"})
    assert stage.sync_configs().counts["configs-altered"] == 0


def test_the_advice_for_records_without_keys_holds_beside_the_sync(stage: RefreshStage) -> None:
    stage.create("orders", cleanup_policy="compact")
    stage.refresh()
    producer = Producer({"bootstrap.servers": stage.settings.target.bootstrap})
    errors = list[str]()

    def produce() -> str:
        producer.produce(
            stage.remote("orders"),
            b"no key",
            on_delivery=lambda error, _: errors.append("" if error is None else error.name()),
        )
        assert producer.flush(20) == 0
        return errors[-1]

    cause = produce()
    assert cause == "INVALID_RECORD"
    advised = re.search(
        r"set the remote topic's (\S+) to (\w+), and name it in config.properties.protect", REMEDIES[cause]
    )
    assert advised is not None
    name, value = advised.groups()
    stage.configure(stage.target, stage.remote("orders"), **{name.replace(".", "_"): value})

    stage.sync_configs(config_properties_protect=(name,))
    stage.await_overrides("orders", {name: value})
    assert not produce()

    stage.sync_configs()
    stage.await_overrides("orders", {name: "compact"})


def test_a_config_that_the_target_refuses_is_left_out_and_reported_and_stops_no_other(stage: RefreshStage) -> None:
    """A target without tiered storage has a config of that name, and takes no topic that has it switched on."""
    tiered = {"retention.bytes": "1000", "remote.storage.enable": "true", "redpanda.remote.write": "true"}
    found = [SourceConfig(name=name, value=value, is_override=True) for name, value in tiered.items()]
    stage.create("orders")
    source = SimpleNamespace(
        partitions=lambda _: {stage.topic("orders"): 1},
        configs=lambda names, _: (dict.fromkeys(names, found), {}),
    )
    target = KafkaTopics(stage.settings.target, flow="us-east->eu-west", role="test")
    sync = RemoteTopicSync(settings=stage.settings, source=cast("SourceTopics", source), target=target)
    report, created = RoundReport(), {stage.topic("orders"): 1}

    ready = sync.create_and_grow(created, report, lambda: SECONDS)

    assert ready == created
    assert [trouble.partition(": ")[2] for trouble in report.troubles] == [
        "created without redpanda.remote.write, remote.storage.enable: the target refuses it"
    ]
    eventually(lambda: stage.partitions("orders") == 1)
    stage.await_overrides("orders", {"retention.bytes": "1000"})
    stage.configure(stage.target, stage.remote("orders"), retention_bytes="2000")

    report = RoundReport()
    sync.sync_configs(report, lambda: SECONDS)

    assert report.counts["configs-altered"] == 1
    stage.await_overrides("orders", {"retention.bytes": "1000"})
    unknown, refused = sorted(report.troubles)
    assert "the target has no config redpanda.remote.write" in unknown
    assert "the target refused" in refused
    assert "remote.storage.enable" in refused


def test_a_default_set_while_the_brokers_run_is_not_turned_into_an_override(stage: RefreshStage) -> None:
    """MM2 takes such a default for the topic's own config."""
    with broker_default(stage.settings.source.bootstrap, log_segment_delete_delay_ms="61000"):
        stage.create("orders")
        stage.refresh()
        stage.sync_configs()

        stage.await_overrides("orders", {})


# The watch


def replicated_in_part(stage: RefreshStage) -> Lane:
    """The topic `orders` of two partitions, the first of which has a run; that one's lane."""
    stage.pause_mappings()
    stage.create("orders", 2)
    stage.refresh()
    lane = stage.lane("orders", 0)
    stage.chains.prepare([run(0, 3, (0, 0, 3), lane=lane)])
    stage.chains.confirm([run(0, 3, (0, 0, 3), lane=lane)])
    return lane


def test_a_topic_that_was_created_again_stops_its_lanes_until_each_is_reset(stage: RefreshStage) -> None:
    lane = replicated_in_part(stage)
    stage.delete("orders")
    stage.create("orders", 2)

    reports = [stage.refresh(), stage.refresh()]

    assert (stage.stop_of("orders", 0), stage.stop_of("orders", 1)) == ("recreated", "")
    assert [report.counts.get("lanes-stopped") for report in reports] == [1, 0]
    assert ["its partitions 0 stand still" in report.troubles[0] for report in reports] == [True, True]

    stage.chains.reset(_reset(lane, position=3, following=0))
    stage.orders.begin_anew(lane)

    assert stage.refresh().troubles == []
    assert stage.refresh().counts["topics-recreated"] == 0
    assert stage.stop_of("orders", 0) == ""


def test_a_remote_topic_that_was_created_again_stops_its_lanes_until_each_is_reset(stage: RefreshStage) -> None:
    lane = replicated_in_part(stage)
    assert stage.refresh().troubles == []
    remote = stage.remote("orders")
    stage.target.delete_topics([remote])[remote].result(20)
    eventually(lambda: remote not in stage.target.list_topics(timeout=5).topics)

    creating = stage.refresh()
    eventually(lambda: remote in stage.target.list_topics(timeout=5).topics)  # a busy broker shows it after the round
    reports = [stage.refresh(), stage.refresh()]

    assert (stage.stop_of("orders", 0), stage.stop_of("orders", 1)) == ("remote_recreated", "")
    assert sorted(report.counts.get("lanes-stopped", 0) for report in (creating, *reports)) == [0, 0, 1]
    assert [f"{remote} was deleted on the target" in report.troubles[0] for report in reports] == [True, True]

    stage.chains.reset(_reset(lane, position=3, following=0))
    stage.orders.begin_anew(lane)

    assert stage.refresh().troubles == []
    assert stage.stop_of("orders", 0) == ""


# The end


def test_a_refresh_that_was_started_before_the_end_maps_nothing_any_more(
    stage: RefreshStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorless.topics.mapping_removal.LOOK_EVERY_SECONDS", 0.2)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    stage.pause_mappings()
    stage.create("orders")
    function, end = importlib.import_module("refresh_topics"), importlib.import_module("remove_mappings")
    event = msgspec.to_builtins(replace(stage.settings, window_seconds=1))
    function.handler(event, Context())
    eventually(lambda: {each["State"] for each in stage.mapped().values()} == {"Disabled"})

    try:
        assert end.remove(stage.settings, lambda: SECONDS).deleted == 1
    finally:
        end.aws_lambda.cache_clear()
        end.dynamodb.cache_clear()
    reports = function.handler(event, Context())

    assert (reports, stage.mapped()) == ({}, {})


# The door, and what a round costs


def test_the_function_does_what_is_due_and_leaves_the_rest_to_its_next_start(
    stage: RefreshStage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.create("orders")
    function = importlib.import_module("refresh_topics")
    event = msgspec.to_builtins(replace(stage.settings, window_seconds=1))

    first, second = function.handler(event, Context()), function.handler(event, Context())

    assert {name: report["error"] for name, report in first.items()} == {"topics": "", "configs": "", "acls": ""}
    assert second == {}
    assert stage.partitions("orders") == 1
    assert '"topics-created"' in capsys.readouterr().out
    # A run whose lease was over before these replaces none of their documents.
    with pytest.raises(LeaseLost):
        stage.documents.write(stage.settings.name, {f"topic/{stage.topic('orders')}": b"late"}, epoch=1)


def test_a_refresh_of_many_topics_costs_a_bounded_number_of_calls(
    stage: RefreshStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    operations = (
        "list_topics",
        "describe_topics",
        "describe_configs",
        "list_offsets",
        "create_topics",
        "create_partitions",
        "incremental_alter_configs",
    )

    def counted(name: str) -> Callable[..., Any]:
        def call(self: AdminClient, *arguments: Any, **options: Any) -> Any:
            asked[name] += 1
            return getattr(super(type(self), self), name)(*arguments, **options)

        return call

    counting = type("CountingAdmin", (AdminClient,), {name: counted(name) for name in operations})
    monkeypatch.setattr("mirrorless.adapters.kafka.admin.AdminClient", counting)
    monkeypatch.setattr("mirrorless.adapters.kafka.topics.BATCH", OF_ONE_CALL)
    # The cache tells one client from another by its arguments as they are written.
    store = importlib.import_module("refresh_topics").dynamodb("us-east-1", None)
    store.meta.events.register("before-call", lambda model, **_: asked.update([model.name]), unique_id="count")
    names = [stage.topic(f"{n:04}") for n in range(TOPICS)]
    for future in stage.source.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(60)
    eventually(lambda: set(names) <= stage.source.list_topics(timeout=10).topics.keys())
    no_mappings = {"function_name": ""}

    begun = time.monotonic()
    first = stage.refresh(**no_mappings)
    print(f"{TOPICS} topics: found and created in {time.monotonic() - begun:.1f} s, {dict(asked)}")
    # A new topic takes a moment to reach the metadata, and its leader as long to tell where it ends.
    remote = {f"us-east.{name}" for name in names}
    eventually(lambda: remote <= stage.target.list_topics(timeout=10).topics.keys())
    stage.refresh(**no_mappings)
    asked.clear()
    begun = time.monotonic()
    second = stage.refresh(**no_mappings)
    print(f"looked at again in {time.monotonic() - begun:.1f} s, {dict(asked)}")
    refreshed = Counter(asked)
    asked.clear()
    synced = stage.sync_configs()
    print(f"configs compared: {dict(asked)}")

    assert (first.counts["topics-created"], second.counts["topics"]) == (TOPICS, TOPICS)
    assert second.troubles == []
    batches = -(-TOPICS // OF_ONE_CALL)
    assert refreshed == {"list_topics": 2, "describe_topics": 2 * batches, "list_offsets": 1, "Query": 2, "Scan": 1}
    assert synced.counts["topics-compared"] == TOPICS
    assert asked == {"list_topics": 2, "describe_configs": 2 * batches, "Query": 1, "Scan": 1, "BatchWriteItem": 1}


def _reset(lane: Lane, *, position: int, following: int) -> Reset:
    return Reset(
        lane=lane,
        generation=0,
        position=position,
        to_generation=1,
        next=following,
        reason="the operator's",
        at=1,
    )
