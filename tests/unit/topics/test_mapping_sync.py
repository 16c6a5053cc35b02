"""The sync of mappings: independent changes, within the deadline, none repeated without effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from mirrorless.errors import Retriable
from mirrorless.lane import FlowName
from mirrorless.ports.kafka import Deadline, GroupIsActive, GroupState, OffsetAndMetadata, TopicPartition
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.topics.discovery import discover
from mirrorless.topics.mapping_plan import MappingOutcome, MappingRefused, Request
from mirrorless.topics.mapping_sync import MappingSync
from mirrorless.topics.topic_state import TopicState
from tests.support.documents import MemoryDocuments

FLOW = FlowName("us-east", "eu-west")
SETTINGS = ControlSettings(
    flow=FlowSettings(
        flow=str(FLOW),
        source=ClusterSettings(alias="us-east", bootstrap="s:1"),
        target=ClusterSettings(alias="eu-west", bootstrap="t:1"),
    ),
    topics=("t.*",),
    function_name="forward",
    mapping={"Enabled": True, "BatchSize": 100, "SelfManagedKafkaEventSourceConfig": {}},
)


@dataclass(slots=True)
class MemoryMappings:
    """Implements `mirrorless.topics.mapping_plan.Mappings`; a mapping has settled before the next round."""

    mappings: dict[str, Request] = field(default_factory=dict)
    keeps_updates: bool = True
    refused: str = ""
    """A topic whose mapping is refused."""
    silent_after: int = 1000
    """How many changes are answered."""
    updates: int = 0

    def list(self, deadline: Deadline) -> list[Request]:  # noqa: ARG002 -- the port's
        """See `Mappings.list`."""
        return [
            {"UUID": topic, "EventSourceMappingArn": topic, "State": "Enabled", **request}
            for topic, request in self.mappings.items()
        ]

    def tags(self, arn: str, deadline: Deadline) -> dict[str, str]:  # noqa: ARG002 -- the port's
        """See `Mappings.tags`."""
        tags: dict[str, str] = self.mappings[arn]["Tags"]
        return tags

    def create(self, request: Request, deadline: Deadline) -> MappingOutcome:  # noqa: ARG002 -- the port's
        """See `Mappings.create`."""
        (topic,) = request["Topics"]
        if topic == self.refused:
            raise MappingRefused("no")
        if len(self.mappings) >= self.silent_after:
            raise Retriable("throttled")
        self.mappings[topic] = request
        return "done"

    def update(self, uuid: str, fields: Request, deadline: Deadline) -> MappingOutcome:  # noqa: ARG002 -- the port's
        """See `Mappings.update`."""
        self.updates += 1
        if self.keeps_updates:
            self.mappings[uuid] |= fields
        return "done"

    def delete(self, uuid: str, deadline: Deadline) -> MappingOutcome:  # noqa: ARG002 -- the port's
        """See `Mappings.delete`."""
        del self.mappings[uuid]
        return "done"


@dataclass(slots=True)
class MemoryGroups:
    """The part of `mirrorless.ports.kafka.Groups` that is used here."""

    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    active: bool = False

    def names(self, deadline: Deadline) -> list[str]:  # noqa: ARG002 -- the port's
        """See `Groups.names`."""
        return sorted(self.offsets)

    def states(self, groups: Iterable[str], deadline: Deadline) -> dict[str, GroupState]:  # noqa: ARG002 -- the port's
        """See `Groups.states`."""
        return dict.fromkeys(groups, "active" if self.active else "empty")

    def committed(
        self,
        groups: Iterable[str],
        deadline: Deadline,  # noqa: ARG002 -- the port's
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See `Groups.committed`."""
        return {group: dict(self.offsets.get(group, {})) for group in groups}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:  # noqa: ARG002 -- the port's
        """See `Groups.commit`."""
        if self.active:
            raise GroupIsActive("it reads")
        self.offsets.setdefault(group, {}).update(offsets)


@dataclass(slots=True)
class Stage:
    """Rounds of one flow's sync."""

    mappings: MemoryMappings = field(default_factory=MemoryMappings)
    groups: MemoryGroups = field(default_factory=MemoryGroups)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    settings: ControlSettings = SETTINGS
    seconds: float = 60.0

    def round(self, *topics: TopicState) -> RoundReport:
        """One round, with what earlier rounds have written."""
        report = RoundReport()
        written = (msgspec.json.decode(text, type=TopicState) for text in self.documents.read(FLOW, "topic/").values())
        seen = {topic.topic: topic for topic in topics} | {topic.topic: topic for topic in written}
        sync = MappingSync(
            settings=self.settings, mappings=self.mappings, source_groups=self.groups, documents=self.documents
        )
        found = discover(dict.fromkeys(seen, 1), self.settings)
        sync.sync(found, seen, unready=(), report=report, deadline=lambda: self.seconds)
        return report


def topic(name: str, *start: int) -> TopicState:
    return TopicState(topic=name, topic_id="id", partitions=max(1, len(start)), first_seen=1, start=start)


@pytest.fixture
def stage() -> Stage:
    """Nothing is mapped yet."""
    return Stage()


def test_one_refusal_leaves_the_others_alone(stage: Stage) -> None:
    stage.mappings.refused = "ta"

    report = stage.round(topic("ta"), topic("tb"), topic("tc"))

    assert sorted(stage.mappings.mappings) == ["tb", "tc"]
    assert (report.figures["mappings-created"], len(report.troubles)) == (2, 1)


