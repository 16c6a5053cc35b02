"""What commands answer and order on the small flow of the golden files: values, and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from cli.deployment import Stores
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import LaneState, Lease, Stop
from mirrorless.chain.run import Span
from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.lanes.check_state import LaneNotes, TopicNotes, write_notes
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.past import Past, PastStore
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.topic_state import Recreated, TopicState
from tests.frozen.small_flow import FLOW, LATER
from tests.support.commands import Answer

SILENT = FlowName("silent", "eu-west")
"""The flow whose source does not answer."""

InLab = Callable[..., Answer]


def lane(partition: int) -> Lane:
    return Lane(FLOW, "orders", partition)


# translate


def test_offsets_are_translated_by_the_map_both_ways(in_lab: InLab) -> None:
    """At three in the morning it is the remote topic's name that is at hand."""

    def translated(topic: str, *words: str) -> tuple[int | None, str, str | None]:
        answer = in_lab("translate", str(FLOW), topic, *words, "--json")
        assert (answer.code, list(answer.json)[:2]) == (0, ["offset", "state"])
        return answer.json["offset"], answer.json["state"], answer.json.get("source_topic")

    for upstream, downstream, state in (
        (0, 100, "exact"),
        (3, 103, "exact"),
        (4, 104, "next_record"),
        (10, 108, "exact"),
        (5_000, 108, "ahead_of_replication"),
    ):
        assert translated("orders", "0", str(upstream)) == (downstream, state, None)
    assert translated("orders", "0", "105", "--reverse") == (7, "exact", None)
    assert translated("us-east.orders", "0", "102", "--reverse") == (2, "exact", "orders")
    assert translated("orders", "3", "7") == (None, "no_map", None)


def test_a_stopped_lane_whose_map_is_not_true_has_no_offset_to_go_to(stores: Stores, in_lab: InLab) -> None:
    stores.states.stop(lane(0), Stop(reason="broken", upstream_offset=0, detail="anew", at=1, untrue_from=0))

    for way in ((), ("--reverse",)):
        said = in_lab("translate", str(FLOW), "orders", "0", "101", "--json", *way).json
        assert (said["offset"], said["state"]) == (None, "map_lost")
    answer = in_lab("translate", str(FLOW), "orders", "0", "101")
    assert (answer.code, f"mirrorless lanes stopped '{FLOW}'" in answer.out) == (0, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("translate", str(FLOW), "nothing", "0", "7"), "us-east has no topic nothing"),
        (("translate", str(FLOW), "orders", "4", "7"), "has no partition 4 (a retry does not help)"),
        (("translate", "us-east", "orders", "0", "1"), "FLOW"),
        (("groups", str(FLOW), "--execute"), "--move-back"),
        (("groups", str(FLOW), "--move-back", "unheard-of"), "no checkpoint of group unheard-of"),
        (("groups", str(FLOW), "--group", "console"), "refuse it"),
        (("groups", str(FLOW), "--group", "mirrorless.us-east.eu-west.orders"), "event source mapping"),
        (("groups", str(FLOW), "--group", "unheard-of"), "has committed nothing"),
        (("status", "--html", "."), "cannot be written"),
        (("lanes", "reset", str(FLOW), "orders", "2", "--to", "130", "--reason", "no", "--execute"), "lanes release"),
    ],
)
def test_what_does_not_fit_the_flow_is_bad_input(words: tuple[str, ...], says: str, in_lab: InLab) -> None:
    answer = in_lab(*words)

    assert (answer.code, says in answer.err) == (2, True), answer


# status


def test_a_topic_that_the_flow_names_and_the_source_lacks_needs_the_operator(in_lab: InLab) -> None:
    config = Path("replication.yaml")
    config.write_text(config.read_text().replace("[orders, payments", "[orders, absent, payments"))

    answer = in_lab("status", str(FLOW))

    assert (answer.code, "! absent: us-east has no such topic" in answer.out) == (1, True)


def test_a_page_of_a_status_is_written(in_lab: InLab) -> None:
    assert in_lab("status", "--html", "page.html").code == 1

    text = Path("page.html").read_text()
    assert "us-east-&gt;eu-west" in text
    assert "seconds that the oldest record of a run had waited" in text


