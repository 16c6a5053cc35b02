"""Remote topics that were deleted and created again: whose lanes stop, where, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirrorless.lane import Lane
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.ports.kafka import Deadline
from mirrorless.ports.topics import ConfigChange, ConfigEntry, Failures, NewRemoteTopic
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.topics.remote_changes import RemoteChangeDetector
from mirrorless.topics.topic_state import Recreated, StoredTopics, TopicState
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, reset, run
from tests.support.documents import MemoryDocuments

SETTINGS = ControlSettings(
    flow=FlowSettings(
        flow=str(FLOW),
        source=ClusterSettings(alias="us-east", bootstrap="s:1"),
        target=ClusterSettings(alias="eu-west", bootstrap="t:1"),
    ),
    aliases=("us-east", "eu-west"),
)
NOW = 1_763_686_800_000


@dataclass(slots=True)
class TopicIds:
    """Implements `mirrorless.ports.topics.TargetTopics`: its topics' ids only."""

    ids: dict[str, str] = field(default_factory=dict)

    def topic_ids(self, names: Iterable[str], deadline: Deadline) -> dict[str, str]:  # noqa: ARG002 -- the port's
        """See `SourceTopics.topic_ids`."""
        return {name: self.ids[name] for name in names if name in self.ids}

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """See `SourceTopics.partitions`."""
        raise NotImplementedError

    def configs(self, names: Iterable[str], deadline: Deadline) -> tuple[dict[str, list[ConfigEntry]], Failures]:
        """See `SourceTopics.configs`."""
        raise NotImplementedError

    def create(
        self, topics: Sequence[NewRemoteTopic], deadline: Deadline, *, validate_only: bool = False
    ) -> dict[str, str | None]:
        """See `TargetTopics.create`."""
        raise NotImplementedError

    def grow(self, counts: Mapping[str, int], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.grow`."""
        raise NotImplementedError

    def alter_configs(self, changes: Mapping[str, ConfigChange], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.alter_configs`."""
        raise NotImplementedError


@dataclass(slots=True)
class Rounds:
    """The rounds of one topic of three partitions: the first has runs, the second a run in doubt, the third none."""

    target: TopicIds = field(default_factory=lambda: TopicIds({"us-east.orders": "old"}))
    chains: MemoryChains = field(default_factory=MemoryChains)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    before: TopicState = field(
        default_factory=lambda: TopicState(topic="orders", topic_id="of-the-source", partitions=3, first_seen=1)
    )

    def __post_init__(self) -> None:
        self.chains.prepare([run(0, 5, (0, 0, 5)), run(5, 9, (5, 6, 4))])
        self.chains.prepare([run(0, 5, (0, 0, 5), lane=lane(1), state="prepared")])

    def next(self) -> RoundReport:
        """One round; what it stored is what the next one begins with."""
        report = RoundReport()
        detector = RemoteChangeDetector(
            settings=SETTINGS,
            target=self.target,
            documents=self.documents,
            chains=self.chains,
            states=self.states,
            clock=lambda: NOW,
        )
        detector.detect({"orders": self.before}, report, lambda: 30.0)
        self.before = StoredTopics.of(self.documents.read(FLOW, "topic")).topics.get("orders", self.before)
        return report


def lane(partition: int) -> Lane:
    return Lane(FLOW, "orders", partition)


def test_a_remote_topic_that_stays_the_same_is_stored_once_and_stops_nothing() -> None:
    rounds = Rounds()

    reports = [rounds.next() for _ in range(3)]

    assert rounds.before.remote_topic_id == "old"
    assert rounds.documents.writes == 1
    assert (rounds.states.states, [report.troubles for report in reports]) == ({}, [[], [], []])


def test_a_remote_topic_that_is_missing_keeps_its_stored_id() -> None:
    rounds = Rounds()
    rounds.next()
    rounds.target.ids.clear()

    assert rounds.next().troubles == []
    assert (rounds.before.remote_topic_id, rounds.states.states) == ("old", {})


def test_lanes_with_committed_runs_stop_as_broken_and_one_in_doubt_is_settled_first() -> None:
    rounds = Rounds()
    rounds.next()
    rounds.target.ids["us-east.orders"] = "new"

    report = rounds.next()

    stop = rounds.states.states[LANE].stop
    assert stop is not None
    assert (list(rounds.states.states), stop.reason, stop.upstream_offset) == ([LANE], "broken", 5)
    assert "its id was old and is new" in stop.detail
    assert "mirrorless lanes reset 'us-east->eu-west' orders 0 --to earliest" in report.troubles[0] + stop.detail
    assert "us-east.orders was deleted on the target and created again" in report.troubles[0]
    assert (rounds.before.remote_topic_id, rounds.before.remote_recreated) == ("old", Recreated("new", {0: 0, 1: 0}))

    # A lane that moved on before the stop came is no run in doubt that a reset may drop.
    head = rounds.chains.heads([LANE])[LANE]
    assert plan_reset(LANE, head, rounds.states.states[LANE], 0, reason="remade", now=NOW).given_up is None


def test_a_resumed_lane_stops_again_until_it_is_reset() -> None:
    rounds = Rounds()
    rounds.chains.confirm([run(0, 5, (0, 0, 5), lane=lane(1), state="prepared").committed()])
    rounds.next()
    rounds.target.ids["us-east.orders"] = "new"
    rounds.next()

    rounds.states.resume(LANE)
    rounds.next()
    assert {each.partition for each, state in rounds.states.states.items() if state.stop} == {0, 1}

    rounds.chains.reset(reset(9, 0))
    rounds.states.resume(LANE)
    rounds.next()
    assert rounds.before.remote_recreated == Recreated("new", {1: 0})

    rounds.chains.reset(reset(5, 0, lane=lane(1)))
    rounds.states.resume(lane(1))
    assert rounds.next().troubles == []
    ended = rounds.before
    assert (ended.remote_topic_id, ended.remote_recreated) == ("new", None)
    assert [state.stop for state in rounds.states.states.values()] == [None, None]
