"""A real MirrorMaker 2 ends, its flow is taken over under load, and given back: nothing is lost, or comes once more.

    versions, a process of its own or a Connect cluster, with transactions or without, killed or stopped
    a topic written by transactions, a compacted one, and one of tombstones, headers and what its producer wrote twice
    partitions that come while MirrorMaker runs, and others that it never sees

What must hold is found by reading both clusters whole; nothing here asks our map, or takes a word of the plan for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from lab.cloud import Lab
from lab.esm.behaviour import LabBehaviour
from lab.servers.artifacts import DEFAULT_KAFKA
from lab.state import StateFile
from mirrorless.config.loading import load
from tests.support.commands import Answer, Command
from tests.support.mirror_maker import RealMirrorMaker
from tests.support.readback import Content, Seen, await_settled, committed, read_topic
from tests.support.topics import admin_of, create_topic, transactional
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.java]

FLOW = "us-east->eu-west"
CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: us-east.example.com:9092, region: us-east-1}
  eu-west: {bootstrap.servers: eu-west.example.com:9092, region: eu-west-1}
flows:
  us-east->eu-west:
    topics: ["m-.*"]
    trigger.overrides: {"m-.*-keyed": schedule}
    start: backfill
    groups: ["m-.*"]
    sync.group.offsets.enabled: true
    mapping: {mode: on-demand, maximum.batching.window.seconds: 0}
    schedule: {shards: 1}
    function: {timeout.seconds: 5}
    transaction.timeout.ms: 3000
"""
OFTEN = {
    "window_seconds": 4,
    "refresh_topics_interval_seconds": 1,
    "emit_checkpoints_interval_seconds": 1,
    "sync_group_offsets_interval_seconds": 1,
    "group_grace_seconds": 0,
    "emit_heartbeats_enabled": False,
    "heartbeats_replication_enabled": False,
    "sync_topic_configs_enabled": False,
    "sync_topic_acls_enabled": False,
}
KINDS = ("ledger", "keyed", "plain")
OLDEST = "3.9.1"
KEYS = 40
COMPACTED = {"cleanup_policy": "compact", "segment_ms": "500", "min_cleanable_dirty_ratio": "0.0001"}


