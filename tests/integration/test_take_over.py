"""A real MirrorMaker 2 is killed, and its flow is taken over, and given back: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from tests.support.commands import Answer, Command, lab_state
from tests.support.lane_stage import LaneStage
from tests.support.mirror_maker import RealMirrorMaker
from tests.support.readback import await_settled, read_topic
from tests.support.topics import create_topic, transaction, transactional
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.java]

PARTITIONS = 3


@dataclass(slots=True, kw_only=True)
class Migration:
    """A topic that MirrorMaker copies, and the operator's commands."""

    stage: LaneStage
    mirror_maker: RealMirrorMaker
    state: Path
    command: Command

    @property
    def topic(self) -> str:
        """The topic."""
        return self.stage.topic

    def migrate(self, command: str, *words: str) -> Answer:
        """A command about the flow."""
        name = str(self.stage.settings.name)
        return self.command("migrate", command, name, self.topic, "--lab", str(self.state), "--json", *words)

    def produce(self, count: int) -> None:
        """Records in transactions, every fifth of which is aborted, with tombstones, headers and what has no key."""
        producer = transactional(self.stage.source.bootstrap)
        for partition in range(PARTITIONS):
            for number in range(0, count, 10):
                values = [uuid4().bytes * 20 for _ in range(10)]
                transaction(producer, self.topic, *values, partition=partition, commit=number % 50 != 0)
            for number in range(5):
                key, headers = uuid4().bytes, [("n", b"%d" % number), ("n", None)]
                self.stage.write(None, partition=partition, key=key, headers=headers)
                self.stage.write(b"", partition=partition, key=None, headers=[("id", key)])

    def target(self) -> dict[int, list[object]]:
        """Whole records of the remote topic, in order."""
        await_settled(self.stage.target.bootstrap, self.stage.remote_topic)
        found = read_topic(self.stage.target.bootstrap, self.stage.remote_topic)
        return {partition: [each.content for each in some] for partition, some in found.items()}

    def copied(self) -> int:
        """Records of the remote topic."""
        try:
            return sum(map(len, self.target().values()))
        except KeyError:
            return 0

    def is_right(self, partition: int, place: int) -> bool:
        """Whether the target has all that the source has below a place, and nothing that it has from there on."""
        there = set(self.target()[partition])
        source = read_topic(self.stage.source.bootstrap, self.topic)[partition]
        return all((each.offset < place) == (each.content in there) for each in source)

    def duplicates(self, partition: int) -> int:
        """What stands on the target more than once."""
        there = self.target()[partition]
        return len(there) - len(set(there))


@pytest.fixture
def migration(
    stage: LaneStage,
    clusters: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Migration]:
    bootstrap = {cluster.alias: cluster.bootstrap for cluster in clusters}
    flow = f"{stage.settings.name}: {{topics: [{stage.topic}]}}"
    state = lab_state(tmp_path, flow, bootstrap, dynamodb.endpoint, stage.settings.tables)
    source, target = clusters
    mirror_maker = RealMirrorMaker(source=source, target=target, folder=tmp_path / "mm2", topics=stage.topic)
    create_topic(source.bootstrap, stage.topic, PARTITIONS)
    yield Migration(stage=stage, mirror_maker=mirror_maker, state=state, command=Command(capsys))
    mirror_maker.end()


def test_the_place_is_found_behind_what_a_killed_mirrormaker_has_written(migration: Migration) -> None:
    """Killed twice: what was written behind the last offset that it stored is written again, up to another place."""
    slow = {"us-east.consumer.max.poll.records": "20", "eu-west.offset.flush.interval.ms": "4000"}
    migration.mirror_maker.options = slow
    migration.produce(200)
    migration.mirror_maker.start()
    eventually(lambda: migration.copied() >= PARTITIONS * 210, "MirrorMaker has copied")
    running = migration.migrate("plan")
    assert (running.code, "us-east-mm2" in running.json["moving"]) == (1, True)
    migration.produce(300)
    eventually(lambda: migration.copied() >= PARTITIONS * 300, "MirrorMaker goes on")
    migration.mirror_maker.kill()
    before = migration.copied()
    migration.mirror_maker.start()
    eventually(lambda: migration.copied() > before + 100, "MirrorMaker copies again")
    migration.mirror_maker.kill()

    answer = migration.migrate("plan")

    assert answer.code == 0, answer
    lanes = answer.json["lanes"]
    assert [each["state"] for each in lanes] == ["exact"] * PARTITIONS
    assert all(migration.is_right(each["partition"], each["place"]) for each in lanes)
    twice = [sum(row["records"] for row in each["duplicates"]) for each in lanes]
    assert twice == [migration.duplicates(partition) for partition in range(PARTITIONS)]
    assert sum(twice) > 0
