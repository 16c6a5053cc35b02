"""`migrate plan | take-over | give-back` on logs in memory: what is done to each lane, and what is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from cli import copied_places
from cli.deployment import Stores
from mirrorless.adapters.kafka.source_offsets import StoredOffset
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link
from mirrorless.clock import now_ms
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.lanes.taken_over import was_taken_over
from mirrorless.mm2.internal_records import Checkpoint, OffsetSync
from mirrorless.mm2.source_offsets import CONNECTOR, SourcePartition
from mirrorless.ports.kafka import LogEnds, OffsetAndMetadata, TopicPartition
from mirrorless.ports.topics import ConfigEntry
from mirrorless.protocol.past import PastStore
from mirrorless.protocol.translate import OffsetMap
from mirrorless.records.record import Record
from mirrorless.topics.pause import MAPPINGS, PausedMappings, order_pause
from mirrorless.verify import copied_end
from tests.frozen.small_flow import FLOW
from tests.support.chains import run
from tests.support.commands import Answer

InLab = Callable[..., Answer]
TOPIC = "paid-online"
GROUP = f"mirrorless.us-east.eu-west.{TOPIC}"


class Cut(BaseException):
    """The command is killed."""


@dataclass(slots=True)
class TwoLogs:
    """Both clusters: the numbers of the records of each partition, MirrorMaker's offsets, and what was committed."""

    source: list[list[int]] = field(default_factory=lambda: [list(range(10)) for _ in range(6)])
    target: list[list[int]] = field(default_factory=lambda: [[*range(6), 4]] * 5)
    said: dict[SourcePartition, StoredOffset] = field(default_factory=dict)
    written: list[Mapping[SourcePartition, int]] = field(default_factory=list)
    commits: dict[int, int] = field(default_factory=dict)
    running: str = ""
    """The group of MirrorMaker's workers, if they run."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Connector and group by which it was looked for."""
    grows: bool = False
    hidden: int = 0
    """Records behind the last stable offset."""
    late: bool = False
    """Whether the target's records have times of its own."""
    timed: bool = False
    """Whether the times of records are their numbers."""
    marks: list[tuple[str, bytes | None]] = field(default_factory=list)
    """Headers of the target's records."""
    configs: dict[str, str] = field(default_factory=dict)
    """Of all topics."""
    unreadable: set[str | TopicPartition] = field(default_factory=set)
    """Topics whose configs cannot be read, and partitions without a leader."""
    starts: dict[int, int] = field(default_factory=dict)
    """Of source partitions whose first records are gone."""
    noted: dict[str, list[OffsetSync | Checkpoint]] = field(default_factory=dict)
    """MirrorMaker's own records, by topic."""
    groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    """What groups have committed on the target."""
    reading: set[str] = field(default_factory=set)
    """Groups with members there."""

    def say(self, last: int = 3, *partitions: int, connector: str = CONNECTOR, cluster: str = "us-east") -> None:
        """What MirrorMaker stores of some partitions, or of each."""
        for partition in partitions or range(5):
            about = SourcePartition(connector=connector, cluster=cluster, topic=TOPIC, partition=partition)
            self.said[about] = StoredOffset(0, about.key(), last)

    def log(self, place: TopicPartition) -> list[int]:
        """One partition of either cluster."""
        return (self.source if place[0] == TOPIC else self.target)[place[1]]

    def ends(self, places: Iterable[TopicPartition], _: object) -> dict[TopicPartition, LogEnds]:
        """As KafkaRecords has them."""
        found = {}
        for place in places:
            if place in self.unreadable:
                continue
            end = len(self.log(place))
            ours = place[0] == TOPIC
            found[place] = (self.starts.get(place[1], 0) if ours else 0, end if ours else end - self.hidden, end)
        if self.grows:
            self.target[1] = [*self.target[1], 9]
        return found

    def read(self, tails: Any, wanted: Mapping[TopicPartition, list[tuple[int, int]]]) -> dict[TopicPartition, Any]:
        """As KafkaTails does: aborted records are on the source alone."""
        found: dict[TopicPartition, Any] = {}
        for place, each in wanted.items():
            ours = place[0] == TOPIC
            assert tails.committed is not ours
            records = [(at, self.log(place)[at]) for some in each for at in range(*some)]
            time, marks = 1 if ours or not self.late else 7, [] if ours else self.marks
            found[place] = [
                tails.seen(place[0], Record(at, number if self.timed else time, marks, None, b"%d" % number))
                for at, number in records
            ]
        return found

    def newest(self, _: object, topic: str, **__: object) -> list[Record]:
        """As `newest_records` has them; one that nobody can read is among them."""
        records = [Record(at, 1, [], each.key(), each.value()) for at, each in enumerate(self.noted.get(topic, []))]
        return [*records, Record(len(records), 1, [], b"?", None)] if records else []

    def write(self, offsets: Mapping[SourcePartition, int], _: object, *, now: int) -> None:
        """As KafkaSourceOffsets does."""
        self.written.append(offsets)

    def described(self, names: Iterable[str]) -> tuple[dict[str, list[ConfigEntry]], dict[str, str]]:
        """As KafkaTopics describes topics."""
        configs = [ConfigEntry(name=name, value=value, is_override=True) for name, value in self.configs.items()]
        return dict.fromkeys(names, configs), {name: "denied" for name in names if name in self.unreadable}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], _: object) -> None:
        """As KafkaGroups does."""
        assert group == GROUP
        self.commits |= {partition: each.offset for (_, partition), each in offsets.items()}

    def look(self, _: object, connector: str, alone: str, __: object) -> str:
        """As `running_group` does."""
        self.asked.append((connector, alone))
        return self.running


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> TwoLogs:
    """MirrorMaker has stopped, and has written one record of each lane twice."""
    logs = TwoLogs()
    logs.say()
    kafka = "mirrorless.adapters.kafka"
    counts = {TOPIC: 6, f"us-east.{TOPIC}": 5, "unknown": 3, "us-east.unknown": 3, "paid-new": 2}
    doubles: dict[str, dict[str, Any]] = {
        "topics.KafkaTopics": {
            "partitions": lambda *_: counts,
            "configs": lambda _, names, __: logs.described(names),
            "offsets_at": lambda _, places, time, __: {
                place: next((at for at, number in enumerate(logs.log(place)) if number >= time), -1) for place in places
            },
        },
        "records.KafkaRecords": {"ends": lambda _, *words: logs.ends(*words)},
        "source_offsets.KafkaSourceOffsets": {
            "read": lambda *_: logs.said,
            "write": lambda _, *words, **more: logs.write(*words, **more),
        },
        "source_offsets.KafkaTails": {"read": lambda it, wanted, _: logs.read(it, wanted), "close": lambda _: None},
        "groups.KafkaGroups": {
            "commit": lambda _, *words: logs.commit(*words),
            "committed": lambda _, names, __: {name: logs.groups[name] for name in names if name in logs.groups},
            "states": lambda _, names, __: {name: "active" if name in logs.reading else "empty" for name in names},
        },
        "wire.cluster.WireCluster": {"close": lambda _: None},
    }
    for name, methods in doubles.items():
        double = type(name, (), {"__init__": lambda it, *_, **more: it.__dict__.update(more), **methods})
        monkeypatch.setattr(f"{kafka}.{name}", double)
    monkeypatch.setattr(f"{kafka}.wire.group_members.running_group", logs.look)
    monkeypatch.setattr(f"{kafka}.source_offsets.newest_records", logs.newest)
    monkeypatch.setattr(copied_places, "STILL_SECONDS", 0)
    return logs


