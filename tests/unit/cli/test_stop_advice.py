"""The advice of every reason of a stop, followed as it is printed: each record is on the target once afterwards.

What was left out by order is in the loss ledger. The stops are made by the product, in memory; a reason without a case
here, or without an advice, fails.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from cli.deployment import DeployedFlows, Stores
from cli.main import main
from mirrorless.adapters.kafka.committed_log import KafkaCommittedLog
from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.source_offsets import KafkaTails
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LeftOut, Stop, StopReason
from mirrorless.flow.settings import FlowSettings, Tables
from mirrorless.lanes.operator_actions import _ADVICE, advice, plan_hold
from mirrorless.ports.kafka import RangesRead
from mirrorless.ports.topics import ConfigEntry
from mirrorless.protocol.log_parting import parted_stop
from mirrorless.protocol.undelivered import undelivered_stop
from mirrorless.records.origin import ORIGIN_HEADER, OriginRule
from mirrorless.records.record import Record
from mirrorless.topics.topic_state import (
    TopicState,
    mark_recreated,
    mark_remote_recreated,
    recreated_stop,
    remote_recreated_stop,
)
from tests.frozen.small_flow import FLOW, LaneStates, small_flow
from tests.support.clusters import Entry, stable_offset
from tests.support.documents import MemoryDocuments
from tests.support.memory_log import read_at
from tests.support.protocol_world import REMOTE, TOPIC, T, World, lane, others, records, replicate

Case = Callable[[World], None]
"""Brings lane 0 to its stop."""

PARTITIONS = 3


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three partitions of 40 records, the first 30 of each on the target, in runs of ten; the command sees the same."""
    there = World({partition: records(*range(40)) for partition in range(PARTITIONS)}, states=LaneStates())
    environment = there.environment()
    for first in range(0, 30, 10):
        for partition in range(PARTITIONS):
            replicate(environment, there.batch(**{f"p{partition}": list(range(first, first + 10))}))
    with small_flow(tmp_path), pytest.MonkeyPatch.context() as patch:  # what is patched last ends first
        _show(there, patch)
        yield there


def _show(there: World, patch: pytest.MonkeyPatch) -> None:
    stores: dict[str, Any] = {
        "client": None,
        "chains": there.chains.beside(),
        "states": there.states,
        "ledger": there.ledger,
        "documents": MemoryDocuments(),
        "checkpoints": MemoryDocuments(),
    }

    def log(place: tuple[str, int]) -> list[Record]:
        if place[0] == TOPIC:
            return there.source.get(place[1], [])
        return [
            Record(offset, record.timestamp, record.headers, record.key, record.value)
            for offset, record in there.cluster.visible(*place)
        ]

    def tails(it: Any, wanted: Mapping[tuple[str, int], Any], _: object) -> dict[tuple[str, int], Any]:
        assert it.committed, "the flow leaves out what was aborted, which may have come again, the same"
        return {
            place: [
                seen
                for first, end in some
                for record in log(place)
                if first <= record.offset < end and (seen := it.seen(place[0], record)) is not None
            ]
            for place, some in wanted.items()
        }

    def extents(_: object, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Extent]:
        found = {place: log(place) for place in places}
        return {place: Extent(some[0].offset, some[-1].offset + 1) for place, some in found.items() if some}

    def ends(_: object, places: Sequence[tuple[str, int]], __: object) -> dict[tuple[str, int], tuple[int, int, int]]:
        ours = {place: log(place) for place in places if place[0] == TOPIC}
        theirs = {place: there.cluster.topics[place[0]][place[1]] for place in places if place[0] == REMOTE}
        return {place: (some[0].offset, some[-1].offset + 1, some[-1].offset + 1) for place, some in ours.items()} | {
            place: (0, stable_offset(found), len(found)) for place, found in theirs.items()
        }

    def offsets_at(_: object, places: Sequence[tuple[str, int]], at: int, __: object) -> dict[tuple[str, int], int]:
        return {place: next((each.offset for each in log(place) if each.timestamp >= at), -1) for place in places}

    patch.setattr(DeployedFlows, "stores", lambda *_: Stores(tables=Tables(), **stores))

    def committed(
        _: object, wanted: Mapping[tuple[str, int], Any], *__: object, **___: object
    ) -> dict[Any, RangesRead]:
        return {place: read_at(some, log(place), log(place)[-1].offset + 1) for place, some in wanted.items()}

    patch.setattr(KafkaCommittedLog, "read", committed)
    patch.setattr(KafkaTails, "__init__", lambda it, *_, **words: it.__dict__.update(words))
    patch.setattr(KafkaTails, "read", tails)
    patch.setattr(KafkaTails, "close", lambda _: None)
    patch.setattr(KafkaTopics, "partitions", lambda *_: {TOPIC: len(there.source), REMOTE: len(there.source)})
    patch.setattr(KafkaTopics, "configs", lambda _, names, __: ({name: [] for name in names}, {}))
    patch.setattr(KafkaOffsets, "extents", extents)
    patch.setattr(KafkaRecords, "ends", ends)
    patch.setattr(KafkaTopics, "offsets_at", offsets_at)