@dataclass(slots=True, kw_only=True)
class Migration:
    """Three topics that MirrorMaker copies, and the operator's commands."""

    lab: Lab
    mirror_maker: RealMirrorMaker
    state: Path
    command: Command
    name: str
    chance: Random = field(default_factory=lambda: Random(1))
    partitions: int = 2
    _ledger: Producer = field(init=False)
    _other: Producer = field(init=False)
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a round is written, and while partitions come."""

    def make_topics(self) -> None:
        """One of each kind, and producers that know them."""
        for kind in KINDS:
            create_topic(self.source, self.topic(kind), self.partitions, **(COMPACTED if kind == "keyed" else {}))
        self._open_producers()

    def _open_producers(self) -> None:
        self._ledger = transactional(self.source)
        self._other = Producer({"bootstrap.servers": self.source, "max.in.flight": 1, "log_level": 0})

    @property
    def source(self) -> str:
        """The source's address."""
        return self.lab.clusters["us-east"].bootstrap

    @property
    def target(self) -> str:
        """The target's address."""
        return self.lab.clusters["eu-west"].bootstrap

    def topic(self, kind: str) -> str:
        """The topic of one kind."""
        return f"{self.name}-{kind}"

    # The operator

    def migrate(self, command: str, *words: str) -> Answer:
        """A command about the flow."""
        return self("migrate", command, FLOW, *self.mirror_maker.words, *words)

    def __call__(self, *words: str) -> Answer:
        """Any command."""
        return self.command(*words, "--lab", str(self.state), "--json")

    def order(self, *words: str) -> Answer:
        """An order that must be carried out."""
        answer = self(*words, "--execute")
        assert answer.code == 0, answer
        return answer

    # Records

    def produce(self, rounds: int = 1) -> None:
        """For each round and partition: a transaction, some of which are aborted; values of keys; all the rest."""
        for _ in range(rounds):
            with self._lock:
                for partition in range(self.partitions):
                    self._produce(partition)
                assert self._other.flush(20) == 0

    def _produce(self, partition: int) -> None:
        self._ledger.begin_transaction()
        aborts = self.chance.random() < 0.2
        for _ in range(8):
            key = b"aborted" if aborts else b"%d" % self.chance.randrange(KEYS)
            self._ledger.produce(self.topic("ledger"), uuid4().bytes * 10, key, partition)
        self._ledger.flush(20)
        (self._ledger.abort_transaction if aborts else self._ledger.commit_transaction)(20)
        for _ in range(6):
            key, value = b"%d" % self.chance.randrange(KEYS), uuid4().bytes
            self._write("keyed", partition, key, None if self.chance.random() < 0.2 else value)
        headers = [("n", uuid4().bytes), ("n", None), ("", b""), ("n", b"\xff")]
        self._write("plain", partition, uuid4().bytes, None, headers=headers)
        self._write("plain", partition, None, b"", headers=[("id", uuid4().bytes)])
        same, at = uuid4().bytes, self._number + 1_700_000_000_000
        for _ in range(2):  # a producer that had no answer
            self._write("plain", partition, same, same, timestamp=at)

    def _write(self, kind: str, partition: int, key: bytes | None, value: bytes | None, **options: object) -> None:
        self._number += 1
        self._other.produce(self.topic(kind), value, key, partition, **options)  # type: ignore[arg-type]  # theirs

    @contextmanager
    def load(self) -> Iterator[None]:
        """Records all the while."""
        over, failed = threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                while not over.is_set():
                    self.produce()
                    over.wait(0.1)
            except BaseException as exc:  # noqa: BLE001 -- raised below
                failed.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert not failed, failed

    def grow(self) -> None:
        """One partition more of each topic."""
        with self._lock:
            self.partitions += 1
            for topic in map(self.topic, KINDS):
                more = [NewPartitions(topic, self.partitions)]
                admin_of(self.source).create_partitions(more)[topic].result(20)
                eventually(lambda topic=topic: len(read_topic(self.source, topic)) == self.partitions, "it grows")  # type: ignore[misc]  # bound now
            self._open_producers()

    def copy(self, kind: str) -> dict[int, list[Seen]]:
        """The remote topic, whole."""
        remote = f"us-east.{self.topic(kind)}"
        await_settled(self.target, remote)
        return read_topic(self.target, remote)

    def left(self) -> str:
        """What the target lacks of what is committed; empty for nothing."""
        for kind in KINDS:
            try:
                there = self.copy(kind)
            except KeyError:
                return f"{kind} is not there"
            for partition, some in read_topic(self.source, self.topic(kind)).items():
                if some and some[-1].content not in {each.content for each in there.get(partition, [])}:
                    return f"{kind}-{partition} lacks {some[-1]}"
        return ""

    def await_copied(self) -> None:
        """Wait until the target has the last record of each partition."""
        eventually(lambda: not self.left(), "all is copied", seconds=300)

    def count(self) -> int:
        """Records in the ledger's copy."""
        return sum(map(len, self.copy("ledger").values()))

    def clean_often(self) -> None:
        """Let both clusters roll and clean the keyed topic all the while."""
        for bootstrap, topic in self._keyed():
            _alter(bootstrap, ResourceType.BROKER, "1", **{"log.cleaner.backoff.ms": "100"})
            _alter(bootstrap, ResourceType.TOPIC, topic, **{name.replace("_", "."): v for name, v in COMPACTED.items()})

    def compact(self) -> None:
        """Wait until both cleaners have passed over the keyed topic; then they leave it alone."""
        eventually(self._is_compacted, "the cleaners have passed", seconds=300)
        for bootstrap, topic in self._keyed():
            _alter(bootstrap, ResourceType.TOPIC, topic, **{"segment.ms": "86400000", "min.cleanable.dirty.ratio": "1"})

    def _keyed(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.source, self.topic("keyed")), (self.target, f"us-east.{self.topic('keyed')}")

    def _is_compacted(self) -> bool:
        self.produce()  # a new segment
        source, target = (read_topic(*place)[0] for place in self._keyed())
        held, of = (
            [len(each) for each in (source, target)],
            [each[-1].offset - each[0].offset for each in (source, target)],
        )
        # What MirrorMaker wrote last stands in a segment that nothing is added to, and that no cleaner takes: most of
        # it all, where that was quick.
        return held[0] < of[0] / 2 and held[1] < of[1] * 0.95

    # What happens

    def end_in_the_middle(self, *, killed: bool) -> None:
        """Let MirrorMaker end in the middle of what it copies: more than once, where it is killed."""
        mirror_maker = self.mirror_maker
        mirror_maker.stop()
        mirror_maker.poll_records, mirror_maker.flush_ms = 20, 600_000
        for _ in range(2 if killed else 1):
            self.produce(30)
            before = self.count()
            mirror_maker.start()
            eventually(lambda before=before: self.count() > before + 30, "it copies")  # type: ignore[misc]  # bound now
            (mirror_maker.kill if killed else mirror_maker.stop)()
        self.grow()
        self.produce(5)
        self.compact()

    def take_over_under_load(self) -> None:
        """Wait until MirrorMaker stands still, take over, and let partitions come while the flow goes on."""
        eventually(lambda: not self.migrate("plan").json["moving"], "it stands still")
        before = self.kept()
        with self.load():
            plan = self.migrate("plan")
            assert plan.code == 0, "\n".join(str(each) for each in plan.json["lanes"] if each["state"] == "left out")
            self.order("migrate", "take-over", FLOW, *self.mirror_maker.words)
            self.order("flow", "resume", FLOW)
            self.grow()
        self.await_copied()
        self.audit(before)

    def give_back_under_load(self) -> None:
        """Give back, and let MirrorMaker go on until it has all, and end."""
        self.order("flow", "pause", FLOW)
        before, count = self.kept(), self.count()
        self.order("migrate", "give-back", FLOW, *self.mirror_maker.words)
        with self.load():
            self.mirror_maker.start()
            eventually(lambda: self.count() > count, "it copies")
        self.await_copied()
        self.mirror_maker.stop()
        self.audit(before)

    # What must hold

    def audit(self, before: Mapping[str, Mapping[int, Sequence[Seen]]]) -> None:
        """All that has come since is the end of what is committed, in order; no key has gone back.

        What was there already comes again only where a key would else be left at a value that was not its last.
        """
        for kind in KINDS:
            there, was = self.copy(kind), before[kind]
            for partition, some in read_topic(self.source, self.topic(kind)).items():
                what, old = f"{kind}-{partition}", [each.content for each in was.get(partition, [])]
                ours = [each.content for each in some]
                end = was[partition][-1].offset if old else -1
                come = [
                    each.content for each in there[partition] if each.offset > end and each.content.key != b"aborted"
                ]
                split = len(ours) - len(come)
                assert come == ours[split:], f"{what}: {_difference(ours, old, come)}"
                if kind != "keyed":
                    lost = [each for each in ours[:split] if each not in set(old)]
                    assert not lost, f"{what}: {len(lost)} are lost: {lost[:2]}"
                again = [each for each in ours[split:] if each in set(old) and each.value not in {None, b"", each.key}]
                assert not again or _went_back(ours, old), f"{what}: {len(again)} have come once more"
                assert _last(each.content for each in there[partition]) == _last(ours), f"{what}: a key has gone back"

    def stand(self, group: str, number: int) -> Content:
        """Let a group go on with one of the ledger's records, of partition 0. Returns that record."""
        found = read_topic(self.source, self.topic("ledger"))[0][number]
        consumer = Consumer({"bootstrap.servers": self.source, "group.id": f"{self.name}-{group}", "log_level": 0})
        place = ClientPartition(self.topic("ledger"), 0, found.offset)
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()
        return found.content

    def goes_on_with(self, group: str) -> list[Content]:
        """What a consumer of a group reads on the target: nothing where the group has no offset there."""
        at = committed(self.target, f"{self.name}-{group}", f"us-east.{self.topic('ledger')}").get(0)
        return [] if at is None else [each.content for each in self.copy("ledger")[0] if each.offset >= at]

    def kept(self) -> dict[str, dict[int, list[Seen]]]:
        """What is on the target now."""
        return {kind: self.copy(kind) for kind in KINDS}


