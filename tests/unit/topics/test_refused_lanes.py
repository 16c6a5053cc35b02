"""Lanes with a refused record: when they try again, and when they wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from msgspec import structs

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LaneState, LeftOut, Stop
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.topics import ConfigChange, ConfigEntry
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.refresh import DOCUMENT, RefusedLanes, RemoteTopicSync
from tests.support.chains import FLOW, MemoryLaneStates
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_control

MINUTE = 60_000
SETTINGS = make_control("orders", "bills")


def seconds() -> float:
    return 30.0


@dataclass(slots=True)
class Topics:
    """As much of both sides' topics as configs need: overrides by topic, and the brokers' default of a limit."""

    own: dict[str, dict[str, str]]
    read: list[set[str]] = field(default_factory=list)

    def partitions(self, _: Deadline) -> dict[str, int]:
        """See `SourceTopics.partitions`."""
        return dict.fromkeys(self.own, 3)

    def configs(self, names: Iterable[str], _: Deadline) -> tuple[dict[str, list[ConfigEntry]], dict[str, str]]:
        """See `SourceTopics.configs`."""
        self.read.append(set(names))
        usual = {"max.message.bytes": "1000", "cleanup.policy": "delete"}
        return {
            name: [
                ConfigEntry(name=key, value=self.own[name].get(key, value), is_override=key in self.own[name])
                for key, value in usual.items()
            ]
            for name in self.read[-1]
        }, {}

    def alter_configs(self, changes: dict[str, ConfigChange], _: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.alter_configs`."""
        for name, change in changes.items():
            self.own[name] |= change.set
            for key in change.delete:
                del self.own[name][key]
        return dict.fromkeys(changes)


@dataclass(slots=True)
class Stage:
    """The rounds of a flow of two topics, a minute apart."""

    now: int = 100 * MINUTE
    settings: FlowSettings = SETTINGS
    source: Topics = field(default_factory=lambda: Topics({"orders": {}, "bills": {}}))
    target: Topics = field(default_factory=lambda: Topics({"us-east.orders": {}, "us-east.bills": {}}))
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)

    @property
    def refused(self) -> RefusedLanes:
        """As the function wires it."""
        return RefusedLanes(
            settings=self.settings,
            target=cast("Any", self.target),
            documents=self.documents,
            states=self.states,
            clock=lambda: self.now,
        )

    def minute(self) -> int:
        """One round of the task `topics`. Returns how many lanes try again."""
        self.now += MINUTE
        report = RoundReport()
        self.refused.look(self.source.own, report, seconds)
        return report.counts.get("lanes-tried-again", 0)

    def sync(self) -> int:
        """One round of the task `configs`; the same."""
        self.now += MINUTE
        report = RoundReport()
        RemoteTopicSync(
            settings=self.settings,
            source=cast("Any", self.source),
            target=cast("Any", self.target),
            refused=self.refused,
        ).sync_configs(report, seconds)
        return report.counts.get("lanes-tried-again", 0)

    def stop(self, partition: int = 0, topic: str = "orders", reason: Any = "refused") -> Lane:
        """A lane stops, a second after the last round."""
        lane = Lane(FLOW, topic, partition)
        self.states.stop(lane, Stop(reason=reason, upstream_offset=7, detail="too large", at=self.now + 1000))
        return lane

    def stopped(self) -> set[Lane]:
        """The lanes that wait."""
        return set(self.states.stopped(FLOW))


@pytest.fixture
def stage() -> Stage:
    """No round has been."""
    return Stage()


def test_a_lane_goes_on_when_the_sync_has_made_its_record_fit(stage: Stage) -> None:
    assert stage.sync() == 0
    stage.source.own["orders"]["max.message.bytes"] = "3000"
    stage.stop()
    assert stage.minute() == 0
    assert stage.sync() == 0
    assert stage.target.own["us-east.orders"] == {"max.message.bytes": "3000"}

    assert stage.minute() == 1
    assert not stage.stopped()


