"""What a real MirrorMaker 2 copied before it was taken over stays translatable, and its groups' offsets are the flow's.

Every answer is compared with the records on both sides; nothing here asks our map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from control import ControlWiring

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.clock import deadline_in
from mirrorless.groups.checkpoints import GroupCheckpoints, document_key
from mirrorless.mm2.internal_records import Checkpoint
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.pause import MAPPINGS, PausedMappings, order_pause, order_resume, read_pause
from tests.support.commands import Command, lab_state
from tests.support.lane_stage import LaneStage
from tests.support.mirror_maker import RealMirrorMaker
from tests.support.readback import await_settled, read_topic
from tests.support.topics import transaction, transactional
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.java]

PARTITIONS, RECORDS, OLD = 2, 2_500, 50
PLACES = (333, 700)
"""The upstream offsets of the groups."""

Pairs = list[tuple[int, int]]


@pytest.fixture
def mirror_maker(
    stage: LaneStage, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> Iterator[RealMirrorMaker]:
    source, target = clusters
    stage.create(stage.source, stage.topic, PARTITIONS)
    made = RealMirrorMaker(
        source=source.bootstrap,
        target=target.bootstrap,
        folder=tmp_path / "mm2",
        topics=stage.topic,
        groups=f".*-{stage.topic}",
    )
    yield made
    made.end()


def copies(stage: LaneStage) -> dict[int, Pairs]:
    """The upstream offset of each record of the target, with its own, by partition."""
    source = read_topic(stage.source.bootstrap, stage.topic)
    found: dict[int, Pairs] = {}
    for partition, records in stage.on_target().items():
        offsets = {each.content.value: each.offset for each in source[partition]}
        found[partition] = [(offsets[each.content.value], each.offset) for each in records]
    return found


def produce(stage: LaneStage, count: int) -> None:
    """Records in transactions, whose markers leave gaps."""
    producer = transactional(stage.source.bootstrap)
    for partition in range(PARTITIONS):
        for _ in range(0, count, 50):
            transaction(producer, stage.topic, *(uuid4().bytes for _ in range(50)), partition=partition)


def assert_forward(pairs: Pairs, upstream: int, answer: Mapping[str, Any]) -> None:
    """Nothing is skipped, and the next unread record is within the bound."""
    offset, unread = answer["offset"], {u for u, _ in pairs if u >= upstream}
    behind = [(u, d) for u, d in pairs if u >= upstream and d >= offset]
    assert {u for u, _ in behind} == unread, (upstream, answer)
    assert min(d for _, d in behind) <= offset + answer["bound"], (upstream, answer)
    assert answer["state"] != "exact" or (upstream, offset) in pairs


def assert_back(pairs: Pairs, downstream: int, answer: Mapping[str, Any]) -> None:
    """The same on the way back."""
    read = {u for u, d in pairs if d < downstream}
    assert answer["offset"] <= min(u for u, _ in pairs if u not in read), (downstream, answer)
    assert next(u for u, d in pairs if d >= downstream) <= answer["offset"] + answer["bound"], (downstream, answer)


@dataclass(slots=True, kw_only=True)
class Kept:
    """A topic that MirrorMaker copies, two groups that it keeps, and the operator's commands."""

    stage: LaneStage
    mirror_maker: RealMirrorMaker
    documents: DynamoDbDocuments
    command: Command
    state: Path

    @property
    def groups(self) -> tuple[str, str]:
        """One that stays MirrorMaker's, and one that somebody else commits for."""
        return f"shop-{self.stage.topic}", f"other-{self.stage.topic}"

    @property
    def source(self) -> KafkaGroups:
        """The source's groups."""
        return KafkaGroups(self.stage.settings.source, flow="test")

    @property
    def target(self) -> KafkaGroups:
        """The target's."""
        return KafkaGroups(self.stage.settings.target, flow="test")

    def commit(self, groups: KafkaGroups, group: str, topic: str, *offsets: int) -> None:
        """An offset for each partition."""
        wanted = {(topic, number): OffsetAndMetadata(each) for number, each in enumerate(offsets)}
        groups.commit(group, wanted, deadline_in(20))

    def there(self, group: str) -> list[int]:
        """What a group has on the target."""
        found = self.target.committed([group], deadline_in(20)).get(group, {})
        return [each.offset for _, each in sorted(found.items())]

    def said(self, *words: str) -> Any:
        """The answer of a command that succeeds."""
        answer = self.command(*words, "--lab", str(self.state), "--json")
        assert answer.code == 0, answer
        return answer.json

    def copy_and_kill(self) -> None:
        """MirrorMaker copies, keeps the groups, and is killed once on the way."""
        produce(self.stage, RECORDS)
        for group in self.groups:
            self.commit(self.source, group, self.stage.topic, *PLACES)
        self.mirror_maker.start()
        eventually(lambda: all(map(self.there, self.groups)), "MirrorMaker keeps the groups")
        self.mirror_maker.kill()
        produce(self.stage, 300)
        self.mirror_maker.start()
        count = PARTITIONS * (RECORDS + 300)
        eventually(
            lambda: sum(map(len, self.stage.on_target().values())) >= count, "MirrorMaker has copied", seconds=90
        )
        self.mirror_maker.stop()
        other = self.groups[1]
        self.commit(self.target, other, self.stage.remote_topic, *(each + 1 for each in self.there(other)))

    def take_over(self) -> dict[str, Any]:
        """Take the flow over. Returns the plan."""
        flow = self.stage.settings.name
        order_pause(self.documents, flow, reason="test", now=1)
        quiet = PausedMappings(quiet_at=1, order_at=read_pause(self.documents, flow).order.at)  # type: ignore[union-attr]  # just given
        self.documents.write(flow, {MAPPINGS: msgspec.json.encode(quiet)})
        try:
            planned: dict[str, Any] = self.said("migrate", "plan", str(flow), self.stage.topic)
            self.said("migrate", "take-over", str(flow), self.stage.topic, "--execute")
        finally:
            order_resume(self.documents, flow, now=2)
        return planned

    def assert_translated(self, old: dict[int, Pairs]) -> None:
        """A hundred old offsets, each way, are no later than they are, and within their bounds."""
        inexact = 0
        for partition, pairs in old.items():
            words = ("translate", str(self.stage.settings.name), self.stage.topic, str(partition))
            for number in range(OLD):
                upstream, downstream = (each * number // OLD for each in pairs[-1])
                answer = self.said(*words, str(upstream))
                assert_forward(pairs, upstream, answer)
                inexact += answer["state"] == "approximate"
                assert_back(pairs, downstream, self.said(*words, str(downstream), "--reverse"))
        assert inexact > OLD // 5

    def replicate(self, old: dict[int, Pairs]) -> None:
        """What is new, in one event."""
        produce(self.stage, 50)
        ends = {partition: max(u for u, _ in some) for partition, some in old.items()}
        fresh = read_topic(self.stage.source.bootstrap, self.stage.topic)
        due = {f"p{p}": [each.offset for each in some if each.offset > ends[p]] for p, some in fresh.items()}
        self.stage.deliver(self.stage.event(**due))

    def rounds(self) -> dict[str, GroupCheckpoints]:
        """A round of checkpoints, and one of the lane check. Returns the groups' documents."""
        settings = msgspec.structs.replace(
            self.stage.settings,
            aliases=(self.stage.source.alias, self.stage.target.alias),
            topics=(self.stage.topic,),
            groups=self.groups,
            sync_group_offsets_enabled=True,
            sync_group_offsets_interval_seconds=0.001,
            group_grace_seconds=0,
            checkpoints_topic_replication_factor=1,
        )
        wiring = ControlWiring(settings)
        tasks = {task.name: task for task in wiring.tasks()}
        for task in ("checkpoints", "lanes"):
            report = RoundReport()
            tasks[task].act(report, deadline_in(60))
            assert report.troubles == []
        stored = wiring.checkpoints.read(settings.name, "forward/")
        return {
            group: msgspec.json.decode(stored[document_key("forward", group)], type=GroupCheckpoints)
            for group in self.groups
        }


@pytest.mark.soak(
    "tests/unit/protocol/test_past.py::test_no_answer_is_behind_the_exact_place_nor_further_before_it_than_it_says",
    "tests/unit/groups/test_ownership.py::"
    "test_a_group_that_mirrormaker_kept_goes_on_with_the_flow_and_says_how_far_it_may_be_behind",
)
def test_what_mirrormaker_copied_is_translated_within_its_bound_and_its_groups_go_on(
    stage: LaneStage,
    mirror_maker: RealMirrorMaker,
    dynamodb: DynamoDbLocal,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables, flow = stage.settings.tables, f"{stage.settings.name}: {{topics: [{stage.topic}]}}"
    bootstrap = {each.alias: each.bootstrap for each in (stage.source, stage.target)}
    kept = Kept(
        stage=stage,
        mirror_maker=mirror_maker,
        documents=DynamoDbDocuments(dynamodb.client(), tables.control),
        command=Command(capsys),
        state=lab_state(tmp_path, flow, bootstrap, dynamodb.endpoint, tables),
    )
    shop, other = kept.groups
    kept.copy_and_kill()
    before = kept.there(shop)

    # Taken over: one group is the flow's, of the other it is said why not.
    planned = kept.take_over()
    groups = {each["group"]: each for each in planned["groups"]}
    assert [groups[name]["becomes"] for name in (shop, other)] == ["owned", "independent"]
    assert "of no checkpoint" in groups[other]["why"]
    assert list(groups[shop]["offsets"][stage.topic].values()) == before
    assert all(each["past"]["pairs"] for each in planned["lanes"])

    # Before the flow has copied anything, and after it has.
    old = copies(stage)
    kept.assert_translated(old)
    kept.replicate(old)
    kept.assert_translated(old)

    # The group goes on; checkpoints too, in MirrorMaker's topic; and no lane has anything wrong.
    places = [each + 200 for each in PLACES]
    kept.commit(kept.source, shop, stage.topic, *places)
    documents = kept.rounds()
    assert stage.orders.stopped(stage.settings.name) == {}
    assert all(stage.ledger.read(stage.lane(partition)) == [] for partition in range(PARTITIONS))
    assert documents[other].readiness == "independent"
    assert documents[shop].readiness in {"ready", "behind"}
    now = kept.there(shop)
    for partition, upstream in enumerate(places):
        offset = documents[shop].offsets[stage.topic][partition]
        # The same, where MirrorMaker wrote no offset sync between the two.
        assert (before[partition] <= now[partition], offset.downstream) == (True, now[partition])
        answer = {"offset": now[partition], "bound": offset.bound, "state": offset.state}
        assert_forward(old[partition], upstream, answer)
    await_settled(stage.target.bootstrap, "us-east.checkpoints.internal")
    written = {
        (each.group, each.topic, each.partition, each.upstream): each.downstream
        for record in read_topic(stage.target.bootstrap, "us-east.checkpoints.internal")[0]
        if record.content.value is not None
        for each in [Checkpoint.decode(record.content.key or b"", record.content.value)]
    }
    assert [written[shop, stage.remote_topic, number, each] for number, each in enumerate(places)] == now