def test_a_silent_source_hides_nothing_that_is_known_without_it(stores: Stores, in_lab: InLab) -> None:
    """Its being down is the very moment at which the map is needed most, and somebody asks which groups can move."""
    orders = TopicState(topic="orders", topic_id="id-1", partitions=1, first_seen=1)
    anew = msgspec.structs.replace(orders, recreated=Recreated(topic_id="id-2", waiting={0: 0}))
    report = TaskReport(task="topics", at=1, ms=1, ok_at=1, troubles=("an odd thing",))
    stores.documents.write(
        SILENT, {"topic/orders": msgspec.json.encode(anew), "task/topics": msgspec.json.encode(report)}
    )
    keep(stores, "shop", "ahead_of_replication", flow=SILENT, ahead=4)

    (flow,) = in_lab("status", str(SILENT), "--json").json["flows"]
    topics, groups = in_lab("topics", str(SILENT)), in_lab("groups", str(SILENT))

    (partition,) = flow["topics"][0]["partitions"]
    assert (flow["source_reachable"], partition["position"], partition["lag"]) == (False, 10, None)
    assert "silent" in flow["source_trouble"]
    assert topics.code == 1
    for said in ("! re-created", "an odd thing", "the cluster did not list its topics"):
        assert said in topics.out
    assert groups.code == 0
    assert "ahead of replication" in groups.out
    assert "Incomplete" in groups.out


# groups


def keep(
    stores: Stores, group: str, readiness: Any, *, flow: FlowName = FLOW, way: Any = "forward", **more: Any
) -> None:
    """Keep a group's checkpoints as the checkpoint round does."""
    offsets = {"orders": {0: GroupOffset(10, 108, "exact"), 1: GroupOffset(5, None, "no_map", "[red]")}}
    found = GroupCheckpoints(group=group, direction=way, at=1, readiness=readiness, offsets=offsets, **more)
    stores.checkpoints.write(flow, {found.key: msgspec.json.encode(found)})