def lane(partition: int) -> Lane:
    return Lane(FLOW, TOPIC, partition)


def links(stores: Stores, partition: int) -> list[Link]:
    return list(stores.chains.after(lane(partition), 0, -1, limit=9)) + list(
        stores.chains.after(lane(partition), 1, -1, limit=9)
    )


def heads(stores: Stores) -> list[Head]:
    found = stores.chains.heads([lane(partition) for partition in range(6)])
    return [found[lane(partition)] for partition in range(6)]


def pause(stores: Stores, *, at: int | None = None, quiet_at: int | None = 1) -> None:
    """What `flow pause` and `refresh_topics` write."""
    at = now_ms() - 3_600_000 if at is None else at
    order_pause(stores.documents, FLOW, reason="test", now=at)
    quiet = PausedMappings(quiet_at=quiet_at, order_at=at)
    stores.documents.write(FLOW, {MAPPINGS: msgspec.json.encode(quiet)})
    report = {"task": "pull-0", "at": now_ms(), "ms": 1, "ok_at": 1}
    stores.documents.write(FLOW, {"task/pull-0": msgspec.json.encode(report)})


def migrate(in_lab: InLab, command: str, *words: str) -> Answer:
    return in_lab("migrate", command, str(FLOW), TOPIC, "--json", *words)