def deliver(there: World) -> None:
    """All that follows each lane's position, in batches of seven, to a new environment."""
    for partition in there.source:
        environment = there.environment()
        while True:
            position = there.chains.beside().heads([lane(partition)])[lane(partition)].position
            following = [each.offset for each in there.source[partition] if each.offset >= position][:7]
            if not following or replicate(environment, there.batch(**{f"p{partition}": following})).stopped:
                break


def assert_each_once(there: World) -> None:
    """Every record of the source is on the target once, or in the ledger; and nothing is in both."""
    deliver(there)
    for partition, stored in there.source.items():
        lost = {offset for loss in there.ledger.read(lane(partition)) for offset in range(loss.first, loss.next)}
        values = [int(record.value or b"") for record in stored if record.offset not in lost]
        seen = [each for each in there.visible(partition) if each in {int(record.value or b"") for record in stored}]
        assert sorted(seen) == values, f"partition {partition}"
        assert all(loss.cause == "quarantined" for loss in there.ledger.read(lane(partition)))


# Each reason, as the product comes to it


def refused(there: World) -> None:
    there.cluster.refuses = lambda _, partition, record: (partition, record.offset) == (0, 33)


def many_refused(there: World) -> None:
    """One by one: the target does not name the records of a batch that it refuses."""
    there.cluster.refuses = lambda _, partition, record: partition == 0 and record.offset % 2 == 1


def refused_by_name(there: World) -> None:
    """As a compacted topic names those without a key."""
    many_refused(there)
    there.cluster.names_records, there.cluster.cause = True, "INVALID_RECORD"


def unwritable(there: World) -> None:
    """Without the target: records that the Kafka client would write as something else."""
    for offset in (31, 32, 36):
        there.source[0][offset] = replace(there.source[0][offset], timestamp=0)


def contradiction(there: World) -> None:
    there.source[0] = anew(25)
    replicate(there.environment(), there.batch(p0=list(range(10))))


def lost_witness(there: World) -> None:
    """A run in doubt whose records are committed, and then compacted away with two others before them."""
    there.crash("committed", there.batch(p0=[30, 31, 32]))
    for entry in there.cluster.topics[REMOTE][0][-2:]:
        entry.record = None


def lost_end(there: World) -> None:
    """An unclean election of the remote partition: it lost its last 15 offsets."""
    del there.cluster.topics[REMOTE][0][-15:]


def lost_everything(there: World) -> None:
    """The remote topic was deleted and created again; the forwarder meets it before the refresh."""
    there.cluster.topics[REMOTE] = [[] for _ in range(PARTITIONS)]


def remote_recreated(there: World) -> None:
    there.cluster.topics[REMOTE] = [[] for _ in range(PARTITIONS)]
    for partition in range(PARTITIONS):
        head = there.chains.heads([lane(partition)])[lane(partition)]
        before = TopicState(topic=TOPIC, topic_id="a", partitions=PARTITIONS, first_seen=1, remote_topic_id="r")
        state = mark_remote_recreated(before, topic_id="s", heads={partition: head})
        assert head.run is not None
        stop = remote_recreated_stop(FLOW, state, partition, head.run.position, now=1)
        there.states.stop(lane(partition), stop)


