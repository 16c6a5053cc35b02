"""The sync of mappings: independent changes, within the deadline, none repeated without effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from mirrorless.chain.lane import Lane
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.ports.topics import SourceTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.discovery import discover
from mirrorless.topics.group_start import GroupStart
from mirrorless.topics.mapping_sync import MappingRefusals, MappingSync
from mirrorless.topics.topic_state import Recreated, TopicState
from tests.support.chains import FLOW, MemoryChains, reset, run
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_control
from tests.support.group_cluster import MemoryGroups
from tests.support.mappings import MemoryMappings

SETTINGS = make_control(
    "t.*",
    function_name="forward",
    mapping_template={"Enabled": True, "BatchSize": 100, "SelfManagedKafkaEventSourceConfig": {}},
)


@dataclass(slots=True)
class MemorySource:
    """The part of `mirrorless.ports.topics.SourceTopics` that is used here: where logs begin."""

    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    leaderless: frozenset[int] = frozenset()

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `SourceTopics.starts`."""
        return {place: self.log_starts.get(place, 0) for place in places if place[1] not in self.leaderless}


@dataclass(slots=True)
class Stage:
    """Rounds of one flow's sync."""

    mappings: MemoryMappings = field(default_factory=MemoryMappings)
    groups: MemoryGroups = field(default_factory=MemoryGroups)
    source: MemorySource = field(default_factory=MemorySource)
    chains: MemoryChains = field(default_factory=MemoryChains)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    settings: FlowSettings = SETTINGS
    seconds: float = 60.0
    minute: int = 0

    def round(self, *topics: TopicState, returning: Collection[str] = ()) -> RoundReport:
        """One round, with what earlier rounds have written."""
        report = RoundReport()
        written = (msgspec.json.decode(text, type=TopicState) for text in self.documents.read(FLOW, "topic/").values())
        seen = {topic.topic: topic for topic in topics} | {topic.topic: topic for topic in written}
        sync = MappingSync(
            settings=self.settings,
            mappings=self.mappings,
            start=GroupStart(
                settings=self.settings,
                source=cast("SourceTopics", self.source),
                source_groups=self.groups,
                chains=self.chains,
                documents=self.documents,
            ),
            documents=self.documents,
            refusals=MappingRefusals(flow=FLOW, documents=self.documents, clock=lambda: self.minute * 60_000),
        )
        found = discover(dict.fromkeys(seen, 1), self.settings)

        def deadline() -> float:
            return self.seconds

        actual = sync.read(deadline)
        sync.sync(found, seen, actual, returning=returning, unready=(), report=report, deadline=deadline)
        return report

    def stored(self) -> dict[str, TopicState]:
        """The stored states."""
        texts = self.documents.read(FLOW, "topic/").values()
        return {state.topic: state for state in (msgspec.json.decode(text, type=TopicState) for text in texts)}


GROUP = "mirrorless.us-east.eu-west.ta"


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
    assert (report.counts["mappings-created"], len(report.troubles)) == (2, 1)
    assert report.counts["mappings-refused"] == 1
    assert stage.round(topic("tb")).counts["mappings-refused"] == 0


def test_mappings_that_do_not_poll_are_counted_and_those_of_the_template_are_named(stage: Stage) -> None:
    """Those that are made in this round, or whose trouble is named already, are counted only."""
    stage.settings = replace(SETTINGS, topics=("t.*", "named"))
    stage.round(topic("ta"), topic("named"))
    stage.mappings.mappings["ta"]["State"] = "Disabled"

    report = stage.round(topic("ta"), topic("tb"), topic("named"))

    assert report.counts["mappings-not-polling"] == 3
    assert [each for each in report.troubles if "does not poll" in each] == [
        "the mapping of named does not poll: it has no mapping"
    ]


def test_mappings_that_the_flow_wants_disabled_are_not_missed(stage: Stage) -> None:
    stage.settings = replace(SETTINGS, mapping_template=SETTINGS.mapping_template | {"Enabled": False})

    assert stage.round(topic("ta")).counts["mappings-not-polling"] == 0


def test_a_refused_mapping_is_tried_again_after_ever_longer_pauses_and_reported_in_each_round(stage: Stage) -> None:
    stage.mappings.refused = "ta"
    tried = []
    for stage.minute in range(250):
        attempts = stage.mappings.attempts
        report = stage.round(topic("ta"), topic("tb"))
        tried += [stage.minute] * (stage.mappings.attempts - attempts - (stage.minute == 0))
        assert sum("ta" in trouble for trouble in report.troubles) == 1
        assert stage.mappings.attempts != attempts or report.counts["mappings-refused"] == 1

    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    stage.mappings.refused = ""
    stage.minute = 303
    assert stage.round(topic("ta"), topic("tb")).counts["mappings-created"] == 1
    stage.round(topic("ta"), topic("tb"))
    assert stage.documents.read(FLOW, "mapping-refusals") == {"mapping-refusals": b"{}"}