def take_over(in_lab: InLab, code: int = 0) -> list[str]:
    """Returns the states of the lanes as they were."""
    answer = migrate(in_lab, "take-over", "--execute")
    assert answer.code == code, answer
    return [each["state"] for each in answer.json["lanes"] if "state" in each]


def test_each_lane_goes_on_is_held_or_stays_and_the_mapping_begins_there(
    logs: TwoLogs, stores: Stores, in_lab: InLab
) -> None:
    pause(stores)
    logs.starts = {1: 5}
    logs.target = [[*range(6), 4], [0, 1, 2, 3, 99], list(range(4)), list(range(4)), []]
    del logs.said[SourcePartition(connector=CONNECTOR, cluster="us-east", topic=TOPIC, partition=4)]
    stores.chains.prepare([run(0, 7, lane=lane(2))])

    plan = migrate(in_lab, "plan")
    states = ["exact", "left out", "has a chain", "exact", "exact", "exact"]
    assert (plan.code, [each["state"] for each in plan.json["lanes"]]) == (1, states)
    assert [each["place"] for each in plan.json["lanes"]] == [6, None, 4, 4, 0, 0]
    assert take_over(in_lab, 1) == states
    assert in_lab("migrate", "take-over", str(FLOW), TOPIC, "--execute").err.endswith("held, 1 of 1 lanes\n")

    assert [each.position for each in heads(stores)] == [6, 0, 7, 4, 0, 0]
    assert [each.generation for each in heads(stores)] == [1, 0, 0, 1, 1, 1]
    held = {each.partition: state.stop for each, state in stores.states.stopped(FLOW).items() if each.topic == TOPIC}
    assert {partition: stop.reason for partition, stop in held.items() if stop is not None} == {1: "held"}
    assert stores.states.read([lane(0)])[lane(0)].begun == 1
    assert logs.commits == {0: 6, 1: 5, 3: 4, 4: 0, 5: 0}, "what has a chain has a committed offset of its own"
    # What was held may be taken over once its place is exact.
    logs.target[1] = list(range(6))
    assert take_over(in_lab) == ["taken over", "exact", "has a chain", *["taken over"] * 3]
    assert stores.states.read([lane(1)])[lane(1)].stop is None
    assert logs.commits == {0: 6, 1: 6, 3: 4, 4: 0, 5: 0}


SYNCS = "mm2-offset-syncs.eu-west.internal"
CHECKPOINTS = "us-east.checkpoints.internal"


def test_a_past_is_kept_by_the_pairs_that_the_records_bear_out(logs: TwoLogs, stores: Stores, in_lab: InLab) -> None:
    """The first records are alike: of them, nothing but the offset syncs is known."""
    pause(stores)
    logs.source, logs.target = [[0] * 4 + list(range(1, 7))] * 6, [[0] * 4 + list(range(1, 7))] * 5
    logs.say(last=9)
    logs.noted[SYNCS] = [
        OffsetSync(topic=TOPIC, partition=number, upstream=upstream, downstream=downstream)
        for number, upstream, downstream in (
            (0, 2, 2),
            (1, 3, 2),
            (0, 7, 7),
            (1, 7, 6),
            (2, 1, 1),
            (3, 6, 1),
            (9, 1, 1),
        )
    ]

    plan = migrate(in_lab, "plan").json["lanes"]
    take_over(in_lab)

    since = [each["past"]["since"] for each in plan]
    assert since == [2, 4, 1, 4, 4, None], "those of 1 do not agree with the tail, those of 3 with the records"
    offsets = OffsetMap(stores.chains, PastStore(documents=stores.checkpoints))
    found = [offsets.downstream(lane(0), each) for each in (1, 2, 3, 5, 10, 11)]
    states = ["approximate", "exact", "approximate", "exact", "exact", "ahead_of_replication"]
    assert [each.state for each in found] == states
    assert [each.offset for each in found] == [0, 2, 3, 5, 10, 10]