def newest_gone(there: World) -> None:
    """Nothing renewed the newest entry of the lane, and later ones of its neighbours are there."""
    newest = there.chains.of(lane())[-1]
    there.chains.replace_link(newest, None)


def all_gone(there: World) -> None:
    """Nothing ran for so long that the whole journal is gone."""
    there.chains.memory.entries.clear()


def stop_as_recreated(there: World) -> None:
    """As the refresh does, once it has seen another id of the topic."""
    before = TopicState(topic=TOPIC, topic_id="a", partitions=PARTITIONS, first_seen=1)
    state = mark_recreated(before, topic_id="b", partitions=PARTITIONS, heads={0: there.chains.heads([lane()])[lane()]})
    there.states.stop(lane(), recreated_stop(state, 0, partitions=PARTITIONS, now=1))


def bring_on(there: World, warm: Any = None) -> None:
    """What a poller brings behind the position, in three batches; by a warm function, or by new ones."""
    for first in range(30, 45, 5):
        replicate(warm or there.environment(), there.batch(p0=list(range(first, first + 5))))


def recreated(there: World) -> None:
    there.source[0] = anew(25)
    stop_as_recreated(there)


def recreated_beyond(there: World) -> None:
    """The new topic had more records than the old position: its poller brought some before the refresh saw it."""
    there.source[0] = anew(60)
    bring_on(there)
    stop_as_recreated(there)


def truncated_beyond(there: World) -> None:
    """The source lost 22 to 29 and grew past 30; its poller brought what follows."""
    there.source[0] = [*there.source[0][:22], *anew(60)[22:]]
    bring_on(there)
    there.states.stop(lane(), parted_stop(lane(), 22, position=45, now=1, replicated=((30, 45),)))


def follow_all_but_the_last(there: World) -> None:
    """Each reset, and all that comes by then."""
    stop = there.states.states[lane()].stop
    assert stop is not None
    left = True
    while left:
        follow(lane(), stop, "lanes", "reset")
        deliver(there)
        position = there.chains.heads([lane()])[lane()].position
        stop = there.states.states[lane()].stop
        assert stop is not None
        assert position == stop.upstream_offset, "it stands still before what would come twice"
        left = len(stop.replicated) > 1


def truncated(there: World) -> None:
    """The source lost 22 to 29, which the target keeps, and has written three others since."""
    del there.source[0][22:]
    there.states.stop(lane(), parted_stop(lane(), 22, position=30, now=1))
    there.source[0] += [replace(each, value=b"%d" % (1_000 + each.offset)) for each in records(22, 23, 24)]


def truncated_and_redelivered(there: World) -> None:
    """A warm function has not seen the stop, and its mapping reads the log from its beginning again."""
    there.source[0] = [*there.source[0][:22], *anew(40)[22:]]
    warm = there.environment()
    replicate(warm, there.batch(p0=[20, 21]))
    there.states.stop(lane(), parted_stop(lane(), 22, position=30, now=1))
    replicate(warm, there.batch(p0=list(range(30))))


def truncated_and_brought_on(there: World) -> None:
    """A warm function has not seen the stop, and brings what the mapping reads on in the log that grew past 30."""
    there.source[0] = [*there.source[0][:22], *anew(60)[22:]]
    warm = there.environment()
    replicate(warm, there.batch(p0=[20, 21]))
    there.states.stop(lane(), parted_stop(lane(), 22, position=30, now=1))
    bring_on(there, warm)


def truncated_and_brought_further(there: World, *events: range) -> None:
    """The same, and the check had seen some of it."""
    truncated_beyond(there)
    stop = there.states.states[lane()].stop
    assert stop is not None
    there.states.resume(lane())
    warm = there.environment()
    first, *others = events or (range(45, 50), range(50, 55))
    replicate(warm, there.batch(p0=list(first)))
    there.states.stop(lane(), stop)
    for event in others:
        replicate(warm, there.batch(p0=list(event)))


