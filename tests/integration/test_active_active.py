"""Two clusters that replicate a topic to each other under one name: mappings one way, a pull the other, groups both."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Producer
from control import ControlWiring
from msgspec.structs import replace

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.chain.lane import FlowName
from mirrorless.failover.report import missing_of
from mirrorless.failover.run import FailoverCommand
from mirrorless.failover.state import FailoverDocument, FailoverOrder
from mirrorless.flow.settings import FlowSettings, PullSettings
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.origin import ORIGIN_HEADER
from mirrorless.scheduled.runner import RoundReport, Task
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from mirrorless.verify.lane import LaneVerification
from mirrorless.verify.parts import VerifyTask
from tests.support.failover_scenario import deployed, effects_between, read_as_member
from tests.support.lane_stage import ORDERED, LaneStage
from tests.support.readback import await_settled, read_topic
from tests.support.verified_lane import NO_RULES

pytestmark = pytest.mark.integration

PARTITIONS = 2


@dataclass(slots=True, kw_only=True)
class Pair:
    """The topic on both clusters, its two flows, producers and a group."""

    stage: LaneStage
    dynamodb: DynamoDbLocal
    pull: ModuleType
    mapped: Replicator
    produced: dict[str, list[bytes]] = field(default_factory=dict)
    read: list[bytes] = field(default_factory=list)
    _rounds: dict[FlowName, Task] = field(default_factory=dict)

    @property
    def there(self) -> FlowSettings:
        """The flow by a mapping."""
        return self.stage.settings

    @property
    def back(self) -> FlowSettings:
        """The flow by a schedule."""
        one = self.there
        target = replace(one.source, region=one.target.region)
        return replace(one, flow=str(one.name.turned), source=one.target, target=target)

    def produce(self, cluster: KafkaCluster, count: int, pause: float = 0.0) -> None:
        """Write as an application, half of it in transactions."""
        kept = self.produced.setdefault(cluster.alias, [])
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"app-{uuid4().hex}", **ORDERED}
        )
        producer.init_transactions(20)
        for number in range(count):
            value, partition = f"{cluster.alias} {len(kept)}".encode(), number % PARTITIONS
            if number % 2:
                producer.begin_transaction()
                producer.produce(self.stage.topic, value, key=b"k", partition=partition, headers=[("app", value)])
                producer.commit_transaction(20)
            else:
                self.stage.write_to(cluster, self.stage.topic, value, partition=partition, headers=[("app", value)])
            kept.append(value)
            threading.Event().wait(pause)

    def replicate(self) -> int:
        """One event with all of one cluster, and a run that reads the other; how many records were copied."""
        delivered, copied = self.stage.event(), 0
        if json.loads(delivered)["records"]:
            copied = sum(run.records for run in self.stage.replicate(self.mapped, delivered).runs)
        event = msgspec.to_builtins(PullSettings(flow=self.back, shard=0, shards=1))
        context = SimpleNamespace(aws_request_id=uuid4().hex, get_remaining_time_in_millis=lambda: 120_000)
        report = self.pull.handler(event, context)
        assert report["ended"] == "drained", report
        assert not report["passed_bytes"]
        return copied + int(report["records"])

    def settle(self) -> None:
        """Replicate until nothing is copied any more; records in a circle would never let it end."""
        for cluster in (self.stage.source, self.stage.target):
            await_settled(cluster.bootstrap, self.stage.topic)  # the marker of the last transaction
        for _ in range(20):
            if not self.replicate():
                return
        raise AssertionError("records go in a circle")

    def consume(self, cluster: KafkaCluster, count: int | None = None) -> list[bytes]:
        """Read as a member of the group, to the end or a number of records, and commit."""
        client = {"bootstrap.servers": cluster.bootstrap, "group.id": f"shop-{self.stage.topic}"}
        found = read_as_member(client, self.stage.topic, PARTITIONS, count)
        self.read += found
        return found

    def carry_groups(self) -> None:
        """Rounds of both flows until neither commits anything: two in a row, for a look at a log takes a second one."""
        still = 0
        for _ in range(20):
            committed = 0
            for flow in (self.there, self.back):
                report = RoundReport()
                self._round(flow).act(report, lambda: 20.0)
                assert not report.troubles, report.troubles
                committed += int(report.counts["offsets-committed"])
            still = 0 if committed else still + 1
            if still == 2:
                return
        raise AssertionError("the flows move the group for ever")

    def verify(self, flow: FlowSettings) -> tuple[int, int, int]:
        """Records proved on the target, compared with the source, and wrong, of all partitions."""
        proved = compared = wrong = 0
        for partition in range(PARTITIONS):
            client = self.dynamodb.client()
            found = LaneVerification(
                task=VerifyTask(
                    settings=flow, topic=self.stage.topic, partition=partition, run_id="v", against_source=True
                ),
                chains=DynamoDbChains(client, flow.tables.offset_map),
                ledger=DynamoDbLossLedger(client, flow.tables.loss_ledger),
                target=KafkaLaneLog(flow.target, flow=flow.flow),
                source=KafkaLaneLog(flow.source, flow=flow.flow),
                note=lambda *_, **__: None,
                rules=NO_RULES,
            ).verify()
            proved, compared = proved + found.counts.proved, compared + found.counts.compared
            wrong += found.counts.found
        return proved, compared, wrong

    def _round(self, flow: FlowSettings) -> Task:
        if flow.name not in self._rounds:
            settings = msgspec.structs.replace(
                flow,
                aliases=(flow.source.alias, flow.target.alias),
                topics=(self.stage.topic,),
                groups=(f"shop-{self.stage.topic}",),
                checkpoints_topic_replication_factor=1,
                sync_group_offsets_enabled=True,
                sync_group_offsets_interval_seconds=0,
                sync_group_offsets_reverse_enabled=flow.name == self.there.name,
                counterpart_map=flow.tables.offset_map,
                group_grace_seconds=0,
            )
            self._rounds[flow.name] = {task.name: task for task in ControlWiring(settings).tasks()}["checkpoints"]
        return self._rounds[flow.name]


@pytest.fixture
def pair(stage: LaneStage, dynamodb: DynamoDbLocal) -> Iterator[Pair]:
    aliases = (stage.source.alias, stage.target.alias)
    source = replace(stage.settings.source, region="us-east-1")
    stage.settings = replace(stage.settings, replication_policy="identity", origins=aliases, source=source)
    for cluster in (stage.source, stage.target):
        stage.create(cluster, stage.topic, PARTITIONS)
    pull = importlib.import_module("pull")
    pull.warm.clear()
    pair = Pair(stage=stage, dynamodb=dynamodb, pull=pull, mapped=stage.environment())
    documents = DynamoDbDocuments(dynamodb.client(), stage.settings.tables.control)
    for part in ("lease", "holder", "successor"):
        documents.delete(pair.back.name, f"pull/0/{part}")
    write_scheduled_topics(documents, pair.back.name, {stage.topic: PARTITIONS}, stored={})
    yield pair
    pull.warm.clear()
    documents.delete(pair.back.name, "pull/topics")


def test_producers_on_both_sides_and_a_group_that_moves_have_every_record_once(pair: Pair) -> None:
    east, west = pair.stage.source, pair.stage.target
    writers = [threading.Thread(target=pair.produce, args=(cluster, 60, 0.01)) for cluster in (east, west)]
    for writer in writers:
        writer.start()
    end = time.monotonic() + 180
    while any(writer.is_alive() for writer in writers):
        assert time.monotonic() < end
        pair.replicate()
    pair.settle()

    values = [value for produced in pair.produced.values() for value in produced]
    for cluster in (east, west):
        await_settled(cluster.bootstrap, pair.stage.topic)
        seen = [each.content for found in read_topic(cluster.bootstrap, pair.stage.topic).values() for each in found]
        assert Counter(each.value for each in seen) == Counter(values)
        for each in seen:
            origin = (each.value or b"").split(b" ")[0]
            mark = (
                [] if origin.decode() == cluster.alias else [(ORIGIN_HEADER, origin + f"/{pair.stage.topic}".encode())]
            )
            assert list(each.headers) == [("app", each.value), *mark]
    assert pair.verify(pair.there) == (60, 60, 0)
    assert pair.verify(pair.back) == (60, 60, 0)

    # The group goes there and back, and a record is read by it where it is then.
    pair.carry_groups()
    for cluster in (east, west, east):
        pair.consume(cluster)
        pair.carry_groups()
        pair.produce(west if cluster is east else east, 3)
        pair.settle()
        pair.carry_groups()
    pair.consume(west)

    values = [value for produced in pair.produced.values() for value in produced]
    assert Counter(pair.read) == Counter(values)


BOTH_WAYS = """
defaults:
  replication.policy: identity
  loop.prevention: header
  sync.topic.configs.enabled: false
  sync.topic.acls.enabled: false
  topics: [{topic}]
  groups: [shop-{topic}]