def _difference(ours: Sequence[Content], old: Sequence[Content], come: Sequence[Content]) -> str:
    due = [each for each in ours if each not in set(old)]
    lost, strange = set(due) - set(come), set(come) - set(ours)
    return (
        f"{len(ours)} on the source, {len(old)} were there, {len(due)} due, {len(come)} came; {len(lost)} of them "
        f"lost, {len(come) - len(set(come))} doubled, {len(strange)} strange"
    )


def _last(some: Iterable[Content]) -> dict[bytes | None, bytes]:
    """The last value of each key that has one."""
    last = {each.key: each.value for each in some if each.key not in {None, b"aborted"}}
    return {key: value for key, value in last.items() if value is not None}


def _went_back(ours: Sequence[Content], old: Sequence[Content]) -> bool:
    """Whether a key's last value on the target is not the last of those that are on it."""
    last, there = _last(old), set(old)
    return _last([each for each in ours if each in there]) != last


def _alter(bootstrap: str, kind: ResourceType, name: str, **configs: str) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin_of(bootstrap).incremental_alter_configs([resource])[resource].result(20)


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Path]]:
    """Clusters of this row alone: a MirrorMaker begins with what an earlier one of the same pair was told to copy."""
    folder = tmp_path_factory.mktemp("take-over")
    (folder / "replication.yaml").write_text(CONFIGURATION)
    lab = Lab(
        configuration=load(folder / "replication.yaml"),
        folder=folder / "lab",
        control_overrides=OFTEN,
        pull_overrides={"interval_seconds": 3},
        schedule_seconds=5,
        behaviour=LabBehaviour(metadata_refresh_s=1.0),
        say=lambda _: None,  # what commands print is read
    )
    state = StateFile(lab, folder / "state.json")
    try:
        lab.start_servers()
        lab.start_flows()
        state.ready()
        state.start()
        yield lab, state.path
    finally:
        lab.stop()
        state.stop()


