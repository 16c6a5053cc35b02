"""A real MirrorMaker 2 is killed, and its flow is taken over, and given back: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Producer

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.lane_log import KafkaBatchLaneLog, KafkaLaneLog
from mirrorless.chain.lane import FlowName
from mirrorless.clock import deadline_in
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.translate import OffsetMap
from mirrorless.topics.pause import MAPPINGS, PausedMappings, order_pause, order_resume, read_pause
from mirrorless.verify.copied_end import LOOK
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.lane import TAKEN_OVER, LaneVerification
from mirrorless.verify.parts import VerifyTask
from tests.support.commands import Answer, Command, lab_state
from tests.support.lane_stage import Crash, LaneStage
from tests.support.mirror_maker import RealMirrorMaker
from tests.support.readback import await_settled, committed, read_topic
from tests.support.topics import create_topic, transaction, transactional
from tests.support.verified_lane import NO_RULES
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
    documents: DynamoDbDocuments

    @property
    def flow(self) -> FlowName:
        """The flow."""
        return self.stage.settings.name

    @property
    def topic(self) -> str:
        """The topic."""
        return self.stage.topic

    def migrate(self, command: str, *words: str) -> Answer:
        """A command about the flow."""
        name = str(self.stage.settings.name)
        return self.command("migrate", command, name, self.topic, "--lab", str(self.state), "--json", *words)

    def produce(self, count: int, *, aborts: bool = True) -> None:
        """Records in transactions, every fifth of which is aborted, with tombstones, headers and what has no key.

        No key comes twice: a life of MirrorMaker that ends before the one before it did would set it back.
        """
        producer = transactional(self.stage.source.bootstrap)
        for partition in range(PARTITIONS):
            for number in range(0, count, 10):
                values = [uuid4().bytes * 20 for _ in range(10)]
                kept = not aborts or number % 50 != 0
                transaction(producer, self.topic, *values, partition=partition, key=None, commit=kept)
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

    def copy_and_kill_twice(self) -> None:
        """What was written behind the last offset that it stored is written again, up to another place."""
        self.produce(200)
        self.mirror_maker.start()
        eventually(lambda: self.copied() >= PARTITIONS * 210, "MirrorMaker has copied")
        running = self.migrate("plan")
        assert (running.code, "us-east-mm2" in running.json["moving"]) == (1, True)
        self.mirror_maker.stop()
        self.mirror_maker.poll_records, self.mirror_maker.flush_ms = 20, 600_000  # it stores no offset any more
        self.mirror_maker.start()
        self.produce(300)
        eventually(lambda: self.copied() >= PARTITIONS * 310, "MirrorMaker goes on")
        self.mirror_maker.kill()
        before = self.copied()
        self.mirror_maker.start()
        eventually(lambda: self.copied() > before + 100, "MirrorMaker copies again")
        self.mirror_maker.kill()

    def pause(self) -> None:
        """What `flow pause` and `refresh_topics` write."""
        order_pause(self.documents, self.flow, reason="test", now=1)
        quiet = PausedMappings(quiet_at=1, order_at=read_pause(self.documents, self.flow).order.at)  # type: ignore[union-attr]  # just given
        self.documents.write(self.flow, {MAPPINGS: msgspec.json.encode(quiet)})

    def poll(self) -> None:
        """What a mapping does: it delivers what is behind its group's offsets, and commits."""
        group = self.stage.settings.consumer_group(self.topic)
        begins = committed(self.stage.source.bootstrap, group, self.topic)
        source = read_topic(self.stage.source.bootstrap, self.topic)
        due = {p: [each.offset for each in some if each.offset >= begins[p]] for p, some in source.items()}
        for _ in range(2):  # it may deliver all of it again
            self.stage.deliver(self.stage.event(**{f"p{partition}": offsets for partition, offsets in due.items()}))
        groups = KafkaGroups(self.stage.settings.source, flow="test")
        groups.commit(
            group,
            {(self.topic, p): OffsetAndMetadata(some[-1] + 1) for p, some in due.items() if some},
            deadline_in(20),
        )

    def assert_nothing_lost_or_doubled(self, before: dict[int, list[object]]) -> None:
        """The remote topic is what it was, and what was not on it, in order."""
        after, written = self.target(), self.source()
        for partition, records in before.items():
            left = [each for each in written[partition] if each not in set(records)]
            come = after[partition][len(records) :]
            what = f"{partition}: {len(left)} due, {len(come)} came: {len(set(left) - set(come))} are lost, "
            what += f"{len(come) - len(set(come))} doubled, {len(set(come) - set(left))} strange"
            assert after[partition] == records + left, what

    def missing(self, there: dict[int, list[object]]) -> int:
        """How many of the source's records are not among some."""
        return sum(each not in set(there[p]) for p, some in self.source().items() for each in some)

    def take_over(self) -> list[str]:
        """Take it over. Returns the states of the lanes as they were."""
        taken = self.migrate("take-over", "--execute")
        assert taken.code == 0, taken
        return [each["state"] for each in taken.json["lanes"] if "state" in each]

    def assert_goes_on(self) -> None:
        """What is new comes, and what was there stays, once."""
        there = self.target()
        self.produce(100)
        self.poll()
        self.assert_nothing_lost_or_doubled(there)
        assert {each["state"] for each in self.migrate("plan").json["lanes"]} == {"taken over"}

    def assert_map_begins(self, partition: int, place: int) -> None:
        """The map has what is behind a place; nobody takes what is before it for exact, or for lost, or for foreign."""
        lane, offsets = self.stage.lane(partition), OffsetMap(self.stage.chains)
        assert offsets.downstream(lane, 0).state == "before_map"
        assert offsets.downstream(lane, place).state in {"exact", "next_record"}
        verdict = self.verify(partition)
        assert (verdict.findings, verdict.notes, verdict.counts.proved > 0) == ([], [TAKEN_OVER], True)
        assert self.stage.ledger.read(lane) == []

    def verify(self, partition: int) -> LaneVerdict:
        """The verdict on a lane, compared with the source."""
        flow = self.stage.settings
        task = VerifyTask(settings=flow, topic=self.topic, partition=partition, run_id="v", against_source=True)
        return LaneVerification(
            task=task,
            chains=self.stage.chains,
            ledger=self.stage.ledger,
            target=KafkaLaneLog(flow.target, flow=flow.flow),
            source=KafkaLaneLog(flow.source, flow=flow.flow),
            target_batches=KafkaBatchLaneLog(flow.target, flow=flow.flow),
            source_batches=KafkaBatchLaneLog(flow.source, flow=flow.flow),
            note=lambda *_, **__: None,
            rules=NO_RULES,
        ).verify()

    def source(self) -> dict[int, list[object]]:
        """Whole records of the source, in order."""
        found = read_topic(self.stage.source.bootstrap, self.topic)
        return {partition: [each.content for each in some] for partition, some in found.items()}

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
    mirror_maker = RealMirrorMaker(
        source=source.bootstrap, target=target.bootstrap, folder=tmp_path / "mm2", topics=stage.topic
    )
    create_topic(source.bootstrap, stage.topic, PARTITIONS)
    documents = DynamoDbDocuments(dynamodb.client(), stage.settings.tables.control)
    yield Migration(stage=stage, mirror_maker=mirror_maker, state=state, command=Command(capsys), documents=documents)
    order_resume(documents, stage.settings.name, now=2)
    mirror_maker.end()