def test_the_groups_that_mirrormaker_kept_become_the_flows_and_the_others_say_why_not(
    logs: TwoLogs, stores: Stores, in_lab: InLab
) -> None:
    pause(stores)
    remote = f"us-east.{TOPIC}"
    for name in ("kept", "mo\x1bved", "read", "gone", "mirrorless.another"):
        logs.noted.setdefault(CHECKPOINTS, []).append(
            Checkpoint(group=name, topic=remote, partition=0, upstream=3, downstream=3)
        )
        logs.groups[name] = {(remote, 0): OffsetAndMetadata(4 if name == "mo\x1bved" else 3)}
    logs.groups["gone"] = {}
    logs.reading = {"read"}

    answer = migrate(in_lab, "plan").json["groups"]
    assert [(each["group"], each["becomes"], each["offsets"]) for each in answer] == [
        ("kept", "owned", {TOPIC: {"0": 3}}),
        ("mo\x1bved", "independent", {}),
        ("read", "independent", {}),
    ]
    assert "members" in answer[2]["why"]
    shown = in_lab("migrate", "plan", str(FLOW), TOPIC).out
    assert "1 group on the target: they become the flow's" in shown
    assert "mo\\x1bved stays independent: its offset 4 there" in shown
    take_over(in_lab)

    claims = stores.checkpoints.read(FLOW, "claim/")
    assert [msgspec.json.decode(each, type=ClaimedOffsets) for each in claims.values()] == [
        ClaimedOffsets(group="kept", direction="forward", offsets={TOPIC: {0: 3}})
    ]
    # Once the flow has written to the lane, what stands there may be its own.
    stores.chains.prepare([run(6, 7, lane=lane(0), generation=1)])
    assert migrate(in_lab, "plan").json["groups"] == []


BOTH = {
    "runs": "us-east-mm2 has members",
    "runs, and has said nothing": "us-east-mm2 has members",
    "is not paused": "waits for the order to pause it",
    "is not quiet": "waits for refresh_topics",
    "two connectors": "of the connectors MirrorSourceConnector, other",
    "no offsets": "no connector has offsets",
}
REFUSED = [
    *[(command, case, says) for command in ("take-over", "give-back") for case, says in BOTH.items()],
    ("take-over", "grows", f"us-east.{TOPIC}-1 of the target grew"),
    ("take-over", "hides", f"an open transaction hides the end of us-east.{TOPIC}-1"),
    ("give-back", "in doubt", "its newest run is not settled"),
    ("give-back", "expired", "has expired"),
]


@pytest.mark.parametrize("refused", REFUSED)
def test_nothing_is_changed_while_records_may_move_or_a_place_is_not_certain(
    logs: TwoLogs, stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, str, str]
) -> None:
    order, case, says = refused
    if case != "is not paused":
        pause(stores, quiet_at=None if case == "is not quiet" else 1)
    logs.running = "us-east-mm2" if "runs" in case else ""
    logs.grows, logs.hidden = case == "grows", int(case == "hides")
    if case == "two connectors":
        logs.say(connector="other")
    if case in {"no offsets", "runs, and has said nothing"}:
        logs.said = {}
        logs.say(cluster="elsewhere")
    stores.chains.prepare([run(0, 7, lane=lane(0))])
    if case == "in doubt":
        stores.chains.prepare([run(7, 9, lane=lane(0), state="prepared")])
    if case == "expired":
        expired = {lane(0): Head(generation=1, position=7, expired=True)}
        monkeypatch.setattr(stores.chains, "heads", lambda _: expired)
    before = links(stores, 0), dict(stores.states.stopped(FLOW))

    answer = migrate(in_lab, order, "--execute")

    assert (answer.code > 0, says in str(answer.json["error"])) == (True, True), answer
    assert (logs.commits, logs.written) == ({}, [])
    assert (links(stores, 0), dict(stores.states.stopped(FLOW))) == before
    assert not any(links(stores, partition) for partition in range(1, 6))