ROWS = [
    # version, in a Connect cluster, with transactions, killed: each pair of them
    (DEFAULT_KAFKA, False, False, True),
    (DEFAULT_KAFKA, True, True, True),
    (OLDEST, False, True, True),
    (OLDEST, True, False, True),
    (OLDEST, True, True, False),
    (DEFAULT_KAFKA, False, False, False),
]


@pytest.mark.soak(
    "tests/unit/verify/test_copied_end.py::test_the_place_is_behind_the_last_record_that_any_life_has_copied",
    "tests/unit/cli/test_take_over.py::test_each_lane_goes_on_is_held_or_stays_and_the_mapping_begins_there",
    "tests/unit/cli/test_take_over.py::test_what_is_given_back_may_be_taken_over_again_and_what_has_gone_on_may_not",
    "tests/unit/adapters/test_connect_groups.py::test_the_group_is_that_whose_members_have_tasks_of_the_connector",
)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("version", "connect", "exactly_once", "killed"), ROWS)
def test_a_flow_goes_on_under_load_behind_any_mirrormaker_and_gives_it_back(
    lab: tuple[Lab, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    version: str,
    connect: bool,
    exactly_once: bool,
    killed: bool,
) -> None:
    name = f"m-{uuid4().hex[:6]}"
    mirror_maker = RealMirrorMaker(
        source=lab[0].clusters["us-east"].bootstrap,
        target=lab[0].clusters["eu-west"].bootstrap,
        folder=tmp_path / "mm2",
        topics=f"{name}-.*",
        groups=f"{name}-.*",
        version=version,
        connect=name if connect else "",
        exactly_once=exactly_once,
        flush_ms=1_000,
    )
    it = Migration(lab=lab[0], mirror_maker=mirror_maker, state=lab[1], command=Command(capsys), name=name)
    it.order("flow", "pause", FLOW)
    it.make_topics()
    it.produce(20)
    mirror_maker.start()
    try:
        it.await_copied()
        it.clean_often()
        it.grow()
        it.produce(5)
        it.await_copied()
        early = it.stand("early", -1)
        if not connect:  # with a checkpoint connector
            eventually(lambda: it.goes_on_with("early"), "its group has an offset on the target")
        running = it.migrate("plan")
        assert (running.code, bool(running.json["moving"])) == (1, True), "it runs, and has nothing to copy"
        it.end_in_the_middle(killed=killed)

        it.take_over_under_load()
        late = it.stand("late", -3)
        eventually(lambda: it.goes_on_with("late")[:1] == [late], "the group is at the very record")
        assert connect or early in it.goes_on_with("early"), "records of the group's are left out"

        for _ in range(2):
            it.give_back_under_load()
            it.take_over_under_load()
    finally:
        mirror_maker.end()