def test_groups_are_listed_with_those_that_the_filter_refuses(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(stores, "shop", "behind", by="group", reread=12_345)
    keep(stores, "crm", "active_on_source", way="reverse")
    groups = ["shop", "console-[red]", "mirrorless.us-east.eu-west.orders"]
    monkeypatch.setattr(KafkaGroups, "names", lambda *_: groups)
    config = Path("replication.yaml")
    config.write_text(config.read_text().replace("[console]", '["console.*", "mirrorless.*"]'))

    forward, back = (in_lab("groups", str(FLOW), *way, "--json") for way in ((), ("--reverse",)))

    assert (forward.code, back.code) == (0, 0)
    assert [(each["group"], each["readiness"], each["by"]) for each in forward.json["groups"]] == [
        ("shop", "behind", "group")
    ]
    assert (forward.json["excluded"], forward.json["trouble"]) == (["console-[red]"], "")
    assert (back.json["direction"], [each["group"] for each in back.json["groups"]]) == ("reverse", ["crm"])
    shown = in_lab("groups", str(FLOW)).out
    assert "12,345" in shown
    assert [line.split() for line in shown.splitlines() if "console" in line] == [["console-[red]", "excluded"]]


def test_one_group_is_shown_by_partition_with_what_it_has_committed_there(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's own topic of the name is none of this flow's, nor is what another flow brings there."""
    for way in ("forward", "reverse"):
        keep(stores, "shop", "ready", way=way, by="group")
    commits = {
        "eu-west": {("us-east.orders", 0): 106, ("orders", 0): 3, ("silent.orders", 0): 4},
        "us-east": {("orders", 0): 9},
    }

    def committed(groups: KafkaGroups, names: list[str], _: object) -> dict[str, dict[tuple[str, int], Any]]:
        there = commits[groups._admin._cluster.alias]
        return {name: {place: OffsetAndMetadata(offset, "") for place, offset in there.items()} for name in names}

    monkeypatch.setattr(KafkaGroups, "committed", committed)
    words = ("groups", str(FLOW), "--group", "shop")

    (forward,), (back,) = (in_lab(*words, *way, "--json").json["groups"] for way in ((), ("--reverse",)))

    assert [each["committed_there"] for each in forward["offsets"]] == [106, None]
    assert [each["committed_there"] for each in back["offsets"]] == [9, None]
    second = forward["offsets"][1]
    assert second | {"upstream": 5, "downstream": None, "state": "no_map", "metadata": "[red]"} == second
    shown = in_lab(*words)
    assert shown.code == 0
    assert "committed on eu-west" in shown.out
    assert "exactly where it is" in shown.out
    rows = [line.split() for line in shown.out.splitlines() if line.startswith("orders")]
    assert rows == [["orders", "0", "10", "108", "106", "exact"], ["orders", "1", "5", "-", "-", "no_map", "[red]"]]


# topics


def test_topics_are_shown_from_both_sides(stores: Stores, in_lab: InLab) -> None:
    """Partitions, drift and what the refresh knows, for a literal topic and for one that a pattern finds."""
    config = Path("replication.yaml")
    config.write_text(config.read_text().replace("[orders, payments", "[orders, missing, payments"))
    late = TopicState(topic="paid-online", topic_id="id-2", partitions=1, first_seen=1, late=True)
    stores.documents.write(FLOW, {"topic/paid-online": msgspec.json.encode(late)})

    answer = in_lab("topics", str(FLOW), "--json")

    rows = {row["topic"]: row for row in answer.json["topics"]}
    assert answer.code == 0
    assert set(rows) == {"orders", "missing", "payments", "paid-online", "heartbeats"}
    assert rows["orders"] == {
        "topic": "orders",
        "remote_topic": "us-east.orders",
        "source_partitions": 4,
        "target_partitions": 4,
        "trigger": "mapping",
        "trigger_changing": False,
        "mapping_made_by": "deployment",
        "mapping_state": "Enabled",
        "config_drift": ["retention.ms"],
        "topic_id": "id-1",
        "found_late": False,
        "trouble": "",
    }
    found = rows["paid-online"]
    assert (found["mapping_made_by"], found["found_late"], found["trouble"]) == (
        "refresh_topics",
        True,
        "no remote topic yet",
    )
    assert (rows["missing"]["source_partitions"], rows["missing"]["trouble"]) == (0, "not on the source")
    assert answer.json["refused"] == {"cycle": ["eu-west.orders"]}


# lanes


@pytest.mark.parametrize(
    "words",
    [("resume",), ("quarantine", "10"), ("reset", "--to", "30", "--reason", "because")],
    ids=lambda each: each[0],
)
def test_an_order_is_a_plan_until_it_is_executed(words: tuple[str, ...], stores: Stores, in_lab: InLab) -> None:
    before = stores.states.read([lane(1)])[lane(1)]

    answer = in_lab("lanes", words[0], str(FLOW), "orders", "1", *words[1:])

    assert (answer.code, "Nothing was changed" in answer.out) == (0, True)
    assert stores.states.read([lane(1)])[lane(1)] == before
    assert stores.chains.heads([lane(1)])[lane(1)].generation == 0


def test_the_lane_of_a_partition_that_is_gone_is_closed_and_left_out(stores: Stores, in_lab: InLab) -> None:
    """The topic has four."""
    stores.states.begin_anew(lane(1))
    stores.states.stop(lane(5), Stop(reason="recreated", upstream_offset=0, detail="created again", at=1))

    done = in_lab("lanes", "reset", str(FLOW), "orders", "--to", "earliest", "--reason", "anew", "--execute")

    assert done.code == 0
    assert "orders has 4 partitions on the source now." in done.out
    assert done.out.splitlines()[3].split()[:3] == ["5", "0", "closed"]
    (flow,) = in_lab("status", str(FLOW), "--json").json["flows"]
    orders = next(each for each in flow["topics"] if each["topic"] == "orders")
    assert [each["partition"] for each in orders["partitions"]] == [0, 1, 2, 3]


def test_a_reset_leaves_of_what_was_copied_before_the_flow_as_much_as_is_not_gone(
    stores: Stores, in_lab: InLab
) -> None:
    spans = [Span(0, 0, 0), Span(10, 10, 1), Span(20, 20, 1), Span(30, 30, 0)]
    for number, untrue_from in ((1, 15), (3, None)):
        PastStore(documents=stores.checkpoints).begin(lane(number), 1, spans)
        stop = Stop(reason="broken", upstream_offset=0, detail="anew", at=1, untrue_from=untrue_from)
        stores.states.stop(lane(number), stop)

    done = in_lab("lanes", "reset", str(FLOW), "orders", "--to", "earliest", "--reason", "anew", "--execute")
    assert done.code == 0, done

    past = PastStore(documents=stores.checkpoints)
    assert [past.of(lane(number), 1) for number in (1, 3)] == [Past.of(1, spans[:2]), Past.of(1, spans)]
    said = in_lab("translate", str(FLOW), "orders", "1", "5")
    assert said.out.endswith("downstream 0 is its place, or at most 10 offsets before it.\n")
    assert in_lab("translate", str(FLOW), "orders", "1", "5", "--json").json["bound"] == 10


def test_lanes_are_held_where_they_stand_and_go_on_together(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a failover the source is silent: partitions are those with a chain, and those that the watch has seen."""

    def silent(_: KafkaOffsets) -> NoReturn:
        raise Retriable("the cluster did not list its topics", where="us-east")

    monkeypatch.setattr(KafkaOffsets, "partitions", silent)
    hold = ("lanes", "hold", str(FLOW), "orders", "--reason", "failover, ticket 4711")

    plan = in_lab(*hold)
    assert plan.code == 0
    assert "Nothing was changed" in plan.out
    assert "are not held" in plan.out  # what nobody has seen yet
    held = in_lab(*hold, "--execute", "--json").json

    assert held["executed"] is True
    assert [(each["partition"], each["upstream_offset"], each["changes"]) for each in held["lanes"]] == [
        (0, 10, True),
        (1, None, False),
        (2, 0, True),
        (3, 0, True),
    ]
    assert stops(stores) == {0: ("held", 10), 1: ("refused", 10), 2: ("held", 0), 3: ("held", 0)}
    assert in_lab("lanes", "resume", str(FLOW), "orders", "--execute").code == 0
    assert stops(stores) == {1: ("refused", 10)}


def stops(stores: Stores) -> dict[int, tuple[str, int]]:
    """Why and where each lane is stopped."""
    found = stores.states.stopped(FLOW).items()
    return {each.partition: (state.stop.reason, state.stop.upstream_offset) for each, state in found if state.stop}


def test_the_lease_of_a_dead_job_is_ended(stores: Stores, in_lab: InLab) -> None:
    stores.states.wait(lane(2), 42)
    release = ("lanes", "release", str(FLOW), "orders")

    assert "1 lane leased by job run backfill-1 until" in in_lab("status", str(FLOW)).out
    assert "backfill-1" in in_lab(*release).out
    assert stores.states.read([lane(2)])[lane(2)].lease == Lease(holder="backfill-1", until=LATER)
    assert in_lab(*release, "2", "--execute", "--json").json["executed"] is True

    released = Lease(holder="backfill-1 (released)", until=0)
    assert stores.states.read([lane(2)])[lane(2)] == LaneState(waiting=42, lease=released)
    # Nobody has the lane now, and a batch waits for its history.
    status = in_lab("status", str(FLOW), "--lanes")
    assert (status.code, "WAITS" in status.out, "backfill start" in status.out) == (1, True, True)
    resume = ("lanes", "resume", str(FLOW), "orders", "2", "--execute")
    assert in_lab(*resume).code == 0  # without what the job left out
    assert stores.states.read([lane(2)])[lane(2)] == LaneState()
    stores.states.wait(lane(2), 42)
    refused = in_lab(*resume)
    assert (refused.code, f"mirrorless lanes reset '{FLOW}' orders 2 --to 42 --reason" in refused.err) == (2, True)


@pytest.mark.parametrize(("partition", "told"), [("1", 1), ("0", 0)])
def test_orders_for_a_lane_name_the_records_of_others_beside_it(
    partition: str, told: int, stores: Stores, in_lab: InLab
) -> None:
    write_notes(
        stores.documents, FLOW, {"orders": TopicNotes(lanes={1: LaneNotes(foreign=70, foreign_at=1), 0: LaneNotes()})}
    )
    for each in (0, 1):
        stores.states.stop(lane(each), Stop(reason="broken", upstream_offset=10, detail="by me", at=1))

    for order in (("reset", "--to", "4", "--reason", "again"), ("resume",)):
        answer = in_lab("lanes", order[0], str(FLOW), "orders", partition, *order[1:])

        assert answer.code == 0
        said = "has records that this flow has not written, from partition and downstream offset 1 @ 70 on"
        assert answer.out.count(said) == told