def test_lanes_are_those_of_the_flows_topics_that_the_target_has(logs: TwoLogs, in_lab: InLab) -> None:
    whole = in_lab("migrate", "plan", str(FLOW), "--json")
    assert {(each["topic"], each["partition"]) for each in whole.json["lanes"]} == {(TOPIC, each) for each in range(6)}
    other = in_lab("migrate", "plan", str(FLOW), "orders", "--json")
    assert (other.code, other.json["lanes"]) == (0, [])
    topics: dict[str | TopicPartition, str] = {
        f"us-east.{TOPIC}": f"the configs of us-east.{TOPIC} cannot be read: denied",
        TOPIC: f"the configs of {TOPIC} cannot be read: denied",
        (TOPIC, 2): f"{TOPIC}-2 has no leader",
    }
    for topic, says in topics.items():
        logs.unreadable = {topic}
        failed = migrate(in_lab, "plan")
        assert (failed.code, failed.json["error"]["what"]) == (1, says)


@pytest.mark.parametrize(
    ("configs", "late", "target", "state"),
    [
        ({"message.timestamp.type": "CreateTime"}, False, range(6), "exact"),
        ({"message.timestamp.type": "CreateTime"}, True, range(6), "left out"),
        ({"message.timestamp.type": "LogAppendTime"}, True, range(6), "exact"),
        ({"cleanup.policy": "delete"}, False, [*range(6), 99], "left out"),
        ({"cleanup.policy": "compact"}, False, [*range(6), 99], "exact"),
    ],
)
def test_how_a_topic_is_kept_decides_what_is_compared(
    logs: TwoLogs, in_lab: InLab, configs: dict[str, str], target: Iterable[int], state: str, *, late: bool
) -> None:
    logs.configs, logs.late, logs.target = configs, late, [list(target)] * 5

    assert [each["state"] for each in migrate(in_lab, "plan").json["lanes"]] == [*[state] * 5, "exact"]


def test_a_connector_of_a_connect_cluster_is_looked_for_in_any_group(logs: TwoLogs, in_lab: InLab) -> None:
    migrate(in_lab, "plan", "--offsets-topic", "connect-offsets")
    logs.say(connector="other")
    migrate(in_lab, "plan", "--connector", "other")
    several = migrate(in_lab, "plan", "--offsets-topic", "connect-offsets")
    assert "--connector NAME" in several.json["error"]["hint"]
    logs.running = "connect"

    running = migrate(in_lab, "plan", "--connector", CONNECTOR, "--offsets-topic", "connect-offsets")

    assert logs.asked == [(CONNECTOR, ""), ("other", "us-east-mm2"), (CONNECTOR, "")]
    assert (running.code, running.json["lanes"], "connect has members" in running.json["moving"]) == (1, [], True)