def test_a_service_that_is_down_is_reported_once_and_the_next_round_continues(stage: Stage) -> None:
    stage.mappings.silent_after = 1
    topics = [topic(f"t{n}") for n in range(5)]

    report = stage.round(*topics)

    assert (report.figures["mappings-created"], report.figures["mappings-pending"]) == (1, 4)
    assert len(report.troubles) == 1
    stage.mappings.silent_after = 1000
    assert stage.round(*topics).figures["mappings-created"] == 4


def test_no_change_is_begun_when_time_runs_out(stage: Stage) -> None:
    stage.seconds = 1.0

    report = stage.round(topic("ta"), topic("tb"))

    assert stage.mappings.mappings == {}
    assert report.figures["mappings-pending"] == 2


def test_where_the_flow_begins_is_committed_before_the_mapping_can_read(stage: Stage) -> None:
    stage.mappings.silent_after = 0

    stage.round(topic("ta", 5, 7))

    group = "mirrorless.us-east.eu-west.ta"
    assert stage.groups.offsets == {group: {("ta", 0): OffsetAndMetadata(5), ("ta", 1): OffsetAndMetadata(7)}}
    # The round died before the mapping stood, and the group went on meanwhile: nothing is committed twice.
    stage.groups.offsets[group]["ta", 0] = OffsetAndMetadata(6)
    stage.mappings.silent_after = 1000
    stage.round(topic("ta", 5, 7))
    assert stage.groups.offsets[group]["ta", 0] == OffsetAndMetadata(6)
    assert "ta" in stage.mappings.mappings


def test_what_the_group_has_committed_itself_stays(stage: Stage) -> None:
    stage.groups.offsets["mirrorless.us-east.eu-west.ta"] = {("ta", 0): OffsetAndMetadata(2)}

    stage.round(topic("ta", 5, 7))

    assert stage.groups.offsets["mirrorless.us-east.eu-west.ta"] == {
        ("ta", 0): OffsetAndMetadata(2),
        ("ta", 1): OffsetAndMetadata(7),
    }


def test_a_topic_whose_group_has_members_is_not_mapped_and_reported(stage: Stage) -> None:
    stage.groups.active = True

    report = stage.round(topic("ta", 5), topic("tb"))

    assert sorted(stage.mappings.mappings) == ["tb"]
    assert "it reads" in report.troubles[0]


def test_a_mapping_of_the_flow_with_other_tags_is_neither_changed_nor_deleted(stage: Stage) -> None:
    """A deployment creates the mapping of a newly named topic before the refresh gets the new settings."""
    stage.round(topic("ta"), topic("tb"))
    for mapping in stage.mappings.mappings.values():
        mapping["Tags"] = {"mirrorless:flow": FLOW.slug, "mirrorless:owner": "template"}
    stage.settings = replace(SETTINGS, topics=("ta.*",), mapping=SETTINGS.mapping | {"BatchSize": 7})
    stage.documents = MemoryDocuments()

    report = stage.round(topic("ta"))

    assert {name: each["BatchSize"] for name, each in stage.mappings.mappings.items()} == {"ta": 100, "tb": 100}
    assert ["but not its tags" in trouble for trouble in report.troubles] == [True, True]


def test_mappings_are_created_in_their_poller_groups_and_left_there(stage: Stage) -> None:
    pollers = {"MaximumPollers": 1_000, "PollerGroupName": "mirrorless-pollers-us-east_eu-west"}
    stage.settings = replace(SETTINGS, mapping=SETTINGS.mapping | {"ProvisionedPollerConfig": pollers})
    stage.round(topic("tb"), topic("tc"))

    reports = [stage.round(topic("ta"), topic("tb"), topic("tc")) for _ in range(2)]

    assert [(each.figures["mappings-created"], each.figures["mappings-updated"]) for each in reports] == [
        (1, 0),
        (0, 0),
    ]
    groups = {
        name: each["ProvisionedPollerConfig"]["PollerGroupName"] for name, each in stage.mappings.mappings.items()
    }
    assert {name: group[-6:] for name, group in groups.items()} == {"tb": "found1", "tc": "found1", "ta": "found2"}


def test_an_update_is_made_once_and_again_only_after_it_took(stage: Stage) -> None:
    stage.round(topic("ta"))
    stage.settings = replace(SETTINGS, mapping=SETTINGS.mapping | {"BatchSize": 7})

    stage.round(topic("ta"))
    stage.round(topic("ta"))
    stage.mappings.mappings["ta"]["BatchSize"] = 100
    report = stage.round(topic("ta"))

    assert (stage.mappings.updates, report.troubles) == (2, [])


def test_an_update_that_does_not_take_is_not_repeated_every_minute(stage: Stage) -> None:
    """Each one stops the mapping's pollers for a while."""
    stage.round(topic("ta"))
    stage.mappings.keeps_updates = False
    stage.settings = replace(SETTINGS, mapping=SETTINGS.mapping | {"BatchSize": 7})

    reports = [stage.round(topic("ta")) for _ in range(3)]

    assert stage.mappings.updates == 1
    assert [bool(report.troubles) for report in reports] == [False, True, True]
    assert "BatchSize" in reports[1].troubles[0]
