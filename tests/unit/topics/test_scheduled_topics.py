"""The topics that `pull` reads: those that are scheduled, and those whose mapping is not enabled yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast

import pytest

from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.triggers import Trigger
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.discovery import discover
from mirrorless.topics.group_start import GroupStart
from mirrorless.topics.scheduled_topics import (
    ScheduledTopics,
    ScheduledTopicSync,
    read_scheduled_ids,
    read_scheduled_topics,
)
from mirrorless.topics.topic_state import TopicState
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_control


@dataclass(slots=True)
class Starts:
    """The part of `GroupStart` that is used here."""

    committed: list[str] = field(default_factory=list)
    failing: dict[str, Exception] = field(default_factory=dict)

    def commit_start(self, state: TopicState, deadline: Deadline) -> None:
        """See `GroupStart.commit_start`."""
        if state.topic in self.failing:
            raise self.failing[state.topic]
        self.committed.append(state.topic)


@dataclass(slots=True)
class Stage:
    """Rounds of one flow of all topics."""

    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    start: Starts = field(default_factory=Starts)
    seconds: float = 60.0
    report: RoundReport = field(default_factory=RoundReport)

    def round(
        self,
        *overrides: tuple[str, Trigger],
        topics: dict[str, int] | None = None,
        ready: Collection[str] | None = None,
        enabled: Collection[str] = (),
        just_gone: Collection[str] = (),
    ) -> ScheduledTopics:
        """One round. Args: ready: the topics with a remote topic; left out, all."""
        on_source = topics or {"orders": 3, "logs": 2}
        settings = make_control(".*", trigger_overrides=dict(overrides))
        self.report = RoundReport()
        return ScheduledTopicSync(flow=FLOW, documents=self.documents, start=cast("GroupStart", self.start)).sync(
            discover(on_source, settings),
            {
                topic: TopicState(topic=topic, topic_id="id", partitions=n, first_seen=1)
                for topic, n in on_source.items()
            },
            {topic: count for topic, count in on_source.items() if ready is None or topic in ready},
            enabled=enabled,
            just_gone=just_gone,
            report=self.report,
            deadline=lambda: self.seconds,
        )

    @property
    def read(self) -> dict[str, int]:
        """What `pull` reads."""
        return read_scheduled_topics(self.documents, FLOW)


@pytest.fixture
def stage() -> Stage:
    """Nothing is scheduled yet."""
    return Stage()


def test_a_topic_is_read_once_it_is_scheduled_and_has_a_remote_topic(stage: Stage) -> None:
    stage.round(("logs", "schedule"), ready=["orders"])
    before = stage.read

    stage.round(("logs", "schedule"))

    assert (before, stage.read) == ({}, {"logs": 2})
    assert stage.start.committed == ["logs"], "where the flow begins comes first"
    assert stage.report.counts == {"topics-scheduled": 1, "topics-returning": 0}


def test_the_document_is_written_only_where_it_changes(stage: Stage) -> None:
    for _ in range(3):
        stage.round(("logs", "schedule"))
    assert stage.documents.writes == 2, "the topics, and their ids"

    stage.round(("logs", "schedule"), topics={"logs": 5})

    assert (stage.documents.writes, stage.read) == (3, {"logs": 5})


def test_the_ids_of_scheduled_topics_are_those_of_their_states_and_stay_while_one_is_just_gone(stage: Stage) -> None:
    """A topic that is missing for the first time may be back at any moment, and be another one."""
    stage.round(("logs", "schedule"))
    assert read_scheduled_ids(stage.documents, FLOW) == {"logs": "id"}

    stage.round(("logs", "schedule"), topics={"orders": 3}, just_gone=["logs"])
    assert read_scheduled_ids(stage.documents, FLOW) == {"logs": "id"}

    stage.round(("logs", "schedule"), topics={"orders": 3})
    assert read_scheduled_ids(stage.documents, FLOW) == {}


def test_nothing_is_written_for_a_flow_without_schedules(stage: Stage) -> None:
    stage.round()

    assert stage.documents.writes == 0


def test_a_topic_that_changes_back_is_read_until_its_mapping_is_enabled(stage: Stage) -> None:
    stage.round((".*", "schedule"))

    first = stage.round(("logs", "mapping"), (".*", "schedule"))
    read = stage.read
    second = stage.round(("logs", "mapping"), (".*", "schedule"), enabled=["logs"])

    assert first.returning == {"logs"}
    assert read == {"logs": 2, "orders": 3}
    assert second.returning == frozenset()
    assert stage.read == {"orders": 3}


def test_a_topic_whose_last_entry_is_gone_changes_back_too(stage: Stage) -> None:
    stage.round(("logs", "schedule"))

    assert stage.round().returning == {"logs"}


def test_an_enabled_mapping_of_a_topic_that_is_scheduled_does_not_keep_pull_from_it(stage: Stage) -> None:
    """It is about to be deleted."""
    stage.round(("logs", "schedule"), enabled=["logs"])

    assert stage.read == {"logs": 2}


def test_a_topic_that_the_source_has_lost_is_read_until_that_is_certain(stage: Stage) -> None:
    stage.round((".*", "schedule"))

    stage.round((".*", "schedule"), topics={"orders": 3}, just_gone=["logs"])
    once = stage.read
    stage.round((".*", "schedule"), topics={"orders": 3})

    assert (once, stage.read) == ({"logs": 2, "orders": 3}, {"orders": 3})


def test_a_topic_whose_remote_topic_is_not_listed_keeps_its_place(stage: Stage) -> None:
    stage.round((".*", "schedule"))

    stage.round((".*", "schedule"), ready=["orders"])

    assert stage.read == {"logs": 2, "orders": 3}


def test_a_topic_is_not_read_before_its_start_is_committed(stage: Stage) -> None:
    """It would begin at its first record, where the flow does not."""
    stage.start.failing["logs"] = MirrorlessError("no rights")

    stage.round((".*", "schedule"))

    assert stage.read == {"orders": 3}
    assert stage.report.troubles == ["us-east->eu-west logs: not scheduled: no rights (a retry does not help)."]


def test_a_source_that_does_not_answer_is_asked_once_a_round(stage: Stage) -> None:
    stage.start.failing = {"logs": Retriable("silent"), "orders": Retriable("silent")}

    stage.round((".*", "schedule"))

    assert (stage.read, len(stage.report.troubles)) == ({}, 1)


def test_no_start_is_committed_when_time_runs_out(stage: Stage) -> None:
    stage.seconds = 1.0

    stage.round((".*", "schedule"))

    assert (stage.read, stage.start.committed) == ({}, [])