def test_both_logs_alone_show_how_far_any_replicator_has_come(
    logs: TwoLogs, stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind 5,999, begun again at 5,900, killed behind 5,949; it marks its copies.

    Times show where to look: less is read than the source has before the place.
    """
    monkeypatch.setattr(copied_end, "FURTHEST", copied_end.LOOK + 300)
    pause(stores)
    logs.said, logs.timed, logs.running = {}, True, "others"
    logs.source = [list(range(6_050))] * 6
    logs.target = [[*range(6_000), *range(5_900, 5_950)]] * 5
    logs.marks = [("__mskmr", b"us-east"), ("trace", b"1")]
    way = ("--from", "target-tail")

    marked = migrate(in_lab, "plan", *way)
    assert [each["state"] for each in marked.json["lanes"]] == [*["left out"] * 5, "exact"]
    plan = migrate(in_lab, "plan", *way, "--without-header", "trace")
    assert [each["place"] for each in plan.json["lanes"]] == [*[6_000] * 5, 0]
    assert plan.json["lanes"][0]["duplicates"] == [
        {"records": 50, "upstream": [5900, 5950], "downstream": [6000, 6050]}
    ]
    assert (plan.json["lanes"][0]["mirrormaker_goes_on_at"], logs.asked) == (None, [])
    assert migrate(in_lab, "take-over", *way, "--without-header", "trace", "--execute").code == 0
    assert logs.commits == {**dict.fromkeys(range(5), 6_000), 5: 0}


def test_a_command_that_was_killed_goes_on_and_what_is_done_stays(
    logs: TwoLogs, stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(stores)
    resets, done = stores.chains.reset, list[Link]()

    def once(link: Any) -> None:
        if done:
            raise Cut
        done.append(link)
        resets(link)

    with monkeypatch.context() as cut:
        cut.setattr(stores.chains, "reset", once)
        with pytest.raises(Cut):
            migrate(in_lab, "take-over", "--execute")
    assert (stores.states.read([lane(0)]), logs.commits) == ({lane(0): stores.states.read([lane(0)])[lane(0)]}, {})
    logs.target[0] = [*range(6), 9]  # of the lane that is taken over already: not looked at

    assert take_over(in_lab) == ["taken over", *["exact"] * 5]
    assert [each.position for each in heads(stores)] == [*[6] * 5, 0]
    assert logs.commits == {**dict.fromkeys(range(5), 6), 5: 0}
    assert [was_taken_over(each) for each in links(stores, 1)] == [True]


def test_what_is_given_back_may_be_taken_over_again_and_what_has_gone_on_may_not(
    logs: TwoLogs, stores: Stores, in_lab: InLab
) -> None:
    pause(stores)
    logs.target[1] = [0, 1, 2, 3, 99]
    take_over(in_lab, 1)
    for partition, position in ((0, 8), (2, 9)):
        stores.chains.prepare([run(6, position, lane=lane(partition), generation=1)])

    given = migrate(in_lab, "give-back", "--execute")
    assert (given.code, given.json["lanes"][0]["goes_on_at"]) == (0, {"0": 8, "2": 9, "3": 6, "4": 6, "5": 0})
    (written,) = logs.written
    assert {about.partition: last for about, last in written.items()} == {0: 7, 2: 8, 3: 5, 4: 5, 5: -1}
    assert {(about.connector, about.cluster, about.topic) for about in written} == {(CONNECTOR, "us-east", TOPIC)}
    again = migrate(in_lab, "give-back", "--execute")
    assert (again.code, again.json["lanes"], logs.written) == (0, [], [written])

    # MirrorMaker goes on; one lane was resumed by mistake.
    stores.chains.prepare([run(9, 10, lane=lane(2), generation=1)])
    logs.target[0] = [*logs.target[0], *range(6, 10)]
    logs.say(9, 0)
    logs.commits.clear()
    logs.target[3] = list(range(4))  # it has lost what stood below the chain's end
    assert take_over(in_lab, 1)[:4] == ["exact", "left out", "taken over", "left out"]
    assert logs.commits == {0: 10, 1: 4, 3: 4, 4: 6, 5: 0}, (
        "the mapping of the lane that went on has offsets of its own"
    )
    assert [each.position for each in heads(stores)][:3] == [10, 0, 10]
    assert [each.generation for each in heads(stores)][:3] == [2, 0, 1]


@pytest.mark.parametrize("choice", [0, 1])
def test_a_lane_that_does_not_stand_where_it_was_given_back_goes_on_by_either_choice(
    logs: TwoLogs, stores: Stores, in_lab: InLab, choice: int
) -> None:
    """The target lacks 6 and 7, which the flow had copied."""

    def choices() -> list[list[str]]:
        shown = in_lab("migrate", "plan", str(FLOW), TOPIC).out
        return [shlex.split(each) for each in re.findall(r"`mirrorless (lanes reset [^`]*) --lab lab.json`", shown)]

    pause(stores)
    logs.say(7, 0)
    assert [each[each.index("--to") + 1] for each in choices()] == ["6"], "it never was the flow's"
    logs.say(3, 0)
    take_over(in_lab)
    stores.chains.prepare([run(6, 8, lane=lane(0), generation=1)])
    migrate(in_lab, "give-back", "--execute")
    logs.say(7, 0)

    found = migrate(in_lab, "plan").json["lanes"][0]
    assert (found["state"], found["place"]) == ("left out", None)
    assert found["why"].startswith("the flow itself had copied all below 8, and the logs show 6, before that")
    either = choices()
    take_over(in_lab, 1)

    assert [each[each.index("--to") + 1] for each in either] == ["6", "8"]
    assert in_lab(*either[choice]).code == 0
    assert heads(stores)[0] == Head(generation=2, position=(6, 8)[choice])
    assert stores.states.read([lane(0)])[lane(0)].stop is None