def test_a_refused_mapping_is_tried_at_once_with_other_options(stage: Stage) -> None:
    stage.mappings.refused = "ta"
    for stage.minute in (0, 1):
        stage.round(topic("ta"))
    stage.mappings.refused = ""
    stage.settings = replace(SETTINGS, mapping_template={**SETTINGS.mapping_template, "BatchSize": 99})

    assert stage.round(topic("ta")).counts["mappings-created"] == 1


def test_a_service_that_is_down_is_reported_once_and_the_next_round_continues(stage: Stage) -> None:
    stage.mappings.answers = 1
    topics = [topic(f"t{n}") for n in range(5)]

    report = stage.round(*topics)

    assert (report.counts["mappings-created"], report.counts["mappings-pending"]) == (1, 4)
    assert len(report.troubles) == 1
    stage.mappings.answers = 1000
    assert stage.round(*topics).counts["mappings-created"] == 4


def test_no_change_is_begun_when_time_runs_out(stage: Stage) -> None:
    stage.seconds = 1.0

    report = stage.round(topic("ta"), topic("tb"))

    assert stage.mappings.mappings == {}
    assert report.counts["mappings-pending"] == 2


def test_where_the_flow_begins_is_committed_before_the_mapping_can_read(stage: Stage) -> None:
    stage.mappings.answers = 0

    stage.round(topic("ta", 5, 7))

    assert stage.groups.offsets == {GROUP: {("ta", 0): OffsetAndMetadata(5), ("ta", 1): OffsetAndMetadata(7)}}
    # The round died before the mapping stood, and the group went on meanwhile: nothing is committed twice.
    stage.groups.offsets[GROUP]["ta", 0] = OffsetAndMetadata(6)
    stage.mappings.answers = 1000
    stage.round(topic("ta", 5, 7))
    assert stage.groups.offsets[GROUP]["ta", 0] == OffsetAndMetadata(6)
    assert "ta" in stage.mappings.mappings


def test_a_topic_whose_group_has_members_is_not_mapped_and_reported(stage: Stage) -> None:
    stage.groups.members.add(GROUP)

    report = stage.round(topic("ta", 5), topic("tb"))

    assert sorted(stage.mappings.mappings) == ["tb"]
    assert "only its members may commit" in report.troubles[0]


def test_a_mapping_of_the_flow_with_other_tags_is_neither_changed_nor_deleted(stage: Stage) -> None:
    """A deployment creates the mapping of a newly named topic before the refresh gets the new settings."""
    stage.round(topic("ta"), topic("tb"))
    for mapping in stage.mappings.mappings.values():
        mapping["Tags"] = {"mirrorless:flow": FLOW.slug, "mirrorless:owner": "template"}
    stage.settings = replace(SETTINGS, topics=("ta.*",), mapping_template=SETTINGS.mapping_template | {"BatchSize": 7})
    stage.documents = MemoryDocuments()

    report = stage.round(topic("ta"))

    assert {name: each["BatchSize"] for name, each in stage.mappings.mappings.items()} == {"ta": 100, "tb": 100}
    assert ["but not its tags" in trouble for trouble in report.troubles] == [True, True]


def test_mappings_are_created_in_their_poller_groups_and_left_there(stage: Stage) -> None:
    pollers = {"MaximumPollers": 1_000, "PollerGroupName": "mirrorless-pollers-us-east_eu-west"}
    stage.settings = replace(
        SETTINGS, mapping_template=SETTINGS.mapping_template | {"ProvisionedPollerConfig": pollers}
    )
    stage.round(topic("tb"), topic("tc"))

    reports = [stage.round(topic("ta"), topic("tb"), topic("tc")) for _ in range(2)]

    assert [(each.counts["mappings-created"], each.counts["mappings-updated"]) for each in reports] == [
        (1, 0),
        (0, 0),
    ]
    groups = {
        name: each["ProvisionedPollerConfig"]["PollerGroupName"] for name, each in stage.mappings.mappings.items()
    }
    assert {name: group[-6:] for name, group in groups.items()} == {"tb": "found1", "tc": "found1", "ta": "found2"}