@pytest.mark.soak(
    "tests/unit/verify/test_copied_end.py::test_the_place_is_behind_the_last_record_that_any_life_has_copied",
    "tests/unit/lanes/test_taken_over.py::test_what_mirrormaker_copied_is_before_the_map_and_neither_proved_nor_foreign",
)
def test_a_flow_goes_on_behind_what_a_killed_mirrormaker_has_written_and_gives_it_back(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration.copy_and_kill_twice()

    # The places, and what stands there twice.
    answer = migration.migrate("plan")
    assert answer.code == 0, answer
    lanes = answer.json["lanes"]
    assert [each["state"] for each in lanes] == ["exact"] * PARTITIONS
    assert all(migration.is_right(each["partition"], each["place"]) for each in lanes)
    twice = [sum(row["records"] for row in each["duplicates"]) for each in lanes]
    assert twice == [migration.duplicates(partition) for partition in range(PARTITIONS)]
    assert sum(twice) > 0

    # Taken over: not while records may move; cut off behind the first lane, and again.
    refused = migration.migrate("take-over", "--execute")
    assert (refused.code, "flow pause" in refused.json["error"]["hint"]) == (2, True)
    migration.pause()
    resets, links = DynamoDbChains.reset, list[Any]()

    def once(chains: DynamoDbChains, link: Any, over: Any = None) -> None:
        if links:
            raise Crash
        links.append(link)
        resets(chains, link, over)

    with monkeypatch.context() as cut:
        cut.setattr(DynamoDbChains, "reset", once)
        with pytest.raises(Crash):
            migration.migrate("take-over", "--execute")
    assert migration.take_over() == ["taken over", "exact", "exact"]
    migration.assert_goes_on()
    for lane in lanes:
        migration.assert_map_begins(lane["partition"], lane["place"])

    # Given back: MirrorMaker goes on, without a gap and without a duplicate. Then taken over again.
    there = migration.target()
    given = migration.migrate("give-back", "--execute")
    assert given.code == 0, given
    migration.produce(100, aborts=False)  # it would copy these too, beyond what readers of the source see
    migration.mirror_maker.poll_records, migration.mirror_maker.flush_ms = 500, 60_000
    migration.mirror_maker.start()
    count = sum(map(len, there.values())) + migration.missing(there)
    eventually(lambda: migration.copied() >= count, "MirrorMaker has copied the rest")
    migration.mirror_maker.stop()
    migration.assert_nothing_lost_or_doubled(there)
    assert migration.take_over() == ["exact"] * PARTITIONS
    migration.assert_goes_on()


@pytest.mark.soak(
    "tests/unit/verify/test_copied_end.py::test_the_place_is_behind_the_last_record_that_any_life_has_copied",
)
def test_what_mirrormaker_says_with_transactions_is_the_place(migration: Migration) -> None:
    """Killed in the middle of a transaction, whose records and whose offset no reader sees."""
    migration.mirror_maker.exactly_once, migration.mirror_maker.poll_records = True, 20
    migration.produce(300)
    migration.mirror_maker.start()
    eventually(lambda: migration.copied() >= PARTITIONS * 100, "MirrorMaker has copied")
    migration.produce(300)
    migration.mirror_maker.kill()
    migration.target()  # waits until the target's brokers have ended what was begun
    await_settled(migration.stage.target.bootstrap, "mm2-offsets.us-east.internal")

    answer = migration.migrate("plan")

    assert answer.code == 0, answer
    for lane in answer.json["lanes"]:
        assert (lane["state"], lane["duplicates"]) == ("exact", [])
        assert migration.is_right(lane["partition"], lane["place"])
        assert lane["place"] == lane["mirrormaker_goes_on_at"]


@pytest.mark.soak("tests/unit/cli/test_take_over.py::test_both_logs_alone_show_how_far_any_replicator_has_come")
def test_a_flow_goes_on_behind_what_a_replicator_has_copied_whose_offsets_nobody_can_read(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MSK Replicator does, which marks its copies: killed behind 5,999, begun again at 5,900, killed behind 5,949.

    Times show where to look: fewer records are read than the source has before the place.
    """
    monkeypatch.setattr("mirrorless.verify.copied_end.FURTHEST", LOOK + 300)
    stage = migration.stage
    marked: list[tuple[str, str | bytes | None]] = [("__mskmr", b"us-east"), ("trace", b"1")]
    create_topic(stage.target.bootstrap, stage.remote_topic, PARTITIONS)
    source, target = (Producer({"bootstrap.servers": each.bootstrap}) for each in (stage.source, stage.target))
    copied = [*range(6_000), *range(5_900, 5_950)]
    for producer, topic, headers, numbers in (
        (source, stage.topic, [], range(6_050)),
        (target, stage.remote_topic, marked, copied),
    ):
        for number in numbers:
            producer.produce(topic, b"%d" % number, partition=0, headers=headers, timestamp=1_700_000_000_000 + number)
        assert producer.flush(30) == 0

    way = ("--from", "target-tail", "--without-header", "trace")
    plan = migration.migrate("plan", *way)

    assert plan.code == 0, plan
    lanes = plan.json["lanes"]
    assert [(each["state"], each["place"]) for each in lanes] == [("exact", 6_000), ("exact", 0), ("exact", 0)]
    assert lanes[0]["duplicates"] == [{"records": 50, "upstream": [5900, 5950], "downstream": [6000, 6050]}]
    migration.pause()
    assert migration.migrate("take-over", *way, "--execute").code == 0
    migration.poll()
    assert [int(each.value or b"") for each in migration.target()[0]] == [*copied, *range(6_000, 6_050)]  # type: ignore[attr-defined]  # contents