def truncated_and_passed(there: World) -> None:
    """The same, and the poller passed some behind the stop: it went on at the end of what was left of the log."""
    truncated_and_brought_further(there, range(45, 47), range(49, 52), range(52, 56, 3))


def held(there: World) -> None:
    stop = plan_hold(there.chains.heads([lane()])[lane()], there.states.states[lane()], reason="ticket", now=1)
    assert stop is not None
    there.states.stop(lane(), stop)


def backfilled(there: World) -> None:
    there.states.stop(lane(), Stop(reason="backfilled", upstream_offset=30, detail="ended at 30 as ordered", at=1))


def undelivered(there: World) -> None:
    stop = undelivered_stop(RangesRead(until=31, records=there.source[0][30:31]), 0, now=1)
    assert stop is not None
    there.states.stop(lane(), stop)


def anew(count: int) -> list[Record]:
    """Of a topic that was created again: other records from offset 0 on."""
    return [replace(each, value=b"%d" % (1_000 + each.offset)) for each in records(*range(count))]


def take_it(there: World) -> None:
    there.cluster.refuses = lambda *_: False


CASES: Mapping[StopReason, Sequence[tuple[Case, Sequence[str], Case | None]]] = {
    "refused": [
        (refused, ["lanes", "resume"], take_it),
        (refused, ["lanes", "quarantine"], None),
        (many_refused, ["lanes", "quarantine", "--alike"], None),
        (refused_by_name, ["lanes", "quarantine", "--alike"], None),
        (unwritable, ["lanes", "quarantine", "--alike"], None),
    ],
    "contradiction": [(contradiction, ["lanes", "reset"], None)],
    "broken": [(each, ["lanes", "reset"], None) for each in (lost_witness, lost_end, lost_everything)],
    "remote_recreated": [(remote_recreated, ["lanes", "reset"], None)],
    "expired": [(newest_gone, ["lanes", "reset"], None), (all_gone, ["lanes", "reset"], None)],
    "recreated": [
        (recreated, ["lanes", "reset"], None),
        (recreated_beyond, ["lanes", "reset"], follow_all_but_the_last),
    ],
    "truncated": [
        (truncated, ["lanes", "reset"], None),
        (truncated_and_redelivered, ["lanes", "reset"], None),
        *(
            (each, ["lanes", "reset"], follow_all_but_the_last)
            for each in (
                truncated_beyond,
                truncated_and_brought_on,
                truncated_and_brought_further,
                truncated_and_passed,
            )
        ),
    ],
    "held": [(held, ["lanes", "resume"], None)],
    "backfilled": [(backfilled, ["lanes", "resume"], None)],
    "undelivered": [(undelivered, ["lanes", "resume"], None)],
}
"""By reason: what brings it about, the command of the advice, and what is done before that."""


def test_every_reason_of_a_stop_has_its_advice_and_its_cases() -> None:
    assert set(get_args(StopReason)) == set(_ADVICE) == set(CASES)
    assert all(CASES.values())


@pytest.mark.parametrize(
    ("reason", "case", "words", "first"),
    [
        pytest.param(reason, *each, id=f"{reason}-{each[0].__name__}-{each[1][-1]}")
        for reason, cases in CASES.items()
        for each in cases
    ],
)
def test_the_advice_of_a_stop_brings_each_record_once(
    world: World, reason: StopReason, case: Case, words: Sequence[str], first: Case | None
) -> None:
    case(world)
    deliver(world)
    before = world.states.states[lane()].stop
    assert before is not None
    assert before.reason == reason

    if first is not None:
        first(world)
    for partition in range(PARTITIONS):
        state = world.states.states.get(lane(partition))
        if state is not None and state.stop is not None:
            follow(lane(partition), state.stop, *words)

    assert_each_once(world)
    assert world.states.states[lane()].stop is None


def follow(stopped: Lane, stop: Stop, *words: str) -> None:
    """Follow the one command of the advice that begins with these words."""
    commands = [shlex.split(each) for each in re.findall(r"`([^`]*)`", advice(stopped, stop))]
    found, *following = [
        each
        for each in commands
        if each[1 : 1 + len(words[:2])] == list(words[:2]) and ("--alike" in each) == ("--alike" in words)
    ]
    assert bool(following) == ("--until" in found), "of two, the first one ends before the second begins"
    assert main([*found[1:], "--lab", "lab.json"]) == 0, found