def test_an_update_is_made_once_and_again_only_after_it_took(stage: Stage) -> None:
    stage.round(topic("ta"))
    stage.settings = replace(SETTINGS, mapping_template=SETTINGS.mapping_template | {"BatchSize": 7})

    stage.round(topic("ta"))
    stage.round(topic("ta"))
    stage.mappings.mappings["ta"]["BatchSize"] = 100
    report = stage.round(topic("ta"))

    assert (len(stage.mappings.updates), report.troubles) == (2, [])


def test_an_update_that_does_not_take_is_not_repeated_every_minute(stage: Stage) -> None:
    """Each one stops the mapping's pollers for a while."""
    stage.round(topic("ta"))
    stage.mappings.keeps_updates = False
    stage.settings = replace(SETTINGS, mapping_template=SETTINGS.mapping_template | {"BatchSize": 7})

    reports = [stage.round(topic("ta")) for _ in range(3)]

    assert len(stage.mappings.updates) == 1
    assert [bool(report.troubles) for report in reports] == [False, True, True]
    assert "BatchSize" in reports[1].troubles[0]


def test_what_no_flow_sets_is_taken_back_from_the_templates_mappings_too_and_is_said(stage: Stage) -> None:
    """With a registry, set in a console, Lambda takes the ids of schemas out of records."""
    stage.settings = replace(SETTINGS, topics=("t.*", "named"))
    stage.mappings.add("named", tags={"mirrorless:owner": "deployment"})
    group = stage.mappings.mappings["named"]["SelfManagedKafkaEventSourceConfig"]
    group["SchemaRegistryConfig"] = {"EventRecordFormat": "SOURCE"}

    reports = [stage.round(topic("named")) for _ in range(2)]

    assert stage.mappings.mappings["named"]["SelfManagedKafkaEventSourceConfig"] == group | {"SchemaRegistryConfig": {}}
    assert [report.counts["mappings-updated"] for report in reports] == [1, 0]
    assert [any("`mirrorless verify start" in each for each in report.troubles) for report in reports] == [True, False]
    assert stage.stored()["named"].mapping_update == "", "so that it is taken back again"


# A topic that was scheduled: its mapping goes on where the chains are


def test_the_group_of_a_returning_topic_is_set_to_the_positions_over_whatever_it_has(stage: Stage) -> None:
    """An old offset would deliver weeks again; a newer one would leave records out."""
    lanes = [Lane(FLOW, "ta", partition) for partition in range(4)]
    stage.chains.prepare([run(0, 40, (0, 0, 40), lane=lane) for lane in lanes[:3]])
    stage.source.log_starts["ta", 2] = 60
    stage.groups.offsets[GROUP] = {("ta", 0): OffsetAndMetadata(7), ("ta", 1): OffsetAndMetadata(50)}

    stage.round(replace(topic("ta"), partitions=4), returning={"ta"})

    assert stage.groups.offsets[GROUP] == {
        ("ta", 0): OffsetAndMetadata(40),
        ("ta", 1): OffsetAndMetadata(40),
        ("ta", 2): OffsetAndMetadata(60),  # where the log begins
    }, "and nothing for the lane without a chain: it begins at its first record"
    assert sorted(stage.mappings.mappings) == ["ta"]


def test_a_run_in_doubt_counts_from_its_beginning(stage: Stage) -> None:
    """However it is settled, the mapping leaves no record out."""
    lane = Lane(FLOW, "ta", 0)
    stage.chains.prepare([run(0, 40, (0, 0, 40), lane=lane)])
    stage.chains.confirm([run(0, 40, (0, 0, 40), lane=lane)])
    stage.chains.prepare([run(40, 90, (40, 40, 50), lane=lane, state="prepared")])

    stage.round(topic("ta"), returning={"ta"})

    assert stage.groups.offsets[GROUP] == {("ta", 0): OffsetAndMetadata(40)}


def test_a_reset_lane_returns_at_the_resets_offset(stage: Stage) -> None:
    lane = Lane(FLOW, "ta", 0)
    stage.chains.prepare([run(0, 40, (0, 0, 40), lane=lane)])
    stage.chains.confirm([run(0, 40, (0, 0, 40), lane=lane)])
    stage.chains.reset(reset(40, 0, lane=lane))
    stage.groups.offsets[GROUP] = {("ta", 0): OffsetAndMetadata(40)}

    stage.round(topic("ta"), returning={"ta"})

    assert stage.groups.offsets[GROUP] == {("ta", 0): OffsetAndMetadata(0)}


