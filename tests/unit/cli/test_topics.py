"""Topics on both sides, with their triggers and troubles; and `acl revoke` where flows share a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cli.deployment import Stores, TopicTrigger, triggers_of
from cli.topics import TopicRow, TopicsView, show, trouble_of
from mirrorless.chain.lane import FlowName
from mirrorless.topics.acl_sync import AclDocument
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from mirrorless.topics.topic_state import Recreated, TopicState
from tests.frozen.small_flow import FLOW, MOVED
from tests.support.commands import Answer
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.statuses import MAPPED


@pytest.mark.parametrize("other_failed_over", [False, True])
def test_what_a_failover_of_another_flow_to_the_same_target_needs_is_not_revoked_and_reported(
    *, other_failed_over: bool, stores: Stores, in_lab: Callable[..., Answer]
) -> None:
    other = FlowName("silent", "eu-west")
    document = AclDocument(staged=(MOVED,) if other_failed_over else ())
    stores.documents.write(other, {"acls/failover": msgspec.json.encode(document)})

    said = in_lab("acl", "revoke", str(FLOW), "--failover", "--json").json

    deleted, kept = ([acl["principal"] for acl in said[key]] for key in ("delete", "kept"))
    assert deleted == ([] if other_failed_over else ["User:moved"])
    assert kept == (["User:shop", "User:moved"] if other_failed_over else ["User:shop"])


SEEN = TopicState(topic="orders", topic_id="id-1", partitions=3, first_seen=1)


def row(**more: Any) -> TopicRow:
    usual: dict[str, Any] = {
        "topic": "orders",
        "remote_topic": "us-east.orders",
        "source_partitions": 3,
        "target_partitions": 3,
        "trigger": MAPPED,
        "owner": "deployment",
        "mapping": "Enabled",
        "drift": (),
        "topic_id": "id-1",
        "late": False,
        "trouble": "",
        "needs_operator": False,
    }
    return TopicRow(**usual | more)


@pytest.mark.parametrize(
    ("seen", "here", "there", "says"),
    [
        (SEEN, 3, 3, ""),
        (None, 3, 3, ""),
        (SEEN, 3, 0, "no remote topic yet"),
        (SEEN, 3, 2, "the remote topic has fewer partitions"),
        (SEEN, 2, 3, ""),
        (SEEN, 0, 3, "gone from the source"),
        (None, 0, 0, "not on the source"),
        (SEEN, None, None, ""),
        (SEEN, None, 0, "no remote topic yet"),
    ],
)
def test_a_topics_trouble_is_a_few_words(
    seen: TopicState | None, here: int | None, there: int | None, says: str
) -> None:
    assert trouble_of(seen, here=here, there=there) == says


def test_the_trouble_of_a_recreated_topic_has_the_number_of_its_waiting_lanes() -> None:
    anew = replace(SEEN, recreated=Recreated(topic_id="id-2", waiting={0: 0, 2: 0}))

    assert trouble_of(anew, here=3, there=3) == "re-created: a reset is due for 2 lanes"


def test_topics_are_shown_with_both_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    topics = [
        row(),
        row(topic="audit", owner="refresh_topics", mapping=None, target_partitions=None, drift=None, late=True),
        row(topic="logs", trigger=TopicTrigger("schedule", "schedule"), owner=None, mapping=None),
        row(topic="back", trigger=TopicTrigger("mapping", "schedule"), owner="refresh_topics", mapping="Creating"),
        row(topic="paid", drift=("retention.ms",), trouble="re-created", needs_operator=True),
    ]

    show(
        TopicsView(flow="us-east->eu-west", topics=topics, refused={"cycle": ["eu-west.orders"]}, troubles=["[silent]"])
    )

    shown = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert lines["orders"][2:] == ["3", "mapping", "deployment:", "Enabled", "0", "id-1"]
    assert lines["audit"][2:] == ["3", "->", "?", "mapping", "refresh_topics", "?", "id-1", "late"]
    assert lines["logs"][2:] == ["3", "schedule", "-", "0", "id-1"]
    assert lines["back"][2:] == ["3", "schedule", "->", "mapping", "refresh_topics:", "Creating", "0", "id-1"]
    assert "! re-created" in shown
    assert "paid: retention.ms differ" in shown
    assert "refused (cycle): eu-west.orders" in shown
    assert "[silent]" in shown


def test_a_trigger_changes_until_the_schedule_reads_the_topic_or_has_left_it() -> None:
    flow = make_flow(source="s:1", target="t:1")
    settings = msgspec.structs.replace(flow, trigger_overrides={"logs.*": "schedule"})

    documents = MemoryDocuments()
    write_scheduled_topics(documents, settings.name, {"logs": 1, "orders": 1}, stored={})

    trigger = triggers_of(settings, documents)

    assert {topic: str(trigger(topic)) for topic in ("logs", "logs-2", "orders", "bills")} == {
        "logs": "schedule",
        "logs-2": "mapping -> schedule",
        "orders": "schedule -> mapping",
        "bills": "mapping",
    }