def test_what_a_mapping_does_not_deliver_is_left_out_by_the_other_command_of_its_advice(world: World) -> None:
    undelivered(world)
    stop = world.states.states[lane()].stop
    assert stop is not None
    assert "make 'orders: schedule' the first entry of the flow's trigger.overrides" in advice(lane(), stop)

    follow(lane(), stop, "lanes", "reset")
    deliver(world)

    assert world.visible() == [*range(30), *range(31, 40)]
    assert [(loss.first, loss.next, loss.cause) for loss in world.ledger.read(lane())] == [(30, 31, "reset")]


@pytest.mark.parametrize("left", [22, 28], ids=["all of it", "the last of it"])
def test_a_lane_goes_on_though_what_it_was_to_stand_behind_is_gone(world: World, left: int) -> None:
    """Compacted away, or expired, before the lane came there."""
    truncated_beyond(world)
    sent = world.states.states[lane()].stop
    assert sent is not None
    follow(lane(), sent, "lanes", "reset")
    del world.source[0][left:30]
    deliver(world)
    stands = world.states.states[lane()].stop
    assert stands is not None
    assert world.chains.heads([lane()])[lane()].position == left < stands.upstream_offset

    follow(lane(), stands, "lanes", "reset")

    deliver(world)
    seen = Counter(world.visible(0))
    assert [seen[int(record.value or b"")] for record in world.source[0]] == [1] * len(world.source[0])
    assert [(loss.first, loss.next) for loss in world.ledger.read(lane())] == [(left, 30)]


@pytest.mark.parametrize("brought", [2, 15])
@pytest.mark.parametrize("to", ["earliest", "7", "22", "25"])
def test_a_reset_to_another_place_stands_still_before_what_was_brought_too(world: World, to: str, brought: int) -> None:
    """An operator who wants more again, or less, than the stop advises."""
    world.source[0] = [*world.source[0][:22], *anew(60)[22:]]
    replicate(world.environment(), world.batch(p0=list(range(30, 30 + brought))))
    world.states.stop(lane(), parted_stop(lane(), 22, position=30 + brought, now=1, replicated=((30, 30 + brought),)))

    assert reset(to) == 0

    deliver(world)
    stop = world.states.states[lane()].stop
    assert stop is not None
    assert (stop.upstream_offset, stop.replicated) == (30, ((30, 30 + brought),))
    assert world.chains.heads([lane()])[lane()].position == 30


def reset(to: str = "target") -> int:
    """The order for lane 0 by itself. Returns its exit code."""
    words = ["lanes", "reset", str(FLOW), TOPIC, "0", "--to", to, "--reason", "ticket", "--execute"]
    return main([*words, "--lab", "lab.json"])


@pytest.mark.parametrize("case", [newest_gone, all_gone])
def test_an_end_that_expired_is_found_where_records_repeat_and_some_were_left_out(world: World, case: Case) -> None:
    """The last record equals earlier ones but for its time, and the one before it was quarantined."""
    for record in world.source[0][20:36]:
        record.value, record.headers = b"99", []
    world.cluster.refuses = lambda _, partition, record: (partition, record.offset) == (0, 34)
    replicate(world.environment(), world.batch(p0=[30, 31, 32, 33, 34, 35]))
    world.states.quarantine(lane(), *LeftOut.each(34))
    world.cluster.refuses = lambda *_: False
    replicate(world.environment(), world.batch(p0=[33, 34, 35]))
    replicate(world.environment(), world.batch(p1=[30]))
    assert world.chains.beside().heads([lane()])[lane()].position == 36
    case(world)
    deliver(world)

    assert reset() == 0

    assert world.chains.beside().heads([lane()])[lane()].position == 36
    assert [loss.first for loss in world.ledger.read(lane())] == [34], "what is on the target is not noted as lost"