flows:
  us-east->eu-west: {{}}
  eu-west->us-east: {{}}
"""


def test_one_side_fails_over_and_back_while_the_other_goes_on(pair: Pair, tmp_path: Path) -> None:
    east, west = pair.stage.source, pair.stage.target

    flows = BOTH_WAYS.format(topic=pair.stage.topic)
    deployment = deployed(pair.stage, tmp_path, pair.dynamodb.endpoint, flows)

    def carry_out(order: FailoverOrder | None) -> FailoverDocument:
        effects = effects_between(deployment, pair.replicate)
        command = FailoverCommand(effects=effects, order=order, still_seconds=0.4)
        command.prepare()
        return command.execute()

    for cluster in (east, west):
        pair.produce(cluster, 4)
    pair.settle()
    pair.consume(east)
    pair.produce(east, 2)
    pair.produce(west, 2)

    document = carry_out(FailoverOrder(mode="planned", fencing="wait"))

    assert missing_of(document) == []
    assert [each.step for each in document.steps] == ["check", "standstill", "drain", "groups", "acls", "prove"]
    assert len(pair.consume(west)) == 4
    pair.produce(west, 2)

    back = carry_out(None)

    assert back.over
    assert missing_of(back) == []
    assert len(pair.consume(east)) == 2
    values = [value for produced in pair.produced.values() for value in produced]
    assert Counter(pair.read) == Counter(values)
