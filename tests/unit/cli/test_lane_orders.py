"""`lanes reset` of a topic: one plan for all of its stopped lanes, and nothing is changed where one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cli.clusters import ClusterView
from cli.deployment import Stores
from cli.lanes import SHOWN_BYTES, _following, described, record_as_json
from cli.losses import as_line, summary_as_line
from mirrorless.adapters.kafka.offsets import Extent
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop, StopReason
from mirrorless.chain.losses import GapSummary, Harmless, Loss
from mirrorless.chain.run import Reset, Run
from mirrorless.errors import LostRace
from mirrorless.records.record import Record
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from tests.frozen.small_flow import FLOW
from tests.support.chains import LANE
from tests.support.commands import Answer

RESET = ("lanes", "reset", str(FLOW), "orders", "--to", "latest", "--reason", "created anew")
InLab = Callable[..., Answer]


@pytest.fixture(autouse=True)
def more_stops(stores: Stores) -> None:
    """The small flow has its lane `orders-1` stopped as refused; 5 and 6 are so as recreated, and 7 is held."""
    reasons: dict[int, StopReason] = {5: "recreated", 6: "recreated", 7: "held"}
    for partition, reason in reasons.items():
        stop = Stop(reason=reason, upstream_offset=0, detail="why", at=1)
        stores.states.stop(Lane(FLOW, "orders", partition), stop)


def said(in_lab: InLab, *more: str) -> tuple[int, dict[str, Any]]:
    answer = in_lab(*RESET, "--json", *more)
    return answer.code, answer.json


def generations(stores: Stores) -> dict[int, int]:
    lanes = [Lane(FLOW, "orders", partition) for partition in range(8)]
    return {lane.partition: head.generation for lane, head in stores.chains.heads(lanes).items()}


def stopped(stores: Stores) -> list[int]:
    return sorted(lane.partition for lane in stores.states.stopped(FLOW))


def test_all_stopped_lanes_of_a_topic_are_reset_by_one_plan_but_for_those_that_are_held(
    stores: Stores, in_lab: InLab
) -> None:
    before = generations(stores)
    code, plan = said(in_lab)
    assert (code, plan["executed"], [each["partition"] for each in plan["lanes"]]) == (0, False, [1, 5, 6])
    assert plan["notes"] == ["Partition 7: held by an order, and stays so."]
    assert (generations(stores), stopped(stores)) == (before, [1, 5, 6, 7])

    code, done = said(in_lab, "--execute")

    assert (code, done["executed"]) == (0, True)
    assert generations(stores) == before | {partition: before[partition] + 1 for partition in (1, 5, 6)}
    assert stopped(stores) == [7]
    assert said(in_lab, "--execute")[1]["lanes"] == [], "again: nothing is left"


def test_a_lane_that_moved_on_is_named_and_the_others_are_reset(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = stores.chains.reset

    def but_for_five(link: Reset, given_up: Run | None = None) -> None:
        if link.lane.partition == 5:
            raise LostRace("it moved", where=str(link.lane))
        reset(link, given_up)

    monkeypatch.setattr(stores.chains, "reset", but_for_five)

    code, done = said(in_lab, "--execute")

    assert code == 1
    assert {each["partition"]: bool(each["error"]) for each in done["lanes"]} == {1: False, 5: True, 6: False}
    assert stopped(stores) == [5, 7]


def test_one_refused_plan_changes_nothing(stores: Stores, in_lab: InLab) -> None:
    doubtful = Lane(FLOW, "orders", 0)
    stores.states.stop(doubtful, Stop(reason="refused", upstream_offset=12, detail="why", at=1))

    code, answer = said(in_lab, "--execute")

    assert (code, answer["error"]["retriable"]) == (1, True)
    assert "in doubt" in answer["error"]["what"]
    assert stopped(stores) == [0, 1, 5, 6, 7]


def test_an_offset_is_one_partitions(stores: Stores, in_lab: InLab) -> None:
    answer = in_lab(*(each if each != "latest" else "15" for each in RESET), "--execute")

    assert (answer.code, "an offset is one partition's" in answer.err) == (2, True)
    assert stopped(stores) == [1, 5, 6, 7]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_range_that_is_left_out_ends_where_the_source_ends(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    lane = Lane(FLOW, "orders", 1)
    stop = stores.states.stopped(FLOW)[lane].stop
    assert stop is not None
    end = stop.upstream_offset + 5
    monkeypatch.setattr(ClusterView, "extent", lambda *_: Extent(start=0, end=end))
    words = ["lanes", "quarantine", str(FLOW), "orders", "1", str(stop.upstream_offset), "--to", str(end + beyond)]

    answer = in_lab(*words, "--execute")

    assert answer.code == (2 if beyond else 0)
    assert ("yet to come" in answer.out + answer.err) == bool(beyond)
    assert (1 in stopped(stores)) == bool(beyond)


@pytest.mark.parametrize("scheduled", [False, True])
def test_only_the_plan_of_a_mapped_topic_speaks_of_its_mapping(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch, *, scheduled: bool
) -> None:
    monkeypatch.setattr(ClusterView, "committed", lambda *_: 3)
    topics = {"orders": 8} if scheduled else {}
    write_scheduled_topics(stores.documents, FLOW, topics, stored={})

    _, plan = said(in_lab)

    steps = " ".join(next(each["plan"] for each in plan["lanes"] if each["partition"] == 1))
    assert ("mapping" in steps, "Group" in steps) == (not scheduled, not scheduled)
    assert ("The schedule of orders reads from" in steps) == scheduled


@pytest.mark.parametrize(("scheduled", "committed"), [(False, 3), (False, 10), (True, 3)])
def test_the_plan_to_resume_after_a_contradiction_says_to_where_the_mappings_group_is_moved(
    stores: Stores, in_lab: InLab, monkeypatch: pytest.MonkeyPatch, *, scheduled: bool, committed: int
) -> None:
    monkeypatch.setattr(ClusterView, "committed", lambda *_: committed)
    write_scheduled_topics(stores.documents, FLOW, {"orders": 8} if scheduled else {}, stored={})
    lane = Lane(FLOW, "orders", 1)
    stores.states.stop(lane, Stop(reason="contradiction", upstream_offset=3, detail="why", at=1))

    answer = in_lab("lanes", "resume", str(FLOW), "orders", "1")

    assert answer.code == 0
    shown = answer.out
    position = stores.chains.heads([lane])[lane].position
    assert (f"--to-offset {position} --execute" in shown) == (not scheduled and committed != position)
    assert ("Group" in shown) == (not scheduled)


def test_the_plan_for_several_lanes_is_a_line_each_and_says_once_what_is_true_of_all(
    in_lab: InLab,
) -> None:
    """Six lanes had 33 lines, most of them the same."""
    answer = in_lab(*RESET)

    assert answer.code == 0
    shown = answer.out
    assert [line.split()[0] for line in shown.splitlines()[3:6]] == ["1", "5", "6"]
    assert shown.count("The map translates offsets of the new generation only.") == 1
    assert shown.count("created anew") == 1
    assert "Partition 7: held by an order, and stays so." in shown


POISON = Record(
    offset=42,
    timestamp=1_763_700_000_000,
    headers=[("kind", b"\xff\x00A"), ("kind", None), ("empty", b"")],
    key=b"",
    value=bytes(range(256)) * 4,
)


def test_null_and_empty_are_told_apart_and_bytes_are_not_interpreted() -> None:
    lines = list(described(POISON))

    assert lines[:5] == [
        "key: 0 bytes",
        "header kind: 3 bytes",
        f"  0000  {'ff 00 41':<47}  ..A",
        "header kind: null",
        "header empty: 0 bytes",
    ]
    assert lines[5] == f"value: 1,024 bytes, the first {SHOWN_BYTES} of them"
    assert lines[6] == "  0000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert lines[10].endswith("@ABCDEFGHIJKLMNO")
    assert len(lines) == 6 + SHOWN_BYTES // 16


def test_programs_get_sizes_and_hexadecimal() -> None:
    assert record_as_json(POISON) == {
        "upstream_offset": 42,
        "timestamp": 1_763_700_000_000,
        "bytes": 1_024 + 4 + 3 + 4 + 5,
        "headers": [
            {"name": "kind", "bytes": 3, "hex": "ff0041"},
            {"name": "kind", "bytes": None, "hex": None},
            {"name": "empty", "bytes": 0, "hex": ""},
        ],
        "key_bytes": 0,
        "key_hex": "",
        "value_bytes": 1_024,
        "value_hex": bytes(range(256)).hex(),
    }
    assert record_as_json(Record(offset=0, timestamp=-1, headers=[]))["value_hex"] is None


@pytest.mark.parametrize(
    ("found", "words"),
    [(None, "none follows"), (12, "the next record is at 12"), (0, "the log ends before it, and begins at 0")],
)
def test_an_offset_behind_the_end_is_not_followed_by_the_oldest_record(found: int | None, words: str) -> None:
    assert _following(found, asked=10) == words


def test_a_summary_says_how_far_gaps_are_explained_and_by_what() -> None:
    offsets: dict[Harmless, int] = {"transaction_marker": 1200, "aborted": 3}
    found = GapSummary(lane=LANE, generation=1, until=5000, offsets=offsets, at=1_763_686_800_123)

    assert summary_as_line(found) == (
        "2025-11-21 01:00:00Z  us-east->eu-west orders-0 below 5000 (generation 1): 3 aborted, 1,200 transaction marker"
    )


def test_a_loss_names_its_offsets_and_its_cause() -> None:
    loss = Loss(lane=LANE, generation=0, first=4, next=9, cause="retention", detail="why", at=1_763_686_800_123)

    assert as_line(loss) == "2025-11-21 01:00:00Z  us-east->eu-west orders-0 @ 4 to 8 (5 offsets, retention): why"