def test_a_lane_of_a_new_topic_goes_on_too_where_the_sync_is_the_first_to_look(stage: Stage) -> None:
    stage.source.own["orders"]["cleanup.policy"] = "compact"
    stage.stop()
    stage.sync()

    assert stage.minute() == 1


def test_a_lane_goes_on_when_the_operator_has_mended_its_topic_and_the_sync_leaves_that_alone(stage: Stage) -> None:
    stage.sync()
    stopped = {stage.stop(partition) for partition in (0, 2)}
    assert stage.minute() == 0
    stage.target.own["us-east.orders"]["max.message.bytes"] = "5000"

    assert stage.sync() == 2
    assert stage.target.own["us-east.orders"] == {"max.message.bytes": "5000"}
    assert not stage.stopped() & stopped


def test_what_was_mended_before_anybody_looked_counts(stage: Stage) -> None:
    """The configs were seen in an earlier round of the sync; the stop and its remedy lie between two rounds."""
    stage.sync()
    stage.stop()
    stage.target.own["us-east.orders"]["max.message.bytes"] = "5000"

    assert stage.minute() == 1


def test_a_record_that_is_refused_again_waits_for_the_next_change(stage: Stage) -> None:
    stage.sync()
    stage.stop()
    stage.target.own["us-east.orders"]["max.message.bytes"] = "2000"
    assert stage.minute() == 1
    stage.now += MINUTE
    lane = stage.stop()

    assert [stage.minute() for _ in range(5)] == [0] * 5
    assert stage.sync() == 0
    assert stage.stopped() == {lane}
    stage.target.own["us-east.orders"]["max.message.bytes"] = "5000"
    assert stage.minute() == 1


def test_a_stop_by_a_clock_that_is_ahead_is_before_the_change_all_the_same(stage: Stage) -> None:
    stage.sync()
    stage.target.own["us-east.orders"]["max.message.bytes"] = "5000"
    stage.now += MINUTE + 5_000
    stage.stop()
    stage.now -= MINUTE + 5_000

    assert stage.minute() == 1


def test_a_deployment_with_other_producers_lets_lanes_try_again(stage: Stage) -> None:
    stage.sync()
    stage.stop()
    assert stage.minute() == 0

    stage.settings = structs.replace(SETTINGS, producer={"compression.type": "zstd"})

    assert stage.minute() == 1


@pytest.mark.parametrize("reason", ["broken", "recreated", "truncated", "held", "contradiction", "backfilled"])
def test_other_stops_and_other_topics_wait(stage: Stage, reason: str) -> None:
    stage.sync()
    others = {stage.stop(0, reason=reason), stage.stop(1, "bills")}
    stage.target.own["us-east.orders"]["max.message.bytes"] = "5000"

    assert stage.minute() == 0
    assert stage.sync() == 0
    assert stage.stopped() == others


def test_a_stop_of_a_moment_ago_is_another_and_orders_of_the_operator_stay(stage: Stage) -> None:
    stage.sync()
    lane = stage.stop()
    state = stage.states.states[lane]
    stage.states.states[lane] = replace(state, quarantine=LeftOut.each(3))
    stage.target.own["us-east.orders"]["max.message.bytes"] = "5000"
    assert stage.minute() == 1
    assert stage.states.states[lane] == LaneState(quarantine=LeftOut.each(3))


def test_nothing_is_read_of_the_target_while_no_lane_is_stopped_and_nothing_written_while_nothing_changes() -> None:
    stage = Stage()
    stage.sync()
    written, read = stage.documents.writes, len(stage.target.read)
    assert stage.minute() == 0
    assert len(stage.target.read) == read

    stage.stop()
    stage.minute()
    stage.sync()
    assert stage.target.read[read] == {"us-east.orders"}
    assert stage.documents.writes == written
    assert set(stage.documents.read(FLOW, DOCUMENT)) == {DOCUMENT}