def test_an_end_is_found_on_a_target_that_has_times_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    late = [ConfigEntry(name="message.timestamp.type", value="LogAppendTime", is_override=True)]
    monkeypatch.setattr(KafkaTopics, "configs", lambda _, names, __: (dict.fromkeys(names, late), {}))
    for entry in world.cluster.topics[REMOTE][0]:
        if entry.record is not None:
            entry.record = replace(entry.record, timestamp=entry.record.timestamp + 5_000_000)
    all_gone(world)
    deliver(world)

    assert reset() == 0
    assert world.chains.beside().heads([lane()])[lane()].position == 30


def hide_the_end(there: World) -> None:
    there.cluster.topics[REMOTE][0].append(Entry(None, "open", "somebody"))


def write_others(there: World) -> None:
    there.source[0] = anew(40)


@pytest.mark.parametrize(
    ("case", "spoil", "complaint"),
    [
        (all_gone, hide_the_end, "open transaction"),
        (all_gone, write_others, "none of the last 30 records"),
        (newest_gone, lost_end, "had copied all below 20"),
    ],
)
def test_an_end_that_cannot_be_found_is_refused_and_nothing_is_changed(
    world: World, case: Case, spoil: Case, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case(world)
    deliver(world)
    before = world.states.states[lane()]
    spoil(world)

    assert reset() == 2

    assert complaint in capsys.readouterr().err
    assert world.states.states[lane()] == before


def test_an_end_of_which_several_places_look_alike_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.source[0] = [replace(each, timestamp=T, value=b"1", headers=[]) for each in records(*range(40))]
    for entry in world.cluster.topics[REMOTE][0]:
        entry.record = entry.record and replace(entry.record, timestamp=T, value=b"1", headers=[])
    all_gone(world)

    assert reset() == 2
    assert "there are others like it" in capsys.readouterr().err


def test_a_target_whose_retention_took_all_is_no_new_one(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To copy from the first record would double what its readers had."""
    world.cluster.topics[REMOTE][0].clear()
    ends = {REMOTE: (30, 30, 30), TOPIC: (0, 40, 40)}
    monkeypatch.setattr(KafkaRecords, "ends", lambda _, places, __: {each: ends[each[0]] for each in places})
    all_gone(world)
    deliver(world)

    assert reset() == 2
    assert "no record of it any more" in capsys.readouterr().err


def test_without_transactions_what_was_written_behind_a_lost_end_is_not_taken_for_it(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records 25 to 29 are gone, and 30 stands there, of a write that the map does not have."""
    config = tmp_path / "replication.yaml"
    text = config.read_text()
    config.write_text(text.replace("    groups.exclude", "    delivery: at_least_once\n    groups.exclude"))
    del world.cluster.topics[REMOTE][0][-8:]
    replicate(world.environment(at_least_once=True), world.batch(p0=[30]))
    assert 30 in world.visible()

    assert reset() == 2
    assert "without transactions" in capsys.readouterr().err


def test_an_explicit_offset_below_an_unknown_end_notes_what_is_not_known(world: World) -> None:
    all_gone(world)

    assert reset("30") == 0

    (loss,) = world.ledger.read(lane())
    assert (loss.first, loss.next) == (0, 30)
    assert "the target may have them" in loss.detail


def test_where_both_sides_produce_only_what_was_copied_counts_and_as_it_was_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = OriginRule.of(TOPIC, source="us-east", target="eu-west", clusters=())
    settings = DeployedFlows.settings
    monkeypatch.setattr(DeployedFlows, "settings", lambda *words: replace(settings(*words), origins=("us-east",)))
    monkeypatch.setattr(FlowSettings, "origin_rule", lambda *_: rule)
    log, last = world.cluster.topics[REMOTE][0], world.source[0][29]
    for entry in log:
        entry.record = rule.marked(entry.record) if entry.record and entry.record.value != b"28" else None
    log += [Entry(each, "committed", "of the target") for each in others(40, 41)]
    world.source[0].append(replace(last, offset=40, headers=[*last.headers, (ORIGIN_HEADER, rule.returning)]))
    all_gone(world)

    assert reset() == 0
    assert world.chains.beside().heads([lane()])[lane()].position == 30