def test_a_returning_lane_that_has_not_begun_begins_where_the_flow_does(stage: Stage) -> None:
    stage.chains.prepare([run(5, 9, (5, 0, 4), lane=Lane(FLOW, "ta", 0))])
    stage.groups.offsets[GROUP] = {("ta", 1): OffsetAndMetadata(8)}

    stage.round(topic("ta", 5, 7, 3), returning={"ta"})

    assert {partition: at.offset for (_, partition), at in stage.groups.offsets[GROUP].items()} == {0: 9, 1: 8, 2: 3}


@pytest.mark.parametrize("why", ["members", "leader", "recreated", "remote"])
def test_a_returning_topic_is_not_mapped_before_its_group_can_be_set(stage: Stage, why: str) -> None:
    lane = Lane(FLOW, "ta", 0)
    stage.chains.prepare([run(0, 40, (0, 0, 40), lane=lane)])
    stage.groups.members = {GROUP} if why == "members" else set()
    stage.source.leaderless = frozenset({0} if why == "leader" else ())
    anew = Recreated(topic_id="other", waiting={0: 0})
    state = replace(
        topic("ta"),
        recreated=anew if why == "recreated" else None,
        remote_recreated=anew if why == "remote" else None,
    )

    report = stage.round(state, topic("tb"), returning={"ta"})

    assert (sorted(stage.mappings.mappings), len(report.troubles)) == (["tb"], 1)
    assert stage.groups.offsets == {}


# A source that gets other addresses


def addressed(*servers: str) -> FlowSettings:
    """The flow's settings with these addresses of the source."""
    source = {"SelfManagedEventSource": {"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": list(servers)}}}
    return replace(SETTINGS, mapping_template={**SETTINGS.mapping_template, **source})


def test_one_mapping_gets_the_other_addresses_first_and_the_others_once_it_polls(stage: Stage) -> None:
    topics = [topic(f"t{number:02}") for number in range(50)]
    stage.settings = addressed("old:9092")
    stage.round(*topics)
    stage.settings = addressed("new:9092")
    gone: list[int] = []

    for _ in range(9):
        before = dict(stage.mappings.mappings)
        report = stage.round(*topics)
        gone.append(len(before.keys() - stage.mappings.mappings.keys()))

    assert gone == [1, 0, 20, 0, 20, 0, 9, 0, 0]
    assert len(stage.mappings.mappings) == 50
    addresses = {
        each["SelfManagedEventSource"]["Endpoints"]["KAFKA_BOOTSTRAP_SERVERS"][0]
        for each in stage.mappings.mappings.values()
    }
    assert addresses == {"new:9092"}
    assert report.troubles == []
    assert not any(state.mapping_moves for state in stage.stored().values())


def test_addresses_that_do_not_answer_stop_one_topic_and_no_other(stage: Stage) -> None:
    topics = [topic(f"t{number:02}") for number in range(5)]
    stage.settings = addressed("old:9092")
    stage.round(*topics)
    stage.settings = addressed("wrong:9092")
    stage.mappings.problem = "wrong:9092"

    for _ in range(6):
        report = stage.round(*topics)

    old = [each for each in stage.mappings.mappings.values() if "old:9092" in str(each)]
    assert len(old) == 4
    assert any("the source has other addresses" in each for each in report.troubles)


def test_a_mapping_that_is_made_anew_goes_on_where_its_chains_stand(stage: Stage) -> None:
    """Whatever has become of its group's offsets, and whenever a round has ended."""
    stage.settings = addressed("old:9092")
    stage.round(topic("ta"))
    stage.chains.prepare([run(0, 40, (0, 0, 40), lane=Lane(FLOW, "ta", 0))])
    stage.settings = addressed("new:9092")
    stage.round(topic("ta"))
    assert stage.mappings.mappings == {}
    stage.groups.offsets = {}  # expired, or another cluster has none
    stage.groups.members.add(GROUP)
    assert "was not created" in stage.round(topic("ta")).troubles[0], "the pollers of the old one have not left"
    stage.groups.members.clear()

    stage.round(topic("ta"))

    assert stage.groups.offsets[GROUP] == {("ta", 0): OffsetAndMetadata(40)}
    assert sorted(stage.mappings.mappings) == ["ta"]
    stage.groups.offsets[GROUP] = {("ta", 0): OffsetAndMetadata(90)}
    stage.round(topic("ta"))
    assert stage.groups.offsets[GROUP] == {("ta", 0): OffsetAndMetadata(90)}, "once"
